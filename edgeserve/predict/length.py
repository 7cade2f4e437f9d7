"""Predicts how many tokens an answer will have from the words of the question, as a distribution.

A linear model of the logarithm of the length: hashed words and pairs of neighbouring words, and the six rule scores and
the number of words (``rules.py``; RT-LM, Section III-B). What is left of the logarithms on kinds of questions that were
held out makes a prediction a distribution: a mean for ordering, quantiles for reserving memory. The model that comes
with the package was fitted to answers of SmolLM2-135M-Instruct; ``edgeserve profile --fit`` fits one to recorded
answers. One model is one ``.npz`` file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from functools import lru_cache
from typing import Any, Dict, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.arrays import read_npz
from edgeserve.config.text_files import write_file
from edgeserve.errors import ConfigError
from edgeserve.predict.rules import RuleScorer, Scores

FORMAT = "edgeserve length model"
VERSION = 2
PACKAGED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answer_lengths.npz")

BUCKETS = 4096
"""The number of buckets of hashed words and pairs. A word cannot be read back from its bucket."""

RULES = len(Scores._fields)
WEIGHTS = BUCKETS + RULES

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[?!]")
WORDS_MAX = 400
"""Words of a question that are looked at: more take time and say nothing new."""

RULE_SHARE = 1.0
"""One deviation of a rule score counts as so much of a whole sentence of words."""

RULE_MAX = 3.0
"""A rule score further from its mean, in deviations, counts as this: a long document is no extreme question."""

LOG_MAX = 14.0
"""Logarithms are cut here: a million tokens."""

RESIDUALS = 32
"""Quantiles of the residual that a file holds, equally likely."""


FILE_BYTES_MAX = 64 * 1024**2
"""The most bytes of a model's arrays: the one that comes with the package has less than one."""


