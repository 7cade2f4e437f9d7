"""A configuration in Python: :class:`Model`, :class:`App` and :class:`Node` in place of the tables of a file.

They take what those tables take, by the same names, and the same reader checks it: ``App("detect", slo="50ms")`` among
``apps`` as ``"cam"`` is ``[app.cam]`` with ``model = "detect"`` and ``slo = "50ms"``. Only ``class`` is
``priority_class`` here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Mapping, TypedDict, Union

import numpy as np

from edgeserve.config.loading import parse_config
from edgeserve.config.python_names import GIVEN_IN_PYTHON, KEYS, importable_name, in_python
from edgeserve.config.readers import names_function
from edgeserve.config.schema import Config
from edgeserve.engines.base import Engine
from edgeserve.errors import ConfigError

ENGINE_OF = {
    ".onnx": "onnx",
    ".gguf": "lm",
    ".plan": "tensorrt",
    ".engine": "tensorrt",
    ".pt2": "torch",
    ".pt": "torch",
}
"""The ending of a model's file -> the engine that runs it, where ``engine`` is not given."""


class Model:
    """A model: a Python function, the path of a file, an engine's class or an engine object; or ``"module:function"``.

    ``keys`` are those of ``[model.NAME]``: ``batch=[1, 2, 4]``, ``lanes=["gpu0"]``, ``options={...}``. A file's
    ``engine`` follows from its ending where it is not given.
    """

    def __init__(self, what: Any = None, **keys: Any) -> None:
        self.given: Any = None
        self.table: Dict[str, Any] = {}
        if isinstance(what, (str, os.PathLike)):
            path = os.fspath(what)
            if names_function(path):
                self.table = {"engine": "python", "function": path}
            else:
                self.table = {"engine": _engine_of(path, keys), "file": path}
        elif isinstance(what, Engine) or (isinstance(what, type) and issubclass(what, Engine)):
            kind = what if isinstance(what, type) else type(what)
            self.given, self.table = what, {"engine": f"{kind.__module__}:{kind.__qualname__}"}
        elif callable(what):
            name = importable_name(what)
            self.given, self.table = what, {"engine": "python", **({"function": name} if name else {})}
        elif what is not None:
            raise ConfigError(
                f"Model({what!r}): expected a function, the path of a model's file, an engine's class or an engine"
            )
        said = _plain(keys)
        own = {"function": what, **self.table} if self.table.get("engine") == "python" else self.table
        for key in own:
            if key in said and said[key] != own[key]:
                raise ConfigError(f"Model({what!r}, {key}={keys[key]!r}) says {key} twice; leave one of the two out")
        self.table.update(said)


class Node:
    """A place in an app: ``name``, and of ``keys`` those of ``[[app.NAME.node]]``: ``model``, ``after`` (a name or a
    list; left out: the node before it), ``fan_out``, ``gather``, ``join``, ``route``, ``inputs``."""

    def __init__(self, name: str, **keys: Any) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"{name!r}: expected the name that it has in models={{...}}")
        after = keys.get("after")
        self.table: Dict[str, Any] = {"name": name, **_plain(keys)}
        if isinstance(after, str):
            self.table["after"] = [after]


class App:
    """An app: the name of its model, or its nodes (a string is a node of that name). ``keys`` are those of
    ``[app.NAME]``, such as ``slo="50ms"``; ``inputs={"image": {"dtype": np.uint8, "shape": (480, 640, 3)}}`` declares
    what a request must bring."""

    def __init__(self, *nodes: Union[str, Node], **keys: Any) -> None:
        self.table: Dict[str, Any] = {KEYS.get(key, key): value for key, value in _plain(keys).items()}
        for key in ("model", "node") if nodes else ():
            if key in keys:
                raise ConfigError(
                    f"App({nodes[0]!r}, {key}={keys[key]!r}) says its nodes twice; leave one of the two out"
                )
        if len(nodes) == 1 and isinstance(nodes[0], str):
            self.table["model"] = nodes[0]
        elif nodes or isinstance(self.table.get("node"), list):
            given = nodes or self.table["node"]
            self.table["node"] = [node if isinstance(node, dict) else _as(Node, node).table for node in given]


