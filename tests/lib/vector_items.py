"""Items for the conformance suites of engines whose model has one input ``x``: of four floats, or of any length."""

from __future__ import annotations

from typing import Dict, List

import numpy as np

from edgeserve.engines.base import Values


class VectorItems:
    """``x`` is four floats."""

    def items(self, count: int) -> List[Values]:
        random = np.random.default_rng(7)
        return [{"x": random.random(4).astype(np.float32)} for _ in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        good = self.items(1)[0]["x"]
        return {
            "wrong name": {"z": good},
            "wrong dtype": {"x": good.astype(np.float64)},
            "wrong shape": {"x": good[:3]},
            "wrong rank": {"x": good.reshape(2, 2)},
            "nothing": {},
        }


class LengthItems:
    """``x`` is floats of another length in each item; the mask ``x_mask`` is the engine's to make."""

    def items(self, count: int) -> List[Values]:
        random = np.random.default_rng(7)
        return [{"x": random.random(3 + 5 * index).astype(np.float32)} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        x = self.items(1)[0]["x"]
        return {
            "wrong name": {"y": x},
            "wrong dtype": {"x": x.astype(np.int64)},
            "wrong rank": {"x": x[None]},
            "its own mask": {"x": x, "x_mask": np.ones(3, np.float32)},
        }
