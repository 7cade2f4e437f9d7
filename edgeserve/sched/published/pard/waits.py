"""The time that a request will wait for batches to start, in the modules that are still before it: PARD's ``w``.

The wait of a request in a forming batch lasts until the batch before it ends. ``w`` is a low quantile of the sum of
these waits over a path: a pessimist's sum would drop requests that could have been in time. Three estimators (section
3.3 of the paper; it says "sampling", not how):

* ``uniform``: each wait is uniform between nothing and the batch time. Its quantiles of 1, 2, 3, 4 equal modules (0.10,
  0.45, 0.84, 1.25 batch times at ``lam`` 0.1) are those of the paper's example.
* ``empirical``: each wait is drawn from the module's last observed ones. Lanes that idled waited for nothing, which
  pulls the quantile to zero just when a burst begins.
* ``joint``: the sums of requests that passed the whole path. Knows survivors only.

Draws are whole numbers from a seed, so every Python decides alike. Knows no clock and no board.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Deque, Dict, Sequence, Tuple

import numpy as np

from edgeserve.units import PPM

KEPT_MAX = 10_000
"""Observed waits that are looked back on, per module and in all (the paper: "the last 10k")."""

COLUMNS_MAX = 64
"""Modules of the longest path whose waits are drawn independently; beyond it the draws repeat."""


class Waits:
    """The quantile ``lam`` of sums of waits. ``estimator`` is ``uniform``, ``empirical`` or ``joint``."""

    __slots__ = ("_estimator", "_lam_ppm", "_draws", "_known", "_observed", "_requests")

    def __init__(self, estimator: str, lam: float, samples: int, columns: int, seed: int) -> None:
        self._estimator = estimator
        self._lam_ppm = round(lam * PPM)
        columns = min(max(1, columns), COLUMNS_MAX)
        self._draws = np.random.RandomState(seed).randint(0, PPM, size=(columns, samples)).astype(np.int64)
        self._known: Dict[Tuple[int, ...], int] = {}  # batch times along a path -> quantile
        self._observed: Dict[str, Deque[int]] = {}
        self._requests: OrderedDict[int, Dict[str, int]] = OrderedDict()  # request -> its wait per module

    def observe(self, request_id: int, model: str, wait_ns: int) -> None:
        """A request joined a batch that starts so much later."""
        if self._estimator == "empirical":
            if model not in self._observed:
                self._observed[model] = deque(maxlen=KEPT_MAX)
            self._observed[model].append(wait_ns)
        elif self._estimator == "joint":
            self._requests.setdefault(request_id, {})[model] = wait_ns
            if len(self._requests) > KEPT_MAX:
                self._requests.popitem(last=False)

    def quantile_ns(self, models: Sequence[str], times_ns: Sequence[int]) -> int:
        """The quantile of the sum over the modules of a path, whose batches take ``times_ns``."""
        if not models or self._lam_ppm == 0:
            return 0
        if self._estimator == "joint":
            sums = [
                sum([waits[model] for model in models])
                for waits in self._requests.values()
                if all(model in waits for model in models)
            ]
            return sorted(sums)[rank_of(self._lam_ppm, len(sums))] if sums else 0
        if self._estimator == "empirical":
            return self._resampled_ns(models)
        key = tuple(times_ns)
        if key not in self._known:
            if len(self._known) > 4 * COLUMNS_MAX:
                self._known.clear()
            self._known[key] = self._uniform_ns(times_ns)
        return self._known[key]

    def _uniform_ns(self, times_ns: Sequence[int]) -> int:
        if self._lam_ppm == PPM:
            return sum(times_ns)
        sums: Any = self._column(0) * times_ns[0]
        for place, time_ns in enumerate(times_ns[1:], 1):
            sums += self._column(place) * time_ns
        return self._picked_ns(sums // PPM)

    def _resampled_ns(self, models: Sequence[str]) -> int:
        sums: Any = np.zeros(self._draws.shape[1], dtype=np.int64)
        for place, model in enumerate(models):
            seen = self._observed.get(model)
            if seen:
                sums += np.array(seen, dtype=np.int64)[self._column(place) * len(seen) // PPM]
        return self._picked_ns(sums)

    def _column(self, place: int) -> Any:
        return self._draws[place % len(self._draws)]

    def _picked_ns(self, sums: Any) -> int:
        rank = rank_of(self._lam_ppm, len(sums))
        return int(np.partition(sums, rank)[rank])


def rank_of(lam_ppm: int, count: int) -> int:
    """Which of ``count`` sorted samples is the quantile: the smallest that at least that share does not exceed."""
    return max(0, -(-lam_ppm * count // PPM) - 1)


def weighted_mean_ns(samples: Sequence[Tuple[int, int]], now_ns: int, window_ns: int) -> int:
    """The mean of (when, value) samples, a sample of age x weighing ``1 - x / window``; 0 without any: a module that
    drops everything must be tried again."""
    total = weights = 0
    for at_ns, value in samples:
        weight = window_ns - (now_ns - at_ns)
        if weight > 0:
            total += weight * value
            weights += weight
    return total // weights if weights else 0


def forget_before(samples: Deque[Tuple[int, int]], before_ns: int) -> None:
    """Let go of (when, value) samples that are older."""
    while samples and samples[0][0] < before_ns:
        samples.popleft()
