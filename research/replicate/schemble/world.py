"""Schemble's setting in virtual time: the load of one day, the ensemble as an app, and what came of a run."""

from __future__ import annotations

import csv
import os
import random
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from common.ensemble_worlds import Took

from edgeserve.config.ensemble_profile import EnsembleProfile, ensemble_table
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from replicate.schemble.ensemble import MODELS, TIMES_MS, Items

HEAVY = 15.0
RATES = (0.8,) * 8 + (2.0, 5.0, 8.0, 11.0) + (HEAVY,) * 8 + (7.0, 3.5, 1.5, 0.8)
"""Requests a second in each of the day's 24 segments: light, a ramp, heavy, decay; about 6,600 in segments of 40 s."""

VARIATION = 0.5
"""The variation of the rate from one second to the next (gamma)."""

SCORE_MS = 5.5
"""The time of the difficulty's predictor, beside the models: 6.5 % of the ensemble's time."""

VOTE_US = 50


class Load(NamedTuple):
    """Requests to come: when, in seconds, and which item each is."""

    times_s: np.ndarray
    items: np.ndarray


class Result(NamedTuple):
    """One run. Shares of all requests, and in milliseconds from arrival to answer; ``models`` per answer."""

    accuracy: float
    missed: float
    processed: float
    models: float
    mean_ms: float
    p95_ms: float
    max_ms: float
    busy: float
    plans: int
    cut_short: int
    value: float = 0.0  # accuracy by the worth of requests, of all apps


class System(NamedTuple):
    """A policy with its options, and where the models may run: model -> lanes (None: one lane each).
    ``shared``: all on one lane."""

    kind: str
    options: Mapping[str, Any] = {}
    lanes: Mapping[str, Sequence[str]] | None = None
    by: str = "predicted"  # which score the requests tell


RIVALS = {
    "original": System("ensemble_static"),
    "static": System("ensemble_static", {"pick": "static", "models": ["m0", "m1"]}),
    "fastest": System("ensemble_static", {"pick": "static", "models": ["m0"]}),
    "edf, partial": System("edf"),
    "plan": System("plan"),
}
"""``plan`` and the simpler rules that it is held against."""


def day(seed: int, count: int, segment_s: float = 40.0, factor: float = 1.0) -> Load:
    """The arrivals of one day."""
    draw = random.Random(f"{seed}/day")
    times: List[float] = []
    for number, rate in enumerate(RATES):
        for second in range(round(segment_s)):
            now = rate * factor * draw.gammavariate(1 / VARIATION**2, VARIATION**2)
            at = 0.0
            while now > 1e-9:
                at += draw.expovariate(now)
                if at >= 1.0:
                    break
                times.append(number * segment_s + second + at)
    chosen = np.random.default_rng([seed, 3]).integers(0, count, len(times))
    return Load(np.array(times), chosen)


def steady(seed: int, count: int, rate: float, duration_s: float, variation: float = VARIATION) -> Load:
    """Arrivals at one mean rate that varies from second to second; without variation a Poisson process."""
    draw = random.Random(f"{seed}/steady")
    times = []
    for second in range(round(duration_s)):
        now = rate * draw.gammavariate(1 / variation**2, variation**2) if variation else rate
        at = 0.0
        while now > 1e-9:
            at += draw.expovariate(now)
            if at >= 1.0:
                break
            times.append(second + at)
    return Load(np.array(times), np.random.default_rng([seed, 3]).integers(0, count, len(times)))


