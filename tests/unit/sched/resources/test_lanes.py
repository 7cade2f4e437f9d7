"""Lanes and the works on them: when each is free, whom it accepts, when it counts as hung."""

from __future__ import annotations

import pytest
from hand_world import MS

from edgeserve.errors import PolicyError
from edgeserve.sched.resources.lanes import RUN, Lane, Works

WORKS_MAX, BEHIND_NS_MAX, LOST_KEPT = 16, 10 * MS, 1024


def put(works, lane, now_ms, expected_ms):
    return works.put(now_ms * MS, RUN, lane, "m", expected_ms * MS)


def test_a_lane_takes_one_work_and_is_free_when_that_is_over():
    works, lane = Works(), Lane("l", "d")
    assert lane.accepts(0)
    assert lane.available_ns(3 * MS) == 3 * MS
    work = put(works, lane, 3, 10)
    assert work.starts_ns == 3 * MS
    assert not lane.accepts(13 * MS)
    assert lane.available_ns(5 * MS) == 13 * MS
    assert lane.available_ns(20 * MS) == 20 * MS  # overdue: a batch given now starts now
    assert works.answered(work.id, 12 * MS) is work
    assert lane.accepts(12 * MS)
    assert lane.available_ns(12 * MS) == 12 * MS


def test_a_lane_that_plans_ahead_accepts_when_little_is_left_and_asks_for_that():
    works, lane = Works(), Lane("l", "d", ahead_ns=5 * MS)
    put(works, lane, 0, 10)
    assert lane.asks_at_ns(0) == 5 * MS
    assert not lane.accepts(5 * MS - 1)
    assert lane.accepts(5 * MS)
    assert lane.asks_at_ns(5 * MS) is None
    second = put(works, lane, 5, 4)
    assert second.starts_ns == 10 * MS
    assert lane.available_ns(5 * MS) == 14 * MS
    assert lane.asks_at_ns(5 * MS) == 9 * MS
    assert Lane("l", "d").asks_at_ns(0) is None


def test_nothing_is_sent_ahead_to_a_lane_that_is_far_behind():
    works, lane = Works(), Lane("l", "d", ahead_ns=5 * MS)
    put(works, lane, 0, 10)
    assert lane.accepts(10 * MS + BEHIND_NS_MAX)
    assert not lane.accepts(10 * MS + BEHIND_NS_MAX + 1)


def test_a_deep_lane_is_asked_until_it_holds_as_many_works_as_it_is_deep():
    works, lane = Works(), Lane("l", "d", depth=2)
    first = put(works, lane, 0, 10)
    assert lane.accepts(0)
    assert lane.asks_at_ns(0) is None  # nothing has to happen first
    put(works, lane, 0, 10)
    assert not lane.accepts(0)
    assert not lane.accepts(15 * MS)
    works.answered(first.id, 15 * MS)
    assert lane.accepts(15 * MS)
    assert not lane.accepts(25 * MS + BEHIND_NS_MAX + 1)  # far behind


def test_the_answer_of_the_head_moves_what_is_expected_of_those_behind():
    works, lane = Works(), Lane("l", "d", ahead_ns=50 * MS, hang_ns=100 * MS)
    first, second, third = [put(works, lane, 0, 10) for _ in range(3)]
    assert lane.free_at_ns == 30 * MS
    works.answered(first.id, 14 * MS)
    assert (lane.head_due_ns, lane.free_at_ns) == (24 * MS, 34 * MS)
    works.answered(third.id, 15 * MS)  # refused out of order: only the end moves
    assert (lane.head_due_ns, lane.free_at_ns) == (24 * MS, 24 * MS)
    works.answered(second.id, 20 * MS)
    assert not lane.works and not works.by_id


def test_a_lane_that_hangs_accepts_nothing_until_its_head_is_back():
    works, lane = Works(), Lane("l", "d", hang_ns=100 * MS)
    work = put(works, lane, 7, 10)
    assert lane.head_due_ns == 17 * MS
    lane.hung = True
    assert not lane.accepts(200 * MS)
    works.answered(work.id, 300 * MS)
    assert not lane.hung
    assert lane.accepts(300 * MS)


def test_a_lane_that_is_down_accepts_nothing_and_forgets_what_it_had():
    works, lane = Works(), Lane("l", "d", ahead_ns=50 * MS)
    first, second = put(works, lane, 0, 10), put(works, lane, 0, 10)
    assert lane.clear() == [first, second]
    assert (lane.free_at_ns, lane.available_ns(3), list(lane.works)) == (0, 3, [])
    lane.up = False
    assert not lane.accepts(0)


def test_an_answer_for_a_forgotten_work_is_recognised_and_for_an_unknown_one_is_a_bug():
    works, lane = Works(), Lane("l", "d", ahead_ns=50 * MS)
    first = put(works, lane, 0, 10)
    lane.clear()
    works.forget(first)
    assert works.answered(first.id, 5 * MS) is None
    with pytest.raises(PolicyError, match="work 7 was answered but is on no lane"):
        works.answered(7, 5 * MS)
    for _ in range(LOST_KEPT):
        assert works.running(first.id) is works.answered(first.id, 5 * MS) is None
        made = put(works, lane, 0, 0)
        lane.clear()
        works.forget(made)
    with pytest.raises(PolicyError):  # the memory of forgotten works is bounded
        works.answered(first.id, 5 * MS)
