"""Three apps on one lane: what the auction's rule is worth (``docs/research/arbiter.md``), in virtual time.

    python research/bench/arbiter.py [--quick] [--batch SHARE] [--json FILE]

Vision frames (3 + 2k ms, k <= 8, 40 ms SLO, 35 % of the load), dynamic queries (12 + 4k ms, k <= 16, 150 ms, 35 %) and
turns of a language model (20 steps of 8 ms, interruptible between them, 1500 ms, 30 %), gamma-modulated arrivals
(windows of 500 ms, cv 0.5), 3 % noise, 30 s, each app under a policy of its own. Reported: the share of the offered
value delivered in time, and the worst app's finish rate, beside the best rule of the table that the rule was chosen
from.

What that table calls load 1 is not written down. A request counts here, for the load and for the value that is
reported, the lane time it takes in a batch of three quarters of the largest (frames 2.5 ms, queries 5 ms, turns
160 ms): of the readings tried it is the one under which fixed priority, round robin, EDF and value per time, in a
separate simulation with apps as simple as the table's, come nearest to their rows. ``--batch 1`` counts full batches
(5 to 8 % more work at the same load), ``--batch 0.5`` half ones. The scheduler's own currency is what it always is.

The table's arrivals are not ours: docs/research/arbiter.md has what the same rule can reach on ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from edgeserve.sim.report import Report, report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import Scenario, parse_scenario

BEST = {0.7: (0.967, 0.944), 0.9: (0.909, 0.844), 1.0: (0.884, 0.793), 1.2: (0.762, 0.674)}
"""Load -> (value in time, worst app) of the best rule of docs/research/arbiter.md, three seeds of 30 s."""

TOLERANCE = 0.01
NOISE = 0.03
FIRST_SEED = 1000  # the reported seeds; the rule was looked at on seeds below 100


BATCH = 0.75  # of the largest: in such a batch a request takes the lane time that it counts
SHARES = {"vision": 0.35, "dyn": 0.35, "lm": 0.30}
VISION = {size: 3 + 2 * size for size in range(1, 9)}  # ms by batch size
DYN = {size: 12 + 4 * size for size in range(1, 17)}


def counted_ms(batch: float) -> Dict[str, float]:
    """The lane time that a request of each app counts, in batches of this share of the largest."""
    sizes = round(batch * 8), round(batch * 16)
    return {"vision": VISION[sizes[0]] / sizes[0], "dyn": DYN[sizes[1]] / sizes[1], "lm": 160.0}


def scenario(load: float, seconds: float, batch: float = BATCH) -> Scenario:
    """The three apps at a load."""
    rates = {name: SHARES[name] * load * 1e3 / time_ms for name, time_ms in counted_ms(batch).items()}

    def model(times: Dict[int, int]) -> Dict[str, Any]:
        return {"engine": "synthetic", "batch": sorted(times), "expected": {str(k): f"{t}ms" for k, t in times.items()}}

    return parse_scenario(
        {
            "lane": {"gpu0": {}},
            "model": {"vision": model(VISION), "dyn": model(DYN), "lm": model({1: 8})},
            "truth": {"lm": {"steps": 20, "steps_per_run": 1}},
            "policy": {name: {"kind": "edf"} for name in rates},
            "app": {
                "vision": {"model": "vision", "slo": "40ms", "policy": "vision"},
                "dyn": {"model": "dyn", "slo": "150ms", "policy": "dyn"},
                "lm": {"model": "lm", "slo": "1500ms", "policy": "lm"},
            },
            "workload": {
                name: {
                    "app": name,
                    "kind": "gamma",
                    "rate": rate,
                    "cv": 0.5,
                    **({"hints": {"steps": 20}} if name == "lm" else {}),
                }
                for name, rate in rates.items()
            },
            "run": {"duration": f"{seconds}s", "noise": NOISE, "step_cost": "20us", "event_cost": "15us"},
        }
    )


def value_in_time(report: Report, counted: Dict[str, float]) -> float:
    """The share of the value delivered in time, each request at what its app's counts."""
    offered = sum(counted[name] * app.offered for name, app in report.apps.items())
    return sum(counted[name] * app.in_time for name, app in report.apps.items()) / offered


def main() -> int:
    parser = arguments(__doc__, quick="three seeds (same checks, twice the tolerance)")
    parser.add_argument(
        "--batch",
        type=float,
        default=BATCH,
        metavar="SHARE",
        help="the batch in which requests count, as a share of the largest (default %(default)s)",
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (3 if args.quick else 10))
    tolerance = TOLERANCE * (2 if args.quick else 1)
    checks = Checks("research/bench/arbiter.py")
    rows: List[Dict[str, Any]] = []
    print(f"{'load':>5} {'value in time':>14} {'table':>6} {'worst app':>10} {'table':>6}   by app")
    for load, (best_value, best_worst) in BEST.items():
        setting = scenario(load, 30.0, args.batch)
        worlds = [simulate(setting, seed, ()).world for seed in seeds]
        report = report_of(worlds, 0, setting.run.duration_ns)
        value = value_in_time(report, counted_ms(args.batch))
        apps = {name: app.finish_rate for name, app in report.apps.items()}
        worst = min(apps.values())
        rows.append({"load": load, "value_in_time": value, "worst_app": worst, "apps": apps})
        by_app = ", ".join(f"{name} {rate:.3f}" for name, rate in sorted(apps.items()))
        print(
            f"{load:5} {value:14.3f} {best_value:6.3f} {worst:10.3f} {best_worst:6.3f}   {by_app}",
            flush=True,
        )
        checks.at_least(f"load {load}: value in time", value, best_value - tolerance)
        checks.at_least(f"load {load}: worst app", worst, best_worst - tolerance)
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "seeds": f"{seeds[0]} to {seeds[-1]}",
            "requests counted in batches of": f"{args.batch:g} of the largest",
        },
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
