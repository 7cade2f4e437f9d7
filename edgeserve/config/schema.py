"""The sections of the configuration file as dataclasses. They can be built in Python as well.

Nothing here knows a scheduler, an engine or a socket; a policy's own options stay a plain mapping that the policy
itself checks. Files are read by :mod:`edgeserve.config.loading`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

from edgeserve.config.readers import (
    AUTO,
    any_number,
    anything,
    boolean,
    chip,
    duration,
    durations_by_size,
    entry,
    input_axis,
    integer,
    join,
    list_or_table_of,
    names_function,
    names_lengths,
    number,
    one_of,
    quality_number,
    read_predictors,
    sha256,
    size,
    size_from,
    size_or_auto,
    sizes,
    string,
    table_of,
    tuple_of,
)
from edgeserve.priority_class import CLASSES, USUAL

if TYPE_CHECKING:
    from edgeserve.config.ensemble_profile import EnsembleProfile

ON_LATE_NAMES = ("drop", "answer", "partial")
STREAM_NAMES = ("in_order", "newest_wins", "optional")
WORTH_NAMES = ("request", "work")

WRITING_ENGINES = ("lm", "whisper")
"""Engines whose answers grow step by step. Their apps have ``on_late = "partial"`` where the file says nothing: an
answer that has begun ends at its deadline with what it has written."""


@dataclass(frozen=True)
class ServerConfig:
    """``[server]``: the bus and the bounds of the whole server."""

    endpoint: str = entry(string, "")  # where the bus listens; "" = the default ipc path of this user
    memory_bytes: int = entry(size_from(16 * 1024**2), 1024**3, key="memory")  # that clients may make the server keep
    pending_max: int = entry(integer(1, 1_000_000), 4096)  # accepted requests that have not ended, over all apps
    critical_for: Tuple[str, ...] = entry(tuple_of(string), ())  # whose claims count: uid:N, key:NAME
    drain_ns: int = entry(duration, 5 * 10**9, key="drain")  # how long SIGTERM waits for accepted requests
    curve_secret_key_file: str = entry(string, "")  # needed for TCP beyond loopback
    curve_client_keys: str = entry(string, "")  # folder of the public keys that are let in; "" = every client
    control_keys: Tuple[str, ...] = entry(tuple_of(string), ())  # names of client keys that may drain and reload
    profiles: str = entry(string, "profiles")  # directory that holds <device>/<model>.json
    record: str = entry(string, "")  # write every step's events and actions here (edgeserve simulate --replay)

    @property
    def client_bytes_max(self) -> int:
        """Bytes in flight of one client's connection: four clients at their bound fill the memory."""
        return self.memory_bytes // 4

    @property
    def unread_bytes_max(self) -> int:
        """Bytes of answers that one client has not read; with more it is cut off."""
        return self.memory_bytes // 8

    @property
    def message_bytes_max(self) -> int:
        """Bytes of one message, and of the memory that one connection may share for its tensors."""
        return self.memory_bytes // 16


@dataclass(frozen=True)
class DeviceConfig:
    """``[device.NAME]``: memory that lanes share."""

    name: str
    chip: str = entry(chip, "cpu", key="kind")  # the host, or a GPU: cuda, or one of several: cuda:1
    memory_bytes: int = entry(size, 0, key="memory")  # budget for models and stream states; 0 = no budget
    headroom_bytes: int = entry(size_or_auto, AUTO, key="headroom")  # left free for others; auto: 512 MB on a board
    power_cap_w: float = entry(number(0.0), 0.0, key="power_cap")  # watts that it should not exceed; 0 = none
    in_turn: bool = entry(boolean, True)  # works of different processes on this GPU run one after the other

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.chip.partition(":")[0]

    @property
    def index(self) -> int:
        """The number of the GPU."""
        return int(self.chip.partition(":")[2] or 0)


@dataclass(frozen=True)
class LaneConfig:
    """``[lane.NAME]``: runs one work at a time on a device."""

    name: str
    device: str = entry(string, "cpu")  # the device whose memory it uses
    threads: int = entry(integer(1, 1024), 1)  # threads that one work may use
    cores: Tuple[int, ...] = entry(tuple_of(integer(0, 4096)), ())  # pin the lane's threads to these cores
    nice: int = entry(integer(0, 19), 0)  # how far its threads yield the cores to all others; 19 = as far as possible
    priority: int = entry(integer(0, 5), 0)  # of its streams on a GPU: kernels of a higher one begin first
    sms: int = entry(integer(0, 1024), 0)  # multiprocessors of a GPU that are its own; 0 = it shares all of them
    depth: int = entry(integer(1, 16), 1)  # batches launched and not finished: packing overlaps with execution
    ahead_ns: int = entry(duration, 0, key="ahead")  # ask for the next work this long before the lane is free
    hang_ns: int = entry(duration, 30 * 10**9, key="hang")  # longer than expected + this: the lane is lost


