"""The reference model of a simulation: what really happened, apart from the scheduler, and the rules that it must
not break.

Every rule here is checked from what the world was told to do and what its lanes then did; nothing is asked of the
scheduler. A broken rule raises :class:`ReferenceModelError` with the time, the rule and the request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Dict, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple

from edgeserve.config.schema import AppConfig, Config, NodeConfig
from edgeserve.sched.protocol.actions import (
    Action,
    CutBatch,
    DropState,
    EvictModel,
    FinishRequest,
    KeepWritten,
    LeaveOut,
    LoadModel,
    Outcome,
    ReleaseInputs,
    ReleaseState,
    RetainInputs,
    RunBatch,
)
from edgeserve.sched.protocol.events import JobId, JobResult, Part, Request
from edgeserve.sim.reference_sequences import ReferenceSequences

DONE, SKIPPED, FAILED, PENDING = "done", "skipped", "failed", "pending"

LOST = "its lane was lost"
"""Reason of a job whose lane died under it: it failed if it had started, else it may run again."""

LATE_NS_MAX = 1_000_000
"""The longest time after its deadline at which a waiting request may be given up: one step at any cost."""


class ReferenceModelError(AssertionError):
    """The scheduler broke a rule that every world relies on."""


class _Entry:
    """One request: its ended jobs, its jobs on lanes, and the lanes that hold the states of unfinished jobs.
    ``begun`` are its sequences that have written something, ``kept`` the ones of them that ended with that."""

    __slots__ = ("request", "done", "bound", "out", "free_since_ns", "finished", "started", "begun", "kept")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done: Dict[Tuple[str, Part], JobResult] = {}
        self.bound: Dict[Tuple[str, Part], str] = {}
        self.out = 0
        self.free_since_ns = request.arrival_ns
        self.finished: Optional[FinishRequest] = None
        self.started = False
        self.begun: Set[Tuple[str, Part]] = set()
        self.kept: Set[Tuple[str, Part]] = set()


class ReferenceModel:
    """Rules over one run. The world calls the verbs in the order of events; ``close`` checks the end.

    ``footprints`` maps (model, device) to bytes: of weights, of work, and shared by lanes, which do not count
    here; a device without a budget is not checked.
    ``sequences`` are the models whose sequences hold slots and bytes.
    """

    def __init__(
        self,
        config: Config,
        footprints: Mapping[Tuple[str, str], Sequence[int]],
        resident: Mapping[str, Sequence[str]],
        sequences: Optional[Mapping[str, Tuple[int, ...]]] = None,
    ) -> None:
        self.marks: Counter[str] = Counter()  # how often each event, action, outcome was seen
        self._apps = {name: _ReferenceGraph(app) for name, app in config.apps.items()}
        self._device_of = {name: lane.device for name, lane in config.lanes.items()}
        self._device_of.update({f"copy:{name}": name for name in config.devices})
        self._ahead = {name: lane.ahead_ns for name, lane in config.lanes.items()}
        self._depth = {name: lane.depth for name, lane in config.lanes.items()}
        self._hang_ns = {name: lane.hang_ns for name, lane in config.lanes.items()}
        self._budgets = {name: device.memory_bytes for name, device in config.devices.items()}
        self._footprints = dict(footprints)
        self._resident: Dict[str, Set[str]] = {name: set(resident.get(name, ())) for name in config.devices}
        self._ready = {name: set(models) for name, models in self._resident.items()}  # loaded to the end
        self._entries: Dict[int, _Entry] = {}
        self._works: Dict[int, Action] = {}
        self._work_ids: Set[int] = set()
        self._running: Dict[int, Tuple[str, int]] = {}  # work -> its lane, and when it was launched
        self.open_count = 0  # requests without an outcome
        self._jobs_out: Dict[JobId, int] = {}
        self._deadlines: List[Tuple[int, int]] = []
        self.held_up_ns = 0  # for how long the machine kept the loop from its present turn
        self._on_lane: Counter[str] = Counter()
        self._models_on: Dict[str, Set[str]] = {name: set() for name in config.lanes}
        for model in config.models.values():
            for lane in model.lanes or config.lanes:
                self._models_on[lane].add(model.name)
        self._retained: Dict[JobId, str] = {}  # job -> its model
        self._told: Dict[int, Set[JobId]] = {}  # work -> its jobs that were over before it
        self.sequences = ReferenceSequences(config, sequences or {})
        self._draining = False
        self._streams: Dict[Tuple[str, str], List[int]] = {}

    @property
    def works_count(self) -> int:
        """Works that were ordered and not answered."""
        return len(self._works)

    def used_bytes(self, device: str) -> int:
        """The bytes of a device that resident or loading models take."""
        return sum(sum(self._footprints.get((model, device), (0, 0))[:2]) for model in sorted(self._resident[device]))

    def draining(self) -> None:
        """The scheduler is told to drain."""
        self._draining = True

    def arrived(self, request: Request, now_ns: int = 0) -> None:
        """A request goes to the scheduler; in a recording's world when the recorded loop read it, however late."""
        entry = self._entries[request.id] = _Entry(request)
        entry.free_since_ns = max(entry.free_since_ns, now_ns)
        self.open_count += 1
        if request.stream is not None:
            self._streams.setdefault((request.app, request.stream), []).append(request.id)

    def told(self, request_id: int) -> None:
        """The scheduler is told of a request, which may be late by then: from now on it must not wait in vain."""
        request = self._entries[request_id].request
        if request.on_late == "drop":
            heapq.heappush(self._deadlines, (request.deadline_ns, request.id))

    def ordered(self, now_ns: int, action: Action) -> None:
        """The scheduler asked for something."""
        self.marks[type(action).__name__] += 1
        if isinstance(action, FinishRequest):
            self._finish(now_ns, action)
        elif isinstance(action, DropState):
            if (action.job is None) != bool(action.app):
                self._broken(now_ns, f"{action} must name a job or a stream")
        elif isinstance(action, ReleaseState):
            self._release(now_ns, action.job)
        elif isinstance(action, CutBatch):  # it may be over by now, which the scheduler hears only later
            work = self._works.get(action.work_id)
            if (
                action.work_id not in self._work_ids
                or work is not None
                and (not isinstance(work, RunBatch) or work.lane != action.lane)
            ):
                self._broken(now_ns, f"{action}: this lane was given no such batch")
        elif isinstance(action, LeaveOut):
            self._leave_out(now_ns, action)
        elif isinstance(action, KeepWritten):
            self._keep_written(now_ns, action)
        elif isinstance(action, RetainInputs):
            self._keep(now_ns, action.job)
        elif isinstance(action, ReleaseInputs):
            if action.job not in self._retained:
                self._broken(now_ns, f"{action}: it is not retained")
            del self._retained[action.job]
        else:
            if action.work_id in self._work_ids:
                self._broken(now_ns, f"work id {action.work_id} was used twice")
            if action.lane not in self._device_of:
                self._broken(now_ns, f"{action} names no lane of the configuration")
            self._work_ids.add(action.work_id)
            self._works[action.work_id] = action
            self._on_lane[action.lane] += 1
            if isinstance(action, RunBatch):
                self._order_batch(now_ns, action)

    def started(self, now_ns: int, action: Action) -> None:
        """A lane begins a work."""
        if now_ns > getattr(action, "start_before_ns", now_ns):
            self._broken(now_ns, f"{action} started after its window")
        device = self._device_of[action.lane]  # type: ignore[union-attr]
        if isinstance(action, EvictModel):
            self._evict(now_ns, action, device)
        elif isinstance(action, LoadModel):
            self._load(now_ns, action, device)
        elif isinstance(action, RunBatch):
            if now_ns < action.start_after_ns:
                self._broken(now_ns, f"{action} started before its window")
            if action.model not in self._ready[device]:
                self._broken(now_ns, f"work {action.work_id} runs {action.model}, which is not resident on {device}")
            self._running[action.work_id] = (action.lane, now_ns)
            for job in () if action.probe else action.jobs:
                if self._jobs_out.get(job, action.work_id) != action.work_id:
                    self._broken(
                        now_ns, f"{job} starts in work {action.work_id} and is in work {self._jobs_out.get(job)} too"
                    )

    def answered(self, now_ns: int, action: Action, results: Sequence[JobResult] = (), failed: bool = False) -> None:
        """A lane's answer (finished, refused or lost with its lane) leaves for the scheduler."""
        work_id = action.work_id  # type: ignore[union-attr]
        if self._works.pop(work_id, None) is None:
            self._broken(now_ns, f"work {work_id} was answered twice")
        self._on_lane[action.lane] -= 1  # type: ignore[union-attr]
        self._running.pop(work_id, None)
        if isinstance(action, LoadModel):
            (
                self._resident[self._device_of[action.lane]].discard
                if failed
                else self._ready[self._device_of[action.lane]].add
            )(action.model)
        if not isinstance(action, RunBatch):
            return
        told = self._told.pop(work_id, ())
        for job in action.jobs:
            if job not in told:
                self._come_back(now_ns, action, job)
        self._learn(action, results)

    def progressed(self, now_ns: int, action: RunBatch, results: Sequence[JobResult]) -> None:
        """A lane says that some jobs of a batch are over, which goes on."""
        told = self._told.setdefault(action.work_id, set())
        for result in results:
            if result.job not in action.jobs or result.job in told or result.status not in (DONE, FAILED):
                self._broken(now_ns, f"{result} is no job of work {action.work_id} that is over now")
            told.add(result.job)
            self._come_back(now_ns, action, result.job)
        self._learn(action, results)

    def ran(self, now_ns: int, action: RunBatch, jobs: Sequence[JobId]) -> None:
        """Note that the device of a lane begins with these sequences of a batch; the requests of the others have
        ended."""
        broken = self.sequences.begins(action.model, action.lane, jobs)
        if broken:
            self._broken(now_ns, broken)

    def grew(self, now_ns: int, bytes_by_job: Mapping[JobId, int]) -> None:
        """The states of sequences that run have so many bytes now."""
        broken = self.sequences.grows(bytes_by_job)
        if broken:
            self._broken(now_ns, broken)

    def began(self, jobs: Sequence[JobId]) -> None:
        """The scheduler is told that these sequences have written something."""
        for job in jobs:
            entry = self._entries.get(job.request_id)
            if entry is not None:
                entry.begun.add((job.node, job.part))

    def lane_lost(self, lane: str) -> None:
        """A lane is lost with all that it held."""
        self.sequences.lane_lost(lane)

    def _come_back(self, now_ns: int, action: RunBatch, job: JobId) -> None:
        """A job is on no lane any more."""
        if self._jobs_out.get(job) == action.work_id:
            del self._jobs_out[job]
        entry = self._entries.get(job.request_id)
        if entry is not None and not action.probe:
            entry.out -= 1
            entry.free_since_ns = now_ns
            request = entry.request
            if not entry.out and now_ns >= request.deadline_ns and request.on_late == "drop":
                heapq.heappush(self._deadlines, (now_ns, request.id))
            self._forget(entry)

    def _learn(self, action: RunBatch, results: Sequence[JobResult]) -> None:
        for result in results:
            entry = self._entries.get(result.job.request_id)
            if action.probe:
                continue
            place = (result.job.node, result.job.part)
            was_over = entry is not None and (  # it ended, or was left out, while it ran
                place in entry.kept or (place in entry.done and entry.done[place].status == SKIPPED)
            )
            if entry is None or was_over or result.status != "unfinished":
                self.sequences.gone(result.job)
            if entry is None or was_over:
                continue
            if result.status == "unfinished":
                entry.bound[result.job.node, result.job.part] = action.lane
            else:
                entry.done[result.job.node, result.job.part] = result

    def stepped(self, now_ns: int) -> None:
        """Check the end of a step: no request waits past its deadline, no inputs are retained while the server
        drains."""
        if self._draining and self._retained:
            self._broken(now_ns, f"{list(self._retained)[:3]} are retained while it drains")
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now_ns:
            entry = self._entries.get(deadlines[0][1])
            if entry is not None and entry.finished is None:
                if entry.out:
                    heapq.heappop(deadlines)  # comes back to the heap when its work does
                    continue
                self._broken(now_ns, f"{entry.request} waits past its deadline with no job on a lane")
            heapq.heappop(deadlines)

    def closed(self, now_ns: int) -> None:
        """The world is over: everything has ended and come back."""
        left = sorted(key for key, entry in self._entries.items() if entry.finished is None)
        if left:
            self._broken(now_ns, f"{len(left)} accepted requests never ended: {left[:5]}")
        if self._works:
            self._broken(now_ns, f"works were never answered: {sorted(self._works)[:5]}")
        if self.sequences.count:
            self._broken(now_ns, f"{self.sequences.count} sequences still hold a state")

    # --- the rules ------------------------------------------------------------------------------------------------

    def _order_batch(self, now_ns: int, action: RunBatch) -> None:
        if not 0 < len(action.jobs) <= action.size:
            self._broken(now_ns, f"{len(action.jobs)} jobs do not fit {action}")
        if len(set(action.jobs)) != len(action.jobs):
            self._broken(now_ns, f"{action} holds a job twice")
        if not self._ahead.get(action.lane):
            depth = self._depth[action.lane]
            if self._on_lane[action.lane] > depth:
                self._broken(now_ns, f"lane {action.lane} was given more than {depth} works: {action}")
        if action.probe:
            self._order_probe(now_ns, action)
            return
        for job in action.jobs:
            entry = self._entries.get(job.request_id)
            if entry is None or entry.finished is not None:
                self._broken(now_ns, f"{job} runs, but its request has ended or is unknown")
            other = self._works.get(self._jobs_out.get(job, -1))
            if other is not None and not self._will_be_refused(now_ns, other):
                self._broken(now_ns, f"{job} is in two batches: {other} and {action}")
            before = entry.done.get((job.node, job.part))
            if before is not None and before.reason != LOST:
                self._broken(now_ns, f"{job} runs again after it was {before}")
            graph = self._apps[entry.request.app]
            if action.model not in graph.models.get(job.node, ()):
                self._broken(now_ns, f"{job} is no node of model {action.model}")
            if graph.linked:
                settles = entry.request.on_late == "partial" or bool(entry.kept)
                known = entry.done if not entry.out else self._with_hanging(now_ns, entry)
                if not graph.may_run(known, job.node, job.part, settles):
                    self._broken(now_ns, f"{job} runs before its predecessors")
            if entry.request.stream is not None and not entry.started:
                self._in_order(now_ns, entry)
            entry.started = True
            self._jobs_out[job] = action.work_id
            entry.out += 1

    def _release(self, now_ns: int, job: JobId) -> None:
        """A job that waits gives back its state; it may go on anywhere."""
        self.sequences.gone(job)
        entry = self._entries.get(job.request_id)
        other = self._works.get(self._jobs_out.get(job, -1))
        if (
            entry is None
            or entry.finished is not None
            or other is not None
            and not self._will_be_refused(now_ns, other)
            or entry.bound.pop((job.node, job.part), None) is None
        ):
            self._broken(now_ns, f"the state of {job} is released, but it runs, has ended or holds none")

    def _leave_out(self, now_ns: int, action: LeaveOut) -> None:
        """A branch is given up: it has not run to its end, and nothing waits for it from now on."""
        job = action.job
        entry = self._entries.get(job.request_id)
        if entry is None or entry.finished is not None:
            self._broken(now_ns, f"{action}: its request has ended or is unknown")
        before = entry.done.get((job.node, job.part))
        if before is not None and before.reason != LOST:
            self._broken(now_ns, f"{action}: it is over already: {before}")
        entry.done[job.node, job.part] = JobResult(job, SKIPPED)
        entry.bound.pop((job.node, job.part), None)
        if job not in self._jobs_out:
            self.sequences.gone(job)

    def _keep_written(self, now_ns: int, action: KeepWritten) -> None:
        """A sequence ends with what it has written: something, before it was whole."""
        job = action.job
        entry, place = self._entries.get(job.request_id), (job.node, job.part)
        if entry is None or entry.finished is not None:
            self._broken(now_ns, f"{action}: its request has ended or is unknown")
        if place not in entry.begun or entry.request.on_late == "drop":
            self._broken(now_ns, f"{action}: no event said that it has written something, or its client wants no part")
        before = entry.done.get(place)
        if place in entry.kept or (before is not None and before.status in (DONE, SKIPPED)):
            self._broken(now_ns, f"{action}: it is over already: {before}")
        entry.done[place] = JobResult(job)
        entry.kept.add(place)
        entry.bound.pop(place, None)
        if job not in self._jobs_out:
            self.sequences.gone(job)

    def _loses_text(self, entry: _Entry, action: FinishRequest) -> bool:
        """True if a request ends without what one of its sequences has written, which it could end with. (That another
        node failed, or its client went away, is the end of it.)"""
        graph = self._apps[entry.request.app]
        if action.outcome not in (Outcome.DROPPED, *(() if graph.linked else (Outcome.FAILED,))):
            return False
        return any(
            place not in entry.done or entry.done[place].status == FAILED
            for place in entry.begun
            if not graph.nodes[place[0]].fan_out and graph.nodes[place[0]].route == "all"
        )

    def _keep(self, now_ns: int, job: JobId) -> None:
        entry = self._entries.get(job.request_id)
        if entry is None or entry.finished is not None or job in self._retained:
            self._broken(
                now_ns, f"{job} is to be retained, but its request has ended or is unknown, or it is retained already"
            )
        if (job.node, job.part) in entry.done or job in self._jobs_out:
            self._broken(now_ns, f"{job} is to be retained, but it has run or is on a lane")
        self._retained[job] = self._apps[entry.request.app].models.get(job.node, ("",))[0]

    def _order_probe(self, now_ns: int, action: RunBatch) -> None:
        """Check a probe: it takes retained inputs, on a lane that has nothing else and that no request waits for."""
        self.marks["probe"] += 1
        if len(action.jobs) != 1 or self._retained.pop(action.jobs[0], None) != action.model:
            self._broken(now_ns, f"{action} is no probe of one job that was retained for this model")
        if self._on_lane[action.lane] != 1:
            self._broken(now_ns, f"probe {action} stands behind other work")
        for entry in self._entries.values():
            if entry.finished is None and not entry.out:
                elsewhere = {place for place, lane in entry.bound.items() if lane != action.lane}
                waits = self._apps[entry.request.app].may_want(entry.done, self._models_on[action.lane], elsewhere)
                if waits and not self._is_held(entry):
                    self._broken(now_ns, f"probe {action} starts, while {entry.request} waits with no job on a lane")

    def _is_held(self, entry: _Entry) -> bool:
        """True if a request waits for the one before it in its stream, or for what a lane still runs of one that has
        ended."""
        request = entry.request
        if request.stream is None or self._apps[request.app].stream == "none":
            return False
        stream = (request.app, request.stream)
        return self._streams[request.app, request.stream][0] != request.id or any(
            other.out and other is not entry and (other.request.app, other.request.stream) == stream
            for other in self._entries.values()
        )

    def _with_hanging(self, now_ns: int, entry: _Entry) -> Dict[Tuple[str, Part], JobResult]:
        """The results of a request, with its jobs on a hanging lane counted as failed."""
        known = dict(entry.done)
        hanging = {
            lane for lane, since_ns in self._running.values() if now_ns - since_ns >= self._hang_ns.get(lane, 2**62)
        }
        for job, work_id in self._jobs_out.items():
            if job.request_id == entry.request.id and self._running.get(work_id, ("", 0))[0] in hanging:
                known.setdefault((job.node, job.part), JobResult(job, "failed"))
        return known

    def _will_be_refused(self, now_ns: int, other: Action) -> bool:
        """A work behind a hanging one whose window is over: its jobs may go elsewhere, it can only be refused."""
        return isinstance(other, RunBatch) and other.work_id not in self._running and other.start_before_ns <= now_ns

    def _in_order(self, now_ns: int, entry: _Entry) -> None:
        request = entry.request
        if self._apps[request.app].stream == "none":
            return
        waiting = self._streams[request.app, request.stream or ""]
        if waiting[0] != request.id:
            self._broken(
                now_ns, f"request {request.id} of stream {request.stream} starts before request {waiting[0]} has ended"
            )

    def _finish(self, now_ns: int, action: FinishRequest) -> None:
        entry = self._entries.get(action.request_id)
        if entry is None or entry.finished is not None:
            self._broken(now_ns, f"{action}: the request is unknown or has an outcome already")
        self.marks[action.outcome] += 1
        request = entry.request
        if action.outcome == Outcome.COMPLETED:
            partial = request.on_late == "partial" and bool(entry.done)
            if not partial and not self._apps[request.app].complete(entry.done):
                self._broken(
                    now_ns, f"{request} is COMPLETED, but not every node ran that its joins need: {sorted(entry.done)}"
                )
            if bool(action.cut) != bool(entry.kept):
                self._broken(now_ns, f"{action}: sequences that ended early: {sorted(entry.kept)}")
        elif self._loses_text(entry, action):
            self._broken(now_ns, f"{request} ends as {action}: a sequence that wrote keeps its text")
        elif action.outcome == Outcome.REJECTED:
            if entry.started:
                self._broken(now_ns, f"{request} is REJECTED after it had begun")
        if not entry.out and request.on_late == "drop" and action.outcome != Outcome.COMPLETED:
            due_ns = max(request.deadline_ns, entry.free_since_ns) + LATE_NS_MAX + self.held_up_ns
            if now_ns > due_ns:
                self._broken(now_ns, f"{request} was given up only now: {action}")
        entry.finished = action
        self.open_count -= 1
        if request.stream is not None:
            self._streams[request.app, request.stream].remove(request.id)
        self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        if entry.finished is not None and not entry.out:
            self._entries.pop(entry.request.id, None)
            for node, part in entry.bound:
                self.sequences.gone(JobId(entry.request.id, node, part))

    def _load(self, now_ns: int, action: LoadModel, device: str) -> None:
        if action.model in self._resident[device]:
            self._broken(now_ns, f"{action}: it is resident on {device} already")
        self._resident[device].add(action.model)
        budget = self._budgets[device]
        used = sum(sum(self._footprints.get((model, device), (0, 0))[:2]) for model in self._resident[device])
        if budget and used > budget:
            self._broken(now_ns, f"{action}: {used} bytes exceed the {budget} of {device}")

    def _evict(self, now_ns: int, action: EvictModel, device: str) -> None:
        busy = [
            work
            for work in self._works.values()
            if isinstance(work, RunBatch) and work.model == action.model and self._device_of[work.lane] == device
        ]
        if busy:
            self._broken(now_ns, f"{action} while {busy[:1]} is out")
        if action.model not in self._resident[device]:
            self._broken(now_ns, f"{action}: it is not resident on {device}")
        self._resident[device].discard(action.model)
        self._ready[device].discard(action.model)

    def _broken(self, now_ns: int, rule: str) -> NoReturn:
        """Called where a rule does not hold, so that it is put into words only then: that takes longer than to look."""
        raise ReferenceModelError(f"at {now_ns} ns: {rule}")


