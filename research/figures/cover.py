"""Draw the plots of the documentation's cover: an overload, simulated here, and the mixes as they are stored.

    python research/figures/cover.py

The third plot is that of ``orloj.py``. The overload: a detector with batches of up to eight, whose frames come at
random and are due 120 ms later, at 0.5 to 2 times what its lane can do in full batches; two seeds of 5 s each, under
``edf``, and under ``fifo`` in batches, which refuses nothing that is not over.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import plots

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario, with_load

SIZES_MS = {1: 16, 2: 20, 4: 28, 8: 44}
CAPACITY_HZ = 1000 * 8 / SIZES_MS[8]
LOADS = [0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0]
POLICIES = {"edf": "EdgeServe (edf)", "fifo": "a queue (fifo)"}
SEEDS = 2

OTHERS = {
    "edf": "edf for all",
    "priority": "fixed order",
    "fair": "fair slices",
    "fifo": "a queue",
}


def overload() -> plots.Panel:
    """The share in time over the load."""
    lines = []
    for kind, label in POLICIES.items():
        table: Dict[str, Any] = {
            "model": {
                "detector": {
                    "engine": "synthetic",
                    "batch": list(SIZES_MS),
                    "expected": {str(size): f"{ms}ms" for size, ms in SIZES_MS.items()},
                }
            },
            "policy": {kind: {"kind": kind}},
            "app": {"detect": {"model": "detector", "policy": kind, "slo": "120ms"}},
            "workload": {"frames": {"app": "detect", "kind": "poisson", "rate": CAPACITY_HZ}},
            "run": {"seeds": SEEDS, "duration": "5s", "warmup": "1s", "noise": 0.05},
        }
        scenario = parse_scenario(table)
        shares: List[float] = []
        for load in LOADS:
            scaled = with_load(replace(scenario, run=scenario.run), load)
            worlds = [simulate(scaled, seed, []).world for seed in range(SEEDS)]
            report = report_of(worlds, scenario.run.warmup_ns, scenario.run.duration_ns)
            shares.append(100 * report.apps["detect"].finish_rate)
        lines.append(plots.Line(label, LOADS, shares, "o-"))
    most = [min(100.0, 100 / load) for load in LOADS]
    lines.append(plots.Line("all that the lane could do", LOADS, most, "k:"))
    return plots.Panel("Overload: frames in time", "load, times what the lane can do", "percent in time", lines)


def mixes() -> List[plots.Panel]:
    """Value in time, of each mix, over the load, by the ways that were run."""
    path = Path(plots.ROOT) / "research" / "results" / "bench_mix.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    panels = []
    for mix in dict.fromkeys(row["mix"] for row in rows):
        lines = [
            plots.Line(
                label,
                [row["load"] for row in rows if (row["mix"], row["way"]) == (mix, way)],
                [row["percent"] for row in rows if (row["mix"], row["way"]) == (mix, way)],
                "o-",
            )
            for way, label in {rows[0]["way"]: "EdgeServe", **OTHERS}.items()
            if way in {row["way"] for row in rows}
        ]
        panels.append(plots.Panel(f"The mix of a {mix}: value in time", "load", "percent of the value", lines))
    return panels


def main() -> None:
    for name, panels in (("overload", [overload()]), ("mix_robot", mixes()[:1]), ("mixes", mixes())):
        print(plots.draw(f"docs/research/{name}.svg", panels))


if __name__ == "__main__":
    main()
