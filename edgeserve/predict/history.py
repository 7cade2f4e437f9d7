"""A history: what every model of an ensemble answered to each of many requests. One ``.npz`` file of plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.arrays import read_npz
from edgeserve.errors import ConfigError

TASKS = ("classification", "regression")
RECORDS_MIN = 50
ROW_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class EnsembleHistory:
    """``outputs`` has the shape (records, models, values): probabilities of the classes, or the components of a vector.

    ``labels``, shape (records,): the true class where known (classification), shape (records, values) for regression.
    ``features``, shape (records, features): what a difficulty predictor may read of a request. ``groups``, shape
    (records,): records of one group are versions of one thing and never lie on both sides of a split.
    """

    models: Tuple[str, ...]
    outputs: NDArray[Any]
    task: str = "classification"
    labels: Optional[NDArray[Any]] = None
    features: Optional[NDArray[Any]] = None
    groups: Optional[NDArray[Any]] = None

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ConfigError(problem)

    def __len__(self) -> int:
        return int(self.outputs.shape[0])

    def part(self, rows: NDArray[Any]) -> EnsembleHistory:
        """The records at the places ``rows``."""

        def of(array: Optional[NDArray[Any]]) -> Optional[NDArray[Any]]:
            return None if array is None else array[rows]

        return EnsembleHistory(
            self.models, self.outputs[rows], self.task, of(self.labels), of(self.features), of(self.groups)
        )

    def halves(self, seed: int) -> Tuple[NDArray[Any], NDArray[Any]]:
        """The places of two halves, drawn by group."""
        groups = np.arange(len(self)) if self.groups is None else self.groups
        names, members = np.unique(groups, return_inverse=True)
        first: NDArray[Any] = np.zeros(len(names), bool)
        first[np.random.default_rng(seed).permutation(len(names))[: len(names) // 2]] = True
        inside = first[members]
        return np.flatnonzero(inside), np.flatnonzero(~inside)

    def _problem(self) -> str:
        shape = self.outputs.shape
        if len(shape) != 3 or not 0 < shape[1] == len(self.models) == len(set(self.models)) or not shape[2]:
            return (
                f"outputs have the shape {list(shape)} for the models {', '.join(self.models)}: "
                "expected (records, models, values) and different names"
            )
        if shape[0] < RECORDS_MIN:
            return f"outputs have {shape[0]} records: expected at least {RECORDS_MIN}"
        if self.task not in TASKS:
            return f"task = {self.task!r}: expected one of {', '.join(TASKS)}"
        for name, array in (("labels", self.labels), ("features", self.features), ("groups", self.groups)):
            if array is not None and array.shape[:1] != shape[:1]:
                return f"{name} has {len(array) if array.ndim else 'no'} rows for {shape[0]} records"
        if not np.isfinite(self.outputs).all():
            return f"outputs of record {int(np.argwhere(~np.isfinite(self.outputs))[0][0])} are not finite"
        if self.task == "classification":
            wrong = (self.outputs < -1e-6).any(axis=2) | (abs(self.outputs.sum(axis=2) - 1) > ROW_SUM_TOLERANCE)
            if wrong.any():
                record, model = (int(place) for place in np.argwhere(wrong)[0])
                return (
                    f"outputs of model {self.models[model]!r}, record {record}: {self.outputs[record, model]} are "
                    "no probabilities; give the softmax of logits, or task = 'regression'"
                )
            if self.labels is not None and not self._labels_are_classes(shape[2]):
                return f"labels: expected whole numbers from 0 to {shape[2] - 1}, one per record"
        elif self.labels is not None and not (self.labels.size == shape[0] * shape[2] and _are_numbers(self.labels)):
            return f"labels are {self.labels.dtype} {list(self.labels.shape)}: expected (records, values), finite"
        if self.features is not None and (self.features.ndim != 2 or not _are_numbers(self.features)):
            return f"features have the shape {list(self.features.shape)}: expected (records, features), finite numbers"
        if self.groups is not None and self.groups.ndim != 1:
            return f"groups have the shape {list(self.groups.shape)}: expected one per record"
        return ""

    def _labels_are_classes(self, classes: int) -> bool:
        labels = np.asarray(self.labels)
        return (
            labels.ndim == 1
            and labels.dtype.kind in "iu"
            and bool(len(labels))
            and int(labels.min()) >= 0
            and int(labels.max()) < classes
        )


def _are_numbers(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "biuf" and bool(np.isfinite(array).all())


def read_arrays(path: str) -> Dict[str, NDArray[Any]]:
    """The arrays of a history's file, not looked at. Raises ``ConfigError`` where the file is none."""
    try:
        return read_npz(path)
    except OSError as error:
        raise ConfigError(f"history {path!r} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"history {path!r} is no .npz file of plain arrays: {error}") from None


def load_history(path: str) -> EnsembleHistory:
    """The history of a file. Raises ``ConfigError`` with the array that cannot be used."""
    arrays = read_arrays(path)
    known = ("models", "outputs", "task", "labels", "features", "groups")
    odd = [name for name in arrays if name not in known]
    missing = [name for name in ("models", "outputs") if name not in arrays]
    if odd or missing:
        raise ConfigError(
            f"history {path!r} has the arrays {', '.join(arrays)}: expected models and outputs, "
            f"and may have {', '.join(known[2:])}"
        )
    try:
        if arrays["outputs"].dtype.kind not in "biuf":
            raise ValueError(f"outputs are {arrays['outputs'].dtype}: expected numbers")
        return EnsembleHistory(
            tuple(str(name) for name in np.atleast_1d(arrays["models"])),
            arrays["outputs"].astype(float),
            str(arrays.get("task", TASKS[0])),
            arrays.get("labels"),
            arrays.get("features"),
            arrays.get("groups"),
        )
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"history {path!r}: {error}") from None


def are_probabilities(outputs: NDArray[Any]) -> bool:
    """True if outputs (records, models, values) are probabilities of classes: at least two, none negative, sum 1."""
    return bool(
        outputs.shape[2] > 1 and (outputs >= -1e-6).all() and (abs(outputs.sum(axis=2) - 1) <= ROW_SUM_TOLERANCE).all()
    )


def save_history(path: str, history: EnsembleHistory) -> None:
    """Write a history as :func:`load_history` reads it."""
    arrays: Dict[str, Any] = {
        "models": np.array(history.models),
        "outputs": history.outputs,
        "task": np.array(history.task),
    }
    for name in ("labels", "features", "groups"):
        if getattr(history, name) is not None:
            arrays[name] = getattr(history, name)
    np.savez_compressed(path, **arrays)
