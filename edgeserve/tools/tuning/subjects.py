"""The worlds that candidates are tried in: a recording that is served again, or a scenario.

Each has two parts, one to choose by and one to report: the halves of a recording, or other seeds of a scenario. What
is reported never had a say in what was chosen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Protocol, Sequence, Tuple

from edgeserve.config.profiles import Profile
from edgeserve.sched.requests.admission import OVER_SHARE
from edgeserve.sim.host import Measured
from edgeserve.sim.recorded import Counted, RecordedTruth, RecordingError, run_recorded
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import Scenario, with_load
from edgeserve.sim.workload import owner_of
from edgeserve.sim.worth import worths_ns
from edgeserve.tools.tuning.candidates import Made
from edgeserve.tools.tuning.verdict import Sums, Tally
from edgeserve.units import NS_PER_S, counted

BLOCKS = 10
"""The reported half of a recording is cut into so many parts of equal numbers of requests: how far their gains lie
apart is the spread."""

REQUESTS_MIN = 400
"""Of a recording: 20 requests in each of the reported blocks, and as many to choose by."""


class Subject(Protocol):
    """Something to tune for. ``hints`` are those that requests declare, ``blocks_name`` says what blocks are. How far
    the simulation is to be trusted: ``recorded`` has per app the requests and the finish rates as recorded and as
    simulated, ``notes`` what is not known from the recording; both are empty for a scenario."""

    hints: List[str]
    blocks_name: str
    recorded: Dict[str, Tuple[int, float, float]]
    notes: List[str]

    def choosing(self, made: Made, load: float) -> Tally:
        """Try a candidate on the part that chooses."""

    def reporting(self, made: Made, load: float) -> Tally:
        """Try it on the part that reports."""


class RecordingSubject:
    """A recording: the first half of its requests chooses, the second half reports (after the first was served, so
    that the scheduler has learnt by then what it would have learnt)."""

    def __init__(self, truth: RecordedTruth, seeds: int, first_seed: int, requests_max: int, source: str) -> None:
        self._truth = truth
        requests = truth.history.requests
        self._count = min(len(requests), requests_max)
        self._half = self._count // 2
        self._seeds = seeds
        self._first_seed = first_seed
        self._check(source)
        self.hints = sorted({name for past in requests for name in past.request.hints})
        self.blocks_name = f"{BLOCKS} parts of the second half, {counted(seeds, 'run')}"
        self.recorded: Dict[str, Tuple[int, float, float]] = {}
        self.notes = [
            *truth.times.notes,
            *(
                f"model {model}: {item.hint} explains {100 * item.share:.0f} % of how its durations differ"
                for model, item in truth.times.explanations.items()
            ),
        ]
        if len(requests) > requests_max:
            self.notes.append(f"the first {requests_max} of {len(requests)} requests are used (--requests)")

    def choosing(self, made: Made, load: float) -> Tally:
        """The first half."""
        tally: Tally = {}
        self._count_in(tally, run_recorded(self._truth, made.config, self._first_seed, load, self._half), 0, self._half)
        return tally

    def reporting(self, made: Made, load: float) -> Tally:
        """The second half, with seeds that chose nothing."""
        tally: Tally = {}
        for seed in range(self._first_seed + 1, self._first_seed + 1 + self._seeds):
            self._count_in(
                tally, run_recorded(self._truth, made.config, seed, load, self._count), self._half, self._count
            )
        return tally

    def compare(self, today: Made) -> None:
        """Fill ``recorded``: the finish rates as recorded, and as simulated with today's configuration."""
        requests = self._truth.history.requests[: self._count]
        recorded: Dict[str, List[bool]] = {}
        simulated: Dict[str, List[bool]] = {}
        for past in requests:
            recorded.setdefault(past.request.app, []).append(past.in_time)
        for item in run_recorded(self._truth, today.config, self._first_seed, 1.0, self._count):
            simulated.setdefault(requests[item.place].request.app, []).append(item.in_time)
        self.recorded = {
            app: (len(ends), sum(ends) / len(ends), sum(simulated[app]) / len(simulated[app]))
            for app, ends in recorded.items()
        }

    def _count_in(self, tally: Tally, ended: Sequence[Counted], first: int, end: int) -> None:
        requests = self._truth.history.requests
        for item in ended:
            if first <= item.place < end:
                request = requests[item.place].request
                block = (item.place - first) * BLOCKS // (end - first)
                tally.setdefault((block, request.app, owner_of(request)), Sums()).add(
                    request.value, item.worth_ns, item.in_time, item.lane_ns, item.over_share
                )

    def _check(self, source: str) -> None:
        history = self._truth.history
        seconds = (history.ends_ns - history.begins_ns) / NS_PER_S
        if not history.requests:
            raise RecordingError(
                f"{source} holds no request that arrived ({seconds:.0f} s were recorded): there is "
                "nothing to tune for. Record while clients ask"
            )
        if self._count < min(REQUESTS_MIN, len(history.requests)):
            raise RecordingError(
                f"--requests {self._count}: at least {REQUESTS_MIN} are needed, half to choose by and half to report"
            )
        if self._count < REQUESTS_MIN:
            raise RecordingError(
                f"{source} is too short: {self._count} requests in {seconds:.0f} s, at least "
                f"{REQUESTS_MIN} are needed, half to choose by and half to report. Record longer"
            )
        if not history.batches:
            raise RecordingError(
                f"{source} holds no batch that ran to its end: nothing is known of how long models "
                "take. Record a server that answers"
            )


class ScenarioSubject:
    """A scenario: some seeds choose, as many others report."""

    def __init__(
        self, scenario: Scenario, profiles: Sequence[Profile], measured: Measured, seeds: int, first_seed: int
    ) -> None:
        self._scenario = scenario
        self._profiles = profiles
        self._measured = measured
        self._seeds = seeds
        self._first_seed = first_seed
        self.hints = sorted({name for item in scenario.workloads for name in item.hints})
        self.blocks_name = counted(seeds, "seed")
        self.recorded: Dict[str, Tuple[int, float, float]] = {}
        self.notes: List[str] = []

    def choosing(self, made: Made, load: float) -> Tally:
        """The first seeds."""
        return self._runs(made, load, self._first_seed)

    def reporting(self, made: Made, load: float) -> Tally:
        """The seeds after those."""
        return self._runs(made, load, self._first_seed + self._seeds)

    def _runs(self, made: Made, load: float, first: int) -> Tally:
        scenario = replace(self._scenario, config=made.config, edge=made.edge)
        if load != 1.0:  # clients that wait for answers have no rate, and may be tuned for as they are
            scenario = with_load(scenario, load)
        tally: Tally = {}
        for block in range(self._seeds):
            world = simulate(scenario, first + block, self._profiles, measured=self._measured).world
            for item, worth_ns in zip(world.ended, worths_ns(scenario.config, world.ended)):
                request = item.request
                if request.arrival_ns < scenario.run.warmup_ns:
                    continue
                tally.setdefault((block, request.app, owner_of(request)), Sums()).add(
                    request.value,
                    worth_ns,
                    item.in_time,
                    sum(world.usage.spent_ns.get(request.id, {}).values()),
                    item.reason == OVER_SHARE,
                )
        return tally
