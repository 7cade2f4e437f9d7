"""Ten served batches against what the estimates began with: more than half by more than half again, either way."""

from __future__ import annotations

import pytest

from edgeserve.config.profiles import Timing
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.contradiction import ASSUMED, EXPECTED, PROFILE, START, Contradiction
from edgeserve.sched.latency.timings import timing_constant
from edgeserve.units import NS_PER_MS as MS

SERVED_EVERY_NS = 100 * MS


def latency(sources=None, times=None):
    """The profile says 10 ms for one and 25 for four: 5 are fixed and 5 per job."""
    times = times or {1: 10 * MS, 4: 25 * MS}
    return BatchTime(
        "m",
        "gpu0",
        {size: Timing(100, time, time, time, 0) for size, time in times.items()},
        tuple(times),
        sources=sources,
    )


def served(known, took_ms, size=1, every_ns=SERVED_EVERY_NS, **more):
    for index, time_ms in enumerate(took_ms):
        known.observe(index * every_ns, size, round(time_ms * MS), **more)
    return known.served.contradiction()


@pytest.mark.parametrize(
    ("took_ms", "said"),
    [
        ([16] * 10, 16),
        ([16] * 9, None),
        ([15] * 10, None),
        ([15.01] * 10, 15.01),
        ([6] * 10, 6),
        ([7] * 10, None),
        ([6.67] * 10, None),
        ([6.66] * 10, 6.66),
        ([16] * 6 + [10] * 4, 16),
        ([16] * 5 + [10] * 5, None),
        ([5] * 6 + [10] * 4, 5),
        ([5] * 5 + [30] * 5, None),
        ([10] * 20 + [30] * 6, 30),
        ([30] * 20 + [10] * 5, None),
    ],
)
def test_more_than_half_of_ten_batches_must_differ_by_more_than_half_again(took_ms, said):
    found = served(latency(), took_ms)
    assert found == (Contradiction(PROFILE, 1, 10 * MS, said * MS, 10) if said else None)


def test_each_size_is_held_to_its_own_belief():
    known = latency()
    for index in range(10):
        size = 4 if index % 2 else 1
        known.observe(index * SERVED_EVERY_NS, size, (25 if size == 4 else 10) * MS)
    assert known.served.contradiction() is None
    assert served(latency(), [25] * 10, size=1) == Contradiction(PROFILE, 1, 10 * MS, 25 * MS, 10)
    assert served(latency(), [40] * 10, size=4) == Contradiction(PROFILE, 4, 25 * MS, 40 * MS, 10)


def test_a_hiccup_of_many_short_batches_is_looked_at_once():
    assert served(latency(), [16] * 100, every_ns=SERVED_EVERY_NS // 50) is None
    assert served(latency(), [16] * 500, every_ns=SERVED_EVERY_NS // 50) is not None
    assert served(latency(), [16] * 10, every_ns=100 * MS - 1) is None  # every other one


def test_a_slower_lane_contradicts_nothing():
    half, quarter = latency(), latency()
    half.set_speed(0.5)
    quarter.set_speed(0.5)
    assert served(half, [20] * 10) is None
    assert served(quarter, [40] * 10) == Contradiction(PROFILE, 1, 10 * MS, 20 * MS, 10)


def test_work_that_was_declared_is_no_surprise():
    """Two standard jobs' work more on a batch of one: 5 + 3 * 5 ms. What is said is of standard work."""
    assert served(latency(), [20] * 10, over_milli=2000) is None
    assert served(latency(), [20] * 10, over_milli=0) is not None
    assert served(latency(), [40] * 10, over_milli=2000) == Contradiction(PROFILE, 1, 10 * MS, 20 * MS, 10)
    assert served(latency(), [80] * 10, steps=8) is None  # of one step
    assert served(latency(), [45] * 10, size=4, over_milli=4000) is None  # 25 and four more jobs' 5 each
    assert served(latency(), [72] * 10, size=4, over_milli=4000) == Contradiction(PROFILE, 4, 25 * MS, 40 * MS, 10)


@pytest.mark.parametrize("source", [PROFILE, EXPECTED, START, ASSUMED])
def test_the_source_is_said_and_an_assumption_is_none(source):
    found = served(latency({1: source, 4: source}), [99] * 10)
    assert (found.source if found else None) == (None if source == ASSUMED else source)
    assert served(BatchTime("m", "l", {1: timing_constant(MS)}, (1,)), [99] * 10).source == EXPECTED
