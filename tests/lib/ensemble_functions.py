"""Three classifiers of four numbers for tests: which of them are right depends on how hard ``x[0]`` says it is."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

SURE = 0.9


def example() -> Dict[str, Any]:
    return {"x": np.zeros(4, np.float32)}


def plain(item: Dict[str, Any]) -> Dict[str, Any]:
    return _says(item["x"], 0.4)


def careful(item: Dict[str, Any]) -> Dict[str, Any]:
    return _says(item["x"], 0.95)


def other(item: Dict[str, Any]) -> Dict[str, Any]:
    return _says(item["x"], 0.7)


def _says(x: np.ndarray, able: float) -> Dict[str, Any]:
    """The class that ``x[1]`` names, or the next one where ``x[0]`` is beyond what the model is able to."""
    label = int(x[1]) if x[0] <= able else (int(x[1]) + 1) % 3
    probabilities = np.full(3, (1 - SURE) / 2, np.float32)
    probabilities[label] = SURE
    return {"probabilities": probabilities}


def example_vote() -> Dict[str, Any]:
    return {"plain": np.ones(3, np.float32) / 3}


def vote(item: Dict[str, Any]) -> Dict[str, Any]:
    """The class of the largest mean probability."""
    return {"label": np.int64(np.mean([*item.values()], axis=0).argmax())}
