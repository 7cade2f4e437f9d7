"""The double-ended queue against a sorted list: random pushes and pops from both ends, ties, lazy deletion."""

from __future__ import annotations

import random
from bisect import insort

import pytest
from hand_world import app_of
from hand_world import job as job_of
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.errors import PolicyError
from edgeserve.sched.policies.pard.minmaxheap import Depq, MinMaxHeap

APP = app_of("m")


@given(st.lists(st.one_of(st.integers(0, 200), st.sampled_from(["low", "high"])), max_size=200))
def test_equals_a_sorted_list_whatever_is_pushed_and_popped(moves):
    heap, plain = MinMaxHeap(), []
    for move in moves:
        if move == "low" and plain:
            assert heap.pop_low() == plain.pop(0)
        elif move == "high" and plain:
            assert heap.pop_high() == plain.pop()
        elif isinstance(move, int):
            heap.push(move)
            plain.append(move)
            plain.sort()
        assert len(heap) == len(plain)
        if plain:
            assert (heap.low(), heap.high()) == (plain[0], plain[-1])


def test_both_ends_of_a_long_queue_in_turn():
    draw = random.Random("minmax, both ends")
    heap, plain = MinMaxHeap(), []
    for _ in range(4000):
        if len(plain) < 40 or draw.random() < 0.5:
            key = draw.randrange(10**6)
            heap.push(key)
            insort(plain, key)
        elif draw.random() < 0.5:
            assert heap.pop_low() == plain.pop(0)
        else:
            assert heap.pop_high() == plain.pop()
        assert (heap.low(), heap.high()) == (plain[0], plain[-1])


def test_among_equal_keys_the_oldest_is_first_at_both_ends():
    queue = Depq()
    jobs = [job_of(seq, APP) for seq in range(3)]
    for job in jobs:
        queue.add(7, job)
    assert queue.low() is jobs[0] and queue.high() is jobs[0]
    queue.remove(jobs[0])
    assert queue.low() is jobs[1] and queue.high() is jobs[1]


@given(st.lists(st.tuples(st.sampled_from("aaarlh"), st.integers(0, 12)), max_size=150))
def test_a_queue_of_jobs_equals_a_naive_list(moves):
    queue, plain = Depq(), []
    for seq, (what, number) in enumerate(moves):
        if what == "a":
            job = job_of(seq, APP)
            queue.add(number, job)
            plain.append((number, seq, job))
        elif plain:
            if what == "r":
                row = plain[number % len(plain)]
            elif what == "l":
                row = min(plain, key=lambda row: (row[0], row[1]))
                assert queue.low() is row[2]
            else:
                row = min(plain, key=lambda row: (-row[0], row[1]))
                assert queue.high() is row[2]
            queue.remove(row[2])
            plain.remove(row)
        assert len(queue) == len(plain)
        assert {job.seq for job in queue} == {seq for _, seq, _ in plain}
    for job in [row[2] for row in plain]:
        queue.remove(job)
    assert queue.low() is None and queue.high() is None


def test_a_job_stands_in_one_queue_once():
    queue, job = Depq(), job_of(1, APP)
    with pytest.raises(PolicyError, match="does not stand in this queue"):
        queue.remove(job)
    queue.add(3, job)
    with pytest.raises(PolicyError, match="already stands"):
        queue.add(4, job)
