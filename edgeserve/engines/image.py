"""``options.image``: frames as cameras give them become what a network takes, in front of the network.

This module has the option's meaning: its keys, how frames become an image (:func:`in_numpy`, which every engine's form
is compared with), and how frames are fitted into the network's size. The same as nodes of a network is
:mod:`edgeserve.engines.image_graph`'s. Grey levels run from 0 to 255, sizes are (height, width).
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, nearest

FORMATS: Dict[str, str] = {
    "rgb": "[height, width, 3]",
    "bgr": "[height, width, 3]",
    "nv12": "[height * 3 / 2, width]: all of Y, then U and V of every second row and column in turn",
    "yuyv": "[height, width, 2]: Y U Y V",
    "uyvy": "[height, width, 2]: U Y V Y",
}
"""The formats of frames, uint8, and their shapes."""

LUMA = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
"""Shares of red and blue in Y (ITU-R BT.601-7 and BT.709-6)."""

BORDER = 114
"""The grey beside a letterboxed frame, unless told: what the YOLO family is trained with."""

Size = Tuple[int, int]


class ImageForm(NamedTuple):
    """``options.image``, checked. Values of the network are (grey level - ``mean``) / ``std`` per colour, in the order
    of ``color``; ``border`` is -1 where frames are stretched. What the network's file says fills ``input``, ``size``
    and ``layout``."""

    input: str = ""
    size: Tuple[int, ...] = ()
    layout: str = ""
    format: str = "rgb"
    frame_size: Tuple[int, ...] = ()
    color: str = "rgb"
    mean: Tuple[float, ...] = (0.0, 0.0, 0.0)
    std: Tuple[float, ...] = (255.0, 255.0, 255.0)
    border: int = -1
    matrix: str = "bt601"
    range: str = "limited"

    @property
    def is_yuv(self) -> bool:
        """True if frames have a brightness and two colour differences."""
        return self.format not in ("rgb", "bgr")

    @property
    def image_bytes(self) -> int:
        """The bytes of one image as the network takes it, in float32, once its size is known."""
        return 12 * self.size[0] * self.size[1]


KEYS = ("input", "size", "layout", "format", "from", "color", "mean", "std", "letterbox", "matrix", "range")


def read_image(options: Options, model: ModelConfig) -> Optional[ImageForm]:
    """The option, ``None`` where there is none. :class:`ConfigError` with the key, the value and what was expected."""
    if "image" not in options:
        return None
    if model.pad:
        raise ConfigError(
            f"[model.{model.name}] pad and options.image: frames are resized, not filled up; leave pad out, and use "
            "batch = [1] where frames of different sizes come"
        )
    where, table = options.where("image"), options.table("image")
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{where} has no key {key!r}{nearest(key, KEYS)}")
    for key, allowed in (
        ("layout", ("", "nchw", "nhwc")),
        ("format", tuple(FORMATS)),
        ("color", ("rgb", "bgr")),
        ("matrix", tuple(LUMA)),
        ("range", ("limited", "full")),
    ):
        value = table.get(key, allowed[0])
        if value not in allowed:
            raise ConfigError(
                f"{where}.{key} = {value!r}: expected {' or '.join(repr(item) for item in allowed if item)}"
            )
    form = ImageForm(
        input=str(table.get("input", "")),
        size=_size(table, "size", where),
        layout=table.get("layout", ""),
        format=table.get("format", "rgb"),
        frame_size=_size(table, "from", where),
        color=table.get("color", "rgb"),
        mean=_levels(table, "mean", where, 0.0, 0.0),
        std=_levels(table, "std", where, 255.0, 1.0),
        border=_border(table.get("letterbox", False), where),
        matrix=table.get("matrix", "bt601"),
        range=table.get("range", "limited"),
    )
    if form.is_yuv and (not form.frame_size or any(length % 2 for length in form.frame_size)):
        raise ConfigError(
            f"{where}: format = {form.format!r} needs from = [height, width] of the camera's frames, both even; "
            f"it is {list(form.frame_size)}"
        )
    return form


def _size(table: Dict[str, Any], key: str, where: str) -> Tuple[int, ...]:
    value = table.get(key, ())
    if key in table and (
        not isinstance(value, (list, tuple))
        or len(value) != 2
        or not all(isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= 1 << 15 for item in value)
    ):
        raise ConfigError(f"{where}.{key} = {value!r}: expected [height, width] in pixels, such as [1080, 1920]")
    return tuple(value)


def _levels(table: Dict[str, Any], key: str, where: str, default: float, low: float) -> Tuple[float, ...]:
    value = table.get(key, default)
    items = value if isinstance(value, (list, tuple)) else [value] * 3
    if len(items) != 3 or not all(
        isinstance(item, (int, float)) and not isinstance(item, bool) and low <= item <= 255 for item in items
    ):
        raise ConfigError(
            f"{where}.{key} = {value!r}: expected one number or three, in grey levels from {low:g} to 255; "
            "a mean of 0.485 and a deviation of 0.229 of values from 0 to 1 are 123.675 and 58.395 grey levels"
        )
    return tuple(float(item) for item in items)


def _border(value: Any, where: str) -> int:
    if isinstance(value, bool):
        return BORDER if value else -1
    if not isinstance(value, int) or not 0 <= value <= 255:
        raise ConfigError(
            f"{where}.letterbox = {value!r}: expected true (grey {BORDER} beside the frame), the grey level, or false"
        )
    return value


def fitted(form: ImageForm, inputs: Sequence[Tuple[str, Any, Sequence[Optional[int]]]], where: str) -> ImageForm:
    """The form with what the network says: ``inputs`` are (name, numpy dtype, lengths with the batch axis, ``None`` for
    any). :class:`EngineError` where it has no input that takes such an image, or more than one."""
    images = [item for item in inputs if len(item[2]) == 4 and (not form.input or item[0] == form.input)]
    found = [(item, layout) for item in images for layout in _layouts(form, item[2])]
    if len(found) != 1:
        shown = "; ".join(f"{name} {np.dtype(kind)}{list(dims)}" for name, kind, dims in inputs)
        raise EngineError(
            f"{where}: options.image needs one input of four axes with three colours, and {len(found)} fit ({shown}); "
            "name it with input = '...', or its order of axes with layout = 'nchw' or 'nhwc'"
        )
    (name, kind, dims), layout = found[0]
    if np.dtype(kind) not in (np.float32, np.float16):
        raise EngineError(
            f"{where}: options.image: input {name!r} is {np.dtype(kind)}; expected float32 or float16. A network that "
            "takes grey levels itself needs no preparation: send it frames of its size, and leave the option out"
        )
    own = dims[2:] if layout == "nchw" else dims[1:3]
    size = form.size or own
    if None in size or any(length not in (None, wanted) for length, wanted in zip(own, size)):
        raise EngineError(
            f"{where}: options.image.size = {list(form.size)}, but input {name!r} has the height and width "
            f"{[length or 'any' for length in own]}; expected what the network takes, in pixels"
        )
    return form._replace(input=name, layout=layout, size=tuple(int(length) for length in size if length))


def _layouts(form: ImageForm, dims: Sequence[Optional[int]]) -> Sequence[str]:
    """The orders in which an input of these axes may be."""
    may = [layout for layout, axis in (("nchw", 1), ("nhwc", 3)) if dims[axis] == 3]
    if not may and dims[1] is None and None in dims[2:]:
        may = ["nchw"]  # all open: the order of nearly all exporters
    return [layout for layout in may if form.layout in ("", layout)]


def inside(form: ImageForm, frame: Size) -> Tuple[int, int, int, int]:
    """The place of a frame of that size in the network's image: its height and width there, rows above it, columns to
    the left of it. A letterboxed frame keeps its aspect and lies in the middle."""
    height, width = form.size
    if form.border < 0:
        return height, width, 0, 0
    share = min(height / frame[0], width / frame[1])
    rows, columns = max(1, round(frame[0] * share)), max(1, round(frame[1] * share))
    return rows, columns, (height - rows) // 2, (width - columns) // 2


def to_rgb(form: ImageForm) -> Tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``matrix``, ``offset``: colours in the network's order are ``matrix @ (Y, U, V) + offset``, before clipping."""
    red, blue = LUMA[form.matrix]
    green = 1.0 - red - blue
    luma, chroma = (255 / 219, 255 / 224) if form.range == "limited" else (1.0, 1.0)
    v_red, u_blue = 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma
    matrix = np.array([[luma, 0.0, v_red], [luma, -u_blue * blue / green, -v_red * red / green], [luma, u_blue, 0.0]])
    if form.color == "bgr":
        matrix = matrix[::-1]
    black = np.array([16.0 if form.range == "limited" else 0.0, 128.0, 128.0])
    return matrix, -matrix @ black


