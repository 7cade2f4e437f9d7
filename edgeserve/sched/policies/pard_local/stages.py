"""Where stages run and how long they take: the learnt times of all models on all lanes (``pard_local``).

A cohort has a *home*, the lane that runs the heaviest model of its pipeline. Its other stages run at home too where
they may; host functions, and models that are not allowed there, run on the fastest lane that is up. Makes no choice.
"""

from __future__ import annotations

from math import isqrt
from typing import Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.work_time import WorkTime
from edgeserve.sched.policies.pard_local.cost import AtNode, Schedule, repeated, staged
from edgeserve.sched.policies.pard_local.remaining_work import Left, Pipeline, Steps
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import new_tuple
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane


class Place(NamedTuple):
    """Where a stage runs: the lane, the model's times there, when the model is in memory, and when a batch could begin:
    what runs on the lane is over besides."""

    lane: str
    usual: WorkTime
    resident_ns: int
    starts_ns: int


class OnLanes(NamedTuple):
    """What a cohort has on lanes, by node (jobs and work as in :class:`Left`), until when, and how many of its jobs are
    ready."""

    jobs: List[int]
    over: List[int]
    until_ns: List[int]
    ready: List[int]


class Route:
    """Where the stages of a pipeline run for cohorts of one home, as things stand now, and what they take."""

    __slots__ = ("home", "places", "_pipeline")

    def __init__(self, pipeline: Pipeline, home: str, places: Sequence[Place | None]) -> None:
        self.home = home
        self.places = places  # by node; None where no lane is up
        self._pipeline = pipeline

    def is_open(self, left: Left) -> bool:
        """Whether every stage that is left has a lane."""
        return None not in [place for place, milli in zip(self.places, left.jobs) if milli]

    def is_spread(self, left: Left) -> bool:
        """Whether what is left needs more than one lane."""
        first = ""
        for place, milli in zip(self.places, left.jobs):
            if milli and place is not None and place.lane != first:
                if first:
                    return True
                first = place.lane
        return False

    def resident_ns(self) -> int:
        """When all of its models are in memory."""
        return max([place.resident_ns for place in self.places if place is not None], default=0)

    def one_by_one_ns(self, left: Left, steps: Steps, from_ns: int, limit_ns: int = 2**62) -> int | None:
        """When work that shares its lanes with nothing new ends, each stage behind the one before; None while a stage
        has no lane. Where that is beyond the limit, any time beyond it."""
        at_ns, over = from_ns, left.over
        for index, milli in enumerate(left.jobs):
            if milli:
                place = self.places[index]
                if place is None:
                    return None
                time_ns = place.usual.time_ns(milli, over[index])
                if steps:
                    time_ns *= steps.get(index, 1)
                at_ns = (at_ns if at_ns > place.starts_ns else place.starts_ns) + time_ns
                if at_ns > limit_ns:
                    return at_ns
        return at_ns

    def lane_times(self, left: Left, steps: Steps) -> Dict[str, int]:
        """How long what is left needs each lane."""
        found: Dict[str, int] = {}
        for index, place in enumerate(self.places):
            if place is not None and left.jobs[index]:
                time_ns = place.usual.time_ns(left.jobs[index], left.over[index]) * steps.get(index, 1)
                found[place.lane] = found.get(place.lane, 0) + time_ns
        return found

    def busy_ns(self, left: Left, steps: Steps) -> int:
        """What it costs the others: its time on the lane that it needs longest. While it is on another one, others may
        go on."""
        return max(1, max(self.lane_times(left, steps).values(), default=1))

    def noise_ns(self, left: Left, steps: Steps) -> int:
        """The standard deviation of the lane time of what is left, as far as batches took more or less than was
        believed."""
        total_us2 = 0
        for index, place in enumerate(self.places):
            if place is not None and left.jobs[index]:
                total_us2 += place.usual.variance_us2(left.jobs[index], left.over[index]) * steps.get(index, 1)
        return isqrt(total_us2) * 1000

    def schedule(self, left: Left, steps: Steps, from_ns: int, on_lanes: OnLanes | None = None) -> Schedule:
        """What a cohort has to run, batch by batch, where every stage has a lane: behind what it has ``on_lanes``
        (None: it is new)."""
        nodes: List[AtNode] = []
        at: Dict[int, int] = {}
        running_ns: List[int] = []
        for node in self._pipeline.nodes:
            index = node.index
            milli, over, place = left.jobs[index], left.over[index], self.places[index]
            if not milli or place is None:
                continue
            preds = [at[pred.index] for pred in node.preds if pred.index in at]
            ready = 0 if preds else milli // MILLI
            running = 0
            if on_lanes is not None:
                running, ready = on_lanes.jobs[index], on_lanes.ready[index]
                milli, over = milli - running, over - on_lanes.over[index]
            at[index] = len(nodes)
            batches = place.usual.batches(milli, over) if milli > 0 else []
            repeats = steps.get(index, 1)
            if repeats > 1:
                batches = repeated(batches, repeats)
            nodes.append(
                new_tuple(AtNode, (place.lane, batches, preds, ready, running // MILLI, len(running_ns), repeats > 1))
            )
            if on_lanes is not None and running:
                running_ns.append(on_lanes.until_ns[index])
        return new_tuple(Schedule, (staged(nodes), from_ns, running_ns, self.home))


class StageCosts:
    """Where stages run and how long they take, for the policy of this name. The times are the shared ones of usual
    work."""

    __slots__ = ("_usual", "_homes", "_routes", "_routes_key")

    def __init__(self, name: str) -> None:
        self._homes: Dict[int, List[str]] = {}  # by the pipeline's identity: pipelines live as long as the policy
        self._usual: Dict[Tuple[str, str], WorkTime] = {}
        self._routes: Dict[Tuple[int, str], Route] = {}  # as long as the board's ends stand
        self._routes_key = f"{name} routes"

    def usual(self, model: str, lane: str, board: Board) -> WorkTime:
        """How a model on a lane serves any number of jobs."""
        found = self._usual.get((model, lane))
        if found is None:
            found = self._usual[model, lane] = board.latency(model, lane).work()
        return found

    def lane_of(self, model: str, home: str, board: Board) -> Lane | None:
        """The lane of a stage: home where it may run there, else the one that is fastest for a single job; None while
        none is up."""
        best: Lane | None = None
        best_ns = 0
        for lane in board.lanes_of(model):
            if lane.up and not lane.hung:
                if lane.name == home:
                    return lane
                time_ns = self.usual(model, lane.name, board).time_ns(MILLI)
                if best is None or time_ns < best_ns:
                    best, best_ns = lane, time_ns
        return best

    def route(self, pipeline: Pipeline, home: str, board: Board) -> Route:
        """Where the pipeline's stages run now, for cohorts of this home: worked out once, until something changes.
        (When a model can be loaded depends on the demand, which every arrival changes.)"""
        if self._routes_key not in board.ends_ns:
            board.ends_ns[self._routes_key] = None
            self._routes.clear()
        key = (id(pipeline), home)
        found = self._routes.get(key)
        if found is not None:
            return found
        places: List[Place | None] = []
        resident = True
        for node in pipeline.nodes:
            lane = self.lane_of(node.model, home, board)
            if lane is None:
                places.append(None)
                continue
            usual = self._usual.get((node.model, lane.name)) or self.usual(node.model, lane.name, board)
            resident_ns = starts_ns = board.resident_at_ns(node.model, lane)
            resident = resident and resident_ns <= board.now_ns
            if lane.works:
                starts_ns = max(starts_ns, lane.available_ns(board.now_ns))
            places.append(new_tuple(Place, (lane.name, usual, resident_ns, starts_ns)))
        found = Route(pipeline, home, places)
        if resident:
            self._routes[key] = found
        return found

    def homes(self, pipeline: Pipeline, board: Board) -> List[str]:
        """The lanes that may be a cohort's home: those that run the heaviest of the pipeline's models whose batches
        save time (of all, where none does) and are up, or any that is up when none of them is (what is left of a
        request may not need them)."""
        found = self._homes.get(id(pipeline))
        if found is None:
            shares: List[Tuple[bool, int, int]] = []
            for node in pipeline.nodes:
                places = board.lanes_of(node.model)
                share_ns = min([_share_ns(node.model, lane, board) for lane in places])
                saving = [lane for lane in places if _saves(node.model, lane, board)]
                shares.append((bool(saving), pipeline.template.jobs[node.index] * share_ns, -node.index))
            heaviest = pipeline.nodes[-max(shares)[2]]
            found = self._homes[id(pipeline)] = [lane.name for lane in board.lanes_of(heaviest.model)]
        names: List[str] = []
        others: List[str] = []
        for lane in board.lanes:
            if lane.up and not lane.hung:
                (names if lane.name in found else others).append(lane.name)
        if len(names) > 1:
            names.sort(key=found.index)
        return names or others

    def knows(self, pipeline: Pipeline) -> bool:
        """Whether the homes of a pipeline have been asked for."""
        return id(pipeline) in self._homes

    def are_resident(self, pipeline: Pipeline, board: Board) -> bool:
        """Whether all models of a pipeline are in memory wherever they may run."""
        for node in pipeline.nodes:
            for lane in board.lanes_of(node.model):
                if not board.is_resident(node.model, lane):
                    return False
        return True

    def serves(self, lane: Lane, model: str, home: str, board: Board) -> bool:
        """Whether a stage may run on this lane: its home, or any other lane when home cannot run it now."""
        if lane.name == home:
            return True
        at_home = next((other for other in board.lanes_of(model) if other.name == home), None)
        return at_home is None or not at_home.up or at_home.hung or not board.is_resident(model, at_home)

    def home_share_ns(self, pipeline: Pipeline, home: str, board: Board) -> int:
        """Time that a request which has not begun takes of its home, each job counted as its share of a full batch."""
        total = 0
        for node in pipeline.nodes:
            lane = self.lane_of(node.model, home, board)
            if lane is not None and lane.name == home:
                total += pipeline.template.jobs[node.index] * _share_ns(node.model, lane, board) // MILLI
        return total

    def cost_share_ns(self, pipeline: Pipeline, left: Left, board: Board) -> int:
        """Lane time of what is left, each usual job counted as its share of a full batch on its first lane."""
        total = 0
        for node in pipeline.nodes:
            milli, over_milli = left.jobs[node.index], left.over[node.index]
            if milli:
                lane = board.lanes_of(node.model)[0]
                usual = self.usual(node.model, lane.name, board)
                if usual.is_declared:
                    size_max = board.latency(node.model, lane.name).size_max
                    share_ns = usual.time_ns(size_max * MILLI) // size_max
                else:
                    share_ns = _share_ns(node.model, lane, board)
                total += max(0, milli * share_ns + over_milli * usual.each_ns) // MILLI
        return total


def _saves(model: str, lane: Lane, board: Board) -> bool:
    """Whether going together saves requests of a model time: a tenth at least in the largest batch."""
    latency = board.latency(model, lane.name)
    return _share_ns(model, lane, board) * 10 <= latency.typical_ns[latency.sizes[0]] * 9 // latency.sizes[0]


def _share_ns(model: str, lane: Lane, board: Board) -> int:
    latency = board.latency(model, lane.name)
    return latency.typical_ns[latency.size_max] // latency.size_max


def free_lanes(board: Board) -> Dict[str, int]:
    """When each lane is free."""
    return {lane.name: lane.available_ns(board.now_ns) for lane in board.lanes}
