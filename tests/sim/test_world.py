"""The simulated world against closed forms, with a fake scheduler, and its reference model against broken rules."""

from __future__ import annotations

from collections import deque

import pytest

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.edf import Edf
from edgeserve.sched.protocol.actions import (
    START_ANY_TIME_NS,
    EvictModel,
    FinishRequest,
    LoadModel,
    Outcome,
    RunBatch,
)
from edgeserve.sched.protocol.events import JobId, JobResult, Request, RequestArrived, WorkFinished, WorkRefused
from edgeserve.sim.reference_model import ReferenceModel, ReferenceModelError
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

MS = 10**6


class FakeFifo:
    """Single-node apps, one lane, no deadlines. ``expected_ns`` is what it tells the lane."""

    def __init__(self, config, lane="cpu0", late_ns=START_ANY_TIME_NS):
        self.config, self.lane, self.late_ns = config, lane, late_ns
        self.queue, self.out, self.next_id = deque(), {}, 1

    def wake_at(self):
        return None

    def thought_ns(self):
        return 0

    def step(self, now_ns, events=()):
        actions = []
        for event in events:
            if isinstance(event, RequestArrived):
                self.queue.append(event.request)
            elif isinstance(event, WorkFinished):
                request = self.out.pop(event.work_id)
                status = event.results[0].status
                if status == "unfinished":
                    self.queue.appendleft(request)
                else:
                    outcome = Outcome.COMPLETED if status == "done" else Outcome.FAILED
                    actions.append(FinishRequest(request.id, outcome))
            elif isinstance(event, WorkRefused):
                request = self.out.pop(event.work_id)
                actions.append(FinishRequest(request.id, Outcome.DROPPED, event.reason))
        if self.queue and not self.out:
            request = self.queue.popleft()
            node = self.config.apps[request.app].nodes[0]
            before_ns = min(now_ns + self.late_ns, START_ANY_TIME_NS)
            actions.append(
                RunBatch(
                    self.next_id, self.lane, node.model, (JobId(request.id, node.name, ()),), 1, now_ns, before_ns, 1
                )
            )
            self.out[self.next_id] = request
            self.next_id += 1
        return actions


def scenario(**changes):
    table = {
        "model": {"m": {"engine": "synthetic", "expected": {"1": "10ms"}}},
        "app": {"a": {"model": "m", "slo": "100ms", "on_late": "answer"}},
        "run": {"duration": "10s", "step_cost": "0ms", "event_cost": "0ms"},
        "workload": {"w": {"app": "a", "kind": "poisson", "rate": 50.0}},
    }
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value}
    return parse_scenario(table)


def run(made, seed=1, **options):
    return simulate(made, seed, scheduler=FakeFifo(made.config), **options).world


@pytest.mark.worlds
def test_a_queue_of_one_server_waits_as_long_as_the_formula_says():
    # M/D/1 at half load: mean wait = service * rho / (2 (1 - rho)) = 5 ms, so 15 ms in all.
    made = scenario(run={"duration": "400s", "step_cost": "0ms", "event_cost": "0ms"})
    world = run(made)
    times = [item.end_ns - item.request.arrival_ns for item in world.ended]
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert sum(times) / len(times) == pytest.approx(15 * MS, rel=0.05)
    assert report_of([world], 0, made.run.duration_ns).lanes["cpu0"] == pytest.approx(0.5, rel=0.03)


def test_closed_loop_clients_keep_the_lane_busy_and_wait_for_each_other():
    world = run(scenario(workload={"w": {"app": "a", "kind": "closed", "clients": 4}}))
    report = report_of([world], 1000 * MS, 10_000 * MS)
    assert report.goodput == pytest.approx(100, rel=0.01)
    assert report.total.p50_ms == pytest.approx(40, rel=0.01)


def test_clients_that_were_refused_ask_again_once_with_the_deadline_that_would_do():
    app = {"a": {"model": "m", "slo": "12ms"}}
    patient = {"app": "a", "rate": 150, "again": 0.5}
    world = simulate(scenario(app=app, workload={"w": patient}), 1).world
    again = [item for item in world.ended if item.request.deadline_ns - item.request.arrival_ns != 12 * MS]
    refused = [item for item in world.ended if item.outcome in ("rejected", "dropped") and item not in again]
    assert len(again) == pytest.approx(len(refused) / 2, rel=0.2)
    assert min(item.request.deadline_ns - item.request.arrival_ns for item in again) > 12 * MS


