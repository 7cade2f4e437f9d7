"""Builds a plan from an ONNX file: parse, profiles, builder configuration, build. Runs in the process that builds.

Knows one TensorRT library and one :class:`BuildRequest`; no cache, no process, no clock. An answer of ``False`` or
``None`` by TensorRT becomes a typed error with the library's own words.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.image import ImageForm, prepared_model
from edgeserve.engines.tensorrt.build_errors import BuildFailed, BuildOutOfMemory, ParseFailed
from edgeserve.engines.tensorrt.library import Library
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.engines.tensorrt.shapes import Input, Profile, profiles_of
from edgeserve.errors import EngineError
from edgeserve.units import counted, format_size

Say = Callable[[str, float], None]
"""``say(phase, share)``: which phase, and how much of it is done, 0 to 1."""

Keep = Callable[[bytes], None]
"""Takes the kernel timings as they are after a build, also after one that failed: the next one begins with them."""

MEMORY_WORDS = (
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "bad_alloc",
    "failed to allocate",
    "cudaerrormemoryallocation",
    "insufficient workspace",
)
"""The words of TensorRT's log when memory was short; it has no code for it in Python."""

DLA_RELEASES = (
    "DLA cores are in Xavier, Orin NX and AGX Orin, for TensorRT up to 10.7, and for 11.4 and later on AGX Orin. Leave "
    "options.dla_core out elsewhere"
)
"""The conditions on a release and a board (NVIDIA, "Working with DLA"). A program asks the builder's
``num_DLA_cores``."""


class Built(NamedTuple):
    """A plan and what it was built from: ``profiles`` as ``(batch size, shapes)``, one per optimisation profile and in
    their order, copies included."""

    plan: bytes
    profiles: List[Tuple[int, Profile]]
    layers: int
    types: List[str]  # that the network has tensors of: "float32", "float16", ...
    kept: Dict[str, int]  # operator -> nodes that stay float32 where casts make float16


def construct(library: Library, request: BuildRequest, where: str, say: Say, timing_cache: bytes, keep: Keep) -> Built:
    """Build a plan. ``where`` names the model in messages. Raises :class:`ParseFailed`, :class:`BuildFailed`,
    :class:`BuildOutOfMemory`, or :class:`EngineError` for what the configuration can mend."""
    trt, api = library.trt, library.api
    say("parse", 0.0)
    builder = trt.Builder(library.log)
    typed = request.precision == "model" or not api.weak_types
    network = builder.create_network(api.network_flags(strongly_typed=typed))
    kept = parse_request(library, network, request, where)
    profiles = profiles_of(inputs_of(network), request, where) * api.profile_copies(request.lanes)
    separate_dimensions(network, profiles)
    config = configure(library, builder, network, request, where)
    if request.dla_core >= 0:
        check_dla_shapes(profiles, request, where)
    add_profiles(library, builder, config, profiles, where)
    if not api.compiles_at_load:
        cache = config.create_timing_cache(timing_cache)
        if cache is None or not config.set_timing_cache(cache, False):
            cache = config.create_timing_cache(b"")  # of another version or device: start again
            config.set_timing_cache(cache, False)
    monitor = _watch(library, config, say)
    say("build", 0.0)
    with _own_multiprocessors(library, config, request):
        plan = builder.build_serialized_network(network, config)
    del monitor
    timings = config.get_timing_cache() if not api.compiles_at_load else None
    if timings is not None:
        keep(bytes(timings.serialize()))
    if plan is None:
        why = library.why("the builder did not say why")
        if any(word in why.lower() for word in MEMORY_WORDS):
            raise BuildOutOfMemory(
                f"{where}: too little memory to build: {why}. Lower options.workspace (now "
                f"{format_size(request.workspace_bytes)}), build fewer batch sizes, or free memory"
            )
        raise BuildFailed(
            f"{where}: {library.name} {library.version} cannot build the model: {why}. Lower "
            "options.optimization_level, or run the model with engine = 'onnx'"
        )
    say("build", 1.0)
    return Built(bytes(plan), profiles, int(network.num_layers), types_of(library, network), kept)


@contextlib.contextmanager
def _own_multiprocessors(library: Library, config: Any, request: BuildRequest) -> Iterator[None]:
    """Within, kernels are timed on as many multiprocessors as the plan's lane has, where the library can do so."""
    if not request.sms or not library.api.has("IOptimizationProfile", "profile_stream"):
        yield
        return
    device = CudaDevice(open_driver(), 0, "the build", request.sms)
    try:
        with device.current():
            config.profile_stream = device.stream().handle
            yield
    finally:
        device.close()


def parse_request(library: Library, network: Any, request: BuildRequest, where: str) -> Dict[str, int]:
    """Read the request into ``network``: the ONNX file, with the preparation of frames in front where wanted, and casts
    to float16 where the builder makes none. Returns the nodes that stay float32 then."""
    halves = request.precision == "fp16" and not library.api.weak_types
    kept: Dict[str, int] = {}
    with contextlib.ExitStack() as kept_open:
        path = request.file
        folder = kept_open.enter_context(tempfile.TemporaryDirectory()) if request.image or halves else ""
        if request.image:
            path = _prepared(request, folder, where)
        if halves:
            path, kept = _graph_library(where).half_file(path, folder, where)
        parse(library, network, path, where)
    return kept


