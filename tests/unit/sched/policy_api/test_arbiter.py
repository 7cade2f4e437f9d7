"""Which bid starts, by the arbiter and by all orders of a policy's own: by brute force, and what the classes forbid."""

from __future__ import annotations

import itertools

import pytest
from hand_world import MS, app_of, job
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.published.common import orders

APP = app_of("m")
both = pytest.mark.parametrize("choose", [arbiter.choose, orders.choose], ids=["arbiter", "all orders"])


def bid(took, *deadlines, utility=10, priority_class="normal", **fields):
    """A bid that takes so many ms for requests with these deadlines (ms), each worth so much."""
    jobs = [job(number, APP, deadline=deadline, worth=utility) for number, deadline in enumerate(deadlines, 1)]
    remaining = fields.pop("remaining", took)
    return Bid(
        "m",
        jobs,
        len(jobs),
        took * MS,
        Utility(jobs, took * MS),
        remaining * MS,
        priority_class=priority_class,
        **fields,
    )


def delivered(order, at_ns):
    """The delivered worth of bids that run one after the other."""
    total = 0.0
    for item in order:
        total += item.utility.value(at_ns)
        at_ns += item.expected_ns
    return total


BIDS = st.builds(
    lambda took, deadlines, utility: bid(took, *deadlines, utility=utility),
    st.integers(1, 20),
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.integers(1, 10),
)


@given(BIDS, BIDS, st.integers(0, 20))
def test_of_two_the_order_that_delivers_more_wins_and_a_tie_goes_to_value_per_time(a, b, at_ms):
    at_ns = at_ms * MS
    best = max(delivered(order, at_ns) for order in itertools.permutations((a, b)))
    winner = arbiter.choose([a, b], at_ns)
    other = b if winner is a else a
    assert delivered((winner, other), at_ns) == best
    if delivered((other, winner), at_ns) == best:
        assert winner.utility.value(at_ns) * other.remaining_ns >= other.utility.value(at_ns) * winner.remaining_ns


@given(st.lists(BIDS, min_size=3, max_size=orders.ORDERS_MAX), st.integers(0, 20))
def test_of_several_the_first_of_the_order_that_delivers_most_wins(bids, at_ms):
    at_ns = at_ms * MS
    most = {
        id(first): max(delivered(order, at_ns) for order in itertools.permutations(bids) if order[0] is first)
        for first in bids
    }
    winner = orders.choose(bids, at_ns)
    assert most[id(winner)] == max(most.values())
    for other in bids:
        if most[id(other)] == most[id(winner)]:
            assert winner.utility.value(at_ns) * other.remaining_ns >= other.utility.value(at_ns) * winner.remaining_ns


@both
def test_the_rest_of_a_pipeline_counts_as_time_before_its_value_arrives(choose):
    stage, whole = bid(5, 100, remaining=40), bid(10, 100)
    assert choose([stage, whole], 0) is whole


@both
def test_of_many_bids_the_winner_of_each_comparison_meets_the_next(choose):
    assert choose([bid(10, 100), bid(10, 90), urgent := bid(10, 12)], 0) is urgent
    many = [bid(10, 500 - number) for number in range(2 * orders.ORDERS_MAX)]
    for place in range(len(many) + 1):
        assert choose([*many[:place], urgent, *many[place:]], 0) is urgent


@both
def test_a_critical_bid_that_would_lose_by_waiting_goes_first_whatever_it_costs(choose):
    rich, critical = bid(10, 12, utility=1000), bid(10, 15, utility=1, priority_class="critical")
    assert choose([rich, critical], 0) is critical
    assert choose([critical, rich], 0) is critical


@both
def test_a_critical_bid_that_can_wait_competes_like_any_other(choose):
    rich, critical = bid(10, 12, utility=1000), bid(10, 100, utility=1, priority_class="critical")
    assert choose([rich, critical], 0) is rich
    assert choose([critical, rich], 0) is rich


