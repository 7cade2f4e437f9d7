"""The fronts by name: this package's, the ones that other packages install (entry points), and classes of one's own."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import fields, replace
from typing import Any, Dict, Mapping, Optional, Tuple, Type

from edgeserve.config.files import resolve_path
from edgeserve.config.installed import Installed, installed
from edgeserve.config.readers import read_table
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError, nearest, said
from edgeserve.front.contract import Front

BUILT_IN = {
    "http": "edgeserve.fronts.http.front:HttpFront",
    "wyoming": "edgeserve.fronts.wyoming:WyomingFront",
    "mqtt": "edgeserve.fronts.mqtt:MqttFront",
    "frigate": "edgeserve.fronts.frigate:FrigateFront",
    "camera": "edgeserve.fronts.camera_front:CameraFront",
}
"""Kind of front -> its class."""

SETTINGS = {
    "http": "edgeserve.fronts.http.settings:HttpConfig",
    "wyoming": "edgeserve.fronts.wyoming_settings:Voice",
    "mqtt": "edgeserve.fronts.mqtt_settings:Mqtt",
    "frigate": "edgeserve.fronts.frigate:Frigate",
    "camera": "edgeserve.fronts.camera_front:CameraSettings",
}
"""Kind of front -> the class of its settings, which needs no package of the front's."""

GROUP = "edgeserve.fronts"
"""The group of entry points by which a package installs a front: ``line = "my_package.line:LineFront"``."""


def installed_fronts() -> Dict[str, Installed]:
    """The fronts that other packages install, by kind; a kind of this package's is its own."""
    return {kind: found for kind, found in installed(GROUP).items() if kind not in BUILT_IN}


def front_class(kind: str, directory: str = ".") -> Type[Front]:
    """The class of a kind of front: a name, or ``module:class`` beside the configuration. Raises
    :class:`ConfigError`."""
    known = dict(BUILT_IN)
    if kind not in known:
        known.update((name, found.place) for name, found in installed_fronts().items())
    place = known.get(kind, kind if ":" in kind else "")
    if not place:
        raise ConfigError(
            f"front {kind!r} is neither installed nor kind = 'module:Class' of your own{nearest(kind, known)}"
        )
    module, _, name = place.partition(":")
    if kind not in known and directory not in sys.path:
        sys.path.append(os.path.abspath(directory))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        extra = f": pip install 'edgeserve-runtime[{kind}]'" if kind in BUILT_IN else f" (imported for {place!r})"
        raise ConfigError(f"this front needs {error.name}{extra}") from None
    except Exception as error:
        raise ConfigError(f"front {kind!r}: {module} cannot be imported: {said(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Front)):
        raise ConfigError(f"front {kind!r}: {place!r} is no subclass of edgeserve.front.Front")
    return found


def own_settings() -> Dict[str, Type[Any]]:
    """Kind -> settings of this package's fronts."""
    places = {kind: place.partition(":") for kind, place in SETTINGS.items()}
    return {kind: getattr(importlib.import_module(module), name) for kind, (module, _, name) in places.items()}


def settings_class(kind: str) -> Optional[Type[Any]]:
    """The class of the settings of a front that this package or another one has; None for any other name."""
    if kind in SETTINGS:
        return own_settings()[kind]
    return front_class(kind).Settings if kind in installed_fronts() else None


def front_of(name: str, table: Mapping[str, Any], directory: str = ".") -> Tuple[Type[Front], Any]:
    """The class and the settings of ``[front.NAME]``. ``kind`` says which front it is: its name, where left out."""
    kind = table.get("kind", name)
    if not isinstance(kind, str):
        raise ConfigError(f"[front.{name}] kind = {kind!r}: expected a string")
    try:
        made = front_class(kind, directory)
    except ConfigError as error:
        raise ConfigError(f"[front.{name}]: {error}") from None
    own = {key: value for key, value in table.items() if key != "kind"}
    settings = read_table(made.Settings, own, f"[front.{name}]", ("kind",))
    places = {key: f"[front.{name}] {key}" for key in entries_of(made.Settings)}
    return made, replace(settings, places=places, **_files(made.Settings, vars(settings), directory))


def with_options(settings: Any, given: Mapping[str, Any], options: Mapping[str, str]) -> Any:
    """The settings with keys that the command line gives. ``options``: key -> the option that errors name."""
    entries = entries_of(type(settings))
    values = {entries[key].name: entries[key].metadata["read"](value, options[key]) for key, value in given.items()}
    values.update(_files(type(settings), values, "."))
    return replace(settings, places={**settings.places, **options}, **values)


def entries_of(kind: type) -> Dict[str, Any]:
    """Key of a table -> its field."""
    return {item.metadata["key"] or item.name: item for item in fields(kind) if "read" in item.metadata}


def _files(kind: Type[Any], values: Mapping[str, Any], directory: str) -> Dict[str, str]:
    """The files among settings that are there, relative to a folder."""
    paths = {key: resolve_path(values[key], directory) for key in kind.FILES if values.get(key)}
    return {key: path for key, path in paths.items() if os.path.exists(path)}


def server_key_of(config: Config, endpoint: str) -> str:
    """The file of the server's keys, where clients of ``endpoint`` need its public one; else ``""``."""
    path = config.curve_secret_key_path
    return os.path.abspath(path) if path and endpoint.startswith("tcp://") else ""
