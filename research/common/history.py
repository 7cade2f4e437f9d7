"""The history in a recording: requests with their ends, batches with their durations, results of nodes.

Reads the steps of a recording and draws no conclusions; :mod:`common.recorded` makes a world of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Collection, DefaultDict, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.sched.protocol.actions import EvictModel, FinishRequest, LoadModel, Outcome, ReleaseState, RunBatch
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    JobId,
    JobResult,
    LaneChanged,
    Part,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.taps.trace import RecordedStep


class Told:
    """The result of a node for one job. ``status`` is that of its last run; ``steps`` is the sum over its ``runs``;
    ``bounded`` says that the scheduler bounded the steps of a run."""

    __slots__ = ("status", "parts", "route", "hints", "state_bytes", "steps", "runs", "bounded")

    def __init__(self) -> None:
        self.status = ""
        self.parts: Optional[int] = None
        self.route: Optional[str] = None
        self.hints: Mapping[str, float] = {}
        self.state_bytes = 0
        self.steps = 0
        self.runs = 0
        self.bounded = False

    def add(self, result: JobResult, bounded: bool) -> None:
        """One more run of the job."""
        self.status, self.parts, self.route = result.status, result.parts, result.route
        self.hints, self.state_bytes = result.hints, max(self.state_bytes, result.state_bytes)
        self.steps += result.steps
        self.runs += 1
        self.bounded |= bounded


class Past:
    """One recorded request. ``seen_ns`` is the step that brought it. ``ended_ns`` is the step that ended it, ``None``
    when the recording ended before. ``told`` is what its nodes returned, by (node, part)."""

    __slots__ = ("request", "seen_ns", "cancelled_ns", "ended_ns", "outcome", "reason", "cut", "told")

    def __init__(self, request: Request, seen_ns: int) -> None:
        self.request = request
        self.seen_ns = seen_ns
        self.cancelled_ns: Optional[int] = None
        self.ended_ns: Optional[int] = None
        self.outcome = ""
        self.reason = ""
        self.cut = ""
        self.told: Dict[Tuple[str, Part], Told] = {}

    @property
    def in_time(self) -> bool:
        """True if it was answered by the scheduler's deadline."""
        return (
            self.outcome == Outcome.COMPLETED
            and not self.cut
            and self.ended_ns is not None
            and self.ended_ns <= self.request.deadline_ns
        )


class Ran(NamedTuple):
    """One batch that ran to its end, or a stretch of a batch of sequences: some steps of the same ones. ``members`` are
    places in :attr:`RecordedHistory.requests`, one per job; ``duration_ns`` is at the lane's full speed."""

    model: str
    lane: str
    size: int
    members: Tuple[int, ...]
    steps: int
    started_ns: int
    duration_ns: int


class First(NamedTuple):
    """The first stretch of a batch of sequences, in which so many of them were ``new``: their prompts were read."""

    stretch: Ran
    new: int


class RecordedHistory:
    """Everything that :func:`read_history` found, in the order of the recording."""

    def __init__(self) -> None:
        self.requests: List[Past] = []
        self.batches: List[Ran] = []
        self.firsts: List[First] = []  # of which the others' times are part, and those of batches are not
        self.loads_ns: DefaultDict[str, List[int]] = defaultdict(list)  # model -> durations
        self.lane_changes: List[Tuple[int, LaneChanged]] = []
        self.device_changes: List[Tuple[int, DeviceChanged]] = []
        self.starts_ns: DefaultDict[str, List[int]] = defaultdict(list)  # lane -> from a step to the start of its work
        self.news_ns: DefaultDict[str, List[int]] = defaultdict(list)  # lane -> from a work's end to the next step
        self.gaps_ns: List[int] = []  # from a step to the next one
        self.begins_ns = 0
        self.ends_ns = 0


def read_history(steps: Iterable[RecordedStep], sequences: Collection[str] = ()) -> RecordedHistory:
    """The past of some steps. Requests that arrive after a drain began are left out: it refused them. ``sequences`` are
    the models whose jobs are sequences."""
    reader = _HistoryReader(sequences)
    for step in steps:
        reader.step(step)
    return reader.history


