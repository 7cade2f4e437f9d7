"""The ``torch`` engine's entry: one network on the CPU or on a CUDA device.

Padding, states and checks are :mod:`edgeserve.engines.ports`'; how a network is read is
:mod:`edgeserve.engines.torch.programs`'. Options: ``arguments``, ``inputs``, ``outputs`` (names of what the network
returns, in order; default ``["output"]``, or the keys of the dict that an exported program returns), ``precision``
(``"float32"``, ``"float16"``, ``"bfloat16"``: weights and floating inputs; what comes out is float32), ``threads`` (of
one run on the CPU; default: the lane's), ``deterministic`` (operators that give the same bits each time; it holds for
the whole process), ``channels_last`` (images and kernels lie so in memory: half-precision convolutions on a GPU are
faster), ``graph`` (CUDA graphs: :mod:`edgeserve.engines.torch.graphs`),
``compile`` (``torch.compile``, at load and for each batch size at warm-up), ``example``
(``"module:function"``), ``cuda`` (the library for streams: ``auto`` or ``cuda-bindings``), ``batch_axis`` and those of
:mod:`edgeserve.engines.ports`.

torch keeps the number of threads per thread of the program where it is built with OpenMP, as its wheels are: each lane
has its own. The number is set on the thread that runs a batch, and only when it differs.
"""

from __future__ import annotations

import gc
import os
from typing import Any, Container, Dict, List, Mapping, Optional, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, OutputType, Result, RowFacts, Session, Values
from edgeserve.engines.cuda.graphs import summed
from edgeserve.engines.cuda.status import of_model
from edgeserve.engines.functions import import_function
from edgeserve.engines.host_session import HostSession
from edgeserve.engines.options import Options
from edgeserve.engines.port import Port
from edgeserve.engines.ports import HALF_ROUNDING, PORT_OPTIONS, WORK_PER_INPUT_BYTE, PackedBatch, Ports
from edgeserve.engines.python import NOMINAL_BYTES
from edgeserve.engines.torch.failures import failure_of
from edgeserve.engines.torch.graphs import Graphs
from edgeserve.engines.torch.programs import EXPORTED, Program, storages
from edgeserve.engines.torch.reading import read_program
from edgeserve.engines.torch.streams import CudaSession
from edgeserve.engines.worker import worker_of
from edgeserve.errors import ConfigError, DeviceMissing, EngineError, ExampleUnknown, OutOfMemory

KNOWN_OPTIONS = (
    "arguments",
    "inputs",
    "outputs",
    "precision",
    "threads",
    "deterministic",
    "channels_last",
    "compile",
    "graph",
    "example",
    "cuda",
    "image",
    "batch_axis",
    *PORT_OPTIONS,
)

