"""Do the quantiles that ``orloj`` states of its batches hold? In virtual time, with and without a shift of the inputs.

    python research/bench/calibration.py [--quick] [--json FILE]

One model whose time depends on its input (40 ms + the length of the longest for each of the batch), asked by two apps
of different lengths, 5 % noise on every batch. Nothing is known before: the policy learns by running sampled inputs
again alone when the lane idles (at most 2 % of its time). At each launch it states by when the batch ends with 90 %.
In the middle of the run the lengths of both apps change, unannounced. Reported per policy and seed: the share of
batches that ended by what was stated, before the shift, within the first window of 200 batches after it, and after
that window; beside it the share that the prediction held by itself, without the correction that keeps the share
(``sched/published/orloj/calibration.py``). It must be 0.9 within 0.03 outside of that window.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.events import Event
from edgeserve.sched.published.orloj.calibration import HITS_LEN, QUANTILE
from edgeserve.sim.run import make_world, setting_of
from edgeserve.sim.scenario import Scenario, parse_scenario

FIXED_MS = 40.0
RATE = 12.0  # requests per second of both apps together: some 0.7 of the lane
SLO_MS = 400.0
NOISE = 0.05
BEFORE = {"photos": (10, 30), "scans": (40, 80)}  # uniform lengths in ms, by app
AFTER = {"photos": (40, 90), "scans": (10, 50)}
TOLERANCE = 0.03
BATCHES_MIN = 2000


def scenario(policy: str, seconds: float) -> Scenario:
    """Two phases of the same two apps: different workloads before and after half of the time."""
    half = f"{seconds / 2}s"
    workloads: Dict[str, Any] = {}
    for phase, lengths, when in (("before", BEFORE, {"stop": half}), ("after", AFTER, {"start": half})):
        for app, (low, high) in lengths.items():
            workloads[f"{app}_{phase}"] = {
                "app": app,
                "kind": "gamma",
                "rate": RATE / 2,
                "cv": 0.3,
                "hints": {"work": [low * 100, high * 100]},
                **when,
            }
    sizes = list(range(1, 9))
    mean = statistics.fmean([statistics.fmean(item) for item in BEFORE.values()])
    return parse_scenario(
        {
            "lane": {"gpu0": {}},
            "model": {
                "m": {
                    "engine": "synthetic",
                    "batch": sizes,
                    "expected": {str(size): f"{FIXED_MS + mean * size}ms" for size in sizes},
                }
            },
            "truth": {"m": {"fixed": f"{FIXED_MS}ms", "per_unit": "10us", "hint": "work", "noise": NOISE}},
            "policy": {"dynamic": {"kind": policy, "window": 200}},
            "app": {app: {"model": "m", "slo": f"{SLO_MS}ms"} for app in BEFORE},
            "workload": workloads,
            "run": {"duration": f"{seconds}s", "step_cost": "20us", "event_cost": "15us"},
        }
    )


def shares(policy: str, seconds: float, seed: Any) -> Tuple[List[float], Dict[str, int]]:
    """(before, first window after, later) and how many batches each; in the order of launches."""
    setting = scenario(policy, seconds)
    known = setting_of(setting.config)
    scheduler = build_scheduler(setting.config, footprints=known.footprints, resident=known.resident)
    world = make_world(setting, seed, setting=known)
    half_ns = round(seconds / 2 * 1e9)
    counts: List[Tuple[int, int]] = []  # (stated, kept) at the shift, after one window, at the end

    def counted() -> Tuple[int, int]:
        table = scheduler.policies[0].figures()["calibration"]
        return table["stated"], table["covered"]

    def watch(now_ns: int, events: List[Event], actions: Any) -> None:
        if (not counts and now_ns >= half_ns) or (len(counts) == 1 and counted()[0] >= counts[0][0] + HITS_LEN):
            counts.append(counted())

    drive(scheduler, world, (watch,))
    counts.append(counted())
    parts, before = [], (0, 0)
    for stated, kept in counts:
        parts.append((stated - before[0], kept - before[1]))
        before = (stated, kept)
    table = scheduler.policies[0].figures()["calibration"]
    samples = scheduler.policies[0].figures()["models"]["m"]["lanes"]["gpu0"]["samples"]
    batches = {f"batches_{name}": part[0] for name, part in zip(("before", "window", "later"), parts)}
    return [kept / max(1, stated) for stated, kept in parts], {
        **batches,
        "samples": sum(samples.values()),
        "uncorrected_percent": round(100 * table["uncorrected"] / max(1, table["stated"])),
    }


def main() -> int:
    parser = arguments(__doc__, quick="one seed")
    parser.add_argument("--first-seed", type=int, default=1000)
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else 3))
    checks = Checks("research/bench/calibration.py")
    rows: List[Dict[str, Any]] = []
    print(
        f"stated: {QUANTILE:.2f}\n{'policy':>8} {'seed':>5} {'batches':>8} {'before':>7} {'first window':>13} "
        f"{'later':>6} {'samples':>8} {'uncorrected':>12}"
    )
    for policy in ("orloj",):
        for seed in seeds:
            found, counts = shares(policy, 600.0, random.Random(f"{seed}/calibration").random())
            total = sum([count for name, count in counts.items() if name.startswith("batches")])
            rows.append(
                {
                    "policy": policy,
                    "seed": seed,
                    "before": found[0],
                    "first_window": found[1],
                    "later": found[2],
                    "batches": total,
                    **counts,
                }
            )
            print(
                f"{policy:>8} {seed:5} {total:8} {found[0]:7.3f} {found[1]:13.3f} {found[2]:6.3f} "
                f"{counts['samples']:8} {counts['uncorrected_percent']:11}%",
                flush=True,
            )
        for part in ("before", "later"):
            worst = max([abs(row[part] - QUANTILE) for row in rows if row["policy"] == policy])
            checks.at_most(f"{policy}: off the stated share, {part} the shift", worst, TOLERANCE)
        fewest = min([row["batches"] for row in rows if row["policy"] == policy])
        checks.at_least(f"{policy}: batches", fewest, BATCHES_MIN)
    return checks.finish(
        args.json, {"python": sys.version.split()[0], "seeds": f"{seeds[0]} to {seeds[-1]}"}, rows=rows
    )


if __name__ == "__main__":
    sys.exit(main())
