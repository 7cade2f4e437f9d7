"""Nobody waits for ever: what is answered however late runs at last, under every policy, though nothing more comes."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.resources.model_cache import NEVER_NS

POLICIES = ("fifo", "edf", "clockwork", "clipper", "nexus", "orloj", "orloj+", "pard", "pard+", "pard_local")


def slow_copy(policy: str, on_late: str = "answer") -> Driver:
    """Model m is on the slow device d1 only; the fast d0 has room for it, and does not load it: d1 serves it all."""
    world = Driver({"m": {1: 5, "memory": "60MB"}}, {"m": {"model": "m", "on_late": on_late, "slo": "20ms"}}, policy,
                   {"d0": [], "d1": ["m"]}, device={"d0": {"memory": "100MB"}, "d1": {}},
                   lane={"l0": {"device": "d0"}, "l1": {"device": "d1"}})
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


def test_a_request_is_refused_when_only_that_load_could_save_it():
    world = slow_copy("edf", on_late="drop")
    world.arrive("m")
    assert world.reason(1) == "cannot_make_deadline"


def test_the_board_says_never_only_while_the_others_serve_all():
    world = slow_copy("fifo")
    board, lane = world.scheduler.board, world.scheduler.lanes["l0"]
    assert board.resident_at_ns("m", lane) == NEVER_NS
    world.scheduler.devices["d0"].placements["m"].demand_ns = 500 * MS
    world.scheduler.devices["d1"].placements["m"].demand_ns = 500 * MS
    assert board.resident_at_ns("m", lane) == 5 * MS  # more than d1 can serve in its horizon: a load would start


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("on_late", ["answer", "drop"])
def test_a_bound_job_is_late_by_its_own_lane_and_not_by_a_faster_one(policy, on_late):
    world = Driver({"m": {1: 5}}, {"m": {"model": "m", "on_late": on_late, "slo": "40ms"}}, policy,
                   lane={"l0": {}, "l1": {}})
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
