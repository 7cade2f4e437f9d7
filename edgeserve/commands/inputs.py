"""Inputs for requests from the shell, as an app declares them: made up where none were given, and images brought to the
form that a network takes. ``declared`` is what the server's ``apps`` says of an app's inputs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.text_files import regular_file
from edgeserve.engines.example_item import LENGTH_NAMES
from edgeserve.errors import BadInput
from edgeserve.front.images import converted, upright

EXAMPLE_TEXT = "an example"
OPEN_LENGTH = 128
"""The length of an axis that may have any, where the server knows no usual one."""


def example_inputs(
    app: str, declared: Mapping[str, Any], given: Mapping[str, Any], seed: int, guess: bool = False
) -> Dict[str, Any]:
    """``given``, and drawn values for what else the app declares with a known shape. ``guess``: for open axes, texts
    and bytes too."""
    draw = np.random.RandomState(seed % 2**32)
    inputs = dict(given)
    for name, tensor in declared.items():
        if name in inputs or tensor["optional"]:
            continue
        dtype, shape = tensor["dtype"], tensor.get("usual") or tensor["shape"]
        if guess and dtype in ("text", "bytes"):
            inputs[name] = EXAMPLE_TEXT if dtype == "text" else EXAMPLE_TEXT.encode()
            if dtype == "text" and tensor["shape"]:
                inputs[name] = np.full([max(1, size) for size in shape], EXAMPLE_TEXT, object)
            continue
        if dtype in ("text", "bytes", "any") or (-1 in shape and not guess):
            raise BadInput(
                f"app {app!r}: input {name!r} ({dtype} {tensor['shape']}) cannot be made up; give "
                f"--in {name}=FILE or --text {name}=TEXT"
            )
        if np.dtype(dtype).kind in "iu" and LENGTH_NAMES.search(name) and list(shape) in ([], [1]):
            inputs[name] = np.full(shape, _longest_open(declared), dtype)
            continue
        inputs[name] = np.asarray(draw.random_sample([OPEN_LENGTH if size < 0 else size for size in shape])).astype(
            dtype
        )
    if not inputs:
        raise BadInput(f"app {app!r} declares no inputs; give --in NAME=FILE, or declare [app.{app}.inputs]")
    return inputs


def _longest_open(declared: Mapping[str, Any]) -> int:
    """The length that the longest open axis of an example has."""
    return max(
        (
            OPEN_LENGTH if length < 0 else length
            for tensor in declared.values()
            for size, length in zip(tensor["shape"], tensor.get("usual") or tensor["shape"])
            if size < 0 and tensor["dtype"] != "text"
        ),
        default=0,
    )


def images_as_declared(declared: Mapping[str, Any], inputs: Dict[str, Any], images: Sequence[str]) -> List[str]:
    """Bring the inputs named by ``images`` (height x width x 3, uint8) to the size, order of axes and type that the app
    declares, where that is an image of floats or of another size; in place. What was done, a line each."""
    done = []
    for name in images:
        tensor = declared.get(name)
        layout = _layout(tensor) if tensor is not None else None
        if tensor is None or layout is None:
            continue
        value = inputs[name]
        first, height, width = layout
        changes = []
        if (height, width) != value.shape[:2]:
            value = _resized(value, height, width)
            changes.append(f"resized to {width}x{height}")
        if np.dtype(tensor["dtype"]).kind == "f":
            value = (value.astype(np.float32) / 255).astype(tensor["dtype"])
            changes.append("scaled to 0..1")
        if first:
            value = np.ascontiguousarray(value.transpose(2, 0, 1))
            changes.append("channels first")
        inputs[name] = value
        if changes:
            done.append(f"{name}: {', '.join(changes)}; give a .npy file where the model wants another form")
    return done


def _layout(tensor: Mapping[str, Any]) -> Optional[Tuple[bool, int, int]]:
    """(channels first, height, width) of a declared image of three channels; ``None`` where it is none."""
    if tensor["dtype"] == "uint8" and list(tensor["shape"]) == [-1, -1, 3]:
        return None  # an image of any size, as it is
    shape = list(tensor.get("usual") or tensor["shape"])
    if len(shape) != 3 or tensor["dtype"] in ("text", "bytes", "any"):
        return None
    first = shape[0] == 3
    if not first and shape[2] != 3:
        return None
    height, width = (shape[1], shape[2]) if first else (shape[0], shape[1])
    return (first, height, width) if height > 0 and width > 0 else None


def _resized(value: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    from PIL import Image  # it has just read the image

    return np.asarray(Image.fromarray(value).resize((width, height), Image.Resampling.BILINEAR))


def read_image(path: str) -> NDArray[Any]:
    """An image as height x width x 3 of uint8, as its camera was held. :class:`BadInput` where pillow is missing, or
    cannot read it."""
    try:
        from PIL import Image
    except ImportError:
        raise BadInput(
            f"--in {path}: reading images needs pillow: pip install 'edgeserve-runtime[images]'; or give a .npy file"
        ) from None
    with open(path, "rb", opener=regular_file) as file, Image.open(file) as image:
        return upright(np.asarray(converted(image, "RGB", f"--in {path}")), image)
