"""When cohorts would end: what each has still to run, batch by batch, on lanes that they share (``pard_local``).

Pure functions of learnt times (``sched/latency/work_time.py``).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.policy_api.budget import Budget

ENTRIES_MAX = 256
"""Entries of a repeated stage: of more steps, several are one."""


class Stage(NamedTuple):
    """What a cohort has left at one node: the batches that have not begun, as (jobs, time), how many of their jobs are
    ``ready``, and how many jobs run now, until ``running_ns``. ``preds`` are positions in the same list. A batch begins
    as soon as its jobs are there: those of a batch of the node before, in their order. ``is_stepped``: the batches are
    repeated, as an iterative model's are, and begin when all jobs are there."""

    lane: str
    batches: Sequence[Tuple[int, int]]
    preds: Sequence[int] = ()
    ready: int = 0
    running: int = 0
    running_ns: int = 0
    is_stepped: bool = False


class Schedule(NamedTuple):
    """What a cohort has still to run, from ``ready_ns`` on. On lanes other than its ``home`` it takes its last stage
    first, so that its requests are over one after the other."""

    stages: Sequence[Stage]
    ready_ns: int
    home: str = ""


class LaneSchedule:
    """When each schedule ends if a free lane always takes the first schedule that has something for it, and of that the
    earliest stage (where ``home`` is not named).

    Exact for what the policy does: batches are not interrupted, a batch begins as soon as its jobs are there, an
    earlier schedule goes first. ``free_ns`` says when each lane is free. O(batches * stages), which the step's
    ``budget`` is charged with.
    """

    __slots__ = ("_schedules", "_free", "_upto", "_over", "_ready", "_first", "_ends_ns")

    def __init__(self, schedules: Sequence[Schedule], free_ns: Mapping[str, int], budget: Budget | None = None) -> None:
        self._schedules = schedules
        self._free = dict(free_ns)
        self._upto: List[List[List[int]]] = []  # jobs of a stage's batches up to each of them
        self._over: List[List[List[int]]] = []  # when the batches of a stage end
        self._ready: List[List[int]] = []  # when the jobs of a stage's next batch are there; -1: not known
        self._first = [0] * len(schedules)  # the first stage that is not over
        self._ends_ns: List[int] = []
        stages = batches = 0
        for schedule in schedules:
            own = schedule.stages
            self._upto.append([list(accumulate([count for count, _ in stage.batches])) for stage in own])
            self._over.append([[] for _ in own])
            self._ready.append([-1] * len(own))
            self._ends_ns.append(max([schedule.ready_ns, *[stage.running_ns for stage in own]]))
            stages += len(own)
            for stage in own:
                batches += len(stage.batches)
        if budget is not None:
            budget.left -= stages * batches

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
        return [at_ns for (count, _), at_ns in zip(stages[-1].batches, self._over[index][-1]) for _ in range(count)]

    def _look(self, index: int) -> None:
        """Which stages of a schedule have the jobs of their next batch, and since when."""
        upto, over, ready = self._upto[index], self._over[index], self._ready[index]
        first = self._first[index]
        while first < len(ready) and len(over[first]) == len(upto[first]):
            first += 1
        self._first[index] = first
        for place in range(first, len(ready)):
            if ready[place] < 0 and len(over[place]) < len(upto[place]):
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
    :data:`ENTRIES_MAX`, equal numbers of steps are put together, so that the list stays short whatever number a request
    declared."""
    if repeats * len(batches) <= ENTRIES_MAX or repeats == 1:
        return list(batches) * repeats
    jobs, time_ns = sum([count for count, _ in batches]), sum([batch_ns for _, batch_ns in batches])
    entries = min(repeats, ENTRIES_MAX)
    each, rest = divmod(repeats, entries)
    return [(jobs * (each + (index < rest)), time_ns * (each + (index < rest))) for index in range(entries)]
