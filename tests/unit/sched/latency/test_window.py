"""A bounded window of measurements and its quantiles, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.latency.window import Window


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=40), st.integers(1, 12), st.integers(0, 15))
def test_it_is_the_last_values_that_are_young_enough_in_order(steps, length, age_ns):
    window, kept, now_ns = Window(length, age_ns=age_ns), [], 0
    for passed_ns, value in steps:
        now_ns += passed_ns
        gone = [row for row in kept if now_ns - row[0] > age_ns]
        assert window.forget(now_ns) == bool(gone)
        kept = [*[row for row in kept if row not in gone], (now_ns, value)][-length:]
        window.add(value, now_ns)
        values = sorted(value for _, value in kept)
        assert (window.rows(), len(window.values), window.newest_ns) == (kept, len(kept), now_ns)
        assert (window.quantile(0), window.quantile(1)) == (values[0], values[-1])
        for share in (0.25, 0.5, 0.75):
            found = window.quantile(share)
            assert sum(value <= found for value in values) >= share * (len(values) - 1)
            assert sum(value < found for value in values) <= share * (len(values) - 1)


def test_users_hear_of_every_so_many_new_values():
    window = Window(4, every=3)
    assert [window.add(value) for value in range(7)] == [False, False, True, False, False, True, False]


def test_a_window_without_values_says_so():
    with pytest.raises(ValueError, match="no quantile: expected at least one value"):
        Window(3).quantile(0.5)
