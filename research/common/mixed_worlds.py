"""Worlds in which unlike apps share a device, for ``bench/ablation.py``: under the default policy, many clients
wait for their answers before they ask again, and the machine's own costs are charged.

A world's name says all, as in ``worlds.py``: ``report/robot/3``. Times are drawn in milliseconds. ``load`` is the part
of the lane's time that all apps need when they run in full batches.
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable, Dict, List, Mapping, Tuple

from common.ensemble_worlds import EDGES, Truth, draw_rows
from common.worlds import World, log_uniform
from edgeserve.sim.scenario import Scenario, parse_scenario

LOADS = (0.5, 1.5)
SECONDS = 20.0
GPU, HOST = "gpu", "host"


class Draft:
    """The table of a scenario while it is drawn. ``needs_ms`` is the lane time of a request in full batches, by app;
    ``parts`` says how the load is divided, ``arrivals`` who asks. What a model is
    believed to take is up to ``wrong`` times too much or too little, for a share ``unknown`` of the models."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.draw = random.Random(f"{name}/world")
        self.tags: List[str] = []
        self.wrong, self.unknown = 1.6, 0.25
        self.needs_ms: Dict[str, float] = {}
        self.parts: Dict[str, float] = {}
        self.arrivals: Dict[str, Dict[str, Any]] = {}
        self.truths: Dict[str, Truth] = {}
        self.table: Dict[str, Any] = {
            "lane": {GPU: {}},
            "model": {},
            "truth": {},
            "app": {},
            "workload": {},
            "run": {"duration": f"{SECONDS}s", "noise": self.draw.choice((0.02, 0.05, 0.1))},
        }

    def model(
        self, name: str, item_ms: float, lane: str = GPU, sizes: Tuple[int, ...] = (1, 2, 4, 8), **keys: Any
    ) -> float:
        """A model whose largest batch takes ``item_ms`` for each item; returns that."""
        draw = self.draw
        fixed = item_ms * log_uniform(draw, 0.5, 6.0) if len(sizes) > 1 else 0.0
        times = {size: fixed + item_ms * size for size in sizes}
        scale = item_ms * sizes[-1] / times[sizes[-1]]
        wrong = log_uniform(draw, 1 / self.wrong, self.wrong) if draw.random() < self.unknown else 1.0
        self.table["model"][name] = {
            "engine": "synthetic",
            "lanes": [lane],
            "batch": list(sizes),
            "expected": {str(size): f"{time * scale * wrong:.6f}ms" for size, time in times.items()},
            **keys,
        }
        self.table["truth"][name] = {"times": {str(size): f"{time * scale:.6f}ms" for size, time in times.items()}}
        return item_ms

    def time_ms(self, model: str, size: int = 1) -> float:
        """The time of a batch of a model."""
        return float(self.table["truth"][model]["times"][str(size)][:-2])

    def app(self, name: str, slo_ms: float, need_ms: float, part: float = 1.0, **keys: Any) -> None:
        """An app that takes a ``part`` of the load."""
        self.table["app"][name] = {"slo": f"{slo_ms:.3f}ms", **keys}
        self.needs_ms[name] = need_ms
        self.parts[name] = part
        self.arrivals[name] = self.draw.choice(({"kind": "poisson"}, {"kind": "gamma", "cv": 0.5}))


def _single(draft: Draft, name: str, item_ms: float, slo: float, part: float = 1.0, **keys: Any) -> None:
    """An app of one model."""
    draft.model(name, item_ms)
    draft.app(name, slo * draft.time_ms(name), item_ms, part, model=name, **keys)


def _pipeline(draft: Draft, name: str, unit_ms: float, part: float, host: bool = True) -> None:
    """A pipeline of three to five modules, one of them a host function at times."""
    count = draft.draw.randrange(3, 6)
    nodes: List[Dict[str, Any]] = []
    alone_ms = need_ms = 0.0
    for index in range(count):
        model = f"{name}{index}"
        is_host = host and index == 1 and draft.draw.random() < 0.6
        if is_host:
            draft.table["lane"].setdefault(HOST, {})
            draft.model(model, unit_ms * 0.3, HOST, (1,))
        else:
            need_ms += draft.model(model, unit_ms * log_uniform(draft.draw, 0.4, 1.5))
        alone_ms += draft.time_ms(model)
        nodes.append({"name": model, "model": model, "after": [f"{name}{index - 1}"] if index else []})
    draft.app(name, alone_ms * log_uniform(draft.draw, 1.5, 5.0), need_ms, part, node=nodes)


