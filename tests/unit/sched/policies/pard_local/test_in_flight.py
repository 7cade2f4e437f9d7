"""When cohorts in flight end, and when each of their members is answered (``pard_local``)."""

from __future__ import annotations

import random

import pytest
from cores import interpreted_only
from exact_device import MS, Device, ask, chain, fan, model

from edgeserve.sched.policies.pard_local import pard_local
from edgeserve.sched.policies.pard_local.in_flight import Forecast, InFlight


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


def beside_an_urgent_neighbour():
    """Two pipelines over two lanes that wait for an app of higher value, and an app on the lane of their functions."""
    lanes = {"gpu": {"lanes": ["gpu"]}, "host": {"lanes": ["host"]}}
    return {
        "lane": {"gpu": {}, "host": {}},
        "model": {
            "a": model(6, 2, 4, **lanes["gpu"]),
            "f": model(3, 2, 2, **lanes["host"]),
            "b": model(2, 2, 4, **lanes["gpu"]),
            "c": model(9, 1, 2, **lanes["gpu"]),
            "urgent": model(4, 0, 1, **lanes["gpu"]),
            "read": model(12, 0, 1, **lanes["host"]),
        },
        "policy": {"p": {"kind": "pard_local"}, "q": {"kind": "edf"}},
        "app": {
            "app": {"slo": "200ms", "node": [{"name": "a"}, {"name": "f"}, {"name": "b"}], "policy": "p"},
            "other": {"slo": "200ms", "node": [{"name": "f"}, {"name": "a"}, {"name": "c"}], "policy": "p"},
            "neighbour": {"slo": "30ms", "model": "urgent", "policy": "q", "value": 20.0},
            "files": {"slo": "200ms", "model": "read", "policy": "q"},
        },
    }


def uneven(seed):
    """Drawn requests on a device whose batches take one to two times what is expected."""
    draw = random.Random(f"two lanes/{seed}")
    each, counts, files = ((0.2, (1, 1, 3), 0.05), (0.07, (1, 3, 5), 0.1))[seed % 2]
    device, number = Device(beside_an_urgent_neighbour()), 0
    for at_ms in range(0, 900, 5):
        device.advance(at_ms)
        device.now_ns = at_ms * MS
        device.slower = draw.choice((1, 1, 1, 1.3, 2)) if at_ms % 100 == 0 else device.slower
        for app, chance in (("app", each), ("other", each), ("files", files), ("neighbour", 0.6)):
            if draw.random() < chance:
                count = draw.choice(counts) if app in ("app", "other") else 1
                work = {"b.work": 2.0} if draw.random() < 0.2 else None
                due_ms = at_ms + (draw.randrange(15, 30) if app == "neighbour" else draw.randrange(40, 250))
                device.ask(*[ask(number + index, due_ms + index, at_ms, app, hints=work) for index in range(count)])
                number += count
    device.advance()
    assert any(outcome == "completed" for outcome, _ in device.ends.values())


@interpreted_only
def test_a_cohort_on_free_lanes_takes_as_long_as_when_it_was_tried_before(monkeypatch):
    trials = []

    class Again(Forecast):
        """Tries each cohort twice, the second time without what is known."""

        __slots__ = ("_fresh",)

        def __init__(self, *args):
            super().__init__(*args)
            with monkeypatch.context() as patch:
                patch.setattr(InFlight, "trials_on_free_lanes", lambda *args: None)
                self._fresh = Forecast(*args)

        def trial_of_equals(self, each, count, most_ns):
            found = super().trial_of_equals(each, count, most_ns)
            fresh = self._fresh.trial_of_equals(each, count, most_ns)
            assert found == fresh
            trials.append(found)
            return found

    monkeypatch.setattr(pard_local, "Forecast", Again)
    for seed in range(4):
        uneven(seed)
    assert len(trials) > 400


def one_model():
    """Batches of two: the first two members are answered before the others."""
    table = chain()
    table["model"], table["app"]["app"]["node"] = {"a": model(6, 2, 2)}, [{"name": "a"}]
    return table


def function_at_the_end():
    """A function that takes requests one after the other."""
    return {
        "lane": {"gpu": {}, "host": {}},
        "model": {"a": model(10, 2, lanes=["gpu"]), "f": model(6, 0, 1, lanes=["host"])},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {"app": {"slo": "200ms", "node": [{"name": "a"}, {"name": "f"}]}},
    }


def two_at_the_end():
    """Nobody is answered before both models have run, here one after the other."""
    table = chain()
    table["model"] = {"a": model(4, 2), "b": model(4, 2, 1), "c": model(3, 2, 1)}
    table["app"]["app"]["node"] = [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["a"]}]
    return table


def expected_ms(device):
    """When the policy expects to answer each open request."""
    policy, state = device.scheduler.policies[0], device.scheduler.state
    ends = {number: policy.expected_end(request, None, state.board) for number, request in state.requests.items()}
    return {number: end.deadline_ns_min / MS for number, end in ends.items()}


def play(table):
    """Six requests and no more: what was expected whenever a batch had ended, and when each was answered."""
    device = Device(table)
    device.ask(*[ask(number, 300 - number) for number in range(1, 7)])  # the last is due first
    expected = []
    while device.running:
        expected.append(expected_ms(device))
        device.advance(device.running[0][0] / MS)
    ends = {number: at_ms for number, (_, at_ms) in device.ends.items()}
    assert len(ends) == 6
    return expected, ends


@pytest.mark.parametrize("table", [chain, one_model, function_at_the_end])
def test_each_is_answered_when_it_was_expected_to_be(table):
    expected, ends = play(table())
    for known in expected:
        assert known == {number: ends[number] for number in known}


def test_where_two_models_answer_all_are_expected_with_the_last():
    expected, ends = play(two_at_the_end())
    for known in expected:
        assert known == dict.fromkeys(known, max(ends.values()))
