"""The moves of a policy that decides about the branches of a request: which run, which are left out, when their join
goes on, what became of each, and what the answer is worth."""

from __future__ import annotations

import pytest
from hand_world import Driver, ended, like, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import Utility, bid_for
from edgeserve.sched.protocol.actions import FinishRequest, LeaveOut, LoadModel
from edgeserve.sched.published.baselines.fifo import Fifo
from edgeserve.testing.invariants import check_invariants

LANES = {"la": {}, "lb": {}, "lc": {}, "lv": {}}
MODELS = {
    "a": {1: 10, "lanes": ["la"]},
    "b": {1: 20, "lanes": ["lb"]},
    "c": {1: 30, "lanes": ["lc"]},
    "vote": {1: 1, "lanes": ["lv"]},
    "score": {1: 5, "lanes": ["lv"]},
}
VOTE = [
    {"name": "a", "after": []},
    {"name": "b", "after": []},
    {"name": "c", "after": []},
    {"name": "vote", "after": ["a", "b", "c"], "join": "policy"},
]


class Handled(Fifo):
    """Runs only the nodes that the test names, and makes the moves that the test asks for when it plans."""

    runs = frozenset("abc") | {"vote", "score"}
    left = ()
    todo = None

    def plan(self, board):
        todo, Handled.todo = Handled.todo, None
        if todo is not None:
            todo(board)

    def on_gone(self, job, board):
        super().on_gone(job, board)
        Handled.left = (*Handled.left, job.node.name)

    def bid(self, lane, board):
        bid = super().bid(lane, board)
        return bid if bid is not None and bid.jobs[0].node.name in self.runs else None


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setitem(POLICIES, "handled", Handled)
    monkeypatch.setattr(Handled, "left", ())
    monkeypatch.setattr(Handled, "runs", Handled.runs)

    def make(node=VOTE, **app):
        driver = Driver(MODELS, {"v": {"node": node, **app}}, policy="handled", lane=LANES)
        driver.board = driver.scheduler.state.board

        def move(todo, at=None):
            Handled.todo = staticmethod(todo)
            return driver.step(at=at)

        driver.move = move
        driver.only = lambda: next(iter(driver.scheduler.state.requests.values()))
        driver.job = lambda name: next(job for job in driver.only().jobs.values() if job.node.name == name)
        driver.states = lambda: {branch.node: branch.state for branch in driver.board.branches(driver.only(), "vote")}
        return driver

    return make


def left_out(name, request_id=1):
    return like(LeaveOut, job=(request_id, name, ()))


def test_one_question_tells_what_became_of_each_branch(world):
    driver = world()
    driver.arrive("v", count=2)
    driver.finish("la", at=10)
    driver.finish("lb", status="failed", reason="it raised", at=20)
    assert driver.states() == {"a": "answered", "b": "failed", "c": "running"}
    second = list(driver.scheduler.state.requests.values())[1]
    assert [(branch.node, branch.state, branch.job is None) for branch in driver.board.branches(second, "vote")] == [
        ("a", "running", False),
        ("b", "running", False),
        ("c", "waiting", False),
    ]
    driver.lane("lc", up=False, at=25)
    assert driver.states() == {"a": "answered", "b": "failed", "c": "lost"}
    assert driver.work("lv").model == "vote"  # which goes on with what there is


def test_a_branch_of_two_nodes_is_told_by_the_one_that_runs(world):
    driver = world(
        [
            {"name": "a", "after": []},
            {"name": "b", "after": []},
            {"name": "c", "after": ["b"]},
            {"name": "vote", "after": ["a", "c"], "join": "policy"},
        ]
    )
    driver.arrive("v")
    assert driver.states() == {"a": "running", "c": "running"}
    driver.finish("la", at=10)
    driver.move(lambda board: board.settle(driver.only(), "vote"))
    assert driver.states() == {"a": "answered", "c": "left out"}


def test_branches_behind_a_fork_do_not_run_while_what_is_before_it_does(world):
    """It may yet lead into one of them only."""
    driver = world(
        [
            {"name": "a", "after": [], "route": "one"},
            {"name": "b", "after": ["a"]},
            {"name": "c", "after": ["a"]},
            {"name": "vote", "after": ["b", "c"], "join": "policy"},
        ]
    )
    driver.arrive("v")
    assert driver.states() == {"b": "waiting", "c": "waiting"}
    driver.finish("la", at=10, route="c")
    assert driver.states() == {"b": "left out", "c": "running"}


