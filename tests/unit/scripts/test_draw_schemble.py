"""The picture of a fitted ensemble: every record is in the histogram, and the lines are the profile's."""

from __future__ import annotations

import numpy as np
import pytest
from draw import schemble

from edgeserve.config.ensemble_profile import read_ensemble, read_fit
from edgeserve.predict.history import EnsembleHistory, save_history
from edgeserve.tools.fit.ensemble import fit

MODELS = ("a", "b")


@pytest.fixture
def place(tmp_path):
    """A fit of two models, the second of which is wrong in every fifth record."""
    draw = np.random.default_rng(3)
    outputs = np.full((200, 2, 2), 0.1)
    labels = draw.integers(0, 2, 200)
    outputs[np.arange(200), 0, labels] = 0.9
    outputs[np.arange(200), 1, np.where(np.arange(200) % 5 == 0, 1 - labels, labels)] = 0.9
    save_history(str(tmp_path / "h.npz"), EnsembleHistory(MODELS, outputs))
    fit(EnsembleHistory(MODELS, outputs), str(tmp_path / "e.json"), combiner="weighted_average")
    return tmp_path


def drawn(place):
    path = str(place / "e.json")
    history = schemble.load_history(str(place / "h.npz"))
    profile = read_ensemble(path)
    scores = schemble.scores_of(history, read_fit(path)["fit"], path)
    return scores, profile, schemble.panels(history, scores, profile)


def test_the_panels_show_the_scores_and_the_profile(place):
    scores, profile, (difficulty, worth) = drawn(place)
    assert difficulty.title == "difficulty of 200 requests"
    assert sum(difficulty.lines[0].y[:-1]) == pytest.approx(100)
    assert difficulty.lines[0].y[0] == pytest.approx(100 * (scores < 0.05).mean())
    assert [line.label for line in worth.lines] == ["a", "b"]
    assert worth.lines[1].y == [100 * row[2] for row in profile.agreement]
    assert all(len(line.x) == len(line.y) == len(profile.agreement) for line in worth.lines)


def test_the_picture_is_drawn(place):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install '.[plots]'")
    out = str(place / "fit.svg")
    assert schemble.main(["--fit", str(place / "e.json"), "--history", str(place / "h.npz"), "--out", out]) == 0
    with open(out, encoding="utf-8") as file:
        assert file.read().count("<svg") == 1


def test_a_fit_that_is_not_there_says_what_makes_it(tmp_path):
    with pytest.raises(SystemExit, match="build.py"):
        schemble.main(["--fit", str(tmp_path / "none.json")])
