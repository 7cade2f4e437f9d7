"""Draw ``docs/reference/configuration.md``: every key of the TOML file with type, default and meaning, from
``edgeserve.config.schema``.

Types come from the readers, defaults from the dataclasses, meanings from the comments that stand beside the fields.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from edgeserve.config import readers, schema
from edgeserve.config.json_schema import meanings_of
from edgeserve.fronts.http.settings import HttpConfig, web_origin
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import PolicyOption, PolicyOptions, options_of
from edgeserve.units import format_duration, format_size

PAGE, SCRIPT = "docs/reference/configuration.md", "scripts/draw/configuration.py"

SECTIONS = {
    "server": schema.ServerConfig,
    "device": schema.DeviceConfig,
    "lane": schema.LaneConfig,
    "http": HttpConfig,
    "model": schema.ModelConfig,
    "app": schema.AppConfig,
    "inputs": schema.TensorConfig,
    "node": schema.NodeConfig,
}

PLAIN = {
    readers.sha256: "64 hexadecimal digits",
    readers.string: "text",
    web_origin: "origins",
    readers.chip: '"cpu", "cuda" or "cuda:N"',
    readers.boolean: "true or false",
    readers.duration: "duration",
    readers.size: "size",
    readers.size_or_auto: 'size or "auto"',
    readers.sizes: "list of batch sizes",
    readers.anything: "any",
    readers.durations_by_size: "table: size = duration",
    readers.read_predictors: "table: hint = module:function",
    readers.quality_number: "number above 0 to 1",
    readers.join: '"all", "policy" or a number',
}
BUILDERS = {
    "integer": "whole number",
    "number": "number",
    "one_of": "",
    "tuple_of": "list of",
    "table_of": "table: name =",
    "list_or_table_of": "list or table of",
}


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {name: _table(kind) for name, kind in SECTIONS.items()}


def _table(kind: type) -> str:
    comments = comments_of(kind)
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for item in fields(kind):  # type: ignore[arg-type]
        if "read" in item.metadata:
            key = item.metadata["key"] or item.name
            lines.append(f"| `{key}` | {_type(item.metadata['read'])} | {_default(item)} | {comments[item.name]} |")
    return "\n".join(lines)


def comments_of(kind: type) -> Dict[str, str]:
    """Field name -> what it means, as a cell of a table."""
    return {name: text.replace("|", "\\|").replace("<", "&lt;") for name, text in meanings_of(kind).items()}


def _type(read: Any) -> str:
    if read in PLAIN:
        return PLAIN[read]
    name = read.__qualname__.split(".")[0]
    held = dict(zip(read.__code__.co_freevars, [cell.cell_contents for cell in read.__closure__ or ()]))
    if name == "one_of":
        return ", ".join(f'"{word}"' for word in held["names"])
    if name in ("tuple_of", "table_of", "list_or_table_of"):
        return re.sub(r"list of whole number\b", "list of whole numbers", f"{BUILDERS[name]} {_type(held['reader'])}")
    if name == "size_from":
        return f"size from {format_size(held['low'])}"
    low, high = held["low"], held["high"]
    bounds = (
        ""
        if low == float("-inf")
        else f" from {low:g}"
        if high in (2**31, float("inf"))
        else f" from {low:g} to {high:.7g}"
    )
    return BUILDERS[name] + bounds


def _default(item: Field[Any]) -> str:
    if item.default_factory is not MISSING:
        return "empty"
    value: Any = item.default
    if value is MISSING:
        return "**needed**"
    if item.metadata["read"] is readers.duration:
        return f'`"{format_duration(value)}"`' if value else '`"0ms"`'
    if _type(item.metadata["read"]).startswith("size"):
        return '`"auto"`' if value == readers.AUTO else f'`"{format_size(value)}"`' if value else '`"0B"`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return "`" + (f'"{value}"' if isinstance(value, str) else str(value)) + "`" if value is not None else "see there"


def policy_table() -> str:
    """A row per option of every policy (``scripts/draw/policy_options.py``)."""
    lines = ["| kind | option | type | default | meaning |", "| --- | --- | --- | --- | --- |"]
    common = options_of(PolicyOptions)
    for option in common.values():
        lines.append(_option_row("[every kind](../guide/deadlines.md#trials)", option))
    for kind, policy in sorted(POLICIES.items()):
        if ":" in kind or not policy.__module__.startswith("edgeserve."):
            continue  # a script's or a test's own
        for option in options_of(policy.options_type).values():
            if option.key not in common:
                lines.append(_option_row(f"[`{kind}`](../guide/policies/{page_of(kind)})", option))
    return "\n".join(lines)


def _option_row(kind: str, option: PolicyOption) -> str:
    shown = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    return f"| {kind} | `{option.key}` | {option.type_words} | `{shown}` | {option.meaning} |"


def page_of(kind: str) -> str:
    """The page in docs/guide/policies that describes a policy: its own, that of the system it is a variant of (``x+``
    and ``x_y`` of ``x``), or the page of the baselines."""
    folder = os.path.join(drawn.ROOT, "docs", "guide", "policies")
    for name in (kind, kind.split("+")[0].split("_")[0], "schemble" if kind.startswith("ensemble_") else ""):
        if os.path.exists(os.path.join(folder, f"{name}.md")):
            return f"{name}.md"
    return "baselines.md"


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
