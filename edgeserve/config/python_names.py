"""Configurations that were given in Python: the names of functions for a file, and of arguments for errors."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

GIVEN_IN_PYTHON = "(given in Python)"
"""The source of a configuration that ``edgeserve.app`` made."""

PLURALS = {name: f"{name}s" for name in ("model", "app", "lane", "device", "front")}
PLURALS["policy"] = "policies"
"""Section of a file -> the argument that holds its tables."""

KEYS = {"priority_class": "class"}
"""Arguments whose key in a file is a keyword of Python."""

_TABLE = re.compile(
    rf"\[\[?({'|'.join(PLURALS)}|server)(?:\.(.+?))??"
    r"(?:\.(node|inputs|predict|expected|variants|options|ensemble))?\]\]?(?= |:|\.|,|;|$)"
)
"""A table's head as errors name it: its section, its name, and which table within it."""


def importable_name(what: Any) -> str:
    """``"module:name"``, by which a file or another process finds a function or a class; ``""`` where nothing does. In
    the program that was started, the module is its file's name."""
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in str(name).split("."):
        found = getattr(found, part, None)
    if found is None or found is not what:
        return ""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0] if file else ""
    return f"{module}:{name}" if module else ""


def in_python(text: str) -> str:
    """An error's text with the arguments of Python in place of a file's tables: ``[app.focus] slo`` is
    ``apps['focus'] slo``, and that of all models, ``[model.*] expected``, ``models[...] expected``."""
    for argument, key in KEYS.items():
        text = re.sub(rf"(\[app\.[^\]]+\] (?:has no key .*[' ])?){key}\b", rf"\1{argument}", text)
    return _TABLE.sub(_argument, text)


def as_given(source: str, text: str) -> str:
    """The text of an error or a warning in the form in which the configuration of this ``source`` was given."""
    return in_python(text) if source == GIVEN_IN_PYTHON else text


def _argument(found: re.Match[str]) -> str:
    section, name, part = found.groups()
    argument = PLURALS.get(section, section)
    where = f"{argument}[{'...' if name == '*' else repr(name)}]" if name else argument
    return f"{where} {part}" if part else where
