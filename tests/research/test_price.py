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


def test_the_package_of_a_commit_is_laid_out_and_removed():
    inside = subprocess.run(["git", "rev-parse", "HEAD"], cwd=price.ROOT, stdout=subprocess.PIPE)
    if inside.returncode:
        pytest.skip("this copy of the sources is no checkout of git")
    with price.tree_of("HEAD") as tree:
        assert (tree / "edgeserve" / "__init__.py").exists()
        assert not (tree / "tests").exists()
    assert not tree.exists()
