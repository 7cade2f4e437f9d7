"""Models that answer step by step: what a scenario says of the lengths of answers, and what batches of them take."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import CutBatch, FinishRequest, Outcome, ReleaseState, RunBatch
from edgeserve.sched.protocol.events import (
    BatchProgress,
    JobId,
    LaneChanged,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
)
from edgeserve.sim.run import sequences_of, setting_of, simulate, told_times
from edgeserve.sim.scenario import StepConfig, parse_scenario
from edgeserve.sim.sequence_runs import SequenceRun
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import RecordedStep, Recording, build_inputs, start_of

MS = 10**6


def chat(truth=None, hints=None, lanes=("gpu0",), policy="fifo", seconds=20, **workload):
    """An assistant whose answers have about twenty tokens."""
    table = {
        "lane": {name: {} for name in lanes},
        "model": {"chat": {"engine": "synthetic", "batch": [1, 2, 4, 8]}},
        "app": {"assistant": {"model": "chat", "slo": "300s", "on_late": "answer"}},
        "policy": {policy: {}},
        "run": {"duration": f"{seconds}s", "step_cost": "0us", "event_cost": "0us"},
        "truth": {
            "chat": {
                "steps_hint": "words",
                "steps_max": 60,
                "told": True,
                "step": {"full": "10ms", "saturates": 8, "alone": 0.75},
                **(truth or {}),
            }
        },
        "workload": {
            "people": {
                "app": "assistant",
                "rate": 20.0,
                "hints": {"words": {"lognormal": [20.0, 0.5]}, "tokens": 10, **(hints or {})},
                **workload,
            }
        },
    }
    return parse_scenario(table)


def true_words(scenario, world):
    """The length of each answer, by request."""
    most = scenario.truths["chat"].steps_max
    return {item.request.id: min(most, max(1, round(item.request.hints["words"]))) for item in world.ended}


def told_and_true(scenario, seed=1):
    """The declared and the true lengths of answers, in the order of the requests' ids."""
    said = {}

    def on_step(now_ns, events, actions):
        for event in events:
            if isinstance(event, RequestArrived):
                said[event.request.id] = event.request.hints

    world = simulate(scenario, seed, [], on_step=on_step).world
    true = true_words(scenario, world)
    return [said[key] for key in sorted(true)], [true[key] for key in sorted(true)]


# --- lengths and what is predicted of them ----------------------------------------------------------------------------


@pytest.mark.worlds
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8, 1.0])
def test_a_predictor_says_the_mean_of_what_its_correlation_leaves_possible(rho):
    said, true = told_and_true(chat({"predict": {"rho": rho}, "steps_max": 1000}, rate=200.0))
    words = [item["steps"] for item in said]
    assert all(set(item) == {"tokens", "steps"} for item in said)  # the truth is hidden
    assert fmean(words) == pytest.approx(20.0 * math.exp(0.125), rel=0.05)
    if rho == 0.0:
        assert max(words) == pytest.approx(min(words))
    else:
        logs = [math.log(item) for item in words], [math.log(item) for item in true]
        assert np.corrcoef(*logs)[0, 1] == pytest.approx(rho, abs=0.04)
    if rho == 1.0:
        assert words == true


def test_true_lengths_do_not_depend_on_what_is_predicted_nor_on_the_policy():
    lengths = [
        told_and_true(chat(truth, policy=policy))[1]
        for truth, policy in (
            ({}, "fifo"),
            ({"predict": {"rho": 0.3}}, "fifo"),
            ({"predict": {"rho": 1.0, "scale": 3.0}}, "edf"),
        )
    ]
    assert lengths[0] == lengths[1] == lengths[2]


def test_without_a_predictor_requests_say_nothing_of_their_steps():
    said, _ = told_and_true(chat())
    assert {name for item in said for name in item} == {"tokens"}


def test_a_predictor_may_be_wrong_by_a_factor_and_say_how_sure_it_is():
    said, true = told_and_true(chat({"predict": {"rho": 1.0, "scale": 3.0, "hint": "guess", "sd": True}}))
    assert [item["guess"] for item in said] == [min(60.0, 3.0 * words) for words in true]
    assert {item["guess_sd"] for item in said} == {0.0}
    said, _ = told_and_true(chat({"predict": {"rho": 0.6, "sd": True}}))
    assert said[0]["steps_sd"] == pytest.approx(0.5 * 0.8)


