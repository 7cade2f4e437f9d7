"""Every typed error has a status, and tells programs what people read."""

from __future__ import annotations

import pytest

from edgeserve import errors
from edgeserve.answers import TimedOut
from edgeserve.front import ClientGone, Forbidden, NotServed, Unauthorized
from edgeserve.fronts.http import completion, failures


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Rejected("x", "queue_full"), 429),
        (errors.Rejected("x", "over_share"), 429),
        (errors.Rejected("x", "too many in flight"), 429),
        (errors.Rejected("x", "cannot_make_deadline"), 503),
        (errors.Rejected("x", "draining"), 503),
        (errors.Dropped("x", "expired"), 504),
        (errors.Dropped("x", "superseded"), 409),
        (errors.DeadlineExpired("x"), 504),
        (TimedOut("x"), 504),
        (errors.UnknownApp("x"), 404),
        (errors.BadInput("x"), 400),
        (errors.TooLarge("x"), 413),
        (errors.Failed("x"), 500),
        (errors.ServerGone("x"), 502),
        (NotServed("x"), 501),
        (Unauthorized("x"), 401),
        (Forbidden("x"), 403),
        (ClientGone("x"), 499),
        (errors.ConfigError("x"), 500),
        (KeyError("x"), 500),
    ],
)
def test_statuses(error, status):
    assert failures.status_of(error) == status
    assert status in failures.GRPC_OF_HTTP


def test_every_error_of_the_bus_has_a_status_of_its_own():
    assert set(errors.REQUEST_ERRORS) - set(failures.BY_CODE) == {"request"}


def test_a_refusal_tells_its_reason_and_numbers():
    error = errors.Rejected("no", "cannot_make_deadline")
    error.id, error.lane, error.expected_ms, error.slo_ms_min = 7, "cpu0", 5.5, 9.0
    assert failures.details_of(error) == {
        "code": "rejected",
        "request_id": 7,
        "reason": "cannot_make_deadline",
        "lane": "cpu0",
        "expected_ms": 5.5,
        "slo_ms_min": 9.0,
    }
    assert failures.details_of(TimedOut("x")) == {"code": "timed_out"}


def test_a_fault_of_the_front_is_not_told_to_clients():
    assert "secret" not in failures.message_of(KeyError("secret"))
    assert failures.message_of(errors.UnknownApp("no app 'x'")).startswith("Request for unknown model")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.BadInput("x"), "invalid_request_error"),
        (errors.Rejected("x", "queue_full"), "rate_limit_error"),
        (errors.Failed("x"), "server_error"),
        (Unauthorized("x"), "authentication_error"),
    ],
)
def test_errors_in_openais_words(error, kind):
    table = completion.error_body(error)["error"]
    assert (table["type"], table["message"], table["code"]) == (kind, "x", failures.details_of(error)["code"])
