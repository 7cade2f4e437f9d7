"""Whether clients come back: who is expected after a batch, and that an ordinary rate looks like nobody."""

from __future__ import annotations

import random

from edgeserve.sched.returns import WATCHES, WINDOW_NS_MAX, Returns

MS = 1_000_000
TOOK_NS = 16 * MS  # a window of 2 ms


def watched(batches, answered, came, later=0):
    """So many batches, 20 ms apart, after each of which some came at once and others later; the last is open."""
    returns = Returns()
    for index in range(batches + 1):
        returns.answered(index * 20 * MS, answered, TOOK_NS)
        if index < batches:
            for _ in range(came):
                returns.arrived(index * 20 * MS + MS)
            for _ in range(later):
                returns.arrived(index * 20 * MS + 10 * MS)
    return returns, batches * 20 * MS


def test_as_many_are_missing_as_usually_come_back():
    returns, now_ns = watched(WATCHES, answered=8, came=6)
    assert returns.missing(now_ns) == 6
    returns.arrived(now_ns + 1)
    assert returns.missing(now_ns + 1) == 5
    assert returns.missing(now_ns + 2 * MS) == 0


def test_nobody_is_expected_before_enough_batches_were_watched():
    returns, now_ns = watched(WATCHES - 1, answered=8, came=8)
    assert returns.missing(now_ns) == 0


def test_a_lone_client_waits_for_nobody():
    returns, now_ns = watched(WATCHES, answered=1, came=1)
    assert returns.missing(now_ns) == 0


def test_those_who_come_later_or_too_few_are_not_waited_for():
    assert watched(WATCHES, answered=8, came=0, later=8)[0].share_ppm == 0
    returns, now_ns = watched(WATCHES, answered=8, came=3, later=5)
    assert returns.missing(now_ns) == 0


def test_what_the_ordinary_rate_brings_is_no_return():
    # Five of eight come in the window, but forty in the time of ten windows: four would by chance.
    returns, now_ns = watched(WATCHES, answered=8, came=5, later=35)
    assert returns.share_ppm == 125_000
    assert returns.missing(now_ns) == 0


def test_the_wait_ends_with_the_window_or_after_a_quiet_part_of_it():
    returns, now_ns = watched(WATCHES, answered=8, came=8)
    assert returns.waits_until_ns == now_ns + MS
    returns.arrived(now_ns + MS // 2)
    assert returns.waits_until_ns == now_ns + 3 * MS // 2
    returns.arrived(now_ns + 3 * MS // 2)
    assert returns.waits_until_ns == now_ns + 2 * MS


def test_a_window_is_bounded_and_short_batches_have_none():
    returns = Returns()
    returns.answered(0, 4, 1000 * MS)
    assert returns.until_ns == WINDOW_NS_MAX
    returns = Returns()
    returns.answered(0, 4, MS)
    assert returns.until_ns < 0


def test_a_poisson_load_never_seems_to_return():
    draw = random.Random("returns/poisson")
    for rate_per_ms in (0.1, 0.5, 1.0, 3.0):
        returns, now, next_ms = Returns(), 0.0, 0.0
        for _ in range(300):
            returns.answered(round(now * MS), max(2, min(16, round(rate_per_ms * 20))), TOOK_NS)
            while next_ms < now + 20:
                assert returns.missing(round(now * MS)) == 0
                returns.arrived(round(max(now, next_ms) * MS))
                next_ms += draw.expovariate(rate_per_ms)
            now += 20
