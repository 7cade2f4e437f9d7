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
from dataclasses import replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import onnxruntime

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
from edgeserve.engines.functions import import_function
from edgeserve.engines.host_session import HostSession
from edgeserve.engines.image import ImageForm, frame_shape, image_library, prepared_model, read_image
from edgeserve.engines.onnx_binding import BoundModel, BoundSession
from edgeserve.engines.onnx_cache import is_place, machine, placed
from edgeserve.engines.onnx_failures import failed_by_device, failed_on, not_loaded
from edgeserve.engines.onnx_layers import node_times
from edgeserve.engines.onnx_libraries import preload
from edgeserve.engines.onnx_ports import lengths_that_differ, ports_of, usual_shapes
from edgeserve.engines.onnx_providers import GPU_PROVIDERS, PROVIDER_NAMES, asked_providers, check_available, check_used
from edgeserve.engines.onnx_settings import (
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
from edgeserve.engines.port import Port
from edgeserve.engines.ports import PORT_OPTIONS, WORK_PER_INPUT_BYTE, PackedBatch, Ports
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

Model = Union[str, bytes]
"""A network: its file, or what would stand in one."""


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
        check_available(self._name, self._asked)
        if self._image is not None:
            image_library(f"model {self._name!r}")

    def load(self) -> Footprint:
        """Create the sessions, verify their providers and check the model's inputs against the configuration."""
        if self._sessions:
            return self._footprint
        path = model_path(self._model, self._directory)
        before = stamps(graph_parts(path))
        check_available(self._name, self._asked)
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
        inputs = ports_of(session, "input", self._name)
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
        outputs = ports_of(session, "output", self._name)
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
            on_cpu = self._asked[0][0] == PROVIDER_NAMES["cpu"]
            network, _ = prepared_model(path, self._image, f"model {self._name!r}", on_cpu)
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
        if self._asked[0][0] not in GPU_PROVIDERS:
            return bound
        shares = any(lane.sms for lane in self._lanes)
        if self._cuda == "none":
            if shares:
                raise ConfigError(
                    f"[model.{self._name}] options.cuda = 'none' leaves streams to ONNX Runtime, and those have no "
                    "[lane.NAME] sms; leave one of the two out"
                )
            return bound
        try:
            driver = open_driver(self._cuda)
        except DeviceMissing:
            if self._cuda == "auto" and not shares:
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
        check_used(self._name, session, self._asked)
        session.disable_fallback()  # else a failing run would quietly go on with the CPU
        return session
