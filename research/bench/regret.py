"""The regret of each policy against the best one: drawn worlds, every policy on the same arrivals, in virtual time.

    python research/bench/regret.py [--dev] [--only KIND] [--worlds N] [--policies edf,fifo,...] [--processes N]
                                   [--rounds N] [--json FILE]
    python research/bench/regret.py --world report/local/3      one world again, with what was drawn

The kinds of worlds are drawn by ``common/worlds.py``: models of one node, several apps, cameras, models of steps,
language models, also in trouble (``assistants``), unequal work, and pipelines of 2 to 7 nodes with forks, branches and
fan-outs, on one lane, with host functions, or with lanes of their own; Poisson and bursty arrivals, loads of 0.7 to
1.5, some of which change in the middle; known from a profile, from a few runs at start, or guessed. Nothing may be
tuned on the worlds that are reported: ``--dev`` draws others, as many as one likes, to look at. Ensembles (``--only
ensembles``, worlds of ``research/common/ensemble_worlds.py``) are run apart: their simple rules are others.

A policy's share is the value that it delivers in time: a request counts its app's mean lane time in full batches times
its value, as in the auction. Its *regret* is its distance to the best policy of the world, in points. ``RECOMMENDED``
is what ``docs/guide/policies/README.md`` says to take, the default; it must nowhere be more than one point behind the
best simple rule, and ahead of it in the mean. Every app of a world has the same policy, with default options.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import ensemble_worlds, runs
from common.ensemble_worlds import ALL_KINDS, KIND, rule_of, world_of
from common.replicated import BEYOND, checks_of
from common.worlds import KINDS, World
from lib.checks import Checks, arguments

from edgeserve.config.schema import DEFAULT_POLICY, PolicyConfig
from edgeserve.config.toml_files import parse_toml
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sim.run import sequences_of, setting_of, simulate
from edgeserve.sim.scenario import Scenario, with_policy

SIMPLE = ("edf", "fifo")
RECOMMENDED = DEFAULT_POLICY
POLICIES = ("edf", "fifo", RECOMMENDED, "clockwork", "orloj", "pard", "pard+")
WORLDS = 8
"""Worlds per kind."""
ROUNDS = 2
"""Arrivals drawn per world; the mean counts."""
REGRET = 1.0
"""In the mean, in points of the best of all policies."""

BEHIND = 1.0
"""Points by which the recommended policy may be behind the best simple rule."""
SHOWN = 3
"""Worst worlds shown per kind."""


def simple_of(kind: str) -> Sequence[str]:
    """The simple rules that the recommended policy of a kind of worlds is held against."""
    return ensemble_worlds.RIVALS if kind == KIND else SIMPLE


class Job(NamedTuple):
    """One policy on one world: what one process does at a time."""

    world: str
    policy: str
    rounds: int


class Share(NamedTuple):
    """The result of a run."""

    world: str
    policy: str
    percent: float  # of the value offered, delivered in time: mean over the rounds
    spread: float  # largest less smallest of the rounds
    offered: int
    seconds: float  # that the simulation took


class Row(NamedTuple):
    """A world and every policy's share of its value, in percent."""

    world: World
    offered: int
    percent: Dict[str, float]
    spread: Dict[str, float]

    def best(self, names: Sequence[str]) -> str:
        """The best of some policies; of equal ones the first."""
        return max(names, key=lambda name: self.percent[name])

    def behind(self, policy: str, others: Sequence[str]) -> float:
        """Points of a policy behind the best of others; negative where it is ahead."""
        return max([self.percent[name] for name in others]) - self.percent[policy]


def under(scenario: Scenario, policy: str) -> Scenario:
    """The scenario with every app under one policy, which may have options: ``pard+;plan=0.8;work=false``."""
    kind, *options = policy.split(";")
    if options:
        table = parse_toml("\n".join(options))
        scenario = replace(
            scenario, config=replace(scenario.config, policies={kind: PolicyConfig(kind, kind, dict(table))})
        )
    return with_policy(scenario, kind)


def scheduler_for(scenario: Scenario, world: World) -> Any:
    """A new scheduler that knows of a world's models what was drawn for it."""
    setting = setting_of(scenario.config, world.profiles)
    return build_scheduler(
        scenario.config,
        world.profiles,
        footprints=setting.footprints,
        measured=world.measured,
        resident=setting.resident,
        sequences=sequences_of(scenario),
    )


