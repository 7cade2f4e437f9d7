"""The combination of the outputs of some or all models of an ensemble into one answer (Schemble, sections II and VI).

Votes and averages leave missing models out and share their weight. Stacking fills missing outputs from the nearest full
records of the history, then applies its small fitted model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.errors import ConfigError
from edgeserve.predict.discrepancy import SMALLEST

KINDS = ("vote", "weighted_vote", "average", "weighted_average", "stacking")
NEIGHBOURS = 10
NEAR = 1e-3
"""Added to a distance before its inverse is a weight."""


@dataclass(frozen=True)
class Combiner:
    """``weights``: one per model. Stacking alone has ``coefficients`` (models * values, values), ``intercepts``
    (values,) and ``records`` (records, models, values), from which missing outputs are filled."""

    kind: str
    task: str
    weights: Tuple[float, ...]
    coefficients: Optional[NDArray[Any]] = None
    intercepts: Optional[NDArray[Any]] = None
    records: Optional[NDArray[Any]] = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"combiner = {self.kind!r}: expected one of {', '.join(KINDS)}")
        if self.kind.endswith("vote") and self.task != "classification":
            raise ConfigError(
                f"combiner = {self.kind!r} needs classes; of a regression expected average, "
                "weighted_average or stacking"
            )
        if not self.weights or min(self.weights) < 0 or sum(self.weights) <= 0:
            raise ConfigError(f"weights = {list(self.weights)}: expected numbers from 0, not all of them 0")

    def answers(self, outputs: NDArray[Any], subset: int) -> NDArray[Any]:
        """The answers, shape (records, values), from the models whose bits ``subset`` has; of the other models
        ``outputs`` (records, models, values) may hold anything. Raises ``ValueError`` for no model."""
        models = [model for model in range(len(self.weights)) if subset >> model & 1]
        if not models:
            raise ValueError(f"subset = {subset}: expected at least one of {len(self.weights)} models")
        if self.kind == "stacking":
            return self._stacked(self.filled(outputs, models))
        weights = np.ones(len(models))
        if self.kind.startswith("weighted"):
            weights = np.asarray([self.weights[model] for model in models])
            if weights.sum() <= 0:
                weights = np.ones(len(models))
        present = outputs[:, models]
        if self.kind.endswith("vote"):
            present = np.eye(outputs.shape[2])[present.argmax(axis=2)]
        answers: NDArray[Any] = np.tensordot(present, weights / weights.sum(), axes=([1], [0]))
        return answers

    def filled(self, outputs: NDArray[Any], models: list[int]) -> NDArray[Any]:
        """``outputs`` with those of the other models estimated from the nearest of ``records``, by distance on the
        outputs of ``models``, weighted by the inverse distance."""
        missing = [model for model in range(len(self.weights)) if model not in models]
        if not missing:
            return outputs
        records = self.records
        if records is None:
            raise ValueError("the combiner has no records to fill missing outputs from")
        known = records[:, models].reshape(len(records), -1)
        made = np.array(outputs, float)
        for row, own in enumerate(outputs[:, models].reshape(len(outputs), -1)):
            distances = np.sqrt(((known - own) ** 2).sum(axis=1))
            near = np.argsort(distances, kind="stable")[:NEIGHBOURS]
            weights = 1.0 / (distances[near] + NEAR)
            made[row, missing] = np.tensordot(weights / weights.sum(), records[near][:, missing], axes=([0], [0]))
        return made

    def _stacked(self, outputs: NDArray[Any]) -> NDArray[Any]:
        assert self.coefficients is not None and self.intercepts is not None
        values = stacking_inputs(outputs, self.task) @ self.coefficients + self.intercepts
        if self.task == "regression":
            regressed: NDArray[Any] = values
            return regressed
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        answers: NDArray[Any] = powers / powers.sum(axis=1, keepdims=True)
        return answers

    def table(self) -> Dict[str, Any]:
        """Plain values, as :func:`combiner_of` reads them."""
        table: Dict[str, Any] = {"kind": self.kind, "task": self.task, "weights": list(self.weights)}
        for name in ("coefficients", "intercepts", "records"):
            array = getattr(self, name)
            if array is not None:
                rounded = np.round(array, 5)
                table[name] = rounded.reshape(len(rounded), -1).tolist() if rounded.ndim > 1 else rounded.tolist()
        return table


def combiner_of(table: Any, where: str) -> Combiner:
    """A combiner of plain values. Raises ``ConfigError`` that names the fault."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: combiner = {table!r}: expected a table; make it with 'edgeserve profile --fit'")
    try:
        weights = tuple(float(weight) for weight in table["weights"])
        arrays = {
            name: np.asarray(table[name], float) if name in table else None
            for name in ("coefficients", "intercepts", "records")
        }
        combiner = Combiner(
            str(table["kind"]), str(table["task"]), weights, arrays["coefficients"], arrays["intercepts"], None
        )
        if combiner.kind != "stacking":
            return combiner
        return _stacking(combiner, arrays)
    except KeyError as error:
        raise ConfigError(
            f"{where}: combiner has no key {error}; make the file again with 'edgeserve profile --fit'"
        ) from None
    except (ConfigError, ValueError, TypeError) as error:
        raise ConfigError(f"{where}: combiner: {error}") from None


def _stacking(combiner: Combiner, arrays: Mapping[str, Optional[NDArray[Any]]]) -> Combiner:
    coefficients, intercepts, records = (arrays[name] for name in ("coefficients", "intercepts", "records"))
    models = len(combiner.weights)
    if coefficients is None or intercepts is None or records is None or intercepts.ndim != 1 or not len(records):
        raise ValueError("stacking needs coefficients, intercepts and records")
    values = len(intercepts)
    if coefficients.shape != (models * values, values) or records.shape[1:] != (models * values,):
        raise ValueError(
            f"coefficients {list(coefficients.shape)} and records {list(records.shape)} do not fit "
            f"{models} models of {values} values"
        )
    return Combiner(
        combiner.kind,
        combiner.task,
        combiner.weights,
        coefficients,
        intercepts,
        records.reshape(len(records), models, values),
    )


def stacking_inputs(outputs: NDArray[Any], task: str) -> NDArray[Any]:
    """The inputs of the stacked model, shape (records, models * values): logarithms of probabilities, or plain
    values."""
    flat = outputs.reshape(len(outputs), -1)
    inputs: NDArray[Any] = np.log(np.clip(flat, SMALLEST, None)) if task == "classification" else flat
    return inputs
