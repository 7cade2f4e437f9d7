"""TensorRT and CUDA made of ONNX Runtime and numpy: they check every call and compute real results.

``library(version)`` has the names that a version of TensorRT has, of the classes that the engine uses, and no others:
``tensorrt_api.json`` is read from the real bindings (``scripts/dev/tensorrt_api.py``). A plan is the ONNX file with
what the builder was told; executing it runs ONNX Runtime on the memory of :class:`RecordingCuda`, when the stream gets
there.

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

A plan whose builder was not told otherwise uses auxiliary streams; those that its context is not given are TensorRT's
own, for which the default stream waits. TensorRT 8 gives a new context profile 0, or logs an error.

What TensorRT itself refuses returns ``False`` or ``None`` with a line in the log: a shape outside the profile, a
profile that another context holds (before 8.6), a plan of another version, shapes that vary on a DLA core, too little
memory for kernels. It proves nothing about speed. Where each behaviour is read: ``tests/lib/README.md``.
"""

from __future__ import annotations

import ctypes
import enum
import gc
import json
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import onnx
import onnxruntime
from cuda_double import Armed, CudaDouble, Misuse, Operation, Use, one_at_a_time

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "tensorrt_api.json"), encoding="utf-8") as _file:
    API: Dict[str, Any] = json.load(_file)

VERSIONS: Tuple[str, ...] = tuple(API["versions"])
MAGIC = b"trt-double\n"
ALIGNMENT = 256
CONTEXT_BYTES = 4096  # per batch row: what a context's working memory takes here
TACTIC_BYTES = 32 << 20  # that the builder needs for the least of its kernels
AUX_STREAMS = 2  # of a plan whose builder was not told how many it may have

CONTRACTS = ("11.4", "rtx")  # say on which part of a GPU a plan may run
NO_DLA = ("10.13", "10.16", "11.0", "11.1", "rtx")

cuda: Optional[RecordingCuda] = None
"""The device that plans are deserialized to: set by the test's fixture."""


# --- CUDA: who may touch what, when -----------------------------------------------------------------------------------


class Access(NamedTuple):
    """An operation's place in its stream and the memory that it touches."""

    stream: int
    count: int
    name: str
    reads: Tuple[Use, ...]
    writes: Tuple[Use, ...]


class Execution(Operation):
    """An operation that knows which of its memory it writes."""

    writes: Tuple[Use, ...] = ()


