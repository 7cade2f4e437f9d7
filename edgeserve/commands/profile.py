"""``edgeserve profile CONFIG``: measure models on this device's lanes and write ``profiles/<device>/<model>.json``.

For every model, lane and batch size: warm-up, then runs until the p99 is known well enough (``commands/measure.py``),
on a thread that is pinned as the lane is. What was measured for the same model file, versions and settings is kept
(``config/profile_match.py``), so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import sys
import tempfile
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.commands.alone import entry_nodes, example_items
from edgeserve.commands.measure import (
    StopRule,
    medians,
)
from edgeserve.commands.measure_lane import LaneRun, Progress
from edgeserve.commands.measure_machine import lines_of, profile_machine
from edgeserve.config.machine import device_name, device_slug
from edgeserve.config.machine_costs import machine_path
from edgeserve.config.profile_match import differences, identity, lane_settings
from edgeserve.config.profiles import (
    LaneProfile,
    Profile,
    Timing,
    profile_path,
    read_profile,
)
from edgeserve.config.schema import Config, LaneConfig, ModelConfig
from edgeserve.device.circumstances import circumstances, power_mode
from edgeserve.device.host import clocks_mhz, load_average
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.base import Values
from edgeserve.engines.cuda.card import cards_of
from edgeserve.engines.denormals import flushing
from edgeserve.engines.versions import engine_versions
from edgeserve.engines.warm import SizeChange, dear_changes
from edgeserve.errors import ConfigError, EdgeServeError, ProfileError, nearest
from edgeserve.offload.pin import Pinned, allowed_cores, pin_thread
from edgeserve.predict.combiner import KINDS
from edgeserve.python_file import CONFIG_HELP, config_at
from edgeserve.sched.latency.saturation import saturating
from edgeserve.units import counted, format_duration, format_size, ns_to_ms, s_to_ns

DRIFT_MAX = 0.05
"""Above this the device was getting slower while it was measured: throttling, or other work on the machine."""

MACHINE_S_MAX = 2.0
"""The longest that each part of the machine's own costs is measured, in seconds; ``--seconds`` may say less."""

MACHINE_PARTS = 9
"""All of them take about so many times as long."""

SECONDS_MAX = 3600
"""The longest time per batch size."""

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
    if not 0 < args.seconds <= SECONDS_MAX:
        raise ConfigError(f"--seconds {args.seconds:g}: expected a time above 0, {SECONDS_MAX} at most")
    device = args.device or device_slug()
    if os.path.basename(device) != device or device in (os.curdir, os.pardir):
        raise ConfigError(f"--device {device}: expected a plain name, since it is that of a directory below profiles")
    out = args.out or config.profiles_path
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
    _make_folder(os.path.join(out, device))
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


def _make_folder(folder: str) -> None:
    """Make the device's directory of profiles before minutes of measuring. :class:`ConfigError` where nothing can be
    written there."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{folder}: profiles cannot be written there ({error.strerror}); name another directory with --out"
        ) from None


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
            model = replace(config.models[model_name], batch=tuple(sizes))
            info = lane_info(config, lane)._replace(depth=1, clock_ns=time.perf_counter_ns, common={})
            engine = make_engine(model, [info], config.directory)
            engine.rebuilds = rebuild
            profile, changed = _start_from(path, model, device, config)
            about: Dict[str, Any] = {"settings": lane_settings(config, lane), "card": cards_of(config).get(lane, {})}
            before = _measured_before(profile, lane, about)
            kept = () if force else tuple(size for size in sizes if size in before.timings)
            todo = [size for size in sizes if size not in kept]
            examples = {app: config.apps[app].examples for app in entry_nodes(config, model_name)}
            measured_with = profile.circumstances["lanes"].get(lane, {}).get("examples", {})
            is_same = {app: not force and measured_with.get(app) == examples[app] for app in examples}
            alone = {app: times for app, times in before.alone.items() if is_same.get(app)}
            strangers = [app for app in examples if app not in alone]
            if not (todo or strangers):
                return ModelOutcome(model_name, lane, kept=kept, path=path)
            about.update(examples=examples, pinned=pinned.why or list(pinned.cores))
            run = LaneRun(engine, info, lane, profile, path, rule, progress, stopped)
            progress("loading", 0)
            try:
                run.load()
                alone.update(run.alone({app: _items(config, model_name, app) for app in strangers}))
                measured: Tuple[int, ...] = ()
                if not stopped():
                    measured = run.batches(sizes, todo, replace(before, alone=alone), about, pinned.cores)
            finally:
                engine.unload()
    except EdgeServeError as error:
        return ModelOutcome(model_name, lane, why=str(error), path=path)
    why = INTERRUPTED if stopped() else ""
    return ModelOutcome(model_name, lane, measured, kept, why, path, () if why else tuple(strangers), changed)


def _items(config: Config, model: str, app: str) -> List[Values]:
    """The example requests of an app, as its first model gets them."""
    return example_items(config.apps[app], entry_nodes(config, model)[app], config.directory)


def _measured_before(profile: Profile, lane: str, about: Mapping[str, Any]) -> LaneProfile:
    """The lane's times in the profile, where it was measured with the same settings on the same GPU."""
    then = profile.circumstances["lanes"].get(lane, {})
    same = all(then.get(key, {}) == value for key, value in about.items())
    return profile.lanes.get(lane, LaneProfile({})) if same else LaneProfile({})


@contextlib.contextmanager
def _as_on(lane: LaneConfig) -> Iterator[Pinned]:
    """Set the calling thread up as the lane's, and back at the end: the next lane's settings may be others."""
    before = allowed_cores()
    with flushing(True):
        try:
            yield pin_thread(lane.cores)
        finally:
            pin_thread(before)


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
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
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
    """Print what the profiles say now; ``!`` marks a number that should not be trusted, and a legend says why."""
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
