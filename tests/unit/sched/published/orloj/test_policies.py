"""Decisions of ``orloj``: Algorithm 1, literally, as an oracle; its readings, its drops, several deadlines."""

from __future__ import annotations

import re

import pytest
from hand_world import MS, Driver, rested_profile
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.published.orloj.lengths import LengthWindow, lengths_of
from edgeserve.sched.published.orloj.model import PRIOR_LEN
from edgeserve.sched.published.orloj.slack import score_of

SIZES = (1, 2, 4, 8)
SHORT = [20 + 0.1 * index for index in range(101)]  # times alone of app short, ms: uniform from 20 to 30
LONG = [60 + 0.2 * index for index in range(101)]  # of app long: uniform from 60 to 80
APPS = {"short": "m", "long": "m"}
FIXED = 10


def dynamic(**options):
    """One model of fixed part 10 ms; what a request of each app takes beyond it is known from 101 samples."""
    models = {"m": {size: FIXED + 30 * size for size in SIZES}}
    world = Driver(models, APPS, policy={"orloj": {"sample": 0.0, **options}})
    world.scheduler.state.latency["m", "cpu0"].alone = {
        app: tuple(round(time_ms * MS) for time_ms in times) for app, times in (("short", SHORT), ("long", LONG))
    }
    return world


def burst(world, *asked, **fields):
    """Requests that arrive together: (app, SLO in ms) each."""
    return world.step(*[RequestArrived(world.request(app, slo, **fields)) for app, slo in asked])


def known(shares):
    latency = dynamic().scheduler.state.latency["m", "cpu0"]
    windows = {
        app: LengthWindow(512, [round(time_ms * MS) for time_ms in times])
        for app, times in (("short", SHORT), ("long", LONG))
    }
    return lengths_of(latency, windows, shares)


def started(actions):
    runs = [action for action in actions if isinstance(action, RunBatch)]
    return sorted(job.request_id for job in runs[0].jobs) if runs else []


def test_a_size_is_filled_with_those_that_are_expected_in_time_in_it():
    # One in three may be long: a batch of two is expected to take some 71 ms, one of four 202.
    assert len(started(burst(dynamic(estimate="own"), *[("short", 120)] * 4))) == 2


def test_what_is_answered_late_anyway_is_never_dropped():
    world = dynamic()
    assert started(burst(world, ("long", 30), on_late="answer")) == [1]
    world.finish(at=70)
    assert world.outcome(1) == "completed"


ASKED = st.lists(st.tuples(st.sampled_from(["short", "long"]), st.integers(15, 700)), min_size=1, max_size=12)


