"""The times of batches in a world made of a recording.

Per model and lane each batch size has a base: the median of its recorded durations, or, for a size that hardly ran, the
shape of the profile (or of ``expected``) times the pace of the sizes that ran. A batch takes the base, times the factor
that hints or the app explain (where they explain enough), times the deviation of a batch that was recorded at about
that time: a device that throttles, or a machine that is busy with something else, is so for a while.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from statistics import median
from typing import DefaultDict, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from common.history import Past, Ran, RecordedHistory
from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config
from edgeserve.sched.core.build import Measured, model_lanes, seed_timings
from edgeserve.sim.scenario import CONTINUOUS, STATIC

PLACE_HINT = "~recorded"
"""A hint of the true request, hidden from the scheduler: the request's place in the recording."""

RUNS_MIN = 5
"""A batch size with fewer recorded runs takes its base from the shape and the pace."""

NEAR = 40
"""The number of batches of the model and lane, nearest in time, from which deviations are drawn."""

PACE_EVERY = 10
"""Batches of a lane that count as equally slow while bases are fitted."""

EXPLAINED_RUNS_MIN = 30
EXPLAINED_SHARE_MIN = 0.3
"""A hint is believed where at least so many batches had it and it explains this share of their variance (R squared)."""

ROUNDS = 3
"""Rounds of fitting bases in turns with the line of a hint, or with how slow the machine was when: both settle in two.
"""

APP = "app"
"""The name, in place of a hint's, for apps that share a model and take differently long."""


class Key(NamedTuple):
    """The place where a duration was measured."""

    model: str
    lane: str
    size: int


class Deviation(NamedTuple):
    """The time of a batch, as a multiple of its base and its explained work, and its beginning."""

    at_ns: int
    ratio: float


class Explanation(NamedTuple):
    """The rule for a batch's work beside a usual one: ``offset + slope * x``, where x is the ``hint`` of the batch's
    jobs (the largest, or the mean where not ``largest``) over ``usual``, its mean. With ``hint`` = :data:`APP` x is the
    app's own factor of ``apps``. ``share`` is how much of the variance it explains."""

    hint: str
    largest: bool
    usual: float
    offset: float
    slope: float
    share: float
    apps: Mapping[str, float]

    def factor(self, values: Sequence[float]) -> float:
        """Times the usual work, for the values of the jobs of a batch; at least a twentieth."""
        if not values:
            return 1.0
        joined = max(values) if self.largest else sum(values) / len(values)
        return max(0.05, self.offset + self.slope * joined / self.usual)


