"""Which tasks share a batch: the seed rule, the printed rules with "and" and with "or", and what each does wrong."""

from __future__ import annotations

from edgeserve.sched.published.rtlm.consolidation import consolidate, seed, window_len

LENGTHS = [30.0, 10.0, 11.0, 100.0, 28.0, 35.0]


def test_a_window_is_b_batches_and_at_least_one():
    assert window_len(1.8, 11) == 19
    assert window_len(1.0, 4) == 4
    assert window_len(0.1, 4) == 4


def test_the_seed_goes_with_those_nearest_to_it_in_the_logarithm():
    assert consolidate("seed", LENGTHS, 3, 1.5) == [0, 4, 5]
    assert seed([100.0, 10.0, 11.0, 12.0, 13.0], 2) == [0, 4]  # the first task always goes
    assert seed([5.0, 90.0], 3) == [0, 1]  # a queue shorter than a batch is the batch


def test_the_printed_rule_with_and_grows_from_the_shortest():
    assert consolidate("and", LENGTHS, 3, 1.5) == [1, 2]  # 28 is more than 1.5 times 11: the first task waits
    assert consolidate("and", [10.0, 11.0, 12.0, 13.0], 3, 1.5) == [0, 1, 2]
    assert consolidate("and", [10.0, 20.0], 4, 1.5) == [0]


def test_the_printed_rule_with_or_fills_the_batch_whatever_the_lengths_and_goes_beyond_it():
    assert consolidate("or", LENGTHS, 3, 1.5) == [0, 1, 2, 4, 5]
    assert consolidate("or", [10.0, 11.0, 12.0, 13.0], 2, 1.5) == [0, 1, 2, 3]


def test_lengths_below_one_count_as_one():
    assert consolidate("and", [0.01, 1.2], 4, 1.5) == [0, 1]


def test_no_rule_is_the_order_of_priority():
    assert consolidate("none", LENGTHS, 4, 1.5) == [0, 1, 2, 3]
    for rule in ("seed", "and", "or", "none"):
        assert consolidate(rule, [], 4, 1.5) == []
