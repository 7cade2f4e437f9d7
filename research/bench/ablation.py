"""The value of each mechanism of the scheduler: it is switched off, and the same worlds are simulated again.

    python research/bench/ablation.py [--only KIND] [--without MECHANISM] [--worlds N] [--rounds N] [--processes N]
                                     [--dev] [--keep FILE] [--json FILE]

Three families of worlds are drawn: one kind of work each (``research/common/worlds.py``), ensembles
(``ensemble_worlds.py``), and unlike apps on one device (``mixed_worlds.py``), where clients wait for their answers. In
all of them the machine's own costs are charged as they are assumed of a machine that was not measured.

A mechanism's row says how many points of the value offered are lost without it, by kind of world: the mean over the
worlds, paired (the same world, the same arrivals). A mechanism that never did anything in a run cannot have changed it:
such runs are not repeated, and count 0. What has no kind with half a point does not earn its place
(``docs/research/ablation.md``).

``--keep`` appends each run to a file and goes on from what the file has. Mechanisms are switched off by replacing
methods and constants, so the interpreted core runs.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Sequence, Set

os.environ["EDGESERVE_CORE"] = "interpreted"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import ensemble_worlds, mixed_worlds, runs, worlds
from common.ablated import MECHANISMS
from common.replicated import BEYOND, checks_of
from lib.checks import arguments

from bench import regret
from edgeserve.sim.host import NOT_MEASURED
from edgeserve.sim.run import simulate

KINDS = (*worlds.KINDS, ensemble_worlds.KIND, *mixed_worlds.KINDS)
WORLDS, ROUNDS = 8, 2
EARNS = 0.5
"""Points that a mechanism must be worth in some kind of worlds."""


class Job(NamedTuple):
    """One world, with all mechanisms (``""``) or without one: what one process does at a time."""

    world: str
    without: str
    rounds: int


class Found(NamedTuple):
    """The result of a run: percent of the value by round, which mechanisms acted, and the seconds that it took."""

    percent: Sequence[float]
    acted: Sequence[str]
    seconds: float


def run_job(job: Job) -> Found:
    """Simulate one world, once per round."""
    began = time.perf_counter()
    gc.disable()  # a run is short, and takes a fifth less without
    acted: Set[str] = set()
    by_name = {mechanism.name: mechanism for mechanism in MECHANISMS}
    percent = []
    for index in range(job.rounds):
        with ExitStack() as stack:
            if job.without:
                by_name[job.without].switch_off(stack)
            else:
                for mechanism in MECHANISMS:
                    mechanism.watch(stack, acted, {regret.RECOMMENDED})
            percent.append(value_percent(job.world, index))
    gc.collect()
    return Found(percent, sorted(acted), time.perf_counter() - began)


def value_percent(name: str, index: int) -> float:
    """Percent of a world's value that is delivered in time."""
    kind = name.split("/")[1]
    truths: Mapping[str, ensemble_worlds.Truth] = {}
    if kind in mixed_worlds.KINDS:
        world, truths = mixed_worlds.draw(name)
        scenario = world.scenario
    else:
        world = ensemble_worlds.world_of(name)
        if kind == ensemble_worlds.KIND:
            truths = ensemble_worlds.draw(name).truths
        scenario = regret.under(world.scenario, regret.RECOMMENDED)
    took = ensemble_worlds.Took()
    ended = simulate(
        scenario,
        f"{name}/{index}",
        world.profiles,
        scheduler=regret.scheduler_for(scenario, world),
        measured=NOT_MEASURED,
        on_step=took.step if truths else None,
    ).world.ended
    return ensemble_worlds.value_percent(ended, took, truths)


class Loss(NamedTuple):
    """Points that one kind of worlds loses without a mechanism: mean, the worst and the best world, and in how many
    worlds it acted at all."""

    mean: float
    most: float
    least: float
    acted: int


Runs = Mapping[Job, Found]
Table = Dict[str, Dict[str, Loss]]


def table_of(base: Runs, without: Runs, names: Sequence[str]) -> Table:
    """Mechanism -> kind -> what is lost."""
    whole = {job.world: statistics.fmean(item.percent) for job, item in base.items()}
    rest = {(job.without, job.world): statistics.fmean(item.percent) for job, item in without.items()}
    table: Table = {}
    for name in names:
        by_kind: Dict[str, List[float]] = {}
        acted: Dict[str, int] = {}
        for world, percent in whole.items():
            kind = world.split("/")[1]
            by_kind.setdefault(kind, []).append(percent - rest.get((name, world), percent))
            acted[kind] = acted.get(kind, 0) + ((name, world) in rest)
        table[name] = {
            kind: Loss(statistics.fmean(lost), max(lost), min(lost), acted[kind]) for kind, lost in by_kind.items()
        }
    return table


def show(table: Table, kinds: Sequence[str]) -> None:
    """Points lost, by kind; ``.`` where it never acted."""
    print("\npoints of the value lost without it, mean" + " " * 3 + "".join([f"{kind[:7]:>8}" for kind in kinds]))
    for name, row in table.items():
        cells = [f"{row[kind].mean:8.2f}" if row[kind].acted else f"{'.':>8}" for kind in kinds]
        mark = "*" if max([row[kind].mean for kind in kinds]) >= EARNS else " "
        print(f"{mark} {name:42}" + "".join(cells))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dev", action="store_true", help="worlds to develop on, not the reported ones")
    parser.add_argument("--only", metavar="KIND", action="append", choices=KINDS, help=", ".join(KINDS))
    names = [mechanism.name for mechanism in MECHANISMS]
    parser.add_argument("--without", metavar="MECHANISM", action="append", choices=names, help=", ".join(names))
    parser.add_argument("--worlds", type=int, default=WORLDS, metavar="N", help="worlds per kind (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="arrivals per world (default %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", metavar="FILE", default="", help="runs so far; delete it when code changed")
    args = parser.parse_args(argv)
    kinds = tuple(args.only or KINDS)
    seed = "dev" if args.dev else "report"
    drawn = [f"{seed}/{kind}/{index}" for kind in kinds for index in range(args.worlds)]
    chosen = args.without or names

    def ran(jobs: Sequence[Job]) -> Runs:
        return dict(runs.done(run_job, jobs, args.processes, args.keep, Found))

    base = ran([Job(world, "", args.rounds) for world in drawn])
    jobs = [Job(job.world, name, args.rounds) for job, item in base.items() for name in chosen if name in item.acted]
    print(f"{len(jobs)} runs of {len(base) * len(chosen)} have a mechanism to switch off", file=sys.stderr, flush=True)
    without = ran(jobs)
    table = table_of(base, without, chosen)
    show(table, kinds)
    seconds = sum([item.seconds for item in [*base.values(), *without.values()]])
    checks = checks_of("research/bench/ablation.py", one_side=BEYOND)
    for name, row in table.items():
        checks.at_least(f"{name}: points of its best kind", max([loss.mean for loss in row.values()]), EARNS)
    return checks.finish(
        args.json,
        {"seed": seed, "worlds": len(drawn), "rounds": args.rounds, "simulations took": f"{seconds:.0f} s"},
        base={job.world: [round(percent, 3) for percent in item.percent] for job, item in base.items()},
        lost={
            name: {
                kind: {
                    "mean": round(loss.mean, 3),
                    "most": round(loss.most, 3),
                    "least": round(loss.least, 3),
                    "acted": loss.acted,
                }
                for kind, loss in row.items()
                if loss.acted
            }
            for name, row in table.items()
        },
    )


if __name__ == "__main__":
    sys.exit(main())
