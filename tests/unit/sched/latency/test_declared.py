"""Hints that declare work: right ones count in full, wrong ones as much as batches have shown them to be right."""

from __future__ import annotations

import random
from typing import Callable

import pytest

from edgeserve.config.profiles import Timing
from edgeserve.sched.latency.batch_time import BatchTime

MS = 1_000_000
FIXED_MS, EACH_MS = 1.0, 4.0


def extra_of_a_job_that_declares_double(declare: Callable[[float, random.Random], float], batches: int) -> float:
    """Lane time in ms that a job which declares twice the usual work is expected to take beyond a standard one, after
    so many batches of one job whose work is lognormal."""
    times = {size: round((FIXED_MS + EACH_MS * size) * MS) for size in (1, 2)}
    seeds = {size: Timing(100, time_ns, time_ns, time_ns, 0) for size, time_ns in times.items()}
    latency = BatchTime("m", "gpu", seeds, (1, 2))
    work = latency.work()
    draw = random.Random(7)
    for index in range(batches):
        truth = draw.lognormvariate(-0.125, 0.5)
        took_ns = round((FIXED_MS + EACH_MS * truth) * MS * draw.uniform(0.97, 1.03))
        latency.observe(index * 10 * MS, 1, took_ns, round(1000 * (declare(truth, draw) - 1)))
    return (work.time_ns(1000, 1000) - work.time_ns(1000)) / MS


def right(truth: float, draw: random.Random) -> float:
    return truth


def off(truth: float, draw: random.Random) -> float:
    return truth * draw.lognormvariate(0, 0.6)


def unrelated(truth: float, draw: random.Random) -> float:
    return draw.lognormvariate(-0.125, 0.5)


@pytest.mark.parametrize("batches", [0, 400])
def test_a_right_hint_counts_in_full(batches):
    assert extra_of_a_job_that_declares_double(right, batches) == pytest.approx(EACH_MS, rel=0.1)


def test_a_hint_that_is_off_counts_in_part():
    assert 0.2 * EACH_MS < extra_of_a_job_that_declares_double(off, 400) < 0.7 * EACH_MS


def test_a_hint_that_tells_nothing_counts_next_to_nothing():
    assert extra_of_a_job_that_declares_double(unrelated, 400) < 0.25 * EACH_MS


def test_hints_that_are_right_again_count_again():
    declared = iter([unrelated] * 200 + [right] * 200)
    assert extra_of_a_job_that_declares_double(lambda truth, draw: next(declared)(truth, draw), 400) == pytest.approx(
        EACH_MS, rel=0.1
    )


def test_that_work_was_declared_once_is_remembered():
    latency = BatchTime("m", "gpu", {1: Timing(100, 5 * MS, 5 * MS, 5 * MS, 0)}, (1,))
    work, told = latency.work(), []
    for index, over_milli in enumerate([None, 0, None]):
        latency.observe(index * 10 * MS, 1, 5 * MS, over_milli)
        told.append(work.is_declared)
    assert told == [False, True, True]