def _assistant(draft: Draft, step_ms: float, part: float) -> None:
    """A language model whose answers join and leave a batch at each step."""
    draw, median, sigma = draft.draw, draft.draw.choice((12.0, 40.0)), draft.draw.choice((0.4, 0.8))
    mean = median * math.exp(sigma * sigma / 2)
    item_ms = draft.model("chat", step_ms, sizes=(1, 2, 4, 8))
    draft.table["truth"]["chat"].update(
        batching="continuous",
        steps_hint="words",
        steps_max=round(median * 5),
        prefill_steps=draw.choice((0.5, 2.0)),
        state_token="1kB",
    )
    predicted = draw.choice((1.0, 0.4, 0.0))
    if predicted:
        draft.table["truth"]["chat"]["predict"] = {"rho": 0.8, "scale": predicted}
    draft.tags.append(f"predicted {predicted}")
    slo_ms = log_uniform(draw, 2.0, 6.0) * mean * draft.time_ms("chat")
    draft.app("chat", slo_ms, item_ms * mean, part, model="chat")
    draft.arrivals["chat"]["hints"] = {"words": {"lognormal": [median, sigma]}}


def robot(draft: Draft) -> None:
    """A critical control loop, a pipeline, and an assistant."""
    _pipeline(draft, "see", 8.0, 1.0)
    _assistant(draft, draft.draw.uniform(4.0, 12.0), draft.draw.uniform(0.5, 1.5))
    _single(draft, "control", 2.0, draft.draw.uniform(4.0, 20.0), 0.2, **{"class": "critical", "value": 3.0})
    draft.arrivals["control"] = {"kind": "periodic"}


def home(draft: Draft) -> None:
    """An ensemble beside cameras whose newest frame counts."""
    draw, count = draft.draw, draft.draw.randrange(2, 5)
    names = [f"e0m{index}" for index in range(count)]
    times = sorted([log_uniform(draw, 8.0, 40.0) for _ in names])
    need_ms = sum([draft.model(name, time, sizes=(1, 2, 4)) for name, time in zip(names, times)])
    draft.table["lane"][HOST] = {}
    draft.model("vote0", 0.02, HOST, (1,))
    rows = draw_rows(f"{draft.name}/0", count, draw.uniform(0.8, 1.6))
    draft.truths["vote"] = Truth(tuple(names), rows)
    alone_ms = sum([draft.time_ms(name) for name in names])
    draft.app(
        "vote",
        alone_ms * draw.uniform(1.2, 4.0),
        need_ms,
        1.0,
        on_late="partial",
        node=[{"name": name, "after": []} for name in names] + [{"name": "vote0", "after": names, "join": "policy"}],
        ensemble={
            "models": names,
            "edges": list(EDGES),
            "score": "difficulty",
            "agreement": [list(row) for row in rows],
        },
    )
    draft.arrivals["vote"]["hints"] = {"difficulty": [0.0, 1.0]}
    for index in range(draw.randrange(1, 4)):
        _single(
            draft,
            f"camera{index}",
            log_uniform(draw, 4.0, 16.0),
            log_uniform(draw, 2.0, 8.0),
            0.7,
            stream="newest_wins",
        )
        draft.arrivals[f"camera{index}"] = {"kind": "periodic", "streams": draw.choice((1, 2, 4))}


def memory(draft: Draft) -> None:
    """A hot pipeline beside rarely requested models, and memory for a few of all."""
    _pipeline(draft, "hot", 6.0, 1.0, host=False)
    rare = [f"rare{index}" for index in range(draft.draw.randrange(2, 6))]
    for name in rare:
        _single(draft, name, log_uniform(draft.draw, 4.0, 16.0), log_uniform(draft.draw, 10.0, 60.0), 0.05)
    for name, model in draft.table["model"].items():
        model["memory"] = "100MB"
        model["load"] = f"{draft.draw.uniform(3.0, 15.0) * draft.time_ms(name):.3f}ms"
    places = len(draft.table["model"]) - draft.draw.randrange(1, len(rare) + 1)
    draft.table["device"] = {"cpu": {"memory": f"{100 * places + 20}MB"}}
    draft.tags.append(f"memory for {places} of {len(draft.table['model'])}")


def values(draft: Draft) -> None:
    """Eight apps of values 1 to 8 that ask one model."""
    item_ms = draft.model("shared", draft.draw.uniform(4.0, 12.0))
    slo = log_uniform(draft.draw, 3.0, 10.0)
    for value in range(1, 9):
        slo_ms = slo * draft.time_ms("shared") * log_uniform(draft.draw, 0.8, 1.6)
        draft.app(f"app{value}", slo_ms, item_ms, 1.0, model="shared", value=float(value))