def test_one_join_is_settled_and_the_other_waits(world):
    nodes = [*VOTE, {"name": "score", "after": ["a", "c"], "join": "policy"}]
    driver = world(nodes)
    driver.arrive("v")
    driver.finish("la", at=10)
    assert driver.move(lambda board: board.settle(driver.only(), "score"), at=11) == [ran("score", 1)]
    assert driver.states() == {"a": "answered", "b": "running", "c": "running"}
    with pytest.raises(PolicyError, match="has not gone on"):
        driver.move(lambda board: board.settle(driver.only(), "score"))
    with pytest.raises(PolicyError, match="it needs the name of a join"):
        driver.move(lambda board: board.settle(driver.only(), "a"))
    driver.finish("lv", at=12)
    assert driver.move(lambda board: board.settle(driver.only(), "vote"), at=13) == [left_out("b"), ran("vote", 1)]


def test_a_settled_join_may_wait_for_what_runs(world, monkeypatch):
    monkeypatch.setattr(Handled, "runs", frozenset(("a", "b", "vote")))
    driver = world()
    driver.arrive("v")
    driver.finish("la", at=10)
    assert driver.move(lambda board: board.settle(driver.only(), "vote", wait_running=True), at=11) == [left_out("c")]
    assert driver.states() == {"a": "answered", "b": "running", "c": "left out"}
    assert driver.finish("lb", at=20) == [ran("vote", 1)]


SHARED = [*VOTE, {"name": "score", "after": ["a", "c"], "join": "policy"}]
"""Branches ``a`` and ``c`` lead to two joins, ``b`` to one."""


@pytest.mark.parametrize("wait", [False, True])
def test_a_settled_join_waits_for_what_runs_only_if_it_is_asked_to(world, wait):
    """Nor does it end a branch that leads elsewhere too."""
    driver = world(SHARED)
    driver.arrive("v")
    driver.finish("la", at=10)
    done = driver.move(lambda board: board.settle(driver.only(), "vote", wait_running=wait), at=11)
    assert done == ([] if wait else [left_out("b"), ran("vote", 1)])
    assert driver.states() == {"a": "answered", "b": "running" if wait else "left out", "c": "running"}
    if wait:
        driver.finish("lb", at=20)
        assert ran("vote", 1) in driver.finish("lc", at=30)


def test_a_settled_join_waits_for_a_running_branch_that_leads_elsewhere_too(world, monkeypatch):
    monkeypatch.setattr(Handled, "runs", frozenset(("a", "c", "vote")))
    driver = world(SHARED)
    driver.arrive("v")
    driver.finish("la", at=10)
    assert driver.move(lambda board: board.settle(driver.only(), "vote", wait_running=True), at=11) == [left_out("b")]
    assert driver.states() == {"a": "answered", "b": "left out", "c": "running"}
    assert driver.finish("lc", at=30) == [ran("vote", 1)]


@pytest.mark.parametrize("move", ["drop", "settle", "abandon"])
def test_no_request_ends_or_settles_while_a_branch_leaves_it(world, monkeypatch, move):
    monkeypatch.setattr(Handled, "runs", frozenset(("a", "vote")))
    driver = world()
    driver.arrive("v")
    driver.finish("la", at=10)
    request = driver.only()
    moves = {
        "drop": lambda board, job: board.drop(request, "enough"),
        "settle": lambda board, job: board.settle(request),
        "abandon": lambda board, job: board.abandon_branch(job, "enough"),
    }
    monkeypatch.setattr(Handled, "on_gone", lambda policy, job, board: moves[move](board, job))
    with pytest.raises(PolicyError, match="on_ready and on_gone end and settle no request; note it, and do so in plan"):
        driver.move(lambda board: board.settle(request, "vote"), at=11)


