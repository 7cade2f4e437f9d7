"""The simulated world against closed forms, with a fake scheduler, and its reference model against broken rules."""

from __future__ import annotations

import pytest
from relay import Relay

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import (
    EvictModel,
    FinishRequest,
    LoadModel,
    Outcome,
    RunBatch,
)
from edgeserve.sched.protocol.events import JobId, JobResult, Request, WorkFinished
from edgeserve.sched.published.common.edf import Edf
from edgeserve.sim.reference_model import ReferenceModel, ReferenceModelError
from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

MS = 10**6


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
    return simulate(made, seed, scheduler=Relay(made.config), **options).world


@pytest.mark.worlds
def test_a_queue_of_one_server_waits_as_long_as_the_formula_says():
    # M/D/1 at half load: mean wait = service * rho / (2 (1 - rho)) = 5 ms, so 15 ms in all.
    made = scenario(run={"duration": "120s", "step_cost": "0ms", "event_cost": "0ms"})
    world = run(made)
    times = [item.end_ns - item.request.arrival_ns for item in world.ended]
    assert len(times) == pytest.approx(6_000, rel=0.03)
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
    world = simulate(made, 1, scheduler=Relay(made.config, late_ns=1 * MS)).world
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


def done(work, **result):
    """The steps by which a lane runs a batch of one job to its end."""
    return [("ordered", 0, work), ("answered", MS, work, [JobResult(work.jobs[0], **result)])]


OUT = ("ordered", 0, FinishRequest(1, Outcome.REJECTED))
ONE, TWO, CUT = batch(1, job(1, "m")), batch(2, job(1, "m"), before=5), batch(1, job(2, "cut"))
LOAD, EVICT = LoadModel(3, "copy:d", "n", 2**62, MS), EvictModel(3, "copy:d", "m")
BROKEN = {
    "has an outcome already": [OUT, OUT],
    "lane l was given more than 1 works": [("ordered", 0, ONE), ("ordered", 0, batch(2, job(2, "cut")))],
    "is in two batches": [("ordered", 0, ONE), ("ordered", 0, batch(2, job(1, "m"), lane="l2"))],
    "started after its window": [("ordered", 0, TWO), ("started", 6, TWO)],
    "runs before its predecessors": [("ordered", 0, batch(1, job(2, "read", 0), "n"))],
    "not every node ran": [*done(CUT, parts=2), ("ordered", MS, FinishRequest(2, Outcome.COMPLETED))],
    "join.* runs before its predecessors": [
        *done(CUT, parts=2),
        *done(batch(2, job(2, "read", 0), "n")),
        ("ordered", MS, batch(3, job(2, "join"), "o")),
    ],
    "exceed the 100000000": [("ordered", 0, LOAD), ("started", 0, LOAD)],
    "not resident": [("ordered", 0, EVICT), ("started", 0, EVICT), ("ordered", 0, ONE), ("started", 0, ONE)],
    "is out": [("ordered", 0, ONE), ("ordered", 0, EVICT), ("started", 0, EVICT)],
    "waits past its deadline": [("ordered", 0, ONE), ("stepped", 50 * MS), ("stepped", 50 * MS + 1)],
    "given up only now": [("stepped", 50 * MS), ("ordered", 60 * MS, FinishRequest(2, Outcome.DROPPED))],
    "2 accepted requests never ended": [("closed", 0)],
}


@pytest.mark.parametrize("said", BROKEN)
def test_the_step_that_breaks_a_rule_is_refused_and_those_before_it_are_not(reference_model, said):
    *legal, broken = BROKEN[said]
    for name, *arguments in legal:
        getattr(reference_model, name)(*arguments)
    with pytest.raises(ReferenceModelError, match=said):
        getattr(reference_model, broken[0])(*broken[1:])
