"""Lanes of the simulated world: what each has launched, what its device runs, and how lanes of one device slow each
other.

This module only keeps the state of lanes and works out when works end; the world makes it happen.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any, Callable, DefaultDict, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from edgeserve.sched.protocol.actions import EvictModel, RunBatch
from edgeserve.sim.sequence_runs import SequenceRun


class Running:
    """A batch that a device runs. ``left_ns`` is the time that it needed alone as of ``since_ns``; it takes ``pace``
    times as long while other lanes run beside it. ``share``: the part of its time for which it holds the interpreter
    lock. ``shares_cores``: others that do make it slower, on any lane. ``over``: the device is done, and its thread
    waits for that lock. A batch of sequences goes on in the stretches of its ``sequences``, each ``slow`` times as long
    as they say; ``left_ns`` is then the time that its present stretch needed."""

    __slots__ = (
        "action",
        "started_ns",
        "left_ns",
        "since_ns",
        "pace",
        "share",
        "over",
        "done_ns",
        "sequences",
        "slow",
        "stretch_ns",
        "began_ns",
        "shares_cores",
    )

    def __init__(
        self,
        action: Any,
        started_ns: int,
        duration_ns: int,
        share: float = 0.0,
        sequences: Optional[SequenceRun] = None,
        slow: float = 1.0,
        shares_cores: bool = False,
    ) -> None:
        self.action = action
        self.started_ns = started_ns
        self.left_ns = duration_ns
        self.since_ns = started_ns
        self.pace = 0.0  # not set yet
        self.share = share
        self.shares_cores = shares_cores
        self.over = False
        self.done_ns = 0  # when it was over, where the loop is told only later
        self.sequences = sequences
        self.slow = slow
        self.stretch_ns = duration_ns  # of which left_ns are left
        self.began_ns = started_ns  # when the present stretch began

    def ends_ns(self) -> int:
        """When it is over, as far as is known."""
        return self.since_ns + round(self.left_ns * self.pace)

    def brought_to(self, now_ns: int) -> None:
        """Bring the time left up to now, at the pace that it had."""
        if self.pace:
            self.left_ns = max(0, self.left_ns - round((now_ns - self.since_ns) / self.pace))
        self.since_ns = now_ns

    def passed_ns(self, now_ns: int) -> int:
        """The part of the present stretch of its sequences that is over now, at their own pace."""
        self.brought_to(now_ns)
        return round((self.stretch_ns - self.left_ns) / self.slow)

    def goes_on(self, now_ns: int, stretch_ns: int) -> None:
        """A stretch is over; the next one is so long, at the sequences' own pace."""
        self.began_ns = self.since_ns = now_ns
        self.left_ns = self.stretch_ns = round(stretch_ns * self.slow)

    def shorten(self, stretch_ns: int) -> None:
        """The present stretch is only so long, as brought to now."""
        passed_ns = self.stretch_ns - self.left_ns
        self.stretch_ns = round(stretch_ns * self.slow)
        self.left_ns = max(0, self.stretch_ns - passed_ns)


