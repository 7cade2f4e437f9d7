"""Length predictions: the distribution, the network beside a hand computation, and files that cannot be used."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest

from edgeserve.errors import ConfigError
from edgeserve.predict.length import LengthModel, load_length_model


def model(**changes: object) -> LengthModel:
    """log length = relu(0.1 * words) + 1, standardised by scale 2."""
    first = np.zeros((7, 1))
    first[6, 0] = 0.2
    given = {
        "shift": np.zeros(7),
        "scale": np.full(7, 2.0),
        "layers": [(first, np.zeros(1)), (np.ones((1, 1)), np.ones(1))],
        "sigma": 0.5,
        "tokens_max": 100,
        "about": {"tau": 9.0},
    }
    given.update(changes)
    return LengthModel(**given)  # type: ignore[arg-type]


def test_a_prediction_by_hand() -> None:
    prediction = model().predict("one two three four five")
    assert prediction.log_mean == pytest.approx(1.5)
    assert prediction.mean() == pytest.approx(math.exp(1.5 + 0.125), rel=2e-3)  # at least one token
    assert prediction.quantile(0.5) == pytest.approx(math.exp(1.5))
    assert prediction.quantile(0.9) == pytest.approx(math.exp(1.5 + 0.5 * 1.2815515655))


def test_several_texts_at_once_as_one_by_one() -> None:
    texts = ["a", "b c", ""]
    assert model().predict_all(texts) == [model().predict(text) for text in texts]
    assert model().predict_all([]) == []


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "cannot be used"), (b"no model", "cannot be used"), (None, "No such file")]
)
def test_a_file_that_is_no_model(tmp_path: pathlib.Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "m.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_length_model(str(path))


def test_another_version_is_refused(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "m.npz")
    np.savez(path, header=np.frombuffer(b'{"format": "edgeserve length model", "version": 99}', np.uint8))
    with pytest.raises(ConfigError, match="version 99, expected 'edgeserve length model' version 1"):
        load_length_model(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sigma": -1.0}, "sigma"),
        ({"tokens_max": 0}, "tokens_max"),
        ({"scale": np.zeros(7)}, "scale"),
        ({"layers": []}, "outputs"),
        ({"layers": [(np.zeros((3, 1)), np.zeros(1))]}, "layer 0"),
        ({"layers": [(np.full((7, 1), np.nan), np.zeros(1))]}, "not finite"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model(**changes)  # type: ignore[arg-type]
