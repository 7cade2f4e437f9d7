"""PARD's experiments as cases: pipelines and their profiles, batch sizes and lanes, arrival rates, scaling.

Profiles, pipelines and the shape of the traces are those of a reference simulation of the paper (EuroSys '26; the paper
gives pipelines and SLOs, not its profiles). The traces are generated: sinusoids (*wiki*), a slow random tide with short
spikes (*tweet*), heavy-tailed bursts (*azure*), each scaled to the reference's coefficient of variation, so that no
recorded trace has to be shipped.
"""

from __future__ import annotations

import math
import random
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

PROFILES_MS: Dict[str, Tuple[float, float]] = {  # a batch of b takes a + c * b
    "object": (18, 16.5),
    "person": (18, 15),
    "face": (9, 6.6),
    "expression": (7.5, 4.8),
    "eye": (7.5, 5.4),
    "pose": (13.5, 12.6),
    "text": (12, 10.5),
    "kill": (7.5, 4.5),
    "alive": (9, 6),
    "health": (6, 3.6),
    "icon": (9, 7.2),
}

PIPELINES: Dict[str, Tuple[int, Dict[str, Tuple[str, ...]]]] = {  # SLO in ms, module -> the modules before it
    "tm": (400, {"object": (), "face": ("object",), "text": ("face",)}),
    "lv": (500, {"person": (), "face": ("person",), "expression": ("face",), "eye": ("expression",), "pose": ("eye",)}),
    "ga": (600, {"object": (), "kill": ("object",), "alive": ("kill",), "health": ("alive",), "icon": ("health",)}),
    "da": (
        420,
        {
            "person": (),
            "pose": ("person",),
            "face": ("person",),
            "expression": ("pose", "face"),
            "eye": ("expression",),
        },
    ),
}

TRACES = {"wiki": 0.46, "tweet": 1.0, "azure": 1.25}  # name -> coefficient of variation of the rate
FLOORS = {"wiki": 1.0, "tweet": 1.0, "azure": 4.0}  # lanes that are always up, as multiples of the mean rate
HEADROOM, COLD_START_S, KEEP_S, RATE_OVER_S = 1.08, 3, 30, 3  # the autoscaler
PEAK_WINDOW_S, PEAK_SHARE = 5, 0.05  # the windows of 5 s in this share of the trace exceed what all lanes can do


def batch_ms(module: str, size: int) -> float:
    """The time of a batch of a module."""
    fixed, each = PROFILES_MS[module]
    return fixed + each * size


class Plan(NamedTuple):
    """A pipeline with its batch sizes."""

    name: str
    slo_ms: int
    before: Dict[str, Tuple[str, ...]]
    sizes: Dict[str, int]

    def lanes(self, rate: float) -> Dict[str, int]:
        """Lanes per module for a rate, in full batches."""
        return {
            module: max(1, math.ceil(rate * batch_ms(module, size) / 1000 / size - 1e-9))
            for module, size in self.sizes.items()
        }

    def capacity(self, lanes: Dict[str, int]) -> float:
        """Requests per second of the slowest module, in full batches."""
        return min(
            count * self.sizes[module] / batch_ms(module, self.sizes[module]) * 1000 for module, count in lanes.items()
        )

    def rate_max(self, lanes_max: int) -> float:
        """The largest rate that so many lanes can be shared out for. Candidates: where some module needs one more."""
        rates = sorted(
            {
                count * size / batch_ms(module, size) * 1000
                for module, size in self.sizes.items()
                for count in range(1, lanes_max + 1)
            }
        )
        return max(rate for rate in rates if sum(self.lanes(rate).values()) <= lanes_max)


def path_ms(before: Dict[str, Tuple[str, ...]], sizes: Dict[str, int]) -> float:
    """The longest path through a pipeline, a batch of its size in each module."""
    upto: Dict[str, float] = {}
    for module, preds in before.items():  # predecessors stand first
        upto[module] = batch_ms(module, sizes[module]) + max([upto[pred] for pred in preds], default=0.0)
    return max(upto.values())


def plan_of(name: str, share: float) -> Plan:
    """Batch sizes for which the longest path takes at most this share of the SLO (section 3.6): from ones, always one
    more for the module that gains most lane time per request for what it adds to the path."""
    slo_ms, before = PIPELINES[name]
    sizes = dict.fromkeys(before, 1)
    while True:
        best, best_gain = "", 0.0
        now_ms = path_ms(before, sizes)
        for module in before:
            more = {**sizes, module: sizes[module] + 1}
            added = path_ms(before, more) - now_ms
            saved = batch_ms(module, sizes[module]) / sizes[module] - batch_ms(module, more[module]) / more[module]
            if now_ms + added <= share * slo_ms and saved / max(added, 1e-3) > best_gain:
                best, best_gain = module, saved / max(added, 1e-3)
        if not best or sizes[best] >= 64:
            return Plan(name, slo_ms, before, sizes)
        sizes[best] += 1


