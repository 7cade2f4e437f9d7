"""The share of the processor time that a lane's threads would use and that is left to them, by a monitor's reports.

What the lanes of the device used of the reported load is known from their works. Other lanes (host functions above all)
keep all that they use, and a lane that does not yield to them (``nice`` 0) gets nothing unless its threads fit beside
theirs. Of what other programs use, a lane gets what fair scheduling gives it.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import NS_PER_S

SHARE_MIN = 0.05
"""No lane is believed to have less than this share: a number to divide by."""

WORKS_SHARE = 0.05
"""A lane that used more than this share of its threads' time counts as one that works."""

KEEP = 0.5
"""The weight that the mean of readings keeps at each new one: a second may hold a pulse that an answer of ten seconds
does not mind."""

STALE_NS = 20 * NS_PER_S
"""A load that was told so long ago says nothing any more, unless reports come so rarely:"""

STALE_GAPS = 4
"""it is kept for so many times as long as passed between the last two reports."""

NICE_STEP = 1.25
"""Each level of ``nice`` divides the weight of a thread by this (Linux, ``sched(7)``)."""


def weight_of(nice: int) -> float:
    """The weight of a thread beside one of nice 0."""
    return float(NICE_STEP**-nice)


class CpuShare:
    """One device whose lanes are threads of a processor. :meth:`reported` alone changes it."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes: List[Lane] = list(lanes)
        self._worked_ns: Dict[str, int] = {}  # of each lane, when the load was told last
        self._used: Dict[str, float] = dict.fromkeys([lane.name for lane in lanes], 0.0)  # cores, between two reports
        self._others = 0.0  # cores that other programs used
        self._cores = 0
        self._told_ns = 0
        self._gap_ns = 0
        self._known = False

    def reported(self, now_ns: int, load: float, cores: int) -> None:
        """A monitor says that this share of so many cores was busy since its last report. The first report only says
        when counting begins: what lanes did before is not known."""
        before, gap_ns = self._worked_ns, now_ns - self._told_ns
        self._worked_ns = {lane.name: lane.worked_ns(now_ns) for lane in self._lanes}
        self._told_ns, self._cores = now_ns, cores
        if not before or gap_ns <= 0:
            return
        keep = KEEP if self._known and not self._is_stale(gap_ns) else 0.0
        left = load * cores
        for lane in self._lanes:
            used = min(left, lane.threads * min(1.0, (self._worked_ns[lane.name] - before[lane.name]) / gap_ns))
            left -= used
            self._used[lane.name] = keep * self._used[lane.name] + (1.0 - keep) * used
        self._others = keep * self._others + (1.0 - keep) * left
        self._gap_ns, self._known = gap_ns, True

    def share(self, lane: Lane, now_ns: int) -> float:
        """The share of the time of a lane's threads that they would get, from :data:`SHARE_MIN` to 1.0; 1.0 where
        nothing was told lately."""
        if not self._known or self._is_stale(now_ns - self._told_ns):
            return 1.0
        used = self._used
        beside = [
            other for other in self._lanes if other is not lane and used[other.name] > WORKS_SHARE * other.threads
        ]
        if beside and not lane.nice and lane.threads + sum([other.threads for other in beside]) > self._cores:
            return SHARE_MIN
        cores = float(self._cores) - sum([used[other.name] for other in beside], 0.0)
        threads, others = lane.threads, self._others
        mine = threads * weight_of(lane.nice)
        got = max(cores - others, cores * mine / (mine + others))
        return min(1.0, max(SHARE_MIN, got / threads))

    def _is_stale(self, age_ns: int) -> bool:
        return age_ns > max(STALE_NS, STALE_GAPS * self._gap_ns)
