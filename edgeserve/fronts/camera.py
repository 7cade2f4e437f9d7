"""Frames of a camera, a stream, a file or a test pattern to an app of a running server; its boxes to viewers.

A thread of its own reads the source; of frames that wait only the newest stays. A frame's deadline is the app's, from
when the frame was there. A camera or a stream that ends is opened again after a pause that grows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Callable, List, NamedTuple

from numpy.typing import NDArray

from edgeserve.errors import EdgeServeError
from edgeserve.fronts.detections import Box
from edgeserve.fronts.image_apps import IN_FLIGHT_MAX, IN_FLIGHT_STREAM_MAX, NEWEST_WINS, Detector, NewestWins, Tally
from edgeserve.fronts.sources import FrameSource, SourceEnded, shown
from edgeserve.units import NS_PER_S, ns_to_ms

log = logging.getLogger("edgeserve")

EARLY = 4
"""A frame counts as due this part of a gap before it is: sources do not tick exactly."""

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0
"""Between two tries to open a source: twice as long each time, until a frame came."""


class Seen(NamedTuple):
    """A frame as it was read: its number, the source's time in seconds, when it was there, uint8 [height, width, 3]."""

    number: int
    time_s: float
    at_ns: int
    pixels: NDArray[Any]


class FrameEnd(NamedTuple):
    """The end of a frame: with ``boxes``, or without an answer for a ``reason``."""

    seen: Seen
    boxes: List[Box]
    latency_ms: float
    late: bool
    reason: str


class Camera:
    """One source, asked about until it ends or ``stopped`` is set. ``look`` is called with every frame that ended; not
    with a frame that a newer one replaced. ``clock_ns`` is the host's monotonic clock."""

    def __init__(
        self,
        source: FrameSource,
        detector: Detector,
        stream: str,
        look: Callable[[FrameEnd], None],
        clock_ns: Callable[[], int],
        *,
        again: bool = False,
        rate: float = 0.0,
        frames_max: int = 0,
    ) -> None:
        self._source = source
        self._detector = detector
        self._stream = stream
        self._look = look
        self._clock_ns = clock_ns
        self._again = again
        self._gap_ns = round(NS_PER_S / rate) if rate else 0
        self._frames_max = frames_max
        self._ending = threading.Event()
        self._number = 0
        self._due_ns = 0
        self.tally = Tally()
        self.span_s = 0.0

    async def run(self, stopped: asyncio.Event) -> None:
        """Read and ask. Raises :class:`ConfigError` where the source cannot be read at all."""
        loop = asyncio.get_running_loop()
        in_flight_max = IN_FLIGHT_STREAM_MAX if self._detector.input.stream == NEWEST_WINS else IN_FLIGHT_MAX
        frames: NewestWins[Seen] = NewestWins(self._ask, in_flight_max, self.tally.reasons)
        begin_s = loop.time()

        def offer(seen: Seen) -> None:
            self.tally.sent += 1
            frames.offer(seen)

        reading = loop.run_in_executor(None, self._read, lambda seen: loop.call_soon_threadsafe(offer, seen))
        waiting: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            self._ending.set()
            await reading
            if not stopped.is_set():
                await frames.ended()
        finally:
            self._ending.set()
            waiting.cancel()
            await frames.cancel()
            self.span_s = loop.time() - begin_s

    # --- on the source's thread ---

    def _read(self, offer: Callable[[Seen], Any]) -> None:
        pause_s, base_s = PAUSE_S_MIN, 0.0
        while not self._ending.is_set():
            before, last_s, why = self._number, 0.0, "it has ended"
            try:
                for time_s, pixels in self._source.frames(self._ending):
                    last_s = time_s
                    if not self._offer(offer, base_s + time_s, pixels):
                        return
            except SourceEnded as error:
                why = str(error)
            if self._ending.is_set() or not (self._source.is_live or self._again and self._number > before):
                return
            base_s += last_s
            if not self._source.is_live:
                continue
            pause_s = PAUSE_S_MIN if self._number > before else pause_s
            log.warning("%s: %s; trying again in %g s", shown(self._source.name), why, pause_s)
            self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _offer(self, offer: Callable[[Seen], Any], time_s: float, pixels: NDArray[Any]) -> bool:
        """True if more frames are wanted."""
        now_ns = self._clock_ns()
        if self._gap_ns and now_ns < self._due_ns - self._gap_ns // EARLY:
            return not self._ending.is_set()
        self._due_ns = max(now_ns - self._gap_ns, self._due_ns or now_ns) + self._gap_ns
        self._number += 1
        offer(Seen(self._number, time_s, now_ns, pixels))
        return not self._ending.is_set() and not 0 < self._frames_max <= self._number

    # --- on the loop's ---

    async def _ask(self, seen: Seen) -> None:
        loop = asyncio.get_running_loop()
        height, width = seen.pixels.shape[:2]
        boxes: List[Box] = []
        late, reason, took_ms = False, "", 0.0
        try:
            array = await loop.run_in_executor(None, self._detector.prepared, seen.pixels)
            left_ms = self._detector.input.slo_ms - ns_to_ms(self._clock_ns() - seen.at_ns)
            if left_ms <= 0:
                self.tally.reasons["too old"] += 1
                return self._look(FrameEnd(seen, [], 0.0, False, "too old"))
            answer = await self._detector.ask(array, left_ms, self._stream)
            took_ns = self._clock_ns() - seen.at_ns
            self.tally.answer(answer, took_ns)
            late, took_ms = answer.late, ns_to_ms(took_ns)
            boxes = self._detector.found(answer.outputs, height, width)
            self.tally.boxes += len(boxes)
        except EdgeServeError as error:
            reason = self._lost(error)
        self._look(FrameEnd(seen, boxes, took_ms, late, reason))

    def _lost(self, error: EdgeServeError) -> str:
        reason = self.tally.lost(error)
        if self.tally.reasons[reason] == 1:
            log.warning("no boxes (%s): %s", reason, error)
        return reason
