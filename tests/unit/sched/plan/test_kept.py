"""Offers that the plan keeps until something changes decide as if they were made anew at each question."""

from __future__ import annotations

import json

import pytest
from cores import run_interpreted
from hand_world import Driver, rested_profile

from edgeserve.sched.protocol.events import RequestArrived, RequestCancelled

WORLDS = """
import json
from edgeserve.sched.plan.lane_plan import LanePlan
from edgeserve.testing.soak.run import soak
def digests():
    return [soak(seed, policies=("plan",), **{kwargs}).digest for seed in range({first}, {first} + {count})]
kept = digests()
asked = []
def anew(name):
    real = getattr(LanePlan, name)
    def call(self, *args):
        asked.append(name)
        self.forget()
        return real(self, *args)
    setattr(LanePlan, name, call)
for name in ("plan", "bid", "cut", "next_wakeup_ns"):
    anew(name)
print(json.dumps([kept, digests(), sorted(set(asked))]))
"""

LONE = """
import json
from edgeserve.sched.plan.companies import Companies
from edgeserve.sched.plan.source import Source
from edgeserve.sched.plan.unequal import Unequal
from edgeserve.testing.soak.run import soak
alone = []
def digests():
    return [soak(seed, policies=("plan",), **{kwargs}).digest for seed in range({first}, {first} + {count})]
for kind in (Companies, Unequal):
    def call(self, lane, board, real=kind.lone):
        found = real(self, lane, board)
        alone.extend([self.kind] * (found is not None))
        return found
    kind.lone = call
quick = digests()
for kind in (Companies, Unequal):
    kind.lone = Source.lone
print(json.dumps([quick, digests(), sorted(set(alone))]))
"""


@pytest.mark.parametrize(
    ("kwargs", "count"),
    [({}, 4), pytest.param({"hardware": True, "pair": True}, 8, marks=pytest.mark.worlds)],
    ids=str,
)
def test_what_waits_alone_runs_as_if_it_were_compared(kwargs, count):
    code = LONE.replace("{kwargs}", repr(kwargs)).replace("{first}", "400").replace("{count}", str(count))
    quick, compared, alone = json.loads(run_interpreted(code))
    assert quick == compared
    assert "companies" in alone


@pytest.mark.worlds
@pytest.mark.parametrize(
    "kwargs", [{}, {"pair": True}, {"deep": True}, {"hardware": True}, {"language": True}], ids=str
)
def test_what_is_kept_decides_as_if_it_were_made_anew(kwargs):
    code = WORLDS.replace("{kwargs}", repr(kwargs)).replace("{first}", "300").replace("{count}", "12")
    kept, fresh, asked = json.loads(run_interpreted(code))
    assert kept == fresh
    assert {"plan", "bid", "next_wakeup_ns"} <= set(asked)


def waiting():
    """Batches of two cheap apps, 2 to 6, were made and have lost to a dear request, the seventh, which runs."""
    values = {"dear": 5.0, "cheap": 0.1, "least": 0.01}
    apps = {name: {"model": name, "slo": "10s", "value": value} for name, value in values.items()}
    driver = Driver({name: {size: 4 + size for size in (1, 2, 4, 8)} for name in apps}, apps, policy="plan")
    driver.arrive("dear")
    driver.arrive("cheap", count=4)
    driver.arrive("least")
    driver.arrive("dear")
    driver.finish()
    assert driver.work().model == "dear"
    return driver


def test_a_batch_that_was_kept_has_who_came_since():
    driver = waiting()
    driver.arrive("cheap", count=2)
    driver.finish()
    assert [job.request_id for job in driver.work().jobs] == [2, 3, 4, 5, 8, 9]


def test_a_batch_that_was_kept_has_nobody_who_left():
    driver = waiting()
    driver.step(RequestCancelled(2))
    driver.finish()
    assert [job.request_id for job in driver.work().jobs] == [3, 4, 5]


@pytest.mark.parametrize(("hard", "winner"), [(1.5, "soft"), (1.7, "hard")])
def test_a_batch_that_was_kept_counts_less_the_later_its_late_request_is(hard, winner):
    """At 175 ms what the late request keeps of its worth is 100 / (100 + 85); when its batch was made, at 110 ms, it
    was 100 / (100 + 20)."""
    apps = {
        "first": {"model": "first", "slo": "1s"},
        "dear": {"model": "dear", "value": 10.0},
        "soft": {"model": "soft", "on_late": "answer"},
        "hard": {"model": "hard", "value": hard},
    }
    driver = Driver({name: {1: 10, 2: 10} for name in apps}, apps, policy="plan")
    driver.arrive("first")
    driver.arrive("soft")
    for app in ("dear", "soft", "hard"):
        driver.arrive(app, at=100)
    driver.finish(at=110)
    assert driver.work().model == "dear"
    driver.finish(at=175)
    assert driver.work().model == winner


def test_a_batch_that_was_kept_for_a_start_after_a_rest_is_made_anew_without_one():
    """At 2 s a batch would start 100 ms late: too late for the first of four, beside others. 20 ms later the lane is
    awake."""
    times = {1: 20, 4: 60}
    driver = Driver(
        {"m": times, "dear": {1: 20}, "least": {1: 20}},
        {"a": "m", "dear": {"model": "dear", "value": 50.0}, "least": {"model": "least", "value": 0.01}},
        policy="plan",
        profiles=[rested_profile("m", times, 120)],
    )
    driver.now_ms = 2000
    asked = (("dear", 500), ("a", 155), *[("a", 900)] * 3, ("least", 5000))
    driver.step(*[RequestArrived(driver.request(app, slo)) for app, slo in asked])
    assert driver.work().model == "dear"
    driver.finish(at=2020)
    assert (driver.work().model, len(driver.work().jobs)) == ("m", 4)
