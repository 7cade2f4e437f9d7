"""``edgeserve simulate``: the scheduler that serves, in virtual time; and replay of what a server recorded."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

from edgeserve.commands.language_truth import ANSWER_HINT, language_models, with_language_models
from edgeserve.commands.report_tables import print_reports, print_sweep
from edgeserve.config.loading import parse_config
from edgeserve.config.profiles import Profile, find_profiles, parts_of
from edgeserve.config.schema import Config
from edgeserve.device.circumstances import power_mode
from edgeserve.errors import ConfigError
from edgeserve.live.own_policies import import_policies
from edgeserve.live.sensors import with_headroom
from edgeserve.python_file import config_at
from edgeserve.sched.core.build import build_scheduler, policy_of
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.host import Measured, charged
from edgeserve.sim.report import Report, report_of
from edgeserve.sim.run import (
    machine_to_simulate,
    profiles_to_simulate,
    sequences_of,
    setting_of,
    simulate,
    told_times,
)
from edgeserve.sim.scenario import Scenario, load_scenario, with_load, with_policy
from edgeserve.sim.world import SimWorld
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import Recorder, TraceError, build_inputs, read_recording, start_of, used_profiles
from edgeserve.units import counted

SEEDS_MAX = 10_000
"""As for [run] seeds: more take days."""

LOAD_MAX = 100.0
"""A multiple of the scenario's rates: more is a mistake."""

