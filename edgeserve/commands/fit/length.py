"""Fits a length model to recorded prompts, and says how well it predicts kinds of prompts that it has not seen."""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.commands.fit.ranks import correlation, ranks_of
from edgeserve.config.text_files import regular_file
from edgeserve.errors import ConfigError
from edgeserve.predict.length import (
    BUCKETS,
    RESIDUALS,
    WORD,
    LengthModel,
    LengthPrediction,
    buckets,
    rule_logs,
    standard,
)
from edgeserve.predict.rules import RuleScorer

TEXTS_MIN = 40
"""Fewer texts than these fit a model to chance."""

TEXTS_MAX = 2000
"""The last so many texts of a history are fitted to: the square of their number is held in memory."""

FOLDS = 5
"""A fifth of the forms is held out at a time."""

RIDGE = 1.0
"""Penalty of the weights: of 1 and 3, the better on the first 300 answers of research/common/answers.jsonl."""


class Errors(NamedTuple):
    """The agreement of predicted lengths with the true ones on held-out forms of texts. ``mae`` is in tokens; ``mean``
    is the sum of the predicted means over that of the lengths; ``within_90`` the share of the lengths that do not
    exceed their predicted 0.9-quantile."""

    spearman: float
    pearson: float
    mae: float
    mean: float
    within_90: float


class History(NamedTuple):
    """Texts, the tokens of their answers, and what kind of text each is."""

    texts: List[str]
    tokens: NDArray[Any]
    forms: List[str]


def report(source: str, path: str, as_json: bool) -> int:
    """Fit a length model to the history ``source``, write ``path``, and print how well it predicts."""
    history = read_history(source)
    model = fit(history)
    model.save(path)
    if as_json:
        print(json.dumps({"file": path, **model.about}))
        return 0
    print(f"{'on held-out forms of texts':<28}{'Spearman':>10}{'Pearson':>9}{'MAE, tokens':>13}")
    for name, errors in model.about["errors"].items():
        print(f"{name:<28}{errors['spearman']:>10.2f}{errors['pearson']:>9.2f}{errors['mae']:>13.1f}")
    told = model.about["errors"]["model"]
    print(
        f"{path}: from {len(history.texts)} texts of {len(set(history.forms))} forms; predicted means add up to "
        f"{told['mean']:.2f} of the tokens, {told['within_90']:.0%} of the answers are within their 0.9-quantile"
    )
    if told["spearman"] <= max(0.1, model.about["errors"]["number of words"]["spearman"]):
        print(
            "The texts say little of their answers' lengths: the model that comes with the package may serve as well."
        )
    return 0


def read_history(path: str) -> History:
    """Raises ``ConfigError`` with the line that cannot be used."""
    rows: List[Tuple[str, int, str]] = []
    try:
        with open(path, encoding="utf-8-sig", opener=regular_file) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_entry(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"history {path!r} cannot be read: {error}") from None
    if len(rows) < TEXTS_MIN:
        raise ConfigError(f"history {path!r} has {len(rows)} texts, expected at least {TEXTS_MIN}")
    texts, tokens, forms = zip(*rows[-TEXTS_MAX:])
    return History(list(texts), np.array(tokens, float), list(forms))


def _entry(line: str, where: str) -> Tuple[str, int, str]:
    try:
        entry = json.loads(line)
        text, tokens = entry["text"], entry["tokens"]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f'{where}: {line.strip()[:80]!r}, expected {{"text": ..., "tokens": ...}}') from None
    if not isinstance(text, str):
        raise ConfigError(f"{where}: text = {text!r}, expected a string")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"{where}: tokens = {tokens!r}, expected a whole number of at least 1")
    return text, tokens, str(entry.get("form", form_of(text)))


def form_of(text: str) -> str:
    """Which kind of text it is, where nothing says that: its first two words."""
    return " ".join(WORD.findall(text[:200].lower())[:2])


