"""The baselines of ensembles that choose a subset once per request: the original ensemble, static, DES and gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.ensembles import Query
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.published.schemble.ensemble_policy import OVERLOADED, EnsembleOptions, EnsemblePolicy
from edgeserve.sched.published.schemble.lanes import NodePlaces, ends_at_ns


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class EnsembleStaticOptions(EnsembleOptions):
    """Options of ``ensemble_static``."""

    pick: str = option("all", "how a subset is chosen, once, at arrival", one_of=("all", "static", "gating", "des"))
    models: Tuple[str, ...] = option((), "of static: the models that run")
    threshold: Number = option(0.3, "of gating: models whose hint NODE.gate is at least this run")
    margin: Number = option(0.0, "of des: models whose hint NODE.local is within this of the best run")


@mypyc_attr(allow_interpreted_subclasses=True)
class EnsembleStatic(EnsemblePolicy):
    """Baselines that choose a subset once, at arrival, for any queue: ``pick`` "all" (the original ensemble),
    "static" (always ``models``), "gating" (models whose hint ``NODE.gate`` is at least ``threshold``), "des" (models
    whose hint ``NODE.local`` is within ``margin`` of the best). A request is given up at arrival when its subset cannot
    end in time."""

    options_type: ClassVar[Type[PolicyOptions]] = EnsembleStaticOptions

    def _decide(self, board: Board, places: NodePlaces) -> None:
        for query in sorted(self._of_places(places), key=_by_arrival):
            if query.is_committed or not query.jobs:
                continue
            query.is_committed = True
            own = self._picked(query) & query.waiting()
            lanes = places.problem(board, self._backlog(places, board))
            late = False
            for bit in query.jobs:
                if own >> bit & 1:
                    index = places.number(query, bit)
                    late = late or ends_at_ns(lanes, index, places.resident_at_ns(index, board)) > query.due_ns
            if (late or not own) and query.request.on_late != "answer":
                board.drop(query.request, OVERLOADED)
            else:
                query.planned = own or query.waiting()

    def plan(self, board: Board) -> None:
        for places in self._places:
            if (self._is_stale or places.is_stale) and not places.may_start(board):
                self._forget_ended()
                self._decide(board, places)  # at arrival, not when a lane is free
        super().plan(board)

    def _picked(self, query: Query) -> int:
        own = self.options
        assert isinstance(own, EnsembleStaticOptions)
        nodes, hints, pick = query.ensemble.nodes, query.request.hints, own.pick
        if pick == "static":
            return sum([1 << bit for bit, node in enumerate(nodes) if node.name in own.models])
        if pick == "gating":
            gates = [hints.get(f"{node.name}.gate", 1.0) for node in nodes]
            chosen = [gate >= own.threshold or gate == max(gates) for gate in gates]
        elif pick == "des":
            local = [hints.get(f"{node.name}.local", 1.0) for node in nodes]
            chosen = [value >= max(local) - own.margin for value in local]
        else:
            chosen = [True] * len(nodes)
        return sum([1 << bit for bit, is_chosen in enumerate(chosen) if is_chosen])


def _by_arrival(query: Query) -> Tuple[int, int]:
    return query.request.arrival_ns, query.request.id
