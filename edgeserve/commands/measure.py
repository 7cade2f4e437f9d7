"""Measuring one model on one lane: repeat until the p99 is known well enough, then say it in a few numbers.

Statistics are pure functions on lists of nanoseconds; the clock is handed in. Files, threads and progress are
``commands/profile.py``'s.
"""

from __future__ import annotations

import math
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.engines.base import Batch, Engine, Session, Values, run_whole
from edgeserve.engines.warm import batch_to_time, time_run_ns
from edgeserve.units import NS_PER_S, ns_to_s

NORMAL_95 = 1.96
"""Two-sided 95 % of the normal distribution: the interval of a rank is that of a binomial count."""

PROMPT_TOKENS, PROMPT_RUNS = 128, 5
"""The prompt that is read to measure reading: long enough that a run's fixed costs count little, read within a second.
"""

REST_NS, RESTS_MAX = NS_PER_S, 3
"""The rest of a device before a batch that is to find its clocks low, and how often: governors lower the clock of an
idle device within 0.1 s."""

LOADS_MAX, LOADS_NS_MAX = 3, 3 * NS_PER_S
"""Loads of a model whose median counts: so many, or all that began within this time."""

DRIFT_RUNS_MIN = 10
"""Fewer runs than this have fifths of one run: drift cannot be judged."""

Clock = Callable[[], int]


class StopRule(NamedTuple):
    """When enough is measured: the p99's 95 % interval is narrow (half its width over the p99 at most
    ``p99_error_max``), or the time or the number of runs is spent; never before ``runs_min``."""

    p99_error_max: float = 0.05
    runs_min: int = 10
    runs_max: int = 20_000
    time_ns_max: int = 3 * 10**9
    look_every: int = 50  # checking sorts the samples, which must not cost more than the runs


def quantile_bounds(ordered: Sequence[int], q: float) -> Tuple[int, int] | None:
    """The order statistics that enclose quantile ``q`` with 95 % confidence, for any distribution; ``None`` when
    there are too few samples for an upper bound. ``ordered`` rises. O(1)."""
    count = len(ordered)
    spread = NORMAL_95 * math.sqrt(count * q * (1 - q))
    low, high = math.floor(count * q - spread), math.ceil(count * q + spread)
    if count == 0 or high >= count:
        return None
    return ordered[max(0, low - 1)], ordered[high]


def p99_error(ordered: Sequence[int]) -> float:
    """Half the width of the p99's 95 % interval over the p99; 1.0 when there are too few samples to say."""
    bounds = quantile_bounds(ordered, 0.99)
    if bounds is None:
        return 1.0
    p99 = float(np.quantile(np.asarray(ordered), 0.99))
    return min(1.0, (bounds[1] - bounds[0]) / 2 / p99) if p99 > 0 else 0.0


def drift(samples: Sequence[int]) -> float:
    """The last fifth's median over the first fifth's, minus 1 (``samples`` in the order they were measured)."""
    fifth = len(samples) // 5
    if len(samples) < DRIFT_RUNS_MIN:
        return 0.0
    first, last = float(np.median(samples[:fifth])), float(np.median(samples[-fifth:]))
    return last / first - 1 if first > 0 else 0.0


def summarise(samples: Sequence[int]) -> Timing:
    """The record of one batch size from its durations, in the order they were measured."""
    values = np.asarray(samples, dtype=np.float64)
    quantiles = tuple(int(value) for value in np.ceil(np.quantile(values, QUANTILES)))
    return Timing(
        count=len(samples),
        median_ns=quantiles[QUANTILES.index(0.5)],
        p99_ns=quantiles[QUANTILES.index(0.99)],
        mean_ns=math.ceil(float(values.mean())),
        sd_ns=math.ceil(float(values.std())),
        quantiles_ns=quantiles,
        drift=round(drift(samples), 4),
        p99_error=round(p99_error(sorted(samples)), 4),
    )


