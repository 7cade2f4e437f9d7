"""An image file or a ``.npy`` file as an app's input.

The input's dtype and shape decide: ``[height, width, 3]``, ``[3, height, width]`` or ``[height, width]`` (grey), with
``uint8`` from 0 to 255, floats from 0 to 1. A fixed height and width are met by scaling (bilinear); the
aspect is not kept. -1 takes the image's own. An app that needs another normalisation has a node of its own for that.
"""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.arrays import NPY, array_of_npy
from edgeserve.errors import BadInput, TooLarge
from edgeserve.front.own_errors import NotServed

COLOURS = 3
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
"""The formats that Pillow may open: it knows 40 more, some of which start other programs or were written for files of
one's own."""

DECODED_BYTES = 7
"""Per pixel, at most: four as it is decoded, three when it is converted."""

DECODED_PARTS = 4
"""The most bytes that decoding one image may take, in multiples of the bound of a body."""

PIXELS_MAX = 64 * 1024**2
"""The most pixels of a camera's picture: twice an 8K frame, 256 MiB while it is decoded."""

ORIENTATION = 0x0112
TURNS = {
    1: (False, 1, 1),
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}
"""EXIF's orientation of a picture -> how it is shown: rows and columns exchanged, then the steps through its rows and
columns."""

DTYPES = ("uint8", "float16", "float32", "float64")

ERROR_CHARS = 200
"""The most characters of a library's own words about a file, which may repeat the file."""


class PictureForm(NamedTuple):
    """The form in which an input holds an image. A size of -1 is the image's."""

    dtype: str
    height: int
    width: int
    grey: bool
    planes: bool  # colours first
    leading: int  # axes of size 1 in front


def form_of(tensor: Mapping[str, Any]) -> Optional[PictureForm]:
    """The form of an input that holds an image; None for one that does not. ``tensor`` has ``dtype`` and ``shape``."""
    shape: Sequence[int] = tensor["shape"]
    if tensor["dtype"] not in DTYPES:
        return None
    leading = 0
    while len(shape) > 2 and shape[0] == 1 and len(shape) - 1 >= 2 and not (len(shape) == 3 and shape[2] == COLOURS):
        shape, leading = shape[1:], leading + 1
    if len(shape) == 2:
        return PictureForm(tensor["dtype"], shape[0], shape[1], True, False, leading)
    if len(shape) == 3 and shape[2] == COLOURS:
        return PictureForm(tensor["dtype"], shape[0], shape[1], False, False, leading)
    if len(shape) == 3 and shape[0] == COLOURS:
        return PictureForm(tensor["dtype"], shape[1], shape[2], False, True, leading)
    return None


def the_image_input(app: str, inputs: Mapping[str, Mapping[str, Any]]) -> str:
    """The one input of an app that holds an image. Raises :class:`BadInput` where there is none, or more."""
    fitting = [name for name, tensor in inputs.items() if form_of(tensor) is not None]
    if len(fitting) != 1:
        found = f"it has {', '.join(fitting)}" if fitting else "none does" if inputs else "it declares no inputs"
        raise BadInput(
            f"app {app!r}: a body that is an image needs exactly one input that holds one (uint8 or float, "
            f"[height, width, 3], [3, height, width] or [height, width]); {found}. Name the input with a "
            "multipart form instead: curl -F NAME=@FILE"
        )
    return fitting[0]


def decode_file(name: str, data: bytes, tensor: Mapping[str, Any], bytes_max: int) -> NDArray[Any]:
    """A file's array: a ``.npy`` file as it is (never a pickle), an image in the input's form."""
    if data[: len(NPY)] == NPY:
        try:
            return array_of_npy(data)
        except ValueError as error:
            raise BadInput(
                f"input {name!r}: the file is no .npy file without objects: {str(error)[:ERROR_CHARS]}"
            ) from None
    form = form_of(tensor)
    if form is None:
        raise BadInput(
            f"input {name!r} is {tensor['dtype']} {list(tensor['shape'])}, which holds no image; send a "
            f".npy file or JSON"
        )
    return in_form(_pixels(name, data, form, bytes_max), form)


