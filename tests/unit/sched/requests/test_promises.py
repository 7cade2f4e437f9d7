"""Promises: used once, by their owner, and never more of them than are bounded."""

from __future__ import annotations

from edgeserve.sched.requests.promises import Promises

MS = 1_000_000
KEY = ("owner", "app", "normal")


def test_each_is_used_once() -> None:
    notes = Promises()
    notes.give(KEY, 10 * MS, 20 * MS, 0)
    notes.give(KEY, 10 * MS, 40 * MS, 0)
    assert [notes.take(KEY, 40 * MS, MS) for _ in range(2)] == [True, False]
    assert [notes.take(KEY, 20 * MS, MS) for _ in range(2)] == [True, False]


def test_others_have_no_part_in_it() -> None:
    notes = Promises()
    notes.give(KEY, 10 * MS, 20 * MS, 0)
    others = [("x", "app", "normal"), ("owner", "x", "normal"), ("owner", "app", "critical")]
    assert [notes.take(other, 20 * MS, 0) for other in others] == [False] * 3
    assert notes.take(KEY, 20 * MS, 0)


def test_a_flood_of_refusals_keeps_the_latest() -> None:
    notes = Promises()
    for index in range(100_000):
        notes.give(("owner", "app", "normal"), 10 * MS, (20 + index) * MS, 0)
    kept = sum([notes.take(KEY, (20 + index) * MS, 0) for index in range(99_000, 100_000)])
    assert 0 < kept < 100
    for index in range(100_000):
        notes.give((f"owner {index}", "app", "normal"), 10 * MS, 20 * MS, 0)
    kept = sum([notes.take((f"owner {index}", "app", "normal"), 20 * MS, 0) for index in range(100_000)])
    assert 0 < kept < 10_000


def test_the_client_s_next_usual_request_is_none_that_comes_back() -> None:
    notes = Promises()
    notes.give(KEY, 20 * MS, round(20.1 * MS), 0)
    assert [notes.take(KEY, round(slo * MS), 0) for slo in (20, 20.05, 20.1)] == [False, False, True]


def test_promises_are_stretched_by_those_that_were_not_kept_until_most_are():
    promises = Promises()
    assert promises.would_do_ns("a", 10 * MS, 0) == 10 * MS
    promises.ended("a", False)
    once = promises.would_do_ns("a", 10 * MS, 0)
    promises.ended("a", False)
    assert 10 * MS < once < promises.would_do_ns("a", 10 * MS, 0)
    assert promises.would_do_ns("other", 10 * MS, 0) == 10 * MS
    for _ in range(100):
        promises.ended("a", True)
    assert promises.would_do_ns("a", 10 * MS, 0) == 10 * MS
    for _ in range(100):
        promises.ended("a", False)
    assert promises.would_do_ns("a", 10 * MS, 0) <= 40 * MS


def test_an_app_without_a_turn_is_promised_nothing_after_a_broken_promise():
    promises = Promises()
    assert promises.would_do_ns("a", 10 * MS, 10 * MS) is not None, "nothing is known of its promises"
    promises.ended("a", False)
    assert promises.would_do_ns("a", 10 * MS, 10 * MS) is None
    assert promises.would_do_ns("a", 10 * MS, 9 * MS) is not None, "it had a turn lately"
    assert promises.would_do_ns("other", 10 * MS, 10 * MS) is not None
    promises.ended("a", True)
    assert promises.would_do_ns("a", 10 * MS, 10 * MS) is not None


def test_all_that_a_step_refuses_may_come_back():
    promises = Promises()
    for _ in range(24):
        promises.give(KEY, 10 * MS, 20 * MS, 0)
    assert all(promises.take(KEY, 20 * MS, MS) for _ in range(24))