@given(ASKED, st.sampled_from(["own", "common"]), st.sampled_from(["largest", "urgent", "single"]))
def test_decisions_are_those_of_algorithm_1(asked, estimate, reading):
    world = dynamic(estimate=estimate, reading=reading)
    shares = {"short": 0.5, "long": 0.5}
    for index, (app, _) in enumerate(asked):  # as the policy counts them before its first table
        step = 1 / (PRIOR_LEN + index)
        shares = {name: share * (1 - step) + (name == app) * step for name, share in shares.items()}
    lengths = known(shares)
    rows = [(request_id, app, slo * MS) for request_id, (app, slo) in enumerate(asked, 1)]

    def batch(app, size):
        return lengths.expected(app if estimate == "own" else None, size, size)

    feasible = {size: [row for row in rows if row[2] >= -(-batch(row[1], size).mean_ns() // 1)] for size in SIZES}
    order = sorted([(min(row[2] for row in feasible[size]), size) for size in SIZES if feasible[size]])
    if reading == "largest":
        order = sorted(order, reverse=True)
    elif reading == "urgent":
        order = sorted(order, key=lambda item: (item[0], -item[1]))
    size = next((size for _, size in order if len(feasible[size]) >= size), 0)
    dropped = {row[0] for row in rows} - {row[0] for row in feasible[1]}
    done = burst(world, *asked)
    assert {request_id for request_id, end in world.ends.items() if end.outcome == "dropped"} == dropped
    found = started(done)
    assert len(found) == size
    rate = 1e-4 / MS

    def score(row):
        return score_of(lengths, row[1] if estimate == "own" else None, size, size, rate, 1.0).p(row[2])

    if size:
        best = sorted([score(row) for row in feasible[size]], reverse=True)[:size]
        assert sorted([score(row) for row in rows if row[0] in found], reverse=True) == pytest.approx(best)


def test_several_deadlines_add_their_scores():
    """Two requests with the same last deadline; for one an earlier step of cost is about to pass, for the other it
    has passed: the first is more urgent."""
    for steps, first in (([], 2), ([[60, 0.9]], 3)):
        world = dynamic(cost_steps=steps)
        burst(world, ("long", 75))
        world.arrive("short", at=1, slo=150)  # 2: its step passes while the lane is busy
        world.arrive("short", at=61, slo=90)  # 3: the same last deadline, and its step is ahead
        assert started(world.finish(at=80)) == [first]  # 71 ms left: a batch of two may take longer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reading": "both"}, r"\[policy.orloj\] reading = 'both': expected one of .largest., .urgent., .single."),
        ({"estimate": "mine"}, "estimate = 'mine': expected one of .own., .common."),
        ({"cost_steps": [[5, 0.7], [9, 0.7]]}, "cost_steps add up to 1.4: at most 1"),
        *[
            (
                {"cost_steps": [[9, 0.1], row]},
                f"cost_steps has {re.escape(repr(row))}: expected "
                r"\[milliseconds after arrival, cost\], both above 0",
            )
            for row in ([5], [5, 0.1, 1], 5, ["5", 0.1], [5, "0.1"], [0, 0.1], [-1, 0.1], [5, 0], [5, -0.5])
        ],
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        dynamic(**options)


def test_where_a_job_is_expected_to_end():
    """As :meth:`plan` judges: by the mean of its class, on the lane where it ends first, or on its own."""
    nodes = [{"name": "m"}, {"name": "z", "after": ["m"]}]
    world = Driver(
        {"m": {size: FIXED + 30 * size for size in SIZES}, "z": {1: 7}},
        {"short": {"node": nodes}, "long": {"node": nodes}},
        policy={"orloj": {"sample": 0.0}},
        lane={"l0": {}, "l1": {}},
    )
    policy, board = world.scheduler.policies[0], world.scheduler.state.board
    for lane, faster in (("l0", 0), ("l1", 0)):
        world.scheduler.state.latency["m", lane].alone = {"short": (25 * MS,) * 99, "long": (60 * MS - faster,) * 99}
    for app in ("long", "short", "short"):
        world.arrive(app, slo=300)
    (waiting,) = policy.queued()

    def told():
        end = policy.expected_end(waiting.request, waiting, board)
        return end and (end.lane, *[round(time_ns / MS, 3) for time_ns in end[1:]])

    assert told() == ("l1", 25, 32, 57)
    world.step(at=10)
    assert told() == ("l1", 15, 32, 57)
    waiting.lane = "l0"
    assert told() == ("l0", 50, 32, 92)
    waiting.lane = ""
    world.lane("l1", up=False, at=11)
    assert told() == ("l0", 49, 32, 92)


def alone_ms(world):
    """The mean time alone of each class of length, as figures say."""
    (model,) = world.scheduler.policies[0].figures()["models"].values()
    return {name: round(table["mean"], 1) for name, table in model["lanes"]["cpu0"]["alone_ms"].items()}


def test_times_alone_that_were_measured_at_another_speed_count_at_the_present_one():
    options = {"sample": 1.0, "budget": 0.0, "window": 8}
    world = Driver({"m": {1: 10, 2: 20}}, {"a": "m"}, policy={"orloj": options})
    world.lane("cpu0", speed=2.0)
    for _ in range(8):
        world.arrive("a", slo=999)
        world.finish(at=world.now_ms + 20)
        world.now_ms += 50
    world.arrive("a", slo=999)
    world.finish(at=world.now_ms + 20)
    assert alone_ms(world) == {"a": 20.0}
    world.lane("cpu0", speed=1.0)
    world.arrive("a", slo=999)
    assert alone_ms(world) == {"a": 40.0}


def test_a_batch_after_a_rest_teaches_nothing_of_batches():
    world = Driver({"m": {1: 20}}, {"a": "m"}, policy="orloj", profiles=[rested_profile("m", {1: 20}, 120)])
    learnt = []
    for at, took in ((2000, 120), (2130, 20)):
        world.now_ms = at
        burst(world, ("a", 500))
        world.finish(at=at + took)
        learnt.append(world.scheduler.policies[0].figures()["calibration"]["stated"])
    assert learnt == [0, 1]