@one_at_a_time
class RecordingCuda(CudaDouble):
    """A CUDA double that orders operations by streams, events and the host's waits (vector clocks), and refuses two
    that are not ordered and touch the same bytes."""

    name = "recording double"
    now_ms = property(lambda self: time.monotonic() * 1e3, lambda self, value: None)  # the lane's clock goes on too

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled = 0  # contexts whose kernels had to be compiled (TensorRT-RTX)
        self.refusals: List[str] = []  # what the library says instead of loading a plan, or making a context
        self._clocks: Dict[int, Dict[int, int]] = {}
        self._event_clocks: Dict[int, Dict[int, int]] = {}
        self._host: Dict[int, int] = {}
        self._open: List[Access] = []
        self._joints: List[int] = []  # events of executions that use several streams

    def record(self, event: int, stream: int) -> None:
        super().record(event, stream)
        self._event_clocks[event] = dict(self._clock(stream))

    def stream_wait(self, stream: int, event: int) -> None:
        super().stream_wait(stream, event)
        _merge(self._clock(stream), self._event_clocks.get(event, {}))

    def synchronize_event(self, event: int) -> None:
        super().synchronize_event(event)
        _merge(self._host, self._event_clocks.get(event, {}))

    def event_done(self, event: int) -> bool:
        done = super().event_done(event)
        if done:
            _merge(self._host, self._event_clocks.get(event, {}))
        return done

    def synchronize_stream(self, stream: int) -> None:
        super().synchronize_stream(stream)
        _merge(self._host, self._clock(stream))

    def stream_done(self, stream: int) -> bool:
        done = super().stream_done(stream)
        if done:
            _merge(self._host, self._clock(stream))
        return done

    def free_device(self, pointer: int) -> None:
        for context in self.contexts if sys.exc_info()[0] is None else ():  # else the traceback may keep it alive
            if context._memory is not None and context._memory.pointer == pointer:
                raise Misuse(f"device memory at {pointer:#x} was freed while an execution context has it")
        super().free_device(pointer)

    def release(self, index: int, context: int) -> None:
        if len(self.engines) and self._contexts == {index: 1}:
            gc.collect()  # cycles do not count
        if len(self.engines) and self._contexts == {index: 1}:
            raise Misuse("the device's context was given back while an engine of TensorRT lives on it")
        super().release(index, context)

    def add_context(self, context: Any) -> None:
        self.contexts.add(context)

    def add_engine(self, engine: Any) -> None:
        self.engines.add(engine)

    def is_ordered(self, stream: int, access: Access) -> bool:
        """Whether what is given to ``stream`` now runs after ``access``."""
        return self._clock(stream).get(access.stream, 0) >= access.count

    def give(self, stream: int, operation: Operation) -> None:
        """Enqueue an operation, or capture it."""
        self._enter("enqueue", operation.name)
        self._give(stream, operation)

    def beside(self, stream: int, other: int, operation: Operation) -> None:
        """Enqueue an operation on another stream, between what the stream has and what it gets."""
        if self.capturing(stream):
            self.give(stream, operation)
            return
        self._joints = [event for event in self._joints if not self._forget_passed(event)]
        for first, then, what in ((stream, other, operation), (other, stream, None)):
            event = super().create_event(False)
            self._joints.append(event)
            self.record(event, first)
            self.stream_wait(then, event)
            if what is not None:
                self.give(then, what)

    def _forget_passed(self, event: int) -> bool:
        passed = self._events[event].passed >= self._events[event].recorded
        if passed:
            del self._events[event], self._event_clocks[event]
        return passed

    def leaks(self) -> List[str]:
        own = [f"event {event}" for event in self._joints if self._events[event].passed]
        return [leak for leak in super().leaks() if leak not in own]

    def capturing(self, stream: int) -> bool:
        """Whether the stream is being captured."""
        return stream in self._captures

    def _clock(self, stream: int) -> Dict[int, int]:
        clock = self._clocks.setdefault(stream, {})
        _merge(clock, self._host)
        return clock

    def _give(self, stream: int, operation: Operation) -> None:
        if stream not in self._captures:
            self._order(stream, operation)
        super()._give(stream, operation)

    def _order(self, stream: int, operation: Operation) -> None:
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        # Copies and fills write the first thing that they use; an execution says what it writes.
        writes = operation.writes if isinstance(operation, Execution) else operation.uses[:1]
        reads = tuple(use for use in operation.uses if use not in writes)
        self._open = [access for access in self._open if self._host.get(access.stream, 0) < access.count]
        for access in self._open:
            if self.is_ordered(stream, access):
                continue
            if _touch(writes, (*access.reads, *access.writes)) or _touch(reads, access.writes):
                raise Misuse(
                    f"{operation.name!r} on stream {stream} and {access.name!r} on stream {access.stream} "
                    "touch the same memory, and nothing orders them"
                )
        if operation.uses:
            self._open.append(Access(stream, clock[stream], operation.name, reads, tuple(writes)))


def _merge(clock: Dict[int, int], other: Dict[int, int]) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def _touch(ones: Sequence[Use], others: Sequence[Use]) -> bool:
    return any(
        one.pointer < other.pointer + other.size and other.pointer < one.pointer + one.size
        for one in ones
        for other in others
    )


# --- what both halves of TensorRT share -------------------------------------------------------------------------------