@pytest.mark.parametrize(
    ("truth", "hints", "match"),
    [
        ({"steps": 4}, {}, "both say how many steps"),
        ({"steps_hint": "", "predict": {}}, {}, "predict needs steps_hint"),
        ({"predict": {}}, {"words": [3, 9]}, r"\[workload.people\] draws no hints.words"),
        ({"lane": {"gpu1": {}}}, {}, "there is no such lane"),
        ({"times": {"1": "5ms"}}, {}, "both say what a step takes"),
        ({"batching": "continuous", "steps_per_run": 2}, {}, "batching = 'continuous' is for a model with steps"),
        ({"step": {"full": "5ms", "saturate": 3}}, {}, "has no key 'saturate'; did you mean 'saturates'"),
    ],
)
def test_what_cannot_be_is_refused(truth, hints, match):
    with pytest.raises(ConfigError, match=match):
        chat(truth, hints)


# --- times ------------------------------------------------------------------------------------------------------------


def test_the_time_of_a_step_follows_the_formula():
    step = StepConfig(25 * MS, 11, 0.7)
    assert step.takes_ns(11) == 25 * MS
    assert step.takes_ns(1) == round(25 * MS * (0.7 + 0.3 / 11))
    assert step.takes_ns(22) == 50 * MS


def test_a_static_batch_takes_its_prompts_and_the_steps_of_its_longest_answer():
    works = []

    def on_step(now_ns, events, actions):
        works.extend(event for event in events if isinstance(event, WorkFinished))

    scenario = chat({"prefill": "3ms", "prefill_token": "100us", "prefill_steps": 2.0}, rate=100.0)
    world = simulate(scenario, 1, [], on_step=on_step).world
    true = true_words(scenario, world)
    full = [work for work in works if len(work.results) == 8]
    assert full and any(len({result.steps for result in work.results}) > 1 for work in full)
    for work in full:
        assert [result.steps for result in work.results] == [true[result.job.request_id] for result in work.results]
        longest = max(result.steps for result in work.results)
        assert work.finished_ns - work.started_ns == 3 * MS + 8 * MS + (2 + longest) * 10 * MS


def test_lanes_have_times_of_their_own_and_the_scheduler_is_told_them():
    scenario = chat(
        {
            "lane": {"cpu0": {"slower": 2.0}, "cpu1": {"times": {"1": "30ms", "8": "90ms"}, "prefill": "7ms"}},
            "prefill": "2ms",
        },
        lanes=("gpu0", "cpu0", "cpu1"),
        rate=60.0,
    )
    times = {
        lane: {size: samples[0] for size, samples in found.items()} for (_, lane), found in told_times(scenario).items()
    }
    assert times["gpu0"][8] == 10 * MS
    assert times["cpu0"] == {size: 2 * found for size, found in times["gpu0"].items()}
    assert times["cpu1"] == {1: 30 * MS, 2: 90 * MS, 4: 90 * MS, 8: 90 * MS}
    took = []

    def on_step(now_ns, events, actions):
        took.extend(
            event.finished_ns - event.started_ns - 90 * MS * max(result.steps for result in event.results)
            for event in events
            if isinstance(event, WorkFinished) and len(event.results) == 8
        )

    simulate(scenario, 1, [], on_step=on_step)
    assert 7 * MS in took


# --- a batch of sequences ---------------------------------------------------------------------------------------------


def stretches(run):
    """The times of the stretches, and the sequences that ended with each."""
    found = []
    while run.begin():
        found.append((run.stretch_ns, run.pass_stretch()))
    return found


def test_a_batch_gets_cheaper_with_each_sequence_that_ends():
    run = SequenceRun([2, 5, 2], None, 7, lambda count: 10 * count)
    assert stretches(run) == [(7 + 2 * 30, [0, 2]), (3 * 10, [1])]
    assert (run.made, run.left) == ([2, 5, 2], [])


def test_a_padded_batch_costs_the_same_to_its_end():
    assert stretches(SequenceRun([2, 5], None, 0, lambda count: 10 * count, padded=4)) == [(80, [0]), (120, [1])]


def test_a_bound_of_steps_leaves_the_rest_unfinished():
    run = SequenceRun([2, 9, 6], 4, 0, lambda count: 10 * count)
    assert stretches(run) == [(60, [0]), (40, [])]
    assert (run.made, run.left) == ([2, 4, 4], [1, 2])


