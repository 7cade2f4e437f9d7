"""PARD's experiments in the lean world (``common/lean_world.py``): work that differs, lanes that come and go."""

from __future__ import annotations

import math
import random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from common.lean_world import LeanWorld, served

from edgeserve.sched.protocol.actions import RunBatch


class Outcome(NamedTuple):
    """The outcome of a run's requests; ``drop`` and ``invalid`` are shares."""

    offered: int
    good: int
    late: int
    drop: float
    invalid: float
    by_module: Dict[str, int]  # requests that were dropped or expired before this module
    by_second: Dict[int, Tuple[int, int]]  # second of arrival -> (offered, good)


class WorkWorld(LeanWorld):
    """A batch takes ``a + c * (sum of its requests' work)`` ms, ``profiles`` has (a, c) by model. ``told`` is what the
    requests declare, if they do."""

    def __init__(
        self,
        *given: Any,
        profiles: Mapping[str, Tuple[float, float]],
        works: Sequence[float],
        declared: Sequence[float],
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self._profiles, self._works, self._declared = profiles, works, declared

    def hints_of(self, request_id: int) -> Optional[Mapping[str, float]]:
        """The work at every module."""
        return {"work": self._declared[request_id - 1]} if self._declared else None

    def takes_ns(self, action: RunBatch) -> int:
        """As long as the requests' work."""
        fixed, each = self._profiles[action.model]
        return round((fixed + each * sum([self._works[job.request_id - 1] for job in action.jobs])) * 1e6)


def lognormal(draw: random.Random, variation: float) -> float:
    """Work of mean 1 with this coefficient of variation."""
    sigma = math.sqrt(math.log(1 + variation * variation))
    return draw.lognormvariate(-sigma * sigma / 2, sigma)


def run_case(
    table: Dict[str, Any], arrivals_ns: Sequence[int], changes: Sequence[Tuple[int, str, bool]] = ()
) -> Outcome:
    """Serve the arrivals with the configuration of one app and one policy of kind ``pard`` or ``pard+``."""
    world, scheduler = served(table, arrivals_ns, LeanWorld, changes=changes)
    policy = scheduler.policies[0]
    seconds: Dict[int, List[bool]] = {}
    for index, at_ns in enumerate(arrivals_ns, 1):
        seconds.setdefault(at_ns // 1_000_000_000, []).append(world.is_in_time(index))
    by_second = {second: (len(good), sum(good)) for second, good in seconds.items()}
    lost = world.lost()
    return Outcome(
        len(arrivals_ns),
        sum([good for _, good in by_second.values()]),
        lost.late,
        lost.drop / 100,
        lost.invalid / 100,
        {model: policy.dropped[model] + policy.expired[model] for model in policy.dropped},
        by_second,
    )


def lane_changes(lanes_up: Sequence[Mapping[str, int]], lanes_max: Mapping[str, int]) -> List[Tuple[int, str, bool]]:
    """The autoscaler's counts per second as changes of single lanes; the last ones come last and go first."""
    changes: List[Tuple[int, str, bool]] = []
    before = dict(lanes_max)  # all are up when the scheduler starts
    for second, counts in enumerate(lanes_up):
        for module, count in counts.items():
            for index in range(min(before[module], count), max(before[module], count)):
                changes.append((second * 1_000_000_000, f"{module}{index}", count > before[module]))
            before[module] = count
    return changes