def fit(history: History, seed: int = 1) -> LengthModel:
    """The model of all texts; its residuals and errors (``about["errors"]``) are those on forms that were held out."""
    rows = Rows(history.texts)
    logs = np.log(history.tokens)
    held = np.zeros(len(logs))
    for test in folds(history.forms, seed):
        train = np.setdiff1d(np.arange(len(logs)), test)
        held[test] = _ridge(rows, logs, train).log_means(rows, test)
    residuals = np.quantile(logs - held, (np.arange(RESIDUALS) + 0.5) / RESIDUALS)
    whole = _ridge(rows, logs, np.arange(len(logs)))
    most = float(history.tokens.max())
    factor = _factor(held, residuals, history.tokens, most)
    predicted = [LengthPrediction(mean, residuals, factor) for mean in held]
    errors = {
        "number of words": errors_of(rows.logs[:, -1], history.tokens),
        "model": errors_of(
            [law.mean(most) for law in predicted], history.tokens, [law.quantile(0.9, most) for law in predicted]
        ),
    }
    about: Dict[str, Any] = {
        "texts": len(logs),
        "forms": len(set(history.forms)),
        "errors": {name: row._asdict() for name, row in errors.items()},
    }
    return LengthModel(whole.weights, whole.bias, whole.shift, whole.scale, residuals, factor, about)


def _factor(held: NDArray[Any], residuals: NDArray[Any], tokens: NDArray[Any], most: float) -> float:
    """By which the predicted means add up to the tokens, although none is above ``most``."""
    factor = 1.0
    for _ in range(5):
        means = [LengthPrediction(mean, residuals, factor).mean(most) for mean in held]
        factor *= float(tokens.sum() / sum(means))
    return factor


def folds(forms: Sequence[str], seed: int) -> List[NDArray[Any]]:
    """The places that are held out together, whole forms at a time: single texts where there are too few forms."""
    kinds = sorted(set(forms))
    if len(kinds) < FOLDS:
        forms = [str(place) for place in range(len(forms))]
        kinds = sorted(forms)
    order = np.random.default_rng(seed).permutation(len(kinds))
    fold = {kinds[kind]: place % FOLDS for place, kind in enumerate(order)}
    of = np.array([fold[form] for form in forms])
    return [np.flatnonzero(of == place) for place in range(FOLDS)]


def errors_of(means: Any, tokens: NDArray[Any], quantiles: Any = ()) -> Errors:
    """The errors of predicted means, and of 0.9-quantiles where there are any."""
    means = np.asarray(means, float)
    return Errors(
        correlation(ranks_of(means), ranks_of(tokens)),
        correlation(means, tokens),
        float(np.abs(means - tokens).mean()),
        float(means.sum() / tokens.sum()),
        float((tokens <= np.asarray(quantiles)).mean()) if len(quantiles) else 0.0,
    )


class Rows:
    """The features that the model reads of each text: a row of buckets (dense), and the logarithms of its rule
    scores."""

    def __init__(self, texts: Sequence[str]) -> None:
        scorer = RuleScorer()
        self.words = np.zeros((len(texts), BUCKETS), np.float32)
        for row, text in enumerate(texts):
            at = buckets(text)
            self.words[row, at] = 1.0 / np.sqrt(max(1, len(at)))
        self.logs = np.array([rule_logs(text, scorer) for text in texts])


class _Ridge(NamedTuple):
    """A ridge regression: weights of buckets and rule scores, and how the latter are standardised."""

    weights: NDArray[Any]
    bias: float
    shift: NDArray[Any]
    scale: NDArray[Any]

    def log_means(self, rows: Rows, of: NDArray[Any]) -> NDArray[Any]:
        design = np.hstack([rows.words[of], standard(rows.logs[of], self.shift, self.scale)])
        means: NDArray[Any] = np.maximum(0.0, design @ self.weights + self.bias)
        return means


def _ridge(rows: Rows, logs: NDArray[Any], train: NDArray[Any]) -> _Ridge:
    """Solved in its dual form: there are fewer texts than weights."""
    shift, spread = rows.logs[train].mean(axis=0), rows.logs[train].std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    design = np.hstack([rows.words[train], standard(rows.logs[train], shift, scale)])
    centre, middle = design.mean(axis=0), float(logs[train].mean())
    design = design - centre
    dual = np.linalg.solve(design @ design.T + RIDGE * np.eye(len(train)), logs[train] - middle)
    weights = design.T @ dual
    return _Ridge(weights, middle - float(centre @ weights), shift, scale)
