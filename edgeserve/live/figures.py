"""The figures that policies report, as plain values that the bus can carry, within bounds."""

from __future__ import annotations

import logging
from typing import Any, Collection, Dict, List, Mapping, Sequence

from edgeserve.sched.policy_api.policy import Policy

log = logging.getLogger("edgeserve")

FIGURES_BYTES_MAX = 512 * 1024
"""The figures of all policies together: half of what a header of the bus may have, so that ``stats`` always fits."""

FIGURES_DEPTH_MAX = 16  # tables within tables; a table that holds itself ends there
FIGURE_CHARS_MAX = 1024  # of one text
MORE = "..."
"""Stands for what was left out of figures: over the bounds above."""


def figures_of(policies: Sequence[Policy]) -> Dict[str, Any]:
    """The figures that each policy reports, as plain values that the bus can carry, within bounds. A policy whose
    ``figures`` raises has the error in their place."""
    bytes_max = FIGURES_BYTES_MAX // max(1, len(policies))
    return {policy.name: _figures(policy, bytes_max) for policy in policies}


def _figures(policy: Policy, bytes_max: int) -> Any:
    try:
        return _Plain(bytes_max).table(policy.figures(), FIGURES_DEPTH_MAX)
    except Exception as error:  # noqa: BLE001 a question about the server must not end the server
        log.warning("policy %s: figures() cannot be shown", policy.name, exc_info=True)
        return {"error": f"figures() cannot be shown: it raised {type(error).__name__}; the log says more"}


class _Plain:
    """Makes any value a plain one: numbers, texts, lists, and tables with text keys. ``bytes_max`` bounds the sum."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def table(self, table: Mapping[Any, Any], depth: int) -> Dict[str, Any]:
        plain: Dict[str, Any] = {}
        for key, value in table.items():
            if self._left <= 0:
                plain[MORE] = f"{len(table) - len(plain)} more"
                break
            plain[self._counted(_text(key))] = self.value(value, depth - 1)
        return plain

    def value(self, value: Any, depth: int) -> Any:
        if getattr(value, "shape", None) == ():
            value = value.item()  # a number of numpy
        self._left -= 9  # a number; what an empty text, list or table takes is less
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return int(value)
        if depth > 0 and isinstance(value, Mapping):
            return self.table(value, depth)
        if depth > 0 and isinstance(value, Collection) and not isinstance(value, (str, bytes, bytearray)):
            return self._list(value, depth)
        return self._counted(_text(value))

    def _list(self, values: Collection[Any], depth: int) -> List[Any]:
        plain: List[Any] = []
        for value in values:
            if self._left <= 0:
                plain.append(f"{MORE} {len(values) - len(plain)} more")
                break
            plain.append(self.value(value, depth - 1))
        return plain

    def _counted(self, text: str) -> str:
        self._left -= len(text.encode())
        return text


def _text(value: Any) -> str:
    """The text of a value, within bounds and encodable."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 a user's own __str__, or a whole number of too many digits
        text = f"({type(value).__name__})"
    if len(text) > FIGURE_CHARS_MAX:
        text = text[: FIGURE_CHARS_MAX - len(MORE)] + MORE
    return text.encode(errors="replace").decode()