class Fours(Edf):
    """Edf that has its models make four steps per call."""

    def bid(self, lane, board):
        bid = super().bid(lane, board)
        if bid is not None:
            bid.steps_max = 4
            bid.expected_ns *= 4
        return bid


def test_calls_of_four_steps_teach_the_time_of_one(monkeypatch):
    monkeypatch.setitem(POLICIES, "fours", Fours)
    made = scenario(
        policy={"fours": {}},
        truth={"m": {"steps": 8}},
        app={"a": {"model": "m", "slo": "100ms"}},
        workload={"w": {"app": "a", "kind": "closed", "clients": 1, "hints": {"steps": 8}}},
    )
    calls = []

    def on_step(now_ns, events, actions):
        for event in events:
            if isinstance(event, WorkFinished):
                calls.append((event.finished_ns - event.started_ns, event.results[0].status, event.results[0].steps))

    run = simulate(made, 1, on_step=on_step)
    assert calls[:4] == [(40 * MS, "unfinished", 4), (40 * MS, "done", 4)] * 2
    assert run.scheduler.state.latency["m", "cpu0"].estimate_ns[1] == 10 * MS
    assert report_of([run.world], 0, 10_000 * MS).total.finish_rate == 1.0  # 8 steps of 40 ms could not be in time


def test_the_schedulers_thinking_is_charged():
    made = scenario(
        workload={"w": {"app": "a", "kind": "closed", "clients": 1}},
        run={"duration": "10s", "step_cost": "1ms", "event_cost": "1500us"},
    )
    # Arrival and result each cost a step and an event: 10 ms of work take 15 ms.
    assert report_of([run(made)], 0, 10_000 * MS).total.p50_ms == pytest.approx(15, rel=0.001)


def test_equal_seeds_give_equal_runs_and_others_do_not():
    made = scenario(workload={"w": {"app": "a", "kind": "gamma", "rate": 50.0}}, run={"noise": 0.05, "duration": "5s"})
    first, again, other = run(made, 7), run(made, 7), run(made, 8)
    assert first.ended == again.ended
    assert first.ended != other.ended


def test_iterative_models_return_unfinished_jobs_until_their_steps_are_done():
    made = scenario(
        truth={"m": {"steps": 5, "steps_per_run": 2}},
        app={"a": {"model": "m", "slo": "1s"}},
        workload={"w": {"app": "a", "kind": "closed", "clients": 1}},
    )
    world = run(made)
    assert world.ended[0].end_ns - world.ended[0].request.arrival_ns == 50 * MS
    assert world.reference_model.marks["RunBatch"] >= 3 * len(world.ended)


def test_a_lane_refuses_what_comes_too_late():
    made = scenario(run={"duration": "1s", "step_cost": "2ms", "event_cost": "0ms"})
    world = simulate(made, 1, scheduler=FakeFifo(made.config, late_ns=1 * MS)).world
    assert {item.outcome for item in world.ended} == {Outcome.DROPPED}
    assert world.ended[0].reason == "the start window has passed"


BOOKS = {
    "device": {"d": {"memory": "100MB"}},
    "lane": {"l": {"device": "d"}, "l2": {"device": "d"}},
    "model": {
        name: {"engine": "synthetic", "memory": "60MB", "expected": {"1": "1ms", "4": "2ms"}, "batch": [1, 4]}
        for name in ("m", "n", "o")
    },
    "app": {
        "one": {"model": "m"},
        "fan": {
            "node": [
                {"name": "cut", "model": "m", "fan_out": True},
                {"name": "read", "model": "n"},
                {"name": "join", "model": "o", "gather": True},
            ]
        },
    },
}


@pytest.fixture
def reference_model():
    config = parse_scenario(BOOKS).config
    made = ReferenceModel(config, {(name, "d"): (60_000_000, 0) for name in "mno"}, {"d": ["m"]})
    made.arrived(Request(1, "one", 0, 50 * MS))
    made.told(1)
    made.arrived(Request(2, "fan", 0, 50 * MS))
    made.told(2)
    return made


def batch(work, job, model="m", lane="l", before=2**62, after=0, size=1):
    jobs = job if isinstance(job, list) else [job]
    return RunBatch(work, lane, model, tuple(jobs), size, after, before, MS)


