"""Counts of CUDA graphs, for ``stats`` and profiles: what a lane's batches of one model ran as."""

from __future__ import annotations

from typing import Dict, Iterable


class GraphCounts:
    """Graphs ``captured`` and ``dropped``; batches ``replayed`` by a graph, and ``enqueued`` kernel by kernel. Written
    by the lane's thread alone."""

    def __init__(self) -> None:
        self.captured = self.dropped = self.replayed = self.enqueued = 0


def summed(counts: Iterable[GraphCounts]) -> Dict[str, int]:
    """The counts of several lanes together."""
    each = list(counts)
    return {name: sum(getattr(one, name) for one in each) for name in GraphCounts.__slots__}