def write_trace(path: str, load: Load, items: Items, by: str) -> None:
    """A trace of the load: arrivals and, as hints, what will be said of each request."""
    score = getattr(items, by)
    names = ["item", "difficulty"]
    count = items.labels.shape[1]
    for model in MODELS[:count]:
        names += [f"{model}.label", f"{model}.margin", f"{model}.gate", f"{model}.local"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", *names])
        for at, item in zip(load.times_s, load.items):
            row: List[Any] = [f"{at:.9f}", item, float(score[item])]
            for model in range(count):
                row += [
                    items.labels[item, model],
                    float(items.margins[item, model]),
                    float(items.gates[item, model]),
                    float(items.local[item, model]),
                ]
            rows.writerow(row)


def scenario_of(
    system: System,
    trace: str,
    profile: EnsembleProfile,
    deadline_ms: float,
    duration_s: float,
    on_late: str = "drop",
    others: Mapping[str, Any] | None = None,
    shared: bool = False,
    growth: float = 0.0,
    times_ms: Sequence[float] = TIMES_MS,
) -> Dict[str, Any]:
    """The table of a scenario. ``shared``: all models on one lane. ``growth``: a batch of b takes 1 + growth * (b - 1)
    times as long as one; 0: no batches. ``others``: sections that come on top."""
    models = profile.models
    lanes = system.lanes or {model: ["main"] if shared else [f"l{index}"] for index, model in enumerate(models)}
    nodes: List[Dict[str, Any]] = [{"name": model, "after": []} for model in models]
    nodes += [{"name": "score", "after": []}, {"name": "vote", "after": [*models, "score"], "join": "policy"}]
    names = list(dict.fromkeys(lane for where in lanes.values() for lane in where))
    sizes = (1, 2, 4, 8) if growth else (1,)
    table: Dict[str, Any] = {
        "lane": {name: {} for name in [*names, "side"]},
        "model": {
            model: {
                "engine": "synthetic",
                "lanes": list(lanes.get(model, names[:1])),
                "batch": list(sizes),
                "expected": {str(size): f"{time * (1 + growth * (size - 1)):.3f}ms" for size in sizes},
            }
            for model, time in zip(models, times_ms)
        },
        "policy": {"ensemble": {"kind": system.kind, "trials": False, **system.options}},
        "server": {"pending_max": 100_000},
        "app": {
            "query": {
                "policy": "ensemble",
                "slo": f"{deadline_ms}ms",
                "on_late": on_late,
                "node": nodes,
                "pending_max": 100_000,
                "ensemble": ensemble_table(profile),
            }
        },
        "truth": {model: {"says": [f"{model}.label", f"{model}.margin"]} for model in models},
        "workload": {"day": {"app": "query", "kind": "trace", "file": trace}},
        "run": {"duration": f"{duration_s}s"},
    }
    table["model"]["score"] = {"engine": "synthetic", "lanes": ["side"], "expected": {"1": f"{SCORE_MS}ms"}}
    table["model"]["vote"] = {"engine": "synthetic", "lanes": ["side"], "expected": {"1": f"{VOTE_US}us"}}
    table["truth"]["score"] = {"says": ["difficulty"]}
    for section, rows in (others or {}).items():
        table.setdefault(section, {}).update(rows)
    return table


def run(table: Mapping[str, Any], items: Items, seed: int) -> Result:
    """Simulate a scenario and judge each answer by the items' truth."""
    scenario, took = parse_scenario(table), Took(lambda node: 1 << MODELS.index(node) if node in MODELS else 0)
    done = simulate(scenario, seed, (), on_step=took.step)
    ends = [end for end in done.world.ended if end.request.app == "query"]
    in_time = models = 0
    right = 0.0
    taken_ms: List[float] = []
    for end in ends:
        if end.outcome != "completed":
            continue
        taken_ms.append((end.end_ns - end.request.arrival_ns) / 1e6)
        if end.end_ns > end.request.deadline_ns and end.request.on_late != "answer":
            continue
        subset = took.part[end.request.id]
        in_time += 1
        models += bin(subset).count("1")
        right += float(items.correct[int(end.request.hints["item"]), subset])
    policy = next(policy for policy in done.scheduler.policies if policy.name == "ensemble")
    figures: Mapping[str, Any] = policy.figures()
    lanes = [
        lane.busy_ns / done.world.now_ns
        for name, lane in done.world.lanes.items()
        if name != "side" and not name.startswith("copy:")
    ]
    taken_ms.sort()
    return Result(
        right / len(ends),
        1 - in_time / len(ends),
        right / max(1, in_time),
        models / max(1, in_time),
        float(np.mean(taken_ms or [0.0])),
        taken_ms[int(0.95 * len(taken_ms))] if taken_ms else 0.0,
        taken_ms[-1] if taken_ms else 0.0,
        float(np.mean(lanes)),
        int(figures.get("plans", 0)),
        int(figures.get("plans cut short", 0)),
        _value(done.world.ended, items, took),
    )


def _value(ended: Sequence[Any], items: Items, took: Took) -> float:
    """The share of all worth that was delivered in time: an ensemble's answer counts as far as it is right."""
    offered = delivered = 0.0
    for end in ended:
        offered += end.expected_ns * end.request.value
        if not end.in_time:
            continue
        of_all = end.request.app != "query"
        right = 1.0 if of_all else float(items.correct[int(end.request.hints["item"]), took.part[end.request.id]])
        delivered += right * end.expected_ns * end.request.value
    return delivered / offered if offered else 1.0


def trace_path(directory: str, load: Load, items: Items, by: str, name: str) -> Tuple[str, float]:
    """The trace of a load as a file, and how long it lasts."""
    path = os.path.join(directory, f"{name}-{by}.csv")
    if not os.path.exists(path):
        write_trace(path, load, items, by)
    return path, float(load.times_s[-1]) + 1.0
