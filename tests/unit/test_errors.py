"""Errors: stable codes that travel over the bus, and the nearest name."""

from __future__ import annotations

import pytest

from edgeserve import errors


def test_codes_are_those_that_clients_in_other_languages_know():
    assert sorted(errors.REQUEST_ERRORS) == [
        "bad_input",
        "cancelled",
        "deadline_expired",
        "dropped",
        "failed",
        "malformed",
        "not_allowed",
        "quarantined",
        "rejected",
        "request",
        "server_gone",
        "too_large",
        "unknown_app",
        "wrong_version",
    ]


def test_every_error_of_a_client_is_found_by_its_code_and_is_a_request_error():
    for code, kind in errors.REQUEST_ERRORS.items():
        assert kind.code == code
        assert issubclass(kind, errors.RequestError)
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.RequestError) and kind is not errors.TimedOut
    ]  # a caller's own clock: it never travels
    assert sorted(kind.code for kind in kinds) == sorted(errors.REQUEST_ERRORS)


def test_codes_are_unique():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EdgeServeError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_an_exception_is_told_by_type_and_text_and_a_key_error_by_what_is_missing():
    assert errors.told(ValueError("no"), " on item 1") == "ValueError on item 1: no"
    assert errors.told(KeyError("image")) == "KeyError: there is no 'image'"
    assert errors.told(KeyError("'x' is not among its inputs (y)")) == "KeyError: 'x' is not among its inputs (y)"


def test_an_answer_names_its_outputs_where_one_is_missing():
    from edgeserve.answers import Answer

    with pytest.raises(errors.UnknownOutput) as caught:
        Answer({"score": 1, "label": 2})["scroe"]
    assert str(caught.value) == "the answer has no output 'scroe'; did you mean 'score'? It has 'label', 'score'"
    assert isinstance(caught.value, KeyError)
    assert Answer({"y": 1}).get("x", 7) == 7
    assert "x" not in Answer({})
    with pytest.raises(errors.UnknownOutput, match="It has no output at all"):
        Answer({})["x"]


def test_the_nearest_name_is_offered_else_all_that_are_known():
    assert errors.nearest("deadlin", ["deadline", "value"]) == "; did you mean 'deadline'?"
    assert errors.nearest("zzz", ["value", "deadline"]) == " (known: deadline, value)"
    assert errors.nearest("zzz", []) == ""
