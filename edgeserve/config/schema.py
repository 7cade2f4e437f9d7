"""The typed configuration: one TOML file becomes these dataclasses, or a :class:`ConfigError` that names the mend.

The same dataclasses can be built in Python. Nothing here knows a scheduler, an engine or a socket; a policy's own
options stay a plain mapping that the policy itself checks.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

from edgeserve.config.hints import check_predicted, read_predictors
from edgeserve.config.pipelines import expand_pipelines
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import parse_duration_ns, parse_size_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Reader = Callable[[Any, str], Any]

CLASS_NAMES = ("critical", "normal", "background")
ON_LATE_NAMES = ("drop", "answer", "partial")


# --- readers: a TOML value and where it stands -> the typed value, or ConfigError ------------------------------------


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} = {value!r}: expected a string")
    return value


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} = {value!r}: expected true or false")
    return value


def _integer(low: int, high: int = 2**31) -> Reader:
    def read(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{where} = {value!r}: expected a whole number from {low} to {high}")
        return value
    return read


def _number(low: float, high: float = float("inf")) -> Reader:
    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ConfigError(f"{where} = {value!r}: expected a number from {low} to {high}")
        return float(value)
    return read


def _duration(value: Any, where: str) -> int:
    try:
        return parse_duration_ns(value)
    except ValueError as error:
        raise ConfigError(f"{where} = {error}") from None


def _size(value: Any, where: str) -> int:
    try:
        return parse_size_bytes(value)
    except ValueError as error:
        raise ConfigError(f"{where} = {error}") from None


def _one_of(*names: str) -> Reader:
    def read(value: Any, where: str) -> str:
        if value not in names:
            raise ConfigError(f"{where} = {value!r}: expected one of {', '.join(map(repr, names))}")
        return str(value)
    return read


def _tuple_of(reader: Reader) -> Reader:
    def read(value: Any, where: str) -> Tuple[Any, ...]:
        if not isinstance(value, list):
            raise ConfigError(f"{where} = {value!r}: expected a list")
        return tuple(reader(item, f"{where}[{index}]") for index, item in enumerate(value))
    return read


def _sizes(value: Any, where: str) -> Tuple[int, ...]:
    sizes = _tuple_of(_integer(1, 4096))(value, where)
    if not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(f"{where} = {value!r}: expected batch sizes in rising order, such as [1, 2, 4, 8]")
    return tuple(sizes)


def _table_of(reader: Reader) -> Reader:
    def read(value: Any, where: str) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} = {value!r}: expected a table")
        return {str(key): reader(item, f"{where}.{key}") for key, item in value.items()}
    return read


def _anything(value: Any, where: str) -> Any:
    return value


def _durations_by_size(value: Any, where: str) -> Dict[int, int]:
    table = _table_of(_duration)(value, where)
    for key in table:
        if not key.isdigit() or int(key) < 1:
            raise ConfigError(f"{where}.{key}: expected a batch size as the key, such as {where}.4 = '12ms'")
    return {int(key): ns for key, ns in table.items()}


def _join(value: Any, where: str) -> Union[str, int]:
    if value in ("all", "policy") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return "all" if value == "all" else "policy" if value == "policy" else int(value)
    raise ConfigError(f"{where} = {value!r}: expected 'all', 'policy' or a number of parts to wait for")


def _input_axis(value: Any, where: str) -> Tuple[str, int]:
    match = re.fullmatch(r"(.+)\[(\d{1,2})\]", _string(value, where))
    if match is None:
        raise ConfigError(f"{where} = {value!r}: expected an input's name and one of its axes, such as 'image[1]'")
    return match.group(1), int(match.group(2))


def _key(reader: Reader, default: Any = MISSING, key: str | None = None, factory: Any = MISSING) -> Any:
    metadata = {"read": reader, "key": key}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    if default is not MISSING:
        return field(default=default, metadata=metadata)
    return field(metadata=metadata)


# --- the sections -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerConfig:
    """``[server]``: the bus and the bounds of the whole server."""

    endpoint: str = _key(_string, "")  # where the bus listens; "" = the default ipc path of this user
    message_bytes_max: int = _key(_size, 64 * 1024**2, key="message_max")  # of one message; a 4K RGB frame is 25 MB
    pending_max: int = _key(_integer(1), 4096)  # accepted requests that have not ended, over all apps
    clients_max: int = _key(_integer(1), 256)  # distinct client identities remembered at a time
    client_silence_ns: int = _key(_duration, 10 * 10**9, key="client_silence")  # no heartbeat: the client is gone
    drain_ns: int = _key(_duration, 5 * 10**9, key="drain")  # how long SIGTERM waits for accepted requests
    curve_secret_key_file: str = _key(_string, "")  # needed for TCP beyond loopback
    profiles: str = _key(_string, "profiles")  # directory that holds <device>/<model>.json
    record: str = _key(_string, "")  # write every step's events and actions here (edgeserve simulate --replay)


@dataclass(frozen=True)
class DeviceConfig:
    """``[device.NAME]``: memory that lanes share."""

    name: str
    kind: str = _key(_one_of("cpu", "cuda"), "cpu")  # the host, or a GPU
    index: int = _key(_integer(0, 64), 0)  # which GPU, when there are several
    memory_bytes: int = _key(_size, 0, key="memory")  # budget for models and stream states; 0 = no budget
    pcie_bytes_per_s: int = _key(_size, 0, key="load_rate")  # bytes a second; 0 = 12 GB: load times are guessed from it


@dataclass(frozen=True)
class LaneConfig:
    """``[lane.NAME]``: runs one work at a time on a device."""

    name: str
    device: str = _key(_string, "cpu")  # the device whose memory it uses
    threads: int = _key(_integer(1, 1024), 1)  # threads that one work may use
    cores: Tuple[int, ...] = _key(_tuple_of(_integer(0, 4096)), ())  # pin the lane's threads to these cores
    ahead_ns: int = _key(_duration, 0, key="ahead")  # ask for the next work this long before the lane is free
    hang_ns: int = _key(_duration, 30 * 10**9, key="hang")  # longer than expected + this: the lane is lost


@dataclass(frozen=True)
class ModelConfig:
    """``[model.NAME]``: something an engine can run."""

    name: str
    engine: str = _key(_string)  # which engine runs it; see engines.md
    file: str = _key(_string, "")  # relative to the configuration file; "cache:..." looks in the asset cache
    function: str = _key(_string, "")  # python engine: "module:function"
    lanes: Tuple[str, ...] = _key(_tuple_of(_string), ())  # left out = every lane
    batch: Tuple[int, ...] = _key(_sizes, (1,))  # sizes that are warmed up, profiled and scheduled, rising
    memory_bytes: int = _key(_size, 0, key="memory")  # what it occupies; 0 = as the profile or the engine says
    pinned: bool = _key(_boolean, False)  # never evicted
    shapes: Dict[str, Tuple[int, ...]] = _key(_table_of(_tuple_of(_integer(0))), factory=dict)  # per item, for warm-up
    pad: Dict[str, float] = _key(_table_of(_number(float("-inf"))), factory=dict)  # inputs padded to a common shape
    state: Dict[str, str] = _key(_table_of(_string), factory=dict)  # state input -> the output that replaces it
    expected: Dict[int, int] = _key(_durations_by_size, factory=dict)  # batch size -> time, when no profile says
    load_ns: int = _key(_duration, 0, key="load")  # time to load, when no profile says
    options: Dict[str, Any] = _key(_table_of(_anything), factory=dict)  # the engine's own (providers, threads, ...)


@dataclass(frozen=True)
class PolicyConfig:
    """``[policy.NAME]``: a policy instance; all keys but ``kind`` are that policy's own options. A ``kind`` of the form
    ``"module:Class"`` is imported, the configuration's directory first (``live/plugins.py``)."""

    name: str
    kind: str = _key(_string)
    options: Dict[str, Any] = _key(_table_of(_anything), factory=dict)


