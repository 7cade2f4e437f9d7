"""Counts of CUDA graphs, for ``stats`` and profiles: what a lane's batches of one model ran as."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Dict, Iterable


@dataclass
class GraphCounts:
    """Graphs ``captured`` and ``dropped``; batches ``replayed`` by a graph, and ``enqueued`` kernel by kernel. Written
    by the lane's thread alone."""

    captured: int = 0
    dropped: int = 0
    replayed: int = 0
    enqueued: int = 0


def summed(counts: Iterable[GraphCounts]) -> Dict[str, int]:
    """The counts of several lanes together."""
    each = list(counts)
    return {field.name: sum(getattr(one, field.name) for one in each) for field in fields(GraphCounts)}
