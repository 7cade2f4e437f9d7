"""Schemble's other tasks in virtual time: counting with a deadline per camera, retrieval by two models, and requests of
chosen difficulty.

    python research/replicate/schemble/tasks.py [--quick] [--seeds N] [--first-seed N] [--json FILE] [--only TABLE ...]

*count* and *retrieval* (Figs. 7 and 8, the columns VC and IR of Tables I and II) ask the ensembles ``ink`` and ``near``
of ``ensemble.py`` at a constant mean rate. Each of 24 cameras draws its deadline evenly within 50 ms of a mean;
retrieval has one deadline. Tables without refusals answer late requests, too. *static* is the choice of models, with
one of them twice, that does best on another seed. *difficulty* (Fig. 10): the digits' day at 105 ms, with items whose
scores are normal around a mean, with a deviation of 0.03.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common.replicated import AHEAD, GOAL, OURS, checks_of
from lib.checks import Checks, arguments

from replicate.schemble import ensemble, run, world
from replicate.schemble.world import Load, Result, System

SCRIPT = "research/replicate/schemble/tasks.py"
ITEMS = 4000
CAMERAS, APART_MS = 24, 50
MEANS = (0.1, 0.2, 0.3, 0.4)
DEVIATION, DIFFICULTY_MS = 0.03, 105
TABLES = ("count", "retrieval", "difficulty")


class Task(NamedTuple):
    """One task: its ensemble, arrivals a second, deadlines, what models take; the paper's accuracy and missed
    deadlines, and its accuracy and mean latency in seconds where nothing is refused."""

    items: str
    cameras: int
    rate: float
    deadlines_ms: Sequence[float]
    times_ms: Sequence[float]
    statics: Mapping[str, System]
    paper: Mapping[str, Sequence[float]]


def _twice(model: str) -> System:
    return System(
        "ensemble_static",
        {"pick": "static", "models": [model]},
        {**{"m0": run.AWAY, "m1": run.AWAY}, model: ["l0", "l1"]},
    )


TASKS = {
    "count": Task(
        "ink",
        CAMERAS,
        16.0,
        (150, 185, 220),
        ensemble.TIMES_MS,
        run.STATIC_PAIRS,
        {
            "original": (57.0, 43.0, 100.0, 8.4),
            "static": (69.4, 26.9, 95.0, 0.12),
            "des": (56.4, 39.6, 95.5, 3.5),
            "gating": (60.5, 23.0, 90.0, 0.11),
            "schemble(ea)": (73.3, 16.3, 94.7, 0.17),
            "schemble": (80.4, 15.4, 96.2, 0.15),
        },
    ),
    "retrieval": Task(
        "near",
        1,
        22.0,
        (120, 160, 240),
        (60.0, 85.0),
        {f"{model}, twice": _twice(model) for model in ("m0", "m1")},
        {
            "original": (47.3, 52.7, 100.0, 104.9),
            "static": (74.1, 11.8, 85.0, 0.57),
            "des": (55.7, 35.2, 86.8, 3.5),
            "gating": (58.1, 32.8, 85.3, 0.60),
            "schemble(ea)": (75.0, 14.5, 89.3, 0.69),
            "schemble": (78.4, 14.3, 91.2, 0.65),
        },
    ),
}
NAMES = (
    "original",
    "des",
    "gating",
    "greedy edf",
    "greedy fifo",
    "greedy sjf",
    "schemble(t)",
    "schemble(ea)",
    "schemble",
    "plan",
)


def run_task(
    task: Task, system: System, seed: int, deadline_ms: float, seconds: float, directory: str, on_late: str
) -> Result:
    """One policy at one deadline: a workload per camera."""
    items = ensemble.draw_items(ITEMS, seed, task.items)
    profile = ensemble.fit(ensemble.history(task.items), system.by, task.items)
    load = world.steady(seed, ITEMS, task.rate, seconds, 0.0)
    camera = np.random.default_rng([seed, 5]).integers(0, task.cameras, len(load.times_s))
    apart_ms = np.random.default_rng([seed, 6]).uniform(-APART_MS, APART_MS, task.cameras) * (task.cameras > 1)
    workloads: Dict[str, Any] = {}
    for number in sorted(set(camera)):
        own = Load(load.times_s[camera == number], load.items[camera == number])
        path, _ = world.trace_path(directory, own, items, system.by, f"{task.items}{seed}-{number}")
        slo_ms = deadline_ms + apart_ms[number]
        workloads[f"camera{number}"] = {"app": "query", "kind": "trace", "file": path, "slo": f"{slo_ms:.3f}ms"}
    lasts_s = float(load.times_s[-1]) + 1.0
    table = world.scenario_of(system, "", profile, deadline_ms, lasts_s, on_late, times_ms=task.times_ms)
    table["workload"] = workloads
    return world.run(table, items, seed)


def task_table(name: str, seeds: Sequence[int], seconds: float, directory: str, checks: Checks) -> Dict[str, Any]:
    """Accuracy and missed deadlines with refusals, average of the deadlines; accuracy and latency without."""
    task = TASKS[name]
    middle = task.deadlines_ms[len(task.deadlines_ms) // 2]

    def at(system: System, seed: int, deadline_ms: float = middle, on_late: str = "drop") -> Result:
        return run_task(task, system, seed, deadline_ms, seconds, directory, on_late)

    tried = {key: at(system, seeds[-1] + 1).accuracy for key, system in task.statics.items()}
    static = max(tried, key=lambda key: tried[key])
    systems = {"original": run.SYSTEMS["original"], "static": task.statics[static]}
    systems.update({key: run.SYSTEMS[key] for key in NAMES[1:]})
    found: Dict[str, Any] = {}
    print(
        f"\n{name}, static: {static}\n{'':14}{'accuracy/missed %':>20}{'models':>8}"
        f"{'forced %':>10}{'mean s':>9}{'p95 s':>9}   paper"
    )
    for key, system in systems.items():
        rows = [run.mean([at(system, seed, deadline_ms) for seed in seeds]) for deadline_ms in task.deadlines_ms]
        average, forced = run.mean(rows), run.mean([at(system, seed, on_late="answer") for seed in seeds])
        found[key] = {"rows": [row._asdict() for row in rows], "mean": average._asdict(), "forced": forced._asdict()}
        print(
            f"{key:14}{100 * average.accuracy:13.1f}/{100 * average.missed:.1f}{average.models:8.2f}"
            f"{100 * forced.accuracy:10.1f}{forced.mean_ms / 1e3:9.3f}{forced.p95_ms / 1e3:9.3f}"
            f"   {task.paper.get(key, '-')}",
            flush=True,
        )
    accuracy = {key: 100 * value["mean"]["accuracy"] for key, value in found.items()}
    for worse, better in (
        ("original", "schemble"),
        ("des", "schemble"),
        ("gating", "schemble"),
        ("static", "schemble"),
        ("schemble(ea)", "schemble"),
        ("schemble", "plan"),
    ):
        checks.at_least(f"{name}: {better} ahead of {worse}", accuracy[better] - accuracy[worse], 0.0, AHEAD)
    checks.at_most(
        f"{name}: schemble misses", 100 * found["schemble"]["mean"]["missed"], task.paper["schemble"][1], GOAL
    )
    original, ours = found["original"]["forced"]["mean_ms"], found["schemble"]["forced"]["mean_ms"]
    checks.at_least(f"{name}, nothing refused: original takes so many times schemble's", original / ours, 10.0, GOAL)
    return {"static": static, "policies": found}


def difficulty_table(seeds: Sequence[int], segment_s: float, directory: str, checks: Checks) -> Dict[str, Any]:
    """Accuracy and accuracy of what was processed, by the mean of the scores."""
    found: Dict[str, Any] = {}
    names = ("original", "des", "gating", "schemble(t)", "schemble", "plan")
    print(f"\n{'accuracy/processed %, mean score':34}" + "".join(f"{name:>16}" for name in names))
    for mean in MEANS:
        row: Dict[str, Dict[str, float]] = {}
        for name in names:
            results: List[Result] = []
            for seed in seeds:
                items = ensemble.draw_items(ITEMS, seed)
                load = world.day(seed, ITEMS, segment_s)
                path, lasts_s = world.trace_path(
                    directory,
                    Load(load.times_s, _of_difficulty(items.score, mean, len(load.times_s), seed)),
                    items,
                    "predicted",
                    f"score{seed}-{mean}",
                )
                profile = ensemble.fit(ensemble.history())
                table = world.scenario_of(run.SYSTEMS[name], path, profile, DIFFICULTY_MS, lasts_s)
                results.append(world.run(table, items, seed))
            average = run.mean(results)
            row[name] = {
                "accuracy": 100 * average.accuracy,
                "processed": 100 * average.processed,
                "missed": 100 * average.missed,
            }
        found[f"{mean:g}"] = row
        print(
            f"{mean:<34}" + "".join(f"{value['accuracy']:8.1f}/{value['processed']:5.1f}" for value in row.values()),
            flush=True,
        )
        best = max(row[name]["accuracy"] for name in ("original", "des", "gating"))
        checks.at_least(
            f"difficulty {mean}: schemble ahead of original, des and gating",
            row["schemble"]["accuracy"] - best,
            0.0,
            AHEAD,
        )
        checks.at_least(
            f"difficulty {mean}: plan ahead of schemble",
            row["plan"]["accuracy"] - row["schemble"]["accuracy"],
            0.0,
            OURS,
        )
    return found


def _of_difficulty(scores: np.ndarray, mean: float, count: int, seed: int) -> np.ndarray:
    """Items whose scores come nearest to normal ones."""
    order = np.argsort(scores, kind="stable")
    wanted = np.clip(np.random.default_rng([seed, 7]).normal(mean, DEVIATION, count), 0.0, 1.0)
    return order[np.clip(np.searchsorted(scores[order], wanted), 0, len(scores) - 1)]


def main() -> int:
    parser = arguments(__doc__, quick="one seed, a quarter of the time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    args = parser.parse_args()
    seeds = list(range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)))
    seconds, segment_s = (15.0, 5.0) if args.quick else (60.0, 20.0)
    ensemble.need_digits()
    checks = checks_of(SCRIPT, args.quick)
    results: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in args.only:
            if name == "difficulty":
                results[name] = difficulty_table(seeds, segment_s, directory, checks)
            else:
                results[name] = task_table(name, seeds, seconds, directory, checks)
    return checks.finish(
        args.json,
        {"seeds": len(seeds), "first_seed": seeds[0], "seconds": seconds, "segment_s": segment_s},
        results=results,
    )


if __name__ == "__main__":
    sys.exit(main())
