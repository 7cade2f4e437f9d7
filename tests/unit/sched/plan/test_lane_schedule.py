"""The ends of companies on shared lanes, beside a simulation that goes from moment to moment."""

from __future__ import annotations

import random
from typing import Dict, List, Sequence, Tuple

import pytest

from edgeserve.sched.plan.paths import LaneSchedule, Schedule, Stage
from edgeserve.sched.policy_api.budget import Budget

LANES = ("gpu", "host", "npu")


def drawn_batches(draw: random.Random, jobs: int) -> List[Tuple[int, int]]:
    """Batches of all jobs."""
    found: List[Tuple[int, int]] = []
    while jobs > 0:
        count = draw.randint(1, jobs)
        found.append((count, draw.randint(1, 9)))
        jobs -= count
    return found


def drawn_schedule(draw: random.Random) -> Schedule:
    """A chain of stages; each of its requests waits or runs at one of them, or is to come there."""
    before = 0  # requests that have not left the stage before
    stages: List[Stage] = []
    for place in range(draw.randint(1, 4)):
        ready = draw.choice((0, 0, 1, 2, 3))
        running = draw.choice((0, 0, 1, 2))
        jobs = before + ready
        stages.append(
            Stage(
                draw.choice(LANES),
                drawn_batches(draw, jobs),
                (place - 1,) if place else (),
                ready,
                running,
                draw.randint(1, 12) if running else 0,
            )
        )
        before = jobs + running
    return Schedule(stages, draw.choice((0, 0, 5)), draw.choice((*LANES, "")))


def naive(schedules: Sequence[Schedule], free: Dict[str, int]) -> Tuple[List[int], List[List[int]]]:
    """The end of each schedule, and of the jobs of its last stage: every lane that is free takes, at each moment, the
    first schedule with jobs for it; of that the first stage, or away from its home the last one."""
    free = dict(free)
    ended: List[List[List[Tuple[int, int]]]] = [[[] for _ in schedule.stages] for schedule in schedules]  # (at, jobs)
    left = sum([len(stage.batches) for schedule in schedules for stage in schedule.stages])
    now = 0
    while left:
        for lane in sorted(free):
            if free[lane] > now:
                continue
            taken = next(
                (
                    (schedule, index, place)
                    for index, schedule in enumerate(schedules)
                    for place in _in_order(schedule, lane)
                    if _is_there(schedule, ended[index], place, now)
                ),
                None,
            )
            if taken is not None:
                schedule, index, place = taken
                jobs, takes = schedule.stages[place].batches[len(ended[index][place])]
                free[lane] = now + takes
                ended[index][place].append((now + takes, jobs))
                left -= 1
        now += 1
    ends = [
        max([schedule.ready_ns, *[stage.running_ns for stage in schedule.stages], *[at for at, _ in sum(own, [])]])
        for schedule, own in zip(schedules, ended)
    ]
    return ends, [[at for at, jobs in own[-1] for _ in range(jobs)] for own in ended]


def _in_order(schedule: Schedule, lane: str) -> List[int]:
    places = [place for place, stage in enumerate(schedule.stages) if stage.lane == lane]
    return places if lane == schedule.home else places[::-1]


def _is_there(schedule: Schedule, ended: Sequence[Sequence[Tuple[int, int]]], place: int, now: int) -> bool:
    """True if a stage's next batch has its jobs: the ones of the stage before it and of earlier batches."""
    stage = schedule.stages[place]
    begun = len(ended[place])
    if now < schedule.ready_ns or begun == len(stage.batches):
        return False
    there = stage.ready
    for pred in stage.preds:
        before = schedule.stages[pred]
        there += before.running * (before.running_ns <= now)
        there += sum([jobs for at, jobs in ended[pred] if at <= now])
    return there >= sum([jobs for jobs, _ in stage.batches[: begun + 1]])


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_a_simulation_from_moment_to_moment_has(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        schedules = [drawn_schedule(draw) for _ in range(draw.randint(1, 3))]
        running = [(stage.lane, stage.running_ns) for schedule in schedules for stage in schedule.stages]
        free = {name: draw.choice((0, 0, 3)) for name in LANES}
        free = {name: max([free[name], *[until for lane, until in running if lane == name]]) for name in LANES}
        found = LaneSchedule(schedules, free, Budget())
        ends, answers = naive(schedules, free)
        assert found.run() == ends
        assert [found.answers(index) for index in range(len(schedules))] == answers
