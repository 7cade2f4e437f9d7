"""The parts of ``research/bench/price.py``: questions about a tree, a quarter of a core, rows beside a base."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import price
from common import slow_core, tree_costs


@pytest.mark.parametrize("policy", price.POLICIES)
def test_every_policy_that_is_compared_answers_what_a_decision_costs(policy):
    assert float(tree_costs.answer(f"decision {policy} 1 16 7")) > 0
    assert float(tree_costs.answer(f"decision {policy} 20 16 7")) > 0


def test_a_choice_among_unequal_requests_is_timed():
    assert float(tree_costs.answer("choice 3")) > 0


def test_a_policy_that_a_tree_does_not_have_is_missing():
    assert tree_costs.answer("decision of_the_future 1 16 7") == "missing"


def test_a_row_has_medians_and_the_median_of_the_ratios_within_a_round(tmp_path, capsys):
    bench = price.Bench(tmp_path, count=3, seconds=0.1, quarter=False)
    row = bench.row("goodput", {"now": [1.0, 2.0, 9.0], "base": [2.0, 2.0, 3.0], "thread": [1.0, 1.0, 1.0]})
    assert (row["now"], row["base"], row["thread"]) == (2.0, 2.0, 1.0)
    assert (row["to base"], row["to thread"]) == (1.0, 2.0)  # of 0.5, 1, 3 and of 1, 2, 9
    assert capsys.readouterr().out.startswith("goodput: now 2.0, base 2.0")


def test_a_row_without_this_tree_has_no_ratios(tmp_path):
    bench = price.Bench(tmp_path, count=1, seconds=0.1, quarter=False)
    assert bench.row("capacity", {"thread": [5.0]}) == {"what": "capacity", "thread": 5.0}


def test_rounds_alternate():
    subjects = {"now": 0, "base": 0, "thread": 0}
    assert price.in_turn(subjects, 1) == price.in_turn(subjects, 2)[::-1] == ["now", "base", "thread"]


def test_the_package_of_a_commit_is_laid_out_and_removed():
    inside = subprocess.run(["git", "rev-parse", "HEAD"], cwd=price.ROOT, stdout=subprocess.PIPE)
    if inside.returncode:
        pytest.skip("this copy of the sources is no checkout of git")
    with price.tree_of("HEAD") as tree:
        assert (tree / "edgeserve" / "__init__.py").exists()
        assert not (tree / "tests").exists()
    assert not tree.exists()


def test_control_groups_limit_each_process_and_are_removed(tmp_path, monkeypatch):
    """A directory stands for the kernel's: it makes ``cpu.max`` in a new group, and removes a group with its files."""
    mkdir = Path.mkdir
    groups = [tmp_path / f"edgeserve-bench-{pid}" for pid in (11, 12)]

    def make(path):
        mkdir(path)
        (path / "cpu.max").write_text("max 100000")

    def remove(path):
        for file in path.iterdir():
            file.unlink()
        path.rename(tmp_path / f"removed-{path.name}")

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "rmdir", remove)
    with slow_core.a_quarter([11, 12], tmp_path) as how:
        assert "cpu.max" in how
        assert [(group / "cpu.max").read_text() for group in groups] == ["2500 10000"] * 2
        assert [(group / "cgroup.procs").read_text() for group in groups] == ["11", "12"]
    assert not any(group.exists() for group in groups)


def test_without_control_groups_a_process_is_stopped_now_and_then_and_runs_on_at_the_end(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            with slow_core.a_quarter([process.pid], tmp_path / "none") as how:
                assert "SIGSTOP" in how
                until = time.monotonic() + 30
                while state(process.pid) != "T":
                    assert time.monotonic() < until, "it was never stopped"
            assert state(process.pid) != "T"
        finally:
            process.kill()


def state(pid):
    """The letter that the kernel gives: T where it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
