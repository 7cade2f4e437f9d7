"""The scheduler's record of lanes: the batches on them, when each will be free, and whether it can be trusted.

A lane runs one work at a time, in the order given; ``depth`` of them may be launched, which cannot be taken back.
Knows no engine, no thread and no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, List, Sequence, Tuple

from edgeserve.config.profile_record import Clocks
from edgeserve.errors import PolicyError
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.requests.states import Job
from edgeserve.units import NS_PER_MS

WORKS_MAX = 16
"""Works a lane holds at most, the running one included: a bound on the inbox when works are far shorter than
``ahead_ns``."""

BEHIND_NS_MAX = 10 * NS_PER_MS
"""Further behind its expected completion than this, a lane is sent nothing ahead (Clockwork's implementation)."""

REST_NS = 1_000 * NS_PER_MS
"""A lane that stood still for so long has rested, as before the batch that a profile measures for that."""

LOST_KEPT = 1024
"""Works taken from lanes that went down whose late answers are still recognised."""

RUN, LOAD, EVICT = "run", "load", "evict"

NO_JOBS: Dict[int, Job] = {}
"""The ended jobs of most batches: none ends before its batch does. Read only."""


class Work:
    """Something a lane was asked to do and has not answered. ``jobs`` is empty for loads, evictions and probes.

    ``probe`` is the job whose retained inputs a probe runs. Nothing waits for a probe, so its answer changes the state
    of no job.
    ``failed`` is set when the lane is back: every job of the batch failed (it may never have run), or the probe was
    not done. A batch of which some jobs failed did run, so what it took counts. ``steps`` is set then too: how many
    steps of an iterative model the call made, and ``turns``, where the model bounds its turns (else 0).
    """

    def __init__(
        self,
        id: int,
        kind: str,
        lane: Lane,
        model: str,
        jobs: Tuple[Job, ...],
        size: int,
        launched_ns: int,
        expected_ns: int,
        starts_ns: int,
        policy: Any,
        probe: Job | None = None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.lane = lane
        self.model = model
        self.jobs = jobs
        self.size = size
        self.launched_ns = launched_ns
        self.expected_ns = expected_ns
        self.starts_ns = starts_ns  # when it is expected to start
        self.policy = policy
        self.lost = False  # its jobs were taken from it; the answer only frees the lane
        self.probe = probe
        self.failed = False
        self.steps = 1
        self.turns = 0
        self.over: Dict[int, Job] = NO_JOBS  # the jobs that were over before the batch, by ``seq``
        self.cut_ns: int | None = None  # when it was told to end after its present step
        self.steps_max: int | None = None
        self.step_ns = 0  # it can be cut after a step or turn, which takes so long; 0: it cannot be cut
        self.reads = False  # it began with prompts of sequences, which are no steps
        self.rested = False  # its lane had rested, which its time says nothing else about
        self.at_once = False  # it may start as soon as its lane has it, which had nothing else

    def left(self) -> Tuple[Job, ...]:
        """Its jobs that are not over, in the order of the batch."""
        return tuple([job for job in self.jobs if job.seq not in self.over]) if self.over else self.jobs


@dataclass(eq=False)
class Lane:
    """One lane's state. It is asked for its next work ``ahead_ns`` before it is free; without, as soon as it has fewer
    than ``depth`` works. :class:`Works` gives it works and takes them back, and the scheduler says what else changes.
    """

    name: str
    device: str
    ahead_ns: int = 0
    hang_ns: int = 30_000 * NS_PER_MS  # how long after its expected end the work at its head may return
    copy: bool = False
    depth: int = 1
    threads: int = 1  # of a processor, which run its batches
    nice: int = 0  # how far they yield to all others
    works: Deque[Work] = field(default_factory=deque)
    free_at_ns: int = 0  # when the works on it are expected to be over (in the past when idle)
    head_due_ns: int = 0  # when the work at the head is expected to end
    up: bool = True
    lost: bool = False  # it never comes back
    hung: bool = False
    speed: float = 1.0
    clocks: Clocks = Clocks()  # as the monitor told them; the speed of each model follows from those of its profile
    models: Dict[str, BatchTime] = field(default_factory=dict)  # that may run here, and how long they take
    busy_ns: int = 0  # how long its batches took so far
    served_ns: Dict[str, int] = field(default_factory=dict)  # the same by model, with what lay between them
    same_clocks: Sequence[Lane] = field(default=(), repr=False)  # the other lanes of its GPU: one at work wakes all
    dispatch_gap: DispatchGap = field(default_factory=DispatchGap)  # between two batches, given one at a time; else 0

    def accepts(self, now_ns: int) -> bool:
        """True if a work may be given to this lane now."""
        if not self.up or self.hung:
            return False
        works = self.works
        if not works:
            return True
        if now_ns - self.head_due_ns > BEHIND_NS_MAX:
            return False
        if self.ahead_ns:
            return self.free_at_ns - now_ns <= self.ahead_ns and len(works) < WORKS_MAX
        return len(works) < self.depth

    def available_ns(self, now_ns: int) -> int:
        """The start of a batch that is given now. A batch that can be cut keeps no other waiting for longer than a
        step, which counts from when the batch was told to end."""
        if not self.works:
            return now_ns
        free_at_ns = self.free_at_ns + self.dispatch_gap.likely_ns
        if free_at_ns <= now_ns:
            return now_ns
        work = self.works[0]
        if not work.step_ns or len(self.works) > 1:
            return free_at_ns
        ends_ns = (now_ns if work.cut_ns is None else work.cut_ns) + work.step_ns
        return min(free_at_ns, max(now_ns, ends_ns))

    def has_rested(self, now_ns: int) -> bool:
        """True if nothing has run at its clocks for :data:`REST_NS`: they may be low."""
        since_ns = now_ns - REST_NS
        return not any(lane.works or lane.free_at_ns > since_ns for lane in (self, *self.same_clocks))

    def worked_ns(self, now_ns: int) -> int:
        """The time that it has worked in all, its present batch included as far as is known."""
        return self.busy_ns + (max(0, now_ns - self.works[0].starts_ns) if self.works else 0)

    def asks_at_ns(self, now_ns: int) -> int | None:
        """When it will accept a work although nothing happens: only lanes that plan ahead do."""
        if not self.works or not self.ahead_ns or not self.up or self.hung:
            return None
        at = self.free_at_ns - self.ahead_ns
        return at if at > now_ns else None

    def clear(self) -> List[Work]:
        """The lane went down: everything on it is lost to it. Returns what was there."""
        lost = list(self.works)
        self.works.clear()
        self.free_at_ns = 0
        self.hung = False
        return lost


class Works:
    """The works that lanes have not answered, by id. Ids rise; each is given once.

    A work whose lane went down is forgotten but recognised (for the last :data:`LOST_KEPT`), should an answer still
    come.
    """

    def __init__(self) -> None:
        self.by_id: Dict[int, Work] = {}
        self._last_id = 0
        self._lost: OrderedDict[int, None] = OrderedDict()

    def put(
        self,
        now_ns: int,
        kind: str,
        lane: Lane,
        model: str,
        expected_ns: int,
        jobs: Tuple[Job, ...] = (),
        size: int = 0,
        policy: Any = None,
        probe: Job | None = None,
    ) -> Work:
        """Give a lane a work behind those it has."""
        self._last_id += 1
        starts_ns = max(now_ns, lane.free_at_ns) if lane.works else now_ns
        work = Work(self._last_id, kind, lane, model, jobs, size, now_ns, expected_ns, starts_ns, policy, probe)
        lane.free_at_ns = starts_ns + expected_ns
        if not lane.works:
            lane.head_due_ns = lane.free_at_ns
        lane.works.append(work)
        self.by_id[work.id] = work
        return work

    def running(self, work_id: int) -> Work | None:
        """The work of this id; None for one that was forgotten with its lane."""
        work = self.by_id.get(work_id)
        if work is None and work_id not in self._lost:
            raise PolicyError(f"work {work_id} is said to go on but is on no lane")
        return work

    def answered(self, work_id: int, at_ns: int) -> Work | None:
        """A lane is done with a work (finished or refused), wherever it stood; None for one that was forgotten with its
        lane."""
        work = self.by_id.pop(work_id, None)
        if work is None:
            if work_id in self._lost:
                return None
            raise PolicyError(f"work {work_id} was answered but is on no lane")
        lane, works = work.lane, work.lane.works
        head = works[0] is work
        works.remove(work)
        if head:
            lane.hung = False
            ends_ns = at_ns
            for index, other in enumerate(works):
                ends_ns += other.expected_ns
                if index == 0:
                    lane.head_due_ns = ends_ns
            lane.free_at_ns = ends_ns
        else:
            lane.free_at_ns -= work.expected_ns
        return work

    def forget(self, work: Work) -> None:
        """The work's lane went down; it has been taken off the lane already."""
        del self.by_id[work.id]
        self._lost[work.id] = None
        if len(self._lost) > LOST_KEPT:
            self._lost.popitem(last=False)
