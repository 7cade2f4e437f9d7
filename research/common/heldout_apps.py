"""The parts of the mixes and worlds of ``research/bench/heldout.py``: models, apps of each kind, and who asks them.

Load 1 keeps the lane in use all the time when every batch is full; the load only scales the rates. A request *needs*
its app's mean lane time in full batches. No app names a policy, and nothing here knows one. What is not declared stands
in ``[truth]`` alone.
"""

from __future__ import annotations

import math
import random
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from common.ensemble_worlds import EDGES, Truth, draw_rows
from common.worlds import Lengths, draw_lengths, log_uniform
from edgeserve.sim.scenario import Scenario, parse_scenario

GPU, HOST, DEVICE = "gpu0", "cpu0", "gpu"
SECONDS = 25.0
WARMUP = "1s"
LENGTH, STEPS = "length", "answer_tokens"
STATES_MB = 20
"""The memory for the states of all sequences of a language model, beside its weights."""

UNKNOWN, WRONG = 0.2, 1.25
"""So many models are believed to take up to so many times too much or too little."""

Sizes = Tuple[int, ...]


class Mix(NamedTuple):
    """A mix ready to be simulated under any policy. ``needs_ms``: the lane time that a request of an app needs;
    ``truths``: how often the models of an ensemble agree with all of them, by app."""

    name: str
    seed: int
    load: float
    scenario: Scenario
    needs_ms: Mapping[str, float]
    truths: Mapping[str, Truth]


class Draft:
    """The table of a scenario while it is drawn. ``parts`` says how the load is divided, ``arrivals`` who asks."""

    def __init__(self, name: str, seed: int, seconds: float) -> None:
        self.name = f"heldout/{name}/{seed}"
        self.draw = random.Random(self.name)
        self.needs_ms: Dict[str, float] = {}
        self.parts: Dict[str, float] = {}
        self.arrivals: Dict[str, Dict[str, Any]] = {}
        self.truths: Dict[str, Truth] = {}
        self.table: Dict[str, Any] = {
            "device": {DEVICE: {}, "host": {}},
            "lane": {GPU: {"device": DEVICE}, HOST: {"device": "host"}},
            "model": {},
            "truth": {},
            "app": {},
            "workload": {},
            "run": {
                "duration": f"{seconds:g}s",
                "warmup": WARMUP,
                "noise": self.draw.choice((0.02, 0.04, 0.08)),
            },
        }

    def model(self, name: str, item_ms: float, sizes: Sizes = (1, 2, 4), saves: float = 0.0, **truth: Any) -> None:
        """A model whose largest batch takes ``item_ms`` for each item. What does not grow with the batch takes as long
        as ``saves`` items (drawn where it is 0)."""
        saves = saves or log_uniform(self.draw, 0.3, 3.0)
        each = item_ms * sizes[-1] / (saves + sizes[-1])
        self.add_model(name, {size: each * (saves + size) for size in sizes}, **truth)

    def add_model(self, name: str, times_ms: Mapping[int, float], lane: str = GPU, **truth: Any) -> None:
        """A model of these times; what is believed of them may be wrong."""
        wrong = log_uniform(self.draw, 1.0 / WRONG, WRONG) if self.draw.random() < UNKNOWN else 1.0
        self.table["model"][name] = {
            "engine": "synthetic",
            "lanes": [lane],
            "batch": list(times_ms),
            "expected": {str(size): f"{time_ms * wrong:.6f}ms" for size, time_ms in times_ms.items()},
        }
        times = {str(size): f"{time_ms:.6f}ms" for size, time_ms in times_ms.items()}
        self.table["truth"][name] = {"times": times, **truth}

    def host(self, name: str, time_ms: float) -> None:
        """A function on the host's lane, one item at a time."""
        self.add_model(name, {1: time_ms}, HOST)

    def time_ms(self, model: str, size: int = 1) -> float:
        """The time of a batch of a model."""
        return float(self.table["truth"][model]["times"][str(size)][:-2])

    def item_ms(self, model: str) -> float:
        """One item's part of a full batch."""
        largest = self.table["model"][model]["batch"][-1]
        return self.time_ms(model, largest) / largest

    def app(self, name: str, need_ms: float, slo_ms: float, part: float, **keys: Any) -> None:
        """An app that takes a ``part`` of the load. Its requests come at random or in bursts."""
        self.table["app"][name] = {"slo": f"{slo_ms:.3f}ms", **keys}
        self.needs_ms[name] = need_ms
        self.parts[name] = part
        self.arrivals[name] = self.bursts()

    def bursts(self) -> Dict[str, Any]:
        """Poisson arrivals, or a rate that varies, or phases without requests."""
        kind = self.draw.choice(("poisson", "poisson", "gamma", "onoff"))
        if kind == "gamma":
            return {"kind": kind, "cv": self.draw.uniform(0.4, 0.8), "window": self.draw.choice(("500ms", "1s"))}
        if kind == "onoff":
            on_ms = self.draw.choice((400, 1000))
            return {"kind": kind, "on": f"{on_ms}ms", "off": f"{on_ms // 2}ms"}
        return {"kind": kind}

    def others_ms(self, but: str) -> Tuple[float, float]:
        """The longest batch of other models on the lane, of one item and a full one, of the longest inputs."""
        others = [name for name, model in self.table["model"].items() if model["lanes"] == [GPU] and name != but]
        full_ms = [self.time_ms(name, self.table["model"][name]["batch"][-1]) for name in others]
        return max([self.alone_ms(name) for name in others]), max(full_ms)

    def alone_ms(self, model: str) -> float:
        """One item of the longest input, or one step and the reading of a long prompt."""
        truth = self.table["truth"][model]
        if "hint" in truth:
            longest = max([float(length) for length in self.arrivals[model]["hints"][LENGTH]])
            return float(truth["fixed"][:-2]) + float(truth["per_unit"][:-2]) * longest
        reading_ms = (
            float(truth["prefill"][:-2]) + 100.0 * float(truth["prefill_token"][:-2]) if "prefill" in truth else 0.0
        )
        return self.time_ms(model) + reading_ms

    def finish(self, name: str, seed: int, load: float) -> Mix:
        """The mix at a load."""
        whole = sum(self.parts.values())
        for app, part in self.parts.items():
            rate = load * part / whole * 1000.0 / self.needs_ms[app]
            workload = self.table["workload"][app] = {"app": app, "rate": rate, **self.arrivals[app]}
            if workload["kind"] == "periodic":
                workload["jitter"] = f"{1000.0 / rate * workload['jitter']:.3f}ms"
        scenario = parse_scenario(self.table, source=f"({self.name})")
        return Mix(name, seed, load, scenario, dict(self.needs_ms), dict(self.truths))


