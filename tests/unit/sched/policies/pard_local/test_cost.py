"""When cohorts end: of which nothing else shares the lanes, batch by batch, and among others."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from for_each import for_each

from edgeserve.sched.policies.pard_local.cost import (
    AtNode,
    LaneSchedule,
    Schedule,
    Stage,
    staged,
)
from edgeserve.sched.policy_api.budget import OPERATIONS_MAX, Budget


def chain(*nodes):
    """Nodes one after the other: (lane, batches), or with the jobs that are ready."""
    return [AtNode(node[0], node[1], [place - 1] if place else [], *node[2:]) for place, node in enumerate(nodes)]


def test_a_batch_begins_as_soon_as_its_jobs_are_there():
    eight = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(8, 60)]))
    free = {"gpu": 0, "host": 0}
    # the function has the first four from 40 on and the others from 80 on
    assert LaneSchedule([Schedule(staged(eight), 0)], free).run() == [80 + 12 + 60]
    small = chain(("gpu", [(4, 40), (4, 40)]), ("host", [(1, 3)] * 8), ("gpu", [(4, 30), (4, 30)]))
    assert LaneSchedule([Schedule(staged(small), 0)], free).run() == [110 + 30]  # the first four go on at 80


def test_jobs_that_run_or_are_ready_count_for_what_follows():
    # two of six are over, three run until 25, and one waits
    nodes = [AtNode("gpu", [(1, 10)], [], 1, 3, 0), AtNode("host", [(1, 5)] * 6, [0], 2)]
    stages = staged(nodes)
    assert LaneSchedule([Schedule(stages, 0, [25])], {"gpu": 25, "host": 0}).run() == [25 + 15 + 5]
    only = staged([AtNode("gpu", [], [], 0, 2, 0), AtNode("gpu", [(2, 8)], [0])])
    assert LaneSchedule([Schedule(only, 0, [25])], {"gpu": 25}).run() == [33]


def test_parts_wait_for_their_share_of_the_batches_before():
    fan = [AtNode("gpu", [(2, 10), (2, 10)], []), AtNode("host", [(1, 1)] * 12, [0]), AtNode("gpu", [(4, 9)], [1])]
    assert LaneSchedule([Schedule(staged(fan), 0)], {"gpu": 0, "host": 0}).run() == [20 + 6 + 9]


def test_a_model_of_steps_begins_when_all_of_its_jobs_are_there():
    nodes = chain(("gpu", [(2, 10), (2, 10)]), ("other", [(2, 5), (2, 5)] * 3, 0, 0, -1, True))
    assert LaneSchedule([Schedule(staged(nodes), 0)], {"gpu": 0, "other": 0}).run() == [20 + 30]


def test_branches_run_beside_each_other_on_lanes_of_their_own():
    nodes = [
        AtNode("gpu", [(2, 10)], []),
        AtNode("host", [(2, 30)], [0]),
        AtNode("gpu", [(2, 12)], [0]),
        AtNode("gpu", [(2, 5)], [1, 2]),
    ]
    assert LaneSchedule([Schedule(staged(nodes), 0)], {"gpu": 0, "host": 0}).run() == [10 + 30 + 5]


def test_the_batch_of_another_fills_a_gap():
    schedule = Schedule([Stage("gpu", [10]), Stage("host", [4]), Stage("gpu", [6])], 0)
    assert LaneSchedule([schedule, schedule], {"gpu": 0, "host": 0}).run() == [26, 32]  # and delays the first by 6


def test_a_join_waits_for_all_of_its_parts():
    join = [AtNode("gpu", [(2, 10), (2, 10)], []), AtNode("host", [(1, 4)], [0])]
    assert LaneSchedule([Schedule(staged(join), 0)], {"gpu": 0, "host": 0}).run() == [20 + 4]


# --- against the rules written down once more, without any short cut --------------------------------------------------


def drawn_line(draw):
    """A cohort in the middle of a line: batches on the device, functions one by one on a lane of their own."""
    nodes, running_ns = [], []
    for place in range(draw.randrange(1, 5)):
        running = draw.choice([0, 0, 2]) if len(nodes) == len(running_ns) else 0
        if draw.random() < 0.5:
            lane, batches = f"host{place}", [(1, draw.randrange(1, 9))] * draw.randrange(0, 9)
        else:
            lane = "gpu"
            batches = [(draw.choice([2, 3, 4]), draw.randrange(5, 30)) for _ in range(draw.randrange(0, 4))]
        ready = draw.randrange(0, 1 + sum([count for count, _ in batches])) if place and draw.random() < 0.5 else 0
        if running:
            running_ns.append(draw.randrange(1, 30))
        nodes.append(
            AtNode(lane, batches, [place - 1] if place else [], ready, running, len(running_ns) - 1 if running else -1)
        )
    free = {node.lane: draw.randrange(0, 20) for node in nodes}
    return nodes, running_ns, free


def ends_job_by_job(nodes, running_ns, free, from_ns):
    """When a line ends: every batch, put together with none, begins when the lane is free and its last job is there."""
    free, over = dict(free), [[] for _ in nodes]  # when each job that had not begun is over

    def there_ns(place):
        node, pred = nodes[place], nodes[place - 1]
        last, comes = len(over[place]) + node.batches[begun[place]][0], pred.jobs() + pred.running
        if place == 0 or last <= node.ready or not comes:
            return from_ns
        wanted = math.ceil(Fraction((last - node.ready) * comes, node.jobs() - node.ready)) - pred.running
        if wanted <= 0:
            return max(from_ns, running_ns[pred.running_at])
        return max(from_ns, over[place - 1][wanted - 1]) if wanted <= len(over[place - 1]) else None

    begun = [0] * len(nodes)
    while True:
        able = [
            (max(there_ns(place), free[node.lane]), place)
            for place, node in enumerate(nodes)
            if begun[place] < len(node.batches) and there_ns(place) is not None
        ]
        if not able:
            return max([from_ns, *running_ns, *[at for ends in over for at in ends]])
        at_ns, place = min(able)
        count, time_ns = nodes[place].batches[begun[place]]
        begun[place] += 1
        over[place] += [at_ns + time_ns] * count
        free[nodes[place].lane] = at_ns + time_ns


@for_each(lambda: range(400))
def test_a_line_ends_as_if_every_function_were_looked_at_alone(seed):
    nodes, running_ns, free = drawn_line(random.Random(f"line {seed}"))
    schedule = Schedule(staged(nodes), 7, running_ns)
    assert LaneSchedule([schedule], free).run() == [ends_job_by_job(nodes, running_ns, free, 7)]


def drawn_schedules(draw):
    """Cohorts that share two lanes."""
    schedules = []
    for _ in range(draw.randrange(1, 5)):
        stages = [
            Stage(draw.choice(["gpu", "host"]), [draw.randrange(1, 20) for _ in range(draw.randrange(1, 4))])
            for _ in range(draw.randrange(1, 4))
        ]
        running_ns = [draw.randrange(5, 40)] if draw.random() < 0.3 else []
        if running_ns:
            stages.insert(0, Stage("gpu", []))  # what is left of it runs already
        schedules.append(Schedule(stages, draw.randrange(0, 30), running_ns))
    return schedules


def batch_by_batch(schedules, free):
    """When each schedule ends: nothing is kept from one batch to the next but the ends of those before."""
    free, over = dict(free), [[[] for _ in schedule.stages] for schedule in schedules]

    def there_ns(number, place):
        schedule = schedules[number]
        at = [schedule.ready_ns]
        if place and len(over[number][place - 1]) < len(schedule.stages[place - 1].batches):
            return None
        if place:
            at += over[number][place - 1][-1:] + (schedule.running_ns if place == 1 else [])
        return max(at)

    while True:
        able = [
            (max(there_ns(number, place), free[stage.lane]), number, place)
            for number, schedule in enumerate(schedules)
            for place, stage in enumerate(schedule.stages)
            if len(over[number][place]) < len(stage.batches) and there_ns(number, place) is not None
        ]
        if not able:
            break
        at_ns, number, place = min(able)
        stage = schedules[number].stages[place]
        free[stage.lane] = at_ns + stage.batches[len(over[number][place])]
        over[number][place].append(free[stage.lane])
    return [
        max([schedule.ready_ns, *schedule.running_ns, *[at for stage in stages for at in stage]])
        for schedule, stages in zip(schedules, over)
    ]


@for_each(lambda: range(300))
def test_cohorts_that_share_lanes_end_as_if_each_batch_were_chosen_anew(seed):
    draw = random.Random(f"shared {seed}")
    schedules, free = drawn_schedules(draw), {"gpu": draw.randrange(0, 40), "host": draw.randrange(0, 40)}
    budget = Budget()
    assert LaneSchedule(schedules, free, budget).run() == batch_by_batch(schedules, free)
    stages = [stage for schedule in schedules for stage in schedule.stages]
    assert budget.left == OPERATIONS_MAX - len(stages) * sum(len(stage.batches) for stage in stages)
