"""A deadline that a refusal names is kept: where it was too short before, the next ones are longer."""

from __future__ import annotations

import pytest
from bench import promises
from cores import interpreted_only

from edgeserve.sched.requests.promises import Promises

WAY = "and a rank"


def kept(name):
    """Percent in time of those that asked again, and how many they were."""
    found = promises.count(name, WAY).figures()
    return found["kept_percent"], found["asked_again"]


@interpreted_only
@pytest.mark.worlds
@pytest.mark.parametrize(("name", "least"), [("dev/steps/1", 80.0), ("dev/apps/0", 88.0), ("dev/wrong/1", 88.0)])
def test_promises_are_kept_more_often_than_without_what_broken_ones_teach(name, least, monkeypatch):
    learnt, again = kept(name)
    assert again > 20 and learnt >= least
    monkeypatch.setattr(Promises, "ended", lambda self, app, in_time: None)
    assert kept(name)[0] < learnt - 5.0
