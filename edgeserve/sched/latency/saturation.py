"""The batch of a language model that saturates a lane (RT-LM, Section IV: C of its offline profile)."""

from __future__ import annotations

from typing import Final, Mapping

SATURATED: Final = 0.98
"""A batch size saturates the lane if it brings at least this share of the steps per second of the best size."""


def saturating(times_ns: Mapping[int, int]) -> int:
    """The smallest batch size whose throughput is that of the best size, or nearly so (:data:`SATURATED`)."""
    best = max([size / max(1, time_ns) for size, time_ns in times_ns.items()])
    return min([size for size, time_ns in times_ns.items() if size / max(1, time_ns) >= SATURATED * best])
