"""The JSON Schema of the configuration: what is served fits it, and what is wrong by it is refused when it is read."""

from __future__ import annotations

import copy
import glob
import json
import os

import pytest

from edgeserve.config.json_schema import config_schema
from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import read_toml
from edgeserve.errors import ConfigError
from edgeserve.fronts.http.settings import HttpConfig

ROOT = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, os.pardir)
EXAMPLES = sorted(glob.glob(os.path.join(ROOT, "examples", "**", "edge.toml"), recursive=True))
KINDS = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
SERVED = {
    "server": {"drain": "1s"},
    "lane": {"cpu0": {"threads": 1}},
    "model": {"m": {"engine": "synthetic", "batch": [1, 2], "expected": {"1": "1ms"}}},
    "app": {"a": {"slo": "1s", "node": [{"name": "m", "join": "all"}]}},
}


def fits(value, schema):
    """By the keywords that the schema has."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema.get("type")
    if kind and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return False
    if kind in ("integer", "number"):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if kind == "array":
        return all(fits(item, schema["items"]) for item in value)
    if kind != "object":
        return True
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    return set(schema.get("required", ())) <= set(value) and all(
        fits(item, known[key]) if key in known else others is not False and fits(item, others)
        for key, item in value.items()
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=[os.path.relpath(path, ROOT) for path in EXAMPLES])
def test_every_example_fits(path):
    assert fits(read_toml(path), config_schema())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("sever",), {}),
        (("server", "drian"), "1s"),
        (("server", "drain"), 5),
        (("server", "pending_max"), 0),
        (("server", "pending_max"), True),
        (("app", "a", "on_late"), "never"),
        (("model", "m", "batch"), 4),
        (("model", "m", "batch"), [0]),
        (("model", "n"), {"file": "x"}),
        (("app", "a", "class"), "urgent"),
        (("app", "a", "node"), [{"name": "m", "join": 0}]),
        (("app", "a", "node"), [{"model": "m"}]),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_read(where, value):
    schema = json.loads(json.dumps(config_schema()))
    table = copy.deepcopy(SERVED)
    assert fits(table, schema) and parse_config(table)
    inner = table
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert not fits(table, schema)
    with pytest.raises(ConfigError):
        parse_config(table)


def test_every_key_says_what_it_means():
    sections = config_schema({"http": HttpConfig})["properties"]
    for section in (
        sections["server"],
        sections["app"]["additionalProperties"],
        sections["front"]["properties"]["http"],
    ):
        assert all(
            about.get("description") or key in ("node", "inputs") for key, about in section["properties"].items()
        )
