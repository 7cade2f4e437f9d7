"""What people are told of what went wrong: the typed error of a request that ended without an answer, the reason and
the log line of a work or an item that failed."""

from __future__ import annotations

import copy
import logging
import traceback
from typing import Any, Dict, TypeVar

from edgeserve.errors import Cancelled, Dropped, EngineError, Failed, Rejected, RequestError
from edgeserve.sched.protocol.actions import Outcome, Shortfall
from edgeserve.units import ns_to_ms

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


def refusal(app: str, outcome: str, reason: str, request_id: int, shortfall: Shortfall | None = None) -> RequestError:
    """The error that the client or caller gets for ``outcome`` (anything but completed). The numbers of a ``shortfall``
    stand in its fields, and in its text in place of the hint."""
    said = reason or "no reason given"
    hint = HINTS.get(reason, "").format(app=app) if shortfall is None else str(shortfall)
    text = f"app {app!r}: {outcome}: {said}" + (f" ({hint})" if hint else "")
    error: RequestError
    if outcome == Outcome.REJECTED:
        error = _with_numbers(Rejected(text, reason), shortfall)
    elif outcome == Outcome.DROPPED:
        error = _with_numbers(Dropped(text, reason), shortfall)
    elif outcome == Outcome.CANCELLED:
        error = Cancelled(text)
    else:
        error = Failed(text)
    error.id = request_id
    return error


Refused = TypeVar("Refused", Rejected, Dropped)


def _with_numbers(error: Refused, shortfall: Shortfall | None) -> Refused:
    if shortfall is not None:
        error.lane = shortfall.lane
        error.expected_ms = ns_to_ms(shortfall.expected_ns)
        error.wait_ms = ns_to_ms(shortfall.wait_ns)
        error.left_ms = ns_to_ms(shortfall.left_ns)
        error.slo_ms_min = None if shortfall.slo_ns_min is None else ns_to_ms(shortfall.slo_ns_min)
    return error


def error_for(request_id: int, error: RequestError) -> RequestError:
    """One request's own copy of an error that many get."""
    mine = copy.copy(error)
    mine.id = request_id
    return mine


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
