"""The lognormal law beside drawn numbers: means, quantiles, what is left, chances; cut to an interval or not."""

from __future__ import annotations

import math
import random

import pytest

from edgeserve.lognormal import Lognormal

LAWS = [Lognormal(3.0, 0.5), Lognormal(3.0, 0.9), Lognormal(1.0, 0.2), Lognormal(2.0, 0.0)]


def drawn(law: Lognormal, count: int = 50_000) -> list[float]:
    draw = random.Random(3)
    return [draw.lognormvariate(law.log_mean, law.sigma) for _ in range(count)]


@pytest.mark.parametrize("law", LAWS)
def test_mean_and_quantiles_are_those_of_drawn_numbers(law: Lognormal) -> None:
    numbers = sorted(drawn(law))
    assert law.mean() == pytest.approx(sum(numbers) / len(numbers), rel=0.015)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert law.quantile(share) == pytest.approx(numbers[int(share * len(numbers))], rel=0.03), share
    picked = [law.pick((index + 0.5) / 2000) for index in range(2000)]
    assert sum(picked) / len(picked) == pytest.approx(law.mean(), rel=0.01)


@pytest.mark.parametrize("law", LAWS[:2])
@pytest.mark.parametrize("done", [0, 3, 20, 40])
def test_what_is_left_and_its_chances_are_those_of_the_longer_ones(law: Lognormal, done: int) -> None:
    longer = [number for number in drawn(law) if number > done]
    assert law.remaining(done) == pytest.approx(sum(longer) / len(longer) - done, rel=0.05)
    for more in (1.0, 5.0, 30.0):
        share = sum(number <= done + more for number in longer) / len(longer)
        assert law.chance(done, more) == pytest.approx(share, abs=0.02), more


@pytest.mark.parametrize("law", LAWS[:2])
@pytest.mark.parametrize("done", [0, 3, 20, 40])
def test_what_is_left_at_most_with_a_chance_is_that_of_the_longer_ones(law: Lognormal, done: int) -> None:
    longer = sorted(number for number in drawn(law) if number > done)
    for share in (0.5, 0.9):
        assert law.rest(done, share) == pytest.approx(longer[int(share * len(longer))] - done, rel=0.06), share


def test_far_beyond_its_law_a_number_is_its_own_evidence() -> None:
    assert Lognormal(1.0, 0.1, 1.0, 1000.0).remaining(200) == 200
    assert Lognormal(1.0, 0.1, 1.0, 210.0).remaining(200) == 10
    assert Lognormal(1.0, 0.1).chance(200, 200) == 0.5
    assert Lognormal(1.0, 0.1).rest(200, 0.5) == 200
    assert Lognormal(1.0, 0.1, 1.0, 210.0).rest(200, 0.9) == 10
    assert Lognormal(1.0, 0.0).rest(50, 0.9) == 1.0
    assert Lognormal(1.0, 0.0).remaining(1) == pytest.approx(math.e - 1)
    assert Lognormal(1.0, 0.0).remaining(50) == 1.0


def test_numbers_stay_finite_and_a_share_is_from_0_to_1() -> None:
    law = Lognormal(19.0, 1.0, 1.0, 50.0)
    assert law.mean() == law.quantile(0.1) == law.quantile(1.0) == 50.0
    assert Lognormal(-5.0, 0.1, 1.0).mean() == Lognormal(-5.0, 0.1, 1.0).quantile(0.9) == 1.0
    assert math.isfinite(Lognormal(500.0, 3.0).mean())
    assert 0.0 < Lognormal(3.0, 0.5).quantile(0.0) < Lognormal(3.0, 0.5).quantile(1.0) < math.inf
    with pytest.raises(ValueError, match=r"share = 1.5, expected a number from 0 to 1"):
        law.quantile(1.5)
