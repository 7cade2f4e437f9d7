"""The tables that policies plan with: the profile first, then what was measured; steps, phases, confidence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.config.profiles import Timing
from edgeserve.errors import ProfileError
from edgeserve.sched.latency.confidence import EXPECTED, LIVE, PROFILE, START, Confidence
from edgeserve.sched.latency.distribution import timing_constant, timing_of
from edgeserve.sched.latency.model import ModelLatency, fixed_part_ns

PHASES_MAX, WINDOW_LEN = 8, 10
WINDOW_AGE_NS = 10_000_000_000

# --- what a batch takes -----------------------------------------------------------------------------------------------


def latency(sizes=(1, 4), age_ns=WINDOW_AGE_NS):
    seeds = {1: Timing(9, 100, 120, 101, 3), 4: Timing(9, 300, 330, 301, 3)}
    return ModelLatency("m", "gpu0", seeds, sizes, age_ns)


def test_before_the_first_measurement_the_profile_speaks():
    known = latency()
    assert (known.estimate_ns[1], known.typical_ns[1]) == (120, 100)
    assert (known.estimate_ns[4], known.typical_ns[4]) == (330, 300)


def test_the_estimate_is_the_maximum_of_the_last_ten_and_the_typical_their_middle():
    known = latency()
    for index, duration in enumerate([500, *range(90, 100)]):
        known.observe(index, 1, duration)
        assert known.estimate_ns[1] == (500 if index < 10 else 99)
    assert known.typical_ns[1] == 95
    assert known.estimate_ns[4] == 330  # another size learns nothing from it


def test_the_likely_time_is_what_three_of_four_batches_stay_below():
    known = ModelLatency("m", "gpu0", {1: Timing(5, 100, 120, 100, 5)}, (1,))
    assert (known.likely_ns[1], known.alone_likely_ns, known.alone_ns) == (100, 100, 120)
    for index, duration in enumerate([10, 20, 30, 40, 50, 60, 70, 80]):
        known.observe(index, 1, duration)
    assert (known.likely_ns[1], known.alone_likely_ns, known.alone_ns) == (70, 70, 80)
    known.set_speed(0.5)
    assert (known.likely_ns[1], known.alone_likely_ns, known.alone_ns) == (140, 140, 160)
    assert ModelLatency("m", "gpu0", {1: timing_of(list(range(0, 101)))}, (1,)).likely_ns[1] in range(75, 81)


def test_a_batch_runs_as_the_smallest_size_that_holds_it():
    known = latency()
    assert known.size_for == [1, 1, 4, 4, 4]
    assert known.size_max == 4
    assert latency(sizes=(4,)).size_for == [4] * 5


def test_speed_scales_what_is_known_and_measurements_are_kept_at_full_speed():
    known = latency()
    known.set_speed(0.5)
    assert (known.estimate_ns[1], known.typical_ns[1]) == (240, 200)
    known.observe(0, 1, 300)
    assert known.estimate_ns[1] == 300
    known.set_speed(1.0)
    assert known.estimate_ns[1] == 150
    known.set_speed(0.7)
    assert known.estimate_ns[1] == 215  # 150 / 0.7 = 214.3, rounded up
    with pytest.raises(ValueError, match="lane 'gpu0': speed 0.0 must be above 0"):
        known.set_speed(0.0)


def test_old_measurements_are_forgotten_so_that_a_pessimistic_size_is_tried_again():
    known = latency(age_ns=1000)
    known.observe(0, 4, 9999)
    known.observe(600, 4, 305)
    known.forget(1000)
    assert known.estimate_ns[4] == 9999
    known.forget(1001)
    assert known.estimate_ns[4] == 305
    known.forget(1601)
    assert known.estimate_ns[4] == 330
    known.forget(10**9)
    assert known.estimate_ns[4] == 330


def test_each_measurement_is_forgotten_at_its_own_time():
    known = latency(age_ns=1000)
    for now_ns, size, took_ns in ((0, 4, 900), (100, 1, 500), (300, 4, 700), (400, 1, 400), (600, 4, 600)):
        known.observe(now_ns, size, took_ns)
    found = []
    for now_ns in (1000, 1001, 1100, 1101, 1300, 1301, 1401, 1601):
        known.forget(now_ns)
        found.append((known.estimate_ns[1], known.estimate_ns[4]))
    assert found == [(500, 900), (500, 700), (500, 700), (400, 700), (400, 700), (400, 600), (120, 600), (120, 330)]


def test_the_distribution_is_the_profile_until_the_window_is_full():
    seeds = {1: timing_of(list(range(100, 201)))}
    known = ModelLatency("m", "gpu0", seeds, (1,))
    assert known.distribution(1).quantile_ns(0.5) == 150
    for index in range(WINDOW_LEN):
        assert known.distribution(1).quantile_ns(1.0) == 200
        known.observe(index, 1, 300 + index)
    assert known.distribution(1).quantile_ns(1.0) == 309
    known.set_speed(0.5)
    assert known.distribution(1).quantile_ns(1.0) == 618
    assert [latency().distribution(1).quantile_ns(share) for share in (0.5, 0.75, 1.0)] == [100, 110, 120]


def test_a_size_without_a_time_is_refused_with_the_mend():
    with pytest.raises(
        ProfileError,
        match=r"model 'm' on lane 'gpu0': batch sizes \[2, 3\] have no measured time "
        r"\(measured: 1, 4\); run 'edgeserve profile' or give \[model.m.expected\]",
    ):
        latency(sizes=(1, 2, 3, 4))


def test_the_fixed_part_is_the_intercept_of_the_times_and_never_more_than_the_smallest() -> None:
    assert fixed_part_ns({1: 15, 2: 20, 4: 30}) == 10
    assert fixed_part_ns({1: 10, 2: 20}) == 0
    assert fixed_part_ns({1: 496, 2: 735, 4: 1149, 8: 1695, 16: 2667}) == 355  # the line itself starts at 474
    assert fixed_part_ns({1: 10, 2: 5}) == 5  # times that fall are noise: the smallest bounds it
    assert fixed_part_ns({4: 30}) == 0
    assert fixed_part_ns({1: 10_000, 2: 11_000, 4: 20_000}) == 5500  # the parallel through the first starts at 6500


# --- steps, phases, versions ------------------------------------------------------------------------------------------


def test_a_call_of_four_steps_teaches_the_time_of_one():
    known = latency()
    known.observe(0, 1, 401, steps=4)
    assert known.estimate_ns[1] == 101 and known.typical_ns[1] == 101
    known.observe(1, 1, 90)
    assert known.estimate_ns[1] == 101


def test_a_phase_has_tables_of_its_own_that_begin_with_the_seeds_of_the_whole():
    known = latency(age_ns=1000)
    known.set_speed(0.5)
    known.observe(0, 1, 900, phase="prefill")
    assert known.estimate_ns[1] == 240 and known.phase("prefill").estimate_ns[1] == 900
    assert known.phase("decode").estimate_ns[1] == 240
    known.set_speed(1.0)
    assert known.phase("prefill").estimate_ns[1] == 450
    known.forget(2000)
    assert known.phase("prefill").estimate_ns[1] == 120
    assert known.figures(2000)["phases"]["prefill"] == latency(age_ns=1000).figures(0)


def test_phases_are_bounded():
    known = latency()
    for number in range(PHASES_MAX):
        known.phase(f"p{number}")
    with pytest.raises(
        ValueError, match=f"model 'm' on lane 'gpu0': phase 'more' is one too many, at most {PHASES_MAX} are told apart"
    ):
        known.observe(0, 1, 100, phase="more")
    known.phase("p0")


def test_the_version_rises_when_the_times_of_the_present_pace_changed_and_only_then():
    known = latency()
    before = known.version
    known.observe(0, 1, 100)  # as profiled
    known.forget(1)
    assert known.version == before
    known.observe(1, 1, 130)
    after = known.version
    assert after > before
    known.forget(10 * WINDOW_AGE_NS)
    assert known.version > after and known.typical_ns == latency().typical_ns


measured = st.tuples(st.sampled_from([1, 4]), st.integers(1, 10**6), st.sampled_from([0.5, 0.7, 1.0]))


@given(st.lists(measured, max_size=40))
def test_tables_are_what_was_measured_at_any_speed(batches):
    known = latency()
    kept = {1: [], 4: []}
    for number, (size, took_ns, speed) in enumerate(batches):
        known.set_speed(speed)
        known.observe(number, size, took_ns)
        kept[size] = [*kept[size], math.ceil(took_ns * speed)][-WINDOW_LEN:]
        for each, durations in kept.items():
            at_full_speed = max(durations) if durations else known.seeds[each].p99_ns
            assert known.estimate_ns[each] == math.ceil(at_full_speed / speed)
            assert 1 <= known.typical_ns[each] <= known.likely_ns[each] <= known.slowest_ns[each]
        assert known.alone_ns == known.estimate_ns[1] and known.alone_likely_ns == known.likely_ns[1]


# --- confidence -------------------------------------------------------------------------------------------------------


def test_confidence_says_what_an_estimate_stands_on():
    seeds = {1: Timing(9, 100, 120, 101, 3), 2: timing_constant(150), 4: timing_of([300, 310, 320])}
    known = ModelLatency("m", "gpu0", seeds, (1, 2, 4), age_ns=1000, sources={4: START})
    assert [known.confidence(size, 5) for size in (1, 2, 4)] == [
        Confidence(PROFILE, 9, None, 0),
        Confidence(EXPECTED, 0, None, 0),
        Confidence(START, 3, None, 0),
    ]
    for number in range(12):
        known.observe(number, 1, 105)
    assert known.confidence(1, 31) == Confidence(LIVE, 10, 20, 10)
    assert known.confidence(2, 31) == Confidence(EXPECTED, 0, None, 10)  # but the pace is known
    known.forget(1006)
    assert known.confidence(1, 1006) == Confidence(LIVE, 6, 995, 6)
    known.forget(2000)
    assert known.confidence(1, 2000) == Confidence(PROFILE, 9, None, 0)


def test_figures_are_plain_numbers_for_people():
    known = ModelLatency("m", "gpu0", {1: timing_constant(2_000_000)}, (1,))
    assert known.figures(0) == {
        "pace": 1.0,
        "skew": 0.0,
        "pace_measured": 0,
        "sizes": {
            "1": {
                "typical_ms": 2.0,
                "likely_ms": 2.0,
                "estimate_ms": 2.0,
                "source": "expected",
                "measured": 0,
                "age_ms": None,
            }
        },
    }
    known.observe(0, 1, 3_000_000)
    known.observe(1_000_000, 1, 3_000_000)
    assert known.figures(5_000_000) == {
        "pace": 1.5,
        "skew": 0.0,
        "pace_measured": 2,
        "sizes": {
            "1": {
                "typical_ms": 3.0,
                "likely_ms": 3.0,
                "estimate_ms": 3.0,
                "source": "live",
                "measured": 2,
                "age_ms": 4.0,
            }
        },
    }


def test_the_fastest_run_alone_is_of_the_smallest_size_and_of_the_last_ten():
    known = latency()
    assert known.fastest_alone_ns(0) == 0
    for now, size, took in ((5, 1, 100), (6, 1, 90), (6, 1, 95), (9, 4, 10)):
        known.observe(now, size, took)
    assert [known.fastest_alone_ns(since) for since in (0, 6, 7)] == [90, 90, 0]
    known.set_speed(0.5)
    assert known.fastest_alone_ns(0) == 180
    for now in range(10, 20):
        known.observe(now, 1, 240)
    assert known.fastest_alone_ns(0) == 240


def test_a_lane_at_twice_its_speed_takes_half_as_long():
    known = ModelLatency("m", "gpu0", latency().seeds, (1, 4), fixed_ns=41)
    assert (known.profiled_ns[4], known.fixed_now_ns) == (301, 41)
    known.set_speed(2.0)
    assert (known.estimate_ns[4], known.typical_ns[4]) == (165, 150)
    assert (known.profiled_ns[4], known.fixed_now_ns) == (151, 21)
    known.observe(0, 4, 100)
    known.set_speed(1.0)
    assert known.estimate_ns[4] == 200


def test_times_alone_of_apps_are_kept():
    seeds = {1: Timing(9, 100, 120, 101, 3)}
    assert ModelLatency("m", "l", seeds, (1,), alone={"a": (5, 6)}).alone == {"a": (5, 6)}
    assert ModelLatency("m", "l", seeds, (1,)).alone == {}
