"""The one currency: what a request counts if it is in time (``docs/guide/sharing-a-device.md``).

Bids and the plan of a lane, the models that memory holds and what is promised all count by :func:`worth_ns`; reports
count the same way (``sim/worth.py``).
"""

from __future__ import annotations

from typing import Final, List, Sequence

from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord

WORK: Final = "work"
"""``worth`` of an app whose requests count by their own size."""


def alike_ns(app: App) -> float:
    """What every request of an app counts at value 1, in nanoseconds of lane time: the mean of what its last ones took;
    0.0 where each counts by itself, since its ``worth`` is ``work``, or too few are known."""
    return 0.0 if app.worth == WORK else app.recent.known_ns()


def each_ns(app: App, own_ns: int) -> float:
    """What a request of an app counts at value 1; ``own_ns`` is what it takes itself."""
    return (0.0 if app.worth == WORK else app.recent.known_ns()) or float(own_ns)


def worth_ns(request: RequestRecord) -> float:
    """What a request counts if it is in time, in nanoseconds of lane time."""
    return each_ns(request.app, request.cost_share_ns) * request.value


def worths_ns(jobs: Sequence[Job]) -> List[float]:
    """:func:`worth_ns` of the request of each of these jobs, looked up once for those that count alike."""
    found: List[float] = []
    app: App | None = None
    alike = 0.0
    for job in jobs:
        request = job.request
        if request.app is not app:
            app = request.app
            alike = alike_ns(app)
        found.append((alike or float(request.cost_share_ns)) * request.value)
    return found
