"""The ready jobs of one model by class, and what is known of their lengths on each lane.

A class is an app. New samples and new shares of the arrivals become new tables off the critical path: when no lane
waits for a decision.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, NamedTuple, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import RANKS
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.orloj.calibration import QUANTILE, Calibration
from edgeserve.sched.published.orloj.lengths import Lengths, LengthWindow, SizeBias, lengths_of
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Work
from edgeserve.units import NS_PER_MS, ns_to_ms

REFRESH_NS = 250 * NS_PER_MS
"""Tables are made anew at most this often: a table costs a millisecond or two."""

SAMPLES_MIN = 4
"""New samples that make new tables worth while; fewer wait for :data:`SHARES_MOVED`."""

SHARES_MOVED = 0.02
"""A class's share of the arrivals that moved by so much makes new tables worth while."""

SHARE_STEP = 1.0 / 256
"""Weight of one arrival in the running shares of the classes."""

PRIOR_LEN = 8
"""Before the first arrival all apps of a model count alike, as if so many requests had come."""


class QueueKey(NamedTuple):
    """Which of a model's queues a job stands in: the order of serving first, then what makes jobs alike."""

    rank: int  # of its class (critical, normal, background)
    app: str
    value: float


@mypyc_attr(allow_interpreted_subclasses=True)
class DynamicModel:
    """The ready jobs of one model, and its lengths on each lane.

    ``queues`` are in deadline order, one per app, service class and value.
    """

    def __init__(self, model: str, apps: Sequence[str], *, window_len: int, learn: bool) -> None:
        self.model = model
        self.queues: Dict[QueueKey, JobQueue] = {}
        self.has_steps = False  # some job has come back unfinished
        self.calibration = Calibration()
        self._window_len = window_len
        self._learn = learn
        self._shares: Dict[str, float] = {app: 1.0 / len(apps) for app in apps}
        self._arrivals = 0
        self._windows: Dict[str, Dict[str, LengthWindow]] = {}  # lane -> app -> times alone
        self._bias: Dict[str, SizeBias] = {}
        self._lengths: Dict[str, Lengths] = {}
        self._corrections: Dict[str, Dict[int, float]] = {}
        self._made_ns = -REFRESH_NS
        self._made_shares: Dict[str, float] = {}
        self._fresh_samples = 0
        self._stale = False
        self._queue_keys: Dict[int, QueueKey] = {}  # job -> its queue
        self._launched: Dict[int, float] = {}  # work -> its time by the law alone

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """A job became ready."""
        name = job.request.app.name
        if job.steps == 0:
            step = max(SHARE_STEP, 1.0 / (PRIOR_LEN + self._arrivals))
            self._arrivals += 1
            for known in self._shares:
                self._shares[known] *= 1.0 - step
            self._shares[name] += step
        self.has_steps = self.has_steps or job.steps > 0
        queue_key = QueueKey(RANKS[job.request.priority_class], name, job.request.value)
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

    def jobs(self) -> Iterator[Job]:
        """Every job that waits."""
        return (job for queue in self.queues.values() for job in queue)

    # --- lengths ------------------------------------------------------------------------------------------------------

    def lengths(self, lane: str, board: Board) -> Lengths:
        """The estimated lengths on a lane."""
        found = self._lengths.get(lane)
        if found is None:
            found = self._make(lane, board)
        return found

    def observe(self, lane: str, app: str, alone_ns: int, board: Board) -> None:
        """A request of an app took so long alone (at the lane's present speed)."""
        known = self._of_lane(lane, board)
        if app not in known:
            known[app] = LengthWindow(self._window_len)
        speed = board.latency(self.model, lane).speed
        known[app].add(round(alone_ns * speed))
        self._fresh_samples += 1

    def started(self, work: Work, board: Board) -> None:
        """A batch was launched: its jobs leave the queues, and it is stated by when it ends."""
        members = tuple(sorted([job.request.app.name for job in work.jobs]))
        for job in work.jobs:
            self.remove(job)
        lane = work.lane.name
        lengths = self.lengths(lane, board)
        known = lengths.batch(work.size, members)
        self.calibration.state(work.id, known.quantile_ns(QUANTILE))
        growing_ns = (known.mean_ns() - lengths.fixed_ns) / self._corrections.get(lane, {}).get(work.size, 1.0)
        speed = board.latency(self.model, lane).speed
        self._launched[work.id] = (lengths.fixed_ns + growing_ns) * speed

    def ended(self, work: Work, took_ns: int, board: Board) -> None:
        """A batch ended."""
        self.calibration.ended(work.id, took_ns)
        expected_ns = self._launched.pop(work.id, None)
        if expected_ns is None or not self._learn:
            return
        lane = work.lane.name
        latency = board.latency(self.model, lane)
        bias = self._bias.get(lane)
        if bias is None:
            bias = self._bias[lane] = SizeBias(latency.fixed_ns)
        bias.observe(work.size, expected_ns, took_ns * latency.speed)

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
        if self._fresh_samples < SAMPLES_MIN and not moved:
            return
        self._made_ns = now
        self._fresh_samples = 0
        for lane in list(self._lengths):
            self._make(lane, board)

    def figures(self) -> Dict[str, Any]:
        """The estimates in plain numbers, times in ms."""
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
        windows = self._of_lane(lane, board)
        self._made_shares = dict(self._shares)
        latency = board.latency(self.model, lane)
        if self._learn and lane in self._bias:
            self._corrections[lane] = self._bias[lane].corrections()
        made = lengths_of(latency, windows, self._shares, self._corrections.get(lane), latency.speed)
        self._lengths[lane] = made
        return made

    def _of_lane(self, lane: str, board: Board) -> Dict[str, LengthWindow]:
        known = self._windows.get(lane)
        if known is None:
            known = self._windows[lane] = {
                app: LengthWindow(self._window_len, times)
                for app, times in board.latency(self.model, lane).alone.items()
            }
        return known
