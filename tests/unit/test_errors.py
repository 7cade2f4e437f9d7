"""Errors: stable codes that travel over the bus, and the nearest name."""

from __future__ import annotations

import pytest

from edgeserve import errors


def test_codes_are_those_that_clients_in_other_languages_know():
    assert sorted(errors.REQUEST_ERRORS) == [
        "bad_input", "cancelled", "deadline_expired", "dropped", "failed", "malformed", "rejected", "request",
        "server_gone", "too_large", "unknown_app", "wrong_version"]


def test_every_error_of_a_client_is_found_by_its_code_and_is_a_request_error():
    for code, kind in errors.REQUEST_ERRORS.items():
        assert kind.code == code
        assert issubclass(kind, errors.RequestError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    assert sorted(kind.code for kind in kinds) == sorted(errors.REQUEST_ERRORS)


def test_codes_are_unique():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)
             and issubclass(kind, errors.EdgeServeError)]
    assert len({kind.code for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("kind", [errors.Rejected, errors.Dropped])
def test_refusals_carry_their_reason(kind):
    error = kind("request 3 was not accepted", "queue_full")
    assert error.reason == "queue_full"
    assert str(error) == "request 3 was not accepted"
    assert kind("no reason given").reason == ""


def test_the_nearest_name_is_offered_else_all_that_are_known():
    assert errors.nearest("deadlin", ["deadline", "value"]) == "; did you mean 'deadline'?"
    assert errors.nearest("zzz", ["value", "deadline"]) == " (known: deadline, value)"
    assert errors.nearest("zzz", []) == ""
