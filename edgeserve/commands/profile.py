"""``edgeserve profile CONFIG``: measure models on this device's lanes and write ``profiles/<device>/<model>.json``.

For every model, lane and batch size: warm-up, then runs until the p99 is known well enough (``commands/measure.py``),
on a thread that is pinned as the lane is. What was measured for the same model file, versions and settings is kept
(``config/profile_match.py``), so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import gc
import json
import os
import platform
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import psutil

from edgeserve.commands.alone import entry_nodes, example_items, measure_alone
from edgeserve.commands.measure import (
    PROMPT_TOKENS,
    StopRule,
    fit_affine,
    measure_loads,
    measure_prompt,
    measure_rested,
    measure_size,
    medians,
    summarise,
)
from edgeserve.commands.measure_machine import lines_of, profile_machine
from edgeserve.commands.profile_modes import share_modes
from edgeserve.config.machine import device_name, device_slug
from edgeserve.config.machine_costs import machine_path
from edgeserve.config.profile_match import differences, identity, lane_settings
from edgeserve.config.profile_record import Clocks
from edgeserve.config.profiles import (
    LaneProfile,
    Profile,
    Timing,
    profile_path,
    read_profile,
    write_profile,
)
from edgeserve.config.schema import Config, LaneConfig, ModelConfig
from edgeserve.device.circumstances import circumstances, power_mode
from edgeserve.device.host import busy_time, clocks_mhz, load_average, others_busy
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.base import Engine, Footprint, LaneInfo, Session, Values
from edgeserve.engines.cuda.card import cards_of
from edgeserve.engines.denormals import flushing
from edgeserve.engines.versions import engine_versions
from edgeserve.engines.warm import SizeChange, dear_changes, time_changes, warm_up
from edgeserve.errors import ConfigError, EdgeServeError, ProfileError, nearest
from edgeserve.live.device_watch import clocks_of
from edgeserve.offload.pin import Pinned, allowed_cores, pin_thread
from edgeserve.predict.combiner import KINDS
from edgeserve.python_file import CONFIG_HELP, config_at
from edgeserve.sched.latency.saturation import saturating
from edgeserve.units import counted, format_duration, format_size, ns_to_ms, s_to_ns

DRIFT_MAX = 0.05
"""Above this the device was getting slower while it was measured: throttling, or other work on the machine."""

ALONE_FACTOR = 10
"""An app's requests are measured alone for at most this many times what a batch size may take (``--seconds``)."""

MACHINE_S_MAX = 2.0
"""The share of ``--seconds`` for each part of the machine's own costs."""

MACHINE_PARTS = 9
"""All of them take about so many times as long."""

CHECK_RUNS = 20
"""Runs of the first size again after the last, to see drift over the whole lane."""

Progress = Callable[[str, int], None]


INTERRUPTED = "interrupted; run it again to go on"


