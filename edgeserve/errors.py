"""Every error that a user of EdgeServe can meet, each with a stable ``code`` that also travels over the bus.

An error's text says what was wrong, the value, what was expected and where to mend it. Bugs inside a policy or the
scheduler (:class:`PolicyError`) stop the program; every other error is answered to the client or caller that asked.
"""

from __future__ import annotations

import difflib
from functools import partial
from typing import Callable, Iterable, Mapping, Optional, Sequence, Tuple, TypeVar


class EdgeServeError(Exception):
    """Base of all. ``code`` is stable across versions and is what the bus carries."""

    code = "error"


class ConfigError(EdgeServeError):
    """The configuration is wrong; the text names the file, the key, the value and what was expected."""

    code = "config"


class ProfileError(EdgeServeError):
    """A profile is missing, malformed or lacks a batch size."""

    code = "profile"


class PolicyError(EdgeServeError):
    """A policy made an illegal move: a bug, never a user's mistake. Nothing was changed."""

    code = "policy"


class EngineError(EdgeServeError):
    """An engine could not load or run a model."""

    code = "engine"


class DeviceLost(EngineError):
    """The device does not answer any more (a lost context, a reset, a driver that is gone): no batch can run on it."""

    code = "device_lost"


class DeviceMissing(EngineError):
    """The device cannot be used from the start: no driver, no such device, or no library that reaches it."""

    code = "device_missing"


class OutOfMemory(EngineError):
    """The device has no room for what an engine asked for. ``asked_bytes`` and ``free_bytes`` are None where the
    device or the library did not say."""

    code = "out_of_memory"

    def __init__(self, message: str, asked_bytes: Optional[int] = None, free_bytes: Optional[int] = None) -> None:
        super().__init__(message)
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes


class ProcessEnded(EngineError):
    """The process of its own that a model runs in ended, or was ended, with what it held."""

    code = "process_ended"


class ExampleUnknown(EngineError):
    """An engine cannot make an input for its model by itself: it is neither warmed up nor profiled without help."""

    code = "example_unknown"


class WrongRows(EngineError):
    """An output has not one row for each item of the batch, so nothing tells which part of it belongs to which item."""

    code = "wrong_rows"


class StateLost(EngineError):
    """Error: the new state of an item's stream holds NaN or infinite numbers, so no request can go on from it. The
    request ends as ``failed``, and the stream begins anew."""

    code = "state_lost"


class WrongInput(EngineError):
    """An item's values are none that the model takes: its client's mistake. The request ends as ``bad_input``."""

    code = "wrong_input"


NOT_IMPORTED = (ImportError, OSError, RuntimeError)
"""The errors of importing a library that is not installed, or that does not find its own shared libraries: torch's is
an ``OSError``, that of llama-cpp-python a ``RuntimeError``."""


# --- what a client can be told -------------------------------------------------------------------------------------


class RequestError(EdgeServeError):
    """A request was not accepted, or ended without an answer. ``id`` is the number that the server gave it (its
    ``story`` is asked for by that); 0 where it never got one."""

    code = "request"
    id: int = 0
    ending: Optional[Callable[[], str]] = None
    """Finds the rest of the text, such as the nearest of the names that are known. It costs more than all else of a
    refusal, so it is called when the text is read."""

    def __str__(self) -> str:
        if self.ending is not None:
            ending, self.ending = self.ending, None
            self.args = (super().__str__() + ending(), *self.args[1:])
        return super().__str__()


class Malformed(RequestError):
    """The message is not of the protocol's form (frames, header, tensor table)."""

    code = "malformed"


class WrongVersion(RequestError):
    """The message speaks a protocol version that this server does not."""

    code = "wrong_version"


class TooLarge(RequestError):
    """A message, tensor or count is over its configured bound."""

    code = "too_large"


class BadInput(RequestError):
    """An input is missing, unknown, or has the wrong dtype or shape."""

    code = "bad_input"


class UnknownApp(RequestError):
    """No app of that name is served."""

    code = "unknown_app"


class DeadlineExpired(RequestError):
    """The deadline had passed before the request was received."""

    code = "deadline_expired"


class Refusal:
    """The details of :class:`Rejected` and :class:`Dropped`; ``reason`` says why, for programs.

    Where a policy found that the request cannot make its deadline, in milliseconds: ``expected_ms``, the time that it
    would have taken alone, on ``lane`` first; ``wait_ms``, until that lane could have started it; ``left_ms``, what was
    left until the deadline, less what answering takes; ``slo_ms_min``, the smallest ``slo_ms`` with which it would not
    have been refused for its deadline at that moment. Otherwise, and where one is not known, they are None.
    """

    reason: str = ""
    lane: str = ""
    expected_ms: Optional[float] = None
    wait_ms: Optional[float] = None
    left_ms: Optional[float] = None
    slo_ms_min: Optional[float] = None


REFUSAL_NUMBERS = ("expected_ms", "wait_ms", "left_ms", "slo_ms_min")
"""The fields of a :class:`Refusal` that are numbers."""