def job(request, node, *part):
    return JobId(request, node, part)


def test_books_refuse_a_second_outcome(reference_model):
    reference_model.ordered(0, FinishRequest(1, Outcome.REJECTED))
    with pytest.raises(ReferenceModelError, match="has an outcome already"):
        reference_model.ordered(0, FinishRequest(1, Outcome.REJECTED))


def test_books_refuse_two_works_on_one_lane(reference_model):
    reference_model.ordered(0, batch(1, job(1, "m")))
    with pytest.raises(ReferenceModelError, match="lane l was given more than 1 works"):
        reference_model.ordered(0, batch(2, job(2, "cut")))


def test_books_refuse_a_job_in_two_batches(reference_model):
    reference_model.ordered(0, batch(1, job(1, "m")))
    with pytest.raises(ReferenceModelError, match="is in two batches"):
        reference_model.ordered(0, batch(2, job(1, "m"), lane="l2"))


def test_books_refuse_a_start_after_the_window(reference_model):
    work = batch(1, job(1, "m"), before=5)
    reference_model.ordered(0, work)
    with pytest.raises(ReferenceModelError, match="started after its window"):
        reference_model.started(6, work)


def test_books_refuse_nodes_before_their_predecessors(reference_model):
    with pytest.raises(ReferenceModelError, match="runs before its predecessors"):
        reference_model.ordered(0, batch(1, job(2, "read", 0), "n"))


def test_books_refuse_completed_without_the_nodes_that_its_joins_need(reference_model):
    work = batch(1, job(2, "cut"))
    reference_model.ordered(0, work)
    reference_model.answered(MS, work, [JobResult(job(2, "cut"), parts=2)])
    with pytest.raises(ReferenceModelError, match="not every node ran"):
        reference_model.ordered(MS, FinishRequest(2, Outcome.COMPLETED))


def test_books_refuse_a_gather_before_all_its_parts(reference_model):
    first = batch(1, job(2, "cut"))
    reference_model.ordered(0, first)
    reference_model.answered(MS, first, [JobResult(job(2, "cut"), parts=2)])
    second = batch(2, job(2, "read", 0), "n")
    reference_model.ordered(MS, second)
    reference_model.answered(MS, second, [JobResult(job(2, "read", 0))])
    with pytest.raises(ReferenceModelError, match="runs before its predecessors"):
        reference_model.ordered(MS, batch(3, job(2, "join"), "o"))
    third = batch(4, job(2, "read", 1), "n", lane="l2")
    reference_model.ordered(MS, third)
    reference_model.answered(MS, third, [JobResult(job(2, "read", 1))])


def test_books_refuse_loads_over_the_budget_and_runs_of_absent_models(reference_model):
    load = LoadModel(1, "copy:d", "n", 2**62, MS)
    reference_model.ordered(0, load)
    with pytest.raises(ReferenceModelError, match="exceed the 100000000"):
        reference_model.started(0, load)
    work = batch(2, [job(1, "m")])
    evict = EvictModel(3, "copy:d", "m")
    reference_model.ordered(0, evict)
    reference_model.started(0, evict)
    reference_model.ordered(0, work)
    with pytest.raises(ReferenceModelError, match="not resident"):
        reference_model.started(0, work)


def test_books_refuse_an_eviction_under_a_running_batch(reference_model):
    evict = EvictModel(2, "copy:d", "m")
    reference_model.ordered(0, batch(1, job(1, "m")))
    reference_model.ordered(0, evict)
    with pytest.raises(ReferenceModelError, match="is out"):
        reference_model.started(0, evict)


def test_books_refuse_waiting_past_a_deadline(reference_model):
    reference_model.ordered(0, batch(1, job(1, "m")))
    reference_model.stepped(50 * MS)
    with pytest.raises(ReferenceModelError, match="waits past its deadline"):
        reference_model.stepped(50 * MS + 1)
    with pytest.raises(ReferenceModelError, match="given up only now"):
        reference_model.ordered(60 * MS, FinishRequest(2, Outcome.DROPPED))


def test_books_close_only_when_everything_has_ended(reference_model):
    with pytest.raises(ReferenceModelError, match="2 accepted requests never ended"):
        reference_model.closed(0)
