"""Draws of a soak run for language models: apps whose answers have a number of steps that is predicted well, wrongly
or not at all, on lanes of unequal speed, with prompts that do not fit and memory for some of the sequences only.

Pure draws from the generator that is handed in: what runs without them draw stays as it is.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List

from edgeserve.sim.scenario import CONTINUOUS, EARLY_EXIT, STATIC

LANGUAGE_MARKS = ("BatchProgress", "CutBatch", "KeepWritten", "ReleaseState")
"""The events that must have occurred over a few runs of it, and occurs nowhere else."""


def draw_language(draw: random.Random, table: Dict[str, Any]) -> None:
    """Add one or two apps of language models to a drawn table, at times a slower lane of another device for them."""
    slow = ""
    if draw.random() < 0.4:
        slow = "host0"
        table["device"]["host"] = {}
        table["lane"][slow] = {"device": "host", "hang": "100ms"}
        others = [model for model in table["model"].values() if "lanes" not in model]
        for model in others:  # drawn before there was this lane
            model["lanes"] = [lane for lane in table["lane"] if lane != slow]
    for index in range(draw.choice((1, 1, 2))):
        name = f"chat{index}"
        _model(draw, table, name, slow)
        _app(draw, table, name)
    for items in table["device"].values():
        if items.get("memory"):
            need = max(int(model["memory"][:-2]) for model in table["model"].values()) + 60
            items["memory"] = f"{max(need, int(items['memory'][:-2]))}MB"


def _model(draw: random.Random, table: Dict[str, Any], name: str, slow: str) -> None:
    sizes = draw.choice(([1, 2, 4], [1, 2, 3, 4, 5, 6, 7, 8], [2, 8], [4]))
    full_us, alone = draw.randrange(300, 4000), draw.choice((0.2, 0.7, 0.95))
    table["model"][name] = {
        "engine": "synthetic",
        "batch": sizes,
        "memory": f"{draw.randrange(5, 40)}MB",
        "load": "3ms",
        "expected": {str(size): f"{full_us * draw.choice((50, 100, 100, 200)) // 100}us" for size in sizes},
    }
    if draw.random() < 0.5:
        table["model"][name]["slots"] = draw.choice((sizes[-1], sizes[-1] + 3))
    token_kb, most = draw.choice((0, 20, 200)), draw.choice((1, 8, 40))
    if token_kb and draw.random() < 0.7:  # for some of the sequences only, one of the longest at least
        whole_kb = token_kb * (most + 20)
        table["model"][name]["state_memory"] = f"{whole_kb * draw.choice((1, 2, 4))}kB"
    truth: Dict[str, Any] = {
        "batching": draw.choice((CONTINUOUS, CONTINUOUS, CONTINUOUS, EARLY_EXIT, STATIC)),
        "steps_hint": "words",
        "steps_max": most,
        "step": {"full": f"{full_us}us", "saturates": draw.choice((1, sizes[-1])), "alone": alone},
        "prefill": f"{draw.choice((0, 500, 4000))}us",
        "prefill_token": f"{draw.choice((0, 20, 100))}us",
        "state_token": f"{token_kb}kB",
        "context": draw.choice((45, 1000)),
        "told": draw.random() < 0.4,
    }
    if truth["batching"] != STATIC and draw.random() < 0.5:
        truth["prefill_turn"] = draw.choice((1, 8, 100))
    if draw.random() < 0.7:
        truth["predict"] = {
            "rho": draw.choice((0.0, 0.5, 0.8, 1.0)),
            "scale": draw.choice((1.0, 1.0, 3.0, 0.33)),
            "sd": draw.random() < 0.5,
        }
    if slow:
        truth["lane"] = {slow: {"slower": draw.choice((1.0, 2.0, 5.0))}}
    table["truth"][name] = truth


def _app(draw: random.Random, table: Dict[str, Any], name: str) -> None:
    """One node, or behind or before another model."""
    app: Dict[str, Any] = {
        "policy": draw.choice(sorted(table["policy"])),
        "slo": f"{draw.randrange(20, 400)}ms",
        "class": draw.choice(("critical", "normal", "normal", "background")),
        "on_late": draw.choice(("drop", "answer", "partial", "partial")),
        "value": 1.0,
    }
    if "idle" in table["policy"] and app["on_late"] == "answer":
        app["on_late"] = "drop"
    other = draw.choice(sorted(table["model"]))
    shape, hint = draw.choice(("alone", "alone", "alone", "behind", "before")), f"{name}.tokens"
    if shape == "alone" or other.startswith("chat"):
        app["model"], hint = name, "tokens"
    else:
        ends: List[str] = [other, name] if shape == "behind" else [name, other]
        app["node"] = [{"name": name if model == name else "other", "model": model} for model in ends]
    if "node" in app and _is_special(table, other):
        del app["node"]
        app["model"], hint = name, "tokens"
    table["app"][name] = app
    table["workload"][name] = {
        "app": name,
        "kind": draw.choice(("poisson", "gamma", "closed")),
        "rate": float(draw.randrange(5, 120)),
        "window": "100ms",
        "clients": draw.randrange(1, 12),
        "think": f"{draw.choice((0, 5))}ms",
        "hints": {
            "words": {"lognormal": [draw.choice((1.0, 5.0, 12.0)), draw.choice((0.2, 0.5, 0.9))]},
            hint: draw.choice((3, [1, 60], {"5": 0.9, "50": 0.1})),
        },
    }


def _is_special(table: Dict[str, Any], model: str) -> bool:
    """True if what the model returns belongs to a graph of its own."""
    truth = table["truth"].get(model, {})
    return any(key in truth for key in ("routes", "parts", "says", "state", "steps_per_run"))
