"""A configuration as the text of a file that means the same. What has its default is left out."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Dict, List, Mapping

from edgeserve.config.language_apps import WRITING_ENGINES
from edgeserve.config.loading import parse_config
from edgeserve.config.plain_text import toml_key, toml_value
from edgeserve.config.python_names import importable_name
from edgeserve.config.readers import duration, durations_by_size, input_axis, size
from edgeserve.config.schema import AppConfig, Config, ModelConfig, NodeConfig
from edgeserve.errors import ConfigError
from edgeserve.units import NS_PER_MS, NS_PER_S, NS_PER_US

_EXACT = (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US))
_EXACT_SIZES = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def toml_of(config: Config) -> str:
    """The text. Raises :class:`ConfigError` for a model that no file can name: a function or an engine without an
    importable name, an engine object."""
    lines: List[str] = []
    for name in ("server", "monitor"):
        _write(lines, f"[{name}]", _table(getattr(config, name)), always=False)
    plain = parse_config({})  # what is meant where a file says nothing
    for section, tables in (("device", config.devices), ("lane", config.lanes)):
        if tables != getattr(plain, f"{section}s"):
            for name, item in tables.items():
                _write(lines, f"[{section}.{toml_key(name)}]", _table(item))
    for name, model in config.models.items():
        _write(lines, f"[model.{toml_key(name)}]", _of_model(model))
    if config.policies != plain.policies:
        for name, policy in config.policies.items():
            _write(lines, f"[policy.{toml_key(name)}]", {"kind": policy.kind, **policy.options})
    for name, app in config.apps.items():
        _of_app(lines, toml_key(name), app, config.models)
    for name, table in config.fronts.items():
        _write(lines, f"[front.{toml_key(name)}]", table)
    return "\n".join(lines[:-1]) + "\n" if lines else ""


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
            table[entry.metadata["key"] or entry.name] = _written(value, entry.metadata["read"])
    return table


def _written(value: Any, reader: Any) -> Any:
    """The value of a file that a reader turns into this one."""
    if reader is duration:
        return _exact(value, _EXACT, "ns")
    if reader is size:
        return _exact(value, _EXACT_SIZES, "B")
    if reader is durations_by_size:
        return {str(count): _exact(ns, _EXACT, "ns") for count, ns in value.items()}
    return f"{value[0]}[{value[1]}]" if reader is input_axis else value


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
