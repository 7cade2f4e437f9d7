"""The host functions of the reader app: what happens between its three networks, on a CPU lane.

Each function takes one item's named values and returns named values (``find_lines`` returns one part per line of
text). They know no request, no deadline and no bus; ``edge.toml`` says in which order they run. The networks are
PP-OCRv4: their input sizes, normalisation and thresholds below are the published ones, except where a comment says so.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Sequence, Tuple

import cv2
import numpy as np

from edgeserve.engine import Parts, Result, resolve_path

Values = Dict[str, Any]

SIDE_MULTIPLE = 32  # the detector halves the image five times
SIDE_MIN = 320  # smaller pages are enlarged: the detector was trained on lines at least 8 pixels high
SIDE_MAX = 960  # larger pages are reduced, the detector's cost grows with the area
LINE_HEIGHT = 48  # rows of the classifier's and the recogniser's input
TURN_WIDTH = 192  # columns of the classifier's input
WIDTH_MULTIPLE = 32  # line widths are rounded up to this, so that the recogniser sees few distinct shapes
WIDTH_MAX = 1280  # a longer line is squeezed; bounds the time of one crop
PIXEL_ON = 0.3  # a pixel belongs to a line above this probability (DB paper, section 4.2)
LINE_ON = 0.5  # a region is a line above this mean probability
GROW = 1.6  # the detector marks shrunken lines: grow each by area * this / circumference
SIDE_SHORT_MIN = 3  # pixels of the map: smaller regions are specks
LINES_MAX = 100  # bounds the work that one page can ask for; the largest regions are kept
DETECTOR_AREA = 640 * 320  # the pixels, and
RECOGNISER_WIDTH = 672  # the columns of the shapes in edge.toml, which count as work 1.0
TURNED_ON = 0.5  # turn a line by 180 degrees when that is the likelier; see end_of()
SURE_MIN = 0.5  # a line read with less mean probability than this is left out of the text

RIGHT = np.array([1.0, 0.0], np.float32)  # the heading of lines on an upright page

RECOGNISER = "cache:rapidocr-onnxruntime-1.4.4/recognise.onnx"

cv2.setNumThreads(1)  # the lane is the unit of parallelism, not the library


def decode(inputs: Values) -> Result:
    """``image`` (the bytes of an image file, or height x width x 3 pixels) to ``page`` (pixels) and ``x``, the
    detector's input: sides rounded to multiples of 32, values in -1..1, channels first. Says how much work the detector
    will have: its time grows with the area."""
    image = np.asarray(inputs["image"], np.uint8)
    page = cv2.imdecode(image, cv2.IMREAD_COLOR) if image.ndim == 1 else image
    if page is None or page.ndim != 3 or page.shape[2] != 3 or 0 in page.shape:
        raise ValueError(
            f"input 'image' with shape {image.shape} is neither an image file's bytes nor "
            "height x width x 3 pixels; send the bytes of a PNG or JPEG file as uint8"
        )
    width, height = detector_size(page.shape[1], page.shape[0])
    return Result(
        {"page": page, "x": normalised(cv2.resize(page, (width, height)))},
        hints={"detect.work": width * height / DETECTOR_AREA},
    )


def find_lines(inputs: Values) -> Parts:
    """The detector's probability ``map`` and the ``page`` to one part per line of text: ``box`` (its four corners on
    the page), ``line`` (its pixels, upright or upside down), ``heading`` (where its columns run on the page) and ``x``,
    the orientation classifier's input. Says how much work a line will be for the recogniser, in the mean: its time
    grows with the width."""
    page, probability = inputs["page"], np.asarray(inputs["map"])[0]
    boxes = find_boxes(probability, page.shape[1] / probability.shape[1], page.shape[0] / probability.shape[0])
    parts = []
    for box in boxes:
        line, heading = cut_out(page, box)
        parts.append({"box": box, "line": line, "heading": heading, "x": fitted(end_of(line), TURN_WIDTH)})
    widths = [recogniser_width(part["line"]) for part in parts]
    return Parts(parts, hints={"recognise.work": sum(widths) / len(widths) / RECOGNISER_WIDTH} if widths else None)


def turn(inputs: Values) -> Values:
    """A ``line``, its ``heading`` and the classifier's ``turned`` (probabilities of 0 and 180 degrees) to ``x``, the
    recogniser's input (48 rows, the width that its shape asks for), and the ``heading`` in which it is read."""
    line, heading = inputs["line"], inputs["heading"]
    if inputs["turned"][1] > TURNED_ON:
        line, heading = np.ascontiguousarray(line[::-1, ::-1]), -heading
    return {"x": fitted(line, recogniser_width(line)), "heading": heading}


