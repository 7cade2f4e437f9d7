"""Ensembles of real models for Schemble's experiments, on the 1,797 digits that ship with scikit-learn, corrupted to
grades of their own: every signal that a policy reads is computed from outputs and images, none from the truth.

====== =========================================== =========================================================
task   models                                      an answer is right
====== =========================================== =========================================================
digits naive Bayes, a network, 9 neighbours        where it is the class of all models
ink    ridge on half the pixels, a network, ridge  where it is within a tolerance of the answer of all models
near   a network's layer, principal components     as its list of ten agrees with that of both (average precision)
====== =========================================== =========================================================

``digits`` stands for text matching (the reference's own ensemble), ``ink`` (how much of an image was black before it
was corrupted) for counting vehicles, ``near`` (which learnt digits look alike) for image retrieval. Models learn from
the first 900 digits, predictors, gates and neighbours from the next 225, profiles from 225 more; 447 are asked.
The combiner, the scores, the predictor of the difficulty and the profile are those of ``edgeserve profile --fit``.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "ensemble"))

from data import corrupted, digits
from inputs import DIGITS

from edgeserve.commands.fit.ensemble import Network, make_combiner, profile_of, score_statistics, train
from edgeserve.config.ensemble_profile import EnsembleProfile
from edgeserve.config.files import resolve_path
from edgeserve.predict.accuracy import agreements as agreements_of
from edgeserve.predict.accuracy import margins_of
from edgeserve.predict.combiner import Combiner
from edgeserve.predict.discrepancy import SMALLEST, Discrepancy, scale
from edgeserve.predict.history import EnsembleHistory

MODELS = ("m0", "m1", "m2")
TIMES_MS = (40.0, 75.0, 85.0)
LEARNT, PREDICTED, FITTED = 900, 1125, 1350
HISTORY = 6000
COPIES = 6
"""Versions of each digit that a model learns from."""

GRADE = 0.88
"""The worst grade of what is asked. With it the digits' single models agree with all three as in the reference."""

BINS = 11
NEIGHBOURS = 15
"""Items of the history that DES asks how often a model was right near by, over :data:`COMPONENTS`."""

COMPONENTS = 16
SHOWN = 10
"""Digits of a list, of ``near``."""

SHELF = 300
"""Learnt digits that ``near`` searches."""

INK_TOLERANCE, NEAR_TOLERANCE = 0.4, 0.25
"""Answers this close are alike, in standard deviations of the answers of all models; of ``near`` for the fit alone."""

FETCH = "python -m edgeserve.commands.assets examples/dynamic/assets.toml"
"""The command that brings the digits into the asset cache."""

Predict = Callable[[np.ndarray], np.ndarray]


class Items(NamedTuple):
    """Items and what is known of each. ``correct[i, s]``: how right subset s answers item i, from 0 to 1, where all
    models are right; ``outputs`` (items, models, values), ``labels`` and ``margins`` are those of each model; ``score``
    is the discrepancy score, ``predicted`` what the predictor says of it, ``ea`` and ``ea_predicted`` the same of the
    ensemble-agreement score. ``gates`` and ``local`` are what the gating network and the neighbours of DES say."""

    correct: np.ndarray
    outputs: np.ndarray
    labels: np.ndarray
    margins: np.ndarray
    score: np.ndarray
    predicted: np.ndarray
    ea: np.ndarray
    ea_predicted: np.ndarray
    gates: np.ndarray
    local: np.ndarray


class Learnt(NamedTuple):
    """The profile of one task before the first request."""

    kind: str
    models: Sequence[Predict]
    combiner: Combiner
    tolerance: float
    scoring: Discrepancy
    network: Network
    ea_network: Network
    gate: Any
    components: Any
    neighbours: Any
    right: np.ndarray
    """Correctness on the neighbours' digits, (records, models)."""


def need_digits() -> None:
    """End the command with a message where the digits are not in the asset cache."""
    path = resolve_path(DIGITS, "")
    if not os.path.exists(path):
        sys.exit(f"the digits are missing: {path}\nFetch them with: {FETCH}")


