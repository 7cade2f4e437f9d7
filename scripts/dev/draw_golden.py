"""Draw golden traces: small worlds of each policy in each situation, recorded once and stored (``tests/golden``).

    python scripts/dev/draw_golden.py             the traces that are not stored yet
    python scripts/dev/draw_golden.py --only NAME

What is stored is fed to the scheduler again without the simulator. A trace that is stored is not drawn again:
``update_golden.py`` writes the actions of all traces anew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from dataclasses import replace
from typing import Any, Dict, List

from edgeserve.sched.policies import POLICIES
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.testing.soak.ensembles import ENSEMBLE_KINDS
from edgeserve.testing.soak.run import SAMPLING_KINDS, draw_scenario, hold
from edgeserve.units import NS_PER_MS

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "golden")
STEPS_MIN, STEPS_MAX = 10, 45
SEEDS = 400
OPTIONS = {kind: {"sample": 1.0, "budget": 0.3} for kind in SAMPLING_KINDS}
"""So that a sampling policy samples within the short time of a trace."""

SITUATIONS = {
    "trouble": ("WorkRefused", "LaneChanged", "failed"),
    "closed_loop": ("completed", "dropped|rejected"),
    "language": ("BatchProgress", "dropped|rejected"),
    "fan_out": ("completed", "dropped|rejected"),
    "wrong_profile": ("dropped|rejected", "LoadModel", "EvictModel"),
    "classes": ("completed", "dropped|rejected", "cancelled"),
}
"""The subject of a trace, and the events that must occur in it."""

SOAKED = ("plan", "pard+", "edf")
SOAKS = 5
"""Additional soak worlds by policy: graphs of every shape, hints, several apps, streams, options."""
SOAK_STEPS_MIN, SOAK_STEPS_MAX, SOAK_NS = 30, 90, 80 * NS_PER_MS


def draw_table(seed: int, kind: str, situation: str) -> Dict[str, Any]:
    """The scenario of one trace."""
    draw = random.Random(f"{seed}/{kind}/{situation}")
    models, apps, work, truth, table = {}, {}, {}, {}, {}  # type: ignore[var-annotated]

    def model(name: str) -> str:
        sizes, fixed_us, item_us = draw.choice(([1, 2, 4], [1, 4])), draw.randrange(500, 3000), draw.randrange(200, 900)
        expected = {str(size): f"{fixed_us + item_us * size}us" for size in sizes}
        models[name] = {"engine": "synthetic", "batch": sizes, "expected": expected, "memory": "40MB", "load": "2ms"}
        return name

    def app(name: str, load: float, **keys: Any) -> None:
        apps[name] = {"slo": f"{draw.randrange(8, 30)}ms", "policy": "p", **keys}
        work[name] = {"app": name, "rate": round(load * draw.randrange(100, 250), 1)}

    app("one", 1.0, model=model("detect"), on_late=draw.choice(("drop", "answer")))
    if kind in ENSEMBLE_KINDS:
        members: List[str] = [model(name) for name in ("small", "middle", "large")]
        table["policy"] = {"p": {"kind": kind, **({"models": members[:2]} if kind == "ensemble_static" else {})}}
        voters = [{"name": name, "model": name, "after": []} for name in members]
        last = {"name": "sum", "model": model("sum"), "after": members, "join": "policy"}
        app("vote", 0.6, node=[*voters, last])
        apps["vote"]["ensemble"] = {"models": members, "agreement": [[0.0, 0.6, 0.7, 0.8, 0.8, 0.9, 0.9, 1.0]]}
    else:
        table["policy"] = {"p": {"kind": kind, **OPTIONS.get(kind, {})}}
        app("two", 0.6, node=[{"name": name, "model": model(name)} for name in ("find", "read")])
    table["device"] = {"d": {}}
    table["lane"] = {
        f"l{index}": {"device": "d", "hang": "20ms"} for index in range(2 if situation == "trouble" else 1)
    }
    if situation == "trouble":
        table["faults"] = {"refuse": 0.1, "fail_job": 0.1, "unfinished": 0.1, "slow": 0.1, "hang": 0.3}
        table["faults"].update(lane_loss_every="25ms", lane_loss="8ms")
    elif situation == "closed_loop":
        for name in work:
            work[name] = {"app": name, "kind": "closed", "clients": draw.randrange(2, 7), "think": "2ms"}
    elif situation == "language":
        _language(draw, table, models, apps, work, truth)
    elif situation == "fan_out":
        nodes = [("cut", {"fan_out": True}), ("part", {}), ("all", {"gather": True, "join": draw.choice(("all", 1))})]
        app("page", 0.5, node=[{"name": name, "model": model(name), **keys} for name, keys in nodes])
        truth["cut"] = {"parts": [0, 5], "state": "0B"}
    elif situation == "wrong_profile":
        factor = draw.choice((0.2, 2.0, 5.0))
        for name, item in list(models.items())[:2]:
            times = item["expected"].items()
            truth[name] = {"times": {size: f"{int(int(text[:-2]) * factor)}us" for size, text in times}}
        table["device"]["d"]["memory"] = f"{40 * (len(models) - 1)}MB"
    elif situation == "classes":
        apps["one"].update({"class": "critical"})
        app("beside", 1.0, model="detect", **{"class": "background", "on_late": "answer", "slo": "60ms"})
        table["faults"] = {"cancel": 0.1}
    run = {"duration": f"{draw.randrange(20, 45)}ms", "noise": 0.03, "step_cost": "20us", "event_cost": "10us"}
    return {**table, "model": models, "app": apps, "workload": work, "truth": truth, "run": run}


def _language(draw: random.Random, table: Any, models: Any, apps: Any, work: Any, truth: Any) -> None:
    """One app of a language model, whose answers end one by one."""
    step_us = draw.randrange(300, 900)
    expected = dict.fromkeys(("1", "2", "4"), f"{step_us}us")
    models["talk"] = {"engine": "synthetic", "batch": [1, 2, 4], "expected": expected, "memory": "40MB", "slots": 4}
    truth["talk"] = {"batching": "continuous", "steps_hint": "words", "steps_max": 12, "prefill": "200us"}
    truth["talk"].update(step={"full": f"{step_us}us", "saturates": 4, "alone": 0.6}, predict={"rho": 0.8})
    apps["talk"] = {"model": "talk", "slo": f"{draw.randrange(8, 40)}ms", "policy": "p"}
    hints = {"words": {"lognormal": [5.0, 0.6]}, "tokens": 3}
    work["talk"] = {"app": "talk", "rate": float(draw.randrange(150, 400)), "hints": hints}


def draw_world(seed: int, kind: str, situation: str) -> Scenario:
    """The world of one trace."""
    if situation in SITUATIONS:
        return parse_scenario(draw_table(seed, kind, situation))
    scenario, _ = draw_scenario(seed, (kind,), language=kind == "plan", pair=kind in ENSEMBLE_KINDS)
    return replace(scenario, run=replace(scenario.run, duration_ns=SOAK_NS))


def draw_trace(kind: str, situation: str, path: str) -> int:
    """Store the trace of the first seed whose world shows the situation; returns its seed."""
    wanted, least, most, first = SITUATIONS.get(situation), STEPS_MIN, STEPS_MAX, 0
    if wanted is None:
        wanted, least, most = ("completed", "dropped|rejected"), SOAK_STEPS_MIN, SOAK_STEPS_MAX
        first = SEEDS * int(situation[-1])
    for seed in range(first, first + SEEDS):
        scenario = draw_world(seed, kind, situation)
        result = hold(scenario, seed, drain=False, record=path)
        shown = all(any(map(result.marks.get, marks.split("|"))) for marks in wanted)
        if shown and least <= result.steps <= most:
            with open(path, encoding="utf-8") as file:
                first, *steps = file.read().splitlines()
            start = {**json.loads(first), "behaviour": f"{kind}, drawn: {situation}", "seed": seed}
            start["config"] = dict(scenario.edge)
            if kind in SAMPLING_KINDS:
                start["machine"] = platform.machine()  # numpy may round otherwise on another one
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join([json.dumps(start, separators=(",", ":")), *steps]) + "\n")
            return seed
    os.remove(path)
    raise SystemExit(f"{kind}: none of {SEEDS} seeds shows {situation} in {least} to {most} steps")


def main() -> int:
    """Draw what is not stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="only traces whose name contains this")
    args = parser.parse_args()
    for kind in sorted(POLICIES):
        for situation in (*SITUATIONS, *(f"soak_{number}" for number in range(SOAKS if kind in SOAKED else 0))):
            name = f"drawn_{situation}_{kind.replace('+', '_plus')}.jsonl"
            path = os.path.join(GOLDEN, name)
            if args.only in name and not os.path.exists(path):
                print(f"{name}: seed {draw_trace(kind, situation, path)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
