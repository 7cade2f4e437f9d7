"""Plain work whose inputs may be unequal, through the real scheduler: whose batch runs, who is dropped, what stays."""

from __future__ import annotations

import random

import pytest
from hand_world import Driver, rested_profile

from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario, with_policy
from edgeserve.testing.invariants import check_invariants

SIZES = (1, 2, 4, 8)
TIMES = {size: 4 + 3 * size for size in SIZES}


def world(apps=None, kind="plan", **sections):
    return Driver({"m": TIMES}, apps or {"a": "m"}, policy=kind, **sections)


def started(actions):
    return sorted([[job.request_id for job in action.jobs] for action in actions if isinstance(action, RunBatch)])


def ask(driver, *lengths, app="a", slo=100, **fields):
    """Requests that arrive together, of these declared lengths (None: it declares none)."""
    return driver.step(
        *[
            RequestArrived(driver.request(app, slo, hints={} if length is None else {"length": length}, **fields))
            for length in lengths
        ]
    )


def teach(driver, *took):
    """Batches of eight, as long as they are, which take so long each."""
    for took_ms in took:
        driver.arrive("a", count=8, slo=9999)
        driver.finish(at=driver.now_ms + took_ms)


def is_wide(driver):
    """True if the times of the model are known to depend on its inputs, as ``stats`` says."""
    return any(law["is_wide"] for law in driver.scheduler.policies[0].figures()["laws"].values())


def test_short_inputs_do_not_wait_for_a_long_one_from_the_first_request():
    """A batch of all five would take 4 + 8 * 3 * 3.6 ms, by the mean length."""
    driver = world()
    ask(driver, 1.0)
    assert started(ask(driver, 1.0, 1.0, 1.0, 20.0, slo=60)) == []
    assert started(driver.finish(at=7)) == [[2, 3, 4]]


def test_a_declared_length_says_how_long_a_batch_can_wait():
    driver = Driver({"m": TIMES, "n": {1: 15}}, {"a": "m", "other": {"model": "n", "value": 5.0}}, policy="plan")
    ask(driver, 1.0, 5.0, slo=9999)
    driver.finish(at=5)
    driver.arrive("other", at=10)
    ask(driver, 5.0, slo=20)  # takes 9 ms and can wait for 7
    driver.finish(at=14)
    assert driver.work().model == "m"


def test_before_a_critical_request_as_many_short_inputs_go_as_fit():
    driver = Driver(
        {"m": TIMES, "c": {1: 2}}, {"a": "m", "loop": {"model": "c", "slo": "10ms", "class": "critical"}}, "plan"
    )
    ask(driver, 1.0, 6.0, slo=9999)
    driver.finish(at=9)
    driver.finish(at=30)
    for at in range(40, 600, 20):
        driver.arrive("loop", at=at)
        while driver.on_lane:
            driver.finish(at=driver.now_ms + 2)
    driver.now_ms = 595  # the next one is due at 610, and eight inputs take 14.6 ms
    assert started(ask(driver, *[1.0] * 8, 6.0, slo=200)) == [[31, 32, 33, 34]]


@pytest.mark.parametrize("hints", [({}, {}), ({"a.work": 1.0}, {"a.work": 4.0})])
def test_a_stage_is_worth_its_share_of_the_path(hints):
    """10 of 100 ms run here, so an app of value 4 brings more for the lane's time, whether inputs differ or not."""
    driver = Driver(
        {"a": {1: 10, "lanes": ["gpu"]}, "b": {1: 90, "lanes": ["npu"]}, "c": {1: 10, "lanes": ["gpu"]}},
        {
            "pipe": {"node": [{"name": "a"}, {"name": "b"}], "slo": "300ms"},
            "one": {"model": "c", "slo": "300ms", "value": 4.0},
        },
        policy="plan",
        lane={"gpu": {}, "npu": {}},
    )
    for own in hints:
        driver.arrive("pipe", slo=9999, hints=own)
    driver.finish("gpu", at=10)
    driver.arrive("pipe", hints=hints[0])
    driver.arrive("one")
    driver.finish("gpu", at=20)
    assert driver.work("gpu").model == "c"


def test_lengths_that_are_all_alike_run_as_plain_work():
    plain, hinted = world(kind="edf"), world()
    for driver in (plain, hinted):
        draw = random.Random(1)
        for _ in range(50):
            driver.now_ms += draw.choice((1, 5, 20))
            ask(driver, *[5.0] * draw.randrange(1, 5), slo=draw.choice((30, 60, 200)))
            if driver.on_lane and draw.random() < 0.7:
                driver.finish(at=max(driver.now_ms, driver.given_ms[driver.work().work_id] + 28))
    assert [action for action in hinted.seen if isinstance(action, RunBatch)] == [
        action for action in plain.seen if isinstance(action, RunBatch)
    ]


