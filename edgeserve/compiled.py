"""The compiled core: which modules mypyc may compile, which of them run compiled here, and how to choose.

The same sources run interpreted and compiled; nothing is written twice. ``setup.py`` compiles the modules of
:data:`ROOMS` when ``EDGESERVE_COMPILE=1`` asks for it. Python then loads an extension module where one lies beside its
source. ``docs/guide/compiled.md`` is the guide. This module itself is never compiled.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import TYPE_CHECKING, List, NamedTuple

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr  # mypyc knows the decorator by this name
else:

    def mypyc_attr(**_options):
        """Means something to the compiler alone; a copy of ``mypy_extensions.mypyc_attr``, which is not required."""
        return lambda kind: kind


ROOMS = ("lognormal", "loop", "sched")
"""Packages and modules below ``edgeserve`` that are compiled."""

LIBRARY = "_core_"
"""Start of the name of the shared library; behind it stands :func:`digest` of the sources."""

HERE = os.path.dirname(os.path.abspath(__file__))

CHOICE = "EDGESERVE_CORE"
"""Environment variable: ``interpreted`` ignores compiled modules, ``compiled`` refuses to run without them."""


class Core(NamedTuple):
    """The sources in use: ``kind`` is ``compiled``, ``interpreted`` or ``mixed``; ``of`` is the number of modules that
    can be compiled, ``compiled`` how many of them are."""

    kind: str
    compiled: int
    of: int


def sources(package: str = HERE) -> List[str]:
    """The files that are compiled, relative to the package. Not ``__init__.py``: nothing is computed there."""
    found = []
    for room in ROOMS:
        whole = os.path.join(package, *room.split("."))
        if os.path.isfile(whole + ".py"):
            found.append(os.path.relpath(whole + ".py", package))
        for folder, _, names in os.walk(whole):
            found += [
                os.path.relpath(os.path.join(folder, name), package)
                for name in names
                if name.endswith(".py") and name != "__init__.py"
            ]
    return sorted(found)


def digest(package: str = HERE) -> str:
    """Twelve hexadecimal digits that change with any source that is compiled."""
    import hashlib  # with OpenSSL: 4 MB that a server spares, which never asks

    together = hashlib.sha256()
    for path in sources(package):
        with open(os.path.join(package, path), "rb") as file:
            together.update(path.encode() + b"\0" + file.read())
    return together.hexdigest()[:12]


@functools.lru_cache(maxsize=None)
def running() -> Core:
    """The core of this process. It cannot change while the process runs."""
    names = ["edgeserve." + path[: -len(".py")].replace(os.sep, ".") for path in sources()]
    compiled = sum(_is_compiled(name) for name in names)
    kind = "mixed" if 0 < compiled < len(names) else "compiled" if compiled else "interpreted"
    return Core(kind, compiled, len(names))


def is_stale() -> bool:
    """True if the loaded library was compiled from other sources than the present ones."""
    libraries = [name for name in sys.modules if name.startswith(f"edgeserve.{LIBRARY}")]
    return bool(libraries) and any(digest() not in name for name in libraries)


def _is_compiled(name: str) -> bool:
    """True if a module is, or would be, loaded from a library. Loads none: the loop of a server answers this too."""
    spec = importlib.util.find_spec(name)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def choose(choice: str) -> None:
    """Obey the environment variable ``EDGESERVE_CORE``, before any module of the core was imported."""
    if choice == "interpreted":
        sys.path_hooks.insert(0, _only_sources)
        sys.path_importer_cache.clear()
    elif choice == "compiled":
        bare = [
            path
            for path in sources()
            if not any(
                os.path.exists(os.path.join(HERE, path[: -len(".py")] + suffix)) for suffix in EXTENSION_SUFFIXES
            )
        ]
        if bare:
            raise ImportError(
                f"{CHOICE}=compiled, but {len(bare)} modules of {HERE} are not compiled for this Python "
                f"(first: {bare[0]}); install with EDGESERVE_COMPILE=1, or unset {CHOICE}"
            )
    else:
        raise ImportError(f"{CHOICE}={choice!r}: expected interpreted or compiled, or leave it unset")


def _only_sources(folder: str) -> FileFinder:
    """A path hook for this package's folders that knows no extension modules."""
    if os.path.commonpath([HERE, os.path.abspath(folder)]) != HERE:
        raise ImportError(folder)
    return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
