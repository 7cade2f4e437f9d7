"""Requests that were refused before the scheduler knew them: their numbers, and the last of them for ``story``.

An unknown app, a bad input, a deadline that had passed on the way, a bound in bytes: the scheduler keeps no story of
those. This table knows no transport, and is written by any thread: each write is one step of the interpreter.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

from edgeserve.errors import RequestError
from edgeserve.live.hints import show

EARLY_KEPT = 1024
"""Refusals that are remembered."""

TEXT_CHARS_MAX = 1024
"""Of a message: its sender has it whole."""


class EarlyRefusals:
    """The last refusals; one's place follows from its number. ``ids`` numbers all requests of the server."""

    __slots__ = ("_ids", "_kept")

    def __init__(self, ids: Iterator[int]) -> None:
        self._ids = ids
        self._kept: List[Optional[Tuple[int, str, str, str, str]]] = [None] * EARLY_KEPT

    def add(self, app: Any, error: RequestError, owner: str = "") -> None:
        """Remember ``error``; it gets a number if its request has none yet. ``owner``: whose request it was."""
        if not error.id:
            error.id = next(self._ids)
        name = app if isinstance(app, str) else show(app)
        self._kept[error.id % EARLY_KEPT] = (
            error.id,
            name[:TEXT_CHARS_MAX],
            error.code,
            str(error)[:TEXT_CHARS_MAX],
            owner,
        )

    def story(self, request_id: int) -> List[str]:
        """What happened to a request; no line when it is not among these."""
        kept = self._kept[request_id % EARLY_KEPT]
        if kept is None or kept[0] != request_id:
            return []
        _, app, code, text, _ = kept
        return [
            f"request {request_id}{f' of app {app}' if app else ''}: ended before it was scheduled: {code}",
            f"  {text}",
        ]

    def owner(self, request_id: int) -> Optional[str]:
        """Whose request it was; None when it is not among these."""
        kept = self._kept[request_id % EARLY_KEPT]
        return kept[4] if kept is not None and kept[0] == request_id else None