def frame_shape(form: ImageForm) -> Tuple[int, ...]:
    """The shape of one frame: of the size that the configuration tells, else of the network's."""
    height, width = form.frame_size or form.size
    if form.format == "nv12":
        return (height * 3 // 2, width)
    return (height, width, 2 if form.is_yuv else 3)


def prepared_model(path: str, form: ImageForm, where: str, on_cpu: bool = False) -> Tuple[bytes, ImageForm]:
    """The network of an ONNX file with the preparation in front, and the form completed by what the network says.
    ``on_cpu``: for ONNX Runtime's CPU provider. :class:`EngineError` where the network cannot take the preparation, or
    the library that alters graphs is missing."""
    found: Tuple[bytes, ImageForm] = image_library(where).with_image(path, form, where, on_cpu)
    return found


def image_library(where: str) -> Any:
    """The module that alters graphs. :class:`EngineError` where its library is missing."""
    try:
        return importlib.import_module("edgeserve.engines.image_graph")
    except ImportError as error:
        raise EngineError(
            f"{where}: options.image alters the network's graph with the onnx package, which cannot be imported "
            f"({error}); pip install 'edgeserve-runtime[images]'"
        ) from None


# --- the numpy form ---


def in_numpy(frame: NDArray[np.uint8], form: ImageForm) -> NDArray[np.float32]:
    """One frame as the network takes it, without the batch axis: what ``options.image`` means."""
    planes = _planes(frame, form)
    rows, columns, top, left = inside(form, (planes[0].shape[0], planes[0].shape[1]))
    image = np.concatenate([resized(plane, rows, columns) for plane in planes], axis=2)
    if form.is_yuv:
        matrix, offset = to_rgb(form)
        image = np.clip(image @ matrix.T + offset, 0, 255)
    elif form.format != form.color:
        image = image[:, :, ::-1]
    whole = np.full((*form.size, 3), max(0, form.border), np.float64)
    whole[top : top + rows, left : left + columns] = image
    whole = (whole - form.mean) / form.std
    return np.ascontiguousarray(whole if form.layout == "nhwc" else whole.transpose(2, 0, 1), np.float32)


def _planes(frame: NDArray[np.uint8], form: ImageForm) -> Sequence[NDArray[Any]]:
    """The colours, or Y and the smaller U and V, of a frame: height, width and channels each."""
    if not form.is_yuv:
        return (frame,)
    height, width = form.frame_size
    if form.format == "nv12":
        return frame[:height, :, None], frame[height:].reshape(height // 2, width // 2, 2)
    first = 0 if form.format == "yuyv" else 1
    return frame[:, :, first, None], frame[:, :, 1 - first].reshape(height, width // 2, 2)


def resized(image: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    """Bilinear, pixels' centres on pixels' centres, no smoothing: OpenCV's ``INTER_LINEAR``, without its rounding."""
    (above, below, down), (before, behind, right) = (
        _between(image.shape[0], height),
        _between(image.shape[1], width),
    )
    rows = image[above] * (1 - down)[:, None, None] + image[below] * down[:, None, None]
    found: NDArray[np.float64] = rows[:, before] * (1 - right)[:, None] + rows[:, behind] * right[:, None]
    return found


def _between(length: int, wanted: int) -> Tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Between which two of ``length`` places each of the ``wanted`` ones lies, and how far behind the first."""
    place = np.clip((np.arange(wanted) + 0.5) * length / wanted - 0.5, 0, length - 1)
    first = np.floor(place).astype(np.intp)
    return first, np.minimum(first + 1, length - 1), place - first