@dataclass(frozen=True)
class NodeConfig:
    """``[[app.NAME.node]]``: one model's place in an app."""

    name: str = _key(_string)  # unique within the app
    model: str = _key(_string, "")  # the model that runs there; "" = the one of the node's own name
    after: Optional[Tuple[str, ...]] = _key(_tuple_of(_string), None)  # left out = the node before it, [] = none
    fan_out: bool = _key(_boolean, False)  # its result is a list of parts; what follows runs once per part
    gather: bool = _key(_boolean, False)  # closes the innermost fan-out: gets lists, one value per part
    join: Union[str, int] = _key(_join, "all")  # how many predecessors a join waits for
    route: str = _key(_one_of("all", "one"), "all")  # "one": the result names the single successor taken
    parts_max: int = _key(_integer(1, 100_000), 256)  # more parts than this fail the request
    inputs: Dict[str, str] = _key(_table_of(_string), factory=dict)  # argument -> "request.x" or "node.x"


@dataclass(frozen=True)
class TensorConfig:
    """``[app.NAME.inputs]``: what a request must bring; ``-1`` in a shape is any length."""

    dtype: str = _key(_string, "float32")  # numpy's name of it, or "text", "bytes", "any"
    shape: Tuple[int, ...] = _key(_tuple_of(_integer(-1)), ())  # of one request, no batch axis; -1 = any length
    optional: bool = _key(_boolean, False)  # a request may leave it out


