"""One lane's way to run a plan: an execution context per optimisation profile, buffers, CUDA graphs, launches.

A batch takes a *slot*: host and device memory of its own for every input and output, so that a lane of depth 2 packs
and copies one batch while another runs. Four places in three streams order a batch:

    copy-in stream     inputs to the device ---- fed
    lane's stream      (after fed) execute ---- ran
    copy-out stream    start ---- (after ran) outputs to the host ---- end

``start`` waits for what the lane's stream was given before, so that ``start`` to ``end`` is the lane's time that this
batch adds: copies count where they are not hidden behind another batch. On an integrated GPU with mapped memory there
are no copies, and everything is on the lane's stream.

The contexts of a lane, of all its models, share one block of device memory (``scratch.py``): they run one after the
other on the lane's stream. So do plans that use streams beside it (``options.aux_streams``), which are ours, and which
TensorRT orders with the lane's.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import Batch, Finished, LaneInfo, Pending, Result, Session, run_batch
from edgeserve.engines.cuda.completion import DevicePending
from edgeserve.engines.cuda.device import CudaStream, DeviceBuffer
from edgeserve.engines.cuda.graphs import GraphCounts
from edgeserve.engines.cuda.lane_stream import LaneStream
from edgeserve.engines.cuda.placed import OF_ANOTHER_CONTEXT, Placed, all_there, merged, placed, refused, without
from edgeserve.engines.cuda.status import of_model
from edgeserve.engines.device_arrays import DeviceArray
from edgeserve.engines.ports import PackedBatch
from edgeserve.engines.tensorrt.build_errors import forget_locals
from edgeserve.engines.tensorrt.io_tensors import Tensor
from edgeserve.engines.tensorrt.library import layer_recorder
from edgeserve.engines.tensorrt.profile_context import BatchMemory, Collecting, Loaded, ProfileContext, Shape
from edgeserve.engines.tensorrt.scratch import scratch_of
from edgeserve.engines.tensorrt.shapes import Profile, outside
from edgeserve.errors import EngineError

SHAPES_KEPT = 4
"""Contexts of a batch size whose inputs have open axes: as many shapes keep their graphs at once. The working memory
is one block for all; a context has some of its own besides (its size is not told)."""


class LaneContexts:
    """The contexts and memory that one lane has of a loaded plan. Made, used and asked on the lane's thread; freed by
    ``unload``'s."""

    def __init__(self, loaded: Loaded, lane: LaneInfo, stream: LaneStream, copy: int) -> None:
        """``copy``: which copy of the profiles is this lane's, where lanes cannot share them."""
        self.loaded = loaded
        self.stream = stream
        self._into, self._out = (stream.stream, stream.stream) if loaded.mapped else stream.copies
        self._slots: List[BatchMemory] = []
        self._contexts: Dict[int, List[ProfileContext]] = {}  # of each batch size, the last used one last
        self._numbers: Dict[int, ProfileContext] = {}
        self._scratch = scratch_of(lane, loaded.device.driver)
        self._beside: List[CudaStream] = []
        self._next = 0
        self._moving = threading.Lock()  # another model's load moves the memory, and an unload ends the contexts
        self.freed = False
        self.counts = GraphCounts()
        sizes = sorted({size for size, _ in loaded.profiles})
        first = copy * len(sizes)
        with loaded.device.current():
            try:
                memory = self._scratch.take(self, max(1, loaded.context_bytes))
                for _ in range(loaded.library.api.aux_streams(loaded.engine)):
                    self._beside.append(stream.device.stream(lane.priority))
                rows = list(zip(loaded.numbers, loaded.profiles))[first : first + len(sizes)]
                for number, (size, shapes) in rows:
                    count = SHAPES_KEPT if loaded.ranges and loaded.library.api.profiles_shared else 1
                    self._contexts[size] = [self._context(number, size, shapes, memory) for _ in range(count)]
                for _ in range(max(1, lane.depth)):
                    self._slots.append(BatchMemory(loaded.device, loaded.tensors, loaded.mapped))
                for _, (size, shapes) in rows:
                    for context in self._contexts[size]:
                        self._warm(context, shapes, captures=context is self._contexts[size][-1])
                if loaded.kernels is not None:
                    loaded.kernels.keep()
            except BaseException:
                with contextlib.suppress(EngineError):  # freed memory must not be in use
                    stream.stream.synchronize()
                self.free()
                raise

    @property
    def graphs(self) -> int:
        """The number of captured CUDA graphs."""
        return sum(len(context.graphs) for context in self._all())

    def launch(self, batch: Batch) -> Pending:
        """Pack the batch, enqueue copies and execution, and return."""
        loaded = self.loaded
        size = self._size_for(batch)
        failed = self._outside(batch)
        rest = batch.without(failed)._replace(size=size)
        if not rest.items:
            return Finished([Result({}, error=failed[place]) for place in range(len(batch.items))])
        with loaded.device.current():
            number, slot = self._free_slot()
            rest, there = placed(rest, slot.room)
            packed = loaded.ports.pack(rest, slot.room)
            for error in packed.failed.values():  # a kept error must not keep this frame, and so the engine
                error.__traceback__ = error.__cause__ = error.__context__ = None
            there = without(there, packed.failed)
            if not packed.rows:
                return Finished(merged(loaded.ports.unpack((), packed), failed, len(batch.items)))
            shapes = {tensor.name: packed.feeds[tensor.name].shape for tensor in loaded.tensors if tensor.is_input}
            context = self._context_for(size, shapes)
            self._stage(slot, packed.feeds)
            context.reshape(shapes)
            views: List[NDArray[Any]] = []
            collecting = Collecting(loaded.ports, packed, views, failed, len(batch.items), there)
            collecting.pending = self._enqueue(number, slot, context, packed, views, collecting)
            slot.collecting = collecting
            if context.wants_graph(number) and not self._has_other_batch(slot):
                context.capture(number, slot, self.stream.stream)  # while the device computes
        return collecting.pending

    def layer_times(self, batch: Batch, runs: int) -> List[Tuple[str, int]]:
        """Layer -> its nanoseconds in one run of the batch, in the mean of ``runs``. Until the end of the lane its
        contexts tell no more: the profiler stays, and graphs have none."""
        loaded = self.loaded
        run_batch(TensorrtSession(self), batch)  # its inputs lie in the slot now
        context = self._contexts[self._size_for(batch)][-1]  # which it ran in
        recorder, slot = layer_recorder(loaded.library), self._slots[self._next - 1]
        with loaded.device.current():
            context.context.profiler = recorder
            for run in range(runs + 1):
                if run == 1:
                    recorder.times.clear()
                context.execute(slot, self.stream.stream)
                self.stream.stream.synchronize()
        summed: Dict[str, int] = {}
        for name, took_ns in recorder.times:
            summed[name] = summed.get(name, 0) + took_ns
        return [(name, took_ns // runs) for name, took_ns in summed.items()]

    def free(self) -> None:
        """Give everything back: graphs and contexts, then the memory that they use, then the slots; and let go of the
        engine, which a session that is still referenced must not hold. Idempotent."""
        self.freed = True
        with self._moving:
            for context in self._all():
                context.free()
        self.loaded = self.loaded._replace(engine=None, kernels=None)
        self._scratch.leave(self)
        for slot in self._slots:
            slot.free()
        for other in self._beside:
            other.free()
        self._contexts, self._numbers, self._slots, self._beside = {}, {}, [], []

    def moved(self, block: DeviceBuffer) -> None:
        """The lane's working memory has grown, for another model: use the new block. Called on the lane's thread."""
        self.stream.stream.synchronize()
        with self._moving:
            for context in self._all() if not self.freed else ():
                context.move(block)

    # --- helpers ---

    def _all(self) -> List[ProfileContext]:
        return [context for contexts in self._contexts.values() for context in contexts]

    def _context_for(self, size: int, shapes: Mapping[str, Shape]) -> ProfileContext:
        """The context that is set for these shapes, else the one whose shapes were not used for longest: their graphs
        are the ones to lose."""
        contexts = self._contexts[size]
        chosen = next((context for context in reversed(contexts) if context.has(shapes)), contexts[0])
        contexts.remove(chosen)
        contexts.append(chosen)
        return chosen

    def _has_other_batch(self, slot: BatchMemory) -> bool:
        """True if the lane has a batch besides the slot's that is not over."""
        held = [other.collecting.pending for other in self._slots if other is not slot and other.collecting is not None]
        return any(pending is not None and not pending.done() for pending in held)

    def _context(self, number: int, size: int, shapes: Profile, memory: DeviceBuffer) -> ProfileContext:
        """A context of its own for each batch size, but for plans whose profiles contexts may not share: there, one
        for each profile."""
        loaded = self.loaded
        if loaded.given and not loaded.library.api.profiles_always_shared:
            for other, known in self._numbers.items():
                if other == number:
                    known.captures = False
                    return known
        made = ProfileContext(loaded, number, size, shapes, memory, self.stream.stream, self._beside, self.counts)
        self._numbers[number] = made
        return made

    def _enqueue(
        self,
        number: int,
        slot: BatchMemory,
        context: ProfileContext,
        packed: PackedBatch,
        views: List[NDArray[Any]],
        collecting: Collecting,
    ) -> Pending:
        """Enqueue a batch. ``views`` gets the outputs: the shapes of some are known only then."""
        compute, into, out = self.stream.stream, self._into, self._out
        clock, loaded = self.stream.clock, self.loaded
        if out is not compute:
            slot.before.record(compute)
            out.wait(slot.before)
        span = clock.begin(lambda mark: mark.record(out))
        try:
            if not loaded.mapped:
                for tensor in loaded.tensors:
                    if tensor.is_input and not all_there(tensor.name, packed.rows, collecting.there):
                        slot.staged[tensor.name].to_device(into, _bytes_of(packed.feeds[tensor.name], tensor))
            self._copy_within(slot, into, collecting.there)
            if not loaded.mapped:
                slot.fed.record(into)
                compute.wait(slot.fed)
            context.enqueue(number, slot, compute)
            outputs, shapes = [tensor for tensor in loaded.tensors if not tensor.is_input], context.shapes_of()
            views += [slot.staged[tensor.name].array(shapes[tensor.name], tensor.dtype) for tensor in outputs]
            if not loaded.mapped:
                slot.ran.record(compute)
                out.wait(slot.ran)
                for tensor, view in zip(outputs, views):
                    slot.staged[tensor.name].to_host(out, view.nbytes)
            span.end.record(out)
        except BaseException:
            clock.drop(span)
            with contextlib.suppress(EngineError):  # the slot is used again: nothing may still read or write it
                for stream in (into, compute, out):
                    stream.synchronize()
            raise
        name = loaded.name  # a kept batch that is over must not keep the engine
        return DevicePending(
            clock, span, collecting.results, lambda error: of_model(name, error), loaded.device.current
        )

    def _copy_within(self, slot: BatchMemory, into: CudaStream, there: Sequence[Placed]) -> None:
        """Enqueue the copies of inputs that lie on the device, each behind the stream that made it."""
        driver = self.loaded.device.driver
        for stream in sorted({each.array.stream for each in there if each.array.stream is not None}):
            if stream not in slot.produced:
                slot.produced[stream] = self.loaded.device.event(timing=False)
            driver.record(slot.produced[stream].handle, stream)
            into.wait(slot.produced[stream])
        for name, row, array in there:
            target = slot.staged[name].pointer + row * array.nbytes
            driver.copy_on_device(target, array.pointer, array.nbytes, into.handle)

    def _size_for(self, batch: Batch) -> int:
        """The smallest batch size with a profile that holds the batch."""
        fits = [size for size in sorted(self._contexts) if size >= batch.size]
        if not fits:
            raise EngineError(
                f"{self.loaded.where}: a batch of {batch.size}, but the largest optimisation profile is "
                f"for {max(self._contexts)}; add the size to [model.{self.loaded.name}] batch"
            )
        return fits[0]

    def _outside(self, batch: Batch) -> Dict[int, EngineError]:
        """The items whose shapes no profile takes."""
        failed = refused(batch, self.loaded.where, self._why_not_there)
        for place, item in enumerate(batch.items if self.loaded.ranges else ()):
            for name, allowed in self.loaded.ranges.items():
                shape = _shape_of(item.get(name))
                if len(shape) == len(allowed.low) and outside(shape, allowed):
                    mend = (
                        "Build the plan with a wider optimisation profile"
                        if self.loaded.given
                        else (
                            f"Widen [model.{self.loaded.name}] options.ranges.{name} (or shapes.{name}); "
                            "the plan is then built again"
                        )
                    )
                    failed[place] = EngineError(
                        f"{self.loaded.where}: input {name!r} has shape {list(shape)}; its plan takes "
                        f"{list(allowed.low)} to {list(allowed.high)} per item. {mend}"
                    )
        return failed

    def _why_not_there(self, name: str, value: DeviceArray) -> str:
        """The reason why an input cannot stay on the device, ``""`` without one."""
        tensor = next((tensor for tensor in self.loaded.tensors if tensor.name == name and tensor.is_input), None)
        if tensor is None or self.loaded.ports.is_padded(name):
            return "padded or prepared"
        if self.loaded.device.is_foreign(value.pointer):
            return OF_ANOTHER_CONTEXT
        if tensor.narrowed or tensor.dtype != value.dtype:
            return f"{value.dtype}, to be cast to {tensor.dtype}"
        return ""

    def _free_slot(self) -> Tuple[int, BatchMemory]:
        """The next slot in turn. Where its batch is over and the result was not taken, it is collected now."""
        number = self._next
        slot = self._slots[number]
        held = slot.collecting
        if held is not None and held.pending is not None:
            if not held.pending.done():
                raise EngineError(
                    f"{self.loaded.where}: {len(self._slots)} batches are launched and not finished, as "
                    "many as the lane's depth; wait for one, or raise [lane.NAME] depth"
                )
            with contextlib.suppress(EngineError):  # the batch's own failure: its owner is told when it asks
                held.results()
        slot.collecting = None
        self._next = (number + 1) % len(self._slots)
        return number, slot

    def _stage(self, slot: BatchMemory, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Copy what was not packed in the slot's host memory into it: constants, masks, states, narrowed numbers."""
        for tensor in self.loaded.tensors:
            if not tensor.is_input:
                continue
            array = feeds[tensor.name]
            if array.dtype != tensor.dtype:
                self._check_narrow(array, tensor)
            view = slot.staged[tensor.name].array(array.shape, tensor.dtype)
            if array.ctypes.data != view.ctypes.data:
                np.copyto(view, array, casting="unsafe")

    def _check_narrow(self, array: NDArray[Any], tensor: Tensor) -> None:
        """TensorRT before version 10 has no int64: larger values must not be cut off silently."""
        bounds = np.iinfo(tensor.dtype)
        if array.size and (array.min() < bounds.min or array.max() > bounds.max):
            raise EngineError(
                f"{self.loaded.where}: input {tensor.name!r} has values from {array.min()} to "
                f"{array.max()}; this TensorRT ({self.loaded.library.version}) computes them as int32"
            )

    def _warm(self, context: ProfileContext, shapes: Profile, captures: bool) -> None:
        """Run the network once on zeros, and capture it: allocations and choices that TensorRT makes at the first run
        must not be captured, and no request should wait for either."""
        loaded, stream = self.loaded, self.stream.stream
        context.reshape({tensor.name: shapes[tensor.name].usual for tensor in loaded.tensors if tensor.is_input})
        for number, slot in enumerate(self._slots):
            for staged in slot.staged.values():
                staged.array((staged.size,), np.uint8).fill(0)
                staged.to_device(stream)
            context.execute(slot, stream)
            stream.synchronize()
            if captures and context.captures:
                context.capture(number, slot, stream)


def _shape_of(value: Any) -> Shape:
    """The shape of an array, or of a value that will become one; ``()`` where packing will report its fault."""
    try:
        return tuple(np.shape(value))
    except BaseException:  # noqa: BLE001 any error of it packing will report for this item
        return ()


def _bytes_of(array: NDArray[Any], tensor: Tensor) -> int:
    return int(array.size) * tensor.dtype.itemsize


class TensorrtSession(Session):
    """One lane's session; several of one lane share its contexts."""

    def __init__(self, contexts: LaneContexts) -> None:
        self._contexts = contexts

    @property
    def graphs(self) -> int:
        """The number of captured CUDA graphs."""
        return self._contexts.graphs

    def launch(self, batch: Batch) -> Pending:
        contexts = self._contexts
        if contexts.freed:
            raise EngineError(f"{contexts.loaded.where} was unloaded; call load() and open() before launch()")
        try:
            return contexts.launch(batch)
        except EngineError as error:
            forget_locals(error)
            raise of_model(contexts.loaded.name, error) from error