PRECISIONS = {"": None, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

SHAPES_KEPT = 4
"""Graphs that are kept for each batch size, of the shapes that ran last."""

CUBLAS_WORKSPACE = ":4096:8"
"""The setting of cuBLAS, made before its first use, for the same bits each time (CUDA documentation, cuBLAS, results
reproducibility)."""


class TorchEngine(Engine):
    """One network, shared by the lanes of one device. It must keep nothing from one call to the next: two lanes call
    it at once. Recurrent states come in with the batch and go out with the results."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        if "image" in options:
            raise ConfigError(
                f"{options.where('image')}: frames are prepared in front of ONNX networks alone; export this one to "
                "ONNX (torch.onnx.export) for engine = 'onnx' or 'tensorrt', or let a node with engine = 'python' "
                "prepare frames"
            )
        if not model.file and not model.function:
            raise ConfigError(
                f"[model.{model.name}] file and function are missing: engine 'torch' needs file = "
                "'net.pt2' (torch.export), file = 'net.pt' (TorchScript) or function = 'module:Class'"
            )
        precision = options.text("precision")
        if precision not in PRECISIONS:
            raise ConfigError(
                f"{options.where('precision')} = {precision!r}: expected one of "
                f"{', '.join(name for name in PRECISIONS if name)}"
            )
        self._name = model.name
        self._model = model
        self._options = options
        self._directory = directory
        self._precision = PRECISIONS[precision]
        self._threads_set = options.integer("threads", 0, 1, 1024) if "threads" in options else 0
        self._channels_last = options.boolean("channels_last", False)
        self._compiles = options.boolean("compile", False)
        if self._compiles and model.file and not model.function and not model.file.endswith(EXPORTED):
            raise ConfigError(
                f"{options.where('compile')}: {model.file} is TorchScript, which torch.compile does not take; export "
                "it with torch.export, or name its module (function = 'module:Class')"
            )
        self._graph = options.boolean("graph", False)
        self._graphs: List[Graphs] = []  # of each lane that opened it
        self._deterministic = options.boolean("deterministic", False)
        self._example = options.text("example")
        self._cuda = options.text("cuda", "auto")
        self._lanes = list(lanes)
        self._on_cuda = lanes[0].device_kind == "cuda"
        self._device = torch.device("cuda", lanes[0].device_index) if self._on_cuda else torch.device("cpu")
        self._program: Optional[Program] = None
        self._ports: Optional[Ports] = None
        self._kept: Set[int] = set()  # where the network's own tensors lie
        self._copies_out = False
        self._footprint = Footprint(0)

    # --- life ---

    def check(self) -> None:
        self._check_machine()

    def load(self) -> Footprint:
        """Read the network, check what it takes against the configuration, and call it once where an example of its
        inputs is known."""
        if self._program is not None:
            return self._footprint
        self._check_machine()
        if self._deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
            torch.use_deterministic_algorithms(True)
        try:
            program = self._read()
        except OutOfMemory:
            gc.collect()  # an unloaded module of a user's may be part of a cycle
            torch.cuda.empty_cache()
            program = self._read()
        self._check_sizes(program)
        self._ports = Ports(
            self._model,
            self._options,
            program.inputs,
            [Port(name, np.dtype(np.float32), ()) for name in program.outputs],
        )
        self._kept = storages(program.tensors)
        self._program = program
        try:
            work_bytes = self._tried()
        except BaseException:
            self.unload()
            raise
        self._footprint = Footprint(program.weights_bytes() or NOMINAL_BYTES, work_bytes)
        return self._footprint

    def unload(self) -> None:
        program, self._program, self._ports = self._program, None, None
        for graphs in self._graphs:
            graphs.clear()
        self._graphs = []
        if program is not None:
            program.release()
            del program
            if self._on_cuda:
                torch.cuda.empty_cache()  # else the memory stays torch's

    def open(self, lane: LaneInfo) -> Session:
        """A session for a lane that the engine was made for."""
        self.loaded_ports()
        if self._on_cuda:
            try:
                return CudaSession(
                    lane,
                    self._cuda,
                    self.loaded_ports,
                    self.call,
                    self.failed,
                    self._numbers,
                    self._new_graphs if self._graph else None,
                )
            except EngineError as error:
                raise of_model(self._name, error) from error
        return HostSession(self, self.threads_of(lane), worker_of(lane))

    def _new_graphs(self, stream: Any) -> Graphs:
        made = Graphs(self._name, self.call, stream, SHAPES_KEPT * len(self._model.batch), self._numbers())
        self._graphs.append(made)
        return made

    def figures(self) -> Mapping[str, Any]:
        return {"graphs": summed([each.counts for each in list(self._graphs)])} if self._graph else {}

    def example(self) -> Values:
        if self._example:
            item: Values = import_function(self._example, self._directory, self._options.where("example"))()
            return item
        return self.loaded_ports().example()

    def rows(self) -> RowFacts:
        facts = self.loaded_ports().rows(self._lanes[0].device_kind)
        facts = facts._replace(by_chance=self._program.by_chance if self._program is not None else None)
        return facts if self._precision in (None, torch.float32) else facts._replace(rounding=HALF_ROUNDING)

    def misfits(self, declared: Mapping[str, Optional[OutputType]]) -> List[str]:
        return self.loaded_ports().misfits(declared)

    def run(self, batch: Batch) -> List[Result]:
        """Run a batch on the CPU, to its end."""
        ports = self.loaded_ports()
        packed = ports.pack(batch)
        return ports.unpack(self.arrays_of(packed, self.threads_of(self._lanes[0])), packed)

    # --- a batch ---

    def arrays_of(self, packed: PackedBatch, threads: int) -> Sequence[NDArray[Any]]:
        """The network's outputs for a packed batch, on the CPU."""
        if not packed.rows:
            return ()
        feeds = packed.feeds
        try:
            with torch.inference_mode():
                if torch.get_num_threads() != threads:  # asking also tells torch of a thread that is new to it
                    torch.set_num_threads(threads)
                tensors = {name: _tensor(array) for name, array in feeds.items()}
                outputs = self.call(tensors)
                shared = self._kept | storages(tensors.values())
                return [self._array(output, shared) for output in outputs]
        except Exception as error:  # torch raises RuntimeError and others, a module of one's own anything
            raise self.failed(error, feeds) from error

    def call(self, tensors: Dict[str, torch.Tensor]) -> List[torch.Tensor]:
        """The network's outputs, as tensors on its device that numpy has a type for."""
        program = self._program
        if program is None:
            raise EngineError("it was unloaded; call load() before it is used")
        if self._precision is not None:
            tensors = {
                name: tensor.to(self._precision) if tensor.is_floating_point() else tensor
                for name, tensor in tensors.items()
            }
        outputs = program.call(tensors)
        return [output.float() if output.dtype in (torch.bfloat16, self._precision) else output for output in outputs]

    def failed(self, error: Exception, feeds: Dict[str, NDArray[Any]]) -> EngineError:
        """The error of this model for an exception raised while the network ran."""
        return failure_of(self._name, error, feeds, self._device)

    def _numbers(self) -> Container[str]:
        return self._program.numbers if self._program is not None else ()

    def threads_of(self, lane: LaneInfo) -> int:
        """The threads that torch uses for a lane: its own number unless the options say another."""
        return self._threads_set or lane.threads

    def loaded_ports(self) -> Ports:
        """The ports that pack and unpack the model's batches."""
        ports = self._ports
        if ports is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is used")
        return ports

    # --- load ---

    def _read(self) -> Program:
        try:
            program = read_program(self._model, self._options, self._directory, self._device, self._precision)
            if self._channels_last:
                program.lay_channels_last()
            if self._compiles:
                program.compile()
            return program
        except RuntimeError as error:  # torch's own, above all a device without room
            raise self.failed(error, {}) from error

    def _check_machine(self) -> None:
        if self._on_cuda:
            if not torch.cuda.is_available():
                raise DeviceMissing(
                    f"model {self._name!r}: torch {torch.__version__} has no CUDA device here; install "
                    "a build of torch with CUDA and the NVIDIA driver (edgeserve doctor), or use a "
                    "device of kind 'cpu'"
                )
            index = self._lanes[0].device_index
            if index >= torch.cuda.device_count():
                raise DeviceMissing(
                    f"model {self._name!r}: device {index} does not exist: torch shows "
                    f"{torch.cuda.device_count()}; mend [device.NAME] kind"
                )
            return
        numbers = {self.threads_of(lane) for lane in self._lanes}
        if len(numbers) > 1 and "OpenMP" not in torch.__config__.parallel_info():
            raise EngineError(
                f"model {self._name!r}: its lanes have {sorted(numbers)} threads, and this build of "
                f"torch {torch.__version__} has one number for the whole process; give the lanes one "
                f"number, or set [model.{self._name}] options.process = true"
            )

    def _check_sizes(self, program: Program) -> None:
        low, high = program.sizes if self._options.boolean("batch_axis", True) else (1, None)
        wrong = [size for size in self._model.batch if size < low or (high is not None and size > high)]
        if wrong:
            raise EngineError(
                f"model {self._name!r}: batch = {list(self._model.batch)}, but {self._model.file} was "
                f"exported for a batch of {low} to {high or 'any'}; set [model.{self._name}] batch, or "
                "export it again with torch.export.Dim('batch', min=1, max=...)"
            )

    def _tried(self) -> int:
        """Call the network, so that one that does not fit its configuration fails now. The working memory of the
        largest batch: on CUDA as measured, else an estimate."""
        ports = self.loaded_ports()
        largest = max(self._model.batch)
        estimated = ports.input_size_bytes(largest) * WORK_PER_INPUT_BYTE
        try:
            item = self.example()
        except ExampleUnknown:
            return estimated
        except EngineError:
            if self._model.shapes or self._example:
                raise
            return estimated  # the lengths of its inputs are not known, and warm-up will say so
        if self._on_cuda:
            return self._measured(ports.pack(Batch([item], largest)))
        packed = ports.pack(Batch([item], min(self._model.batch)))
        before = torch.get_num_threads()
        try:
            self._look_for_sharing(packed)
        finally:
            torch.set_num_threads(before)
        return estimated

    def _look_for_sharing(self, packed: PackedBatch) -> None:
        """Find out whether the network returns memory that its next call writes to: copies help then."""
        torch.set_num_threads(self.threads_of(self._lanes[0]))
        self._copies_out = False
        for why in packed.failed.values():
            raise why
        try:
            with torch.inference_mode():
                first, again = [
                    self.call({name: torch.from_numpy(np.array(array)) for name, array in packed.feeds.items()})
                    for _ in range(2)
                ]
        except Exception as error:
            raise self.failed(error, packed.feeds) from error
        self._copies_out = bool(storages(first) & storages(again))
        self.loaded_ports().unpack([output.numpy() for output in first], packed)

    def _measured(self, packed: PackedBatch) -> int:
        """Bytes that one call takes on CUDA beyond the weights."""
        for why in packed.failed.values():
            raise why
        try:
            with torch.inference_mode(), torch.cuda.device(self._device):
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                outputs = self.call(
                    {name: torch.from_numpy(array).to(self._device) for name, array in packed.feeds.items()}
                )
                torch.cuda.synchronize()
                peak = torch.cuda.max_memory_allocated()
                arrays = [output.cpu().numpy() for output in outputs]
        except Exception as error:
            raise self.failed(error, packed.feeds) from error
        self.loaded_ports().unpack(arrays, packed)
        copies = 2 if self._graph else 1  # graphs have memory besides the allocator's
        return max(0, int(peak - before)) * max(1, len(self._lanes)) * copies

    # --- helpers ---

    def _array(self, output: torch.Tensor, shared: Set[int]) -> NDArray[Any]:
        """An output as an array that nothing else writes to."""
        array: NDArray[Any] = output.numpy()
        rows_share = any(not stride and length > 1 for stride, length in zip(output.stride(), output.shape))
        if rows_share or self._copies_out or output.untyped_storage().data_ptr() in shared:
            return np.array(array, copy=True)
        return array


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor, which the network may write to: a copy of an item's own, or a constant's."""
    return torch.from_numpy(array if array.flags.writeable and array.base is None else np.array(array))