def _prepared(request: BuildRequest, folder: str, where: str) -> str:
    """The file, written into ``folder``, with the preparation of frames in front of the network."""
    form = ImageForm(**request.image)
    if form.border >= 0 and not form.frame_size:
        raise EngineError(
            f"{where}: options.image.letterbox needs from = [height, width] of the frames with engine = 'tensorrt', "
            "whose plan cannot fit frames of any size; give it, or run the model with engine = 'onnx'"
        )
    data, _ = prepared_model(request.file, form, where)
    path = os.path.join(folder, os.path.basename(request.file))
    with open(path, "wb") as file:
        file.write(data)
    return path


def _graph_library(where: str) -> Any:
    """The module that makes float16 of float32. :class:`EngineError` where its library is missing."""
    try:
        return importlib.import_module("edgeserve.engines.tensorrt.half")
    except ImportError as error:
        raise EngineError(
            f"{where}: options.precision = 'fp16' alters the network's graph with the onnx package, which cannot be "
            f"imported ({error}); pip install 'edgeserve-runtime[images]'"
        ) from None


def parse(library: Library, network: Any, path: str, where: str) -> None:
    """Read the ONNX file into ``network``. The file's folder matters: large weights lie beside it."""
    parser = library.trt.OnnxParser(network, library.log)
    if parser.parse_from_file(path):
        return
    found = [_parser_words(library, parser.get_error(index)) for index in range(parser.num_errors)]
    library.log.take_errors()
    raise ParseFailed(
        f"{where}: {library.name} {library.version} cannot read {path}: "
        f"{'; '.join(found) or 'the parser did not say why'}. Export the model with operators that "
        "TensorRT has, or run it with engine = 'onnx'"
    )


def _parser_words(library: Library, error: Any) -> str:
    """``node 12 'conv1' (Conv): why``; before version 10 the parser knows the node's number alone."""
    node = f"node {error.node()}" if error.node() >= 0 else "the file"
    if error.node() >= 0 and library.api.has("ParserError", "node_name") and error.node_name():
        node += f" {error.node_name()!r}"
    if library.api.has("ParserError", "node_operator") and error.node_operator():
        node += f" ({error.node_operator()})"
    return f"{node}: {' '.join(error.desc().split())}"


def inputs_of(network: Any) -> List[Input]:
    """The network's inputs, open axes as -1."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    return [
        Input(tensor.name, tuple(int(dim) for dim in tensor.shape), bool(tensor.is_shape_tensor)) for tensor in tensors
    ]


def separate_dimensions(network: Any, profiles: List[Tuple[int, Profile]]) -> None:
    """Open axes of one name are one length to TensorRT. Some exporters name all of a model's open axes alike (``?``).
    Where the profiles give such axes different lengths, all but the first get a name of their own."""
    lengths: Dict[str, List[Any]] = {}
    places: Dict[str, List[Tuple[Any, int]]] = {}
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        for axis, dim in enumerate(tensor.shape):
            name = tensor.get_dimension_name(axis) if dim < 0 else ""
            if name:
                rows = [[row[axis] for row in shapes[tensor.name]] for _, shapes in profiles]
                lengths.setdefault(name, []).append(rows)
                places.setdefault(name, []).append((tensor, axis))
    for name, found in lengths.items():
        if any(rows != found[0] for rows in found):
            for number, (tensor, axis) in enumerate(places[name][1:]):
                tensor.set_dimension_name(axis, f"{name}.{number}")


def configure(library: Library, builder: Any, network: Any, request: BuildRequest, where: str) -> Any:
    """The builder's configuration but for the profiles."""
    api = library.api
    config = builder.create_builder_config()
    api.limit_memory(config, request.workspace_bytes, request.tactic_bytes)
    api.share_profiles(config)
    api.limit_aux_streams(config, request.aux_streams)
    if api.has("IBuilderConfig", "builder_optimization_level"):
        config.builder_optimization_level = request.optimization_level
    if api.weak_types:
        _set_precision(library, config, network, request)
    if request.dla_core >= 0:
        _place_on_dla(library, builder, config, request, where)
    _set_capabilities(library, config, request, where)
    if request.version_compatible:
        if not api.has("BuilderFlag", "VERSION_COMPATIBLE"):
            raise EngineError(
                f"{where}: options.version_compatible needs TensorRT 8.6 or later, and this is {library.version}; "
                "leave it out"
            )
        config.set_flag(library.trt.BuilderFlag.VERSION_COMPATIBLE)
    return config


