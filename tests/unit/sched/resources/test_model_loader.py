"""Jobs that are bound to the lane that holds their state: their model comes back to that lane's device, independent of
others, and where it cannot, they end instead of waiting for ever. No job waits for a load that never starts."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ended, like, ran

from edgeserve.sched.protocol.actions import EvictModel, FinishRequest, LoadModel
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.placement import NEVER_NS, RESIDENT, Placement

LOAD_FAILURES_MAX = 3
MODELS = {
    "m": {1: 5, "memory": "60MB"},
    "n": {1: 10, "memory": "50MB", "lanes": ["l0"]},
    "k": {1: 3, "memory": "10MB", "lanes": ["l0"], "pinned": True},
}
LANES = {"l0": {"device": "d0", "hang": "50ms"}, "l1": {"device": "d1", "hang": "50ms"}}


def unfinished_on_l0(policy: str = "edf", state_mb: int = 1, on_late: str = "answer") -> Driver:
    """At 5 ms lane l0 of device d0 has returned request 1 of model m unfinished and runs k; two requests wait for n,
    which d0 has no room for beside m. Device d1 has m as well."""
    world = Driver(
        MODELS,
        {
            "m": {"model": "m", "on_late": on_late, "slo": "300ms"},
            "k": {"model": "k", "class": "critical", "slo": "9ms"},
            "n": {"model": "n", "slo": "400ms"},
        },
        policy,
        {"d0": ["m", "k"], "d1": ["m"]},
        device={"d0": {"memory": "100MB"}, "d1": {}},
        lane=LANES,
    )
    world.arrive("m")
    assert world.actions == [ran("m", 1, lane="l0")]
    world.arrive("k", at=1)
    world.arrive("n", at=2, count=2)
    world.finish("l0", at=5, status="unfinished", state_bytes=state_mb * 10**6)
    return world


def m_given_up_on_d0(policy: str = "edf", on_late: str = "answer") -> Driver:
    """The same at 19 ms: m was given up on d0, where n runs for the second of the two."""
    world = unfinished_on_l0(policy, on_late=on_late)
    assert world.actions[1:] == [like(EvictModel, lane="copy:d0", model="m"), like(LoadModel, model="n")]
    world.finish("copy:d0", at=6)
    world.finish("copy:d0", at=8)
    world.finish("l0", at=9)
    assert world.actions[1:] == [ran("n", 3)]
    world.finish("l0", at=19)
    return world


@pytest.mark.parametrize("policy", ["fifo", "edf"])
def test_a_bound_job_gets_its_model_back_although_another_device_has_it(policy):
    world = m_given_up_on_d0(policy)
    world.finish("l0", at=29)
    assert world.actions == [
        ended(4, "completed"),
        like(EvictModel, lane="copy:d0", model="n"),
        like(LoadModel, lane="copy:d0", model="m"),
    ]
    world.finish("copy:d0", at=30)
    world.finish("copy:d0", at=34)
    assert world.actions == [ran("m", 1, lane="l0")]
    world.finish("l0", at=39)
    assert world.outcome(1) == "completed"
    world.over()


def test_a_bound_job_fails_when_its_device_cannot_load_the_model_although_another_has_it():
    world = m_given_up_on_d0()
    world.finish("l0", at=29)
    world.finish("copy:d0", at=30)
    for _ in range(LOAD_FAILURES_MAX - 1):
        world.finish("copy:d0", failed="out of memory")
        assert world.outcome(1) == ""
        world.pass_time(world.now_ms + 600)
    unbound = world.arrive("m")
    assert unbound == [ran("m", 5, lane="l1")]
    world.arrive("m")
    world.finish("copy:d0", failed="out of memory")
    assert world.of(FinishRequest) == [ended(1, "failed", "model 'm' could not be loaded: out of memory")]
    world.finish("l1")
    world.finish("l1")  # request 6 was as ready and waited for the same model: d1 has it
    assert world.outcome(6) == "completed"
    world.over()


@pytest.mark.parametrize("on_late", ["answer", "drop"])
def test_a_bound_job_ends_when_its_lane_is_down_although_another_could_run_the_model(on_late):
    world = m_given_up_on_d0(on_late=on_late)
    world.lane("l0", up=False, at=20)
    if on_late == "answer":
        assert world.reason(1) == "lane l0 holds its state and cannot run model 'm' now"
    else:  # it may hope for the lane until its deadline
        assert world.outcome(1) == ""
        world.pass_time(301)
    assert world.outcome(1) == ("failed" if on_late == "answer" else "dropped")


def test_a_bound_job_fails_when_nobody_can_load_for_its_device():
    world = m_given_up_on_d0()
    world.finish("l0", at=29)
    world.lane("copy:d0", up=False, at=30)
    assert world.reason(1) == "lane l0 holds its state and cannot run model 'm' now"


def test_a_model_stays_where_the_states_bound_to_it_would_leave_it_no_room_to_return():
    world = unfinished_on_l0(state_mb=45)  # 60 MB of m and 45 of states: once gone, m could never come back
    assert world.actions == [ran("k", 2)]
    world.finish("l0", at=8)
    assert world.actions[1:] == [ran("m", 1)]
    world.finish("l0", at=13)
    assert world.outcome(1) == "completed"
    assert world.actions[2:] == [like(EvictModel, model="m"), like(LoadModel, model="n")]
    assert world.scheduler.devices["d0"].placements["k"].state == RESIDENT


def test_pinned_models_count_as_room_that_never_comes_back():
    device = Device("d", 100)
    for name, size in (("m", 60), ("p", 30), ("n", 50)):
        device.add(Placement(name, "d", size, 5 * MS, pinned=name == "p"), name != "n")
    device.placements["m"].demand_ns = device.placements["m"].bound_ns = 5 * MS
    device.placements["n"].demand_ns = 10 * MS
    device.placements["m"].waiting[1], device.placements["n"].waiting[1] = 5 * MS, 10 * MS
    assert device.next_load(0, [device]) == (device.placements["n"], [device.placements["m"]])
    device.state_bytes = 10
    assert device.next_load(0, [device]) == (device.placements["n"], [device.placements["m"]])
    device.state_bytes = 11
    assert device.next_load(0, [device]) is None


# --- loads that never start -------------------------------------------------------------------------------------------


POLICIES = ("fifo", "edf", "clockwork", "clipper", "nexus", "orloj", "plan", "pard", "pard+")


def slow_copy(policy: str, on_late: str = "answer") -> Driver:
    """Model m is on the slow device d1 only; the fast d0 has room for it, and does not load it: d1 serves it all."""
    world = Driver(
        {"m": {1: 5, "memory": "60MB"}},
        {"m": {"model": "m", "on_late": on_late, "slo": "20ms"}},
        policy,
        {"d0": [], "d1": ["m"]},
        device={"d0": {"memory": "100MB"}, "d1": {}},
        lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}},
    )
    world.lane("l1", speed=0.1)
    return world


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lane_that_could_be_faster_after_a_load_that_nobody_starts_is_not_waited_for(policy):
    world = slow_copy(policy)
    world.arrive("m")
    world.pass_time(1000)
    assert world.work().lane == "l1"
    world.finish()
    assert world.outcome(1) == "completed"


def test_the_board_says_never_only_while_the_others_serve_all():
    world = slow_copy("fifo")
    board, lane = world.scheduler.state.board, world.scheduler.state.lanes["l0"]
    assert board.resident_at_ns("m", lane) == NEVER_NS
    world.scheduler.devices["d0"].placements["m"].demand_ns = 500 * MS
    world.scheduler.devices["d1"].placements["m"].demand_ns = 500 * MS
    assert board.resident_at_ns("m", lane) == 5 * MS  # more than d1 can serve in its horizon: a load would start


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("on_late", ["answer", "drop"])
def test_a_bound_job_is_late_by_its_own_lane_and_not_by_a_faster_one(policy, on_late):
    world = Driver(
        {"m": {1: 5}}, {"m": {"model": "m", "on_late": on_late, "slo": "40ms"}}, policy, lane={"l0": {}, "l1": {}}
    )
    world.arrive("m")
    own = world.work().lane
    world.finish(at=5, status="unfinished", state_bytes=5)
    world.lane(own, speed=0.1, at=6)
    world.finish(at=7, status="unfinished", state_bytes=5)
    world.pass_time(1000)
    if on_late == "answer" or world.on_lane:
        assert world.work().lane == own
        world.finish()
        assert world.outcome(1) == "completed"
    else:
        assert world.outcome(1) == "dropped"
