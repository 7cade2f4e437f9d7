"""Fits a length model to recorded prompts (RT-LM, Section III-B), beside the simpler predictors it has to beat."""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import ConfigError
from edgeserve.predict.length import SIGMA_MAX, LengthModel
from edgeserve.predict.rules import RuleScorer, features
from edgeserve.tools.fit.ranks import correlation, ranks_of

HIDDEN = (100, 200, 200, 100)
"""The widths of the network's hidden layers, as published."""

BATCH = 32

TEXTS_MIN = 40
"""Fewer texts than these fit a network to chance."""

TAU_SHARE = 0.9


class Errors(NamedTuple):
    """How well predicted lengths agree with the true ones on held-out texts. ``mae`` is in tokens."""

    pearson: float
    spearman: float
    mae: float


def main(args: argparse.Namespace) -> int:
    texts, lengths = read_history(args.history)
    model, ladder = fit(
        texts, lengths, tokens_max=args.tokens_max, held_out=args.held_out, epochs=args.epochs, seed=args.seed
    )
    path = args.out or f"{args.app}.length.npz"
    model.save(path)
    if args.json:
        print(json.dumps({"file": path, **model.about}))
        return 0
    print(f"{'on held-out texts':<24}{'Pearson':>9}{'Spearman':>10}{'MAE, tokens':>13}")
    for name, errors in ladder.items():
        print(f"{name:<24}{errors.pearson:>9.2f}{errors.spearman:>10.2f}{errors.mae:>13.1f}")
    print(
        f"{path}: from {model.about['trained_on']} texts; a tenth of the answers is predicted above "
        f"{model.about['tau']:.0f} tokens"
    )
    return 0


def read_history(path: str) -> Tuple[List[str], List[int]]:
    """Texts and their numbers of output tokens. Raises ``ConfigError`` with the line that cannot be used."""
    texts: List[str] = []
    lengths: List[int] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                text, tokens = _entry(line, f"{path}, line {number}")
                texts.append(text)
                lengths.append(tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"history {path!r} cannot be read: {error}") from None
    if len(texts) < TEXTS_MIN:
        raise ConfigError(f"history {path!r} has {len(texts)} texts, expected at least {TEXTS_MIN}")
    return texts, lengths


def _entry(line: str, where: str) -> Tuple[str, int]:
    try:
        entry = json.loads(line)
        text, tokens = entry["text"], entry["tokens"]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f'{where}: {line.strip()[:80]!r}, expected {{"text": ..., "tokens": ...}}') from None
    if not isinstance(text, str):
        raise ConfigError(f"{where}: text = {text!r}, expected a string")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"{where}: tokens = {tokens!r}, expected a whole number of at least 1")
    return text, tokens


def fit(
    texts: Sequence[str],
    lengths: Sequence[int],
    *,
    tokens_max: int | None = None,
    held_out: float = 0.2,
    epochs: int = 100,
    seed: int = 1,
    tested: Sequence[int] = (),
) -> Tuple[LengthModel, Dict[str, Errors]]:
    """The model, trained on all but a share of the texts, and every predictor's errors on that share: a random one, or
    the texts at the places ``tested``.

    The network learns the logarithm of the length, since lengths are heavy-tailed. Its spread is the standard deviation
    of the held-out residual. Raises ``ConfigError`` where scikit-learn is missing or an argument makes no sense.
    """
    if not 0 < held_out < 1:
        raise ConfigError(f"held-out share {held_out}, expected between 0 and 1")
    rows = np.asarray(features([RuleScorer().scores(text) for text in texts]))
    tokens = np.asarray(lengths, float)
    longest = int(tokens.max()) if tokens_max is None else tokens_max
    order = np.random.default_rng(seed).permutation(len(tokens))
    count = max(2, round(held_out * len(tokens)))
    test, train = order[:count], order[count:]
    if tested:
        test, train = np.asarray(tested), np.setdiff1d(order, np.asarray(tested))
    shift = rows[train].mean(axis=0)
    spread = rows[train].std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    layers = _train((rows[train] - shift) / scale, np.log(tokens[train]), epochs, seed)
    draft = LengthModel(shift, scale, layers, 0.0, longest, {})
    residual = np.log(tokens[test]) - draft.log_means(rows[test].tolist())
    sigma = float(min(residual.std(), SIGMA_MAX))
    model = LengthModel(shift, scale, layers, sigma, longest, {})
    predicted = np.asarray([law.mean() for law in model.laws(rows.tolist())])
    ladder = _ladder(rows, tokens, train, test)
    ladder["LW, seven features"] = _errors(predicted[test], tokens[test])
    about: Dict[str, Any] = {
        "trained_on": len(train),
        "held_out": len(test),
        "tau": float(np.quantile(predicted[train], TAU_SHARE)),
        "errors": {name: errors._asdict() for name, errors in ladder.items()},
    }
    model.about.update(about)
    return model, ladder


def _train(rows: NDArray[Any], logs: NDArray[Any], epochs: int, seed: int) -> List[Tuple[NDArray[Any], NDArray[Any]]]:
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ConfigError(f"fitting needs scikit-learn ({error}); pip install 'edgeserve-runtime[fit]'") from None
    import warnings

    network = MLPRegressor(
        hidden_layer_sizes=HIDDEN,
        batch_size=min(BATCH, len(rows)),
        learning_rate_init=1e-3,
        max_iter=epochs,
        random_state=seed,
        early_stopping=True,
        n_iter_no_change=10,
    )
    with warnings.catch_warnings(), threadpool_limits(1):  # matrices this small lose by threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is the user's choice
        network.fit(rows, logs)
    return list(zip(network.coefs_, network.intercepts_))


def _ladder(rows: NDArray[Any], tokens: NDArray[Any], train: NDArray[Any], test: NDArray[Any]) -> Dict[str, Errors]:
    """RT-LM's Fig. 2: length of the input, the best single rule, and a linear regression on the six scores."""
    single = [_linear(rows[:, [rule]], tokens, train, test) for rule in range(6)]
    return {
        "input length": _linear(rows[:, [6]], tokens, train, test),
        "best single rule": max(single, key=lambda errors: errors.pearson),
        "weighted rules": _linear(rows[:, :6], tokens, train, test),
    }


def _linear(columns: NDArray[Any], tokens: NDArray[Any], train: NDArray[Any], test: NDArray[Any]) -> Errors:
    design = np.column_stack([columns, np.ones(len(columns))])
    weights = np.linalg.lstsq(design[train], tokens[train], rcond=None)[0]
    return _errors(design[test] @ weights, tokens[test])


def _errors(predicted: NDArray[Any], tokens: NDArray[Any]) -> Errors:
    return Errors(
        correlation(predicted, tokens),
        correlation(ranks_of(predicted), ranks_of(tokens)),
        float(np.abs(predicted - tokens).mean()),
    )
