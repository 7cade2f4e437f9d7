"""One optimisation profile's execution context with its CUDA graphs, and the memory of one batch in flight."""

from __future__ import annotations

import logging
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import Pending, Result
from edgeserve.engines.cuda.device import CudaDevice, CudaStream, DeviceBuffer, Event, Graph
from edgeserve.engines.cuda.graphs import GraphCounts
from edgeserve.engines.cuda.placed import Placed, merged
from edgeserve.engines.cuda.staging import Staged
from edgeserve.engines.ports import PackedBatch, Ports
from edgeserve.engines.tensorrt.build_errors import failed_by_device
from edgeserve.engines.tensorrt.io_tensors import Tensor, select_profile, set_shape
from edgeserve.engines.tensorrt.library import Library, output_places
from edgeserve.engines.tensorrt.runtime_cache import RuntimeCache
from edgeserve.engines.tensorrt.shapes import Profile, ProfileShape
from edgeserve.errors import EngineError

log = logging.getLogger("edgeserve.tensorrt")

Shape = Tuple[int, ...]

EQUAL_SHAPES = 8
"""A graph is captured again after so many batches of equal shapes in a row: a capture costs about what it spares each
of them."""


class Loaded(NamedTuple):
    """A plan in the device's memory, and everything that its lanes share. ``profiles[i]`` runs as the plan's
    optimisation profile ``numbers[i]``; ``ranges`` says which shapes of items the profiles take; ``mapped``: the device
    works in the host's memory; ``given``: the plan was built elsewhere."""

    name: str
    library: Library
    device: CudaDevice
    engine: Any
    ports: Ports
    tensors: List[Tensor]
    profiles: List[Tuple[int, Profile]]
    numbers: Sequence[int]
    ranges: Mapping[str, ProfileShape]
    context_bytes: int
    mapped: bool
    graph: bool
    given: bool = False
    kernels: Optional[RuntimeCache] = None

    @property
    def where(self) -> str:
        """The model's name in messages."""
        return f"model {self.name!r}"

    def io_bytes(self) -> int:
        """The bytes of one slot's inputs and outputs."""
        return sum(tensor.size_bytes for tensor in self.tensors)


class BatchMemory:
    """Memory of one batch, and the events that order its copies. ``collecting`` is the batch that it holds."""

    def __init__(self, device: CudaDevice, tensors: Sequence[Tensor], mapped: bool) -> None:
        self.staged: Dict[str, Staged] = {}
        self.produced: Dict[int, Event] = {}  # of each stream that makes inputs
        try:
            for tensor in tensors:
                self.staged[tensor.name] = Staged(device, tensor.size_bytes, mapped)
            self.before, self.fed, self.ran = (device.event(timing=False) for _ in range(3))
        except BaseException:
            self.free()
            raise
        self.collecting: Optional[Collecting] = None
        self._inputs = {tensor.name: tensor for tensor in tensors if tensor.is_input and not tensor.narrowed}

    def room(self, name: str, shape: Shape, dtype: Any) -> Optional[NDArray[Any]]:
        """The host's memory of an input, to pack it where it is copied from; ``None`` where it does not fit."""
        tensor = self._inputs.get(name)
        if tensor is None or math.prod(shape) * tensor.dtype.itemsize > tensor.size_bytes:
            return None
        return self.staged[name].array(shape, tensor.dtype)

    def free(self) -> None:
        """Give the memory and the events back."""
        for staged in self.staged.values():
            staged.free()
        for name in ("before", "fed", "ran"):
            event = getattr(self, name, None)
            if isinstance(event, Event):
                event.free()
        for event in self.produced.values():
            event.free()


