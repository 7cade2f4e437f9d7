"""The form of a profile file: a JSON Schema, its check of a table, and the rules that no schema can express.

``profiles/profile.schema.json`` is a copy of :data:`SCHEMA` for editors and other programs. :func:`problems_of`
interprets the few keywords that the schema uses, so reading a profile needs no library.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from edgeserve.config.profile_record import FORMAT, QUANTILES

TIME_NS_MAX = 86_400 * 10**9
"""A day: a longer batch or load is a mistake of the unit."""

BYTES_MAX = 2**50
"""A pebibyte: no device has as much memory."""

BATCH_MAX = 65_536
"""No engine takes larger batches on one device."""

PROBLEMS_MAX = 20
"""A file that is something else altogether is not described to its end."""

_TIME = {"type": "integer", "minimum": 0, "maximum": TIME_NS_MAX}
_BYTES = {"type": "integer", "minimum": 0, "maximum": BYTES_MAX}
_NAME = {"type": "string", "minLength": 1, "maxLength": 128}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1e6}


def _object(properties: Mapping[str, Any], optional: Sequence[str] = ()) -> Dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
    }


_TIMING = _object(
    {
        "count": {"type": "integer", "minimum": 0, "maximum": 10**9, "description": "runs that were measured"},
        "median_ns": _TIME,
        "p99_ns": _TIME,
        "mean_ns": _TIME,
        "sd_ns": _TIME,
        "quantiles_ns": {
            "type": "array",
            "items": _TIME,
            "maxItems": len(QUANTILES),
            "description": f"none, or the times at the quantiles {', '.join(map(str, QUANTILES))}: rising",
        },
        "drift": {
            "type": "number",
            "minimum": -1,
            "maximum": 1e6,
            "description": "the last fifth's median over the first fifth's, minus 1",
        },
        "p99_error": {**_SHARE, "description": "half the width of the p99's 95 % interval over the p99; 1 = not known"},
    },
    optional=["p99_error"],
)

_LANE = _object(
    {
        "timings": {
            "type": "object",
            "additionalProperties": _TIMING,
            "propertyNames": {"pattern": "^[1-9][0-9]*$"},
            "description": f"batch size (1 to {BATCH_MAX}) -> execution times",
        },
        "fixed_ns": _TIME,
        "per_item_ns": _TIME,
        "fit_error_max": {**_SHARE, "description": "the largest relative error of fixed_ns + per_item_ns * batch"},
        "load_ns": _TIME,
        "prompt_token_ns": {**_TIME, "description": "of a language model: reading one token of a prompt"},
        "clock_mhz": {**_SHARE, "description": "of the GPU while it was measured"},
        "memory_clock_mhz": {**_SHARE, "description": "of its memory"},
        "memory_share": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "of a batch's time, what follows the memory's clock; by two power modes",
        },
        "rested_ns": {**_TIME, "description": "a batch of the smallest size after a second of rest"},
        "alone": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": _TIME},
            "propertyNames": {"minLength": 1},
            "description": "app -> times of its example requests alone, rising",
        },
    },
    optional=["prompt_token_ns", "clock_mhz", "memory_clock_mhz", "memory_share", "rested_ns", "alone"],
)

SCHEMA: Dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "EdgeServe profile",
    "description": "Measured times of one model on one device. Times are nanoseconds, sizes bytes.",
    **_object(
        {
            "format": {"const": FORMAT},
            "model": _NAME,
            "device": _NAME,
            "weights_bytes": _BYTES,
            "work_bytes": _BYTES,
            "lanes": {"type": "object", "additionalProperties": _LANE, "propertyNames": {"minLength": 1}},
            "circumstances": {
                "type": "object",
                "description": "how it was measured, or where it was published; compared "
                "when it is read (docs/guide/profiling.md)",
            },
            "shared_bytes": {**_BYTES, "description": "besides, of each lane: what all its models use in turn"},
        },
        optional=["shared_bytes"],
    ),
}


class ProfileProblem(NamedTuple):
    """One thing that is wrong: the key's path in the file, the value, and what was expected there."""

    key: str
    value: Any
    expected: str

    def __str__(self) -> str:
        text = repr(self.value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return f"{self.key or 'the file'} is {shown}, expected {self.expected}"


def problems_of(table: Any) -> List[ProfileProblem]:
    """Everything that is wrong with a table read from a profile file, at most :data:`PROBLEMS_MAX`; none of a good
    one."""
    found = _violations(table, SCHEMA, "")
    if not found:
        for lane, known in table["lanes"].items():
            for size, timing in known["timings"].items():
                found += _contradictions(f"lanes.{lane}.timings.{size}", size, timing)
            for app, times in known.get("alone", {}).items():
                if times != sorted(times):
                    found.append(ProfileProblem(f"lanes.{lane}.alone.{app}", times, "times that rise"))
    return found[:PROBLEMS_MAX]


# --- the schema -------------------------------------------------------------------------------------------------------

_TYPES = {"object": dict, "array": list, "string": str}


def _violations(value: Any, schema: Mapping[str, Any], key: str) -> List[ProfileProblem]:
    """The violations by the keywords that :data:`SCHEMA` has, and by no others."""
    if "const" in schema:
        return [] if value == schema["const"] else [ProfileProblem(key, value, repr(schema["const"]))]
    kind = schema["type"]
    if kind in ("integer", "number"):
        return _of_number(value, schema, key)
    if not isinstance(value, _TYPES[kind]):
        return [ProfileProblem(key, value, {"object": "a table", "array": "a list", "string": "a text"}[kind])]
    if kind == "string":
        least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        return [] if least <= len(value) <= most else [ProfileProblem(key, value, f"{least} to {most} characters")]
    if kind == "array":
        if len(value) > schema.get("maxItems", math.inf):
            return [ProfileProblem(key, value, f"at most {schema['maxItems']} values")]
        return [
            problem
            for number, item in enumerate(value)
            for problem in _violations(item, schema["items"], f"{key}[{number}]")
        ]
    return _of_table(value, schema, key)


def _of_number(value: Any, schema: Mapping[str, Any], key: str) -> List[ProfileProblem]:
    whole = schema["type"] == "integer"
    least, most = schema["minimum"], schema["maximum"]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and least <= value <= most and (not whole or value == int(value)):
        return []
    return [ProfileProblem(key, value, f"a{' whole' if whole else ''} number from {least} to {most:.6g}")]


def _of_table(value: Mapping[str, Any], schema: Mapping[str, Any], key: str) -> List[ProfileProblem]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = [
        ProfileProblem(_below(key, name), None, "a value: it is missing")
        for name in schema.get("required", ())
        if name not in value
    ]
    names = schema.get("propertyNames", {})
    for name, item in value.items():
        if "pattern" in names and not re.search(names["pattern"], name):
            found.append(ProfileProblem(key, name, 'batch sizes as keys, such as "1" or "16"'))
        elif len(name) < names.get("minLength", 0):
            found.append(ProfileProblem(key, name, "keys that are not empty"))
        elif name in properties:
            found += _violations(item, properties[name], _below(key, name))
        elif others is False:
            found.append(ProfileProblem(_below(key, name), item, f"no such key ({', '.join(properties)})"))
        elif isinstance(others, Mapping):
            found += _violations(item, others, _below(key, name))
    return found


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


# --- what no schema can say -------------------------------------------------------------------------------------------


def _contradictions(key: str, size: str, timing: Mapping[str, Any]) -> List[ProfileProblem]:
    """Numbers of one batch size that cannot be true together."""
    found = []
    if len(size) > len(str(BATCH_MAX)) or int(size) > BATCH_MAX:
        found.append(ProfileProblem(key.rpartition(".")[0], size, f"batch sizes up to {BATCH_MAX}"))
    quantiles = timing["quantiles_ns"]
    if quantiles and len(quantiles) != len(QUANTILES):
        found.append(ProfileProblem(f"{key}.quantiles_ns", quantiles, f"none or {len(QUANTILES)} values"))
    elif quantiles != sorted(quantiles):
        found.append(ProfileProblem(f"{key}.quantiles_ns", quantiles, "values that rise"))
    elif quantiles:
        for name in ("median_ns", "mean_ns", "p99_ns"):
            if not quantiles[0] <= timing[name] <= quantiles[-1]:
                found.append(
                    ProfileProblem(
                        f"{key}.{name}",
                        timing[name],
                        f"a time from {quantiles[0]} to {quantiles[-1]}, as quantiles_ns say",
                    )
                )
    if timing["p99_ns"] < timing["median_ns"]:
        found.append(ProfileProblem(f"{key}.p99_ns", timing["p99_ns"], f"at least median_ns, {timing['median_ns']}"))
    if timing["median_ns"] == 0 and timing["count"] > 0:
        found.append(ProfileProblem(f"{key}.median_ns", 0, "a time above 0: something ran"))
    return found
