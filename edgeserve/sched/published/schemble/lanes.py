"""Where an ensemble's models run: lanes that only one model uses, replicas, and lanes that several models share.

Turns the board's lanes into the places of a local problem (``problem.py``). Reads the board and changes nothing.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies.common.ensembles import Ensemble, Query
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.schemble.planner import Planner
from edgeserve.sched.published.schemble.problem import Lanes
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import NEVER_NS

STALE = 10
"""A model that has not run for so many times what it takes is measured too long ago to be called slow by it."""


def places_of(ensembles: Sequence[Ensemble], board: Board, cells_max: int) -> List[Places]:
    """The ensembles in groups, each with its places: those that may use a common lane are in one group."""
    lanes = [{lane.name for node in item.nodes for lane in board.lanes_of(node.model)} for item in ensembles]
    return [Places([ensembles[index] for index in group], board, Planner(cells_max)) for group in _grouped(lanes)]


def _grouped(sets: Sequence[Set[str]]) -> List[List[int]]:
    """The numbers of the sets in groups: two sets with a common name are in one group."""
    groups: List[List[int]] = []
    for index, mine in enumerate(sets):
        touching = [group for group in groups if any(mine & sets[other] for other in group)]
        merged = sorted([index] + [other for group in touching for other in group])
        groups = [group for group in groups if group not in touching] + [merged]
    return sorted(groups)


class Places:
    """The nodes of ensembles, by number, their models, and the lanes that they may use. Nodes whose models may use a
    common lane are at one place, with all lanes of each. ``numbers`` are those of each app's models, in their order.
    ``planner`` solves the local problems of these ensembles; ``size``: how many requests a batch of the last plan
    holds; ``is_stale``: something happened since."""

    __slots__ = ("apps", "models", "planner", "size", "is_stale", "numbers", "place_of", "_lanes")

    def __init__(self, ensembles: Sequence[Ensemble], board: Board, planner: Planner) -> None:
        self.apps = frozenset([item.app.name for item in ensembles])
        self.planner = planner
        self.size = 1
        self.is_stale = True
        nodes = [(item.app.name, node) for item in ensembles for node in item.nodes]
        models = [node.model for _, node in nodes]
        self.models = tuple(models)
        self.numbers: Dict[str, Tuple[int, ...]] = {}
        for item in ensembles:
            self.numbers[item.app.name] = tuple([index for index, (app, _) in enumerate(nodes) if app == item.app.name])
        groups = _grouped([{lane.name for lane in board.lanes_of(model)} for model in models])
        self.place_of = tuple(
            [next(place for place, group in enumerate(groups) if index in group) for index in range(len(models))]
        )
        self._lanes: List[Tuple[Lane, ...]] = []
        for group in groups:
            found: Dict[str, Lane] = {lane.name: lane for index in group for lane in board.lanes_of(models[index])}
            self._lanes.append(tuple(found.values()))

    def number(self, query: Query, bit: int) -> int:
        """The number of one of a request's models."""
        return self.numbers[query.ensemble.app.name][bit]

    def is_shared(self, query: Query, bit: int) -> bool:
        """Whether other models of the request run where one of its models does."""
        place = self.place_of[self.number(query, bit)]
        return [self.place_of[index] for index in self.numbers[query.ensemble.app.name]].count(place) > 1

    def lanes(self, place: int) -> Sequence[Lane]:
        """The lanes of a place."""
        return self._lanes[place]

    @property
    def count(self) -> int:
        """How many places there are."""
        return len(self._lanes)

    def share_ns(self, index: int, board: Board) -> int:
        """The lane time of one request among many, in full batches of a model."""
        model = self.models[index]
        return min([board.latency(model, lane.name).share_ns for lane in board.lanes_of(model)])

    def block_ns(self, index: int, waiting: int, board: Board) -> Tuple[int, int]:
        """How long a batch of a model takes where so many requests wait, and how many it holds."""
        model = self.models[index]
        latency = min([board.latency(model, lane.name) for lane in board.lanes_of(model)], key=_alone_typical)
        size = max([size for size in latency.sizes if size <= max(waiting, latency.sizes[0])])
        return latency.typical_ns[size], size

    def asked(self, place: int, is_whole: bool, board: Board) -> float:
        """The part of the time of a place's lanes that its ensembles were asked for lately, in full batches: with all
        models for each request (``is_whole``), or with the least that answers it."""
        found = 0.0
        for app, numbers in self.numbers.items():
            shares = [self.share_ns(index, board) for index in numbers if self.place_of[index] == place]
            if shares:
                found += board.recent_arrivals(app).per_ns(board.now_ns) * (sum(shares) if is_whole else min(shares))
        return found / len(self._lanes[place])

    def may_start(self, board: Board) -> bool:
        """Whether some lane would take a work now."""
        return any(lane.accepts(board.now_ns) for lanes in self._lanes for lane in lanes)

    def problem(self, board: Board, backlog_ns: Mapping[int, int], batch: int = 1, is_typical: bool = False) -> Lanes:
        """Times and lanes as of now, with batches of up to ``batch``. ``backlog_ns``: committed work by place.
        ``is_typical``: by the typical times of batches, not by the likely ones: where many follow one another, long
        and short ones even out, and a few long ones do not make a model the slower of two."""
        times, sizes = [], []
        for model in self.models:
            best_ns, size = NEVER_NS, 1
            for lane in board.lanes_of(model):
                latency = board.latency(model, lane.name)
                fitting = latency.size_for[min(batch, latency.size_max)]
                takes_ns = latency.typical_ns[fitting] if is_typical else latency.likely_ns[fitting]
                if takes_ns < best_ns:
                    best_ns, size = takes_ns, min(batch, fitting)
            times.append(max(1, best_ns))
            sizes.append(size)
        if is_typical:
            times = self._thawed(times, sizes, board)
        free: List[Tuple[int, ...]] = []
        for place, lanes in enumerate(self._lanes):
            at = sorted([lane.available_ns(board.now_ns) for lane in lanes if lane.up and not lane.hung])
            share_ns = backlog_ns.get(place, 0) // max(1, len(at))
            free.append(tuple([free_ns + share_ns for free_ns in at]) or (NEVER_NS,))
        return Lanes(self.place_of, tuple(times), tuple(free), tuple(sizes))

    def _thawed(self, times: List[int], sizes: List[int], board: Board) -> List[int]:
        """The times, where a model that has not run for :data:`STALE` times its time takes no longer, beside its
        profile, than those of its place that have: believed slow because of a few long runs, it would never be run, and
        so never be measured, again."""
        latencies = [
            min([board.latency(model, lane.name) for lane in board.lanes_of(model)], key=_alone_typical)
            for model in self.models
        ]
        is_fresh = [board.now_ns - latency.observed_ns <= STALE * time_ns for latency, time_ns in zip(latencies, times)]
        told = [max(1, latency.profiled_ns[latency.size_for[size]]) for latency, size in zip(latencies, sizes)]
        found = list(times)
        for index, place in enumerate(self.place_of):
            if is_fresh[index]:
                continue
            for other, its_place in enumerate(self.place_of):
                if its_place == place and is_fresh[other]:
                    found[index] = min(found[index], max(1, told[index] * times[other] // told[other]))
        return found

    def resident_at_ns(self, index: int, board: Board) -> int:
        """When a model could run on one of its lanes at the earliest: it may have to be loaded."""
        model = self.models[index]
        times = [board.resident_at_ns(model, lane) for lane in board.lanes_of(model) if lane.up and not lane.hung]
        return min(times) if times else NEVER_NS

    def ends_ns(self, lanes: Lanes, board: Board) -> List[int]:
        """When one batch of each model would end at the earliest."""
        return [ends_at_ns(lanes, index, self.resident_at_ns(index, board)) for index in range(len(self.models))]


def _alone_typical(latency: BatchTime) -> int:
    return latency.typical_ns[latency.sizes[0]]


def with_dispatch_gaps(lanes: Lanes, dispatch_gaps_ns: Sequence[int]) -> Lanes:
    """A problem whose batches are so far apart at each place (:class:`DispatchGap`). A plan that counts batches alone
    believes in more of them than a lane runs: where models take a millisecond and the dispatch gap as long, batches of
    one look as good as batches of eight. The first batch of a lane has none before it."""
    if not any(dispatch_gaps_ns):
        return lanes
    times = [time_ns + dispatch_gaps_ns[place] for time_ns, place in zip(lanes.times_ns, lanes.lane_of)]
    free = [tuple([at_ns - own_ns for at_ns in place_ns]) for place_ns, own_ns in zip(lanes.free_ns, dispatch_gaps_ns)]
    return Lanes(lanes.lane_of, tuple(times), tuple(free), lanes.sizes)


def ends_at_ns(lanes: Lanes, index: int, resident_ns: int) -> int:
    """When one batch of a model would end at the earliest."""
    return max(min(lanes.free_ns[lanes.lane_of[index]]), resident_ns) + lanes.times_ns[index]
