"""The online profiler in simulation: samples match the times alone, no request waits for a probe, every rule holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import option
from edgeserve.sched.protocol.actions import Outcome, ReleaseInputs, RetainInputs, RunBatch
from edgeserve.sched.published.baselines.fifo import Fifo, FifoOptions
from edgeserve.sched.published.orloj.sampler import Sampler
from edgeserve.sim.run import setting_of, simulate
from edgeserve.sim.scenario import parse_scenario
from edgeserve.taps.replay import replay
from edgeserve.taps.timeline import timeline_of
from edgeserve.taps.trace import Recorder, build_inputs, read_recording, start_of
from edgeserve.testing.soak.run import soak

MS = 10**6


@dataclass(frozen=True)
class SamplingOptions(FifoOptions):
    sample: float = option(0.5, "for the test")
    budget: float = option(0.2, "for the test")
    retained_max: int = option(8, "for the test")


class Sampling(Fifo):
    """fifo that samples: jobs that wait together run together, with any estimate."""

    options_type = SamplingOptions

    def __init__(self, name, apps, options):
        super().__init__(name, apps, options)
        self.sampler = Sampler(
            name,
            apps,
            share=self.options.sample,
            budget=self.options.budget,
            retained_max=self.options.retained_max,
            seed=7,
        )
        self.samples = []

    def on_ready(self, job, board):
        super().on_ready(job, board)
        self.sampler.on_ready(job, board)

    def bid(self, lane, board):
        return super().bid(lane, board) or self.sampler.offer(lane, board)

    def on_finished(self, work, started_ns, finished_ns, board):
        sample = self.sampler.finished(work, started_ns, finished_ns, board)
        if sample is not None:
            self.samples.append(sample)

    def next_wakeup_ns(self, board):
        return self.sampler.next_wakeup_ns(board)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(POLICIES, "sampling", Sampling)


def lengths(rate=30.0, slo="400ms", budget=0.2, duration="40s", **keys):
    """One model that takes 5 ms and 1 ms per unit of its longest input, of 10 or 50 units; fifo that samples."""
    return parse_scenario(
        {
            "model": {"m": {"engine": "synthetic", "batch": [1, 4], "expected": {"1": "55ms", "4": "205ms"}}},
            "app": {"a": {"model": "m", "slo": slo}},
            "policy": {"p": {"kind": "sampling", "sample": 0.5, "budget": budget, **keys.pop("policy", {})}},
            "truth": {"m": {"hint": "length", "fixed": "5ms", "per_unit": "1ms"}},
            "workload": {
                "w": {"app": "a", "kind": "poisson", "rate": rate, "hints": {"length": {"10": 0.7, "50": 0.3}}}
            },
            "run": {"duration": duration, "step_cost": "0ms", "event_cost": "0ms", "noise": 0.0},
            **keys,
        }
    )


def test_samples_are_the_times_alone_in_the_shares_of_all_requests():
    run = simulate(lengths(rate=15.0), 1)
    samples = run.scheduler.policies[0].samples
    assert {(sample.alone_ns, sample.hints["length"]) for sample in samples} == {(15 * MS, 10), (55 * MS, 50)}
    probed = [sample for sample in samples if sample.probed]
    assert len(probed) > 5 and len(samples) - len(probed) > 5
    arrived = [item.request.hints["length"] for item in run.world.ended]
    long = arrived.count(50) / len(arrived)
    share = sum(sample.hints["length"] == 50 for sample in samples) / len(samples)
    assert abs(share - long) < 3 * (long * (1 - long) / len(samples)) ** 0.5
    assert run.world.reference_model.marks["probe"] == len(probed)


def test_probes_take_no_more_than_their_budget_of_the_lane_and_cost_no_request_its_deadline():
    met, breakdown = {}, {}
    for budget in (0.0, 0.05):
        run = simulate(lengths(rate=15.0, budget=budget), 3)
        met[budget] = sum(
            item.outcome == Outcome.COMPLETED and item.end_ns <= item.request.deadline_ns for item in run.world.ended
        ) / len(run.world.ended)
        breakdown[budget] = sum(sample.alone_ns for sample in run.scheduler.policies[0].samples if sample.probed)
    assert 0.01 * 40_000 * MS < breakdown[0.05] <= 0.05 * 40_000 * MS + 55 * MS
    assert breakdown[0.0] == 0
    assert met[0.05] >= met[0.0] - 0.002, met


def test_a_recording_with_probes_replays_and_its_timeline_shows_them(tmp_path):
    made = lengths(duration="10s")
    setting = setting_of(made.config)
    recorder = Recorder(str(tmp_path / "r"), start_of(setting.footprints, setting.resident))
    simulate(made, 4, on_step=recorder.tap, drain=True)
    recorder.close()
    recording = read_recording(str(tmp_path / "r"))
    actions = [action for step in recording.steps for action in step.actions]
    assert {RetainInputs, ReleaseInputs} <= {type(action) for action in actions}
    probes = [action for action in actions if isinstance(action, RunBatch) and action.probe]
    assert probes
    assert replay(build_scheduler(made.config, **build_inputs(recording.start)), recording.steps) is None
    entries = timeline_of(recording.steps).table()["traceEvents"]
    assert [entry["args"]["work"] for entry in entries if entry["name"] == "probe m"] == [
        action.work_id for action in probes
    ]


def test_every_rule_holds_with_probes_among_the_works():
    marks = {"RetainInputs": 0, "ReleaseInputs": 0, "probe": 0}
    for seed in (308, 319):
        print(f"seed {seed}")
        found = soak(seed, policies=("sampling",))
        marks = {name: count + found.marks.get(name, 0) for name, count in marks.items()}
    assert all(count > 3 for count in marks.values()), marks
    assert marks["RetainInputs"] >= marks["ReleaseInputs"] + marks["probe"]
