"""Models that answer step by step in the simulated world: the lengths of answers, their predictions, and the run of a
batch of sequences of unequal length.

Pure: the world makes it happen, and draws nothing here but from numbers that are handed in.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from edgeserve.config.hints import known_hints
from edgeserve.config.schema import AppConfig
from edgeserve.lognormal import Lognormal, deviate
from edgeserve.sim.scenario import TruthConfig


def hint_of(app: AppConfig, node: str, what: str, given: str = "") -> str:
    """The name of a hint about a node: as it was ``given``, else ``what`` of an app of one plain node, else
    ``NODE.what``."""
    return given or (what if "steps" in known_hints(app.nodes) else f"{node}.{what}")


def steps_of(truth: TruthConfig, hints: Mapping[str, float]) -> int:
    """The steps that a job needs whose request says them; 1 of any other model."""
    if not truth.steps_hint:
        return 1
    return min(truth.steps_max, max(1, round(hints.get(truth.steps_hint, 1.0))))


class StepsPredictor:
    """The predictions of the steps of one model's requests (``[truth.MODEL.predict]``). Of the logarithm of the true
    number, whose law is normal, it sees a number that correlates with it by ``rho``, and says the mean of the numbers
    that are possible then (the RT-LM specification, section 9)."""

    def __init__(self, truth: TruthConfig, hint: str, laws: Mapping[Tuple[str, str], Lognormal]) -> None:
        assert truth.predict is not None
        self.hint = hint
        self._truth = truth
        self._config = truth.predict
        self._laws = laws

    def says(self, hints: Mapping[str, float], workload: str, uniform: float) -> Dict[str, float]:
        """The declared hints of a request with these true ones; ``uniform`` is a draw in [0, 1)."""
        config, truth = self._config, self._truth
        law = self._laws.get((workload, truth.steps_hint))
        log_median = math.log(config.median) if config.median else law.log_mean if law is not None else 0.0
        sigma = config.sigma if config.sigma >= 0 else law.sigma if law is not None else 0.0
        true, rho = steps_of(truth, hints), config.rho
        unexplained = sigma * math.sqrt(1.0 - rho * rho)
        if sigma and rho < 1.0:
            seen = rho * (math.log(max(true, 1)) - log_median) + unexplained * deviate(uniform)
            mean = Lognormal(log_median + rho * seen, unexplained).mean()
        else:
            mean = float(true)
        found = {self.hint: min(float(truth.steps_max), max(1.0, mean * config.scale))}
        if config.sd:
            found[f"{self.hint}_sd"] = unexplained
        return found


class SequenceRun:
    """One batch of sequences on a lane. ``needs`` are the steps that each still needs, ``bound`` how many each may
    make in this batch (None: all). Time passes in *stretches*: some steps during which the same sequences go on.
    ``step_ns(count)`` is a step of so many; ``before_ns`` passes before the first (prompts are read). With ``padded``
    above 0 a step always costs what so many sequences do. A stretch ends with the first step of one that is ``silent``:
    it is told that this one has begun. ``reads``: prompts are read one after the other, in so many
    turns of ``turn_ns`` each; the batch can end, or lose a sequence, after each turn.

    Knows no lane and no clock. Sequences are named by their place in the batch; one that needs nothing is of no request
    any more.
    """

    def __init__(
        self,
        needs: Sequence[int],
        bound: Optional[int],
        before_ns: int,
        step_ns: Callable[[int], int],
        padded: int = 0,
        reads: Sequence[int] = (),
        turn_ns: int = 0,
        silent: Sequence[int] = (),
    ) -> None:
        self.silent = set(silent)  # places of sequences without a step, in this batch or before
        self.unread = list(reads) or [0] * len(needs)  # turns in which the rest of each prompt is read
        self.turns = 0  # that have passed, steps counted
        self.made = [0] * len(needs)  # steps that each has made
        self.left = [place for place, need in enumerate(needs) if need > 0]  # the open ones
        self.told: List[int] = []  # the ones that ended and were answered before the batch
        self.stretch_ns = 0  # the length of the present stretch
        self._needs = list(needs)
        self._quotas = list(needs) if bound is None else [min(need, bound) for need in needs]
        self._dropped: List[int] = []  # those for which no further step is to be made
        self._stops = False
        self._before_ns = before_ns
        self._turn_ns = turn_ns
        self._reading = 0  # turns of the present stretch, before its steps
        self._step_ns = step_ns
        self._padded = padded
        self._steps = 0  # of the present stretch
        self._each_ns = 0

    def begin(self) -> int:
        """Begin the next stretch and say how long it is; 0 where no step is left to be made."""
        computed = [] if self._stops else [place for place in self.left if self.made[place] < self._quotas[place]]
        self._steps = min([self._quotas[place] - self.made[place] for place in computed], default=0)
        if any(place in self.silent for place in computed):
            self._steps = min(1, self._steps)
        self._each_ns = self._step_ns(self._padded or len(computed)) if computed else 0
        self._reading = sum([self.unread[place] for place in computed])
        return self._measure() if computed else self._nothing()

    def pass_stretch(self) -> List[int]:
        """End the present stretch. Returns the places of the sequences that have just ended, which go on no more."""
        self._book(self._reading, self._steps)
        self._steps = self._before_ns = self._nothing()
        ended = [place for place in self.left if self.made[place] >= self._needs[place] and place not in self._dropped]
        self.left = [place for place in self.left if place not in ended and place not in self._dropped]
        return ended

    def begun(self) -> List[int]:
        """The places of silent sequences that have made a step by now: each returned once."""
        begun = [place for place in sorted(self.silent) if self.made[place]]
        self.silent.difference_update(begun)
        return begun

    def stop(self, passed_ns: int) -> int:
        """End the batch after the present step. Says how long the present stretch is now, of which ``passed_ns`` have
        passed."""
        self._stops = True
        return self._shorten(passed_ns)

    def drop(self, place: int, passed_ns: int) -> int:
        """Make no step for one of them after the present one; as :meth:`stop`."""
        self._dropped.append(place)
        return self._shorten(passed_ns)

    def interrupt(self, passed_ns: int) -> None:
        """The lane is lost: the steps that were over count."""
        if self._steps:
            since_ns = max(0, passed_ns - self._before_ns - self._reading * self._turn_ns)
            self._book(0, min(self._steps, since_ns // self._each_ns))
            self._steps = 0

    def _nothing(self) -> int:
        self._reading = self.stretch_ns = 0
        return 0

    def _measure(self) -> int:
        self.stretch_ns = self._before_ns + self._reading * self._turn_ns + self._steps * self._each_ns
        return self.stretch_ns

    def _book(self, turns: int, steps: int) -> None:
        self.turns += turns + steps
        for place in self.left:
            if turns and self.made[place] < self._quotas[place]:
                read = min(turns, self.unread[place])
                self.unread[place] -= read
                turns -= read
        for place in self.left:
            self.made[place] += min(steps, self._quotas[place] - self.made[place])

    def _shorten(self, passed_ns: int) -> int:
        """End the present stretch with the turn or the step that is being made. A batch makes one of them at least."""
        if not self._steps:
            return self.stretch_ns
        since_ns = passed_ns - self._before_ns
        if self._reading and since_ns <= self._reading * self._turn_ns:
            self._reading, self._steps = max(-(-since_ns // self._turn_ns), 0 if self.turns else 1), 0
        else:
            begun = -(-(since_ns - self._reading * self._turn_ns) // self._each_ns)
            self._steps = min(self._steps, max(begun, 0 if any(self.made) else 1))
        return self._measure()
