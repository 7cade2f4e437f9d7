"""Mixes and worlds that are drawn by seed and kept for reports, under any policy, in virtual time.

    python research/bench/heldout.py [--mixes home,robot,workstation] [--loads 0.7,1,1.3] [--first N] [--seeds N]
                                    [--policies edf,plan,module:Class] [--than POLICY] [--seconds S]
                                    [--charge [FACTOR]] [--hash] [--keep FILE] [--json FILE]
    python research/bench/heldout.py --world NAME [--world NAME] [--seed N] ...      worlds of one difficulty each

``--world`` draws from ``research/common/heldout_worlds.py`` in place of the mixes; ``--seed`` runs one seed alone.

Seeds below 41000 are there to develop on. Those from 41000 are kept for reports: nothing may be tuned on them, and
they are run once the code that is reported stands.

The mixes (``research/common/heldout_mixes.py``) have shapes of their own with each seed. All policies of a seed see the
same arrivals, and serve all apps of a mix, with default options; ``plan`` is what apps get that name no policy.

* *value*: a request in time counts its app's mean lane time in full batches times its value, the same for every request
  of an app, of any size; an ensemble's answer as much less as the models that took part agree less often with all of
  them. In percent of the requested value.
* *critical*: percent in time of the critical app that has least, mean and worst seed.
* *regained*: of the value that the policy of ``--than`` loses (``edf``), the part that is not lost.
* *least*: the least percent in time of an app that is like others: not critical, and of value 1.
* *us*: processor time of the scheduler per request, and how many times that of ``edf`` in the same call.

As in ``mix.py``, 20 us for each step and 15 us for each event are charged to the virtual clock, so that runs are equal
whenever they are repeated. With ``--charge`` the processor time of each step is charged instead, times a factor.

A policy of one's own (``module:Class``) is imported from the Python path.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import runs
from common.ensemble_worlds import Took
from common.heldout_apps import SECONDS, Mix
from common.heldout_mixes import MIXES
from common.heldout_worlds import WORLDS, draw_any
from common.tree_costs import Timed
from lib.checks import arguments

from bench.regret import under
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES as KINDS
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sim.report import report_of
from edgeserve.sim.run import kinds_of, make_world, sequences_of, setting_of, told_times

POLICIES = ("edf", "plan")
FIRST = 1
NEVER_NS = 2**62
"""A scheduler whose own steps take long gives up late, which the world's reference model would call a mistake."""

KEPT = 41_000
"""From this seed on, seeds are kept for reports."""


class Job(NamedTuple):
    """One policy on one mix."""

    mix: str
    load: float
    policy: str
    seed: int
    seconds: float
    charge: float


class Found(NamedTuple):
    """The result of a run: percent of the value, in time by app in percent, which apps are critical and which like
    others, requests, launches and their digest, and microseconds of the scheduler per request."""

    mix: str
    load: float
    policy: str
    seed: int
    seconds: float
    charge: float
    value: float
    apps: Mapping[str, float]
    critical: Sequence[str]
    equal: Sequence[str]
    requests: int
    launches: int
    digest: str
    us: float

    def least(self, names: Sequence[str]) -> float:
        """The least in time of some apps; 100 of none."""
        return min([self.apps.get(name, 100.0) for name in names] + [100.0])


class Charged(Timed):
    """A scheduler whose steps take their processor time in the world, times a factor."""

    def __init__(self, scheduler: Any, factor: float) -> None:
        super().__init__(scheduler)
        self._factor = factor
        self._told_s = 0.0

    def thought_ns(self) -> int:
        """The time of the last step."""
        took_s, self._told_s = self.took_s - self._told_s, self.took_s
        return round(took_s * self._factor * 1e9)


class Launches:
    """Counts and digests the batches that a scheduler launches."""

    def __init__(self) -> None:
        self.count = 0
        self.sha1 = hashlib.sha1()

    def step(self, now_ns: int, events: Sequence[Any], actions: Sequence[Any]) -> None:
        """One step of the scheduler."""
        for action in actions:
            if isinstance(action, RunBatch):
                self.count += 1
                jobs = [(job.request_id, job.node, job.part) for job in action.jobs]
                self.sha1.update(repr((now_ns, action.lane, action.model, action.size, jobs)).encode())


