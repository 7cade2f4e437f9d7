"""Default features: an image's grid by hand, texts, vectors, and inputs that are none."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.predict import features


def test_an_image_becomes_means_and_gradients() -> None:
    pixels = np.repeat(np.arange(16.0)[:, None], 16, axis=1)  # row r has the value r
    made = features.image({"x": np.stack([pixels] * 3, axis=2)})["features"]
    assert made.shape == (68,) and made.dtype == np.float32
    assert made[:8] == pytest.approx([0.5] * 8) and made[56:64] == pytest.approx([14.5] * 8)
    assert made[64:] == pytest.approx([7.5, np.arange(16).std(), 1.0, 0.0])


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (8, 100)])
def test_small_images_have_as_many_features(shape: tuple[int, int]) -> None:
    made = features.image({"x": np.ones(shape)})["features"]
    assert made.shape == (68,) and np.isfinite(made).all() and made[:64] == pytest.approx(np.ones(64))


def test_texts_and_vectors() -> None:
    assert features.text({"t": "Why?"})["features"].tolist() == [0, 0, 0, 0, 1.5, 0, 1]
    assert features.vector({"v": [[1, 2], [3, 4]]})["features"].tolist() == [1, 2, 3, 4]


def test_inputs_that_are_none() -> None:
    with pytest.raises(ValueError, match="inputs a, b: expected exactly one"):
        features.vector({"a": 1, "b": 2})
    with pytest.raises(ValueError, match=r"shape \[3\]"):
        features.image({"x": np.ones(3)})
