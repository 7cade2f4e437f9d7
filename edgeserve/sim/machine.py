"""What the machine costs in a simulated run: the loop's turns, wake-ups, stalls and the interpreter lock.

It draws from :class:`~edgeserve.config.machine_costs.MachineCosts`; the world makes it happen. Without one (an ideal
machine but for ``[run] step_cost`` and ``event_cost``) nothing is drawn.
"""

from __future__ import annotations

import random
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.machine_costs import ASSUMED, LockUse, MachineCosts, Spread, with_overrides
from edgeserve.config.schema import Config
from edgeserve.loop.response_overhead import ResponseOverhead
from edgeserve.sim.quantiles import value_at
from edgeserve.sim.scenario import RunConfig, Scenario

HOST_ENGINE = "python"
"""The engine whose functions run under the interpreter lock, unless ``options.process`` gives them a process."""


WAKE_TAKES, READ_TAKES, ANSWER_TAKES, START_TAKES, RETURN_TAKES = 2, 2, 1, 1, 2
"""How often a thread takes the interpreter lock, and may have to wait for it each time, since calls of the system let
go of it: the loop that wakes up (its sleep, emptying its bell), per request that it reads (two frames), per answer that
it sends; a lane's thread that is given a work, and one that comes back from its device and rings the loop's bell."""

LONGEST = 0.99
"""Of the waits for a function, at which quantile those are that lasted as long as it kept the lock."""

Function = Tuple[str, int]
"""A host function that runs: its model, and how long it goes on."""


class Lags(NamedTuple):
    """What was recorded of one lane, in nanoseconds: from a decision to the start of its work on the idle lane, and
    from the end of a work to the step that was told."""

    start_ns: Sequence[int]
    news_ns: Sequence[int]


class Charged(NamedTuple):
    """What a run is charged, and where that comes from, for people."""

    step_ns: int
    event_ns: int
    machine: Optional[MachineCosts]
    source: str


Measured = Tuple[str, MachineCosts]
"""The costs of a machine, and where they come from, for people."""

NOT_MEASURED: Measured = ("assumed, since none were measured here: run 'edgeserve profile'", ASSUMED)

STEP_NS, EVENT_NS = 20_000, 15_000
"""What thinking costs where no machine is charged: one wake-up of the loop, and half of a cycle of 30 us."""


def charged(scenario: Scenario, measured: Optional[Measured] = None) -> Charged:
    """What a scenario is charged. With ``[run] step_cost`` or ``event_cost``, or where neither ``measured`` nor a
    section ``[machine]`` says what a machine costs: so much per step and event, and nothing else. Else all costs of the
    machine, with what ``[machine]`` says in their place."""
    run: RunConfig = scenario.run
    stated = run.step_cost_ns >= 0 or run.event_cost_ns >= 0
    if stated or (measured is None and not scenario.machine):
        return Charged(
            run.step_cost_ns if run.step_cost_ns >= 0 else STEP_NS,
            run.event_cost_ns if run.event_cost_ns >= 0 else EVENT_NS,
            None,
            "as [run] says, nothing else" if stated else "per step and event alone",
        )
    source, costs = measured or NOT_MEASURED
    if scenario.machine:
        costs = with_overrides(costs, scenario.machine)
        source += " (but as [machine] says)"
    return Charged(costs.step_ns, costs.event_ns, costs, source)


