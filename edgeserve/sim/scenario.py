"""Scenario files: an edge.toml plus what will be asked of it, how long things really take, and what goes wrong.

This module reads and checks; it draws nothing and simulates nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from edgeserve.config.loading import parse_config
from edgeserve.config.machine_costs import ASSUMED, with_overrides
from edgeserve.config.readers import (
    anything,
    boolean,
    duration,
    durations_by_size,
    entry,
    integer,
    number,
    one_of,
    read_table,
    size,
    string,
    table_of,
    tuple_of,
)
from edgeserve.config.schema import ON_LATE_NAMES, Config
from edgeserve.config.toml_files import read_toml
from edgeserve.errors import ConfigError, nearest
from edgeserve.lognormal import Lognormal
from edgeserve.priority_class import CLASSES
from edgeserve.sim.hardware import HardwareConfig, check_hardware, record
from edgeserve.sim.spreads import Hint, Spread, read_hint, read_spread
from edgeserve.units import format_duration

STATIC, EARLY_EXIT, CONTINUOUS = "static", "early_exit", "continuous"
BATCHING = (STATIC, EARLY_EXIT, CONTINUOUS)
"""The ways in which a batch's sequences are answered, and in which ended ones still cost time."""


@dataclass(frozen=True)
class StepConfig:
    """``step = { full = "25ms", saturates = 11, alone = 0.7 }``: a step of b sequences takes
    ``full * (alone + (1 - alone) * min(b, saturates) / saturates)``, times ``b / saturates`` above ``saturates`` (the
    RT-LM specification, section 9)."""

    full_ns: int = entry(duration, key="full")  # of ``saturates`` sequences
    saturates: int = entry(integer(1, 4096), 1)  # the smallest batch that keeps the device busy
    alone: float = entry(number(0.0, 1.0), 1.0)  # what of ``full`` a step takes that reads the weights and nothing else

    def takes_ns(self, count: int) -> int:
        """A step of so many sequences."""
        filled = self.alone + (1.0 - self.alone) * min(count, self.saturates) / self.saturates
        return max(1, round(self.full_ns * filled * max(1.0, count / self.saturates)))


@dataclass(frozen=True)
class PredictConfig:
    """``[truth.MODEL.predict]``: what requests declare of their steps. The predictor sees a number that correlates with
    the logarithm of the true one by ``rho``; it says the mean of the true numbers that are possible then, times
    ``scale``."""

    rho: float = entry(number(0.0, 1.0), 1.0)
    scale: float = entry(number(1e-3, 1e3), 1.0)  # a predictor that is wrong by this factor
    hint: str = entry(string, "")  # under which name; "" = "steps" of an app of one node, else "NODE.steps"
    sd: bool = entry(boolean, False)  # whether the deviation of the logarithm is declared too, as HINT_sd
    median: float = entry(number(0.0), 0.0)  # of the true numbers; 0 = as the workload draws them
    sigma: float = entry(number(0.0, 10.0), -1.0)  # standard deviation of their logarithm; left out = as the workload


@dataclass(frozen=True)
class LaneTruth:
    """``[truth.MODEL.lane.LANE]``: the same on one lane, where it differs."""

    slower: float = entry(number(1e-3, 1e3), 1.0)  # times what the model's own keys say, where no key here does
    times: Dict[int, int] = entry(durations_by_size, factory=dict)  # batch size -> time of a step
    step: Optional[StepConfig] = entry(record(StepConfig), None)
    prefill_ns: int = entry(duration, -1, key="prefill")
    prefill_token_ns: int = entry(duration, -1, key="prefill_token")


WORKLOAD_KINDS = ("poisson", "gamma", "onoff", "periodic", "closed", "trace")
EDGE_SECTIONS = ("server", "device", "lane", "model", "policy", "app")


@dataclass(frozen=True)
class RunConfig:
    """``[run]``: how long, how often, and what the scheduler's own thinking costs in virtual time."""

    duration_ns: int = entry(duration, 30 * 10**9, key="duration")
    warmup_ns: int = entry(duration, 0, key="warmup")  # requests that arrive before are served but not counted
    seeds: int = entry(integer(1, 10_000), 5)
    seed: int = entry(integer(0), 0)  # the first of them
    step_cost_ns: int = entry(duration, -1, key="step_cost")  # charged per step; either given: nothing else is charged
    event_cost_ns: int = entry(duration, -1, key="event_cost")  # charged per event
    noise: float = entry(number(0.0, 0.25), 0.0)  # relative sd of every duration, where [truth.*] says nothing
    cold: bool = entry(boolean, False)  # True: nothing is resident at the start
    contention: Dict[str, float] = entry(table_of(number(1.0, 100.0)), factory=dict)  # device: 2 lanes, times longer


