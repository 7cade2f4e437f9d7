"""When cohorts would end: what each has still to run, batch by batch, on lanes that they share (``pard_local``).

Pure functions of learnt times (``sched/latency/usual_work.py``); the caller, which compares an end with a
deadline, adds the margin for noise.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Sequence, Tuple


class Stage(NamedTuple):
    """One module's share of a cohort: its batches, one after the other on one lane."""

    lane: str
    batches: Sequence[int]


class Schedule(NamedTuple):
    """What a cohort in flight has still to run. ``ready_ns``: when its first stage may go on; ``busy_ns``: when what
    it has on lanes is over, which its second stage waits for."""

    stages: Sequence[Stage]
    ready_ns: int
    busy_ns: int


def forecast(schedules: Sequence[Schedule], free_ns: Mapping[str, int]) -> List[int]:
    """When each schedule ends if a free lane always takes the first schedule that has something for it.

    Exact for what the policy does: batches are not interrupted, the stages of a schedule follow each other, an earlier
    schedule goes first. ``free_ns`` says when each lane is free. O(batches * schedules).
    """
    free = dict(free_ns)
    at = [schedule.ready_ns for schedule in schedules]
    place = [[0, 0] for _ in schedules]  # stage, batch
    while True:
        best: Tuple[int, int] | None = None
        for index, schedule in enumerate(schedules):
            stage = place[index][0]
            if stage < len(schedule.stages):
                starts_ns = max(at[index], free[schedule.stages[stage].lane])
                if best is None or starts_ns < best[0]:
                    best = (starts_ns, index)
        if best is None:
            return [max(at[index], schedule.busy_ns) for index, schedule in enumerate(schedules)]
        starts_ns, index = best
        schedule = schedules[index]
        here = place[index]
        stage_now = schedule.stages[here[0]]
        ends_ns = starts_ns + stage_now.batches[here[1]]
        free[stage_now.lane] = ends_ns
        here[1] += 1
        if here[1] == len(stage_now.batches):
            at[index] = max(ends_ns, schedule.busy_ns) if here[0] == 0 else ends_ns
            here[0], here[1] = here[0] + 1, 0


def one_by_one(stages: Sequence[Tuple[str, int, int]], from_ns: int) -> int:
    """When a cohort that shares its lanes with no other ends: :func:`forecast` in closed form. Each stage is its lane,
    its time, and when it may start: its lane is free, and its model resident."""
    at_ns = from_ns
    for _, time_ns, starts_ns in stages:
        at_ns = (at_ns if at_ns > starts_ns else starts_ns) + time_ns
    return at_ns
