"""What the four apps are asked: digits for the network with early exits, lines of text for the recogniser.

Each app's function returns as many requests as wanted, drawn by seed: ``forms`` and ``meters`` send digits to one
model, ``plates`` and ``lines`` text to the other. ``edge.toml`` names them as the apps' ``examples``, so the server and
the profiler import this module: it needs numpy, and OpenCV only for text.
"""

from __future__ import annotations

import functools
import random
from typing import Callable, Dict, List, Mapping, Tuple

import numpy as np

from edgeserve.config.files import resolve_path

Values = Dict[str, np.ndarray]

DIGITS = "cache:scikit-learn-1.9.1/digits.csv.gz"
SIDE = 8  # rows and columns of a digit
PIXELS = SIDE * SIDE
LEARNT, TUNED = 1000, 1300  # of 1797 digits: learnt from, then those that chose thresholds; the rest is asked

EXAMPLES = 300
"""Requests per app that times alone are measured on: the 0.99-quantile has three above it."""

LINE_HEIGHT = 48  # rows of the recogniser's input
WIDTH_MULTIPLE = 32  # widths are rounded up to this, so that the recogniser sees few distinct shapes
WIDTH_MAX = 320  # a longer line is squeezed; bounds the time of one crop
NARROW = 0.6  # of the drawn width: the letters are drawn wide, and the recogniser reads narrow ones as well

TEXT = (
    "the answer comes in time or not at all and a short question does not wait behind a long one since nobody "
    "knows before the work is done how much of it there is we look at what was asked and make a guess"
)
WORDS = TEXT.split()


# --- digits -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def digits() -> Tuple[np.ndarray, np.ndarray]:
    """All digits in an order drawn once: float32 (1797, 64) in 0..1, and what they are."""
    table = np.loadtxt(resolve_path(DIGITS, ""), delimiter=",", dtype=np.float32)
    order = list(range(len(table)))
    random.Random("1/digits").shuffle(order)
    return np.ascontiguousarray(table[order, :PIXELS] / 16), table[order, PIXELS].astype(np.int64)


def view(angle: float = 0.0, scale: float = 1.0, right: float = 0.0, down: float = 0.0) -> np.ndarray:
    """The 64 x 64 matrix that turns, scales and shifts a digit: ``image @ view`` (bilinear, black around)."""
    matrix = np.zeros((PIXELS, PIXELS), np.float32)
    middle, cosine, sine = (SIDE - 1) / 2, np.cos(angle), np.sin(angle)
    to = np.arange(PIXELS)
    y, x = to // SIDE - middle, to % SIDE - middle
    from_y = (cosine * y - sine * x) / scale + middle - down
    from_x = (sine * y + cosine * x) / scale + middle - right
    top, left = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    for near_y, share_y in ((top, top + 1 - from_y), (top + 1, from_y - top)):
        for near_x, share_x in ((left, left + 1 - from_x), (left + 1, from_x - left)):
            inside = (near_y >= 0) & (near_y < SIDE) & (near_x >= 0) & (near_x < SIDE)
            matrix[near_y[inside] * SIDE + near_x[inside], to[inside]] += (share_y * share_x)[inside]
    return matrix


def photographed(images: np.ndarray, seed: int) -> np.ndarray:
    """The digits as a camera at an angle sees them: turned, scaled, shifted, with a little noise."""
    draw = np.random.RandomState(seed)
    seen = []
    for image in images:
        angle, size = draw.uniform(-0.35, 0.35), draw.uniform(-0.12, 0.12)
        right, down = draw.uniform(-0.8, 0.8, 2)
        seen.append(image @ view(angle, float(np.exp(size)), right, down) + draw.normal(0, 0.05, PIXELS))
    return np.clip(np.array(seen), 0, 1).astype(np.float32)


def forms(count: int = EXAMPLES, seed: int = 1) -> List[Values]:
    """Digits as scanned from a form: upright and in the middle. Most are recognised at the first look."""
    return [{"image": image} for image in _asked(count, seed)]


def meters(count: int = EXAMPLES, seed: int = 1) -> List[Values]:
    """Digits as photographed from a meter. Many need a second or a third look."""
    return [{"image": image} for image in photographed(_asked(count, seed), seed)]


def _asked(count: int, seed: int) -> np.ndarray:
    """Digits that nothing was learnt from, each as often as every other but for one."""
    images = digits()[0][TUNED:]
    order: List[int] = []
    draw = random.Random(f"{seed}/asked")
    while len(order) < count:
        more = list(range(len(images)))
        draw.shuffle(more)
        order += more
    return images[order[:count]]


# --- text -------------------------------------------------------------------------------------------------------------


def plates(count: int = EXAMPLES, seed: int = 1) -> List[Values]:
    """Number plates: four to eight characters."""
    draw = random.Random(f"{seed}/plates")
    return [{"x": crop(plate(draw))} for _ in range(count)]


def lines(count: int = EXAMPLES, seed: int = 1) -> List[Values]:
    """Lines of a letter: three to seven words."""
    draw = random.Random(f"{seed}/lines")
    return [{"x": crop(" ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 7))))} for _ in range(count)]


def plate(draw: random.Random) -> str:
    """Letters and digits, such as ``KA 417``."""
    letters = "".join(draw.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(draw.randint(1, 3)))
    return f"{letters} {draw.randint(10, 9999)}"


def crop(text: str) -> np.ndarray:
    """The recogniser's input for one drawn line: float32 (3, 48, width) in -1..1, as wide as the text asks for."""
    import cv2

    font, scale, thick = cv2.FONT_HERSHEY_SIMPLEX, 1.0, 2
    (width, height), below = cv2.getTextSize(text, font, scale, thick)
    pixels = np.full((height + below + 16, width + 20, 3), 255, np.uint8)
    cv2.putText(pixels, text, (10, height + 8), font, scale, (0, 0, 0), thick, cv2.LINE_AA)
    columns = min(WIDTH_MAX, max(1, round(pixels.shape[1] * NARROW * LINE_HEIGHT / pixels.shape[0])))
    x = np.zeros((3, LINE_HEIGHT, -(-columns // WIDTH_MULTIPLE) * WIDTH_MULTIPLE), np.float32)
    line = cv2.resize(pixels, (columns, LINE_HEIGHT))
    x[:, :, :columns] = (line.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1)
    return x


APPS: Mapping[str, Callable[..., List[Values]]] = {"forms": forms, "meters": meters, "plates": plates, "lines": lines}
"""What every app is asked, by its name in ``edge.toml``."""


def example_digit() -> Values:
    """A digit that needs a second look and no third (a test holds it), to warm up and to measure the batch sizes with:
    the line through their times then fits both the light batches and the heavy ones roughly."""
    return {"image": photographed(digits()[0][LEARNT : LEARNT + 18], 1)[17]}