@dataclass(frozen=True)
class ChangeConfig:
    """``changes = [{ at = "10s", rate = 60.0 }]`` of a workload: the values from then on, until the next one."""

    at_ns: int = entry(duration, key="at")
    rate: float = entry(number(0.0), -1.0)  # left out = as before; 0 = no requests
    hints: Dict[str, Hint] = entry(table_of(read_hint), factory=dict)  # these; others stay as they were


@dataclass(frozen=True)
class WorkloadConfig:
    """``[workload.NAME]``: who asks what, when."""

    name: str
    app: str = entry(string, "")
    # Several: drawn evenly; closed-loop clients and periods take them in turn, a trace by its function column.
    apps: Tuple[str, ...] = entry(tuple_of(string), ())
    kind: str = entry(one_of(*WORKLOAD_KINDS), "poisson")
    client: str = entry(string, "")  # whose requests they are, for its share; sources may have one; "" = no client's
    rate: float = entry(number(0.0), 0.0)  # requests per second; a trace is stretched to it
    cv: float = entry(number(0.0, 10.0), 0.5)  # gamma: variation of the rate between windows
    window_ns: int = entry(duration, 500 * 10**6, key="window")  # gamma: how long one rate lasts
    on_ns: int = entry(duration, 10**9, key="on")  # onoff: mean length of a busy phase
    off_ns: int = entry(duration, 10**9, key="off")  # onoff: mean length of a silent phase
    jitter_ns: int = entry(duration, 0, key="jitter")  # periodic: uniform delay added to each arrival
    clients: int = entry(integer(1, 1_000_000), 1)
    think_ns: int = entry(duration, 0, key="think")  # closed: from an answer to the client's next request
    retry_ns: int = entry(duration, 10**6, key="retry")  # the same after a refusal or drop
    again: float = entry(number(0.0, 1.0), 0.0)  # share of those refused that ask again with the deadline that would do
    file: str = entry(string, "")  # trace: a CSV, relative to the scenario
    scale: float = entry(number(1e-9), 1.0)  # trace: arrival times are multiplied by it
    start_ns: int = entry(duration, 0, key="start")
    stop_ns: int = entry(duration, 2**62, key="stop")
    slo_ns: int = entry(duration, 0, key="slo")  # 0 = the app's
    priority_class: str = entry(one_of("", *CLASSES), "", key="class")  # "" = the app's
    value: float = entry(number(0.0), -1.0)  # left out = the app's
    on_late: str = entry(one_of("", *ON_LATE_NAMES), "")  # "" = the app's
    streams: int = entry(integer(0, 1_000_000), 0)  # 0 = no stream ids
    hints: Dict[str, Hint] = entry(table_of(read_hint), factory=dict)
    changes: Tuple[ChangeConfig, ...] = entry(tuple_of(record(ChangeConfig)), ())  # other rates or hints from then on
    axis: str = entry(string, "")  # trace: all of one axis keep their distances in time; "" = starts at its first row


