"""Digits with graded corruption: what the base models learn from, what the history records, and what is asked.

Three disjoint sets of digits: models learn from the first, the ensemble is fitted to the second, the third is asked.
"""

from __future__ import annotations

import os
import sys
from typing import List, NamedTuple

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dynamic"))

from inputs import PIXELS, SIDE, digits, view

LEARNT, FITTED = 900, 1350
"""Of 1797 digits: the first 900 are learnt from, those up to 1350 make the history, the others are asked."""

VERSIONS = 8
"""Records of the history per digit, each corrupted to another grade."""

CLASSES = 10


class Digits(NamedTuple):
    """``images``: float32 (digits, 64) in 0..1; ``labels``: what each is; ``numbers``: which digit each was."""

    images: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray


def learnt() -> Digits:
    """The digits that models learn from, as they are."""
    return _between(0, LEARNT)


def history(seed: int = 1) -> Digits:
    """The digits that the ensemble is fitted to, each in versions from clean to badly corrupted."""
    plain = _between(LEARNT, FITTED)
    draw = np.random.RandomState(seed)
    grades = np.tile(np.linspace(0, 1, VERSIONS), len(plain.labels))
    rows = np.repeat(np.arange(len(plain.labels)), VERSIONS)
    return Digits(corrupted(plain.images[rows], grades, draw), plain.labels[rows], plain.numbers[rows])


def asked(count: int, seed: int = 1) -> Digits:
    """Digits that nothing was learnt from or fitted to, each corrupted to a grade of its own."""
    plain = _between(FITTED, len(digits()[0]))
    draw = np.random.RandomState(1000 + seed)
    rows = draw.randint(0, len(plain.labels), count)
    images = corrupted(plain.images[rows], draw.beta(0.8, 1.6, count), draw)
    return Digits(images, plain.labels[rows], plain.numbers[rows])


def corrupted(images: np.ndarray, grades: np.ndarray, draw: np.random.RandomState) -> np.ndarray:
    """Every image turned, shifted, partly covered and made noisy, by its grade from 0 (not at all) to 1."""
    seen = []
    for image, grade in zip(images, grades):
        right, down = grade * draw.uniform(-1.0, 1.0, 2)
        angle, size = grade * draw.uniform(-0.4, 0.4), grade * draw.uniform(-0.15, 0.15)
        moved = image @ view(angle, float(np.exp(size)), right, down)
        rows = moved.reshape(SIDE, SIDE)
        if draw.uniform() < 0.5 * grade:
            top, left = draw.randint(0, SIDE - 2, 2)
            rows[top : top + 3, left : left + 3] = draw.uniform()
        seen.append(rows.reshape(PIXELS) + grade * draw.normal(0, 0.2, PIXELS))
    return np.clip(np.array(seen), 0, 1).astype(np.float32)


def example() -> dict[str, np.ndarray]:
    """One request, to warm up and to profile with."""
    return {"image": asked(1).images[0]}


def examples(count: int = 100) -> List[dict[str, np.ndarray]]:
    """Requests as the load draws them."""
    return [{"image": image} for image in asked(count).images]


def _between(first: int, last: int) -> Digits:
    images, labels = digits()
    return Digits(images[first:last], labels[first:last], np.arange(first, last))
