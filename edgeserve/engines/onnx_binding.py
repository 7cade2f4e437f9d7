"""ONNX Runtime on a GPU without a thread that waits: inputs and outputs bound to the device's memory, on a stream of
EdgeServe's.

ONNX Runtime takes a stream when a session is made (``user_compute_stream``), so each lane has a session, made while
the model loads, and a stream for it. A lane's sessions, of any engine, take turns by events: a batch waits for the
end of the one before it on the lane's stream. The inputs of the next batch are copied meanwhile. This module imports no
ONNX Runtime; :mod:`edgeserve.engines.onnx` hands its objects in.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import Batch, Finished, LaneInfo, Pending, Result, Session
from edgeserve.engines.cuda.completion import DevicePending
from edgeserve.engines.cuda.device import CudaDevice, CudaStream, Event, ForeignMemory, PinnedBuffer
from edgeserve.engines.cuda.lane_stream import LaneStream, lane_stream
from edgeserve.engines.cuda.staging import Staged
from edgeserve.engines.ports import PackedBatch, Ports
from edgeserve.errors import EngineError

BUFFER_STEP_BYTES = 4096
"""Sizes of staged memory are rounded up to a power of two of this many bytes at least, so that batches of nearly equal
shapes use the same memory."""


class BoundModel:
    """A session of ONNX Runtime for one lane, with its stream and its staged memory. Made and closed by the engine's
    ``load`` and ``unload``; used by one lane."""

    def __init__(self, name: str, device: CudaDevice, priority: int = 0) -> None:
        self.name = name
        self.device = device
        with device.current():
            self.stream: CudaStream = device.stream(priority)
        self.session: Any = None
        self.run_options: Any = None
        self.cpu_ports: Tuple[str, ...] = ()  # inputs and outputs that stay on the host: text
        self.dtypes: Dict[str, Any] = {}
        self.outputs: List[str] = []
        self.lock = threading.Lock()
        self._inputs: Dict[int, List[Staged]] = {}
        self._results: Dict[int, List[PinnedBuffer]] = {}
        self._events: List[Event] = []

    def take_input(self, size: int) -> Staged:
        """Staged memory of ``size`` bytes at least."""
        rounded = _rounded(size)
        spare = self._inputs.setdefault(rounded, [])
        return spare.pop() if spare else Staged(self.device, rounded)

    def take_result(self, size: int) -> PinnedBuffer:
        """Page-locked memory of ``size`` bytes at least."""
        rounded = _rounded(size)
        spare = self._results.setdefault(rounded, [])
        return spare.pop() if spare else self.device.pinned(rounded)

    def take_event(self) -> Event:
        """An event for the order of two streams."""
        return self._events.pop() if self._events else self.device.event(timing=False)

    def give_back(self, inputs: Sequence[Staged], results: Sequence[PinnedBuffer], events: Sequence[Event]) -> None:
        """Take back the memory and events of a batch that the device is done with."""
        for staged in inputs:
            self._inputs[staged.size].append(staged)
        for pinned in results:
            self._results[pinned.size].append(pinned)
        self._events += events

    def close(self) -> None:
        """The session first, whose memory lies on the device; then the stream and the rest. Idempotent."""
        self.session = None
        self.device.close()


class BoundSession(Session):
    """One lane's use of a :class:`BoundModel`. ``find`` gives the model while it is loaded, and raises afterwards."""

    def __init__(
        self,
        lane: LaneInfo,
        choice: str,
        find: Callable[[], Tuple[BoundModel, Ports]],
        failed: Callable[[Exception, Dict[str, NDArray[Any]]], EngineError],
        device: Optional[CudaDevice] = None,
    ) -> None:
        self._shared: LaneStream = lane_stream(lane, choice, device)
        # The inputs of the next batch are copied beside the batch before, where the lane holds several.
        self._beside: Optional[CudaStream] = self._shared.copies[0] if lane.depth > 1 else None
        self._find = find
        self._failed = failed

    def launch(self, batch: Batch) -> Pending:
        model, ports = self._find()
        shared = self._shared
        flight = BoundBatch(model)
        span: Any = None
        with model.lock, model.device.current():
            try:
                packed = ports.pack(batch, flight.room)
            except BaseException:
                flight.give_back()
                raise
            if not packed.rows:
                flight.give_back()
                return Finished(ports.unpack((), packed))
            try:
                flight.stage(packed.feeds)  # the host's work is over before the device's time begins
                span = shared.clock.begin(shared.record)
                self._copy_in(flight, packed.feeds)
                model.stream.wait(span.start)
                flight.run()
                span.end.record(model.stream)
                shared.stream.wait(span.end)
            except Exception as error:
                if span is not None:
                    shared.clock.drop(span)
                flight.abandon(self._beside)
                raise self._failed(error, packed.feeds) from error
        return DevicePending(
            shared.clock,
            span,
            lambda: flight.results(ports, packed),
            lambda error: self._failed(error, packed.feeds),
            shared.current,
        )

    def _copy_in(self, flight: BoundBatch, feeds: Dict[str, NDArray[Any]]) -> None:
        model, beside = flight.model, self._beside
        flight.bind_inputs(feeds, beside or model.stream)
        if beside is not None:
            copied = flight.event()
            copied.record(beside)
            model.stream.wait(copied)


