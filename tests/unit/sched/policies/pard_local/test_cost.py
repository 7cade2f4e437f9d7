"""When cohorts end: of which nothing else shares the lanes, batch by batch, and among others."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from for_each import for_each

from edgeserve.sched.policies.pard_local.cost import ENTRIES_MAX, LaneSchedule, Schedule, Stage, repeated
from edgeserve.sched.policy_api.budget import OPERATIONS_MAX, Budget


def chain(*stages):
    """Stages one after the other: (lane, batches), or with the jobs that are ready."""
    return [Stage(stage[0], stage[1], [place - 1] if place else [], *stage[2:]) for place, stage in enumerate(stages)]


def ends(stages, free, from_ns=0):
    return LaneSchedule([Schedule(stages, from_ns)], free).run()


def test_a_batch_begins_as_soon_as_its_jobs_are_there():
    eight = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(8, 60)]))
    free = {"gpu": 0, "host": 0}
    # the function has the first four from 40 on and the others from 80 on
    assert ends(eight, free) == [80 + 12 + 60]
    small = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(4, 30), (4, 30)]))
    assert ends(small, free) == [110 + 30]  # the first four go on at 80


def test_jobs_that_run_or_are_ready_count_for_what_follows():
    # two of six are over, three run until 25, and one waits
    stages = [Stage("gpu", [(1, 10)], [], 1, 3, 25), Stage("host", [(1, 5)] * 6, [0], 2)]
    assert ends(stages, {"gpu": 25, "host": 0}) == [25 + 15 + 5]
    only = [Stage("gpu", [], [], 0, 2, 25), Stage("gpu", [(2, 8)], [0])]
    assert ends(only, {"gpu": 25}) == [33]


def test_parts_wait_for_their_share_of_the_batches_before():
    fan = [Stage("gpu", [(2, 10), (2, 10)]), Stage("host", [(1, 1)] * 12, [0]), Stage("gpu", [(4, 9)], [1])]
    assert ends(fan, {"gpu": 0, "host": 0}) == [20 + 6 + 9]


def test_a_model_of_steps_begins_when_all_of_its_jobs_are_there():
    stages = chain(("gpu", [(2, 10), (2, 10)]), ("other", [(2, 5), (2, 5)] * 3, 0, 0, 0, True))
    assert ends(stages, {"gpu": 0, "other": 0}) == [20 + 30]


def test_however_many_steps_a_model_makes_a_short_list_has_all_their_jobs_and_time():
    for repeats in (1, 7, 100, 1000, 1001, 12345):
        found = repeated([(4, 10), (1, 7)], repeats)
        assert (sum(jobs for jobs, _ in found), sum(time for _, time in found)) == (5 * repeats, 17 * repeats)
        assert len(found) <= max(2, ENTRIES_MAX)


def test_branches_run_beside_each_other_on_lanes_of_their_own():
    stages = [
        Stage("gpu", [(2, 10)]),
        Stage("host", [(2, 30)], [0]),
        Stage("gpu", [(2, 12)], [0]),
        Stage("gpu", [(2, 5)], [1, 2]),
    ]
    assert ends(stages, {"gpu": 0, "host": 0}) == [10 + 30 + 5]


def test_the_batch_of_another_fills_a_gap():
    schedule = Schedule(chain(("gpu", [(1, 10)]), ("host", [(1, 4)]), ("gpu", [(1, 6)])), 0)
    assert LaneSchedule([schedule, schedule], {"gpu": 0, "host": 0}).run() == [26, 32]  # and delays the first by 6


def test_a_join_waits_for_all_of_its_parts():
    join = [Stage("gpu", [(2, 10), (2, 10)]), Stage("host", [(1, 4)], [0])]
    assert ends(join, {"gpu": 0, "host": 0}) == [20 + 4]


# --- against the rules written down once more, without any short cut --------------------------------------------------


def drawn_line(draw, free):
    """A cohort in the middle of a line: batches on the device, functions one by one on a lane of their own."""
    stages = []
    for place in range(draw.randrange(1, 5)):
        running = draw.choice([0, 0, 2]) if all(stage.running for stage in stages) else 0
        if draw.random() < 0.5:
            lane, batches = f"host{place}", [(1, draw.randrange(1, 9))] * draw.randrange(0, 9)
        else:
            lane = "gpu"
            batches = [(draw.choice([2, 3, 4]), draw.randrange(5, 30)) for _ in range(draw.randrange(0, 4))]
        ready = draw.randrange(0, 1 + jobs_of(batches)) if place and draw.random() < 0.5 else 0
        until_ns = draw.randrange(1, 30) if running else 0
        stages.append(Stage(lane, batches, [place - 1] if place else [], ready, running, until_ns))
        free.setdefault(lane, draw.randrange(0, 20))
    return stages


def jobs_of(batches):
    return sum(count for count, _ in batches)


def ends_job_by_job(schedules, free):
    """When each line ends: every batch begins when its lane is free and its last job is there; of those that could
    begin first that of the first line, and of its earliest stage."""
    free, over = dict(free), [[[] for _ in schedule.stages] for schedule in schedules]  # when each job is over
    begun = [[0] * len(schedule.stages) for schedule in schedules]

    def there_ns(number, place):
        (stages, from_ns, _), ended = schedules[number], over[number]
        stage, pred = stages[place], stages[place - 1]
        last = len(ended[place]) + stage.batches[begun[number][place]][0]
        comes = jobs_of(pred.batches) + pred.running
        if place == 0 or last <= stage.ready or not comes:
            return from_ns
        wanted = math.ceil(Fraction((last - stage.ready) * comes, jobs_of(stage.batches) - stage.ready)) - pred.running
        if wanted <= 0:
            return max(from_ns, pred.running_ns)
        return max(from_ns, ended[place - 1][wanted - 1]) if wanted <= len(ended[place - 1]) else None

    while True:
        able = [
            (max(there_ns(number, place), free[stage.lane]), number, place)
            for number, schedule in enumerate(schedules)
            for place, stage in enumerate(schedule.stages)
            if begun[number][place] < len(stage.batches) and there_ns(number, place) is not None
        ]
        if not able:
            break
        at_ns, number, place = min(able)
        stage = schedules[number].stages[place]
        count, time_ns = stage.batches[begun[number][place]]
        begun[number][place] += 1
        over[number][place] += [at_ns + time_ns] * count
        free[stage.lane] = at_ns + time_ns
    return [
        max([from_ns, *[stage.running_ns for stage in stages], *[at for stage in ended for at in stage]])
        for (stages, from_ns, _), ended in zip(schedules, over)
    ]


@for_each(lambda: range(400))
def test_cohorts_that_share_lanes_end_as_if_every_batch_were_chosen_anew(seed):
    draw = random.Random(f"lines {seed}")
    free = {}
    schedules = [Schedule(drawn_line(draw, free), draw.randrange(0, 30)) for _ in range(1 + seed % 3)]
    budget = Budget()
    assert LaneSchedule(schedules, free, budget).run() == ends_job_by_job(schedules, free)
    stages = [stage for schedule in schedules for stage in schedule.stages]
    assert budget.left == OPERATIONS_MAX - len(stages) * sum(len(stage.batches) for stage in stages)
