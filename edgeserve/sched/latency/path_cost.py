"""The cost of an app's requests: alone, and from each node on. Learned from the latency models and from fan-outs.
The numbers are made anew at most every :data:`REFRESH_NS`, if their sources have changed."""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Mapping, Sequence, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.work import MILLI, WORK_MAX, relative_milli
from edgeserve.units import NS_PER_MS

REFRESH_NS = 100 * NS_PER_MS
"""The greatest age of the numbers: far shorter than the drift of a device, far longer than a decision."""

PARTS_LEN = 32
"""Fan-outs remembered per node, to predict the next one's number of parts by their mean."""

LENGTHS_LEN = 32
"""Declared lengths whose mean is the usual one of an app."""


class AppCosts:
    """The cost of one app, in nanoseconds of lane time and of latency on idle lanes.

    ``rest_ns[node]`` is the longest time from the end of a node to the end of the request; ``rest_lane_ns[node]`` the
    lane time of everything behind the node; ``alone_ns`` the lane time of a whole request that is alone,
    ``cost_share_ns`` that of one among many: its share of full batches.
    ``latencies`` are those of each model on the lanes that it may use: the fastest counts. Before ``fresh_until_ns``
    :meth:`refresh` does nothing. ``dispatch_gaps`` are those of each model's lanes: the next node starts one later.
    ``lane_sets`` are the sets of lanes that its models use, by their numbers in ``sets`` (model -> its set), and
    ``place_of`` says at which place there a model's set stands. ``kept_ns``, in the same order: how long a request
    among many keeps the lanes of its models, with the gap until the next batch, spread evenly over them.
    """

    def __init__(
        self,
        app: App,
        latencies: Mapping[str, Sequence[BatchTime]],
        dispatch_gaps: Mapping[str, Sequence[DispatchGap]],
        sets: Mapping[str, int],
    ) -> None:
        self.app = app
        self.lane_sets = tuple(dict.fromkeys([sets[node.model] for node in app.nodes]))
        self.place_of = {node.model: self.lane_sets.index(sets[node.model]) for node in app.nodes}
        self.kept_ns = [0] * len(self.lane_sets)
        self._latencies = latencies
        self._dispatch_gaps: Dict[str, Sequence[DispatchGap]] = {
            node.model: dispatch_gaps[node.model] for node in app.nodes
        }
        self._all: List[BatchTime] = [
            latency for model in dict.fromkeys(node.model for node in app.nodes) for latency in latencies[model]
        ]
        self._parts: Dict[str, Deque[int]] = {node.name: deque(maxlen=PARTS_LEN) for node in app.nodes if node.fan_out}
        self._parts_version = 0
        self._lengths: Deque[float] = deque(maxlen=LENGTHS_LEN)
        self._behind: Dict[str, Tuple[Node, ...]] = {}  # node -> everything behind it, each once
        for node in reversed(app.nodes):
            behind = dict.fromkeys(node.succs)
            for succ in node.succs:
                behind.update(dict.fromkeys(self._behind[succ.name]))
            self._behind[node.name] = tuple(behind)
        self.fresh_until_ns = -1
        self._known_version = -1
        self.alone_ns = 0
        self.cost_share_ns = 0
        self.rest_ns: Dict[str, int] = {}
        self.rest_lane_ns: Dict[str, int] = {}
        self.refresh(0)

    def observe_parts(self, node: Node, parts: int) -> None:
        """A fan-out made this many parts."""
        self._parts[node.name].append(parts)
        self._parts_version += 1

    def parts_of(self, node: Node) -> int | None:
        """The number of parts that a fan-out makes: the mean of the last ones, rounded up; None while none was seen."""
        seen = self._parts[node.name]
        return -(-sum(seen) // len(seen)) if seen else None

    def part_ns(self, node: Node) -> Tuple[int, int]:
        """The time of one part of a fan-out, at all nodes behind it that see it: alone, and in full batches."""
        alone_ns = share_ns = 0
        for inner in self.app.nodes:
            scope = inner.scope
            while scope is not None and scope is not node:
                scope = scope.scope
            if scope is node:
                alone_ns += batch_time_ns(self._latencies[inner.model], 1)
                share_ns += min([latency.share_ns for latency in self._latencies[inner.model]])
        return alone_ns, share_ns

    def own_share_ns(self, hints: Mapping[str, float]) -> int:
        """``cost_share_ns`` of a request that arrives with these hints, by the steps, parts and work that it declares,
        or by its length beside the usual one."""
        longer_milli = self._longer_milli(hints)
        total_ns = 0
        for node in self.app.nodes:
            latency = min(self._latencies[node.model], key=_share_ns)
            share_ns = latency.share_ns
            milli = relative_milli(hints, node.name)
            if milli is None:
                milli = longer_milli
            if milli is not None:
                grows_ns = max(0, share_ns - latency.fixed_now_ns // latency.size_max)
                share_ns += grows_ns * (milli - MILLI) // MILLI
            total_ns += self._jobs(node, hints) * max(1, int(hints.get(node.steps_key, 1))) * share_ns
        return max(1, total_ns)

    def _longer_milli(self, hints: Mapping[str, float]) -> int | None:
        """The declared length in thousandths of the usual one, up to ``WORK_MAX``; None where none is."""
        length = hints.get("length")
        if length is None or length <= 0.0:
            return None
        self._lengths.append(length)
        usual = sum(self._lengths, 0.0) / len(self._lengths)
        return round(MILLI * min(length / usual, self.app.hint_bounds.get("work", WORK_MAX)))

    def refresh(self, now_ns: int) -> None:
        """Recompute when the numbers are older than :data:`REFRESH_NS` and a latency or a fan-out has changed."""
        if now_ns < self.fresh_until_ns:
            return
        self.fresh_until_ns = now_ns + REFRESH_NS
        version = self._parts_version
        for latency in self._all:
            version += latency.version  # versions only rise: an equal sum means that none has changed
        for places in self._dispatch_gaps.values():
            for gap in places:
                version += gap.version
        if version != self._known_version:
            self._known_version = version
            self._recompute()

    def _recompute(self) -> None:
        cost: Dict[str, int] = {}
        kept_ns = [0] * len(self.lane_sets)
        alone_ns = share_ns = 0
        for node in self.app.nodes:
            jobs = self._jobs(node) if node.scope is not None else 1
            latencies = self._latencies[node.model]
            cost[node.name] = batch_time_ns(latencies, jobs)
            alone_ns += cost[node.name]
            fastest = min(latencies, key=_share_ns)
            share_ns += jobs * fastest.share_ns
            gap_ns = min([gap.likely_ns for gap in self._dispatch_gaps[node.model]]) // fastest.size_max
            kept_ns[self.place_of[node.model]] += jobs * (fastest.share_ns + gap_ns) // len(latencies)
        self.kept_ns = kept_ns
        self.alone_ns, self.cost_share_ns = alone_ns, share_ns
        rest_ns, rest_lane_ns = self.rest_ns, self.rest_lane_ns
        for node in reversed(self.app.nodes):
            longest_ns = lane_ns = 0
            for succ in node.succs:
                next_ns = min([gap.likely_ns for gap in self._dispatch_gaps[succ.model]])
                longest_ns = max(longest_ns, next_ns + cost[succ.name] + rest_ns[succ.name])
            for other in self._behind[node.name]:
                lane_ns += cost[other.name]
            rest_ns[node.name] = longest_ns
            rest_lane_ns[node.name] = lane_ns

    def _jobs(self, node: Node, hints: Mapping[str, float] | None = None) -> int:
        """The number of jobs that a request makes at a node: the product of the parts of the scopes around it, as
        ``hints`` declare them, or their mean, rounded up; a fan-out that was never seen counts one part."""
        count = 1
        scope = node.scope
        while scope is not None:
            told = hints.get(scope.name + ".parts") if hints else None
            parts = self.parts_of(scope) if told is None else int(told)
            count *= 1 if parts is None else parts
            scope = scope.scope
        return max(1, count)


def _share_ns(latency: BatchTime) -> int:
    return latency.share_ns


def least_alone_ns(
    app: App, hints: Mapping[str, float], latencies: Mapping[str, Sequence[BatchTime]], since_ns: int
) -> int:
    """The least time that a request alone can take: on every path as fast as the fastest of each model's last runs,
    with the steps, parts and work that its hints say. A model that was not measured since ``since_ns`` counts nothing:
    the sum may be too small, never too large."""
    longest_ns: Dict[str, int] = {}
    for node in reversed(app.nodes):
        places = [latency for model in node.models for latency in latencies[model]]
        alone_ns = min([latency.fastest_alone_ns(since_ns) for latency in places])
        if alone_ns and hints:
            alone_ns *= _least_runs(node, hints, places)
            work = relative_milli(hints, node.name)
            if work is not None and work > MILLI:
                fixed_ns = max([latency.fixed_now_ns for latency in places])
                alone_ns += max(0, alone_ns - fixed_ns) * (work - MILLI) // MILLI
        longest_ns[node.name] = alone_ns + max([longest_ns[succ.name] for succ in node.succs], default=0)
    return max(longest_ns.values())


def _least_runs(node: Node, hints: Mapping[str, float], places: Sequence[BatchTime]) -> int:
    """The least number of batches, one after the other, that a request needs at a node, by its hints."""
    jobs = 1
    scope = node.scope
    while scope is not None:
        jobs *= max(1, int(hints.get(scope.name + ".parts", 1)))
        scope = scope.scope
    runs = jobs // (max([latency.size_max for latency in places]) * len(places))
    return max(1, runs) * max(1, int(hints.get(node.steps_key, 1)))


def batch_time_ns(latencies: Sequence[BatchTime], count: int) -> int:
    """Typical lane time to run ``count`` jobs of a model, in full batches and a rest, on the lane that is fastest for
    them. ``latencies`` are the model's on its lanes."""
    times: List[int] = []
    for latency in latencies:
        full, rest = divmod(count, latency.size_max)
        rest_ns = latency.typical_ns[latency.size_for[rest]] if rest else 0
        times.append(full * latency.typical_ns[latency.size_max] + rest_ns)
    return min(times)