@dataclass(frozen=True)
class TruthConfig:
    """``[truth.MODEL]``: how the model really behaves, where it differs from what the scheduler was told."""

    model: str
    times: Dict[int, int] = entry(durations_by_size, factory=dict)  # batch size -> time; left out = as expected
    fixed_ns: int = entry(duration, 0, key="fixed")  # with ``hint``: fixed + per_unit * size * max(hint)
    per_unit_ns: int = entry(duration, 0, key="per_unit")
    hint: str = entry(string, "")
    noise: float = entry(number(0.0, 0.25), -1.0)  # left out = [run] noise
    pack_ns: int = entry(duration, 0, key="pack")  # before its time: packing on the lane's thread
    steps: Optional[Spread] = entry(read_spread, None)  # an iterative model: steps that one job needs
    steps_per_run: int = entry(integer(0), 0)  # returns unfinished jobs after so many; 0 = when they are done
    parts: Optional[Spread] = entry(read_spread, None)  # a fan-out node: how many parts
    says: Tuple[str, ...] = entry(tuple_of(string), ())  # hints of requests that only this model's results tell
    routes: Dict[str, float] = entry(table_of(number(0.0)), factory=dict)  # a route-one node: weights
    fail: float = entry(number(0.0, 1.0), 0.0)  # probability that a job fails
    state_bytes: int = entry(size, 0, key="state")  # what a stream's or sequence's state occupies
    load_ns: int = entry(duration, 0, key="load")  # time to load; 0 = as configured
    steps_hint: str = entry(string, "")  # a job needs as many steps as this hint says, which the scheduler is not told
    steps_max: int = entry(integer(1, 10**6), 10**6)  # more steps than so many no job makes
    predict: Optional[PredictConfig] = entry(record(PredictConfig), None)  # what requests declare of their steps
    batching: str = entry(one_of(*BATCHING), STATIC)  # static: all return together; the others: each when it ends
    step: Optional[StepConfig] = entry(record(StepConfig), None)  # a formula in place of ``times``
    prefill_ns: int = entry(duration, 0, key="prefill")  # before the first step of sequences that have no state here
    prefill_token_ns: int = entry(duration, 0, key="prefill_token")  # besides, per token that is read
    prefill_steps: float = entry(number(0.0, 1000.0), 0.0)  # besides, so many steps of these sequences
    prefill_turn: int = entry(integer(0), 0)  # tokens of prompts that a turn reads; 0 = prompts are read whole
    tokens_hint: str = entry(string, "")  # which hint says the tokens of a prompt; "" = "tokens", or "NODE.tokens"
    state_token_bytes: int = entry(size, 0, key="state_token")  # what each token of a sequence's state occupies
    context: int = entry(integer(1), 1_000_000)  # tokens that one sequence may have in all
    lanes: Dict[str, LaneTruth] = entry(table_of(record(LaneTruth)), factory=dict, key="lane")  # where a lane differs
    told: bool = entry(boolean, False)  # True: the scheduler knows the times of every lane, as from a profile


@dataclass(frozen=True)
class FaultsConfig:
    """``[faults]``: probabilities are per work, job, load or request; ``..._every`` are mean times between troubles."""

    slow: float = entry(number(0.0, 1.0), 0.0)  # probability of a slow work
    slow_factor: float = entry(number(1.0, 1000.0), 5.0)
    refuse: float = entry(number(0.0, 1.0), 0.0)
    fail_job: float = entry(number(0.0, 1.0), 0.0)
    fail_batch: float = entry(number(0.0, 1.0), 0.0)
    fail_load: float = entry(number(0.0, 1.0), 0.0)
    unfinished: float = entry(number(0.0, 1.0), 0.0)  # three times per job at most
    cancel: float = entry(number(0.0, 1.0), 0.0)
    lane_loss_every_ns: int = entry(duration, 0, key="lane_loss_every")
    lane_loss_ns: int = entry(duration, 200 * 10**6, key="lane_loss")  # mean time until it is back
    reset_every_ns: int = entry(duration, 0, key="reset_every")  # per device: all its lanes are lost at once, as long
    hang: float = entry(number(0.0, 1.0), 0.0)  # probability that a lost lane hangs in its work, instead of dying
    gone: float = entry(number(0.0, 1.0), 0.0)  # probability that a lost lane never comes back
    speed_every_ns: int = entry(duration, 0, key="speed_every")
    speed_min: float = entry(number(0.05, 1.0), 0.4)
    burst_every_ns: int = entry(duration, 0, key="burst_every")
    burst_max: int = entry(integer(1, 10_000), 32)
    memory_every_ns: int = entry(duration, 0, key="memory_every")


@dataclass(frozen=True)
class Scenario:
    """The whole file: an edge configuration and what the simulator adds to it."""

    config: Config
    run: RunConfig = RunConfig()
    workloads: Tuple[WorkloadConfig, ...] = ()
    truths: Dict[str, TruthConfig] = field(default_factory=dict)
    faults: FaultsConfig = FaultsConfig()
    directory: str = "."
    machine: Mapping[str, Any] = field(default_factory=dict)  # the section ``[machine]``, checked
    hardware: Mapping[str, HardwareConfig] = field(default_factory=dict)  # by device
    edge: Mapping[str, Any] = field(default_factory=dict)  # the sections that ``config`` was made of, for recordings


