"""Worlds that ``bench/regret.py`` draws: apps, models, lanes, arrivals, and the scheduler's knowledge of them.

A world's name says all: ``report/local/3`` is the fourth world of kind ``local`` of the seed ``report``, and is the
same whenever it is drawn. Nothing here knows a policy.

Load 1 is the rate that keeps the busiest lane in use when every model runs the largest batches with which a request's
whole path takes half of its SLO; apps that share a lane take shares of it. Times are drawn without a unit and scaled so
that some 25 to 80 requests a second come in any world: a run then costs about a second, and says as much.
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import LaneProfile, Profile
from edgeserve.sched.latency.timings import timing_of
from edgeserve.sim.scenario import Scenario, parse_scenario

GPU, HOST = "gpu", "host"
REQUESTS = 2500
"""Requests that one run is about as long as."""
SECONDS = (20.0, 40.0)
STEPPED, STEPWISE = 3.0, ("steps", "answers", "assistants")
"""Requests of many steps come so many times more slowly: in these kinds of worlds."""
LOADS = (0.7, 1.5)
COHORT_MAX = 64
KNOWN = ("profiled", "start-up", "guessed")
LENGTH = "length"
"""The hint that the time of an unequal model depends on."""

Lengths = Tuple[Tuple[float, float], ...]
"""The sizes of inputs in multiples of the mean one, each with its share."""
Measured = Dict[Tuple[str, str], Dict[int, List[int]]]


class Model:
    """One model of a world. A batch of b takes ``fixed + each * b`` (of the longest input in it, where lengths differ);
    ``steps`` of it in a row where it is iterative."""

    def __init__(self, name: str, sizes: Sequence[int], fixed: float, each: float, lanes: Sequence[str]) -> None:
        self.name, self.sizes, self.fixed, self.each, self.lanes = name, tuple(sizes), fixed, each, list(lanes)
        self.hint = ""
        self.truth: Dict[str, Any] = {}
        self.keys: Dict[str, Any] = {}
        self.steps = 1.0

    def time(self, size: int, length: float = 1.0) -> float:
        """One batch padded to a size that was profiled."""
        return self.fixed + self.each * next(item for item in self.sizes if item >= size) * length

    def cost(self, jobs: float, lengths: Lengths = ((1.0, 1.0),)) -> float:
        """So many jobs in as few batches as they need, each as long as the longest of it is expected to be."""
        full, rest = divmod(max(1, round(jobs)), self.sizes[-1])
        total = full * self.time(self.sizes[-1], expected_max(lengths, self.sizes[-1]))
        if rest:
            total += self.time(rest, expected_max(lengths, rest))
        return total * self.steps


class App:
    """One app: its nodes as a scenario has them, and how many jobs of each a request makes."""

    def __init__(self, name: str, nodes: List[Dict[str, Any]], weights: Mapping[str, float]) -> None:
        self.name, self.nodes, self.weights = name, nodes, dict(weights)
        self.slo = self.share = self.value = 1.0
        self.lengths: Lengths = ((1.0, 1.0),)
        self.later: Lengths = ()  # the lengths of the second half of the run, where they change
        self.in_flight = COHORT_MAX  # requests that may be in flight at a time
        self.hints: Dict[str, Any] = {}
        self.keys: Dict[str, Any] = {}
        self.workload: Dict[str, Any] = {}
        self.shift = (1.0, 1.0)  # the rate of each half of the run, as a multiple of the mean


class World(NamedTuple):
    """One world, ready to be simulated under any policy."""

    name: str
    kind: str
    tags: Tuple[str, ...]
    load: float
    scenario: Scenario
    profiles: Tuple[Profile, ...]
    measured: Measured


# --- drawing ----------------------------------------------------------------------------------------------------------


def expected_max(lengths: Lengths, count: int) -> float:
    """The expected longest of ``count`` inputs."""
    total = share = 0.0
    for length, weight in sorted(lengths):
        total += length * ((share + weight) ** count - share**count)
        share += weight
    return total


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    """Between two numbers, their logarithms equally likely."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def draw_model(draw: random.Random, name: str, lanes: Sequence[str], scale: float = 1.0) -> Model:
    """A model whose batches save much (a GPU that one item does not fill) or hardly anything (a small CPU)."""
    each = log_uniform(draw, 1.0, 6.0) * scale
    fixed = each * (log_uniform(draw, 1.0, 8.0) if draw.random() < 0.75 else log_uniform(draw, 0.1, 1.0))
    sizes: Sequence[int] = draw.choice((range(1, 9), (1, 2, 4, 8), range(1, 17), (1, 2, 4, 8, 16), (1, 4), (1, 2, 4)))
    return Model(name, sizes, fixed, each, lanes)


