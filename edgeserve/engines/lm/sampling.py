"""The choice of the next token from a model's scores: the best one, or drawn among the likely ones; before that, the
tokens of the answer so far, and the request's weights, may change the scores.

Pure: the draw, a number from 0 to below 1, is handed in.
"""

from __future__ import annotations

from typing import Any, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

LIKELY_FIRST = 1024
"""The number of best tokens that are sorted: they nearly always hold ``top_p``."""

LEVELS = 4096
"""The levels of score into which more tokens are counted. Sorting 150,000 tokens takes 30 ms, counting them 3 ms."""

ROUNDING = 1.0 + 1e-9
"""More than sums of a vocabulary's probabilities differ by the order in which they are added."""

LOG_CHANCE_MIN = -9999.0
"""The logarithm that OpenAI's API gives a token that cannot come: JSON has no infinity."""


class Sampling(NamedTuple):
    """``temperature`` 0 takes the best token. Else scores are divided by it, tokens that are less than ``min_p`` times
    as likely as the best go, of the others the ``top_k`` best stay (0: all), and of these the fewest best ones whose
    probabilities sum up to ``top_p`` at least.

    Before, ``frequency_penalty`` (for each time that the answer has the token) and ``presence_penalty`` (once) are
    taken off, as in OpenAI's API, a token among the last ``repeat_last_n`` of prompt and answer (-1: of all) has its
    score divided by ``repeat_penalty`` (multiplied, where it is negative; Keskar et al., 2019), and each token of
    ``biases`` has its number added."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = -1
    biases: Tuple[Tuple[int, float], ...] = ()


class Best(NamedTuple):
    """The best tokens of a model's scores, best first and equal ones by number, with their scores."""

    tokens: NDArray[Any]
    scores: NDArray[Any]


Scores = Union[NDArray[Any], Best]
"""The scores of all tokens, or of the best ones where a choice reads no others."""


def best_of(scores: NDArray[Any], count: int) -> Best:
    """The ``count`` best, fewer than all; one that is no finite number alone, which :func:`choose` refuses."""
    best = np.argmax(scores)
    tokens = np.array([best]) if count == 1 or not scores[best] < np.inf else _best(scores, count)
    return Best(tokens, scores[tokens])


def best_found(tokens: NDArray[Any], scores: NDArray[Any], count: int) -> Optional[Best]:
    """The ``count`` best of more tokens, whose scores fall; equal ones come in any order. None where the next one is as
    good: equal ones of a lower number may have been left out."""
    if not scores[count] < scores[count - 1]:
        return None
    order = np.lexsort((tokens[:count], -scores[:count]))
    return Best(tokens[order], scores[order])


def enough(sampling: Sampling) -> int:
    """The number of best tokens that are all a choice reads; 0: it reads every score."""
    if sampling.frequency_penalty or sampling.presence_penalty or sampling.biases or sampling.repeat_penalty != 1.0:
        return 0
    return 1 if sampling.temperature <= 0.0 else sampling.top_k if sampling.top_k <= LIKELY_FIRST else 0