def _place_on_dla(library: Library, builder: Any, config: Any, request: BuildRequest, where: str) -> None:
    """Layers go to a DLA core, and to the GPU where the core cannot run them."""
    trt = library.trt
    if request.dla_core >= builder.num_DLA_cores:
        raise EngineError(
            f"{where}: options.dla_core = {request.dla_core}, but this device has "
            f"{counted(builder.num_DLA_cores, 'DLA core')} for {library.name} {library.version}; {DLA_RELEASES}"
        )
    if library.api.weak_types and request.precision == "model":  # from 11 on the model's own types decide
        raise EngineError(
            f"{where}: options.dla_core = {request.dla_core}: DLA cores compute in float16 or int8; set "
            "options.precision = 'fp16'"
        )
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = request.dla_core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)


def check_dla_shapes(profiles: List[Tuple[int, Profile]], request: BuildRequest, where: str) -> None:
    """A DLA core runs inputs of one shape: smallest, usual and largest of a profile must be equal there."""
    for _, shapes in profiles:
        for name, shape in shapes.items():
            if shape.low != shape.high:
                raise EngineError(
                    f"{where}: options.dla_core = {request.dla_core}: a DLA core runs inputs of one shape, and "
                    f"options.ranges.{name} goes from {list(shape.low[1:])} to {list(shape.high[1:])}; give shapes = "
                    f"{{{name} = {list(shape.usual[1:])}}} instead, or leave dla_core out"
                )


def _set_precision(library: Library, config: Any, network: Any, request: BuildRequest) -> None:
    """The flags of a weakly typed network; a strongly typed one has its types from the model."""
    trt, api = library.trt, library.api
    typed = request.precision == "model" and api.has("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")
    if typed:
        return
    types = types_of(library, network)
    if request.precision == "fp16" or "float16" in types:
        config.set_flag(trt.BuilderFlag.FP16)
    if "int8" in types:
        config.set_flag(trt.BuilderFlag.INT8)


TYPE_NAMES = (("FLOAT", "float32"), ("HALF", "float16"), ("BF16", "bfloat16"), ("FP8", "float8"))


def types_of(library: Library, network: Any) -> List[str]:
    """The types in which the network computes, as its file says: those of its floating tensors, and int8 where it
    quantizes."""
    trt = library.trt
    known = [(getattr(trt.DataType, name), text) for name, text in TYPE_NAMES if hasattr(trt.DataType, name)]
    found: Dict[str, None] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.QUANTIZE:
            found["int8"] = None
        for place in range(layer.num_outputs):
            tensor = layer.get_output(place)
            found.update({text: None for kind, text in known if tensor is not None and tensor.dtype == kind})
    return list(found)


def _set_capabilities(library: Library, config: Any, request: BuildRequest, where: str) -> None:
    """TensorRT-RTX alone builds for other GPUs than the one that is here."""
    if not request.compute_capabilities:
        return
    trt = library.trt
    if not library.api.has("IBuilderConfig", "set_compute_capability"):
        raise EngineError(
            f"{where}: options.compute_capabilities is for library = 'tensorrt_rtx'; "
            f"{library.name} {library.version} builds for the GPU that is here alone. Leave it out"
        )
    config.num_compute_capabilities = len(request.compute_capabilities)
    for index, text in enumerate(request.compute_capabilities):
        kind = getattr(trt.ComputeCapability, f"SM{text.replace('.', '')}", None)
        if kind is None or not config.set_compute_capability(kind, index):
            known = [name for name in dir(trt.ComputeCapability) if name.startswith("SM")]
            raise EngineError(
                f"{where}: options.compute_capabilities has {text!r}, which {library.name} "
                f"{library.version} does not build for (it knows {', '.join(known)})"
            )


def add_profiles(library: Library, builder: Any, config: Any, profiles: List[Tuple[int, Profile]], where: str) -> None:
    """One optimisation profile per entry, in their order."""
    for number, (size, shapes) in enumerate(profiles):
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape.low, shape.usual, shape.high)
        if config.add_optimization_profile(profile) != number:
            raise BuildFailed(
                f"{where}: {library.name} refuses the optimisation profile of batch size {size}, "
                f"{ {name: list(shape.high) for name, shape in shapes.items()} }: "
                f"{library.why('it did not say why')}"
            )


def _watch(library: Library, config: Any, say: Say) -> Optional[Any]:
    """Tell of the builder's phases where it reports them. The caller keeps the returned object while the builder
    runs."""
    if not library.api.has("IBuilderConfig", "progress_monitor"):
        return None
    trt = library.trt

    class BuildMonitor(trt.IProgressMonitor):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: Dict[str, int] = {}
            self._outermost = ""

        def phase_start(self, phase_name: str, parent_phase: Optional[str], num_steps: int) -> None:
            self._steps[phase_name] = max(1, num_steps)
            if parent_phase is None:
                self._outermost = phase_name

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name == self._outermost:
                say("build", min(1.0, (step + 1) / self._steps.get(phase_name, 1)))
            return True

    monitor = BuildMonitor()
    config.progress_monitor = monitor
    return monitor
