"""RT-LM's offline profile (Section IV): eta, phi and C of a model on a lane, from its latency tables.

``tau`` is no property of the device: it is a quantile of predicted lengths (``sched/published/rtlm/offload.py``).
Pure.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

SATURATED: Final = 0.98
"""A batch size saturates the device if it brings at least this share of the tokens per second of the best size."""


class Constants(NamedTuple):
    """``batch`` (C): the smallest size that saturates the device. ``step_ns`` (eta): one output token of each of so
    many answers. ``prefill_ns`` (phi): one input token, where it was measured, else 0."""

    batch: int
    step_ns: int
    prefill_ns: int


def saturating(times_ns: Mapping[int, int]) -> int:
    """The smallest batch size whose throughput is that of the best size, or nearly so (:data:`SATURATED`)."""
    best = max([size / max(1, time_ns) for size, time_ns in times_ns.items()])
    return min([size for size, time_ns in times_ns.items() if size / max(1, time_ns) >= SATURATED * best])


def constants_of(step_times_ns: Mapping[int, int], prefill_ns: int = 0, prefill_tokens: int = 0) -> Constants:
    """The profile of a model: step times by batch size; a prefill of so many tokens in all took ``prefill_ns``."""
    batch = saturating(step_times_ns)
    return Constants(batch, step_times_ns[batch], prefill_ns // prefill_tokens if prefill_tokens else 0)
