"""Where stages run and how long they take: the learnt times of all models on all lanes (``pard_local``).

A cohort has a *home*, the lane that runs the heaviest model of its pipeline. Its other stages run at home too where
they may; host functions, and models that are not allowed there, run on the fastest lane that is up. Makes no choice.
"""

from __future__ import annotations

from typing import Dict, Final, List, NamedTuple, Optional, Sequence, Tuple

from edgeserve.sched.latency.work_time import WorkTime
from edgeserve.sched.plan.remaining_work import Left, Pipeline, Steps
from edgeserve.sched.policies.pard_local.cost import Stage, repeated
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import new_tuple
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import RESIDENT, Placement


class Running(NamedTuple):
    """What of a cohort runs at a node: its jobs, how much more work than usual they are, and until when."""

    jobs: int
    over: int
    until_ns: int


NOT_RUNNING: Final = Running(0, 0, 0)


class Place(NamedTuple):
    """Where a stage runs, the model's times there, and its place in the memory of the lane's device."""

    lane: Lane
    usual: WorkTime
    placement: Placement


NO_PLACES: Final[List[Optional[Place]]] = []


class Route:
    """Where the stages of a pipeline run for cohorts of one home, as things stand now, and what they take.

    ``places`` and ``starts_ns`` (when a batch could begin: what runs on the lane is over, the model in memory) are by
    node; a place is None where no lane is up. ``lane`` is the lane of all stages, None where they have several.
    ``resident_ns`` is when all models are in memory.
    """

    __slots__ = ("home", "places", "starts_ns", "lane", "resident_ns", "_pipeline")

    def __init__(self, pipeline: Pipeline, home: str, places: Sequence[Place | None], board: Board) -> None:
        self.home = home
        self.places = places
        self.starts_ns: List[int] = []
        self.lane: Lane | None = None
        self.resident_ns = now_ns = board.now_ns
        self._pipeline = pipeline
        free: Dict[str, int] = {}
        for node, place in zip(pipeline.nodes, places):
            at_ns = now_ns
            if place is not None:
                lane = place.lane
                if lane.works:
                    at_ns = free[lane.name] = free.get(lane.name) or lane.available_ns(now_ns)
                else:
                    free[lane.name] = now_ns
                if place.placement.state != RESIDENT:
                    resident_ns = board.resident_at_ns(node.model, lane)
                    at_ns, self.resident_ns = max(at_ns, resident_ns), max(self.resident_ns, resident_ns)
                self.lane = lane
            self.starts_ns.append(at_ns)
        if len(free) > 1 or None in places:
            self.lane = None

    def is_open(self, left: Left) -> bool:
        """Whether every stage that is left has a lane."""
        return self.lane is not None or None not in [place for place, milli in zip(self.places, left.jobs) if milli]

    def is_spread(self, left: Left) -> bool:
        """Whether what is left needs more than one lane."""
        if self.lane is not None:
            return False
        lanes = {place.lane.name for place, milli in zip(self.places, left.jobs) if milli and place is not None}
        return len(lanes) > 1

    def one_by_one_ns(self, left: Left, steps: Steps, from_ns: int, limit_ns: int = 2**62) -> int | None:
        """When work that shares its lanes with nothing new ends, each stage behind the one before; None while a stage
        has no lane. Where that is beyond the limit, any time beyond it."""
        at_ns, over = from_ns, left.over
        for index, milli in enumerate(left.jobs):
            if milli:
                place = self.places[index]
                if place is None:
                    return None
                best_ns = place.usual.split.best_ns
                if milli == MILLI and not over[index] and len(best_ns) > 1:  # asked for most often
                    time_ns = best_ns[1]
                else:
                    time_ns = place.usual.time_ns(milli, over[index])
                if steps:
                    time_ns *= steps.get(index, 1)
                starts_ns = self.starts_ns[index]
                at_ns = (at_ns if at_ns > starts_ns else starts_ns) + time_ns
                if at_ns > limit_ns:
                    return at_ns
        return at_ns

    def answers(self, left: Left, count: int, ends_ns: int) -> List[int]:
        """When a cohort of ``count`` members is answered that ends then and has one lane: one time, or one for each
        member where each has one job of usual work at the module that answers."""
        exit = self._pipeline.exit
        place = self.places[exit] if exit >= 0 and count > 1 else None
        if place is None or left.jobs[exit] != count * MILLI or left.over[exit]:
            return [ends_ns]
        found: List[int] = []
        for number, time_ns in reversed(place.usual.split.batches(count)):
            found += [ends_ns] * number
            ends_ns -= time_ns
        found.reverse()
        return found

    def lane_times(self, left: Left, steps: Steps) -> Dict[str, int]:
        """How long what is left needs each lane."""
        found: Dict[str, int] = {}
        for index, milli in enumerate(left.jobs):
            place = self.places[index]
            if milli and place is not None:
                best_ns = place.usual.split.best_ns
                if milli == MILLI and not left.over[index] and len(best_ns) > 1:
                    time_ns = best_ns[1]
                else:
                    time_ns = place.usual.time_ns(milli, left.over[index])
                name = place.lane.name
                found[name] = found.get(name, 0) + time_ns * steps.get(index, 1)
        return found

    def busy_ns(self, left: Left, steps: Steps) -> int:
        """What it costs the others: its time on the lane that it needs longest. While it is on another one, others may
        go on."""
        return max(1, max(self.lane_times(left, steps).values(), default=1))

    def stages(
        self, left: Left, steps: Steps, ready: Sequence[int] = (), running: Sequence[Running] = ()
    ) -> List[Stage]:
        """What a cohort has to run, batch by batch, where every stage has a lane. By node: how many of its jobs are
        ``ready``, and what is ``running`` (empty: it is new)."""
        found: List[Stage] = []
        at: Dict[int, int] = {}
        for node, place in zip(self._pipeline.nodes, self.places):
            index = node.index
            milli, over = left.jobs[index], left.over[index]
            if not milli or place is None:
                continue
            preds = [at[pred.index] for pred in node.preds if pred.index in at]
            at[index] = len(found)
            if running:
                own, waiting = running[index], ready[index]
                milli, over = milli - own.jobs * MILLI, over - own.over
            else:
                own, waiting = NOT_RUNNING, 0 if preds else milli // MILLI
            batches = place.usual.batches(milli, over) if milli > 0 else []
            repeats = steps.get(index, 1)
            if repeats > 1:
                batches = repeated(batches, repeats)
            stage = (place.lane.name, batches, preds, waiting, own.jobs, own.until_ns, repeats > 1)
            found.append(new_tuple(Stage, stage))
        return found


