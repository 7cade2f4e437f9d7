"""Draws of a soak run for the policies of ensembles: their options, apps of two to four models behind one join, what
was fitted of them (rightly or not), and what requests and models say.

Pure draws from the generator that is handed in, for apps of these policies alone: what others draw stays as it is.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List

from edgeserve.config.ensemble_profile import monotone

ENSEMBLE_KINDS = ("schemble", "ensemble_static")
"""Policies that choose which models of an ensemble a request gets."""

Node = Dict[str, Any]


def draw_ensemble_options(draw: random.Random, kind: str) -> Dict[str, Any]:
    """Some options of ``[policy.*]``; the others stay as they are by default."""
    known: Dict[str, Any] = {"cells_max": draw.choice((10, 500, 20_000))}
    if kind == "schemble":
        known.update(
            planner=draw.choice(("exact", "published", "greedy")),
            delta=draw.choice((0.01, 0.2)),
            order=draw.choice(("edf", "fifo", "sjf")),
            mean=draw.random() < 0.3,
            fast=draw.random() < 0.7,
            price=draw.choice((0.0, 0.4)),
        )
    else:
        known.update(
            pick=draw.choice(("all", "static", "gating", "des")),
            models=["b0", "b1"],
            threshold=draw.choice((0.0, 0.5)),
            margin=draw.choice((0.0, 0.5)),
        )
    return {name: value for name, value in known.items() if draw.random() < 0.6}


def draw_ensemble(
    draw: random.Random,
    app: Dict[str, Any],
    node: Callable[..., Node],
    own_model: Callable[[], str],
    truths: Dict[str, Any],
) -> None:
    """The nodes of an ensemble. ``node(name, after, ...)`` makes one, ``own_model()`` a model of no other app."""
    names = [f"b{index}" for index in range(draw.randrange(2, 5))]
    scored = draw.choice(("", "before", "beside"))
    head = []
    if scored:
        model = own_model()
        truths[model]["says"] = ["difficulty"]
        head = [node("score", [], model=model)]
    before = ["score"] if scored == "before" else []
    branches = [node(name, before) for name in names]
    joined = names + (["score"] if scored == "beside" else [])
    app["node"] = head + branches + [node("sum", joined, join=draw.choice(("policy", "policy", "all", 1)))]
    if draw.random() < 0.7 and draw_fits(app):
        rows = [[*monotone([draw.random() for _ in range(1 << len(names))])] for _ in range(draw.choice((1, 3)))]
        app["ensemble"] = {
            "models": names,
            "agreement": rows,
            "edges": [0.3, 0.6][: len(rows) - 1],
            **draw_observed(draw, len(names)),
        }


def draw_fits(app: Dict[str, Any]) -> bool:
    """True if the join is one that a profile may name."""
    return any(len(item.get("after", ())) > 1 for item in app["node"])


def draw_observed(draw: random.Random, count: int) -> Dict[str, Any]:
    """At times what one model's answer says of the rest."""
    if draw.random() < 0.5:
        return {}
    bit = 1 << draw.randrange(count)
    tables = []
    for _ in range(2):
        row = monotone([draw.random() for _ in range(1 << count)])
        tables.append([[value if subset & bit else 0.0 for subset, value in enumerate(row)]])
    return {"observed": {str(bit): {"edges": [0.5], "agreement": tables}}}


def draw_said(draw: random.Random, app: Dict[str, Any]) -> Dict[str, Any]:
    """The hints of requests of an ensemble, or of their nodes: a difficulty, labels and margins, gates."""
    hints: Dict[str, Any] = {}
    if draw.random() < 0.8:
        hints["difficulty"] = [0.0, 1.0]
    if draw.random() < 0.5:
        for name in app["ensemble"]["models"]:
            hints[f"{name}.label"], hints[f"{name}.margin"] = [0, 2], [0.0, 1.0]
            hints[f"{name}.gate"] = hints[f"{name}.local"] = [0.0, 1.0]
    return {"hints": hints} if hints else {}


def draw_pair(draw: random.Random, table: Dict[str, Any]) -> None:
    """Two ensembles of one policy that share models, at times of unequal value or scored first by a node that takes as
    long as a model, with memory for some of the models, one of them slow or failing, and a history recorded where lanes
    idle."""
    kind = draw.choice(ENSEMBLE_KINDS)
    options = draw_ensemble_options(draw, kind)
    if options.get("planner") == "published":
        options["planner"] = "exact"  # the same plans: Algorithm 1 as printed takes seconds for six models
    table["policy"]["pair"] = {"kind": kind, **options}
    lanes = sorted(table["lane"])
    for index in range(4):
        table["model"][f"shared{index}"] = {
            "engine": "synthetic",
            "batch": [1, 4],
            "memory": "20MB",
            "load": "5ms",
            "expected": {"1": f"{1 + index}ms", "4": f"{3 + 2 * index}ms"},
            "lanes": draw.sample(lanes, 1),
        }
        table["truth"][f"shared{index}"] = {"state": "0B"}
    for name in ("pair_score", "pair_vote"):
        table["model"][name] = {"engine": "synthetic", "expected": {"1": "1ms"}, "memory": "1MB"}
        table["truth"][name] = {"state": "0B"}
    table["truth"]["pair_score"]["says"] = ["difficulty"]
    if draw.random() < 0.4:
        table["truth"]["pair_score"]["times"] = {"1": f"{draw.randrange(2, 12)}ms"}
    trouble = draw.choice(("", "slow", "fail"))
    if trouble:
        model = f"shared{draw.randrange(4)}"
        slow: Dict[str, Any] = {"times": {"1": "15ms", "4": "30ms"}}
        table["truth"][model].update({"fail": 0.5} if trouble == "fail" else slow)
    if draw.random() < 0.5:
        for device in table["device"].values():
            device["memory"] = f"{max(70, max(int(model['memory'][:-2]) for model in table['model'].values()) + 10)}MB"
    for app, models in (("pair0", (0, 1, 2)), ("pair1", (1, 2, 3))):
        names = [f"b{index}" for index in models]
        scored = draw.random() < 0.5
        nodes: List[Dict[str, Any]] = [{"name": "score", "model": "pair_score"}] if scored else []
        nodes += [
            {"name": name, "model": f"shared{index}", "after": ["score"] if scored else []}
            for name, index in zip(names, models)
        ]
        nodes.append({"name": "sum", "model": "pair_vote", "after": names, "join": "policy"})
        table["app"][app] = {
            "policy": "pair",
            "slo": f"{draw.randrange(15, 120)}ms",
            "node": nodes,
            "on_late": draw.choice(("drop", "partial")),
            "history": "history.npz",
            "history_share": draw.choice((0.0, 0.5, 1.0)),
        }
        if draw.random() < 0.7:
            table["app"][app]["ensemble"] = {
                "models": names,
                "edges": [0.5],
                "agreement": [[*monotone([draw.random() for _ in range(8)])] for _ in range(2)],
            }
        table["workload"][app] = {"app": app, "kind": "poisson", "rate": draw.choice((20.0, 60.0, 150.0))}
    for app in ("pair0", "pair1"):
        table["app"][app]["value"] = draw.choice((1.0, 10.0))
