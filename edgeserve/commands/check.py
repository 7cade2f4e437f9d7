"""``edgeserve check edge.toml --rate app=30``: will these apps meet these rates on this device?

The scheduler that serves is run in virtual time with the times of this device: profiles, else ``expected``, else a few
runs of the models now. Said are the share in time of each app and its spread over the runs, the load at which the first
of them breaks, which other apps stand before it, and what to change; ``commands/check_advice.py`` tries each change
before it is said. Exit status 1 when an app falls short at the rates that were asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import statistics
import sys
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from edgeserve.commands.check_advice import TRIES_MAX, CheckSetting, ShortApp, advice, busiest_lane, lanes_of
from edgeserve.commands.check_variants import VariantRow, table_of, variant_rows
from edgeserve.commands.init.slo import read_rates
from edgeserve.commands.language_truth import read_lengths, with_language_models
from edgeserve.commands.report_tables import client_rows
from edgeserve.commands.wrapping import wrapped
from edgeserve.config.machine import device_name
from edgeserve.config.profile_record import profile_command
from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.live.estimates import alone_too_slow
from edgeserve.live.machine_fit import check_memory
from edgeserve.live.own_policies import import_policies
from edgeserve.live.preflight import (
    check_apps,
    models_of_sequences,
    raise_or_tell,
)
from edgeserve.live.profiles import matched_profiles
from edgeserve.python_file import CONFIG_HELP, config_at, sections_of
from edgeserve.sched.core.build import model_lanes, policy_of, profiled_lanes
from edgeserve.sim.host import Measured
from edgeserve.sim.report import Report, report_of
from edgeserve.sim.run import machine_to_simulate, simulate
from edgeserve.sim.scenario import EDGE_SECTIONS, Scenario, parse_scenario, with_load
from edgeserve.sim.world import Ended, SimWorld
from edgeserve.units import NS_PER_S, format_duration, ms_to_ns, s_to_ns

IN_TIME_MIN = 0.99
"""An app meets its rate when so many of its requests are in time, unless ``--in-time`` says otherwise."""

REQUESTS_WANTED, REQUESTS_MAX = 400, 800
"""Per run, of which there are :data:`SEEDS`: a share of 99 % is then known to half a percent. Simulated time follows
from the rates. A request takes half a millisecond of processor time."""

RAREST_WANTED = 20
"""Requests of the app that is asked least, where :data:`REQUESTS_MAX` allows so many of the others."""

DURATION_S_MIN, DURATION_S_MAX = 1.0, 1e8
"""The longest is three years: requests that come once a month cost no more to simulate than others."""

SLOS = 3.0
"""A run lasts so many times the longest deadline: a lane that is too slow shows that only when a queue has grown as
long."""

BEHIND, BEHIND_SHARE = 1.5, 0.05
"""An app falls behind when at the end of the load so many times more of its requests are open than in the middle, and
so many of all: its queue grows for as long as the load lasts, which no deadline helps."""

OPEN_MIN = 5
"""Open requests more than in the middle that may be chance."""

SEEDS = 3
LOAD_MAX = 16.0
STEPS = 4
"""Halvings of the interval between a load and its double in which the first app breaks: it is known to a twentieth."""

RIVALS_MAX = 4
"""Other apps that the first one to break is simulated without: the ones that take most of the lanes' time."""

RUNS_MAX = 4 + STEPS + RIVALS_MAX + TRIES_MAX
"""Loads that are simulated at most: now, the largest or smallest, two between, the halvings, without other apps, and
with the changes that are tried."""

RIVAL_SHARE = 0.2
"""An app stands before another one that, without it, has so much less of its requests late or unanswered."""

FALLS_BEHIND = "its queue grows"
"""The reason why requests of an app that falls behind are counted as lost."""

NOISE = 0.05
"""Relative deviation of every duration where no profile tells how they spread."""

Simulated = Callable[[float], Report]
"""A report at a multiple of the rates."""


