"""The true times of the simulated world, and the true results of models.

Times come from the scenario's ``[truth.*]``, else from a measured profile's quantiles, else from the configured
expectation, each with noise. The scheduler sees none of this, only what the lanes report.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.profiles import Profile, Timing
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.errors import ConfigError
from edgeserve.lognormal import Lognormal
from edgeserve.sched.protocol.events import JobId, Request
from edgeserve.sim.scenario import STATIC, TruthConfig
from edgeserve.sim.sequence_runs import StepsPredictor, hint_of, steps_of
from edgeserve.sim.spreads import bend_of, value_at
from edgeserve.sim.workload import changed

Laws = Mapping[Tuple[str, str], Lognormal]
"""(workload, hint) -> what the workload draws the hint from, for predictors that know it."""

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
    prompts_ns: Mapping[str, int]  # lane -> reading one token of a prompt, as measured


class TrueTimes:
    """Draws durations. ``noise`` and faults are drawn from ``draw``, in the order in which works start."""

    def __init__(
        self,
        config: Config,
        truths: Mapping[str, TruthConfig],
        profiles: Sequence[Profile],
        noise: float,
        draw: random.Random,
    ) -> None:
        self._draw = draw
        self._models: Dict[str, _Model] = {}
        self._bends: Dict[Timing, float] = {}
        profiled = {profile.model: profile for profile in profiles}
        for name, model in config.models.items():
            truth = truths.get(name, _NO_TRUTH)
            profile = profiled.get(name)
            stated = truth.times or truth.per_unit_ns or truth.fixed_ns or truth.step  # a hint alone stretches them
            measured = profile.lanes if profile is not None and not stated else {}
            timings = {lane: item.timings for lane, item in measured.items() if lane not in truth.lanes}
            self._bends.update({timing: bend_of(timing) for item in timings.values() for timing in item.values()})
            times = dict(truth.times or model.expected)
            if not times and not timings and not truth.per_unit_ns and not truth.fixed_ns and truth.step is None:
                raise ConfigError(
                    f"model {name!r} has no time to simulate: give [truth.{name}] times = {{1 = '5ms'}}, "
                    f"[model.{name}] expected, or a profile"
                )
            self._models[name] = _Model(
                model,
                truth,
                truth.noise if truth.noise >= 0 else noise,
                tuple(sorted(times)) if truth.step is None else model.batch,
                times,
                timings,
                {lane: item.prompt_token_ns for lane, item in measured.items()},
            )

    def batch_ns(self, model: str, lane: str, size: int, hints: Sequence[Mapping[str, float]], steps: int) -> int:
        """The true time of a batch padded to ``size`` whose jobs declare ``hints``, for ``steps`` steps."""
        entry = self._models[model]
        timing = _at_least(entry.timings[lane], size) if lane in entry.timings else None
        if timing is not None and timing.quantiles_ns:
            bend = self._bends[timing]
            drawn_ns = sum(value_at(timing.quantiles_ns, self._draw.random(), bend) for _ in range(steps))
            return max(1, round(drawn_ns * _longest(entry.truth, hints)))
        base_ns = self._base_ns(entry, lane, size, hints) * steps
        if entry.noise:
            base_ns = round(base_ns * (1.0 + entry.noise * deviate(self._draw)))
        return max(1, base_ns)

    def batching(self, model: str) -> str:
        """When the sequences of a batch of the model are answered (``[truth.MODEL] batching``)."""
        return self._models[model].truth.batching

    def step_ns(self, model: str, lane: str, count: int) -> int:
        """A step of so many sequences, without noise."""
        entry = self._models[model]
        timing = _at_least(entry.timings[lane], count) if lane in entry.timings else None
        return max(1, timing.median_ns if timing is not None else self._base_ns(entry, lane, count, ()))

    def pace(self, model: str) -> float:
        """The time of one batch's steps as a multiple of the usual one: its noise."""
        noise = self._models[model].noise
        return 1.0 + noise * deviate(self._draw) if noise else 1.0

    def prefill_ns(self, model: str, lane: str, tokens: Sequence[int]) -> int:
        """The time to read the prompts of these sequences, of ``tokens`` each, before their first step."""
        truth = self._models[model].truth
        if not tokens:
            return 0
        here, slower = truth.lanes.get(lane), 1.0
        fixed_ns, token_ns = truth.prefill_ns, truth.prefill_token_ns
        if not (fixed_ns or token_ns or truth.prefill_steps):
            token_ns = self._models[model].prompts_ns.get(lane, 0)
        if here is not None:
            slower = here.slower
            fixed_ns = round(fixed_ns * slower) if here.prefill_ns < 0 else here.prefill_ns
            token_ns = round(token_ns * slower) if here.prefill_token_ns < 0 else here.prefill_token_ns
        steps_ns = truth.prefill_steps * self.step_ns(model, lane, len(tokens)) if truth.prefill_steps else 0.0
        return fixed_ns + round(token_ns * sum(tokens) + steps_ns)

    def turn_tokens(self, model: str) -> int:
        """Tokens of prompts that a turn reads; 0 where they are read whole."""
        return self._models[model].truth.prefill_turn

    def is_measured(self, model: str, lane: str) -> bool:
        """True if batches of the model take times that were measured on this lane, with all that held them up."""
        return lane in self._models[model].timings

    def pack_ns(self, model: str) -> int:
        """The time that the lane's thread spends on a batch before its device can run it."""
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
        steps = entry.truth.steps.mean() if entry.truth.steps else steps_of(entry.truth, hints)
        if not entry.timings:
            size = entry.sizes[-1] if entry.sizes else 1
            return self._base_ns(entry, "", size, (hints,)) / size * steps
        timings = next(iter(entry.timings.values()))
        return max(timings[max(timings)].median_ns, 1) / max(timings) * steps * _longest(entry.truth, (hints,))

    def _base_ns(self, entry: _Model, lane: str, size: int, hints: Sequence[Mapping[str, float]]) -> int:
        truth = entry.truth
        here = truth.lanes.get(lane)
        if here is None:
            return self._usual_ns(entry, size, hints)
        if here.step is not None:
            return here.step.takes_ns(size)
        return _in_table(here.times, size) if here.times else round(self._usual_ns(entry, size, hints) * here.slower)

    def _usual_ns(self, entry: _Model, size: int, hints: Sequence[Mapping[str, float]]) -> int:
        truth = entry.truth
        if truth.hint or truth.per_unit_ns:
            return round(truth.fixed_ns + truth.per_unit_ns * size * _longest(truth, hints))
        return truth.step.takes_ns(size) if truth.step is not None else _in_table(entry.times, size)