def draw_lengths(draw: random.Random) -> Lengths:
    """Two kinds of inputs, lognormal ones or equally likely ones, of mean 1."""
    shape = draw.choice(("two", "lognormal", "even"))
    if shape == "two":
        long, rare = log_uniform(draw, 3.0, 12.0), draw.choice((0.5, 0.75, 0.9))
        found = [(1.0, rare), (long, 1.0 - rare)]
    elif shape == "lognormal":
        deviation = draw.uniform(0.4, 1.0)
        normal = [-1.83, -1.28, -0.97, -0.73, -0.52, -0.34, -0.17, 0.0, 0.17, 0.34, 0.52, 0.73, 0.97, 1.28, 1.83]
        found = [(math.exp(deviation * z), 1.0 / len(normal)) for z in normal]
    else:
        found = [(0.2 + 0.2 * step, 1.0 / 9) for step in range(9)]
    mean = sum([length * share for length, share in found])
    return tuple([(length / mean, share) for length, share in found])


def draw_arrivals(draw: random.Random, app: App, tags: List[str]) -> None:
    """Poisson arrivals or bursts, at a rate that may change in the middle."""
    kind = draw.choice(("poisson", "poisson", "gamma", "onoff"))
    app.workload = {"kind": kind}
    if kind == "gamma":
        app.workload.update(cv=draw.choice((0.5, 1.0)), window=draw.choice(("500ms", "2s")))
    elif kind == "onoff":
        busy_ms = draw.choice((300, 1000))
        app.workload.update({"on": f"{busy_ms}ms", "off": f"{busy_ms // 2}ms"})
    tags.append(kind)
    if draw.random() < 0.25:
        app.shift = draw.choice(((0.6, 1.4), (1.4, 0.6)))
        tags.append("rate shifts")


def draw_graph(
    draw: random.Random, count: int, lanes_of: Callable[[str], List[str]], models: Dict[str, Model], prefix: str = ""
) -> Tuple[App, List[str]]:
    """A graph of about ``count`` nodes: stages one after the other, of which some fork, choose a branch, or fan out."""
    nodes: List[Dict[str, Any]] = []
    weights: Dict[str, float] = {}
    tags: List[str] = []

    def add(name: str, after: List[str], weight: float, **keys: Any) -> Model:
        name = prefix + name
        model = models[name] = draw_model(draw, name, lanes_of(name))
        nodes.append({"name": name, "model": name, "after": after, **keys})
        weights[name] = weight
        return model

    last: List[str] = []
    while len(nodes) < count:
        left, stage = count - len(nodes), len(nodes)
        shape = (
            draw.choice(("one", "one", "fork", "route", "fan"))
            if left >= 4
            else draw.choice(("one", "one", "fan"))
            if left == 3
            else "one"
        )
        if shape == "one":
            add(f"n{stage}", last, 1.0)
        elif shape in ("fork", "route"):
            head = add(f"h{stage}", last, 1.0, **({"route": "one"} if shape == "route" else {}))
            branches = [f"{prefix}b{stage + index}" for index in range(2)]
            share = draw.choice((0.5, 0.7)) if shape == "route" else 1.0
            for branch, weight in zip(branches, (share, 1.0 if shape == "fork" else 1.0 - share)):
                add(branch[len(prefix) :], [head.name], weight)
            if shape == "route":
                head.truth["routes"] = {branches[0]: share, branches[1]: 1.0 - share}
            add(f"j{stage}", branches, 1.0)
        else:
            low = draw.choice((0, 1, 1))
            high = low + draw.choice((2, 4, 8))
            cut = add(f"c{stage}", last, 1.0, fan_out=True)
            cut.truth["parts"] = [low, high]
            add(f"p{stage}", [cut.name], (low + high) / 2)
            add(f"g{stage}", [prefix + f"p{stage}"], 1.0, gather=True)
        if shape != "one":
            tags.append(shape)
        last = [nodes[-1]["name"]]
    return App(f"{prefix}pipeline", nodes, weights), tags