def join(inputs: Values) -> Values:
    """The recogniser's ``probabilities`` (steps x classes), the ``box`` and the ``heading`` of every line to one answer
    in reading order, whichever way up the page lies: ``text`` (a line each), ``boxes`` (lines x 4 x 2), ``sure``
    (lines); what can hardly be read is left out."""
    read = []
    for probabilities, box, heading in zip(inputs["probabilities"], inputs["box"], inputs["heading"]):
        text, sure = greedy_ctc(np.asarray(probabilities), dictionary())
        if text and sure >= SURE_MIN:
            read.append((text, box, sure, heading))
    heading = page_heading([heading for *_, heading in read], [len(text) for text, *_ in read])
    read = [read[index] for index in in_reading_order([box for _, box, *_ in read], heading)]
    return {
        "text": "\n".join(text for text, *_ in read),
        "boxes": np.array([box for _, box, *_ in read], np.float32).reshape(-1, 4, 2),
        "sure": np.array([sure for _, _, sure, _ in read], np.float32),
    }


# --- one item for each, to warm up and to measure with (the networks' numbers are made up) ---------------------------


def example_decode() -> Values:
    """A drawn page of six lines, as the bytes of a PNG file."""
    page = np.full((360, 640, 3), 255, np.uint8)
    for row in range(6):
        cv2.putText(page, "every answer in time", (20, 50 + 55 * row), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 2)
    return {"image": cv2.imencode(".png", page)[1].reshape(-1)}


def example_find_lines() -> Values:
    """That page, and a map that is sure of a line wherever the page has one."""
    decoded = decode(example_decode()).outputs
    height, width = decoded["x"].shape[1:]
    probability = np.zeros((1, height, width), np.float32)
    for row in range(6):
        middle = (35 + 55 * row) * height // 360
        probability[0, middle - 8 : middle + 8, width // 20 : width * 3 // 4] = 1.0
    return {"page": decoded["page"], "map": probability}


def example_turn() -> Values:
    """The first line of that page, upside down."""
    part = find_lines(example_find_lines()).items[0]
    return {"line": part["line"], "heading": part["heading"], "turned": np.array([0.0, 1.0], np.float32)}


def example_join() -> Values:
    """Six lines of forty characters."""
    steps = np.full((80, len(dictionary())), 0.0001, np.float32)
    steps[np.arange(80), np.where(np.arange(80) % 2, 0, 1 + np.arange(80) % 50)] = 0.9
    box = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32)
    return {"probabilities": [steps] * 6, "box": [box] * 6, "heading": [RIGHT] * 6}


# --- what they are made of --------------------------------------------------------------------------------------------


def normalised(pixels: np.ndarray) -> np.ndarray:
    """Bytes, channels last, to float32 in -1..1, channels first."""
    return np.ascontiguousarray((pixels.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1))


def detector_size(width: int, height: int) -> Tuple[int, int]:
    """Width and height that the detector sees: the page's, brought between the bounds, in multiples of 32."""
    scale = min(max(1.0, SIDE_MIN / min(width, height)), SIDE_MAX / max(width, height))
    return (
        max(SIDE_MULTIPLE, round(width * scale / SIDE_MULTIPLE) * SIDE_MULTIPLE),
        max(SIDE_MULTIPLE, round(height * scale / SIDE_MULTIPLE) * SIDE_MULTIPLE),
    )


def recogniser_width(line: np.ndarray) -> int:
    """Columns of the recogniser's input for a line: what its shape asks for, in steps."""
    return min(WIDTH_MAX, _up(max(1, round(line.shape[1] * LINE_HEIGHT / line.shape[0])), WIDTH_MULTIPLE))


