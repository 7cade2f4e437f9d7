"""The registry of engines: a kind's name to the module that has it, imported only when a model asks for it.

A module of this table has ``make(model, lane, directory) -> Engine``. :func:`register` adds a kind from outside.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Callable, Dict

from edgeserve.config import Config, ModelConfig
from edgeserve.engines.base import Engine, LaneInfo
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
"""Has ``make(model, lane, directory)`` for ``options.process = true``: the engine in a process of its own."""

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
    in_process = model.options.get("process", False)
    if not isinstance(in_process, bool):
        raise ConfigError(f"[model.{model.name}] options.process = {in_process!r}: expected true or false")
    if not in_process and "process" in model.options:
        options = {key: value for key, value in model.options.items() if key != "process"}
        model = replace(model, options=options)
    name = PROCESS_MODULE if in_process else ENGINES[model.engine]
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRAS.get(str(error.name).split(".")[0])
        mend = f"; pip install 'edgeserve-runtime[{extra}]'" if extra else ""
        raise EngineError(f"model {model.name!r}: engine {model.engine!r} cannot be imported ({error}){mend}") from None
    engine: Engine = module.make(model, lane, directory)
    return engine


def lane_info(config: Config, lane: str) -> LaneInfo:
    """What an engine is told of the lane of that name."""
    if lane not in config.lanes:
        raise ConfigError(f"lane {lane!r} does not exist{nearest(lane, config.lanes)}")
    settings = config.lanes[lane]
    device = config.devices[settings.device]
    return LaneInfo(device.kind, device.index, settings.threads, settings.cores)
