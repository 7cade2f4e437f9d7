"""The cases of Orloj's replication: service laws, length distributions, arrivals, and the paper's tables.

Everything is drawn from seeds by name, so that every system meets the same requests. The laws (``LAWS``) and settings
are those of the specification in ``research/results/replicate_orloj.md``; the paper does not state its load.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.sched.latency.timings import timing_of
from edgeserve.sched.protocol.events import Request
from edgeserve.units import NS_PER_S, ms_to_ns

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data")
FACTORS = (1.5, 2.0, 3.0, 4.0, 5.0)  # the SLO in units of the 99th percentile of the time alone
SIZES = (1, 2, 4, 8, 16)  # those of Clockwork and Orloj
ALL_SIZES = tuple(range(1, 17))
REQUESTS = 3000
HISTORY = 1500  # times alone per class that the scheduler knows at the start
WINDOW_NS = NS_PER_S  # one arrival rate lasts so long
RHO = 0.8  # correlation of the rates of successive windows
MODEL, LANE = "m", "gpu0"
FACT, GUESS = "true_ns", "guess"
"""A request's u in ns, and its time alone as predicted. Both are names of the replication's own: a hint that the server
knows (``work``, ``steps``) has a bound beyond which it is clipped, and nanoseconds lie beyond that of ``work``."""

GUESS_ERROR = 0.1  # deviation of the prediction's logarithm

# --- lengths --------------------------------------------------------------------------------------------------------


class Class(NamedTuple):
    """One app's lengths: normal with this mean and deviation on the axis of 50 to 100 ms; ``samples`` instead, where
    they were measured (times alone in ms, drawn with replacement)."""

    weight: float
    mean: float
    sd: float
    samples: Tuple[float, ...] = ()


class Case(NamedTuple):
    """A mixture of classes, one app each."""

    name: str
    classes: Tuple[Class, ...]


def modes(count: int) -> Case:
    """``m-modal``: equal weights, means evenly spaced on 50 to 100, deviation 5; a single mode at 75."""
    names = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    means = [75.0] if count == 1 else [50.0 + 50.0 * index / (count - 1) for index in range(count)]
    return Case(f"{names[count - 1]}-modal", tuple(Class(1.0 / count, mean, 5.0) for mean in means))


def two_peaks(name: str, weight: float, sd_low: float, sd_high: float) -> Case:
    """Peaks at 50 and 100; deviations in the paper's unit of 5 ms."""
    return Case(name, (Class(weight, 50.0, 5.0 * sd_low), Class(1.0 - weight, 100.0, 5.0 * sd_high)))


CASES = (
    two_peaks("std-0.5", 0.5, 0.5, 0.5),
    two_peaks("std-1", 0.5, 1, 1),
    two_peaks("std-2", 0.5, 2, 2),
    two_peaks("std-2/0.5", 0.75, 2, 0.5),
    two_peaks("std-0.5/2", 0.25, 0.5, 2),
    *[modes(m) for m in range(1, 9)],
)
"""The 13 cases of Tables 2 and 3."""

SIX = tuple(
    case
    for case in CASES
    if case.name in ("one-modal", "two-modal", "four-modal", "eight-modal", "std-2/0.5", "std-0.5/2")
)

# --- laws -----------------------------------------------------------------------------------------------------------


class Law(NamedTuple):
    """A batch of k requests takes ``fixed_ms + k * max(u)``; ``length_ms`` turns a draw on the axis into u, with the
    deviations scaled by ``sd_scale``. ``static_ms`` (batch size -> time) stands for all of that where lengths are
    equal, with relative ``noise``; the SLO is then counted in ``published_ms``."""

    name: str
    fixed_ms: float
    length_ms: Callable[[float], float]
    rate: float
    cv: float
    cases: Tuple[Case, ...]
    sd_scale: float = 1.0
    static_ms: Tuple[Tuple[int, float], ...] = ()
    noise: float = 0.0
    published_ms: float = 0.0


