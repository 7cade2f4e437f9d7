"""Decisions of rtlm: who shares a batch, who is admitted between two steps, who goes to a slower lane."""

from __future__ import annotations

import math
import statistics

import pytest
from hand_world import MS, Driver, ids, ran

STEPS = {1: 10, 2: 10, 3: 10, 4: 10}  # C is 4
TOKEN_BYTES = 10


def world_of(options=None, slots=4, state_memory="", **app):
    keys = {"state_memory": state_memory} if state_memory else {}
    return Driver(
        {"lm": {**STEPS, **keys}},
        {"chat": {"model": "lm", "slo": "100s", "on_late": "answer", **app}},
        policy={"rtlm": {"prefill_steps": 0.0, **(options or {})}},
        lane={"gpu": {}},
        sequences={"lm": (1000, TOKEN_BYTES, slots)},
    )


def ask(world, *steps, at=None, **fields):
    """Requests whose answers are predicted to have so many steps, each in a step of its own at the same time."""
    done = []
    for count in steps:
        done += world.arrive("chat", at=at, hints={"steps": float(count), "tokens": 10.0}, **fields)
    return done


def batch_of(world, lane="gpu"):
    work = [work for work in world.on_lane.values() if work.lane == lane]
    return ids(work[0].jobs) if work else []


# --- batches ----------------------------------------------------------------------------------------------------------


def test_rtlm_runs_answers_about_equally_long_together_from_the_first_of_the_order_on():
    world = world_of({"b": 3.0})
    ask(world, 5)  # occupies the lane
    ask(world, 20, 400, 21, 22, 300, 23, at=1)
    world.finish(at=50, steps=5)
    assert batch_of(world) == [2, 4, 5, 7]
    world.finish(at=300, steps=23)
    assert batch_of(world) == [6, 3]
    world.finish(at=5000, steps=400)
    world.over()


def test_the_methods_choose_their_orders():
    for method, first in (("fifo", 2), ("luf", 4), ("muf", 3), ("hpf", 5)):
        world = world_of({"method": method, "batch": 1})
        ask(world, 5)
        ask(world, 50, 90, 10, at=1)
        ask(world, 60, at=2, slo=10_000)
        world.finish(at=50, steps=5)
        assert batch_of(world) == [first], method


def test_gathered_requests_become_visible_together():
    world = world_of({"xi_ms": 2000.0})
    assert ask(world, 5, at=100) == []
    assert ask(world, 5, at=1500) == []
    assert world.wake_ms == 2000
    assert world.pass_time(2000) == [ran("lm", 1, 2)]


def test_a_batch_that_is_far_longer_than_predicted_comes_back_to_be_predicted_again():
    world = world_of()
    ask(world, 10)
    assert world.work().steps_max == 10
    world.finish(at=100, status="unfinished", steps=10, state_bytes=200)
    again = world.work()
    assert ids(again.jobs) == [1] and again.steps_max == 8
    for index in range(10):
        world.finish(at=180 + 80 * index, status="unfinished", steps=8, state_bytes=280 + 80 * index)
    assert world.work().steps_max > 8  # 90 steps: the longer it is, the longer it is expected to go on
    world.finish(at=2000, steps=5)
    world.over()


def test_others_wait_for_the_end_of_a_batch_where_they_would_find_no_slot_or_no_memory():
    world = world_of(slots=1)
    ask(world, 20)
    assert ask(world, 20, at=5) == []
    small = world_of(state_memory="500B")  # a sequence of 30 tokens takes 300 bytes
    ask(small, 20)
    assert ask(small, 20, at=5) == []
    small.finish(at=200, steps=20)
    assert batch_of(small) == [2]


# --- lanes ------------------------------------------------------------------------------------------------------------

PAPER = {"prefill_steps": 0.0, "tau": 30.0}


