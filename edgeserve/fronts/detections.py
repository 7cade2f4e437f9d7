"""Detectors' answers as rows of class, score and box: the forms in which networks for cameras return their boxes.

Pure. Boxes in the result are shares of the image, from 0 to 1, in the order top, left, bottom, right.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import BadInput

FORMS = ("yolo", "yolo-nms", "yolonas", "yolox", "ssd", "rfdetr")
"""``yolo``: a box's centre, width and height in pixels and a score per class (YOLOv8 and later, exported without NMS).
``yolo-nms``: corners in pixels, score, class (exported with NMS). ``yolonas``: the same behind the image's number.
``yolox``: offsets in three grids, an object score and one per class. ``ssd``: boxes, classes, scores and perhaps a
count (TensorFlow's detection API). ``rfdetr``: boxes as shares, and class scores before the softmax, background
first."""

MODEL_TYPES = {"yologeneric": "yolo", "yolonas": "yolonas", "yolox": "yolox", "ssd": "ssd", "rfdetr": "rfdetr"}
"""Frigate's names of model types -> the form."""

OVERLAP_MAX = 0.4
"""The greatest overlap (intersection over union) of two boxes of one class: beyond it, the one with the smaller score
is dropped."""

STRIDES = (8, 16, 32)

IMAGES_MAX = 16
"""So many images away from its image no detector sets a box: a greater number is no corner."""


class Box(NamedTuple):
    """A detection: centre and size in pixels, class and score."""

    x: float
    y: float
    width: float
    height: float
    label: str
    score: float


def named_boxes(outputs: Mapping[str, Any], score_min: float) -> List[Box]:
    """The boxes in an answer that names them: ``boxes`` [n, 4] as x1, y1, x2, y2 in pixels, ``scores`` [n], ``classes``
    [n] (numbers) or ``labels`` (texts). Raises :class:`BadInput` where the answer holds something else."""
    corners = numbers_of("boxes", outputs.get("boxes")).astype(np.float64)
    scores = numbers_of("scores", outputs.get("scores")).astype(np.float64).reshape(-1)
    if corners.ndim != 2 or corners.shape[1:] != (4,) or len(scores) != len(corners):
        raise BadInput(
            f"the answer has {', '.join(outputs) or 'no outputs'}; expected boxes [n, 4] and scores [n]: "
            "let the app's last node return them"
        )
    classes = outputs.get("labels", outputs.get("classes", [""] * len(scores)))
    items = [classes] if isinstance(classes, str) else np.asarray(classes).reshape(-1).tolist()
    labels = [str(int(item)) if isinstance(item, float) and item.is_integer() else str(item) for item in items]
    if len(labels) != len(scores):
        raise BadInput(f"the answer has {len(labels)} labels and {len(scores)} scores; expected one for each box")
    is_box = (scores >= score_min) & _are_plain(corners, scores)
    is_class = [not isinstance(item, float) or math.isfinite(item) for item in items]
    return [
        Box((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, label, score)
        for (x1, y1, x2, y2), score, label, is_one in zip(
            corners.tolist(), scores.tolist(), labels, is_box & np.array(is_class, bool)
        )
        if is_one
    ]


def has_named_boxes(outputs: Mapping[str, Any], form: str) -> bool:
    """True if an answer is read by the names of its outputs: no ``form`` is given, and it has ``boxes``."""
    return not form and "boxes" in outputs


def boxes_of(outputs: Mapping[str, Any], form: str, height: int, width: int, score_min: float, count: int) -> List[Box]:
    """The boxes in an answer, the best ``count``, best first, in pixels of the network's image: as
    :func:`named_boxes`, or as :func:`rows_of`, of form ``yolo`` where none is given. Raises :class:`BadInput`."""
    if has_named_boxes(outputs, form):
        return sorted(named_boxes(outputs, score_min), key=lambda box: -box.score)[:count]
    return [
        Box((x1 + x2) / 2 * width, (y1 + y2) / 2 * height, (x2 - x1) * width, (y2 - y1) * height, str(int(kind)), score)
        for kind, score, y1, x1, y2, x2 in rows_of(outputs, form or "yolo", height, width, score_min, count).tolist()
        if score > 0
    ]


Boxes = Tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Corners (left, top, right, bottom) as shares, scores, classes."""


def numbers_of(name: str, value: Any) -> NDArray[Any]:
    """An output as an array of floats. Raises :class:`BadInput`."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"the model's output {name!r} is {array.dtype.name}; a detector answers numbers")
    return array if array.dtype.kind == "f" else array.astype(np.float64)  # unsigned numbers wrap around


def rows_of(
    outputs: Mapping[str, Any], form: str, height: int, width: int, score_min: float, count: int
) -> NDArray[np.float32]:
    """``[count, 6]`` float32: the best detections, best first, then zeros. Raises :class:`BadInput` where the outputs
    are not of that form. A number that is none, or that no float32 holds, costs its own detection."""
    with np.errstate(all="ignore"):
        return _rows_of(outputs, form, height, width, score_min, count)


def _rows_of(
    outputs: Mapping[str, Any], form: str, height: int, width: int, score_min: float, count: int
) -> NDArray[np.float32]:
    arrays = [numbers_of(name, value) for name, value in outputs.items()]
    arrays = [array[0] if array.ndim > 2 and array.shape[0] == 1 else array for array in arrays]
    if form == "ssd":
        corners, scores, classes = _ssd(dict(zip(outputs, arrays)))
    elif form == "rfdetr":
        corners, scores, classes = _rfdetr(arrays)
    else:
        array = _only(arrays, form)
        if form == "yolo" and array.shape[1] == 6 and _is_with_nms(array, IMAGES_MAX * max(height, width)):
            form = "yolo-nms"
        readers = {"yolo": _yolo, "yolo-nms": _with_nms, "yolonas": _yolonas, "yolox": _yolox}
        corners, scores, classes = readers[form](array, height, width)
        corners = corners / np.array([width, height, width, height], np.float32)
    likely = (scores >= score_min) & _are_plain(corners, scores, classes)
    corners, scores, classes = corners[likely], scores[likely], classes[likely]
    kept = kept_of(corners, scores, classes)[:count]
    rows = np.zeros((count, 6), np.float32)
    rows[: len(kept), 0] = classes[kept]
    rows[: len(kept), 1] = scores[kept]
    rows[: len(kept), 2:] = np.clip(corners[kept][:, [1, 0, 3, 2]], 0.0, 1.0)
    return rows


def kept_of(corners: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Non-maximum suppression within each class: the numbers of the boxes that stay, best first."""
    corners = corners.astype(np.float64)  # areas of what any float32 may be
    order = np.argsort(-scores, kind="stable")
    areas = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 0.0), axis=1)
    kept = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        both = np.minimum(corners[best, 2:], corners[order, 2:]) - np.maximum(corners[best, :2], corners[order, :2])
        shared = np.prod(np.maximum(both, 0.0), axis=1)
        union = areas[best] + areas[order] - shared
        order = order[(classes[order] != classes[best]) | (shared <= OVERLAP_MAX * union)]
    return np.array(kept, np.intp)


def _are_plain(*columns: NDArray[Any]) -> NDArray[Any]:
    """True for each row of numbers that are finite as float32."""
    with np.errstate(over="ignore"):
        table = np.column_stack(columns).astype(np.float32)
    are_plain: NDArray[Any] = np.isfinite(table).all(axis=1)
    return are_plain


def _only(arrays: Sequence[NDArray[Any]], form: str) -> NDArray[Any]:
    if len(arrays) != 1 or arrays[0].ndim != 2:
        shapes = ", ".join([str(array.shape) for array in arrays])
        raise BadInput(f"the model answers arrays of shapes {shapes}; form {form!r} is one of two axes")
    return arrays[0]


def _is_with_nms(array: NDArray[Any], corner_max: float) -> bool:
    """True if six numbers a row are corners, score and class, and not a centre and two classes. Rows with an odd number
    say nothing of the others."""
    array = array[(abs(array) <= corner_max).all(axis=1)]
    return bool(np.all(array[:, 5] == np.floor(array[:, 5])) and np.all(array[:, 2:4] >= array[:, :2]))


def _around(centres: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


def _best(scores: NDArray[Any]) -> Tuple[NDArray[Any], NDArray[Any]]:
    classes = scores.argmax(axis=1)
    return np.take_along_axis(scores, classes[:, None], 1)[:, 0], classes


def _yolo(array: NDArray[Any], height: int, width: int) -> Boxes:
    rows = array.T if 0 < array.shape[0] < array.shape[1] else array
    if rows.shape[1] < 5:
        raise BadInput(
            f"the model answers an array of shape {array.shape}; form 'yolo' has 4 numbers and a class at least"
        )
    return (_around(rows[:, :2], rows[:, 2:4]), *_best(rows[:, 4:]))


def _with_nms(array: NDArray[Any], height: int, width: int) -> Boxes:
    if array.shape[1] != 6:
        raise BadInput(f"the model answers an array of shape {array.shape}; form 'yolo-nms' has 6 columns")
    return array[:, :4], array[:, 4], array[:, 5]


def _yolonas(array: NDArray[Any], height: int, width: int) -> Boxes:
    if array.shape[1] != 7:
        raise BadInput(f"the model answers an array of shape {array.shape}; form 'yolonas' has 7 columns")
    return array[:, 1:5], array[:, 5], array[:, 6]


def _yolox(array: NDArray[Any], height: int, width: int) -> Boxes:
    cells, strides = [], []
    for stride in STRIDES:
        across, down = np.meshgrid(np.arange(width // stride), np.arange(height // stride))
        cells.append(np.stack([across, down], 2).reshape(-1, 2))
        strides.append(np.full((len(cells[-1]), 1), stride))
    grid, stride_of = np.concatenate(cells), np.concatenate(strides)
    if len(grid) != len(array) or array.shape[1] < 6:
        raise BadInput(
            f"the model answers an array of shape {array.shape}; form 'yolox' of {width} x {height} pixels "
            f"has {len(grid)} rows of 6 numbers at least"
        )
    corners = _around((array[:, :2] + grid) * stride_of, np.exp(array[:, 2:4]) * stride_of)
    return (corners, *_best(array[:, 4:5] * array[:, 5:]))


def _rfdetr(arrays: Sequence[NDArray[Any]]) -> Boxes:
    boxes = next((array for array in arrays if array.ndim == 2 and array.shape[1] == 4), None)
    raw = next((array for array in arrays if array.ndim == 2 and array is not boxes), None)
    if boxes is None or raw is None or len(boxes) != len(raw) or raw.shape[1] < 2:
        raise BadInput("the model's outputs are none of form 'rfdetr': boxes [N, 4] and class scores [N, classes]")
    chances = np.exp(raw - raw.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return (_around(boxes[:, :2], boxes[:, 2:]), *_best(chances[:, 1:]))


def _ssd(outputs: Mapping[str, NDArray[Any]]) -> Boxes:
    """The boxes of an SSD's outputs: by name where the names say it, else in the usual order: boxes, classes, scores,
    count."""
    found = {
        kind: next((array for name, array in outputs.items() if kind in name.lower()), None)
        for kind in ("box", "class", "score")
    }
    usual = dict(zip(("box", "class", "score"), outputs.values()))
    boxes, classes, scores = [
        usual.get(kind) if found[kind] is None else found[kind] for kind in ("box", "class", "score")
    ]
    if boxes is not None and classes is not None and scores is not None:
        scores, classes = scores.reshape(-1), classes.reshape(-1)
        if boxes.ndim == 2 and boxes.shape[1] == 4 and len(boxes) == len(scores) == len(classes):
            return boxes[:, [1, 0, 3, 2]], scores, classes
    raise BadInput("the model's outputs are none of form 'ssd': boxes [N, 4], classes [N] and scores [N]")