def fit_affine(medians_ns: Mapping[int, int]) -> Tuple[int, int, float]:
    """``(c0, c1, largest relative error)`` of ``c0 + c1 * size``, by least squares of the relative errors, so that
    small batches count as much as large ones. Neither is negative. One size alone is taken as all per item: the
    careful guess for larger batches."""
    sizes = np.array(sorted(medians_ns), dtype=np.float64)
    times = np.array([medians_ns[int(size)] for size in sizes], dtype=np.float64)
    ones, ratios = 1.0 / times, sizes / times
    if len(sizes) == 1:
        fixed, per_item = 0.0, float(times[0] / sizes[0])
    else:
        solution = np.linalg.lstsq(np.stack([ones, ratios], axis=1), np.ones_like(times), rcond=None)[0]
        fixed, per_item = float(solution[0]), float(solution[1])
        if fixed < 0:
            fixed, per_item = 0.0, float(ratios.sum() / (ratios * ratios).sum())
        elif per_item < 0:
            fixed, per_item = float(ones.sum() / (ones * ones).sum()), 0.0
    error_max = float(np.max(np.abs((fixed + per_item * sizes) / times - 1)))
    # Rounded up, as all estimates are; but not for the solver's last digits.
    return math.ceil(round(fixed, 3)), math.ceil(round(per_item, 3)), round(error_max, 4)


def measure_size(
    session: Session,
    item: Values,
    size: int,
    clock_ns: Clock,
    rule: StopRule,
    stopped: Callable[[], bool] = lambda: False,
    sequences: bool = False,
) -> List[int]:
    """Run batches of ``size`` until ``rule`` is content; the durations in the order they were measured. ``stopped``
    is asked between runs (someone pressed Ctrl-C). ``sequences``: of an engine that ``makes_sequences``, see
    :func:`~edgeserve.engines.warm.batch_to_time`."""
    samples: List[int] = []
    begun_ns = clock_ns()
    while len(samples) < rule.runs_max and not stopped():
        samples.append(time_run_ns(session, batch_to_time(item, size, sequences), clock_ns))
        if len(samples) < rule.runs_min:
            continue
        if clock_ns() - begun_ns >= rule.time_ns_max:
            break
        if len(samples) % rule.look_every == 0 and p99_error(sorted(samples)) <= rule.p99_error_max:
            break
    return samples


def measure_prompt(
    session: Session, item: Values, tokens: int, clock_ns: Clock, stopped: Callable[[], bool] = lambda: False
) -> int:
    """The time in which each of a prompt's ``tokens`` is read: the median of :data:`PROMPT_RUNS` prompts of the
    example's tokens, or of those before ``stopped()``; 0 where the example has none. Each prompt begins with another
    token: an engine may keep what it read."""
    known = [int(token) for token in item.get("tokens", ())]
    taken: List[int] = []
    for run in range(PROMPT_RUNS if known else 0):
        if stopped():
            break
        prompt = [known[(run + place) % len(known)] for place in range(tokens)]
        begun_ns = clock_ns()
        run_whole(session, Batch([{**item, "tokens": prompt, "max_tokens": 1}], 1))
        taken.append(clock_ns() - begun_ns)
    return int(np.median(taken)) // tokens if taken else 0


def measure_rested(
    session: Session,
    item: Values,
    size: int,
    clock_ns: Clock,
    rule: StopRule,
    sequences: bool = False,
    rest: Callable[[float], None] = time.sleep,
) -> int:
    """The time of a batch of ``size`` after :data:`REST_NS` in which nothing ran: the median of as many as ``rule``
    leaves time for; 0 where that is none."""
    taken: List[int] = []
    for _ in range(min(RESTS_MAX, rule.time_ns_max // REST_NS)):
        batch = batch_to_time(item, size, sequences)
        rest(ns_to_s(REST_NS))
        taken.append(time_run_ns(session, batch, clock_ns))
    return int(np.median(taken)) if taken else 0


def measure_loads(engine: Engine, clock_ns: Clock) -> int:
    """The median time of a few loads, in nanoseconds; the engine is loaded before and after."""
    durations: List[int] = []
    while len(durations) < LOADS_MAX and sum(durations) < LOADS_NS_MAX:
        engine.unload()
        begun_ns = clock_ns()
        engine.load()
        durations.append(clock_ns() - begun_ns)
    return int(np.median(durations))


def medians(timings: Mapping[int, Timing]) -> Dict[int, int]:
    """Batch size -> median, as :func:`fit_affine` wants it."""
    return {size: timing.median_ns for size, timing in timings.items()}
