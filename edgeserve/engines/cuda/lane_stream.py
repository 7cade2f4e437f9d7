"""The stream of a lane: one for all its sessions, of any engine: a lane's batches run one after the other."""

from __future__ import annotations

from typing import Callable, ContextManager, Optional, Tuple

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.cuda.completion import StreamClock
from edgeserve.engines.cuda.device import CudaDevice, CudaStream, Event
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.errors import EngineError

NAME = "cuda"
"""The key of a lane's stream in ``LaneInfo.common``."""


class LaneStream:
    """A stream with the clock of its batches. ``handle`` is CUDA's, for libraries that take streams of others;
    ``priority`` is the lane's."""

    def __init__(self, device: CudaDevice, clock_ns: Callable[[], int], priority: int = 0) -> None:
        self.device = device
        self.priority = priority
        with device.current():
            self.stream: CudaStream = device.stream(priority)
        self.clock: StreamClock[Event] = StreamClock(device.event, lambda start, end: end.elapsed_ms(start), clock_ns)
        self._copies: Optional[Tuple[CudaStream, CudaStream]] = None

    @property
    def copies(self) -> Tuple[CudaStream, CudaStream]:
        """Two streams beside the lane's, made at first use: for copies to the device, and for those back."""
        if self._copies is None:
            with self.device.current():
                self._copies = self.device.stream(self.priority), self.device.stream(self.priority)
        return self._copies

    @property
    def handle(self) -> int:
        """CUDA's stream."""
        return self.stream.handle

    def record(self, mark: Event, handle: int = 0) -> None:
        """Enqueue the mark, on the stream or the one of ``handle``. Inside :meth:`current`."""
        self.device.driver.record(mark.handle, handle or self.handle)

    def current(self) -> ContextManager[None]:
        """Make the device's context current on this thread."""
        return self.device.current()

    def close(self) -> None:
        """The lane ends: the streams, their events and the device are given back, when what was enqueued is over."""
        try:
            with self.device.current():
                for stream in (self.stream, *(self._copies or ())):
                    if not stream.freed:
                        stream.synchronize()
        except EngineError:
            pass  # a device that is lost, or closed before: there is nothing to wait for
        self.device.close()


def lane_stream(lane: LaneInfo, choice: str = "auto", device: Optional[CudaDevice] = None) -> LaneStream:
    """The stream of ``lane``, made at first use on the lane's thread. ``device`` is for tests; without one the lane's
    own is opened by the library of ``choice``.

    Raises :class:`~edgeserve.errors.DeviceMissing` without a driver or device.
    """
    common = lane.common if lane.common is not None else {}
    if lane.clock_ns is None:
        raise EngineError(f"lane {lane.name!r} has no clock, and a CUDA session needs one: pass LaneInfo(clock_ns=...)")
    known = common.get(NAME)
    if known is None:
        own = device or CudaDevice(open_driver(choice), lane.device_index, lane.name, lane.sms)
        known = common[NAME] = LaneStream(own, lane.clock_ns, lane.priority)
    if not isinstance(known, LaneStream):
        raise EngineError(
            f"lane {lane.name!r} has a stream of another library already; install cuda-bindings "
            "before the models of that lane are loaded"
        )
    return known
