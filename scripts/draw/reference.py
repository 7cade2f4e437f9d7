"""Draw ``docs/reference/python.md``: the public names of the package, from their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

import edgeserve
from edgeserve.app import Sections
from edgeserve.request_options import OPTIONS

PAGE, SCRIPT = "docs/reference/python.md", "scripts/draw/reference.py"

CLASSES = ("Runtime", "AsyncRuntime", "Model", "App", "Node", "Client", "AsyncClient", "Answer")
"""Those whose methods are listed; :class:`Config` has a page of its own."""


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {"names": names(), "classes": "\n\n".join(class_text(name) for name in CLASSES)}


def names() -> str:
    """A row per public name."""
    rows = ["| name | what it is |", "| --- | --- |"]
    for name in sorted(edgeserve.__all__):
        value = getattr(edgeserve, name)
        text = "the version, text" if isinstance(value, str) else first_sentence(value)
        rows.append(f"| `edgeserve.{name}` | {text} |")
    return "\n".join(rows)


def class_text(name: str) -> str:
    """A class: its docstring, then its public methods and properties in the order of the source."""
    kind = getattr(edgeserve, name)
    lines = [f"### edgeserve.{name}", "", f"```\n{name}{signature(kind.__init__)}\n```", "", plain(kind), ""]
    for own, member in vars(kind).items():
        inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if own.startswith("_") or not inspect.isfunction(inner) or not inspect.getdoc(inner):
            continue
        mark = "" if isinstance(member, property) else signature(inner)
        word = "async " if inspect.iscoroutinefunction(inner) else ""
        lines.append(item(f"`{word}{name}.{own}{mark}`: {plain(inner)}"))
    return "\n".join(lines)


def item(text: str) -> str:
    """A list's item, its paragraphs joined."""
    return textwrap.fill(
        " ".join(text.split()), 120, initial_indent="* ", subsequent_indent="  ", break_long_words=False
    )


def signature(function: Any) -> str:
    """The arguments without their types, which the docstrings say: they differ in form between versions of Python."""
    words: List[str] = []
    starred = False
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            words.append("*")
        if parameter.annotation == "Unpack[RequestOptions]":
            words += [*(() if starred else ("*",)), *(f"{name}=None" for name in OPTIONS)]
            continue
        if parameter.annotation == "Unpack[Sections]":
            words += [f"{name}=None" for name in Sections.__annotations__]
            continue
        prefix = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(f"{prefix}{parameter.name}{default}")
    return f"({', '.join(words)})"


def first_sentence(value: Any) -> str:
    """A docstring's first sentence on one line; for a value without a docstring, its module's."""
    text = plain(value).replace("\n", " ")
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("|", "\\|")


def plain(value: Any) -> str:
    """A docstring as Markdown: reStructuredText's marks become code spans."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda match: f"`{match.group(1).split('edgeserve.')[-1]}`", text)
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.S)


if __name__ == "__main__":
    importlib.import_module("edgeserve.runtime")
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