class Sections(TypedDict, total=False):
    """The arguments of :func:`configuration`."""

    models: Mapping[str, Any]
    apps: Mapping[str, Any]
    devices: Mapping[str, Mapping[str, Any]]
    lanes: Mapping[str, Mapping[str, Any]]
    policies: Mapping[str, Mapping[str, Any]]
    server: Mapping[str, Any]
    fronts: Mapping[str, Mapping[str, Any]]
    directory: Union[str, os.PathLike[str]]


def configuration(
    *,
    models: Mapping[str, Any] | None = None,
    apps: Mapping[str, Any] | None = None,
    devices: Mapping[str, Mapping[str, Any]] | None = None,
    lanes: Mapping[str, Mapping[str, Any]] | None = None,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
    server: Mapping[str, Any] | None = None,
    fronts: Mapping[str, Mapping[str, Any]] | None = None,
    directory: str | os.PathLike[str] = ".",
) -> Config:
    """The checked configuration of models and apps by name. A model may be what :class:`Model` takes, an app the name
    of its model. The other arguments are tables as in a file; relative paths, and the profiles, are in ``directory``.
    Raises :class:`~edgeserve.errors.ConfigError` naming the argument."""
    made = {name: _as(Model, model) for name, model in _named("models", models).items()}
    table: Dict[str, Any] = {
        "model": {name: model.table for name, model in made.items()},
        "app": {name: _as(App, app).table for name, app in _named("apps", apps).items()},
        "device": _named("devices", devices),
        "lane": _named("lanes", lanes),
        "policy": _plain(_named("policies", policies), "policies"),
        "front": _named("fronts", fronts),
    }
    if server is not None:
        table["server"] = server
    try:
        config = parse_config(table, os.fspath(directory), GIVEN_IN_PYTHON)
    except ConfigError as error:
        raise ConfigError(in_python(str(error))) from None
    with_given = {name: replace(model, given=made[name].given) for name, model in config.models.items()}
    config = replace(config, models=with_given)
    for name, model in config.models.items():
        devices_of = {config.lanes[lane].device for lane in model.lanes or config.lanes}
        if isinstance(model.given, Engine) and len(devices_of) > 1:
            raise ConfigError(
                f"models[{name!r}] is an engine object, which is on one device, and its lanes are on "
                f"{', '.join(sorted(devices_of))}; give the engine's class, or lanes of one device"
            )
    return config


def _named(argument: str, given: Any) -> Dict[str, Any]:
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise ConfigError(f"{argument} = {given!r}: expected a dict with names as keys")
    return dict(given or {})


def _as(kind: Any, given: Any) -> Any:
    return given if isinstance(given, kind) else kind(given)


def _engine_of(path: str, keys: Mapping[str, Any]) -> str:
    if "engine" in keys:
        return str(keys["engine"])
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENGINE_OF:
        raise ConfigError(
            f"Model({path!r}): its ending names no engine (known: {', '.join(sorted(ENGINE_OF))}); give engine='...'"
        )
    return ENGINE_OF[ending]


def _plain(given: Any, where: str = "") -> Any:
    """Values as a file has them: paths as text, functions and types of numbers by their names."""
    if isinstance(given, Mapping):
        return {key: _plain(value, f"{where}.{key}" if where else str(key)) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(value, where) for value in given]
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    if isinstance(given, np.dtype) or (isinstance(given, type) and issubclass(given, (np.generic, int, float))):
        return np.dtype(given).name
    if isinstance(given, np.generic):
        return given.item()
    if not callable(given):
        return given
    name = importable_name(given)
    if not name:
        raise ConfigError(f"{where} = {given!r} has no name to import it by; define it at the top of a module")
    return name