def test_what_waits_is_judged_by_the_law_when_it_widens():
    driver = world()
    driver.arrive("a", count=8, slo=9999)
    for took_ms in (10, 90, 10):
        driver.arrive("a", count=8, slo=9999)
        driver.finish(at=driver.now_ms + took_ms)
    ask(driver, None, slo=30)  # needs 20 ms for sure; queued while a batch runs
    policy = driver.scheduler.policies[0]
    waiting = [job.request.id for job in policy.queued()]
    driver.finish(at=driver.now_ms + 25)
    assert is_wide(driver)
    assert set(waiting) >= {job.request.id for job in policy.queued()}
    check_invariants(driver.scheduler.state)


def test_nothing_is_refused_for_a_mean_that_is_not_its_own():
    driver = world()
    ask(driver, 1.0, 50.0, slo=9999)
    driver.finish()
    ask(driver, 0.5, slo=5)  # a usual one takes 7 ms
    assert driver.outcome(3) == ""


def test_a_declared_length_that_is_too_long_for_its_deadline_is_dropped_at_once():
    driver = world()
    ask(driver, *[1.0] * 8, 90.0, slo=9999)
    ask(driver, 90.0, slo=20)  # the lane is free in some 6 ms, a usual one takes 7, this one 18
    assert (driver.outcome(10), driver.reason(10)) == ("dropped", "cannot_make_deadline")
    ask(driver, 1.0, slo=20)
    assert driver.outcome(11) == ""


def test_what_is_answered_late_anyway_is_never_dropped():
    driver = world()
    ask(driver, 1.0, 2.0, slo=9999)
    ask(driver, 90.0, slo=20, on_late="answer")
    while driver.on_lane:
        driver.finish(at=driver.now_ms + 100)
        driver.pass_time(driver.now_ms + 5)
    assert driver.outcome(3) == "completed"


def test_inputs_of_one_shape_have_no_law_however_noisy_the_device():
    driver = world({"a": {"node": [{"name": "m"}], "inputs": {"x": {"shape": [3, 224, 224]}}}})
    teach(driver, 28, 90, 28, 90)
    assert not is_wide(driver)
    open_shape = world({"a": {"node": [{"name": "m"}], "inputs": {"x": {"shape": [3, -1]}}}})
    teach(open_shape, 28, 90, 28, 90)
    assert is_wide(open_shape)


def test_batches_that_fail_tell_nothing_of_inputs():
    driver = world()
    for _ in range(4):
        driver.arrive("a", count=8, slo=9999)
        driver.finish(at=driver.now_ms + 1, status="failed", reason="it raised")
        teach(driver, 28)
    assert not is_wide(driver)


def test_what_is_answered_late_anyway_is_not_refused_for_the_steps_that_it_declares():
    driver = Driver({"m": {1: 7}}, {"a": "m"}, policy="plan")
    driver.arrive("a", slo=20, on_late="answer", hints={"steps": 50.0})
    assert driver.outcome(1) == ""


@pytest.mark.parametrize(("slo", "outcome"), [(60, "rejected"), (70, "")])
def test_declared_steps_that_cannot_be_in_time_behind_what_runs_are_refused(slo, outcome):
    driver = Driver({"m": {1: 7}}, {"a": "m"}, policy="plan")
    driver.arrive("a", slo=9999, hints={"steps": 8.0})
    driver.arrive("a", at=1, slo=slo, hints={"steps": 8.0})  # 6 + 8 * 7 ms
    assert driver.outcome(2) == outcome


def test_steps_are_no_lengths():
    driver = world()
    for steps in (1, 9, 1, 12, 1, 9):
        driver.arrive("a", slo=9999, hints={"steps": float(steps)})
        for _ in range(steps):
            driver.finish(at=driver.now_ms + 7, status="unfinished" if _ < steps - 1 else "done")
    assert not is_wide(driver)


