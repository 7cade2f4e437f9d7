"""The ready jobs of one model by class, and what is known of their lengths on each lane.

A class is an app, or an interval of predicted lengths where requests bring a hint. New samples and new shares of the
arrivals become new tables off the critical path: when no lane waits for a decision.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.protocol.events import CLASSES
from edgeserve.sched.published.orloj.calibration import QUANTILE, Calibration
from edgeserve.sched.published.orloj.evidence import BatchRow
from edgeserve.sched.published.orloj.lengths import (
    ALONE_ENOUGH,
    Lengths,
    LengthWindow,
    SizeBias,
    learnt_of,
    lengths_of,
)
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Work
from edgeserve.units import NS_PER_MS, ns_to_ms

REFRESH_NS = 250 * NS_PER_MS
"""Tables are made anew at most this often: a table costs a millisecond or two."""

SAMPLES_MIN = 4
"""New samples that make new tables worth while; fewer wait for :data:`SHARES_MOVED`."""

BATCHES_LEN = 128
"""Batches per lane that are looked back on while few times alone are known."""

BATCHES_PART = 8
"""While batches teach, new tables are made when this part of those that are remembered is new."""

SHARES_MOVED = 0.02
"""A class's share of the arrivals that moved by so much makes new tables worth while."""

SHARE_STEP = 1.0 / 256
"""Weight of one arrival in the running shares of the classes."""

PRIOR_LEN = 8
"""Before the first arrival all apps of a model count alike, as if so many requests had come."""

HINT_BINS = 8
"""Intervals of equal frequency that hints are sorted into (specification, 11.6)."""

HINTS_LEN = 1024
"""Hints from which the intervals are made."""

HINT_BIN = "hint"


class QueueKey(NamedTuple):
    """Which of a model's queues a job stands in: the order of serving first, then what makes jobs alike."""

    rank: int  # of its class (critical, normal, background)
    name: str  # of its length class
    value: float


