"""Images as inputs: which inputs hold one, and what their numbers are."""

from __future__ import annotations

import io

import numpy as np
import pytest

from edgeserve.errors import BadInput, TooLarge
from edgeserve.front import images

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10


def tensor(dtype, *shape):
    return {"dtype": dtype, "shape": list(shape)}


@pytest.mark.parametrize(
    ("dtype", "shape", "form"),
    [
        ("uint8", (4, 6, 3), ("uint8", 4, 6, False, False, 0)),
        ("float32", (3, 4, 6), ("float32", 4, 6, False, True, 0)),
        ("uint8", (-1, -1, 3), ("uint8", -1, -1, False, False, 0)),
        ("uint8", (4, 6), ("uint8", 4, 6, True, False, 0)),
        ("float32", (1, 3, 4, 6), ("float32", 4, 6, False, True, 1)),
        ("float16", (1, 4, 6), ("float16", 4, 6, True, False, 1)),
        ("uint8", (1, 6, 3), ("uint8", 1, 6, False, False, 0)),
        ("int32", (4, 6, 3), None),
        ("text", (), None),
        ("uint8", (6,), None),
        ("uint8", (4, 6, 4), None),
        ("float32", (2, 3, 4, 6), None),
    ],
)
def test_which_inputs_hold_an_image(dtype, shape, form):
    assert images.form_of(tensor(dtype, *shape)) == (None if form is None else images.PictureForm(*form))


def test_the_one_input_that_holds_an_image_is_found_and_others_are_named():
    inputs = {"scale": tensor("float32"), "image": tensor("uint8", 4, 6, 3)}
    assert images.the_image_input("a", inputs) == "image"
    with pytest.raises(BadInput, match="it has image, other"):
        images.the_image_input("a", {**inputs, "other": tensor("uint8", 4, 6)})
    with pytest.raises(BadInput, match="none does"):
        images.the_image_input("a", {"scale": tensor("float32")})
    with pytest.raises(BadInput, match="declares no inputs"):
        images.the_image_input("a", {})


def test_pixels_take_the_inputs_dtype_range_and_axes():
    planes = images.in_form(PIXELS, images.PictureForm("float32", 2, 4, False, True, 1))
    assert planes.shape == (1, 3, 2, 4) and planes.dtype == np.float32
    assert np.allclose(planes[0, 1, 1, 2], PIXELS[1, 2, 1] / 255)
    assert (images.in_form(PIXELS, images.PictureForm("uint8", 2, 4, False, False, 0)) == PIXELS).all()


def test_image_files_are_read_and_scaled():
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    data = io.BytesIO()
    pillow.fromarray(PIXELS).save(data, "png")
    png = data.getvalue()
    assert (images.decode_file("x", png, tensor("uint8", -1, -1, 3), 1000) == PIXELS).all()
    assert images.decode_file("x", png, tensor("uint8", 8, 8, 3), 1000).shape == (8, 8, 3)
    assert images.decode_file("x", png, tensor("float32", 1, 2, 4), 1000).shape == (1, 2, 4)
    with pytest.raises(BadInput, match="no image that can be read"):
        images.decode_file("x", png[:40], tensor("uint8", -1, -1, 3), 1000)
    with pytest.raises(TooLarge, match="4 x 2 takes 80 bytes to decode"):
        images.decode_file("x", png, tensor("uint8", -1, -1, 3), 19)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shape", [(-1, -1, 3), (6, 10, 3), (-1, 10), (3, 12, -1)])
def test_a_picture_is_read_as_its_camera_was_held(orientation, shape):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    from PIL import ImageOps

    exif, file = pillow.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    across, down = np.meshgrid(np.arange(20), np.arange(8))
    pillow.fromarray(np.stack([across * 12, down * 30, across + down], 2).astype(np.uint8)).save(file, "PNG", exif=exif)
    with pillow.open(io.BytesIO(file.getvalue())) as image:
        shown = io.BytesIO()
        ImageOps.exif_transpose(image).save(shown, "PNG", exif=b"")
    about = tensor("uint8", *shape)
    found, expected = (images.decode_file("x", each.getvalue(), about, 10**6) for each in (file, shown))
    assert found.shape == expected.shape and abs(found.astype(int) - expected).max() <= 1


def test_broken_exif_is_passed_over_and_deep_colours_are_refused():
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    file, deep = io.BytesIO(), io.BytesIO()
    pillow.fromarray(PIXELS).save(file, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + bytes(40))
    assert images.decode_file("x", file.getvalue(), tensor("uint8", -1, -1, 3), 10**6).shape == PIXELS.shape
    pillow.fromarray(np.full((4, 4), 40_000, np.uint16)).save(deep, "PNG")
    with pytest.raises(BadInput, match="8 bits"):
        images.decode_file("x", deep.getvalue(), tensor("uint8", -1, -1), 10**6)