def run_job(job: Job) -> Share:
    """Simulate one policy on one world, once per round. The arrivals depend on the world and the round alone."""
    world = world_of(job.world)
    scenario = under(world.scenario, rule_of(world.scenario, job.policy))
    truths = ensemble_worlds.draw(job.world).truths if world.kind == KIND else {}
    found, offered, began = [], 0, time.perf_counter()
    for index in range(job.rounds):
        scheduler, took = scheduler_for(scenario, world), ensemble_worlds.Took()
        try:
            ended = simulate(
                scenario, f"{job.world}/{index}", world.profiles, scheduler=scheduler, on_step=took.step
            ).world.ended
        except Exception as error:
            raise RuntimeError(f"{job.policy} on world {job.world}, round {index}: {error!r}") from error
        found.append(ensemble_worlds.value_percent(ended, took, truths))
        offered += len(ended)
    return Share(
        job.world, job.policy, statistics.fmean(found), max(found) - min(found), offered, time.perf_counter() - began
    )


def run_all(names: Sequence[str], policies: Sequence[str], rounds: int, processes: int) -> Tuple[List[Row], float]:
    """The rows of these worlds, and the seconds that the simulations took together."""
    jobs = [Job(name, policy, rounds) for name in names for policy in policies]
    shares = [share for _, share in runs.done(run_job, jobs, processes)]
    rows = []
    for name in names:
        mine = [share for share in shares if share.world == name]
        rows.append(
            Row(
                world_of(name),
                mine[0].offered,
                {share.policy: share.percent for share in mine},
                {share.policy: share.spread for share in mine},
            )
        )
    return rows, sum([share.seconds for share in shares])


# --- what it means ----------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row], policies: Sequence[str]) -> None:
    """A table of regrets by kind, and the worlds in which the recommended policy is worst."""
    print(
        f"\nregret in points, mean (worst); * = recommended\n{'kind':>8} {'worlds':>6}"
        + "".join([f"{policy:>16}" for policy in policies])
    )
    for kind in [*ALL_KINDS, "all"]:
        of_kind = [row for row in rows if kind in (row.world.kind, "all")]
        if not of_kind:
            continue
        cells = []
        for policy in policies:
            regrets = [row.behind(policy, list(row.percent)) for row in of_kind]
            mark = "*" if policy == RECOMMENDED else " "
            cells.append(f"{statistics.fmean(regrets):7.2f} ({max(regrets):5.1f}){mark}")
        print(f"{kind:>8} {len(of_kind):6}" + "".join(cells))
    policy = RECOMMENDED
    for title, among in (("the best simple rule", ()), ("the best of all", policies)):
        print(f"\nfurthest behind {title}:")
        for kind in ALL_KINDS:
            of_kind = [row for row in rows if row.world.kind == kind and policy in row.percent]
            others = [name for name in among or simple_of(kind) if of_kind and name in of_kind[0].percent]
            if not others:
                continue
            for row in sorted(of_kind, key=lambda row: -row.behind(policy, others))[:SHOWN]:
                best = row.best(others)
                if row.behind(policy, others) > 0:
                    print(
                        f"  {row.world.name:18} {policy:>10} {row.percent[policy]:6.2f}  {best:>10} "
                        f"{row.percent[best]:6.2f}  load {row.world.load:.2f}, {', '.join(row.world.tags)}"
                    )


def judge(checks: Checks, rows: Sequence[Row]) -> None:
    """The recommended policy beside the simple rules, by kind and in all; of what did not run nothing is said."""
    ahead, regrets, policy = [], [], RECOMMENDED
    for kind in ALL_KINDS:
        of_kind = [row for row in rows if row.world.kind == kind]
        if not of_kind or not {policy, *simple_of(kind)} <= set(of_kind[0].percent):
            continue
        others = simple_of(kind)
        worst = max(of_kind, key=lambda row: row.behind(policy, others))
        checks.at_most(
            f"{kind}: points of {policy} behind the best of {', '.join(others)}, worst world ({worst.world.name})",
            worst.behind(policy, others),
            BEHIND,
        )
        checks.at_least(
            f"{kind}: points of {policy} ahead of the best of {', '.join(others)}, mean",
            -statistics.fmean([row.behind(policy, others) for row in of_kind]),
            0.0,
        )
        ahead += [-row.behind(policy, others) for row in of_kind]
        if set(POLICIES) <= set(of_kind[0].percent):
            regret = [row.behind(policy, POLICIES) for row in of_kind]
            checks.at_most(f"{kind}: regret of {policy}, worst world", max(regret), BEHIND)
            regrets += regret
    if regrets:
        checks.at_most("all: regret of the recommended policy, mean", statistics.fmean(regrets), REGRET)
    if ahead:
        checks.at_least("all: points of the recommended policy ahead, mean", statistics.fmean(ahead), 0.0)


