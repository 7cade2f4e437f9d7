"""What an app's requests cost: alone, and from each node on. Learned from the latency models and from fan-outs.

The numbers are refreshed at most every :data:`REFRESH_NS`; between that they are looked up.
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Deque, Dict, Tuple

from edgeserve.sched.requests.graph import App, Node
from edgeserve.units import NS_PER_MS

REFRESH_NS = 100 * NS_PER_MS
"""How old the numbers may be: far shorter than the drift of a device, far longer than a decision."""

PARTS_LEN = 32
"""Fan-outs remembered per node, to predict the next one's number of parts by their mean."""

BatchTime = Callable[[str, int], int]
"""(model, jobs) -> lane time in ns to run that many jobs of a model, on the lane that is fastest for it."""


class AppCosts:
    """The cost of one app, in nanoseconds of lane time and of latency on idle lanes.

    ``rest_ns[node]`` is the longest time from the end of a node to the end of the request; ``rest_lane_ns[node]`` the
    lane time of everything behind the node; ``alone_ns`` the lane time of a whole request that is alone,
    ``cost_share_ns`` that of one among many: its share of full batches, which is what it counts in the auction.
    """

    __slots__ = ("app", "alone_ns", "cost_share_ns", "rest_ns", "rest_lane_ns", "_parts", "_batch_time", "_share_time",
                 "_fresh_until_ns")

    def __init__(self, app: App, batch_time: BatchTime, share_time: Callable[[str], int]) -> None:
        self.app = app
        self._batch_time = batch_time
        self._share_time = share_time  # model -> lane time of one job in a full batch
        self._parts: Dict[str, Deque[int]] = {node.name: deque(maxlen=PARTS_LEN) for node in app.nodes if node.fan_out}
        self._fresh_until_ns = -1
        self.alone_ns = 0
        self.cost_share_ns = 0
        self.rest_ns: Dict[str, int] = {}
        self.rest_lane_ns: Dict[str, int] = {}
        self.refresh(0)

    def observe_parts(self, node: Node, parts: int) -> None:
        """A fan-out made this many parts."""
        self._parts[node.name].append(parts)

    def refresh(self, now_ns: int) -> None:
        """Recompute when the numbers are older than :data:`REFRESH_NS`."""
        if now_ns < self._fresh_until_ns:
            return
        self._fresh_until_ns = now_ns + REFRESH_NS
        cost = {node.name: self._batch_time(node.model, self._jobs(node)) for node in self.app.nodes}
        reach: Dict[str, Tuple[Node, ...]] = {}
        for node in reversed(self.app.nodes):
            behind = dict.fromkeys(node.succs)
            for succ in node.succs:
                behind.update(dict.fromkeys(reach[succ.name]))
            reach[node.name] = tuple(behind)
            self.rest_ns[node.name] = max(
                (cost[succ.name] + self.rest_ns[succ.name] for succ in node.succs), default=0)
            self.rest_lane_ns[node.name] = sum(cost[other.name] for other in behind)
        self.alone_ns = sum(cost.values())
        self.cost_share_ns = sum([self._jobs(node) * self._share_time(node.model) for node in self.app.nodes])

    def _jobs(self, node: Node) -> int:
        """How many jobs a request makes at a node: the product of the mean parts of the scopes around it, rounded
        up; a fan-out that was never seen counts one part."""
        count = 1
        scope = node.scope
        while scope is not None:
            seen = self._parts[scope.name]
            count *= -(-sum(seen) // len(seen)) if seen else 1
            scope = scope.scope
        return max(1, count)