@dataclass(frozen=True)
class AppConfig:
    """``[app.NAME]``: a small graph of nodes that answers a request."""

    name: str
    nodes: Tuple[NodeConfig, ...] = ()
    policy: str = _key(_string, "")  # which [policy.NAME] decides; "" = the only one, or the built-in edf
    slo_ns: int = _key(_duration, 10**9, key="slo")  # default deadline after arrival
    klass: str = _key(_one_of(*CLASS_NAMES), "normal", key="class")  # bounds the auction; see policies/arbiter.md
    value: float = _key(_number(0.0), 1.0)  # multiplies a request's worth in the auction
    on_late: str = _key(_one_of(*ON_LATE_NAMES), "drop")  # past the deadline: give up, answer late, or answer in part
    stream: str = _key(_one_of("none", "in_order", "newest_wins"), "none")  # what stream ids mean
    state_ttl_ns: int = _key(_duration, 60 * 10**9, key="state_ttl")  # forget a silent stream's state
    streams_max: int = _key(_integer(1), 1024)  # states kept at a time
    pending_max: int = _key(_integer(1), 1024)  # accepted requests of this app that have not ended
    weights: Dict[str, float] = _key(_table_of(_number(0.001)), factory=dict)  # client -> share of pending_max
    length: Optional[Tuple[str, int]] = _key(_input_axis, None)  # the axis whose size is a request's hint "length"
    predict: Dict[str, str] = _key(read_predictors, factory=dict)  # hint -> what tells it from the inputs
    examples: str = _key(_string, "")  # "module:function" that returns requests whose times alone are profiled
    inputs: Dict[str, TensorConfig] = field(default_factory=dict)
    outputs: Tuple[str, ...] = _key(_tuple_of(_string), ())  # left out = everything the last nodes return


@dataclass(frozen=True)
class Config:
    """The whole file. ``directory`` is where relative paths start."""

    server: ServerConfig = ServerConfig()
    devices: Dict[str, DeviceConfig] = field(default_factory=dict)
    lanes: Dict[str, LaneConfig] = field(default_factory=dict)
    models: Dict[str, ModelConfig] = field(default_factory=dict)
    policies: Dict[str, PolicyConfig] = field(default_factory=dict)
    apps: Dict[str, AppConfig] = field(default_factory=dict)
    directory: str = "."
    source: str = "(built in Python)"


# --- reading ----------------------------------------------------------------------------------------------------------


def load_config(path: str) -> Config:
    """Read and check one TOML file. Raises :class:`ConfigError` with the file, the key and the mend."""
    table = read_toml(path)
    try:
        return parse_config(table, directory=os.path.dirname(os.path.abspath(path)), source=path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_toml(path: str) -> Dict[str, Any]:
    """The table of one TOML file, unchecked. :class:`ConfigError` names the file when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return dict(tomllib.load(file))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def parse_config(table: Mapping[str, Any], directory: str = ".", source: str = "(built in Python)") -> Config:
    """A parsed TOML table to a checked :class:`Config`. Sections that are left out get the defaults: one device
    ``cpu``, one lane ``cpu0`` on it, one policy ``edf``."""
    known = ("server", "device", "lane", "model", "policy", "app")
    for key in table:
        if key not in known:
            raise ConfigError(f"[{key}] is no section{nearest(key, known)}")
    table = expand_pipelines(table, directory)
    server = read_table(ServerConfig, table.get("server", {}), "[server]")
    devices = _sections(DeviceConfig, table, "device") or {"cpu": DeviceConfig(name="cpu")}
    lanes = _sections(LaneConfig, table, "lane") or {"cpu0": LaneConfig(name="cpu0", device=next(iter(devices)))}
    models = _sections(ModelConfig, table, "model")
    policies = {name: _policy(name, section) for name, section in _named(table, "policy").items()}
    policies = policies or {"edf": PolicyConfig(name="edf", kind="edf")}
    apps = {name: _app(name, section) for name, section in _named(table, "app").items()}
    config = Config(server, devices, lanes, models, policies, apps, directory, source)
    check_config(config)
    return config


def read_table(kind: Type[T], table: Any, where: str, **given: Any) -> T:
    """One TOML table to one dataclass; unknown keys are refused with the nearest name."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} = {table!r}: expected a table")
    readers = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if "read" in item.metadata:
            readers[item.metadata["key"] or item.name] = item
    values = dict(given)
    for key, value in table.items():
        if key not in readers:
            raise ConfigError(f"{where} has no key {key!r}{nearest(key, readers)}")
        item = readers[key]
        values[item.name] = item.metadata["read"](value, f"{where} {key}")
    for key, item in readers.items():
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{where} lacks the key {key!r}")
    return kind(**values)


