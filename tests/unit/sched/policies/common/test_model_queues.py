"""The served jobs of a model: the most worth that can be in time, against a search of all subsets."""

from __future__ import annotations

import itertools

from hand_world import app_of, job
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.policies.common.model_queues import ModelQueues, worthiest

APP = app_of("m")
STEP = 10


def filled(jobs, lane=""):
    """Queues of jobs ``(due, value)``; ids count up from 0."""
    queues = ModelQueues("m")
    for number, (due, value) in enumerate(jobs):
        item = job(number, APP)
        item.deadline_ns = due
        item.request.value = value
        item.lane = lane
        queues.add(item)
    return queues


def served(jobs, size, room):
    """Ids of the jobs that are served, batch by batch: the first has ``room``, the others ``size``."""
    queues, found, ends_ns = filled(jobs), [], STEP
    while queues.count and ends_ns <= 10 * STEP:
        waiting = [queue for queue in queues.queues if queue.rows]
        for item in worthiest(waiting, room, size, ends_ns, STEP, "gpu"):
            assert item.deadline_ns >= ends_ns
            queues.remove(item)
            found.append(item.seq)
        ends_ns, room = ends_ns + STEP, size
    return found


def can_all_be_in_time(dues, size, room):
    """True if these can be served in order of their deadlines."""
    ends_ns = STEP
    for due in sorted(dues):
        while room == 0:
            ends_ns, room = ends_ns + STEP, size
        if due < ends_ns:
            return False
        room -= 1
    return True


JOBS = st.lists(st.tuples(st.integers(5, 45), st.sampled_from([1.0, 2.0, 4.0, 8.0])), min_size=1, max_size=6)


@given(JOBS, st.integers(1, 3), st.integers(1, 3))
def test_the_jobs_that_are_served_are_worth_most_of_all_sets_that_can_be_in_time(jobs, size, room):
    room = min(room, size)
    best = max(
        sum(jobs[index][1] for index in subset)
        for count in range(len(jobs) + 1)
        for subset in itertools.combinations(range(len(jobs)), count)
        if can_all_be_in_time([jobs[index][0] for index in subset], size, room)
    )
    assert sum(jobs[index][1] for index in served(jobs, size, room)) == best


@given(st.lists(st.integers(5, 400), min_size=1, max_size=60), st.integers(1, 4))
def test_of_equal_jobs_it_is_the_most_urgent_that_are_in_time(dues, room):
    queues = filled([(due, 2.0) for due in dues])
    found = worthiest(queues.queues, room, 4, STEP, STEP, "gpu")
    rows = sorted((due, number) for number, due in enumerate(dues) if due >= STEP)
    assert [(item.deadline_ns, item.seq) for item in found] == rows[:room]


def test_jobs_that_are_bound_to_another_lane_are_left_out():
    queues = filled([(50, 1.0), (50, 2.0)], lane="other")
    assert worthiest(queues.queues, 2, 2, STEP, STEP, "gpu") == []
    assert len(worthiest(queues.queues, 2, 2, STEP, STEP, "other")) == 2


def test_worth_far_away_does_not_take_the_place_of_what_is_due_now():
    jobs = [(10_000, 8.0)] * 40 + [(12, 1.0)]
    assert [item.seq for item in worthiest(filled(jobs).queues, 1, 1, STEP, STEP, "gpu")] == [40]
    jobs = [(400, 8.0)] * 40 + [(12, 1.0)]  # forty batches of jobs of more worth leave no place
    assert [item.seq for item in worthiest(filled(jobs).queues, 1, 1, STEP, STEP, "gpu")] == [0]
