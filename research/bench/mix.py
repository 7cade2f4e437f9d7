"""The four mixes of ``examples/mixes`` at three loads: ``plan`` beside simple rules, in virtual time.

    python research/bench/mix.py [--only MIX] [--loads 0.7,1,1.3] [--first N] [--seeds N] [--ways "plan;edf"]
                                [--without MECHANISM] [--keep FILE] [--json FILE]

All ways serve the same arrivals. ``plan`` is the policy of the files, the default. The others: ``edf`` for all apps,
``fifo``, one fixed order of all apps (class, then shortest deadline), fair slices of the lane's time, ``plan`` without
values, and a lane that is divided for good, each part with ``edf``.

A request is worth its app's mean lane time in full batches times its value, if it is in time; an ensemble's answer is
worth as much less as the models that took part agree less often with all of them. ``bound`` is what no scheduler can
exceed: the most value that fits into the lane's time between arrivals and deadlines, all arrivals known, in full
batches of which each request is a part that can be divided and interrupted. ``foreseen`` is a schedule that exists:
the best of :data:`ROUNDS` runs of ``plan`` in which of the requests that failed in the best one so far a part
(:data:`REFUSED`) is refused at arrival. What can be brought lies between the two.
``--without`` switches mechanisms of the ablation off, in every way that has them.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import runs
from common.ablated import MECHANISMS
from common.ensemble_worlds import EDGES, Took, Truth
from common.mix_baselines import FAIR, FORESEEN, PRIORITY, Foreseen, partitioned
from common.replicated import BEYOND, checks_of
from lib.checks import Checks, arguments

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import DEFAULT_POLICY
from edgeserve.sched.protocol.events import Request
from edgeserve.sim.report import AppReport, report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import CONTINUOUS, Scenario, load_scenario, with_load, with_policy

MIXES = ("robot", "home", "workstation", "inspection")
LANE = "gpu0"
LOADS = (0.7, 1.0, 1.3)
SEEDS = 2
WAYS: Mapping[str, str] = {  # name -> kind of policy
    "plan": DEFAULT_POLICY,
    "edf": "edf",
    "fifo": "fifo",
    "priority": PRIORITY,
    "fair": FAIR,
    "plan, no values": DEFAULT_POLICY,
    "partition": "edf",
    "foreseen": FORESEEN,
}
ROUNDS = 6
REFUSED = 0.7
CRITICAL_PERCENT = {0.7: 99.5, 1.0: 99.5, 1.3: 99.0}
REGAINED = 2 / 3
"""The share that ``plan`` regains at least of the value that ``edf`` for all loses,"""

LOST = 0.5
"""where it loses more than so many points."""

BEHIND = 0.5
"""Below load 1, ``plan`` is to be at most so many points behind any other way, on any seed."""

VARIANTS = ("plan, no values", "foreseen")
"""Ways that are ``plan`` itself, or know what will come."""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "mixes"


class Job(NamedTuple):
    """One way, once."""

    mix: str
    load: float
    way: str
    seed: int


class Found(NamedTuple):
    """The result of a run: percent of the value offered, in time by class and by app in percent, the longest time
    without an answer in time of any app in seconds, which app that was, the bound in percent, and how long the run
    took."""

    mix: str
    load: float
    way: str
    seed: int
    percent: float
    classes: Mapping[str, float]
    apps: Mapping[str, float]
    gap_s: float
    gap_app: str
    bound: float
    policies: Mapping[str, str]
    seconds: float


def run(job: Job) -> Found:
    """Simulate one way once."""
    mix, load, way, seed = job
    gc.disable()
    base = load_scenario(str(EXAMPLES / mix / "scenario.toml"))
    needs_ms = needs(base)
    scenario = with_policy(with_load(base, load), WAYS[way])
    if way == "partition":
        scenario = partitioned(scenario, LANE, needs_ms, {item.app: item.rate for item in scenario.workloads})
    elif way == "plan, no values":
        edge = {
            **scenario.edge,
            "app": {name: {**table, "value": 1.0} for name, table in scenario.edge["app"].items()},
        }
        scenario = replace(scenario, config=parse_config(edge, scenario.config.directory), edge=edge)
    truths = truths_of(base)
    nodes = {node: index for truth in truths.values() for index, node in enumerate(truth.nodes)}
    began = time.perf_counter()
    draw, best, percent, Foreseen.refused = random.Random(seed), None, -1.0, frozenset()
    worth = {name: needs_ms[name] * app.value for name, app in base.config.apps.items()}
    for _ in range(ROUNDS if way == "foreseen" else 1):
        took = Took(lambda node: 1 << nodes[node] if node in nodes else 0)
        done = simulate(scenario, f"mix/{seed}", (), on_step=took.step)
        counted = [item for item in done.world.ended if item.request.arrival_ns >= base.run.warmup_ns]
        brought = 0.0
        for item in [item for item in counted if item.in_time]:
            app, part = item.request.app, took.part.get(item.request.id, 0)
            share = truths[app].worth(item.request.hints["difficulty"], part) if app in truths else 1.0
            brought += worth[app] * share
        found = 100.0 * brought / sum([worth[item.request.app] for item in counted])
        if found > percent:
            best, percent = (done, counted), found
            failed = sorted([item.request.id for item in done.world.ended if not item.in_time])
        Foreseen.refused = frozenset([id for id in failed if draw.random() < REFUSED])
    assert best is not None
    done, counted = best
    world, state = done.world, done.scheduler.state
    report = report_of([world], base.run.warmup_ns, base.run.duration_ns)
    gap_app = max(report.apps, key=lambda name: report.apps[name].gap_max_ms)
    gc.collect()
    return Found(
        mix,
        load,
        way,
        seed,
        percent,
        by_class(base, report.apps),
        {name: 100.0 * app.finish_rate for name, app in report.apps.items()},
        report.apps[gap_app].gap_max_ms / 1000.0,
        gap_app,
        bound(base, [item.request for item in counted], needs_ms),
        {name: app.policy for name, app in state.apps.items()},
        time.perf_counter() - began,
    )


def needs(scenario: Scenario) -> Dict[str, float]:
    """App -> lane time of a mean request in full batches, in ms."""
    config, found = scenario.config, {}
    for app in config.apps.values():
        total, parts = 0.0, 1.0
        for node in app.nodes:
            model, truth = config.models[node.model or node.name], scenario.truths.get(node.model or node.name)
            if node.gather:
                parts = 1.0
            if LANE in model.lanes:
                largest = model.batch[-1]
                steps = mean_steps(scenario, app.name) if truth is not None and truth.batching == CONTINUOUS else 1.0
                total += parts * steps * model.expected[largest] / largest / 1e6
            if node.fan_out and truth is not None and truth.parts is not None:
                parts = statistics.fmean([truth.parts.pick((index + 0.5) / 1000) for index in range(1000)])
        found[app.name] = total
    return found


def mean_steps(scenario: Scenario, app: str) -> float:
    """The mean number of steps of a language model's answers to an app's requests."""
    workload = next(item for item in scenario.workloads if item.app == app)
    node = scenario.config.apps[app].nodes[0]
    truth = scenario.truths[node.model or node.name]
    if workload.kind == "trace":
        rows = (EXAMPLES / "traces" / Path(workload.file).name).read_text(encoding="utf-8").splitlines()
        column = rows[0].split(",").index(truth.steps_hint)
        drawn = [float(row.split(",")[column]) for row in rows[1:]]
    else:
        spread = workload.hints[truth.steps_hint]
        drawn = [spread.pick((index + 0.5) / 1000) for index in range(1000)]
    return statistics.fmean([min(truth.steps_max, steps) for steps in drawn])


def truths_of(scenario: Scenario) -> Dict[str, Truth]:
    """The ensembles, and how often each subset of their models answers as all do: as their profiles say."""
    found = {}
    for app in scenario.config.apps.values():
        profile = app.ensemble_profile
        if profile is not None:
            assert profile.edges == EDGES, f"{app.name}: edges {profile.edges}, expected {EDGES}"
            found[app.name] = Truth(profile.models, profile.agreement)
    return found


def by_class(scenario: Scenario, apps: Mapping[str, AppReport]) -> Dict[str, float]:
    """Class -> percent in time."""
    sums: Dict[str, List[int]] = {}
    for name, report in apps.items():
        mine = sums.setdefault(scenario.config.apps[name].priority_class, [0, 0])
        mine[0] += report.in_time
        mine[1] += report.offered
    return {priority_class: 100.0 * in_time / max(1, offered) for priority_class, (in_time, offered) in sums.items()}


def bound(scenario: Scenario, requests: Sequence[Request], needs_ms: Mapping[str, float]) -> float:
    """Percent of the value that fits into the lane's time if each request may be divided and interrupted between its
    arrival and its deadline, at what it takes in full batches, and of an ensemble each part is taken that is worth
    most: so this is more than any scheduler can bring.

    What can be served together is a polymatroid, so the greedy choice of the densest is the best one: its value is the
    sum over densities of the step to the next lower one times the most work of all that are at least as dense."""
    offered = 0.0
    by_density: Dict[float, List[Tuple[int, int, float]]] = {}
    for request in requests:
        worth = needs_ms[request.app] * scenario.config.apps[request.app].value
        offered += worth
        for share, time_ms in pieces(scenario, request.app, needs_ms[request.app]):
            if time_ms > 0:
                rows = by_density.setdefault(worth * share / time_ms, [])
                rows.append((request.arrival_ns, request.deadline_ns, time_ms * 1e6))
    brought, dense = 0.0, []
    densities = sorted(by_density, reverse=True)
    for density, lower in zip(densities, [*densities[1:], 0.0]):
        dense += by_density[density]
        brought += (density - lower) * most_work(dense) / 1e6
    return 100.0 * brought / offered


def most_work(rows: Sequence[Tuple[int, int, float]]) -> float:
    """The most of so much work (arrival, deadline, time) that one lane can do by the deadlines: the earliest deadline
    first, interrupted by each arrival, what is late given up."""
    coming, waiting = sorted(rows), []
    now, done, place = 0.0, 0.0, 0
    while place < len(coming) or waiting:
        if not waiting:
            now = max(now, float(coming[place][0]))
        while place < len(coming) and coming[place][0] <= now:
            heappush(waiting, (coming[place][1], coming[place][2]))
            place += 1
        until = coming[place][0] if place < len(coming) else float("inf")
        while waiting and now < until:
            due, left = heappop(waiting)
            if due <= now:
                continue
            took = min(left, due - now, until - now)
            now, done = now + took, done + took
            if took < min(left, due - now + took):
                heappush(waiting, (due, left - took))
    return done


def pieces(scenario: Scenario, name: str, need_ms: float) -> List[Tuple[float, float]]:
    """The values of the parts of a mean request, as shares of the whole, and their lane time: one, but for ensembles,
    whose models bring ever less for each bin of difficulty."""
    profile = scenario.config.apps[name].ensemble_profile
    if profile is None:
        return [(1.0, need_ms)]
    models = [scenario.config.models[node] for node in profile.models]
    times_ms = [model.expected[model.batch[-1]] / model.batch[-1] / 1e6 for model in models]
    found = []
    for row in profile.agreement:
        at, worth = 0.0, 0.0
        points = [
            (sum([time_ms for model, time_ms in enumerate(times_ms) if subset >> model & 1]), row[subset])
            for subset in range(len(row))
        ]
        while worth < max(row):
            later = [point for point in points if point[0] > at and point[1] > worth]
            next_ms, next_worth = max(later, key=lambda point: (point[1] - worth) / (point[0] - at))
            found.append(((next_worth - worth) / len(profile.agreement), (next_ms - at) / len(profile.agreement)))
            at, worth = next_ms, next_worth
    return found


def rows_of(found: Sequence[Found]) -> List[Dict[str, Any]]:
    """Means over the seeds, by mix, load and way."""
    keys = list(dict.fromkeys([(item.mix, item.load, item.way) for item in found]))
    rows = []
    for mix, load, way in keys:
        mine = [item for item in found if (item.mix, item.load, item.way) == (mix, load, way)]
        longest = max(mine, key=lambda item: item.gap_s)
        rows.append(
            {
                "mix": mix,
                "load": load,
                "way": way,
                "percent": round(statistics.fmean([item.percent for item in mine]), 2),
                "bound": round(statistics.fmean([item.bound for item in mine]), 2),
                "gap_s": round(longest.gap_s, 2),
                "gap_app": longest.gap_app,
                **{
                    part: {
                        name: round(statistics.fmean([getattr(item, part)[name] for item in mine]), 2)
                        for name in getattr(mine[0], part)
                    }
                    for part in ("classes", "apps")
                },
                "policies": dict(mine[0].policies),
            }
        )
    return rows


def behind(found: Sequence[Found], mix: str, load: float) -> float:
    """The points by which ``plan`` is behind the best other policy on its worst seed."""
    each: Dict[int, Dict[str, float]] = {}
    for item in found:
        if (item.mix, item.load) == (mix, load) and item.way not in VARIANTS:
            each.setdefault(item.seed, {})[item.way] = item.percent
    return max([max(ways.values()) - ways["plan"] for ways in each.values()])


def judge(checks: Checks, rows: Sequence[Mapping[str, Any]], found: Sequence[Found]) -> None:
    """Critical requests in time; where there is enough time nearly as much as any other brings, else what of the value
    that edf for all loses, to the bound, is regained."""
    by_key = {(row["mix"], row["load"], row["way"]): row for row in rows}
    for (mix, load, way), row in by_key.items():
        if way != "plan":
            continue
        checks.at_least(
            f"{mix} at {load:g}: critical in time, %", row["classes"]["critical"], CRITICAL_PERCENT.get(load, 0.0)
        )
        if load < 1.0:
            checks.at_most(f"{mix} at {load:g}: points behind the best, worst seed", behind(found, mix, load), BEHIND)
            continue
        other = by_key.get((mix, load, "edf"))
        if other is not None and other["percent"] < row["bound"] - LOST:
            regained = (row["percent"] - other["percent"]) / (row["bound"] - other["percent"])
            checks.at_least(f"{mix} at {load:g}: of what edf for all loses, regained", regained, REGAINED)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", metavar="MIX", action="append", choices=MIXES, help=", ".join(MIXES))
    parser.add_argument("--loads", default=",".join([f"{load:g}" for load in LOADS]), help="default %(default)s")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="default %(default)s")
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by ';'; default %(default)s")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first seed (default %(default)s)")
    names = [mechanism.name for mechanism in MECHANISMS if not mechanism.instead]
    parser.add_argument("--without", metavar="MECHANISM", action="append", default=[], choices=names)
    parser.add_argument("--keep", metavar="FILE", default="", help="runs so far; delete it when code changed")
    args = parser.parse_args(argv)
    ways = [way for way in WAYS if way in args.ways.split(";")]
    loads = [float(load) for load in args.loads.split(",")]
    with ExitStack() as off:
        for mechanism in MECHANISMS:
            if mechanism.name in args.without:
                mechanism.switch_off(off)
        jobs = [
            Job(mix, load, way, seed)
            for seed in range(args.first, args.first + args.seeds)
            for mix in args.only or MIXES
            for load in loads
            for way in ways
        ]
        found = [item for _, item in runs.done(run, jobs, keep=args.keep, kind=Found)]
    rows = rows_of(found)
    print(f"{'mix':12}{'load':>5} {'way':16}{'value %':>8}{'critical':>9}{'normal':>8}{'background':>11}{'gap s':>7}")
    for row in rows:
        classes = [row["classes"].get(priority_class) for priority_class in ("critical", "normal", "background")]
        cells = ["      -" if share is None else f"{share:7.2f}" for share in classes]
        print(
            f"{row['mix']:12}{row['load']:5g} {row['way']:16}{row['percent']:8.2f}  {'  '.join(cells)}"
            f"{row['gap_s']:9.2f} {row['gap_app']}"
        )
    checks = checks_of("research/bench/mix.py", one_side=BEYOND)
    judge(checks, rows, found)
    seconds = sum([item.seconds for item in found])
    return checks.finish(args.json, {"seeds": args.seeds, "simulations took": f"{seconds:.0f} s"}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
