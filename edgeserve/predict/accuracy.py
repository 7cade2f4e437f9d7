"""The rate at which each subset of an ensemble's models answers as all of them do, by difficulty (Schemble, section V,
Eq. 3).

A subset is a number: bit k stands for model k. Rows are smoothed towards the subset's mean over the history and made
monotone, since a planner exploits noise.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.ensemble_profile import ObservedTable, Row, lead_of, monotone
from edgeserve.predict.combiner import Combiner

PRIOR = 20.0
"""Pseudo-samples of the mean that a bin's share is smoothed with."""

WHOLE_MODELS_MAX = 5
"""Up to so many models every subset is counted; of more only those of one and two models, and Eq. 3 extends."""

GAMMA_SUBSETS = 10
LEAD_BINS = 5
SCORE_BINS = 3


def agreements(
    combiner: Combiner, outputs: NDArray[Any], subsets: Sequence[int], tolerance: float
) -> Dict[int, NDArray[Any]]:
    """True, for each subset and record, if its answer is that of all models: the same class, or a vector within
    ``tolerance`` (Euclidean distance)."""
    whole = combiner.answers(outputs, (1 << len(combiner.weights)) - 1)
    found = {}
    for subset in subsets:
        answers = combiner.answers(outputs, subset)
        if combiner.task == "classification":
            found[subset] = answers.argmax(axis=1) == whole.argmax(axis=1)
        else:
            found[subset] = np.sqrt(((answers - whole) ** 2).sum(axis=1)) <= tolerance
    return found


def equal_edges(values: NDArray[Any], bins: int) -> Tuple[float, ...]:
    """Rising edges that divide ``values`` into at most ``bins`` bins of about equal numbers; fewer where values tie."""
    cuts = np.unique(np.round(np.quantile(values, np.arange(1, bins) / bins), 6))
    return tuple(float(cut) for cut in cuts if float(values.min()) < cut)


def bin_of(values: NDArray[Any], edges: Sequence[float]) -> NDArray[Any]:
    """The bin of each value, as ``EnsembleProfile.row`` looks it up."""
    bins: NDArray[Any] = np.asarray(np.searchsorted(np.asarray(edges), values, side="right"))
    return bins


def profile_rows(
    combiner: Combiner, outputs: NDArray[Any], bins: NDArray[Any], count: int, tolerance: float, seed: int = 1
) -> Tuple[Row, ...]:
    """A row for each of ``count`` bins: the agreement of every subset, of the records' ``bins`` (records,)."""
    models = len(combiner.weights)
    full = (1 << models) - 1
    if models <= WHOLE_MODELS_MAX:
        table = _smoothed(agreements(combiner, outputs, range(1, full + 1), tolerance), bins, count)
    else:
        table = _extended(combiner, outputs, bins, count, tolerance, seed)
    return tuple(
        monotone([0.0, *(float(table[subset][place]) for subset in range(1, full + 1))]) for place in range(count)
    )


def observed_tables(
    combiner: Combiner,
    outputs: NDArray[Any],
    scores: Optional[NDArray[Any]],
    score_edges: Sequence[float],
    tolerance: float,
) -> Dict[int, ObservedTable]:
    """The expected agreement given the answers of finished models, for each set of models (classification, few models;
    empty otherwise)."""
    models = len(combiner.weights)
    if combiner.task != "classification" or models > WHOLE_MODELS_MAX:
        return {}
    full = (1 << models) - 1
    agree = agreements(combiner, outputs, range(1, full + 1), tolerance)
    score_bins = np.zeros(len(outputs), int) if scores is None else bin_of(scores, score_edges)
    labels, margins = outputs.argmax(axis=2), margins_of(outputs)
    tables = {}
    for answered in range(1, full):
        members = [model for model in range(models) if answered >> model & 1]
        leads = np.array(
            [
                lead_of(
                    [
                        (float(labels[row, model]), float(margins[row, model]), combiner.weights[model])
                        for model in members
                    ]
                )
                for row in range(len(outputs))
            ]
        )
        edges = equal_edges(leads, LEAD_BINS)
        lead_bins = bin_of(leads, edges)
        rows = tuple(
            tuple(
                _observed_row(agree, answered, full, (lead_bins == lead) & (score_bins == score), lead_bins == lead)
                for score in range(len(score_edges) + 1)
            )
            for lead in range(len(edges) + 1)
        )
        tables[answered] = ObservedTable(edges, rows)
    return tables


