"""The board: what a policy may do, when, and what an illegal move costs (a story, and nothing else)."""

from __future__ import annotations

import pytest
from hand_world import MS, Driver, ended, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.testing.invariants import check_invariants

VOTE = [
    {"name": "a", "after": []},
    {"name": "b", "after": []},
    {"name": "c", "after": []},
    {"name": "vote", "after": ["a", "b", "c"], "join": "policy"},
]
MODELS = {name: {1: 10} for name in ("a", "b", "c", "vote")}


@pytest.fixture
def picky(monkeypatch):
    """A world whose policy does what the test put into ``moves``: hook -> function(policy, argument, board)."""
    moves = {}

    class Picky(Fifo):
        def on_request(self, request, board):
            return moves["on_request"](self, request, board) if "on_request" in moves else None

        def plan(self, board):
            if "plan" in moves:
                moves["plan"](self, None, board)

        def next_wakeup_ns(self, board):
            return moves.get("next_wakeup_ns")

        def bid(self, lane, board):
            bid = super().bid(lane, board)
            if bid is not None and "bid" in moves:
                moves["bid"](self, bid, board)
            return bid

    monkeypatch.setitem(POLICIES, "picky", Picky)
    world = Driver(MODELS, {"v": VOTE}, policy="picky")
    world.moves = moves
    world.open_requests = lambda: list(world.scheduler.state.requests.values())
    return world


def test_a_policy_settles_for_what_there_is(picky):
    picky.arrive("v")
    picky.finish(at=10)
    picky.moves["plan"] = lambda policy, _, board: board.settle(picky.open_requests()[0])
    assert picky.finish(at=20) == [ran("vote", 1)]  # a and b are there; c is not worth waiting for
    picky.moves.clear()
    assert picky.finish(at=30) == [ended(1, "completed")]


def test_a_policy_refuses_with_its_reason(picky):
    picky.moves["on_request"] = lambda policy, request, board: "not_today"
    assert picky.arrive("v") == [ended(1, "rejected", "not_today")]


def test_a_policy_drops_what_it_likes(picky):
    picky.arrive("v")
    picky.moves["plan"] = lambda policy, _, board: [board.drop(item, "bored") for item in picky.open_requests()]
    assert picky.step(at=1) == [ended(1, "dropped", "bored")]
    picky.moves.clear()
    picky.finish(at=10)
    picky.over()


def test_a_policy_is_asked_again_when_it_says_so(picky):
    picky.moves["next_wakeup_ns"] = 7 * MS
    picky.arrive("v", at=2)
    assert picky.wake_ms == 7
    with pytest.raises(PolicyError, match="wants to look again at 7000000 ns, not after 7000000 ns"):
        picky.step(at=7)


def test_moving_what_has_ended_is_illegal(picky):
    picky.arrive("v")
    request = picky.open_requests()[0]
    picky.cancel(1)
    board = picky.scheduler.state.board
    for move in (
        lambda: board.drop(request, "again"),
        lambda: board.settle(request),
        lambda: board.rate(request, 0.5),
    ):
        with pytest.raises(PolicyError, match="cancelled by its client"):
            move()
    check_invariants(picky.scheduler.state)