def weighed(scores: Scores, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Scores:
    """The scores with penalties and biases; the same array where there are none."""
    said = sampling.frequency_penalty or sampling.presence_penalty
    repeats = sampling.repeat_penalty != 1.0 and sampling.repeat_last_n != 0
    if isinstance(scores, Best) or not (said or repeats or sampling.biases):
        return scores
    scores = np.array(scores)
    if repeats:
        last = [*prompt, *answer]
        last = last if sampling.repeat_last_n < 0 else last[-sampling.repeat_last_n :]
        seen = np.unique(np.array(last, np.int64))
        found = scores[seen]
        scores[seen] = np.where(found > 0, found / sampling.repeat_penalty, found * sampling.repeat_penalty)
    if said and answer:
        tokens, counts = np.unique(np.array(answer, np.int64), return_counts=True)
        scores[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    for token, bias in sampling.biases:
        scores[token] += bias
    return scores


def log_chances(scores: NDArray[Any], token: int, count: int) -> Tuple[float, List[Tuple[int, float]]]:
    """The natural logarithm of a token's probability as the model says, before penalties, biases, temperature and what
    the answer is held to; and the ``count`` most likely tokens with theirs, best first."""
    scaled = scores.astype(np.float64)
    scaled -= scaled.max()
    scaled -= np.log(np.exp(scaled).sum())
    scaled = np.maximum(scaled, LOG_CHANCE_MIN)
    best = _best(scaled, count) if count else ()
    return float(scaled[token]), [(int(each), float(scaled[each])) for each in best]


def choose(scores: Scores, sampling: Sampling, draw: float) -> int:
    """The chosen token. Of tokens with equal scores the lower number goes first. Raises ``ArithmeticError`` where a
    score is NaN or infinite: a model that has left the range of its numbers says nothing."""
    if isinstance(scores, Best):
        return int(scores.tokens[choose(scores.scores, sampling, draw)])
    token = int(np.argmax(scores))  # of NaN, where there is one
    if not scores[token] < np.inf:
        raise ArithmeticError(f"the model gave a score of {scores[token]}; expected finite numbers")
    if sampling.temperature <= 0.0:
        return token
    scaled = scores.astype(np.float64) / sampling.temperature
    scaled -= scaled.max()
    if sampling.min_p > 0.0:
        scaled[scaled < np.log(sampling.min_p)] = -np.inf
    if 0 < sampling.top_k < len(scaled):
        tokens = _best(scaled, sampling.top_k)
        chances = np.exp(scaled[tokens])
        limit = sampling.top_p * float(chances.sum()) if sampling.top_p < 1.0 else np.inf
        return _drawn(tokens, chances, limit, draw)
    if sampling.top_p >= 1.0:
        return _drawn(np.arange(len(scaled)), np.exp(scaled), np.inf, draw)
    limit = sampling.top_p * float(np.exp(scaled).sum())
    tokens = _unsorted(scaled, LIKELY_FIRST)
    if len(tokens) < len(scaled) and float(np.exp(scaled[tokens]).sum()) < limit * ROUNDING:
        return _drawn_of_many(scaled, np.exp(scaled), limit, draw)
    tokens = _sorted(tokens, scaled)
    return _drawn(tokens, np.exp(scaled[tokens]), limit, draw)


def _drawn(tokens: NDArray[Any], chances: NDArray[Any], limit: float, draw: float) -> int:
    """The token at ``draw`` among the first whose chances sum up to ``limit`` at least; among all of them for a limit
    above their sum."""
    sums = np.cumsum(chances)
    last = min(int(np.searchsorted(sums, limit)), len(sums) - 1)
    place = int(np.searchsorted(sums, draw * sums[last], side="right"))
    return int(tokens[min(place, last)])


def _drawn_of_many(scaled: NDArray[Any], chances: NDArray[Any], limit: float, draw: float) -> int:
    """The same of all tokens, best first, of which only the few around the two places are sorted."""
    if scaled.min() == -np.inf:
        possible = np.flatnonzero(scaled > -np.inf)
        return int(possible[_drawn_of_many(scaled[possible], chances[possible], limit, draw)])
    counted = _counted(scaled, chances)
    before, tokens = _around(scaled, chances, counted, limit, "left")
    sums = before + np.cumsum(chances[tokens])
    last = min(int(np.searchsorted(sums, limit)), len(sums) - 1)
    target = draw * float(sums[last])
    if target < before:
        before, tokens = _around(scaled, chances, counted, target, "right")
        sums = before + np.cumsum(chances[tokens])
        last = len(sums) - 1
    return int(tokens[min(int(np.searchsorted(sums, target, side="right")), last)])


Counted = Optional[Tuple[NDArray[Any], NDArray[Any]]]
"""The level of each token, 0 for the best, and the sums of the chances up to each level; None of tokens that are few or
equal."""


def _counted(scaled: NDArray[Any], chances: NDArray[Any]) -> Counted:
    if len(scaled) <= LIKELY_FIRST:
        return None
    best = scaled.max()
    depth = best - scaled.min()
    if not depth > 0.0:
        return None
    level = ((best - scaled) / depth * LEVELS).astype(np.intp)
    return level, np.cumsum(np.bincount(level, chances))


def _around(
    scaled: NDArray[Any], chances: NDArray[Any], counted: Counted, target: float, side: Literal["left", "right"]
) -> Tuple[float, NDArray[Any]]:
    """A few tokens, best first, among them the first up to which the chances of all, best first, sum up to ``target``;
    and the sum of the chances before these tokens."""
    before, found = 0.0, np.arange(len(scaled))
    while counted is not None:
        level, sums = counted
        chosen = min(int(np.searchsorted(sums, target - before, side=side)), LEVELS)
        before += float(sums[chosen - 1]) if chosen else 0.0
        found = found[level == chosen]
        counted = _counted(scaled[found], chances[found])
    return before, _sorted(found, scaled)


def _best(scaled: NDArray[Any], count: int) -> NDArray[Any]:
    """The numbers of the ``count`` best, best first, equal ones by number."""
    return _sorted(_unsorted(scaled, count), scaled)


def _unsorted(scaled: NDArray[Any], count: int) -> NDArray[Any]:
    """The numbers of the ``count`` best in any order, of equal ones the lower."""
    if count >= len(scaled):
        return np.arange(len(scaled))
    worst = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
    above = np.flatnonzero(scaled > worst)
    level = np.flatnonzero(scaled == worst)[: count - len(above)]
    return np.concatenate([above, level])


def _sorted(found: NDArray[Any], scaled: NDArray[Any]) -> NDArray[Any]:
    """Some tokens' numbers, best first, equal ones by number."""
    ordered: NDArray[np.intp] = found[np.lexsort((found, -scaled[found]))]
    return ordered
