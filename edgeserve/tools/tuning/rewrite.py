"""Other policies in a configuration file, everything else as it was, comments included.

Lines are edited; then the text is parsed, and must say exactly what was wanted. A file that is written in a way that
lines cannot follow (``app.detect = {...}`` on one line, say) is left alone.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from edgeserve.config.loading import parse_toml
from edgeserve.config.plain_text import toml_key, toml_string, toml_value
from edgeserve.errors import ConfigError

_HEADER = re.compile(r"^\s*\[(?!\[)(?P<name>[^\[\]]+)\]\s*(#.*)?$")
_ANY_HEADER = re.compile(r"^\s*\[")
_POLICY = re.compile(r"^(?P<before>\s*policy\s*=\s*)(?P<value>\"[^\"]*\"|'[^']*')(?P<after>.*)$", re.DOTALL)


def rewritten(text: str, policies: Mapping[str, Mapping[str, Any]], apps: Mapping[str, str]) -> Optional[str]:
    """The text with further ``[policy.*]`` sections, and each app's ``policy``; ``None`` where lines cannot do it."""
    if "\r\n" in text:
        new = rewritten(text.replace("\r\n", "\n"), policies, apps)
        return None if new is None else new.replace("\n", "\r\n")
    wanted = _wanted(parse_toml(text), policies, apps)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    for app, policy in apps.items():
        if _wanted(parse_toml("".join(lines)), {}, {app: policy}) != parse_toml("".join(lines)):
            lines = _with_app(lines, app, policy)
    lines = _with_policies(lines, policies)
    try:
        return "".join(lines) if parse_toml("".join(lines)) == wanted else None
    except ConfigError:
        return None


def snippet(policies: Mapping[str, Mapping[str, Any]], apps: Mapping[str, str]) -> str:
    """What to write into the file by hand."""
    lines = _sections(policies)
    for app, policy in apps.items():
        lines += [f"[app.{toml_key(app)}]\n", f"policy = {toml_string(policy)}\n"]
    return "".join(lines)


def _wanted(
    table: Dict[str, Any], policies: Mapping[str, Mapping[str, Any]], apps: Mapping[str, str]
) -> Dict[str, Any]:
    wanted = dict(table)
    if policies:
        wanted["policy"] = {**table.get("policy", {}), **policies}
    if apps:
        wanted["app"] = {
            name: {**section, "policy": apps[name]} if name in apps else section
            for name, section in table.get("app", {}).items()
        }
    return wanted


def _with_app(lines: List[str], app: str, policy: str) -> List[str]:
    """The ``policy`` of one ``[app.NAME]``: replaced, else put below the header."""
    for start, line in enumerate(lines):
        if _name_of(line) != ("app", app):
            continue
        for index in range(start + 1, len(lines)):
            if _ANY_HEADER.match(lines[index]):
                break
            found = _POLICY.match(lines[index])
            if found is not None:
                changed = f"{found.group('before')}{toml_string(policy)}{found.group('after')}"
                return [*lines[:index], changed, *lines[index + 1 :]]
        return [*lines[: start + 1], f"policy = {toml_string(policy)}\n", *lines[start + 1 :]]
    return lines


def _with_policies(lines: List[str], policies: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """The sections behind the last ``[policy.*]``, else before the first ``[app.*]``, else at the end."""
    if not policies:
        return lines
    headers = [(index, _name_of(line)) for index, line in enumerate(lines) if _ANY_HEADER.match(line)]
    last = max(
        (number for number, (_, name) in enumerate(headers) if name is not None and name[0] == "policy"), default=-1
    )
    first_app = next((index for index, _ in headers if re.match(r"^\s*\[+\s*app\b", lines[index])), len(lines))
    at = first_app if last < 0 else headers[last + 1][0] if last + 1 < len(headers) else len(lines)
    while at > 0 and lines[at - 1].lstrip().startswith("#"):  # comments above a header belong to it
        at -= 1
    before = [] if at == 0 or not lines[at - 1].strip() else ["\n"]
    return [*lines[:at], *before, *_sections(policies), *lines[at:]]


def _sections(policies: Mapping[str, Mapping[str, Any]]) -> List[str]:
    found: List[str] = []
    for name, options in policies.items():
        found.append(f"[policy.{toml_key(name)}]\n")
        found += [f"{toml_key(key)} = {toml_value(value)}\n" for key, value in options.items()]
        found.append("\n")
    return found


def _name_of(line: str) -> Optional[Tuple[str, ...]]:
    """The dotted name of a table's header, as TOML reads it; ``None`` for another line."""
    if _HEADER.match(line) is None:
        return None
    try:
        table = parse_toml(line)
    except ConfigError:
        return None
    names: List[str] = []
    while isinstance(table, dict) and len(table) == 1:
        name, table = next(iter(table.items()))
        names.append(name)
    return tuple(names)
