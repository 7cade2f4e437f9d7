"""Fits an ensemble to its recorded outputs: combiner, difficulty, accuracy profile (Schemble, sections IV and V).

The history is split in two halves by group. One half trains the difficulty predictor, the other is scored by it and
gives the accuracy profile: a plan reads the profile with predicted scores, so predicted scores must make the bins.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.commands.fit.ranks import correlation, ranks_of
from edgeserve.config.ensemble_profile import EnsembleProfile, write_ensemble
from edgeserve.config.text_files import write_file
from edgeserve.errors import ConfigError
from edgeserve.predict.accuracy import (
    SCORE_BINS,
    agreements,
    bin_of,
    equal_edges,
    observed_tables,
    profile_rows,
)
from edgeserve.predict.combiner import Combiner, stacking_inputs
from edgeserve.predict.discrepancy import Discrepancy, fit_discrepancy, fit_temperature
from edgeserve.predict.history import EnsembleHistory, load_history

RECORDS_KEPT = 300
"""Full records that stacking fills missing outputs from."""

RANK_WEIGHT = 5.0
"""The weight of the score beside the class when the predictor is trained; its target is the score's rank."""

SEED = 1
"""The draw of the two halves, and of the network's first weights: the same history gives the same file."""

BINS = 10
"""Steps of difficulty for which the agreement of each subset is kept."""

EPOCHS = 100
"""Passes over the history at most; training stops earlier where the predictor improves no more."""

HIDDEN = (64, 32)
TOLERANCE_SHARE = 0.1
"""A regression agrees within this share of the standard deviation of the ensemble's answers."""


class Network(NamedTuple):
    """A trained predictor: standardised features through layers with ReLU between them; ``score`` is the column of the
    last layer that holds the score, times ``unit``."""

    shift: NDArray[Any]
    scale: NDArray[Any]
    layers: List[Tuple[NDArray[Any], NDArray[Any]]]
    unit: float

    def scores(self, features: NDArray[Any]) -> NDArray[Any]:
        """Scores from 0 to 1, shape (records,), of features (records, features)."""
        values = (features - self.shift) / self.scale
        for index, (weights, biases) in enumerate(self.layers):
            values = values @ weights + biases
            if index < len(self.layers) - 1:
                values = np.maximum(values, 0.0)
        scores: NDArray[Any] = np.clip(values[:, -1] / self.unit, 0.0, 1.0)
        return scores


def report(source: str, path: str, combiner: str, as_json: bool) -> int:
    """Fit an ensemble to the history ``source``, write ``path``, and print how well its models agree."""
    history = load_history(source)
    about = fit(history, path, combiner)
    if as_json:
        print(json.dumps({"file": path, **about}))
        return 0
    print(f"{path}: {about['records']} records of {', '.join(history.models)}, combined by {about['combiner']}")
    for name, share in about["agreement"].items():
        print(f"  {name:<40} agrees with all in {share:6.1%}")
    if about["predictor"]:
        print(
            f"{about['predictor']}: predicts the difficulty, rank correlation {about['rank_correlation']:.2f} "
            "on records that it was not trained on"
        )
    else:
        print("the history has no features: every request counts as one of mean difficulty")
    return 0


def _tell(step: str) -> None:
    print(f"edgeserve profile --fit: {step} ...", file=sys.stderr, flush=True)


def fit(history: EnsembleHistory, path: str, combiner: str = "weighted_average") -> Dict[str, Any]:
    """Fit and write ``path`` (and beside it the predictor, where the history has features). Returns what is worth
    telling. Raises ``ConfigError`` where an argument does not fit the history."""
    _tell(f"{len(history)} records: the combiner ({combiner})")
    made = make_combiner(history, combiner)
    full = (1 << len(history.models)) - 1
    answers = made.answers(history.outputs, full)
    tolerance = float(TOLERANCE_SHARE * np.sqrt(answers.var(axis=0).sum()))
    _tell("temperatures and difficulties")
    scoring = score_statistics(history, answers)
    truth = scoring.scores(history.outputs, answers)
    first, second = history.halves(SEED)
    network: Optional[Network] = None
    predicted: Optional[NDArray[Any]] = None
    if history.features is not None:
        _tell(f"the predictor of the difficulty, from {len(first)} records in at most {EPOCHS} epochs")
        network = train(history.part(first), answers[first], truth[first], EPOCHS, SEED)
        predicted = network.scores(history.features[second])
    _tell(f"the agreement of every subset of {len(history.models)} models, from {len(second)} records")
    profile = profile_of(history.models, made, history.outputs[second], predicted, BINS, tolerance)
    predictor = "" if network is None else f"{os.path.splitext(path)[0]}.onnx"
    about = _about(history, made, tolerance)
    about["predictor"] = predictor and os.path.basename(predictor)
    if network is not None and predicted is not None:
        export(network, predictor)
        about["predictor_sha256"] = _sha256(predictor)
        about["rank_correlation"] = correlation(ranks_of(predicted), ranks_of(truth[second]))
    fitted = {
        "combiner": made.table(),
        "temperatures": list(scoring.temperatures),
        "scales": list(scoring.scales),
        "top": scoring.top,
        "tolerance": tolerance,
    }
    write_ensemble(path, profile, fit=fitted, about=about)
    return about


