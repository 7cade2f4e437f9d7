"""``edgeserve tune``: serve what was recorded, or a scenario, under every policy in virtual time, and say which would
have been best, by how much, today and at higher loads."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from edgeserve.config.loading import load_config, read_toml
from edgeserve.config.pipelines import expand_pipelines
from edgeserve.config.profiles import find_profiles
from edgeserve.config.schema import Config
from edgeserve.config.text_files import write_whole
from edgeserve.device.circumstances import power_mode
from edgeserve.errors import ConfigError
from edgeserve.live.plugins import import_policies
from edgeserve.recording.replay import replay
from edgeserve.recording.trace import Recording, build_inputs, read_recording, used_profiles
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.recorded import RecordedTruth, learn
from edgeserve.sim.run import machine_to_simulate, no_workload, profiles_to_simulate
from edgeserve.sim.scenario import load_scenario
from edgeserve.tools.simulate import profiles_directory, read_loads, wide_console, write_json
from edgeserve.tools.tuning.candidates import Candidate, Made, make, title, todays
from edgeserve.tools.tuning.rewrite import rewritten, snippet
from edgeserve.tools.tuning.search import Found, Search
from edgeserve.tools.tuning.show import Honesty, Outcome, as_table, print_outcome
from edgeserve.tools.tuning.subjects import Recorded, Scenarios, Subject, Tally
from edgeserve.tools.tuning.verdict import GOALS, judge
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


class Task(NamedTuple):
    """What there is to tune: the configuration, its table, the subject, and what is said of the simulation itself."""

    config: Config
    edge: Mapping[str, Any]
    subject: Subject
    honesty: Honesty


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
    found, tallies = _search(task, loads, args)
    outcome = _outcome(task, found, tallies, args.goal)
    if args.json != "-":
        print_outcome(outcome, wide_console())
    write_json(args.json, as_table(outcome))
    if args.write:
        _write(task, outcome, args)
    return 0


def _of_recording(args: argparse.Namespace) -> Task:
    recording = read_recording(args.record)
    config = load_config(args.config)
    edge = dict(expand_pipelines(read_toml(args.config), config.directory))
    import_policies(config)
    found = find_profiles(
        profiles_directory(config, args.profiles), elsewhere=True, mode=power_mode(), models=config.models
    )
    profiles = used_profiles(recording.start, found)
    truth = learn(config, recording, profiles, args.record)
    subject = Recorded(truth, args.seeds or SEEDS, args.seed or 0, args.requests, args.record)
    notes = list(truth.times.notes)
    for model, item in truth.times.explanations.items():
        notes.append(f"model {model}: {item.hint} explains {100 * item.share:.0f} % of how its durations differ")
    count = len(truth.history.requests)
    if count > args.requests:
        notes.append(f"the first {args.requests} of {count} requests are used (--requests)")
    notes += _replayed(config, recording, truth)
    as_it_is = subject.honesty(_made_today(config, edge))
    return Task(config, edge, subject, Honesty(as_it_is, notes))


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


def _of_scenario(args: argparse.Namespace) -> Task:
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
    subject = Scenarios(scenario, profiles, machine_to_simulate(scenario.config, args.profiles), seeds, first)
    return Task(scenario.config, scenario.edge, subject, Honesty({}, []))


def _made_today(config: Config, edge: Mapping[str, Any]) -> Made:
    """Exactly what is configured."""
    return Made(config, dict(edge), {}, {app.name: app.policy for app in config.apps.values()})


def _maker(task: Task) -> Any:
    today = repr(todays(task.config))

    def made(candidate: Candidate) -> Made:
        return (
            _made_today(task.config, task.edge) if repr(candidate) == today else make(candidate, task.edge, task.config)
        )

    return made


def _search(task: Task, loads: Sequence[float], args: argparse.Namespace) -> Any:
    """What the search proposes, and the tallies of it on the part that reports."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    made = _maker(task)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed} tried, now {task.description}"),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        bar = progress.add_task("")

        def on_trial(name: str) -> None:
            progress.update(bar, description=name, advance=1)

        found = Search(task.subject, task.config, made, loads, args.goal, on_trial).run(args.policy or list(POLICIES))
        tallies: Dict[float, Dict[str, Tally]] = {}
        for load in loads:
            chosen = {repr(item): item for item in (found.today, found.best, found.best_at[load])}
            tallies[load] = {key: task.subject.reporting(made(item), load) for key, item in chosen.items()}
    return found, tallies


def _outcome(task: Task, found: Found, tallies: Mapping[float, Mapping[str, Tally]], goal: str) -> Outcome:
    today = {load: tallies[load][repr(found.today)] for load in tallies}
    best = {load: tallies[load][repr(found.best)] for load in tallies}
    best_at = {load: tallies[load][repr(found.best_at[load])] for load in tallies}
    return Outcome(
        task.config,
        task.subject.blocks_name,
        goal,
        task.honesty,
        found,
        today,
        best,
        best_at,
        judge(task.config, today, best, goal),
    )


def _check_target(args: argparse.Namespace) -> None:
    """Before minutes of simulating."""
    here, there = (os.path.dirname(os.path.abspath(path)) for path in (args.config, args.write))
    if here != there:
        raise ConfigError(
            f"--write {args.write}: its paths are relative to its directory, so it has to lie beside "
            f"{args.config}, in {here}"
        )


def _write(task: Task, outcome: Outcome, args: argparse.Namespace) -> None:
    """The configuration with the best policies, or what to write by hand."""
    say = sys.stderr if args.json == "-" else sys.stdout
    if not outcome.verdict.take:
        print(f"{args.write} is not written: there is nothing to change", file=say)
        return
    made = make(outcome.found.best, task.edge, task.config)
    with open(args.config, encoding="utf-8") as file:
        text: Optional[str] = rewritten(file.read(), made.policies, made.apps)
    if text is None:
        print(
            f"{args.config} is written in a way that this command cannot change; {args.write} is not written. Put "
            f"this into it:\n\n{snippet(made.policies, made.apps)}",
            file=say,
        )
        return
    write_whole(args.write, text)
    print(f"{args.write}: {title(outcome.found.best)}", file=say)