REASONS: Mapping[str, Tuple[str, str]] = {
    "cannot_make_deadline": ("rejected, dropped", "no lane can finish it in time, as far as is known"),
    "expired": ("rejected, dropped", "the deadline passed before it could run, or between two of its nodes"),
    "queue_full": ("rejected", "the app has `pending_max` requests that have not ended"),
    "server_full": ("rejected", "`[server] pending_max` requests have not ended"),
    "over_share": (
        "rejected, dropped",
        "places or lane time are short, and this client has or asks for more than its share of them",
    ),
    "client_bytes": ("rejected", "its client has a quarter of `[server] memory` in flight"),
    "server_bytes": ("rejected", "all requests have `[server] memory` in flight"),
    "too many in flight": ("rejected", "this client has as many requests without a reply as one may have"),
    "too many clients": ("rejected", "256 clients have requests in flight"),
    "class_not_allowed": ("rejected", "class `critical` is not for this client (`[server] critical_for`)"),
    "no_lane": ("rejected", "no lane that may run its model is up"),
    "draining": ("rejected", "the server is stopping"),
    "not_started": ("rejected", "the embedded runtime does not run yet"),
    "stopped": ("rejected", "the embedded runtime does not run any more"),
    "superseded": ("dropped", "a newer request of its stream came, and the app says `newest_wins`"),
    "quality_too_low": ("rejected, dropped", "the answer would be worth less than its `quality_min`"),
    "window_missed": ("dropped", "the lane was not free within the start window (`clockwork`)"),
    "overtaken": ("dropped", "a batch of requests with later deadlines went before it (`clockwork`)"),
    "proactive": ("dropped", "the modules before it would take too long; its story says which (`pard`, `pard+`)"),
    "overloaded": ("dropped", "none of its models can end in time any more (`plan`, `schemble`)"),
}
"""Reason of a :class:`Rejected` or :class:`Dropped` -> the outcomes that carry it, and what it means."""


class Rejected(RequestError, Refusal):
    """Refused at arrival (cannot make the deadline, queue full, draining, over share)."""

    code = "rejected"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class Dropped(RequestError, Refusal):
    """Given up after it was accepted (expired, predicted miss, superseded, memory)."""

    code = "dropped"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class Cancelled(RequestError):
    """Cancelled by its client, or because the client vanished."""

    code = "cancelled"


class TimedOut(Cancelled, TimeoutError):
    """No answer within the caller's own ``timeout_ms``; the request was cancelled. Never travels over the bus."""

    code = "timed_out"


class Failed(RequestError):
    """The engine raised, the lane was lost, or the result could not be sent."""

    code = "failed"


class Quarantined(Failed):
    """The input ended the process of its model before, and is not run again until the model is reloaded."""

    code = "quarantined"


class NotAllowed(RequestError):
    """This connection may not ask for that: it belongs to the server's owner, or to another client."""

    code = "not_allowed"


class ServerGone(RequestError):
    """No server answers at that endpoint, or it went away with requests in flight."""

    code = "server_gone"


class UnknownOutput(EdgeServeError, KeyError):
    """The answer has no output of that name. A ``KeyError`` too, as of any mapping."""

    code = "unknown_output"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


REQUEST_ERRORS = {
    kind.code: kind
    for kind in (
        RequestError,
        Malformed,
        WrongVersion,
        TooLarge,
        BadInput,
        UnknownApp,
        DeadlineExpired,
        Rejected,
        Dropped,
        Cancelled,
        Failed,
        Quarantined,
        NotAllowed,
        ServerGone,
    )
}


Error = TypeVar("Error", bound=RequestError)


def with_nearest(error: Error, name: str, known: Iterable[str]) -> Error:
    """``error``, whose text ends with the nearest name that is known."""
    error.ending = partial(nearest, name, tuple(known))
    return error


SENT_MAX = 8
"""Names that :func:`sent_instead` compares and shows."""


def sent_instead(missing: str, sent: Iterable[str], known: Iterable[str]) -> str:
    """The names sent where ``missing`` was expected: an unknown name that is like it, else all names sent. The text
    ends a message that reports a missing value."""
    names: Sequence[str] = sorted(str(name)[:128] for name in sent)
    strangers = sorted(set(names) - set(known))[:SENT_MAX]
    close = difflib.get_close_matches(missing, strangers, n=1) or (strangers if len(strangers) == 1 else [])
    if close:
        return f"; {close[0]!r} was sent, which nothing takes: send it as {missing!r}"
    more = ", ..." if len(names) > SENT_MAX else ""
    return f" (sent: {', '.join(names[:SENT_MAX])}{more})" if names else " (nothing was sent)"


def said(error: BaseException) -> str:
    """The text of an exception; a replacement where its class fails to give one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 the message is about something else
        return "(an exception whose text cannot be made)"


def told(error: BaseException, where: str = "") -> str:
    """An exception of the user's code as text for a message: its type and text. Of a ``KeyError`` the text is only the
    key."""
    if type(error) is KeyError and len(error.args) == 1:
        key = error.args[0]
        if isinstance(key, str):
            return f"KeyError{where}: {key}" if " " in key else f"KeyError{where}: there is no {key!r}"
    return f"{type(error).__name__}{where}: {said(error)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` when something known is close to ``name``, else a full stop. The text ends a message
    that goes on with the known names."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` when something known is close to ``name``, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f" (known: {', '.join(names)})" if names else ""
