"""The picture of all results: up to date, and on the right side of its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import results


def test_the_picture_shows_what_is_stored():
    picture = results.overview(results.stored(results.RESULTS))
    assert Path(results.PICTURE).read_text(encoding="utf-8") == picture, "run python research/figures/results.py"
    assert picture.count("<circle") > 500


@pytest.mark.parametrize(
    ("value", "bound", "doublings"),
    [(2.0, ">= 1", 1.0), (0.5, ">= 1", -1.0), (2.0, "<= 4", 1.0), (8.0, "<= 4", -1.0), (0.0, "<= 4", 2.0)]
    + [
        (2.0, "1 to 8", 1.0),
        (0.5, "1 to 8", -1.0),
        (16.0, "1 to 8", -1.0),
        (2.0, "-1 to 4", 1.0),
        (0.0, "0 to 0", None),
    ]
    + [(1.0, "holds", None), (0.0, "<= 0", None), (True, ">= 1", None), ("no", ">= 1", None)],
)
def test_a_check_is_as_far_from_its_bound_as_its_ratio_says(value, bound, doublings):
    assert results.doublings(value, bound) == doublings


def test_a_shortfall_that_is_known_says_why_in_the_table():
    row = {"name": "x", "value": 0.5, "bound": "1 to 2", "holds": False}
    assert results.judged({**row, "holds": True}) == "holds"
    assert results.judged(row) == "**falls short**"
    assert results.judged({**row, "known": "a | reason"}) == "**falls short**, as known: a \\| reason"
