"""``edgeserve simulate``: the scheduler that serves, in virtual time; and replay of what a server recorded."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.profiles import Profile, find_profiles
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.live.plugins import import_policies
from edgeserve.recording.replay import replay
from edgeserve.recording.timeline import Timeline, timeline_of
from edgeserve.recording.trace import Recorder, build_inputs, read_recording, start_of
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.core.loop import OnStep
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event
from edgeserve.sim.report import Report, print_reports, report_of
from edgeserve.sim.run import setting_of, simulate
from edgeserve.sim.scenario import Scenario, load_scenario, with_policy
from edgeserve.sim.world import SimWorld

SEEDS_MAX = 10_000
"""As for [run] seeds: more take days."""

WIDTH = 120
"""Columns of the tables when the output is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", default="", help="the scenario file (docs/simulate.md)")
    parser.add_argument("--policy", action="append", default=[], metavar="KIND",
                        help="put every app under this policy; several times to compare on the same arrivals")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds (default: the scenario's)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: the scenario's)")
    parser.add_argument("--profiles", default="", help="directory of profiles (default: [server] profiles)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the report as JSON ('-': to the screen)")
    parser.add_argument("--trace", default="", metavar="FILE",
                        help="write a timeline of the first seed and policy, for ui.perfetto.dev")
    parser.add_argument("--record", default="", metavar="FILE", help="record the steps of the first seed and policy")
    parser.add_argument("--replay", default="", metavar="FILE",
                        help="replay a recording and compare every decision (with --config, or the recording's own)")
    parser.add_argument("--config", default="", metavar="FILE", help="with --replay: the server's configuration file")


def main(args: argparse.Namespace) -> int:
    if args.replay:
        return _replay(args)
    if not args.scenario:
        raise ConfigError("name a scenario file, or --replay RECORDING (docs/simulate.md)")
    scenario = load_scenario(args.scenario)
    for kind in args.policy:
        if ":" not in kind and kind not in POLICIES:
            raise ConfigError(f"--policy {kind}: there is no such policy (known: {', '.join(sorted(POLICIES))}; "
                              "or 'module:Class' of your own)")
    profiles = _profiles(scenario.config, args.profiles)
    compared = [(kind, with_policy(scenario, kind)) for kind in args.policy] or [(_title(scenario), scenario)]
    for _, each in compared:
        import_policies(each.config)
    if not 0 <= args.seeds <= SEEDS_MAX:
        raise ConfigError(f"--seeds {args.seeds}: expected 1 to {SEEDS_MAX}")
    first = scenario.run.seed if args.seed is None else args.seed
    seeds = list(range(first, first + (args.seeds or scenario.run.seeds)))
    reports = _run_all(compared, seeds, profiles, args)
    if not any(report.total.offered for report in reports.values()):
        raise ConfigError(f"{args.scenario}: no request arrived in the time that counts; look at [run] duration and "
                          "warmup, and at rate and start of [workload.*]")
    _show(reports, seeds, args.json)
    return 0


def _title(scenario: Scenario) -> str:
    used = sorted({app.policy or next(iter(scenario.config.policies)) for app in scenario.config.apps.values()})
    return " + ".join(used)


def _profiles(config: Config, directory: str) -> List[Profile]:
    if directory and not os.path.isdir(directory):
        raise ConfigError(f"--profiles {directory}: there is no such directory")
    return find_profiles(directory or config.profiles_path, elsewhere=True)


def _run_all(compared: Sequence[Tuple[str, Scenario]], seeds: Sequence[int], profiles: Sequence[Profile],
             args: argparse.Namespace) -> Dict[str, Report]:
    from rich.progress import Progress
    reports: Dict[str, Report] = {}
    with Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("simulating", total=len(compared) * len(seeds))
        for index, (title, scenario) in enumerate(compared):
            worlds: List[SimWorld] = []
            for seed in seeds:
                watched = index == 0 and seed == seeds[0]
                worlds.append(_run_one(scenario, seed, profiles, args.trace if watched else "",
                                       args.record if watched else ""))
                progress.advance(bar)
            reports[title] = report_of(worlds, scenario.run.warmup_ns, scenario.run.duration_ns)
    return reports


def _run_one(scenario: Scenario, seed: int, profiles: Sequence[Profile], trace: str, record: str) -> SimWorld:
    setting = setting_of(scenario.config, profiles, scenario.run.cold)
    watchers: List[OnStep] = []
    timeline = Timeline() if trace else None
    if timeline is not None:
        watchers.append(timeline.add)
    recorder = None
    if record:
        recorder = Recorder(record, {"config": scenario.edge, **start_of(setting.footprints, setting.resident)})
        watchers.append(recorder.record)

    def on_step(now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        for watch in watchers:
            watch(now_ns, events, actions)

    world = simulate(scenario, seed, profiles, on_step=on_step if watchers else None).world
    if recorder is not None:
        recorder.close()
    if timeline is not None:
        timeline.write(trace)
    return world


def _show(reports: Dict[str, Report], seeds: Sequence[int], json_file: str) -> None:
    table: Dict[str, Any] = {"seeds": list(seeds), "policies": {title: report.as_table()
                                                                for title, report in reports.items()}}
    if json_file == "-":
        print(json.dumps(table, indent=1))
        return
    from rich.console import Console
    print_reports(reports, Console() if sys.stdout.isatty() else Console(width=WIDTH))
    if json_file:
        with open(json_file, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
            file.write("\n")


def _replay(args: argparse.Namespace) -> int:
    """Exit status 0 when every decision is the same, 1 when one differs."""
    recording = read_recording(args.replay)
    if args.config:
        config = load_config(args.config)
    elif "config" in recording.start:
        config = parse_config(recording.start["config"], os.path.dirname(os.path.abspath(args.replay)), args.replay)
    else:
        raise ConfigError(f"{args.replay} does not hold its configuration; give the server's with --config edge.toml")
    import_policies(config)
    scheduler = build_scheduler(config, _profiles(config, args.profiles), **build_inputs(recording.start))
    difference = replay(scheduler, recording.steps)
    if args.trace:
        timeline_of(recording.steps).write(args.trace)
    if difference is not None:
        print(difference)
        return 1
    actions = sum(len(step.actions) for step in recording.steps)
    print(f"{len(recording.steps)} steps with {actions} actions: every decision is the same")
    return 0