def find_boxes(probability: np.ndarray, scale_x: float, scale_y: float) -> List[np.ndarray]:
    """The lines on a probability map as rectangles of any angle: float32 (4, 2) each, in the page's pixels, corners
    clockwise from the top left."""
    on = (probability > PIXEL_ON).astype(np.uint8)
    contours, _ = cv2.findContours(cv2.dilate(on, np.ones((2, 2), np.uint8)), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in sorted(contours, key=cv2.contourArea, reverse=True)[:LINES_MAX]:
        (center_x, center_y), (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < SIDE_SHORT_MIN or mean_inside(probability, contour) < LINE_ON:
            continue
        grow = width * height * GROW / (2 * (width + height))
        grown = ((center_x, center_y), (width + 2 * grow, height + 2 * grow), angle)
        boxes.append(clockwise(cv2.boxPoints(grown) * np.array([scale_x, scale_y], np.float32)))
    return boxes


def mean_inside(probability: np.ndarray, contour: np.ndarray) -> float:
    """Mean probability inside a contour, looking at its bounding rectangle only."""
    left, top, width, height = cv2.boundingRect(contour)
    inside = np.zeros((height, width), np.uint8)
    cv2.drawContours(inside, [contour], -1, 1, cv2.FILLED, offset=(-left, -top))
    return float(probability[top : top + height, left : left + width][inside.astype(bool)].mean())


def clockwise(corners: np.ndarray) -> np.ndarray:
    """The same four corners, clockwise from the top left one."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = (side[np.argsort(side[:, 1], kind="stable")] for side in (by_x[:2], by_x[2:]))
    return np.array([left[0], right[0], right[1], left[1]], np.float32)


def page_heading(headings: Sequence[np.ndarray], weights: Sequence[int]) -> np.ndarray:
    """The heading of the line with which the others agree most, each with its weight; to the right without lines."""
    if not len(headings):
        return RIGHT
    agreed = np.stack(headings) @ np.stack(headings).T @ np.asarray(weights, np.float32)
    return headings[int(agreed.argmax())]


def in_reading_order(boxes: Sequence[np.ndarray], heading: np.ndarray) -> List[int]:
    """Indexes from top to bottom of a page whose lines run along ``heading``; boxes whose middles differ by less than
    half a line's height stand on one line, and are read along it."""
    across = np.array([[heading[0], -heading[1]], [heading[1], heading[0]]], np.float32)
    upright = [clockwise(box @ across) for box in boxes]
    middles = [box.mean(axis=0) for box in upright]
    rows: List[List[int]] = []
    for index in sorted(range(len(boxes)), key=lambda index: (float(middles[index][1]), float(middles[index][0]))):
        if rows:
            last = rows[-1][-1]
            height = float(np.linalg.norm(upright[last][3] - upright[last][0]))
            if middles[index][1] - middles[last][1] < height / 2:
                rows[-1].append(index)
                continue
        rows.append([index])
    return [index for row in rows for index in sorted(row, key=lambda index: float(middles[index][0]))]


def cut_out(page: np.ndarray, box: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """The box's pixels, straightened, and where its columns run on the page (x and y of a unit vector); a line that
    runs downwards is laid on its side."""
    width = max(1, round(float(max(np.linalg.norm(box[1] - box[0]), np.linalg.norm(box[2] - box[3])))))
    height = max(1, round(float(max(np.linalg.norm(box[3] - box[0]), np.linalg.norm(box[2] - box[1])))))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    line = cv2.warpPerspective(
        page,
        cv2.getPerspectiveTransform(box, target),
        (width, height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    downwards = height >= 1.5 * width
    side = box[3] - box[0] if downwards else box[1] - box[0]
    return np.ascontiguousarray(np.rot90(line)) if downwards else line, side / max(1.0, float(np.linalg.norm(side)))


def end_of(line: np.ndarray) -> np.ndarray:
    """The last piece of a long line, as much as the classifier sees without squeezing it. On 13 lines, both ways up,
    it judged 26 of 26 right from this piece, 24 from the middle piece and 22 from the whole line, squeezed."""
    return line[:, max(0, line.shape[1] - line.shape[0] * TURN_WIDTH // LINE_HEIGHT) :]


def fitted(line: np.ndarray, width: int) -> np.ndarray:
    """A line, 48 rows high and at most ``width`` columns wide, with black (zero) to its right."""
    columns = min(width, max(1, round(line.shape[1] * LINE_HEIGHT / line.shape[0])))
    x = np.zeros((3, LINE_HEIGHT, width), np.float32)
    x[:, :, :columns] = normalised(cv2.resize(line, (columns, LINE_HEIGHT)))
    return x


def greedy_ctc(probabilities: np.ndarray, characters: Sequence[str]) -> Tuple[str, float]:
    """The most probable class at each step, repeats and blanks (class 0) removed, and the mean probability of what
    stays; ``("", 0.0)`` when nothing does."""
    classes = probabilities.argmax(axis=1)
    kept = (classes != 0) & (np.diff(classes, prepend=0) != 0)
    if not kept.any():
        return "", 0.0
    text = "".join(characters[index] for index in classes[kept])
    return text, float(probabilities.max(axis=1)[kept].mean())


@functools.lru_cache(maxsize=1)
def dictionary() -> Tuple[str, ...]:
    """The recogniser's classes: blank, the characters of its own metadata, space."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # only the metadata is read
    session = onnxruntime.InferenceSession(resolve_path(RECOGNISER, ""), options, providers=["CPUExecutionProvider"])
    return ("", *session.get_modelmeta().custom_metadata_map["character"].splitlines(), " ")


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