class TimesModel:
    """The times learnt from a recording. Knows no seed: :class:`RecordedTimes` has the times of one run."""

    def __init__(
        self, config: Config, history: RecordedHistory, profiles: Sequence[Profile], measured: Measured
    ) -> None:
        self.config = config
        self._requests = history.requests
        self._hints = [_hints_of(past) for past in history.requests]
        self._seeds = {
            key: {size: seed.timing.median_ns for size, seed in sizes.items()}
            for key, sizes in seed_timings(config, profiles, measured).items()
        }
        alone = {(item.model, item.lane) for item in history.batches}
        by_model: DefaultDict[str, List[Ran]] = defaultdict(list)
        for item in history.batches:
            by_model[item.model].append(item)
        for first in history.firsts:
            if first.stretch[:2] not in alone:  # all that is known of the lane has the reading of prompts in it
                by_model[first.stretch.model].append(first.stretch)
        self.explanations: Dict[str, Explanation] = {}
        self.bases: Dict[Key, float] = {}
        self._deviations: Dict[Tuple[str, str], List[Deviation]] = {}
        self.prefills_ns: Dict[Tuple[str, str], int] = {}  # (model, lane) -> to read the prompt of one sequence
        self.sequences = {first.stretch.model for first in history.firsts}
        self.loads_ns = {name: round(median(items)) for name, items in history.loads_ns.items()}
        for name in config.models:
            self._learn(name, by_model[name])
        reads: DefaultDict[Tuple[str, str], List[float]] = defaultdict(list)
        for ran, new in history.firsts:  # what their steps do not explain is the reading of prompts
            if (ran.model, ran.lane) in alone:
                step_ns = self.base_ns(ran.model, ran.lane, ran.size) * self.factor(ran.model, ran.members)
                reads[ran.model, ran.lane].append((ran.duration_ns - ran.steps * step_ns) / new)
        self.prefills_ns = {key: max(0, round(median(found))) for key, found in reads.items()}

    def base_ns(self, model: str, lane: str, size: int) -> float:
        """The usual time of a batch padded to ``size``."""
        found = self.bases.get(Key(model, lane, size))
        if found is None:  # a policy may ask for any profiled size: the next larger one that is known
            known = sorted(key for key in self.bases if key.model == model and key.lane == lane)
            key = next((key for key in known if key.size >= size), known[-1])
            found = self.bases[key]
        return found

    def factor(self, model: str, places: Sequence[int]) -> float:
        """The work of a batch beside a usual one, as far as it is explained."""
        explanation = self.explanations.get(model)
        if explanation is None:
            return 1.0
        values = [value for place in places for value in (self._value(explanation, place),) if value is not None]
        return explanation.factor(values)

    def deviation(self, model: str, lane: str, places: Sequence[int], uniform: float) -> float:
        """The deviation, at a uniform draw in [0, 1), of a batch that ran when these requests came."""
        known = self._deviations.get((model, lane)) or self._deviations.get((model, ""))
        if not known:
            return 1.0
        at_ns = self._requests[max(places)].seen_ns if places else known[0].at_ns
        first = bisect_left(known, Deviation(at_ns, 0.0)) - NEAR // 2
        first = max(0, min(first, len(known) - NEAR))
        near = known[first : first + NEAR]
        return near[int(uniform * len(near))].ratio

    # --- learning -------------------------------------------------------------------------------------------------

    def _learn(self, model: str, batches: Sequence[Ran]) -> None:
        self._fit_bases(model, batches, [1.0] * len(batches))
        best: Optional[Explanation] = None
        for hint, apps in self._candidates(model, batches):
            for largest in (True, False):
                found = self._explain(model, batches, hint, apps, largest)
                if found is not None and (best is None or found.share > best.share):
                    best = found
        if best is not None:
            self.explanations[model] = best
        factors = [self.factor(model, item.members) for item in batches]
        self._fit_bases(model, batches, factors)
        for _ in range(ROUNDS):  # what was slow for a while must not count as the nature of the sizes that ran then
            paces = self._paces(model, batches, factors)
            self._fit_bases(model, batches, [factor * pace for factor, pace in zip(factors, paces)])
        pooled: DefaultDict[Tuple[str, str], List[Deviation]] = defaultdict(list)
        for item, factor in zip(batches, factors):
            ratio = item.duration_ns / item.steps / (self.base_ns(model, item.lane, item.size) * factor)
            for lane in (item.lane, ""):
                pooled[model, lane].append(Deviation(item.started_ns, ratio))
        self._deviations.update({key: sorted(found) for key, found in pooled.items()})

    def _fit_bases(self, model: str, batches: Sequence[Ran], factors: Sequence[float]) -> None:
        """The base of each lane and size: medians where there are enough runs, else the shape times the pace."""
        runs: DefaultDict[Tuple[str, int], List[float]] = defaultdict(list)
        for item, factor in zip(batches, factors):
            runs[item.lane, item.size].append(item.duration_ns / item.steps / factor)
        everywhere = self._pace(
            model, [(lane, size, value) for (lane, size), values in runs.items() for value in values]
        )
        for lane in model_lanes(self.config, self.config.models[model]):
            seeds = self._seeds[model, lane]
            known = {
                size: median(values)
                for (where, size), values in runs.items()
                if where == lane and len(values) >= RUNS_MIN
            }
            here = (
                self._pace(
                    model,
                    [
                        (lane, size, value)
                        for (where, size), values in runs.items()
                        if where == lane
                        for value in values
                    ],
                )
                or everywhere
                or 1.0
            )
            for size in sorted(set(seeds) | set(known)):
                near = min(known, key=lambda item: (abs(item - size), item), default=0)
                pace = known[near] / seeds[near] if near in seeds and seeds[near] else here
                self.bases[Key(model, lane, size)] = known[size] if size in known else max(1.0, seeds[size] * pace)

    def _paces(self, model: str, batches: Sequence[Ran], factors: Sequence[float]) -> List[float]:
        """The pace of its lane at each batch's time: the middle of the deviations nearest in time."""
        paces = [1.0] * len(batches)
        for lane in sorted({item.lane for item in batches}):
            here = sorted((item.started_ns, index) for index, item in enumerate(batches) if item.lane == lane)
            ratios = [
                batches[index].duration_ns
                / batches[index].steps
                / (self.base_ns(model, lane, batches[index].size) * factors[index])
                for _, index in here
            ]
            for begin in range(0, len(here), PACE_EVERY):
                first = max(0, min(begin + PACE_EVERY // 2 - NEAR // 2, len(here) - NEAR))
                pace = median(ratios[first : first + NEAR])
                for _, index in here[begin : begin + PACE_EVERY]:
                    paces[index] = pace
        return paces

    def _pace(self, model: str, runs: Sequence[Tuple[str, int, float]]) -> float:
        """The recorded time of batches as a multiple of the seeds' times; 0 where none ran."""
        ratios = [
            value / self._seeds[model, lane][size]
            for lane, size, value in runs
            if size in self._seeds.get((model, lane), {}) and self._seeds[model, lane][size]
        ]
        return median(ratios) if ratios else 0.0

    def _candidates(self, model: str, batches: Sequence[Ran]) -> List[Tuple[str, Mapping[str, float]]]:
        """The candidates that might explain a model's durations: hints that nearly all its jobs have, and the apps."""
        counts: DefaultDict[str, int] = defaultdict(int)
        total = 0
        by_app: DefaultDict[str, List[float]] = defaultdict(list)
        for item in batches:
            members = [place for place in item.members if place >= 0]
            total += len(members)
            for place in members:
                for name in self._hints[place]:
                    counts[name] += 1
            apps = {self._requests[place].request.app for place in members}
            if len(apps) == 1:
                base_ns = self.base_ns(model, item.lane, item.size)
                by_app[apps.pop()].append(item.duration_ns / item.steps / base_ns)
        found: List[Tuple[str, Mapping[str, float]]] = [
            (name, {}) for name in sorted(counts) if counts[name] >= 0.8 * total
        ]
        if len(by_app) > 1 and all(len(ratios) >= RUNS_MIN for ratios in by_app.values()):
            found.append((APP, {app: median(ratios) for app, ratios in by_app.items()}))
        return found

    def _explain(
        self, model: str, batches: Sequence[Ran], hint: str, apps: Mapping[str, float], largest: bool
    ) -> Optional[Explanation]:
        """The line through the durations of one hint, if it explains enough of them."""
        trial = Explanation(hint, largest, 1.0, 0.0, 1.0, 0.0, apps)
        rows: List[Tuple[Ran, float]] = []
        for item in batches:
            values = [value for place in item.members for value in (self._value(trial, place),) if value is not None]
            if values:
                rows.append((item, max(values) if largest else sum(values) / len(values)))
        usual = sum(x for _, x in rows) / len(rows) if rows else 0.0
        if len(rows) < EXPLAINED_RUNS_MIN or usual <= 0:
            return None
        kept, factors = [item for item, _ in rows], [1.0] * len(rows)
        offset, slope, share = 1.0, 0.0, 0.0
        before = dict(self.bases)
        for _ in range(ROUNDS):
            self._fit_bases(model, kept, factors)
            ratios = [item.duration_ns / item.steps / self.base_ns(model, item.lane, item.size) for item in kept]
            offset, slope, share = _line([x / usual for _, x in rows], ratios)
            factors = [max(0.05, offset + slope * x / usual) for _, x in rows]
        self.bases = before
        if slope <= 0 or share < EXPLAINED_SHARE_MIN:
            return None
        return Explanation(hint, largest, usual, offset, slope, share, apps)

    def _value(self, explanation: Explanation, place: int) -> Optional[float]:
        if place < 0:
            return None
        if explanation.hint == APP:
            return explanation.apps.get(self._requests[place].request.app)
        return self._hints[place].get(explanation.hint)


class RecordedTimes:
    """The times of one run, in place of :class:`~edgeserve.sim.truth.TrueTimes`."""

    def __init__(self, model: TimesModel, draw: random.Random) -> None:
        self._model = model
        self._draw = draw

    def batch_ns(self, model: str, lane: str, size: int, hints: Sequence[Mapping[str, float]], steps: int) -> int:
        """The time of a batch padded to ``size`` of requests with these true ``hints``, for ``steps`` steps."""
        known = self._model
        places = [int(item[PLACE_HINT]) for item in hints if PLACE_HINT in item]
        deviation = known.deviation(model, lane, places, self._draw.random())
        return max(1, round(known.base_ns(model, lane, size) * known.factor(model, places) * deviation * steps))

    def batching(self, model: str) -> str:
        """Sequences are answered when they end, as they were."""
        return CONTINUOUS if model in self._model.sequences else STATIC

    def step_ns(self, model: str, lane: str, count: int) -> int:
        """The usual time of a step of so many sequences."""
        return max(1, round(self._model.base_ns(model, lane, count)))

    def pace(self, model: str) -> float:
        """The time of one batch's steps as a multiple of the usual one, drawn from the recorded batches."""
        return self._model.deviation(model, "", (), self._draw.random())

    def prefill_ns(self, model: str, lane: str, tokens: Sequence[int]) -> int:
        """The time to read the prompts of these sequences, as usually; 0 for any other model: recorded durations
        have it in them."""
        return self._model.prefills_ns.get((model, lane), 0) * len(tokens)

    def turn_tokens(self, model: str) -> int:
        """0: recorded prompts count as read whole."""
        return 0

    def is_measured(self, model: str, lane: str) -> bool:
        """True: recorded durations have in them all that held them up."""
        return True

    def pack_ns(self, model: str) -> int:
        """0: a recording does not tell packing from running."""
        return 0

    def load_ns(self, model: str) -> int:
        """The median recorded time to load a model, else the configured one."""
        return max(1, self._model.loads_ns.get(model, self._model.config.models[model].load_ns))

    def share_ns(self, model: str, hints: Mapping[str, float]) -> float:
        """One job's share of a full batch: what it counts in a request's worth."""
        known = self._model
        config = known.config.models[model]
        size = config.batch[-1]
        lane = model_lanes(known.config, config)[0]
        place = int(hints.get(PLACE_HINT, -1))
        return known.base_ns(model, lane, size) / size * known.factor(model, [place] if place >= 0 else [])


def _hints_of(past: Past) -> Dict[str, float]:
    """The hints of a request: declared, and given by its nodes (the mean over its parts)."""
    said: DefaultDict[str, List[float]] = defaultdict(list)
    for told in past.told.values():
        for name, value in told.hints.items():
            said[name].append(value)
    return {**{name: sum(values) / len(values) for name, values in said.items()}, **past.request.hints}


def _line(xs: Sequence[float], ys: Sequence[float]) -> Tuple[float, float, float]:
    """Least squares: offset, slope and the share of the variance that the line explains."""
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    xx = sum((x - mean_x) ** 2 for x in xs)
    yy = sum((y - mean_y) ** 2 for y in ys)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys))
    if xx <= 0 or yy <= 0:
        return mean_y, 0.0, 0.0
    slope = xy / xx
    return mean_y - slope * mean_x, slope, xy * xy / (xx * yy)
