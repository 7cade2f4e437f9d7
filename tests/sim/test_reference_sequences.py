"""The reference model's rules of sequences: each must be able to break."""

from __future__ import annotations

import pytest

from edgeserve.sched.protocol.actions import CutBatch, FinishRequest, Outcome, ReleaseState, RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult, Request
from edgeserve.sim.reference_model import ReferenceModel, ReferenceModelError
from edgeserve.sim.scenario import parse_scenario

MS = 10**6
JOBS = [JobId(number, "chat", ()) for number in range(4)]


@pytest.fixture
def model():
    config = parse_scenario(
        {
            "device": {"d": {}},
            "lane": {"l0": {"device": "d"}, "l1": {"device": "d"}},
            "model": {
                "chat": {
                    "engine": "synthetic",
                    "batch": [1, 4],
                    "expected": {"1": "1ms", "4": "2ms"},
                    "slots": 2,
                    "state_memory": "1kB",
                }
            },
            "app": {"a": {"model": "chat", "on_late": "answer"}},
        }
    ).config
    made = ReferenceModel(config, {}, {"d": ["chat"]}, {"chat": (100, 10, 8)})
    for job in JOBS:
        made.arrived(Request(job.request_id, "a", 0, 50 * MS, on_late="answer"))
    return made


def begun(model, work_id, *jobs, lane="l0"):
    """A batch that runs."""
    action = RunBatch(work_id, lane, "chat", jobs, 4, 0, 2**62, MS)
    model.ordered(0, action)
    model.started(0, action)
    model.ran(0, action, jobs)
    return action


def unfinished(job):
    return JobResult(job, "unfinished")


def test_more_sequences_than_slots_are_noticed(model):
    begun(model, 1, JOBS[0], JOBS[1])
    with pytest.raises(ReferenceModelError, match="3 sequences of model chat are on lane l0, which has 2 slots"):
        model.ran(0, RunBatch(2, "l0", "chat", (JOBS[2],), 4, 0, 2**62, MS), [JOBS[2]])


def test_a_sequence_that_waits_keeps_its_slot_and_one_that_is_over_does_not(model):
    first = begun(model, 1, JOBS[0], JOBS[1])
    model.progressed(MS, first, [JobResult(JOBS[1])])
    model.answered(2 * MS, first, [unfinished(JOBS[0])])
    begun(model, 2, JOBS[2])
    with pytest.raises(ReferenceModelError, match="3 sequences"):
        model.ran(0, RunBatch(3, "l0", "chat", (JOBS[3],), 4, 0, 2**62, MS), [JOBS[3]])


def test_states_that_outgrow_their_memory_are_noticed_over_all_lanes_of_a_device(model):
    begun(model, 1, JOBS[0])
    begun(model, 2, JOBS[1], lane="l1")
    model.grew(0, {JOBS[0]: 600})
    model.grew(0, {JOBS[1]: 400})
    with pytest.raises(ReferenceModelError, match="occupy 1001 bytes of device d, and may occupy 1000"):
        model.grew(0, {JOBS[1]: 401})


def test_a_sequence_may_go_on_elsewhere_only_once_its_state_is_released(model):
    model.answered(MS, begun(model, 1, JOBS[0]), [unfinished(JOBS[0])])
    with pytest.raises(ReferenceModelError, match="lane l0 holds its state"):
        begun(model, 2, JOBS[0], lane="l1")


def test_a_released_sequence_goes_on_elsewhere(model):
    model.answered(MS, begun(model, 1, JOBS[0]), [unfinished(JOBS[0])])
    model.ordered(MS, ReleaseState(JOBS[0]))
    begun(model, 2, JOBS[0], lane="l1")


def test_no_state_is_released_that_runs_or_is_none(model):
    begun(model, 1, JOBS[0])
    for job in (JOBS[0], JOBS[1]):
        with pytest.raises(ReferenceModelError, match="is released, but it runs, has ended or holds none"):
            model.ordered(MS, ReleaseState(job))


def test_a_job_is_over_once(model):
    action = begun(model, 1, JOBS[0], JOBS[1])
    model.progressed(MS, action, [JobResult(JOBS[0])])
    with pytest.raises(ReferenceModelError, match="no job of work 1 that is over now"):
        model.progressed(MS, action, [JobResult(JOBS[0])])


def test_a_job_that_was_over_before_its_batch_does_not_run_again(model):
    model.progressed(MS, begun(model, 1, JOBS[0], JOBS[1]), [JobResult(JOBS[0])])
    with pytest.raises(ReferenceModelError, match="runs again"):
        model.ordered(MS, RunBatch(2, "l1", "chat", (JOBS[0],), 4, 0, 2**62, MS))


def test_only_a_batch_of_that_lane_is_cut_and_one_that_is_over_may_be(model):
    action = begun(model, 1, JOBS[0])
    model.ordered(0, CutBatch(1, "l0"))
    model.answered(MS, action, [JobResult(JOBS[0])])
    model.ordered(MS, CutBatch(1, "l0"))
    for cut in (CutBatch(7, "l0"), CutBatch(2, "l0")):
        begun(model, 2, JOBS[1], lane="l1") if cut.work_id == 2 else None
        with pytest.raises(ReferenceModelError, match="this lane was given no such batch"):
            model.ordered(MS, cut)


def test_at_the_end_nobody_holds_a_state(model):
    model.answered(MS, begun(model, 1, JOBS[0]), [unfinished(JOBS[0])])
    for job in JOBS:
        model.ordered(MS, FinishRequest(job.request_id, Outcome.CANCELLED))
    model.closed(MS)
    model.sequences.begins("chat", "l0", [JOBS[3]])
    with pytest.raises(ReferenceModelError, match="1 sequences still hold a state"):
        model.closed(MS)
