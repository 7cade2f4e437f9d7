"""A network on CUDA: copies and kernels on the lane's stream, completion and times by events.

A lane that holds one batch at a time has one stream. With ``depth`` above 1, the inputs of the next batch and the
outputs of the last one are copied on two streams beside it while the device computes.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Container, ContextManager, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from numpy.typing import NDArray

from edgeserve.engines.base import Batch, Finished, LaneInfo, Pending, Result, Session
from edgeserve.engines.cuda.completion import DevicePending, StreamClock
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.cuda.lane_stream import NAME, LaneStream, lane_stream
from edgeserve.engines.cuda.placed import OF_ANOTHER_CONTEXT, Placed, merged, placed, refused, without
from edgeserve.engines.device_arrays import DeviceArray
from edgeserve.engines.ports import PackedBatch, Ports
from edgeserve.engines.torch.graphs import Graphs
from edgeserve.engines.torch.programs import TORCH_OF
from edgeserve.errors import DeviceMissing, EngineError


class TorchMark:
    """An event of torch as :mod:`edgeserve.engines.cuda.completion` asks it."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)

    def done(self) -> bool:
        """True if the device has passed it."""
        return bool(self.event.query())


class TorchStream:
    """A lane's stream, made by torch: where cuda-bindings is not installed."""

    def __init__(self, index: int, clock_ns: Callable[[], int], priority: int = 0) -> None:
        self.index = index
        self._priority = -priority  # as CUDA counts; torch takes more than the device has for its highest
        self._stream = torch.cuda.Stream(torch.device("cuda", index), priority=self._priority)
        self._copies: Optional[Tuple[Any, Any]] = None
        self.clock: StreamClock[TorchMark] = StreamClock(
            TorchMark, lambda start, end: float(start.event.elapsed_time(end.event)), clock_ns
        )

    @property
    def handle(self) -> int:
        """CUDA's stream."""
        return int(self._stream.cuda_stream)

    @property
    def copies(self) -> Tuple[Any, Any]:
        """Two streams beside the lane's, made at first use: for copies to the device, and for those back."""
        if self._copies is None:
            device = torch.device("cuda", self.index)
            into, out = (torch.cuda.Stream(device, priority=self._priority) for _ in range(2))
            self._copies = into, out
        return self._copies

    def record(self, mark: TorchMark, handle: int = 0) -> None:
        """Enqueue the mark, on the stream or the one of ``handle``."""
        mark.event.record(torch.cuda.ExternalStream(handle, self._stream.device) if handle else self._stream)

    def current(self) -> ContextManager[Any]:
        """torch makes its context current by itself."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """The lane ends. torch keeps its streams in a pool."""
        with contextlib.suppress(RuntimeError):  # a device that is lost
            for stream in (self._stream, *(self._copies or ())):
                stream.synchronize()


SharedStream = Union[LaneStream, TorchStream]


def stream_of(lane: LaneInfo, choice: str) -> SharedStream:
    """The stream that all sessions of the lane share: of the CUDA library where one is installed, else torch's own."""
    common = lane.common if lane.common is not None else {}
    if isinstance(common.get(NAME), TorchStream):
        own: TorchStream = common[NAME]
        return own
    if NAME not in common and choice == "auto":
        try:
            open_driver(choice)
        except DeviceMissing:
            if lane.sms:  # torch's own streams have all multiprocessors
                raise
            if lane.clock_ns is None:
                raise EngineError(
                    f"lane {lane.name!r} has no clock, and a CUDA session needs one: pass LaneInfo(clock_ns=...)"
                ) from None
            made = common[NAME] = TorchStream(lane.device_index, lane.clock_ns, lane.priority)
            return made
    return lane_stream(lane._replace(common=common), choice)


class PinnedInputs:
    """A batch's inputs in page-locked memory; inputs ``on_host`` stay as they are."""

    def __init__(self, on_host: Container[str]) -> None:
        self._on_host = on_host
        self._tensors: Dict[str, torch.Tensor] = {}

    def room(self, name: str, shape: Tuple[int, ...], dtype: Any) -> Optional[NDArray[Any]]:
        """Memory of an input, to pack it where it is copied from; the same again for the same shape."""
        if name in self._on_host:
            return None
        known = self._tensors.get(name)
        if known is not None and known.shape == shape and known.dtype == TORCH_OF[np.dtype(dtype)]:
            array: NDArray[Any] = known.numpy()
            return array
        tensor = self._tensors[name] = torch.empty(shape, dtype=TORCH_OF[np.dtype(dtype)], pin_memory=True)
        array = tensor.numpy()
        return array

    def taken(self, feeds: Dict[str, NDArray[Any]]) -> Dict[str, torch.Tensor]:
        """The batch's inputs. What was not packed here is copied here: constants, masks, states."""
        found = {}
        for name, array in feeds.items():
            packed = self._tensors.get(name)
            if name in self._on_host:
                found[name] = torch.from_numpy(np.array(array))
                continue
            if packed is None or packed.data_ptr() != array.ctypes.data:
                view = self.room(name, array.shape, array.dtype)
                assert view is not None
                view[...] = array
            found[name] = self._tensors[name].reshape(array.shape)
        return found