class _HistoryReader:
    """Follows the works and requests that are open."""

    def __init__(self, sequences: Collection[str]) -> None:
        self.history = RecordedHistory()
        self._sequences = sequences
        self._progress: DefaultDict[int, List[BatchProgress]] = defaultdict(list)  # by work
        self._held: Dict[JobId, str] = {}  # sequence that waits with a state -> its lane
        self._places: Dict[int, int] = {}  # request id -> its place
        self._works: Dict[int, Tuple[Any, int, bool]] = {}  # work -> action, when it was given, whether its lane idled
        self._given: Counter[str] = Counter()  # lane -> works it has
        self._speeds: Dict[str, float] = {}
        self._drains = False
        self._first = True

    def step(self, step: RecordedStep) -> None:
        if self._first:
            self.history.begins_ns, self._first = step.now_ns, False
        else:
            self.history.gaps_ns.append(step.now_ns - self.history.ends_ns)
        self.history.ends_ns = step.now_ns
        for event in step.events:
            self._event(step.now_ns, event)
        for action in step.actions:
            if isinstance(action, (RunBatch, LoadModel, EvictModel)):
                self._works[action.work_id] = (action, step.now_ns, not self._given[action.lane])
                self._given[action.lane] += 1
            elif isinstance(action, ReleaseState):
                self._held.pop(action.job, None)
            elif isinstance(action, FinishRequest):
                self._ended(step.now_ns, action)

    def _event(self, now_ns: int, event: Any) -> None:
        if isinstance(event, RequestArrived) and not self._drains:
            self._places[event.request.id] = len(self.history.requests)
            self.history.requests.append(Past(event.request, now_ns))
        elif isinstance(event, RequestCancelled):
            place = self._places.get(event.request_id)
            if place is not None and self.history.requests[place].cancelled_ns is None:
                self.history.requests[place].cancelled_ns = now_ns
        elif isinstance(event, WorkFinished):
            self._finished(now_ns, event)
        elif isinstance(event, BatchProgress) and event.results:  # else some sequences have begun
            self._progress[event.work_id].append(event)
        elif isinstance(event, WorkRefused):
            self._take(event.work_id)
        elif isinstance(event, LaneChanged):
            self._changed(now_ns, event)
        elif isinstance(event, DeviceChanged):
            self.history.device_changes.append((now_ns, event))
        elif isinstance(event, DrainRequested):
            self._drains = True

    def _take(self, work_id: int) -> Optional[Tuple[Any, int, bool]]:
        found = self._works.pop(work_id, None)
        if found is not None:
            self._given[found[0].lane] -= 1
        return found

    def _changed(self, now_ns: int, event: LaneChanged) -> None:
        self.history.lane_changes.append((now_ns, event))
        if event.speed is not None:
            self._speeds[event.lane] = event.speed
        if event.up is False:  # no answer comes for what it had
            for work_id in [number for number, (action, _, _) in self._works.items() if action.lane == event.lane]:
                self._take(work_id)

    def _finished(self, now_ns: int, event: WorkFinished) -> None:
        found = self._take(event.work_id)
        if found is None:
            return  # of a lane that was lost before
        action, given_ns, idled = found
        if idled:
            self.history.starts_ns[action.lane].append(max(0, event.started_ns - given_ns))
        self.history.news_ns[action.lane].append(max(0, now_ns - event.finished_ns))
        took_ns = event.finished_ns - event.started_ns
        if isinstance(action, LoadModel) and not event.failed:
            self.history.loads_ns[action.model].append(took_ns)
        elif isinstance(action, RunBatch):
            self._ran(action, event, took_ns)

    def _ran(self, action: RunBatch, event: WorkFinished, took_ns: int) -> None:
        if action.model in self._sequences and not action.probe:
            self._ran_sequences(action, event)
            return
        steps = max((result.steps for result in event.results), default=1) if action.steps_max is not None else 1
        members = tuple(self._places.get(job.request_id, -1) for job in action.jobs)
        if any(result.status != "failed" for result in event.results):  # a batch that raised says nothing of its time
            speed = self._speeds.get(action.lane, 1.0)
            self.history.batches.append(
                Ran(
                    action.model,
                    action.lane,
                    action.size,
                    members,
                    max(1, steps),
                    event.started_ns,
                    max(1, round(took_ns * speed)),
                )
            )
        if not action.probe:
            for result in event.results:
                self._told(result.job, result, action.steps_max is not None)

    def _ran_sequences(self, action: RunBatch, event: WorkFinished) -> None:
        """A batch of sequences is over: each of its stretches tells the time of a step of so many."""
        new = sum(self._held.pop(job, "") != action.lane for job in action.jobs)
        left, made, since_ns = list(action.jobs), 0, event.started_ns
        for end in (*self._progress.pop(action.work_id, ()), event):
            at_ns = event.finished_ns if isinstance(end, WorkFinished) else end.at_ns
            steps = max((result.steps for result in end.results if result.status != "failed"), default=0)
            if steps > made and left:
                members = tuple(self._places.get(job.request_id, -1) for job in left)
                took_ns = max(1, round((at_ns - since_ns) * self._speeds.get(action.lane, 1.0)))
                stretch = Ran(action.model, action.lane, len(left), members, steps - made, since_ns, took_ns)
                if made or not new:
                    self.history.batches.append(stretch)
                else:
                    self.history.firsts.append(First(stretch, new))
                made = steps
            since_ns = at_ns
            for result in end.results:
                left.remove(result.job)
                self._told(result.job, result, True)
                if result.status == "unfinished":
                    self._held[result.job] = action.lane

    def _told(self, job: JobId, result: JobResult, bounded: bool) -> None:
        place = self._places.get(job.request_id)
        if place is not None:
            self.history.requests[place].told.setdefault((job.node, job.part), Told()).add(result, bounded)

    def _ended(self, now_ns: int, action: FinishRequest) -> None:
        place = self._places.get(action.request_id)
        if place is not None:
            past = self.history.requests[place]
            past.ended_ns, past.outcome, past.reason, past.cut = now_ns, action.outcome, action.reason, action.cut
