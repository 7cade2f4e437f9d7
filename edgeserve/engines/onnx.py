"""The ``onnx`` engine: ONNX Runtime on a CPU, CUDA or TensorRT provider.

ONNX Runtime falls back to the CPU without an error when a provider cannot start; this engine compares the session's
providers with the configured ones and refuses. Padding and stacking are :mod:`edgeserve.engines.collate`'s; what a
model's inputs mean is :mod:`edgeserve.engines.ports`'; this module owns ONNX Runtime's sessions. Options:

On a GPU a lane has a session of its own, bound to the device's memory and to a stream
(:mod:`edgeserve.engines.onnx_binding`), where cuda-bindings is installed; else ONNX Runtime copies and waits
by itself.

``providers`` (``"cpu"``, ``"cuda"``, ``"tensorrt"`` or full names), ``provider_options`` (a table per provider),
``cuda`` (the library for streams and memory: ``auto``, ``cuda-bindings``, ``none``),
``threads`` (default: the lane's), ``spin`` (default false: waiting threads sleep instead of burning the other lanes'
cores), ``leave_out`` (unused outputs), ``session``, ``optimization_level``, ``custom_ops`` and ``shrink``
(:mod:`edgeserve.engines.onnx_settings`), ``example`` (``"module:function"``, where zeros of ``shapes`` would mislead),
``image`` (:mod:`edgeserve.engines.image`), ``batch_axis``, ``settings`` and the others of
:mod:`edgeserve.engines.ports`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeserve.config.files import resolve_path, sha256_of
from edgeserve.config.model_files import content_sha256, graph_parts, model_path, stamps, weights_size_bytes
from edgeserve.config.onnx_file import draws_by_chance, output_names, whole_numbers
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    LAYER_RUNS,
    Batch,
    Engine,
    Footprint,
    LaneInfo,
    OutputType,
    Result,
    RowFacts,
    Session,
    Values,
)
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.cuda.status import of_model
from edgeserve.engines.describe import FileDescription
from edgeserve.engines.host_session import HostSession
from edgeserve.engines.image import ImageForm, frame_shape, image_library, prepared_model, read_image
from edgeserve.engines.onnx_binding import BoundModel, BoundSession
from edgeserve.engines.onnx_cache import is_place, machine, placed, tensorrt_cache
from edgeserve.engines.onnx_failures import failed_by_device, failed_on, not_loaded
from edgeserve.engines.onnx_layers import node_times
from edgeserve.engines.onnx_libraries import missing_library, preload
from edgeserve.engines.onnx_settings import (
    LOG_FATAL_ONLY,
    SESSION_OPTIONS,
    Arena,
    OnnxThreads,
    giving_back,
    making,
    read_form,
    session_options,
    threads_of,
)
from edgeserve.engines.options import Options
from edgeserve.engines.ports import PORT_OPTIONS, PackedBatch, Port, Ports
from edgeserve.engines.python import import_function
from edgeserve.engines.worker import worker_of
from edgeserve.errors import ConfigError, DeviceMissing, EngineError, WrongInput, WrongRows, nearest

KNOWN_OPTIONS = (
    "providers",
    "provider_options",
    "cuda",
    "threads",
    "leave_out",
    *SESSION_OPTIONS,
    "example",
    "image",
    "batch_axis",
    "settings",
    *PORT_OPTIONS,
)

PROVIDER_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}

GPU_PROVIDERS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")

CUDA_DEFAULTS = {"arena_extend_strategy": "kSameAsRequested", "cudnn_conv_algo_search": "HEURISTIC"}
"""ONNX Runtime would double its memory each time it grows: on a device that several models share, what one does not
need another does. And it would time every algorithm of a convolution for each new batch size, 300 to 1,300 ms
(PaddlePaddle/PaddleX#5057); cuDNN's own choice is there at once and as fast."""

WORK_PER_INPUT_BYTE = 32
"""Estimated working memory per byte of the largest batch's inputs, until a profile has measured it: between 12 and 41
for the reader demo's three convolutional networks (docs/guide/profiling.md)."""

Model = Union[str, bytes]
"""A network: its file, or what would stand in one."""


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    """The registry's entry."""
    return OnnxEngine(model, lanes, directory)


class OnnxEngine(Engine):
    """One ONNX file; lanes with equal threads and cores share one session of ONNX Runtime. Knows no request and no
    stream: recurrent states come in with the batch and go out with the results."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._name = model.name
        self._model = model
        self._threads_set = options.integer("threads", 0, 1, 1024) if "threads" in options else 0
        self._threads = list(dict.fromkeys(map(self.threads_of, lanes)))
        self._directory = directory
        self._form = read_form(options, directory)
        self._left_out = options.texts("leave_out")
        self._example = options.text("example")
        self._image = read_image(options, model)
        self._options = options
        self._asked = asked_providers(options, lanes[0])
        self._providers = self._asked
        self._lanes = list(lanes)
        self._cuda = options.text("cuda", "auto")
        self._bound: Dict[str, BoundModel] = {}  # lane -> its session on a GPU
        self._sessions: Dict[OnnxThreads, Any] = {}
        self._arenas: Dict[OnnxThreads, Arena] = {}  # on a CPU
        self._input_bytes = 0  # of the largest batch, as far as its shapes are known
        self._ports: Ports | None = None
        self._whole: ModelConfig | None = None  # the model without its batch axis, where a run has shown that
        self._by_chance = True
        self._numbers: Tuple[int, ...] = ()  # that stand in the graph
        self._footprint = Footprint(0)

    def check(self) -> None:
        self._check_providers()
        if self._image is not None:
            image_library(f"model {self._name!r}")

    def load(self) -> Footprint:
        """Create the sessions, verify their providers and check the model's inputs against the configuration."""
        if self._sessions:
            return self._footprint
        path = model_path(self._model, self._directory)
        before = stamps(graph_parts(path))
        self._check_providers()
        if self._asked[0][0] in GPU_PROVIDERS:
            preload()
        network: Model = path
        image = self._image
        if image is not None:
            on_cpu = self._asked[0][0] == PROVIDER_NAMES["cpu"]
            network, image = prepared_model(path, image, f"model {self._name!r}", on_cpu)
        self._providers = self._with_caches(network)
        bound = self._bind(network)
        try:
            sessions = (
                {self.threads_of(self._lanes[0]): next(iter(bound.values())).session}
                if bound
                else {threads: self._create(network, threads) for threads in self._threads}
            )
            if stamps(graph_parts(path)) != before:
                raise EngineError(
                    f"model {self._name!r}: {path}, or a file of its weights, changed while it was loaded; load it "
                    "again when all its files are in their place"
                )
            self._take(path, sessions[self.threads_of(self._lanes[0])], image, len(bound) or len(sessions))
        except BaseException:
            for model in bound.values():
                model.close()
            raise
        self._bound = bound
        self._sessions = sessions
        if self._form.shrinks and self._asked[0][0] == PROVIDER_NAMES["cpu"]:
            self._arenas = {threads: Arena(self._input_bytes) for threads in sessions}
        return self._footprint

    def _take(self, path: str, session: Any, image: Optional[ImageForm], copies: int) -> None:
        """Check what was loaded, so many times, against the configuration."""
        inputs = _ports_of(session, "input", self._name)
        shapes = usual_shapes(session, inputs) if image is None else {image.input: frame_shape(image)}
        model = replace(self._model, shapes={**shapes, **self._model.shapes})
        ports = self._made_ports(model, session, inputs)
        input_bytes = ports.input_size_bytes(max(self._model.batch))
        self._input_bytes = input_bytes
        work_bytes = input_bytes * WORK_PER_INPUT_BYTE
        if image is not None:  # frames as float32, and the network behind them
            work_bytes = 4 * input_bytes + WORK_PER_INPUT_BYTE * max(self._model.batch) * image.image_bytes
        self._footprint = Footprint(weights_size_bytes(path) * copies, work_bytes * copies)
        self._by_chance, self._numbers = draws_by_chance(path), whole_numbers(path)
        self._ports = ports

    def _made_ports(self, model: ModelConfig, session: Any, inputs: Sequence[Port]) -> Ports:
        """The ports; without a batch axis where a run shows that outputs do not have the 1 of the inputs. Two items are
        run, one of zeros: in that a detector sees nothing."""
        outputs = self._served(session)
        if self._whole is not None:
            return Ports(self._whole, Options(self._whole, KNOWN_OPTIONS), inputs, outputs)
        ports = Ports(model, self._options, inputs, outputs)
        if not ports.is_doubtful:
            return ports
        try:
            example = ports.example()
            for item in (example, {name: np.zeros_like(value) for name, value in example.items()}):
                packed = ports.pack(Batch([item], 1))
                ports.unpack(session.run(ports.names, packed.feeds), packed)
        except WrongRows:
            shapes = {name: (1, *shape) for name, shape in model.shapes.items()}
            self._whole = replace(model, shapes=shapes, options={**model.options, "batch_axis": False})
            return self._made_ports(model, session, inputs)
        except Exception:  # noqa: BLE001 ONNX Runtime raises types of its own: the warm-up tells
            pass
        return ports

    def _served(self, session: Any) -> List[Port]:
        """The outputs without the ones that the configuration leaves out."""
        outputs = _ports_of(session, "output", self._name)
        names = [node.name for node in session.get_outputs()]
        for name in self._left_out:
            if name not in names:
                raise EngineError(
                    f"model {self._name!r}: {self._options.where('leave_out')} names {name!r}, which is no output"
                    f"{nearest(name, names)}"
                )
        served = [port for port in outputs if port.name not in self._left_out]
        if not served:
            raise EngineError(
                f"model {self._name!r}: {self._options.where('leave_out')} leaves no output ({', '.join(names)})"
            )
        return served

    def unload(self) -> None:
        self._sessions, self._arenas = {}, {}
        self._ports = None
        for model in self._bound.values():
            model.close()
        self._bound = {}

    def open(self, lane: LaneInfo) -> Session:
        """A session for a lane that the engine was made for."""
        self.loaded_ports()
        if lane.name in self._bound:
            return BoundSession(lane, self._cuda, lambda: self._found(lane.name), self._failed)
        return HostSession(self, self.threads_of(lane), worker_of(lane))

    def example(self) -> Values:
        if self._example:
            where = f"[model.{self._name}] options.example"
            item: Values = import_function(self._example, self._directory, where)()
            return item
        return self.loaded_ports().example()

    def outputs(self) -> Mapping[str, OutputType]:
        return self.loaded_ports().outputs()

    def rows(self) -> RowFacts:
        facts = self.loaded_ports().rows(self._lanes[0].device_kind)
        return facts._replace(by_chance=self._by_chance, numbers=self._numbers)

    def output_names(self) -> FrozenSet[str]:
        names = output_names(resolve_path(self._model.file, self._directory))
        return frozenset(names) - frozenset(self._model.state.values()) - frozenset(self._left_out)

    def misfits(self, declared: Mapping[str, Optional[OutputType]]) -> List[str]:
        return self.loaded_ports().misfits(declared)

    def run(self, batch: Batch) -> List[Result]:
        ports = self.loaded_ports()
        packed = ports.pack(batch)
        return ports.unpack(self.arrays_of(packed, self._threads[0]), packed)

    def arrays_of(self, packed: PackedBatch, threads: OnnxThreads) -> Sequence[Any]:
        """The model's outputs for a packed batch."""
        session = self._sessions.get(threads)
        if session is None:
            why = (
                "was unloaded; call load() before run()"
                if not self._sessions
                else f"was not made for a lane with {threads.number} threads on cores {list(threads.cores)}"
            )
            raise EngineError(f"model {self._name!r} {why}")
        feeds = packed.feeds
        arena = self._arenas.get(threads)
        gives_back = arena is not None and packed.rows > 0 and arena.gives_back_after(feeds)
        options = [giving_back()] if gives_back else []
        try:
            arrays: Sequence[Any] = session.run(self.loaded_ports().names, feeds, *options) if packed.rows else ()
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            differ = lengths_that_differ(session.get_inputs(), feeds)
            if differ and (packed.rows == 1 or not self._model.pad):
                raise WrongInput(f"model {self._name!r}: {differ}") from error
            raise failed_on(self._name, error, feeds, packed.rows) from error
        return arrays

    def layer_times(self, lane: LaneInfo, item: Values, size: int) -> List[Tuple[str, int]]:
        path = model_path(self._model, self._directory)
        network: Model = path
        if self._image is not None:
            network, _ = prepared_model(path, self._image, f"model {self._name!r}", self._asked[0][0] == "cpu")
        packed = self.loaded_ports().pack(Batch([item] * size, size))
        for error in packed.failed.values():
            raise error
        return node_times(
            lambda prefix: self._create(network, self.threads_of(lane), profile=prefix),
            self.loaded_ports().names,
            packed.feeds,
            LAYER_RUNS,
        )

    def threads_of(self, lane: LaneInfo) -> OnnxThreads:
        """The threads that ONNX Runtime uses for a lane: its own number unless the options say another."""
        return threads_of(lane, self._threads_set)

    @property
    def providers(self) -> Tuple[str, ...]:
        """The providers in use, in order of preference; empty when not loaded."""
        return tuple(self._sessions[self._threads[0]].get_providers()) if self._sessions else ()

    def loaded_ports(self) -> Ports:
        """The ports that pack and unpack the model's batches."""
        ports = self._ports
        if ports is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is used")
        return ports

    def _found(self, lane: str) -> Tuple[BoundModel, Ports]:
        ports = self.loaded_ports()
        return self._bound[lane], ports

    def _failed(self, error: Exception, feeds: Dict[str, Any]) -> EngineError:
        if isinstance(error, EngineError):
            return of_model(self._name, error)
        return failed_on(self._name, error, feeds)

    def _with_caches(self, network: Model) -> List[Tuple[str, Dict[str, str]]]:
        """The providers with their settings; what they keep on disk lies apart for each content of the model."""
        if not any(is_place(key) for _, settings in self._asked for key in settings):
            return self._asked
        content = content_sha256(graph_parts(network)) if isinstance(network, str) else sha256_of([network])
        here = machine(self._lanes[0].device_index, self._cuda, onnxruntime.__version__)
        built_from = {"model": content, "session": self._form.content()}
        return placed(self._asked, os.path.basename(self._model.file), built_from, here, self._directory)

    def _bind(self, network: Model) -> Dict[str, BoundModel]:
        """A session per lane, on a stream of its own; empty where the model runs on the CPU, or no library for CUDA is
        installed."""
        bound: Dict[str, BoundModel] = {}
        if self._asked[0][0] not in GPU_PROVIDERS or self._cuda == "none":
            return bound
        try:
            driver = open_driver(self._cuda)
        except DeviceMissing:
            if self._cuda == "auto":
                return bound
            raise
        try:
            for lane in self._lanes:
                model = bound[lane.name] = BoundModel(
                    self._name, CudaDevice(driver, lane.device_index, lane.name, lane.sms), lane.priority
                )
                self._fill(model, network, self.threads_of(lane))
        except BaseException:
            for model in bound.values():
                model.close()
            raise
        return bound

    def _fill(self, model: BoundModel, network: Model, threads: OnnxThreads) -> None:
        session = model.session = self._create(network, threads, model.stream.handle)
        for provider, settings in session.get_provider_options().items():
            if provider in GPU_PROVIDERS and settings.get("has_user_compute_stream", "1") == "0":
                raise EngineError(
                    f"model {self._name!r}: {provider} of onnxruntime {onnxruntime.__version__} does not "
                    f"use the stream that it was given; set [model.{self._name}] options.cuda = 'none'"
                )
        nodes = [*session.get_inputs(), *session.get_outputs()]
        model.cpu_ports = tuple(node.name for node in nodes if node.type == "tensor(string)")
        model.dtypes = {port.name: port.dtype for port in self._served(session)}
        model.outputs = list(model.dtypes)
        model.run_options = onnxruntime.RunOptions()
        model.run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def _check_providers(self) -> None:
        available = onnxruntime.get_available_providers()
        for provider, _ in self._asked:
            if provider not in available:
                raise EngineError(
                    f"model {self._name!r}: provider {provider} is not in this build of onnxruntime "
                    f"{onnxruntime.__version__} (it has {', '.join(available)}); install a build that "
                    f"has it, or set [model.{self._name}] options.providers = ['cpu']"
                )

    def _create(self, network: Model, threads: OnnxThreads, stream: int = 0, profile: str = "") -> Any:
        own = {"user_compute_stream": str(stream)} if stream else {}
        path = resolve_path(self._model.file, self._directory)
        try:
            session = making(
                threads,
                lambda: onnxruntime.InferenceSession(
                    network,
                    session_options(threads, self._form, profile),
                    providers=[
                        (provider, {**settings, **own} if provider in GPU_PROVIDERS else settings)
                        for provider, settings in self._providers
                    ],
                ),
            )
        except EngineError as error:
            raise EngineError(f"model {self._name!r}: {error}") from error
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            of_device = failed_by_device(self._name, error, "its weights")
            if of_device is not None:
                raise of_device from error
            raise EngineError(f"model {self._name!r}: {path} cannot be loaded: {not_loaded(path, error)}") from error
        got = session.get_providers()
        asked = [provider for provider, _ in self._asked]
        if got[: len(asked)] != asked:
            library = next(filter(None, map(missing_library, asked)), "")
            what = (
                f"{library} cannot be found"
                if library
                else "its libraries (CUDA, cuDNN, TensorRT) or the device are missing"
            )
            raise EngineError(
                f"model {self._name!r}: asked for {', '.join(asked)} but onnxruntime "
                f"{onnxruntime.__version__} fell back to {', '.join(got)}; {what}. Mend that (pip install "
                f"'onnxruntime-gpu[cuda,cudnn]' brings CUDA and cuDNN), or set [model.{self._name}] "
                "options.providers = ['cpu']"
            )
        session.disable_fallback()  # else a failing run would quietly go on with the CPU
        return session


def asked_providers(options: Options, lane: LaneInfo) -> List[Tuple[str, Dict[str, Any]]]:
    """The providers that the options or the lane ask for, with their settings, in order of preference."""
    short = options.texts("providers") or (("cuda",) if lane.device_kind == "cuda" else ("cpu",))
    settings = options.table("provider_options")
    asked = []
    for name in short:
        own = dict(settings.get(name, {}))
        if name in ("cuda", "tensorrt"):
            own.setdefault("device_id", lane.device_index)
            if str(own.get("enable_cuda_graph", "0")) not in ("0", "False"):
                raise ConfigError(
                    f"{options.where('provider_options')}.{name}.enable_cuda_graph: a graph needs the "
                    "same memory in each run, and each batch has its own; leave it out, or use "
                    "engine = 'tensorrt'"
                )
        if name == "cuda":
            own = {**CUDA_DEFAULTS, **own}
        if name == "tensorrt":  # else it builds its engines anew at every start, minutes on a board
            own = {"trt_engine_cache_enable": True, "trt_engine_cache_path": tensorrt_cache(), **own}
        asked.append((PROVIDER_NAMES.get(name, name), {key: str(value) for key, value in own.items()}))
    return asked


def describe(path: str) -> FileDescription:
    """The description of an ONNX file. Raises :class:`EngineError` when ONNX Runtime cannot read it."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = LOG_FATAL_ONLY
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=[PROVIDER_NAMES["cpu"]])
    except Exception as error:  # ONNX Runtime raises types of its own, one per status code
        raise EngineError(f"{path} cannot be read as an ONNX model: {not_loaded(path, error)}") from error
    inputs, outputs = _ports_of(session, "input", path), _ports_of(session, "output", path)
    left_out = [node.name for node in session.get_outputs() if node.name not in {port.name for port in outputs}]
    notes = [
        f"output {name} is no tensor and is not served; scikit-learn's classifiers give it as one when they are "
        "converted with options={'zipmap': False}"
        for name in left_out
    ]
    return FileDescription("onnx", tuple(inputs), tuple(outputs), usual_shapes(session, inputs), notes=tuple(notes))


def prepared_frame(path: str, form: ImageForm, frame: NDArray[Any]) -> NDArray[Any]:
    """The input that the network of ``path`` would get for one frame, by a form that says its input, size and layout;
    the network itself runs once, behind its preparation. Raises :class:`EngineError` where it does not."""
    data, _ = prepared_model(path, form, path, on_cpu=True)
    from edgeserve.engines.image_graph import alone  # the onnx package is there

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = LOG_FATAL_ONLY
    try:
        for model in (data, alone(form, on_cpu=True)):
            session = onnxruntime.InferenceSession(model, settings, providers=[PROVIDER_NAMES["cpu"]])
            batch = session.get_inputs()[0].shape[0] if model is data else 1
            frames = np.stack([frame] * (batch if isinstance(batch, int) else 1))
            prepared: NDArray[Any] = session.run(None, {form.input: frames})[0][0]
    except Exception as error:  # ONNX Runtime raises types of its own, one per status code
        raise EngineError(f"{path}: does not run behind the preparation of frames: {error}") from error
    return prepared


def can_use_gpu() -> bool:
    """Whether this build of ONNX Runtime has a provider for NVIDIA's GPUs."""
    return any(provider in onnxruntime.get_available_providers() for provider in GPU_PROVIDERS)


def usual_shapes(session: Any, inputs: Sequence[Port]) -> Dict[str, Tuple[int, ...]]:
    """Lengths per item of image inputs with open axes, where the file's metadata tells the size of an image: exporters
    of the YOLO family write ``imgsz = [height, width]``."""
    try:
        said: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError:
        return {}  # metadata is for people, and another key of it may be the one
    size = re.fullmatch(r"[\[(]\s*(\d{1,5})\s*,\s*(\d{1,5})\s*[\])]", said.get("imgsz", ""))
    if size is None:
        return {}
    height, width = int(size[1]), int(size[2])
    found = {}
    for port in inputs:
        dims = port.dims[1:]
        if len(dims) == 3 and None in dims and min(height, width) > 0:
            found[port.name] = tuple(
                length if dim is None else dim for dim, length in zip(dims, (dims[0] or 3, height, width))
            )
    return found


_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": np.object_,
}