def describe(row: Row) -> None:
    """All of one world: what was drawn, and every policy's share."""
    world = row.world
    print(f"{world.name}: load {world.load}, {', '.join(world.tags)}; {row.offered} requests")
    for model in world.scenario.config.models.values():
        truth = world.scenario.truths[model.name]
        times = ", ".join([f"{size}: {time_ns / 1e6:.1f}" for size, time_ns in truth.times.items()])
        told = f"; expected {model.expected[model.batch[0]] / 1e6:.1f}" if model.expected else ""
        extra = ", ".join(
            [
                f"{name} {getattr(truth, name)}"
                for name in ("hint", "says", "parts", "routes", "steps")
                if getattr(truth, name)
            ]
        )
        print(f"  model {model.name} on {', '.join(model.lanes)}: ms by size {times}{told}  {extra}")
    for app in world.scenario.config.apps.values():
        nodes = ", ".join([f"{node.name}<{'+'.join(node.after or ())}" for node in app.nodes])
        print(f"  app {app.name}: SLO {app.slo_ns / 1e6:.1f} ms, value {app.value:g}, {nodes}")
    for item in world.scenario.workloads:
        print(
            f"  workload {item.name}: {item.kind}, {item.rate:.1f}/s, from {item.start_ns / 1e9:.1f} s, "
            f"streams {item.streams}, hints {list(item.hints)}"
        )
    for policy, percent in sorted(row.percent.items(), key=lambda pair: -pair[1]):
        print(f"  {policy:12} {percent:6.2f}  (rounds differ by {row.spread[policy]:.2f})")


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--dev", action="store_true", help="worlds to develop on, not the reported ones")
    parser.add_argument("--seed", help="worlds of another seed (default report; dev with --dev)")
    parser.add_argument(
        "--only",
        metavar="KIND",
        action="append",
        choices=ALL_KINDS,
        help=f"worlds of this kind only: {', '.join(ALL_KINDS)}; several times for several",
    )
    parser.add_argument("--worlds", type=int, default=WORLDS, metavar="N", help="worlds per kind (default %(default)s)")
    parser.add_argument(
        "--policies",
        help="such as 'edf,plan,pard+;plan=0.8': the last with an option (default: all of the kind)",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="arrivals per world (default %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="default %(default)s")
    parser.add_argument("--world", metavar="NAME", action="append", help="this world again, such as report/local/3")
    args = parser.parse_args(argv)
    of_ensembles = args.only == [KIND] or bool(args.world) and args.world[0].split("/")[1] == KIND
    if KIND in (args.only or ()) and not of_ensembles:
        parser.error(f"--only {KIND} stands alone: its policies and simple rules are others")
    policies = (
        tuple(args.policies.split(",")) if args.policies else ensemble_worlds.POLICIES if of_ensembles else POLICIES
    )
    seed = args.seed or ("dev" if args.dev else "report")
    names = args.world or [f"{seed}/{kind}/{index}" for kind in args.only or KINDS for index in range(args.worlds)]
    rows, seconds = run_all(names, policies, args.rounds, args.processes)
    if args.world:
        for row in rows:
            describe(row)
        return 0
    show(rows, policies)
    checks = checks_of("research/bench/regret.py", one_side=BEYOND)
    (ensemble_worlds.judge if of_ensembles else judge)(checks, rows)
    return checks.finish(
        args.json,
        {
            "seed": seed,
            "worlds": len(rows),
            "rounds": args.rounds,
            "policies": list(policies),
            "simulations took": f"{seconds:.0f} s",
        },
        rows=[
            {
                "world": row.world.name,
                "load": row.world.load,
                "tags": row.world.tags,
                "offered": row.offered,
                "percent": {name: round(value, 3) for name, value in row.percent.items()},
            }
            for row in rows
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