# --- apps -------------------------------------------------------------------------------------------------------------


def periodic(draft: Draft, app: str, streams: int = 0) -> None:
    """Have an app's requests come in a rhythm, in turn from so many streams."""
    draft.arrivals[app] = {"kind": "periodic", "jitter": draft.draw.choice((0.05, 0.2, 0.5))}
    if streams:
        draft.arrivals[app]["streams"] = streams


def plain(
    draft: Draft, name: str, item_ms: float, slo: float, part: float, sizes: Sizes = (1, 2, 4), **keys: Any
) -> None:
    """An app of one model, whose SLO is so many times what it takes alone."""
    draft.model(name, item_ms, sizes)
    draft.app(name, item_ms, slo * draft.time_ms(name), part, model=name, **keys)


def loop(draft: Draft, name: str, item_ms: float, part: float) -> None:
    """A critical app whose requests come in a rhythm, with time for any single item of another model before it, and for
    about a full batch. To be drawn last."""
    draft.model(name, item_ms, (1, 2, 4))
    single_ms, full_ms = draft.others_ms(name)
    slo_ms = draft.time_ms(name) + max(1.3 * single_ms, full_ms * draft.draw.uniform(0.9, 1.4))
    value = draft.draw.choice((1.0, 2.0, 3.0))
    draft.app(name, item_ms, slo_ms, part, model=name, value=value, **{"class": "critical"})
    periodic(draft, name)


