"""Every policy against the shared conformance suite, and the three that keep the scheduler honest."""

from __future__ import annotations

import pytest
from honest_policies import HONEST, Rude

from edgeserve.config.loading import parse_config
from edgeserve.errors import PolicyError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.actions import FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import Request, RequestArrived
from edgeserve.sched.published.pard.waits import KEPT_MAX
from edgeserve.testing.invariants import check_invariants
from edgeserve.testing.policy_conformance import PolicyConformance
from edgeserve.testing.policy_worlds import run_world
from edgeserve.testing.soak.run import soak

MS = 10**6


class Shipped(PolicyConformance):
    """A policy of this package, alone in three soak runs: with others it is in those of ``tests/sim/test_soak.py``, and
    in a thousand of ``make soak``."""

    soak_seeds = (1, 2, 3)


@pytest.mark.nightly  # each time only its unit tests and golden traces
class Published(Shipped):
    """A policy of a paper, as it was published. Its code stays; what it stands on may change."""


class WithOptions(Published):
    """Options of a policy whose kind has a class of its own, which is held to the soak: that draws options itself, and
    would be the same run. Worlds have these options."""

    elsewhere = False
    test_rules_hold_in_drawn_trouble = None  # type: ignore[assignment]
    test_rules_hold_while_clocks_heat_power_and_memory_change = None  # type: ignore[assignment]
    test_rules_hold_among_language_models = None  # type: ignore[assignment]
    test_rules_hold_among_language_models_while_processors_are_busy_and_memory_falls = None  # type: ignore[assignment]
    test_equal_runs_decide_equally = None  # type: ignore[assignment]
    test_nothing_is_queued_after_draining = None  # type: ignore[assignment]


class TestFifo(Shipped):
    kind = "fifo"


class TestEdf(Shipped):
    kind = "edf"


class TestClockwork(Published):
    kind = "clockwork"


class TestClockworkWithTheProfilesMean(WithOptions):
    kind = "clockwork"
    options = {"estimate": "mean"}


RETAINED_MAX = 8 * 7
"""Orloj's sampler lists up to 8 inputs for each of a world's models; what was released leaves at the next ready job."""


class TestPlan(Shipped):
    kind = "plan"


class TestOrloj(Published):
    kind = "orloj"
    remembered_max = RETAINED_MAX


class TestOrlojReadAsInTheText(WithOptions):
    kind = "orloj"
    options = {"reading": "urgent", "estimate": "common", "cost_steps": [[20, 0.4]]}
    remembered_max = RETAINED_MAX


class TestSchemble(Published):
    kind = "schemble"


class TestSchembleByAlgorithm1(WithOptions):
    kind = "schemble"
    options = {"planner": "published", "delta": 0.05, "mean": True}


class TestSchembleGreedy(WithOptions):
    kind = "schemble"
    options = {"planner": "greedy", "order": "sjf", "fast": False}


class TestOriginalEnsemble(Published):
    kind = "ensemble_static"


class TestStaticEnsemble(WithOptions):
    kind = "ensemble_static"
    options = {"pick": "static", "models": ["v0", "v2", "left"]}


class TestPard(Published):
    kind = "pard"
    remembered_max = 1  # the number of the last request that expired


class TestPardPlus(Published):
    kind = "pard+"
    remembered_max = 1


class TestPardWithNexusRule(WithOptions):
    kind = "pard"
    remembered_max = KEPT_MAX + 1  # joint keeps the waits of the latest requests
    options = {"rule": "nexus", "estimator": "joint"}


class TestClipper(Published):
    kind = "clipper"


class TestNexus(Published):
    kind = "nexus"


class TestNexusWithoutEarlyDrop(WithOptions):
    kind = "nexus"
    options = {"early_drop": False}


class TestRtlm(Published):
    kind = "rtlm"


class TestRtlmAsPrinted(WithOptions):
    kind = "rtlm"
    options = {"order": "printed", "consolidation": "or", "offload": "static"}


class TestRtlmGathering(WithOptions):
    kind = "rtlm"
    options = {"xi_ms": 3.0, "order": "luf", "consolidation": "and"}
    work_conserving = False  # tasks become visible at multiples of xi


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for kind, policy in HONEST.items():
        monkeypatch.setitem(POLICIES, kind, policy)


def some_of(first, count):
    """Seeds from the first on: a few in each run of the tests, the others among whole worlds."""
    return pytest.mark.parametrize(
        "seeds", [range(first, first + 4), pytest.param(range(first + 4, first + count), marks=pytest.mark.worlds)]
    )


@some_of(100, 15)
@pytest.mark.parametrize("kind", sorted(HONEST))
def test_the_scheduler_stays_honest_under_any_policy(kind, seeds):
    for seed in seeds:
        soak(seed, policies=(kind,))


