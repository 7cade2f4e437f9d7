"""The ``combine`` engine: the join of an ensemble, with the combiner of a file of ``edgeserve profile --fit``.

Each input is called as a model of the ensemble and holds that model's output (probabilities, or the components of a
vector); models that were left out are missing. The outputs are ``answer`` (float32, the shape of one model's output),
for a classification ``label`` (int64), and ``models``, the names of the models that took part.
"""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.ensemble_profile import read_fit
from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, Result, RowFacts, Values, own_failure
from edgeserve.engines.collate import MASKED, has_masked
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, ExampleUnknown, nearest
from edgeserve.predict.combiner import Combiner, combiner_of


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    """The registry's entry."""
    return CombineEngine(model, directory)


class CombineEngine(Engine):
    """One combiner; every item of a batch may lack other models. Changes nothing between calls."""

    def __init__(self, model: ModelConfig, directory: str) -> None:
        Options(model, ())
        self._model = model
        self._where = f"model {model.name!r}"
        self._path = model_path(model, directory)
        self._names: Tuple[str, ...] = ()
        self._combiner: Optional[Combiner] = None

    def load(self) -> Footprint:
        if self._combiner is None:
            try:
                table = read_fit(self._path)
                if table is None:
                    raise ConfigError(f"{self._path} does not exist; make it with 'edgeserve profile --fit'")
                self._combiner = combiner_of(dict(table.get("fit", {})).get("combiner"), self._path)
                self._names = tuple(str(name) for name in dict(table.get("profile", {})).get("models", ()))
            except ConfigError as error:
                raise EngineError(f"{self._where}: {error}") from None
            if len(self._names) != len(self._combiner.weights):
                raise EngineError(
                    f"{self._where}: {self._path} combines {len(self._combiner.weights)} models and "
                    f"names {len(self._names)}; make the file again with 'edgeserve profile --fit'"
                )
        return Footprint(max(4096, os.path.getsize(self._path)))

    def unload(self) -> None:
        self._combiner = None

    def rows(self) -> RowFacts:
        return RowFacts(checked=False)

    def output_names(self) -> FrozenSet[str]:
        return frozenset({"answer", "models"})

    def example(self) -> Values:
        """Every model's output, where the values' number is known."""
        self.load()
        assert self._combiner is not None
        shape = next((self._model.shapes[name] for name in self._names if name in self._model.shapes), None)
        if self._combiner.intercepts is not None:
            shape = (len(self._combiner.intercepts),)
        if shape is None:
            raise ExampleUnknown(
                f"{self._where}: the number of classes is not known; give the shape of a model's "
                f"output in [model.{self._model.name}] shapes = {{{self._names[0]} = [10]}}"
            )
        return {name: np.full(shape, 1.0 / max(1, int(np.prod(shape))), np.float32) for name in self._names}

    def run(self, batch: Batch) -> List[Result]:
        if self._combiner is None:
            raise EngineError(f"{self._where} is not loaded; call load() before run()")
        return [self._result(self._combiner, item) for item in batch.items]

    def _result(self, combiner: Combiner, item: Values) -> Result:
        try:
            present = self._present(item)
            first = next(iter(present.values()))
            outputs = np.zeros((1, len(self._names), first.size))
            for place, output in present.items():
                outputs[0, place] = output
            answer = combiner.answers(outputs, sum(1 << place for place in present))[0]
        except BaseException as error:  # noqa: BLE001 it is this item's
            return Result({}, error=own_failure(self._model.name, error))
        values: Values = {
            "answer": answer.astype(np.float32),
            "models": [self._names[place] for place in sorted(present)],
        }
        if combiner.task == "classification":
            values["label"] = np.int64(answer.argmax())
        return Result(values)

    def _present(self, item: Values) -> Dict[int, NDArray[Any]]:
        """The outputs that came, flat, by the place of their model."""
        present: Dict[int, NDArray[Any]] = {}
        shapes = set()
        for name, value in item.items():
            if name not in self._names:
                raise EngineError(
                    f"{self._where}: input {name!r} is no model of the ensemble"
                    f"{nearest(name, self._names)}; expected some of {', '.join(self._names)}"
                )
            if has_masked(value):
                raise EngineError(f"{self._where}: input {name!r} {MASKED}")
            try:
                array = np.asarray(value, float)
            except (TypeError, ValueError):
                raise EngineError(
                    f"{self._where}: input {name!r} is {type(value).__name__}; expected numbers"
                ) from None
            output = array.reshape(-1)
            if not np.isfinite(output).all():  # with the others it would be an answer, of the class that comes first
                raise EngineError(f"{self._where}: input {name!r} holds NaN or infinite numbers; expected finite ones")
            present[self._names.index(name)] = output
            shapes.add(tuple(length for length in array.shape if length != 1))
        if not present:
            raise EngineError(
                f"{self._where}: no model's output came; expected at least one of {', '.join(self._names)}"
            )
        sizes = sorted({array.size for array in present.values()})
        if self._combiner is not None and self._combiner.intercepts is not None:
            sizes = sorted({*sizes, len(self._combiner.intercepts)})
        if len(sizes) != 1:
            raise EngineError(
                f"{self._where}: the outputs have {' and '.join(map(str, sizes))} values; "
                "expected as many of each model"
            )
        tables = sorted(shape for shape in shapes if len(shape) > 1)
        if len(tables) > 1:  # such as one that has the other's rows as columns
            raise EngineError(
                f"{self._where}: the outputs have the shapes {' and '.join(map(str, map(list, tables)))}; expected one "
                "of each model"
            )
        return present
