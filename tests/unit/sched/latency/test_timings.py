"""The statistics of measured durations in a profile."""

from __future__ import annotations

import pytest

from edgeserve.config.profiles import QUANTILES, Timing
from edgeserve.errors import ConfigError
from edgeserve.sched.latency.timings import timing_constant, timing_of


def test_measured_durations_become_a_timing():
    timing = timing_of([4, 1, 3, 2, 5])
    assert (timing.count, timing.median_ns, timing.p99_ns, timing.mean_ns, timing.sd_ns) == (5, 3, 5, 3, 2)
    assert len(timing.quantiles_ns) == len(QUANTILES)
    assert (timing.quantiles_ns[0], timing.quantiles_ns[-1]) == (1, 5)
    assert timing_constant(7) == Timing(0, 7, 7, 7, 0)
    with pytest.raises(ConfigError, match="at least one measured duration"):
        timing_of([])
