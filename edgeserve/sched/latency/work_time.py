"""The time of any amount of work on a lane: the best split of jobs into batches, and the addition by more work than
usual.

Sums of batches, whose errors cancel: they follow the slowdown of the last ten batches slowly, since its own swing would
decide how many jobs go together.
"""

from __future__ import annotations

from typing import List, Mapping, Tuple

from edgeserve.sched.latency.split import COUNT_MAX, BestSplit
from edgeserve.sched.requests.work import MILLI
from edgeserve.units import PPM

CALM = 16
"""The slowdown is followed by this part of the difference."""

JUMP = 4
"""A slowdown that changed by more than this part (heat, another clock) is followed at once."""


class WorkTime:
    """The times in which one model on one lane serves any number of jobs, counted in standard ones: work of 1.0.

    ``BatchTime`` alone changes it. ``each_ns`` is the time that a standard job adds to a batch now; ``is_declared``
    says that jobs declare their work, so that these times differ from the times of batches.
    """

    def __init__(self) -> None:
        self.split = BestSplit()
        self.each_ns = 0
        self.is_declared = False
        self._slowdown_ppm = 0

    def follow(self, slowdown_ppm: int, standard_ns: Mapping[int, int], each_ns: int, speed: float) -> None:
        """Batches take so many times their standard times now; a job adds ``each_ns`` to these."""
        change = slowdown_ppm - self._slowdown_ppm
        if abs(change) * JUMP <= self._slowdown_ppm:
            change = change // CALM if change > 0 else -(-change // CALM)
        self._slowdown_ppm += change
        now_ppm = round(self._slowdown_ppm / speed)
        times = [(size, max(1, time_ns * now_ppm // PPM)) for size, time_ns in standard_ns.items()]
        if times != self.split.times:
            self.split.set_times(times)
            self.each_ns = each_ns * now_ppm // PPM

    def time_ns(self, milli: int, over_milli: int = 0) -> int:
        """Lane time of a number of jobs in thousandths, which are so much more work than as many standard ones; between
        whole numbers on a straight line."""
        whole, rest = divmod(milli, MILLI)
        split = self.split
        best_ns = split.best_ns
        if whole + (rest > 0) < len(best_ns) <= COUNT_MAX:  # the table is long enough: asked for most often
            time_ns = best_ns[whole]
            if rest:
                time_ns += (best_ns[whole + 1] - time_ns) * rest // MILLI
        elif whole >= COUNT_MAX:
            time_ns = split.time_ns(COUNT_MAX) * milli // (COUNT_MAX * MILLI)
        else:
            time_ns = split.time_ns(whole)
            if rest:
                time_ns += (split.time_ns(whole + 1) - time_ns) * rest // MILLI
        return max(1, time_ns + self.each_ns * over_milli // MILLI) if over_milli else time_ns

    def batches(self, milli: int, over_milli: int = 0) -> List[Tuple[int, int]]:
        """(jobs, time) of the batches one by one, for a forecast of what shares the lane. Work beyond the standard is
        spread over them in proportion."""
        found = self.split.batches(-(-milli // MILLI))
        if over_milli and found:
            usual_ns, more_ns = sum([time_ns for _, time_ns in found]), self.each_ns * over_milli // MILLI
            found = [(jobs, max(1, time_ns * (usual_ns + more_ns) // usual_ns)) for jobs, time_ns in found]
        return found