# --- kinds ------------------------------------------------------------------------------------------------------------


class Draft:
    """A world while it is drawn. ``slo`` of the apps is in multiples of the time alone until :func:`finish`."""

    def __init__(self, name: str) -> None:
        self.draw = random.Random(f"{name}/world")
        self.models: Dict[str, Model] = {}
        self.apps: List[App] = []
        self.lanes = [GPU]
        self.tags: List[str] = []
        self.faults: Dict[str, Any] = {}
        self.flood = 0.0  # one client asks so many times as much as all others, in the middle third of the run

    def single(self, name: str, model: Model) -> App:
        """An app of one node."""
        app = App(name, [{"name": model.name, "model": model.name}], {model.name: 1.0})
        app.slo = log_uniform(self.draw, 2.0, 8.0)
        self.models[model.name] = model
        self.apps.append(app)
        return app

    def spread_load(self) -> None:
        """Shares of the load for apps that share the lanes."""
        parts = [self.draw.uniform(0.5, 1.5) for _ in self.apps]
        for app, part in zip(self.apps, parts):
            app.share = part / sum(parts)


def one(draft: Draft) -> None:
    """A model that always takes about the same time, on one lane or two."""
    if draft.draw.random() < 0.2:
        draft.lanes = [GPU, "gpu1"]
        draft.tags.append("two lanes")
    draw_arrivals(draft.draw, draft.single("app", draw_model(draft.draw, "m", draft.lanes)), draft.tags)


def apps(draft: Draft) -> None:
    """Several such apps on one lane, with values and SLOs of their own; some share a model."""
    for index in range(draft.draw.randrange(2, 5)):
        shared = draft.models and draft.draw.random() < 0.3
        model = (
            draft.draw.choice(list(draft.models.values()))
            if shared
            else draw_model(draft.draw, f"m{index}", draft.lanes, log_uniform(draft.draw, 0.3, 3.0))
        )
        app = draft.single(f"app{index}", model)
        app.value = draft.draw.choice((1.0, 1.0, 1.0, 3.0))
        draw_arrivals(draft.draw, app, draft.tags)


def camera(draft: Draft) -> None:
    """Cameras whose newest frame counts, often beside an app of another kind. A stream has one frame in flight."""
    for index in range(draft.draw.choice((1, 1, 2))):
        app = draft.single(f"camera{index}", draw_model(draft.draw, f"m{index}", draft.lanes))
        app.keys["stream"] = "newest_wins"
        app.in_flight = draft.draw.choice((1, 1, 2, 3, 4, 8))
        app.workload = {"kind": "periodic", "streams": app.in_flight}
        draft.tags.append(f"{app.in_flight} streams")
    if draft.draw.random() < 0.6:
        draw_arrivals(draft.draw, draft.single("other", draw_model(draft.draw, "other", draft.lanes)), draft.tags)


