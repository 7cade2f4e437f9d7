"""The parts of ``research/bench/price.py``: questions about a tree, rows beside a base."""

from __future__ import annotations

import subprocess

import pytest
from bench import bus, price
from common import tree_costs


@pytest.mark.parametrize("policy", price.POLICIES)
def test_every_policy_that_is_compared_answers_what_a_decision_costs(policy):
    assert float(tree_costs.answer(f"decision {policy} 1 16 7")) > 0
    assert float(tree_costs.answer(f"decision {policy} 20 16 7")) > 0


def test_a_choice_among_unequal_requests_is_timed():
    assert float(tree_costs.answer("choice 3")) > 0


def test_a_process_of_a_tree_answers_and_the_servers_that_are_compared_start(tmp_path):
    costs = price.Costs(price.ROOT, "interpreted")
    assert costs.ask("decision edf 1 16 7") > 0
    costs.close()
    for server in (bus.edgeserve(str(tmp_path), "echo", bus.ECHO_TOML), bus.by_hand(str(tmp_path), "echo")):
        server.stop()


def test_a_policy_that_a_tree_does_not_have_is_missing():
    assert tree_costs.answer("decision of_the_future 1 16 7") == "missing"


def test_a_row_has_medians_and_the_median_of_the_ratios_within_a_round(tmp_path, capsys):
    bench = price.Bench(tmp_path, count=3, seconds=0.1)
    row = bench.row("goodput", {"now": [1.0, 2.0, 9.0], "base": [2.0, 2.0, 3.0], "thread": [1.0, 1.0, 1.0]})
    assert (row["now"], row["base"], row["thread"]) == (2.0, 2.0, 1.0)
    assert (row["to base"], row["to thread"]) == (1.0, 2.0)  # of 0.5, 1, 3 and of 1, 2, 9
    assert capsys.readouterr().out.startswith("goodput: now 2.0, base 2.0")


def test_a_row_without_this_tree_has_no_ratios(tmp_path):
    bench = price.Bench(tmp_path, count=1, seconds=0.1)
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
