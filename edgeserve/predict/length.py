"""Predicts how many tokens an answer will have, as a distribution (RT-LM, Section III-B, the LW model).

A small network maps the six rule scores and the number of words to the logarithm of the output length. The residual of
that logarithm on held-out texts is the spread, so a prediction is a lognormal law (``edgeserve/lognormal.py``): a mean
for ordering, quantiles for reserving memory. ``edgeserve fit-length`` trains it; a trained model is one ``.npz`` file.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import ConfigError
from edgeserve.lognormal import LOG_MAX, Lognormal
from edgeserve.predict.rules import RuleScorer, features

FORMAT = "edgeserve length model"
VERSION = 1
FEATURES = 7
SIGMA_MAX = 3.0


class LengthModel:
    """A trained regressor. Immutable, so several threads may share a model.

    ``layers`` are (weights, biases) of shape (inputs, outputs) and (outputs,); between layers ReLU. ``about`` says
    where the model comes from: number of texts, errors on held-out texts, and ``tau``, the 0.9-quantile of the
    predictions.
    """

    __slots__ = ("_shift", "_scale", "_layers", "_scorer", "sigma", "tokens_max", "about")

    def __init__(
        self,
        shift: NDArray[Any],
        scale: NDArray[Any],
        layers: Sequence[Tuple[NDArray[Any], NDArray[Any]]],
        sigma: float,
        tokens_max: int,
        about: Dict[str, Any],
        scorer: RuleScorer | None = None,
    ) -> None:
        self._shift, self._scale = np.asarray(shift, float), np.asarray(scale, float)
        self._layers = [(np.asarray(weights, float), np.asarray(biases, float)) for weights, biases in layers]
        self._scorer = RuleScorer() if scorer is None else scorer
        self.sigma, self.tokens_max, self.about = float(sigma), int(tokens_max), dict(about)
        problem = self._problem()
        if problem:
            raise ValueError(problem)

    def predict(self, text: str) -> Lognormal:
        """The distribution of the number of output tokens for one text."""
        return self.predict_all([text])[0]

    def predict_all(self, texts: Sequence[str]) -> List[Lognormal]:
        """As :meth:`predict`, for several texts in one pass of the network."""
        if not texts:
            return []
        return self.laws(features([self._scorer.scores(text) for text in texts]))

    def laws(self, rows: Sequence[Sequence[float]]) -> List[Lognormal]:
        """The distributions for feature rows of shape (texts, 7)."""
        most = float(self.tokens_max)
        return [Lognormal(float(log_mean), self.sigma, 1.0, most) for log_mean in self.log_means(rows)]

    def log_means(self, rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """The expected logarithm of the length, shape (texts,), of feature rows of shape (texts, 7)."""
        values: NDArray[np.float64] = (np.asarray(rows, float) - self._shift) / self._scale
        last = len(self._layers) - 1
        for index, (weights, biases) in enumerate(self._layers):
            values = values @ weights + biases
            if index < last:
                values = np.maximum(values, 0.0)
        means: NDArray[np.float64] = np.clip(values[:, 0], 0.0, LOG_MAX)
        return means

    def save(self, path: str) -> None:
        """Write the model; a reader sees the old file or the new one, never half of it."""
        header = {
            "format": FORMAT,
            "version": VERSION,
            "sigma": self.sigma,
            "tokens_max": self.tokens_max,
            "layers": len(self._layers),
            "about": self.about,
        }
        arrays: Dict[str, Any] = {"shift": self._shift, "scale": self._scale}
        for index, (weights, biases) in enumerate(self._layers):
            arrays[f"weights_{index}"] = weights.astype(np.float32)
            arrays[f"biases_{index}"] = biases.astype(np.float32)
        beside = f"{path}.{os.getpid()}.part"
        try:
            with open(beside, "wb") as file:
                np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            if os.path.exists(beside):
                os.remove(beside)

    def _problem(self) -> str:
        if self._shift.shape != (FEATURES,) or self._scale.shape != (FEATURES,) or not (self._scale > 0).all():
            return (
                f"shift and scale have shapes {self._shift.shape} and {self._scale.shape}, "
                f"expected ({FEATURES},), scale > 0"
            )
        width = FEATURES
        for index, (weights, biases) in enumerate(self._layers):
            if weights.ndim != 2 or weights.shape[0] != width or biases.shape != (weights.shape[1],):
                return f"layer {index} has shapes {weights.shape} and {biases.shape}, expected {width} inputs"
            width = weights.shape[1]
        if not self._layers or width != 1:
            return f"the last layer has {width} outputs, expected 1"
        if not all(np.isfinite(array).all() for layer in self._layers for array in layer):
            return "a weight is not finite"
        if not 0 <= self.sigma <= SIGMA_MAX:
            return f"sigma = {self.sigma}, expected 0 to {SIGMA_MAX}"
        return "" if self.tokens_max >= 1 else f"tokens_max = {self.tokens_max}, expected at least 1"


def load_length_model(path: str) -> LengthModel:
    """The model of a file. Raises ``ConfigError`` that names the file and what is wrong with it."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            header = json.loads(bytes(stored["header"]).decode())
            if header.get("format") != FORMAT or header.get("version") != VERSION:
                raise ValueError(
                    f"it is {header.get('format')!r} version {header.get('version')!r}, "
                    f"expected {FORMAT!r} version {VERSION}"
                )
            layers = [(stored[f"weights_{index}"], stored[f"biases_{index}"]) for index in range(int(header["layers"]))]
            return LengthModel(
                stored["shift"], stored["scale"], layers, header["sigma"], header["tokens_max"], header["about"]
            )
    except OSError as error:
        raise ConfigError(f"length model {path!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"length model {path!r} cannot be used: {error}; 'edgeserve fit-length' writes a new one"
        ) from None
