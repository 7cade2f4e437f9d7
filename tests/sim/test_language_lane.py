"""A language model beside a voice detector on one lane: the real scheduler and loop of steps in virtual time."""

from __future__ import annotations

import pytest
from bench import language_policies
from bench.language_lane import MS, Case, measure


@pytest.mark.parametrize("auction", [True, False])
def test_frames_are_in_time_beside_a_saturated_language_model_that_reads_in_turns(auction):
    row = measure(Case("int8", 4, 25 * MS, auction), 2.0, seed=2)
    assert row["frames"] > 100 and row["in_time"] >= 0.99
    assert row["turn_ms_max"] <= 25


def test_they_are_not_where_prompts_are_read_whole():
    row = measure(Case("int8", 4, 0, True), 2.0, seed=2)
    assert row["in_time"] < 0.5 and row["turn_ms_max"] > 100


@pytest.mark.worlds
def test_under_rtlm_plus_the_hubs_answers_come_in_half_of_the_time_that_they_take_in_static_batches():
    rows = language_policies.measure(240, seed=2)
    assert rows["fifo"]["mean_s"] >= 2 * rows["rtlm+"]["mean_s"]
    assert rows["rtlm+"]["questions_per_s"] > 1.2 * rows["fifo"]["questions_per_s"]