def table_of(plan: Plan, lanes: Dict[str, int], kind: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """The configuration: one app, a lane for each of a module's workers, every batch size profiled."""
    naive = options.get("rule") == "naive"  # published naive never drops, so here it is answered however late
    return {
        "lane": {f"{module}{index}": {"hang": "600s"} for module, count in lanes.items() for index in range(count)},
        "model": {
            module: {
                "engine": "synthetic",
                "batch": list(range(1, size + 1)),
                "lanes": [f"{module}{index}" for index in range(lanes[module])],
                "expected": {str(item): f"{round(batch_ms(module, item) * 1000)}us" for item in range(1, size + 1)},
            }
            for module, size in plan.sizes.items()
        },
        "policy": {"p": {"kind": kind, **options}},
        "server": {"pending_max": 1_000_000},
        "app": {
            plan.name: {
                "slo": f"{plan.slo_ms}ms",
                "pending_max": 1_000_000,
                "on_late": "answer" if naive else "drop",
                "node": [{"name": module, "after": list(preds)} for module, preds in plan.before.items()],
            }
        },
    }


# --- arrivals ---------------------------------------------------------------------------------------------------------


def trace_shape(name: str, seconds: int, seed: int) -> List[float]:
    """The rate of each second, mean 1, with the trace's coefficient of variation."""
    draw = random.Random(f"{seed}/trace/{name}")
    if name == "wiki":
        phases = [draw.uniform(0, 2 * math.pi) for _ in range(2)]
        raw = [
            1 + 0.46 * math.sin(2 * math.pi * at / 330 + phases[0]) + 0.46 * math.sin(2 * math.pi * at / 83 + phases[1])
            for at in range(seconds)
        ]
        return _with_variation(raw, TRACES[name])
    slow = quick = 0.0
    raw = []
    for at in range(-100, seconds):  # logs of two random walks that return to zero: over a minute, over seconds
        slow += -slow / 60 + draw.gauss(0, math.sqrt(2 / 60))
        quick += -quick / 4 + draw.gauss(0, math.sqrt(2 / 4) * 0.9)
        if at >= 0:
            spike = max(0.6, min(1.6, math.exp(0.18 * quick)))
            raw.append(math.exp(slow) * spike if name == "tweet" else math.exp(0.6 * slow + 0.9 * quick))
    if name == "azure":  # requests come in minutes' bursts whose edges the reference smoothed
        raw = [sum(raw[max(0, at - 2) : at + 1]) / len(raw[max(0, at - 2) : at + 1]) for at in range(seconds)]
    return _with_variation(raw, TRACES[name])


def _with_variation(raw: Sequence[float], cv: float) -> List[float]:
    """The series raised to the power that gives it this coefficient of variation, scaled to mean 1."""
    low, high = 0.01, 8.0
    for _ in range(60):
        power = (low + high) / 2
        series = [max(1e-6, item) ** power for item in raw]
        mean = sum(series) / len(series)
        spread = math.sqrt(sum([(item - mean) ** 2 for item in series]) / len(series)) / mean
        low, high = (power, high) if spread < cv else (low, power)
    return [item / mean for item in series]


def scaled_to_peak(shape: Sequence[float], capacity: float) -> List[float]:
    """The shape in requests per second, so that its busiest windows just exceed the capacity of all lanes."""
    windows = sorted(
        [
            sum(shape[at : at + PEAK_WINDOW_S]) / PEAK_WINDOW_S
            for at in range(0, len(shape) - PEAK_WINDOW_S + 1, PEAK_WINDOW_S)
        ],
        reverse=True,
    )
    peak = windows[max(0, math.ceil(PEAK_SHARE * len(windows)) - 1)]
    return [item * capacity / peak for item in shape]


def poisson_ns(rates: Sequence[float], seed: int) -> List[int]:
    """Poisson arrivals at the rate of each second, in nanoseconds."""
    draw = random.Random(f"{seed}/arrivals")
    times: List[int] = []
    for second, rate in enumerate(rates):
        at = 0.0
        while rate > 0:
            at += draw.expovariate(rate)
            if at >= 1.0:
                break
            times.append(round((second + at) * 1e9))
    return times


def scaling(
    plan: Plan, arrivals_ns: Sequence[int], seconds: int, floor_rate: float, lanes_max: int
) -> List[Dict[str, int]]:
    """The number of lanes of each module that are up in each second: for the rate of the last 3 s and some headroom, 3
    s after their request, kept for 30 s, within ``lanes_max`` in all. Open loop: it depends on the arrivals alone."""
    counts = [0] * seconds
    for at_ns in arrivals_ns:
        counts[at_ns // 1_000_000_000] += 1
    most = plan.rate_max(lanes_max)
    wanted = []
    for second in range(seconds):
        last = counts[max(0, second - RATE_OVER_S) : second]
        rate = sum(last) / len(last) * HEADROOM if last else 0.0
        wanted.append(min(most, max(rate, floor_rate)))
    kept = [max(wanted[max(0, second - KEEP_S + 1) : second + 1]) for second in range(seconds)]
    return [plan.lanes(min(kept[second], kept[max(0, second - COLD_START_S)])) for second in range(seconds)]


def fluid_drop(rates_in: Sequence[int], lanes_up: Sequence[Dict[str, int]], plan: Plan) -> float:
    """The drops that no policy could avoid: the bottleneck's capacity per second, with a queue no longer than the SLO
    leaves room for."""
    queue = served = 0.0
    room_s = (plan.slo_ms - path_ms(plan.before, plan.sizes)) / 1000
    for count, lanes in zip(rates_in, lanes_up):
        capacity = plan.capacity(lanes)
        queue += count
        done = min(queue, capacity)
        served += done
        queue = min(queue - done, capacity * room_s)
    served += queue
    return 1 - served / max(1, sum(rates_in))
