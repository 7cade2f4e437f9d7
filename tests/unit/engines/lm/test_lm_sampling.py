"""The choice of the next token."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgeserve.engines.lm.sampling import (
    LIKELY_FIRST,
    Sampling,
    best_found,
    best_of,
    choose,
    enough,
    log_chances,
    weighed,
)

SCORES = np.array([0.5, 3.0, -1.0, 3.0, 2.0], np.float32)


def test_temperature_zero_takes_the_best_and_of_equals_the_first():
    assert choose(SCORES, Sampling(), 0.99) == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.5}])
def test_of_scores_that_are_no_numbers_nothing_is_chosen(wrong, settings):
    scores = np.array([0.5, 3.0, wrong, 2.0], np.float32)
    for said in (scores, best_of(scores, 1), best_of(scores, 2)):
        with pytest.raises(ArithmeticError, match="expected finite"):
            choose(said, Sampling(**settings), 0.5)


def test_every_draw_falls_where_the_probabilities_say():
    chances = np.exp(SCORES.astype(np.float64)) / np.exp(SCORES.astype(np.float64)).sum()
    drawn = [choose(SCORES, Sampling(1.0), (place + 0.5) / 1000) for place in range(1000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 1000, chances, atol=0.002)


def test_a_higher_temperature_spreads_the_draws():
    def share_of_the_best(temperature):
        return np.mean([choose(SCORES, Sampling(temperature), (place + 0.5) / 200) in (1, 3) for place in range(200)])

    assert share_of_the_best(0.3) > share_of_the_best(1.0) > share_of_the_best(5.0)


@pytest.mark.parametrize(("top_k", "kept"), [(1, {1}), (2, {1, 3}), (3, {1, 3, 4}), (0, {0, 1, 2, 3, 4})])
def test_top_k_keeps_the_best(top_k, kept):
    drawn = {choose(SCORES, Sampling(5.0, top_k=top_k), (place + 0.5) / 300) for place in range(300)}
    assert drawn == kept


def drawn_of(scores, sampling, draws=2000):
    return {choose(scores, sampling, (place + 0.5) / draws) for place in range(draws)}


@pytest.mark.parametrize(("top_p", "kept"), [(0.85, {1, 3, 4}), (0.6, {1, 3}), (0.0, {1})])
def test_top_p_keeps_the_fewest_that_reach_it(top_p, kept):
    """Tokens 1 and 3 have 0.81 together, with 4 it is 0.96."""
    assert drawn_of(SCORES, Sampling(1.0, top_p=top_p)) == kept


def test_top_p_of_a_flat_distribution_needs_more_than_are_sorted_first():
    draws = 2 * LIKELY_FIRST
    assert drawn_of(np.zeros(4 * LIKELY_FIRST, np.float32), Sampling(1.0, top_p=0.5), draws) == set(range(draws))


def test_top_k_and_top_p_together_count_the_share_of_those_that_top_k_kept():
    assert drawn_of(SCORES, Sampling(1.0, top_p=0.5, top_k=2)) == {1}
    assert drawn_of(SCORES, Sampling(1.0, top_p=0.51, top_k=2)) == {1, 3}


@pytest.mark.parametrize(
    ("min_p", "kept"), [(0.0, {0, 1, 2, 3, 4}), (0.05, {0, 1, 3, 4}), (0.3, {1, 3, 4}), (1.0, {1, 3})]
)
def test_min_p_keeps_what_is_nearly_as_likely_as_the_best(min_p, kept):
    for more in ({}, {"top_k": 5}, {"top_p": 0.9999}):
        drawn = {choose(SCORES, Sampling(1.0, min_p=min_p, **more), (place + 0.5) / 2000) for place in range(2000)}
        assert drawn == kept


@pytest.mark.parametrize(
    ("settings", "scores"),
    [
        ({}, [0.5, 3.0, -1.0, 3.0, 2.0]),
        ({"frequency_penalty": 0.5}, [0.5, 2.0, -1.5, 3.0, 2.0]),
        ({"presence_penalty": 0.5}, [0.5, 2.5, -1.5, 3.0, 2.0]),
        ({"frequency_penalty": -1.0, "presence_penalty": 0.5}, [0.5, 4.5, -0.5, 3.0, 2.0]),
        ({"repeat_penalty": 2.0}, [0.5, 1.5, -2.0, 3.0, 1.0]),
        ({"repeat_penalty": 2.0, "repeat_last_n": 4}, [0.5, 1.5, -2.0, 3.0, 1.0]),
        ({"repeat_penalty": 2.0, "repeat_last_n": 2}, [0.5, 1.5, -2.0, 3.0, 2.0]),
        ({"repeat_penalty": 2.0, "repeat_last_n": 0}, [0.5, 3.0, -1.0, 3.0, 2.0]),
        ({"biases": ((0, 100.0), (3, -1.0))}, [100.5, 3.0, -1.0, 2.0, 2.0]),
    ],
)
def test_what_was_said_counts_against_a_token_and_the_asker_may_weigh_it(settings, scores):
    given = SCORES.copy()
    found = weighed(given, Sampling(**settings), [4, 4], [1, 2, 1])
    np.testing.assert_allclose(found, scores)
    np.testing.assert_array_equal(given, SCORES)


def test_log_chances_are_those_of_the_model_and_never_infinite():
    scores = np.log(np.float32([0.5, 0.25, 0.25, 0.0]) + np.float32([0, 0, 0, 1e-45]))
    of_token, likely = log_chances(np.where(np.arange(4) == 3, -np.inf, scores).astype(np.float32), 3, 2)
    assert of_token == -9999.0 and [token for token, _ in likely] == [0, 1]
    assert np.allclose([chance for _, chance in likely], np.log([0.5, 0.25]))
    assert log_chances(scores, 1, 0)[1] == []


@pytest.mark.parametrize("seed", range(30))
def test_the_best_tokens_alone_are_chosen_among_as_all_are(seed):
    draw = random.Random(f"best/{seed}")
    scores = np.round(np.random.default_rng(seed).standard_normal(500) * 3, draw.choice([0, 1, 6])).astype(np.float32)
    for _ in range(20):
        sampling = Sampling(
            draw.choice([0.0, 0.5, 1.3]),
            draw.choice([1.0, 0.9, 0.3]),
            draw.choice([1, 3, 40, 499]),
            draw.choice([0.0, 0.05]),
        )
        count, at = enough(sampling), draw.random()
        assert count == (1 if sampling.temperature == 0.0 else sampling.top_k)
        assert choose(best_of(scores, count), sampling, at) == choose(scores, sampling, at)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(1.0, top_p=0.9),
        Sampling(1.0, top_k=LIKELY_FIRST + 1),
        Sampling(0.0, frequency_penalty=0.1),
        Sampling(0.0, presence_penalty=0.1),
        Sampling(0.0, repeat_penalty=1.1),
        Sampling(0.0, biases=((3, 1.0),)),
    ],
)
def test_where_other_scores_count_all_are_read(sampling):
    assert enough(sampling) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_best_found_on_a_device_are_those_of_all_scores_or_not_known(seed, count):
    """A device's top-k gives tokens of equal scores in any order; scores of half precision are often equal."""
    draw = np.random.default_rng(seed)
    scores = np.round(draw.normal(0.0, 1.0, 200), draw.integers(0, 4))
    numbers = np.lexsort((draw.random(200), -scores))[: count + 1]
    found, true = best_found(numbers, scores[numbers], count), best_of(scores, count)
    level = np.sort(scores)[::-1]
    assert (found is None) == (level[count] == level[count - 1])
    assert found is None or (found.tokens.tolist() == true.tokens.tolist())