class HintBins:
    """Sorts requests into :data:`HINT_BINS` intervals of predicted length that are equally frequent."""

    __slots__ = ("_hints", "_sorted", "_thresholds")

    def __init__(self) -> None:
        self._hints: Deque[float] = deque()
        self._sorted: List[float] = []
        self._thresholds: List[float] = []

    def add(self, hint: float) -> None:
        """A request declared this length."""
        self._hints.append(hint)
        insort(self._sorted, hint)
        if len(self._hints) > HINTS_LEN:
            oldest = self._hints.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]

    def cut(self) -> None:
        """Make the intervals anew from the hints seen last."""
        count = len(self._sorted)
        quantiles = [self._sorted[count * part // HINT_BINS] for part in range(1, HINT_BINS)] if count else []
        self._thresholds = sorted(set(quantiles))

    def name(self, hint: float) -> str:
        """The class of a hint."""
        return f"{HINT_BIN}{bisect_right(self._thresholds, hint)}"


@mypyc_attr(allow_interpreted_subclasses=True)
class DynamicModel:
    """The ready jobs of one model, and its lengths on each lane.

    ``queues`` are in deadline order, one per class of length, service class and value. ``hint`` is the name of the
    declared number that predicts a request's length, or ``""``.
    """

    def __init__(
        self,
        model: str,
        apps: Sequence[str],
        *,
        window_len: int,
        reset_ns: int,
        hint: str = "",
        learn: bool = True,
        from_batches: bool = False,
    ) -> None:
        self.model = model
        self.queues: Dict[QueueKey, JobQueue] = {}
        self.has_steps = False  # some job has come back unfinished
        self.calibration = Calibration()
        self._window_len = window_len
        self._reset_ns = reset_ns
        self._hint = hint
        self._learn = learn
        self._from_batches = from_batches
        self._apps = tuple(apps)
        self._bins = HintBins()
        self._shares: Dict[str, float] = {app: 1.0 / len(apps) for app in apps}
        self._arrivals = 0
        self._windows: Dict[str, Dict[str, LengthWindow]] = {}  # lane -> app -> times alone
        self._hinted: Dict[str, Deque[Tuple[int, float, int]]] = {}  # lane -> (when, hint, time alone)
        self._batches: Dict[str, Deque[BatchRow]] = {}
        self._bias: Dict[str, SizeBias] = {}
        self._lengths: Dict[str, Lengths] = {}
        self._corrections: Dict[str, Dict[int, float]] = {}
        self._made_ns = -REFRESH_NS
        self._made_shares: Dict[str, float] = {}
        self._fresh_samples = 0
        self._fresh_batches = 0
        self._stale = False
        self._queue_keys: Dict[int, QueueKey] = {}  # job -> its queue
        self._launched: Dict[int, Tuple[Work, Tuple[str, ...], float]] = {}  # work -> members, time by the law alone

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """A job became ready."""
        name = self.class_of(job)
        if job.steps == 0:
            step = max(SHARE_STEP, 1.0 / (PRIOR_LEN + self._arrivals))
            self._arrivals += 1
            for known in self._shares:
                self._shares[known] *= 1.0 - step
            self._shares[name] = self._shares.get(name, 0.0) + step
        self.has_steps = self.has_steps or job.steps > 0
        queue_key = QueueKey(CLASSES.index(job.request.klass), name, job.request.value)
        queue = self.queues.get(queue_key)
        if queue is None:
            queue = self.queues[queue_key] = JobQueue()
        queue.add(job.deadline_ns, job)
        self._queue_keys[job.seq] = queue_key

    def remove(self, job: Job) -> None:
        """A job left."""
        queue_key = self._queue_keys.pop(job.seq)
        queue = self.queues[queue_key]
        queue.remove(job)
        if not queue.rows:
            del self.queues[queue_key]

    def queue_key(self, job: Job) -> QueueKey | None:
        """The queue of a job, or None when it does not wait here."""
        return self._queue_keys.get(job.seq)

    def class_name(self, job: Job) -> str:
        """The length class of a job that waits."""
        return self._queue_keys[job.seq].name

    def class_of(self, job: Job) -> str:
        """The length class of a job: the interval of its hint, else its app."""
        hint = job.hints.get(self._hint) if self._hint else None
        if hint is None:
            return job.request.app.name
        self._bins.add(hint)
        return self._bins.name(hint)

    def jobs(self) -> Iterator[Job]:
        """Every job that waits."""
        return (job for queue in self.queues.values() for job in queue)

    # --- lengths ------------------------------------------------------------------------------------------------------

    def lengths(self, lane: str, board: Board) -> Lengths:
        """What is known of the lengths on a lane."""
        found = self._lengths.get(lane)
        if found is None:
            found = self._make(lane, board)
        return found

    def observe(self, lane: str, app: str, hint: float | None, alone_ns: int, board: Board) -> None:
        """A request of an app took so long alone (at the lane's present speed)."""
        known = self._of_lane(lane, board)
        if app not in known:
            known[app] = LengthWindow(self._window_len)
        speed = board.latency(self.model, lane).speed
        known[app].add(board.now_ns, round(alone_ns * speed))
        if hint is not None:
            self._hinted.setdefault(lane, deque(maxlen=self._window_len * 2)).append(
                (board.now_ns, hint, round(alone_ns * speed))
            )
        self._fresh_samples += 1

    def started(self, work: Work, board: Board) -> None:
        """A batch was launched: its jobs leave the queues, and it is stated by when it ends."""
        members = tuple(sorted([self._queue_keys[job.seq].name for job in work.jobs]))
        for job in work.jobs:
            self.remove(job)
        lane = work.lane.name
        lengths = self.lengths(lane, board)
        known = lengths.batch(work.size, members)
        self.calibration.state(work.id, known.quantile_ns(QUANTILE))
        growing_ns = (known.mean_ns() - lengths.fixed_ns) / self._corrections.get(lane, {}).get(work.size, 1.0)
        speed = board.latency(self.model, lane).speed
        self._launched[work.id] = (work, members, (lengths.fixed_ns + growing_ns) * speed)

    def ended(self, work: Work, took_ns: int, board: Board) -> None:
        """A batch ended."""
        self.calibration.ended(work.id, took_ns)
        entry = self._launched.pop(work.id, None)
        if entry is None:
            return
        lane = work.lane.name
        latency = board.latency(self.model, lane)
        if self._from_batches and not work.failed and not any(job.steps for job in work.jobs):
            self._remember(work, took_ns * latency.speed, board.now_ns)
        if not self._learn:
            return
        bias = self._bias.get(lane)
        if bias is None:
            bias = self._bias[lane] = SizeBias(latency.fixed_ns)
        bias.observe(work.size, entry[2], took_ns * latency.speed)

    def _remember(self, work: Work, took_ns: float, now_ns: int) -> None:
        """A batch that may teach lengths (at speed 1)."""
        lane = work.lane.name
        members = tuple(
            [(job.request.app.name, job.hints.get(self._hint) if self._hint else None) for job in work.jobs]
        )
        rows = self._batches.setdefault(lane, deque(maxlen=BATCHES_LEN))
        rows.append(BatchRow(now_ns, work.size, members, took_ns))
        self._fresh_batches += 1

    def lost(self, work: Work) -> None:
        """A lane would not start a batch, or will not end it."""
        self.calibration.lost(work.id)
        self._launched.pop(work.id, None)

    def lanes_changed(self) -> None:
        """A lane went down, came back or runs at another speed: its tables are made anew."""
        self._stale = True

    def refresh(self, board: Board) -> None:
        """Make new tables if something changed. Call when no lane waits for a decision."""
        now = board.now_ns
        if self._stale:
            self._lengths.clear()
            self._stale = False
        if now - self._made_ns < REFRESH_NS:
            return
        moved = any(
            abs(share - self._made_shares.get(name, 0.0)) > SHARES_MOVED for name, share in self._shares.items()
        )
        taught = any(
            self._fresh_batches >= max(SAMPLES_MIN, len(rows) // BATCHES_PART) and self._teach(lane)
            for lane, rows in self._batches.items()
        )
        if self._fresh_samples < SAMPLES_MIN and not moved and not taught:
            return
        self._made_ns = now
        self._fresh_samples = self._fresh_batches = 0
        self._bins.cut()
        for lane in list(self._lengths):
            self._make(lane, board)

    def figures(self) -> Dict[str, Any]:
        """What is known, in plain numbers, times in ms."""
        lanes: Dict[str, Any] = {}
        for lane, lengths in self._lengths.items():
            lanes[lane] = {
                "samples": {app: window.seen for app, window in self._windows.get(lane, {}).items()},
                "alone_ms": {
                    name: {
                        "mean": ns_to_ms(round(lengths.mean_alone_ns(name))),
                        "p90": ns_to_ms(lengths.alone(name).quantile_ns(QUANTILE)),
                    }
                    for name in lengths.known
                },
                "batches": len(self._batches[lane]) if self._teach(lane) else 0,
                "corrections": {str(size): factor for size, factor in self._corrections.get(lane, {}).items()},
            }
        calibration = self.calibration
        return {
            "calibration": {
                "stated": calibration.stated,
                "covered": calibration.covered,
                "uncorrected": calibration.uncorrected,
                "recent": calibration.recent(),
            },
            "lanes": lanes,
        }

    def _make(self, lane: str, board: Board) -> Lengths:
        windows = dict(self._of_lane(lane, board))
        if self._reset_ns:
            for window in windows.values():
                window.forget(board.now_ns - self._reset_ns)
            rows = self._batches.get(lane)
            while rows and rows[0].at_ns < board.now_ns - self._reset_ns:
                rows.popleft()
        for at_ns, hint, alone_ns in self._hinted.get(lane, ()):
            name = self._bins.name(hint)
            if name not in windows:
                windows[name] = LengthWindow(self._window_len)
            windows[name].add(at_ns, alone_ns)
        self._made_shares = dict(self._shares)
        latency = board.latency(self.model, lane)
        if self._teach(lane) and self._batches[lane]:
            made, self._corrections[lane] = learnt_of(
                latency, windows, self._shares, self._batches[lane], self._named, latency.speed, self._learn
            )
            self._bias.pop(lane, None)  # it compares with what was believed then
        else:
            if self._learn and lane in self._bias:
                self._corrections[lane] = self._bias[lane].corrections()
            made = lengths_of(latency, windows, self._shares, self._corrections.get(lane), latency.speed)
        self._lengths[lane] = made
        return made

    def _named(self, app: str, hint: float | None) -> str:
        return app if hint is None else self._bins.name(hint)

    def _teach(self, lane: str) -> bool:
        """Whether batches tell of lengths on this lane: some app has few times alone to go by."""
        if lane not in self._batches:
            return False
        known, enough = self._windows.get(lane, {}), min(ALONE_ENOUGH, self._window_len)
        return any(app not in known or len(known[app].samples) < enough for app in self._apps)

    def _of_lane(self, lane: str, board: Board) -> Dict[str, LengthWindow]:
        known = self._windows.get(lane)
        if known is None:
            known = self._windows[lane] = {
                app: LengthWindow(self._window_len, times)
                for app, times in board.latency(self.model, lane).alone.items()
            }
        return known