def _pixels(name: str, data: bytes, form: PictureForm, bytes_max: int) -> NDArray[Any]:
    """uint8 [height, width, 3] or [height, width]."""
    with opened(data, FORMATS, _failed(name)) as image:
        _check_decoded(name, image.size, form, bytes_max)
        plain = converted(image, "L" if form.grey else "RGB", _failed(name))
        order = -1 if _turn_of(image)[0] else 1
        size = _size(form, *image.size[::order])[::order]
        pixels = np.asarray(plain if size == image.size else plain.resize(size, _pillow().Resampling.BILINEAR))
        return upright(pixels, image)


def converted(image: Any, mode: str, failed: str) -> Any:
    """An opened image in a mode of Pillow's with 8 bits a colour. Raises :class:`BadInput` for one of more, which
    Pillow would clip."""
    if image.mode[:1] in "IF":
        raise BadInput(f"{failed}: it has more than 8 bits a colour")
    return image.convert(mode)


def upright(pixels: NDArray[Any], image: Any) -> NDArray[Any]:
    """The pixels of an opened image, turned as its EXIF says that its camera was held."""
    is_turned, rows, columns = _turn_of(image)
    return (pixels.swapaxes(0, 1) if is_turned else pixels)[::rows, ::columns]


def _turn_of(image: Any) -> Tuple[bool, int, int]:
    """Of :data:`TURNS`: none where there is no EXIF, or none that can be read."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1), TURNS[1])
    except Exception:  # noqa: BLE001 Pillow's readers of broken EXIF raise errors of many kinds
        return TURNS[1]


def bytes_to_decode(name: str, data: bytes, tensor: Mapping[str, Any], bytes_max: int) -> int:
    """The bytes that decoding a file will take besides the file, as far as its head says; 0 for one that is copied as
    it is. Raises as :func:`decode_file` does where that is too much."""
    form = form_of(tensor)
    if form is None or data[: len(NPY)] == NPY:
        return 0
    with opened(data, FORMATS, _failed(name)) as image:
        return _check_decoded(name, image.size, form, bytes_max)


def _check_decoded(name: str, size: Tuple[int, int], form: PictureForm, bytes_max: int) -> int:
    width, height = size
    rows, columns = _size(form, width, height)
    decoded = width * height * DECODED_BYTES + rows * columns * COLOURS * np.dtype(form.dtype).itemsize
    if decoded > DECODED_PARTS * bytes_max:
        raise TooLarge(
            f"input {name!r}: an image of {width} x {height} takes {decoded} bytes to decode, at most "
            f"{DECODED_PARTS * bytes_max} are allowed; send a smaller one"
        )
    return decoded


def check_pixels(width: int, height: int) -> None:
    """Raise :class:`BadInput` for a picture of a camera that is larger than cameras make."""
    if not 0 < width * height <= PIXELS_MAX:
        raise BadInput(f"a picture of {width} x {height} pixels, at most {PIXELS_MAX} are read")


@contextmanager
def opened(data: bytes, formats: Sequence[str], failed: str) -> Iterator[Any]:
    """An image file of which the head alone was read: look at its ``size`` before its pixels are. Raises
    :class:`BadInput`, which begins with ``failed``."""
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # the size is looked at
            image = pillow.open(io.BytesIO(data), formats=formats)
        with image:
            yield image
    except (OSError, ValueError, SyntaxError, OverflowError, pillow.DecompressionBombError) as error:
        raise BadInput(f"{failed}: {str(error)[:ERROR_CHARS]}") from None


def _failed(name: str) -> str:
    return f"input {name!r}: the file is no image that can be read"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise NotServed(
            "reading images needs pillow where the front runs (pip install 'edgeserve-runtime[http]'); or send a .npy "
            "file"
        ) from None
    return Image


def _size(form: PictureForm, width: int, height: int) -> Tuple[int, int]:
    return form.width if form.width > 0 else width, form.height if form.height > 0 else height


def in_form(pixels: NDArray[Any], form: PictureForm) -> NDArray[Any]:
    """Pixels with the dtype, the range and the axes of an input."""
    values = pixels if form.dtype == "uint8" else pixels.astype(form.dtype) / np.asarray(255, form.dtype)
    if form.planes:
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values.reshape((1,) * form.leading + values.shape))