class CudaSession(Session):
    """One lane's use of a network on CUDA. ``enqueue(feeds)`` calls it; ``fail`` turns what torch raises into the
    model's error; ``on_host`` names inputs that stay there, since the network takes them as numbers; ``graphs``
    makes the graphs that run it in place of ``enqueue``."""

    def __init__(
        self,
        lane: LaneInfo,
        choice: str,
        ports: Callable[[], Ports],
        enqueue: Callable[[Dict[str, torch.Tensor]], List[torch.Tensor]],
        fail: Callable[[Exception, Dict[str, NDArray[Any]]], Exception],
        on_host: Callable[[], Container[str]],
        graphs: Optional[Callable[[Any], Graphs]] = None,
    ) -> None:
        self._on_host = on_host
        self._shared: Any = stream_of(lane, choice)
        self._device = torch.device("cuda", lane.device_index)
        self._stream = torch.cuda.ExternalStream(self._shared.handle, self._device)
        self._beside = lane.depth > 1
        self._inward, self._outward = self._copy_streams() if self._beside else (self._stream, self._stream)
        self._ports = ports
        self.graphs = graphs(self._stream) if graphs is not None else None
        self._enqueue = self.graphs.run if self.graphs is not None else enqueue
        self._fail = fail

    def _copy_streams(self) -> Tuple[Any, Any]:
        into, out = self._shared.copies
        if isinstance(self._shared, TorchStream):
            return into, out
        external = torch.cuda.ExternalStream
        return external(into.handle, self._device), external(out.handle, self._device)

    def launch(self, batch: Batch) -> Pending:
        ports, staged = self._ports(), PinnedInputs(self._on_host())
        failed = refused(batch, ports.where, lambda name, array: self._why_not_there(ports, name, array))
        count, (batch, there) = len(batch.items), placed(batch.without(failed), staged.room)
        packed = ports.pack(batch, staged.room) if batch.items else PackedBatch({}, {}, 0, 0, {})
        there = without(there, packed.failed)
        if not packed.rows:
            return Finished(merged(ports.unpack((), packed), failed, count))
        shared = self._shared
        feeds = packed.feeds
        span: Any = None
        with shared.current():
            try:
                inputs = staged.taken(feeds)  # the host's work is over before the device's time begins
                span = shared.clock.begin(shared.record)
                with torch.inference_mode(), torch.cuda.device(self._device):
                    arrays = self._to_host(self._computed(self._to_device(inputs, there)))
                    shared.record(span.end, self._outward.cuda_stream)
            except Exception as error:
                if span is not None:
                    shared.clock.drop(span)
                raise self._fail(error, feeds) from error
        return DevicePending(
            shared.clock,
            span,
            lambda kept=there: merged(_unpacked(ports, arrays, packed), failed, count),  # type: ignore[misc]
            lambda error: self._fail(error, feeds),
            shared.current,
        )

    def _why_not_there(self, ports: Ports, name: str, array: DeviceArray) -> str:
        """The reason why an input cannot stay on the device, ``""`` without one."""
        if name in self._on_host() or ports.is_padded(name):
            return "padded or prepared"
        if isinstance(self._shared, LaneStream) and self._shared.device.is_foreign(array.pointer):
            return OF_ANOTHER_CONTEXT
        return "" if ports.dtype_of(name) in (None, array.dtype) else f"{array.dtype}, to be {ports.dtype_of(name)}"

    def _to_device(self, inputs: Dict[str, torch.Tensor], there: Sequence[Placed]) -> Dict[str, torch.Tensor]:
        """The inputs on the device, but for inputs that stay on the host, with the rows that lie there already, each
        behind the stream that made it. torch's allocators keep pinned memory until its copy is over, and device memory
        until the streams that it was recorded on are past it."""
        on_host = self._on_host()
        for stream in sorted({each.array.stream for each in there if each.array.stream is not None}):
            self._inward.wait_stream(torch.cuda.ExternalStream(stream, self._device))
        with torch.cuda.stream(self._inward):
            moved = {
                name: tensor if name in on_host else tensor.to(self._device, non_blocking=True)
                for name, tensor in inputs.items()
            }
            for name, row, array in there:
                rows = moved[name] if moved[name].dim() > array.ndim else moved[name][None]  # without a batch axis
                rows[row].copy_(torch.as_tensor(array, device=self._device))
        if self._beside:
            self._stream.wait_stream(self._inward)
            for tensor in moved.values():
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)
        return moved

    def _computed(self, feeds: Dict[str, torch.Tensor]) -> List[torch.Tensor]:
        with torch.cuda.stream(self._stream):
            return self._enqueue(feeds)

    def _to_host(self, outputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        if self._beside:
            self._outward.wait_stream(self._stream)
        arrays = []
        with torch.cuda.stream(self._outward):
            for output in outputs:
                if self._beside and output.is_cuda:
                    output.record_stream(self._outward)
                pinned = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
                arrays.append(pinned.copy_(output, non_blocking=True))
        return arrays


def _unpacked(ports: Ports, arrays: Sequence[torch.Tensor], packed: PackedBatch) -> List[Result]:
    """The results, in memory of their own: a client may keep them, and page-locked memory is scarce."""
    return ports.unpack([np.array(array.numpy(), copy=True) for array in arrays], packed)
