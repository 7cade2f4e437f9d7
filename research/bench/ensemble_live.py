"""The digits ensemble live, in bursts, at several loads on one processor lane: who misses how many deadlines.

    python research/bench/ensemble_live.py [--quick] [--loads 0.9 1.5 2.0] [--rounds N] [--seconds N] [--json FILE]

Build the example first (``examples/ensemble/README.md``), and leave the machine alone while this runs: base models take
a few milliseconds. Load 1 is what the lane does with all three models for every request, one by one. Every round draws
arrivals that all policies get in turns; the median of the rounds counts. Four minutes with the default options.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from edgeserve import compiled
from edgeserve.config.loading import load_config

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "ensemble"))
compare = importlib.import_module("compare")

SCRIPT = "research/bench/ensemble_live.py"
POLICIES = ("original", "static, the fastest", "plan")
LOADS = (0.9, 1.5, 2.0)
FEWER = 5.0
"""How many times fewer deadlines than the original ensemble plan is to miss."""

AGREED = 0.95
"""Share of its answers that are those of all models."""


def of_load(
    config: Any, rate: float, rounds: int, seconds: float, seed: int, images: Any, truth: Any
) -> Dict[str, List[Any]]:
    """Every policy under the same arrivals, round by round."""
    found: Dict[str, List[Any]] = {name: [] for name in POLICIES}
    for number in range(rounds):
        due = compare.arrivals(rate, seconds, seed * 100 + number)
        for name in POLICIES:
            found[name].append(compare.run(config, compare.POLICIES[name], due, truth, images))
    return found


def main() -> int:
    parser = arguments(__doc__, quick="one round of 4 s per load")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    rounds, seconds = (1, 4.0) if args.quick else (args.rounds, args.seconds)
    config = load_config(os.path.join(compare.HERE, "edge.toml"))
    images = compare.asked(compare.POOL, args.seed).images
    truth = compare.labels_of_all(config, images)
    whole = compare.whole_rate(config)
    checks, results = Checks(SCRIPT), {}
    print(
        f"{whole:.0f} requests/s with all models; deadline {config.apps['digits'].slo_ns / 1e6:g} ms\n"
        f"{'load, policy':<28}{'missed':>9}{'agree':>9}{'in all':>9}{'models':>9}"
    )
    for load in args.loads:
        found = of_load(config, load * whole, rounds, seconds, args.seed, images, truth)
        medians = {
            name: compare.Outcome(*[statistics.median(column) for column in zip(*outcomes)])
            for name, outcomes in found.items()
        }
        for name, row in medians.items():
            print(
                f"{f'{load:g}, {name}':<28}{row.missed:>9.1%}{row.agreed:>9.1%}{row.accuracy:>9.1%}{row.models:>9.2f}",
                flush=True,
            )
        results[f"{load:g}"] = {name: [row._asdict() for row in outcomes] for name, outcomes in found.items()}
        one = 1.0 / (load * whole * seconds)  # fewer than one miss cannot be told from none
        plus, original = medians["plan"], medians["original"]
        checks.at_least(
            f"load {load:g}: deadlines that the original ensemble misses for one of plan",
            original.missed / max(one, plus.missed),
            FEWER,
        )
        checks.at_least(f"load {load:g}: share of plan's answers that are those of all models", plus.agreed, AGREED)
    return checks.finish(
        args.json,
        {
            "core": compiled.running().kind,
            "rate at load 1": f"{whole:.0f}/s",
            "rounds": rounds,
            "seconds": seconds,
            "seed": args.seed,
        },
        results=results,
    )


if __name__ == "__main__":
    sys.exit(main())
