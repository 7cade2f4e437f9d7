"""``pard_local`` with jobs of unequal work: what hints tell of it, before a request begins or on its way."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, chain, fan, model

from edgeserve.sched.protocol.events import JobResult


class Teller(Device):
    """Its nodes say hints, by node or by node and part; batches take what they are expected to, by these hints."""

    def __init__(self, table):
        super().__init__(table)
        self.result_hints = {}

    def _result(self, job):
        return JobResult(
            job,
            parts=self.parts.get(job.node),
            route=self.routes.get(job.node),
            hints=self.result_hints.get((job.node, job.part), self.result_hints.get(job.node)),
        )

    def pipeline(self):
        return self.scheduler.policies[0]._pipeline_of["app"]


def slow_second(**more):
    """a: 4 + 2 per job, b: 20 per job."""
    return chain(second=model(0, 20), **more)


# --- what work is worth ---------------------------------------------------------------------------------------------


# --- what is left -----------------------------------------------------------------------------------------------------


def turned():
    """A fan-out of two parts, each of which is turned before its work is done."""
    table = fan()
    table["model"]["turn"] = model(1, 0, 1)
    look, part, end = table["app"]["app"]["node"]
    table["app"]["app"]["node"] = [look, {"name": "turn"}, part, end]
    device = Teller(table)
    device.parts["look"] = 2
    return device


@pytest.mark.parametrize(
    ("request_says", "node", "says", "over_milli"),
    [
        (None, None, None, 0),
        (None, ("turn", (1,)), 5.0, 2 * 4000),  # one part told, and each of the two expected ones is taken for the same
        (None, "look", 2.0, 2 * 1000),
        (3.0, None, None, 2 * 2000),
        (3.0, ("turn", (1,)), 5.0, 2 * 2000),
    ],
)  # what the request said is what was learnt
def test_what_was_said_of_the_work_is_expected_of_the_next_ones(request_says, node, says, over_milli):
    device = turned()
    device.result_hints.update({node: {"part.work": says}} if node else {})
    device.ask(ask(1, 1000, hints={"part.work": request_says} if request_says else None))
    device.advance()
    assert device.ends[1][0] == "completed"
    assert device.pipeline().template[:2] == ([1000, 2000, 2000, 1000], [0, 0, over_milli, 0])


# --- decisions --------------------------------------------------------------------------------------------------------


def test_a_request_that_says_it_is_dear_is_refused_when_it_cannot_make_it():
    device = Teller(slow_second())
    device.ask(ask(1, 60, hints={"b.work": 2.0}), ask(2, 60, hints={"b.work": 4.0}), ask(3, 60, hints={"work": 2.0}))
    assert device.ends == {2: ("rejected", 0.0)}  # 6 + 80; the third: 4 + 4 + 40


def test_a_node_that_finds_much_work_ends_the_request_before_it_costs_anything():
    device = Teller(slow_second())
    device.result_hints["a"] = {"b.work": 4.0}
    device.ask(ask(1, 60))
    device.advance()
    assert device.ends == {1: ("dropped", 6.0)} and [batch[1] for batch in device.batches] == ["a"]


def test_a_node_that_finds_little_work_makes_room_for_another():
    def play(said):
        device = Teller(slow_second(cohorts=1))
        device.result_hints["a"] = said
        for number in range(1, 11):
            device.ask(ask(number, device.now_ns // MS + 500, device.now_ns // MS))
            device.advance()
        at_ms = device.now_ns // MS
        device.ask(*[ask(number, at_ms + 60, at_ms) for number in range(20, 26)])
        device.advance()
        return sum(device.ends[number][0] == "completed" for number in range(20, 26))

    assert play({}) == 2  # 4 + 2 * 2 + 2 * 20 = 48
    assert play({"b.work": 0.5}) == 4  # 4 + 4 * 2 + 4 * 10 = 52


def test_the_bid_expects_the_time_of_the_work_that_is_known():
    device = Teller(slow_second())
    device.result_hints["a"] = {"b.work": 2.5}
    device.ask(ask(1, 500))
    device.advance()
    assert device.ends == {1: ("completed", 6.0 + 50.0)}


def test_nothing_said_nothing_changes():
    plain, told = Teller(slow_second()), Teller(slow_second())
    told.result_hints["a"] = {"b.work": 1.0}
    for device in (plain, told):
        for number in range(1, 30):
            device.ask(ask(number, 7 * number + 90, 7 * number))
            device.advance(7 * number)
        device.advance()
    assert plain.batches == told.batches and plain.ends == told.ends