class SimLane:
    """One lane. Works go from ``inbox`` to ``launched`` (packed by the lane's thread, one at a time) to ``running``, in
    order; at most ``depth`` are launched or running. The world alone changes it."""

    def __init__(self, name: str, device: str, hang_ns: int, depth: int = 1, copy: bool = False) -> None:
        self.name = name
        self.device = device
        self.copy = copy
        self.hang_ns = hang_ns
        self.depth = depth
        self.inbox: Deque[Any] = deque()
        self.launched: Deque[Tuple[Any, int]] = deque()  # with the time when each is packed
        self.running: Optional[Running] = None
        self.packed_ns = 0  # when the thread has packed the latest
        self.due_ns = 0  # when what was launched is expected to be over
        self.epoch = 0  # an end that was foretold in an earlier one does not come
        self.losses = 0  # times that it was lost
        self.up = True
        self.speed = 1.0
        self.hangs = 0.0  # the next work hangs, so much longer (0 = it does not)
        self.poked_ns = -1
        self.busy_ns = 0
        self.works = 0
        self.awake_ns = 0  # when its thread runs, having been woken for a work
        self.free_ns = 0  # when the last work was over

    @property
    def launched_count(self) -> int:
        """Works that were launched and are not finished."""
        return len(self.launched) + (self.running is not None)

    def launch(self, action: Any, now_ns: int, pack_ns: int) -> None:
        """The thread takes a work, which is packed so much later."""
        begins_ns = max(now_ns, self.due_ns) if self.launched_count else now_ns
        self.due_ns = begins_ns + (0 if isinstance(action, EvictModel) else action.expected_ns)
        self.packed_ns = now_ns + pack_ns
        self.launched.append((action, self.packed_ns))

    def end(self, now_ns: int) -> None:
        """End the running batch."""
        if self.running is not None:
            self.busy_ns += now_ns - self.running.started_ns
        self.running = None

    def clear(self, now_ns: int) -> List[Any]:
        """The lane is lost: everything that it had, what ran first."""
        lost = ([self.running.action] if self.running is not None else []) + [action for action, _ in self.launched]
        lost += self.inbox
        self.end(now_ns)
        self.launched.clear()
        self.inbox.clear()
        return lost


def repaced(
    lanes: Sequence[SimLane],
    contention: float,
    now_ns: int,
    host_pace: Optional[Callable[[SimLane], float]] = None,
    paces: Optional[Mapping[str, float]] = None,
) -> List[Tuple[SimLane, int]]:
    """The lanes of one device whose works end at another time than was known, and when. With n works at a time each
    takes ``1 + (n - 1) * (contention - 1)`` times as long as alone, and what the interpreter lock and shared cores
    (``host_pace``) and the device (``paces``, by lane: its clock, and cores that others use) cost besides."""
    busy = [lane for lane in lanes if lane.running is not None]
    found = []
    for lane in busy:
        running = lane.running
        assert running is not None
        pace = (1.0 + (len(busy) - 1) * (contention - 1.0)) * (paces.get(lane.name, 1.0) if paces else 1.0)
        if host_pace is not None and (running.share or running.shares_cores):
            pace *= host_pace(lane)
        if running.pace == pace or running.over:
            continue
        if running.pace:
            lane.epoch += 1
        running.brought_to(now_ns)
        running.pace = pace
        found.append((lane, now_ns + round(running.left_ns * pace)))
    return found


def held_up(lanes: Sequence[SimLane], now_ns: int, held_ns: int) -> List[Tuple[SimLane, int]]:
    """The lanes whose functions end later, and when: another thread holds the interpreter lock for ``held_ns``."""
    found = []
    for lane in lanes:
        running = lane.running
        if running is None or not running.share or running.over:
            continue
        running.brought_to(now_ns)
        running.left_ns += round(running.share * held_ns / running.pace)
        lane.epoch += 1
        found.append((lane, now_ns + round(running.left_ns * running.pace)))
    return found


class Usage:
    """The usage of one run. ``batches`` counts them by (model, jobs); ``spent_ns`` is each request's share of its
    batches, by lane. Probes count for no request."""

    def __init__(self) -> None:
        self.batches: Counter[Tuple[str, int]] = Counter()
        self.spent_ns: DefaultDict[int, Dict[str, float]] = defaultdict(dict)

    def ran(self, lane: str, action: Any, took_ns: int) -> None:
        """A work of a lane is over, whether well or not."""
        if not isinstance(action, RunBatch) or action.probe:
            return
        self.batches[action.model, len(action.jobs)] += 1
        self.charge(lane, action.jobs, took_ns)

    def charge(self, lane: str, jobs: Sequence[Any], took_ns: int) -> None:
        """These jobs had the lane together for so long."""
        for job in jobs:
            spent = self.spent_ns[job.request_id]
            spent[lane] = spent.get(lane, 0.0) + took_ns / len(jobs)
