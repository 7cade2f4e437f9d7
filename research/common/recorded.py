"""A recording as a world: the same requests at the same times, under any policy.

Arrivals with what they declared, cancellations and changes of lanes are those of the recording; how long batches take
is learnt from it (:mod:`common.recorded_times`). Results of nodes are as recorded for each request that got so
far, else drawn from other requests' results. Clients are replayed as they came: none waits for an answer.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, DefaultDict, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from common.history import Past, RecordedHistory, Told, read_history
from common.recorded_times import PLACE_HINT, RecordedTimes, TimesModel
from edgeserve.config.machine_costs import LockUse, MachineCosts
from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler, with_sizes
from edgeserve.sched.protocol.actions import FinishRequest, Outcome
from edgeserve.sched.protocol.events import JobId, Request
from edgeserve.sim import faults
from edgeserve.sim.host import Lags, MachineHost
from edgeserve.sim.reference_model import ReferenceModel
from edgeserve.sim.scenario import FaultsConfig, WorkloadConfig
from edgeserve.sim.sequence_runs import hint_of
from edgeserve.sim.workload import Arrival, changed
from edgeserve.sim.world import SimWorld
from edgeserve.taps.trace import Recording, build_inputs

LAGS_MIN = 20
"""The least recorded starts or ends of batches from which the loop's and the lanes' threads' costs are charged."""


class Counted(NamedTuple):
    """One request of a run: its place in the recording, and whether it was in time."""

    place: int
    in_time: bool


class RecordedTruth(NamedTuple):
    """The truth learnt from a recording: :func:`run_recorded` makes runs of it. ``costs`` and ``lags`` are the loop's
    and the lanes' threads'."""

    history: RecordedHistory
    times: TimesModel
    start: Mapping[str, Any]
    profiles: Sequence[Profile]
    costs: MachineCosts
    lags: Mapping[str, Lags]


def learn(config: Config, recording: Recording, profiles: Sequence[Profile] = ()) -> RecordedTruth:
    """The truth of a recording of ``config``. ``profiles`` are the ones that the recorded run used."""
    history = read_history(recording.steps, recording.start.get("sequences", {}))
    times = TimesModel(config, history, profiles, build_inputs(recording.start)["measured"])
    step_ns = _step_ns(history)
    # What the interpreter lock cost host functions is in their durations, and what it cost others in the lags.
    costs = MachineCosts(step_ns=step_ns, lock={name: LockUse(0.0) for name in config.models})
    return RecordedTruth(history, times, recording.start, profiles, costs, _lags(history, step_ns))


def run_recorded(truth: RecordedTruth, config: Config, seed: Any) -> List[Counted]:
    """Serve the recorded requests under ``config``.

    Equal arguments give equal runs; arrivals do not depend on ``seed``, which draws durations and what was not
    recorded. In time is what was answered by the deadline in the recording.
    """
    history = truth.history
    inputs = build_inputs(truth.start)
    config = with_sizes(config, inputs.pop("sizes"))
    scheduler = build_scheduler(config, truth.profiles, **inputs)
    last_ns = history.requests[-1].seen_ns if history.requests else history.begins_ns
    duration_ns = last_ns - history.begins_ns + 1
    source: Any = RecordedWorkload(history.requests, history.begins_ns)
    times: Any = RecordedTimes(truth.times, random.Random(f"{seed}/times"))
    results: Any = RecordedResults(config, history.requests, seed, inputs["sequences"])
    budgets = {name: device.memory_bytes for name, device in config.devices.items()}
    trouble = faults.Trouble(FaultsConfig(), seed, duration_ns, _happenings(truth, duration_ns, budgets))
    world = SimWorld(
        config,
        [source],
        times,
        results,
        ReferenceModel(config, inputs["footprints"], inputs["resident"], inputs["sequences"]),
        trouble=trouble,
        duration_ns=duration_ns,
        host=MachineHost(truth.costs, config, seed, truth.lags, is_planned=True),
    )
    ended_ns: Dict[int, int] = {}

    def on_step(now_ns: int, events: Sequence[Any], actions: Sequence[Any]) -> None:
        for action in actions:
            if isinstance(action, FinishRequest):
                ended_ns[action.request_id] = now_ns

    drive(scheduler, world, (on_step,))
    world.reference_model.closed(world.now_ns)
    return [
        Counted(
            place_of(item.request.id),
            item.outcome == Outcome.COMPLETED
            and not item.cut
            and ended_ns[item.request.id] <= item.request.deadline_ns,
        )
        for item in world.ended
    ]


