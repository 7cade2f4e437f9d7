"""What people are told of works and items that failed: the reason for whoever asked, and a line in the log."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Dict

from edgeserve.errors import EngineError

log = logging.getLogger("edgeserve")


class Failures:
    """Counts failures per model: the first of each is told with its traceback, the others would fill the log."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}

    def reason(self, action: Any, error: BaseException) -> str:
        """Why ``action`` (a load, an eviction, a batch, or one item of it) failed, as the client reads it."""
        reason = str(error) if isinstance(error, EngineError) \
            else f"model {action.model!r} raised {type(error).__name__}: {error}"
        count = self._counts[action.model] = self._counts.get(action.model, 0) + 1
        log.log(logging.WARNING if count == 1 else logging.DEBUG, "lane %s, work %d (failure %d of this model): %s",
                action.lane, action.work_id, count, reason, exc_info=error if count == 1 else None)
        _let_go(error)
        return reason


def _let_go(error: BaseException) -> None:
    """Let go of what the frames of an exception hold: the whole batch. Frames and exception hold each other, so they
    would stay until the collector finds them (200 MB of them, where items of 8 MB all failed)."""
    for raised in (error, error.__cause__):
        if raised is not None:
            traceback.clear_frames(raised.__traceback__)
