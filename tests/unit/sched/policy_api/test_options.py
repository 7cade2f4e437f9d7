"""Options of a policy: what is accepted, and what the message says of what is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import pytest

from edgeserve.errors import ConfigError
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import (
    PolicyOptions,
    option,
    options_of,
    other_default,
    read_options,
)


@dataclass(frozen=True)
class Own(PolicyOptions):
    share: float = option(0.5, "a share", low=0, high=1)
    count: int = option(3, "a number of things", low=1)
    way: str = option("short", "which way", one_of=("short", "long"))
    names: Tuple[str, ...] = option((), "names")
    lambda_: float = option(1.5, "a ratio")
    late: bool = option(False, "whether late")


@dataclass(frozen=True)
class Other(Own):
    share: float = other_default(Own, "share", 0.25)


def test_what_is_not_said_has_its_default():
    assert read_options(Own, "p", {}) == Own()
    assert {key: known.default for key, known in options_of(Own).items()} == {
        "trials": True, "share": 0.5, "count": 3, "way": "short", "names": [], "lambda": 1.5, "late": False
    }  # fmt: skip


def test_values_are_held_as_the_field_says():
    given = {"share": 1, "names": ["a", "b"], "lambda": 2, "late": True, "way": "long", "count": 1, "trials": False}
    read = read_options(Own, "p", given)
    assert read == Own(False, 1.0, 1, "long", ("a", "b"), 2.0, True)
    assert isinstance(read.share, float) and isinstance(read.names, tuple)


def test_another_default_keeps_meaning_and_bounds():
    assert options_of(Other)["share"] == options_of(Own)["share"]._replace(default=0.25)
    assert read_options(Other, "p", {}).share == 0.25
    with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
        read_options(Other, "p", {"share": 2.0})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shaer", 1, "has no option 'shaer'; did you mean 'share'?"),
        ("lambda_", 1.0, "has no option 'lambda_'; did you mean 'lambda'?"),
        ("share", "much", "share = 'much': expected a number from 0 to 1, such as 0.5"),
        ("share", True, "share = True: expected a number from 0 to 1, such as 0.5"),
        ("share", 1.01, "share = 1.01: expected a number from 0 to 1"),
        ("share", float("nan"), "share = nan: expected a number from 0 to 1"),
        ("lambda", float("inf"), "lambda = inf: expected a number"),
        ("count", 0, "count = 0: expected a whole number from 1"),
        ("count", 1.0, "count = 1.0: expected a whole number from 1, such as 3"),
        ("way", "lng", "way = 'lng': expected one of \"short\", \"long\"; did you mean 'long'?"),
        ("way", 3, 'way = 3: expected one of "short", "long"'),
        ("names", "a", "names = 'a': expected a list"),
        ("late", 1, "late = 1: expected true or false, such as False"),
        ("trials", "no", "trials = 'no': expected true or false, such as True"),
    ],
)
def test_what_is_refused_is_named_with_its_section_and_what_was_expected(key, value, message):
    with pytest.raises(ConfigError) as caught:
        read_options(Own, "p", {key: value})
    assert str(caught.value) in (f"[policy.p] {message}",)


@pytest.mark.parametrize("kind", POLICIES)
def test_every_default_of_a_policy_is_accepted(kind):
    known = POLICIES[kind].options_type
    assert read_options(known, kind, {key: each.default for key, each in options_of(known).items()}) == known()
