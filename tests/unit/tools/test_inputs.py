"""Images as inputs of requests from the shell."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.tools.inputs import images_as_declared

IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def given(dtype, shape, **more):
    inputs = {"x": IMAGE}
    done = images_as_declared({"x": {"dtype": dtype, "shape": shape, **more}}, inputs, ["x"])
    return inputs["x"], done


def test_frames_of_any_size_are_sent_as_they_are():
    """Also where the server tells the size that its warm-up uses."""
    image, done = given("uint8", [-1, -1, 3], usual=[1080, 1920, 3])
    assert image is IMAGE and done == []


def test_other_images_are_brought_to_the_declared_form():
    pytest.importorskip("PIL", reason="pillow is not installed: images cannot be resized")
    image, (done,) = given("float32", [3, 2, 3])
    assert (image.shape, image.dtype) == ((3, 2, 3), np.float32)
    assert "resized to 3x2, scaled to 0..1, channels first" in done
