"""The registry of engines: a kind's name to the module that has it, imported only when a model asks for it.

A module of this table has ``make(model, lane, directory) -> Engine``. :func:`register` adds a kind from outside.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from typing import Callable, Dict, Tuple

from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, nearest

EngineFactory = Callable[[ModelConfig, LaneInfo, str], Engine]
"""``make(model, lane, directory)``: relative paths and host functions are looked for in ``directory``."""

ENGINES: Dict[str, str] = {
    "onnx": "edgeserve.engines.onnx",
    "python": "edgeserve.engines.python",
    "synthetic": "edgeserve.engines.synthetic",
}
"""Engine kind -> module. The values are names, so that nothing is imported before it is needed."""

PROCESS_MODULE = "edgeserve.offload.process"
"""Has ``make(model, lane, directory, timeout_ns, restarts_max)`` for ``options.process = true``: any engine in a
process of its own."""

PROCESS_OPTIONS = ("process", "process_timeout", "process_restarts_max")
"""Options that say where an engine runs; every kind has them, none sees them."""

# ONNX Runtime's official builds send usage events to their maker unless this is set before they are imported, which
# only happens after this package. A robot's runtime does not phone home; whoever wants that sets 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_EXTRAS = {"onnxruntime": "onnx"}


def register(kind: str, module: str) -> None:
    """Add an engine kind: ``module`` must have ``make(model, lane, directory)``. An existing kind is not replaced."""
    if ENGINES.setdefault(kind, module) != module:
        raise ConfigError(f"engine kind {kind!r} is taken by {ENGINES[kind]}; give {module} another name")


def make_engine(model: ModelConfig, lane: LaneInfo, directory: str = ".") -> Engine:
    """The engine of ``model`` for ``lane``, not yet loaded. ``directory`` is the configuration's.

    Raises :class:`ConfigError` for an unknown kind or option and :class:`EngineError` when the engine's own library
    is not installed.
    """
    if model.engine not in ENGINES:
        raise ConfigError(f"[model.{model.name}] engine = {model.engine!r} is no engine"
                          f"{nearest(model.engine, ENGINES)}")
    inner, own = _split_options(model)
    try:
        module = importlib.import_module(ENGINES[model.engine])
    except ImportError as error:
        extra = _EXTRAS.get(str(error.name).split(".")[0])
        mend = f"; pip install 'edgeserve-runtime[{extra}]'" if extra else ""
        raise EngineError(f"model {model.name!r}: engine {model.engine!r} cannot be imported ({error}){mend}") from None
    engine: Engine = module.make(inner, lane, directory)  # for a process too: it checks the options here and now
    if own.boolean("process", False):
        process = importlib.import_module(PROCESS_MODULE)
        engine = process.make(inner, lane, directory, own.duration_ns("process_timeout", process.TIMEOUT_NS),
                              own.integer("process_restarts_max", process.RESTARTS_MAX, 0, 1000))
    return engine


def _split_options(model: ModelConfig) -> Tuple[ModelConfig, Options]:
    """The model with the options of its engine, and those that say where the engine runs."""
    own = {key: value for key, value in model.options.items() if key in PROCESS_OPTIONS}
    inner = {key: value for key, value in model.options.items() if key not in PROCESS_OPTIONS}
    return replace(model, options=inner), Options(replace(model, options=own), PROCESS_OPTIONS)


def lane_info(config: Config, lane: str) -> LaneInfo:
    """What an engine is told of the lane of that name."""
    if lane not in config.lanes:
        raise ConfigError(f"lane {lane!r} does not exist{nearest(lane, config.lanes)}")
    settings = config.lanes[lane]
    device = config.devices[settings.device]
    return LaneInfo(device.kind, device.index, settings.threads, settings.cores)