def make_combiner(history: EnsembleHistory, kind: str) -> Combiner:
    """A combiner with weights by how good each model is: the log-odds of being right, or the inverse squared error."""
    reference = Combiner("average", history.task, (1.0,) * len(history.models))
    everything = (1 << len(history.models)) - 1
    target = reference.answers(history.outputs, everything)
    if history.task == "classification":
        labels = target.argmax(axis=1) if history.labels is None else np.asarray(history.labels)
        right = (history.outputs.argmax(axis=2) == labels[:, None]).mean(axis=0)
        odds = np.clip(right, 0.5 / len(history), 1 - 0.5 / len(history))
        weights = np.maximum(np.log(odds / (1 - odds)), 1e-3)
    else:
        truth = target if history.labels is None else np.asarray(history.labels, float).reshape(len(history), -1)
        weights = 1.0 / (((history.outputs - truth[:, None, :]) ** 2).sum(axis=2).mean(axis=0) + 1e-9)
    shares = tuple(float(weight) for weight in weights / weights.sum())
    if kind != "stacking":
        return Combiner(kind, history.task, shares)
    if history.labels is None:
        raise ConfigError(
            "combiner = 'stacking' is fitted to true labels, and the history has none; "
            "record them, or take another combiner"
        )
    return _stacking(history, shares)


