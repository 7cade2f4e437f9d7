"""The placement of an ensemble's models: lanes that only one model uses, replicas, and lanes that several models share.

Turns the board's lanes into the places of a local problem (``problem.py``). Reads the board and changes nothing.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.sched.policies.common.ensembles import Ensemble, Query
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.published.schemble.planner import ProblemPlanner
from edgeserve.sched.published.schemble.problem import Lanes
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.placement import NEVER_NS


def places_of(ensembles: Sequence[Ensemble], board: Board, cells_max: int) -> List[NodePlaces]:
    """The ensembles in groups, each with its places: ensembles that may use a common lane are in one group."""
    lanes = [{lane.name for node in item.nodes for lane in board.lanes_of(node.model)} for item in ensembles]
    return [
        NodePlaces([ensembles[index] for index in group], board, ProblemPlanner(cells_max)) for group in _grouped(lanes)
    ]


def _grouped(sets: Sequence[Set[str]]) -> List[List[int]]:
    """The numbers of the sets in groups: two sets with a common name are in one group."""
    groups: List[List[int]] = []
    for index, mine in enumerate(sets):
        touching = [group for group in groups if any(mine & sets[other] for other in group)]
        merged = sorted([index] + [other for group in touching for other in group])
        groups = [group for group in groups if group not in touching] + [merged]
    return sorted(groups)


class NodePlaces:
    """The nodes of ensembles, by number, their models, and the lanes that they may use. Nodes whose models may use a
    common lane are at one place, with all lanes of each. ``numbers`` are those of each app's models, in their order.
    ``planner`` solves the local problems of these ensembles; ``is_stale``: something happened since the last one."""

    __slots__ = ("apps", "models", "planner", "is_stale", "numbers", "place_of", "_lanes")

    def __init__(self, ensembles: Sequence[Ensemble], board: Board, planner: ProblemPlanner) -> None:
        self.apps = frozenset([item.app.name for item in ensembles])
        self.planner = planner
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

    def may_start(self, board: Board) -> bool:
        """True if some lane would take a work now."""
        return any(lane.accepts(board.now_ns) for lanes in self._lanes for lane in lanes)

    def problem(self, board: Board, backlog_ns: Mapping[int, int]) -> Lanes:
        """Times and lanes as of now, without batching. ``backlog_ns``: committed work by place."""
        times = [
            max(1, min([board.latency(model, lane.name).alone_likely_ns for lane in board.lanes_of(model)]))
            for model in self.models
        ]
        free: List[Tuple[int, ...]] = []
        for place, lanes in enumerate(self._lanes):
            at = sorted([lane.available_ns(board.now_ns) for lane in lanes if lane.up and not lane.hung])
            share_ns = backlog_ns.get(place, 0) // max(1, len(at))
            free.append(tuple([free_ns + share_ns for free_ns in at]) or (NEVER_NS,))
        return Lanes(self.place_of, tuple(times), tuple(free), (1,) * len(times))

    def resident_at_ns(self, index: int, board: Board) -> int:
        """When a model could run on one of its lanes at the earliest: it may have to be loaded."""
        model = self.models[index]
        times = [board.resident_at_ns(model, lane) for lane in board.lanes_of(model) if lane.up and not lane.hung]
        return min(times) if times else NEVER_NS

    def ends_ns(self, lanes: Lanes, board: Board) -> List[int]:
        """When one batch of each model would end at the earliest."""
        return [ends_at_ns(lanes, index, self.resident_at_ns(index, board)) for index in range(len(self.models))]


def ends_at_ns(lanes: Lanes, index: int, resident_ns: int) -> int:
    """When one batch of a model would end at the earliest."""
    return max(min(lanes.free_ns[lanes.lane_of[index]]), resident_ns) + lanes.times_ns[index]
