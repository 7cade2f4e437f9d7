"""A library in the shape of TensorRT 10.3 that launches real kernels (``trt_kernels.cu``) on the streams, addresses and
working memory that it is given: for GPUs without TensorRT. Where there is no GPU, the kernels are numpy's, on
``cuda_double.py``.

Plans are JSON: ``{"kind", "inputs": [[name, type, dims]...], "outputs", "profiles": [{input: [low, usual, high]}...],
"w", "b", "us", "aux"}``. ``affine``: y = w x + b; ``two``: s = p + q, d = p - w q; ``fault``: affine, but x[0] = 666
writes to no memory. The last kernel stays on the device for ``us``. Inputs go to the working memory first, in parts by
``aux`` streams beside the lane's, and results are computed from there: a wrong pointer, or working memory that two
batches use at once, shows in the numbers. :data:`PROBLEMS` has what a real TensorRT would not forgive.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import math
import os
import sys
import time
import types
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import numpy as np
from cuda_double import CudaDouble, Use

from edgeserve.engines.cuda import driver as cuda_driver
from edgeserve.engines.cuda.status import error_of
from edgeserve.errors import EngineError

MAGIC = b"trt-on-cuda\n"
VERSION = "10.3.0"
ALIGN = 256
DTYPES = {"FLOAT": np.float32, "HALF": np.float16, "INT64": np.int64}
THREADS = 256
EXECUTIONS = 8  # of a context that may wait at once
PROBLEMS: List[str] = []

Shape = Tuple[int, ...]


class Launch(NamedTuple):
    """A kernel on so many numbers: its parameters are ``pointers``, ``count``, ``more``. On the lane's stream
    (``part`` 0) or one beside it."""

    kernel: str
    pointers: Tuple[int, ...]
    count: int
    more: Tuple[int, ...] = ()
    part: int = 0


class Gpu(Protocol):
    """The place where kernels run. ``driver`` is EdgeServe's, or its double."""

    driver: Any

    def load(self) -> None:
        """Bring the kernels, into the context that is current."""

    def launch(self, one: Launch, stream: int) -> None:
        """Enqueue a kernel."""

    def write(self, pointer: int, values: Any) -> None:
        """Write to the device, now."""