class LengthPrediction(NamedTuple):
    """The distribution of one length: ``exp(log_mean + residual)`` tokens, each of the ``residuals`` (ascending)
    equally likely, at least one token. Residuals are not alike for short and long answers: ``factor`` corrects the mean
    for that."""

    log_mean: float
    residuals: NDArray[Any]
    factor: float = 1.0

    def mean(self, most: float = math.inf) -> float:
        """The expected number of tokens of an answer that is cut after ``most``."""
        return min(most, max(1.0, self.factor * float(np.minimum(self._lengths(), most).mean())))

    def quantile(self, share: float, most: float = math.inf) -> float:
        """The number of tokens that ``share`` (0 to 1) of such answers do not exceed."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share = {share}, expected a number from 0 to 1")
        return min(most, float(np.quantile(self._lengths(), share)))

    def _lengths(self) -> NDArray[Any]:
        lengths: NDArray[Any] = np.maximum(1.0, np.exp(np.minimum(LOG_MAX, self.log_mean + self.residuals)))
        return lengths


class LengthModel:
    """A fitted model. Immutable, so several threads may share it.

    ``weights``: one per bucket and one per rule score; ``shift`` and ``scale`` standardise the logarithms of the
    scores. ``residuals``, ascending, are quantiles of the residual on held-out texts, and ``factor`` what their mean
    lengths are over the predicted ones. ``about`` says where the model comes from.
    """

    def __init__(
        self,
        weights: NDArray[Any],
        bias: float,
        shift: NDArray[Any],
        scale: NDArray[Any],
        residuals: NDArray[Any],
        factor: float,
        about: Dict[str, Any],
    ) -> None:
        self.weights, self.bias = np.asarray(weights, float), float(bias)
        self.shift, self.scale = np.asarray(shift, float), np.asarray(scale, float)
        self.residuals, self.factor, self.about = np.sort(np.asarray(residuals, float)), float(factor), dict(about)
        self._scorer = RuleScorer()
        problem = self._problem()
        if problem:
            raise ValueError(problem)

    def features(self, text: str) -> Features:
        """The features that the model reads of a text."""
        return Features(buckets(text), standard(rule_logs(text, self._scorer), self.shift, self.scale))

    def predict(self, text: str) -> LengthPrediction:
        """The distribution of the number of output tokens."""
        return LengthPrediction(self.log_mean(self.features(text)), self.residuals, self.factor)

    @property
    def sigma(self) -> float:
        """The deviation of the logarithm by which a lognormal law of this mean has these residuals' mean: hint
        ``steps_sd``."""
        centred = self.residuals - self.residuals.mean()
        return math.sqrt(2.0 * max(0.0, math.log(float(np.exp(centred).mean()))))

    def log_mean(self, read: Features) -> float:
        """The expected logarithm of the length."""
        total = self.bias + read.value * self.weights[read.buckets].sum() + self.weights[BUCKETS:] @ read.rules
        return float(min(max(total, 0.0), LOG_MAX))

    def save(self, path: str) -> None:
        """Write the model; a reader sees the old file or the new one, never half of it."""
        header = {"format": FORMAT, "version": VERSION, "bias": self.bias, "factor": self.factor, "about": self.about}
        arrays: Dict[str, Any] = {name: getattr(self, name).astype(np.float32) for name in ARRAYS}
        arrays["weights"] = arrays["weights"].astype(np.float16)  # three digits: far finer than what is predicted
        content = io.BytesIO()
        np.savez_compressed(content, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        write_file(path, content.getvalue())

    def _problem(self) -> str:
        if self.weights.shape != (WEIGHTS,):
            return f"weights have the shape {self.weights.shape}, expected ({WEIGHTS},)"
        if self.shift.shape != (RULES,) or self.scale.shape != (RULES,) or not (self.scale > 0).all():
            return (
                f"shift and scale have shapes {self.shift.shape} and {self.scale.shape}, expected ({RULES},), scale > 0"
            )
        if self.residuals.ndim != 1 or not len(self.residuals):
            return f"residuals have the shape {self.residuals.shape}, expected at least one"
        arrays = [getattr(self, name) for name in ARRAYS]
        return (
            ""
            if all(np.isfinite(array).all() for array in (*arrays, self.bias, self.factor))
            else "a number is not finite"
        )


ARRAYS = ("weights", "shift", "scale", "residuals")


class Features(NamedTuple):
    """Which buckets the words and pairs of a text fall into, and its standardised rule scores."""

    buckets: NDArray[Any]
    rules: NDArray[Any]

    @property
    def value(self) -> float:
        """The weight of each bucket: the more words, the less each says."""
        return 1.0 / math.sqrt(max(1, len(self.buckets)))


def buckets(text: str) -> NDArray[Any]:
    """The buckets of a text's words and of its pairs of neighbouring words, each once, ascending. The beginning and the
    end count as words."""
    words = WORD.findall(text[: 20 * WORDS_MAX].lower())[:WORDS_MAX]
    pairs = [f"{one} {other}" for one, other in zip(["<", *words], [*words, ">"])]
    return np.array(sorted({crc32(item.encode()) % BUCKETS for item in (*words, *pairs)}), int)


def rule_logs(text: str, scorer: RuleScorer) -> NDArray[Any]:
    """The logarithms of one more than each rule score."""
    logs: NDArray[Any] = np.log1p(np.array(scorer.scores(text[: 20 * WORDS_MAX]), float))
    return logs


def standard(logs: NDArray[Any], shift: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    """These by the mean and the deviation of the texts that were fitted to."""
    values: NDArray[Any] = RULE_SHARE * np.clip((logs - shift) / scale, -RULE_MAX, RULE_MAX)
    return values


@lru_cache(maxsize=1)
def packaged() -> LengthModel:
    """The model that comes with the package."""
    return load_length_model(PACKAGED)


def load_length_model(path: str) -> LengthModel:
    """The model of a file. Raises ``ConfigError`` that names the file and its fault."""
    try:
        stored = read_npz(path, FILE_BYTES_MAX)
        header = json.loads(bytes(stored["header"]).decode())
        if header.get("format") != FORMAT or header.get("version") != VERSION:
            raise ValueError(
                f"it is {header.get('format')!r} version {header.get('version')!r}, "
                f"expected {FORMAT!r} version {VERSION}"
            )
        arrays = {name: stored[name] for name in ARRAYS}
        return LengthModel(bias=header["bias"], factor=header["factor"], about=header["about"], **arrays)
    except OSError as error:
        raise ConfigError(f"length model {path!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"length model {path!r} cannot be used: {error}; make one with 'edgeserve profile --fit'"
        ) from None
