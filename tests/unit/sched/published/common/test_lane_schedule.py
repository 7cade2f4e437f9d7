"""Which of several models starts on a lane: no request in the schedule becomes late by it."""

from __future__ import annotations

import itertools

from hand_world import MS, app_of, job
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.published.common.lane_schedule import PATIENT, RISE
from edgeserve.sched.published.common.lane_schedule import first_of as first_of_all

APP = app_of("m")


def bid(took, *deadlines, worth=10, priority_class="normal"):
    """A bid that takes so many ms for requests with these deadlines (ms), each worth so much."""
    jobs = [job(number, APP, deadline=deadline, worth=worth) for number, deadline in enumerate(deadlines, 1)]
    return Bid("m", jobs, len(jobs), took * MS, Utility(jobs, took * MS), took * MS, priority_class=priority_class)


def first_of(bids, at_ns, dispatch_gap_ns):
    """A schedule in which no job was passed over."""
    return first_of_all(bids, [0] * len(bids), at_ns, dispatch_gap_ns)


def delivered(order):
    total, at_ns = 0.0, 0
    for item in order:
        total += item.utility.value(at_ns)
        at_ns += item.expected_ns
    return total


def lone(bids):
    """Bids of one request each."""
    return [bid(took, due, worth=worth) for took, due, worth in bids]


BIDS = st.integers(1, 20).flatmap(  # of one length: the order of latest starts is then that of deadlines
    lambda took: st.lists(
        st.tuples(st.just(took), st.integers(20, 60), st.integers(1, 10)), min_size=2, max_size=4
    ).map(lone)
)


@given(BIDS)
def test_where_all_can_be_in_time_none_of_equal_batches_is_made_late(bids):
    whole = sum(item.utility.value(0) for item in bids)
    orders = list(itertools.permutations(bids))
    if max(delivered(order) for order in orders) == whole:
        first = first_of(bids, 0, 0)
        assert max(delivered(order) for order in orders if order[0] is first) == whole


def test_of_those_that_can_wait_the_densest_starts():
    sparse, dense = bid(10, 60), bid(10, 80, 80)
    assert first_of([sparse, dense], 0, 0) is dense
    assert first_of([bid(10, 15), dense], 0, 0) is not dense  # it cannot wait


def test_what_does_not_fit_is_given_up_by_its_worth_per_lane_time():
    small, large = bid(10, 15, worth=10), bid(10, 15, worth=11)
    assert first_of([small, large], 0, 0) is large
    assert first_of([bid(10, 12, worth=1), bid(20, 25, worth=50)], 0, 0).expected_ns == 20 * MS
    assert first_of([bid(10, 15, worth=10, priority_class="critical"), large], 0, 0).priority_class == "critical"


def test_a_critical_bid_loses_nothing_by_waiting():
    dense = bid(16, *[60] * 40, worth=20)
    tight, looser = [bid(10, *[50] * 19, due, priority_class="critical") for due in (25, 26)]
    assert first_of([tight, dense], 0, 0) is tight
    assert first_of([looser, dense], 0, 0) is dense
    assert first_of([looser, dense], 0, 1) is looser  # it would start a dispatch_gap later


def test_background_starts_only_where_nobody_else_bids():
    background = bid(10, 20, worth=100, priority_class="background")
    assert first_of([background, bid(10, 500)], 0, 0) is not background
    assert first_of([background], 0, 0) is background


def test_a_dense_batch_that_can_wait_far_longer_lets_the_urgent_go_first():
    urgent = bid(10, 50)
    assert first_of([urgent, bid(20, 20 + 40 * PATIENT, worth=90)], 0, 0) is not urgent
    assert first_of([urgent, bid(20, 21 + 40 * PATIENT, worth=90)], 0, 0) is urgent


def test_who_was_passed_over_rises():
    full, lone = bid(10, 15, 15, worth=5), bid(10, 15, worth=8)  # one of them is given up
    assert first_of_all([full, lone], [0, 0], 0, 0) is full
    assert first_of_all([full, lone], [0, RISE], 0, 0) is lone
    assert first_of_all([full, bid(10, 15, worth=3)], [0, 1000], 0, 0) is full  # not for ever so little