class Machine:
    """The draws of one run. Each kind has a generator of its own, so that more of one moves nothing in another.
    ``lags``: what was recorded of each lane, in place of wake-ups. ``is_planned``: deadlines are those that a scheduler
    was told already, less what answers take."""

    def __init__(
        self,
        costs: MachineCosts,
        config: Config,
        seed: Any,
        lags: Optional[Mapping[str, Lags]] = None,
        is_planned: bool = False,
    ) -> None:
        self.costs = costs
        self.is_planned = is_planned
        self._lags = lags or {}
        self._lag = random.Random(f"{seed}/machine/lag")
        self.overhead = ResponseOverhead()
        self._send = random.Random(f"{seed}/machine/send")
        self._wake = random.Random(f"{seed}/machine/wake")
        self._start = random.Random(f"{seed}/machine/start")
        self._stall = random.Random(f"{seed}/machine/stall")
        self._lock = random.Random(f"{seed}/machine/lock")
        self._behind = random.Random(f"{seed}/machine/behind")
        self._locks: Dict[str, LockUse] = {
            name: costs.lock_of(name)
            for name, model in config.models.items()
            if model.engine == HOST_ENGINE and not model.options.get("process", False) or name in costs.lock
        }

    def share(self, model: str) -> float:
        """The share of its time for which a model's function holds the interpreter lock."""
        use = self._locks.get(model)
        return use.share if use is not None else 0.0

    def send_ns(self) -> int:
        """From a client's stamp until the loop has news of the request."""
        return _drawn(self.costs.send_ns, self._send)

    def wake_ns(self, running: Sequence[Function]) -> int:
        """From news for the sleeping loop until it runs, while functions of ``running`` models run."""
        return _drawn(self.costs.wake_ns, self._wake) + self.lock_wait_ns(running, WAKE_TAKES)

    def start_ns(self, running: Sequence[Function]) -> int:
        """From giving an idle lane a work until its thread starts it."""
        return _drawn(self.costs.start_ns, self._start) + self.lock_wait_ns(running, START_TAKES)

    def start_lag_ns(self, lane: str) -> int:
        """From giving an idle lane a work until it starts, as recorded of this lane; 0 where nothing was."""
        return self._recorded(self._lags[lane].start_ns) if lane in self._lags else 0

    def news_lag_ns(self, lane: str) -> int:
        """From the end of a lane's work until the loop is told, as recorded of this lane; 0 where nothing was."""
        return self._recorded(self._lags[lane].news_ns) if lane in self._lags else 0

    def _recorded(self, samples: Sequence[int]) -> int:
        return samples[self._lag.randrange(len(samples))] if samples else 0

    def lock_wait_ns(self, running: Sequence[Function], takes: int) -> int:
        """How long a thread waits that takes the lock so often; no function keeps it waiting beyond its own end."""
        return sum(
            min(left_ns, sum(_drawn(self._locks[model].wait_ns, self._lock) for _ in range(takes)))
            for model, left_ns in running
        )

    def behind_ns(self, starting: Sequence[Function]) -> int:
        """How long a thread waits that needs the lock while functions start that get it first: as long as a function
        keeps it, which the interpreter bounds."""
        return max(
            [
                min(left_ns, _longest(self._locks[model].wait_ns))
                for model, left_ns in starting
                if self._behind.random() < self._locks[model].share
            ],
            default=0,
        )

    def beside(self, is_function: bool, others: Sequence[bool]) -> float:
        """How many times longer a batch takes on cores beside others; each says whether it is a host function, of which
        the interpreter lock lets one run at a time."""
        functions = sum(others)
        beside = len(others) - functions + (functions > 0 and not is_function)
        return 1.0 + beside * (self.costs.contention - 1.0)

    def receive_ns(self, requests: int, running: Sequence[Function]) -> int:
        """The loop's time to read so many requests."""
        return self._stalled(self.costs.receive_ns * requests) + self.lock_wait_ns(running, READ_TAKES * requests)

    def answer_ns(self, running: Sequence[Function]) -> int:
        """The loop's time to send one answer."""
        return self.costs.answer_ns + self.lock_wait_ns(running, ANSWER_TAKES)

    def turn_ns(self, events: int) -> int:
        """The loop's time to decide on so many events."""
        return self._stalled(self.costs.step_ns + self.costs.event_ns * events)

    def stalls_ns(self, running_ns: int) -> int:
        """How long a thread that runs for so long is held up meanwhile."""
        every_ns, held_ns, left_ns = self.costs.stall_every_ns, 0, float(running_ns)
        while every_ns:
            left_ns -= self._stall.expovariate(1.0 / every_ns)
            if left_ns < 0:
                break
            held_ns += _drawn(self.costs.stall_ns, self._stall)
        return held_ns

    def _stalled(self, running_ns: int) -> int:
        return running_ns + self.stalls_ns(running_ns)


def slowed_by_lock(share: float, others: Iterable[float], factor: float) -> float:
    """How many times longer a function takes that needs the lock for ``share`` of its time, beside others that need it
    for theirs: with shares of 1 each other one adds what it adds to pure Python."""
    return 1.0 + share * sum(others) * (factor - 1.0)


def _longest(spread: Spread) -> int:
    return value_at(spread, LONGEST) if spread else 0


def _drawn(spread: Spread, draw: random.Random) -> int:
    return value_at(spread, draw.random()) if spread else 0