LAWS = {
    "PA": Law("PA", 60.0, lambda axis: 0.2 * axis, 20.0, 0.2, CASES),
    "PB": Law("PB", 40.0, lambda axis: axis - 40.0, 12.0, 0.15, SIX),
    "PC": Law("PC", 45.0, lambda axis: 0.4 * axis, 17.0, 0.4, SIX),
    "PD": Law("PD", 10.0, lambda axis: 10.0 + 1.8 * (axis - 50.0), 14.0, 0.15, SIX, sd_scale=0.5),
}

LENGTH_MS_MIN = 1.0
"""A normal draw can be negative (one in six of the widest class in PB); no request is shorter than this."""


def static_law(name: str, model: str, rate: float = 416.0, extra_ms: float = 0.5, noise: float = 0.05) -> Law:
    """Table 4: a model whose time does not depend on its input, from Clockwork's table, straight lines between its
    batch sizes. ``extra_ms`` a batch is what serving adds; the SLO is counted in the model's time without it."""
    with open(os.path.join(DATA, "clockwork_models.csv"), encoding="utf-8") as file:
        row = next(
            item for item in csv.DictReader(line for line in file if not line.startswith("#")) if item["model"] == model
        )
    times = tuple((size, extra_ms + _between(row, size)) for size in ALL_SIZES)
    case = Case(name, (Class(1.0, times[0][1], 0.0),))
    return Law(
        name, 0.0, lambda axis: axis, rate, 0.0, (case,), static_ms=times, noise=noise, published_ms=float(row["b1_ms"])
    )


def _between(row: Dict[str, str], size: int) -> float:
    below = max(known for known in SIZES if known <= size)
    above = min(known for known in SIZES if known >= size)
    low, high = float(row[f"b{below}_ms"]), float(row[f"b{above}_ms"])
    return low + (high - low) * (size - below) / max(1, above - below)


def measured_laws(path: str, fixed_share: float = 0.5, load: float = 0.9, cv: float = 0.2) -> List[Law]:
    """Table 5's shape on lengths that were measured, a law per case (a model). JSON as that of
    ``research/data/dynamic_alone.json``, ``{"cases": {case: {class: [alone in ms, ...]}}, "laws": {case:
    {"fixed_ms": ...}}}``, or CSV of the columns ``case,class,alone_ms``.

    ``fixed_share`` of the shortest time is c0 where the file does not say. The rate is ``load`` times the lane's
    capacity one by one; the paper scales its trace to the system too.
    """
    groups, fixed_ms = _read_alone(path)
    if not groups:
        raise ValueError(f"{path}: no time alone was found; expected JSON with 'cases' or CSV with case,class,alone_ms")
    found = []
    for name, classes in groups.items():
        times = [value for values in classes.values() for value in values]
        fixed = min(fixed_ms.get(name, fixed_share * min(times)), min(times))
        case = Case(
            name, tuple(Class(len(values) / len(times), 0.0, 0.0, tuple(values)) for values in classes.values())
        )
        rate = load / (sum(times) / len(times)) * 1000.0
        found.append(Law(name, fixed, lambda axis, fixed=fixed: axis - fixed, rate, cv, (case,)))
    return found


