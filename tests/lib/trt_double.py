"""TensorRT and CUDA made of ONNX Runtime and numpy: they check every call and compute real results.

``library(version)`` has the names that a version of TensorRT has, of the classes that the engine uses, and no others:
``tensorrt_api.json`` is read from the real bindings (``scripts/dev/tensorrt_api.py``). A plan is the ONNX file with the
builder's settings; executing it runs ONNX Runtime on the memory of :class:`RecordingCuda`, when the stream gets there.

What a device would answer with wrong numbers, a crash or a hang raises :class:`~cuda_double.Misuse` here, besides what
``cuda_double`` notices:

* an execution on the default stream, without an address for a tensor, without memory for the context, or before its
  optimisation profile was selected and that was over;
* an address or context memory that is too small, misaligned, freed, or freed while the context lives;
* two operations on streams that no event orders, where one writes what the other touches;
* a context that two optimisation profiles share;
* the device's context given back while an engine lives;
* a graph captured before the context ran with those shapes, or launched after they changed or the context was freed;
* auxiliary streams that are the default stream, or one stream twice.

A plan whose builder was not told otherwise uses auxiliary streams; streams that its context is not given are TensorRT's
own, for which the default stream waits. TensorRT 8 gives a new context profile 0, or logs an error.

What TensorRT itself refuses returns ``False`` or ``None`` with a line in the log: a shape outside the profile, a
profile that another context holds (before 8.6), a plan of another version, shapes that vary on a DLA core, too little
memory for kernels. It proves nothing about speed. Where each behaviour is read: ``tests/lib/README.md``.
"""

from __future__ import annotations

import enum
import json
import weakref
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import onnx
import onnxruntime
import trt_build_double
from cuda_double import Armed, Misuse, Use
from recording_cuda import Access, Execution, RecordingCuda
from trt_build_double import (
    Builder,
    IBuilderConfig,
    IHostMemory,
    ILayer,
    INetworkDefinition,
    IOptimizationProfile,
    ITensor,
    ITimingCache,
    OnnxParser,
    ParserError,
    _narrow,
)
from trt_names import (
    ALIGNMENT,
    CONTEXT_BYTES,
    CONTRACTS,
    DTYPES,
    MAGIC,
    VERSIONS,
    ILogger,
    IOutputAllocator,
    IProfiler,
    IProgressMonitor,
    Model,
    _restricted,
    names_of,
    read_model,
)

cuda: Optional[RecordingCuda] = None
"""The device that plans are deserialized to: set by the test's fixture."""

trt_build_double.green_streams = lambda: () if cuda is None else cuda.stream_greens


# --- running ----------------------------------------------------------------------------------------------------------


class Runtime:
    DLA_core = -1
    engine_host_code_allowed = False

    def __init__(self, logger: Any) -> None:
        assert isinstance(logger, ILogger) and logger.initialised
        self._log = logger

    def deserialize_cuda_engine(self, data: Any) -> Optional[Any]:
        if cuda is None:
            self._log.log(ILogger.ERROR, "CUDA driver version is insufficient for CUDA runtime version")
            return None
        cuda._enter("deserialize_cuda_engine")
        if cuda.refusals:
            self._log.log(ILogger.ERROR, cuda.refusals.pop())
            return None
        data = bytes(data)
        if not data.startswith(MAGIC):
            self._log.log(ILogger.ERROR, "Assertion magicTagRead == kMAGIC_TAG failed: magic tag does not match")
            return None
        header, model = data[len(MAGIC) :].split(b"\n", 1)
        about = json.loads(header)
        goes_on = "VERSION_COMPATIBLE" in about["flags"] and VERSIONS.index(about["version"]) < VERSIONS.index(
            self._version
        )
        if goes_on and not self.engine_host_code_allowed:
            self._log.log(ILogger.ERROR, "the plan has host code, which is not allowed")
            return None
        if about["version"] != self._version and not goes_on:
            self._log.log(ILogger.ERROR, f"version tag does not match: {about['version']} is not {self._version}")
            return None
        return self._trt["ICudaEngine"](about, read_model(model), self._log)


