"""Draws of a soak run for PARD's policies beside those for all: their options, a graph of every kind of
node, and what requests foretell of themselves (rightly or not).

Pure draws from the generator that is handed in. The other kinds' scenarios do not depend on them: they are drawn for
apps of these policies alone.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import options_of

PARD_KINDS = ("pard", "pard+")
"""Policies that drop what cannot be in time end to end, with many options each."""

PENDING_MAX = 40
"""Requests of unequal work that may wait to be answered however late."""

Node = Dict[str, Any]


def draw_options(draw: random.Random, kind: str) -> Dict[str, Any]:
    """Some options of ``[policy.*]``; the others stay as they are by default. Periods are short enough for a run of
    half a second to see several."""
    of_pard = options_of(POLICIES["pard"].options_type)
    known: Dict[str, Any] = {
        "rule": draw.choice(of_pard["rule"].one_of),
        "order": draw.choice(of_pard["order"].one_of),
        "collect": draw.choice(of_pard["collect"].one_of),
        "lead_ms": draw.choice((0.0, 1.0, 20.0)),
        "across": draw.choice(of_pard["across"].one_of),
        "batch_times": draw.choice(("full", "measured")),
        "lam": draw.choice((0.0, 0.1, 0.5, 1.0)),
        "estimator": draw.choice(of_pard["estimator"].one_of),
        "window_ms": draw.choice((50.0, 5000.0)),
        "hbf_from": draw.choice((0.3, 1.0)),
        "lbf_from": draw.choice((0.3, 1.0)),
        "recheck": draw.random() < 0.5,
        "threshold_ms": draw.choice((0.0, 5.0)),
        "batch_max": draw.choice((0, 1, 3)),
        "seed": draw.randrange(100),
    }
    options = {name: value for name, value in known.items() if draw.random() < 0.6}
    # Always: a thousand draws of ten modules each would take longer than the run.
    options.update(samples=draw.choice((1, 30, 200)), sync_ms=draw.choice((10.0, 50.0, 300.0)))
    own = random.Random(repr(sorted(options.items())))  # so that older seeds keep what they drew besides
    options.update(paths=own.choice(of_pard["paths"].one_of), siblings=own.random() < 0.5)
    return options


def draw_mixed(draw: random.Random, node: Callable[..., Node], own_model: Callable[..., str]) -> List[Node]:
    """A fork into a route and a fan-out that one join closes: branches that are taken, not taken, empty, or given up.
    ``node(name, after, ...)`` makes a node, ``own_model(...)`` a model of these results."""
    pick = own_model(routes={"left": 0.5, "end": 0.3, **({"": 0.2} if draw.random() < 0.5 else {})})
    cut = own_model(parts=draw.choice(([0, 4], [1, 3], 1)))
    nodes = [
        node("look", []),
        node("pick", ["look"], model=pick, route="one"),
        node("left", ["pick"]),
        node("cut", ["look"], model=cut, fan_out=True),
        node("read", ["cut"]),
    ]
    if draw.random() < 0.5:
        nodes.append(node("more", ["read"]))
    nodes.append(node("all", [nodes[-1]["name"]], gather=True, join=draw.choice(("all", 1))))
    nodes.append(node("end", ["pick", "left", "all"], join=draw.choice(("all", "all", 1))))
    return nodes


def draw_hints(draw: random.Random, app: Dict[str, Any]) -> Dict[str, Any]:
    """The hints of an app's requests on their parts, routes and steps: at times nothing, at times what comes true, at
    times what does not. Few of them wait then, where no request is dropped: ``plan`` judges each by itself in every
    step, and a queue of hundreds makes one run last for minutes."""
    hints: Dict[str, Any] = {}
    if draw.random() < 0.4:
        for item in app.get("node", ()):
            if item.get("fan_out"):
                hints[item["name"] + ".parts"] = draw.choice((0, [0, 3], [0, 20]))
            elif item.get("route") == "one":
                hints[item["name"] + ".route"] = draw.choice((0, [0, 1], [0, 3]))
            elif draw.random() < 0.2:
                hints[item["name"] + ".steps"] = draw.choice((1, [1, 4]))
        if not app.get("node"):
            hints["steps"] = draw.choice((1, [1, 4]))
    if hints and app["on_late"] == "answer":
        app.setdefault("pending_max", PENDING_MAX)
    return {"hints": hints} if hints else {}


def draw_work(draw: random.Random, app: Dict[str, Any], truths: Dict[str, Any]) -> Dict[str, Any]:
    """At times requests differ in work, and an earlier node says so, or they declare it; which may be true or not."""
    hints: Dict[str, Any] = {}
    nodes = app.get("node", ())
    for index, item in enumerate(nodes):
        if index and draw.random() < 0.3:
            hint = item["name"] + ".work"
            hints[hint] = draw.choice(([0.2, 3.0], {"0": 0.2, "1": 0.4, "7.5": 0.4}))
            if draw.random() < 0.7:
                truths[nodes[draw.randrange(index)]["model"]].setdefault("says", []).append(hint)
            truth = truths[item["model"]]
            if draw.random() < 0.5 and "times" not in truth:
                truth.update(hint=hint, per_unit=f"{draw.randrange(300, 3000)}us")
    if hints and app["on_late"] == "answer":
        app.setdefault("pending_max", PENDING_MAX)
    return hints