def steps(draft: Draft) -> None:
    """A model of many steps, of known number or not, at times beside frames."""
    model = draw_model(draft.draw, "m", draft.lanes, 0.3)
    low, high = draft.draw.choice(((20, 20), (5, 40), (10, 30)))
    told = low == high
    model.steps = (low + high) / 2
    model.truth.update(steps=[low, high], steps_per_run=1)
    app = draft.single("turns", model)
    app.slo = log_uniform(draft.draw, 1.5, 5.0)
    app.hints = {"steps": low} if told else {}
    draw_arrivals(draft.draw, app, draft.tags)
    draft.tags.append("steps told" if told else "steps not told")
    if draft.draw.random() < 0.5:
        draw_arrivals(draft.draw, draft.single("frames", draw_model(draft.draw, "frames", draft.lanes)), draft.tags)


def answers(draft: Draft) -> None:
    """A language model whose answers are of unequal length, which is predicted well, badly or not at all; at times with
    memory for a few of the sequences only, or beside frames."""
    draw = draft.draw
    model = draw_model(draw, "chat", draft.lanes, 0.3)
    median, sigma = draw.choice((8.0, 20.0)), draw.choice((0.2, 0.5, 0.9))
    model.steps = median * math.exp(sigma * sigma / 2)
    most = round(median * 5)
    model.truth.update(
        batching="continuous",
        steps_hint="words",
        steps_max=most,
        prefill_steps=draw.choice((0.5, 2.0)),
        state_token="1kB",
    )
    predicted = draw.choice(("well", "well", "too short", "too long", "not"))
    if predicted != "not":
        model.truth["predict"] = {"rho": 0.8, "scale": {"well": 1.0, "too short": 0.33, "too long": 3.0}[predicted]}
    if draw.random() < 0.3:
        model.keys["state_memory"] = f"{max(most + 30, round(model.sizes[-1] * model.steps / 2))}kB"
        draft.tags.append("memory for half")
    app = draft.single("answers", model)
    app.slo = log_uniform(draw, 1.5, 5.0)
    app.hints = {"words": {"lognormal": [median, sigma]}}
    draw_arrivals(draw, app, draft.tags)
    draft.tags.append(f"predicted {predicted}" if predicted != "not" else "not predicted")
    if draw.random() < 0.3:
        draw_arrivals(draw, draft.single("frames", draw_model(draw, "frames", draft.lanes)), draft.tags)


def assistants(draft: Draft) -> None:
    """A language model in trouble: a slower lane beside its own, lanes that are lost, answers of one token and of the
    most there are, prompts that do not fit, memory for half, a client that floods, readers that are cancelled since
    they do not read. Each at times, and lengths predicted well, wrongly or not at all."""
    draw = draft.draw
    model = draw_model(draw, "chat", draft.lanes, 0.3)
    most, sigma = draw.choice((40, 100)), draw.choice((0.5, 0.9))
    median = most / 5
    model.steps = median * math.exp(sigma * sigma / 2)
    model.truth.update(
        batching="continuous",
        steps_hint="words",
        steps_max=most,
        prefill_steps=draw.choice((0.5, 2.0)),
        state_token="1kB",
        context=1000,
    )
    words: Any = {"lognormal": [median, sigma]}
    if draw.random() < 0.3:
        share = draw.choice((0.0, 0.5, 0.9, 1.0))
        words, model.steps = {"1": share, str(most): 1.0 - share}, share + (1.0 - share) * most
        draft.tags.append(f"{share:.0%} of one token, others of the most")
    model.steps += model.truth["prefill_steps"]  # with answers of one token, most of the work
    predicted = draw.choice((1.0, 1.0 / 3.0, 3.0, 0.0))
    if predicted:
        model.truth["predict"] = {"rho": 0.8, "scale": predicted, "median": median, "sigma": sigma}
    app = draft.single("answers", model)
    app.slo, app.hints = log_uniform(draw, 1.5, 5.0), {"words": words}
    draw_arrivals(draw, app, draft.tags)
    draft.tags.append(f"predicted {predicted:.2g} times as long" if predicted else "not predicted")
    for name, chance in (
        ("slow lane", 0.5),
        ("lanes lost", 0.3),
        ("prompts too long", 0.3),
        ("memory for half", 0.3),
        ("flood", 0.4),
        ("readers stall", 0.3),
    ):
        if draw.random() < chance:
            draft.tags.append(name)
            _trouble(draft, name, model, app, most)


