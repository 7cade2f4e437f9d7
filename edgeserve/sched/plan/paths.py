"""The lanes of a pipeline's stages, their times, and the ends of requests that go through it together.

A company has a *home*, the lane that runs the heaviest model of its pipeline. Its other stages run there too where they
may; host functions, and models that home may not run, go to the fastest lane that is up. Makes no choice.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Dict, Final, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.latency.work_time import WorkTime
from edgeserve.sched.plan.remaining_work import Left, Pipeline, Steps
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.budget import Budget
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.placement import RESIDENT, Placement

ENTRIES_MAX: Final = 256
"""Entries of a repeated stage in a forecast: of more steps, several are one. (A bound on work.)"""

SAVES_PERCENT: Final = 90
"""A model saves time in batches if a job of its largest batch takes at most this part of one alone."""


class StageJobs(NamedTuple):
    """The running jobs of a company at a node: how many, how much more work than usual (in thousandths of a job), and
    until when."""

    jobs: int
    over: int
    until_ns: int


class Stage(NamedTuple):
    """The remaining work of a company at one node: the batches that have not begun, as (jobs, time), how many of their
    jobs are ``ready``, and how many jobs run now, until ``running_ns``. ``preds`` are positions in the same list. A
    batch begins as soon as its jobs are there: those of a batch of the node before, in their order; of a stepped stage
    (an iterative model), when all jobs are there."""

    lane: str
    batches: Sequence[Tuple[int, int]]
    preds: Sequence[int] = ()
    ready: int = 0
    running: int = 0
    running_ns: int = 0
    is_stepped: bool = False


class Schedule(NamedTuple):
    """The stages that a company has left, from ``ready_ns`` on. On lanes other than its ``home`` its last stage goes
    first, so that its requests are over one after the other."""

    stages: Sequence[Stage]
    ready_ns: int
    home: str = ""


class LaneSchedule:
    """When each schedule ends if a free lane always takes the first schedule that has something for it, and of that the
    earliest stage. Exact for what the plan does: batches are not interrupted, and an earlier schedule goes first.
    ``free_ns``: when each lane is free. O(batches * stages), which the step's ``budget`` is charged with."""

    __slots__ = ("_schedules", "_free", "_upto", "_over", "_ready", "_ends_ns")

    def __init__(self, schedules: Sequence[Schedule], free_ns: Mapping[str, int], budget: Budget) -> None:
        self._schedules = schedules
        self._free = dict(free_ns)
        self._upto: List[List[List[int]]] = []  # jobs of a stage's batches up to each of them
        self._over: List[List[List[int]]] = []  # when the batches of a stage end
        self._ready: List[List[int]] = []  # when the jobs of a stage's next batch are there; -1: not known
        self._ends_ns: List[int] = []
        stages = batches = 0
        for schedule in schedules:
            own = schedule.stages
            self._upto.append([list(accumulate([count for count, _ in stage.batches])) for stage in own])
            self._over.append([[] for _ in own])
            self._ready.append([-1] * len(own))
            self._ends_ns.append(max([schedule.ready_ns, *[stage.running_ns for stage in own]]))
            stages += len(own)
            batches += sum([len(stage.batches) for stage in own])
        budget.charge(stages * batches)

    def run(self) -> List[int]:
        """When each schedule ends."""
        schedules, free = self._schedules, self._free
        if len(schedules) == 1 and not [
            stage for stage in schedules[0].stages if stage.lane != schedules[0].home or stage.running
        ]:
            return self._run_alone(schedules[0])
        for index in range(len(schedules)):
            self._look(index)
        while True:
            best_ns, best, best_place = -1, -1, -1
            for index, ready in enumerate(self._ready):
                stages, home = schedules[index].stages, schedules[index].home
                for place, at_ns in enumerate(ready):
                    if at_ns < 0:
                        continue
                    lane = stages[place].lane
                    free_ns = free[lane]
                    if free_ns > at_ns:
                        at_ns = free_ns
                    if at_ns == best_ns and index == best and lane != home and lane == stages[best_place].lane:
                        best_place = place
                    elif best < 0 or at_ns < best_ns:
                        best_ns, best, best_place = at_ns, index, place
            if best < 0:
                return self._ends_ns
            self._take(best, best_place, best_ns)

    def _run_alone(self, schedule: Schedule) -> List[int]:
        """The same of one schedule that is at home with all that is left, of which nothing runs: stage by stage."""
        at_ns = max(schedule.ready_ns, self._free.get(schedule.home, 0))
        for stage, over in zip(schedule.stages, self._over[0]):
            for _, takes_ns in stage.batches:
                at_ns += takes_ns
                over.append(at_ns)
        if schedule.stages:
            self._ends_ns[0] = max(self._ends_ns[0], at_ns)
        return self._ends_ns

    def answers(self, index: int) -> List[int]:
        """When the jobs of a schedule's last stage end that have not begun yet, in their order; after :meth:`run`."""
        stages = self._schedules[index].stages
        if not stages:
            return []
        return [at_ns for (count, _), at_ns in zip(stages[-1].batches, self._over[index][-1]) for _ in range(count)]

    def _look(self, index: int) -> None:
        """Which stages of a schedule have the jobs of their next batch, and since when."""
        upto, over, ready = self._upto[index], self._over[index], self._ready[index]
        for place, at_ns in enumerate(ready):
            if at_ns < 0 and len(over[place]) < len(upto[place]):
                ready[place] = self._ready_ns(index, place)

    def _ready_ns(self, index: int, place: int) -> int:
        """When the jobs of a stage's next batch are there; -1: a batch that brings them has not been placed yet."""
        schedule, upto, over = self._schedules[index], self._upto[index], self._over[index]
        stage, jobs = schedule.stages[place], upto[place][-1]
        waits = (jobs if stage.is_stepped else upto[place][len(over[place])]) - stage.ready
        at_ns = schedule.ready_ns
        if waits <= 0:
            return at_ns
        for pred in stage.preds:
            source, ends = schedule.stages[pred], upto[pred]
            comes = (ends[-1] if ends else 0) + source.running
            wanted = -(-waits * comes // max(1, jobs - stage.ready)) - source.running
            there_ns = source.running_ns
            if wanted > 0 and ends:
                number = min(len(ends) - 1, bisect_left(ends, wanted))
                if len(over[pred]) <= number:
                    return -1
                there_ns = over[pred][number]
            if there_ns > at_ns:
                at_ns = there_ns
        return at_ns

    def _take(self, index: int, place: int, starts_ns: int) -> None:
        stage, over = self._schedules[index].stages[place], self._over[index][place]
        ends_ns = starts_ns + stage.batches[len(over)][1]
        over.append(ends_ns)
        self._ready[index][place] = -1
        self._free[stage.lane] = ends_ns
        if ends_ns > self._ends_ns[index]:
            self._ends_ns[index] = ends_ns
        self._look(index)


def repeated(batches: Sequence[Tuple[int, int]], repeats: int) -> List[Tuple[int, int]]:
    """The batches of an iterative node, (jobs, time), once per step. Where these would be more than
    :data:`ENTRIES_MAX`, equal numbers of steps are put together, so that the list stays short for any declared
    number."""
    if repeats * len(batches) <= ENTRIES_MAX or repeats == 1:
        return list(batches) * repeats
    jobs, time_ns = sum([count for count, _ in batches]), sum([batch_ns for _, batch_ns in batches])
    entries = min(repeats, ENTRIES_MAX)
    each, rest = divmod(repeats, entries)
    return [(jobs * (each + (index < rest)), time_ns * (each + (index < rest))) for index in range(entries)]


class StagePlace(NamedTuple):
    """The lane of a stage, the model's times there, and its place in the memory of the lane's device."""

    lane: Lane
    usual: WorkTime
    placement: Placement


class StageRoute:
    """The present lanes and times of a pipeline's stages for companies of one home.

    ``places`` and ``starts_ns`` (when a batch could begin: what runs on the lane is over, the model in memory) are by
    node; a place is None where no lane is up. ``lane`` is the lane of all stages, None where they have several.
    ``resident_ns`` is when all models are in memory.
    """

    __slots__ = ("home", "places", "starts_ns", "lane", "resident_ns", "_pipeline")

    def __init__(self, pipeline: Pipeline, home: str, places: Sequence[StagePlace | None], board: Board) -> None:
        self.home = home
        self.places = places
        self.starts_ns: List[int] = []
        self.lane: Lane | None = None
        self.resident_ns = board.now_ns
        self._pipeline = pipeline
        free_ns: Dict[str, int] = {}  # when each lane is
        for node, place in zip(pipeline.nodes, places):
            at_ns = board.now_ns
            if place is not None:
                if place.lane.name not in free_ns:
                    works = place.lane.works
                    free_ns[place.lane.name] = place.lane.available_ns(board.now_ns) if works else board.now_ns
                at_ns = free_ns[place.lane.name]
                if place.placement.state != RESIDENT:
                    resident_ns = board.resident_at_ns(node.model, place.lane)
                    at_ns, self.resident_ns = max(at_ns, resident_ns), max(self.resident_ns, resident_ns)
            self.starts_ns.append(at_ns)
        if len(free_ns) == 1 and None not in places and places[0] is not None:
            self.lane = places[0].lane

    def is_open(self, left: Left) -> bool:
        """True if every stage that is left has a lane."""
        return self.lane is not None or None not in [place for place, milli in zip(self.places, left.jobs) if milli]

    def ends_ns(self, left: Left, steps: Steps, from_ns: int) -> int | None:
        """When work that shares its lanes with nothing new ends, each stage behind the one before; None while a stage
        has no lane."""
        at_ns = from_ns
        for index, milli in enumerate(left.jobs):
            if milli:
                place = self.places[index]
                if place is None:
                    return None
                time_ns = place.usual.time_ns(milli, left.over[index])
                if steps:
                    time_ns *= steps.get(index, 1)
                at_ns = max(at_ns, self.starts_ns[index]) + time_ns
        return at_ns

    def answers(self, left: Left, count: int, ends_ns: int) -> List[int]:
        """When a company of ``count`` members is answered that ends then and has one lane: one time for all, or one for
        each member where each has one job of usual work at the node that answers."""
        exit = self._pipeline.exit
        place = self.places[exit] if exit >= 0 and count > 1 else None
        if place is None or left.jobs[exit] != count * MILLI or left.over[exit]:
            return [ends_ns] * count
        found: List[int] = []
        for number, time_ns in reversed(place.usual.split.batches(count)):
            found += [ends_ns] * number
            ends_ns -= time_ns
        found.reverse()
        return found

    def lane_times(self, left: Left, steps: Steps) -> Dict[str, int]:
        """The lane time, by lane, that the rest of the work needs."""
        found: Dict[str, int] = {}
        for index, milli in enumerate(left.jobs):
            place = self.places[index]
            if milli and place is not None:
                name, time_ns = place.lane.name, place.usual.time_ns(milli, left.over[index])
                found[name] = found.get(name, 0) + time_ns * steps.get(index, 1)
        return found

    def cost_ns(self, left: Left, steps: Steps) -> int:
        """The time on the lane that is needed longest. While a company is on another one, others may go on."""
        return max(1, max(self.lane_times(left, steps).values(), default=1))

    def stages(
        self, left: Left, steps: Steps, ready: Sequence[int] = (), running: Sequence[StageJobs] = ()
    ) -> List[Stage]:
        """The stages that a company has to run, batch by batch, where every stage has a lane. By node: how many of its
        jobs are ``ready``, and what is ``running`` (empty: it is new)."""
        found: List[Stage] = []
        at: Dict[int, int] = {}
        for node, place in zip(self._pipeline.nodes, self.places):
            index = node.index
            milli, over = left.jobs[index], left.over[index]
            if not milli or place is None:
                continue
            preds = [at[pred.index] for pred in node.preds if pred.index in at]
            at[index] = len(found)
            own, waiting = NOT_RUNNING, 0 if preds else milli // MILLI
            if running:
                own, waiting = running[index], ready[index]
                milli, over = milli - own.jobs * MILLI, over - own.over
            batches = place.usual.batches(milli, over) if milli > 0 else []
            repeats = steps.get(index, 1)
            if repeats > 1:
                batches = repeated(batches, repeats)
            found.append(Stage(place.lane.name, batches, preds, waiting, own.jobs, own.until_ns, repeats > 1))
        return found


NOT_RUNNING: Final = StageJobs(0, 0, 0)


class Paths:
    """The homes and routes of pipelines. ``name`` is the policy's; pipelines are known by their identity."""

    __slots__ = ("_homes", "_usual", "_places", "_routes", "_key")

    def __init__(self, name: str) -> None:
        self._homes: Dict[int, List[str]] = {}
        self._usual: Dict[Tuple[str, str], WorkTime] = {}
        self._places: Dict[str, List[StagePlace]] = {}  # by model
        self._routes: Dict[Tuple[int, str], StageRoute] = {}  # as long as the board's ends stand
        self._key = f"{name} routes"

    def usual(self, model: str, lane: str, board: Board) -> WorkTime:
        """The times of a model on a lane for any number of jobs."""
        found = self._usual.get((model, lane))
        if found is None:
            found = self._usual[model, lane] = board.latency(model, lane).work()
        return found

    def route(self, pipeline: Pipeline, home: str, board: Board) -> StageRoute:
        """The present lanes of the pipeline's stages, for companies of this home: worked out once, until something
        changes. (When a model can be loaded depends on the demand, which every arrival changes.)"""
        if self._key not in board.ends_ns:
            board.ends_ns[self._key] = None
            self._routes.clear()
        key = (id(pipeline), home)
        found = self._routes.get(key)
        if found is None:
            places: List[StagePlace | None] = []
            for node in pipeline.nodes:
                known = self._places.get(node.model)
                if known is not None and len(known) == 1 and known[0].lane.up and not known[0].lane.hung:
                    places.append(known[0])
                else:
                    places.append(self._place_of(node.model, home, board))
            found = StageRoute(pipeline, home, places, board)
            if found.resident_ns <= board.now_ns:
                self._routes[key] = found
        return found

    def _place_of(self, model: str, home: str, board: Board) -> StagePlace | None:
        """The lane of a stage: at home where it may, else on the lane that is fastest for a single job; None while no
        lane is up."""
        known = self._places.get(model)
        if known is None:
            known = self._places[model] = [
                StagePlace(lane, self.usual(model, lane.name, board), placement)
                for lane, _, placement in board.places_of(model)
            ]
        up = [place for place in known if place.lane.up and not place.lane.hung]
        for place in up if len(up) > 1 else ():
            if place.lane.name == home:
                return place
        return min(up, key=_alone_ns) if len(up) > 1 else up[0] if up else None

    def homes(self, pipeline: Pipeline, board: Board) -> List[str]:
        """The lanes that may be a company's home: lanes that run the heaviest of the pipeline's models whose batches
        save time (of all, where none does) and are up, or any that is up when none of them is (what is left of a
        request may not need them)."""
        found = self._homes.get(id(pipeline))
        if found is None:
            shares: List[Tuple[bool, int, int]] = []
            for node in pipeline.nodes:
                latencies = [board.latency(node.model, lane.name) for lane in board.lanes_of(node.model)]
                share_ns = min([latency.share_ns for latency in latencies])
                alone_ns = [latency.typical_ns[latency.sizes[0]] // latency.sizes[0] for latency in latencies]
                saves = any(
                    latency.share_ns * 100 <= each_ns * SAVES_PERCENT for latency, each_ns in zip(latencies, alone_ns)
                )
                shares.append((saves, pipeline.template.jobs[node.index] * share_ns, -node.index))
            heaviest = pipeline.nodes[-max(shares)[2]]
            found = self._homes[id(pipeline)] = [lane.name for lane in board.lanes_of(heaviest.model)]
        up = [lane.name for lane in board.lanes if lane.up and not lane.hung]
        return [name for name in found if name in up] or up

    def serves(self, lane: Lane, model: str, home: str, board: Board) -> bool:
        """True if a stage may run on this lane: its home, or any other lane when home cannot run it now."""
        if lane.name == home:
            return True
        at_home = next((other for other in board.lanes_of(model) if other.name == home), None)
        return at_home is None or not at_home.up or at_home.hung or not board.is_resident(model, at_home)


def _alone_ns(place: StagePlace) -> int:
    """The time of a single job there."""
    return place.usual.time_ns(MILLI)