def _named(table: Mapping[str, Any], section: str) -> Dict[str, Any]:
    named = table.get(section, {})
    if not isinstance(named, Mapping) or not all(isinstance(value, Mapping) for value in named.values()):
        raise ConfigError(f"[{section}] must hold named tables, such as [{section}.NAME]")
    return dict(named)


def _sections(kind: Type[T], table: Mapping[str, Any], section: str) -> Dict[str, T]:
    return {name: read_table(kind, value, f"[{section}.{name}]", name=name)
            for name, value in _named(table, section).items()}


def _policy(name: str, section: Mapping[str, Any]) -> PolicyConfig:
    options = {key: value for key, value in section.items() if key != "kind"}
    return PolicyConfig(name=name, kind=_string(section.get("kind", name), f"[policy.{name}] kind"), options=options)


def _app(name: str, section: Mapping[str, Any]) -> AppConfig:
    where = f"[app.{name}]"
    rest = {key: value for key, value in section.items() if key not in ("node", "inputs", "model")}
    if ("node" in section) == ("model" in section):
        raise ConfigError(f"{where} needs either model = '...' (one node), [[app.{name}.node]] tables or "
                          "pipeline = 'FILE.json'")
    if "model" in section:
        model = _string(section["model"], f"{where} model")
        nodes: Tuple[NodeConfig, ...] = (NodeConfig(name=model, model=model),)
    else:
        if not isinstance(section["node"], list) or not section["node"]:
            raise ConfigError(f"{where} node: expected at least one [[app.{name}.node]] table")
        nodes = tuple(read_table(NodeConfig, item, f"[[app.{name}.node]] number {index + 1}")
                      for index, item in enumerate(section["node"]))
    inputs = {key: read_table(TensorConfig, value, f"{where} inputs.{key}")
              for key, value in _table_of(_anything)(section.get("inputs", {}), f"{where} inputs").items()}
    return read_table(AppConfig, rest, where, name=name, nodes=_linked(nodes), inputs=inputs)


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
    """Names that refer to each other must exist. (Graphs are checked where they are built,
    ``sched/requests/graph.py``.)"""
    for lane in config.lanes.values():
        _refers(lane.device, config.devices, f"[lane.{lane.name}] device")
    for model in config.models.values():
        for lane_name in model.lanes:
            _refers(lane_name, config.lanes, f"[model.{model.name}] lanes")
    for app in config.apps.values():
        if app.policy:
            _refers(app.policy, config.policies, f"[app.{app.name}] policy")
        elif len(config.policies) > 1:
            raise ConfigError(f"[app.{app.name}] needs policy = '...', since the file has several: "
                              f"{', '.join(sorted(config.policies))}")
        if app.length is not None:
            _check_length(app, *app.length)
        if app.predict:
            check_predicted(app, config.policies[app.policy or next(iter(config.policies))])
        for node in app.nodes:
            _refers(node.model or node.name, config.models, f"[app.{app.name}] node {node.name!r} model")


def _check_length(app: AppConfig, name: str, axis: int) -> None:
    where = f"[app.{app.name}] length = '{name}[{axis}]'"
    if name not in app.inputs:
        raise ConfigError(f"{where}: the app declares no input {name!r}{nearest(name, app.inputs)}; "
                          f"declare it in [app.{app.name}.inputs]")
    axes = len(app.inputs[name].shape)
    if axis >= axes:
        raise ConfigError(f"{where}: input {name!r} has {axes} axes, counted from 0, without a batch axis; correct the "
                          f"axis, or shape in [app.{app.name}.inputs]")


def _refers(name: str, known: Mapping[str, Any], where: str) -> None:
    if name not in known:
        raise ConfigError(f"{where} = {name!r} does not exist{nearest(name, known)}")
