"""The jobs of open requests: how far each is, how much work a batch of them is, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from edgeserve.sched.protocol.actions import EvictModel, LoadModel, RunBatch
from edgeserve.sched.protocol.events import JobId, JobResult, Request
from edgeserve.sim.faults import Trouble
from edgeserve.sim.running import Running
from edgeserve.sim.sequence_runs import SequenceRun
from edgeserve.sim.truth import TrueResults, TrueTimes
from edgeserve.sim.workload import Arrival, Workload

RAISED = "the engine raised"
"""Reason of jobs that fail by themselves."""


@dataclass(eq=False)
class JobProgress:
    """The progress of a job of several steps: how many it needs and has done, how often a fault left it unfinished, the
    lane that holds its state (``""``: none), and in how many turns that lane reads the rest of its prompt."""

    needed: int
    done: int = 0
    faults: int = 0
    lane: str = ""
    unread: int = 0

    @property
    def left(self) -> int:
        """Steps that it still needs."""
        return self.needed - self.done


class OpenRequest(NamedTuple):
    """``request`` has its true hints, also where the scheduler gets others; ``source`` is None where no client waits
    for its end. ``begun``: its sequences that have written something, as the scheduler was told."""

    request: Request
    source: Optional[Workload]
    arrival: Arrival
    place: str
    steps: Dict[JobId, JobProgress]
    begun: Set[JobId]


class Jobs:
    """``open`` are the requests by id; of others the jobs' results are ignored. ``retained`` are inputs kept for
    probes, and ``probed`` whose inputs a work runs as a probe. ``times`` may be replaced."""

    def __init__(self, times: TrueTimes, results: TrueResults, trouble: Trouble | None) -> None:
        self.open: Dict[int, OpenRequest] = {}
        self.retained: Dict[JobId, OpenRequest] = {}
        self.probed: Dict[int, OpenRequest] = {}
        self.times: Any = times
        self._results = results
        self._trouble = trouble

    def progress(self, job: JobId) -> JobProgress:
        """The progress of a job whose request is open."""
        return self._progress(self.open[job.request_id], job)

    def left(self, job: JobId) -> int:
        """The steps that a job still needs; 0 where its request has ended."""
        return self.progress(job).left if job.request_id in self.open else 0

    def silent(self, jobs: Sequence[JobId]) -> List[int]:
        """The places of sequences to report to the scheduler as soon as they have written something."""
        return [
            place
            for place, job in enumerate(jobs)
            if job.request_id in self.open
            and self.open[job.request_id].request.on_late != "drop"
            and job not in self.open[job.request_id].begun
        ]

    def begin(self, jobs: Sequence[JobId]) -> Tuple[JobId, ...]:
        """Note that these have written something. Returns the ones that are news for the scheduler."""
        found = tuple([jobs[place] for place in self.silent(jobs)])
        for job in found:
            self.open[job.request_id].begun.add(job)
        return found

    def interrupted(self, running: Running, run: SequenceRun) -> Set[JobId]:
        """The lane of a batch of sequences is lost: what its clients have got of their answers stays. Says which jobs
        were over before."""
        for place in run.left:
            job = running.action.jobs[place]
            if job.request_id in self.open:
                self.progress(job).done += run.made[place]
        return {running.action.jobs[place] for place in run.told}

    def lane_lost(self, lane: str) -> None:
        """No state that the lane held can be used any more."""
        for entry in self.open.values():
            for progress in entry.steps.values():
                progress.lane = "" if progress.lane == lane else progress.lane

    # --- how much work a batch is -------------------------------------------------------------------------------------

    def duration_ns(self, lane: str, action: Any) -> int:
        """The time of a batch on an idle device at full speed, its prompts read first."""
        if isinstance(action, EvictModel):
            return 1
        if isinstance(action, LoadModel):
            load_ns: int = self.times.load_ns(action.model)
            return load_ns
        known: List[Optional[OpenRequest]] = (
            [self.probed[action.work_id]] if action.probe else [self.open.get(job.request_id) for job in action.jobs]
        )
        hints = [entry.request.hints if entry is not None else {} for entry in known]
        takes_ns: int = self.times.batch_ns(action.model, lane, action.size, hints, self._steps(action))
        prefill_ns: int = self.times.prefill_ns(action.model, lane, self.prompts(lane, action))
        return takes_ns + prefill_ns

    def reads(self, lane: str, action: RunBatch) -> Tuple[List[int], int]:
        """The number of turns that read each job's remaining prompt, and the time of such a turn; 0 where
        prompts are read whole. A turn takes what its tokens take of a prompt of their own."""
        part = self.times.turn_tokens(action.model)
        if not part:
            return [], 0
        reads = []
        for job in action.jobs:
            entry = self.open.get(job.request_id)
            if entry is None:
                reads.append(0)
                continue
            progress = self._progress(entry, job)
            tokens = self._results.tokens(entry.request.app, job, entry.request.hints) + progress.done
            reads.append(progress.unread if progress.lane == lane else max(1, -(-tokens // part)))
        return reads, max(1, self.times.prefill_ns(action.model, lane, [part]))

    def prompts(self, lane: str, action: RunBatch) -> List[int]:
        """The tokens of the jobs that have no state on this lane: they are read before the first step."""
        if action.probe:
            probed = self.probed[action.work_id].request
            return [self._results.tokens(probed.app, action.jobs[0], probed.hints)]
        found = []
        for job in action.jobs:
            entry = self.open.get(job.request_id)
            if entry is None:
                continue
            progress = self._progress(entry, job)
            if progress.lane != lane:
                found.append(self._results.tokens(entry.request.app, job, entry.request.hints) + progress.done)
        return found

    def _steps(self, action: RunBatch) -> int:
        """Steps that a batch of an iterative model runs: to the end of its longest job, within its bounds."""
        longest, bound = 1, action.steps_max or 0
        if action.probe:  # from its beginning, without the progress of the request's own job
            app, job = self.probed[action.work_id].request.app, action.jobs[0]
            longest = self._results.steps(
                app, self.probed[action.work_id].place, job, self.probed[action.work_id].request.hints
            )
            bound = self._results.steps_per_run(app, job.node)
            return min(longest, bound) if bound else longest
        for job in action.jobs:
            entry = self.open.get(job.request_id)
            if entry is not None:
                progress = self._progress(entry, job)
                longest = max(longest, progress.left)
                own = self._results.steps_per_run(entry.request.app, job.node)
                bound = min(bound, own) if bound and own else bound or own
        return min(longest, bound) if bound else longest

    def _progress(self, entry: OpenRequest, job: JobId) -> JobProgress:
        if job not in entry.steps:
            entry.steps[job] = JobProgress(
                self._results.steps(entry.request.app, entry.place, job, entry.request.hints)
            )
        return entry.steps[job]

    def held_bytes(self, job: JobId, made: int) -> int:
        """The bytes of the state of a running job that has made ``made`` steps."""
        entry = self.open.get(job.request_id)
        if entry is None:
            return 0
        tokens = self._results.tokens(entry.request.app, job, entry.request.hints)
        return self._results.state_bytes(entry.request.app, job, tokens + self._progress(entry, job).done + made)

    # --- what it returns ----------------------------------------------------------------------------------------------

    def results(self, now_ns: int, lane: str, running: Running) -> Tuple[JobResult, ...]:
        """The results of the jobs of an ended batch, without the ones reported before."""
        action, run = running.action, running.sequences
        broken = self._trouble is not None and not action.probe and self._trouble.batch_fails(now_ns)
        if run is not None:
            places = [place for place in range(len(action.jobs)) if place not in run.told]
            return tuple(
                JobResult(action.jobs[place], "failed", reason=RAISED)
                if broken
                else self.sequence_result(now_ns, lane, running, run, place, True)
                for place in places
            )
        steps = self._steps(action)
        return (
            (self._probe_result(now_ns, action, steps),)
            if action.probe
            else tuple(
                self._result(now_ns, job, lane, steps, broken, action.steps_max is not None) for job in action.jobs
            )
        )

    def sequence_result(
        self, now_ns: int, lane: str, running: Running, run: SequenceRun, place: int, is_last: bool
    ) -> JobResult:
        """The result of one sequence of a batch, before the batch is over or with it (``is_last``)."""
        job = running.action.jobs[place]
        in_turns = self.times.turn_tokens(running.action.model) > 0
        entry, steps = self.open.get(job.request_id), max(0 if in_turns else 1, run.made[place])
        if entry is None:  # its request has ended
            return JobResult(job, steps=max(1, steps))
        self._progress(entry, job).unread = run.unread[place]
        result = self._outcome(now_ns, entry, job, lane, steps, False, is_last)
        result.steps, result.turns = steps, run.turns if in_turns else 0
        return result

    def _result(self, now_ns: int, job: JobId, lane: str, steps: int, broken: bool, bounded: bool) -> JobResult:
        """The result of a job of a batch that made ``steps`` steps. Sequences say how many were their own, others the
        batch's where it was ``bounded``."""
        entry = self.open.get(job.request_id)
        if entry is None:  # its request has ended; its result is ignored
            return JobResult(job, steps=steps if bounded else 1)
        if self._results.is_sequence(entry.request.app, job.node):
            progress = self._progress(entry, job)
            steps, bounded = max(1, min(steps, progress.left)), True
        result = self._outcome(now_ns, entry, job, lane, steps, broken)
        if bounded:
            result.steps = steps
        return result

    def _outcome(
        self, now_ns: int, entry: OpenRequest, job: JobId, lane: str, steps: int, broken: bool, is_last: bool = True
    ) -> JobResult:
        app, trouble = entry.request.app, self._trouble
        if broken or self._results.fails(app, entry.place, job) or (trouble and trouble.job_fails(now_ns)):
            return JobResult(job, "failed", reason=RAISED)
        progress, hints = self._progress(entry, job), entry.request.hints
        progress.done += steps
        progress.lane = lane
        state_bytes = self._results.state_bytes(app, job, self._results.tokens(app, job, hints) + progress.done)
        if progress.done < progress.needed:
            said = None if self._results.is_sequence(app, job.node) else {"steps": progress.done}
            return JobResult(job, "unfinished", hints=said, state_bytes=state_bytes)
        if is_last and trouble and trouble.job_unfinished(now_ns, progress.faults):
            progress.faults += 1
            progress.done = progress.needed - 1
            return JobResult(job, "unfinished", state_bytes=state_bytes)
        return JobResult(
            job,
            "done",
            self._results.parts(app, entry.place, job),
            self._results.route(app, entry.place, job),
            self._results.said(app, job, hints),
            state_bytes=state_bytes if entry.request.stream is not None else 0,
        )

    def _probe_result(self, now_ns: int, action: RunBatch, steps: int) -> JobResult:
        """The model's result for a probe: it is not used."""
        entry, job = self.probed.pop(action.work_id), action.jobs[0]
        app, trouble = entry.request.app, self._trouble
        if self._results.fails(app, entry.place, job) or (trouble and trouble.job_fails(now_ns)):
            return JobResult(job, "failed", reason=RAISED)
        needed = self._results.steps(app, entry.place, job, entry.request.hints)
        return JobResult(job, "done" if steps >= needed else "unfinished")
