"""RT-LM's predictor of lengths as published (Section III-B, LW): a network on six rule scores and the number of words.

Here for comparison: on forms of questions that it has not seen, a linear model on words, pairs and the same scores
(``edgeserve/predict/length.py``) predicts better, and that is what serves.
"""

from __future__ import annotations

import warnings
from typing import Any, List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.predict.rules import RuleScorer, Scores

FEATURES = len(Scores._fields)
HIDDEN = (100, 200, 200, 100)
BATCH, EPOCHS = 32, 100
SCORER = RuleScorer()

Layers = Sequence[Tuple[NDArray[Any], NDArray[Any]]]


class Lw:
    """Layers of weights and biases, between them ReLU, on standardised features; predicts the logarithm of a length."""

    def __init__(self, shift: NDArray[Any], scale: NDArray[Any], layers: Layers) -> None:
        self.shift, self.scale, self.layers = shift, scale, layers

    def log_means(self, texts: Sequence[str]) -> NDArray[Any]:
        values = (rows_of(texts) - self.shift) / self.scale
        for index, (weights, biases) in enumerate(self.layers):
            values = np.maximum(values, 0.0) if index else values
            values = values @ weights + biases
        return values[:, 0]


def rows_of(texts: Sequence[str]) -> NDArray[Any]:
    """Six rule scores and the number of words of each text."""
    return np.array([SCORER.scores(text) for text in texts], float)


def trained(texts: Sequence[str], tokens: NDArray[Any], seed: int = 1) -> Lw:
    """The network, trained on the logarithms of lengths. Needs scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    rows = rows_of(texts)
    shift, spread = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    network = MLPRegressor(
        hidden_layer_sizes=HIDDEN,
        batch_size=BATCH,
        max_iter=EPOCHS,
        random_state=seed,
        early_stopping=True,
        n_iter_no_change=10,
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # matrices this small lose by threads
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit((rows - shift) / scale, np.log(tokens))
    layers: List[Tuple[NDArray[Any], NDArray[Any]]] = list(zip(network.coefs_, network.intercepts_))
    return Lw(shift, scale, layers)
