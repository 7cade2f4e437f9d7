"""Gains with their spread, and when a change is worth it."""

from __future__ import annotations

import random

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.tools.tuning.verdict import Sums, gain, judge, offered, score

CONFIG = parse_config(
    {
        "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
        "app": {"a": {"model": "m"}, "c": {"model": "m", "class": "critical"}},
    }
)


def tally(shares, app="a", per_block=100, value=1.0):
    found = {}
    for block, share in enumerate(shares):
        sums = found[block, app, ""] = Sums()
        for number in range(per_block):
            sums.add(value, 10.0 * value, number < round(share * per_block))
    return found


def test_a_gain_is_the_difference_of_shares():
    found = gain(tally([0.5, 0.6, 0.7]), tally([0.6, 0.7, 0.8]), "finish")
    assert found.share == pytest.approx(0.1)
    assert found.spread == pytest.approx(0.0, abs=1e-12)
    assert found.is_clear
    assert str(found) == "+10.0 ± 0.0"


def test_the_spread_is_students_interval_of_the_blocks():
    found = gain(tally([0.5] * 4), tally([0.5, 0.6, 0.7, 0.8]), "finish")
    mean, deviation = 0.15, 0.1290994448735806  # of 0, 0.1, 0.2, 0.3
    assert found.share == pytest.approx(mean)
    assert found.spread == pytest.approx(3.18 * deviation / 4**0.5)


def test_equal_configurations_are_hardly_ever_told_apart():
    draw, clear = random.Random(1), 0
    for _ in range(400):
        blocks = [[draw.random() < 0.8 for _ in range(2 * 50)] for _ in range(10)]
        shares = [(sum(block[:50]) / 50, sum(block[50:]) / 50) for block in blocks]
        found = gain(
            tally([one for one, _ in shares], per_block=50), tally([two for _, two in shares], per_block=50), "finish"
        )
        clear += found.is_clear
    assert 2 <= clear <= 22  # 2.5 % of 400 are expected, one-sided


def test_requests_are_weighed_with_their_value():
    both = {**tally([0.0], "a", value=1.0), **tally([1.0], "c", value=3.0)}
    assert (offered(both), offered(both, "a")) == (200, 100)
    assert (score(both, "finish", "a"), score(both, "value", "c")) == (0.0, 1.0)
    assert score(both, "finish") == score(both, "value") == pytest.approx(0.75)


def test_one_block_is_no_spread():
    found = gain(tally([0.1]), tally([0.9]), "finish")
    assert not found.is_clear


def judged(today, other):
    return judge(CONFIG, today, other, "finish")


def test_a_clear_gain_is_taken():
    verdict = judged({1.0: tally([0.5, 0.5, 0.5])}, {1.0: tally([0.6, 0.61, 0.59])})
    assert verdict.take
    assert verdict.total.share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("today", "other", "why"),
    [
        ({1.0: tally([0.5, 0.5, 0.5])}, {1.0: tally([0.9, 0.2, 0.6])}, "within the spread"),
        ({1.0: tally([0.5, 0.5, 0.5])}, {1.0: tally([0.5, 0.5, 0.5])}, "within the spread"),
        ({1.0: tally([0.5] * 3, per_block=1000)}, {1.0: tally([0.504] * 3, per_block=1000)}, "below 0.5 points"),
        ({1.0: tally([0.9] * 3), 1.5: tally([0.3] * 3)}, {1.0: tally([0.8] * 3), 1.5: tally([0.9] * 3)}, "load 1"),
        (
            {1.0: {**tally([0.3] * 3), **tally([1.0] * 3, "c")}},
            {1.0: {**tally([0.9] * 3), **tally([0.9] * 3, "c")}},
            "critical app c",
        ),
    ],
)
def test_what_is_not_worth_a_change(today, other, why):
    verdict = judged(today, other)
    assert not verdict.take
    assert why in verdict.why
