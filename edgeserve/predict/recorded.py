"""The file of a history that grows while an ensemble serves: the latest records, whole after every write.

One thread uses it. When to write, and what happens when a write fails, is the caller's business.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import deque
from typing import Any, Deque, Dict, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.text_files import write_whole_bytes
from edgeserve.errors import ConfigError
from edgeserve.predict.history import TASKS, are_probabilities, read_arrays

BYTES_MAX = 64 * 2**20
"""The most bytes of the numbers of all records together, for any ``records_max``: they are held in memory to be
written."""

Record = Tuple[NDArray[Any], Optional[NDArray[Any]]]
"""Outputs, float32 (models, values); features, float32 (features,), or None."""


class RecordedHistory:
    """The latest ``records_max`` records of an ensemble, in memory and in the file ``path`` as of the last write.

    What stands in the file already is gone on with. A file of other models or of other sizes is renamed to
    ``path + ".old"``, and so is one that cannot be read.
    """

    def __init__(self, path: str, models: Sequence[str], records_max: int) -> None:
        self.path = path
        self.models = tuple(models)
        self.unwritten = 0
        self._records_max = records_max
        self._records: Deque[Record] = deque(maxlen=records_max)

    def __len__(self) -> int:
        return len(self._records)

    def load(self) -> str:
        """Take what the file holds. Returns why it was moved aside, or ``""``."""
        if not os.path.isfile(self.path):
            return ""  # a folder stays where it is: writing says so
        try:
            arrays = read_arrays(self.path)
            self._take(arrays)
        except ConfigError as error:
            return self._move_aside(str(error))
        except (KeyError, ValueError, IndexError) as error:
            return self._move_aside(f"history {self.path!r} is not one of these models: {error}")
        return ""

    def add(self, outputs: NDArray[Any], features: Optional[NDArray[Any]]) -> str:
        """One more record; the oldest goes where there are too many. Returns why the records so far were moved aside,
        or ``""``."""
        said = ""
        if self._records and _shape(self._records[0]) != _shape((outputs, features)):
            said = self._move_aside(
                f"history {self.path!r} has records of the sizes {_shape(self._records[0])}, "
                f"new ones {_shape((outputs, features))}"
            )
        if not self._records:
            size = outputs.nbytes + (features.nbytes if features is not None else 0)
            self._records = deque(maxlen=max(1, min(self._records_max, BYTES_MAX // max(1, size))))
        self._records.append((outputs, features))
        self.unwritten += 1
        return said

    def write(self) -> None:
        """Put all records into the file. ``OSError`` where that is impossible; the file is as it was then."""
        outputs = np.stack([record[0] for record in self._records])
        arrays: Dict[str, Any] = {
            "models": np.array(self.models),
            "outputs": outputs,
            "task": np.array(TASKS[0] if are_probabilities(outputs) else TASKS[1]),
        }
        rows = [record[1] for record in self._records if record[1] is not None]
        if len(rows) == len(outputs):
            arrays["features"] = np.stack(rows)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_whole_bytes(self.path, content.getvalue())
        self.unwritten = 0

    def _take(self, arrays: Dict[str, NDArray[Any]]) -> None:
        names = tuple(str(name) for name in np.atleast_1d(arrays["models"]))
        outputs = arrays["outputs"].astype(np.float32)
        features = arrays.get("features")
        if names != self.models or outputs.ndim != 3 or outputs.shape[1] != len(names):
            raise ValueError(
                f"it holds {', '.join(names)} in an array {list(outputs.shape)}, served are {', '.join(self.models)}"
            )
        if not {*arrays} <= {"models", "outputs", "task", "features"}:
            raise ValueError("it holds labels or groups, which a recording does not know")
        if features is not None and features.shape[0] != len(outputs):
            raise ValueError(f"it has {len(features)} rows of features for {len(outputs)} records")
        for row in range(max(0, len(outputs) - self._records_max), len(outputs)):
            self.add(outputs[row], None if features is None else features[row].astype(np.float32).reshape(-1))
        self.unwritten = 0

    def _move_aside(self, reason: str) -> str:
        self._records.clear()
        with contextlib.suppress(OSError):
            os.replace(self.path, f"{self.path}.old")
        return f"{reason}; it is {os.path.basename(self.path)}.old now, and a new one is begun"


def _shape(record: Record) -> Tuple[Tuple[int, ...], int]:
    outputs, features = record
    return tuple(outputs.shape), -1 if features is None else len(features)