class Model(NamedTuple):
    """What is read of an ONNX file."""

    data: bytes
    inputs: List[Tuple[str, str, List[int]]]  # name, TensorRT's type, dims
    outputs: List[Tuple[str, str]]
    nodes: List[Tuple[str, str, str]]  # name, operator, domain
    axes: List[List[str]]  # of each input: the names of its open axes


TYPES = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.INT8: "INT8",
}
DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT64": np.int64,
    "INT32": np.int32,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
}


def read_model(data: bytes) -> Model:
    proto = onnx.load_model_from_string(data)
    weights = {item.name for item in proto.graph.initializer}
    inputs = [
        (
            item.name,
            TYPES[item.type.tensor_type.elem_type],
            [dim.dim_value if dim.HasField("dim_value") else -1 for dim in item.type.tensor_type.shape.dim],
        )
        for item in proto.graph.input
        if item.name not in weights
    ]
    outputs = [(item.name, TYPES[item.type.tensor_type.elem_type]) for item in proto.graph.output]
    axes = [
        [dim.dim_param for dim in item.type.tensor_type.shape.dim]
        for item in proto.graph.input
        if item.name not in weights
    ]
    return Model(data, inputs, outputs, [(node.name, node.op_type, node.domain) for node in proto.graph.node], axes)


def names_of(owner: str, version: str) -> Set[str]:
    """The public names that a class has in a version."""
    return {name for name, versions in API["classes"][owner].items() if version in versions.split()}


