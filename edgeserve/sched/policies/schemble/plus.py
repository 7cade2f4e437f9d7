"""``schemble+``: one job of a plan at a time, more models while time allows, none that adds too little."""

from __future__ import annotations

from typing import ClassVar, List, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.schemble.lanes import Places, ends_at_ns
from edgeserve.sched.policies.schemble.problem import Lanes, Plan
from edgeserve.sched.policies.schemble.queries import Query
from edgeserve.sched.policies.schemble.shared import EnsemblePolicy
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Options
from edgeserve.sched.requests.graph import App


@mypyc_attr(allow_interpreted_subclasses=True)
class SchemblePlus(EnsemblePolicy):
    """At its best: an idle model starts one job of the plan, everything else stays open; models are added while time
    allows and while one more adds at least ``stop``; batches inside a model where they pay (``batch_max`` of edf);
    what the finished models said counts. ``price``: what a plan pays for all models' time, in agreement, for the sake
    of requests that have not come yet."""

    defaults: ClassVar[Options] = {**EnsemblePolicy.defaults, "stop": 0.02, "lone": "fastest", "price": 0.1}

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
        best: Plan | None = None
        for batch in self._batches(board, places, len(queries)):
            lanes = places.problem(board, {}, batch)
            asked = [self._asked(query, lanes, places, board, self._price) for query in queries]
            if batch > 1:
                self._planner.forget()
            plan = self._planner.plan(lanes, asked)
            self._charge(plan, len(asked))
            if best is None or plan.value > best.value:
                best, self._size = plan, batch
            if best.value >= sum([max([option.reward for option in item.options], default=0) for item in asked]):
                break  # everybody gets everything
        assert best is not None
        for query, subset in zip(queries, best.subsets):
            query.planned = self._own(query, subset, places)

    def _fastest_idle(self, query: Query, board: Board, places: Places) -> int:
        """The idle model that ends first, so that the others are free for who comes next: what it says may do."""
        idle, lanes, best, best_ns = self._idle_models(board, places), places.problem(board, {}), 0, query.due_ns + 1
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
        return more == query.answered or (useful and gain < self._stop)
