"""An input or output of a model as its file declares it."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple


class Port(NamedTuple):
    """An input or output as the model declares it, batch axis included; ``None`` = any length. ``axes``: the names that
    the file gives to axes of any length, ``""`` for an axis without one; ``()`` where none has a name."""

    name: str
    dtype: Any
    dims: Tuple[Optional[int], ...]
    axes: Tuple[str, ...] = ()

    def batch_of_one(self) -> Port:
        """The same with a batch axis of 1 in front, for a model that has none."""
        return self._replace(dims=(1, *self.dims), axes=("", *self.axes) if self.axes else ())