def place_of(request_id: int) -> int:
    """The place of a request in the recording: the world counts its requests from 1, in the order of the recording."""
    return request_id - 1


class RecordedWorkload:
    """Every recorded request, in place of :class:`~edgeserve.sim.workload.Workload`."""

    def __init__(self, requests: Sequence[Past], begins_ns: int) -> None:
        self.config = WorkloadConfig(name="recorded", kind="trace")
        self.serial = 0
        self._requests = requests
        self._begins_ns = begins_ns
        self._next = 0

    def first(self) -> List[Tuple[Arrival, str]]:
        """The first arrival."""
        arrival = self.next_open()
        return [(arrival, "")] if arrival is not None else []

    def next_open(self) -> Optional[Arrival]:
        """The next arrival, or ``None`` at the end."""
        if self._next >= len(self._requests):
            return None
        past = self._requests[self._next]
        self._next += 1
        cancelled_ns = None if past.cancelled_ns is None else max(0, past.cancelled_ns - past.seen_ns)
        return Arrival(past.seen_ns - self._begins_ns, 0, None, cancelled_ns)

    def next_closed(self, now_ns: int, app_index: int, answered: bool) -> Optional[Arrival]:
        """``None``: no client waits for an answer."""
        return None

    def request(self, request_id: int, arrival: Arrival, client: str) -> Request:
        """The recorded request under its new id, with its place as a hint that the scheduler does not see."""
        recorded = self._requests[place_of(request_id)]
        request = recorded.request
        self.serial += 1
        arrival_ns = max(0, arrival.at_ns - (recorded.seen_ns - request.arrival_ns))
        return changed(
            request,
            id=request_id,
            arrival_ns=arrival_ns,
            deadline_ns=arrival_ns + request.deadline_ns - request.arrival_ns,
            hints={**request.hints, PLACE_HINT: float(place_of(request_id))},
        )


class RecordedResults:
    """The result of each job, in place of :class:`~edgeserve.sim.truth.TrueResults`: as recorded where the request got
    to that node, else as one of the recorded jobs of the node, drawn by seed and place."""

    def __init__(
        self,
        config: Config,
        requests: Sequence[Past],
        seed: Any,
        sequences: Optional[Mapping[str, Tuple[int, ...]]] = None,
    ) -> None:
        self._requests = requests
        self._sequences = sequences or {}
        self._seed = seed
        self._nodes = {(app.name, node.name): node for app in config.apps.values() for node in app.nodes}
        self._tokens = {
            (app.name, node.name): hint_of(app, node.name, "tokens")
            for app in config.apps.values()
            for node in app.nodes
        }
        self._routes = {
            (app.name, node.name): [item.name for item in app.nodes if node.name in (item.after or ())]
            for app in config.apps.values()
            for node in app.nodes
        }
        self._others: DefaultDict[Tuple[str, str], List[Told]] = defaultdict(list)
        for past in requests:
            for (node, _), told in past.told.items():
                if told.status != "unfinished":  # else its request ended before it did
                    self._others[past.request.app, node].append(told)
        self._parts_means: Dict[Tuple[str, str], float] = {}
        for key, others in self._others.items():
            counts = [told.parts for told in others if told.parts is not None]
            if counts:
                self._parts_means[key] = sum(counts) / len(counts)
        self._comes_back = {
            key for key, others in self._others.items() if any(told.runs > 1 and not told.bounded for told in others)
        }

    def declared(self, request: Request, place: str) -> Request:
        """The request as the scheduler is to see it."""
        hints = {name: value for name, value in request.hints.items() if name != PLACE_HINT}
        return changed(request, hints=hints)

    def said(self, app: str, job: JobId, hints: Mapping[str, float]) -> Optional[Mapping[str, float]]:
        """The hints that the job's result tells."""
        told = self._told(app, job)
        return (told.hints or None) if told is not None else None

    def steps(self, app: str, place: str, job: JobId, hints: Mapping[str, float]) -> int:
        """The number of steps that the job needs in all; of a model that came back by itself, how many runs."""
        told = self._told(app, job)
        if told is None:
            return 1
        return max(1, told.steps if told.bounded else told.runs)

    def parts(self, app: str, place: str, job: JobId) -> Optional[int]:
        """Into how many parts it fans out; ``None`` for a node that does not."""
        if not self._nodes[app, job.node].fan_out:
            return None
        told = self._told(app, job)
        return told.parts if told is not None and told.parts is not None else 1

    def parts_mean(self, app: str, node: str) -> float:
        """The number of parts that a node makes on average; 1 for a node that does not fan out."""
        return self._parts_means.get((app, node), 1.0) if self._nodes[app, node].fan_out else 1.0

    def route(self, app: str, place: str, job: JobId) -> Optional[str]:
        """The successor that was taken; ``None`` for a node that takes all."""
        if self._nodes[app, job.node].route != "one":
            return None
        told = self._told(app, job)
        if told is not None and told.route is not None:
            return told.route
        names = self._routes[app, job.node]
        return names[self._draw(job).randrange(len(names))]

    def fails(self, app: str, place: str, job: JobId) -> bool:
        """True if the job fails."""
        told = self._told(app, job)
        return told is not None and told.status == "failed"

    def is_sequence(self, app: str, node: str) -> bool:
        """True if jobs of the node are sequences, which record their steps."""
        return self._nodes[app, node].model in self._sequences

    def tokens(self, app: str, job: JobId, hints: Mapping[str, float]) -> int:
        """The number of tokens of the job's prompt, as far as its request declared them."""
        return max(0, int(hints.get(self._tokens[app, job.node], 0)))

    def state_bytes(self, app: str, job: JobId, tokens: int = 0) -> int:
        """The bytes of the state of the job's stream or sequence, which has ``tokens`` tokens."""
        facts = self._sequences.get(self._nodes[app, job.node].model)
        if facts is not None:
            return tokens * facts[1]
        told = self._told(app, job)
        return told.state_bytes if told is not None else 0

    def steps_per_run(self, app: str, node: str) -> int:
        """1 for a model that came back unfinished by itself, else 0."""
        return int((app, node) in self._comes_back)

    def _told(self, app: str, job: JobId) -> Optional[Told]:
        recorded = self._requests[place_of(job.request_id)].told.get((job.node, job.part))
        if recorded is not None and recorded.status != "unfinished":
            return recorded
        others = self._others[app, job.node]
        return others[self._draw(job).randrange(len(others))] if others else None

    def _draw(self, job: JobId) -> random.Random:
        return random.Random(f"{self._seed}/recorded/{place_of(job.request_id)}/{job.node}/{job.part}")


