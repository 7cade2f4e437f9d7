"""RT-LM's setting in virtual time: five language models by their published constants, lanes, workloads, and what came
of a run.

Answer lengths are lognormal with equal mean and a deviation of the logarithm of 0.2, 0.5 or 0.9 (small, normal, large
variance). Predictions are the mean of the lengths that are possible given a number whose correlation with the logarithm
is ``rho``. A step of b answers takes eta / 2 * (0.7 + 0.3 * min(b, C) / C), times b / C above C; a prefill two steps.
"""

from __future__ import annotations

import csv
import math
import os
import random
import statistics
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

VARIANCES = {"small": 0.2, "normal": 0.5, "large": 0.9}
RHO = 0.8
STEPS_MAX = 256
SIDE_BATCH = 8
WAITED = "waited"
"""The hint of a gathered request that says how many seconds it had waited when it came."""

TOKENS = 14.0
"""The median length of a prompt."""


class Lm(NamedTuple):
    """The published constants of a model: C, tau in tokens, eta and phi in ms."""

    batch: int
    tau: float
    eta_ms: float
    phi_ms: float

    @property
    def mean_steps(self) -> float:
        """The mean length whose predictions (normal variance, rho 0.8) have tau as their 0.9 quantile."""
        spread = RHO * VARIANCES["normal"]
        return self.tau / math.exp(statistics.NormalDist().inv_cdf(0.9) * spread - spread * spread / 2)


LMS = {
    "DialoGPT": Lm(11, 35, 50, 80),
    "GODEL": Lm(24, 34, 40, 100),
    "BlenderBot": Lm(33, 29, 100, 130),
    "BART": Lm(11, 26, 50, 80),
    "T5": Lm(33, 22, 40, 70),
}
"""The paper's constants (DialoGPT-medium, GODEL-v1_1-base, blenderbot-400M-distill, bart-base, t5-base)."""


class System(NamedTuple):
    """A policy: ``kind`` with ``options``; ``batching`` of the engine: ``static`` (all answers of a batch return
    together), ``early_exit`` (each when it ends), ``continuous``. ``kappa``: a CPU lane whose steps take so many times
    as long (0: no such lane)."""

    kind: str = "rtlm"
    options: Mapping[str, Any] = {}
    batching: str = "static"
    kappa: float = 0.0


class Case(NamedTuple):
    """The load of a run: ``load`` relative to FIFO's saturated throughput (one number, or one per minute), the
    variance, the correlation of predictions, their scale, the gathering window in ms, seconds per load."""

    lm: str = "DialoGPT"
    variance: str = "normal"
    load: float | Sequence[float] = 0.95
    rho: Optional[float] = RHO
    scale: float = 1.0
    xi_ms: float = 2000.0
    seconds: float = 300.0
    rate: float = 0.0  # requests per second, in place of a load
    malicious: float = 0.0  # share of requests whose answers are ``longer`` times as long
    longer: float = 2.0
    side_batch: int = SIDE_BATCH
    astray: float = 0.0  # predictions are so many times too long or too short, by the toss of a coin
    gathered: bool = False  # requests come at multiples of the window already, for a policy that has no window


class Result(NamedTuple):
    """Response times in seconds; answers per minute of main-lane time; the mean batch; percent whose response is above
    2 s + 2 phi tokens; percent that began on the side lane."""

    mean: float
    p95: float
    max: float
    per_busy_min: float
    batch: float
    missed: float
    aside: float
    count: int

    @property
    def throughput(self) -> float:
        """60 over the mean response: what the paper's Table IV is close to."""
        return 60.0 / self.mean


def saturated_per_s(lm: Lm, variance: str) -> float:
    """FIFO's throughput when it never waits: full batches of C, each as long as its longest answer."""
    draw, sigma = random.Random("saturation"), VARIANCES[variance]
    median = lm.mean_steps / math.exp(sigma * sigma / 2)
    longest = [max([_length(draw, median, sigma) for _ in range(lm.batch)]) for _ in range(4000)]
    return lm.batch / ((2 + statistics.fmean(longest)) * lm.eta_ms / 2e3)


