"""Items for the conformance suites of engines whose model has one input ``x``: of four floats, or of any length."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, Values
from edgeserve.testing.engine_conformance import ALL_POISONS, EngineConformance

ONNX_STATE = {"state": {"state": "stateN"}, "options": {"state_axis": 1, "constants": {"rate": 16000}}}
"""Settings for ``onnx_models.recurrent``."""

TORCH_STATE = {
    "state": {"state": "stateN"},
    "shapes": {"x": (4,), "state": (1, 3)},
    "options": {"outputs": ["y", "stateN"], "state_axis": 1, "constants": {"rate": 16000}},
}
"""Settings for ``torch_models.Recurrent``."""


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

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        """Asked once for each engine and not for each model."""
        return None

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


class VectorModel(VectorItems, EngineConformance):
    """An engine for such a model. ``settings`` are those of ``[model.*]`` that the classes below it share."""

    name = "vec"
    poisons = ALL_POISONS
    settings: Mapping[str, Any] = {}

    def built(self, directory: str, **settings: Any) -> Engine:
        model = ModelConfig(name=self.name, batch=self.sizes, **{**self.settings, **settings})
        return make_engine(model, [self.lane], directory)

    def make(self, directory: str) -> Engine:
        return self.built(directory)

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        """Asked once for each engine and not for each model."""
        return None
