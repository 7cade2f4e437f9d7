"""The host in a simulated run, which says what takes time beside the lanes' works; the world makes it happen.

:class:`IdealHost` charges ``[run] step_cost`` and ``event_cost`` and nothing else. :class:`MachineHost` draws from
:class:`~edgeserve.config.machine_costs.MachineCosts`: the loop's turns, wake-ups and stalls, the interpreter
lock, the threads that share it and the cores, and messages that wait for the loop (:class:`Messages`).
"""

from __future__ import annotations

import random
from typing import Any, Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.machine_costs import ASSUMED, LockUse, MachineCosts, Spread, with_overrides
from edgeserve.config.schema import Config
from edgeserve.loop.coalescing import ReceiveCoalescing, lane_threads
from edgeserve.loop.response_overhead import ResponseOverhead
from edgeserve.sched.protocol.actions import Action, EvictModel, LoadModel, RunBatch
from edgeserve.sched.protocol.events import (
    Event,
    LaneChanged,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sim.running import SimLane
from edgeserve.sim.scenario import RunConfig, Scenario
from edgeserve.sim.spreads import value_at

HOST_ENGINE = "python"
"""The engine whose functions run under the interpreter lock, unless ``options.process`` gives them a process."""


WAKE_TAKES, READ_TAKES, ANSWER_TAKES, START_TAKES, RETURN_TAKES = 2, 2, 1, 1, 2
"""The number of times that a thread takes the interpreter lock, and may have to wait for it each time, since calls of
the system let go of it: the loop that wakes up (its sleep, emptying its bell), per request that it reads (two frames),
per answer that it sends; a lane's thread that is given a work, and one that comes back from its device and rings the
loop's bell."""

LONGEST = 0.99
"""The quantile of the waits for a function that counts as the time for which it kept the lock."""

Function = Tuple[str, int]
"""A host function that runs: its model, and how long it goes on."""


class Lags(NamedTuple):
    """The recorded delays of one lane, in nanoseconds: from a decision to the start of its work on the idle lane, and
    from the end of a work to the step that was told."""

    start_ns: Sequence[int]
    news_ns: Sequence[int]


class Charged(NamedTuple):
    """The costs that a run is charged, and their source, for people."""

    step_ns: int
    event_ns: int
    machine: Optional[MachineCosts]
    source: str


Measured = Tuple[str, MachineCosts]
"""The costs of a machine, and where they come from, for people."""

NOT_MEASURED: Measured = ("assumed, since none were measured here: run 'edgeserve profile'", ASSUMED)

STEP_NS, EVENT_NS = 20_000, 15_000
"""The costs of a step and an event where no machine is charged: one wake-up of the loop, and half of a cycle of 30
us."""


def charged(scenario: Scenario, measured: Optional[Measured] = None) -> Charged:
    """The costs that a scenario is charged. With ``[run] step_cost`` or ``event_cost``, or where neither ``measured``
    nor a section ``[machine]`` says what a machine costs: so much per step and event, and nothing else. Else all costs
    of the machine, with what ``[machine]`` says in their place."""
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


def slowed_by_lock(share: float, others: Iterable[float], factor: float) -> float:
    """The multiple of its time that a function takes that needs the lock for ``share`` of it, beside others with shares
    of their own: with shares of 1 each other one adds what it adds to pure Python."""
    return 1.0 + share * sum(others) * (factor - 1.0)


def _longest(spread: Spread) -> int:
    return value_at(spread, LONGEST) if spread else 0


def _drawn(spread: Spread, draw: random.Random) -> int:
    return value_at(spread, draw.random()) if spread else 0


class IdealHost:
    """A host on which threads and messages take no time: a turn of the loop takes ``step_ns``, and ``event_ns`` per
    event. Belongs to one world. ``is_ideal``: answers go out when they are decided, and the loop never sleeps.
    ``messages``: unread messages of the bus, ``None`` where requests come when the loop reads them."""

    is_ideal = True
    messages: Optional[Messages] = None

    def __init__(self, step_ns: int = 0, event_ns: int = 0) -> None:
        self._step_ns = step_ns
        self._event_ns = event_ns

    def begin(self, lanes: Mapping[str, SimLane]) -> None:
        """The world's lanes are known."""

    def begin_step(self) -> None:
        """The loop decides anew."""

    def turn_ns(self, events: Sequence[Event], policies: Mapping[str, str], waiting: Mapping[str, int]) -> int:
        """The loop's time to decide on the events. ``policies``: app -> the kind of its policy; ``waiting``: requests
        open, by that kind."""
        return self._step_ns + self._event_ns * len(events)

    def wake_ns(self, at_ns: int) -> int:
        """The time from news for the sleeping loop until it runs."""
        return 0

    def receive_ns(self, requests: int, at_ns: int) -> int:
        """The loop's time to read so many requests."""
        return 0

    def send_ns(self) -> int:
        """The time from a client's stamp until the loop has news of the request."""
        return 0

    def keeps(self, event: Event, now_ns: int) -> bool:
        """True if an event waits as a message until the loop reads it."""
        return False

    def give(self, action: Action, acts_ns: int, another_ns: int) -> None:
        """The present step, whose actions take effect at ``acts_ns``, gives a lane a work; another could start on the
        lane ``another_ns`` later."""

    def start_ns(self, lane: SimLane, action: Any, now_ns: int, acts_ns: int) -> int:
        """The time from giving an idle lane a batch until its thread starts it."""
        return 0

    def share(self, model: str) -> float:
        """The share of its time for which a model's function holds the interpreter lock."""
        return 0.0

    def stalls_ns(self, running_ns: int) -> int:
        """The stalls of a thread that runs for so long."""
        return 0

    def shares_cores(self, lane: SimLane, is_measured: bool) -> bool:
        """True if a batch is slower beside others on cores."""
        return False

    def pace(self, lane: SimLane) -> float:
        """The multiple of its time that a lane's batch takes for the lock and the cores that it shares."""
        return 1.0

    def news_lag_ns(self, lane: str) -> int:
        """The time from the end of a lane's batch until the loop hears of it, as recorded of this lane."""
        return 0

    def return_wait_ns(self, now_ns: int) -> int:
        """The wait of a thread that comes back from its device."""
        return 0

    def answer_ns(self, at_ns: int, acts_ns: int) -> int:
        """The loop's time to send one answer, and what it waits for the lock before."""
        return 0

    def answered(self, overhead_ns: int) -> None:
        """An answer went out this much later than if handing over, there and back, took no time."""

    def planned_ns(self, now_ns: int, deadline_ns: int) -> int:
        """The deadline for the scheduler: as a server gives it, less the time of answers beside their lane."""
        return deadline_ns

    def slo_ns(self, planned_ns: int) -> int:
        """The smallest time until a deadline of which ``planned_ns`` are left to plan with."""
        return planned_ns


class MachineHost(IdealHost):
    """The loop's thread and those of the lanes of one world, on a machine that costs. Each kind of draw has a generator
    of its own, so that more of one moves nothing in another. ``lags``: the recorded delays of each lane, in place of
    wake-ups. ``is_planned``: deadlines are already a scheduler's, less the time of answers. ``apart``: devices
    whose lanes slow each other by a number of the scenario's own."""

    is_ideal = False

    def __init__(
        self,
        costs: MachineCosts,
        config: Config,
        seed: Any,
        lags: Optional[Mapping[str, Lags]] = None,
        is_planned: bool = False,
        apart: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._costs = costs
        self._is_planned = is_planned
        self._lanes: Mapping[str, SimLane] = {}
        self._contended = {name for name, device in config.devices.items() if device.kind == "cpu"} - {*apart}
        self._starting: List[Tuple[str, str, int]] = []  # functions of the present step: lane, model, expected time
        # In a recording requests come when the recorded loop read them.
        self.messages = None if is_planned else Messages(config, costs.cores)
        self._lags = lags or {}
        self._lag = random.Random(f"{seed}/machine/lag")
        self._overhead = ResponseOverhead()
        self._send = random.Random(f"{seed}/machine/send")
        self._wake = random.Random(f"{seed}/machine/wake")
        self._start = random.Random(f"{seed}/machine/start")
        self._stall = random.Random(f"{seed}/machine/stall")
        self._lock = random.Random(f"{seed}/machine/lock")
        self._first = random.Random(f"{seed}/machine/behind")
        self._locks: Dict[str, LockUse] = {
            name: costs.lock_of(name)
            for name, model in config.models.items()
            if model.engine == HOST_ENGINE and not model.options.get("process", False) or name in costs.lock
        }

    def share(self, model: str) -> float:
        use = self._locks.get(model)
        return use.share if use is not None else 0.0

    def send_ns(self) -> int:
        return _drawn(self._costs.send_ns, self._send)

    def wake_ns(self, at_ns: int) -> int:
        return _drawn(self._costs.wake_ns, self._wake) + self._lock_wait_ns(self._functions(at_ns), WAKE_TAKES)

    def news_lag_ns(self, lane: str) -> int:
        return self._recorded(self._lags[lane].news_ns) if lane in self._lags else 0

    def _recorded(self, samples: Sequence[int]) -> int:
        return samples[self._lag.randrange(len(samples))] if samples else 0

    def _lock_wait_ns(self, running: Sequence[Function], takes: int) -> int:
        """The wait of a thread that takes the lock ``takes`` times; no function keeps it waiting beyond its own end."""
        return sum(
            min(left_ns, sum(_drawn(self._locks[model].wait_ns, self._lock) for _ in range(takes)))
            for model, left_ns in running
        )

    def _behind_ns(self, starting: Sequence[Function]) -> int:
        """The wait of a thread that needs the lock while functions start that get it first: as long as a function keeps
        it, which the interpreter bounds."""
        return max(
            [
                min(left_ns, _longest(self._locks[model].wait_ns))
                for model, left_ns in starting
                if self._first.random() < self._locks[model].share
            ],
            default=0,
        )

    def _beside(self, is_function: bool, others: Sequence[bool]) -> float:
        """The multiple of its time that a batch takes on cores beside others; each says whether it is a host function,
        of which the interpreter lock lets one run at a time."""
        functions = sum(others)
        beside = len(others) - functions + (functions > 0 and not is_function)
        return 1.0 + beside * (self._costs.contention - 1.0)

    def receive_ns(self, requests: int, at_ns: int) -> int:
        waits_ns = self._lock_wait_ns(self._functions(at_ns), READ_TAKES * requests)
        return self._stalled(self._costs.receive_ns * requests) + waits_ns

    def stalls_ns(self, running_ns: int) -> int:
        every_ns, held_ns, left_ns = self._costs.stall_every_ns, 0, float(running_ns)
        while every_ns:
            left_ns -= self._stall.expovariate(1.0 / every_ns)
            if left_ns < 0:
                break
            held_ns += _drawn(self._costs.stall_ns, self._stall)
        return held_ns

    def _stalled(self, running_ns: int) -> int:
        return running_ns + self.stalls_ns(running_ns)

    def begin(self, lanes: Mapping[str, SimLane]) -> None:
        self._lanes = lanes

    def begin_step(self) -> None:
        self._starting.clear()

    def turn_ns(self, events: Sequence[Event], policies: Mapping[str, str], waiting: Mapping[str, int]) -> int:
        costs, more_ns = self._costs, 0
        if costs.decide:  # what policies take beyond the loop's usual time per event
            kinds = [policies.get(event.request.app, "") for event in events if isinstance(event, RequestArrived)]
            more_ns = sum([costs.decision_ns(kind, waiting.get(kind, 0)) for kind in kinds])
        return self._stalled(costs.step_ns + costs.event_ns * len(events) + more_ns)

    def keeps(self, event: Event, now_ns: int) -> bool:
        if self.messages is None or not isinstance(event, (RequestArrived, RequestCancelled)):
            return False
        self.messages.came(event, now_ns)
        return True

    def give(self, action: Action, acts_ns: int, another_ns: int) -> None:
        if isinstance(action, RunBatch):
            # Of all threads that a step wakes, that with a host function gets the interpreter lock first (measured: in
            # two cases of three, and others wait as long as it takes in the mean).
            lane = self._lanes[action.lane]
            if lane.up and not lane.inbox and not lane.launched_count and self.share(action.model):
                self._starting.append((action.lane, action.model, action.expected_ns))
        if self.messages is not None:
            self.messages.given(action, acts_ns, another_ns)

    def answered(self, overhead_ns: int) -> None:
        self._overhead.took(overhead_ns)

    def planned_ns(self, now_ns: int, deadline_ns: int) -> int:
        if self._is_planned:
            return deadline_ns
        return self._overhead.planned_ns(now_ns, deadline_ns)

    def slo_ns(self, planned_ns: int) -> int:
        return self._overhead.slo_ns(planned_ns)

    def _functions(self, at_ns: int) -> List[Function]:
        """The host functions that still run then, as far as is known."""
        return [
            (lane.running.action.model, lane.running.ends_ns() - at_ns)
            for lane in self._lanes.values()
            if lane.running is not None and lane.running.share and lane.running.ends_ns() > at_ns
        ]

    def _starting_beside(self, lane: str, at_ns: int, acts_ns: int) -> List[Function]:
        """Functions of the present step, whose actions take effect at ``acts_ns``, on other lanes; and how much of them
        is left."""
        return [
            (model, acts_ns + expected_ns - at_ns)
            for other, model, expected_ns in self._starting
            if other != lane and acts_ns + expected_ns > at_ns
        ]

    def start_ns(self, lane: SimLane, action: Any, now_ns: int, acts_ns: int) -> int:
        lag_ns = _drawn(self._costs.start_ns, self._start) + self._lock_wait_ns(self._functions(now_ns), START_TAKES)
        if lane.name in self._lags:
            lag_ns += self._recorded(self._lags[lane.name].start_ns)
        if not self.share(getattr(action, "model", "")):
            lag_ns += self._behind_ns(self._starting_beside(lane.name, now_ns, acts_ns))
        return lag_ns

    def answer_ns(self, at_ns: int, acts_ns: int) -> int:
        behind_ns = self._behind_ns(self._starting_beside("", at_ns, acts_ns))
        functions = self._functions(at_ns + behind_ns)
        return behind_ns + self._costs.answer_ns + self._lock_wait_ns(functions, ANSWER_TAKES)

    def return_wait_ns(self, now_ns: int) -> int:
        return self._lock_wait_ns(self._functions(now_ns), RETURN_TAKES)

    def shares_cores(self, lane: SimLane, is_measured: bool) -> bool:
        """It was measured alone, and its device does not say how much its lanes slow each other."""
        return is_measured and lane.device in self._contended

    def pace(self, lane: SimLane) -> float:
        here = lane.running
        assert here is not None
        others = [other.running for other in self._lanes.values() if other is not lane and other.running is not None]
        pace = 1.0
        if here.share:
            pace = slowed_by_lock(here.share, [other.share for other in others], self._costs.lock_factor)
        if here.shares_cores:
            pace *= self._beside(here.share > 0.0, [other.share > 0.0 for other in others if other.shares_cores])
        return pace


class Messages:
    """Unread messages of the bus. ``cores``: the number that the server may use; 0 where it is not known: the loop then
    counts as having one of its own. Belongs to one world."""

    def __init__(self, config: Config, cores: int) -> None:
        self.waiting: List[Event] = []
        self._since_ns = 0  # when the first of them came
        self.looks_ahead = any(lane.ahead_ns for lane in config.lanes.values())
        self._rule = ReceiveCoalescing(shares_cores=0 < cores <= lane_threads(config))
        self._rooms = {name: 1 if lane.ahead_ns else lane.depth for name, lane in config.lanes.items()}
        self._given = dict.fromkeys(config.lanes, 0)  # works that a lane has, as far as the loop knows
        self._lanes: Dict[int, str] = {}  # work -> its lane

    @property
    def is_busy(self) -> bool:
        """True if no lane could start what comes."""
        return all(self._given[name] >= room for name, room in self._rooms.items())

    def given(self, action: Any, now_ns: int, expected_ns: int) -> None:
        """A lane was given a work. ``expected_ns``: after which something else could start there."""
        if isinstance(action, RunBatch):
            self._rule.launched(now_ns, expected_ns)
        if isinstance(action, (RunBatch, LoadModel, EvictModel)) and action.lane in self._given:
            self._given[action.lane] += 1
            self._lanes[action.work_id] = action.lane

    def told(self, mail: Sequence[Event]) -> None:
        """The loop looks at its mail."""
        for event in mail:
            if isinstance(event, (WorkFinished, WorkRefused)):
                lane = self._lanes.pop(event.work_id, "")
                if lane:
                    self._given[lane] -= 1
            elif isinstance(event, LaneChanged) and event.up is False and event.lane in self._given:
                self._given[event.lane] = 0  # its batches get no answer
                self._lanes = {work: lane for work, lane in self._lanes.items() if lane != event.lane}

    def held_until_ns(self, now_ns: int) -> Optional[int]:
        """The time until which the loop does not look for messages; ``None``: it looks."""
        return self._rule.receive_at_ns(now_ns) if self.is_busy else None

    def lets_more_come(self, now_ns: int) -> bool:
        """Something came for a loop that had found nothing: whether it waits for more, since nothing can start."""
        if not self.is_busy or not self._rule.hold_ns:
            return False
        self._rule.hold_from(now_ns)
        return self._rule.receive_at_ns(now_ns) is not None

    def came(self, message: Event, now_ns: int) -> None:
        """One more waits."""
        if not self.waiting:
            self._since_ns = now_ns
        self.waiting.append(message)

    def wanted_ns(self, ready_ns: int, due_ns: Optional[int]) -> int:
        """When the loop would have gone on, which does at ``ready_ns``, had it not let messages and the timer wait."""
        times = [ready_ns] + [self._since_ns] * bool(self.waiting) + [due_ns] * (due_ns is not None)
        return min(item for item in times if item is not None)

    def read(self) -> List[Event]:
        """All that waits."""
        read, self.waiting = self.waiting, []
        return read

    def were_read(self, now_ns: int, count: int) -> None:
        """So many were read; the next look may wait again."""
        if self.is_busy:
            self._rule.received(now_ns, count)

    def expects_more(self, now_ns: int, count: int) -> bool:
        """True if an idle lane waits a moment for clients just answered, ``count`` events having come."""
        return not self.is_busy and self._rule.answers > 1 and self._rule.expects_more(now_ns, count)

    def answered(self, now_ns: int, count: int) -> None:
        """So many answers were sent together."""
        self._rule.answered(now_ns, count, self.is_busy)