@both
def test_background_and_probes_start_only_when_nobody_else_bids(choose):
    poor, background = bid(10, 100, utility=1), bid(1, 12, utility=1000, priority_class="background")
    probe = bid(1, 12, utility=1000, probe=True)
    assert choose([background, probe, poor], 0) is poor
    assert choose([background], 0) is background
    assert probe.is_background
    assert background.is_background
    assert not poor.is_background


@both
def test_what_lies_between_two_batches_counts_in_what_a_waiting_bid_needs(choose):
    # Behind the first, the patient one starts at 10 and is over at 20; with a dispatch gap, later by that.
    first, patient = bid(10, 100, utility=20), bid(10, 20)
    assert choose([first, patient], 0) is first
    assert choose([first, patient], 0, MS // 2) is patient
    patient = bid(10, 20.5)
    assert choose([first, patient], 0, MS // 2) is first
    assert choose([first, patient], 0, MS // 2 + 1) is patient


@both
def test_a_dispatch_gap_counts_before_critical_work_too(choose):
    rich, critical = bid(10, 100, utility=1000), bid(10, 20, utility=1, priority_class="critical")
    assert choose([rich, critical], 0) is rich
    assert choose([rich, critical], 0, 1) is critical


def test_each_batch_before_a_waiting_one_is_followed_by_a_dispatch_gap():
    large, second, third = bid(10, 100, utility=100), bid(5, 21), bid(5, 22)
    assert orders.choose([large, second, third], 0, MS) is large  # 10 + 1 + 5 + 1 + 5
    assert orders.choose([large, second, third], 0, MS + 1) is not large


def of_app(name, *args, **fields):
    """A bid for requests of an app."""
    found = bid(*args, **fields)
    for item in found.jobs:
        item.request.app = app_of("m", name=name)
    return found


def overdue(bids, first, **passed_slos):
    """A world in which apps were given up for so many of their deadlines of 100 ms, which end now."""
    now_ns = 10**12
    passed_ns = {name: now_ns - round(slos * 100 * MS) for name, slos in passed_slos.items()}
    return arbiter.overdue(bids, passed_ns, first, now_ns, 0)


def test_an_app_that_was_passed_over_for_so_many_deadlines_goes_first():
    dense, sparse = of_app("dense", 10, 100, 100, 100), of_app("sparse", 10, 100)
    most = arbiter.PASSED_SLOS
    assert overdue([dense, sparse], dense, sparse=most - 0.01) is dense
    assert overdue([dense, sparse], dense, sparse=most) is sparse
    assert overdue([dense, sparse], dense, sparse=most + 1, dense=most) is sparse  # it has waited longer


def test_an_app_that_was_passed_over_does_not_go_before_what_counts_more_nor_makes_a_critical_one_late():
    dense, sparse = of_app("dense", 10, 100, 100, 100), of_app("sparse", 10, 100)
    most = 2 * arbiter.PASSED_SLOS
    dense.jobs[0].request.value = 2.0
    assert overdue([dense, sparse], dense, sparse=most) is dense
    dense.jobs[0].request.value = 1.0
    soon, later = of_app("loop", 10, 15, priority_class="critical"), of_app("loop", 10, 25, priority_class="critical")
    assert overdue([soon, dense, sparse], dense, sparse=most) is dense
    assert overdue([later, dense, sparse], dense, sparse=most) is sparse
    assert overdue([soon, dense, sparse], soon, sparse=most) is soon


def test_of_a_model_that_makes_steps_the_next_one_must_make_no_critical_request_late():
    soon, dense = of_app("loop", 10, 15, priority_class="critical"), of_app("dense", 10, 100, 100)
    whole, steps = of_app("sparse", 16, 100), of_app("sparse", 16, 100, steps_max=4)
    assert overdue([soon, dense, whole], dense, sparse=40) is dense
    assert overdue([soon, dense, steps], dense, sparse=40) is steps