class ICudaEngine:
    def __init__(self, about: Dict[str, Any], model: Model, log: Any) -> None:
        self._about, self._model, self._log = about, model, log
        cuda.add_engine(self)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model.data, options, providers=["CPUExecutionProvider"])
        self._shapes: Dict[Any, Dict[str, Tuple[int, ...]]] = {}
        self._holders: Dict[int, Any] = {}  # profile -> weak reference to the context that has it
        narrow = _narrow if self._version in ("8.5", "8.6") else str
        self._kinds = {
            **{name: narrow(kind) for name, kind, _ in model.inputs},
            **{name: narrow(kind) for name, kind in model.outputs},
        }
        self._dims = {name: tuple(dims) for name, _, dims in model.inputs}
        self._varying = _varying(onnx.load_model_from_string(model.data))
        rows = [max(shape[2], default=1) for profile in about["profiles"] for shape in profile.values()]
        self._bytes = CONTEXT_BYTES * max(rows, default=1)

    @property
    def num_io_tensors(self) -> int:
        return len(self._kinds)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._about["profiles"])

    @property
    def device_memory_size(self) -> int:
        return self._bytes

    @property
    def device_memory_size_v2(self) -> int:
        return self._bytes

    @property
    def num_aux_streams(self) -> int:
        return int(self._about.get("aux", 0))

    def get_tensor_name(self, index: int) -> str:
        return list(self._kinds)[index]

    def get_tensor_mode(self, name: str) -> Any:
        modes = self._trt["TensorIOMode"]
        return modes.INPUT if name in self._dims else modes.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(self._trt["DataType"], self._kinds[name])

    def get_tensor_shape(self, name: str) -> Tuple[int, ...]:
        if name in self._dims:
            return self._dims[name]
        wanted = self._session.get_outputs()[[item.name for item in self._session.get_outputs()].index(name)]
        return tuple(dim if isinstance(dim, int) else -1 for dim in wanted.shape)

    def get_tensor_location(self, name: str) -> Any:
        return getattr(self._trt["TensorLocation"], self._about.get("locations", {}).get(name, "DEVICE"))

    def get_tensor_format(self, name: str) -> Any:
        return enum.Enum("TensorFormat", ["LINEAR", "CHW16"])[self._about.get("formats", {}).get(name, "LINEAR")]

    def get_tensor_profile_shape(self, name: str, index: int) -> List[Tuple[int, ...]]:
        return [tuple(row) for row in self._about["profiles"][index][name]]

    def create_runtime_config(self) -> Any:
        return self._trt["IRuntimeConfig"](self)

    def create_execution_context(self, strategy: Any = None) -> Any:
        cache = None
        if isinstance(strategy, self._trt["IRuntimeConfig"]):
            config, strategy = strategy, strategy._strategy
            cache = config._cache
        cuda.compiled += cache is None or not cache._kernels
        if cache is not None:
            cache._kernels = cache._kernels or b"kernels"
        if strategy is None or strategy.name != "USER_MANAGED":
            raise Misuse("a context with device memory of its own: each would take the memory of the largest profile")
        return self._trt["IExecutionContext"](self)

    def create_execution_context_without_device_memory(self) -> Any:
        return self._trt["IExecutionContext"](self)

    def _compute(self, feeds: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        wide = {name: feeds[name].astype(DTYPES[kind]) for name, kind, _ in self._model.inputs}
        names = [name for name, _ in self._model.outputs]
        with np.errstate(all="ignore"):
            values = self._session.run(names, wide)
        return {name: np.asarray(value).astype(DTYPES[self._kinds[name]]) for name, value in zip(names, values)}

    def _output_shapes(self, shapes: Dict[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
        key = tuple(sorted(shapes.items()))
        if key not in self._shapes:
            zeros = {name: np.zeros(shape, DTYPES[self._kinds[name]]) for name, shape in shapes.items()}
            self._shapes[key] = {name: value.shape for name, value in self._compute(zeros).items()}
        return self._shapes[key]


class IRuntimeConfig:
    """The settings of contexts, from 10.13 on; in TensorRT-RTX with the kernels that a context compiles."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._strategy, self._cache = engine, None, None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = strategy

    def create_runtime_cache(self) -> Any:
        return self._trt["IRuntimeCache"]()

    def set_runtime_cache(self, cache: Any) -> bool:
        self._cache = cache
        return True


class IRuntimeCache:
    def __init__(self) -> None:
        self._kernels = b""

    def deserialize(self, data: bytes) -> bool:
        if not data.startswith(b"kernels"):
            return False
        self._kernels = bytes(data)
        return True

    def reset(self) -> None:
        self._kernels = b""

    def serialize(self) -> Any:
        return IHostMemory(self._kernels)


class IExecutionContext:
    _is_implicit = False
    profiler: Any = None

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._memory: Optional[Use] = None
        self._profile = -1
        self._selected: Optional[Access] = None
        self._shapes: Dict[str, Tuple[int, ...]] = {}
        self._addresses: Dict[str, int] = {}
        self._allocators: Dict[str, Any] = {}
        self._ran: Set[Any] = set()
        self._aux: List[int] = []
        self._own_aux: List[int] = []
        cuda.add_context(self)
        self._take_first_profile()

    def _take_first_profile(self) -> None:
        """TensorRT 8 gives a new context profile 0, and says so of each that it cannot give it."""
        engine = self._engine
        if engine._version not in ("8.5", "8.6"):
            return
        holder = engine._holders.get(0)
        if holder is not None and holder() is not None:
            engine._log.log(
                ILogger.ERROR, "Profile 0 has been chosen by another IExecutionContext. Use another profile"
            )
            return
        engine._holders[0], self._profile, self._is_implicit = weakref.ref(self), 0, True

    def set_aux_streams(self, handles: Sequence[int]) -> None:
        if 0 in handles or len(set(handles)) < len(handles):
            raise Misuse(f"auxiliary streams {list(handles)}: the default stream, or one twice, blocks for ever")
        self._aux = list(handles)

    def _streams_beside(self) -> List[int]:
        """The auxiliary streams: the given ones, and its own for the rest."""
        wanted = int(self._engine._about.get("aux", 0))
        while len(self._aux) + len(self._own_aux) < wanted:
            self._own_aux.append(cuda.library_stream())
        return [*self._aux, *self._own_aux][:wanted]

    def set_device_memory(self, pointer: int, size: int) -> None:
        self._memory = Use(pointer, size)

    def _old_memory(self, pointer: int) -> None:
        self._memory = Use(pointer, self._engine._bytes)

    device_memory = property(None, _old_memory)

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        engine = self._engine
        if not 0 <= index < len(engine._about["profiles"]):
            return self._refuse(f"profile {index} does not exist")
        if self._memory is not None and self._profile not in (-1, index) and not self._is_implicit:
            raise Misuse(
                f"a context that runs profile {self._profile} was bound to profile {index}: its shapes are "
                "gone, and before 10 the change is not ordered with its executions"
            )
        holder = engine._holders.get(index)
        other = holder() if holder is not None else None
        if other is not None and other is not self and not engine._about["share"]:
            return self._refuse(f"profile {index} is in use by another context")
        if self._is_implicit:
            engine._holders.pop(0)
            self._is_implicit = False
        engine._holders[index] = weakref.ref(self)
        self._profile, self._shapes, self._addresses = index, {}, dict(self._addresses)
        cuda.give(_real(stream), Execution(f"select profile {index}", lambda: None))
        self._selected = Access(stream, cuda._clock(stream)[stream], "select profile", (), ())
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        if self._profile < 0:
            raise Misuse("set_input_shape before an optimisation profile was selected")
        low, _, high = self._engine._about["profiles"][self._profile][name]
        if len(shape) != len(low) or any(not a <= b <= c for a, b, c in zip(low, shape, high)):
            return self._refuse(f"shape {tuple(shape)} of {name} is outside profile {self._profile}: {low} to {high}")
        self._shapes = {**self._shapes, name: tuple(shape)}
        return True

    def get_tensor_shape(self, name: str) -> Tuple[int, ...]:
        if name in self._engine._dims:
            return self._shapes.get(name, self._engine._dims[name])
        if name in self._engine._varying:
            return self._engine.get_tensor_shape(name)
        return self._engine._output_shapes(self._shapes)[name]

    def get_max_output_size(self, name: str) -> int:
        """The size for inputs of ones, all of which NonZero finds."""
        feeds = {each: np.ones(shape, DTYPES[self._engine._kinds[each]]) for each, shape in self._shapes.items()}
        return int(self._engine._compute(feeds)[name].nbytes) if len(feeds) == len(self._engine._dims) else -1

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        assert allocator.initialised
        self._allocators[name] = allocator
        return True

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        if name not in self._engine._kinds:
            return self._refuse(f"there is no tensor {name}")
        self._addresses[name] = pointer
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        stream = _real(stream_handle)
        self._check_ready(stream)
        addresses, shapes = dict(self._addresses), dict(self._shapes)
        engine = self._engine
        all_shapes = {**shapes, **engine._output_shapes(shapes)}
        if self._allocators and not self._allocate(stream, shapes, addresses, all_shapes):
            return False
        places = {
            name: Use(addresses[name], max(1, _bytes(shape, engine._kinds[name]))) for name, shape in all_shapes.items()
        }
        for use in places.values():
            cuda._block(use.pointer, use.size)
        memory = self._memory
        outputs = [places[name] for name in places if name not in engine._dims]
        me, seen = weakref.ref(self), (self._profile, tuple(sorted(shapes.items())))
        if cuda.capturing(stream) and seen not in self._ran:
            raise Misuse("a graph was captured before the context ran with these shapes: it holds the initialisation")
        self._ran.add(seen)

        def arm() -> Armed:
            context = me()
            if context is None:
                raise Misuse("a graph was launched after its execution context was freed")
            if (context._profile, tuple(sorted(context._shapes.items()))) != seen:
                raise Misuse("a graph was launched after its context's shapes had changed")
            return Armed()

        def run() -> None:
            feeds = {
                name: cuda.memory_at(*places[name]).view(DTYPES[engine._kinds[name]]).reshape(shape).copy()
                for name, shape in shapes.items()
                if name in engine._dims
            }
            for name, value in engine._compute(feeds).items():
                cuda.memory_at(*places[name])[: value.nbytes] = np.ascontiguousarray(value).view(np.uint8).ravel()

        operation = Execution("execute", run, [*places.values(), memory], 1.0, arm)
        operation.writes = (*outputs, memory)
        beside = self._streams_beside()
        if cuda.capturing(stream):
            cuda._joined[stream] = set(beside)
        for other in beside:  # waits for the stream, works in the context's memory, and the stream waits for it
            cuda.beside(stream, other, Execution("auxiliary", lambda: None, [memory]))
        cuda.give(stream, operation)
        if self.profiler is not None and not cuda.capturing(stream):  # which the host waits for
            cuda.synchronize_stream(stream)
            for name, kind, _ in engine._model.nodes:
                self.profiler.report_layer_time(name or kind, 1e-3 * sum(use.size for use in places.values()))
        return True

    def _allocate(
        self, stream: int, shapes: Dict[str, Any], addresses: Dict[str, int], all_shapes: Dict[str, Any]
    ) -> bool:
        """Ask for the memory of outputs whose shape depends on values, which the host waits for."""
        if cuda.capturing(stream):
            return self._refuse("a shape that depends on values cannot be captured")
        cuda.synchronize_stream(stream)
        engine = self._engine
        feeds = {
            name: cuda.memory_at(addresses[name], max(1, _bytes(shape, engine._kinds[name])))[
                : _bytes(shape, engine._kinds[name])
            ]
            .view(DTYPES[engine._kinds[name]])
            .reshape(shape)
            for name, shape in shapes.items()
        }
        values = engine._compute(feeds)
        for name, allocator in self._allocators.items():
            pointer = allocator.reallocate_output(name, addresses.get(name), max(1, values[name].nbytes), ALIGNMENT)
            if not pointer:
                return self._refuse(f"output {name} got no memory")
            allocator.notify_shape(name, values[name].shape)
            addresses[name], all_shapes[name] = pointer, values[name].shape
        return True

    def _check_ready(self, stream: int) -> None:
        engine = self._engine
        greens = {cuda.stream_greens.get(each, 0) for each in (stream, *self._aux)}
        if len(greens) > 1:
            raise Misuse("the stream and its auxiliary streams have different multiprocessors")
        if self._version in CONTRACTS and greens != {0} and not engine._about.get("green"):
            raise Misuse("a plan that was built on the whole GPU ran on a part of it: that is undefined")
        missing = [name for name in engine._kinds if name not in self._addresses and name not in self._allocators]
        if missing:
            raise Misuse(f"an execution without set_tensor_address of {missing}")
        if self._profile < 0 or any(name not in self._shapes for name in engine._dims):
            raise Misuse("an execution before the profile and every input's shape were set")
        if self._selected is not None and not cuda.is_ordered(stream, self._selected):
            raise Misuse("an execution on another stream than the profile was selected on, and nothing orders the two")
        if self._memory is None or self._memory.size < engine._bytes:
            raise Misuse(f"a context that needs {engine._bytes} bytes of memory has {self._memory}")
        if self._memory.pointer % ALIGNMENT:
            raise Misuse(f"the context's memory at {self._memory.pointer:#x} is not aligned to {ALIGNMENT} bytes")
        cuda._block(self._memory.pointer, self._memory.size)

    def _refuse(self, why: str) -> bool:
        self._engine._log.log(ILogger.ERROR, why)
        return False


def _varying(proto: Any) -> Set[str]:
    """The outputs whose shape depends on values."""
    found: Set[str] = set()
    for node in proto.graph.node:
        if node.op_type in ("NonZero", "NonMaxSuppression", "Compress", "Unique") or found & set(node.input):
            found |= set(node.output)
    return found & {port.name for port in proto.graph.output}


def _real(stream: int) -> int:
    if not stream:
        raise Misuse("TensorRT was given the default stream: it synchronises with every other one")
    return stream


def _bytes(shape: Sequence[int], kind: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(DTYPES[kind]).itemsize


# --- the module -------------------------------------------------------------------------------------------------------

TEMPLATES = (
    Builder,
    INetworkDefinition,
    ITensor,
    ILayer,
    IBuilderConfig,
    ITimingCache,
    IOptimizationProfile,
    OnnxParser,
    ParserError,
    Runtime,
    ICudaEngine,
    IRuntimeConfig,
    IRuntimeCache,
    IExecutionContext,
)
ENUMS = (
    "BuilderFlag",
    "DataType",
    "DeviceType",
    "ExecutionContextAllocationStrategy",
    "LayerType",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "PreviewFeature",
    "TensorIOMode",
    "TensorLocation",
    "ComputeCapability",
)


def library(version: str) -> Dict[str, Any]:
    """The names of a TensorRT module of ``version``: one of :data:`VERSIONS`."""
    trt: Dict[str, Any] = {
        "__version__": "1.7.1" if version == "rtx" else f"{version}.0",
        "ILogger": ILogger,
        "IHostMemory": IHostMemory,
        "IOutputAllocator": IOutputAllocator,
        "IProfiler": IProfiler,
    }
    for owner in ENUMS:
        names = sorted(names_of(owner, version))
        if names:
            trt[owner] = enum.IntEnum(owner, names, start=0)
    for template in TEMPLATES:
        trt[template.__name__] = _restricted(template.__name__, template, version)
    trt["_plugins"] = []
    own = [] if version == "rtx" else ["EfficientNMS_TRT"]  # RTX has the call and none of the plugins
    trt["init_libnvinfer_plugins"] = lambda logger, namespace: trt["_plugins"].extend(own) or True
    if names_of("IProgressMonitor", version):
        trt["IProgressMonitor"] = IProgressMonitor
    for template in TEMPLATES:
        trt[template.__name__]._trt = trt
    return trt
