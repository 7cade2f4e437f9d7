"""The configuration file as a JSON Schema, for editors: sections, keys, types and meanings, from :mod:`schema`;
and a profile, from :mod:`profile_record`.

An editor completes and underlines by it; the readers check the file, and check more.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from dataclasses import MISSING, fields
from typing import Any, Dict, Mapping

from edgeserve.config import schema
from edgeserve.config.profile_record import FORMAT, LaneProfile, Profile, Timing
from edgeserve.config.readers import schema_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ANY: Mapping[str, Any] = {}


def config_schema(fronts: Mapping[str, type] = ANY) -> Dict[str, Any]:
    """The schema of ``edge.toml``. ``fronts``: the settings of fronts by name; tables of other fronts hold anything."""
    app = _section(schema.AppConfig)
    app["properties"].update(
        model={"type": "string", "description": "The one model that answers"},
        node={"type": "array", "items": _section(schema.NodeConfig)},
        inputs={"type": "object", "additionalProperties": _section(schema.TensorConfig)},
        ensemble={"description": meanings_of(schema.AppConfig)["ensemble"]},
    )
    policy = {"type": "object", "properties": {"kind": {"type": "string"}}}
    sections = {
        "server": _section(schema.ServerConfig),
        "device": _named(_section(schema.DeviceConfig)),
        "lane": _named(_section(schema.LaneConfig)),
        "model": _named(_section(schema.ModelConfig)),
        "policy": _named(policy),
        "app": _named(app),
        "front": {
            **_named({"type": "object", "properties": {"kind": {"type": "string"}}}),
            "properties": {name: _section(kind) for name, kind in fronts.items()},
        },
    }
    return {
        "$schema": DRAFT,
        "title": "EdgeServe configuration",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def profile_schema() -> Dict[str, Any]:
    """The schema of a profile file (``profiles/profile.schema.json``)."""
    lane, profile = _section(LaneProfile), _section(Profile)
    timings = {"additionalProperties": _section(Timing), "propertyNames": {"pattern": "^[1-9][0-9]*$"}}
    lane["properties"]["timings"].update(type="object", **timings)
    profile["properties"]["lanes"].update(type="object", additionalProperties=lane, propertyNames={"minLength": 1})
    profile["properties"]["format"] = {"const": FORMAT}
    profile["required"].insert(0, "format")
    return {
        "$schema": DRAFT,
        "title": "EdgeServe profile",
        "description": "Measured times of one model on one device. Times are nanoseconds, sizes bytes.",
        **profile,
    }


def _named(section: Mapping[str, Any]) -> Dict[str, Any]:
    return {"type": "object", "additionalProperties": section}


def _section(kind: type) -> Dict[str, Any]:
    """The table that one dataclass is read from."""
    meanings = meanings_of(kind)
    read = {item.metadata["key"] or item.name: item for item in fields(kind) if "read" in item.metadata}
    return {
        "type": "object",
        "properties": {
            key: {**schema_of(item.metadata["read"]), "description": meanings[item.name]} for key, item in read.items()
        },
        "required": [key for key, item in read.items() if item.default is MISSING and item.default_factory is MISSING],
        "additionalProperties": False,
    }


def meanings_of(kind: type) -> Dict[str, str]:
    """Field name -> the comment on its line, as a sentence; of a base class's fields, too. Raises :class:`ValueError`
    for a field without one."""
    found: Dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        found.update(_meanings_in(each))
    return found


def _meanings_in(kind: type) -> Dict[str, str]:
    source = inspect.getsource(kind)
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"    (\w+): .*= entry\(", line)
        if match is None:
            continue
        if number not in by_line:
            raise ValueError(
                f"{kind.__module__}: {kind.__name__}.{match.group(1)} has no comment that says what it means"
            )
        found[match.group(1)] = by_line[number][0].upper() + by_line[number][1:]
    return found
