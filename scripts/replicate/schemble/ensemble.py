"""A synthetic ensemble: three classifiers of ten labels whose outputs are drawn, with the agreements of the reference.

An item has a difficulty; each model sees its logits through noise that grows with the difficulty and with the model's
own weakness, part of it common to all models. The ensemble's answer is the weighted average of the (temperature-scaled)
outputs, and a subset's answer that of its own models. From history come the discrepancy score, the profile, and the
predictors of the difficulty: noisy views of the true score, as correlated with it as the specification's predictors.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

from edgeserve.config.ensemble_profile import EnsembleProfile, ObservedTable, lead_of, monotone

LABELS = 10
MODELS = ("m0", "m1", "m2")
TIMES_MS = (40.0, 75.0, 85.0)
ALL = 7

SHARP = (4.98, 5.04, 4.49)
"""How far a model's right label stands out, and (below) how noisy it is. Found by search: over 20,000 items the single
models agree with all three on .895, .929 and .926, pairs on .957, .954 and .959, and all three on 79.5 % of the items;
the reference has .893, .929, .920, pairs .947, .961, .959, and 79.7 %."""

OWN = (1.92, 1.38, 1.26)
COMMON = 1.28
BINS = 11
NEIGHBOURS = 15
"""Items of the history that DES asks how often a model was right near by."""

PRIOR = 20.0
"""Pseudo-samples by which a bin's agreement leans on the subset's over all bins."""


class Items(NamedTuple):
    """Items and what is known of each. ``correct[i, s]``: whether subset s answers item i as all models do;
    ``labels`` and ``margins`` are those of each model; ``score`` is the discrepancy score, ``predicted`` what a
    predictor says of it, ``ea`` and ``ea_predicted`` the same of the ensemble-agreement score. ``gates`` and ``local``
    are what the gating network and the neighbours of DES say of each model."""

    correct: np.ndarray
    labels: np.ndarray
    margins: np.ndarray
    score: np.ndarray
    predicted: np.ndarray
    ea: np.ndarray
    ea_predicted: np.ndarray
    gates: np.ndarray
    local: np.ndarray


def draw_items(count: int, seed: int) -> Items:
    """Items of one seed."""
    draw = np.random.default_rng([seed, 77])
    difficulty = draw.beta(0.8, 1.6, count)
    truth = draw.integers(0, LABELS, count)
    rival = (truth + draw.integers(1, LABELS, count)) % LABELS
    rows = np.arange(count)
    common = draw.normal(0.0, COMMON, (count, LABELS))
    outputs = np.empty((len(MODELS), count, LABELS))
    for model in range(len(MODELS)):
        noise = (common + draw.normal(0.0, OWN[model], (count, LABELS))) * (0.25 + 1.15 * difficulty[:, None])
        logits = noise
        logits[rows, truth] += SHARP[model]
        logits[rows, rival] += SHARP[model] * difficulty
        outputs[model] = _softmax(1.4 * logits)
    answers = _answers(outputs)
    whole = outputs.mean(axis=0)
    spread = np.stack([_js(output, whole) for output in outputs])
    score = (spread / spread.mean(axis=1, keepdims=True)).mean(axis=0)
    score = np.clip(score / np.quantile(score, 0.99), 0.0, 1.0)
    ordered = np.sort(outputs, axis=2)
    ea = np.mean(
        [_kl(outputs[a], outputs[b]) + _kl(outputs[b], outputs[a]) for a in range(3) for b in range(a + 1, 3)], axis=0
    )
    single = np.stack([answers[:, 1 << model] == answers[:, ALL] for model in range(3)], axis=1)
    return Items(
        (answers == answers[:, ALL:]) & (np.arange(8) > 0),
        outputs.argmax(axis=2).T,
        (ordered[:, :, -1] - ordered[:, :, -2]).T,
        score,
        _seen(score, 0.95, draw),
        ea,
        _seen(ea, 0.95, draw),
        _softmax(0.25 * single + draw.normal(0.0, 0.3, single.shape)),
        draw.binomial(
            NEIGHBOURS, np.clip(1 - 2 * (1 - single.mean(axis=0)) * (score.argsort().argsort() / count)[:, None], 0, 1)
        )
        / NEIGHBOURS,
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _answers(outputs: np.ndarray) -> np.ndarray:
    """The label of each subset for each item."""
    found = np.zeros((outputs.shape[1], 1 << len(outputs)), dtype=int)
    for subset in range(1, 1 << len(outputs)):
        members = [model for model in range(len(outputs)) if subset >> model & 1]
        found[:, subset] = outputs[members].mean(axis=0).argmax(axis=1)
    return found


def _kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    p, q = np.clip(p, 1e-6, 1.0), np.clip(q, 1e-6, 1.0)
    return (p * np.log(p / q)).sum(axis=1)


def _js(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    middle = (p + q) / 2
    return np.maximum(0.0, (_kl(p, middle) + _kl(q, middle)) / 2)


def _seen(score: np.ndarray, noise: float, draw: np.random.Generator) -> np.ndarray:
    """A predictor's view: the rank of the score with noise, as the rank-trained predictor of the specification
    (Spearman 0.71 with the truth)."""
    rank = score.argsort().argsort() / max(1, len(score) - 1)
    blurred = rank + draw.normal(0.0, 0.29 * noise, len(rank))
    return blurred.argsort().argsort() / max(1, len(score) - 1)


# --- what is fitted ---------------------------------------------------------------------------------------------------


def fit(history: Items, by: str = "predicted") -> EnsembleProfile:
    """The profile of a history, by the quantiles of one of its scores; smoothed and monotone."""
    scores = getattr(history, by)
    edges = np.unique(np.quantile(scores, np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, scores, side="right")
    overall = history.correct.mean(axis=0)
    rows = [_row(history.correct[bins == index], overall) for index in range(len(edges) + 1)]
    shares = tuple(float((bins == index).mean()) for index in range(len(edges) + 1))
    thirds = np.quantile(scores, (1 / 3, 2 / 3))
    return EnsembleProfile(
        MODELS,
        tuple(map(float, edges)),
        tuple(rows),
        "difficulty",
        "vote",
        shares,
        observed=_observed(history, scores, thirds),
        score_edges=tuple(map(float, thirds)),
    )


def _row(correct: np.ndarray, overall: np.ndarray) -> Tuple[float, ...]:
    return monotone([float(value) for value in (correct.sum(axis=0) + PRIOR * overall) / (len(correct) + PRIOR)])


def _observed(history: Items, scores: np.ndarray, thirds: np.ndarray) -> Dict[int, ObservedTable]:
    """What the history says of each subset, given what some models said: by the lead of their label, and the score."""
    tables = {}
    third = np.searchsorted(thirds, scores, side="right")
    for answered in range(1, ALL):
        members = [model for model in range(3) if answered >> model & 1]
        leads = np.array(
            [
                lead_of([(history.labels[item, model], history.margins[item, model], 1.0) for model in members])
                for item in range(len(scores))
            ]
        )
        edges = np.unique(np.quantile(leads, np.arange(1, 8) / 8))
        bins = np.searchsorted(edges, leads, side="right")
        cells = []
        for index in range(len(edges) + 1):
            here = bins == index
            overall = history.correct[here].mean(axis=0)
            cells.append(
                tuple(
                    _holding(answered, _row(history.correct[here & (third == number)], overall)) for number in range(3)
                )
            )
        tables[answered] = ObservedTable(tuple(map(float, edges)), tuple(cells))
    return tables


def _holding(answered: int, row: Tuple[float, ...]) -> Tuple[float, ...]:
    """A row of the subsets that hold some models; the others count 0."""
    return tuple(value if subset & answered == answered else 0.0 for subset, value in enumerate(row))


def agreements(items: Items) -> List[float]:
    """How often each subset agrees with all models, to hold the ensemble against the reference."""
    return [round(float(value), 3) for value in items.correct.mean(axis=0)]
