"""Turns the table of a TOML file into a checked :class:`~edgeserve.config.schema.Config`.

A fault raises :class:`ConfigError` with the file, the key, the value and what was expected.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import Any, Dict, List, Mapping, Tuple, Type, TypeVar

from edgeserve.config.hints import check_predicted
from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.config.readers import anything, read_table, refuse_gone, string, table_of
from edgeserve.config.schema import (
    DEFAULT_POLICY,
    WRITING_ENGINES,
    AppConfig,
    Config,
    DeviceConfig,
    LaneConfig,
    ModelConfig,
    NodeConfig,
    PolicyConfig,
    ServerConfig,
    TensorConfig,
)
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import counted_axes

T = TypeVar("T")


def config_of(source: object) -> Config:
    """A configuration: as it is, or read from the file of that path. Raises :class:`ConfigError`."""
    if isinstance(source, Config):
        return source
    if isinstance(source, (str, bytes, os.PathLike)):
        return load_config(source)
    raise ConfigError(
        f"the configuration is {type(source).__name__}, expected the path of its file or an edgeserve.Config"
        + ("; edgeserve.config.loading.parse_config makes one of a dictionary" if isinstance(source, dict) else "")
    )


def load_config(path: str | bytes | os.PathLike[str]) -> Config:
    """Read and check one TOML file. Raises :class:`ConfigError` with the file, the key and the mend."""
    from edgeserve.config.toml_files import read_toml  # an app in Python has none

    path = os.fsdecode(path)
    table = read_toml(path)
    if not table:
        raise ConfigError(
            f"{path}: there is nothing in it; it needs at least a [model.NAME] and an [app.NAME] "
            "(docs/reference/configuration.md). 'edgeserve init MODEL_FILE' writes them"
        )
    try:
        return parse_config(table, directory=os.path.dirname(os.path.abspath(path)), source=path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(table: Mapping[str, Any], directory: str = ".", source: str = "(built in Python)") -> Config:
    """A parsed TOML table to a checked :class:`Config`. Sections that are left out get the defaults: one device
    ``cpu``, one lane ``cpu0`` on it, the policy ``plan``."""
    known = ("server", "device", "lane", "model", "policy", "app", "front")
    for key in table:
        if key not in known:
            refuse_gone("", table)
            raise ConfigError(f"[{key}] is no section{nearest(key, known)}")
    server = read_table(ServerConfig, table.get("server", {}), "[server]")
    devices = _sections(DeviceConfig, table, "device") or {"cpu": DeviceConfig(name="cpu")}
    lanes = _sections(LaneConfig, table, "lane") or {"cpu0": LaneConfig(name="cpu0", device=next(iter(devices)))}
    models = _sections(ModelConfig, table, "model")
    policies = {name: _policy(name, section) for name, section in _named(table, "policy").items()}
    apps = {name: _app(name, section, directory) for name, section in _named(table, "app").items()}
    if any(model.engine in WRITING_ENGINES for model in models.values()):
        from edgeserve.config.language_apps import completed

        apps = {name: completed(app, table["app"][name], models) for name, app in apps.items()}
    if any(model.variants for model in models.values()):
        from edgeserve.config.variants import with_variants

        apps = {name: with_variants(app, models) for name, app in apps.items()}
    if not policies or any(app.policy == DEFAULT_POLICY for app in apps.values()):
        policies.setdefault(DEFAULT_POLICY, PolicyConfig(name=DEFAULT_POLICY, kind=DEFAULT_POLICY))
    for name, section in _named(table, "app").items():
        if "model" in section:  # else the error would speak of a node, and the file has none
            _refers(section["model"], models, f"[app.{name}] model")
    fronts = {name: dict(section) for name, section in _named(table, "front").items()}
    config = Config(server, devices, lanes, models, policies, apps, directory, source, fronts)
    _check_left_out(table, config)
    check_config(config)
    return config


def _check_left_out(table: Mapping[str, Any], config: Config) -> None:
    """Names that stand for what the file leaves out must exist too: the message says what was left out, since the name
    is none that its writer knows."""
    for name, section in _named(table, "lane").items():
        if "device" not in section and config.lanes[name].device not in config.devices:
            raise ConfigError(
                f"[lane.{name}] lacks device = '...'; the file has {_listed(config.devices)} (left out "
                f"means {config.lanes[name].device!r}, which it does not have)"
            )
    for name, section in _named(table, "app").items():
        nodes = section.get("node", ())
        for node in nodes if isinstance(nodes, list) else ():
            if "model" not in node and node.get("name") not in config.models:
                raise ConfigError(
                    f"[[app.{name}.node]] name = {node.get('name')!r} has no model = '...', so it means "
                    f"a model of its own name, and there is none"
                    f"{nearest(str(node.get('name')), config.models)}"
                )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names)))


APP_KEYS = ("model", "node", "inputs")  # of [app.NAME], read by _app

_PLAIN = re.compile(r"[\w-]{1,100}", re.ASCII)


def _named(table: Mapping[str, Any], section: str) -> Dict[str, Any]:
    named = table.get(section, {})
    if not isinstance(named, Mapping) or not all(isinstance(value, Mapping) for value in named.values()):
        raise ConfigError(f"[{section}] must hold named tables, such as [{section}.NAME]")
    return dict(named)


def _sections(kind: Type[T], table: Mapping[str, Any], section: str) -> Dict[str, T]:
    return {
        name: read_table(kind, value, f"[{section}.{name}]", name=name)
        for name, value in _named(table, section).items()
    }


def _policy(name: str, section: Mapping[str, Any]) -> PolicyConfig:
    options = {key: value for key, value in section.items() if key != "kind"}
    return PolicyConfig(name=name, kind=string(section.get("kind", name), f"[policy.{name}] kind"), options=options)


def _app(name: str, section: Mapping[str, Any], directory: str = ".") -> AppConfig:
    where = f"[app.{name}]"
    rest = {key: value for key, value in section.items() if key not in ("node", "inputs", "model")}
    if ("node" in section) == ("model" in section):
        read_table(AppConfig, rest, where, APP_KEYS, name=name, nodes=())  # names a misspelt key first
        raise ConfigError(f"{where} needs either model = '...' or node = [...], which are [[app.{name}.node]] tables")
    if "model" in section:
        model = string(section["model"], f"{where} model")
        nodes: Tuple[NodeConfig, ...] = (NodeConfig(name=model, model=model),)
    else:
        if not isinstance(section["node"], list) or not section["node"]:
            raise ConfigError(f"{where} node: expected at least one [[app.{name}.node]] table")
        nodes = tuple(
            read_table(NodeConfig, item, f"[[app.{name}.node]] number {index + 1}")
            for index, item in enumerate(section["node"])
        )
    inputs = {
        key: read_table(TensorConfig, value, f"{where} inputs.{key}")
        for key, value in table_of(anything)(section.get("inputs", {}), f"{where} inputs").items()
    }
    profile = None
    if rest.get("ensemble"):
        from edgeserve.config.ensemble_profile import check_nodes, parse_ensemble, read_ensemble
        from edgeserve.config.files import resolve_path

        if isinstance(rest["ensemble"], Mapping):
            profile = parse_ensemble(rest.pop("ensemble"), f"[app.{name}.ensemble]")
        else:
            profile = read_ensemble(resolve_path(string(rest["ensemble"], f"{where} ensemble"), directory))
        if profile is not None:
            check_nodes(profile, {node.name: node.after or () for node in _linked(nodes)}, where)
    return read_table(
        AppConfig, rest, where, APP_KEYS, name=name, nodes=_linked(nodes), inputs=inputs, ensemble_profile=profile
    )


def _linked(nodes: Tuple[NodeConfig, ...]) -> Tuple[NodeConfig, ...]:
    """Fill in the defaults that depend on the neighbours: ``after`` = the node before, ``model`` = the name."""
    linked: List[NodeConfig] = []
    for index, node in enumerate(nodes):
        after = node.after if node.after is not None else ((nodes[index - 1].name,) if index else ())
        values = {item.name: getattr(node, item.name) for item in fields(node)}
        values.update(after=after, model=node.model or node.name)
        linked.append(NodeConfig(**values))
    return tuple(linked)


def check_config(config: Config) -> None:
    """Raise :class:`ConfigError` for a name that a section refers to and that does not exist. Graphs are checked where
    they are built (``sched/requests/graph.py``)."""
    names = (*config.models, *config.apps)
    if config.server.critical_for or config.fronts or not all(_PLAIN.fullmatch(name) for name in names):
        from edgeserve.config.odd_names import check_odd_names

        check_odd_names(config)
    for lane in config.lanes.values():
        if not lane.hang_ns:
            raise ConfigError(
                f"[lane.{lane.name}] hang = '0s': expected more, since the lane would be lost with its first batch"
            )
        _refers(lane.device, config.devices, f"[lane.{lane.name}] device")
        if lane.priority and config.devices[lane.device].kind != "cuda":
            raise ConfigError(
                f"[lane.{lane.name}] priority = {lane.priority} is of a GPU's streams, and device {lane.device!r} is a "
                f"{config.devices[lane.device].kind}; leave it out, or see nice, which says how far threads yield"
            )
        if lane.sms and config.devices[lane.device].kind != "cuda":
            raise ConfigError(
                f"[lane.{lane.name}] sms = {lane.sms} are multiprocessors of a GPU, and device {lane.device!r} is a "
                f"{config.devices[lane.device].kind}; leave it out, or see threads and cores"
            )
    for model in config.models.values():
        if model.sha256 and not model.file:
            raise ConfigError(
                f"[model.{model.name}] sha256 is of its file, and no file is named; set file = '...', or "
                "leave sha256 out"
            )
        for lane_name in model.lanes:
            _refers(lane_name, config.lanes, f"[model.{model.name}] lanes")
    if any(model.variants for model in config.models.values()) or any(
        app.least_quality for app in config.apps.values()
    ):
        from edgeserve.config.variants import check_variants

        check_variants(config)
    for app in config.apps.values():
        check_app_name(app.name)
        if app.slo_ns <= 0:
            raise ConfigError(f"[app.{app.name}] slo = '0s': expected more, since every request would be too late")
        if app.policy:
            how = f"; a policy that an app names has a table: [policy.{app.policy}] kind = '...'"
            _refers(app.policy, config.policies, f"[app.{app.name}] policy", how)
        elif len([policy for policy in config.policies if policy != DEFAULT_POLICY]) > 1:
            raise ConfigError(
                f"[app.{app.name}] needs policy = '...', since the file has several: "
                f"{', '.join(sorted({*config.policies, DEFAULT_POLICY}))}"
            )
        if app.length is not None:
            _check_length(app, *app.length)
        if app.predict:
            check_predicted(app, config.policies[app.policy or next(iter(config.policies))])
        for node in app.nodes:
            _refers(node.model or node.name, config.models, f"[app.{app.name}] node {node.name!r} model")


def check_app_name(name: str) -> None:
    """Raise :class:`ConfigError` for the name of an app that logs, topics or paths could not say."""
    why = ""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        why = f"has {len(name)} characters, expected 1 to {NAME_CHARS_MAX}, as requests may have"
    elif not name.isprintable():
        why = "has a character that cannot be printed, which topics of MQTT and logs cannot hold"
    elif any(part in (".", "..") for part in name.split("/")):
        why = "has a part '.' or '..', which HTTP clients take out of paths (KServe, /v1/models)"
    if why:
        from edgeserve.config.plain_text import one_line

        raise ConfigError(f"[app.{one_line(name[:NAME_CHARS_MAX])!r}]: the name {why}; rename the app")


def _check_length(app: AppConfig, name: str, axis: int) -> None:
    where = f"[app.{app.name}] predict.length = '{name}[{axis}]'"
    if name not in app.inputs:
        raise ConfigError(
            f"{where}: the app declares no input {name!r}{nearest(name, app.inputs)}; "
            f"declare it in [app.{app.name}.inputs]"
        )
    axes = len(app.inputs[name].shape)
    if axis >= axes:
        raise ConfigError(
            f"{where}: input {name!r} has {counted_axes(axes)}, counted from 0, without a batch axis; "
            f"correct the axis, or shape in [app.{app.name}.inputs]"
        )


def _refers(name: str, known: Mapping[str, Any], where: str, how: str = "") -> None:
    if name not in known:
        raise ConfigError(f"{where} = {name!r} does not exist{nearest(name, known)}{how}")