class ModelOutcome(NamedTuple):
    """The outcome for one model on one lane: the timings measured now, those kept, or why there are none."""

    model: str
    lane: str
    measured: Tuple[int, ...] = ()
    kept: Tuple[int, ...] = ()
    why: str = ""
    path: str = ""
    alone: Tuple[str, ...] = ()  # apps whose requests were measured alone now
    changed: Tuple[str, ...] = ()  # why what had been measured before does not count any more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help=CONFIG_HELP)
    parser.add_argument("--model", action="append", default=[], metavar="M[,M]", help="only these models")
    parser.add_argument("--batch", default="", metavar="1,2,4", help="these batch sizes instead of the model's own")
    parser.add_argument("--lane", action="append", default=[], metavar="L[,L]", help="only these lanes")
    parser.add_argument("--out", default="", metavar="DIR", help="profiles directory (default: [server] profiles)")
    parser.add_argument("--device", default="", metavar="NAME", help="the device's name (default: from this machine)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="longest time per batch size, but for its first ten runs (default: 3)",
    )
    parser.add_argument(
        "--no-machine",
        action="store_true",
        help="only models: not what the machine and the server's loop cost (machine.toml)",
    )
    parser.add_argument("--force", action="store_true", help="measure again what is there already")
    parser.add_argument("--rebuild", action="store_true", help="build plans of TensorRT anew, and measure again")
    parser.add_argument(
        "--layers", action="store_true", help="measure nothing: which layers a batch spends its time in"
    )
    parser.add_argument(
        "--fit",
        default="",
        metavar="APP=HISTORY",
        help="measure nothing: learn what a request of APP costs, from recorded prompts (.jsonl) or outputs of an "
        "ensemble's models (.npz), into --out (default: APP.length.npz or APP.ensemble.json)",
    )
    parser.add_argument(
        "--combiner",
        default="weighted_average",
        choices=KINDS,
        help="with --fit: how outputs become one answer (default: weighted_average)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="DISTANCE",
        help="with --fit: how near an answer of a regression must be to count as the same",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def main(args: argparse.Namespace) -> int:
    """Measure and print; 0 when everything asked for has a profile now, 1 when something has not."""
    if args.fit:
        from edgeserve.commands.fit import fit

        return fit(args)
    if not args.config:
        raise ConfigError("edgeserve profile needs a configuration, such as 'edgeserve profile edge.toml'")
    config = config_at(args.config)
    models = _chosen(args.model, config.models, "--model")
    lanes = _chosen(args.lane, config.lanes, "--lane")
    sizes = _sizes(args.batch)
    if not args.seconds > 0:
        raise ConfigError(f"--seconds {args.seconds}: expected a time above 0")
    device = args.device or device_slug()
    out = args.out or os.path.join(config.directory, config.server.profiles)
    rule = StopRule(time_ns_max=s_to_ns(args.seconds))
    plans = [
        (model, lane, sizes or config.models[model].batch)
        for model in models
        for lane in config.models[model].lanes or tuple(config.lanes)
        if lane in lanes
    ]
    if not plans:
        raise ConfigError(f"nothing to measure: no model of {', '.join(models)} may run on {', '.join(lanes)}")
    if args.layers:
        from edgeserve.commands.layers import show_layers

        return show_layers(config, plans, args.json)
    machine: List[str] = []
    if not args.no_machine:
        machine = _profile_machine(config, models, machine_path(out, device), args)
    mode, first = power_mode(), {model: lane for model, lane, _ in reversed(plans)}
    force = args.force or args.rebuild
    outcomes = _with_progress(
        plans,
        args.json,
        args.seconds,
        lambda plan, progress, stopped: profile_model(
            config,
            plan[0],
            plan[1],
            plan[2],
            out,
            device,
            rule,
            force,
            progress,
            stopped,
            mode,
            args.rebuild and first[plan[0]] == plan[1],
        ),
    )
    if args.json:
        print(json.dumps(as_json(outcomes, device, machine)))
    else:
        print_outcomes(outcomes, out, device)
        print("\n".join(machine))
        if any(outcome.measured for outcome in outcomes):
            print("A server that runs goes on with the times that it has: start it again to use these.")
    for outcome in outcomes:
        if outcome.why:
            print(f"edgeserve: not measured: {outcome.model} on {outcome.lane}: {outcome.why}", file=sys.stderr)
    return 1 if any(outcome.why for outcome in outcomes) else 0


def _profile_machine(config: Config, models: Sequence[str], path: str, args: argparse.Namespace) -> List[str]:
    """Measure the machine's own costs where they are not known; what they say, for people."""
    from edgeserve.commands.console import PlainConsole
    from edgeserve.commands.progress import progress

    seconds = min(args.seconds, MACHINE_S_MAX)
    with progress(PlainConsole(stderr=True), args.json) as bars:
        bar = bars.add_task("the machine", total=1, step_s=MACHINE_PARTS * seconds)
        costs, lacking = profile_machine(
            config,
            models,
            path,
            seconds,
            args.force,
            lambda text: bars.reset(
                bar, description=text, step_s=seconds if "lock" in text else MACHINE_PARTS * seconds
            ),
        )
    for why in lacking:
        print(f"edgeserve: not measured: {why}", file=sys.stderr)
    return lines_of(costs)


# --- one model on one lane --------------------------------------------------------------------------------------------


def profile_model(
    config: Config,
    model_name: str,
    lane: str,
    sizes: Sequence[int],
    out: str,
    device: str,
    rule: StopRule,
    force: bool = False,
    progress: Progress = lambda text, done: None,
    stopped: Callable[[], bool] = lambda: False,
    mode: str = "",
    rebuild: bool = False,
) -> ModelOutcome:
    """Pin the calling thread as the lane is, measure ``sizes`` of one model on it, and write its profile after every
    size: that of power ``mode``, where the device has some. ``rebuild``: what its engine keeps built is built anew. A
    model that cannot be measured is an outcome that says why, never an exception. Afterwards the thread runs where it
    ran before."""
    path = profile_path(out, device, model_name, mode)
    try:
        with _as_on(config.lanes[lane]) as pinned:
            return _profile(
                config, model_name, lane, sizes, path, device, rule, force, progress, stopped, pinned, rebuild
            )
    except EdgeServeError as error:
        return ModelOutcome(model_name, lane, why=str(error), path=path)


def _profile(
    config: Config,
    model_name: str,
    lane: str,
    sizes: Sequence[int],
    path: str,
    device: str,
    rule: StopRule,
    force: bool,
    progress: Progress,
    stopped: Callable[[], bool],
    pinned: Pinned,
    rebuild: bool,
) -> ModelOutcome:
    clock_ns = time.perf_counter_ns
    model = replace(config.models[model_name], batch=tuple(sizes))
    info = lane_info(config, lane)._replace(depth=1, clock_ns=clock_ns, common={})
    engine = make_engine(model, [info], config.directory)
    engine.rebuilds = rebuild
    profile, changed = _start_from(path, model, device, config)
    about = {"settings": lane_settings(config, lane), "card": cards_of(config).get(lane, {})}
    lane_circumstances = profile.circumstances["lanes"]
    before = _measured_before(profile, lane, about)
    kept = () if force else tuple(size for size in sizes if size in before.timings)
    todo = [size for size in sizes if size not in kept]
    examples = {app: config.apps[app].examples for app in entry_nodes(config, model_name)}
    measured_with = lane_circumstances.get(lane, {}).get("examples", {})
    is_same = {app: not force and measured_with.get(app) == examples[app] for app in examples}
    alone = {app: times for app, times in before.alone.items() if is_same.get(app)}
    strangers = [app for app in examples if app not in alone]
    if not (todo or strangers):
        return ModelOutcome(model_name, lane, kept=kept, path=path)
    progress("loading", 0)
    weights_bytes, session = engine.load().weights_bytes, engine.open(info)
    try:
        for done, app in enumerate(strangers):
            progress(f"{app} alone", done)
            alone[app] = _alone(config, model_name, app, session, clock_ns, rule, stopped)
            if stopped():
                return ModelOutcome(model_name, lane, (), kept, INTERRUPTED, path)
        if not todo:
            lane_circumstances[lane]["examples"] = examples
            _write(path, profile, lane, replace(before, alone=alone), (weights_bytes, *profile.footprint[1:]))
            return ModelOutcome(model_name, lane, (), kept, path=path, alone=tuple(strangers))
        profile.circumstances["inputs"] = described(item := engine.example())
        load_ns = measure_loads(engine, clock_ns)
        progress("warming up", 0)
        footprint = _measured_footprint(engine, info, item, todo, clock_ns)
        session = engine.open(info)
        noted, before_all = _watched(pinned.cores), circumstances()
        timings = {size: timing for size, timing in before.timings.items() if size not in todo}
        read_ns = _prompt_token_ns(engine, session, item, clock_ns, _bounded(stopped, rule, clock_ns))
        known = replace(before, load_ns=load_ns, alone=alone, prompt_token_ns=read_ns)
        for done, size in enumerate(todo):
            progress(f"batch {size}", done)
            samples = measure_size(session, item, size, clock_ns, rule, stopped, engine.makes_sequences)
            if stopped():
                return ModelOutcome(model_name, lane, tuple(todo[:done]), kept, INTERRUPTED, path)
            timings[size] = summarise(samples)
            lane_circumstances[lane] = {
                **about,
                "pinned": pinned.why or list(pinned.cores),
                "drift": 0.0,
                "examples": examples,
                **noted(),
                "device": {"before": before_all, "after": circumstances()},
            }
            measured = _fitted(known, timings, clocks_of(info.device_index) if info.device_kind == "cuda" else Clocks())
            profile = _write(path, profile, lane, measured, footprint)
        progress("checking", len(todo))
        found = _checked(engine, session, item, sizes, todo[0], timings, clock_ns, rule, stopped)
        lane_circumstances[lane].update(engine.figures(), **found)
        rested_ns = measure_rested(session, item, min(sizes), clock_ns, rule, engine.makes_sequences)
        _write(path, profile, lane, replace(profile.lanes[lane], rested_ns=rested_ns), footprint)
        share_modes(path, lane)
        why = INTERRUPTED if stopped() else ""
        return ModelOutcome(model_name, lane, tuple(todo), kept, why, path, tuple(strangers), changed)
    finally:
        engine.unload()


def _measured_before(profile: Profile, lane: str, about: Mapping[str, Any]) -> LaneProfile:
    """The lane's times in the profile, where it was measured with the same settings on the same GPU."""
    then = profile.circumstances["lanes"].get(lane, {})
    same = all(then.get(key, {}) == value for key, value in about.items())
    return profile.lanes.get(lane, LaneProfile({})) if same else LaneProfile({})


@contextlib.contextmanager
def _as_on(lane: LaneConfig) -> Iterator[Pinned]:
    """The calling thread is one such as the lane's within, and what it was before afterwards: the next lane's settings
    may be others."""
    before = allowed_cores()
    with flushing(lane.flush_denormals):
        try:
            yield pin_thread(lane.cores)
        finally:
            pin_thread(before)


def _bounded(stopped: Callable[[], bool], rule: StopRule, clock_ns: Callable[[], int]) -> Callable[[], bool]:
    """True once ``stopped()`` is, or the time that a batch size may take is over, counted from now."""
    due_ns = clock_ns() + rule.time_ns_max
    return lambda: stopped() or clock_ns() >= due_ns


def _prompt_token_ns(
    engine: Engine, session: Session, item: Values, clock_ns: Callable[[], int], stopped: Callable[[], bool]
) -> int:
    """Reading one token of a prompt; 0 of a model that reads none."""
    sequence = engine.sequence()
    if sequence is None:
        return 0
    return measure_prompt(session, item, min(PROMPT_TOKENS, sequence.context_tokens // 2), clock_ns, stopped)


def _watched(cores: Sequence[int]) -> Callable[[], Dict[str, Any]]:
    """The other work of the machine on a lane's ``cores`` from now on, each time that is asked."""
    begun_s, busy_s, busy = time.perf_counter(), time.process_time(), busy_time(cores)

    def noted() -> Dict[str, Any]:
        elapsed_s = time.perf_counter() - begun_s
        # A share well below the number of threads on a CPU lane: the machine had other work to do.
        return {
            "cpu_share": round((time.process_time() - busy_s) / elapsed_s, 3),
            "load": {"others": round(others_busy(busy, busy_time(cores), elapsed_s), 2), "cores": len(cores)},
        }

    return noted


def _alone(
    config: Config,
    model: str,
    app: str,
    session: Session,
    clock_ns: Callable[[], int],
    rule: StopRule,
    stopped: Callable[[], bool],
) -> Tuple[int, ...]:
    """The times alone of an app's example requests, rising."""
    items = example_items(config.apps[app], entry_nodes(config, model)[app], config.directory)
    return tuple(sorted(measure_alone(session, items, clock_ns, ALONE_FACTOR * rule.time_ns_max, stopped)))


def _fitted(known: LaneProfile, timings: Mapping[int, Timing], clocks: Clocks) -> LaneProfile:
    fixed_ns, per_item_ns, error_max = fit_affine(medians(timings))
    return replace(
        known,
        timings=dict(sorted(timings.items())),
        fixed_ns=fixed_ns,
        per_item_ns=per_item_ns,
        fit_error_max=error_max,
        clock_mhz=clocks.compute_mhz,
        memory_clock_mhz=clocks.memory_mhz,
    )


def _write(path: str, profile: Profile, lane: str, measured: LaneProfile, footprint: Sequence[int]) -> Profile:
    lanes = {**profile.lanes, lane: measured}
    # Working memory belongs to the model, not to a lane: the largest that was seen counts.
    work, shared = (max(pair) for pair in zip(profile.footprint[1:], footprint[1:]))
    profile = replace(profile, lanes=lanes, weights_bytes=footprint[0], work_bytes=work, shared_bytes=shared)
    write_profile(path, profile)
    return profile


def _start_from(path: str, model: ModelConfig, device: str, config: Config) -> Tuple[Profile, Tuple[str, ...]]:
    """The profile that is there, when it was measured with the same file, versions and settings; else an empty one,
    and what has changed."""
    same = identity(model, config.directory, engine_versions(model))
    fresh = Profile(
        model.name,
        device,
        {},
        circumstances={
            "same": same,
            "lanes": {},
            "inputs": {},
            "device_name": device_name(),
            "host": platform.node(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "clocks_mhz": clocks_mhz(),
            **circumstances(),
            "load_average": round(load_average(), 2),
            "cores": os.cpu_count() or 1,
            "system": platform.platform(),
        },
    )
    if not os.path.exists(path):
        return fresh, ()
    try:
        found = read_profile(path)
    except ProfileError as error:
        return fresh, (str(error).partition(";")[0],)
    before = found.circumstances.get("same")
    if not isinstance(before, dict) or not isinstance(found.circumstances.get("lanes"), dict):
        return fresh, ("it does not say what it was measured with",)
    changed = tuple(differences(before, same))
    return (fresh, changed) if changed else (found, ())


def described(item: Values) -> Dict[str, Any]:
    """The example that was measured: name -> (dtype, shape) of an array, the type's name of anything else."""
    return {
        name: [str(value.dtype), list(value.shape)] if isinstance(value, np.ndarray) else type(value).__name__
        for name, value in item.items()
    }


def _resident_bytes() -> int:
    """Resident memory of this process and its children (an engine may have a process of its own)."""
    me = psutil.Process()
    total = int(me.memory_info().rss)
    for child in me.children(recursive=True):
        try:
            total += int(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
    return total


def _measured_footprint(
    engine: Engine, lane: LaneInfo, item: Values, sizes: Sequence[int], clock_ns: Callable[[], int]
) -> Footprint:
    """Warm the engine up and say its memory, for work what the process grows by, beyond the weights, from unloaded to
    warm. The libraries are in memory already (the engine was loaded before), and what earlier models freed goes back
    to the system first. Where growth says nothing (the memory is a GPU's) it is the engine's own estimate."""
    engine.unload()
    _give_back()
    before_bytes = _resident_bytes()
    footprint = engine.load()
    warm_up(engine.open(lane), item, sizes, clock_ns)
    grown_bytes = _resident_bytes() - before_bytes - footprint.weights_bytes
    measured = lane.device_kind == "cpu" and grown_bytes > 0
    return Footprint(footprint.weights_bytes, grown_bytes) if measured else footprint


def _give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _checked(
    engine: Engine,
    session: Session,
    item: Values,
    sizes: Sequence[int],
    first: int,
    timings: Mapping[int, Timing],
    clock_ns: Callable[[], int],
    rule: StopRule,
    stopped: Callable[[], bool],
) -> Dict[str, Any]:
    """The costs of changes of the batch size, and the drift: the ``first`` size's median once more after all others,
    over its median before, minus 1. Each takes as long as a batch size may."""
    sequences, again = engine.makes_sequences, StopRule(runs_min=CHECK_RUNS, runs_max=CHECK_RUNS)
    changes = time_changes(session, item, sizes, clock_ns, sequences, _bounded(stopped, rule, clock_ns))
    samples = measure_size(session, item, first, clock_ns, again, _bounded(stopped, rule, clock_ns), sequences)
    before_ns = timings[first].median_ns
    drift = round(summarise(samples).median_ns / before_ns - 1, 4) if samples and before_ns else 0.0
    return {"changes_ns": {str(size): list(change) for size, change in changes.items()}, "drift": drift}


# --- the command ------------------------------------------------------------------------------------------------------


def as_json(outcomes: Sequence[ModelOutcome], device: str, machine: Sequence[str]) -> Dict[str, Any]:
    """The measurement: times in milliseconds by batch size, with what was kept and what could not be measured."""
    rows = []
    for outcome in outcomes:
        done = (*outcome.measured, *outcome.kept)
        timings = read_profile(outcome.path).lanes[outcome.lane].timings if done else {}
        rows.append(
            {
                "model": outcome.model,
                "lane": outcome.lane,
                "file": outcome.path,
                "why_not": outcome.why or None,
                "batches": {
                    size: {
                        "runs": timings[size].count,
                        "median_ms": ns_to_ms(timings[size].median_ns),
                        "p99_ms": ns_to_ms(timings[size].p99_ns),
                        "kept": size in outcome.kept,
                    }
                    for size in sorted(done)
                },
            }
        )
    return {"device": device, "models": rows, "machine": list(machine)}


def _chosen(words: Sequence[str], known: Dict[str, Any], flag: str) -> Tuple[str, ...]:
    names = tuple(name for word in words for name in word.split(",") if name)
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} {name!r} is not in the configuration{nearest(name, known)}")
    return names or tuple(known)


def _sizes(text: str) -> Tuple[int, ...]:
    if not text:
        return ()
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"--batch {text!r}: expected batch sizes such as 1,2,4,8")
    return tuple(sorted({int(word) for word in words}))


Plan = Tuple[str, str, Sequence[int]]


def _with_progress(
    plans: Sequence[Plan],
    quiet: bool,
    seconds: float,
    measure: Callable[[Plan, Progress, Callable[[], bool]], ModelOutcome],
) -> List[ModelOutcome]:
    """Measure every plan on a thread of its own, as lanes do, while this one shows the progress; ``seconds`` is what a
    batch size may take."""
    from edgeserve.commands.console import PlainConsole
    from edgeserve.commands.progress import progress

    stop = threading.Event()
    outcomes: List[ModelOutcome] = []
    with progress(PlainConsole(stderr=True), quiet) as bars:
        bar, before = bars.add_task("", total=sum(len(sizes) for _, _, sizes in plans), step_s=seconds), 0
        for plan in plans:

            def show(text: str, done: int, before: int = before, plan: Plan = plan) -> None:
                bars.update(bar, description=f"{plan[0]} on {plan[1]}: {text}", completed=before + done)

            outcomes.append(_on_a_thread(functools.partial(measure, plan, show, stop.is_set), stop))
            before += len(plan[2])
    return outcomes


def _on_a_thread(call: Callable[[], ModelOutcome], stop: threading.Event) -> ModelOutcome:
    """Run ``call`` on a new thread. Ctrl-C lets the run that is going on end, keeps what was measured, and goes up."""
    results: List[ModelOutcome] = []
    errors: List[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work, name="edgeserve-profile", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        stop.set()
        thread.join(30)
        raise
    if errors:
        raise errors[0]
    return results[0]


def print_outcomes(outcomes: Sequence[ModelOutcome], out: str, device: str) -> None:
    """A table of what the profiles say now; ``!`` marks a number that should not be trusted, and a legend says why."""
    from rich.table import Table

    from edgeserve.commands.console import PlainConsole

    table = Table(title=f"profiles of {device} in {out}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("model", "lane", "batch", "runs", "median", "p99", "sd", "drift"):
        table.add_column(column, justify="left" if column in ("model", "lane") else "right", no_wrap=True)
    lines, remarks = [], set()
    for outcome in outcomes:
        if outcome.why and not outcome.measured and not outcome.kept:
            table.add_row(outcome.model, outcome.lane, *["-"] * 6)
            continue
        profile = read_profile(outcome.path)
        lane, circumstances = profile.lanes[outcome.lane], profile.circumstances["lanes"][outcome.lane]
        lines += [
            f"{app} alone on {outcome.lane}: {alone_text(times)}{'' if app in outcome.alone else ' (kept)'}"
            for app, times in sorted(lane.alone.items())
        ]
        for size in sorted((*outcome.measured, *outcome.kept)):
            cells, notes = _cells(lane.timings[size], size in outcome.kept)
            table.add_row(outcome.model, outcome.lane, str(size), *cells)
            remarks.update(notes)
        lines.append(
            f"{outcome.model} on {outcome.lane}: {format_duration(lane.fixed_ns)} + "
            f"{format_duration(lane.per_item_ns)} * batch (off by up to {lane.fit_error_max:.0%}), loads in "
            f"{format_duration(lane.load_ns)}, {format_size(profile.weights_bytes)} of weights, "
            f"{format_size(sum(profile.footprint[1:]))} of work, {circumstances['cpu_share']:.0%} of a core, "
            f"{circumstances['drift']:+.1%} from beginning to end{saturation(lane.timings)}"
        )
        lines += _lines_on_changes(f"{outcome.model} on {outcome.lane}", circumstances.get("changes_ns", {}))
        graphs = circumstances.get("graphs", {})
        if graphs:
            ran = graphs["replayed"] + graphs["enqueued"]
            lines.append(f"{outcome.model} on {outcome.lane}: {graphs['replayed']} of {ran} batches were CUDA graphs")
        lines += [f"{outcome.model}: all measured again: {text}" for text in outcome.changed]
        remarks.update(remarks_on_clocks(circumstances))
    console = PlainConsole(soft_wrap=True)
    console.print(table)
    for line in [*lines, *sorted(remarks)]:
        console.print(line, highlight=False)


def _lines_on_changes(what: str, changes_ns: Mapping[str, Sequence[int]]) -> List[str]:
    """The cost of changing the batch size, where several were measured."""
    changes = {int(size): SizeChange(*times) for size, times in changes_ns.items()}
    each = ", ".join(f"{size}: {format_duration(change.changed_ns)}" for size, change in sorted(changes.items()))
    dear = dear_changes(changes)
    return [f"{what} after a batch of another size: {each}"] * bool(each) + [f"! {what} is {dear}"] * bool(dear)


def saturation(timings: Mapping[int, Timing]) -> str:
    """The batch size, of several measured: the smallest that keeps the lane busy: RT-LM's C, and its time (eta)."""
    if len(timings) < 2:
        return ""
    times_ns = medians(timings)
    size = saturating(times_ns)
    return f", saturated by a batch of {size} in {format_duration(times_ns[size])}"


def remarks_on_clocks(lane: Mapping[str, Any]) -> List[str]:
    """The effect of the device's clocks on a lane's times; ``lane``: its circumstances in a profile."""
    device = lane.get("device", {})
    before, after = device.get("before", {}), device.get("after", {})
    remarks = []
    if False in (before.get("clocks_locked"), after.get("clocks_locked")):
        names = ", ".join(after.get("governors", ())) or "unknown"
        remarks.append(
            f"clocks: not locked (governor {names}): times after a pause are longer than these; lock them "
            "(Jetson: sudo jetson/power.sh --clocks) and measure again, or serve as they are"
        )
    if before.get("power_mode") != after.get("power_mode"):
        remarks.append(
            f"power mode: changed from {before.get('power_mode')} to {after.get('power_mode')} meanwhile: measure again"
        )
    return remarks


def alone_text(times: Sequence[int]) -> str:
    """The spread of an app's times alone; ``times`` rises."""
    shown = ", ".join(
        f"{name} {format_duration(times[min(len(times) - 1, int(q * len(times)))])}"
        for name, q in (("least", 0.0), ("median", 0.5), ("p99", 0.99))
    )
    return f"{counted(len(times), 'request')}, {shown}"


def _cells(timing: Timing, kept: bool) -> Tuple[List[str], List[str]]:
    """The table's cells of one batch size, and the notes on them below it."""
    remarks = ["* kept from an earlier run (--force measures it again)"] if kept else []
    p99 = format_duration(timing.p99_ns) + (" ±?" if timing.p99_error >= 1 else f" ±{timing.p99_error:.0%}")
    drift = f"{timing.drift:+.1%}"
    if timing.p99_error > StopRule().p99_error_max:
        p99 += "!"
        remarks.append(
            f"! p99: fewer runs than it takes to know it within {StopRule().p99_error_max:.0%}; give more --seconds"
        )
    if abs(timing.drift) > DRIFT_MAX:
        drift += "!"
        remarks.append("! drift: the device got slower (+: throttled, or others joined) or faster (-) meanwhile")
    return [
        f"{timing.count}{'*' if kept else ''}",
        format_duration(timing.median_ns),
        p99,
        format_duration(timing.sd_ns),
        drift,
    ], remarks
