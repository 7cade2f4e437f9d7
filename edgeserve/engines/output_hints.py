"""``options.hints``: numbers of an item's outputs that the scheduler is told."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from edgeserve.engines.base import Values
from edgeserve.errors import EngineError


class HintOf(NamedTuple):
    """A hint that is ``read`` from an output: its single ``value``, its ``argmax``, or its ``margin``."""

    hint: str
    output: str
    read: str


READS = ("value", "argmax", "margin")


def read_hints(where: str, table: Mapping[str, Any]) -> List[HintOf]:
    """The hints of ``options.hints``; an output's name is the caller's to check."""
    hints = []
    for hint, source in table.items():
        output, _, read = str(source).partition(":")
        if not isinstance(source, str) or (read or "value") not in READS:
            raise EngineError(
                f"{where}: options.hints.{hint} = {source!r}; expected an output's name, alone "
                f"or with ':argmax' or ':margin'"
            )
        hints.append(HintOf(hint, output, read or "value"))
    return hints


def hints_of(where: str, hints: Sequence[HintOf], outputs: Values) -> Dict[str, float]:
    """Hint -> its number for one item. Raises :class:`EngineError` where an output has no such number."""
    found = {}
    for hint, output, read in hints:
        values = np.asarray(outputs[output]).reshape(-1)
        if read == "value":
            if values.size != 1:
                raise EngineError(
                    f"{where}: options.hints.{hint} = {output!r}, whose shape is "
                    f"{list(np.shape(outputs[output]))} per item; expected a single number, or "
                    f"'{output}:argmax' or '{output}:margin'"
                )
            found[hint] = float(values[0])
            continue
        if not values.size:
            raise EngineError(f"{where}: options.hints.{hint} = '{output}:{read}': the output is empty")
        if read == "argmax":
            found[hint] = float(values.argmax())
        else:
            two = np.partition(values, -2)[-2:] if values.size > 1 else [0.0, values[0]]
            found[hint] = float(two[1]) - float(two[0])
    return found