def _trouble(draft: Draft, name: str, model: Model, app: App, most: int) -> None:
    if name == "slow lane":
        draft.lanes = [GPU, "side"]
        model.truth.update(told=True, lane={"side": {"slower": draft.draw.choice((1.5, 3.0, 8.0))}})
        model.keys["lanes"] = draft.lanes  # what the load is of is the other
    elif name == "lanes lost":
        draft.faults.update(lane_loss_every="5s", lane_loss="300ms")
    elif name == "prompts too long":
        app.hints["tokens"] = {"20": 0.9, "2000": 0.1}
    elif name == "memory for half":
        model.keys["state_memory"] = f"{max(most + 60, round(model.sizes[-1] * (model.steps + 20) / 2))}kB"
    elif name == "flood":
        draft.flood = draft.draw.choice((1.0, 3.0))
    else:
        draft.faults["cancel"] = 0.1


def unequal(draft: Draft) -> None:
    """Apps that ask one model for different amounts of work, which they declare or not, and which may change."""
    model = draw_model(draft.draw, "m", draft.lanes)
    model.hint = LENGTH
    told, shifts = draft.draw.random() < 0.4, draft.draw.random() < 0.3
    slo = log_uniform(draft.draw, 2.0, 8.0)
    for index in range(draft.draw.choice((1, 2, 3))):
        app = draft.single(f"app{index}", model)
        app.slo = slo
        scale = log_uniform(draft.draw, 0.4, 2.0) if index else 1.0
        app.lengths = tuple([(length * scale, share) for length, share in draw_lengths(draft.draw)])
        if shifts:
            app.later = tuple([(length * 1.5, share) for length, share in app.lengths])
        draw_arrivals(draft.draw, app, draft.tags)
    if not told:
        model.truth["says"] = [LENGTH]  # the world knows it, the scheduler only when the request has ended
    draft.tags += ["length told" if told else "length not told"] + ["lengths shift"] * shifts


def local(draft: Draft) -> None:
    """Pipelines whose modules share one lane."""
    for index in range(draft.draw.choice((1, 1, 1, 2))):
        app, tags = draw_graph(draft.draw, draft.draw.randrange(2, 8), lambda _: [GPU], draft.models, f"a{index}")
        app.slo = log_uniform(draft.draw, 2.0, 8.0)
        draft.apps.append(app)
        draft.tags += [f"{len(app.nodes)} nodes", *tags]
        draw_arrivals(draft.draw, app, draft.tags)


def hosts(draft: Draft) -> None:
    """Such a pipeline with host functions in between, which have a lane of their own and no batches."""
    app, tags = draw_graph(draft.draw, draft.draw.randrange(3, 8), lambda _: [GPU], draft.models)
    app.slo = log_uniform(draft.draw, 2.0, 8.0)
    draft.lanes = [GPU, HOST]
    able = [node["name"] for node in app.nodes if app.weights[node["name"]] <= 1.0]
    chosen = draft.draw.sample(able, min(len(able) - 1, draft.draw.randrange(1, 4)))
    total = sum([model.time(1) for model in draft.models.values()])
    for name in chosen:  # together about a quarter of the time that the lane needs for one request
        old = draft.models[name]
        host = draft.models[name] = Model(name, (1,), total * draft.draw.uniform(0.01, 0.08), 0.0, [HOST])
        host.truth = old.truth
    draft.apps.append(app)
    draft.tags += [f"{len(app.nodes)} nodes", f"{len(chosen)} on the host", *tags]
    draw_arrivals(draft.draw, app, draft.tags)


