"""Counts of a live world: per app how requests ended and how long they took, per lane how busy it was.

Everything is bounded: latencies live in a ring, reasons beyond :data:`REASONS_MAX` are counted together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from edgeserve.answers import BREAKDOWN_KEYS
from edgeserve.live.errors import label
from edgeserve.sched.protocol.actions import OUTCOMES, LatencyBreakdown, Outcome
from edgeserve.units import NS_PER_MS, ns_to_ms

LATENCIES_KEPT = 2048
"""Latest completed requests per app that percentiles are taken of: a p99 of twenty values above it."""

REASONS_MAX = 64
"""Distinct reasons counted per app; a policy that makes one up for every request must not grow the table without
end."""

OTHER_REASONS = "(other reasons)"

PERCENTILES = (50, 90, 99)

BUCKETS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
"""Upper bounds of the latency histogram, the last bucket being without one: what metrics are made of, since percentiles
of several servers or times cannot be added up."""

_BUCKETS_NS = tuple(int(bound * NS_PER_MS) for bound in BUCKETS_MS)


class AppCounts:
    """One app's counts since start."""

    def __init__(self) -> None:
        self.received = 0  # found good when they were checked: those accepted, and those refused at arrival
        self.outcomes: Dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.reasons: Dict[str, Dict[str, int]] = {}
        self.late = 0
        self._latencies_ns = array("q", bytes(8 * LATENCIES_KEPT))  # a ring: it never grows
        self._latency_sum_ns = 0
        self._buckets = [0] * (len(BUCKETS_MS) + 1)
        self._breakdown_ns = [0, 0, 0, 0]
        self._completed = 0
        self._rated = [0, 0.0, 0]  # answers with a quality, the sum of it, branches that took part
        self._variants: Dict[str, int] = {}  # answers of each variant

    def completed(self, latency_ns: int, late: bool, breakdown: LatencyBreakdown) -> None:
        self.outcomes[Outcome.COMPLETED] += 1
        self.late += late
        self._latencies_ns[self._completed % LATENCIES_KEPT] = latency_ns
        self._latency_sum_ns += latency_ns
        self._buckets[bisect_left(_BUCKETS_NS, latency_ns)] += 1
        sums = self._breakdown_ns
        sums[0] += breakdown[0]
        sums[1] += breakdown[1]
        sums[2] += breakdown[2]
        sums[3] += breakdown[3]
        self._completed += 1

    def rated(self, quality: float, branches: int, variant: str) -> None:
        """Count a completed answer whose quality is known."""
        self._rated[0] += 1
        self._rated[1] += quality
        self._rated[2] += branches
        if variant:
            self._variants[variant] = self._variants.get(variant, 0) + 1

    def ended(self, outcome: str, reason: str) -> None:
        """Anything but completed. Counted by its :func:`~edgeserve.live.errors.label`."""
        self.outcomes[outcome] += 1
        reason = label(outcome, reason)
        table = self.reasons.setdefault(outcome, {})
        if reason not in table and len(table) >= REASONS_MAX:
            reason = OTHER_REASONS
        table[reason] = table.get(reason, 0) + 1

    def table(self) -> Dict[str, Any]:
        """Plain numbers and strings, for people and for the bus."""
        count = max(1, self._completed)
        return {
            "received": self.received,
            "accepted": self.received - self.outcomes[Outcome.REJECTED],
            "refused": self.outcomes[Outcome.REJECTED],
            "open": self.received - sum(self.outcomes.values()),
            "outcomes": dict(self.outcomes),
            "reasons": {outcome: dict(table) for outcome, table in self.reasons.items()},
            "late": self.late,
            "latency_ms": percentiles_ms(self._latencies_ns[: self._completed]),
            "latency_histogram": {
                "bounds_ms": list(BUCKETS_MS),
                "counts": list(self._buckets),
                "sum_ms": ns_to_ms(self._latency_sum_ns),
            },
            "breakdown_ms": dict(
                zip(
                    BREAKDOWN_KEYS,
                    [
                        ns_to_ms(total) / count
                        for total in (*self._breakdown_ns, max(0, self._latency_sum_ns - sum(self._breakdown_ns)))
                    ],
                )
            ),
            **(
                {
                    "quality": {
                        "answers": self._rated[0],
                        "mean": self._rated[1] / self._rated[0],
                        "branches": self._rated[2] / self._rated[0],
                        **({"variants": dict(self._variants)} if self._variants else {}),
                    }
                }
                if self._rated[0]
                else {}
            ),
        }


class LaneCounts:
    """One lane's counts since start. ``in_flight``: by its id, each work that it has not answered, oldest first: when
    it was given to the lane, and the action. ``probes`` are counted among the works and jobs too: the lane's time went
    into them. With ``room`` works in flight the lane starts nothing that comes; 0 for a copy lane, which runs no
    batches."""

    def __init__(self, room: int = 1) -> None:
        self.room = room
        self.works = 0
        self.jobs = 0
        self.probes = 0
        self.busy_ns = 0
        self.refused = 0
        self.failed = 0
        self.in_flight: Dict[int, Tuple[int, Any]] = {}
        self.up = True
        self.replaced = 0  # times that another thread took its place, because it hung

    def is_stuck(self, now_ns: int, hang_ns: int) -> bool:
        """True if the lane is down, or has not answered a work for longer than ``hang_ns``."""
        return not self.up or self.oldest_ns(now_ns) > hang_ns

    def oldest_ns(self, now_ns: int) -> int:
        """The time that the oldest batch has been on the lane; 0 without one."""
        return now_ns - next(iter(self.in_flight.values()))[0] if self.in_flight else 0

    def table(self, now_ns: int, started_ns: int, hang_ns: int) -> Dict[str, Any]:
        oldest_ns = self.oldest_ns(now_ns)
        return {
            "works": self.works,
            "jobs": self.jobs,
            "probes": self.probes,
            "busy": self.busy_ns / max(1, now_ns - started_ns),
            "refused": self.refused,
            "failed": self.failed,
            "replaced": self.replaced,
            "in_flight": len(self.in_flight),
            "oldest_ms": ns_to_ms(oldest_ns),
            "state": self._state(oldest_ns, hang_ns),
        }

    def _state(self, oldest_ns: int, hang_ns: int) -> str:
        if not self.up:
            return "down"
        return "hangs" if hang_ns and oldest_ns > hang_ns else "up"


def energy_of(app: str, energy: Mapping[str, Any], counts: AppCounts) -> Dict[str, float]:
    """The joules of an app, in all and per answer in time; empty where no power is reported. ``energy`` is what the
    scheduler tells per device."""
    if not energy:
        return {}
    used_j = sum([device["energy_j_by_app"].get(app, 0.0) for device in energy.values()], 0.0)
    in_time = counts.outcomes[Outcome.COMPLETED] - counts.late
    return {"energy_j": round(used_j, 3), "joules_per_answer": round(used_j / in_time, 6) if in_time else 0.0}


def percentiles_ms(values_ns: Iterable[int]) -> Dict[str, float]:
    """``{"p50": ..., "p90": ..., "p99": ..., "max": ...}`` in ms by the nearest rank; empty without values."""
    ordered: List[int] = sorted(values_ns)
    if not ordered:
        return {}
    table = {
        f"p{percent}": ordered[max(0, -(-percent * len(ordered) // 100) - 1)] / NS_PER_MS for percent in PERCENTILES
    }
    table["max"] = ordered[-1] / NS_PER_MS
    return table
