"""Worlds of ensembles for ``research/bench/regret.py``: drawn like those of ``worlds.py``, with a truth of their own.

One or two ensembles of 2 to 5 base models, on one lane or with a lane for each model, some sharing a base model or
lanes with another app; at 0.3 to 2 times the load that all models can take one by one. How often a subset answers as
all models would is drawn from votes with common and own noise; the fit is right, of the models in another order, of
the difficulties in reverse order, or missing. A base model may be slow, fail, or find no memory; the score may be slow.

A request is worth its app's lane time and value times the true agreement of the models that took part, if in time.
"""

from __future__ import annotations

import random
import statistics
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple
from zlib import crc32

import numpy as np
from lib.checks import Checks

from common import worlds
from common.worlds import World, log_uniform
from edgeserve.config.ensemble_profile import monotone
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sim.scenario import Scenario, parse_scenario

KIND = "ensembles"
ALL_KINDS = (*worlds.KINDS, KIND)
LOADS = (0.3, 2.0)
EDGES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
ITEMS = 4000
REQUESTS, SECONDS = 1200, (20.0, 40.0)
RIVALS = ("edf", "original", "static", "fastest")
"""Simple rules: edf with partial answers, all models, the two fastest, the fastest."""

POLICIES = ("plan", "schemble", *RIVALS)
FITS = ("right fit", "fit of other models", "fit of other difficulties", "no fit")
TROUBLES = ("", "one model slow", "one model fails", "slow batches", "memory for all but one")

Rows = Tuple[Tuple[float, ...], ...]


class Truth(NamedTuple):
    """One ensemble: its nodes, fastest first, and how often each subset agrees with all, by bin of difficulty."""

    nodes: Tuple[str, ...]
    rows: Rows

    def worth(self, difficulty: float, subset: int) -> float:
        """The agreement of a subset's answer."""
        return self.rows[sum([edge <= difficulty for edge in EDGES])][subset]


class Drawn(NamedTuple):
    """A world and the truth of its ensembles, by app."""

    world: World
    truths: Mapping[str, Truth]


def world_of(name: str) -> World:
    """The world of a name, of any kind."""
    return draw(name).world if name.split("/")[1] == KIND else worlds.draw_world(name)


def draw_rows(seed: str, count: int, fast: float) -> Rows:
    """Agreements by difficulty. The answer is the sign of what the models see together, each within bounds; ``fast``:
    how much noisier the fastest is than the slowest. Bins are of a predictor's view of the difficulty, whose ranks are
    off by a quarter."""
    draw = np.random.default_rng(crc32(seed.encode()))
    difficulty = draw.uniform(size=ITEMS)
    signal = 2.2 * (1.0 - difficulty) + 0.15
    common = draw.normal(0.0, 0.5, ITEMS)
    noise = np.linspace(fast, 0.6, count)
    seen = np.stack([signal + (common + draw.normal(0.0, own, ITEMS)) * (0.3 + difficulty) for own in noise])
    votes = np.tanh(seen)
    whole = votes.sum(axis=0) > 0
    view = (difficulty + draw.normal(0.0, 0.25, ITEMS)).argsort().argsort() / ITEMS
    bins = np.searchsorted(EDGES, view, side="right")
    rows = []
    for index in range(len(EDGES) + 1):
        mine = bins == index
        shares = [0.0]
        for subset in range(1, 1 << count):
            members = [model for model in range(count) if subset >> model & 1]
            shares.append(float(((votes[members].sum(axis=0) > 0) == whole)[mine].mean()))
        rows.append(monotone(shares))
    return tuple(rows)


def told_rows(rows: Rows, fit: str) -> Rows:
    """The fitted profile."""
    if fit == "fit of other difficulties":
        return rows[::-1]
    if fit == "right fit":
        return rows
    count = len(rows[0]).bit_length() - 1
    moved = [
        sum([1 << (model + 1) % count for model in range(count) if subset >> model & 1]) for subset in range(1 << count)
    ]
    return tuple(tuple(row[subset] for subset in moved) for row in rows)