def load_scenario(path: str) -> Scenario:
    """Read and check one scenario file. :class:`ConfigError` names the file, the key and the mend."""
    table = read_toml(path)
    try:
        return parse_scenario(table, os.path.dirname(os.path.abspath(path)), path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_scenario(table: Mapping[str, Any], directory: str = ".", source: str = "(built in Python)") -> Scenario:
    """A parsed TOML table to a checked :class:`Scenario`. ``config = "edge.toml"`` is read first; sections of the
    scenario itself replace those of that file, name by name."""
    known = (*EDGE_SECTIONS, "config", "run", "machine", "workload", "truth", "faults", "hardware")
    for key in table:
        if key not in known:
            raise ConfigError(f"[{key}] is no section of a scenario{nearest(key, known)}")
    edge: Dict[str, Any] = {}
    if "config" in table:
        edge_path = os.path.join(directory, string(table["config"], "config"))
        edge = read_toml(edge_path)
        config_directory = os.path.dirname(os.path.abspath(edge_path))
    else:
        config_directory = directory
    for section in EDGE_SECTIONS:
        if section in table:
            edge[section] = {**edge.get(section, {}), **table[section]}
    config = parse_config(edge, config_directory, source)
    workloads = tuple(
        read_table(WorkloadConfig, value, f"[workload.{name}]", name=name)
        for name, value in _tables(table, "workload").items()
    )
    truths = {
        name: read_table(TruthConfig, value, f"[truth.{name}]", model=name)
        for name, value in _tables(table, "truth").items()
    }
    hardware = {
        name: read_table(HardwareConfig, value, f"[hardware.{name}]", device=name)
        for name, value in _tables(table, "hardware").items()
    }
    scenario = Scenario(
        config,
        read_table(RunConfig, table.get("run", {}), "[run]"),
        tuple(replace(item, **_app_defaults(item, config)) for item in workloads),
        truths,
        read_table(FaultsConfig, table.get("faults", {}), "[faults]"),
        directory,
        table.get("machine", {}),
        hardware,
        edge,
    )
    with_overrides(ASSUMED, scenario.machine)
    _check(scenario)
    return scenario


def with_policy(scenario: Scenario, kind: str) -> Scenario:
    """The same scenario with every app under one policy of ``kind`` (options of the first such policy are kept)."""
    given = [item for item in scenario.config.policies.values() if item.kind == kind]
    name, options = (given[0].name, given[0].options) if given else (kind.rpartition(":")[2], {})
    edge = dict(
        scenario.edge,
        policy={name: {"kind": kind, **options}},
        app={
            app: {**{key: value for key, value in table.items() if key != "predict"}, "policy": name}
            for app, table in scenario.edge["app"].items()
        },
    )  # another policy may read other hints
    return replace(scenario, config=parse_config(edge, scenario.config.directory, scenario.config.source), edge=edge)


def with_load(scenario: Scenario, load: float) -> Scenario:
    """The same scenario with ``load`` times its rates; traces come so much faster. :class:`ConfigError` where clients
    wait for their answers: they have no rate."""
    workloads = []
    for item in scenario.workloads:
        if item.kind == "closed":
            raise ConfigError(
                f"[workload.{item.name}] kind = 'closed': its clients wait for their answers, so that it "
                "has no rate to multiply; give another kind, or other numbers of clients in other "
                "scenarios"
            )
        changes = tuple(
            replace(change, rate=change.rate * load) if change.rate > 0 else change for change in item.changes
        )
        workloads.append(replace(item, rate=item.rate * load, scale=item.scale / load, changes=changes))
    return replace(scenario, workloads=tuple(workloads))


def _tables(table: Mapping[str, Any], section: str) -> Dict[str, Any]:
    return dict(table_of(anything)(table.get(section, {}), f"[{section}]"))


def _app_defaults(workload: WorkloadConfig, config: Config) -> Dict[str, Any]:
    names = workload.apps or (workload.app,)
    for name in names:
        if name not in config.apps:
            raise ConfigError(f"[workload.{workload.name}] app = {name!r} does not exist{nearest(name, config.apps)}")
    return {"apps": names, "app": names[0]}


def _check(scenario: Scenario) -> None:
    for item in scenario.workloads:
        where = f"[workload.{item.name}]"
        if item.kind in ("poisson", "gamma", "onoff", "periodic") and item.rate <= 0:
            raise ConfigError(f"{where} rate = {item.rate}: kind {item.kind!r} needs rate = requests per second")
        if item.kind == "trace" and not item.file:
            raise ConfigError(f"{where} lacks file = '...' (a CSV trace), which kind 'trace' needs")
        if "#" in item.client or "@" in item.client:
            raise ConfigError(f"{where} client = {item.client!r}: expected a name without '#' and '@'")
        _check_changes(item, where)
        _check_axis(item, where)
    for name in scenario.machine.get("lock", {}):
        if name not in scenario.config.models:
            raise ConfigError(f"[machine.lock.{name}]: there is no such model{nearest(name, scenario.config.models)}")
    if scenario.machine and (scenario.run.step_cost_ns >= 0 or scenario.run.event_cost_ns >= 0):
        raise ConfigError(
            "[run] step_cost or event_cost say that nothing else is charged, and [machine] says what "
            "else; give step and event in [machine] instead"
        )
    for name in scenario.truths:
        if name not in scenario.config.models:
            raise ConfigError(f"[truth.{name}]: there is no such model{nearest(name, scenario.config.models)}")
        _check_sequences(scenario, scenario.truths[name])
    for name in scenario.run.contention:
        if name not in scenario.config.devices:
            raise ConfigError(
                f"[run] contention.{name}: there is no such device{nearest(name, scenario.config.devices)}"
            )
    for name, hardware in scenario.hardware.items():
        if name not in scenario.config.devices:
            raise ConfigError(f"[hardware.{name}]: there is no such device{nearest(name, scenario.config.devices)}")
        check_hardware(hardware)
    _check_routes(scenario)


def _check_sequences(scenario: Scenario, truth: TruthConfig) -> None:
    where = f"[truth.{truth.model}]"
    for lane in truth.lanes:
        if lane not in scenario.config.lanes:
            raise ConfigError(f"{where} lane.{lane}: there is no such lane{nearest(lane, scenario.config.lanes)}")
    if truth.steps is not None and truth.steps_hint:
        raise ConfigError(
            f"{where} steps and steps_hint = {truth.steps_hint!r} both say how many steps a job needs; "
            "take one of them away"
        )
    if truth.predict is not None and not truth.steps_hint:
        raise ConfigError(f"{where} predict needs steps_hint = '...': the hint that says the true number of steps")
    if truth.batching != STATIC and (truth.steps_per_run or not (truth.steps or truth.steps_hint)):
        raise ConfigError(
            f"{where} batching = {truth.batching!r} is for a model with steps or steps_hint, and without "
            "steps_per_run: its batches run until all their sequences are over"
        )
    if truth.prefill_turn and truth.batching == STATIC:
        raise ConfigError(
            f"{where} prefill_turn = {truth.prefill_turn} is for batching = 'continuous' or "
            "'early_exit': others do not ask between two turns whether they should end"
        )
    if truth.step is not None and truth.times:
        raise ConfigError(f"{where} times and step both say what a step takes; take one of them away")
    if truth.predict is not None and (truth.predict.sigma < 0 or not truth.predict.median):
        nodes = {app.name for app in scenario.config.apps.values() for node in app.nodes if node.model == truth.model}
        for item in scenario.workloads:
            if nodes & set(item.apps) and not isinstance(item.hints.get(truth.steps_hint), Lognormal):
                raise ConfigError(
                    f"{where} predict: [workload.{item.name}] draws no hints.{truth.steps_hint} from "
                    "{ lognormal = [median, sigma] }; give predict median and sigma of the true numbers"
                )


def _check_changes(item: WorkloadConfig, where: str) -> None:
    before_ns = 0
    for index, change in enumerate(item.changes):
        if change.at_ns <= before_ns:
            raise ConfigError(
                f"{where} changes[{index}] at = {format_duration(change.at_ns)!r}: expected a time after "
                f"{format_duration(before_ns)}; changes stand in the order of their times"
            )
        before_ns = change.at_ns
        if change.rate >= 0 and item.kind in ("closed", "trace"):
            raise ConfigError(
                f"{where} changes[{index}] rate = {change.rate:g}: kind {item.kind!r} has no rate to change"
            )


def _check_axis(item: WorkloadConfig, where: str) -> None:
    if item.axis and item.kind != "trace":
        raise ConfigError(f"{where} axis = {item.axis!r}: kind {item.kind!r} reads no trace; leave it out")
    if item.axis and item.rate:
        raise ConfigError(
            f"{where} rate = {item.rate:g}: a trace on an axis keeps its times; stretch all of the axis "
            "by the same scale"
        )


def _check_routes(scenario: Scenario) -> None:
    missing: List[str] = []
    for app in scenario.config.apps.values():
        for node in app.nodes:
            truth = scenario.truths.get(node.model)
            if node.route == "one" and (truth is None or not truth.routes):
                missing.append(f"[truth.{node.model}] routes = {{successor = weight}} (node {node.name!r} routes)")
    if missing:
        raise ConfigError(f"the scenario lacks {'; '.join(missing)}")
