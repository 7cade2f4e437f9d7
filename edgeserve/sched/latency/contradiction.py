"""First estimates that served batches contradict: a profile of another machine, a wrong ``expected``.

Estimates follow the served batches, but fall back to their beginning after a pause and at each start. Decides nothing.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from edgeserve.config.profile_record import Timing
from edgeserve.sched.latency.window import Window
from edgeserve.units import NS_PER_MS, PPM

EXPECTED, PROFILE, START, ASSUMED = "expected", "profile", "start-up", "assumed"
"""The basis of a first estimate: ``[model.NAME.expected]``, a profile, a few runs at start-up, or nothing (an input to
try the model with was missing)."""

BATCHES = 10
"""Batches of which more than half must say the same."""

SERVED_EVERY_NS = 100 * NS_PER_MS
"""One batch in so long may contradict the profile, so that ten of them are no hiccup of a few milliseconds."""

CONTRADICTS_PPM = 1_500_000
"""Times that differ by less than this factor contradict nothing: other load does as much."""

CONTRADICTS_NS = NS_PER_MS // 10
"""Nor do times that differ by less than this: a thread that wakes up late takes as much."""


class Contradiction(NamedTuple):
    """Batches of ``size`` take ``served_ns`` and were believed to take ``began_ns`` (both of standard work at speed 1),
    as most of the ``batches`` that were looked at. ``source`` says who believed that."""

    source: str
    size: int
    began_ns: int
    served_ns: int
    batches: int


class ServedTimes:
    """The latest served batches of a model on a lane beside its first estimates. The next one is looked at from
    ``due_ns`` on."""

    def __init__(self, seeds: Mapping[int, Timing], sources: Mapping[int, str]) -> None:
        self.due_ns = 0
        self._seeds = seeds
        self._sources = sources
        self._times_ppm = Window(BATCHES)  # measured over profiled
        self._size = 0

    def add(self, now_ns: int, size: int, duration_ns: int) -> int:
        """A batch of standard work took so long at speed 1. Returns how many times its first estimate, in
        millionths."""
        self.due_ns, self._size = now_ns + SERVED_EVERY_NS, size
        times_ppm = duration_ns * PPM // max(1, self._seeds[size].median_ns)
        self._times_ppm.add(times_ppm)
        return times_ppm

    def contradiction(self) -> Contradiction | None:
        """The first estimate that more than half of the latest batches contradict."""
        size, times = self._size, self._times_ppm
        if len(times.values) < BATCHES or self.source(size) == ASSUMED:
            return None
        ratio_ppm = times.quantile(0.5)  # more than half are at least as slow
        if ratio_ppm <= CONTRADICTS_PPM:
            ratio_ppm = times.quantile(0.6)  # more than half are at least as fast
            if ratio_ppm * CONTRADICTS_PPM >= PPM * PPM:
                return None
        began_ns = self._seeds[size].median_ns
        served_ns = began_ns * ratio_ppm // PPM
        if abs(served_ns - began_ns) < CONTRADICTS_NS:
            return None
        return Contradiction(self.source(size), size, began_ns, served_ns, BATCHES)

    def source(self, size: int) -> str:
        """The basis of the first estimates of a size."""
        return self._sources.get(size, PROFILE if self._seeds[size].count else EXPECTED)
