"""``pard_local`` under noise: what it believes of times, and the room it leaves for what it cannot know."""

from __future__ import annotations

from statistics import NormalDist

import pytest
from exact_device import MS, Device, ask, chain, fan, model

from edgeserve.sched.policies.pard_local.choice import deviations_milli


def test_a_second_cohort_leaves_those_in_flight_room_for_more_parts():
    def play(margin):
        table = fan(margin=margin)
        table["lane"] = {"l": {}, "host": {}}
        table["model"] = {
            "look": model(5, 0, lanes=["l"]),
            "cut": model(3, 0, lanes=["host"]),
            "part": model(0, 4, 4, lanes=["l"]),
            "end": model(1, 0, lanes=["host"]),
        }
        table["app"]["app"]["node"] = [
            {"name": "look"},
            {"name": "cut", "fan_out": True},
            {"name": "part"},
            {"name": "end", "gather": True},
        ]
        device = Device(table)
        pipeline = device.scheduler.policies[0]._pipeline_of["app"]
        for count in (2, 6) * 20:
            pipeline.observe_parts(pipeline.nodes[1], count)
        device.ask(ask(1, 34))  # 5 + 3 + 4 * 4 + 1 = 25; with two parts more 33
        device.now_ns = 1 * MS
        device.ask(ask(2, 90))  # looking at it while the host cuts takes two of the milliseconds that are left
        device.advance(5)
        return sorted(batch[1:] for batch in device.batches if batch[0] > 0)

    assert play(0.0) == [("cut", [1]), ("look", [2])]
    assert play(0.02) == [("cut", [1])]


# --- how sure is sure -------------------------------------------------------------------------------------------------


def test_the_chance_that_is_asked_for_is_the_share_that_is_left():
    for share in (0.5, 0.6, 0.75, 0.9, 0.95):
        assert deviations_milli(round(share * 1000), 1000) == pytest.approx(1000 * NormalDist().inv_cdf(share), abs=1)
    assert deviations_milli(1000, 1000) == 1645  # nothing is ever sure
    assert deviations_milli(0, 1000) == deviations_milli(499, 1000) == 0


def unsure(device, share):
    """Let the device believe that the second model's batches miss by this share."""
    places = device.scheduler.policies[0]._stage_costs
    usual = places.usual("b", "l", device.scheduler.state.board)
    usual._surprise_ppm = round(share * share * 1_000_000)


def two(slo_ms):
    """Two requests that go alone, 10 + 20 ms each: the first begins, the second waits for the lane."""
    device = Device(chain(second=model(20, 0, 1), limit=1, margin=0.000001, cohorts=1))
    device.ask(ask(1, slo_ms))
    unsure(device, 0.1)  # it has begun when this shows: 2 ms
    return device


def test_who_has_most_of_the_work_before_him_must_be_nearly_sure_while_others_wait():
    def play(due_ms, waiting):
        device = two(due_ms)
        if waiting:
            device.ask(ask(2, 200))
        device.advance()
        return device.ends[1][0]

    assert play(27, waiting=False) == "completed"  # 6 + 20 = 26, and nobody else needs the lane
    assert play(27, waiting=True) == "dropped"  # three quarters lie ahead: 674 thousandths of 2 ms
    assert play(28, waiting=True) == "completed"


def test_one_that_began_on_the_risk_is_not_given_up_for_it():
    device = Device(chain(second=model(20, 0, 1), limit=1, margin=0.000001, cohorts=1))
    unsure(device, 0.1)
    device.ask(ask(1, 27))  # 26, and its margin is three more: it begins since the lane would be idle
    device.ask(ask(2, 200))
    device.advance()
    assert device.ends[1] == ("completed", 26.0)


def test_the_margin_is_no_larger_than_what_batches_miss_their_time_by():
    def play(measured):
        device = Device(chain(margin=0.2))
        for number in range(100, 100 + measured):
            device.now_ns += 50 * MS  # nobody who was just answered asks again
            at_ms = device.now_ns // MS
            device.ask(ask(number, at_ms + 1000, at_ms))
            device.advance()
        device.now_ns += 50 * MS
        at_ms = device.now_ns // MS
        device.ask(ask(1, at_ms + 1000, at_ms))  # holds the lane for 10 ms
        device.now_ns += MS
        device.ask(ask(2, at_ms + 25, at_ms + 1), ask(3, at_ms + 25, at_ms + 1))  # together 14 ms, a fifth more 16.8
        device.advance(at_ms + 10)
        return device.batches[-1][2]

    assert play(0) == [2]
    assert play(20) == [2, 3]  # each took exactly what was believed