def unequal(
    draft: Draft, name: str, item_ms: float, slo: float, part: float, told: bool, lengths: Lengths = (), **keys: Any
) -> None:
    """An app whose inputs differ in length; a batch takes as long as its longest. The requests declare it (``told``) or
    only their results do. ``item_ms``: of inputs of mean length in full batches."""
    lengths = lengths or draw_lengths(draft.draw)
    draft.model(name, item_ms, draft.draw.choice(((1, 2, 4), (1, 2, 4, 8))))
    varying(draft, name, told)
    longest = max(lengths)[0]
    alone_ms, fixed_ms = draft.time_ms(name), float(draft.table["truth"][name]["fixed"][:-2])
    longest_ms = fixed_ms + (alone_ms - fixed_ms) * longest
    draft.app(name, item_ms, max(slo * alone_ms, 1.5 * longest_ms), part, model=name, **keys)
    draft.arrivals[name]["hints"] = {LENGTH: {f"{length:.4f}": share for length, share in lengths}}


def varying(draft: Draft, name: str, told: bool) -> None:
    """Let the times of a model of one or several sizes grow with the length of the longest input."""
    truth, sizes = draft.table["truth"][name], draft.table["model"][name]["batch"]
    each_ms = (draft.time_ms(name, sizes[-1]) - draft.time_ms(name, sizes[0])) / (sizes[-1] - sizes[0])
    fixed_ms = draft.time_ms(name, sizes[0]) - each_ms * sizes[0]
    truth.update(hint=LENGTH, fixed=f"{fixed_ms:.6f}ms", per_unit=f"{each_ms:.6f}ms")
    if not told:
        truth["says"] = [LENGTH]


def language(draft: Draft, name: str, step_ms: float, slo: float, part: float, learnt: bool) -> None:
    """A language model. The steps of an answer are never told: they are predicted, more or less well, or learnt."""
    draw = draft.draw
    median, sigma, slots = draw.choice((12.0, 20.0, 32.0)), draw.choice((0.4, 0.6, 0.8)), draw.choice((4, 8))
    most, tokens, token_ms, prompt_ms = round(median * 5), draw.choice((40.0, 80.0)), draw.uniform(0.04, 0.1), 3.0
    draft.model(name, step_ms * 1.5 / slots, tuple([2**power for power in range(slots.bit_length())]), slots * 1.5)
    draft.table["truth"][name].update(
        batching="continuous",
        steps_hint=STEPS,
        steps_max=most,
        prefill=f"{prompt_ms}ms",
        prefill_token=f"{token_ms:.6f}ms",
        state_token="8kB",
        context=1000,
    )
    if not learnt:
        draft.table["truth"][name]["predict"] = {"rho": draw.choice((0.6, 0.8, 0.95))}
    mean = mean_lognormal(median, sigma, most)
    mean_tokens = mean_lognormal(tokens, 0.5, 400.0)
    reading_ms = prompt_ms + token_ms * mean_tokens
    slo_ms = slo * (mean * draft.time_ms(name, slots) + reading_ms)
    draft.app(name, mean * draft.item_ms(name) + reading_ms, slo_ms, part, model=name)
    draft.arrivals[name]["hints"] = {
        STEPS: {"lognormal": [median, sigma]},
        "tokens": {"lognormal": [tokens, 0.5], "max": 400.0},
    }


def mean_lognormal(median: float, sigma: float, most: float) -> float:
    """The mean of numbers of a lognormal law that are cut to ``most``."""
    over = math.log(most / median) / sigma
    below = 0.5 * math.erfc((sigma - over) / math.sqrt(2))
    return median * math.exp(sigma * sigma / 2) * below + most * 0.5 * math.erfc(over / math.sqrt(2))


def chain(
    draft: Draft, name: str, items_ms: Sequence[float], slo: float, spare_ms: float, part: float, **keys: Any
) -> None:
    """Models one after the other; the SLO is so many times what they take alone, and ``spare_ms`` more."""
    nodes: List[Dict[str, Any]] = []
    for index, item_ms in enumerate(items_ms):
        model = f"{name}{index}"
        draft.model(model, item_ms, draft.draw.choice(((1, 2, 4), (1, 2, 4, 8))))
        nodes.append({"name": model, "after": [f"{name}{index - 1}"] if index else []})
    alone_ms = sum([draft.time_ms(node["name"]) for node in nodes])
    draft.app(name, sum(items_ms), slo * alone_ms + spare_ms, part, node=nodes, **keys)


