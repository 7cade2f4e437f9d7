"""A task that waits: what is left of it."""

from __future__ import annotations

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.policies.language.lengths import Length
from edgeserve.sched.policies.language.queues import Learnt, ModelTasks, Waiting
from edgeserve.sched.policies.rtlm_plus import _has_several_clients, _in_turns


def test_what_a_model_said_of_its_answer_is_certain():
    waits = Waiting(job(1, app_of("lm")), Length(3.0, 0.5), None, 100 * MS)
    assert 0.0 < waits.chance(20.0) < 1.0
    waits.job.steps_total, waits.job.steps = 30, 10
    assert [waits.chance(steps) for steps in (19.0, 20.0)] == [0.0, 1.0]
    assert [waits.chance(15.0, more) for more in (4, 5)] == [0.0, 1.0]
    assert [waits.remaining(more) for more in (0, 5, 20)] == [20.0, 15.0, 1.0]


def test_lengths_are_learnt_from_answers_with_steps_only():
    learnt, waits = Learnt(True, 64.0), Waiting(job(1, app_of("lm")), Length(3.0, 0.5), None, 100 * MS)
    learnt.finished(waits)
    assert learnt.figures() == {}
    waits.job.steps = 1
    learnt.finished(waits)
    assert learnt.figures()["a/lm"]["answers"] == 1


def test_the_last_512_predictions_count():
    tasks = ModelTasks("lm")
    for steps in range(513):
        tasks.predicted.add(float(steps))
    assert len(tasks.predicted) == 512 and tasks.predicted.quantile(0.0) == 1.0


def tasks_of(fresh, begun=(), running=()):
    """Tasks of these clients."""
    tasks, app = ModelTasks("lm"), app_of("lm")
    for seq, client in enumerate([*fresh, *begun, *running]):
        waits = Waiting(job(seq, app, client=client), Length(3.0, 0.5), None, 100 * MS)
        if seq >= len(fresh):
            waits.job.steps = 1
        tasks.add(waits, 0, 50 * MS)
        if seq >= len(fresh) + len(begun):
            tasks.running[seq] = tasks.remove(waits.job)
    return tasks


@pytest.mark.parametrize(
    ("fresh", "begun", "several"),
    [
        ("", "", False),
        ("a", "", False),
        ("aa", "", False),
        ("ab", "", True),
        ("a", "b", True),
        ("a", "a", False),
        ("aab", "", True),
        ("abb", "", True),
        ("", "ab", True),
    ],
)
def test_whether_several_clients_wait(fresh, begun, several):
    assert _has_several_clients(tasks_of(fresh, begun)) is several


@pytest.mark.parametrize(
    ("fresh", "begun", "running", "order"),
    [
        ("aaab", "", "", [0, 3, 1, 2]),
        ("aaab", "", "a", [3, 0, 1, 2]),
        ("aaab", "a", "a", [3, 0, 1, 2]),
        ("aabb", "", "b", [0, 1, 2, 3]),
        ("aabb", "b", "b", [0, 1, 2, 3]),
        ("aaa", "b", "a", [0, 1, 2]),
        ("abcab", "", "", [0, 1, 2, 3, 4]),
        ("bbaa", "", "c", [0, 2, 1, 3]),
    ],
)
def test_clients_take_turns_and_those_that_run_or_have_begun_count(fresh, begun, running, order):
    tasks = tasks_of(fresh, begun, running)
    assert [waits.job.seq for waits in _in_turns(tasks, list(tasks.fresh.values()))] == order


def test_critical_tasks_go_before_the_turns_of_clients():
    tasks = tasks_of("aab")
    tasks.fresh[1].rank = 0
    for seq in (0, 2):
        tasks.fresh[seq].rank = 1
    assert [waits.job.seq for waits in _in_turns(tasks, list(tasks.fresh.values()))] == [1, 0, 2]


def test_gathered_tasks_become_visible_when_their_time_has_come():
    tasks, app = ModelTasks("lm"), app_of("lm")
    for seq, at in ((1, 5), (2, 6), (3, 7)):
        tasks.add(Waiting(job(seq, app), Length(3.0, 0.5), None, 100 * MS), at, 50)
    assert len(tasks) == 0 and [item.seq for item in tasks.jobs()] == [1, 2, 3]
    tasks.show(6)
    assert sorted(tasks.fresh) == [1, 2] and sorted(tasks.gathered) == [3] and len(tasks) == 2
    gone = tasks.gathered[3][1]
    assert tasks.remove(gone.job) is gone and not tasks.gathered and len(tasks.due) == 2