def run(mix: Mix, policy: str, seconds: float, charge: float = 0.0) -> Found:
    """Simulate one policy on a mix."""
    kind = policy.partition(";")[0]
    if ":" in kind and kind not in KINDS:
        module, _, name = kind.partition(":")
        KINDS[kind] = getattr(importlib.import_module(module), name)
    scenario = under(mix.scenario, policy)
    if charge:
        scenario = replace(scenario, run=replace(scenario.run, step_cost_ns=0, event_cost_ns=0))
    setting = setting_of(scenario.config, (), scenario.run.cold)
    built = build_scheduler(
        scenario.config,
        (),
        footprints=setting.footprints,
        measured=told_times(scenario),
        resident=setting.resident,
        sequences=sequences_of(scenario),
    )
    world = make_world(scenario, f"heldout/{mix.name}/{mix.seed}", (), setting=setting)
    timed: Any = Charged(built, charge) if charge else Timed(built)
    if charge:
        world.reference_model.held_up_ns = NEVER_NS
    world.thought_ns = timed.thought_ns
    world.policies = kinds_of(scenario)
    bits = {node: 1 << index for truth in mix.truths.values() for index, node in enumerate(truth.nodes)}
    took, launches = Took(lambda node: bits.get(node, 0)), Launches()

    def tap(now_ns: int, events: Sequence[Any], actions: Sequence[Any]) -> None:
        took.step(now_ns, events, actions)
        launches.step(now_ns, events, actions)

    gc.collect()
    gc.disable()
    try:
        drive(timed, world, (tap,))
        world.reference_model.closed(world.now_ns)
    finally:
        gc.enable()
    report = report_of([world], scenario.run.warmup_ns, scenario.run.duration_ns)
    apps = scenario.config.apps
    return Found(
        mix.name,
        mix.load,
        policy,
        mix.seed,
        seconds,
        charge,
        value_percent(mix, world.ended, took, scenario.run.warmup_ns),
        {name: 100.0 * app.finish_rate for name, app in report.apps.items()},
        [name for name, app in apps.items() if app.priority_class == "critical"],
        [name for name, app in apps.items() if app.priority_class == "normal" and app.value == 1.0],
        len(world.ended),
        launches.count,
        launches.sha1.hexdigest(),
        1e6 * timed.took_s / max(1, len(world.ended)),
    )


def run_job(job: Job) -> Found:
    """Draw the mix and simulate the policy on it."""
    return run(draw_any(job.mix, job.seed, job.load, job.seconds), job.policy, job.seconds, job.charge)


def value_percent(mix: Mix, ended: Sequence[Any], took: Took, from_ns: int) -> float:
    """Value in time over requested value, of the requests that came from a time on."""
    worth = {name: mix.needs_ms[name] * app.value for name, app in mix.scenario.config.apps.items()}
    brought = asked = 0.0
    for item in ended:
        app = item.request.app
        if item.request.arrival_ns < from_ns:
            continue
        asked += worth[app]
        if item.in_time:
            part = took.part.get(item.request.id, 0)
            share = mix.truths[app].worth(item.request.hints["difficulty"], part) if app in mix.truths else 1.0
            brought += worth[app] * share
    return 100.0 * brought / max(1e-9, asked)


# --- what it says -----------------------------------------------------------------------------------------------------


def rows_of(found: Sequence[Found], than: str = "edf") -> List[Dict[str, Any]]:
    """Means over the seeds, by mix, load and policy; ``than``: the policy of whose loss a part is regained."""
    by_key = {(item.mix, item.load, item.policy, item.seed): item for item in found}
    rows = []
    for mix, load, policy in dict.fromkeys([(item.mix, item.load, item.policy) for item in found]):
        mine = [item for item in found if (item.mix, item.load, item.policy) == (mix, load, policy)]
        old = [by_key.get((mix, load, than, item.seed)) for item in mine]
        edf = [by_key.get((mix, load, "edf", item.seed)) for item in mine]
        values = [item.value for item in mine]
        critical = [item.least(item.critical) for item in mine]
        names = list(dict.fromkeys([name for item in mine for name in item.apps]))
        rows.append(
            {
                "mix": mix,
                "load": load,
                "policy": policy,
                "seeds": [item.seed for item in mine],
                "value": statistics.fmean(values),
                "values": values,
                "critical": statistics.fmean(critical) if mine[0].critical else None,
                "critical_worst": min(critical) if mine[0].critical else None,
                "regained": regained(values, [item.value for item in old if item is not None]),
                "regained_each": [
                    regained([item.value], [other.value] if other is not None else []) for item, other in zip(mine, old)
                ],
                "least": min([item.least(item.equal) for item in mine]) if mine[0].equal else None,
                "us": statistics.fmean([item.us for item in mine]),
                "to_edf": (
                    sum([item.us for item in mine]) / sum([item.us for item in edf if item is not None])
                    if None not in edf
                    else None
                ),
                "apps": {
                    name: statistics.fmean([item.apps[name] for item in mine if name in item.apps]) for name in names
                },
                "hashes": [item.digest for item in mine],
                "launches": [item.launches for item in mine],
            }
        )
    return rows


