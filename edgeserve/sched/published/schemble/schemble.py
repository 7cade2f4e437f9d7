"""``schemble``: whole requests are committed by a plan over everything that waits, as published (Schemble, section VI).

The greedy baselines are the same with another planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Sequence, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.ensembles import Ensemble, Query
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Options
from edgeserve.sched.published.schemble.algorithm1 import plan_published
from edgeserve.sched.published.schemble.ensemble_policy import EnsembleOptions, EnsemblePolicy
from edgeserve.sched.published.schemble.lanes import NodePlaces
from edgeserve.sched.published.schemble.planner import greedy
from edgeserve.sched.published.schemble.problem import REWARD_UNIT, AskedRequest, Lanes, ModelChoice, Plan, pack
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class SchembleOptions(EnsembleOptions):
    """Options of ``schemble``."""

    planner: str = option(
        "exact",
        "the best plan, Algorithm 1 as printed, or the greedy baselines",
        one_of=("exact", "published", "greedy"),
    )
    delta: Number = option(0.01, "rewards are rounded down to multiples of it")
    order: str = option(
        "edf", "of greedy: by deadline, by arrival, or the least difficult first", one_of=("edf", "fifo", "sjf")
    )
    mean: bool = option(False, "every request counts as one of mean difficulty: Schemble(t)")
    fast: bool = option(True, "a lone request goes to all idle models without a plan")
    price: Number = option(0.0, "what a plan pays for the time of all models, in agreement")


@mypyc_attr(allow_interpreted_subclasses=True)
class Schemble(EnsemblePolicy):
    """As published: the models of whole requests are committed by a plan over all that wait."""

    options_type: ClassVar[Type[PolicyOptions]] = SchembleOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, SchembleOptions)
        self._own_options = own
        is_exact = own.planner == "exact"  # Algorithm 1 rounds by itself
        self._unit = max(1, round(own.delta * REWARD_UNIT)) if is_exact else 1

    def _query(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> Query:
        query = super()._query(request, ensemble, board)
        if self._own_options.mean:
            query.row = ensemble.mean
        return query

    def _scored(self, query: Query) -> None:
        super()._scored(query)
        if self._own_options.mean:
            query.row = query.ensemble.mean

    def _decide(self, board: Board, places: NodePlaces) -> None:
        queries = self._in_order(places)
        if not queries:
            return
        lanes = places.problem(board, self._backlog(places, board))
        ends = places.ends_ns(lanes, board)
        asked = [self._asked(query, lanes, places, ends, self._per_ns(query, lanes, places)) for query in queries]
        if self._unit > 1:
            for item in asked:
                item.options = tuple([ModelChoice(subset, reward // self._unit) for subset, reward in item.options])
        idle = self._idle_models(board, places) & self._free_of_backlog(places)
        if not idle and not self._must_load(board):
            return
        if self._own_options.fast and len(queries) == 1 and idle & _in_any(asked[0]):
            self._commit(queries[0], self._own(queries[0], idle & _in_any(asked[0]), places))
            return
        plan = self._planned(lanes, asked, queries, places)
        self._charge(plan, queries, asked, board)
        for query, subset in zip(queries, plan.subsets):
            query.wanted = self._own(query, subset, places)
        for index in range(len(places.models)):
            if not idle >> index & 1:
                continue
            for query, subset in zip(queries, plan.subsets):
                if subset >> index & 1 and not query.is_committed:
                    self._commit(query, self._own(query, subset, places))
                    break
                if subset >> index & 1:
                    break  # committed for another idle model: this one runs it too

    def _per_ns(self, query: Query, lanes: Lanes, places: NodePlaces) -> float:
        """The cost of a nanosecond of a model: the time of all of them ``price`` of an answer."""
        total_ns = sum([lanes.times_ns[index] for index in places.numbers[query.ensemble.app.name]])
        return self._own_options.price / total_ns

    def _free_of_backlog(self, places: NodePlaces) -> int:
        """Models of which no committed job waits."""
        busy = 0
        for query in self._of_places(places):
            for bit in query.jobs:
                if query.planned >> bit & 1:
                    busy |= 1 << places.number(query, bit)
        return ~busy

    def _commit(self, query: Query, own: int) -> None:
        query.planned = own
        query.is_committed = True

    def _planned(self, lanes: Lanes, asked: List[AskedRequest], queries: List[Query], places: NodePlaces) -> Plan:
        if self._own_options.planner == "published":
            return plan_published(lanes, asked, self._own_options.delta, self._cells_max)
        if self._own_options.planner == "greedy":
            return greedy(pack(lanes, asked), self._taking(queries))
        return places.planner.plan(lanes, asked)

    def _taking(self, queries: List[Query]) -> List[int]:
        """The order in which requests take what they like best."""
        places = list(range(len(queries)))
        if self._own_options.order == "fifo":
            places.sort(key=lambda place: (queries[place].request.arrival_ns, queries[place].request.id))
        elif self._own_options.order == "sjf":
            places.sort(key=lambda place: (queries[place].request.hints.get(queries[place].ensemble.score, 0.0), place))
        return places


def _in_any(asked: AskedRequest) -> int:
    found = 0
    for choice in asked.options:
        found |= choice.subset
    return found
