"""PARD's experiments in the lean world (``scripts/lib/lean_world.py``): work that differs, lanes that come and go."""

from __future__ import annotations

import math
import random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lib.lean_world import LeanWorld

from edgeserve.config.loading import parse_config
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import RunBatch


class Outcome(NamedTuple):
    """What became of the requests of a run."""

    offered: int
    good: int
    late: int
    drop: float  # dropped or late, of all
    invalid: float  # lane time spent on these, of all lane time spent
    by_module: Dict[str, int]  # requests that were dropped or expired before this module
    by_second: Dict[int, Tuple[int, int]]  # second of arrival -> (offered, good)


class WorkWorld(LeanWorld):
    """A batch takes ``a + c * (sum of its requests' work)`` ms, ``profiles`` has (a, c) by model. ``told`` is what the
    requests declare, if they do."""

    def __init__(
        self,
        app: str,
        slo_ns: int,
        arrivals_ns: Sequence[int],
        profiles: Mapping[str, Tuple[float, float]],
        works: Sequence[float],
        declared: Sequence[float],
    ) -> None:
        super().__init__(app, slo_ns, arrivals_ns, {})
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
    table: Dict[str, Any], arrivals_ns: Sequence[int], changes: Sequence[Tuple[int, str, bool]] = (), warmup_ns: int = 0
) -> Outcome:
    """Serve the arrivals with the configuration of one app and one policy of kind ``pard`` or ``pard+``."""
    config = parse_config(table)
    scheduler = build_scheduler(config)
    app = next(iter(config.apps.values()))
    times_ns = {name: model.expected for name, model in config.models.items()}
    world = LeanWorld(app.name, app.slo_ns, arrivals_ns, times_ns, changes, on_late=app.on_late)
    drive(scheduler, world)
    policy: Any = scheduler.policies[0]
    good = late = offered = wasted_ns = 0
    seconds: Dict[int, List[int]] = {}
    for index, at_ns in enumerate(arrivals_ns, 1):
        outcome, end_ns = world.ends[index]
        row = seconds.setdefault(at_ns // 1_000_000_000, [0, 0])
        row[0] += 1
        in_time = outcome == "completed" and end_ns <= at_ns + app.slo_ns
        row[1] += in_time
        if not in_time:
            wasted_ns += world.spent_ns[index]
        if at_ns >= warmup_ns:
            offered += 1
            good += in_time
            late += outcome == "completed" and not in_time
    return Outcome(
        offered,
        good,
        late,
        1 - good / max(1, offered),
        wasted_ns / max(1, sum(world.spent_ns.values())),
        {model: policy.dropped[model] + policy.expired[model] for model in policy.dropped},
        {second: (row[0], row[1]) for second, row in seconds.items()},
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
