"""The longest gap: of equal apps under ``edf`` none is given up for longer than the rule allows."""

from __future__ import annotations

import pytest
from lib import soak_gaps as gaps
from lib.soak_gaps import GapError, bounded_gaps


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
def test_no_app_is_given_up_for_longer_than_the_bound(seed):
    assert bounded_gaps(seed).share < 1


def test_an_app_that_the_others_batches_would_starve_is_served_within_the_bound(monkeypatch):
    monkeypatch.setattr(gaps, "RUN_S", 4)
    assert 0.5 < bounded_gaps(13).share < 1  # at 2.5 times the bound, were it not for the rule


def test_a_gap_beyond_its_bound_names_the_app_and_the_seed(monkeypatch):
    monkeypatch.setattr(gaps, "RUN_S", 1)
    monkeypatch.setattr(gaps, "bound_of_ns", lambda scenario, app: 1000)
    with pytest.raises(GapError, match=r"seed 13: a\d was given up for"):
        bounded_gaps(13)
