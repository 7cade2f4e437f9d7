"""A deadline that a refusal names is kept: where it was too short before, the next ones are longer."""

from __future__ import annotations

import json

import pytest
from cores import run_interpreted

KEPT = """
import json
from bench import promises
from edgeserve.sched.requests.promises import Promises
def kept():
    found = promises.count("{name}", "and a rank").figures()
    return found["kept_percent"], found["asked_again"]
learnt = kept()
Promises.ended = lambda self, app, in_time: None
print(json.dumps([learnt, kept()]))
"""
"""The percentage in time of requests that came again, and their number; the same where nothing is learnt from them."""

FOUND = """
import json
from bench import promises
print(json.dumps(promises.count("{name}", "and a rank").figures()))
"""


@pytest.mark.worlds
@pytest.mark.parametrize(("name", "least"), [("dev/steps/1", 90.0), ("dev/unequal/2", 88.0)])
def test_promises_are_kept_more_often_than_without_what_broken_ones_teach(name, least):
    (learnt, again), (unlearnt, _) = json.loads(run_interpreted(KEPT.format(name=name)))
    assert again > 20
    assert learnt >= least
    assert unlearnt < learnt - 3.0


@pytest.mark.worlds
@pytest.mark.parametrize("name", ["dev/apps/0", "dev/camera/0", "dev/wrong/1"])
def test_nearly_all_promises_are_kept_and_nearly_all_refusals_have_a_number(name):
    found = json.loads(run_interpreted(FOUND.format(name=name)))
    assert found["asked_again"] > 20
    assert found["kept_percent"] >= 93.0
    assert found["unnumbered_percent"] <= 20.0
