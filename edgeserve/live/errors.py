"""Reports of failures: the typed error of a request that ended without an answer, the reason and
the log line of a work or an item that failed, and the story of a request that the scheduler never knew
(:class:`EarlyRefusals`).
"""

from __future__ import annotations

import copy
import logging
import re
import traceback
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar

from edgeserve.errors import (
    BadInput,
    Cancelled,
    Dropped,
    EngineError,
    Failed,
    Quarantined,
    Rejected,
    RequestError,
    StateLost,
    WrongInput,
    said,
    told,
)
from edgeserve.live.hints import show
from edgeserve.sched.protocol.actions import Outcome, Shortfall
from edgeserve.sched.resources.sequences import SEQUENCE_TOO_LONG
from edgeserve.units import ns_to_ms

log = logging.getLogger("edgeserve")

HINTS: Dict[str, str] = {
    "queue_full": "the app has as many requests in flight as its pending_max allows; send fewer at a time",
    "over_share": "this client has more than its share of the app's places or of its lanes' time; others were waiting",
    "server_full": "the server has as many requests that have not ended as [server] pending_max allows; send fewer "
    "at a time",
    "expired": "the deadline passed before it could run; allow more time (slo) or send less",
    "superseded": "a newer request of the same stream took its place (its app says stream = 'newest_wins')",
    "draining": "the server is shutting down and accepts nothing more",
    "cannot_make_deadline": "no lane could finish it by its deadline; allow more time (slo) or send less",
    "window_missed": "its start window passed before a lane was free; allow more time (slo) or send less",
    "overtaken": "requests that could still be on time took its place; allow more time (slo) or send less",
    "no_lane": "no lane that may run its model is up; look at the server's log",
}
"""Reason -> what a person may want to know. A reason that is not here speaks for itself."""

CANCELLED = "cancelled by its client"
"""The reason of a request whose caller changed its mind."""

ENDED_EARLY: Dict[str, str] = {
    "expired": "its deadline passed",
    "cannot_make_deadline": "nothing more can be written by its deadline",
    "over_share": "this client has more than its share, and others were waiting",
    CANCELLED: "its client waited no longer",
}
"""Reason -> why an answer that had begun ends, for people. A reason that is not here speaks for itself."""

CLIENT_GONE = "its client is gone: "
"""The first words of the reason of a request whose client disconnected."""

STOPPING = "the server is shutting down"
"""The reason of a request that a stop cut off."""

LOST_WRITTEN = "its model cannot say what the answer was that it had begun; look at the server's log"
"""The reason of a request whose engine broke its word (:func:`~edgeserve.engines.base.written_of`)."""

QUARANTINED = "quarantined: "
"""The first words of an engine's reason to refuse an input that ended its process before."""

STATE_LOST = "state lost: "
"""The first words of the reason of a request after which its stream begins anew."""

WRONG_INPUT = "wrong input: "
"""The first words of the reason of a failure that the client caused."""

REASON_CHARS_MAX = 2048
"""The most characters of an engine's or a function's own words in an answer, the log and a story."""

TRACE_CHARS_MAX = 8192
"""The most characters of a traceback in the log: an exception's text may be as long as its input."""

OTHER_LABEL = "other"
_LABEL = re.compile(r"[a-z][a-z0-9_ ]{0,47}\Z")


def label(outcome: str, reason: str) -> str:
    """The word under which a request that did not complete is counted. Every client that may connect reads statistics,
    so they hold no text of an engine, an exception or a client: words of failures and cancellations are of a closed
    set, words of refusals are the scheduler's and the policies' where they have the form of a code."""
    if outcome == Outcome.FAILED:
        if reason.startswith("lane "):
            return "lane_lost"
        if reason.startswith(QUARANTINED):
            return "quarantined"
        if reason.startswith(WRONG_INPUT):
            return "bad_input"
        if reason.startswith(STATE_LOST):
            return "state_lost"
        return "no_lane" if reason.startswith("no lane ") else "model_failed"
    if outcome == Outcome.CANCELLED:
        if reason.startswith(CLIENT_GONE):
            return "client_gone"
        return {CANCELLED: "by_client", STOPPING: "draining"}.get(reason, OTHER_LABEL)
    return reason if _LABEL.match(reason) else OTHER_LABEL


def cut(text: str, chars_max: int = REASON_CHARS_MAX) -> str:
    """A text within its bound."""
    return text if len(text) <= chars_max else f"{text[:chars_max]} ... ({len(text)} characters)"


