"""The offline profile of a model on a lane: C and eta from step times by batch size."""

from __future__ import annotations

from edgeserve.sched.policies.language.constants import constants_of, saturating


def paper_times(eta_ms, batch, last):
    """The reference simulation's step times: flat up to C, in proportion above."""
    return {
        size: round(eta_ms / 2 * (0.7 + 0.3 * min(size, batch) / batch) * max(1.0, size / batch) * 1e6)
        for size in range(1, last + 1)
    }


def test_c_is_the_smallest_batch_that_saturates():
    for eta_ms, batch in ((50, 11), (40, 24), (100, 33)):
        assert saturating(paper_times(eta_ms, batch, 2 * batch)) == batch


def test_a_lane_whose_batches_bring_nothing_runs_one_at_a_time():
    assert saturating({1: 10, 2: 20, 4: 40}) == 1
    assert saturating({4: 10}) == 4


def test_the_constants_of_a_profile():
    found = constants_of(paper_times(50, 11, 16), prefill_ns=96_000_000, prefill_tokens=1200)
    assert found.batch == 11
    assert found.step_ns == 25_000_000
    assert found.prefill_ns == 80_000
    assert constants_of({1: 5}).prefill_ns == 0
