"""What people are told of what went wrong: the typed error of a request that ended without an answer, the reason and
the log line of a work or an item that failed."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Dict

from edgeserve.errors import Cancelled, Dropped, EngineError, Failed, Rejected, RequestError
from edgeserve.sched.protocol.actions import Outcome

log = logging.getLogger("edgeserve")

HINTS: Dict[str, str] = {
    "queue_full": "the app has as many requests in flight as [app.{app}] pending_max allows; send fewer at a time",
    "over_share": "this client has more than its share of [app.{app}] pending_max; others were waiting",
    "expired": "the deadline passed before it could run; allow more time (slo) or send less",
    "superseded": "a newer request of the same stream took its place ([app.{app}] stream = 'newest_wins')",
    "draining": "the server is shutting down and accepts nothing more",
    "cannot_make_deadline": "no lane could finish it by its deadline; allow more time (slo) or send less",
    "window_missed": "its start window passed before a lane was free; allow more time (slo) or send less",
    "overtaken": "requests that could still be on time took its place; allow more time (slo) or send less",
    "no_lane": "no lane that may run its model is up; look at the server's log",
}
"""Reason -> what a person may want to know. A reason that is not here speaks for itself."""


def refusal(app: str, outcome: str, reason: str) -> RequestError:
    """The error that whoever asked gets for ``outcome`` (anything but completed)."""
    said = reason or "no reason given"
    hint = HINTS.get(reason, "").format(app=app)
    text = f"app {app!r}: {outcome}: {said}" + (f" ({hint})" if hint else "")
    if outcome == Outcome.REJECTED:
        return Rejected(text, reason)
    if outcome == Outcome.DROPPED:
        return Dropped(text, reason)
    if outcome == Outcome.CANCELLED:
        return Cancelled(text)
    return Failed(text)


class EngineFailures:
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