def _length(draw: random.Random, median: float, sigma: float) -> int:
    return min(STEPS_MAX, max(1, round(draw.lognormvariate(math.log(median), sigma))))


def scenario_of(system: System, case: Case) -> Dict[str, Any]:
    """The table of a scenario."""
    lm, sigma = LMS[case.lm], VARIANCES[case.variance]
    median = lm.mean_steps / math.exp(sigma * sigma / 2)
    rate = case.rate or saturated_per_s(lm, case.variance)
    loads = [case.load] if isinstance(case.load, float) else list(case.load)
    if case.rate:
        loads = [1.0]
    largest = lm.batch if system.options.get("consolidation") != "or" else math.floor(1.8 * lm.batch)
    step = {"full": f"{lm.eta_ms / 2}ms", "saturates": lm.batch, "alone": 0.7}
    truth: Dict[str, Any] = {
        "steps_hint": "answer",
        "steps_max": STEPS_MAX,
        "step": step,
        "prefill_steps": 2.0,
        "told": True,
        "batching": system.batching,
    }
    if case.rho is not None:
        truth["predict"] = {"rho": case.rho, "scale": case.scale}
    table: Dict[str, Any] = {
        "device": {"gpu": {}},
        "lane": {"gpu0": {"device": "gpu"}},
        "model": {"chat": {"engine": "synthetic", "batch": list(range(1, largest + 1))}},
        "policy": {"chat": {"kind": system.kind, **options_of(system, lm, case), "trials": False}},
        "server": {"pending_max": 1_000_000},
        "app": {"chat": {"model": "chat", "slo": "600s", "on_late": "answer", "pending_max": 1_000_000}},
        "truth": {"chat": truth},
        "run": {"duration": f"{case.seconds * len(loads)}s"},
    }
    if system.kappa:
        table["device"]["cpu"] = {}
        table["lane"]["cpu0"] = {"device": "cpu"}
        truth["lane"] = {
            "cpu0": {"step": {"full": f"{system.kappa * lm.eta_ms / 2}ms", "saturates": case.side_batch, "alone": 0.7}}
        }
    table["workload"] = workloads(case, loads, rate, median, sigma)
    return table


def options_of(system: System, lm: Lm, case: Case) -> Dict[str, Any]:
    """The options of the policy, with the published constants of the model."""
    options: Dict[str, Any] = {}
    if system.kind == "rtlm":
        options.update(eta_ms=lm.eta_ms, phi_ms=lm.phi_ms, xi_ms=case.xi_ms)
        options["batch"] = 0 if system.kappa else lm.batch  # beside a side lane each lane's own
        options.update({"side_lanes": ["cpu0"]} if system.kappa else {})
    return {**options, **system.options}


def workloads(case: Case, loads: Sequence[float], rate: float, median: float, sigma: float) -> Dict[str, Any]:
    """Poisson arrivals; where some are malicious, a second workload of them."""
    found: Dict[str, Any] = {}
    for name, share, longer in (("people", 1.0 - case.malicious, 1.0), ("malicious", case.malicious, case.longer)):
        if share <= 0.0:
            continue
        changes = [
            {"at": f"{index * case.seconds}s", "rate": rate * share * load} for index, load in enumerate(loads) if index
        ]
        found[name] = {
            "app": "chat",
            "kind": "poisson",
            "rate": rate * share * loads[0],
            "changes": changes,
            "hints": {"answer": {"lognormal": [median * longer, sigma]}, "tokens": {"lognormal": [TOKENS, 0.5]}},
        }
    return found


