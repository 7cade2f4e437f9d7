"""``app.py:runtime``: a runtime that a Python program defines, where a command takes a configuration."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict

from edgeserve.config.loading import load_config
from edgeserve.config.schema import Config
from edgeserve.config.toml_files import parse_toml, read_toml
from edgeserve.errors import ConfigError, nearest

if TYPE_CHECKING:
    from edgeserve.runtime import Runtime

CONFIG_HELP = "the configuration file, such as edge.toml, or a runtime of a Python program, app.py:runtime"
"""The forms of a command's ``CONFIG``."""

_PLACE = re.compile(r"(?P<module>.+):(?P<name>[A-Za-z_][\w.]*)")


def names_runtime(place: str) -> bool:
    """True for a file or a module of Python with a name in it, and for a file of Python whose name is missing."""
    return place.rstrip(":").endswith(".py") or (_PLACE.fullmatch(place) is not None and not os.path.exists(place))


def config_at(place: str) -> Config:
    """The configuration of a file, or of a program's runtime, whose ``source`` is ``place`` then. Raises
    :class:`ConfigError`."""
    return replace(runtime_at(place).configuration, source=place) if names_runtime(place) else load_config(place)


def sections_of(config: Config) -> Dict[str, Any]:
    """The sections of what :func:`config_at` returned, as a file has them."""
    if not names_runtime(config.source):
        return read_toml(config.source)
    from edgeserve.config.toml_text import toml_of

    return parse_toml(toml_of(config), config.source)


def runtime_at(place: str) -> Runtime:
    """The runtime of that name in a file or a module, not started. Raises :class:`ConfigError` saying what is wrong
    there."""
    from edgeserve.async_runtime import AsyncRuntime
    from edgeserve.runtime import Runtime

    found = _PLACE.fullmatch(place)
    if found is None:
        raise ConfigError(f"{place}: which object of the program is the runtime? Name it: {place.rstrip(':')}:runtime")
    module = _module_of(found["module"], place)
    value: Any = module
    for name in found["name"].split("."):
        if not hasattr(value, name):
            runtimes = [other for other, held in vars(module).items() if isinstance(held, (Runtime, AsyncRuntime))]
            raise ConfigError(f"{place}: {found['module']} has no {name!r}{nearest(name, runtimes)}")
        value = getattr(value, name)
    runtime = value.runtime if isinstance(value, AsyncRuntime) else value
    if not isinstance(runtime, Runtime):
        raise ConfigError(f"{place} is a {type(value).__name__}, expected an edgeserve.Runtime")
    if runtime.was_started:
        raise ConfigError(
            f"{place} was started while {found['module']} was imported; put what uses it below "
            "if __name__ == '__main__':"
        )
    return runtime


def _module_of(module: str, place: str) -> ModuleType:
    is_file = module.endswith(".py") or os.sep in module
    home = os.path.dirname(os.path.abspath(module)) if is_file else os.getcwd()
    name = os.path.splitext(os.path.basename(module))[0] if is_file else module
    if is_file and not os.path.isfile(module):
        raise ConfigError(f"{place}: there is no file {module}")
    sys.path.insert(0, home)  # for what it imports beside itself, as when Python runs it
    try:
        if not is_file:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, module)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{place}: {module} is no file of Python; its name must end in .py")
        found = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        raise ConfigError(f"{place}: {module} cannot be imported: {type(error).__name__}: {error}") from error