class ProfileContext:
    """The execution context of one optimisation profile. ``graphs`` are what was captured for the shapes that it has
    now, or had (slot -> graph): they hold until the shapes change, and are replaced once these stay for a while.
    ``captures``: whether graphs are wanted and can be had; not where batches of other sizes than ``size`` run in it
    too."""

    def __init__(
        self,
        loaded: Loaded,
        index: int,
        size: int,
        shapes: Profile,
        memory: DeviceBuffer,
        stream: CudaStream,
        beside: Sequence[CudaStream],
        counts: GraphCounts,
    ) -> None:
        library = loaded.library
        context = library.new_context(loaded.engine, loaded.kernels and loaded.kernels.config)
        if context is None:
            said = library.why("TensorRT did not say why")
            raise failed_by_device(f"{loaded.where}: making an execution context", said) or EngineError(
                f"{loaded.where}: no execution context can be made for batch size {size}: {said}. Use fewer batch "
                "sizes or lanes"
            )
        self.size = size
        self._varying = [tensor.name for tensor in loaded.tensors if tensor.varies]
        self.captures = loaded.graph and not self._varying  # the host waits for such shapes while it enqueues
        self._places = output_places(library) if self._varying else None
        self.context = context
        self.graphs: Dict[int, Graph] = {}
        self._counts = counts
        self._loaded = loaded
        self._shapes: Dict[str, Shape] = {}
        self._outputs: Dict[str, Shape] = {}
        self.move(memory)
        for name in self._varying:
            context.set_output_allocator(name, self._places)
        if beside:  # else TensorRT makes its own, which wait for any library's work on the default stream
            context.set_aux_streams([other.handle for other in beside])
        select_profile(library, context, index, stream, loaded.where)
        inputs = [tensor.name for tensor in loaded.tensors if tensor.is_input]
        self.reshape({name: shapes[name].usual for name in inputs})

    def move(self, memory: DeviceBuffer) -> None:
        """Work in this memory from now on. Graphs name the old one: the next batch is enqueued, and captured again."""
        self._loaded.library.api.give_memory(self.context, memory.pointer, memory.size)
        self.captured: Dict[str, Shape] = {}
        self._equal = EQUAL_SHAPES - 1  # batches since the shapes changed

    def has(self, shapes: Mapping[str, Shape]) -> bool:
        """True if it is set for these shapes of the inputs."""
        return shapes == self._shapes

    def reshape(self, shapes: Mapping[str, Shape]) -> Dict[str, Shape]:
        """Set the inputs' shapes where they changed; the outputs' shapes."""
        if shapes != self._shapes:
            self.captured = {}  # a graph holds for the shapes that it was captured with, until they change
            self._equal = 0
            for name, shape in shapes.items():
                if self._shapes.get(name) != shape:
                    set_shape(self._loaded.library, self.context, name, shape, self._loaded.where)
            self._shapes = dict(shapes)
            self._outputs = {
                tensor.name: tuple(int(dim) for dim in self.context.get_tensor_shape(tensor.name))
                for tensor in self._loaded.tensors
                if not tensor.is_input
            }
        return self._outputs

    def shapes_of(self) -> Mapping[str, Shape]:
        """The outputs' shapes in the batch that was enqueued last."""
        return {**self._outputs, **(self._places.shapes if self._places is not None else {})}

    def execute(self, slot: BatchMemory, stream: CudaStream, capturing: bool = False) -> None:
        """Enqueue the network on a slot's memory. Raises :class:`EngineError` with the library's words, or the
        device's error when that is the reason. ``capturing``: a stream that is captured may not be asked."""
        loaded = self._loaded  # the context is not a local: an error's traceback must not keep it alive
        for tensor in loaded.tensors:
            if tensor.varies and self._places is not None:
                self._places.places[tensor.name] = slot.staged[tensor.name].pointer, tensor.size_bytes
            elif not self.context.set_tensor_address(tensor.name, slot.staged[tensor.name].pointer):
                raise EngineError(
                    f"{loaded.where}: tensor {tensor.name!r} cannot be bound: "
                    f"{loaded.library.why('TensorRT did not say why')}"
                )
        if not self.context.execute_async_v3(stream.handle):
            if not capturing:
                stream.done()  # raises what the device failed with, if it did
            raise EngineError(
                f"{loaded.where}: batch of {self.size} cannot be enqueued: "
                f"{loaded.library.why('TensorRT did not say why')}"
            )

    def capture(self, number: int, slot: BatchMemory, stream: CudaStream) -> None:
        """Capture the network on a slot's memory as a graph. TensorRT must have run with these shapes before. A network
        that cannot be captured is not tried again."""
        if self.captured != self._shapes:
            self._free_graphs()  # of other shapes; the last one ran batches ago
        try:
            with stream.captured() as captured:
                self.execute(slot, stream, capturing=True)
        except EngineError as error:
            self.captures = False
            log.info(
                "%s, batch size %d: no CUDA graph (%s); it is enqueued instead",
                self._loaded.where,
                self.size,
                str(error),
            )  # a log that keeps the error would keep the context
            return
        if captured.graph is not None:
            self.graphs[number] = captured.graph
            self._counts.captured += 1
            self.captured = dict(self._shapes)

    def wants_graph(self, number: int) -> bool:
        """True if a graph of the slot for the present shapes would pay, and there is none."""
        lacks = self.captured != self._shapes or number not in self.graphs
        return self.captures and lacks and self._equal >= EQUAL_SHAPES

    def enqueue(self, number: int, slot: BatchMemory, stream: CudaStream) -> None:
        """Launch the slot's graph where there is one for these shapes, else execute."""
        graph = self.graphs.get(number)
        self._equal += 1
        if graph is not None and self.captured == self._shapes:
            graph.launch(stream)
            self._counts.replayed += 1
        else:
            self._counts.enqueued += 1
            self.execute(slot, stream)

    def free(self) -> None:
        """Destroy the graphs, then the context."""
        self._free_graphs()
        with self._loaded.device.current():
            self.context = self._places = None
        self._loaded = self._loaded._replace(engine=None, kernels=None)

    def _free_graphs(self) -> None:
        self._counts.dropped += len(self.graphs)
        for graph in self.graphs.values():
            graph.free()
        self.graphs = {}


class Collecting:
    """A launched batch's outputs, from the slot's memory to results: once, by the first thread that needs it."""

    def __init__(
        self,
        ports: Ports,
        packed: PackedBatch,
        views: Sequence[NDArray[Any]],
        failed: Mapping[int, EngineError],
        count: int,
        there: Sequence[Placed] = (),
    ) -> None:
        self.there = there
        self.pending: Optional[Pending] = None
        self._ports = ports
        self._packed = packed
        self._views = views
        self._failed = failed
        self._count = count
        self._results: Optional[List[Result]] = None

    def results(self) -> List[Result]:
        """Copies, since the slot is written to again; only the rows that hold items where rows are the first axis."""
        if self._results is None:
            arrays = [np.array(view) for view in self._views]
            self._results = merged(self._ports.unpack(arrays, self._packed), self._failed, self._count)
            self._views = ()
        return self._results
