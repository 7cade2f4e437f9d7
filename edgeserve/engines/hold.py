"""A work's share of the turns on a GPU (``turns.py``, which is imported where there are some)."""

from __future__ import annotations

from typing import Any, Callable, Hashable, Optional

NAME = "turns"
"""The key of a GPU's turns in ``LaneInfo.common``."""


class Hold:
    """A work's share of its side's turn. ``left`` is called when it is over."""

    __slots__ = ("side", "owner", "_left")

    def __init__(self, side: Hashable, owner: str = "", left: Optional[Callable[[Any], None]] = None) -> None:
        self.side = side
        self.owner = owner
        self._left = left

    def leave(self) -> None:
        """The work is over. Idempotent, on any thread."""
        left, self._left = self._left, None
        if left is not None:
            left(self)
