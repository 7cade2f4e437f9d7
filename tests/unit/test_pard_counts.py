"""One request counts once in pard's own counts, however many branches of it were given up or expired."""

from __future__ import annotations

from hand_world import ended
from test_policy_pard import DIAMOND, burst, chain, pard

from edgeserve.sched.policies.pard.policy import PROACTIVE


def forked(**options):
    """Request 1 holds b and c for longer than expected; request 2, which is due 40 ms after the start, has run at a and
    stands in both forming batches."""
    world = chain({"a": {1: 10}, "b": {1: 10}, "c": {1: 10}, "d": {1: 10}}, nodes=DIAMOND, **options)
    burst(world, 100)
    burst(world, 39, at=1)
    world.finish("a0", at=10)
    world.finish("a0", at=19)
    assert sorted(job.node.name for job in pard(world).queued()) == ["b", "c"] and not world.ends
    return world


def test_a_drop_in_two_branches_is_one():
    world = forked(rule="back", recheck=True)
    actions = world.step(world.finished("b0", at=35), world.finished("c0"))
    assert actions.count(ended(2, "dropped", PROACTIVE)) == 1
    assert sum(pard(world).dropped.values()) == 1 and sum(pard(world).expired.values()) == 0
    world.finish("d0", at=45)
    world.over()
    assert world.outcome(1) == "completed"


def test_giving_up_branches_of_a_request_that_is_answered_in_part_is_no_drop_while_it_goes_on():
    world = forked(rule="back", recheck=True, app={"on_late": "partial"})
    world.finish("b0", at=35)  # the branch to b is given up, the other may still be in time
    assert world.outcome(2) == "" and sum(pard(world).dropped.values()) == 0
    world.finish("c0", at=36)
    assert world.outcome(2) == "dropped" and sum(pard(world).dropped.values()) == 1
    world.finish("d0", at=46)
    world.over()


def test_a_deadline_that_passes_in_two_queues_is_one():
    world = forked(rule="naive")
    assert world.step(at=40) == [ended(2, "dropped", "expired")]
    assert sum(pard(world).expired.values()) == 1 and sum(pard(world).dropped.values()) == 0


def test_a_cancelled_request_whose_deadline_is_over_has_not_expired():
    world = forked(rule="naive", app={"on_late": "answer"})
    world.cancel(2, at=60)
    assert world.outcome(2) == "cancelled" and sum(pard(world).expired.values()) == 0
