"""Hints of nodes for a request or one part: who knows it, who does not, and what policies make of it."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ran

from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.requests.states import steps_left

CHAIN = [{"name": "a"}, {"name": "b"}]
LINES = [
    {"name": "cut", "fan_out": True},
    {"name": "look"},
    {"name": "read"},
    {"name": "join", "gather": True},
    {"name": "spell"},
]
BOOK = [
    {"name": "pages", "fan_out": True},
    {"name": "look"},
    {"name": "lines", "fan_out": True},
    {"name": "measure"},
    {"name": "read"},
    {"name": "page", "gather": True},
    {"name": "title"},
    {"name": "book", "gather": True},
]


def world_of(nodes, policy="fifo", times=None, **sections):
    """An app of these nodes; a model runs 10 ms, one job at a time, each on a lane of its own."""
    names = [node["name"] for node in nodes]
    return Driver(
        {name: {**(times or {1: 10}), "lanes": [name]} for name in names},
        {"app": {"slo": "10s", "node": nodes}},
        policy=policy,
        lane={name: {} for name in names},
        **sections,
    )


def known(world, request_id=1):
    """(node, part) of every job of a request -> what is known of it."""
    jobs = world.scheduler.state.requests[request_id].jobs.values()
    return {(job.node.name, *job.part): dict(job.hints) for job in jobs}


def finish(world, lane, *each, **result):
    """The batches at the head of a lane end, one after the other: each with its hints."""
    for hints in each:
        world.finish(lane, at=world.now_ms + 1, hints=hints, **result)


# --- who knows --------------------------------------------------------------------------------------------------------


def test_what_a_node_says_replaces_what_the_request_declared_for_all_nodes_behind_it():
    world = world_of([*CHAIN, {"name": "c"}])
    world.arrive("app", hints={"work": 1.0, "length": 7})
    finish(world, "a", {"work": 2.0, "c.work": 3.0})
    assert known(world) == {("b",): {"work": 2.0, "length": 7, "c.work": 3.0}}
    finish(world, "b", {"c.work": 4.0})
    assert known(world) == {("c",): {"work": 2.0, "length": 7, "c.work": 4.0}}
    assert "  +1ms: node a said {'work': 2.0, 'c.work': 3.0}" in world.scheduler.story(1)


def test_what_is_said_of_a_part_is_of_that_part_alone_and_forgotten_where_parts_meet():
    world = world_of(LINES)
    world.arrive("app", hints={"work": 1.0})
    finish(world, "cut", {"length": 3}, parts=2)
    finish(world, "look", {"work": 5.0, "own": 1}, {"own": 2})
    everybody = {"work": 1.0, "length": 3}
    assert known(world) == {("read", 0): {**everybody, "work": 5.0, "own": 1}, ("read", 1): {**everybody, "own": 2}}
    finish(world, "read", {"read": 1}, {"read": 2})
    assert known(world) == {("join",): everybody}
    finish(world, "join", {"own": 3})  # outside again: of the whole request
    assert known(world) == {("spell",): {**everybody, "own": 3}}


def test_in_nested_fan_outs_the_innermost_part_that_speaks_is_believed():
    world = world_of(BOOK)
    world.arrive("app")
    finish(world, "pages", {"work": 1.0}, parts=2)
    finish(world, "look", {"work": 2.0}, None)
    finish(world, "lines", {"inner": 20}, {"inner": 21}, parts=2)
    finish(world, "measure", {"work": 3.0}, None, None, {"length": 9})
    assert known(world) == {
        ("read", 0, 0): {"work": 3.0, "inner": 20},
        ("read", 0, 1): {"work": 2.0, "inner": 20},
        ("read", 1, 0): {"work": 1.0, "inner": 21},
        ("read", 1, 1): {"work": 1.0, "inner": 21, "length": 9},
    }
    finish(world, "read", *[None] * 4)
    assert known(world) == {("page", 0): {"work": 2.0, "inner": 20}, ("page", 1): {"work": 1.0, "inner": 21}}
    finish(world, "page", {"title": 1}, None)  # of the page that it made out of its lines
    assert known(world)["title", 0] == {"work": 2.0, "inner": 20, "title": 1}
    finish(world, "title", None, None)
    assert known(world) == {("book",): {"work": 1.0}}


def test_a_job_knows_what_was_said_when_it_was_made_also_when_it_comes_back():
    world = world_of(
        [
            {"name": "a"},
            {"name": "b", "after": ["a"]},
            {"name": "c", "after": ["a"]},
            {"name": "d", "after": ["b", "c"]},
        ]
    )
    world.arrive("app")
    finish(world, "a", {"b.steps": 2})
    finish(world, "c", {"work": 5.0, "b.steps": 9})
    world.refuse("b", at=3)
    assert known(world) == {("b",): {"b.steps": 2}}
    finish(world, "b", {"work": 7.0}, status="unfinished")
    assert known(world) == {("b",): {"b.steps": 2}}
    finish(world, "b", None)
    assert known(world) == {("d",): {"b.steps": 9, "work": 5.0}}  # both branches; the unfinished step said nothing


@pytest.mark.parametrize("fate", ["failed", "unusable"])
def test_what_failed_says_nothing(fate):
    nodes = [
        {"name": "a"},
        {"name": "b", "after": ["a"], "route": "one"},
        {"name": "c", "after": ["a"]},
        {"name": "d", "after": ["b", "c"], "join": 1},
        {"name": "e"},
    ]
    world = world_of(nodes)
    world.arrive("app")
    finish(world, "a", {"work": 1.0})
    finish(world, "b", {"work": 9.0}, status="failed" if fate == "failed" else "done", route="nowhere")
    finish(world, "c", None)
    assert known(world) == {("d",): {"work": 1.0}}


def test_an_orphan_says_nothing():
    world = world_of(CHAIN)
    world.arrive("app", hints={"work": 1.0})
    request = world.scheduler.state.requests[1]
    world.cancel(1)
    finish(world, "a", {"work": 9.0})
    assert (world.outcome(1), request.hints) == ("cancelled", {"work": 1.0})
    world.over()


# --- what policies make of it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hints", "outcome"), [({}, ""), ({"b.steps": 4}, ""), ({"b.steps": 5}, "dropped")])
def test_steps_that_a_node_says_move_the_deadline_of_the_next(hints, outcome):
    """50 ms are left when a has run, and a step of b takes ten, one more for c behind it."""
    world = world_of([*CHAIN, {"name": "c"}], policy="edf")
    world.arrive("app", slo=60)
    world.finish("a", at=10, hints=hints)
    assert world.outcome(1) == outcome
    assert world.actions == ([ran("b", 1)] if not outcome else world.actions)


def test_steps_that_a_node_says_count_in_its_bid_and_in_its_deadline():
    world = world_of(CHAIN)
    world.arrive("app", count=2)
    world.finish("a", at=10)
    world.finish("a", at=15, hints={"b.steps": 3})
    (waiting,) = world.scheduler.state.requests[2].jobs.values()
    bid = bid_for([waiting], 1, 10 * MS, world.scheduler.state.board)
    assert (bid.expected_ns, bid.remaining_ns) == (10 * MS, 30 * MS)
    assert waiting.deadline_ns == waiting.request.deadline_ns - 20 * MS


def test_steps_that_are_said_of_a_part_are_of_that_part_alone():
    world = world_of(LINES)
    world.arrive("app", hints={"length": 1})
    world.finish("cut", at=10, parts=2)
    finish(world, "look", {"read.steps": 4}, {"read.steps": 2})
    steps = {job.part: steps_left(job) for job in world.scheduler.state.requests[1].jobs.values()}
    assert steps == {(0,): 4, (1,): 2}
