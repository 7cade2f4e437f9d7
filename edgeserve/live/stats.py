"""Counts of a live world: per app how requests ended and how long they took, per lane how busy it was.

Everything is bounded: latencies live in a ring, reasons beyond :data:`REASONS_MAX` are counted together.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Sequence

from edgeserve.answers import BREAKDOWN_KEYS
from edgeserve.sched.protocol.actions import OUTCOMES, LatencyBreakdown, Outcome
from edgeserve.units import NS_PER_MS, ns_to_ms

LATENCIES_KEPT = 2048
"""Latest completed requests per app that percentiles are taken of: a p99 of twenty values above it."""

REASONS_MAX = 64
"""Distinct reasons counted per app; a reason with a number in it would otherwise grow the table without end."""

OTHER_REASONS = "(other reasons)"

PERCENTILES = (50, 90, 99)


class AppCounts:
    """One app's counts since start."""

    __slots__ = ("accepted", "outcomes", "reasons", "late", "_latencies_ns", "_breakdown_ns", "_breakdown_count")

    def __init__(self) -> None:
        self.accepted = 0  # given to the scheduler; what it rejects counts in both
        self.outcomes: Dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.reasons: Dict[str, Dict[str, int]] = {}
        self.late = 0
        self._latencies_ns: Deque[int] = deque(maxlen=LATENCIES_KEPT)
        self._breakdown_ns = [0, 0, 0, 0]
        self._breakdown_count = 0

    def completed(self, latency_ns: int, late: bool, breakdown: LatencyBreakdown) -> None:
        self.outcomes[Outcome.COMPLETED] += 1
        self.late += late
        self._latencies_ns.append(latency_ns)
        sums = self._breakdown_ns
        sums[0] += breakdown[0]
        sums[1] += breakdown[1]
        sums[2] += breakdown[2]
        sums[3] += breakdown[3]
        self._breakdown_count += 1

    def ended(self, outcome: str, reason: str) -> None:
        """Anything but completed."""
        self.outcomes[outcome] += 1
        table = self.reasons.setdefault(outcome, {})
        if reason not in table and len(table) >= REASONS_MAX:
            reason = OTHER_REASONS
        table[reason] = table.get(reason, 0) + 1

    def table(self) -> Dict[str, Any]:
        """Plain numbers and strings, for people and for the bus."""
        count = max(1, self._breakdown_count)
        return {
            "accepted": self.accepted,
            "open": self.accepted - sum(self.outcomes.values()),
            "outcomes": dict(self.outcomes),
            "reasons": {outcome: dict(table) for outcome, table in self.reasons.items()},
            "late": self.late,
            "latency_ms": percentiles_ms(self._latencies_ns),
            "breakdown_ms": {key: ns_to_ms(total) / count for key, total in zip(BREAKDOWN_KEYS, self._breakdown_ns)},
        }


class LaneCounts:
    """One lane's counts since start. ``in_flight`` holds when each work that it has not answered was given to it.
    ``probes`` are counted among the works and jobs too: the lane's time went into them."""

    __slots__ = ("works", "jobs", "probes", "busy_ns", "refused", "failed", "in_flight", "up")

    def __init__(self) -> None:
        self.works = 0
        self.jobs = 0
        self.probes = 0
        self.busy_ns = 0
        self.refused = 0
        self.failed = 0
        self.in_flight: Dict[int, int] = {}
        self.up = True

    def table(self, now_ns: int, started_ns: int, hang_ns: int) -> Dict[str, Any]:
        oldest_ns = now_ns - min(self.in_flight.values()) if self.in_flight else 0
        return {"works": self.works, "jobs": self.jobs, "probes": self.probes,
                "busy": self.busy_ns / max(1, now_ns - started_ns),
                "refused": self.refused, "failed": self.failed, "in_flight": len(self.in_flight),
                "oldest_ms": ns_to_ms(oldest_ns), "state": self._state(oldest_ns, hang_ns)}

    def _state(self, oldest_ns: int, hang_ns: int) -> str:
        if not self.up:
            return "down"
        return "hangs" if hang_ns and oldest_ns > hang_ns else "up"


def percentiles_ms(values_ns: Iterable[int], percentiles: Sequence[int] = PERCENTILES) -> Dict[str, float]:
    """``{"p50": ..., "p90": ..., "p99": ..., "max": ...}`` in ms by the nearest rank; empty without values."""
    ordered: List[int] = sorted(values_ns)
    if not ordered:
        return {}
    table = {f"p{percent}": ordered[max(0, -(-percent * len(ordered) // 100) - 1)] / NS_PER_MS
             for percent in percentiles}
    table["max"] = ordered[-1] / NS_PER_MS
    return table