@dataclass(frozen=True)
class ModelConfig:
    """``[model.NAME]``: something an engine can run."""

    name: str
    engine: str = entry(string)  # its name, or "module:Class" of your own
    file: str = entry(string, "")  # relative to the configuration file; "cache:..." looks in the asset cache
    function: str = entry(string, "")  # python engine: "module:function"
    lanes: Tuple[str, ...] = entry(tuple_of(string), ())  # left out = every lane
    batch: Tuple[int, ...] = entry(sizes, (1,))  # sizes that are warmed up, profiled and scheduled, rising
    batch_tolerance: float = entry(number(0.0, 1.0), 0.0)  # share that others may change of an output; 1 = unchecked
    memory_bytes: int = entry(size, 0, key="memory")  # what it occupies; 0 = as the profile or the engine says
    pinned: bool = entry(boolean, False)  # never evicted
    shapes: Dict[str, Tuple[int, ...]] = entry(table_of(tuple_of(integer(0))), factory=dict)  # per item, for warm-up
    pad: Dict[str, float] = entry(table_of(any_number), factory=dict)  # inputs padded to a common shape
    state: Dict[str, str] = entry(table_of(string), factory=dict)  # state input -> the output that replaces it
    slots: int = entry(integer(0), 0)  # sequences of a lane at once; 0 = as the engine says
    state_memory_bytes: int = entry(size, 0, key="state_memory")  # bound of all sequences' states on a device; 0 = none
    expected: Dict[int, int] = entry(durations_by_size, factory=dict)  # batch size -> time, when no profile says
    load_ns: int = entry(duration, 0, key="load")  # time to load, when no profile says
    sha256: str = entry(sha256, "")  # of its files (docs/guide/engines.md): others are refused; "" = any
    variants: Dict[str, float] = entry(table_of(quality_number), factory=dict)  # model in its place -> worth beside 1.0
    options: Dict[str, Any] = entry(table_of(anything), factory=dict)  # the engine's own (providers, threads, ...)
    given: Any = field(default=None, compare=False)  # the function or the engine, where Python gave it (edgeserve.app)

    @property
    def keeps_state(self) -> bool:
        """True if what it answers depends on the requests before, as far as the configuration tells."""
        return bool(self.state) or (self.engine == "python" and self.options.get("stateful") is True)


DEFAULT_POLICY = "plan"
"""The kind of the policy of apps that name none (``sched/plan``)."""


@dataclass(frozen=True)
class PolicyConfig:
    """``[policy.NAME]``: a policy instance; all keys but ``kind`` are that policy's own options. A ``kind`` of the form
    ``"module:Class"`` is imported, the configuration's directory first (``live/own_policies.py``)."""

    name: str
    kind: str = entry(string)
    options: Dict[str, Any] = entry(table_of(anything), factory=dict)


@dataclass(frozen=True)
class NodeConfig:
    """``[[app.NAME.node]]``: one model's place in an app."""

    name: str = entry(string)  # unique within the app
    model: str = entry(string, "")  # the model that runs there; "" = the one of the node's own name
    after: Optional[Tuple[str, ...]] = entry(tuple_of(string), None)  # left out = the node before it, [] = none
    fan_out: bool = entry(boolean, False)  # its result is a list of parts; what follows runs once per part
    gather: bool = entry(boolean, False)  # closes the innermost fan-out: gets lists, one value per part
    join: Union[str, int] = entry(join, "all")  # how many predecessors a join waits for
    route: str = entry(one_of("all", "one"), "all")  # "one": the result names the single successor taken
    parts_max: int = entry(integer(1, 100_000), 256)  # more parts than this fail the request
    inputs: Dict[str, str] = entry(table_of(string), factory=dict)  # argument -> "request.x" or "node.x"


@dataclass(frozen=True)
class TensorConfig:
    """``[app.NAME.inputs]``: what a request must bring; ``-1`` in a shape is any length."""

    dtype: str = entry(string, "float32")  # numpy's name of it, or "text", "bytes", "any"
    shape: Tuple[int, ...] = entry(tuple_of(integer(-1)), ())  # of one request, no batch axis; -1 = any length
    optional: bool = entry(boolean, False)  # a request may leave it out


