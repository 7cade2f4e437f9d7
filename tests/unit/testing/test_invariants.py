"""``check_invariants`` notices every kind of disorder: each test breaks one table by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cores import interpreted_only
from hand_world import Driver

from edgeserve.sched.requests.states import READY, RUNNING
from edgeserve.sched.resources.placement import ABSENT
from edgeserve.testing.invariants import check_invariants


@pytest.fixture
def world() -> SimpleNamespace:
    """A batch of two on lane a, two stream requests of which one waits for its turn with a state on the device, one
    job bound to lane a, two jobs in the queues of two policies. Lane b is idle, other is not in memory."""
    driver = Driver(
        {
            "m": {1: 10, 2: 12, "memory": "10MiB", "lanes": ["a"]},
            "s": {1: 5, "memory": "5MiB", "lanes": ["b"]},
            "other": {1: 5, "memory": "5MiB", "lanes": ["b"]},
        },
        {
            "first": {"model": "m", "policy": "edf"},
            "steps": {"model": "s", "policy": "edf"},
            "last": {"model": "m", "policy": "fifo"},
            "voice": {"model": "s", "stream": "in_order", "policy": "edf"},
        },
        policy={"edf": {}, "fifo": {}},
        resident={"d": ["m", "s"]},
        lane={"a": {"device": "d"}, "b": {"device": "d"}},
        device={"d": {"memory": "100MiB"}},
    )
    driver.arrive("steps", at=1)  # 1
    driver.finish("b", at=2, status="unfinished", state_bytes=77)  # bound to lane b from now on, and runs again
    driver.arrive("first", count=2, at=3)  # 2, 3 run on lane a
    driver.arrive("first", at=4)  # 4 waits
    driver.arrive("last", at=4)  # 5 waits in the other policy's queue
    driver.arrive("voice", at=4, stream="v")  # 6 waits for lane b
    driver.arrive("voice", at=4, stream="v")  # 7 waits for 6
    scheduler = driver.scheduler
    check_invariants(scheduler.state)
    state = scheduler.state
    requests = state.requests
    return SimpleNamespace(
        scheduler=scheduler,
        requests=requests,
        lanes=state.lanes,
        works=state.works.by_id,
        device=state.devices["d"],
        policies=state.policies,
        admission=state.admission,
        retained=state.retained,
        job_of=lambda id: next(iter(requests[id].jobs.values())),
        stream=dict(state.streams),
        state=state,
    )


def set_to(thing, name, value):
    setattr(thing, name, value)


def second_work(world, lane, **fields):
    """A work like the lane's, behind it."""
    work = world.lanes[lane].works[0]
    other = type(work)(99, work.kind, work.lane, work.model, (), 1, 0, 1, 0, work.policy)
    for name, value in fields.items():
        setattr(other, name, value)
    world.lanes[lane].works.append(other)
    world.works[99] = other
    return other


DISORDER = {
    # lanes
    "is not in the table": lambda w: w.works.pop(w.lanes["a"].works[0].id),
    "names lane b, stands on a": lambda w: set_to(w.lanes["a"].works[0], "lane", w.lanes["b"]),
    "is in two works": lambda w: second_work(w, "a", jobs=w.lanes["a"].works[0].jobs),
    "is on a lane": lambda w: set_to(w.lanes["a"].works[0].jobs[0], "state", READY),
    "lane a has 2 works": lambda w: second_work(w, "a"),
    "a work is in the table but on no lane": lambda w: w.works.setdefault(98, w.lanes["a"].works[0]),
    # requests
    "an ended request is in the table": lambda w: set_to(w.requests[4], "state", "completed"),
    "open without a job, or held with one": lambda w: w.requests[4].jobs.clear(),
    "running count is wrong": lambda w: set_to(w.requests[2], "running", 2),
    "is in its request's table": lambda w: set_to(w.job_of(4), "state", "done"),
    "against the lanes": lambda w: set_to(w.job_of(4), "state", RUNNING),
    "queued: False": lambda w: set_to(w.job_of(4), "queued", False),
    "admission of first holds": lambda w: w.admission["first"].clients[""].pop(4),
    "admission of first counts 2": lambda w: set_to(w.admission["first"], "pending", 2),
    # queues
    "stands in the queues of edf and fifo": lambda w: set_to(w.policies[1], "queued", w.policies[0].queued),
    "stands in the queue of edf": lambda w: set_to(w.requests[4], "policy", w.policies[1]),
    "stand in no queue, or the other way round": lambda w: set_to(w.policies[1], "queued", list),
    # memory
    "bytes booked": lambda w: set_to(w.device, "used_bytes", w.device.used_bytes + 1),
    "is over its budget": lambda w: set_to(w.device, "budget_bytes", w.device.used_bytes - 1),
    "2 in flight, 1 on lanes": lambda w: set_to(w.device.placements["m"], "in_flight", 2),
    "works but is not resident": lambda w: (
        set_to(w.device, "used_bytes", w.device.used_bytes - w.device.placements["m"].bytes),
        set_to(w.device.placements["m"], "state", ABSENT),
    ),
    "demand of bound jobs is wrong": lambda w: set_to(w.device.placements["s"], "bound_ns", 1),
    "demand is wrong": lambda w: set_to(w.device.placements["other"], "demand_ns", 1),
    "jobs say": lambda w: set_to(w.device.placements["other"], "waiting", [1, 0, 0]),
    "state bytes 78, in use 77": lambda w: set_to(w.device, "state_bytes", 78),
    # streams
    "is held by a request that is over": lambda w: (
        set_to(w.stream["voice", "v"], "active", SimpleNamespace(ended=True, running=0))
    ),
    "a waiting request is open": lambda w: w.stream["voice", "v"].held.append(w.requests[4]),
    "requests wait without an active one": lambda w: set_to(w.stream["voice", "v"], "active", None),
    # probes
    "are retained while draining": lambda w: (
        w.retained.update({w.job_of(4).seq: w.job_of(4)}),
        set_to(w.state, "draining", True),
    ),
    "is retained as 1234": lambda w: w.retained.update({1234: w.job_of(4)}),
    "is a probe and has jobs": lambda w: set_to(w.lanes["a"].works[0], "probe", w.job_of(4)),
}


WITH_STAND_INS = {
    "is held by a request that is over",
    "stands in the queues of edf and fifo",
    "stand in no queue, or the other way round",
}


@pytest.mark.parametrize(
    "said", [pytest.param(said, marks=[interpreted_only] * (said in WITH_STAND_INS)) for said in sorted(DISORDER)]
)
def test_disorder_is_noticed(world, said):
    DISORDER[said](world)
    with pytest.raises(AssertionError, match=said):
        check_invariants(world.scheduler.state)


def test_a_job_that_is_probed_is_not_retained_any_more(world):
    second_work(world, "a", probe=world.job_of(4))
    world.lanes["a"].ahead_ns = 1  # two works may stand on it now
    world.device.placements["m"].in_flight = 2
    check_invariants(world.scheduler.state)
    world.retained[world.job_of(4).seq] = world.job_of(4)
    with pytest.raises(AssertionError, match="is being probed and still kept"):
        check_invariants(world.scheduler.state)


def test_lane_time_that_no_open_request_keeps_is_noticed():
    driver = Driver({"m": {1: 10}}, {"a": "m"})
    driver.arrive("a", client="pid:1 #1")
    shared = driver.scheduler.state.lane_shares["a"]["normal"][0]
    assert shared.total_ns > 0
    for counted in (shared.total_ns - 1, 0):
        shared.total_ns = counted
        with pytest.raises(AssertionError, match="lane time pending"):
            check_invariants(driver.scheduler.state)