def refusal(app: str, outcome: str, reason: str, request_id: int, shortfall: Shortfall | None = None) -> RequestError:
    """The error that the client or caller gets for ``outcome`` (anything but completed). The numbers of a ``shortfall``
    stand in its fields, and in its text in place of the hint."""
    said = reason or "no reason given"
    hint = HINTS.get(reason, "") if shortfall is None else str(shortfall)
    text = f"app {app!r}: {outcome}: {said}" + (f" ({hint})" if hint else "")
    error: RequestError
    if outcome == Outcome.REJECTED:
        error = _with_numbers(Rejected(text, reason), shortfall)
    elif outcome == Outcome.DROPPED:
        error = _with_numbers(Dropped(text, reason), shortfall)
    elif outcome == Outcome.CANCELLED:
        error = Cancelled(text)
    elif reason.startswith((SEQUENCE_TOO_LONG, WRONG_INPUT)):
        error = BadInput(text)
    else:
        error = (Quarantined if reason.startswith(QUARANTINED) else Failed)(text)
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


def ended_early(reason: str, cut_reason: str, written: Sequence[str]) -> str:
    """The reason of an answer whose sequences ended before it was whole: why, and how much they had ``written``."""
    why = ENDED_EARLY.get(cut_reason, cut_reason)
    early = f"ended early, after {' and '.join(written)}: {why}"
    return f"{reason}; {early}" if reason else early


class EngineFailures:
    """Counts failures per model: the first of each is told with its traceback, the others would fill the log."""

    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}

    def reason(self, action: Any, error: BaseException) -> str:
        """The reason why ``action`` (a load, an eviction, a batch, or one item of it) failed, as the client reads it. A
        client's own mistake is no failure of the model, and would let each client write into the log."""
        if isinstance(error, WrongInput):
            _let_go(error)
            return cut(WRONG_INPUT + said(error))
        text = said(error) if isinstance(error, EngineError) else f"model {action.model!r} raised {told(error)}"
        reason = cut(STATE_LOST + text if isinstance(error, StateLost) else text)
        count = self._counts[action.model] = self._counts.get(action.model, 0) + 1
        level = logging.WARNING if count == 1 else logging.DEBUG
        if log.isEnabledFor(level):
            text = "lane %s, work %d (failure %d of this model): %s"
            told_of = (action.lane, action.work_id, count, reason)
            record = log.makeRecord(log.name, level, __file__, 0, text, told_of, None)
            record.exc_text = _trace(error) if count == 1 else None
            log.handle(record)
        _let_go(error)
        return reason


def _trace(error: BaseException) -> str:
    """The traceback, cut, on indented lines of their own: no text in it can look like a record of the log. That of the
    cause, where the engine made its error of another."""
    from edgeserve.config.plain_text import one_line  # where something failed

    raised = error.__cause__ or error
    try:
        lines = traceback.format_exception(type(raised), raised, raised.__traceback__)
    except Exception:  # noqa: BLE001 see above
        return ""
    text = "".join(lines).rstrip()
    if len(text) > TRACE_CHARS_MAX:  # both ends: where it came from, and what it says
        text = f"{text[: TRACE_CHARS_MAX // 2]}\n... ({len(text)} characters) ...\n{text[-TRACE_CHARS_MAX // 2 :]}"
    return "".join([f"  {one_line(line)}\n" for line in text.split("\n")]).rstrip()


def _let_go(error: BaseException) -> None:
    """Let go of what the frames of an exception hold: the whole batch. Frames and exception hold each other, so they
    would stay until the collector finds them (200 MB of them, where items of 8 MB all failed)."""
    for raised in (error, error.__cause__):
        if raised is not None:
            traceback.clear_frames(raised.__traceback__)


EARLY_KEPT = 1024
"""Refusals that are remembered."""

TEXT_CHARS_MAX = 1024
"""The most characters kept of a message: its sender has it whole."""


class EarlyRefusals:
    """The last requests that were refused before the scheduler knew them: an unknown app, a bad input, a deadline that
    had passed on the way, a bound in bytes. A refusal's place follows from its number; ``ids`` numbers all requests of
    the server. Written by any thread: each write is one step of the interpreter."""

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
        """The story of a request, line by line; no line when the request is not among these."""
        kept = self._kept[request_id % EARLY_KEPT]
        if kept is None or kept[0] != request_id:
            return []
        _, app, code, text, _ = kept
        return [
            f"request {request_id}{f' of app {app}' if app else ''}: ended before it was scheduled: {code}",
            f"  {text}",
        ]

    def owner(self, request_id: int) -> Optional[str]:
        """The owner of a request; None when it is not among these."""
        kept = self._kept[request_id % EARLY_KEPT]
        return kept[4] if kept is not None and kept[0] == request_id else None
