"""``edgeserve tune``: serve what was recorded, or a scenario, under every policy in virtual time, and say which would
have been best, by how much, today and at higher loads."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.loading import load_config, read_toml, read_toml_text
from edgeserve.config.pipelines import expand_pipelines
from edgeserve.config.profiles import find_profiles
from edgeserve.config.schema import Config
from edgeserve.config.text_files import write_file
from edgeserve.device.circumstances import power_mode
from edgeserve.errors import ConfigError
from edgeserve.live.preflight import import_policies
from edgeserve.recording.replay import replay
from edgeserve.recording.trace import Recording, build_inputs, read_recording, used_profiles
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.recorded import RecordedTruth, learn
from edgeserve.sim.run import machine_to_simulate, no_workload, profiles_to_simulate
from edgeserve.sim.scenario import load_scenario
from edgeserve.tools.language_truth import language_models, with_language_models
from edgeserve.tools.simulate import profiles_directory, read_loads, wide_console, write_json
from edgeserve.tools.tuning.candidates import Candidate, make, title, todays
from edgeserve.tools.tuning.rewrite import rewritten, snippet
from edgeserve.tools.tuning.search import Search
from edgeserve.tools.tuning.show import TuneResult, as_table, print_outcome
from edgeserve.tools.tuning.subjects import RecordingSubject, ScenarioSubject, Subject
from edgeserve.tools.tuning.verdict import GOALS, Tally, judge
from edgeserve.units import NS_PER_S

SEEDS = 2
"""Of a recording: runs of the part that reports, which differ in the durations that are drawn. One run chooses."""

SEEDS_MIN, SEEDS_MAX = 3, 1000
"""Of a scenario: its seeds are the blocks of which the spread is told."""

REQUESTS_MAX = 20_000
"""Of a recording, unless ``--requests`` says otherwise: some minutes of simulating."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("config", metavar="CONFIG", help="the server's configuration file, or a scenario")
    parser.add_argument(
        "--record",
        default="",
        metavar="FILE",
        help="a recording of this configuration ([server] record); without, CONFIG is a scenario",
    )
    parser.add_argument(
        "--loads", default="1,1.2,1.5", metavar="1,1.2,...", help="multiples of what was recorded (default: 1,1.2,1.5)"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="KIND",
        help="try this kind only; several times for several (default: all)",
    )
    parser.add_argument(
        "--goal",
        choices=GOALS,
        default="finish",
        help="what to raise: the share in time (default), or the value delivered in time",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help=f"runs that report (default: {SEEDS}); of a scenario, of each part (default: its own)",
    )
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: 0, or the scenario's)")
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS_MAX,
        help=f"use so many requests of the recording, from its beginning (default: {REQUESTS_MAX})",
    )
    parser.add_argument("--profiles", default="", help="directory of profiles (default: [server] profiles)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all of it as JSON ('-': to the screen)")
    parser.add_argument(
        "--write",
        default="",
        metavar="FILE",
        help="write the configuration with the best policies, if a change is worth it",
    )


class TuneTask(NamedTuple):
    """What there is to tune: the configuration, its table, and the worlds to try it in."""

    config: Config
    edge: Mapping[str, Any]
    subject: Subject


def main(args: argparse.Namespace) -> int:
    """Tune and say what was found. Exit status 0, whether a change is worth it or not."""
    loads = read_loads(args.loads)
    for kind in args.policy:
        if kind not in POLICIES:
            raise ConfigError(
                f"--policy {kind}: there is no such policy (known: {', '.join(sorted(POLICIES))}); one "
                "of your own is tried when the configuration names it"
            )
    if not 0 <= args.seeds <= SEEDS_MAX:
        raise ConfigError(f"--seeds {args.seeds}: expected 1 to {SEEDS_MAX}")
    if args.write:
        _check_target(args)
    task = _of_recording(args) if args.record else _of_scenario(args)
    outcome = _search(task, loads, args)
    if args.json != "-":
        print_outcome(outcome, wide_console())
    write_json(args.json, as_table(outcome))
    if args.write:
        _write(task, outcome, args)
    return 0


