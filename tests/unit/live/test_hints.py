"""Hints that engines return, checked: what is one, what is left out and counted, and who is told how often."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Iterator

import numpy as np
import pytest

from edgeserve.config.limits import HINTS_MAX, NAME_CHARS_MAX
from edgeserve.live.hints import (
    ALL_HINTS,
    COUNTED_MAX,
    NAMELESS,
    OTHER_HINTS,
    ResultHints,
    show,
)


class Odd(Mapping):  # type: ignore[type-arg]
    """A user's own mapping, which raises ``error`` when it is read, or is one like any other."""

    def __init__(self, error: Any = None) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        if self.error is not None:
            raise self.error
        return iter(["work"])

    def __getitem__(self, name: str) -> float:
        return 2.0


class OddNumber(float):
    def __abs__(self) -> float:
        raise RuntimeError("no")

    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "said", [{"work": 2.0}, {"work": np.float32(2)}, {"work": np.float64(2)}, {np.str_("work"): 2.0}, Odd()]
)
def test_numbers_by_name_are_hints_and_become_pythons_own(said: Any) -> None:
    checked = ResultHints()
    found = checked.of("m", said)
    assert found == {"work": 2.0} and found is not said
    assert [(type(name), type(value)) for name, value in found.items()] == [(str, float)]
    assert checked.ignored_hints("m") == {}


def test_whole_numbers_stay_whole() -> None:
    found = ResultHints().of("m", {"a": 3, "b": np.uint8(200), "c": -(2**63), "d": True})
    assert found == {"a": 3, "b": 200, "c": -(2**63)}
    assert {type(value) for value in found.values()} == {int}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "3",
        True,
        np.bool_(True),
        float("nan"),
        float("inf"),
        -1e300,
        2**64,
        10**5000,
        1j,
        [1.0],
        np.zeros(2),
        np.float32("nan"),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_left_out_alone(value: Any) -> None:
    checked = ResultHints()
    assert checked.of("m", {"work": value, "length": 3}) == {"length": 3}
    assert checked.of("m", {"work": value}) is None
    assert checked.ignored_hints("m") == {"work": 2}


@pytest.mark.parametrize(
    "name",
    [3, None, "", "x" * (NAME_CHARS_MAX + 1), "line\nbreak", "\ud800", ("a",), b"work"],
    ids=lambda name: type(name).__name__,
)
def test_what_is_no_name_is_left_out_alone(name: Any) -> None:
    checked = ResultHints()
    assert checked.of("m", {name: 1.0, "length": 3}) == {"length": 3}
    assert checked.ignored_hints("m") == {NAMELESS: 1}


@pytest.mark.parametrize(
    "said",
    [
        3.0,
        [("work", 2.0)],
        "work",
        np.zeros(3),
        {f"f{index}": 1 for index in range(HINTS_MAX + 1)},
        Odd(KeyError("no")),
        Odd(SystemExit("leave")),
        {"fine": 1, "work": OddNumber(2)},
    ],
)
def test_what_cannot_be_read_as_hints_is_left_out_as_a_whole_and_ends_nothing(said: Any) -> None:
    checked = ResultHints()
    assert checked.of("m", said) is None
    assert checked.ignored_hints("m") == {ALL_HINTS: 1}


def test_as_many_as_may_be_are_taken() -> None:
    many = {f"f{index}": index for index in range(HINTS_MAX)}
    assert ResultHints().of("m", many) == many


def test_people_are_told_once_per_model_and_hint(caplog: Any) -> None:
    checked = ResultHints()
    with caplog.at_level(logging.WARNING, "edgeserve"):
        for _ in range(3):
            checked.of("find", {"read.work": "3", "length": None, "fine": 1})
            checked.of("look", {"read.work": "3"})
            checked.of("look", Odd(KeyError("no")))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert told[0] == (
        "model 'find' returned hints that cannot be used: 'read.work': '3', expected a number from "
        "-2^63 to 2^63; the request goes on without, and stats() counts it under 'ignored_hints'"
    )
    assert "'find'" in told[1] and "'length': None" in told[1]
    assert "'look'" in told[2] and "'read.work'" in told[2]
    assert "'look'" in told[3] and "what raised KeyError('no') when it was read" in told[3]
    assert [record.exc_info is not None for record in caplog.records] == [False, False, False, True]
    assert checked.ignored_hints("find") == {"read.work": 3, "length": 3}
    assert checked.ignored_hints("look") == {"read.work": 3, ALL_HINTS: 3}


def test_names_that_are_made_up_for_every_request_do_not_grow_the_table_without_end() -> None:
    checked = ResultHints()
    for index in range(COUNTED_MAX + 5):
        checked.of("m", {f"line {index}": None})
    checked.of("m", {"line 0": None})
    counts = checked.ignored_hints("m")
    assert len(counts) == COUNTED_MAX + 1
    assert (counts["line 0"], counts[OTHER_HINTS]) == (2, 5)


def test_a_value_in_a_message_is_cut_before_it_is_written_out() -> None:
    class Long(list):  # type: ignore[type-arg]
        pass

    assert show([1.0] * 10**6) == "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...]"
    assert len(show("x" * 10**6)) < 220 and len(show(Long([1] * 1000))) < 220
    assert len(show(10**5000)) < 220  # Python may refuse to write it out