@some_of(100, 6)
@pytest.mark.parametrize("kind", ["random", "rude"])  # what is answered however late has no end under idle
def test_the_scheduler_stays_honest_where_joins_are_settled_and_lanes_are_lost(kind, seeds):
    for seed in seeds:
        run_world(seed, kind, {}, remembered_max=1)  # rude remembers the last that left


@some_of(200, 15)
def test_honest_and_dishonest_policies_side_by_side(seeds):
    for seed in seeds:
        soak(seed, policies=("random", "edf", "clockwork", "idle", "rude"))


def make(kind):
    return build_scheduler(
        parse_config(
            {
                "device": {"d": {"memory": "150MB"}},
                "lane": {"l": {"device": "d"}},
                "model": {
                    name: {
                        "engine": "synthetic",
                        "batch": [1, 4],
                        "expected": {"1": "2ms", "4": "3ms"},
                        "memory": "100MB",
                    }
                    for name in ("m", "other")
                },
                "policy": {kind: {"kind": kind}, "fifo": {}},
                "app": {
                    "a": {"model": "m", "policy": kind, "slo": "50ms"},
                    "b": {"model": "m", "policy": "fifo", "slo": "50ms"},
                    "c": {"model": "other", "policy": kind},
                },
            }
        ),
        resident={"d": ["m"]},
    )


def arrival(request_id, app="a"):
    return RequestArrived(Request(request_id, app, 0, 50 * MS))


def test_idle_lets_every_request_expire_at_its_deadline():
    scheduler = make("idle")
    scheduler.step(0, [arrival(1), arrival(2)])
    assert scheduler.wake_ns == 50 * MS
    ends = scheduler.step(50 * MS)
    assert [(item.request_id, item.outcome, item.reason) for item in ends] == [
        (1, Outcome.DROPPED, "expired"),
        (2, Outcome.DROPPED, "expired"),
    ]
    assert scheduler.wake_ns is None


def test_rude_was_refused_every_time():
    scheduler = make("rude")
    scheduler.step(0, [arrival(index) for index in range(1, 6)])
    scheduler.step(51 * MS)
    scheduler.step(52 * MS)
    rude = next(policy for policy in scheduler.policies if isinstance(policy, Rude))
    assert rude.refused >= 10


BAD_BIDS = {
    "no job": lambda jobs, theirs, absent: Bid("m", [], 1, 2 * MS, None, 2 * MS),
    "a size that was never profiled": lambda jobs, theirs, absent: bid_parts(jobs[:1], 3),
    "more jobs than its size": lambda jobs, theirs, absent: bid_parts(jobs[:2], 1),
    "a job twice": lambda jobs, theirs, absent: bid_parts([jobs[0], jobs[0]], 4),
    "another policy's job": lambda jobs, theirs, absent: bid_parts([jobs[0], theirs[0]], 4),
    "a model that is not resident": lambda jobs, theirs, absent: bid_parts(absent, 1),
    "a job of another model": lambda jobs, theirs, absent: bid_parts([jobs[0], absent[0]], 4),
    "a job whose request it drops": lambda jobs, theirs, absent: bid_parts(jobs[:1], 1, [(jobs[0].request, "why")]),
}


def bid_parts(jobs, size, drops=()):
    return bid_for(jobs, size, 2 * MS, make("rude").state.board, drops=drops)


@pytest.mark.parametrize("name", sorted(BAD_BIDS))
def test_an_illegal_bid_raises_and_changes_nothing(name):
    scheduler = make("rude")
    busy = scheduler.step(0, [arrival(1)])
    assert isinstance(busy[0], RunBatch)
    scheduler.step(1, [arrival(2), arrival(3), arrival(4, "b"), arrival(5, "c")])
    rude = next(policy for policy in scheduler.policies if isinstance(policy, Rude))
    fifo = next(policy for policy in scheduler.policies if policy.name == "fifo")
    jobs = [job for job in rude.queued() if job.node.model == "m"]
    absent = [job for job in rude.queued() if job.node.model == "other"]
    bad = BAD_BIDS[name](jobs, fifo.queued(), absent)
    lane = scheduler.state.board.lanes[0]
    bad.policy = rude
    before = [scheduler.story(index) for index in range(1, 6)]
    with pytest.raises(PolicyError, match="may not run"):
        scheduler._auction.launch(lane, bad, lane.available_ns(1))
    check_invariants(scheduler.state)
    assert [scheduler.story(index) for index in range(1, 6)] == before
    ends = scheduler.step(60 * MS)
    assert {item.request_id for item in ends if isinstance(item, FinishRequest)} == {2, 3, 4, 5}


def test_time_must_not_go_backwards():
    scheduler = make("idle")
    scheduler.step(10)
    with pytest.raises(PolicyError, match="time must not go backwards"):
        scheduler.step(9)
