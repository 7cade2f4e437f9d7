"""When a request that waits would end: on which lane, behind what, and the slowest of its jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hand_world import MS, Driver

from edgeserve.sched.policy_api.expected_end import expected_end
from edgeserve.sched.requests.states import RequestRecord

TWO = {"left": {"device": "cpu"}, "right": {"device": "cpu"}}
FORK = [{"name": "a", "after": []}, {"name": "b", "after": []}, {"name": "end", "model": "z", "after": ["a", "b"]}]


def forked(a: float, b: float, nodes: Any = None) -> Driver:
    """Two first nodes on lanes of their own, and one behind both."""
    return Driver(
        {"a": {1: a, "lanes": ["left"]}, "b": {1: b, "lanes": ["right"]}, "z": {1: 3}, "y": {1: 7}},
        {"v": {"node": nodes or FORK}},
        lane=TWO,
        device={"cpu": {}},
        trials=True,
    )


def found(world: Driver, request: RequestRecord, job: Any = None, **how: Any) -> Any:
    """Lane, wait, time alone and smallest deadline in milliseconds."""
    end = expected_end(request, job, world.scheduler.state.board, **how)
    return end and (end.lane, *[value / MS for value in end[1:] if value is not None])


def new(world: Driver, app: str = "v", **fields: Any) -> RequestRecord:
    """A request that has not been accepted."""
    world.step()
    request = world.request(app, **fields)
    world._last_id -= 1
    return RequestRecord(request, world.scheduler.state.apps[app])


def opened(world: Driver, request_id: int) -> RequestRecord:
    return world.scheduler.state.requests[request_id]


@pytest.mark.parametrize(
    ("a", "b", "slowest"), [(5, 40, ("right", 0, 43, 43)), (40, 5, ("left", 0, 43, 43)), (20, 20, ("left", 0, 23, 23))]
)
def test_the_slowest_of_the_first_nodes_counts_the_first_of_equals(a: float, b: float, slowest: Any) -> None:
    world = forked(a, b)
    assert found(world, new(world)) == slowest


@pytest.mark.parametrize(
    ("busy", "a", "b", "slowest"),
    [
        ("a", 8, 10, ("left", 8, 11, 19)),
        ("b", 10, 8, ("right", 8, 11, 19)),
        ("a", 8, 30, ("right", 0, 33, 33)),
        ("b", 30, 8, ("left", 0, 33, 33)),
    ],
)
def test_a_wait_and_the_time_alone_count_alike(busy: str, a: float, b: float, slowest: Any) -> None:
    world = Driver(
        {"a": {1: a, "lanes": ["left"]}, "b": {1: b, "lanes": ["right"]}, "z": {1: 3}},
        {"v": {"node": FORK}, "other": busy},
        lane=TWO,
        device={"cpu": {}},
    )
    world.arrive("other")
    assert found(world, new(world)) == slowest


def test_where_no_lane_runs_one_of_the_first_nodes_nothing_is_known() -> None:
    world = forked(5, 40)
    world.lane("right", up=False)
    assert found(world, new(world)) is None
    world.lane("right", up=True)
    assert found(world, new(world)) is not None


def test_of_an_open_request_the_jobs_that_are_ready_count_and_the_one_that_is_asked_about() -> None:
    world = forked(5, 40)
    world.arrive("v")  # both run
    request = opened(world, 1)
    assert found(world, request) is None
    running = {job.node.name: job for job in request.jobs.values()}
    assert found(world, request, running["a"])[0] == "left"
    assert found(world, request, running["b"])[0] == "right"
    world.arrive("v", at=1)  # both wait, until 5 and until 40
    assert found(world, opened(world, 2)) == ("right", 39, 43, 83)
    world.finish("left", at=5)  # its first node runs now, the second waits
    assert found(world, opened(world, 2)) == ("right", 35, 43, 83)


def test_what_follows_a_job_is_counted_from_where_it_stands() -> None:
    nodes = [
        {"name": "a", "after": []},
        {"name": "b", "after": []},
        {"name": "then", "model": "y", "after": ["a"]},
        {"name": "end", "model": "z", "after": ["then", "b"]},
    ]
    world = forked(5, 6, nodes)
    assert found(world, new(world)) == ("left", 0, 15, 15)
    world.arrive("v")
    world.arrive("v")
    assert found(world, opened(world, 2)) == ("left", 5, 15, 20)
    world.finish("left", at=5)
    then = next(job for job in opened(world, 1).jobs.values() if job.node.name == "then")
    assert found(world, opened(world, 1), then)[2] == 10, "7 and the end's 3: its first node's time is over"


def test_a_lane_that_is_down_hung_or_not_the_one_that_holds_the_state_is_no_lane() -> None:
    world = Driver({"m": {1: 10}}, {"v": "m"}, lane={"left": {"hang": "20ms"}, "right": {}})
    world.arrive("v")
    assert found(world, new(world)) == ("right", 0, 10, 10)
    job = next(iter(opened(world, 1).jobs.values()))
    job.lane = "left"
    assert found(world, opened(world, 1), job) == ("left", 10, 10, 20)
    job.lane = ""
    world.lane("right", up=False)
    assert found(world, new(world)) == ("left", 10, 10, 20)
    world.pass_time(50)  # the lane's work is overdue
    assert found(world, new(world)) is None


def test_of_equal_lanes_the_first_is_named() -> None:
    world = Driver({"m": {1: 10}}, {"v": "m"}, lane={"left": {}, "right": {}})
    assert found(world, new(world)) == ("left", 0, 10, 10)


def test_free_lanes_only_are_those_that_accept_a_work_and_have_the_model() -> None:
    world = Driver(
        {"m": {1: 10, "memory": "1MB", "load": "30ms"}},
        {"v": "m"},
        resident={"cpu": []},
        device={"cpu": {"memory": "10MB"}},
        lane={"left": {"device": "cpu"}},
    )
    assert found(world, new(world)) == ("left", 30, 10, 40)
    assert found(world, new(world), free_only=True) is None
    world = Driver({"m": {1: 10}}, {"v": "m"})
    assert found(world, new(world), free_only=True) == ("cpu0", 0, 10, 10)
    world.arrive("v")
    assert found(world, new(world), free_only=True) is None


def test_a_policys_own_estimate_and_margin_replace_the_likely_time() -> None:
    world = Driver({"m": {1: 10}}, {"v": "m"})
    assert found(world, new(world), alone_ns=lambda latency: 2 * latency.alone_likely_ns, margin_ns=MS) == (
        "cpu0",
        0,
        20,
        21,
    )


def test_the_steps_that_a_request_or_its_node_declares_follow_the_first_on_the_faster_lane() -> None:
    nodes = [{"name": "x", "model": "m"}, {"name": "y", "model": "n", "after": ["x"]}]
    world = Driver({"m": {1: 10}, "n": {1: 7}}, {"v": "m", "chain": {"node": nodes}}, lane={"left": {}, "right": {}})
    world.scheduler.state.latency["m", "right"].set_speed(0.5)
    assert found(world, new(world, hints={"steps": 1})) == ("left", 0, 10, 10)
    assert found(world, new(world, hints={"steps": 2})) == ("left", 0, 20, 20)
    assert found(world, new(world, hints={"steps": 4})) == ("left", 0, 40, 40)
    assert found(world, new(world, "chain", hints={"x.steps": 4})) == ("left", 0, 47, 47)
    assert found(world, new(world, "chain", hints={"steps": 4})) == ("left", 0, 17, 17)
