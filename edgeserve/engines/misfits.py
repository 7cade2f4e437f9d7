"""Whether items as an app declares them can run on a model. Knows shapes and dtypes, no runtime."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence

import numpy as np

from edgeserve.engines.base import OutputType, Values
from edgeserve.engines.collate import Slot, fit
from edgeserve.errors import EngineError


def misfits_of(
    slots: Sequence[Slot], declared: Mapping[str, Optional[OutputType]], value_of: Callable[[str, Values], Any]
) -> List[str]:
    """The reason why no item that is as an app declares it can run: by input name, its dtype and its shape, -1 for
    any length (``None``: no array, or not known). No sentence where it can. ``value_of`` takes an input's value of an
    item."""
    item = {
        name: None
        if kind is None
        else np.broadcast_to(
            np.array("", object) if kind.dtype == "text" else np.zeros((), kind.dtype),
            [1 if length < 0 else length for length in kind.shape],
        )
        for name, kind in declared.items()
    }
    wrong = []
    for slot in slots:
        kind = declared.get(slot.name)
        if kind is None and slot.name in declared:
            continue
        any_length = () if kind is None else [axis for axis, length in enumerate(kind.shape) if length < 0]
        dims = tuple(None if axis in any_length else dim for axis, dim in enumerate(slot.dims))
        try:
            fit(slot._replace(dims=dims), value_of(slot.name, item))
        except EngineError as error:
            wrong.append(str(error))
    return wrong
