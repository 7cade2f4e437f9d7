"""What a clairvoyant could have served: oracles for pipelines of equal requests on one device.

Both know every arrival beforehand. Requests go in cohorts that run to the end; one of b takes ``cost_ns(b)``.
"""

from __future__ import annotations

from itertools import combinations
from typing import Callable, List, Sequence

import numpy as np

Cost = Callable[[int], int]


def most_in_time(arrivals_ns: Sequence[int], slo_ns: int, cost_ns: Cost, grid_ns: int = 2_000_000) -> int:
    """The most requests that any schedule of cohorts answers by their deadlines, by dynamic programming.

    State: the first request that is not settled, and when the device is free, on a grid. Moves: drop that request, or
    serve the next b as soon as the last of them is there (idling until then). With one deadline for all, serving in
    the order of arrival loses nothing. Times are rounded in the schedule's favour, so it is an upper bound. O(requests
    * largest cohort * deadline / grid).
    """
    slots = -(-slo_ns // grid_ns) + 1
    at = [time_ns // grid_ns for time_ns in arrivals_ns]
    due = [-(-(time_ns + slo_ns) // grid_ns) for time_ns in arrivals_ns]
    costs: List[int] = []
    while len(costs) < len(at) and cost_ns(len(costs) + 1) <= slo_ns:
        costs.append(cost_ns(len(costs) + 1) // grid_ns)
    best = [np.zeros(slots + 1, dtype=np.int32) for _ in range(len(at) + 1)]
    offsets = np.arange(slots + 1)
    for first in range(len(at) - 1, -1, -1):
        free = at[first] + offsets  # when the device is free
        found = _later(best, at, first + 1, free)
        for count in range(1, min(len(costs), len(at) - first) + 1):
            last = at[first + count - 1]
            if last + costs[count - 1] > due[first]:
                break
            ends = np.maximum(free, last) + costs[count - 1]
            served = count + _later(best, at, first + count, ends)
            found = np.where(ends <= due[first], np.maximum(found, served), found)
        best[first] = found
    return int(best[0][0]) if at else 0


def _later(best: List[np.ndarray], at: Sequence[int], index: int, free: np.ndarray) -> np.ndarray:
    """What is still served from request ``index`` on, for each time at which the device is free."""
    if index >= len(at):
        return np.zeros(len(free), dtype=np.int32)
    return best[index][np.clip(free - at[index], 0, len(best[index]) - 1)]


def most_in_time_exhaustive(arrivals_ns: Sequence[int], slo_ns: int, cost_ns: Cost) -> int:
    """The same for at most eight requests by trying everything: which are served at all, and every way to cut these
    into cohorts. Exact times."""
    assert len(arrivals_ns) <= 8, "exponential"
    for count in range(len(arrivals_ns), 0, -1):
        for served in combinations(sorted(arrivals_ns), count):
            if _can_serve(served, slo_ns, cost_ns, 0):
                return count
    return 0


def _can_serve(arrivals_ns: Sequence[int], slo_ns: int, cost_ns: Cost, free_ns: int) -> bool:
    if not arrivals_ns:
        return True
    for count in range(1, len(arrivals_ns) + 1):
        ends_ns = max(free_ns, arrivals_ns[count - 1]) + cost_ns(count)
        if ends_ns <= arrivals_ns[0] + slo_ns and _can_serve(arrivals_ns[count:], slo_ns, cost_ns, ends_ns):
            return True
    return False
