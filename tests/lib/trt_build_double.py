"""TensorRT's building half: networks, parsers, configurations, builders. ``trt_double`` has the other."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import onnx
from cuda_double import Misuse
from trt_names import AUX_STREAMS, MAGIC, NO_DLA, TACTIC_BYTES, ILogger, Model, read_model


class Builder:
    def __init__(self, logger: Any) -> None:
        assert isinstance(logger, ILogger) and logger.initialised
        self._log = logger

    @property
    def num_DLA_cores(self) -> int:  # noqa: N802 TensorRT's name
        """The DLA cores of AGX Orin; releases without DLA see none."""
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
            "green": config.profile_stream in green_streams(),
            "share": self._version not in ("8.5", "8.6") or "PROFILE_SHARING_0806" in config._previews,
        }
        return IHostMemory(MAGIC + json.dumps(header).encode() + b"\n" + network._model.data)


def _plant(fault: str) -> None:
    """End or block this process as a builder may, for tests of the process that watches it."""
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
    """The builder's result: an object that gives bytes."""


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


def green_streams() -> Any:
    """The streams of green contexts: ``trt_double`` puts its device's here."""
    return ()