def chosen_by_sorting(scores, sampling, draw):
    """The rules of :class:`Sampling`, word by word."""
    scaled = scores.astype(np.float64) / sampling.temperature
    chances = np.exp(scaled - scaled.max())
    chances[chances < sampling.min_p] = 0.0
    order = np.lexsort((np.arange(len(scores)), -scaled))
    kept = order[: int(np.searchsorted(np.cumsum(chances[order]), sampling.top_p * chances.sum())) + 1]
    sums = np.cumsum(chances[kept])
    return int(kept[np.searchsorted(sums, draw * sums[-1], side="right")])


MANY = 20 * LIKELY_FIRST
NORMAL = np.random.default_rng(7).normal(0, 1, MANY)
SHAPES = {
    "flat": NORMAL * 0.1,
    "normal": NORMAL * 1.5,
    "steep": NORMAL * 8.0,
    "one best, and the rest alike": np.where(np.arange(MANY) == 5, 9.0, NORMAL * 1e-6),
    "one worst, and the rest alike": np.where(np.arange(MANY) == 5, -900.0, NORMAL * 1e-6),
    "two heaps": np.where(NORMAL > 1, 2.0, 0.0) + NORMAL * 1e-9,
    "equal": np.zeros(MANY),
    "few values": np.round(NORMAL, 1),
    "many that cannot come": np.where(NORMAL > 0.5, -np.inf, NORMAL),
}


@pytest.mark.parametrize("scores", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("top_p", [0.0, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("min_p", [0.0, 1e-3])
def test_a_large_vocabulary_draws_what_sorting_all_of_it_would(scores, top_p, min_p):
    draws = random.Random(f"{top_p}/{min_p}")
    for kind in (np.float16, np.float32):  # of half precision many are equal
        few = scores.astype(kind)
        for draw in [0.0, *[draws.random() for _ in range(9)], 1 - 2**-40]:
            sampling = Sampling(1.0, top_p=top_p, min_p=min_p)
            assert choose(few, sampling, draw) == chosen_by_sorting(few, sampling, draw)
