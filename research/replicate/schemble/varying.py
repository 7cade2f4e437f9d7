"""Ensembles whose execution times vary, in virtual time: right answers and missed deadlines per policy and load.

    python research/replicate/schemble/varying.py [--quick] [--first-seed N] [--seeds N] [--json FILE]

The ensemble of ``run.py`` with models of 3, 9 and 15 ms on one lane and a node that scores on another one;
every duration varies by a quarter, and 15 % of the batches take up to ten times as long, drawn evenly. Arrivals come in
bursts, 150 ms before their deadlines. Load 1 is the rate at which all models for every request fill the lane as they
are profiled. ``plan`` is to be at most two points behind the best other policy.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common.replicated import OURS, checks_of
from lib.checks import Checks, arguments

from replicate.schemble import ensemble, world
from replicate.schemble.world import Result, System

SCRIPT = "research/replicate/schemble/varying.py"
ITEMS = 4000
TIMES_MS = dict(zip(ensemble.MODELS, (3.0, 9.0, 15.0)))
SCORE_MS = 0.065 * sum(TIMES_MS.values())  # the share of the ensemble's time that the paper's predictor takes
DEADLINE_MS = 150
RATE = 1000 / sum(TIMES_MS.values())  # load 1
LOADS = (0.5, 1.0, 2.0, 4.0, 5.0, 7.0)
NOISE, SLOW, SLOW_FACTOR = 0.25, 0.15, 10.0
BEHIND = 2.0
"""Points by which ``plan`` may be behind, as between.py."""

SYSTEMS = {
    "all models": System("ensemble_static"),
    "fastest only": System("ensemble_static", {"pick": "static", "models": ["m0"]}),
    "edf, partial": System("edf"),
    "schemble": System("schemble"),
    "plan": System("plan"),
}


def scenario(system: System, trace: str, profile: Any, lasts_s: float) -> Dict[str, Any]:
    """The table of one run."""
    table = world.scenario_of(system, trace, profile, DEADLINE_MS, lasts_s, on_late="partial", shared=True)
    for model, time_ms in {**TIMES_MS, "score": SCORE_MS}.items():
        table["model"][model]["expected"] = {"1": f"{time_ms:.3f}ms"}
    table["run"]["noise"] = NOISE
    table["faults"] = {"slow": SLOW, "slow_factor": SLOW_FACTOR}
    return table


def run_all(seeds: Sequence[int], seconds: float, loads: Sequence[float], checks: Checks) -> Dict[str, Any]:
    """Every load and policy: right answers in time and missed deadlines, percent of all requests."""
    found: Dict[str, Any] = {}
    profile = ensemble.fit(ensemble.history())
    print(f"{'right in time / missed, %':28}" + "".join(f"{key:>16}" for key in SYSTEMS))
    with tempfile.TemporaryDirectory() as directory:
        for load in loads:
            row: Dict[str, Dict[str, float]] = {}
            for key, system in SYSTEMS.items():
                runs: List[Result] = []
                for seed in seeds:
                    items = ensemble.draw_items(ITEMS, seed)
                    arrivals = world.steady(seed, ITEMS, RATE * load, seconds)
                    path, lasts_s = world.trace_path(directory, arrivals, items, "predicted", f"{seed}-{load}")
                    runs.append(world.run(scenario(system, path, profile, lasts_s), items, seed))
                row[key] = {
                    "right": 100 * sum(run.accuracy for run in runs) / len(runs),
                    "missed": 100 * sum(run.missed for run in runs) / len(runs),
                }
            found[f"{load:g}"] = row
            print(
                f"{f'load {load:g}':28}"
                + "".join(f"{value['right']:9.1f} / {value['missed']:4.1f}" for value in row.values()),
                flush=True,
            )
            checks.at_least(
                f"load {load:g}: plan against the best other",
                row["plan"]["right"] - max(value["right"] for key, value in row.items() if key != "plan"),
                -BEHIND,
                OURS,
            )
    return found


def main() -> int:
    parser = arguments(__doc__, quick="one seed, two loads, a third of the time")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    seeds = list(range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)))
    seconds = 5.0 if args.quick else 15.0
    ensemble.need_digits()
    checks = checks_of(SCRIPT, args.quick)
    results = run_all(seeds, seconds, LOADS[1:3] if args.quick else LOADS, checks)
    return checks.finish(
        args.json,
        {"first_seed": seeds[0], "seeds": len(seeds), "seconds": seconds},
        results=results,
    )


if __name__ == "__main__":
    sys.exit(main())