class Draft:
    """The table of a scenario while it is drawn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.draw = random.Random(f"{name}/world")
        self.tags: List[str] = []
        self.truths: Dict[str, Truth] = {}
        self.times: Dict[str, float] = {}  # of each model
        self.need: Dict[str, Dict[str, float]] = {}  # app -> lane -> time of one request
        self.table: Dict[str, Any] = {
            "lane": {"side": {}},
            "model": {},
            "truth": {},
            "policy": {"edf": {}},
            "app": {},
            "workload": {},
        }
        self.growth = self.draw.choice((0.0, 0.0, 0.1, 0.4, 0.8))

    def add_model(self, name: str, time: float, lane: str, batches: bool = True) -> None:
        self.times[name] = time
        self.table["lane"].setdefault(lane, {})
        self.table["model"][name] = {
            "engine": "synthetic",
            "lanes": [lane],
            "batch": [1, 2, 4, 8] if self.growth and batches else [1],
        }
        self.table["truth"][name] = {}


def draw_ensemble(draft: Draft, index: int, own_lanes: bool, shared: Sequence[str]) -> None:
    """An ensemble app; ``shared``: a model of another ensemble that takes the place of its own."""
    draw, app, count = draft.draw, f"ensemble{index}", draft.draw.randrange(2, 6)
    scale = log_uniform(draw, 0.3, 3.0) if index else 1.0
    times = sorted([log_uniform(draw, 1.0, 4.0) * scale for _ in range(count)])
    names = [f"e{index}m{number}" for number in range(count)]
    models = list(names)
    if shared:
        models[draw.randrange(count)] = draw.choice(shared)
    models.sort(key=lambda model: draft.times.get(model, times[names.index(model)] if model in names else 0.0))
    lane = draw.choice(("main", f"lane{index}"))
    for name, model, time in zip(names, models, times):
        if model not in draft.times:
            draft.add_model(model, time, f"{lane}.{name}" if own_lanes else lane)
    times = [draft.times[model] for model in models]
    score = draw.choice(("", "before", "beside"))
    nodes: List[Dict[str, Any]] = []
    if score:
        draft.add_model(f"score{index}", 0.1 * times[0], "side", False)
        draft.table["truth"][f"score{index}"]["says"] = ["difficulty"]
        nodes.append({"name": f"score{index}", "after": []})
    before = [f"score{index}"] if score == "before" else []
    nodes += [{"name": name, "model": model, "after": before} for name, model in zip(names, models)]
    draft.add_model(f"vote{index}", 0.01 * times[0], "side", False)
    after = [*names, f"score{index}"] if score == "beside" else names
    nodes.append({"name": f"vote{index}", "after": after, "join": "policy"})
    rows = draw_rows(f"{draft.name}/{index}", count, draw.uniform(0.8, 1.6))
    draft.truths[app] = Truth(tuple(names), rows)
    fit = draw.choices(FITS, (4, 1, 1, 1))[0]
    draft.tags += [f"{count} models", fit] + ([f"score {score}"] if score else [])
    use: Dict[str, float] = {}
    for model in models:
        where = draft.table["model"][model]["lanes"][0]
        use[where] = use.get(where, 0.0) + draft.times[model]
    draft.need[app] = use
    draft.table["app"][app] = {
        "node": nodes,
        "on_late": "partial",
        "value": draw.choice((1.0, 1.0, 3.0, 10.0)),
        "slo": draw.uniform(1.2, 4.0) * max(use.values()) * (1.5 if own_lanes else 1.0),
    }
    if fit != "no fit":
        draft.table["app"][app]["ensemble"] = {
            "models": names,
            "edges": list(EDGES),
            "score": "difficulty",
            "agreement": [list(row) for row in told_rows(rows, fit)],
        }


def draw_arrivals(draw: random.Random) -> Dict[str, Any]:
    kind = draw.choice(("poisson", "gamma", "onoff"))
    if kind == "gamma":
        return {"kind": kind, "cv": draw.choice((0.5, 1.0)), "window": "1s"}
    return {"kind": kind, "on": "1s", "off": "500ms"} if kind == "onoff" else {"kind": kind}


def draw_trouble(draft: Draft) -> None:
    """Something is not as planned, in half of the worlds."""
    draw, table = draft.draw, draft.table
    trouble = draw.choices(TROUBLES, (5, 2, 1, 1, 1))[0]
    models = sorted([model for model in table["model"] if model.startswith("e")])
    chosen = draw.choice(models)
    table["run"] = {"noise": draw.choice((0.02, 0.1, 0.25))}
    if trouble == "one model slow":
        table["truth"][chosen]["slower"] = 3.0
    elif trouble == "one model fails":
        table["truth"][chosen]["fail"] = 0.5
    elif trouble == "slow batches":
        table["faults"] = {"slow": 0.05, "slow_factor": 5.0}
    elif trouble:
        for model in table["model"]:
            table["model"][model]["memory"] = "100MB" if model in models else "1MB"
        for model in models:
            table["model"][model]["load"] = draft.times[model]
        table["device"] = {"cpu": {"memory": f"{100 * max(1, len(models) - 1) + 20}MB"}}
    scores = [model for model in table["model"] if model.startswith("score")]
    if scores and draw.random() < 0.2:
        table["truth"][draw.choice(scores)]["slower"] = 10.0
        draft.tags.append("slow score")
    draft.tags += [trouble] * bool(trouble)


def draw(name: str) -> Drawn:
    """The world of a name, ``SEED/ensembles/NUMBER``, and what is true in it."""
    draft = Draft(name)
    draw, table = draft.draw, draft.table
    own_lanes = draw.random() < 0.4
    count = draw.choice((1, 1, 2))
    draft.tags += ["lanes of their own" if own_lanes else "shared lane"] + ["two ensembles"] * (count > 1)
    for index in range(count):
        models = [model for model in draft.times if model.startswith("e")]
        shares = index > 0 and draw.random() < 0.5
        draft.tags += ["shared model"] * shares
        draw_ensemble(draft, index, own_lanes, models if shares else ())
    if draw.random() < 0.35:
        lane = draw.choice(sorted({lane for use in draft.need.values() for lane in use}))
        time = log_uniform(draw, 0.2, 1.0)
        draft.add_model("frames", time, lane)
        draft.need["camera"] = {lane: time}
        table["app"]["camera"] = {"model": "frames", "slo": time * draw.uniform(4.0, 10.0)}
        draft.tags.append("camera beside")
    draw_trouble(draft)
    load = round(draw.uniform(*LOADS), 3)
    parts = {app: draw.uniform(0.5, 1.5) for app in draft.need}
    rates = {app: part / sum(parts.values()) * load for app, part in parts.items()}  # of the lanes' time, for now
    busiest: Dict[str, float] = {}
    for app, use in draft.need.items():
        for lane, time in use.items():
            busiest[lane] = busiest.get(lane, 0.0) + rates[app] * time / max(use.values())
    factor = load / max(busiest.values())
    rates = {app: rate * factor / max(draft.need[app].values()) for app, rate in rates.items()}
    unit_ms = 1000.0 * sum(rates.values()) / log_uniform(draw, 12.0, 60.0)
    seconds = min(SECONDS[1], max(SECONDS[0], REQUESTS / (1000.0 * sum(rates.values()) / unit_ms)))
    finish(draft, {app: rate * 1000.0 / unit_ms for app, rate in rates.items()}, unit_ms, seconds)
    return Drawn(
        World(name, KIND, tuple(draft.tags), load, parse_scenario(table, source=f"(world {name})"), (), {}),
        draft.truths,
    )


def finish(draft: Draft, rates: Mapping[str, float], unit_ms: float, seconds: float) -> None:
    """Times in milliseconds, and the workloads."""
    draw, table = draft.draw, draft.table
    guessed = draw.random() < 0.25
    draft.tags += ["guessed"] * guessed
    for model, item in table["model"].items():
        time_ms = draft.times[model] * unit_ms
        wrong = log_uniform(draw, 1 / 1.6, 1.6) if guessed else 1.0
        grown = {str(size): time_ms * (1.0 + draft.growth * (size - 1)) for size in item["batch"]}
        item["expected"] = {size: f"{time * wrong:.6f}ms" for size, time in grown.items()}
        slower = table["truth"][model].pop("slower", 1.0)
        table["truth"][model]["times"] = {size: f"{time * slower:.6f}ms" for size, time in grown.items()}
        if "load" in item:
            item["load"] = f"{item['load'] * unit_ms:.6f}ms"
    for app, item in table["app"].items():
        item["slo"] = f"{item['slo'] * unit_ms:.6f}ms"
        hints = {"difficulty": [0.0, 1.0]} if app in draft.truths else {}
        table["workload"][app] = {"app": app, "rate": rates[app], "hints": hints, **draw_arrivals(draw)}
    table["run"]["duration"] = f"{seconds:.3f}s"


def judge(checks: Checks, rows: Sequence[Any]) -> None:
    """``plan`` beside the simple rules; where the fit is wrong, beside the static choices, as specified.
    Of what did not run nothing is said."""
    wrong = [row for row in rows if set(FITS[1:3]) & set(row.world.tags)]
    for title, some, rivals, bound in (
        ("ensembles, fitted rightly or not at all", [row for row in rows if row not in wrong], RIVALS, 1.0),
        ("ensembles, a wrong fit", wrong, RIVALS[2:], 2.0),
    ):
        if some and {"plan", *rivals} <= set(some[0].percent):
            worst = max(some, key=lambda row: float(row.behind("plan", rivals)))
            checks.at_most(
                f"{title}: points behind the best of {', '.join(rivals)}, worst of {len(some)} worlds "
                f"({worst.world.name})",
                worst.behind("plan", rivals),
                bound,
            )
            checks.at_least(
                f"{title}: worlds within {bound:g} of it, percent",
                100 * statistics.fmean([row.behind("plan", rivals) <= bound for row in some]),
                100.0,
            )
            checks.at_least(
                f"{title}: points ahead of it, mean",
                -statistics.fmean([row.behind("plan", rivals) for row in some]),
                0.0,
            )


# --- what it brought --------------------------------------------------------------------------------------------------


def rule_of(scenario: Scenario, policy: str) -> str:
    """A rule of this module as a policy with options."""
    if policy not in ("original", "static", "fastest"):
        return policy
    if policy == "original":
        return "ensemble_static"
    most = 1 if policy == "fastest" else 2
    names = [
        node.name
        for app in scenario.config.apps.values()
        for node in app.nodes
        if node.name.startswith("e") and int(node.name.split("m")[1]) < most
    ]
    return f"ensemble_static;pick='static';models={names}"


def bit_of(node: str) -> int:
    """The bit of a base model's node in a subset; 0 of any other node."""
    return 1 << int(node.split("m")[1]) if node.startswith("e") and "m" in node else 0