class RealGpu:
    """CUDA's driver by NVIDIA's binding; kernels are compiled once."""

    def __init__(self) -> None:
        import cuda.bindings.driver as cu

        self.driver = cuda_driver.open_driver("cuda-bindings")
        self._cu = cu
        self._image = b""
        self._functions: Dict[str, Any] = {}
        self._held = self.driver.retain(0)  # modules go with their context, which others would let go of

    def load(self) -> None:
        if not self._image:
            parts = [self.driver.attribute(0, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")]
            self._image = _compiled("sm_{}{}".format(*parts))
            module = self._ask("cuModuleLoadData", self._image)
            for name in ("k_stage", *(f"k_affine_{kind}" for kind in DTYPES), "k_two_FLOAT", "k_fault_FLOAT"):
                self._functions[name] = self._ask("cuModuleGetFunction", module, name.encode())

    def launch(self, one: Launch, stream: int) -> None:
        cells = [ctypes.c_uint64(value) for value in (*one.pointers, one.count, *one.more)]
        places = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        grid = max(1, min(1024, -(-one.count // THREADS)))
        where = (grid, 1, 1, THREADS, 1, 1, 0, stream)
        self._ask("cuLaunchKernel", self._functions[one.kernel], *where, ctypes.addressof(places), 0)

    def write(self, pointer: int, values: Any) -> None:
        self._ask("cuMemcpyHtoD", pointer, values.ctypes.data, values.nbytes)

    def _ask(self, call: str, *arguments: Any) -> Any:
        status, *found = getattr(self._cu, call)(*arguments)
        if int(status):
            raise error_of(call, int(status), getattr(status, "name", ""))
        return found[0] if found else None


def _compiled(architecture: str) -> bytes:
    import cuda.bindings.nvrtc as nvrtc

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "trt_kernels.cu"), "rb") as file:
        _, program = nvrtc.nvrtcCreateProgram(file.read(), b"trt_kernels.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()])
    if int(status):
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"the kernels do not compile for {architecture}: {log.decode()}")
    image = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, image)
    return image


class HostCuda(CudaDouble):
    """Its clock goes on by itself, as that of lanes does."""

    now_ms = property(lambda self: time.monotonic() * 1e3, lambda self, value: None)


class HostGpu:
    """The kernels as numpy, on the double of the driver."""

    def __init__(self) -> None:
        self.driver = HostCuda()

    def load(self) -> None:
        pass

    def launch(self, one: Launch, stream: int) -> None:
        dtype = np.dtype(DTYPES.get(one.kernel.rpartition("_")[2], np.uint16))
        uses = [Use(pointer, one.count * dtype.itemsize) for pointer in one.pointers]

        def run() -> None:
            views = [self.driver.memory_at(*use).view(dtype) for use in uses]
            if one.kernel == "k_stage":
                views[1][:] = views[0]
                return
            w, b = self.driver.memory_at(one.more[0], 8).view(np.float32).astype(dtype)
            if "two" in one.kernel:
                views[2][:], views[3][:] = views[0] + views[1], views[0] - w * views[1]
            elif "fault" in one.kernel and views[0][0] == 666:
                self.driver.lost = 700
            else:
                views[1][:] = views[0] * w + b

        self.driver.enqueue(stream, one.kernel, run, uses)

    def write(self, pointer: int, values: Any) -> None:
        self.driver.memory_at(pointer, values.nbytes)[:] = values.view(np.uint8)


# --- plans ------------------------------------------------------------------------------------------------------------


def plan(
    kind: str, names: Sequence[str], sizes: Sequence[int], shape: Any, dtype: str = "FLOAT", **about: Any
) -> bytes:
    """A plan's bytes: a profile for each batch size. ``names``: as many inputs as outputs; ``shape`` of an item, or its
    smallest, usual and largest."""
    rows = shape if shape and isinstance(shape[0], (list, tuple)) else [shape] * 3
    dims = [-1, *(low if low == high else -1 for low, _, high in zip(*rows))]
    half = len(names) // 2
    profiles = [{name: [[size, *row] for row in rows] for name in names[:half]} for size in sizes]
    tensors = [[name, dtype, dims] for name in names]
    header = {"kind": kind, "inputs": tensors[:half], "outputs": tensors[half:], "profiles": profiles}
    return MAGIC + json.dumps({"w": 2, "b": 1, "us": 0, "aux": 0, **header, **about}).encode()


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


# --- the library ------------------------------------------------------------------------------------------------------


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


def _enum(name: str, *members: str) -> Any:
    return enum.IntEnum(name, [(member, place) for place, member in enumerate(members)])  # type: ignore[misc]


TensorIOMode = _enum("TensorIOMode", "NONE", "INPUT", "OUTPUT")
TensorLocation = _enum("TensorLocation", "DEVICE", "HOST")
TensorFormat = _enum("TensorFormat", "LINEAR", "CHW2")
DataType = _enum("DataType", "FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "FP8", "BF16", "INT64")
Strategy = _enum("ExecutionContextAllocationStrategy", "STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED")


class ICudaEngine:
    """A loaded plan: its weights on the device."""

    def __init__(self, gpu: Gpu, about: Dict[str, Any], log: ILogger) -> None:
        self._gpu, self._about, self._log = gpu, about, log
        self._inputs, self._outputs = ([name for name, _, _ in about[side]] for side in ("inputs", "outputs"))
        self._rows = {name: (kind, tuple(dims)) for name, kind, dims in (*about["inputs"], *about["outputs"])}
        self._bytes = ALIGN + max(
            sum(_up(self._size(name, profile[name][2])) for name in self._inputs) for profile in about["profiles"]
        )
        gpu.load()
        self._weights = gpu.driver.alloc_device(ALIGN)
        gpu.write(self._weights, np.array([about["w"], about["b"]], np.float32))

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_weights"):
            try:
                self._gpu.driver.free_device(self._weights)
            except Exception as error:  # noqa: BLE001 no context is current, or the device is lost
                if "700" not in str(error):
                    PROBLEMS.append(f"destroying an engine: {error}")

    def _size(self, name: str, shape: Sequence[int]) -> int:
        return math.prod(shape) * np.dtype(DTYPES[self._rows[name][0]]).itemsize

    num_io_tensors = property(lambda self: len(self._rows))
    num_optimization_profiles = property(lambda self: len(self._about["profiles"]))
    device_memory_size = device_memory_size_v2 = property(lambda self: self._bytes)
    num_aux_streams = property(lambda self: self._about["aux"])

    def get_tensor_name(self, index: int) -> str:
        return [*self._rows][index]

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self._rows[name][0]]

    def get_tensor_shape(self, name: str) -> Shape:
        return self._rows[name][1]

    def get_tensor_location(self, name: str) -> Any:
        return TensorLocation.DEVICE

    def get_tensor_format(self, name: str) -> Any:
        return TensorFormat.LINEAR

    def get_tensor_profile_shape(self, name: str, index: int) -> List[Shape]:
        return [tuple(row) for row in self._about["profiles"][index][name]]

    def create_execution_context(self, strategy: Any = None) -> Any:
        if strategy != Strategy.USER_MANAGED:
            PROBLEMS.append("a context with memory of its own was asked for")
        return IExecutionContext(self)


class IExecutionContext:
    """A profile, shapes, addresses and working memory."""

    def __init__(self, engine: ICudaEngine) -> None:
        self._engine, self._gpu = engine, engine._gpu
        self._memory = (0, 0)
        self._profile = -1
        self._shapes: Dict[str, Shape] = {}
        self._beside: List[int] = []
        self._addresses: Dict[str, int] = {}
        aux = engine.num_aux_streams
        self._events = [
            [self._gpu.driver.create_event(False) for _ in range(aux + 1)] for _ in range(EXECUTIONS if aux else 0)
        ]

    def __del__(self) -> None:
        if not sys.is_finalizing():
            try:
                for event in [event for events in getattr(self, "_events", ()) for event in events]:
                    self._gpu.driver.destroy_event(event)
            except Exception as error:  # noqa: BLE001 no context is current, or the device is lost
                if "700" not in str(error):
                    PROBLEMS.append(f"destroying a context: {error}")

    def set_device_memory(self, pointer: int, size: int) -> None:
        self._memory = pointer, size

    def set_aux_streams(self, handles: Sequence[int]) -> None:
        if 0 in handles or len(set(handles)) < len(handles):
            PROBLEMS.append(f"auxiliary streams {list(handles)}: the default stream, or one twice")
        self._beside = list(handles)

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self._profile, self._shapes = index, {}
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        low, _, high = self._engine.get_tensor_profile_shape(name, self._profile)
        if len(shape) != len(low) or any(not a <= b <= c for a, b, c in zip(low, shape, high)):
            return self._refuse(f"shape {tuple(shape)} of {name} is outside profile {self._profile}: {low} to {high}")
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        return self._shapes[self._engine._inputs[0]]  # all tensors have one shape

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        if pointer % ALIGN:
            PROBLEMS.append(f"the address {pointer:#x} of {name} is not aligned to {ALIGN} bytes")
        self._addresses[name] = pointer
        return True

    def execute_async_v3(self, stream: int) -> bool:
        driver, parts = self._gpu.driver, self._engine.num_aux_streams
        if not stream:
            PROBLEMS.append("an execution on the default stream")
        if len(self._beside) < parts:
            return self._refuse(f"{parts} auxiliary streams are needed, {len(self._beside)} were given")
        try:
            steps = self._launches()
            streams = [stream, *self._beside[:parts]]
            if parts:
                events = self._events.pop(0)
                self._events.append(events)
                driver.record(events[0], stream)
            for other in streams[1:]:
                driver.stream_wait(other, events[0])
            for one in steps[:-1]:
                self._gpu.launch(one, streams[one.part])
            for event, other in zip(events[1:] if parts else (), streams[1:]):
                driver.record(event, other)
                driver.stream_wait(stream, event)
            self._gpu.launch(steps[-1], stream)
        except (EngineError, ValueError) as error:
            return self._refuse(str(error))
        return True

    def _launches(self) -> List[Launch]:
        engine, (pointer, size) = self._engine, self._memory
        if not pointer or pointer % ALIGN or size < engine._bytes:
            raise ValueError(f"the context needs {engine._bytes} bytes of memory and has {size} at {pointer:#x}")
        steps, inputs, parts = [], [], 1 + engine.num_aux_streams
        for name in engine._inputs:
            source, units = self._addresses[name], engine._size(name, self._shapes[name]) // 2
            edges = [units * part // parts for part in range(parts + 1)]
            for part, (begin, end) in enumerate(zip(edges, edges[1:])):
                if end > begin:
                    steps.append(Launch("k_stage", (source + 2 * begin, pointer + 2 * begin), end - begin, (), part))
            inputs.append(pointer)
            pointer += _up(2 * units)
        about, count = engine._about, math.prod(self._shapes[engine._inputs[0]])
        kernel = f"k_{about['kind']}_{engine._rows[engine._inputs[0]][0]}"
        outputs = (self._addresses[name] for name in engine._outputs)
        return [*steps, Launch(kernel, (*inputs, *outputs), count, (engine._weights, int(about["us"] * 1000)))]

    def _refuse(self, why: str) -> bool:
        self._engine._log.log(ILogger.ERROR, why)
        return False


class Runtime:
    """Loads plans. ``gpu`` is the class's: set by :func:`installed`."""

    gpu: Gpu
    DLA_core = -1

    def __init__(self, logger: ILogger) -> None:
        self._log = logger

    def deserialize_cuda_engine(self, data: Any) -> Optional[ICudaEngine]:
        text = bytes(data)
        if not text.startswith(MAGIC):
            self._log.log(ILogger.ERROR, "magic tag does not match")
            return None
        try:
            return ICudaEngine(self.gpu, json.loads(text[len(MAGIC) :]), self._log)
        except EngineError as error:
            self._log.log(ILogger.ERROR, str(error))
            return None


class IBuilderConfig:
    """The attributes that the engine looks for in a library that builds; this one does not."""

    builder_optimization_level = 3
    max_aux_streams = progress_monitor = None


@contextlib.contextmanager
def installed(patch: Any, gpu: Gpu) -> Iterator[None]:
    """Within, ``import tensorrt`` finds this library, on that GPU; at the end nothing may have been wrong."""
    module = types.ModuleType("tensorrt")
    names = (ILogger, ICudaEngine, IExecutionContext, Runtime, IBuilderConfig)
    enums = (TensorIOMode, TensorLocation, TensorFormat, DataType, Strategy)
    vars(module).update({each.__name__: each for each in (*names, *enums)}, __version__=VERSION)
    patch.setitem(sys.modules, "tensorrt", module)
    patch.setitem(cuda_driver._open, "cuda-bindings", gpu.driver)
    patch.setattr(Runtime, "gpu", gpu, raising=False)
    PROBLEMS.clear()
    yield
    assert not PROBLEMS, PROBLEMS