def regained(values: Sequence[float], old: Sequence[float]) -> float | None:
    """The part of what another policy loses that is not lost, in percent; None where it lost nothing or did not run."""
    if len(old) != len(values) or statistics.fmean(old) >= 100.0 - 1e-9:
        return None
    return 100.0 * (statistics.fmean(values) - statistics.fmean(old)) / (100.0 - statistics.fmean(old))


def cell(value: float | None, width: int, digits: int = 1) -> str:
    """A number, or a dash."""
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def show(rows: Sequence[Mapping[str, Any]], hashes: bool) -> None:
    """The table, and in time by app."""
    width = max([len(row["policy"]) for row in rows] + [8])
    mixes = max([len(row["mix"]) for row in rows] + [8])
    print(
        f"{'mix':{mixes}} {'load':>4} {'policy':{width}} {'value':>6} {'crit':>6} {'worst':>6} {'regained':>8}"
        f" {'least':>6} {'us':>6} {'x edf':>6}  regained by seed"
    )
    for row in rows:
        each = " ".join([cell(item, 1, 0) for item in row["regained_each"]])
        print(
            f"{row['mix']:{mixes}} {row['load']:4g} {row['policy']:{width}} {row['value']:6.2f}"
            f" {cell(row['critical'], 6)} {cell(row['critical_worst'], 6)}"
            f" {cell(row['regained'], 8)} {cell(row['least'], 6)} {row['us']:6.0f}"
            f" {cell(row['to_edf'], 6, 2)}  {each}"
        )
        print(f"{'':{mixes + width + 6}} {', '.join([f'{app} {share:.0f}' for app, share in row['apps'].items()])}")
        if hashes:
            for seed, digest, launches in zip(row["seeds"], row["hashes"], row["launches"]):
                print(f"{'':{mixes + width + 6}} seed {seed}: {launches} launches, sha1 {digest}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--mixes", default=",".join(MIXES), help="default %(default)s")
    parser.add_argument("--world", metavar="NAME", action="append", choices=WORLDS, help=", ".join(WORLDS))
    parser.add_argument("--seed", type=int, metavar="N", help="this seed alone")
    parser.add_argument("--loads", default="1", help="such as 0.7,1,1.3 (default %(default)s)")
    parser.add_argument("--first", type=int, default=FIRST, metavar="N", help="first seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default %(default)s")
    parser.add_argument("--than", default="edf", metavar="POLICY", help="of whose loss a part is regained: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual ones (default %(default)s)")
    parser.add_argument("--charge", type=float, nargs="?", const=1.0, default=0.0, metavar="FACTOR")
    parser.add_argument("--hash", action="store_true", help="print the digest of each run's launches")
    parser.add_argument("--keep", metavar="FILE", default="", help="runs so far; delete it when code changed")
    args = parser.parse_args(argv)
    names = args.world or args.mixes.split(",")
    for name in names:
        if name not in MIXES and name not in WORLDS:
            parser.error(f"no mix {name!r}: expected {', '.join(MIXES)}")
    first, seeds = (args.first, args.seeds) if args.seed is None else (args.seed, 1)
    jobs = [
        Job(name, load, policy, seed, args.seconds, args.charge)
        for seed in range(first, first + seeds)
        for name in names
        for load in [float(item) for item in args.loads.split(",")]
        for policy in args.policies.split(",")
    ]
    found = [item for _, item in runs.done(run_job, jobs, keep=args.keep, kind=Found)]
    rows = rows_of(found, args.than)
    show(rows, args.hash)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "runs": [item._asdict() for item in found]}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
