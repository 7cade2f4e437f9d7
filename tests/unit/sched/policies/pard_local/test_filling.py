"""Requests with different numbers of parts (``pard_local``): who fills a cohort's last batch, what cutting in costs."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, model

from edgeserve.sched.policies.pard_local.filling import filled_size
from edgeserve.sched.protocol.events import JobResult


class Pages(Device):
    """A function of 1 ms on a host cuts each request into the number of parts that ``pages`` says. Parts run on the
    device in batches of 1 (10 ms) or 4 (16 ms), unless ``part`` is another model; each request ends with one job."""

    def __init__(self, pages, part=None, end=None, **app):
        super().__init__(
            {
                "lane": {"gpu": {}, "host": {}},
                "model": {
                    "cut": model(1, 0, 1, lanes=["host"]),
                    "part": part
                    or {
                        "engine": "synthetic",
                        "batch": [1, 4],
                        "lanes": ["gpu"],
                        "expected": {"1": "10ms", "4": "16ms"},
                    },
                    "end": end or model(1, 0, lanes=["gpu"]),
                },
                "policy": {"p": {"kind": "pard_local"}},
                "app": {
                    "app": {
                        "slo": "200ms",
                        "node": [{"name": "cut", "fan_out": True}, {"name": "part"}, {"name": "end", "gather": True}],
                        **app,
                    }
                },
            }
        )
        self.pages = pages

    def _result(self, job):
        return JobResult(job, parts=self.pages[job.request_id]) if job.node == "cut" else JobResult(job)

    def begin(self, first, *others):
        """The first request has the device when the others come."""
        self.ask(first)
        self.now_ns = 1 * MS
        self.advance(1)
        self.now_ns = 2 * MS
        self.ask(*others)
        self.advance(100)
        return {at: jobs for at, name, jobs in self.batches if name == "part"}


def test_parts_of_the_next_request_fill_the_last_batch_of_a_cohort():
    # Six ms more for two parts, which would take eight as their share of a full batch.
    device = Pages({1: 5, 2: 2})
    assert device.begin(ask(1, 200), ask(2, 200, 2)) == {1.0: [1, 1, 1, 1], 17.0: [1, 2, 2]}
    assert [outcome for outcome, _ in device.ends.values()] == ["completed", "completed"]


def test_one_part_is_no_reason_to_run_a_larger_batch():
    assert Pages({1: 5, 2: 1}).begin(ask(1, 200), ask(2, 200, 2)) == {1.0: [1, 1, 1, 1], 17.0: [1], 28.0: [2]}


def test_nobody_of_the_cohort_is_made_late_for_others():
    assert Pages({1: 5, 2: 2}).begin(ask(1, 30), ask(2, 200, 2))[17.0] == [1]  # it ends at 28, with them at 34
    assert Pages({1: 5, 2: 2}).begin(ask(1, 34), ask(2, 200, 2))[17.0] == [1, 2, 2]


def test_a_place_that_costs_nothing_is_given_away_even_without_time_to_spare():
    assert Pages({1: 7, 2: 2}).begin(ask(1, 34), ask(2, 200, 2))[17.0] == [1, 1, 1, 2]


def test_of_those_that_wait_the_tightest_with_hope_goes_first_and_nobody_of_a_less_urgent_class():
    # The next cohort is expected to end at 51. 2 can be in time only if it is served first.
    device = Pages({1: 6, 2: 2, 3: 1, 4: 1, 5: 2})
    begun = device.begin(ask(1, 200), ask(2, 46, 2), ask(3, 90, 2), ask(4, 80, 2))
    assert begun[17.0] == [1, 1, 3, 4]
    device = Pages({1: 6, 2: 2})
    assert device.begin(ask(1, 200, klass="normal"), ask(2, 200, 2, klass="background"))[17.0] == [1, 1]


@pytest.mark.parametrize(
    ("count", "more", "slack_ms", "size"),
    [(1, 3, 6, 4), (1, 3, 5, 1), (1, 1, 99, 1), (1, 2, 99, 4), (2, 0, 0, 4), (4, 0, 99, 4)],
)
def test_a_larger_batch_is_worth_it_for_enough_others_in_time(count, more, slack_ms, size):
    device = Pages({})
    latency = device.scheduler.state.board.latency("part", "gpu")
    assert filled_size(count, more, latency, slack_ms * MS) == size