def fan(draft: Draft, name: str, item_ms: float, slo: float, part: float, parts: Mapping[int, float]) -> None:
    """A model that cuts its input into parts of unknown number, one that takes the parts, and a function on the host
    that gathers them."""
    cut, piece, gather = f"{name}cut", f"{name}part", f"{name}gather"
    draft.model(cut, item_ms * draft.draw.uniform(0.5, 1.5))
    draft.table["truth"][cut]["parts"] = {str(count): share for count, share in parts.items()}
    draft.model(piece, item_ms * draft.draw.uniform(0.5, 1.5), (1, 2, 4, 8))
    draft.host(gather, 0.3)
    mean = sum([count * share for count, share in parts.items()]) / sum(parts.values())
    nodes = [{"name": cut, "fan_out": True}, {"name": piece}, {"name": gather, "gather": True}]
    full, rest = divmod(max(1, math.ceil(mean)), 8)
    alone_ms = draft.time_ms(cut) + full * draft.time_ms(piece, 8)
    alone_ms += draft.time_ms(piece, next(size for size in (1, 2, 4, 8) if size >= rest)) if rest else 0.0
    draft.app(name, draft.item_ms(cut) + mean * draft.item_ms(piece), slo * alone_ms, part, node=nodes)


def ensemble(draft: Draft, name: str, count: int, item_ms: float, slo: float, part: float, profile: bool) -> None:
    """Several models whose votes make the answer, the fastest first; ``profile``: whether it is known how often which
    of them answer as all do."""
    draw = draft.draw
    members, vote = [f"{name}m{index}" for index in range(count)], f"vote_{name}"
    times = sorted([log_uniform(draw, 1.0, 3.5) for _ in members])
    for member, time in zip(members, times):
        draft.model(member, item_ms * time / sum(times), draw.choice(((1, 2), (1, 2, 4))))
    draft.host(vote, 0.05)
    rows = draw_rows(f"{draft.name}/{name}", count, draw.uniform(0.8, 1.6))
    draft.truths[name] = Truth(tuple(members), rows)
    nodes: List[Dict[str, Any]] = [{"name": member, "after": []} for member in members]
    nodes.append({"name": vote, "after": members, "join": "policy"})
    known = {"models": members, "edges": list(EDGES), "score": "difficulty", "agreement": [list(row) for row in rows]}
    alone_ms = sum([draft.time_ms(member) for member in members])
    keys = {"ensemble": known} if profile else {}
    draft.app(name, item_ms, slo * alone_ms, part, node=nodes, on_late="partial", **keys)
    draft.arrivals[name]["hints"] = {"difficulty": [0.0, 1.0]}


def scarce_memory(draft: Draft, memories_mb: Mapping[str, int], rare: Sequence[str]) -> None:
    """Give the models memory and a time to load, and the device too little for all: what lacks is a part of the memory
    of any that is rarely asked. The SLOs of those leave time for loading."""
    for name, memory_mb in memories_mb.items():
        load_ms = memory_mb * draft.draw.uniform(0.2, 0.4)
        draft.table["model"][name].update(memory=f"{memory_mb}MB", load=f"{load_ms:.1f}ms")
        if name in rare:
            app = draft.table["app"][name]
            app["slo"] = f"{float(app['slo'][:-2]) + load_ms * draft.draw.uniform(1.5, 4.0):.3f}ms"
    lacks = min([memories_mb[name] for name in rare]) * draft.draw.uniform(0.3, 0.95)
    draft.table["device"][DEVICE] = {"memory": f"{round(sum(memories_mb.values()) + STATES_MB - lacks)}MB"}


def draw_parts(draw: random.Random) -> Dict[int, float]:
    """The number of parts of an input: any number up to some, or few as a rule and many at times."""
    if draw.random() < 0.5:
        high = draw.choice((4, 6, 8))
        return dict.fromkeys(range(high + 1), 1.0 / (high + 1))
    return {1: 0.5, 2: 0.3, draw.choice((8, 12)): 0.2}