WIDTH = 120
"""Columns of the tables when the output is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenario", nargs="?", default="", metavar="FILE", help="the scenario (docs/reference/scenarios.md)"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="KIND",
        help="put every app under this policy; several times to compare on the same arrivals",
    )
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds (default: the scenario's)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: the scenario's)")
    parser.add_argument(
        "--loads",
        default="",
        metavar="0.5,0.7,...",
        help="once per load, a multiple of the scenario's rates, and what is in time by load",
    )
    parser.add_argument("--profiles", default="", help="directory of profiles (default: [server] profiles)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--record", default="", metavar="FILE", help="record the steps of the first seed and policy")
    parser.add_argument(
        "--replay",
        default="",
        metavar="FILE",
        help="replay a recording and compare every decision; the file is then the server's configuration (default: the "
        "recording's own)",
    )


def main(args: argparse.Namespace) -> int:
    if args.replay:
        return _replay(args)
    if not args.scenario:
        raise ConfigError("name a scenario file, or --replay RECORDING (docs/reference/scenarios.md)")
    scenario = load_scenario(args.scenario)
    for kind in args.policy:
        if ":" not in kind and kind not in POLICIES:
            raise ConfigError(
                f"--policy {kind}: there is no such policy (known: {', '.join(sorted(POLICIES))}; "
                "or 'module:Class' of your own)"
            )
    profiles = profiles_to_simulate(scenario.config, profiles_directory(scenario.config, args.profiles))
    scenario, assumed = with_language_models(scenario, language_models(scenario.config), profiles, {})
    for line in assumed:
        print(f"{line}; give hints.tokens and hints.{ANSWER_HINT} of its workload", file=sys.stderr)
    args.measured = machine_to_simulate(scenario.config, args.profiles)
    compared = [(kind, with_policy(scenario, kind)) for kind in args.policy] or [(_title(scenario), scenario)]
    for _, each in compared:
        import_policies(each.config)
    if not 0 <= args.seeds <= SEEDS_MAX:
        raise ConfigError(f"--seeds {args.seeds}: expected 1 to {SEEDS_MAX}")
    first = scenario.run.seed if args.seed is None else args.seed
    seeds = list(range(first, first + (args.seeds or scenario.run.seeds)))
    if args.loads:
        return _sweep(compared, read_loads(args.loads), seeds, profiles, args)
    reports = _run_all(compared, seeds, profiles, args)
    if not any(report.total.offered for report in reports.values()):
        raise ConfigError(
            f"{args.scenario}: no request arrived in the time that counts; look at [run] duration and "
            "warmup, and at rate and start of [workload.*]"
        )
    _show(reports, seeds, args.json)
    return 0


def _title(scenario: Scenario) -> str:
    used = sorted({policy_of(scenario.config, app) for app in scenario.config.apps.values()})
    return " + ".join(used)


def profiles_directory(config: Config, directory: str) -> str:
    """The folders in which profiles are looked for."""
    if directory and not os.path.isdir(directory):
        raise ConfigError(f"--profiles {directory}: there is no such directory")
    return directory or config.profiles_path


def _run_all(
    compared: Sequence[Tuple[str, Scenario]],
    seeds: Sequence[int],
    profiles: Sequence[Profile],
    args: argparse.Namespace,
) -> Dict[str, Report]:
    from rich.progress import Progress

    from edgeserve.commands.console import PlainConsole

    reports: Dict[str, Report] = {}
    with Progress(console=PlainConsole(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("simulating", total=len(compared) * len(seeds))
        for index, (title, scenario) in enumerate(compared):
            worlds: List[SimWorld] = []
            for seed in seeds:
                watched = index == 0 and seed == seeds[0]
                worlds.append(
                    _run_one(
                        scenario,
                        seed,
                        profiles,
                        args.measured,
                        args.record if watched else "",
                    )
                )
                progress.advance(bar)
            reports[title] = report_of(worlds, scenario.run.warmup_ns, scenario.run.duration_ns)
            reports[title].costs = charged(scenario, args.measured).source
    return reports


def read_loads(text: str) -> List[float]:
    """The loads of ``--loads``, rising."""
    found = []
    for word in text.split(","):
        try:
            load = float(word)
        except ValueError:
            load = -1.0
        if not 0 < load <= LOAD_MAX:
            raise ConfigError(
                f"--loads {text!r}: {word!r} is no load; expected multiples of the scenario's rates, "
                f"above 0 and at most {LOAD_MAX:g}, such as 0.5,0.7,0.9,1.1"
            )
        found.append(load)
    return sorted(set(found))


def _sweep(
    compared: Sequence[Tuple[str, Scenario]],
    loads: Sequence[float],
    seeds: Sequence[int],
    profiles: Sequence[Profile],
    args: argparse.Namespace,
) -> int:
    """Every policy at every load: a row per app and load."""
    found: Dict[float, Dict[str, Report]] = {}
    for load in loads:
        found[load] = _run_all(
            [(title, with_load(scenario, load)) for title, scenario in compared], seeds, profiles, args
        )
        args.record = ""  # of the first load
    if not args.json:
        print_sweep(found, wide_console())
    else:
        print_json(
            {
                "seeds": list(seeds),
                "loads": {
                    str(load): {title: report.as_table() for title, report in reports.items()}
                    for load, reports in found.items()
                },
            },
        )
    return 0


def _run_one(scenario: Scenario, seed: int, profiles: Sequence[Profile], measured: Measured, record: str) -> SimWorld:
    setting = setting_of(scenario.config, profiles, scenario.run.cold)
    recorder = None
    if record:
        recorder = Recorder(
            record,
            {
                "config": scenario.edge,
                **start_of(
                    setting.footprints,
                    setting.resident,
                    told_times(scenario, profiles),
                    parts_of(profiles),
                    sequences_of(scenario),
                ),
            },
        )

    try:
        world = simulate(
            scenario, seed, profiles, on_step=recorder.tap if recorder is not None else None, measured=measured
        ).world
    finally:
        if recorder is not None:
            recorder.close()
    if recorder is not None and recorder.failure:
        raise TraceError(
            f"{record}: the recording ends early ({recorder.failure}); make room there, or name another file"
        )
    return world


def _show(reports: Dict[str, Report], seeds: Sequence[int], as_json: bool) -> None:
    table: Dict[str, Any] = {
        "seeds": list(seeds),
        "policies": {title: report.as_table() for title, report in reports.items()},
    }
    if as_json:
        print_json(table)
    else:
        print_reports(reports, wide_console())


def wide_console() -> Any:
    """The terminal, or :data:`WIDTH` columns where there is none."""
    from edgeserve.commands.console import PlainConsole

    return PlainConsole() if sys.stdout.isatty() else PlainConsole(width=WIDTH)


def print_json(table: Dict[str, Any]) -> None:
    """Print a table as one JSON object."""
    print(json.dumps(table, indent=1))


def _replay(args: argparse.Namespace) -> int:
    """Exit status 0 when every decision is the same, 1 when one differs."""
    recording = read_recording(args.replay)
    if args.scenario:
        config = config_at(args.scenario)
    elif "config" in recording.start:
        config = parse_config(recording.start["config"], os.path.dirname(os.path.abspath(args.replay)), args.replay)
    else:
        raise ConfigError(
            f"{args.replay} does not hold its configuration; name the server's: "
            f"edgeserve simulate edge.toml --replay {args.replay}"
        )
    config = with_headroom(config)
    import_policies(config)
    profiles = find_profiles(
        profiles_directory(config, args.profiles), elsewhere=True, mode=power_mode(), models=config.models
    )
    scheduler = build_scheduler(config, used_profiles(recording.start, profiles), **build_inputs(recording.start))
    difference = replay(scheduler, recording.steps)
    if difference is not None:
        print(difference)
        return 1
    actions = sum(len(step.actions) for step in recording.steps)
    print(f"{counted(len(recording.steps), 'step')} with {counted(actions, 'action')}: every decision is the same")
    return 0
