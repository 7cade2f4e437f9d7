"""The report of a request that ended without an answer over HTTP and gRPC: status codes, and the error as plain values.

Functions of the typed errors in :mod:`edgeserve.errors`.
"""

from __future__ import annotations

import logging
from typing import Any, Dict

from edgeserve.errors import REFUSAL_NUMBERS, EdgeServeError, Refusal, RequestError
from edgeserve.front import one_line

log = logging.getLogger("edgeserve")

BY_CODE = {
    "malformed": 400,
    "bad_input": 400,
    "too_large": 413,
    "unknown_app": 404,
    "deadline_expired": 504,
    "rejected": 503,
    "dropped": 504,
    "cancelled": 499,
    "failed": 500,
    "server_gone": 502,
    "wrong_version": 502,
    "not_allowed": 502,
    "quarantined": 503,
    "timed_out": 504,
    "not_served": 501,
    "unauthorized": 401,
    "forbidden": 403,
}
"""Code of an error -> HTTP status. 499 is what proxies call a request whose client went away."""

BY_REASON = {
    "queue_full": 429,
    "over_share": 429,
    "too many in flight": 429,  # this client, or all of them, ask too much
    "superseded": 409,
    "quality_too_low": 422,
}
"""Reason of a refusal -> HTTP status, where it says more than the code."""

GRPC_OF_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "OUT_OF_RANGE",
    422: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

UNKNOWN_MODEL = "Request for unknown model: "
"""The first words of the message of an unknown app: existing clients look for them."""


def note_fault(error: BaseException, where: str) -> None:
    """Log an error that is a fault of the front, with its traceback; any other is the client's to know."""
    if not isinstance(error, EdgeServeError):
        log.error("the front failed at %s", one_line(where), exc_info=error)


def status_of(error: BaseException) -> int:
    """The HTTP status of an error; 500 for one that is a fault."""
    if isinstance(error, Refusal) and error.reason in BY_REASON:
        return BY_REASON[error.reason]
    return BY_CODE.get(error.code, 500) if isinstance(error, EdgeServeError) else 500


def message_of(error: BaseException) -> str:
    """The text for people. A fault of the front itself is told in its log, not to clients."""
    if not isinstance(error, EdgeServeError):
        return "the front failed at this request; its log says how"
    text = str(error)
    return UNKNOWN_MODEL + text if error.code == "unknown_app" else text


def details_of(error: BaseException) -> Dict[str, Any]:
    """The details for programs: ``code``, and of a refusal ``reason`` and the numbers that say how much time was
    missing."""
    if not isinstance(error, EdgeServeError):
        return {"code": "failed"}
    details: Dict[str, Any] = {"code": error.code}
    if isinstance(error, RequestError) and error.id:
        details["request_id"] = error.id
    if isinstance(error, Refusal):
        if error.reason:
            details["reason"] = error.reason
        if error.expected_ms is not None:
            details["lane"] = error.lane
        details.update((name, getattr(error, name)) for name in REFUSAL_NUMBERS if getattr(error, name) is not None)
    return details