class _ReferenceGraph:
    """The order of a request's jobs, worked out from the results alone (not with the scheduler's tokens)."""

    def __init__(self, app: AppConfig) -> None:
        self.stream = app.stream
        self.nodes = {node.name: node for node in app.nodes}
        self.models: Dict[str, Tuple[str, ...]] = {
            node.name: tuple(app.variants) or (node.model,) for node in app.nodes
        }
        self.linked = len(app.nodes) > 1
        self.exits = [node for node in app.nodes if not any(node.name in (other.after or ()) for other in app.nodes)]
        self._scopes: Dict[str, Tuple[str, ...]] = {}
        for node in app.nodes:
            self._scope(node)

    def may_run(self, done: Mapping[Tuple[str, Part], JobResult], name: str, part: Part, settles: bool) -> bool:
        """True if everything that this job waits for has happened; one part of it is enough where it ``settles`` for
        what there is."""
        node = self.nodes[name]
        if len(part) != len(self._scope(node)):
            return False
        tokens = self._tokens(done, node, part)
        if settles and DONE in tokens:
            return True
        if node.join == "all":
            return PENDING not in tokens and FAILED not in tokens and (not tokens or DONE in tokens)
        if node.gather and not tokens:
            return True  # no part at all: it gathers empty lists
        wanted = 1 if node.join == "policy" or PENDING not in tokens else int(node.join)
        return tokens.count(DONE) >= wanted

    def may_want(
        self, done: Mapping[Tuple[str, Part], JobResult], models: Set[str], elsewhere: Set[Tuple[str, Part]]
    ) -> bool:
        """True if a request with no job on a lane waits to run one of these models: some node that may run now, and
        not ``elsewhere`` only, needs one of them, and nothing behind it may run already (then the join was satisfied
        without it). A join that its policy may still leave open is no such node."""
        ready = {
            node.name
            for node in self.nodes.values()
            for part in self._parts_of(done, self._scope(node))
            if (node.name, part) not in done
            and (node.name, part) not in elsewhere
            and self.may_run(done, node.name, part, False)
        }
        behind = {name: {other.name for other in self.nodes.values() if name in (other.after or ())} for name in ready}
        begun = {name for name, _ in done}
        return any(
            any(model in models for model in self.models[name])
            for name in ready
            if not behind[name] & (ready | begun) and not self._is_left_open(done, name)
        )

    def _is_left_open(self, done: Mapping[Tuple[str, Part], JobResult], name: str) -> bool:
        """True if a join waits for its policy to settle it, as far as can be seen from outside."""
        node = self.nodes[name]
        return node.join == "policy" and any(
            PENDING in self._tokens(done, node, part) for part in self._parts_of(done, self._scope(node))
        )

    def complete(self, done: Mapping[Tuple[str, Part], JobResult]) -> bool:
        """True if every last node ran, for every part, where the route led to it."""
        return bool(done) and all(
            self._status(done, node, part) in (DONE, SKIPPED)
            for node in self.exits
            for part in self._parts_of(done, self._scope(node))
        )

    def _parts_of(self, done: Mapping[Tuple[str, Part], JobResult], scope: Tuple[str, ...]) -> List[Part]:
        parts: List[Part] = [()]
        for opener in scope:
            parts = [(*part, index) for part in parts for index in range(self._count(done, opener, part))]
        return parts

    def _count(self, done: Mapping[Tuple[str, Part], JobResult], opener: str, part: Part) -> int:
        """Parts that a fan-out made; one part that stays pending while it has not run; none where it was skipped."""
        result = done.get((opener, part))
        if result is not None:
            return result.parts or 0
        return 0 if self._status(done, self.nodes[opener], part) == SKIPPED else 1

    def _status(self, done: Mapping[Tuple[str, Part], JobResult], node: NodeConfig, part: Part) -> str:
        if (node.name, part) in done:
            status = done[node.name, part].status
            return status if status in (DONE, SKIPPED) else FAILED
        tokens = self._tokens(done, node, part)
        if node.after and all(token in (SKIPPED, FAILED) for token in tokens):
            return FAILED if FAILED in tokens else SKIPPED  # also a gather of no parts that was not run
        return PENDING

    def _tokens(self, done: Mapping[Tuple[str, Part], JobResult], node: NodeConfig, part: Part) -> List[str]:
        tokens: List[str] = []
        for name in node.after or ():
            before = self.nodes[name]
            if not node.gather:
                parts = [part[:-1] if before.fan_out else part]
            elif before.fan_out:
                parts = [part]
            else:
                opener = self._scope(before)[-1]
                parts = [(*part, index) for index in range(self._count(done, opener, part))]
            for item in parts:
                status = self._status(done, before, item)
                taken = before.route != "one" or status != DONE or done[name, item].route == node.name
                tokens.append(status if taken else SKIPPED)
        return tokens

    def _scope(self, node: NodeConfig) -> Tuple[str, ...]:
        """The fan-out nodes that are open around a node, outermost first."""
        if node.name not in self._scopes:
            scope: Tuple[str, ...] = ()
            if node.after:
                before = self.nodes[node.after[0]]
                scope = (*self._scope(before), before.name) if before.fan_out else self._scope(before)
            self._scopes[node.name] = scope[:-1] if node.gather else scope
        return self._scopes[node.name]