class TrueResults:
    """The true result of each job: parts, route, steps, failure. Drawn from the seed and the request's place in its
    workload alone, so that two policies meet the same requests."""

    def __init__(
        self, config: Config, truths: Mapping[str, TruthConfig], seed: Any, laws: Optional[Laws] = None
    ) -> None:
        self._seed = seed
        self._nodes = {
            (app.name, node.name): (node, truths.get(node.model, _NO_TRUTH))
            for app in config.apps.values()
            for node in app.nodes
        }
        self._hidden = {
            app.name: {hint for node in app.nodes for hint in _hidden(self._nodes[app.name, node.name][1])}
            for app in config.apps.values()
        }
        self._predictors: Dict[str, List[StepsPredictor]] = {name: [] for name in config.apps}
        for (name, node_name), (_, truth) in self._nodes.items():
            if truth.predict is not None:
                hint = hint_of(config.apps[name], node_name, "steps", truth.predict.hint)
                self._predictors[name].append(StepsPredictor(truth, hint, laws or {}))
        self._tokens = {
            key: hint_of(config.apps[key[0]], key[1], "tokens", truth.tokens_hint)
            for key, (_, truth) in self._nodes.items()
        }

    def declared(self, request: Request, place: str) -> Request:
        """The request as the scheduler sees it: without the hints that only results will give, and with the prediction
        of its steps."""
        hidden = self._hidden[request.app]
        if not hidden:
            return request
        hints = {name: value for name, value in request.hints.items() if name not in hidden}
        for predictor in self._predictors[request.app]:
            uniform = random.Random(f"{self._seed}/truth/{place}/{predictor.hint}").random()
            hints.update(predictor.says(request.hints, place.rpartition("/")[0], uniform))
        return changed(request, hints=hints)

    def said(self, app: str, job: JobId, hints: Mapping[str, float]) -> Optional[Mapping[str, float]]:
        """The true hints of the request that the job's result gives."""
        says = self._nodes[app, job.node][1].says
        return {name: hints[name] for name in says if name in hints} if says else None

    def is_sequence(self, app: str, node: str) -> bool:
        """True if jobs of the node are sequences, which say how many steps each made."""
        truth = self._nodes[app, node][1]
        return bool(truth.steps_hint) or truth.batching != STATIC

    def tokens(self, app: str, job: JobId, hints: Mapping[str, float]) -> int:
        """The number of tokens of the job's prompt: a whole number for any draw."""
        return max(0, int(hints.get(self._tokens[app, job.node], 0)))

    def steps(self, app: str, place: str, job: JobId, hints: Mapping[str, float]) -> int:
        """The number of steps that the job needs in all; a sequence ends where its context does."""
        truth = self._nodes[app, job.node][1]
        needed = steps_of(truth, hints)
        if truth.steps:
            needed = max(1, truth.steps.pick(self._of(place, job, "steps").random()))
        return min(needed, max(1, truth.context - self.tokens(app, job, hints)))

    def parts(self, app: str, place: str, job: JobId) -> Optional[int]:
        """Into how many parts it fans out; ``None`` for a node that does not."""
        node, truth = self._nodes[app, job.node]
        if not node.fan_out:
            return None
        return truth.parts.pick(self._of(place, job, "parts").random()) if truth.parts else 1

    def parts_mean(self, app: str, node: str) -> float:
        """The number of parts that a node makes on average; 1 for a node that does not fan out."""
        config, truth = self._nodes[app, node]
        return truth.parts.mean() if config.fan_out and truth.parts else 1.0

    def route(self, app: str, place: str, job: JobId) -> Optional[str]:
        """The successor that was taken; ``None`` for a node that takes all."""
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
        """True if the job fails, trouble apart."""
        truth = self._nodes[app, job.node][1]
        return truth.fail > 0 and self._of(place, job, "fail").random() < truth.fail

    def state_bytes(self, app: str, job: JobId, tokens: int = 0) -> int:
        """The bytes of the state of the job's stream or sequence, which has ``tokens`` tokens."""
        truth = self._nodes[app, job.node][1]
        return truth.state_bytes + tokens * truth.state_token_bytes

    def steps_per_run(self, app: str, node: str) -> int:
        """The number of steps after which the model returns by itself; 0 = when it is done."""
        return self._nodes[app, node][1].steps_per_run

    def _of(self, place: str, job: JobId, what: str) -> random.Random:
        return random.Random(f"{self._seed}/truth/{place}/{job.node}/{job.part}/{what}")


def _hidden(truth: TruthConfig) -> Tuple[str, ...]:
    """Hints of requests that the scheduler is not told when they arrive."""
    return (*truth.says, truth.steps_hint) if truth.steps_hint else truth.says


def _in_table(times: Mapping[int, int], size: int) -> int:
    """The time of the next larger size that is known, or of as many batches of the largest as are needed."""
    sizes = sorted(times)
    last = sizes[-1]
    return next((times[known] for known in sizes if known >= size), times[last] * -(-size // last))


def _longest(truth: TruthConfig, hints: Sequence[Mapping[str, float]]) -> float:
    """The largest work in a batch: its other members are padded to it."""
    return max((item.get(truth.hint, 1.0) for item in hints), default=1.0) if truth.hint else 1.0


def _at_least(timings: Mapping[int, Timing], size: int) -> Optional[Timing]:
    sizes: List[int] = sorted(timings)
    return next((timings[item] for item in sizes if item >= size), timings[sizes[-1]] if sizes else None)
