"""pard+ and requests that declare how much work they are: their own batch, the modules behind, who is left out."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver

from edgeserve.sched.protocol.events import RequestArrived

NS = 1e-6  # of a millisecond
TIMES = {1: 10, 2: 14}  # 6 ms and 4 for each; a full batch of a, b and c: 14 each


def graph(nodes=None, policy="pard+", **options):
    names = [node["name"] for node in nodes] if nodes else list("abc")
    return Driver(
        {name: {**TIMES, "lanes": [name]} for name in names},
        {"app": {"slo": "200ms", "node": nodes or [{"name": name} for name in names]}},
        policy={policy: {"lam": 0.0, "plan": 0, **options}},
        lane={name: {} for name in names},
    )


def is_admitted(slo, hints, **given):
    world = graph(**given)
    world.step(RequestArrived(world.request("app", slo, hints=hints)))
    return world.outcome(1) == ""


@pytest.mark.parametrize(
    ("hints", "least_ms"),
    [
        ({}, 42),
        ({"work": 1.0}, 42),
        ({"work": 2.0}, 54),
        ({"work": 0.5}, 36),
        ({"b.work": 3.0}, 50),
        ({"work": 2.0, "b.work": 1.0}, 50),
        ({"c.steps": 3.0}, 70),
        ({"a.steps": 2.0}, 56),
        ({"work": -5.0}, 30),
        ({"c.steps": 1.0}, 42),
        ({"c.steps": 0.0}, 42),
        ({"b.steps": 2.0}, 56),
        ({"b.steps": 2.0, "b.work": 2.0}, 60),
    ],
)
def test_declared_work_counts_here_and_at_every_module_behind(hints, least_ms):
    assert is_admitted(least_ms, hints)
    assert not is_admitted(least_ms - NS, hints)


def test_the_published_policy_takes_everybody_as_usual():
    assert is_admitted(42, {"work": 5.0}, policy="pard")
    assert not is_admitted(42 - NS, {"work": 0.1}, policy="pard")


@pytest.mark.parametrize(("slo", "outcome"), [(50, ""), (50 - NS, "dropped")])
def test_who_shares_a_batch_with_a_dear_one_takes_longer_too(slo, outcome):
    world = graph(order="hbf")  # the dear one, with more time left, joins first
    world.step(
        RequestArrived(world.request("app", 100, hints={"work": 3.0})),
        RequestArrived(world.request("app", slo, hints={"work": 1.0})),
    )
    assert [world.outcome(1), world.outcome(2)] == ["", outcome]  # 14 + 8, then 14 and 14


def test_of_two_branches_the_one_that_is_dear_for_this_request_counts():
    nodes = [{"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "c", "after": ["a"]}]
    assert is_admitted(28, {}, nodes=nodes)
    assert is_admitted(36, {"c.work": 3.0, "b.work": 0.5}, nodes=nodes)
    assert not is_admitted(36 - NS, {"c.work": 3.0, "b.work": 0.5}, nodes=nodes)


@pytest.mark.parametrize(("ends_at", "outcome"), [(10, ""), (10 + NS, "dropped")])
def test_a_dear_one_is_judged_again_when_its_batch_starts(ends_at, outcome):
    world = graph()
    world.step(RequestArrived(world.request("app", 200)))
    world.now_ms = 9
    world.step(RequestArrived(world.request("app", 55, hints={"work": 2.0})))  # it would end at 10 + 54 = 64
    assert world.outcome(2) == ""
    world.finish("a", at=ends_at)
    assert world.outcome(2) == outcome


@pytest.mark.parametrize(
    ("policy", "hints", "usual"), [("pard+", {"work": 2.0}, 10), ("pard+", {}, 14), ("pard", {"work": 2.0}, 14)]
)
def test_declared_work_is_taken_out_of_what_is_usual_only_where_the_policy_listens(policy, hints, usual):
    world = graph(policy=policy)
    for step in range(40):
        world.now_ms = 1000 * step
        world.step(RequestArrived(world.request("app", 500, hints=hints)))
        world.finish("a", at=1000 * step + 14)
        for after, name in ((60, "b"), (90, "c")):
            world.finish(name, at=1000 * step + after)
    assert world.scheduler.state.latency["a", "a"].typical_ns[1] == pytest.approx(usual * MS, rel=0.01)