AnswerNames = Union[Tuple[str, ...], Dict[str, str]]
"""``("NODE.NAME", "NAME")``, or under which name of the answer each of them stands."""


@dataclass(frozen=True)
class AppConfig:
    """``[app.NAME]``: a small graph of nodes that answers a request."""

    name: str
    nodes: Tuple[NodeConfig, ...] = ()
    policy: str = entry(string, "")  # which [policy.NAME] decides, or plan; "" = the only one, or plan
    slo_ns: int = entry(duration, 10**9, key="slo")  # default deadline after arrival
    priority_class: str = entry(one_of(*CLASSES), USUAL, key="class")  # goes before or after others
    value: float = entry(number(0.0), 1.0)  # multiplies what a request is worth
    worth: str = entry(one_of(*WORTH_NAMES), "request")  # each counts as the mean of its app, or by its own size
    on_late: str = entry(one_of(*ON_LATE_NAMES), "drop")  # late: give up, answer, or answer in part (lm, whisper: this)
    stream: str = entry(one_of("none", *STREAM_NAMES), "none")  # what stream ids mean; optional: some have none
    state_ttl_ns: int = entry(duration, 60 * 10**9, key="state_ttl")  # forget a silent stream's state
    streams_max: int = entry(integer(1), 1024)  # states kept at a time
    pending_max: int = entry(integer(1), 1024)  # accepted requests of this app that have not ended
    weights: Dict[str, float] = entry(table_of(number(0.001)), factory=dict)  # client -> share of pending_max
    background_wait_ns: int = entry(duration, 0, key="background_wait")  # class background: longest wait; 0 = no bound
    predict: Dict[str, str] = entry(read_predictors, factory=dict)  # hint -> what tells it from the inputs
    examples: str = entry(string, "")  # "module:function" that returns requests whose times alone are profiled
    least_quality: float = entry(number(0.0, 1.0), 0.0)  # of the variants of its model that may answer
    ensemble: str = entry(string, "")  # written by 'edgeserve profile --fit': what the app's models are worth
    history: str = entry(string, "")  # record what an ensemble's models say into this .npz file; "" = none
    history_share: float = entry(number(0.0, 1.0), 0.05)  # the share of requests that are recorded
    history_features: str = entry(string, "")  # "request.NAME" or "NODE.NAME": what a difficulty predictor reads
    inputs: Dict[str, TensorConfig] = field(default_factory=dict)
    ensemble_profile: Optional[EnsembleProfile] = None  # what stands in that file, or in the table [app.NAME.ensemble]
    variants: Dict[str, float] = field(default_factory=dict)  # models that may answer, best first -> quality; {} = one
    outputs: AnswerNames = entry(list_or_table_of(string), ())  # left out = all that last nodes return; a table renames

    @property
    def length(self) -> Optional[Tuple[str, int]]:
        """The input and its axis whose size is a request's hint ``length``."""
        return input_axis(self.predict.get("length", ""))

    @property
    def answer_lengths(self) -> str:
        """The file, written by ``edgeserve profile --fit``, that predicts the tokens of answers; ``""`` where none is
        named."""
        steps = self.predict.get("steps", "")
        return steps if names_lengths(steps) else ""

    @property
    def functions(self) -> Dict[str, str]:
        """Hint -> the function that predicts it."""
        return {hint: spec for hint, spec in self.predict.items() if names_function(spec)}

    @property
    def keeps_streams(self) -> bool:
        """True if requests may name a stream."""
        return self.stream in STREAM_NAMES

    @property
    def needs_streams(self) -> bool:
        """True if each request must name a stream where a model keeps a state."""
        return self.stream in ("in_order", "newest_wins")


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
    fronts: Dict[str, Dict[str, Any]] = field(default_factory=dict)  # tables that the fronts themselves read

    @property
    def has_limits(self) -> bool:
        """True if a device has a limit of memory or power that only its sensors can tell."""
        return any(item.headroom_bytes > 0 or item.power_cap_w for item in self.devices.values())

    @property
    def profiles_path(self) -> str:
        """The directory that holds ``<device>/<model>.json``."""
        return os.path.join(self.directory, self.server.profiles)

    @property
    def curve_secret_key_path(self) -> str:
        """The path of the server's key, ``""`` for a bus without keys."""
        file = self.server.curve_secret_key_file
        return os.path.join(self.directory, file) if file else ""

    @property
    def curve_client_keys_path(self) -> str:
        """The folder of the public keys that are let in, ``""`` where every client is."""
        folder = self.server.curve_client_keys
        return os.path.join(self.directory, folder) if folder else ""