def _of_recording(args: argparse.Namespace) -> TuneTask:
    recording = read_recording(args.record)
    config = load_config(args.config)
    edge = dict(expand_pipelines(read_toml(args.config), config.directory))
    import_policies(config)
    found = find_profiles(
        profiles_directory(config, args.profiles), elsewhere=True, mode=power_mode(), models=config.models
    )
    profiles = used_profiles(recording.start, found)
    truth = learn(config, recording, profiles, args.record)
    subject = RecordingSubject(truth, args.seeds or SEEDS, args.seed or 0, args.requests, args.record)
    subject.notes += _replayed(config, recording, truth)
    subject.compare(make(todays(config), edge, config))
    return TuneTask(config, edge, subject)


def _replayed(config: Config, recording: Recording, truth: RecordedTruth) -> List[str]:
    """Whether the configuration decides as the recorded server did, given the same events."""
    scheduler = build_scheduler(config, truth.profiles, **build_inputs(recording.start))
    difference = replay(scheduler, recording.steps)
    if difference is None:
        return []
    after_s = (difference.now_ns - truth.history.begins_ns) / NS_PER_S
    return [
        f"{config.source} decides otherwise than the recorded server from {after_s:.3f} s on: its policies, "
        "options or profiles were others, or another version recorded. What is called today below is the "
        "configuration as it is now"
    ]


def _of_scenario(args: argparse.Namespace) -> TuneTask:
    scenario = load_scenario(args.config)
    if not scenario.workloads:
        raise ConfigError(f"{no_workload(scenario)}\nOr give what a server recorded, with --record FILE")
    import_policies(scenario.config)
    seeds = args.seeds or scenario.run.seeds
    if seeds < SEEDS_MIN:
        raise ConfigError(
            f"{args.config}: {seeds} seeds, and at least {SEEDS_MIN} are needed to say by how much a "
            "gain may be off; give --seeds 5"
        )
    first = scenario.run.seed if args.seed is None else args.seed
    profiles = profiles_to_simulate(scenario.config, profiles_directory(scenario.config, args.profiles))
    scenario, assumed = with_language_models(scenario, language_models(scenario.config), profiles, {})
    subject = ScenarioSubject(scenario, profiles, machine_to_simulate(scenario.config, args.profiles), seeds, first)
    subject.notes += assumed
    return TuneTask(scenario.config, scenario.edge, subject)


def _search(task: TuneTask, loads: Sequence[float], args: argparse.Namespace) -> TuneResult:
    """What the search proposes, with the tallies of it on the part that reports."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from edgeserve.tools.console import PlainConsole

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed} tried, now {task.description}"),
        console=PlainConsole(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        bar = progress.add_task("")

        def on_trial(name: str) -> None:
            progress.update(bar, description=name, advance=1)

        search = Search(task.subject, task.config, task.edge, loads, args.goal, on_trial)
        found = search.run(args.policy or list(POLICIES))
        reported: Dict[Tuple[float, str], Tally] = {}

        def report(candidate: Candidate, load: float) -> Tally:
            key = (load, repr(candidate))
            if key not in reported:
                reported[key] = task.subject.reporting(make(candidate, task.edge, task.config), load)
            return reported[key]

        today, best, best_at = (
            {load: report(chosen(load), load) for load in loads}
            for chosen in (lambda _: found.today, lambda _: found.best, found.best_at.__getitem__)
        )
    verdict = judge(task.config, today, best, args.goal)
    return TuneResult(task.config, task.subject, args.goal, found, today, best, best_at, verdict)


def _check_target(args: argparse.Namespace) -> None:
    """Before minutes of simulating."""
    here, there = (os.path.dirname(os.path.abspath(path)) for path in (args.config, args.write))
    if here != there:
        raise ConfigError(
            f"--write {args.write}: its paths are relative to its directory, so it has to lie beside "
            f"{args.config}, in {here}"
        )


def _write(task: TuneTask, outcome: TuneResult, args: argparse.Namespace) -> None:
    """The configuration with the best policies, or what to write by hand."""
    say = sys.stderr if args.json == "-" else sys.stdout
    if not outcome.verdict.take:
        print(f"{args.write} is not written: there is nothing to change", file=say)
        return
    made = make(outcome.found.best, task.edge, task.config)
    text = rewritten(read_toml_text(args.config), made.policies, made.apps)
    if text is None:
        print(
            f"{args.config} is written in a way that this command cannot change; {args.write} is not written. Put "
            f"this into it:\n\n{snippet(made.policies, made.apps)}",
            file=say,
        )
        return
    write_file(args.write, text)
    print(f"{args.write}: {title(outcome.found.best)}", file=say)
