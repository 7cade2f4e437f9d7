"""``schemble+``: one job of a plan at a time, more models while time allows, none that adds too little."""

from __future__ import annotations

from typing import ClassVar, Final, List, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.schemble.backlog import surcharge, taken
from edgeserve.sched.policies.schemble.lanes import Places, ends_at_ns
from edgeserve.sched.policies.schemble.planner import EXACT
from edgeserve.sched.policies.schemble.problem import Asked, Lanes, Plan
from edgeserve.sched.policies.schemble.queries import Query
from edgeserve.sched.policies.schemble.shared import EnsemblePolicy
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Options
from edgeserve.sched.requests.graph import App

GUARD_PART: Final = 4
"""Models are asked to end early by a quarter of a request's time at most."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SchemblePlus(EnsemblePolicy):
    """At its best: an idle model starts one job of the plan, everything else stays open; models are added while time
    allows and while one more adds at least ``stop``; batches inside a model where they pay (``batch_max`` of edf);
    what the finished models said counts. ``price``: what a plan pays for all models' time, in agreement, for the sake
    of requests that have not come yet."""

    defaults: ClassVar[Options] = {**EnsemblePolicy.defaults, "stop": 0.005, "lone": "fastest", "price": 0.05}

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._stop = float(str(self.options["stop"]))
        self._price = float(str(self.options["price"]))
        self._size = 1

    def _decide(self, board: Board, places: Places) -> None:
        queries = self._in_order()
        for query in queries:
            query.planned = 0
        if not queries:
            return
        fresh = [query for query in queries if not query.begun()]
        if len(fresh) == 1 and self.options["lone"] == "fastest":
            fresh[0].planned = self._fastest_idle(fresh[0], board, places)
            if fresh[0].planned:
                return
        best, own = Plan((), -1, EXACT, 0), queries
        terms = self._terms(fresh, places, board)
        for batch in self._batches(board, places, len(queries)):
            lanes = places.problem(board, {}, batch, len(fresh) > 1)
            able, asked = self._able(queries, lanes, places, board, terms)
            if batch > 1:
                self._planner.forget()
            plan = self._planner.plan(lanes, asked)
            self._charge(plan, len(asked))
            if plan.value > best.value:
                best, own, self._size = plan, able, batch
            if best.value >= sum([max([option.reward for option in item.options]) for item in asked]):
                break  # everybody gets everything
        for query, subset in zip(own, best.subsets):
            query.planned = self._own(query, subset, places)

    def _terms(self, fresh: List[Query], places: Places, board: Board) -> Tuple[float, int]:
        """What the requests that wait make lane time cost beyond the price, and how much earlier than they must models
        are to end: both nothing where one request waits, whom no other makes late."""
        if len(fresh) < 2:
            return 0.0, 0
        lanes = places.problem(board, {}, 1, True)
        part = taken(lanes, len(fresh), fresh[-1].due_ns)
        return surcharge(lanes, self._price, part), _guard_ns(places.models[_fastest(lanes)], board)

    def _able(self, queries: List[Query], lanes: Lanes, places: Places, board: Board,
              terms: Tuple[float, int]) -> Tuple[List[Query], List[Asked]]:
        """The requests that some model could end for with the guard, should it be slow; where there is none, those that
        some model could end for by the likely times."""
        more, guard_ns = terms
        for early_ns in (guard_ns, 0):
            able, asked = [], []
            for query in queries:
                request = query.request
                limit_ns = 0 if request.on_late == "answer" else (
                    request.deadline_ns - request.arrival_ns) // GUARD_PART
                item = self._asked_by(query, lanes, places, board,
                                      (self._price, more, query.due_ns - min(early_ns, limit_ns)))
                if any(option.reward > 0 for option in item.options):
                    able.append(query)
                    asked.append(item)
                if len(asked) == self._planner.look_ahead:
                    break  # nobody behind would be planned
            if asked or not early_ns:
                break
        return able, asked

    def _fastest_idle(self, query: Query, board: Board, places: Places) -> int:
        """The idle model that ends first, so that the others are free for who comes next: what it says may do."""
        idle, best, best_ns = self._idle_models(board, places), 0, query.due_ns + 1
        lanes = places.problem(board, {}, 1, True)
        for bit in sorted(query.jobs):
            index = places.number(query, bit)
            ends_ns = ends_at_ns(lanes, index, places.resident_at_ns(index, board))
            if idle >> index & 1 and ends_ns < best_ns:
                best, best_ns = 1 << bit, ends_ns
        return best

    def _batches(self, board: Board, places: Places, waiting: int) -> List[int]:
        """The batch sizes to plan for: those that the models have, while so many wait."""
        sizes = {1}
        for model in places.models:
            for lane in board.lanes_of(model):
                sizes.update(board.latency(model, lane.name).sizes)
        return [size for size in sorted(sizes) if size <= min(waiting, self._batch_max, 8)] or [1]

    def _batch(self, model: str) -> int:
        return self._size

    def _is_enough(self, query: Query, lanes: Lanes, places: Places, board: Board) -> bool:
        now = query.worth(query.answered)
        useful = now >= query.request.quality_min
        if query.running and (not useful or query.worth(query.answered | query.running) - now >= self._stop):
            return False
        more = query.answered | query.running
        for bit in query.jobs:
            index = places.number(query, bit)
            if ends_at_ns(lanes, index, places.resident_at_ns(index, board)) <= query.due_ns:
                more |= 1 << bit
        gain = query.worth(more) - now
        if more == query.answered or (useful and gain < self._stop):
            return True
        asked = self._asked(query, lanes, places, board, self._price)
        return useful and not query.running and not any(option.reward > 0 for option in asked.options)


def _fastest(lanes: Lanes) -> int:
    """The model that takes the least time."""
    return lanes.times_ns.index(min(lanes.times_ns))


def _guard_ns(model: str, board: Board) -> int:
    """How much longer than typically a model took when it was slowest lately, where that is least."""
    spans = []
    for lane in board.lanes_of(model):
        latency = board.latency(model, lane.name)
        size = latency.sizes[0]
        spans.append(max(0, latency.slowest_ns[size] - latency.typical_ns[size]))
    return min(spans, default=0)
