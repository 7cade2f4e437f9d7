"""The work of jobs by their hints."""

from __future__ import annotations

import hand_world

from edgeserve.sched.requests.work import over_usual_milli, relative_milli, relative_ppm

WORK_MAX = 1_000_000
APP = hand_world.app_of([{"name": "read"}, {"name": "look"}])


def job(node="read", **hints):
    return hand_world.job(1, APP, node=node, hints={key.replace("__", "."): value for key, value in hints.items()})


def test_the_hint_of_the_node_goes_before_that_of_all_nodes():
    assert relative_ppm({"read.work": 0.5, "work": 3.0}, "read") == 500_000
    assert relative_ppm({"look.work": 0.5, "work": 3.0}, "read") == 3_000_000
    assert relative_ppm({"look.work": 0.5}, "read") is None


def test_work_is_bounded_and_the_least_is_not_none():
    assert relative_ppm({"work": -2.0}, "read") == 0 and relative_ppm({"work": 1e30}, "read") == WORK_MAX * 1_000_000
    assert relative_milli({"work": 0.0001}, "read") == 1 and relative_milli({"work": 0.0}, "read") == 0
    assert relative_milli({}, "read") is None


def test_a_batch_is_so_much_more_work_than_as_many_usual_jobs():
    assert over_usual_milli([job(), job(length=3)]) is None
    assert over_usual_milli([job(work=1.0)]) == 0
    assert over_usual_milli([job(read__work=2.5), job(work=0.5), job("look", look__work=2.0)]) == 2000
    assert over_usual_milli([job(work=2.0), job(work=4.0), job(), job()]) == 8000  # jobs without a hint: the mean
