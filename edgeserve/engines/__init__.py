"""The registry of engines: a kind's name to the module that has it, imported only when a model asks for it.

What this table names takes ``(model, lanes, directory)``: a class, or any callable that returns an engine. An engine of
one's own is named ``"module:Class"`` in the same way, and found beside the configuration like host functions.
"""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import replace
from typing import Callable, Dict, Sequence, Tuple

from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines.base import Engine, Footprint, LaneInfo
from edgeserve.engines.options import Options
from edgeserve.errors import NOT_IMPORTED, ConfigError, EngineError, did_you_mean, nearest

EngineFactory = Callable[[ModelConfig, Sequence[LaneInfo], str], Engine]
"""``make(model, lanes, directory)``: ``lanes`` are those of one device that may run the model; relative paths and host
functions are looked for in ``directory``."""

ENGINES: Dict[str, str] = {
    "combine": "edgeserve.engines.combine:make",
    "lm": "edgeserve.engines.lm.lm_engine:make",
    "onnx": "edgeserve.engines.onnx:OnnxEngine",
    "python": "edgeserve.engines.python:make",
    "sentence": "edgeserve.engines.lm.sentence:SentenceEngine",
    "synthetic": "edgeserve.engines.synthetic:make",
    "tensorrt": "edgeserve.engines.tensorrt.tensorrt_engine:TensorrtEngine",
    "torch": "edgeserve.engines.torch.torch_engine:TorchEngine",
    "whisper": "edgeserve.engines.speech.whisper:WhisperEngine",
}
"""Engine kind -> what makes it. The values are names, so that nothing is imported before it is needed."""

PROCESS_MODULE = "edgeserve.offload.process"
"""Has ``make(model, lanes, directory, timeout_ns, restarts_max)`` for ``options.process = true``: any engine in a
process of its own; and ``starter(timeout_ns, restarts_max)`` for engines of sequences, which stay here and have their
models computed elsewhere."""

PROCESS_OPTIONS = ("process", "process_timeout", "process_restarts_max")
"""Options that say where an engine runs; every kind has them, none sees them."""

# ONNX Runtime's official builds send usage events to their maker unless this is set before they are imported, which
# only happens after this package. A robot's runtime does not phone home; set the variable to 0 to allow it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_EXTRAS = {"onnxruntime": "onnx", "torch": "torch", "ctranslate2": "speech"}


def make_engine(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str = ".") -> Engine:
    """The engine of ``model`` for the ``lanes`` of one device, not yet loaded. ``directory`` is the configuration's.

    Raises :class:`ConfigError` for an unknown kind or option and :class:`EngineError` when the engine's own library
    is not installed, or the module of an engine of one's own cannot be imported.
    """
    if not model.file:
        return _made(model, lanes, directory)
    from edgeserve.config.model_files import parts_of, stamps

    parts = parts_of(model, directory)
    files, now = stamps(parts, lasting=True), stamps(parts)
    engine = _made(model, lanes, directory)
    engine.made_from, engine.loaded_from = files, now
    return engine


def load_engine(engine: Engine, model: ModelConfig, directory: str) -> Footprint:
    """Load the engine of ``model`` where it serves, and note from which files (:attr:`Engine.loaded_from`)."""
    if not model.file:
        return engine.load()
    from edgeserve.config.model_files import parts_of, stamps

    before = stamps(parts_of(model, directory))
    footprint = engine.load()
    after = stamps(parts_of(model, directory))
    files = after if after == before else (*before, *after)  # equal to no other load's
    engine.unchecked = engine.unchecked or files != engine.loaded_from
    engine.loaded_from = files
    return footprint


