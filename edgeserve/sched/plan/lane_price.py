"""The price of a lane's time, learnt from given-up requests.

Work of short deadlines can crowd out work that brings more per lane time and can wait: each time it is the most urgent.
The price rises while work above it is given up, and falls while the lane runs (a dual ascent: the price at which what
is asked for fits). What a batch brings beyond the price is what it counts.
"""

from __future__ import annotations

from typing import Dict, Final, Tuple

from edgeserve.priority_class import YIELDING
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_S

MEMORY_NS: Final = 0.7 * NS_PER_S
"""Lane time that is given up or served in which the price moves by the factor e. (Held-out mixes, seeds
11 to 14 at load 1, in percent of the value of home, robot, workstation: with the price 90.7, 81.6, 87.4 and at
least 99.3 % of critical requests in time; without 90.2, 80.2, 88.5 and 97.8 %.)"""

FALLS: Final = 0.1
"""The price falls so many times as fast as it rises: where a tenth of the lane's time is given up, it is half of what
that would have brought."""

KEEP: Final = 0.9
"""The weight that a model's mean worth per time keeps at each new batch."""


class LanePrices:
    """The price of each lane, in worth per nanosecond, and what the batches of each model there bring. ``any``: some
    lane has a price."""

    __slots__ = ("any", "_price", "_brings")

    def __init__(self) -> None:
        self.any = False
        self._price: Dict[str, float] = {}
        self._brings: Dict[Tuple[str, str], float] = {}

    def of(self, lane: Lane) -> float:
        """The price of a lane's time."""
        return self._price.get(lane.name, 0.0)

    def serves(self, work: Work, brings: float | None) -> None:
        """A batch starts, which brings so much per time (None: it was chosen from itself alone)."""
        if work.jobs[0].request.priority_class in YIELDING:
            return
        lane = work.lane.name
        if brings is not None:
            key = (lane, work.model)
            self._brings[key] = KEEP * self._brings.get(key, brings) + (1.0 - KEEP) * brings
        price = self._price.get(lane)
        if price:
            self._price[lane] = price * max(0.0, 1.0 - FALLS * work.expected_ns / MEMORY_NS)

    def gone(self, job: Job, lacked_ns: float, board: Board) -> None:
        """A job of a dropped request, neither critical nor background, leaves its queue. Of one that was given up for
        its deadline, or for the next frame of its stream, the time that it lacked counts, in equal parts on the lanes
        that could have run it."""
        request = job.request
        is_late = 2 * (request.deadline_ns - board.now_ns) < request.deadline_ns - request.arrival_ns
        if not (is_late or _gives_way(request)):
            return
        places = [
            (lane.name, model)
            for model in job.node.models
            for lane in board.lanes_of(model)
            if lane.up and not lane.hung
        ]
        for place in places:
            brings, price = self._brings.get(place, 0.0), self._price.get(place[0], 0.0)
            if brings > price:
                self.any = True
                self._price[place[0]] = price + (brings - price) * min(1.0, lacked_ns / len(places) / MEMORY_NS)


def _gives_way(request: RequestRecord) -> bool:
    """True if a request is a frame that waits no longer than for the next one of its stream."""
    return request.app.stream == "newest_wins"