def spans(draft: Draft) -> None:
    """Deadlines of some 20 ms beside those of a minute, on one lane."""
    for index, (item_ms, slo_ms) in enumerate(((1.0, 20.0), (4.0, 80.0), (8.0, 2_000.0), (16.0, 60_000.0))):
        name = f"app{index}"
        draft.model(name, item_ms * log_uniform(draft.draw, 0.6, 1.6))
        keys: Dict[str, Any] = {"class": "critical"} if index == 0 and draft.draw.random() < 0.5 else {}
        draft.app(name, slo_ms, draft.time_ms(name, 8) / 8, (0.2, 0.5, 1.0, 1.0)[index], model=name, **keys)


def clients(draft: Draft) -> None:
    """Clients that ask again as soon as they are answered, for one model or two."""
    for index in range(draft.draw.choice((1, 1, 2))):
        _single(draft, f"app{index}", draft.draw.uniform(2.0, 12.0), log_uniform(draft.draw, 3.0, 12.0))
        number = draft.draw.choice((2, 4, 8, 16, 32))
        think_ms = draft.draw.choice((0.0, 0.0, 1.0, 20.0))
        draft.arrivals[f"app{index}"] = {
            "kind": "closed",
            "clients": number,
            "think": f"{think_ms}ms",
            "retry": "100ms",
        }
        draft.tags.append(f"{number} clients")


def background(draft: Draft) -> None:
    """A control loop, normal requests, and work in the background that would take all there is."""
    _single(draft, "control", 2.0, draft.draw.uniform(3.0, 12.0), 0.1, **{"class": "critical", "value": 3.0})
    draft.arrivals["control"] = {"kind": draft.draw.choice(("periodic", "poisson"))}
    _single(draft, "ask", draft.draw.uniform(4.0, 12.0), log_uniform(draft.draw, 3.0, 10.0), 0.5)
    _single(draft, "index", draft.draw.uniform(8.0, 24.0), 400.0, 0.6, **{"class": "background", "value": 0.1})


def heat(draft: Draft) -> None:
    """Apps on a device whose governor lowers its clock while it idles, and which slows down when it gets too hot."""
    for index in range(draft.draw.choice((1, 2))):
        _single(draft, f"app{index}", draft.draw.uniform(4.0, 12.0), log_uniform(draft.draw, 3.0, 10.0))
    draft.table["lane"][GPU]["device"] = "gpu0"
    draft.table["device"] = {"gpu0": {}}
    draft.table["hardware"] = {
        "gpu0": {
            "clocks": [420.0, 765.0, 1000.0, 1300.0],
            "compute": draft.draw.choice((0.5, 0.9)),
            "governor": draft.draw.choice(("locked", "ondemand")),
            "idle_after": "20ms",
            "ramp": "20ms",
            "thermal": {
                "start": draft.draw.choice((60.0, 78.0)),
                "resistance": draft.draw.uniform(1.5, 3.0),
                "time": "10s",
                "trip": 80.0,
            },
            "power": {"limit": draft.draw.choice((0.0, 18.0))},
        }
    }


def wrong(draft: Draft) -> None:
    """Apps whose models take a tenth of what is believed, or ten times as long: a stale profile, another power mode."""
    draft.wrong, draft.unknown = 10.0, 0.7
    for index in range(draft.draw.choice((1, 2))):
        _single(draft, f"app{index}", draft.draw.uniform(4.0, 12.0), log_uniform(draft.draw, 2.0, 8.0))
    if draft.draw.random() < 0.6:
        _pipeline(draft, "see", 6.0, 1.0)


KINDS: Mapping[str, Callable[[Draft], None]] = {
    "robot": robot,
    "home": home,
    "memory": memory,
    "values": values,
    "spans": spans,
    "clients": clients,
    "background": background,
    "heat": heat,
    "wrong": wrong,
}


def draw(name: str) -> Tuple[World, Mapping[str, Truth]]:
    """The world of a name, ``SEED/KIND/NUMBER``, and what is true of its ensembles."""
    draft = Draft(name)
    KINDS[name.split("/")[1]](draft)
    load = round(draft.draw.uniform(*LOADS), 3)
    whole = sum(draft.parts.values())
    for app, part in draft.parts.items():
        workload = {"app": app, **draft.arrivals[app]}
        if workload["kind"] != "closed":
            workload["rate"] = load * part / whole * 1000.0 / draft.needs_ms[app]
            if draft.draw.random() < 0.2 and workload["kind"] == "poisson":  # some wait for their answers, too
                count = draft.draw.choice((1, 4))
                draft.table["workload"][f"{app}_clients"] = {
                    "app": app,
                    "kind": "closed",
                    "clients": count,
                    "think": f"{2000.0 * count / workload['rate']:.3f}ms",
                    "retry": "100ms",
                    "hints": workload.get("hints", {}),
                }
                workload["rate"] /= 2
        draft.table["workload"][app] = workload
    scenario: Scenario = parse_scenario(draft.table, source=f"(world {name})")
    return World(name, name.split("/")[1], tuple(draft.tags), load, scenario, (), {}), draft.truths