def versions(first: int, last: int, count: int, worst: float, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """So many digits of a range, each corrupted to a grade up to ``worst``, and which digit each was."""
    draw = np.random.RandomState(seed)
    rows = draw.randint(first, last, count)
    return corrupted(digits()[0][rows], worst * draw.beta(0.8, 1.6, count), draw), rows


def _digits(images: np.ndarray, rows: np.ndarray) -> Tuple[str, List[Predict]]:
    labels = digits()[1]
    plain = digits()[0][:LEARNT]
    bayes = GaussianNB(var_smoothing=1e-2).fit(images, labels[rows])
    network = MLPClassifier(hidden_layer_sizes=(48,), max_iter=60, random_state=1, early_stopping=True).fit(
        images, labels[rows]
    )
    near = KNeighborsClassifier(9).fit(plain, labels[:LEARNT])
    return "classification", [bayes.predict_proba, network.predict_proba, near.predict_proba]


def _ink(images: np.ndarray, rows: np.ndarray) -> Tuple[str, List[Predict]]:
    ink = digits()[0].mean(axis=1)
    made = (
        make_pipeline(FunctionTransformer(_every_other), Ridge(1.0)),
        MLPRegressor(hidden_layer_sizes=(48,), max_iter=60, random_state=1, early_stopping=True),
        Ridge(1.0),
    )
    for model in made:
        model.fit(images, ink[rows])
    return "regression", [lambda images, model=model: model.predict(images)[:, None] for model in made]


def _every_other(images: np.ndarray) -> np.ndarray:
    return images[:, ::2]


def _near(images: np.ndarray, rows: np.ndarray) -> Tuple[str, List[Predict]]:
    components = PCA(COMPONENTS, random_state=1).fit(images)
    network = MLPClassifier(hidden_layer_sizes=(32,), max_iter=60, random_state=1, early_stopping=True).fit(
        images, digits()[1][rows]
    )
    shelf = digits()[0][:SHELF]

    def similar(embed: Predict) -> Predict:
        middle = embed(shelf).mean(axis=0)

        def unit(seen: np.ndarray) -> np.ndarray:
            embedded = embed(seen) - middle
            return embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-9)

        kept = unit(shelf)
        return lambda seen: unit(seen) @ kept.T

    hidden = (network.coefs_[0], network.intercepts_[0])
    return "regression", [similar(lambda x: np.maximum(x @ hidden[0] + hidden[1], 0.0)), similar(components.transform)]


TASKS: Dict[str, Callable[[np.ndarray, np.ndarray], Tuple[str, List[Predict]]]] = {
    "digits": _digits,
    "ink": _ink,
    "near": _near,
}