@pytest.mark.parametrize("seed", range(12))
def test_jobs_are_kept_whatever_becomes_of_lanes_and_requests(seed):
    """Lanes refuse, go down and come back; clients cancel; some parts of requests end in the middle of a plan. The
    driver holds the scheduler's invariants after each step, among them that ready jobs are queued exactly once."""
    draw = random.Random(f"trouble {seed}")
    nodes = [{"name": "split", "model": "m", "fan_out": True}, {"name": "part", "model": "n", "after": ["split"]}]
    driver = Driver(
        {"m": {**TIMES, "lanes": ["l0", "l1"]}, "n": {**TIMES, "lanes": ["l2"]}},
        {"a": "m", "b": {"node": nodes}, "cam": {"model": "m", "stream": "newest_wins"}},
        policy="plan",
        lane={"l0": {}, "l1": {}, "l2": {}},
    )
    for _ in range(120):
        driver.now_ms += draw.choice((0.5, 3, 12))
        choice = draw.random()
        if choice < 0.5:
            app = draw.choice(("a", "a", "b", "cam"))
            ask(
                driver,
                *[draw.choice((None, 1.0, 3.0, 30.0)) for _ in range(draw.randrange(1, 5))],
                app=app,
                slo=draw.choice((20, 60, 300)),
                on_late=draw.choice(("drop", "answer", "partial")),
                stream="s" if app == "cam" else None,
                priority_class=draw.choice(("critical", "normal", "normal", "background")),
            )
        elif choice < 0.85 and driver.on_lane:
            work = draw.choice(list(driver.on_lane.values()))
            first = next(item for item in driver.on_lane.values() if item.lane == work.lane)
            if draw.random() < 0.15:
                driver.refuse(first.lane)
            else:
                parts = {"parts": 3} if any(job.node == "split" for job in first.jobs) else {}
                driver.finish(first.lane, **parts)
        elif choice < 0.9 and driver._last_id:
            driver.cancel(draw.randrange(1, driver._last_id + 1))
        elif choice < 0.95:
            lane = draw.choice(("l0", "l1"))
            driver.lane(lane, up=False)
            driver.lane(lane, up=True, speed=draw.choice((1.0, 0.5)))
        else:
            driver.pass_time(driver.now_ms + 5)


def two_apps(told, mixed=False):
    """One model, batches of 8: short inputs with little time beside long ones with much, or one app with both."""
    apps = {"short": ({"0.5": 0.3, "1.0": 0.4, "1.5": 0.3}, 80, 60), "long": ({"8.0": 0.5, "12.0": 0.5}, 600, 9)}
    if mixed:
        apps = {"mix": ({"1.0": 0.9, "10.0": 0.1}, 150, 70)}
    truth = {"times": {str(size): f"{ms}ms" for size, ms in TIMES.items()}, "hint": "length", "fixed": "4ms"}
    truth.update({"per_unit": "3ms", **({} if told else {"says": ["length"]})})
    return parse_scenario(
        {
            "lane": {"gpu": {}},
            "model": {"m": {"engine": "synthetic", "batch": list(SIZES), "expected": truth["times"]}},
            "truth": {"m": truth},
            "app": {name: {"model": "m", "slo": f"{slo}ms"} for name, (_, slo, _) in apps.items()},
            "workload": {
                name: {"app": name, "kind": "poisson", "rate": rate, "hints": {"length": lengths}}
                for name, (lengths, _, rate) in apps.items()
            },
            "run": {"duration": "12s", "noise": 0.05},
        }
    )


@pytest.mark.parametrize(
    ("told", "mixed", "least"), [(True, False, 95), (False, False, 93), (True, True, 97), (False, True, 93)]
)
def test_short_and_long_inputs_beside_each_other_are_nearly_all_in_time(told, mixed, least):
    def in_time(kind):
        ended = simulate(with_policy(two_apps(told, mixed), kind), "unequal/0", ()).world.ended
        return 100 * sum([item.in_time for item in ended]) / len(ended)

    assert in_time("plan") >= max(least, in_time("edf") + 1)


def test_what_a_batch_takes_longer_after_a_rest_tells_nothing_of_inputs():
    driver = world()
    for latency in driver.scheduler.state.latency.values():
        latency.rest_ns = 60 * 10**6  # as a profile says
    for _ in range(4):
        driver.pass_time(driver.now_ms + 2000)
        teach(driver, 90, 28)
    assert not is_wide(driver)


@pytest.mark.parametrize("others", [(), ("n",)])
@pytest.mark.parametrize("length", [None, 1.0])
def test_after_a_rest_a_batch_is_as_full_as_its_first_deadline_allows(length, others):
    """Waking takes 45 ms, and 80 ms are left: enough for one, too little for four. Alike and unequal inputs, compared
    with other models and not."""
    models = {"m": {1: 20, 4: 50}, **{name: {1: 10} for name in others}}
    apps = {"a": "m", **{name: name for name in others}}
    profiles = [rested_profile(name, times, 45 + times[1]) for name, times in models.items()]
    driver = Driver(models, apps, policy="plan", profiles=profiles)
    driver.now_ms = 2000
    asked = [driver.request("a", slo, hints={} if length is None else {"length": length}) for slo in (80, *[500] * 3)]
    asked += [driver.request(name, 900) for name in others]
    assert started(driver.step(*map(RequestArrived, asked))) == [[1]]