class Break(NamedTuple):
    """The first app that falls short, at a multiple of the rates. ``app`` of ``""``: none up to there. ``held`` is the
    greatest multiple at which none did."""

    load: float
    app: str
    report: Report
    held: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument(
        "--rate",
        action="append",
        default=[],
        metavar="APP[@CLIENT]=N",
        help="requests per second of an app; with @CLIENT those of one client, which shares the lanes with the others",
    )
    parser.add_argument(
        "--arrivals",
        choices=("poisson", "periodic"),
        default="poisson",
        help="at random times (default), or evenly, as a camera sends them",
    )
    parser.add_argument(
        "--in-time",
        type=float,
        default=100 * IN_TIME_MIN,
        metavar="PERCENT",
        help="how many of an app's requests must be in time (default: 99)",
    )
    parser.add_argument(
        "--tokens",
        action="append",
        default=[],
        metavar="APP=PROMPT/ANSWER",
        help="of a language model: mean tokens of prompts and answers (default: the longest answers)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def main(args: argparse.Namespace) -> int:
    """0 when every app with a rate meets it."""
    config = config_at(args.config)
    table, directory = sections_of(config), config.directory
    if not args.rate:
        apps = " ".join(f"--rate {shlex.quote(f'{name}=10')}" for name in config.apps)
        raise ConfigError(
            "say how often each app is asked, in requests per second, such as: "
            f"edgeserve check {shlex.quote(args.config)} {apps}"
        )
    if not 0 < args.in_time <= 100:
        raise ConfigError(f"--in-time {args.in_time:g}: expected a percentage above 0 and at most 100")
    asked = read_asked(args.rate, list(config.apps))
    rates: Dict[str, float] = {}
    for (app, _), rate in asked.items():
        rates[app] = rates.get(app, 0.0) + rate
    import_policies(config)
    matches, _ = matched_profiles(config)
    profiles = [match.usable for match in matches if match.usable.lanes]
    raise_or_tell(check_memory(config, profiles), lambda text: None)  # the rest stands in the result
    known, source = with_times(table, config, profiles)
    sequences = sorted(models_of_sequences(config))
    lengths = read_lengths(args.tokens, config.apps)

    def scenario_for(change: CheckSetting) -> Tuple[Scenario, List[str]]:
        made = scenario_of(change.table, change.asked, args.arrivals, directory, args.config, bool(profiles))
        return with_language_models(made, sequences, change.profiles, lengths)

    setting = CheckSetting(known, asked, profiles)
    scenario, assumed = scenario_for(setting)

    from edgeserve.commands.console import PlainConsole
    from edgeserve.commands.progress import progress

    with progress(PlainConsole(stderr=True)) as bars:
        runs = Runs(setting, scenario_for, machine_to_simulate(config), bars)
        found = examine(runs, scenario.config, rates, args.in_time / 100)
    result = found._replace(source=source, assumed=assumed)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print(json.dumps(result.as_table(), indent=1) if args.json else result.text(columns))
    return 1 if result.short else 0


class Runs:
    """Simulates a setting, and changes of it, at multiples of its rates; ``bars`` show how far it is."""

    def __init__(
        self,
        setting: CheckSetting,
        scenario_for: Callable[[CheckSetting], Tuple[Scenario, List[str]]],
        costs: Measured,
        bars: Any,
    ) -> None:
        self.setting = setting
        self._scenario_for = scenario_for
        self._costs = costs
        self._bars = bars
        self._bar = bars.add_task("simulating these rates", total=RUNS_MAX)

    def report(
        self,
        load: float,
        without: str = "",
        change: Optional[CheckSetting] = None,
        what: str = "",
        wanted: Optional[Mapping[str, float]] = None,
    ) -> Report:
        """See :func:`simulate_load`; ``what`` says the change to people."""
        more = f" without {without}" if without else f", {what}" if what else ""
        self._bars.update(self._bar, description=f"simulating load {load:.3g}{more}")
        setting = change or self.setting
        scenario = self._scenario_for(setting)[0]
        report = simulate_load(scenario, load, setting.profiles, self._costs, without, wanted)
        self._bars.advance(self._bar)
        return report


def examine(runs: Runs, config: Config, rates: Mapping[str, float], least: float) -> CheckResult:
    """The report: what holds, what breaks first, and what helps; where the times come from is for the caller to add."""
    now = runs.report(1.0)
    fits = [problem.fit for problem in check_apps(config, runs.setting.profiles) if problem.fit is not None]
    impossible = {fit.app: fit for fit in fits if fit.app in rates}
    short = [name for name in rates if name in impossible or now.apps[name].finish_rate < least]
    everything = dict.fromkeys(rates, least)
    found = first_break(lambda load: runs.report(load, wanted=everything), now, rates, least)
    if found.app and found.report.seeds < now.seeds:
        found = found._replace(report=runs.report(found.load))
    worst = Break(1.0, _worst(now, rates, least), now, found.held) if short else found
    rivals = {} if impossible else stand_before(runs.report, worst, config, rates)
    changes: List[str] = []
    if worst.app:
        needs_ns = impossible[worst.app].needs_ns if worst.app in impossible else 0
        case = ShortApp(config, runs.setting, rates, least, worst.app, worst.load, worst.report, worst.held, needs_ns)
        wanted = {worst.app: least}
        changes = advice(case, lambda load, change, what: runs.report(load, "", change, what, wanted))
    too_slow = [alone_too_slow(fit) for fit in impossible.values()]
    too_slow += [problem.text for problem in check_memory(config, runs.setting.profiles)]
    variants = variant_rows(config, runs.setting.profiles, now)
    return CheckResult(config, rates, least, now, short, found, "", too_slow, (), worst.app, rivals, changes, variants)


def read_asked(words: Sequence[str], apps: Sequence[str]) -> Dict[Tuple[str, str], float]:
    """``--rate APP=30`` and ``--rate APP@CLIENT=30``: rates by app and client, which is ``""`` where none is named."""
    asked: Dict[Tuple[str, str], float] = {}
    for word in words:
        name, mark, rate = word.rpartition("=")
        app, _, client = (name, "", "") if name in apps else name.partition("@")
        for found, value in read_rates([f"{app}{mark}{rate}"], apps, optional_app=False).items():
            if (found, client) in asked:
                raise ConfigError(f"--rate {word!r}: another --rate says the same of {name or found}; leave one out")
            asked[found, client] = value
    return asked


def with_times(table: Mapping[str, Any], config: Config, profiles: Sequence[Profile]) -> Tuple[Dict[str, Any], str]:
    """The file's table with times for every model, and where they come from: profiles and ``expected`` as they are; the
    others are run a few times now, as a server does at its start."""
    profiled = profiled_lanes(profiles)

    def lacks(name: str, lane: str) -> bool:
        measured = profiled[name, lane].timings if (name, lane) in profiled else {}
        return any(
            size not in measured and size not in config.models[name].expected for size in config.models[name].batch
        )

    missing = [
        model.name
        for model in config.models.values()
        if any(lacks(model.name, lane) for lane in model_lanes(config, model))
    ]
    sources = [
        word
        for word, used in (
            ("profiles", profiles),
            ("[model.*] expected", any(model.expected for model in config.models.values())),
        )
        if used
    ]
    if not missing:
        return dict(table), " and ".join(sources)
    print(
        f"no times are known of {', '.join(missing)}: running {'it' if len(missing) == 1 else 'them'} a few times "
        f"now ({profile_command(config)} measures properly)",
        file=sys.stderr,
        flush=True,
    )
    models = {name: dict(section) for name, section in table["model"].items()}
    for (name, _), times in measure_at_start(config).items():
        if name in missing and times:
            expected = dict(models[name].get("expected", {}))
            for size, runs in times.items():
                before = expected.get(str(size))
                taken = int(statistics.median(runs)) if runs else 0
                if taken and before is None:
                    expected[str(size)] = f"{taken}ns"
            models[name]["expected"] = expected
            if not set(config.models[name].batch) <= set(times):  # the start ended the others
                models[name]["batch"] = sorted(times)
    lacking = [name for name in missing if not models[name].get("expected")]
    if lacking:
        raise ConfigError(
            f"the times of {', '.join(lacking)} are not known, and without an example input they cannot "
            "be measured; give [model.NAME] options.example or [model.NAME.expected]"
        )
    return {**table, "model": models}, " and ".join([*sources, "a few runs now"])


def measure_at_start(config: Config) -> Mapping[Tuple[str, str], Mapping[int, Sequence[int]]]:
    """Times of the models, as a server measures them at its start."""
    from edgeserve.runtime import Runtime

    with Runtime(config) as runtime:
        return runtime.measured_at_start()


def scenario_of(
    table: Mapping[str, Any],
    asked: Mapping[Tuple[str, str], float],
    arrivals: str,
    directory: str,
    source: str,
    profiled: bool,
) -> Scenario:
    """The scenario in which each client asks each app at its rate."""
    workloads = {
        f"{app}-{client}-load" if client else f"{app}-load": {
            "app": app,
            "client": client,
            "kind": arrivals,
            "rate": rate,
        }
        for (app, client), rate in asked.items()
    }
    edge = {key: value for key, value in table.items() if key in EDGE_SECTIONS}
    return parse_scenario(
        {**edge, "workload": workloads, "run": {"seeds": SEEDS, **({} if profiled else {"noise": NOISE})}},
        directory,
        source,
    )


def simulate_load(
    scenario: Scenario,
    load: float,
    profiles: Sequence[Profile],
    costs: Measured,
    without: str = "",
    wanted: Optional[Mapping[str, float]] = None,
) -> Report:
    """All seeds at ``load`` times the rates; ``without`` requests to that app. What is still open when the load ends
    does not count, since what keeps it waiting ends, too; of an app that falls behind it counts as lost. ``wanted``:
    the shares in time that apps must reach; seeds that cannot make them reach it any more are left out."""
    duration_s = duration_of(scenario, load)
    run = replace(scenario.run, duration_ns=s_to_ns(duration_s), warmup_ns=s_to_ns(duration_s / 10))
    asking = tuple(workload for workload in scenario.workloads if workload.app != without)
    scaled = with_load(replace(scenario, run=run, workloads=asking), load)
    worlds: List[SimWorld] = []
    whole: List[List[Ended]] = []  # what ended in each of them
    while True:
        worlds.append(simulate(scaled, len(worlds), profiles, measured=costs).world)
        whole.append(worlds[-1].ended)
        behind = falling_behind([item for ended in whole for item in ended], run.duration_ns)
        for world, ended in zip(worlds, whole):
            world.ended = [
                item if item.end_ns < run.duration_ns else item._replace(outcome="dropped", reason=FALLS_BEHIND)
                for item in ended
                if item.end_ns < run.duration_ns or item.request.app in behind
            ]
        report = report_of(worlds, run.warmup_ns, run.duration_ns)
        if len(worlds) == run.seeds or _is_hopeless(report, run.seeds, wanted or {}):
            return report


def _is_hopeless(report: Report, seeds: int, wanted: Mapping[str, float]) -> bool:
    """True if some app would miss its share also if every request of the seeds to come were in time."""
    return any(
        (app.in_time + app.offered * (seeds / report.seeds - 1)) < app.offered * seeds / report.seeds * share
        for app, share in [(report.apps[name], share) for name, share in wanted.items()]
    )


def duration_of(scenario: Scenario, load: float) -> float:
    """The seconds of a load that are simulated."""
    rates: Dict[str, float] = {}
    for workload in scenario.workloads:
        rates[workload.app] = rates.get(workload.app, 0.0) + workload.rate * load
    slo_s = max(scenario.config.apps[name].slo_ns for name in rates) / NS_PER_S
    wanted_s = max(REQUESTS_WANTED / sum(rates.values()), SLOS * slo_s, RAREST_WANTED / min(rates.values()))
    return min(DURATION_S_MAX, REQUESTS_MAX / sum(rates.values()), max(DURATION_S_MIN, wanted_s))


def falling_behind(ended: Sequence[Ended], until_ns: int) -> Set[str]:
    """The apps whose queues grew for as long as a load lasted."""
    counts: Dict[str, List[int]] = {}
    for item in ended:
        offered, middle, last = counts.get(item.request.app, (0, 0, 0))
        arrival_ns = item.request.arrival_ns
        counts[item.request.app] = [
            offered + 1,
            middle + (arrival_ns < until_ns // 2 <= item.end_ns),
            last + (arrival_ns < until_ns <= item.end_ns),
        ]
    return {
        app
        for app, (offered, middle, last) in counts.items()
        if last > BEHIND * middle + OPEN_MIN and last > BEHIND_SHARE * offered
    }


def first_break(simulated: Simulated, now: Report, rates: Mapping[str, float], least: float) -> Break:
    """The smallest load found at which an app falls short: above the present rates where all apps keep up with them,
    else below; :data:`LOAD_MAX` times apart at most."""
    worst = _worst(now, rates, least)
    found = Break(1.0, worst, now)
    low, high = (1.0 / LOAD_MAX, 1.0) if worst else (1.0, LOAD_MAX)
    at_end = low if worst else high
    report = simulated(at_end)
    name = _worst(report, rates, least)
    if bool(name) == bool(worst):  # all of these loads are alike
        return Break(at_end, name, report)
    if name:
        found = Break(high, name, report)
    steps = STEPS
    while high > 2 * low or steps:
        steps -= high <= 2 * low
        middle = (low + high) / 2 if high <= 2 * low else math.sqrt(low * high)
        report = simulated(middle)
        name = _worst(report, rates, least)
        if name:
            found, high = Break(middle, name, report), middle
        else:
            low = middle
    return found._replace(held=low)


def stand_before(
    simulated: Callable[[float, str], Report], worst: Break, config: Config, rates: Mapping[str, float]
) -> Dict[str, float]:
    """The apps that stand before the one that falls short: each with that one's share in time without it, at the same
    load. The app that matters most comes first."""
    if not worst.app:
        return {}
    own, apps = set(lanes_of(config, worst.app)), worst.report.apps
    others = [name for name in rates if name != worst.app and own & set(lanes_of(config, name))]
    others.sort(key=lambda name: (-apps[name].lane_time_ms, name))
    share, shares = apps[worst.app].finish_rate, {}
    for name in others[:RIVALS_MAX]:
        without = simulated(worst.load, name).apps[worst.app].finish_rate
        if without - share >= RIVAL_SHARE * (1.0 - share):
            shares[name] = without
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _worst(report: Report, rates: Mapping[str, float], least: float) -> str:
    """The app that falls short most; ``""`` when none does."""
    short = [name for name in rates if report.apps[name].offered and report.apps[name].finish_rate < least]
    return min(short, key=lambda name: (report.apps[name].finish_rate, name), default="")


class CheckResult(NamedTuple):
    """The findings. ``short``: the apps that fall short at the rates asked for."""

    config: Config
    rates: Mapping[str, float]
    least: float
    now: Report
    short: Sequence[str]
    found: Break
    source: str
    impossible: Sequence[str]
    assumed: Sequence[str] = ()  # of the lengths of answers
    worst: str = ""  # the app that falls short most, else the first to break
    rivals: Mapping[str, float] = {}  # apps that stand before that one -> its share in time without them
    changes: Sequence[str] = ()  # what helps that one, each tried
    variants: Sequence[VariantRow] = ()  # of apps whose models have some

    def as_table(self) -> Dict[str, Any]:
        """The form for programs."""
        return {
            "holds": not self.short,
            "in_time_min": self.least,
            "times_from": self.source,
            "assumed": list(self.assumed),
            "apps": {
                name: {
                    "rate": rate,
                    "in_time": self.now.apps[name].finish_rate if self.now.apps[name].offered else None,
                    "in_time_range": list(self.now.apps[name].rate_range[:2]),
                    "p99_ms": self.now.apps[name].p99_ms,
                    "slo_ms": self.config.apps[name].slo_ns / 1e6,
                    "policy": policy_of(self.config, self.config.apps[name]),
                }
                for name, rate in self.rates.items()
            },
            "variants": {
                app: {row.variant: row.as_table() for row in self.variants if row.app == app}
                for app in dict.fromkeys([row.app for row in self.variants])
            },
            "clients": self.now.clients_table(),
            "lanes": self.now.lanes,
            "first_break": {"app": self.found.app, "load": self.found.load, "held": self.found.held},
            "before_it": dict(self.rivals),
            "advice_for": self.worst,
            "change": self.advice(),
        }

    def text(self, columns: int = 0) -> str:
        """The text for people. Sentences are wrapped at ``columns``; with 0 each is one line."""
        rows = [("app", "rate", "in time", f"in {self.now.seeds} runs", "p99", "slo", "")]
        for name, rate in self.rates.items():
            app = self.now.apps[name]
            rows.append(
                (
                    name,
                    f"{rate:g}/s",
                    f"{app.finish_rate:.1%}" if app.offered else "-",
                    "{:.1%} to {:.1%}".format(*app.rate_range) if app.offered else "-",
                    format_duration(ms_to_ns(app.p99_ms)) if app.in_time + app.late else "-",
                    format_duration(self.config.apps[name].slo_ns),
                    "falls short" if name in self.short else "holds" if app.offered else "too rare to be seen here",
                )
            )
        lines = [f"{self.config.source} on {device_name()}, simulated with {self.source}:", *_aligned(rows)]
        if self.variants:
            lines += _aligned(table_of(self.variants))
        if self.now.clients:
            lines += _aligned(client_rows(self.now))
        for line in self.assumed:
            lines += wrapped(line, "", columns)
        used = ", ".join(f"{lane} {share:.0%}" for lane, share in self.now.lanes.items())
        lines += [*wrapped(f"lanes in use: {used}", "", columns), *wrapped(self._verdict(), "", columns)]
        for line in self.advice():
            lines += wrapped(line, "-> ", columns)
        silent = [name for name in self.config.apps if name not in self.rates]
        if silent:
            them = "it" if len(silent) == 1 else "them"
            lines += wrapped(
                f"not asked in this simulation, since no --rate names {them}: {', '.join(silent)}", "", columns
            )
        return "\n".join(lines)

    def _verdict(self) -> str:
        app, load = self.found.app, self.found.load
        if not app:
            found = f"falls short: {', '.join(self.short)}" if self.short else "holds: no app falls short"
            return f"{found} up to {load:g} times these rates"
        share = self.found.report.apps[app].finish_rate
        breaks = (
            f"{app} is the first to break, at {self.rates[app] * load:.3g}/s ({load:.2g} times these rates): "
            f"{share:.1%} in time"
        )
        if self.found.held:
            breaks += f"; {self.rates[app] * self.found.held:.3g}/s still hold"
        elif self.short:
            breaks += "; no load that was tried holds"
        return f"falls short: {breaks}" if self.short else f"holds; {breaks}"

    def advice(self) -> List[str]:
        """The lane that keeps the app that falls short, or else breaks first, and what to change."""
        app = self.worst
        if not app:
            return list(self.impossible)
        report = self.now if self.short else self.found.report
        busiest, busy = busiest_lane(self.config, app, report)
        ended = sorted(report.apps[app].ended.items(), key=lambda item: (-item[1], item[0]))
        why = ", ".join(f"{count} {reason}" for reason, count in ended[:2])
        at = "" if self.short else " then"
        lines = list(self.impossible)
        lines.append(f"{busiest} is in use {busy:.0%} of the time{at}" + (f"; of {app}: {why}" if why else ""))
        if self.rivals:
            told = [
                f"{name} (class {self.config.apps[name].priority_class}), "
                f"without which {share:.1%} of {self.worst} are in time"
                for name, share in self.rivals.items()
            ]
            stand = f"stand{'s' if len(told) == 1 else ''} {'; '.join(told)}"
            lines.append(f"before {self.worst} (class {self.config.apps[self.worst].priority_class}) {stand}")
        return [*lines, *self.changes]


def _aligned(rows: Sequence[Sequence[str]]) -> List[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
