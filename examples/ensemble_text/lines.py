"""Lines of text with graded damage: words in one of OpenCV's fonts, blurred, noisy, dark, a little turned."""

from __future__ import annotations

from typing import Dict, List, NamedTuple

import cv2
import numpy as np

HEIGHT, WIDTH = 48, 320
FONTS = (cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_TRIPLEX)
WORDS = (
    "answer",
    "bottle",
    "copper",
    "dinner",
    "engine",
    "forest",
    "garden",
    "harbour",
    "island",
    "journey",
    "kitchen",
    "lantern",
    "market",
    "number",
    "orange",
    "pencil",
    "quarter",
    "river",
    "summer",
    "ticket",
    "under",
    "valley",
    "window",
    "yellow",
    "zebra",
    "before",
    "country",
    "driver",
    "eleven",
    "father",
)


class Lines(NamedTuple):
    """``images``: uint8 (lines, 48, 320); ``texts``: what each says."""

    images: np.ndarray
    texts: List[str]


def drawn(count: int, seed: int) -> Lines:
    """Lines of one seed, each damaged to a grade of its own from 0 (not at all) to 1."""
    draw = np.random.default_rng([seed, 48])
    images, texts = [], []
    for _ in range(count):
        words = [str(draw.choice(WORDS)) for _ in range(2)]
        if draw.random() < 0.5:
            words.append(str(draw.integers(10, 999)))
        text = " ".join(words)
        images.append(damaged(written(text, FONTS[draw.integers(len(FONTS))]), float(draw.beta(1.0, 1.3)), draw))
        texts.append(text)
    return Lines(np.stack(images), texts)


def written(text: str, font: int) -> np.ndarray:
    """Black on white, as large as the line allows."""
    (width, height), below = cv2.getTextSize(text, font, 1.0, 2)
    scale = min((WIDTH - 16) / width, (HEIGHT - 14) / (height + below))
    image = np.full((HEIGHT, WIDTH), 255, np.uint8)
    cv2.putText(image, text, (8, int(HEIGHT / 2 + height * scale / 2)), font, scale, 0, 2, cv2.LINE_AA)
    return image


def damaged(image: np.ndarray, grade: float, draw: np.random.Generator) -> np.ndarray:
    """The same line as a bad camera saw it."""
    turn = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), float(grade * draw.uniform(-2, 2)), 1.0)
    seen = cv2.warpAffine(image, turn, (WIDTH, HEIGHT), borderValue=255).astype(np.float32)
    seen = cv2.GaussianBlur(seen, (0, 0), 0.3 + 2.6 * grade)
    seen = 255 * (1 - grade * draw.uniform(0.3, 0.7)) * (seen / 255) ** (1 - 0.5 * grade)
    return np.clip(seen + draw.normal(0, 3 + 30 * grade, seen.shape), 0, 255).astype(np.uint8)


def example() -> Dict[str, np.ndarray]:
    """One request, to warm up and to profile with."""
    return {"line": drawn(1, 0).images[0]}