def lanes(draft: Draft) -> None:
    """A pipeline every module of which has lanes of its own, about as many as it needs."""
    app, tags = draw_graph(draft.draw, draft.draw.randrange(2, 8), lambda name: [f"{name}.0"], draft.models)
    app.slo = log_uniform(draft.draw, 2.0, 6.0)
    need = {
        name: model.cost(model.sizes[-1]) / model.sizes[-1] * app.weights[name] for name, model in draft.models.items()
    }
    each = max(need.values()) / draft.draw.choice((1, 2, 3))
    for name, model in draft.models.items():
        model.lanes = [f"{name}.{index}" for index in range(max(1, math.ceil(need[name] / each - 0.1)))]
    draft.lanes = [lane for model in draft.models.values() for lane in model.lanes]
    draft.apps.append(app)
    draft.tags += [f"{len(app.nodes)} nodes", f"{len(draft.lanes)} lanes", *tags]
    draw_arrivals(draft.draw, app, draft.tags)


KINDS: Mapping[str, Callable[[Draft], None]] = {
    "one": one,
    "apps": apps,
    "camera": camera,
    "steps": steps,
    "answers": answers,
    "assistants": assistants,
    "unequal": unequal,
    "local": local,
    "hosts": hosts,
    "lanes": lanes,
}


# --- from a draft to a scenario ---------------------------------------------------------------------------------------


def capacity(app: App, models: Mapping[str, Model], slo: float) -> float:
    """Requests per unit of time that keep the app's busiest lane in use, in cohorts of half the SLO."""
    best = 0.0
    for count in range(1, app.in_flight + 1):
        costs = {
            node["name"]: models[node["model"]].cost(count * app.weights[node["name"]], app.lengths)
            * min(1.0, count * app.weights[node["name"]])
            for node in app.nodes
        }
        if count > 1 and sum(costs.values()) > slo / 2:
            break
        used: Dict[str, float] = {}
        for node in app.nodes:
            model = models[node["model"]]
            for lane in model.lanes:
                used[lane] = used.get(lane, 0.0) + costs[node["name"]] / len(model.lanes)
        best = max(best, count / max(used.values()))
    return best


def draw_world(name: str) -> World:
    """The world of a name, ``SEED/KIND/NUMBER``."""
    kind = name.split("/")[1]
    draft = Draft(name)
    KINDS[kind](draft)
    draft.spread_load()
    draw = draft.draw
    load = round(draw.uniform(*LOADS), 3)
    known = draw.choices(KNOWN, (2, 1, 1))[0]
    noise = draw.choice((0.02, 0.05, 0.1))
    rates = {}
    for app in draft.apps:
        alone = sum(
            [draft.models[node["model"]].cost(max(1.0, app.weights[node["name"]]), app.lengths) for node in app.nodes]
        )
        app.slo *= alone
        rates[app.name] = app.share * load * capacity(app, draft.models, app.slo)
    unit_ms = 1000.0 * sum(rates.values()) / log_uniform(draw, 25.0, 80.0) * (STEPPED if kind in STEPWISE else 1.0)
    rates = {app: rate * 1000.0 / unit_ms for app, rate in rates.items()}
    seconds = min(SECONDS[1], max(SECONDS[0], REQUESTS / sum(rates.values())))
    table = scenario_table(draft, unit_ms, rates, seconds, noise)
    profiles, measured = what_is_known(draft, unit_ms, known, noise, table)
    for workload in table["workload"].values():
        if workload["kind"] == "periodic":
            workload["jitter"] = f"{draw.choice((0.0, 0.2, 0.8)) * 1000.0 / workload['rate']:.3f}ms"
    return World(
        name, kind, (known, *draft.tags), load, parse_scenario(table, source=f"(world {name})"), profiles, measured
    )


