"""What the lanes' time was used for: batches by size, and the time that each request took."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, DefaultDict, Dict, Sequence, Tuple

from edgeserve.sched.protocol.actions import RunBatch


class Usage:
    """The usage of one run. ``batches`` counts them by (model, jobs); ``spent_ns`` is each request's share of its
    batches, by lane. Probes count for nobody."""

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
