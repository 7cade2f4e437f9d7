"""What a cohort costs: the batches it really needs, module by module, and when it would end (``pard_local``).

Pure functions of learnt times; the margin for noise is added by whoever compares an end with a deadline.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.model import ModelLatency
from edgeserve.sched.policies.pard_local.remaining_work import MILLI

PPM = 1_000_000

CALM = 16
"""A model's pace follows what was last measured by this part of the difference. A cohort is a sum of stages, whose
errors cancel; the shared estimate looks back on ten batches, and its own swing would size the cohorts."""

BIAS_FROM, PLACE_LEN = 8, 64
"""How a size compares with the profile is the mean of its last batches, beside so many that agreed with the profile.
The shared estimate follows each batch by the same step; of 32 sizes with 10 % of noise some then always seem 5 % too
fast, the number of a cohort was chosen among those, and that half of all that was lost to noise."""

JUMP = 4
"""A time that changed by more than this part (heat, another clock) is followed at once."""

TOLD_LEN = 10
"""Batches that the pace looks back on where jobs tell their work: as many as the shared estimate does."""

COUNT_MAX = 4096
"""Jobs of one node that are batch_cost exactly; more are counted in proportion."""


class BatchCost:
    """How one model on one lane serves n jobs fastest: the best batch_cost into batches, and the first batch of it.

    Profiles are general: a batch of 8 may take longer than two of 4 (a CPU), or 32 no longer than 17 (padding). The
    table is worked out as far as it was asked for, O(n * sizes), and anew when a time has changed. A time is the
    profile's, times the pace of the model, times the place of the size; :meth:`refresh` and :meth:`saw` follow them.
    """

    __slots__ = ("latency", "each_ns", "_pace_ppm", "_declared", "_size_bias", "_times", "_best", "_first", "_squares",
                 "_surprise_ppm", "_seen")

    def __init__(self, latency: ModelLatency) -> None:
        self.latency = latency
        self.each_ns = 0  # what a usual job adds to a batch now: the part of the smallest batch's time that grows
        self._pace_ppm = 0
        self._declared: Deque[int] = deque(maxlen=TOLD_LEN)  # paces of the last batches, once jobs tell their work
        self._size_bias: Dict[int, Tuple[int, int]] = {}  # size -> (place in ppm, batches seen)
        self._times: List[Tuple[int, int]] = []
        self._best: List[int] = [0]
        self._first: List[int] = [0]
        self._squares: List[int] = [0]  # sums of the squared times of the batches of the best batch_cost, in us^2
        self._surprise_ppm = 0  # mean squared share by which a batch took more or less than was believed
        self._seen = 0

    def observe(self, size: int, took_ns: int, over_milli: int | None = None) -> None:
        """A batch of this size was measured, whose jobs are so much more work than as many usual ones (None: none of
        them tells). O(sizes)."""
        place, count = self._size_bias.get(size, (PPM, 0))
        if over_milli is not None:  # what usual ones would have taken
            usual_ns = max(1, self.latency.profiled_ns(size))
            told_ns = usual_ns + self._each_profiled_ns() * over_milli // MILLI
            if told_ns * MILLI < usual_ns:
                return  # "no work": how long that took tells nothing of any work
            took_ns = took_ns * usual_ns // told_ns
        if over_milli is not None or self._declared:
            self._declared.append(took_ns * PPM // max(1, self.latency.profiled_ns(size)) * PPM // place)
        self._follow()
        ratio = took_ns * PPM // max(1, self.latency.profiled_ns(size)) * PPM // self._pace_ppm
        surprise = min(2 * PPM, max(PPM // 2, ratio)) - place
        self._seen = min(self._seen + 1, PLACE_LEN)
        squared_ppm = (surprise * PPM // place) ** 2 // PPM
        self._surprise_ppm += (squared_ppm - self._surprise_ppm) // self._seen
        count = min(count + 1, PLACE_LEN)
        self._size_bias[size] = (place + surprise // (count + BIAS_FROM), count)
        self._set()

    def refresh(self) -> None:
        """Follow what the shared estimate says now. O(sizes)."""
        self._follow()
        self._set()

    def _follow(self) -> None:
        """The pace is the middle of what all sizes seem to need beside the profile. Where jobs tell their work, it is
        the middle of the last batches for usual ones: the shared estimate takes one request's work for the pace."""
        latency, old = self.latency, self._pace_ppm
        paces = sorted(self._declared or [latency.typical_ns(size) * PPM // max(1, latency.profiled_ns(size))
                                      for size in latency.sizes])
        now = paces[len(paces) // 2]
        change = now - old
        if abs(change) * JUMP <= old:
            now = old + (change // CALM if change > 0 else -(-change // CALM))
        self._pace_ppm = max(1, now)

    def _set(self) -> None:
        times = [(size, max(1, self.latency.profiled_ns(size) * self._pace_ppm // PPM
                            * self._size_bias.get(size, (PPM, 0))[0] // PPM)) for size in self.latency.sizes]
        if times != self._times:
            self._times = times
            self.each_ns = self._each_profiled_ns() * self._pace_ppm // PPM
            self._best, self._first, self._squares = [0], [0], [0]

    def time_ns(self, milli: int, over_milli: int = 0) -> int:
        """Lane time of a number of jobs in thousandths, which are so much more work than as many usual ones; between
        whole numbers on a straight pipeline."""
        whole, rest = divmod(milli, MILLI)
        if whole >= COUNT_MAX:
            time_ns = self._of(COUNT_MAX) * milli // (COUNT_MAX * MILLI)
        else:
            time_ns = self._of(whole)
            if rest:
                time_ns += (self._of(whole + 1) - time_ns) * rest // MILLI
        return max(1, time_ns + self.each_ns * over_milli // MILLI) if over_milli else time_ns

    def variance_us2(self, milli: int, over_milli: int = 0) -> int:
        """How far the lane time of these jobs may be off: the sum of the batches' variances, in square microseconds.
        Surprises of one batch say little of the next (noise; what its items need): they add up as independent ones."""
        if not self._surprise_ppm:
            return 0
        count = min(-(-milli // MILLI), COUNT_MAX)
        usual_ns = self._of(count)
        time_ns = max(1, usual_ns + self.each_ns * over_milli // MILLI)
        scale_ppm = (time_ns * PPM // usual_ns) ** 2 // PPM if over_milli and usual_ns else PPM
        return self._squares[count] * scale_ppm // PPM * self._surprise_ppm // PPM

    def _each_profiled_ns(self) -> int:
        size = self.latency.sizes[0]
        return max(0, self.latency.profiled_ns(size) - self.latency.fixed_now_ns()) // size

    def first(self, count: int) -> int:
        """Of ``count`` jobs, how many go into the first batch."""
        self._of(min(count, COUNT_MAX))
        return min(count, self._first[min(count, COUNT_MAX)])

    @property
    def is_declared(self) -> bool:
        """Whether these are the times of usual work, since jobs tell theirs: the shared estimate's are not then."""
        return bool(self._declared)

    def share_ns(self) -> int:
        """A usual job's share of a full batch."""
        return self.time_ns(self.latency.size_max * MILLI) // self.latency.size_max

    def batches(self, milli: int, over_milli: int = 0) -> List[int]:
        """The times of the batches one by one, for a forecast of what shares the lane. Work beyond the usual is spread
        over them in proportion."""
        times: List[int] = []
        count = min(-(-milli // MILLI), COUNT_MAX)
        self._of(count)
        while count > 0:
            size = self._first[count]
            times.append(self._best[count] - self._best[max(0, count - size)])
            count -= size
        if over_milli and times:
            usual_ns, more_ns = sum(times), self.each_ns * over_milli // MILLI
            times = [max(1, time_ns * (usual_ns + more_ns) // usual_ns) for time_ns in times]
        return times

    def _of(self, count: int) -> int:
        best, first, squares, times = self._best, self._first, self._squares, self._times
        while len(best) <= count:
            here = len(best)
            found, found_size = -1, 0
            for size, time_ns in times:
                total = time_ns + (best[here - size] if here > size else 0)
                if found < 0 or total <= found:
                    found, found_size = total, size
                if size >= here:
                    break  # a larger one would only hold padding
            best.append(found)
            first.append(found_size)
            last = max(0, here - found_size)
            squares.append(squares[last] + ((found - best[last]) // 1000) ** 2)
        return best[count]


class Stage(NamedTuple):
    """One module's share of a cohort: its batches, one after the other on one lane."""

    lane: str
    batches: Sequence[int]


class Schedule(NamedTuple):
    """What a cohort in flight has still to run. ``ready_ns``: when its first stage may go on; ``busy_ns``: when what
    it has on lanes is over, which its second stage waits for."""

    stages: Sequence[Stage]
    ready_ns: int
    busy_ns: int


def forecast(schedules: Sequence[Schedule], free_ns: Mapping[str, int]) -> List[int]:
    """When each schedule ends if a free lane always takes the first schedule that has something for it.

    Exact for what the policy does: batches are not interrupted, the stages of a schedule follow each other, an earlier
    schedule goes first. ``free_ns`` says when each lane is free. O(batches * schedules).
    """
    free = dict(free_ns)
    at = [schedule.ready_ns for schedule in schedules]
    place = [[0, 0] for _ in schedules]  # stage, batch
    while True:
        best: Tuple[int, int] | None = None
        for index, schedule in enumerate(schedules):
            stage = place[index][0]
            if stage < len(schedule.stages):
                starts_ns = max(at[index], free[schedule.stages[stage].lane])
                if best is None or starts_ns < best[0]:
                    best = (starts_ns, index)
        if best is None:
            return [max(at[index], schedule.busy_ns) for index, schedule in enumerate(schedules)]
        starts_ns, index = best
        schedule = schedules[index]
        here = place[index]
        stage_now = schedule.stages[here[0]]
        ends_ns = starts_ns + stage_now.batches[here[1]]
        free[stage_now.lane] = ends_ns
        here[1] += 1
        if here[1] == len(stage_now.batches):
            at[index] = max(ends_ns, schedule.busy_ns) if here[0] == 0 else ends_ns
            here[0], here[1] = here[0] + 1, 0


def one_by_one(stages: Sequence[Tuple[str, int, int]], free_ns: Mapping[str, int], from_ns: int) -> int:
    """When a cohort that shares its lanes with no other ends: :func:`forecast` in closed form. Each stage is its lane,
    its time, and when its model is resident."""
    at = from_ns
    for lane, time_ns, resident_ns in stages:
        at = max(at, free_ns[lane], resident_ns) + time_ns
    return at