def scenario_table(
    draft: Draft, unit_ms: float, rates: Mapping[str, float], seconds: float, noise: float
) -> Dict[str, Any]:
    """The draft as a scenario. What models are expected to take is not in it."""
    table: Dict[str, Any] = {
        "lane": {lane: {} for lane in draft.lanes},
        "policy": {"edf": {}},
        "model": {},
        "truth": {},
        "app": {},
        "workload": {},
        "run": {"duration": f"{seconds:.3f}s", "noise": noise},
    }
    for model in draft.models.values():
        table["model"][model.name] = {
            "engine": "synthetic",
            "batch": list(model.sizes),
            "lanes": model.lanes,
            **model.keys,
        }
        times = {str(size): f"{model.time(size) * unit_ms:.6f}ms" for size in model.sizes}
        table["truth"][model.name] = {
            **model.truth,
            "times": times,
            **(
                {
                    "hint": model.hint,
                    "fixed": f"{model.fixed * unit_ms:.6f}ms",
                    "per_unit": f"{model.each * unit_ms:.6f}ms",
                }
                if model.hint
                else {}
            ),
        }
    for app in draft.apps:
        table["app"][app.name] = {
            "node": app.nodes,
            "slo": f"{app.slo * unit_ms:.3f}ms",
            "value": app.value,
            **app.keys,
        }
        halves = (app.shift, (app.lengths, app.later or app.lengths))
        if app.shift == (1.0, 1.0) and not app.later:
            halves = ((1.0,), (app.lengths,))  # type: ignore[assignment]
        for index, (factor, lengths) in enumerate(zip(*halves)):
            hints = dict(app.hints)
            if len(lengths) > 1:
                hints[LENGTH] = {f"{length:.4f}": share for length, share in lengths}
            when = (
                {}
                if len(halves[0]) == 1
                else {"stop": f"{seconds / 2:.3f}s"}
                if index == 0
                else {"start": f"{seconds / 2:.3f}s"}
            )
            table["workload"][f"{app.name}{index}"] = {
                "app": app.name,
                **app.workload,
                "rate": rates[app.name] * factor,
                "hints": hints,
                **when,
            }
        if draft.flood:
            table["workload"]["flood"] = {
                "app": app.name,
                "kind": "poisson",
                "rate": rates[app.name] * draft.flood,
                "hints": dict(app.hints),
                "start": f"{seconds / 3:.3f}s",
                "stop": f"{seconds * 2 / 3:.3f}s",
            }
    if draft.faults:
        table["faults"] = draft.faults
    return table


def what_is_known(
    draft: Draft, unit_ms: float, known: str, noise: float, table: Dict[str, Any]
) -> Tuple[Tuple[Profile, ...], Measured]:
    """The scheduler's knowledge of the models' times: a profile, with the apps' times alone where inputs differ; a few
    runs at start, of an arbitrary input; or what the user believes, up to 1.6 times too much or too little."""
    draw, profiles, measured = draft.draw, [], {}

    def runs(model: Model, size: int, length: float, count: int) -> List[int]:
        return [
            max(1, round(model.time(size, length) * unit_ms * 1e6 * (1.0 + noise * draw.gauss(0.0, 1.0))))
            for _ in range(count)
        ]

    for model in draft.models.values():
        asking = [app for app in draft.apps if model.name in app.weights]
        usual = sum([length * share for app in asking for length, share in app.lengths]) / len(asking)
        if known == "profiled":
            timings = {size: timing_of(runs(model, size, usual, 100)) for size in model.sizes}
            alone = (
                {
                    app.name: tuple(
                        sorted([runs(model, 1, draw.choices(*zip(*app.lengths))[0], 1)[0] for _ in range(300)])
                    )
                    for app in asking
                }
                if model.hint
                else {}
            )
            lane = LaneProfile(
                timings, round(model.fixed * unit_ms * 1e6), round(model.each * usual * unit_ms * 1e6), alone=alone
            )
            profiles.append(Profile(model.name, "cpu", dict.fromkeys(model.keys.get("lanes", model.lanes), lane)))
        elif known == "start-up":
            length = draw.choice((min(asking[0].lengths)[0], usual))
            for name in model.keys.get("lanes", model.lanes):
                measured[model.name, name] = {size: runs(model, size, length, 3) for size in model.sizes}
        else:
            factor = log_uniform(draw, 1 / 1.6, 1.6)
            table["model"][model.name]["expected"] = {
                str(size): f"{model.time(size, usual) * unit_ms * factor:.6f}ms" for size in model.sizes
            }
    return tuple(profiles), measured
