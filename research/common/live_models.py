"""Models of known kinds that benchmarks serve live: a network of matrix products, and host functions in pure Python."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

from edgeserve.engines.base import Batch, Engine, Footprint, Result
from edgeserve.errors import EngineError

WIDTH = 4096  # 64 MiB of weights: a batch of one is bound by memory, larger ones by arithmetic
LOOK_ROUNDS = 30_000  # about 2 ms of pure Python
TELL_ROUNDS = 12_000


class Network(Engine):
    """One matrix product, outside the interpreter lock as a whole, as a network is in ONNX Runtime."""

    def __init__(self, model: Any, lanes: Sequence[Any], directory: str) -> None:
        self._weights = np.zeros((0, 0), np.float32)

    def load(self) -> Footprint:
        self._weights = np.random.RandomState(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
        return Footprint(self._weights.nbytes)

    def unload(self) -> None:
        self._weights = np.zeros((0, 0), np.float32)

    def example(self) -> Dict[str, Any]:
        return {"x": np.ones(WIDTH, np.float32)}

    def run(self, batch: Batch) -> List[Result]:
        if not self._weights.size:
            raise EngineError("the network is not loaded; call load() before it is run")
        together = np.zeros((WIDTH, batch.size), np.float32)
        for index, item in enumerate(batch.items):
            together[:, index] = item["x"]
        answers = self._weights @ together
        return [Result({"y": answers[:8, index].copy()}) for index in range(len(batch.items))]


def look(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """A host function that never lets go of the interpreter lock by itself, as parsing in pure Python does."""
    total = 0
    for number in range(LOOK_ROUNDS):
        total += number % 7
    return {"x": inputs["x"] * np.float32(1 + total * 0)}


def tell(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """The same behind a network."""
    total = 0
    for number in range(TELL_ROUNDS):
        total += number % 7
    return {"y": inputs["y"], "total": total}


def example_look() -> Dict[str, Any]:
    """One item for :func:`look`."""
    return {"x": np.ones(WIDTH, np.float32)}


def example_tell() -> Dict[str, Any]:
    """One item for :func:`tell`."""
    return {"y": np.ones(8, np.float32)}
