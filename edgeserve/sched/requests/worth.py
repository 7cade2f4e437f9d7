"""The one currency: the worth of a request if it is in time (``docs/guide/sharing-a-device.md``).

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
    """The worth of every request of an app at value 1, in nanoseconds of lane time: the mean time of its last ones;
    0.0 where each counts by itself, since its ``worth`` is ``work``, or too few are known."""
    return 0.0 if app.worth == WORK else app.recent.known_ns()


def each_ns(app: App, own_ns: int) -> float:
    """The worth of a request of an app at value 1; ``own_ns`` is its own lane time."""
    return (0.0 if app.worth == WORK else app.recent.known_ns()) or float(own_ns)


def worth_ns(request: RequestRecord) -> float:
    """The worth of a request if it is in time, in nanoseconds of lane time."""
    return each_ns(request.app, request.cost_share_ns) * request.value


def worths_ns(jobs: Sequence[Job]) -> List[float]:
    """:func:`worth_ns` of the request of each of these jobs, looked up once for requests that count alike."""
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
