"""The online profiler: which jobs are sampled, when they are run again alone, and that no request waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hand_world import MS, Driver, ended, ids, like, ran

from edgeserve.errors import PolicyError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.policy_api.options import option
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.actions import EvictModel, ReleaseInputs, RetainInputs
from edgeserve.sched.protocol.events import JobId
from edgeserve.sched.published.common.edf import Edf, EdfOptions
from edgeserve.sched.published.orloj.sampler import Sample, Sampler
from edgeserve.testing.invariants import check_invariants

NOTHING = Utility((), 0)

ONE = {"m": {1: 10, 4: 12}}


@dataclass(frozen=True)
class SamplingOptions(EdfOptions):
    sample: float = option(1.0, "for the test")
    budget: float = option(1.0, "for the test")
    retained_max: int = option(8, "for the test")
    hold: bool = option(False, "for the test")


class Sampling(Edf):
    """edf that samples; with ``hold`` it runs nothing but probes."""

    options_type = SamplingOptions

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.hold = self.options.hold
        self.sampler = Sampler(
            name,
            apps,
            share=self.options.sample,
            budget=self.options.budget,
            retained_max=self.options.retained_max,
        )
        self.samples = []
        self.started = []

    def on_ready(self, job, board):
        super().on_ready(job, board)
        self.sampler.on_ready(job, board)

    def on_started(self, work, board):
        super().on_started(work, board)
        self.started.append(work.id)

    def bid(self, lane, board):
        return (None if self.hold else super().bid(lane, board)) or self.sampler.offer(lane, board)

    def on_finished(self, work, started_ns, finished_ns, board):
        sample = self.sampler.finished(work, started_ns, finished_ns, board)
        if sample is not None:
            self.samples.append(sample)

    def next_wakeup_ns(self, board):
        return self.sampler.next_wakeup_ns(board)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(POLICIES, "sampling", Sampling)


def world_of(models=None, apps=None, options=None, **keys):
    return Driver(
        models or ONE,
        apps or {"a": "m"},
        policy={"s": {"kind": "sampling", **(options or {})}, **keys.pop("policies", {})},
        **keys,
    )


def policy(world) -> Sampling:
    return next(item for item in world.scheduler.policies if item.name == "s")


def jid(request_id, node="m"):
    return JobId(request_id, node, ())


def probe(request_id, model="m", **fields):
    return ran(model, request_id, probe=True, size=1, **fields)


def retained(world):
    return ids([item.id for item in world.scheduler.state.retained.values()])


def took(*times_ms):
    return [round(time_ms * MS) for time_ms in times_ms]


# --- from the draw to the sample --------------------------------------------------------------------------------------


def test_what_ran_in_a_batch_is_run_again_alone_when_the_lane_idles():
    world = world_of()
    assert world.arrive("a", count=2, hints={"length": 3}) == [
        RetainInputs(jid(1)),
        RetainInputs(jid(2)),
        ran("m", 1, 2, size=4),
    ]
    assert world.finish(at=12) == [
        ended(1, "completed"),
        ended(2, "completed"),
        probe(1, expected_ns=10 * MS, steps_max=None),
    ]
    assert world.finish(at=23) == [probe(2)]
    assert world.finish(at=35) == []
    assert policy(world).samples == [
        Sample("a", "m", {"length": 3}, 11 * MS, "cpu0", True),
        Sample("a", "m", {"length": 3}, 12 * MS, "cpu0", True),
    ]
    assert policy(world).started == [1]  # a probe has no job to unqueue
    assert [row["probes"] for row in policy(world).sampler.figures().values()] == [2]
    world.over()
    assert retained(world) == []


def test_what_ran_alone_by_itself_needs_no_probe():
    world = world_of()
    world.arrive("a")
    assert world.finish(at=12) == [ended(1, "completed"), ReleaseInputs(jid(1))]
    assert policy(world).samples == [Sample("a", "m", {}, 12 * MS, "cpu0", False)]
    world.over()


def test_one_job_in_a_larger_size_is_not_alone():
    world = world_of()
    world.arrive("a")
    world.scheduler.state.works.by_id[1].size = 4
    assert world.finish(at=12) == [ended(1, "completed"), probe(1)]


def test_what_is_dropped_while_it_waits_is_sampled_too():
    world = world_of()
    world.arrive("a")
    world.arrive("a", at=1, slo=20)
    assert world.step(at=14) == [ended(2, "dropped", "cannot_make_deadline")]
    assert world.finish(at=30) == [ended(1, "completed"), ReleaseInputs(jid(1)), probe(2)]
    world.finish(at=45)
    assert [(sample.alone_ns, sample.probed) for sample in policy(world).samples] == [(30 * MS, False), (15 * MS, True)]


def test_a_place_is_kept_until_its_probe_rather_than_given_to_a_newer_job():
    world = world_of(options={"retained_max": 2})
    world.arrive("a", count=3)
    assert retained(world) == [1, 2]
    assert world.finish(at=20)[-1] == probe(1)
    world.arrive("a", at=21)
    assert retained(world) == [2, 4]


@pytest.mark.parametrize("options", [{"sample": 0.0}, {"budget": 0.0}, {"retained_max": 0}])
def test_without_share_budget_or_place_nothing_is_kept(options):
    world = world_of(options=options)
    world.arrive("a", count=2)
    world.finish(at=12)
    assert not [action for action in world.seen if isinstance(action, (RetainInputs, ReleaseInputs))]
    world.over()
    assert world.wake_ms is None


def test_states_of_streams_and_steps_are_not_sampled():
    streams = world_of(apps={"a": {"model": "m", "stream": "in_order"}})
    streams.arrive("a", stream="cam")
    steps = world_of()
    steps.arrive("a", hints={"steps": 3})
    assert retained(streams) == retained(steps) == []


def test_a_model_that_comes_back_unfinished_is_not_sampled_any_more():
    world = world_of()
    world.arrive("a", count=2)
    assert world.finish(at=12, status="unfinished") == [ReleaseInputs(jid(1)), ReleaseInputs(jid(2)), ran("m", 1, 2)]
    world.arrive("a", at=13)
    assert retained(world) == []
    assert policy(world).samples == []


def test_a_job_that_fails_and_a_probe_that_fails_teach_nothing():
    world = world_of()
    world.arrive("a", count=3)
    known_ns = world.scheduler.state.latency["m", "cpu0"].estimate_ns[1]
    actions = world.step(world.finished(at=20, each={0: {"status": "failed", "reason": "bad"}}))
    assert ReleaseInputs(jid(1)) in actions and actions[-1] == probe(2)
    assert world.finish(at=90, status="failed", reason="bad")[-1] == probe(3)
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == known_ns
    world.finish(at=105)
    assert world.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == 15 * MS  # what a probe took is known of size 1
    assert [sample.alone_ns for sample in policy(world).samples] == took(15)
    world.over()


# --- no request waits for a probe -------------------------------------------------------------------------------------


def test_no_probe_starts_while_a_job_waits_that_the_lane_could_run():
    world = world_of(options={"hold": True}, apps={"a": {"model": "m", "slo": "1s"}})
    assert world.arrive("a") == [RetainInputs(jid(1))]
    assert world.cancel(1, at=1) == [ended(1, "cancelled"), probe(1)]
    world.finish(at=10)
    world.arrive("a", count=2)
    assert world.cancel(2) == [ended(2, "cancelled")]
    assert world.pass_time(100) == []
    assert world.cancel(3) == [ended(3, "cancelled"), probe(2)]


def test_a_probe_yields_to_every_bid_also_of_background_work_that_is_worth_nothing():
    world = world_of(
        {"m": {1: 10}, "n": {1: 10}},
        {
            "bg": {"model": "n", "class": "background", "slo": "5s", "policy": "z", "value": 0.0},
            "a": {"model": "m", "policy": "s"},
        },
        policies={"z": {"kind": "fifo"}},
    )
    world.arrive("a")
    world.arrive("a", at=1)
    policy(world).hold = True
    world.cancel(2)
    world.arrive("bg", at=5)
    assert world.finish(at=10)[-1] == ran("n", 3)
    assert world.finish(at=20)[-1] == probe(2)


@pytest.mark.parametrize(("slo", "starts"), [(19, False), (20, True)])
def test_a_request_that_comes_just_after_the_start_can_still_be_in_time(slo, starts):
    world = world_of({"m": {1: 10, 4: 12}, "n": {1: 10}}, {"a": "m", "b": {"model": "n", "slo": f"{slo}ms"}})
    world.arrive("a", count=2)
    assert retained(world) == ([1, 2] if starts else [])
    assert world.finish(at=12)[2:] == ([probe(1)] if starts else [])
    world = world_of({"m": {1: 10}, "n": {1: 10}}, {"a": "m", "b": {"model": "n", "slo": f"{slo}ms"}})
    world.arrive("a")
    world.finish(at=10)
    assert [sample.alone_ns for sample in policy(world).samples] == [10 * MS]  # what runs alone anyway teaches still


def test_where_a_probe_has_become_too_long_what_is_kept_is_let_go():
    world = world_of(apps={"a": {"model": "m", "slo": "40ms"}})
    world.arrive("a", count=2)
    assert world.finish(at=12)[-1] == probe(1)
    assert world.finish(at=47) == []  # 35 ms: after that, no new request could be in time
    assert retained(world) == [2]
    assert world.arrive("a", at=60) == [ReleaseInputs(jid(2)), ran("m", 3)]
    assert retained(world) == []


PIPE = {"first": {1: 10, "lanes": ["l0"]}, "then": {1: 10, "lanes": ["l1"]}}
TWO = {"l0": {}, "l1": {}}


@pytest.mark.parametrize(("slo", "starts"), [(38, False), (39, True)])
def test_a_pipeline_that_is_due_soon_keeps_the_lane_free_for_its_next_node(slo, starts):
    world = world_of(PIPE, {"a": [{"name": "first"}, {"name": "then"}]}, lane=TWO)
    world.arrive("a")
    world.finish("l0", at=10)
    world.arrive("a", at=11, slo=slo)
    world.cancel(1)
    # At 20 a probe of 10 and 20 ms of its own would end at 50; an orphan's own run says nothing.
    assert world.finish("l1", at=20) == ([probe(1, "then")] if starts else [])
    if not starts:
        assert world.cancel(2, at=21)[-1] == probe(1, "then")


def test_what_runs_or_waits_may_yet_run_alone_by_itself():
    world = world_of(lane=TWO)
    assert world.arrive("a", at=5) == [RetainInputs(jid(1)), ran("m", 1, lane="l0")]  # and no probe of it on the other
    assert world.finish(at=15) == [ended(1, "completed"), ReleaseInputs(jid(1))]


def test_probes_are_one_at_a_time_also_on_a_lane_that_plans_ahead():
    world = world_of(lane={"cpu0": {"ahead": "50ms"}})
    world.arrive("a", count=4)
    assert world.finish(at=12)[-1] == probe(1)
    assert len(world.on_lane) == 1
    assert world.arrive("a", at=13)[-1] == ran("m", 5)  # behind the probe, so that the lane does not idle


def test_whoever_offers_a_probe_it_never_stands_behind_other_work():
    world = world_of(lane={"cpu0": {"ahead": "50ms"}}, apps={"a": {"model": "m", "slo": "9s"}})
    world.arrive("a", count=3)
    assert world.finish(at=12)[-1] == probe(1)
    probes, lane = world.scheduler._probes, world.scheduler.state.lanes["cpu0"]
    bid = Bid("m", (world.scheduler.state.retained[3],), 1, 10 * MS, NOTHING, 0, probe=True)
    assert lane.accepts(13 * MS) and not probes.may_start(bid, lane, 13 * MS)
    world.finish(at=22)
    world.finish(at=32)
    world.finish(at=42)
    assert probes.may_start(bid, lane, 43 * MS)


def test_a_lane_spends_no_more_than_the_budget_on_probes():
    world = world_of(options={"budget": 0.1})
    world.arrive("a", at=0, count=4)
    assert world.finish(at=20)[-1] == probe(1)  # 2 ms are due to probes; the debt is paid later
    world.finish(at=30)
    assert world.wake_ms == pytest.approx(100, abs=0.01)
    assert world.pass_time(101) == [probe(2)]
    world.finish(at=120)
    assert world.wake_ms == pytest.approx(300, abs=1)
    assert len(policy(world).samples) == 2


def test_unused_budget_adds_up_for_a_second_only():
    world = world_of(options={"budget": 0.02}, apps={"a": {"model": "m", "slo": "9s"}})
    world.arrive("a", at=60_000, count=4)
    world.finish(at=60_012)
    count = 0
    while any(work.probe for work in world.on_lane.values()):
        world.finish(at=world.now_ms + 10)
        count += 1
    assert count == 3  # 20 ms are saved up; the third may begin with what is left of them


# -------------------------------------------------------------------------------------------


def test_draining_lets_go_of_everything_and_keeps_nothing_more():
    world = world_of()
    world.arrive("a", count=3)
    world.finish(at=20)  # the probe of 1 runs
    assert world.drain() == [ReleaseInputs(jid(2)), ReleaseInputs(jid(3))]
    assert world.finish(at=30) == []
    world.over()
    assert retained(world) == []
    assert [sample.probed for sample in policy(world).samples] == [True]


def test_while_draining_jobs_that_become_ready_are_not_kept():
    world = world_of({"first": {1: 10}, "then": {1: 10}}, {"a": [{"name": "first"}, {"name": "then"}]})
    world.arrive("a")
    assert retained(world) == [1]
    assert world.drain() == [ReleaseInputs(jid(1, "first"))]
    assert world.finish(at=10) == [ran("then", 1)]
    assert retained(world) == []


def test_a_probe_that_is_refused_or_lost_is_over_and_nobody_is_told():
    world = world_of()
    world.arrive("a", count=4)
    world.finish(at=20)
    assert world.refuse(at=21) == [probe(2)]
    # No lane could run them.
    assert world.lane("cpu0", up=False, at=22) == [ReleaseInputs(jid(3)), ReleaseInputs(jid(4))]
    world.over()
    assert policy(world).samples == []
    world.lane("cpu0", at=30)
    assert world.arrive("a", at=31)[-1] == ran("m", 5)


def test_inputs_of_a_model_that_leaves_the_memory_are_let_go():
    world = world_of(
        {"m": {1: 10, 4: 12, "memory": "60MB", "load": "5ms"}, "n": {1: 10, "memory": "60MB", "load": "5ms"}},
        {"a": "m", "b": "n"},
        options={"budget": 0.001},
        device={"d": {"memory": "100MB"}},
        lane={"cpu0": {"device": "d"}},
        resident={"d": ["m"]},
    )
    world.arrive("a", count=2)
    assert world.finish(at=12)[-1] == probe(1)
    world.finish(at=30)
    assert retained(world) == [2]
    actions = world.arrive("b", at=31)
    assert like(EvictModel, model="m") in actions and ReleaseInputs(jid(2)) in actions
    assert retained(world) == [3]


def test_a_job_that_is_made_ready_again_is_not_drawn_again():
    world = world_of(options={"retained_max": 8})
    world.arrive("a", at=1)
    state = world.scheduler.state
    state.board.release(state.retained[1])
    world.refuse(at=2)
    assert retained(world) == []


# --- illegal moves ----------------------------------------------------------------------------------------------------


def test_only_ready_jobs_are_kept_and_only_what_is_kept_is_let_go():
    world = world_of(options={"sample": 0.0})
    world.arrive("a")
    board, running = world.scheduler.state.board, world.scheduler.state.works.by_id[1].jobs[0]
    for move in (board.retain, board.release):
        with pytest.raises(PolicyError, match=r"Job\(1/m running\)"):
            move(running)
    world.arrive("a", at=1)
    waiting = policy(world).queued()[0]
    assert board.retain(waiting)
    with pytest.raises(PolicyError, match="not retained yet"):
        board.retain(waiting)
    board.release(waiting)
    with pytest.raises(PolicyError, match="it is not retained"):
        board.release(waiting)
    waiting.steps = 1
    with pytest.raises(PolicyError, match="steps behind it"):
        board.retain(waiting)


BAD = {
    "two jobs": lambda jobs: Bid("m", jobs[:2], 4, 10 * MS, NOTHING, 0, probe=True),
    "a larger size": lambda jobs: Bid("m", jobs[:1], 4, 10 * MS, NOTHING, 0, probe=True),
    "with drops": lambda jobs: Bid("m", jobs[:1], 1, 10 * MS, NOTHING, 0, probe=True, drops=[(jobs[1].request, "why")]),
    "another model": lambda jobs: Bid("n", jobs[:1], 1, 10 * MS, NOTHING, 0, probe=True),
    "not retained": lambda jobs: Bid("m", jobs[2:], 1, 10 * MS, NOTHING, 0, probe=True),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_probe_that_is_none_raises_and_changes_nothing(name):
    world = world_of(
        {"m": {1: 10, 4: 20}, "n": {1: 10}}, {"a": "m", "b": "n"}, options={"hold": True, "retained_max": 2}
    )
    world.arrive("a", count=3)
    jobs = policy(world).queued()
    bad = BAD[name](jobs)
    bad.policy = policy(world)
    with pytest.raises(PolicyError, match="may not run"):
        world.scheduler._auction.launch(world.scheduler.state.board.lanes[0], bad, 0)
    check_invariants(world.scheduler.state)
    assert retained(world) == [1, 2]
