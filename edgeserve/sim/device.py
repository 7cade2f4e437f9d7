"""How long things really take in the simulated world, and what a model really returns.

Times come from the scenario's ``[truth.*]``, else from a measured profile's quantiles, else from the configured
expectation, each with noise. The scheduler sees none of this, only what the lanes report.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.profiles import Profile, Timing
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.events import JobId, Request
from edgeserve.sim.quantiles import bend_of, value_at
from edgeserve.sim.scenario import TruthConfig

_NO_TRUTH = TruthConfig(model="")
_ROOT_3 = 1.7320508075688772  # makes the sum of four uniforms' deviation one


def deviate(draw: random.Random) -> float:
    """A bell-shaped draw of mean 0, deviation 1 and range +-3.5, from four uniforms: the same on every libm."""
    return (draw.random() + draw.random() + draw.random() + draw.random() - 2.0) * _ROOT_3


class _Model(NamedTuple):
    config: ModelConfig
    truth: TruthConfig
    noise: float
    sizes: Tuple[int, ...]
    times: Mapping[int, int]
    timings: Mapping[str, Mapping[int, Timing]]  # lane -> size -> measured


class TrueTimes:
    """Draws durations. ``noise`` and faults are drawn from ``draw``, in the order in which works start."""

    def __init__(self, config: Config, truths: Mapping[str, TruthConfig], profiles: Sequence[Profile],
                 noise: float, draw: random.Random) -> None:
        self._draw = draw
        self._models: Dict[str, _Model] = {}
        self._bends: Dict[Timing, float] = {}
        profiled = {profile.model: profile for profile in profiles}
        for name, model in config.models.items():
            truth = truths.get(name, _NO_TRUTH)
            profile = profiled.get(name)
            told = truth.times or truth.per_unit_ns or truth.fixed_ns  # a hint alone stretches the profile
            measured = profile.lanes if profile is not None and not told else {}
            timings = {lane: item.timings for lane, item in measured.items()}
            self._bends.update({timing: bend_of(timing) for item in timings.values() for timing in item.values()})
            times = dict(truth.times or model.expected)
            if not times and not timings and not truth.per_unit_ns and not truth.fixed_ns:
                raise ConfigError(f"model {name!r} has no time to simulate: give [truth.{name}] times = {{1 = '5ms'}}, "
                                  f"[model.{name}] expected, or a profile")
            self._models[name] = _Model(model, truth, truth.noise if truth.noise >= 0 else noise,
                                        tuple(sorted(times)), times, timings)

    def batch_ns(self, model: str, lane: str, size: int, hints: Sequence[Mapping[str, float]], steps: int) -> int:
        """The true time of a batch padded to ``size`` whose jobs declare ``hints``, for ``steps`` steps."""
        entry = self._models[model]
        timing = _at_least(entry.timings[lane], size) if lane in entry.timings else None
        if timing is not None and timing.quantiles_ns:
            bend = self._bends[timing]
            drawn_ns = sum(value_at(timing.quantiles_ns, self._draw.random(), bend) for _ in range(steps))
            return max(1, round(drawn_ns * _longest(entry.truth, hints)))
        base_ns = self._base_ns(entry, size, hints) * steps
        if entry.noise:
            base_ns = round(base_ns * (1.0 + entry.noise * deviate(self._draw)))
        return max(1, base_ns)

    def is_measured(self, model: str, lane: str) -> bool:
        """Whether batches of the model take times that were measured on this lane, with all that held them up."""
        return lane in self._models[model].timings

    def pack_ns(self, model: str) -> int:
        """What the lane's thread does for a batch before its device can run it."""
        return self._models[model].truth.pack_ns

    def load_ns(self, model: str) -> int:
        """The true time to load a model."""
        entry = self._models[model]
        base_ns = entry.truth.load_ns or entry.config.load_ns
        if entry.noise and base_ns:
            base_ns = round(base_ns * (1.0 + entry.noise * deviate(self._draw)))
        return max(1, base_ns)

    def share_ns(self, model: str, hints: Mapping[str, float]) -> float:
        """One job's share of a full batch, all its steps: what it counts in a request's worth."""
        entry = self._models[model]
        steps = entry.truth.steps.mean() if entry.truth.steps else 1.0
        if not entry.timings:
            size = entry.sizes[-1] if entry.sizes else 1
            return self._base_ns(entry, size, (hints,)) / size * steps
        timings = next(iter(entry.timings.values()))
        return max(timings[max(timings)].median_ns, 1) / max(timings) * steps * _longest(entry.truth, (hints,))

    def _base_ns(self, entry: _Model, size: int, hints: Sequence[Mapping[str, float]]) -> int:
        truth = entry.truth
        if truth.hint or truth.per_unit_ns:
            return round(truth.fixed_ns + truth.per_unit_ns * size * _longest(truth, hints))
        for measured in entry.sizes:
            if measured >= size:
                return entry.times[measured]
        last = entry.sizes[-1]
        return entry.times[last] * -(-size // last)  # as that many batches of the largest known size


class TrueResults:
    """What each job really returns: parts, route, steps, failure. Drawn from the seed and the request's place in its
    workload alone, so that two policies meet the same requests."""

    def __init__(self, config: Config, truths: Mapping[str, TruthConfig], seed: Any) -> None:
        self._seed = seed
        self._truths = truths
        self._nodes = {(app.name, node.name): (node, truths.get(node.model, _NO_TRUTH))
                       for app in config.apps.values() for node in app.nodes}
        self._hidden = {app.name: {hint for node in app.nodes for hint in self._nodes[app.name, node.name][1].says}
                        for app in config.apps.values()}

    def declared(self, request: Request) -> Request:
        """The request as the scheduler is to see it: without the hints that only results will tell."""
        hidden = self._hidden[request.app]
        if not hidden:
            return request
        hints = {name: value for name, value in request.hints.items() if name not in hidden}
        return Request(request.id, request.app, request.arrival_ns, request.deadline_ns, request.client, request.klass,
                       request.value, request.stream, request.on_late, hints, request.quality_min)

    def said(self, app: str, job: JobId, hints: Mapping[str, float]) -> Optional[Mapping[str, float]]:
        """Which of the request's true hints the job's result tells."""
        says = self._nodes[app, job.node][1].says
        return {name: hints[name] for name in says if name in hints} if says else None

    def steps(self, app: str, place: str, job: JobId) -> int:
        """How many steps the job needs in all."""
        truth = self._nodes[app, job.node][1]
        return max(1, truth.steps.pick(self._of(place, job, "steps").random())) if truth.steps else 1

    def parts(self, app: str, place: str, job: JobId, hints: Mapping[str, float]) -> Optional[int]:
        """Into how many parts it fans out; ``None`` for a node that does not."""
        node, truth = self._nodes[app, job.node]
        if not node.fan_out:
            return None
        if truth.parts_hint:
            return max(0, round(hints.get(truth.parts_hint, 1.0)))
        return truth.parts.pick(self._of(place, job, "parts").random()) if truth.parts else 1

    def parts_mean(self, app: str, node: str, hints: Mapping[str, float]) -> float:
        """How many parts a node makes on average; 1 for a node that does not fan out."""
        config, truth = self._nodes[app, node]
        if config.fan_out and truth.parts_hint:
            return max(0.0, hints.get(truth.parts_hint, 1.0))
        return truth.parts.mean() if config.fan_out and truth.parts else 1.0

    def route(self, app: str, place: str, job: JobId) -> Optional[str]:
        """Which successor was taken; ``None`` for a node that takes all."""
        node, truth = self._nodes[app, job.node]
        if node.route != "one":
            return None
        names, uniform = sorted(truth.routes), self._of(place, job, "route").random()
        total = sum(truth.routes[name] for name in names)
        for name in names:
            uniform -= truth.routes[name] / total
            if uniform < 0:
                return name
        return names[-1]

    def fails(self, app: str, place: str, job: JobId) -> bool:
        """Whether the job fails, trouble apart."""
        truth = self._nodes[app, job.node][1]
        return truth.fail > 0 and self._of(place, job, "fail").random() < truth.fail

    def state_bytes(self, app: str, job: JobId) -> int:
        """What the state of the job's stream or sequence occupies."""
        return self._nodes[app, job.node][1].state_bytes

    def steps_per_run(self, app: str, node: str) -> int:
        """After how many steps the model returns by itself; 0 = when it is done."""
        return self._nodes[app, node][1].steps_per_run

    def _of(self, place: str, job: JobId, what: str) -> random.Random:
        return random.Random(f"{self._seed}/truth/{place}/{job.node}/{job.part}/{what}")


def _longest(truth: TruthConfig, hints: Sequence[Mapping[str, float]]) -> float:
    """The largest work in a batch: its other members are padded to it."""
    return max((item.get(truth.hint, 1.0) for item in hints), default=1.0) if truth.hint else 1.0


def _at_least(timings: Mapping[int, Timing], size: int) -> Optional[Timing]:
    sizes: List[int] = sorted(timings)
    return next((timings[item] for item in sizes if item >= size), timings[sizes[-1]] if sizes else None)