def _restricted(owner: str, template: type, version: str) -> type:
    """``template`` without the names that the version does not have. Nothing else can be set on its objects."""
    names = names_of(owner, version)
    kept = {name: value for name, value in vars(template).items() if name.startswith("_") or name in names}
    kept.pop("__dict__", None)
    kept.pop("__weakref__", None)
    kept["_version"] = version

    def guard(self: Any, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            raise AttributeError(f"{owner} of TensorRT {version} has no attribute {name!r}")
        object.__setattr__(self, name, value)

    kept["__setattr__"] = guard
    return type(owner, (), kept)


class ILogger:
    """The base of loggers; ``log`` is the user's."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self) -> None:
        self.initialised = True

    def log(self, severity: int, message: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    """The base of progress monitors."""

    def __init__(self) -> None:
        self.initialised = True


class IProfiler:
    """The base of profilers of layers."""

    def __init__(self) -> None:
        self.initialised = True


class IOutputAllocator:
    """The base of allocators of outputs whose shape depends on values."""

    def __init__(self) -> None:
        self.initialised = True


# --- building ---------------------------------------------------------------------------------------------------------


class Builder:
    def __init__(self, logger: Any) -> None:
        assert isinstance(logger, ILogger) and logger.initialised
        self._log = logger

    @property
    def num_DLA_cores(self) -> int:  # noqa: N802 TensorRT's name
        """Of AGX Orin: the releases without DLA see none."""
        return int(self._version not in NO_DLA)

    def create_network(self, flags: int = 0) -> Any:
        bits = self._trt["NetworkDefinitionCreationFlag"]
        if self._version in ("8.5", "8.6") and not flags & 1 << int(bits.EXPLICIT_BATCH):
            raise Misuse("TensorRT 8 was asked for a network with an implicit batch axis")
        return self._trt["INetworkDefinition"](flags)

    def create_builder_config(self) -> Any:
        return self._trt["IBuilderConfig"]()

    def create_optimization_profile(self) -> Any:
        return self._trt["IOptimizationProfile"]()

    def build_serialized_network(self, network: Any, config: Any) -> Optional[Any]:
        _plant(os.environ.get("TRT_DOUBLE_FAULT", ""))
        if network._model is None:
            self._log.log(ILogger.ERROR, "the network is empty")
            return None
        if config._pools.get("WORKSPACE", 1 << 40) < 1 << 16:
            self._log.log(ILogger.ERROR, "Insufficient workspace for a layer: OutOfMemory")
            return None
        why = _contradiction(network, config._profiles)
        if why:
            self._log.log(ILogger.ERROR, why)
            return None
        if config._pools.get("TACTIC_DRAM", 1 << 40) < TACTIC_BYTES:
            self._log.log(ILogger.WARNING, f"Tactic device request: {TACTIC_BYTES >> 20}MB. Skipping tactic")
            self._log.log(ILogger.ERROR, "Could not find any implementation for node: insufficient memory")
            return None
        if config._dla_core >= 0 and any(
            low != high for profile in config._profiles for low, _, high in profile._shapes.values()
        ):
            self._log.log(ILogger.ERROR, "DLA Layer: dynamic dimensions: min, opt and max must be equal")
            return None
        for _ in config._announce():
            pass
        allowed = getattr(config, "max_aux_streams", None)  # since 8.6
        aux = AUX_STREAMS if allowed is None else min(AUX_STREAMS, allowed)
        header = {
            "aux": 0 if self._version == "8.5" else aux,
            "version": self._version,
            "profiles": [profile._shapes for profile in config._profiles],
            "flags": sorted(config._flags),
            "network_flags": network._flags,
            "dla_core": config._dla_core,
            "green": cuda is not None and config.profile_stream in cuda.stream_greens,
            "share": self._version not in ("8.5", "8.6") or "PROFILE_SHARING_0806" in config._previews,
        }
        return IHostMemory(MAGIC + json.dumps(header).encode() + b"\n" + network._model.data)


def _plant(fault: str) -> None:
    """What a builder may do to its process, for tests of what watches it."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "crashed":
        print("a line of the library's own", file=sys.stderr, flush=True)
        os.abort()
    elif fault == "grows":
        kept = []
        while True:
            kept.append(np.ones(1 << 20))
            threading.Event().wait(0.01)
    elif fault == "computes":  # in one call that keeps the interpreter's lock, as some of the library's do
        sum(range(12 * 10**7))
    elif fault == "stuck":
        ctypes.PyDLL(None).sleep(120)
    elif fault == "hangs":
        threading.Event().wait(120)
    elif fault == "raises":
        raise RuntimeError("a bug of the library")


def _contradiction(network: Any, profiles: Sequence[Any]) -> str:
    """Axes of one name must be one length, as TensorRT has it."""
    for profile in profiles:
        seen: Dict[str, Any] = {}
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            for axis, name in enumerate(tensor._axes):
                rows = [row[axis] for row in profile._shapes[tensor._name]]
                if name and seen.setdefault(name, rows) != rows:
                    return f"Dimensions with name {name} must be equal"
    return ""


class IHostMemory(bytes):
    """What the builder returns: something that gives bytes."""


class INetworkDefinition:
    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._model: Optional[Model] = None
        self._inputs: Dict[int, Any] = {}

    @property
    def num_inputs(self) -> int:
        return len(self._model.inputs) if self._model else 0

    @property
    def num_layers(self) -> int:
        return len(self._model.nodes) if self._model else 0

    def get_input(self, index: int) -> Any:
        if index not in self._inputs:
            self._inputs[index] = self._trt["ITensor"](*self._model.inputs[index], self._model.axes[index])
        return self._inputs[index]

    def get_layer(self, index: int) -> Any:
        return self._trt["ILayer"](*self._model.nodes[index])


class ITensor:
    is_shape_tensor = False

    def __init__(self, name: str, kind: str, dims: Sequence[int], axes: Sequence[str] = ()) -> None:
        self._name, self._kind, self._dims, self._axes = name, kind, tuple(dims), list(axes)

    def get_dimension_name(self, axis: int) -> str:
        return self._axes[axis]

    def set_dimension_name(self, axis: int, name: str) -> None:
        self._axes[axis] = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._dims

    @property
    def dtype(self) -> Any:
        return getattr(self._trt["DataType"], self._kind)


class ILayer:
    num_outputs = 1

    def __init__(self, name: str, operator: str, domain: str) -> None:
        self._operator = operator

    @property
    def type(self) -> Any:
        kinds = self._trt["LayerType"]
        return kinds.QUANTIZE if self._operator == "QuantizeLinear" else kinds.ELEMENTWISE

    def get_output(self, index: int) -> Any:
        return self._trt["ITensor"]("", "HALF" if self._operator == "Half" else "FLOAT", ())


class IBuilderConfig:
    DLA_core = 0
    default_device_type: Any = None
    builder_optimization_level = 3
    progress_monitor: Any = None
    num_compute_capabilities = 1
    max_aux_streams: Any = None
    profile_stream = 0

    def __init__(self) -> None:
        self._profiles: List[Any] = []
        self._flags: List[str] = []
        self._previews: List[str] = []
        self._pools: Dict[str, int] = {}
        self._cache: Any = None

    @property
    def _dla_core(self) -> int:
        return self.DLA_core if self.default_device_type is not None else -1

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def set_flag(self, flag: Any) -> None:
        self._flags.append(flag.name)

    def set_preview_feature(self, feature: Any, on: bool) -> None:
        assert on
        self._previews.append(feature.name)

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self._pools[pool.name] = size

    def set_compute_capability(self, capability: Any, index: int) -> bool:
        return index < self.num_compute_capabilities

    def create_timing_cache(self, data: bytes) -> Optional[Any]:
        return None if data.startswith(b"foreign") else self._trt["ITimingCache"](data)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return not ignore_mismatch

    def get_timing_cache(self) -> Any:
        return self._cache

    def _announce(self) -> Any:
        monitor = getattr(self, "progress_monitor", None)  # since 10.0
        if monitor is not None:
            assert monitor.initialised
            monitor.phase_start("Building", None, 2)
            for step in range(2):
                yield monitor.step_complete("Building", step)
            monitor.phase_finish("Building")


class ITimingCache:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def serialize(self) -> bytes:
        return self._data or b"timings"


class IOptimizationProfile:
    profile_stream = 0

    def __init__(self) -> None:
        self._shapes: Dict[str, List[List[int]]] = {}

    def set_shape(self, name: str, low: Sequence[int], usual: Sequence[int], high: Sequence[int]) -> None:
        self._shapes[name] = [list(low), list(usual), list(high)]

    def get_shape(self, name: str) -> List[Tuple[int, ...]]:
        return [tuple(row) for row in self._shapes[name]]


class OnnxParser:
    def __init__(self, network: Any, logger: Any) -> None:
        self._network = network
        self._errors: List[Any] = []

    def parse_from_file(self, path: str) -> bool:
        try:
            model = read_model(onnx.load(path).SerializeToString())  # with the weights that lie beside it
        except Exception as error:  # noqa: BLE001 protobuf raises a type of its own
            self._errors.append(self._trt["ParserError"](-1, "", "", f"failed to parse the file: {error}"))
            return False
        for index, (name, operator, domain) in enumerate(model.nodes):
            if domain not in ("", "ai.onnx") or (operator.endswith("_TRT") and operator not in self._trt["_plugins"]):
                self._errors.append(self._trt["ParserError"](index, name, operator, "plugin not found"))
        if self._version in ("8.5", "8.6"):  # no int64: the parser takes int32
            model = model._replace(inputs=[(name, _narrow(kind), dims) for name, kind, dims in model.inputs])
        self._network._model = model
        return not self._errors

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return self._errors[index]


class ParserError:
    def __init__(self, node: int, name: str, operator: str, why: str) -> None:
        self._node, self._name, self._operator, self._why = node, name, operator, why

    def node(self) -> int:
        return self._node

    def desc(self) -> str:
        return self._why

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator


def _narrow(kind: str) -> str:
    return "INT32" if kind == "INT64" else kind


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
    """How contexts are made, from 10.13 on; of TensorRT-RTX with the kernels that making one compiles."""

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
        """The auxiliary streams: those that it was given, and its own for the rest."""
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
        """Of inputs of ones, of which NonZero finds all."""
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
                self.profiler.report_layer_time(name or kind, 1.5)
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
