"""A configuration as the text of a file that means the same. What has its default is left out."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Dict, List, Mapping

from edgeserve.config.loading import parse_config
from edgeserve.config.plain_text import toml_key, toml_value
from edgeserve.config.python_names import importable_name
from edgeserve.config.readers import durations_by_size, schema_of
from edgeserve.config.schema import WRITING_ENGINES, AppConfig, Config, ModelConfig, NodeConfig, PolicyConfig
from edgeserve.errors import ConfigError
from edgeserve.units import NS_PER_MS, NS_PER_S, NS_PER_US

_EXACT = (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US))
_EXACT_SIZES = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def toml_of(config: Config) -> str:
    """The text. Raises :class:`ConfigError` for a model that no file can name: a function or an engine without an
    importable name, an engine object."""
    lines: List[str] = []
    plain = parse_config({})  # what is meant where a file says nothing
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            _write(lines, f"[{field.name}]", _table(value), always=value != getattr(plain, field.name))
        elif isinstance(value, Mapping) and value != getattr(plain, field.name):
            section = "policy" if field.name == "policies" else field.name[:-1]
            for name, item in value.items():
                _of_name(lines, section, toml_key(name), item, config.models)
    return "\n".join(lines[:-1]) + "\n" if lines else ""


def _of_name(lines: List[str], section: str, name: str, item: Any, models: Mapping[str, ModelConfig]) -> None:
    if isinstance(item, AppConfig):
        _of_app(lines, name, item, models)
    elif isinstance(item, ModelConfig):
        _write(lines, f"[{section}.{name}]", _of_model(item))
    elif isinstance(item, PolicyConfig):
        _write(lines, f"[{section}.{name}]", {"kind": item.kind, **item.options})
    else:
        _write(lines, f"[{section}.{name}]", _table(item) if is_dataclass(item) else item)


def _write(lines: List[str], head: str, table: Mapping[str, Any], always: bool = True) -> None:
    if table or always:
        lines += [head, *[f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items()], ""]


def _table(item: Any, *kept: str) -> Dict[str, Any]:
    """The keys of a section's record whose values are not the defaults, and the ``kept`` ones, as a file has them."""
    table = {}
    for entry in fields(item):
        value = getattr(item, entry.name)
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        if "read" in entry.metadata and (value != default or entry.name in kept):
            table[entry.metadata["key"] or entry.name] = written(entry.name, value, entry.metadata["read"])
    return table


def written(name: str, value: Any, reader: Any) -> Any:
    """The value of a file that a reader turns into this one: durations and sizes are texts with a unit there."""
    if reader is durations_by_size:
        return {str(count): _exact(ns, _EXACT, "ns") for count, ns in value.items()}
    if isinstance(value, int) and schema_of(reader).get("type") == "string":
        return _exact(value, _EXACT, "ns") if name.endswith("_ns") else _exact(value, _EXACT_SIZES, "B")
    return value


def _exact(value: int, units: Any, least: str) -> str:
    return next((f"{value // whole}{unit}" for unit, whole in units if value and value % whole == 0), f"{value}{least}")


def _of_model(model: ModelConfig) -> Dict[str, Any]:
    if model.given is not None and not importable_name(model.given):
        what, again = "a function", "define it at the top of a module"
        if not callable(model.given):
            what, again = "an engine object", "give its class, or a function that makes it, in its place"
        raise ConfigError(
            f"[model.{model.name}] is {what} that no file can name ({model.given!r}); {again}, and the text can say "
            "'module:name'"
        )
    return _table(model)


def _of_app(lines: List[str], name: str, app: AppConfig, models: Mapping[str, ModelConfig]) -> None:
    writes = any(models[node.model].engine in WRITING_ENGINES for node in app.nodes)
    table = _table(app, *(["on_late"] if writes else []))
    lone = len(app.nodes) == 1 and app.nodes[0] == NodeConfig(app.nodes[0].model, app.nodes[0].model, ())
    _write(lines, f"[app.{name}]", {"model": app.nodes[0].model, **table} if lone else table)
    for node in () if lone else app.nodes:
        _write(lines, f"[[app.{name}.node]]", {"name": node.name, **_table(node, "after")})
    if app.inputs:
        _write(lines, f"[app.{name}.inputs]", {key: _table(tensor) for key, tensor in app.inputs.items()})
    if app.ensemble_profile is not None and not app.ensemble:
        from edgeserve.config.ensemble_profile import ensemble_table

        _write(lines, f"[app.{name}.ensemble]", ensemble_table(app.ensemble_profile))