class BoundBatch:
    """The memory and events that one batch holds from its launch to its results."""

    def __init__(self, model: BoundModel) -> None:
        self.model = model
        self._binding = model.session.io_binding()
        self._inputs: List[Staged] = []
        self._staged: Dict[str, Staged] = {}
        self._pinned: List[PinnedBuffer] = []
        self._events: List[Event] = []
        self._arrays: List[NDArray[Any]] = []
        self._values: Sequence[Any] = ()

    def event(self) -> Event:
        """An event that is the model's again when the batch is over."""
        event = self.model.take_event()
        self._events.append(event)
        return event

    def room(self, name: str, shape: Tuple[int, ...], dtype: Any) -> Optional[NDArray[Any]]:
        """The host's memory of an input, to pack it where it is copied from; ``None`` for one that stays there."""
        if name in self.model.cpu_ports:
            return None
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._staged or self._staged[name].size < size:
            self._staged[name] = self.model.take_input(size)
            self._inputs.append(self._staged[name])
        return self._staged[name].array(shape, dtype)

    def stage(self, feeds: Dict[str, NDArray[Any]]) -> None:
        """Copy what was not packed in its memory into it: constants, masks, states."""
        for name, array in feeds.items():
            view = self.room(name, array.shape, array.dtype)
            if view is not None and array.ctypes.data != view.ctypes.data:
                view[...] = array

    def bind_inputs(self, feeds: Dict[str, NDArray[Any]], stream: CudaStream) -> None:
        """Copy the staged inputs to the device, on ``stream``, and bind them."""
        for name, array in feeds.items():
            if name in self.model.cpu_ports:
                self._binding.bind_cpu_input(name, array)
                continue
            staged = self._staged[name]
            staged.to_device(stream, array.nbytes)
            self._binding.bind_input(
                name, "cuda", self.model.device.index, array.dtype, list(array.shape), staged.pointer
            )

    def run(self) -> None:
        """Enqueue the network and the copies of its outputs. ONNX Runtime allocates the outputs on the device, since
        their shapes may depend on the inputs' values; they live until the results are taken."""
        model = self.model
        for name in model.outputs:
            if name in model.cpu_ports:
                self._binding.bind_output(name)
            else:
                self._binding.bind_output(name, "cuda", model.device.index)
        model.session.run_with_iobinding(self._binding, model.run_options)
        self._values = self._binding.get_outputs()
        for name, value in zip(model.outputs, self._values):
            self._arrays.append(self._fetched(name, value))

    def _fetched(self, name: str, value: Any) -> NDArray[Any]:
        """The host's array of an output: filled when the batch is over."""
        model = self.model
        if value.device_name().lower() == "cpu":  # text, and what the network computed on the host
            array: NDArray[Any] = value.numpy()
            return array
        shape, dtype = tuple(value.shape()), np.dtype(model.dtypes[name])
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        pinned = model.take_result(size)
        self._pinned.append(pinned)
        if size:
            model.stream.to_host(pinned, ForeignMemory(model.device, value.data_ptr(), size), size)
        return pinned.array(shape, dtype)

    def abandon(self, copies: Optional[CudaStream]) -> None:
        """The launch failed: wait for what was enqueued of it, then the staged memory is the model's again."""
        try:
            for stream in (self.model.stream, copies):
                if stream is not None:
                    stream.synchronize()
        except EngineError:
            return  # a device that is lost: its memory goes with the context
        self.give_back()

    def give_back(self) -> None:
        """The memory and events are the model's again: the device does not use them."""
        self.model.give_back(self._inputs, self._pinned, self._events)

    def results(self, ports: Ports, packed: PackedBatch) -> List[Result]:
        """The results, in memory of their own; the staged memory is the model's again."""
        arrays = [np.array(array, copy=True) for array in self._arrays]
        with self.model.lock:
            self.give_back()
        self._binding, self._values, self._arrays = None, (), []
        return ports.unpack(arrays, packed)


def _rounded(size: int) -> int:
    rounded = BUFFER_STEP_BYTES
    while rounded < size:
        rounded *= 2
    return rounded
