"""Clairvoyant optima: oracles for pipelines of equal requests on one device.

Both know every arrival beforehand. Requests go in cohorts that run to the end; one of b takes ``cost_ns(b)``.
"""

from __future__ import annotations

from typing import Callable, List, Sequence, Tuple

import numpy as np

Cost = Callable[[int], int]

Groups = Callable[[int], Sequence[Tuple[int, int]]]
"""For a cohort of so many: the first member of each batch of the last module, counted from 0, and how long before the
cohort's end that batch is over."""


COHORT_MAX = 200
"""Requests of a cohort at most, where its batches are answered one by one. (Else the deadline bounds it.)"""


def most_in_time(
    arrivals_ns: Sequence[int],
    slo_ns: int,
    cost_ns: Cost,
    grid_ns: int = 2_000_000,
    takes_ns: Cost | None = None,
    groups: Groups | None = None,
) -> int:
    """The most requests that any schedule of cohorts answers by their deadlines, by dynamic programming.

    ``takes_ns``: from a cohort's beginning to its end where it needs other lanes too, on which other cohorts do not
    make it wait; ``cost_ns`` is then its time on the device, which others may use in between. ``groups``: who of a
    cohort is answered before its end; without, all are answered together.

    State: the first request that is not settled, and when the device is free, on a grid. Moves: drop that request, or
    serve the next b as soon as the last of them is there (idling until then). With one deadline for all, serving in
    the order of arrival loses nothing. Times are rounded in the schedule's favour, so it is an upper bound. O(requests
    * largest cohort * deadline / grid).
    """
    slots = -(-slo_ns // grid_ns) + 1
    at = [time_ns // grid_ns for time_ns in arrivals_ns]
    due = [-(-(time_ns + slo_ns) // grid_ns) for time_ns in arrivals_ns]
    costs: List[int] = []
    takes: List[int] = []
    answered: List[List[Tuple[int, int]]] = []
    for count in range(1, len(at) + 1):
        batches = groups(count) if groups is not None else ((0, 0),)
        took_ns = max(cost_ns(count), takes_ns(count) if takes_ns is not None else 0)
        if (groups is not None and count > COHORT_MAX) or took_ns - batches[0][1] > slo_ns:
            break
        costs.append(cost_ns(count) // grid_ns)
        takes.append(took_ns // grid_ns)
        answered.append([(member, -(-early_ns // grid_ns)) for member, early_ns in batches])
    slots += max(costs, default=0)
    best = [np.zeros(slots + 1, dtype=np.int32) for _ in range(len(at) + 1)]
    offsets = np.arange(slots + 1)
    for first in range(len(at) - 1, -1, -1):
        free = at[first] + offsets  # when the device is free
        found = _later(best, at, first + 1, free)
        for count in range(1, min(len(costs), len(at) - first) + 1):
            last = at[first + count - 1]
            due_at = min([due[first + member] + early for member, early in answered[count - 1]])
            if last + takes[count - 1] > due_at:
                break
            ends = np.maximum(free, last) + costs[count - 1]
            served = count + _later(best, at, first + count, ends)
            found = np.where(ends <= due_at, np.maximum(found, served), found)
        best[first] = found
    return int(best[0][0]) if at else 0


def _later(best: List[np.ndarray], at: Sequence[int], index: int, free: np.ndarray) -> np.ndarray:
    """The number served from request ``index`` on, for each time at which the device is free."""
    if index >= len(at):
        return np.zeros(len(free), dtype=np.int32)
    return best[index][np.clip(free - at[index], 0, len(best[index]) - 1)]