def lengths_that_differ(inputs: Sequence[Any], feeds: Mapping[str, Any]) -> str:
    """The two inputs that disagree about an axis of the same name, as text, or ``""``. Asked where a run failed: not
    every exporter means that lengths are equal where names are."""
    first: Dict[str, Tuple[str, int]] = {}
    for node in inputs:
        for axis, length in zip(list(node.shape)[1:], feeds[node.name].shape[1:]):
            name, other = first.setdefault(axis, (node.name, length)) if isinstance(axis, str) else (node.name, length)
            if other != length:
                return (
                    f"inputs {name!r} and {node.name!r} have lengths {other} and {length} on the axis {axis!r} that "
                    "they share; expected the same length"
                )
    return ""


def _ports_of(session: Any, side: str, model: str) -> List[Port]:
    nodes = session.get_inputs() if side == "input" else session.get_outputs()
    ports = []
    try:
        for node in nodes:
            node.name  # noqa: B018 decoded when it is read
    except UnicodeDecodeError as error:
        raise EngineError(
            f"model {model!r}: the name of an {side} is no UTF-8 ({error}); export it with another name"
        ) from None
    for node in nodes:
        kind = node.type[len("tensor(") : -1] if node.type.startswith("tensor(") else ""
        if kind not in _DTYPES and side == "output" and not node.type.startswith("tensor("):
            continue  # a sequence or a map, beside tensors: the default of scikit-learn's converter
        if kind not in _DTYPES:
            raise EngineError(
                f"model {model!r}: {side} {node.name!r} is {node.type}; only tensors of "
                f"{', '.join(sorted(_DTYPES))} can be used. Export the model without it"
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in node.shape or ())
        axes = tuple(dim if isinstance(dim, str) else "" for dim in node.shape or ())
        ports.append(Port(node.name, np.dtype(_DTYPES[kind]), dims, axes if any(axes) else ()))
    if nodes and not ports:
        raise EngineError(
            f"model {model!r}: none of its {side}s ({', '.join(f'{node.name} {node.type}' for node in nodes)}) is a "
            "tensor; of scikit-learn's models export with options={'zipmap': False}"
        )
    return ports
