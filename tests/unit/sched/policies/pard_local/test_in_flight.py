"""One lane: the ends of cohorts that need no schedule are those of the schedule (``pard_local``)."""

from __future__ import annotations

import random

import pytest
from cores import interpreted_only
from exact_device import MS, Device, ask, chain, fan, model

from edgeserve.sched.policies.pard_local.in_flight import InFlight


def ensemble():
    """Three models side by side, and a second app that shares the lane."""
    names = ("a", "b", "c")
    return {
        "lane": {"l": {}},
        "model": {name: model(3, 2, 4) for name in (*names, "vote")},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {
            "app": {"slo": "100ms", "node": [{"name": name, "after": []} for name in names]},
            "other": {"slo": "60ms", "model": "vote"},
        },
    }


def served(table, seed):
    """What becomes of drawn requests, up to four at a time, and every batch on the way."""
    draw = random.Random(f"one lane/{seed}")
    device, number = Device(table), 0
    apps = list(table["app"])
    for _ in range(12):
        at_ms = device.now_ns // MS
        for _ in range(draw.choice((1, 1, 2, 4))):
            number += 1
            device.parts["look"] = draw.randrange(0, 5)
            klass = draw.choice(("normal", "normal", "critical"))
            device.ask(ask(number, at_ms + draw.randrange(10, 120), at_ms, draw.choice(apps), klass=klass))
        at_ms += draw.randrange(1, 60)
        device.advance(at_ms)
        device.now_ns = at_ms * MS
    device.advance()
    return device.batches, device.ends


@interpreted_only
@pytest.mark.parametrize("table", [chain, fan, ensemble])
def test_on_one_lane_cohorts_end_one_after_the_other_as_in_a_schedule(table, monkeypatch):
    quick = [served(table(), seed) for seed in range(3)]
    monkeypatch.setattr(InFlight, "_one_after_the_other", lambda *args: False)
    assert [served(table(), seed) for seed in range(3)] == quick
    assert any(outcome == "completed" for _, ends in quick for outcome, _ in ends.values())