@lru_cache(maxsize=None)
def learnt(task: str) -> Learnt:
    """The models of a task, and the fits on the digits between their training digits and the profiles'."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # a network that could learn longer
        kind, models = TASKS[task](*versions(0, LEARNT, COPIES * LEARNT, 0.6, 1))
        images, rows = versions(LEARNT, PREDICTED, HISTORY, GRADE, 2)
        labels = digits()[1][rows] if kind == "classification" else None
        outputs = np.stack([model(images) for model in models], axis=1)
        history = EnsembleHistory(MODELS[: len(models)], outputs, kind, labels, features=images)
        combiner = make_combiner(history, "average" if task == "ink" else "weighted_average")
        answers = combiner.answers(outputs, (1 << len(models)) - 1)
        tolerance = (NEAR_TOLERANCE if task == "near" else INK_TOLERANCE) * float(np.sqrt(answers.var(axis=0).sum()))
        scoring = score_statistics(history, answers)
        right = _right(task, combiner, outputs, tolerance)[:, [1 << model for model in range(len(models))]]
        best = right if kind == "regression" else _said(outputs, answers, scoring.temperatures)
        components = PCA(COMPONENTS, random_state=1).fit(images)
        return Learnt(
            kind,
            models,
            combiner,
            tolerance,
            scoring,
            train(history, answers, scoring.scores(outputs, answers), 200, 1),
            train(history, answers, _apart(kind, outputs), 200, 1),
            MLPClassifier(hidden_layer_sizes=(64, 32), max_iter=60, random_state=1, early_stopping=True).fit(
                images, best.argmax(axis=1)
            ),
            components,
            NearestNeighbors(n_neighbors=NEIGHBOURS).fit(components.transform(images)),
            right,
        )


@lru_cache(maxsize=None)
def draw_items(count: int, seed: int, task: str = "digits") -> Items:
    """Items of one seed."""
    return _items(task, *versions(FITTED, len(digits()[0]), count, GRADE, 1000 + seed))


@lru_cache(maxsize=None)
def history(task: str = "digits") -> Items:
    """The items that profiles are fitted to."""
    return _items(task, *versions(PREDICTED, FITTED, HISTORY, GRADE, 3))


def _items(task: str, images: np.ndarray, rows: np.ndarray) -> Items:
    known = learnt(task)
    with threadpool_limits(1):
        outputs = np.stack([model(images) for model in known.models], axis=1)
        answers = known.combiner.answers(outputs, (1 << len(known.models)) - 1)
        gates = np.zeros((len(images), len(known.models)))
        gates[:, known.gate.classes_] = known.gate.predict_proba(images)
        near = known.neighbours.kneighbors(known.components.transform(images), return_distance=False)
        return Items(
            _right(task, known.combiner, outputs, known.tolerance),
            outputs,
            outputs.argmax(axis=2),
            margins_of(outputs),
            known.scoring.scores(outputs, answers),
            known.network.scores(images),
            _apart(known.kind, outputs),
            known.ea_network.scores(images),
            gates,
            known.right[near].mean(axis=1),
        )


def _right(task: str, combiner: Combiner, outputs: np.ndarray, tolerance: float) -> np.ndarray:
    """The correctness of each subset on each item: (items, subsets)."""
    full = (1 << outputs.shape[1]) - 1
    found = np.zeros((len(outputs), full + 1))
    if task != "near":
        for subset, alike in agreements_of(combiner, outputs, range(1, full + 1), tolerance).items():
            found[:, subset] = alike
        return found
    shown = np.argsort(-combiner.answers(outputs, full), axis=1)[:, :SHOWN]
    for subset in range(1, full + 1):
        listed = np.argsort(-combiner.answers(outputs, subset), axis=1)[:, :SHOWN]
        hits = (listed[:, :, None] == shown[:, None, :]).any(axis=2)
        precision = hits.cumsum(axis=1) / np.arange(1, SHOWN + 1)
        found[:, subset] = (precision * hits).sum(axis=1) / SHOWN
    return found


def _said(outputs: np.ndarray, answers: np.ndarray, temperatures: Sequence[float]) -> np.ndarray:
    """The probability that each model, at its temperature, gives to the class that all models answer: (items,
    models)."""
    rows, classes = np.arange(len(outputs)), answers.argmax(axis=1)
    scaled = [scale(outputs[:, model], temperature) for model, temperature in enumerate(temperatures)]
    return np.stack([one[rows, classes] for one in scaled], axis=1)


def agreement_scores(outputs: np.ndarray) -> np.ndarray:
    """The simpler score ``ea``: the mean symmetric Kullback-Leibler divergence of all pairs of models, of unscaled
    probabilities (records, models, classes). Shape (records,), not bounded."""
    clipped = np.clip(outputs, SMALLEST, None)
    logs = np.log(clipped)
    count = outputs.shape[1]
    total = np.zeros(outputs.shape[0])
    for first in range(count):
        for second in range(first + 1, count):
            difference = logs[:, first] - logs[:, second]
            total = total + ((clipped[:, first] - clipped[:, second]) * difference).sum(axis=-1)
    scores: np.ndarray = total / max(1, count * (count - 1) // 2)
    return scores


def _apart(kind: str, outputs: np.ndarray) -> np.ndarray:
    """The ensemble-agreement score, from 0 to 1; of vectors the mean distance of two models."""
    if kind == "classification":
        raw = agreement_scores(outputs)
    else:
        pairs = [(one, other) for one in range(outputs.shape[1]) for other in range(one)]
        raw = np.mean([np.linalg.norm(outputs[:, one] - outputs[:, other], axis=1) for one, other in pairs], axis=0)
    return np.clip(raw / np.quantile(raw, 0.99), 0.0, 1.0)


def fit(items: Items, by: str = "predicted", task: str = "digits") -> EnsembleProfile:
    """The profile of a history, by one of its scores."""
    known = learnt(task)
    return profile_of(
        MODELS[: len(known.models)], known.combiner, items.outputs, getattr(items, by), BINS, known.tolerance
    )


def agreements(items: Items) -> List[float]:
    """The share of items on which each subset agrees with all models, to compare the ensemble with the reference."""
    return [round(float(value), 3) for value in items.correct.mean(axis=0)]