def two_lanes(slower, options=None, **app):
    world = Driver(
        {"lm": STEPS},
        {"chat": {"model": "lm", "slo": "1000s", "on_late": "answer", **app}},
        policy={"rtlm": {"side_lanes": ["cpu"], **PAPER, **(options or {})}},
        lane={"gpu": {"device": "gpu"}, "cpu": {"device": "host"}},
        device={"gpu": {}, "host": {}},
        sequences={"lm": (10_000, TOKEN_BYTES, 4)},
    )
    latency = world.scheduler.state.latency["lm", "cpu"]
    latency.set_speed(1.0 / slower)
    return world


def test_a_short_answer_never_goes_to_the_slower_lane_and_static_tau_sends_every_long_one():
    world = two_lanes(50.0, {"offload": "static"})
    ask(world, 100)
    assert batch_of(world, "cpu") == [1] and batch_of(world) == []
    ask(world, 20, 20, at=1)
    assert batch_of(world) == [2]
    assert world.scheduler.policies[0].figures()["sent to side lanes"] == 1


def test_answers_that_no_prediction_tells_apart_all_stay_on_the_main_lane():
    world = two_lanes(2.0, on_late="drop", slo="500ms")
    ask(world, 20, 20, 20, 20)
    ask(world, 20, 20, 20, at=10)
    ask(world, *[20] * 12, at=11)
    assert batch_of(world, "cpu") == []


def test_a_plain_model_under_the_policy_is_served_in_batches_of_one_step():
    world = Driver({"m": {1: 10, 4: 20}}, {"a": "m"}, policy="rtlm")
    assert world.arrive("a", count=3) == [ran("m", 1, 2, 3, size=4)]
    assert world.work().steps_max is None
    world.finish(at=20)
    world.over()


# --- answers that are worth nothing when they are late ----------------------------------------------------------------


def trained(answers):
    """A world in which so many answers were as long as declared."""
    world = world_of(on_late="drop", slo="1s")
    for index in range(answers):
        ask(world, 5, at=1000 * index)
        world.finish(at=1000 * index + 50, steps=5)
    world.now_ms = 1000 * answers
    return world


@pytest.mark.parametrize(
    ("answers", "at", "kept"),
    [
        (4, 100, True),
        (4, 200, True),
        (4, 201, False),
        (0, 201, True),
        (0, 285, True),
        (0, 290, True),
        (0, 290.01, False),
    ],
)
def test_an_answer_that_has_begun_is_given_up_when_what_is_left_will_not_be_in_time(answers, at, kept):
    """Due at 300 ms, ten of 20 steps of 10 ms made: as believed until 200 ms, for certain when not a step fits."""
    world = trained(answers=answers)
    start = world.now_ms
    world.arrive("chat", slo=300, hints={"steps": 20.0, "steps_sd": 0.0, "tokens": 10.0})
    world.finish(at=start + at, took=100, status="unfinished", steps=10, state_bytes=200)
    assert bool(batch_of(world)) is kept


def lacked(world, request_id):
    """The shortest deadline of which a refusal said that it would do, in milliseconds."""
    return world.ends[request_id].shortfall.slo_ns_min / MS


def test_the_deadline_that_would_do_is_that_of_an_answer_of_which_nine_of_ten_are_no_longer():
    world = world_of(on_late="drop")
    world.arrive("chat", slo=9, hints={"steps": 20.0, "steps_sd": 0.5, "tokens": 10.0})
    steps = 20 * math.exp(0.5 * statistics.NormalDist().inv_cdf(0.9) - 0.5**2 / 2)
    assert lacked(world, 1) == pytest.approx(steps * 10, abs=0.1)


def test_the_deadline_that_would_do_counts_the_wait_for_a_place_and_who_comes_back_with_it_goes_first():
    world = world_of(on_late="drop")
    ask(world, 40, 40, 40, 40)
    ask(world, 30, 30, at=1)
    known = {"steps": 20.0, "steps_sd": 0.0, "tokens": 10.0}
    world.arrive("chat", at=2, slo=9, hints=known)
    promised = lacked(world, 7)
    assert promised > (40 + 20) * 10  # four run and two wait
    world.arrive("chat", at=3, slo=promised, hints=known)
    world.finish(at=400, steps=40)
    assert batch_of(world)[0] == 8
