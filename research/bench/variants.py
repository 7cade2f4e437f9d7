"""Models with variants: what the plan's choice is worth beside fixed ones, and beside EdgeServing, in virtual time.

    python research/bench/variants.py [--worlds camera,cameras,...] [--loads .5,.7,1,1.3,2] [--first N] [--seeds N]
                                     [--policies plan,largest,...] [--seconds S] [--quick] [--json FILE]

Worlds (``research/common/variant_worlds.py``): a camera beside another app; two cameras with different least qualities;
bursts; a small variant that runs on a second lane, too; a variant that is slower and worse than another; three networks
with four exits each. ``plan`` chooses. ``largest`` and ``smallest`` serve that variant alone, under ``plan`` as well;
so do ``largest_edf`` and ``smallest_edf`` under ``edf``. ``edgeserving`` is the rule of the paper (arXiv 2605.05527),
``edgeserving_code`` and ``edgeserving_sum`` are two of its public code (``research/common/edgeserving.py``).

*value*: percent of what all requests are worth if each gets the best answer in time; an answer in time counts with its
quality. Every policy meets the same arrivals.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common import edgeserving
from common.replicated import BEYOND, checks_of
from common.variant_worlds import WORLDS, VariantWorld, fastest, scenario_of, worth_ms
from lib.checks import Checks, arguments

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import with_policy

LOADS = (0.5, 0.7, 1.0, 1.3, 2.0)
RIVALS = ("largest", "smallest", edgeserving.PAPER, edgeserving.CODE, edgeserving.CODE_SUM)
EQUAL = 0.3
"""Points by which two policies may differ that serve alike: where nothing is short, all of the best are equal."""


class Found(NamedTuple):
    """One run: percent of the value, and by app percent in time and mean quality."""

    world: str
    load: float
    policy: str
    seed: int
    value: float
    in_time: Dict[str, float]
    quality: Dict[str, float]


def run(world: VariantWorld, load: float, policy: str, seed: int, seconds: float) -> Found:
    """Simulate one policy on a world."""
    serves, _, kind = policy.partition("_")
    fixed = serves in ("largest", "smallest")
    scenario = scenario_of(world, load, seconds, serves if fixed else "variants")
    if policy != "plan" and (kind or not fixed):
        scenario = with_policy(scenario, kind if fixed else policy)
    ended = simulate(scenario, f"variants/{world.name}/{seed}", ()).world.ended
    asked = brought = 0.0
    in_time, quality = {}, {}
    for app in world.apps:
        mine = [item for item in ended if item.request.app == app.name]
        served = fastest(app) if serves == "smallest" else app.variants[0]
        got = [served[2] if fixed else item.quality for item in mine if item.in_time]
        asked += len(mine) * worth_ms(app)
        brought += sum(got) * worth_ms(app)
        in_time[app.name] = 100.0 * len(got) / max(1, len(mine))
        quality[app.name] = statistics.fmean(got) if got else 0.0
    return Found(world.name, load, policy, seed, 100.0 * brought / max(1e-9, asked), in_time, quality)


def show(found: Sequence[Found], policies: Sequence[str]) -> None:
    """A table of each world: a row for each load, a column for each policy."""
    for world in dict.fromkeys([item.world for item in found]):
        print(f"\n{world:10}" + "".join([f"{policy:>18}" for policy in policies]))
        for load in dict.fromkeys([item.load for item in found]):
            cells = []
            for policy in policies:
                mine = [item.value for item in found if (item.world, item.load, item.policy) == (world, load, policy)]
                cells.append(f"{statistics.fmean(mine):18.2f}")
            print(f"{load:10g}" + "".join(cells))


def check(found: Sequence[Found], policies: Sequence[str]) -> Checks:
    """The plan beside each of the others, in the mean of the seeds of each world and load."""
    checks = checks_of("research/bench/variants.py", one_side=BEYOND)
    means: Dict[Any, List[float]] = {}
    for item in found:
        means.setdefault((item.world, item.load, item.policy), []).append(item.value)
    for world, load, policy in means:
        rivals = [other for other in policies if other in RIVALS and (world, load, other) in means]
        if policy == "plan" and rivals:
            best = max([statistics.fmean(means[world, load, other]) for other in rivals])
            ahead = statistics.fmean(means[world, load, "plan"]) - best
            checks.at_least(f"{world} at {load:g}: ahead of the best other", ahead, -EQUAL)
    return checks


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__, "one seed of ten seconds")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="default %(default)s")
    parser.add_argument("--loads", default=",".join([f"{load:g}" for load in LOADS]), help="default %(default)s")
    parser.add_argument("--policies", default=",".join(("plan", *RIVALS)), help="default %(default)s")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="first seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="virtual ones (default %(default)s)")
    args = parser.parse_args(argv)
    seeds, seconds = (1, 10.0) if args.quick else (args.seeds, args.seconds)
    policies = args.policies.split(",")
    found = []
    for name in args.worlds.split(","):
        for load in [float(item) for item in args.loads.split(",")]:
            for seed in range(args.first, args.first + seeds):
                for policy in policies:
                    found.append(run(WORLDS[name], load, policy, seed, seconds))
                    print(found[-1], file=sys.stderr, flush=True)
    show(found, policies)
    checks = check(found, policies)
    return checks.finish(args.json, {"seeds": seeds, "seconds": seconds}, runs=[item._asdict() for item in found])


if __name__ == "__main__":
    raise SystemExit(main())
