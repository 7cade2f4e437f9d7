"""The best split of n jobs into batches, against brute force."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from edgeserve.sched.latency.split import BestSplit

tables = st.dictionaries(st.integers(1, 9), st.integers(1, 60).map(lambda us: us * 1000), min_size=1, max_size=5).map(
    lambda table: sorted(table.items())
)


def brute_force_ns(times, count):
    """The least time of all ways to run ``count`` jobs: every number of jobs that a batch of a size may hold."""

    @lru_cache(maxsize=None)
    def best_ns(left):
        return (
            min(
                [
                    time_ns + (best_ns(left - held) if left > held else 0)
                    for size, time_ns in times
                    for held in range(1, min(size, left) + 1)
                ],
                default=0,
            )
            if left
            else 0
        )

    return best_ns(count)


def padded(times):
    """A smaller batch takes no longer than a larger one."""
    return [(size, min(time_ns for other, time_ns in times if other >= size)) for size, _ in times]


@given(tables, st.integers(0, 14))
def test_no_other_split_is_faster(times, count):
    times = padded(times)
    assert BestSplit(times).time_ns(count) == brute_force_ns(tuple(times), count)


@given(tables, st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_the_batches_hold_all_jobs_and_take_what_the_split_says(times, counts):
    split = BestSplit(times)
    for count in counts:  # in any order: the table is worked out as far as it was asked for
        batches, left = [], count
        while left:
            first = split.first(left)
            assert 1 <= first <= left
            size = next((size for size, _ in times if size >= first), None)
            assert size is not None and first in (size, left)  # only the last one has room left
            batches.append(dict(times)[size])
            left -= first
        assert split.time_ns(count) == sum(batches)
        assert [time_ns for _, time_ns in split.batches(count)] == batches
        assert sum(taken for taken, _ in split.batches(count)) == count
