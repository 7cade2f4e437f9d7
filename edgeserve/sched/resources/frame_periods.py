"""When the next request of a stream is expected, learnt per stream from the time between its last requests.

With ``stream = "newest_wins"`` the next request of a stream (a camera's next frame) ends the one before, if that has
not begun. So a frame must begin before the next one comes, whatever its own deadline is. Of a stream whose requests
come irregularly, or of which too little is known, nothing is expected: its requests count with their deadlines alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import List, Tuple

from edgeserve.sched.requests.states import Expectation
from edgeserve.units import NS_PER_MS

GAPS_LEN = 16
"""Gaps remembered per stream: about a second of a camera, so that another frame rate is learnt within one."""

GAPS_MIN = 4
"""Gaps before anything is expected."""

OUTLIERS = 8
"""One of so many gaps, the shortest and the longest, counts as an exception: a frame lost on the way, or a pause."""

IRREGULAR = 1.5
"""A stream whose longest usual gap is more than this times its shortest is irregular."""

MARGIN = 16
"""The earliest is a sixteenth of a gap before the shortest usual one: the work ahead may take longer than expected."""

STREAMS_MAX = 4096
"""Streams remembered: a client that makes up stream ids must not fill the memory."""

SILENT_NS = 60_000 * NS_PER_MS
"""A stream that was silent for so long is forgotten: clients that come and go leave streams behind."""


class FramePeriods:
    """The last gaps of each stream, least recently used streams first. Knows no clock and no deadline."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: OrderedDict[Tuple[str, str], Tuple[int, List[int]]] = OrderedDict()

    def arrived(self, key: Tuple[str, str], at_ns: int) -> Expectation | None:
        """A request of a stream came: when its next one is expected, or None. O(:data:`GAPS_LEN`)."""
        known = self._streams.pop(key, None)
        if known is None or at_ns - known[0] > SILENT_NS:
            self._streams[key] = (at_ns, [])
            self._forget(at_ns)
            return None
        gaps_ns = known[1]
        gaps_ns.append(at_ns - known[0])
        if len(gaps_ns) > GAPS_LEN:
            del gaps_ns[0]
        self._streams[key] = (at_ns, gaps_ns)
        if len(gaps_ns) < GAPS_MIN:
            return None
        ordered = sorted(gaps_ns)
        apart = len(ordered) // OUTLIERS
        earliest_ns, latest_ns = ordered[apart], ordered[-1 - apart]
        if earliest_ns <= 0 or latest_ns > IRREGULAR * earliest_ns:
            return None
        return at_ns + earliest_ns - earliest_ns // MARGIN, at_ns + latest_ns

    def _forget(self, now_ns: int) -> None:
        """A stream was added: forget up to two that are silent, so that their number falls while streams come and go,
        or the oldest where there are too many."""
        streams = self._streams
        for _ in range(2):
            oldest = next(iter(streams))
            if len(streams) <= STREAMS_MAX and now_ns - streams[oldest][0] <= SILENT_NS:
                break
            del streams[oldest]