@pytest.mark.parametrize(("passed_ns", "steps"), [(0, 1), (5, 1), (24, 1), (25, 1), (26, 2), (45, 2), (46, 3)])
def test_a_batch_that_is_stopped_ends_with_its_present_step_and_makes_one_at_least(passed_ns, steps):
    run = SequenceRun([9, 5], None, 5, lambda count: 10 * count)
    assert run.begin() == 5 + 5 * 20
    assert run.stop(passed_ns) == 5 + steps * 20
    assert (run.pass_stretch(), run.made, run.begin()) == ([], [steps, steps], 0)


@pytest.mark.parametrize(
    ("passed_ns", "turns", "steps", "unread"),
    [(0, 1, 0, [1, 2]), (4, 1, 0, [1, 2]), (5, 2, 0, [0, 2]), (16, 4, 0, [0, 0]), (17, 5, 1, [0, 0])],
)
def test_where_prompts_are_read_in_turns_a_batch_that_is_stopped_ends_with_its_present_turn(
    passed_ns, turns, steps, unread
):
    run = SequenceRun([9, 5], None, 0, lambda count: 10 * count, reads=[2, 2], turn_ns=4)
    assert run.begin() == 4 * 4 + 5 * 20
    assert run.stop(passed_ns) == min(turns, 4) * 4 + steps * 20
    assert (run.pass_stretch(), run.turns, run.made, run.begin()) == ([], turns, [steps, steps], 0)
    assert run.unread == unread


def test_a_cancelled_prompt_is_read_no_further():
    run = SequenceRun([9, 5], None, 0, lambda count: 10 * count, reads=[3, 2], turn_ns=4)
    run.begin()
    assert run.drop(0, 3) == 4
    run.pass_stretch()
    assert (run.unread, run.left, run.begin()) == ([2, 2], [1], 2 * 4 + 5 * 10)


def test_a_cancelled_sequence_leaves_after_the_present_step():
    run = SequenceRun([9, 5], None, 0, lambda count: 10 * count)
    run.begin()
    assert run.drop(0, 21) == 2 * 20
    assert (run.pass_stretch(), run.left) == ([], [1])
    assert stretches(run) == [(3 * 10, [1])]
    assert run.made == [2, 5]


def test_a_lost_lane_leaves_the_steps_that_were_over():
    run = SequenceRun([9, 5], None, 5, lambda count: 10 * count)
    run.begin()
    run.interrupt(5 + 59)
    assert run.made == [2, 2]


# --- in the world -----------------------------------------------------------------------------------------------------


class Continuous:
    """A scheduler by itself: all that waits joins the batch of the one lane, which is cut for that."""

    def __init__(self, lane="gpu0", steps_max=None, cuts=True, releases=False):
        self.lane, self.steps_max, self.cuts, self.releases = lane, steps_max, cuts, releases
        self.ready, self.out, self.up = [], {}, True
        self.next_id, self.gone = 1, set()

    @property
    def wake_ns(self):
        return None

    def thought_ns(self):
        return 0

    def step(self, now_ns, events=()):
        actions = []
        for event in events:
            if isinstance(event, RequestArrived):
                self.ready.append(JobId(event.request.id, "chat", ()))
            elif isinstance(event, RequestCancelled):
                self._cancel(event.request_id, actions)
            elif isinstance(event, BatchProgress):
                self._returned(event.work_id, event.results, actions)
            elif isinstance(event, WorkFinished):
                self._returned(event.work_id, event.results, actions)
                assert not self.out.pop(event.work_id)
            elif isinstance(event, LaneChanged):
                self.up = event.up
                self.ready += [job for jobs in self.out.values() for job in jobs]
                self.out.clear()
        if self.out and self.ready and self.cuts:
            actions.append(CutBatch(next(iter(self.out)), self.lane))
        elif not self.out and self.ready and self.up:
            jobs, self.ready = self.ready[:8], self.ready[8:]
            actions.append(RunBatch(self.next_id, self.lane, "chat", tuple(jobs), 8, now_ns, 2**62, 1, self.steps_max))
            self.out[self.next_id] = list(jobs)
            self.next_id += 1
        return actions

    def _returned(self, work_id, results, actions):
        for result in results:
            self.out[work_id].remove(result.job)
            if result.status == "unfinished":
                self.ready.append(result.job)
                if self.releases:
                    actions.append(ReleaseState(result.job))
            elif result.status == "done" and result.job.request_id not in self.gone:
                actions.append(FinishRequest(result.job.request_id, Outcome.COMPLETED))

    def _cancel(self, request_id, actions):
        if (
            any(job.request_id == request_id for jobs in self.out.values() for job in jobs)
            and request_id not in self.gone
        ):
            self.gone.add(request_id)
            actions.append(FinishRequest(request_id, Outcome.CANCELLED))