def _stacking(history: EnsembleHistory, weights: Tuple[float, ...]) -> Combiner:
    try:
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError as error:
        raise _no_sklearn(error) from None
    inputs = stacking_inputs(history.outputs, history.task)
    values = history.outputs.shape[2]
    labels = np.asarray(history.labels)
    if history.task == "regression":
        linear = Ridge(alpha=1.0).fit(inputs, labels.reshape(len(labels), -1))
        coefficients, intercepts = linear.coef_.reshape(values, -1).T, np.broadcast_to(linear.intercept_, (values,))
    else:
        logistic = LogisticRegression(max_iter=500, C=0.1).fit(inputs, labels)
        coefficients = np.zeros((inputs.shape[1], values))
        intercepts = np.full(values, -30.0)  # a class that the history lacks is never the answer
        seen = logistic.classes_
        if len(seen) == 2:
            coefficients[:, seen[1]], intercepts[seen] = logistic.coef_[0], (0.0, float(logistic.intercept_[0]))
        else:
            coefficients[:, seen], intercepts[seen] = logistic.coef_.T, logistic.intercept_
    every = max(1, len(history) // RECORDS_KEPT)
    return Combiner(
        "stacking",
        history.task,
        weights,
        np.array(coefficients),
        np.array(intercepts),
        history.outputs[::every][:RECORDS_KEPT],
    )


def score_statistics(history: EnsembleHistory, answers: NDArray[Any]) -> Discrepancy:
    """Temperatures, by the true labels or else the ensemble's, and mean distances."""
    temperatures = (1.0,) * len(history.models)
    if history.task == "classification":
        labels = answers.argmax(axis=1) if history.labels is None else np.asarray(history.labels)
        temperatures = tuple(fit_temperature(history.outputs[:, model], labels) for model in range(len(history.models)))
    return fit_discrepancy(history.task, history.outputs, answers, temperatures)


def train(history: EnsembleHistory, answers: NDArray[Any], scores: NDArray[Any], epochs: int, seed: int) -> Network:
    """The difficulty predictor (Eq. 2): a small network that learns the score's rank, and beside it the ensemble's
    class, which shares its hidden layers. Both are learnt by squared error."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise _no_sklearn(error) from None
    import warnings

    features = np.asarray(history.features, float)
    shift, spread = features.mean(axis=0), features.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    unit = float(np.sqrt(RANK_WEIGHT))
    ranks = ranks_of(scores) / len(scores)
    targets = np.column_stack([*_class_columns(history.task, answers), ranks * unit])
    network = MLPRegressor(
        hidden_layer_sizes=HIDDEN,
        max_iter=epochs,
        random_state=seed,
        early_stopping=True,
        n_iter_no_change=15,
        alpha=1e-3,
        batch_size=min(64, len(features)),
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # matrices this small lose by threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is the user's choice
        network.fit((features - shift) / scale, targets if targets.shape[1] > 1 else targets[:, 0])
    return Network(shift, scale, list(zip(network.coefs_, network.intercepts_)), unit)


def _class_columns(task: str, answers: NDArray[Any]) -> List[NDArray[Any]]:
    if task != "classification":
        return []
    labels = answers.argmax(axis=1)
    return [(labels == label).astype(float) for label in range(answers.shape[1])]


def profile_of(
    models: Tuple[str, ...],
    combiner: Combiner,
    outputs: NDArray[Any],
    predicted: Optional[NDArray[Any]],
    bins: int,
    tolerance: float,
) -> EnsembleProfile:
    """The accuracy profile of ``outputs`` (records, models, values) by their ``predicted`` scores (records,), in at
    most ``bins`` bins; without scores one bin. A vector agrees within ``tolerance``."""
    if predicted is None:
        edges: Tuple[float, ...] = ()
        score_edges: Tuple[float, ...] = ()
        places: NDArray[Any] = np.zeros(len(outputs), int)
    else:
        edges, score_edges = equal_edges(predicted, bins), equal_edges(predicted, SCORE_BINS)
        places = bin_of(predicted, edges)
    count = len(edges) + 1
    rows = profile_rows(combiner, outputs, places, count, tolerance)
    shares = tuple(float(share) for share in np.bincount(places, minlength=count) / len(places))
    return EnsembleProfile(
        models,
        edges,
        tuple(_rounded(row) for row in rows),
        shares=shares,
        weights=combiner.weights,
        score_edges=score_edges,
        observed=observed_tables(combiner, outputs, predicted, score_edges, tolerance),
    )


def _rounded(values: Sequence[float]) -> Tuple[float, ...]:
    return tuple(round(value, 6) for value in values)


def export(network: Network, path: str) -> None:
    """Write the predictor as an ONNX network: ``features`` (N, features) in, ``difficulty`` (N,) out."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise ConfigError(f"writing the predictor needs onnx ({error}); pip install 'edgeserve-runtime[fit]'") from None
    weights, biases = network.layers[-1]
    last = (weights[:, -1:] / network.unit, biases[-1:] / network.unit)
    layers = [
        (
            network.layers[0][0] / network.scale[:, None],
            network.layers[0][1] - (network.shift / network.scale) @ network.layers[0][0],
        ),
        *network.layers[1:-1],
        last,
    ]
    nodes, constants, value = [], [], "features"
    for index, (matrix, offset) in enumerate(layers):
        for name, array in ((f"weights_{index}", matrix), (f"biases_{index}", offset)):
            constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        nodes.append(helper.make_node("Gemm", [value, f"weights_{index}", f"biases_{index}"], [f"layer_{index}"]))
        value = f"layer_{index}"
        if index < len(layers) - 1:
            nodes.append(helper.make_node("Relu", [value], [f"active_{index}"]))
            value = f"active_{index}"
    constants += [
        numpy_helper.from_array(np.asarray(0, np.float32), "low"),
        numpy_helper.from_array(np.asarray(1, np.float32), "high"),
        numpy_helper.from_array(np.asarray([-1], np.int64), "flat"),
    ]
    nodes += [
        helper.make_node("Clip", [value, "low", "high"], ["clipped"]),
        helper.make_node("Reshape", ["clipped", "flat"], ["difficulty"]),
    ]
    graph = helper.make_graph(
        nodes,
        "difficulty",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", len(network.shift)])],
        [helper.make_tensor_value_info("difficulty", TensorProto.FLOAT, ["N"])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    write_file(path, model.SerializeToString())


def _about(history: EnsembleHistory, combiner: Combiner, tolerance: float) -> Dict[str, Any]:
    full = (1 << len(history.models)) - 1
    shares = agreements(combiner, history.outputs, _told_subsets(len(history.models)), tolerance)
    named = {
        " + ".join(name for bit, name in enumerate(history.models) if subset >> bit & 1): round(float(hits.mean()), 4)
        for subset, hits in shares.items()
        if subset != full
    }
    return {"records": len(history), "combiner": combiner.kind, "agreement": named}


def _told_subsets(models: int) -> List[int]:
    """Single models and pairs: more would be too long a table."""
    return [subset for subset in range(1, 1 << models) if bin(subset).count("1") <= 2]


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _no_sklearn(error: ImportError) -> ConfigError:
    return ConfigError(f"fitting needs scikit-learn ({error}); pip install 'edgeserve-runtime[fit]'")
