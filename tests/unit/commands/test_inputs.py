"""Images as inputs of requests from the shell."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.commands.infer import read_tensor
from edgeserve.commands.inputs import example_inputs, images_as_declared
from edgeserve.errors import BadInput
from edgeserve.front.images import decode_file

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


def test_texts_have_their_shape_and_a_length_is_that_of_the_example():
    declared = {
        "words": {"dtype": "text", "shape": [-1, 2], "optional": False},
        "said": {"dtype": "text", "shape": [], "optional": False},
        "input": {"dtype": "int64", "shape": [-1], "optional": False, "usual": [40]},
        "input_lengths": {"dtype": "int64", "shape": [], "optional": False},
        "scales": {"dtype": "float32", "shape": [3], "optional": False},
        "speed": {"dtype": "float32", "shape": [], "optional": False},
    }
    made = example_inputs("voice", declared, {}, 0, guess=True)
    assert made["words"].shape == (1, 2) and made["said"] == made["words"][0, 0]
    assert {name: np.shape(made[name]) for name in ("input", "scales", "speed")} == {
        "input": (40,),
        "scales": (3,),
        "speed": (),
    }
    assert int(made["input_lengths"]) == 40 and made["input_lengths"].dtype == np.int64


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_picture_is_the_same_from_the_shell_and_over_http(tmp_path, mode, orientation):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    exif, path = pillow.Exif(), tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    exif[0x0112] = orientation
    pixels = np.random.RandomState(0).randint(0, 256, (6, 4, 3)).astype(np.uint8)
    image = pillow.fromarray(pixels).convert("L" if mode in ("LA", "I;16") else "RGB")
    image = pillow.fromarray(np.uint16(image) * 200) if mode == "I;16" else image.convert(mode)
    image.save(path, exif=exif)
    found = []
    for read in (
        lambda: read_tensor(str(path)),
        lambda: decode_file("x", path.read_bytes(), {"dtype": "uint8", "shape": [-1, -1, 3]}, 10**6),
    ):
        try:
            found.append(read().tolist())
        except BadInput as error:
            found.append("more than 8 bits" in str(error))
    assert found[0] == found[1] and (found[0] is True) == (mode == "I;16")