def events_of(scenario, scheduler, kind, seed=1):
    """The world of a run, and its events of one kind."""
    found = []

    def on_step(now_ns, events, actions):
        found.extend(event for event in events if isinstance(event, kind))

    return simulate(scenario, seed, [], scheduler=scheduler, on_step=on_step).world, found


LINEAR = {"step": {"full": "8ms", "saturates": 8, "alone": 0.0}, "batching": "continuous"}  # 1 ms per sequence and step


def test_each_sequence_is_answered_when_it_ends_and_costs_nothing_from_then_on():
    scenario = chat(
        {**LINEAR, "prefill": "3ms", "steps_hint": "", "steps": {"2": 0.5, "5": 0.5}},
        rate=20.0,
        kind="periodic",
        seconds=2,
    )
    world, events = events_of(scenario, Continuous(cuts=False), (BatchProgress, WorkFinished))
    batches = [works for works in world.usage.batches if works[1] > 1]
    assert not batches  # 20 requests a second of at most 8 ms: each alone
    progress = [event for event in events if isinstance(event, BatchProgress)]
    assert {result.steps for event in progress for result in event.results} == {2, 5}
    assert {item.end_ns - item.request.arrival_ns for item in world.ended} == {5 * MS, 8 * MS}


def test_a_cut_lets_others_join_after_the_present_step():
    scenario = chat({**LINEAR, "prefill_token": "100us"}, rate=25.0, hints={"words": [1, 40]})
    cuts, works, steps = {}, {}, {}

    def on_step(now_ns, events, actions):
        for event in events:
            if isinstance(event, (BatchProgress, WorkFinished)):
                for result in event.results:
                    steps.setdefault(result.job.request_id, []).append(result.steps)
            if isinstance(event, WorkFinished) and event.work_id in cuts:
                count, cut_ns = len(works[event.work_id]), cuts[event.work_id]
                is_first = event.started_ns > cut_ns - 2 * count * MS  # which reads prompts besides, 1 ms each
                assert 0 <= event.finished_ns - cut_ns <= (2 if is_first else 1) * count * MS
        for action in actions:
            if isinstance(action, CutBatch):
                cuts.setdefault(action.work_id, now_ns)
            elif isinstance(action, RunBatch):
                works[action.work_id] = action.jobs

    world = simulate(scenario, 1, [], scheduler=Continuous(), on_step=on_step).world
    assert len(cuts) > 100
    assert {key: sum(found) for key, found in steps.items()} == true_words(scenario, world)
    assert max(map(len, steps.values())) > 3


def works_of(scenario, scheduler):
    """The time of each work."""
    return [event.finished_ns - event.started_ns for event in events_of(scenario, scheduler, WorkFinished)[1]]


def test_a_released_state_is_computed_again_from_the_prompt_and_what_was_answered():
    scenario = chat(
        {**LINEAR, "prefill_token": "100us"}, kind="closed", clients=1, think="10s", seconds=5, hints={"words": 6}
    )
    assert works_of(scenario, Continuous(steps_max=2)) == [3 * MS, 2 * MS, 2 * MS]
    assert works_of(scenario, Continuous(steps_max=2, releases=True)) == [3 * MS, 3_200_000, 3_400_000]


# --- recorded ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded():
    """A run of sequences on two lanes under the real scheduler, and its recording."""
    scenario = chat(
        {
            **LINEAR,
            "prefill": "3ms",
            "predict": {"rho": 0.8},
            "lane": {"cpu0": {"slower": 2.0}},
            "step": {"full": "8ms", "saturates": 8, "alone": 0.5},
        },
        lanes=("gpu0", "cpu0"),
        rate=25.0,
        policy="edf",
        hints={"words": {"lognormal": [12.0, 0.5]}},
    )
    setting, steps = setting_of(scenario.config), []
    world = simulate(
        scenario,
        1,
        [],
        on_step=lambda now_ns, events, actions: steps.append(RecordedStep(now_ns, tuple(events), tuple(actions))),
    ).world
    start = start_of(setting.footprints, setting.resident, told_times(scenario), sequences=sequences_of(scenario))
    return scenario, world, Recording(start, steps)


def test_a_recorded_run_of_sequences_is_decided_again_alike(recorded):
    scenario, _, recording = recorded
    assert any(isinstance(event, BatchProgress) for step in recording.steps for event in step.events)
    assert replay(build_scheduler(scenario.config, (), **build_inputs(recording.start)), recording.steps) is None