def _step_ns(history: RecordedHistory) -> int:
    """The loop's time for one decision: the fastest tenth of what passed from a step to the start of its work, and no
    more than the fastest hundredth of what passed between two steps, since the loop takes one after the other."""
    lags = sorted(lag for lags in history.starts_ns.values() for lag in lags)
    gaps = sorted(history.gaps_ns)
    return max(0, min(lags[len(lags) // 10], gaps[len(gaps) // 100])) if len(lags) >= LAGS_MIN else 0


def _lags(history: RecordedHistory, step_ns: int) -> Dict[str, Lags]:
    """The delays of starts and ends of batches on each lane beside the decision."""
    return {
        lane: Lags([max(0, item - step_ns) for item in history.starts_ns[lane]], history.news_ns[lane])
        for lane in sorted(history.news_ns)
        if len(history.news_ns[lane]) >= LAGS_MIN
    }


def _happenings(truth: RecordedTruth, until_ns: int, budgets: Mapping[str, int]) -> List[faults.Happening]:
    """Lanes that changed their speed, were lost or came back, and memory that others took or gave back, as recorded."""
    found = []
    for recorded_ns, change in truth.history.lane_changes:
        at_ns = recorded_ns - truth.history.begins_ns
        if at_ns > until_ns or change.lane.startswith("copy:"):
            continue
        if change.up is not None:
            kind, amount = (faults.LANE_BACK, 0.0) if change.up else (faults.LANE_DIES, 1.0)
            found.append(faults.Happening(at_ns, kind, change.lane, amount))
        if change.speed is not None:
            found.append(faults.Happening(at_ns, faults.SPEED, change.lane, change.speed))
    for recorded_ns, news in truth.history.device_changes:
        at_ns, budget = recorded_ns - truth.history.begins_ns, budgets.get(news.device, 0)
        if at_ns <= until_ns and budget and news.memory_free_bytes is not None:
            found.append(faults.Happening(at_ns, faults.MEMORY, news.device, news.memory_free_bytes / budget))
            found.append(faults.Happening(until_ns, faults.MEMORY, news.device, 1.0))  # or some requests never end
    return found