def run(system: System, case: Case, seed: int) -> Result:
    """Simulate one case."""
    table = scenario_of(system, case)
    if case.gathered:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "gathered.csv")
            median, sigma = table["workload"]["people"]["hints"]["answer"]["lognormal"]
            _write_gathered(path, table, case, seed)
            table["truth"]["chat"]["predict"].update(median=median, sigma=sigma)
            table["workload"] = {"people": {"app": "chat", "kind": "trace", "file": path}}
            return judge(simulate(parse_scenario(table), seed, []), LMS[case.lm])
    if not case.astray:
        return judge(simulate(parse_scenario(table), seed, []), LMS[case.lm])
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "astray.csv")
        _write_astray(path, table, case, seed)
        table["workload"] = {"people": {"app": "chat", "kind": "trace", "file": path}}
        del table["truth"]["chat"]["predict"]
        return judge(simulate(parse_scenario(table), seed, []), LMS[case.lm])


def _write_astray(path: str, table: Mapping[str, Any], case: Case, seed: int) -> None:
    """A trace of Poisson arrivals whose declared lengths are wrong by a factor, either way."""
    people = table["workload"]["people"]
    median, sigma = people["hints"]["answer"]["lognormal"]
    draw, at = random.Random(f"{seed}/astray"), 0.0
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", "steps", "answer", "tokens"])
        while True:
            at += draw.expovariate(people["rate"])
            if at > case.seconds:
                return
            answer = _length(draw, median, sigma)
            told = answer * (case.astray if draw.random() < 0.5 else 1.0 / case.astray)
            rows.writerow([f"{at:.9f}", f"{told:.6f}", answer, f"{draw.lognormvariate(math.log(TOKENS), 0.5):.3f}"])


def _write_gathered(path: str, table: Mapping[str, Any], case: Case, seed: int) -> None:
    """A trace of Poisson arrivals that are let in at the next multiple of the gathering window, and how long each has
    waited: what the window costs a policy that has none of its own."""
    people = table["workload"]["people"]
    median, sigma = people["hints"]["answer"]["lognormal"]
    rates = [people["rate"], *[change["rate"] for change in people["changes"]]]
    draw, window_s = random.Random(f"{seed}/gathered"), case.xi_ms / 1e3
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", WAITED, "answer", "tokens"])
        for place, rate in enumerate(rates):
            at = place * case.seconds
            while True:
                at += draw.expovariate(rate)
                if at > (place + 1) * case.seconds:
                    break
                let_in = math.ceil(at / window_s) * window_s
                tokens = draw.lognormvariate(math.log(TOKENS), 0.5)
                rows.writerow([f"{let_in:.9f}", f"{let_in - at:.9f}", _length(draw, median, sigma), f"{tokens:.3f}"])


def judge(done: Any, lm: Lm) -> Result:
    """The result of a run. Every request must have been answered."""
    took: List[float] = []
    missed = 0
    for end in done.world.ended:
        if end.outcome != "completed":
            raise AssertionError(f"request {end.request.id} ended as {end.outcome}: {end.reason}")
        response = (end.end_ns - end.request.arrival_ns) / 1e9 + end.request.hints.get(WAITED, 0.0)
        took.append(response)
        missed += response > 2.0 + 2.0 * lm.phi_ms / 1e3 * end.request.hints["tokens"]
    took.sort()
    busy_s = done.world.lanes["gpu0"].busy_ns / 1e9
    batches = [(jobs, count) for (_, jobs), count in done.world.usage.batches.items()]
    aside = done.scheduler.policies[0].figures().get("sent to side lanes", 0)
    return Result(
        statistics.fmean(took),
        took[int(0.95 * len(took))],
        took[-1],
        60.0 * len(took) / max(busy_s, 1e-9),
        sum([jobs * count for jobs, count in batches]) / max(1, sum([count for _, count in batches])),
        100.0 * missed / len(took),
        100.0 * aside / len(took),
        len(took),
    )


def mean(rows: Sequence[Result]) -> Result:
    """The mean of every column, the largest maximum."""
    found = Result(*[sum(column) / len(rows) for column in zip(*rows)])
    return found._replace(max=max([row.max for row in rows]))