def test_a_hook_that_raises_forbids_no_later_move(world, monkeypatch):
    monkeypatch.setattr(Handled, "on_ready", lambda policy, job, board: (Fifo.on_ready(policy, job, board), 1 // 0))
    driver = world()
    with pytest.raises(ZeroDivisionError):
        driver.arrive("v")
    monkeypatch.undo()
    assert ended(1, "dropped") in driver.move(lambda board: board.drop(driver.only(), "enough"), at=1)


def test_a_join_that_is_settled_past_the_deadline_runs_for_nobody(world):
    driver = world()
    driver.arrive("v", slo=100)
    driver.finish("la", at=10)
    assert driver.step(at=101) == [], "a request of which something runs is not dropped"
    done = driver.move(lambda board: board.settle(driver.only(), "vote"), at=102)
    assert ended(1, "dropped", "expired") in done and ran("vote") not in done


def test_a_branch_that_is_not_wanted_is_no_demand(monkeypatch):
    monkeypatch.setitem(POLICIES, "handled", Handled)
    sized = {name: {**model, "memory": "60MB", "load": "2ms"} for name, model in MODELS.items()}
    for wanted in (False, True):
        monkeypatch.setattr(
            Handled,
            "on_ready",
            lambda policy, job, board, wanted=wanted: (
                Fifo.on_ready(policy, job, board),
                board.want(job, wanted or job.node.name != "c"),
            )[0],
        )
        driver = Driver(
            sized,
            {"v": VOTE},
            policy="handled",
            lane=LANES,
            device={"cpu": {"memory": "240MB"}},
            resident={"cpu": ["a", "b", "vote", "score"]},
        )
        loads = [action.model for action in driver.arrive("v") if isinstance(action, LoadModel)]
        assert loads == (["c"] if wanted else [])
        request = next(iter(driver.scheduler.state.requests.values()))
        job = next(job for job in request.jobs.values() if job.node.name == "c")
        driver.scheduler.state.board.want(job)
        driver.scheduler.state.board.want(job)  # twice is once
        check_invariants(driver.scheduler.state)
        if not wanted:
            assert [action.model for action in driver.step(at=1) if isinstance(action, LoadModel)] == ["c"]
        running = next(job for job in request.jobs.values() if job.state == "running")
        with pytest.raises(PolicyError, match="only a ready job waits for a model"):
            driver.scheduler.state.board.want(running)


def test_an_answer_tells_its_quality_and_who_took_part(world):
    driver = world()
    driver.arrive("v")
    driver.finish("la", at=10)
    driver.move(lambda board: (board.rate(driver.only(), 0.9), board.settle(driver.only())), at=11)
    driver.finish("lv", at=12)
    end = driver.of(FinishRequest)[0]
    assert (end.outcome, end.quality, end.branches) == ("completed", 0.9, ("a",))
    driver.arrive("v", at=50)
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(PolicyError, match="expected a number from 0 to 1"):
            driver.move(lambda board, wrong=wrong: board.rate(driver.only(), wrong))
    for right in (0.0, 1.0):
        driver.move(lambda board, right=right: board.rate(driver.only(), right))
        assert driver.only().quality == right


@pytest.mark.parametrize(("quality_min", "outcome"), [(0.9, "completed"), (0.91, "dropped")])
def test_an_answer_below_what_the_client_wants_is_not_given(world, quality_min, outcome):
    driver = world()
    driver.arrive("v", quality_min=quality_min)
    driver.finish("la", at=10)
    driver.move(lambda board: (board.rate(driver.only(), 0.9), board.settle(driver.only())), at=11)
    driver.finish("lv", at=12)
    assert driver.outcome(1) == outcome
    assert outcome == "completed" or driver.reason(1) == "quality_too_low"


def test_three_branches_claim_the_request_once_between_them(world, monkeypatch):
    monkeypatch.setattr(Handled, "runs", frozenset())
    driver = world()
    driver.arrive("v")
    jobs = sorted(driver.only().jobs.values(), key=lambda job: job.seq)
    whole = Utility(jobs[:1], 0).value(0)
    parts = [Utility([job], 0, shares=[share]).value(0) for job, share in zip(jobs, (0.9, 0.06, 0.04))]
    assert sum(parts) == pytest.approx(whole)
    bid = bid_for(jobs[1:2], 1, 20, driver.board, shares=[0.06])
    assert bid.utility.value(0) == pytest.approx(0.06 * whole)