class StageCosts:
    """Where stages run and how long they take, for the policy of this name. The times are the shared ones of usual
    work."""

    __slots__ = ("_usual", "_homes", "_places", "_routes", "_routes_key")

    def __init__(self, name: str) -> None:
        self._homes: Dict[int, List[str]] = {}  # by the pipeline's identity: pipelines live as long as the policy
        self._usual: Dict[Tuple[str, str], WorkTime] = {}
        self._places: Dict[Tuple[int, str], List[Place | None]] = {}  # of routes that have no choice
        self._routes: Dict[Tuple[int, str], Route] = {}  # as long as the board's ends stand
        self._routes_key = f"{name} routes"

    def usual(self, model: str, lane: str, board: Board) -> WorkTime:
        """How a model on a lane serves any number of jobs."""
        found = self._usual.get((model, lane))
        if found is None:
            found = self._usual[model, lane] = board.latency(model, lane).work()
        return found

    def _place_of(self, model: str, home: str, board: Board) -> Place | None:
        """Where a stage runs: at home where it may, else on the lane that is fastest for a single job; None while no
        lane is up."""
        best: Place | None = None
        best_ns = 0
        for lane, _, placement in board.places_of(model):
            if lane.up and not lane.hung:
                usual = self.usual(model, lane.name, board)
                if lane.name == home:
                    return Place(lane, usual, placement)
                time_ns = usual.time_ns(MILLI)
                if best is None or time_ns < best_ns:
                    best, best_ns = Place(lane, usual, placement), time_ns
        return best

    def route(self, pipeline: Pipeline, home: str, board: Board) -> Route:
        """Where the pipeline's stages run now, for cohorts of this home: worked out once, until something changes.
        (When a model can be loaded depends on the demand, which every arrival changes.)"""
        if self._routes_key not in board.ends_ns:
            board.ends_ns[self._routes_key] = None
            self._routes.clear()
        key = (id(pipeline), home)
        found = self._routes.get(key)
        if found is None:
            places = self._places.get(key, NO_PLACES)
            for place in places:
                if place is None or not place.lane.up or place.lane.hung:
                    places = NO_PLACES
                    break
            if not places:
                places = self._find_places(pipeline, home, board)
            found = Route(pipeline, home, places, board)
            if found.resident_ns <= board.now_ns:
                self._routes[key] = found
        return found

    def _find_places(self, pipeline: Pipeline, home: str, board: Board) -> List[Place | None]:
        """The places of a route. They stay while they are up where every stage is at home or has no other lane."""
        places = [self._place_of(node.model, home, board) for node in pipeline.nodes]
        self._places[id(pipeline), home] = places
        for node, place in zip(pipeline.nodes, places):
            at_home = place is not None and place.lane.name == home
            if not at_home and len(board.places_of(node.model)) > 1:
                del self._places[id(pipeline), home]
                break
        return places

    def homes(self, pipeline: Pipeline, board: Board) -> List[str]:
        """The lanes that may be a cohort's home: those that run the heaviest of the pipeline's models whose batches
        save time (of all, where none does) and are up, or any that is up when none of them is (what is left of a
        request may not need them)."""
        found = self._homes.get(id(pipeline))
        if found is None:
            shares: List[Tuple[bool, int, int]] = []
            for node in pipeline.nodes:
                places = board.lanes_of(node.model)
                share_ns = min([board.latency(node.model, lane.name).share_ns for lane in places])
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
            place = self._place_of(node.model, home, board)
            if place is not None and place.lane.name == home:
                share_ns = board.latency(node.model, place.lane.name).share_ns
                total += pipeline.template.jobs[node.index] * share_ns // MILLI
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
                    share_ns = board.latency(node.model, lane.name).share_ns
                total += max(0, milli * share_ns + over_milli * usual.each_ns) // MILLI
        return total


def _saves(model: str, lane: Lane, board: Board) -> bool:
    """Whether going together saves requests of a model time: a tenth at least in the largest batch."""
    latency = board.latency(model, lane.name)
    return latency.share_ns * 10 <= latency.typical_ns[latency.sizes[0]] * 9 // latency.sizes[0]


def free_lanes(board: Board) -> Dict[str, int]:
    """When each lane is free."""
    return {lane.name: lane.available_ns(board.now_ns) for lane in board.lanes}
