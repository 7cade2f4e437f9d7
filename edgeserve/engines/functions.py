"""The functions that a configuration names, imported from beside it."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any, Callable, Dict, Set

from edgeserve.errors import ConfigError, EngineError

Function = Callable[..., Any]

_import_lock = threading.RLock()  # a program that is imported may make a runtime, which imports
_imported: Dict[str, Set[str]] = {}  # directory -> modules that were imported from it


def import_function(spec: str, directory: str, where: str) -> Function:
    """The callable that ``"module:name"`` means, with ``directory`` searched first.

    Two configurations in one process may both have a module ``steps``: that of another configuration's directory is
    forgotten first (functions that were taken from it go on working). ``directory`` stays at the end of ``sys.path``,
    where it can shadow nothing, so that imports inside functions work too.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{where} = {spec!r}: expected 'module:function'")
    home = os.path.realpath(directory)
    with _import_lock:
        _forget_others(home)
        before = set(sys.modules)
        sys.path.insert(0, home)
        try:
            importlib.invalidate_caches()
            module = _started_program(home, module_name) or importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
            raise EngineError(
                f"{where} = {spec!r}: module {module_name!r} cannot be imported from {home} or the "
                f"Python path: {type(error).__name__}: {error}"
            ) from error
        finally:
            sys.path.remove(home)
            if home not in sys.path:
                sys.path.append(home)
            _imported.setdefault(home, set()).update(
                key for key in set(sys.modules) - before if _below(home, sys.modules[key])
            )
    _refuse_shadowed(module, module_name, home, where, spec)
    function: Any = module
    for attribute in name.split("."):
        function = getattr(function, attribute, None)
    if not callable(function):
        raise EngineError(
            f"{where} = {spec!r}: module {module_name!r} ({getattr(module, '__file__', 'built in')}) "
            f"has no function or class {name!r}"
        )
    return function  # type: ignore[no-any-return]


def _started_program(home: str, module_name: str) -> Any:
    """The program that was started, where it is the module: it is not run a second time."""
    program = sys.modules.get("__main__")
    file = getattr(program, "__file__", None)
    return program if file and os.path.realpath(file) == os.path.join(home, *module_name.split(".")) + ".py" else None


def _forget_others(home: str) -> None:
    """Drop modules that came from other configurations' directories where ``home`` has one of the same name."""
    for other, names in _imported.items():
        if other == home:
            continue
        for name in sorted(names):
            if _has_module(home, name.split(".")[0]):
                sys.modules.pop(name, None)
                names.discard(name)


def _has_module(home: str, name: str) -> bool:
    return os.path.isfile(os.path.join(home, f"{name}.py")) or os.path.isdir(os.path.join(home, name))


def _below(home: str, module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.realpath(file).startswith(home + os.sep)


def _refuse_shadowed(module: Any, module_name: str, home: str, where: str, spec: str) -> None:
    if os.path.isfile(os.path.join(home, *module_name.split(".")) + ".py") and not _below(home, module):
        raise EngineError(
            f"{where} = {spec!r}: {module_name!r} was already imported from "
            f"{getattr(module, '__file__', 'Python itself')}, which hides the one in {home}; rename it"
        )