class Took:
    """The models of each answer, independent of the policy: the ones that had ended when its join began. ``bit_of``
    says which bit of a subset a node is."""

    def __init__(self, bit_of: Callable[[str], int] = bit_of) -> None:
        self._bit_of = bit_of
        self._done: Dict[int, int] = {}
        self.part: Dict[int, int] = {}

    def step(self, now_ns: int, events: Sequence[Any], actions: Sequence[Any]) -> None:
        """One step of the scheduler."""
        for event in events:
            for result in getattr(event, "results", ()):
                if result.status == "done":
                    number = result.job.request_id
                    self._done[number] = self._done.get(number, 0) | self._bit_of(result.job.node)
        for action in actions:
            if isinstance(action, RunBatch) and action.model.startswith("vote"):
                for job in action.jobs:
                    self.part[job.request_id] = self._done.get(job.request_id, 0)


def value_percent(ended: Sequence[Any], took: Took, truths: Mapping[str, Truth]) -> float:
    """Value in time over value offered. Requests of one app count alike, with any work, but for the agreement of an
    ensemble's answer (``truths``)."""
    offered: Dict[str, List[float]] = {}
    brought: Dict[str, float] = {}
    for item in ended:
        app = item.request.app
        offered.setdefault(app, []).append(item.expected_ns * item.request.value)
        if item.in_time:
            worth = (
                1.0
                if app not in truths
                else truths[app].worth(item.request.hints["difficulty"], took.part.get(item.request.id, 0))
            )
            brought[app] = brought.get(app, 0.0) + worth
    mean = {app: statistics.fmean(shares) for app, shares in offered.items()}
    return (
        100.0
        * sum([mean[app] * worth for app, worth in brought.items()])
        / sum([mean[app] * len(shares) for app, shares in offered.items()])
    )