def _read_alone(path: str) -> Tuple[Dict[str, Dict[str, List[float]]], Dict[str, float]]:
    """Case -> class -> times alone in ms, and what is known of the fixed parts."""
    groups: Dict[str, Dict[str, List[float]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        if path.endswith(".json"):
            table = json.load(file)
            for case, classes in table["cases"].items():
                groups[case] = {name: [float(value) for value in values] for name, values in classes.items()}
            return groups, {case: float(law["fixed_ms"]) for case, law in table.get("laws", {}).items()}
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            groups.setdefault(row["case"], {}).setdefault(row["class"], []).append(float(row["alone_ms"]))
        return groups, {}


# --- arrivals -------------------------------------------------------------------------------------------------------


def gamma_quantiles(cv: float, points: int = 2048) -> List[float]:
    """The quantiles ``(i + 0.5) / points`` of a Gamma distribution of mean 1, by its density's running sum."""
    shape = 1.0 / (cv * cv)
    steps, top = 20_000, 1.0 + 12.0 * cv + 12.0 * cv * cv
    width = top / steps
    masses = [
        math.exp((shape - 1.0) * math.log((step + 0.5) * width) - shape * ((step + 0.5) * width - 1.0))
        for step in range(steps)
    ]
    total, running, step, found = math.fsum(masses), 0.0, 0, []
    for point in range(points):
        wanted = (point + 0.5) / points * total
        while running + masses[step] < wanted:
            running += masses[step]
            step += 1
        found.append((step + (wanted - running) / masses[step]) * width)
    return found


_QUANTILES: Dict[float, List[float]] = {}


def rates(draw: random.Random, cv: float) -> Iterator[float]:
    """A rate of mean 1 per window: Gamma marginal, a Gaussian copula AR(1) between windows."""
    if cv <= 0:
        while True:
            yield 1.0
    quantiles = _QUANTILES.get(cv)
    if quantiles is None:
        quantiles = _QUANTILES[cv] = gamma_quantiles(cv)
    normal = draw.gauss(0.0, 1.0)
    while True:
        share = 0.5 * math.erfc(-normal / math.sqrt(2.0))
        yield quantiles[min(len(quantiles) - 1, int(share * len(quantiles)))]
        normal = RHO * normal + math.sqrt(1.0 - RHO * RHO) * draw.gauss(0.0, 1.0)


def poisson(draw: random.Random, mean: float) -> int:
    """A Poisson count, by multiplying uniforms; in parts, since exp(-mean) must not vanish."""
    count = 0
    while mean > 0:
        part = min(mean, 100.0)
        mean -= part
        product, floor = draw.random(), math.exp(-part)
        while product > floor:
            count += 1
            product *= draw.random()
    return count


def arrivals(draw: random.Random, rate: float, cv: float, count: int) -> List[int]:
    """Times of ``count`` arrivals in ns: doubly stochastic Poisson, stretched so that the mean rate is ``rate``."""
    times: List[float] = []
    for window, factor in enumerate(rates(draw, cv)):
        here = poisson(draw, rate * factor * WINDOW_NS / NS_PER_S)
        times += sorted([window + draw.random() for _ in range(here)])
        if len(times) >= count:
            break
    stretch = count / rate * NS_PER_S / times[count - 1]
    return [round(at * stretch) for at in times[:count]]


class Trace(NamedTuple):
    """One run's requests, and what is known of their classes beforehand. Times in ns; ``alone`` sorted, per class."""

    law: Law
    case: Case
    at_ns: Tuple[int, ...]
    classes: Tuple[int, ...]
    lengths_ns: Tuple[int, ...]
    guesses_ns: Tuple[int, ...]
    alone_ns: Tuple[Tuple[int, ...], ...]

    @property
    def fixed_ns(self) -> int:
        return ms_to_ns(self.law.fixed_ms)

    def p99_alone_ns(self) -> int:
        """The 99th percentile of the time alone of the trace's requests."""
        if self.law.published_ms:
            return ms_to_ns(self.law.published_ms)
        ordered = sorted(self.lengths_ns)
        return self.fixed_ns + ordered[math.ceil(0.99 * len(ordered)) - 1]


def make_trace(law: Law, case: Case, seed: Any, rate: float = 0.0, count: int = REQUESTS) -> Trace:
    """Draw a trace; ``rate`` instead of the law's. Lengths do not depend on the rate, nor histories on the requests."""
    name = f"{seed}/{law.name}/{case.name}"
    draw = random.Random(f"{name}/lengths")
    weights = [item.weight for item in case.classes]
    classes = draw.choices(range(len(weights)), weights, k=count)
    lengths = [length_ns(law, case.classes[index], draw) for index in classes]
    history = random.Random(f"{name}/history")
    alone = tuple(
        tuple(sorted([ms_to_ns(law.fixed_ms) + length_ns(law, item, history) for _ in range(HISTORY)]))
        for item in case.classes
    )
    times = arrivals(random.Random(f"{name}/arrivals"), rate or law.rate, law.cv, count)
    error = random.Random(f"{name}/guesses")
    guesses = [round((ms_to_ns(law.fixed_ms) + length) * math.exp(error.gauss(0.0, GUESS_ERROR))) for length in lengths]
    return Trace(law, case, tuple(times), tuple(classes), tuple(lengths), tuple(guesses), alone)


def length_ns(law: Law, item: Class, draw: random.Random) -> int:
    """One draw of u."""
    axis = draw.choice(item.samples) if item.samples else draw.gauss(item.mean, item.sd * law.sd_scale)
    return ms_to_ns(max(LENGTH_MS_MIN if not item.samples else 0.001, law.length_ms(axis)))


# --- what the scheduler knows, and what it is asked -----------------------------------------------------------------


def app_name(index: int) -> str:
    """The app of a class."""
    return f"class{index}"


def profile_of(trace: Trace) -> Profile:
    """The profile of the trace's model: times alone per app, and per batch size what batches of k copies of one input
    take, as profilers run them. So the mean of size k is ``c0 + k * mean(u)``, which is what Nexus plans with."""
    law = trace.law
    alone = {app_name(index): times for index, times in enumerate(trace.alone_ns)}
    if law.static_ms:
        timings = {
            size: _timing(
                [time_ns * ms_to_ns(time_ms) // ms_to_ns(law.static_ms[0][1]) for time_ns in trace.alone_ns[0]]
            )
            for size, time_ms in law.static_ms
        }
        return Profile(MODEL, "gpu", {LANE: LaneProfile(timings, alone=alone)})
    weighted = [(time_ns, item.weight) for item, times in zip(trace.case.classes, trace.alone_ns) for time_ns in times]
    mixture = _resampled(sorted(weighted), HISTORY)
    timings = {
        size: _timing([trace.fixed_ns + size * (time_ns - trace.fixed_ns) for time_ns in mixture]) for size in ALL_SIZES
    }
    mean_ns = sum(mixture) / len(mixture) - trace.fixed_ns
    return Profile(
        MODEL, "gpu", {LANE: LaneProfile(timings, fixed_ns=trace.fixed_ns, per_item_ns=round(mean_ns), alone=alone)}
    )


def _timing(samples_ns: Sequence[int]) -> Timing:
    """A timing without quantiles: with them, the simulated world would draw its durations from the profile."""
    return replace(timing_of(samples_ns), quantiles_ns=())


def _resampled(weighted: Sequence[Tuple[int, float]], count: int) -> List[int]:
    """``count`` evenly spaced quantiles of weighted values in rising order."""
    total = math.fsum([weight for _, weight in weighted])
    found: List[int] = []
    running, index = weighted[0][1], 0
    for point in range(count):
        wanted = (point + 0.5) / count * total
        while running < wanted and index + 1 < len(weighted):
            index += 1
            running += weighted[index][1]
        found.append(weighted[index][0])
    return found


def requests_of(trace: Trace, slo_ns: int, on_late: str = "drop", tells: str = "") -> List[Request]:
    """The trace's requests in order of arrival, numbered from 1. Policies know the app, and the ``length``, which is
    what the hint ``tells`` says in ms, if one does."""
    requests = []
    for index, (at_ns, priority_class, length_ns, guess_ns) in enumerate(
        zip(trace.at_ns, trace.classes, trace.lengths_ns, trace.guesses_ns)
    ):
        hints: Dict[str, float] = {FACT: length_ns, GUESS: guess_ns}
        if tells:
            hints["length"] = hints[tells] / ms_to_ns(1.0)
        requests.append(
            Request(index + 1, app_name(priority_class), at_ns, at_ns + slo_ns, "trace", on_late=on_late, hints=hints)
        )
    return requests


# --- the paper's numbers --------------------------------------------------------------------------------------------

PAPER_COLUMNS = ("clipper", "nexus", "clockwork", "orloj")


def paper_rates(*tables: int) -> Dict[str, Dict[Tuple[str, float], float]]:
    """System -> (case, SLO factor) -> finish rate, from the paper's tables."""
    found: Dict[str, Dict[Tuple[str, float], float]] = {name: {} for name in PAPER_COLUMNS}
    for table in tables:
        for row in read_rows(f"orloj_table{table}.csv"):
            for name in PAPER_COLUMNS:
                found[name][row["case"], float(row["slo_x_p99"])] = float(row[name])
    return found


def read_rows(name: str) -> List[Dict[str, str]]:
    """The rows of a CSV in ``research/data``; lines that start with # say where it is from."""
    with open(os.path.join(DATA, name), newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
