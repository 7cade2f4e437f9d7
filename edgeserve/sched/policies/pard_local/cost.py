"""When cohorts would end: what each has still to run, batch by batch, on lanes that they share (``pard_local``).

Pure functions of learnt times (``sched/latency/work_time.py``); the caller, which compares an end with a
deadline, adds the margin for noise.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.policy_api.budget import Budget
from edgeserve.sched.requests.states import new_tuple

Need = Tuple[int, int]
"""What a batch waits for: (stage, so many of its batches), or (-1 - number, 0) for that entry of the schedule's
``running_ns``."""


ENTRIES_MAX = 256
"""Entries of a repeated stage: of more steps, several are one."""


class Stage(NamedTuple):
    """One module's share of a cohort: the times of its batches, one after the other on one lane. ``needs`` says for
    each batch what must be over before it begins; without, all of the stage before (of the first stage: nothing).
    ``jobs`` says how many jobs each batch has."""

    lane: str
    batches: Sequence[int]
    needs: Sequence[Sequence[Need]] = ()
    jobs: Sequence[int] = ()


class Schedule(NamedTuple):
    """What a cohort has still to run, from ``ready_ns`` on, and when what it has on lanes is over. On lanes other than
    its ``home`` it takes its last stage first, so that its requests are over one after the other."""

    stages: Sequence[Stage]
    ready_ns: int
    running_ns: Sequence[int] = ()
    home: str = ""


class LaneSchedule:
    """When each schedule ends if a free lane always takes the first schedule that has something for it, and of that the
    earliest stage (where ``home`` is not named).

    Exact for what the policy does: batches are not interrupted, a batch begins as soon as its jobs are there, an
    earlier schedule goes first. ``free_ns`` says when each lane is free. O(batches * stages), which the step's
    ``budget`` is charged with.
    """

    __slots__ = ("_schedules", "_free", "_over", "_ready", "_first", "_ends_ns")

    def __init__(self, schedules: Sequence[Schedule], free_ns: Mapping[str, int], budget: Budget | None = None) -> None:
        if budget is not None:
            stages = batches = 0
            for schedule in schedules:
                stages += len(schedule.stages)
                for stage in schedule.stages:
                    batches += len(stage.batches)
            budget.left -= stages * batches
        self._schedules = schedules
        self._free = dict(free_ns)
        self._over: List[List[List[int]]] = [[[] for _ in schedule.stages] for schedule in schedules]
        self._ready: List[List[int]] = [[-1] * len(schedule.stages) for schedule in schedules]  # of the next batch
        self._first = [0] * len(schedules)  # the first stage that is not over
        self._ends_ns = [max([schedule.ready_ns, *schedule.running_ns]) for schedule in schedules]

    def run(self) -> List[int]:
        """When each schedule ends."""
        schedules, free, every = self._schedules, self._free, self._ready
        for index in range(len(schedules)):
            self._look(index)
        while True:
            best_ns, best, best_place = -1, -1, -1
            for index, ready in enumerate(every):
                stages, home = schedules[index].stages, schedules[index].home
                for place in range(self._first[index], len(ready)):
                    at_ns = ready[place]
                    if at_ns < 0:
                        continue
                    free_ns = free[stages[place].lane]
                    if free_ns > at_ns:
                        at_ns = free_ns
                    if at_ns == best_ns and index == best and home and stages[place].lane != home:
                        best_place = place if stages[best_place].lane == stages[place].lane else best_place
                    if best < 0 or at_ns < best_ns:
                        best_ns, best, best_place = at_ns, index, place
            if best < 0:
                return self._ends_ns
            self._take(best, best_place, best_ns)

    def answers(self, index: int) -> List[int]:
        """When the jobs of a schedule's last stage end that have not begun yet, in their order; after :meth:`run`."""
        stages = self._schedules[index].stages
        if not stages:
            return []
        return [at_ns for count, at_ns in zip(stages[-1].jobs, self._over[index][-1]) for _ in range(count)]

    def _look(self, index: int) -> None:
        """Which stages of a schedule have the jobs of their next batch, and since when."""
        schedule, over, ready = self._schedules[index], self._over[index], self._ready[index]
        from_ns = schedule.ready_ns
        first = self._first[index]
        while first < len(ready) and len(over[first]) == len(schedule.stages[first].batches):
            first += 1
        self._first[index] = first
        for place in range(first, len(ready)):
            if ready[place] < 0 and len(over[place]) < len(schedule.stages[place].batches):
                at_ns = self._ready_ns(schedule, over, place)
                if at_ns >= 0:
                    ready[place] = at_ns if at_ns > from_ns else from_ns

    def _ready_ns(self, schedule: Schedule, over: Sequence[Sequence[int]], place: int) -> int:
        """When the jobs of a stage's next batch are there; -1: a batch that brings them has not been placed yet."""
        stage, at_ns = schedule.stages[place], 0
        if not stage.needs:
            if place == 0:
                return at_ns
            before = over[place - 1]
            if len(before) < len(schedule.stages[place - 1].batches):
                return -1
            return max([at_ns, *before[-1:], *(schedule.running_ns if place == 1 else ())])
        for source, count in stage.needs[len(over[place])]:
            if source < 0:
                at_ns = max(at_ns, schedule.running_ns[-1 - source])
            elif len(over[source]) < count:
                return -1
            elif count:
                at_ns = max(at_ns, over[source][count - 1])
        return at_ns

    def _take(self, index: int, place: int, starts_ns: int) -> None:
        stage, over = self._schedules[index].stages[place], self._over[index][place]
        ends_ns = starts_ns + stage.batches[len(over)]
        over.append(ends_ns)
        self._ready[index][place] = -1
        self._free[stage.lane] = ends_ns
        if ends_ns > self._ends_ns[index]:
            self._ends_ns[index] = ends_ns
        self._look(index)


