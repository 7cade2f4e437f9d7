"""The ``onnx`` engine: ONNX Runtime on a CPU, CUDA or TensorRT provider.

ONNX Runtime falls back to the CPU without an error when a provider cannot start; this engine compares what it got with
what was asked and refuses. Padding and stacking are :mod:`edgeserve.engines.collate`'s; what a model's inputs mean is
:mod:`edgeserve.engines.ports`'; this module owns the session. Options:

``providers`` (``"cpu"``, ``"cuda"``, ``"tensorrt"`` or full names), ``provider_options`` (a table per provider),
``threads`` (default: the lane's), ``spin`` (default false: waiting threads sleep instead of burning the other lanes'
cores), ``example`` (``"module:function"``, where zeros of ``shapes`` would mislead), and those of
:mod:`edgeserve.engines.ports`.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

import numpy as np
import onnxruntime

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, Result, Values
from edgeserve.engines.files import model_path, weights_size_bytes
from edgeserve.engines.options import Options
from edgeserve.engines.ports import PORT_OPTIONS, Port, Ports
from edgeserve.engines.python import import_function
from edgeserve.errors import EngineError

KNOWN_OPTIONS = ("providers", "provider_options", "threads", "spin", "example", *PORT_OPTIONS)

PROVIDER_NAMES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider",
                  "tensorrt": "TensorrtExecutionProvider"}

WORK_PER_INPUT_BYTE = 32
"""Estimated working memory per byte of the largest batch's inputs, until a profile has measured it: between 12 and 41
for the reader demo's three convolutional networks (docs/profiling.md)."""

LOG_ERRORS_ONLY = 3
"""ONNX Runtime's severity from which it prints: what matters is raised here instead."""


def make(model: ModelConfig, lane: LaneInfo, directory: str) -> Engine:
    """The registry's entry."""
    return OnnxEngine(model, lane, directory)


class OnnxEngine(Engine):
    """One ONNX file in one session. ``run`` may be called from several threads at once. Knows no request and no
    stream: recurrent states come in with the batch and go out with the results."""

    def __init__(self, model: ModelConfig, lane: LaneInfo, directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._name = model.name
        self._model = model
        self._lane = lane
        self._directory = directory
        self._threads = options.integer("threads", lane.threads, 1, 1024)
        self._spin = options.boolean("spin", False)
        self._example = options.text("example")
        self._options = options
        self._asked = asked_providers(options, lane)
        self._session: Any = None
        self._ports: Ports | None = None
        self._footprint = Footprint(0)

    def load(self) -> Footprint:
        """Create the session, verify its providers and check the model's inputs against the configuration."""
        if self._session is not None:
            return self._footprint
        path = model_path(self._model, self._directory)
        session = self._create(path)
        ports = Ports(self._model, self._options, _ports_of(session, "input", self._name),
                      _ports_of(session, "output", self._name))
        self._footprint = Footprint(weights_size_bytes(path),
                                    ports.input_size_bytes(max(self._model.batch)) * WORK_PER_INPUT_BYTE)
        self._ports = ports
        self._session = session
        return self._footprint

    def unload(self) -> None:
        self._session = None
        self._ports = None

    def example(self) -> Values:
        if self._example:
            where = f"[model.{self._name}] options.example"
            item: Values = import_function(self._example, self._directory, where)()
            return item
        return self._loaded_ports().example()

    def run(self, batch: Batch) -> List[Result]:
        ports = self._loaded_ports()
        session = self._session
        if session is None:
            raise EngineError(f"model {self._name!r} was unloaded; call load() before run()")
        packed = ports.pack(batch)
        feeds = packed.feeds
        try:
            arrays = session.run(None, feeds) if packed.rows else ()
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            shown = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in feeds.items())
            raise EngineError(f"model {self._name!r} failed on {shown}: {error}") from error
        return ports.unpack(arrays, packed)

    @property
    def providers(self) -> Tuple[str, ...]:
        """The providers in use, in order of preference; empty when not loaded."""
        return tuple(self._session.get_providers()) if self._session is not None else ()

    def _loaded_ports(self) -> Ports:
        ports = self._ports
        if ports is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is used")
        return ports

    def _create(self, path: str) -> Any:
        available = onnxruntime.get_available_providers()
        for provider, _ in self._asked:
            if provider not in available:
                raise EngineError(f"model {self._name!r}: provider {provider} is not in this build of onnxruntime "
                                  f"{onnxruntime.__version__} (it has {', '.join(available)}); install a build that "
                                  f"has it, or set [model.{self._name}] options.providers = ['cpu']")
        try:
            session = onnxruntime.InferenceSession(path, self._session_options(), providers=[
                (provider, settings) for provider, settings in self._asked])
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            raise EngineError(f"model {self._name!r}: {path} cannot be loaded: {error}") from error
        got = session.get_providers()
        asked = [provider for provider, _ in self._asked]
        if got[:len(asked)] != asked:
            raise EngineError(f"model {self._name!r}: asked for {', '.join(asked)} but onnxruntime "
                              f"{onnxruntime.__version__} fell back to {', '.join(got)}; its libraries (CUDA, cuDNN, "
                              f"TensorRT) or the device are missing. Mend that, or set [model.{self._name}] "
                              "options.providers = ['cpu']")
        session.disable_fallback()  # else a failing run would quietly go on with the CPU
        return session

    def _session_options(self) -> Any:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = self._threads
        settings.inter_op_num_threads = 1
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        settings.log_severity_level = LOG_ERRORS_ONLY
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if self._spin else "0")
        affinities = thread_affinities(self._threads, self._lane.cores)
        if affinities:
            settings.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        return settings


def asked_providers(options: Options, lane: LaneInfo) -> List[Tuple[str, Dict[str, Any]]]:
    """The providers that the options or the lane ask for, with their settings, in order of preference."""
    short = options.texts("providers") or (("cuda",) if lane.device_kind == "cuda" else ("cpu",))
    settings = options.table("provider_options")
    asked = []
    for name in short:
        own = dict(settings.get(name, {}))
        if name in ("cuda", "tensorrt"):
            own.setdefault("device_id", lane.device_index)
        asked.append((PROVIDER_NAMES.get(name, name), {key: str(value) for key, value in own.items()}))
    return asked


def thread_affinities(threads: int, cores: Tuple[int, ...]) -> str:
    """ONNX Runtime's setting that pins the threads it makes itself (all but the caller's, which the lane pins); empty
    where there is nothing to pin. It counts processors from 1."""
    cores_allowed = [core for core in cores if core < (os.cpu_count() or 1)]
    if threads < 2 or not cores_allowed:
        return ""
    return ";".join(str(cores_allowed[(index + 1) % len(cores_allowed)] + 1) for index in range(threads - 1))


_DTYPES = {"float": np.float32, "double": np.float64, "float16": np.float16, "int8": np.int8, "int16": np.int16,
           "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32,
           "uint64": np.uint64, "bool": np.bool_, "string": np.object_}


def _ports_of(session: Any, side: str, model: str) -> List[Port]:
    nodes = session.get_inputs() if side == "input" else session.get_outputs()
    ports = []
    for node in nodes:
        kind = node.type[len("tensor("):-1] if node.type.startswith("tensor(") else ""
        if kind not in _DTYPES:
            raise EngineError(f"model {model!r}: {side} {node.name!r} is {node.type}; only tensors of "
                              f"{', '.join(sorted(_DTYPES))} can be used. Export the model without it")
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape or ())
        ports.append(Port(node.name, np.dtype(_DTYPES[kind]), dims))
    return ports