def _made(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    inner, own = _split_options(model)
    factory = _factory(model, directory)
    try:
        inspect.signature(factory).bind(inner, lanes, directory)
    except TypeError as error:
        raise ConfigError(
            f"[model.{model.name}] engine = {model.engine!r} cannot be called with (model, lanes, "
            f"directory): {error}. Expected a subclass of edgeserve.engine.Engine, or a function "
            "that makes one (docs/guide/write-an-engine.md). A host function is named by engine = 'python' and "
            f"function = {model.engine!r}"
        ) from None
    except ValueError:
        pass  # a callable of C has no signature to look at
    engine = factory(inner, lanes, directory)  # for a process too: it checks the options here
    if not isinstance(engine, Engine):
        raise ConfigError(
            f"[model.{model.name}] engine = {model.engine!r} made a {type(engine).__name__}; expected an "
            "edgeserve.engine.Engine (docs/guide/write-an-engine.md)"
        )
    wanted = own.boolean("process", engine.process_by_default)
    if not wanted and not engine.makes_sequences:
        return engine
    process = importlib.import_module(PROCESS_MODULE)
    timeout_ns = own.duration_ns("process_timeout", process.TIMEOUT_NS)
    restarts_max = own.integer("process_restarts_max", process.RESTARTS_MAX, 0, 1000)
    if engine.makes_sequences:
        if not engine.use_processes(process.starter(timeout_ns, restarts_max), wanted) and wanted:
            raise ConfigError(
                f"[model.{model.name}] options.process = true: the model makes sequences, and what it "
                "tells between two steps does not cross processes. Take options.process away"
            )
        return engine
    if inner.given is not None:
        inner = _by_name(inner)
    remote: Engine = process.make(inner, lanes, directory, timeout_ns, restarts_max)
    remote.variants = engine.variants
    remote.output_names = engine.output_names  # type: ignore[method-assign]  # what is known before load, on this side
    remote.check = engine.check  # type: ignore[method-assign]  # it runs with the same libraries
    return remote


def _by_name(model: ModelConfig) -> ModelConfig:
    """The model for another process, which imports by its name what Python gave."""
    from edgeserve.config.python_names import importable_name

    if not importable_name(model.given):
        raise ConfigError(
            f"[model.{model.name}] options.process = true: another process cannot import {model.given!r}, which has no "
            "name in a module; define it at the top of a module, or take options.process away"
        )
    return replace(model, given=None)


def check_streams(config: Config, model: ModelConfig, engine: Engine) -> None:
    """Raises :class:`ConfigError` where an app that keeps state between requests uses a model of sequences, whose state
    is that of one answer; and where an app does not say what the state of its model belongs to."""
    apps = [app for app in config.apps.values() if any(node.model == model.name for node in app.nodes)]
    for app in apps:
        if model.keeps_state and not app.keeps_streams:
            raise ConfigError(
                f"[app.{app.name}] keeps no streams, but model {model.name!r} keeps a state from one request to the "
                "next, which is that of one source (a camera, a microphone). Set stream = 'in_order' or 'newest_wins', "
                "and name a stream with each request; stream = 'optional' lets requests without one stand alone, "
                "each from an empty state"
            )
        if engine.makes_sequences and app.keeps_streams:
            raise ConfigError(
                f"[app.{app.name}] stream = {app.stream!r}: model {model.name!r} makes sequences, and "
                "the state of a sequence ends with its answer. Take stream away; a conversation goes "
                "along with each request (messages), and pieces of an answer need no stream"
            )


def _factory(model: ModelConfig, directory: str) -> EngineFactory:
    """The factory of the engine that a model names, or that Python gave."""
    if isinstance(model.given, Engine):
        return lambda *_: model.given
    if isinstance(model.given, type) and issubclass(model.given, Engine):
        return model.given
    if ":" in model.engine:
        from edgeserve.engines.functions import import_function  # only where it is needed

        return import_function(model.engine, directory, f"[model.{model.name}] engine")
    if model.engine not in ENGINES:
        raise ConfigError(
            f"[model.{model.name}] engine = {model.engine!r} is no engine"
            f"{did_you_mean(model.engine, ENGINES)} Expected one of {', '.join(sorted(ENGINES))}, or "
            "'module:Class' of an engine of your own"
        )
    module, _, name = ENGINES[model.engine].partition(":")
    try:
        factory: EngineFactory = getattr(importlib.import_module(module), name)
    except NOT_IMPORTED as error:
        extra = _EXTRAS.get(str(getattr(error, "name", "")).split(".")[0])
        mend = f"; pip install 'edgeserve-runtime[{extra}]'" if extra else ""
        raise EngineError(f"model {model.name!r}: engine {model.engine!r} cannot be imported ({error}){mend}") from None
    return factory


def _split_options(model: ModelConfig) -> Tuple[ModelConfig, Options]:
    """The model with the options of its engine, and the options that say where the engine runs."""
    own = {key: value for key, value in model.options.items() if key in PROCESS_OPTIONS}
    inner = {key: value for key, value in model.options.items() if key not in PROCESS_OPTIONS}
    return replace(model, options=inner), Options(replace(model, options=own), PROCESS_OPTIONS)


def lane_info(config: Config, lane: str, serves: bool = False) -> LaneInfo:
    """The description of a lane for an engine. ``serves``: of a server."""
    if lane not in config.lanes:
        raise ConfigError(f"lane {lane!r} does not exist{nearest(lane, config.lanes)}")
    settings = config.lanes[lane]
    device = config.devices[settings.device]
    models = sum(not model.lanes or lane in model.lanes for model in config.models.values())
    return LaneInfo(
        device.kind,
        device.index,
        settings.threads,
        settings.cores,
        lane,
        settings.depth,
        nice=settings.nice,
        models=models,
        apps=len(config.apps),
        priority=settings.priority,
        flush=True,
        serves=serves,
        sms=settings.sms,
    )
