"""JobQueue against a naive list, by operations that Hypothesis draws."""

from __future__ import annotations

import pytest
from hand_world import app_of, job
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.errors import PolicyError
from edgeserve.sched.policies.common.job_queue import JobQueue

APP = app_of("m")
OPS = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "remove", "again"]), st.integers(0, 12)), max_size=60)


@given(OPS, st.integers(-1, 13))
def test_a_queue_is_a_sorted_list_of_key_and_seq(ops, cut):
    queue, naive, seq = JobQueue(), [], 0
    for what, number in ops:
        if what == "add":
            seq += 1
            made = job(seq, APP)
            queue.add(number, made)
            naive.append((number, seq, made))
        elif naive:
            row = naive.pop(number % len(naive))
            queue.remove(row[2])
            assert row[2].key is None
            assert row[2] not in queue
            if what == "again":  # under another key
                queue.add(number, row[2])
                naive.append((number, *row[1:]))
        naive.sort(key=lambda row: row[:2])
        assert queue.rows == naive
        assert len(queue) == len(naive)
    assert list(queue) == [row[2] for row in naive]
    assert queue.head() is (naive[0][2] if naive else None)
    assert queue.position(cut) == sum(row[0] < cut for row in naive)
    assert queue.slice(1, 4) == [row[2] for row in naive[1:4]]
    assert all(row[2] in queue and row[2].key == row[0] for row in naive)


def test_a_job_stands_in_one_queue_at_most():
    queue, other, made = JobQueue(), JobQueue(), job(1, APP)
    queue.add(5, made)
    for wrong in (queue, other):
        with pytest.raises(PolicyError, match="already stands in a queue"):
            wrong.add(6, made)
    assert queue.rows == [(5, 1, made)]
    with pytest.raises(PolicyError, match="does not stand in this queue"):
        other.remove(made)
    assert made not in other
    assert made in queue
    queue.remove(made)
    with pytest.raises(PolicyError, match="does not stand in this queue"):
        queue.remove(made)
