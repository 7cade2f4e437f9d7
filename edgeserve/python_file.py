"""``app.py:runtime``: a runtime that a Python program defines, for ``edgeserve serve``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from types import ModuleType
from typing import Any

from edgeserve.async_runtime import AsyncRuntime
from edgeserve.errors import ConfigError, nearest
from edgeserve.runtime import Runtime

_PLACE = re.compile(r"(?P<module>.+):(?P<name>[A-Za-z_][\w.]*)")


def names_runtime(place: str) -> bool:
    """True for a file or a module of Python with a name in it, and for a file of Python whose name is missing."""
    return place.rstrip(":").endswith(".py") or (_PLACE.fullmatch(place) is not None and not os.path.exists(place))


def runtime_at(place: str) -> Runtime:
    """The runtime of that name in a file or a module, not started. Raises :class:`ConfigError` saying what is wrong
    there."""
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
