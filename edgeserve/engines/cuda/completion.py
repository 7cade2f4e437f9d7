"""When a batch on a stream is over, and when the device ran it, without a thread that blocks in CUDA.

Works with marks of any library: an :class:`~edgeserve.engines.cuda.device.Event`, or one
of torch's. CUDA has no wait with a time limit, so a wait asks the event in intervals that grow with the time waited.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Generic, List, Optional, Protocol, Tuple, TypeVar

from edgeserve.engines.base import WAIT_S_MAX, Pending, Result
from edgeserve.units import NS_PER_MS

INTERVAL_S_MIN = 50e-6
INTERVAL_S_MAX = 500e-6
"""Bounds on the interval between two looks at an event. A look and a sleep cost about 20 us of a core."""

INTERVAL_SHARE = 1 / 32
"""An interval as a share of the time waited so far: the end of a batch is noticed that much later at most."""


class Mark(Protocol):
    """A place in a stream that the device passes."""

    def done(self) -> bool:
        """True if the device has passed it."""


MarkT = TypeVar("MarkT", bound=Mark)


@dataclass(eq=False)
class Span(Generic[MarkT]):
    """One batch on a stream: marks before and after it, and when the host launched it."""

    start: MarkT
    end: MarkT
    launched_ns: int
    idle: bool


class StreamClock(Generic[MarkT]):
    """The device's times of the batches of one stream, on the host's clock.

    The device tells differences only. A batch that is launched while no other is in flight begins when it is launched;
    each one behind it begins so much later as the device says. So the two clocks are compared again each time the
    stream runs empty. Marks are made by ``make`` and used again. One thread asks it, the lane's; batches end in the
    order in which they were begun.
    """

    def __init__(
        self, make: Callable[[], MarkT], elapsed_ms: Callable[[MarkT, MarkT], float], clock_ns: Callable[[], int]
    ) -> None:
        self._make = make
        self._elapsed_ms = elapsed_ms
        self._clock_ns = clock_ns
        self._spare: List[MarkT] = []
        self._failed: List[MarkT] = []  # of batches that failed: the device may still be to pass them
        self._in_flight = 0
        self._last: Optional[MarkT] = None  # the end of the last batch whose times are known, and when that was
        self._last_ns = 0

    def begin(self, record: Callable[[MarkT], None]) -> Span[MarkT]:
        """Begin the span of a batch before it is enqueued: ``record`` enqueues a mark."""
        launched_ns = self._clock_ns()
        start, end = self._mark(), self._mark()
        record(start)
        self._in_flight += 1
        return Span(start, end, launched_ns, self._in_flight == 1)

    def drop(self, span: Span[MarkT]) -> None:
        """Drop the span of a failed batch: its times are not used."""
        self._in_flight -= 1
        self._failed += [span.start, span.end]
        self._forget()

    def times(self, span: Span[MarkT]) -> Tuple[int, int]:
        """When the device began the batch and when it ended it. Asked once, when it is over."""
        now_ns = self._clock_ns()
        length_ns = self._between_ns(span.start, span.end)
        if span.idle:
            started_ns = span.launched_ns
        elif self._last is not None:
            started_ns = self._last_ns + self._between_ns(self._last, span.start)
        else:
            started_ns = now_ns - length_ns
        # A batch neither begins before it was launched nor ends after it was seen to be over.
        started_ns = max(min(max(started_ns, span.launched_ns), now_ns - length_ns), self._last_ns)
        finished_ns = max(min(started_ns + length_ns, now_ns), started_ns)
        self._in_flight -= 1
        self._forget()
        self._spare.append(span.start)
        self._last, self._last_ns = span.end, finished_ns
        return started_ns, finished_ns

    def _forget(self) -> None:
        if self._last is not None:
            self._spare.append(self._last)
            self._last = None

    def _mark(self) -> MarkT:
        if not self._spare and self._failed and self._failed[0].done():
            self._spare.append(self._failed.pop(0))
        return self._spare.pop() if self._spare else self._make()

    def _between_ns(self, start: MarkT, end: MarkT) -> int:
        return max(0, int(self._elapsed_ms(start, end) * NS_PER_MS))


class DevicePending(Pending, Generic[MarkT]):
    """A batch that a stream runs: over when its last mark is passed. ``finish`` makes the results; ``fail`` turns what
    CUDA raised into the model's error; ``current`` makes the device's context current while CUDA is asked."""

    def __init__(
        self,
        clock: StreamClock[MarkT],
        span: Span[MarkT],
        finish: Callable[[], List[Result]],
        fail: Callable[[Exception], Exception],
        current: Callable[[], ContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._current = current
        self._clock = clock
        self._span = span
        self._finish: Optional[Callable[[], List[Result]]] = finish
        self._fail = fail
        self._error: Optional[Exception] = None
        self._over = False
        self._times: Optional[Tuple[int, int]] = None

    def done(self) -> bool:
        if self._over:
            return True
        try:
            with self._current():
                if not self._span.end.done():
                    return False
                self._times = self._clock.times(self._span)
        except Exception as error:  # noqa: BLE001 each library raises its own; result() tells which model it was
            self._error = self._fail(error)
            self._clock.drop(self._span)
        self._over = True
        return True

    def wait(self, timeout_s: float) -> bool:
        waited_s = 0.0
        while not self.done():
            left_s = timeout_s - waited_s
            if left_s <= 0:
                return False
            interval_s = min(max(waited_s * INTERVAL_SHARE, INTERVAL_S_MIN), INTERVAL_S_MAX, left_s)
            _SLEEP.wait(interval_s)
            waited_s += interval_s
        return True

    def result(self) -> List[Result]:
        while not self.wait(WAIT_S_MAX):
            pass
        finish, self._finish = self._finish, None
        if self._error is not None:
            raise self._error
        assert finish is not None, "the result of a batch is asked once"
        try:
            with self._current():
                return finish()
        except Exception as error:
            raise self._fail(error) from error

    def times(self) -> Optional[Tuple[int, int]]:
        return self._times


_SLEEP = threading.Event()  # never set: waiting for it is a sleep without a clock
