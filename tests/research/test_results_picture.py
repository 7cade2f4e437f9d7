"""The picture of all results: up to date, and on the right side of its line."""

from __future__ import annotations

from pathlib import Path

from figures import results


def test_the_picture_shows_what_is_stored():
    picture = results.overview(results.stored(results.RESULTS))
    assert Path(results.PICTURE).read_text(encoding="utf-8") == picture, "run python research/figures/results.py"
    assert picture.count("<circle") > 500