def margins_of(outputs: NDArray[Any]) -> NDArray[Any]:
    """The distance of the two largest values over the last axis."""
    ordered = np.sort(outputs, axis=-1)
    margins: NDArray[Any] = ordered[..., -1] - (ordered[..., -2] if outputs.shape[-1] > 1 else 0.0)
    return margins


def _observed_row(
    agree: Dict[int, NDArray[Any]], answered: int, full: int, inside: NDArray[Any], near: NDArray[Any]
) -> Row:
    """Subsets that hold ``answered``; a bin of few records leans on all records of its lead."""
    row = [0.0] * (full + 1)
    for subset in range(1, full + 1):
        if subset & answered == answered:
            prior = (agree[subset][near].sum() + agree[subset].mean() * PRIOR) / (near.sum() + PRIOR)
            row[subset] = float((agree[subset][inside].sum() + prior * PRIOR) / (inside.sum() + PRIOR))
    for subset in range(1, full + 1):
        for model in range(full.bit_length()):
            part = subset & ~(1 << model)
            if part != subset and part & answered == answered:
                row[subset] = max(row[subset], row[part])
    row[full] = 1.0
    return tuple(row)


def _smoothed(agree: Dict[int, NDArray[Any]], bins: NDArray[Any], count: int) -> Dict[int, NDArray[Any]]:
    sizes = np.bincount(bins, minlength=count)
    return {
        subset: (np.bincount(bins, weights=hits, minlength=count) + hits.mean() * PRIOR) / (sizes + PRIOR)
        for subset, hits in agree.items()
    }


def _extended(
    combiner: Combiner, outputs: NDArray[Any], bins: NDArray[Any], count: int, tolerance: float, seed: int
) -> Dict[int, NDArray[Any]]:
    """Eq. 3: subsets of one and two models are counted, larger ones get the mean marginal gain of their pairs, times a
    factor per size that is fitted on a few counted subsets. Models join in order of descending agreement."""
    models = len(combiner.weights)
    pairs = [1 << one | 1 << two for one, two in combinations(range(models), 2)]
    small = [1 << model for model in range(models)] + pairs
    table = _smoothed(agreements(combiner, outputs, small, tolerance), bins, count)
    order = sorted(range(models), key=lambda model: (-float(table[1 << model].mean()), model))
    random = np.random.default_rng(seed)
    for size in range(2, models):
        targets = [sum(1 << model for model in chosen) for chosen in combinations(range(models), size + 1)]
        picked = sorted(random.choice(len(targets), min(GAMMA_SUBSETS, len(targets)), replace=False))
        truth = _smoothed(agreements(combiner, outputs, [targets[place] for place in picked], tolerance), bins, count)
        gained = [(table[_without_last(subset, order)], _gain(table, subset, order)) for subset in truth]
        gains = np.concatenate([gain for _, gain in gained])
        true_gains = np.concatenate([values - base for values, (base, _) in zip(truth.values(), gained)])
        power = float((gains**2).sum())
        gamma = float((gains * true_gains).sum()) / power if power > 1e-12 else 0.0
        for subset in targets:
            table[subset] = np.clip(table[_without_last(subset, order)] + gamma * _gain(table, subset, order), 0.0, 1.0)
    return table


def _last(subset: int, order: Sequence[int]) -> int:
    return next(model for model in reversed(order) if subset >> model & 1)


def _without_last(subset: int, order: Sequence[int]) -> int:
    return subset & ~(1 << _last(subset, order))


def _gain(table: Dict[int, NDArray[Any]], subset: int, order: Sequence[int]) -> NDArray[Any]:
    """The mean over the others of what the last model adds to each alone."""
    last = _last(subset, order)
    others: List[int] = [model for model in order if model != last and subset >> model & 1]
    gains = [table[1 << model | 1 << last] - table[1 << model] for model in others]
    mean: NDArray[Any] = np.mean(gains, axis=0)
    return mean
