"""Messages that come together are read together; a request that comes alone never waits for others."""

from __future__ import annotations

from edgeserve.loop.coalescing import ReceiveCoalescing

MS = 1_000_000
HOLD_NS_MIN, HOLD_NS_MAX, HOLD_SHARED_NS_MAX = MS // 5, 10 * MS, 20 * MS
EARLY_SHARE, LOOK_SHARE, MISSES_MAX = 3, 8, 4
AGAIN_SHARE, AGAIN_PAUSE_NS, AGAIN_NS_MAX = 16, MS // 5, 2 * MS


def test_a_loop_with_a_core_of_its_own_reads_half_way_through_a_batch():
    patience = ReceiveCoalescing(shares_cores=False)
    patience.launched(100 * MS, 8 * MS)
    assert patience.receive_at_ns(103 * MS) == 104 * MS
    assert patience.receive_at_ns(104 * MS) is None


def test_a_loop_that_shares_its_core_reads_when_the_lane_is_back_or_overdue():
    patience = ReceiveCoalescing(shares_cores=True)
    patience.launched(0, 8 * MS)
    assert patience.receive_at_ns(8 * MS) == 10 * MS
    assert patience.receive_at_ns(10 * MS) is None


def test_no_nap_is_longer_than_a_refusal_may_wait_nor_too_short_to_pay():
    for shared, longest in ((False, HOLD_NS_MAX), (True, HOLD_SHARED_NS_MAX)):
        patience = ReceiveCoalescing(shared)
        patience.launched(0, 10_000 * MS)
        assert patience.receive_at_ns(1) == longest
        patience.launched(0, HOLD_NS_MIN // 2)
        assert patience.hold_ns == 0 and patience.receive_at_ns(0) is None


def test_what_was_read_while_all_lanes_are_busy_begins_another_nap():
    patience = ReceiveCoalescing(shares_cores=False)
    patience.launched(0, 8 * MS)
    assert patience.receive_at_ns(5 * MS) is None
    patience.hold_from(5 * MS)
    assert patience.receive_at_ns(6 * MS) == 9 * MS


def test_after_many_answers_a_burst_is_let_in_until_all_are_back_or_the_time_is_up():
    patience = ReceiveCoalescing(shares_cores=True)
    patience.launched(0, 16 * MS)
    patience.answered(20 * MS, 16, is_busy=False)
    assert patience.expects_more(20 * MS, 1)
    assert patience.expects_more(20 * MS, 15)
    assert not patience.expects_more(20 * MS, 16)
    assert not patience.expects_more(20 * MS + 16 * MS // AGAIN_SHARE - AGAIN_PAUSE_NS + 1, 1)


def test_a_lone_request_starts_at_once():
    patience = ReceiveCoalescing(shares_cores=True)
    patience.launched(0, 16 * MS)
    patience.answered(20 * MS, 1, is_busy=False)
    assert not patience.expects_more(20 * MS, 1)
    assert not patience.expects_more(20 * MS, 0)


def test_the_wait_for_others_is_bounded_and_nothing_for_short_batches():
    patience = ReceiveCoalescing(shares_cores=True)
    patience.launched(0, 10_000 * MS)
    patience.answered(0, 16, is_busy=False)
    assert not patience.expects_more(AGAIN_NS_MAX, 1)
    patience.launched(0, AGAIN_PAUSE_NS)
    patience.answered(0, 16, is_busy=False)
    assert not patience.expects_more(0, 1)


def busy_after_answers(patience: ReceiveCoalescing, now_ns: int, count: int) -> int:
    """A batch was launched and answers were sent: until when reading waits."""
    patience.launched(now_ns, 16 * MS)
    patience.answered(now_ns, count, is_busy=True)
    until_ns = patience.receive_at_ns(now_ns)
    assert until_ns is not None
    return until_ns - now_ns


def test_after_answers_a_busy_loop_looks_early_for_who_asks_again():
    patience = ReceiveCoalescing(shares_cores=True)
    assert busy_after_answers(patience, 0, 8) == 16 * MS // LOOK_SHARE
    patience.received(2 * MS, 3)  # the others are on their way
    assert patience.receive_at_ns(2 * MS) == 2 * MS + 16 * MS // LOOK_SHARE // 2
    patience.received(3 * MS, 5)  # all are here
    assert patience.receive_at_ns(3 * MS) == 23 * MS
    assert busy_after_answers(patience, 100 * MS, 8) == 16 * MS // LOOK_SHARE, "it was worth it"


def test_early_looks_end():
    patience = ReceiveCoalescing(shares_cores=True)
    busy_after_answers(patience, 0, 8)
    late_ns = 16 * MS // EARLY_SHARE
    patience.received(late_ns, 3)
    assert patience.receive_at_ns(late_ns) == late_ns + 20 * MS


def test_early_looks_in_vain_become_rarer_and_one_that_is_not_heals():
    patience = ReceiveCoalescing(shares_cores=True)
    looks = [busy_after_answers(patience, turn * 100 * MS, 8) < 16 * MS for turn in range(2 ** (MISSES_MAX + 2))]
    taken = [turn for turn, looked in enumerate(looks) if looked]
    gaps = [after - before for before, after in zip(taken, taken[1:])]
    assert gaps[:MISSES_MAX] == [2**miss for miss in range(1, MISSES_MAX + 1)]
    assert set(gaps[MISSES_MAX:]) == {2**MISSES_MAX}
    now_ns = len(looks) * 100 * MS
    while busy_after_answers(patience, now_ns, 8) > 16 * MS // LOOK_SHARE:
        now_ns += 100 * MS
    patience.received(now_ns + 2 * MS, 4)
    assert busy_after_answers(patience, now_ns + 100 * MS, 8) == 16 * MS // LOOK_SHARE


def test_no_early_look_where_reading_does_not_wait():
    patience = ReceiveCoalescing(shares_cores=True)
    patience.launched(0, HOLD_NS_MIN // 2)
    patience.answered(0, 8, is_busy=True)
    assert patience.receive_at_ns(0) is None