class AtNode(NamedTuple):
    """What a cohort has left at one node: batches that have not begun, as (jobs, time), how many of their jobs are
    ``ready``, and the jobs that run now, until that entry of the schedule's ``running_ns``. ``preds`` are positions in
    the same list. ``is_stepped``: its batches are repeated, as an iterative model's are."""

    lane: str
    batches: Sequence[Tuple[int, int]]
    preds: Sequence[int]
    ready: int = 0
    running: int = 0
    running_at: int = -1
    is_stepped: bool = False

    def jobs(self) -> int:
        """Jobs that have not begun."""
        return sum([count for count, _ in self.batches])


def repeated(batches: Sequence[Tuple[int, int]], repeats: int) -> List[Tuple[int, int]]:
    """The batches of an iterative node, (jobs, time), once per step. Where these would be more than
    :data:`ENTRIES_MAX`, equal numbers of steps are put together, so that the list stays short whatever number a request
    declared."""
    if repeats * len(batches) <= ENTRIES_MAX or repeats == 1:
        return list(batches) * repeats
    jobs, time_ns = sum([count for count, _ in batches]), sum([batch_ns for _, batch_ns in batches])
    entries = min(repeats, ENTRIES_MAX)
    each, rest = divmod(repeats, entries)
    return [(jobs * (each + (index < rest)), time_ns * (each + (index < rest))) for index in range(entries)]


def staged(nodes: Sequence[AtNode]) -> List[Stage]:
    """Stages whose batches begin as soon as their jobs are there: those of a batch of the node before, in their order.

    A run of batches of one job, as host functions make them, is put together where nothing before or behind begins or
    ends in between; but for the last stage, whose jobs answer requests.
    """
    jobs = [node.jobs() for node in nodes]
    batches = [
        _together(nodes, jobs, place)
        if len(node.batches) > 2 and node.batches[0][0] == 1 and not node.is_stepped and place < len(nodes) - 1
        else node.batches
        for place, node in enumerate(nodes)
    ]
    ends = [list(accumulate([count for count, _ in own])) for own in batches]
    stages: List[Stage] = []
    for place, node in enumerate(nodes):
        if node.is_stepped:
            needs = [_needs(nodes, jobs, ends, place, jobs[place])] * len(batches[place])
        else:
            needs = [_needs(nodes, jobs, ends, place, reached) for reached in ends[place]]
        counts, times = [count for count, _ in batches[place]], [time_ns for _, time_ns in batches[place]]
        stages.append(new_tuple(Stage, (node.lane, times, needs, counts)))
    return stages


def _needs(
    nodes: Sequence[AtNode], jobs: Sequence[int], ends: Sequence[Sequence[int]], place: int, reached: int
) -> List[Need]:
    """What must be over before so many of a node's jobs are there. ``ends``: how many jobs each batch of a node ends
    with, those before it included."""
    node = nodes[place]
    found: List[Need] = []
    waits = reached - node.ready
    if waits <= 0:
        return found
    for pred in node.preds:
        source = nodes[pred]
        comes = jobs[pred] + source.running
        if not comes:
            continue
        wanted = -(-waits * comes // max(1, jobs[place] - node.ready)) - source.running
        if wanted <= 0:
            found.append((-1 - source.running_at, 0))
            continue
        found.append((pred, min(len(ends[pred]), bisect_left(ends[pred], wanted) + 1)))
    return found


def _together(nodes: Sequence[AtNode], jobs: Sequence[int], place: int) -> List[Tuple[int, int]]:
    """The batches of a node, put together between the points at which others bring or want its jobs."""
    node = nodes[place]
    cuts = {node.ready}
    for pred in node.preds:
        source, reached = nodes[pred], nodes[pred].running
        comes = jobs[pred] + source.running
        for count, _ in [(0, 0), *source.batches]:
            reached += count
            cuts.add(node.ready + (jobs[place] - node.ready) * reached // max(1, comes))
    for later, other in enumerate(nodes):
        if place in other.preds:
            reached = -other.ready
            for count, _ in other.batches:
                reached += count
                if reached > 0:
                    wanted = -(-reached * (jobs[place] + node.running) // max(1, jobs[later] - other.ready))
                    cuts.add(wanted - node.running)
    found: List[Tuple[int, int]] = []
    count = time_ns = reached = 0
    for batch, batch_ns in node.batches:
        count, time_ns, reached = count + batch, time_ns + batch_ns, reached + batch
        if reached in cuts:
            found.append((count, time_ns))
            count = time_ns = 0
    if count:
        found.append((count, time_ns))
    return found
