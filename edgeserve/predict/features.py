"""The features that a difficulty predictor reads of a request where the user gives nothing better: images, texts,
vectors.

Host functions (``engine = "python"``, ``function = "edgeserve.predict.features:image"``): a dict with one value in,
the features as ``{"features": float32 (features,)}`` out.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np
from numpy.typing import NDArray

from edgeserve.predict.rules import RuleScorer

GRID = 8
"""An image becomes a grid of so many means in each direction."""

_scorer = RuleScorer()


def image(values: Mapping[str, Any]) -> Dict[str, NDArray[Any]]:
    """Features of one image (height, width) or (height, width, channels): the means of an 8 by 8 grid, and the image's
    mean, spread, and mean absolute gradients, all in the image's own unit."""
    pixels = np.asarray(_only(values), np.float32)
    grey = pixels.mean(axis=2) if pixels.ndim == 3 else pixels
    if grey.ndim != 2 or not grey.size:
        raise ValueError(
            f"an image of the shape {list(pixels.shape)}; expected (height, width) or (height, width, channels)"
        )
    rows, columns = (np.linspace(0, size, GRID + 1).astype(int) for size in grey.shape)
    cells = [
        grey[low : max(high, low + 1), left : max(right, left + 1)].mean()
        for low, high in zip(np.minimum(rows[:-1], grey.shape[0] - 1), rows[1:])
        for left, right in zip(np.minimum(columns[:-1], grey.shape[1] - 1), columns[1:])
    ]
    down, across = (np.abs(np.diff(grey, axis=axis)) for axis in (0, 1))
    whole = [grey.mean(), grey.std(), down.mean() if down.size else 0.0, across.mean() if across.size else 0.0]
    return {"features": np.asarray(cells + whole, np.float32)}


def text(values: Mapping[str, Any]) -> Dict[str, NDArray[Any]]:
    """Features of one text: the six rule scores of linguistic uncertainty and the number of words."""
    return {"features": np.asarray(_scorer.scores(str(_only(values))), np.float32)}


def vector(values: Mapping[str, Any]) -> Dict[str, NDArray[Any]]:
    """The numbers themselves, flat."""
    return {"features": np.asarray(_only(values), np.float32).reshape(-1)}


def _only(values: Mapping[str, Any]) -> Any:
    if len(values) != 1:
        raise ValueError(f"inputs {', '.join(sorted(values))}: expected exactly one")
    return next(iter(values.values()))
