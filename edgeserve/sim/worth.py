"""The worth of requests in reports, by the rule of the scheduler (``sched/requests/worth.py``) and the true times: the
mean time of an app's requests, or each one's own time where the app says ``worth = "work"``."""

from __future__ import annotations

from typing import Dict, List, Sequence

from edgeserve.config.schema import Config
from edgeserve.sched.requests.worth import WORK
from edgeserve.sim.world import Ended


def worths_ns(config: Config, ended: Sequence[Ended]) -> List[int]:
    """The worth of each request of one run if it is in time, in nanoseconds of lane time."""
    taken: Dict[str, List[int]] = {}
    for item in ended:
        taken.setdefault(item.request.app, []).append(item.expected_ns)
    means = {app: sum(each) / len(each) for app, each in taken.items() if config.apps[app].worth != WORK}
    return [round(means.get(item.request.app, item.expected_ns) * item.request.value) for item in ended]
