"""``schemble+``: one job of a plan at a time, more models while time allows, none that adds too little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Final, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.ensemble.ensemble_policy import (
    Alike,
    EnsembleOptions,
    EnsemblePolicy,
    PlanParameters,
    Row,
)
from edgeserve.sched.policies.ensemble.lanes import Places, with_dispatch_gaps
from edgeserve.sched.policies.ensemble.planner import EXACT
from edgeserve.sched.policies.ensemble.problem import Asked, Lanes, Option, Plan
from edgeserve.sched.policies.ensemble.queries import Query
from edgeserve.sched.policies.schemble_plus.backlog import Demand, prices, surcharges
from edgeserve.sched.policies.schemble_plus.others import OtherApp, Taken, charges, crowding, dearness, others_on
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Options
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import NEVER_NS

GUARD_PART: Final = 4
"""Models are asked to end early by a quarter of a request's time at most, since the join may wait for its lane."""

DISPATCH_GAP_PART: Final = 8
"""What lies between two batches counts where it is this part of one at least: less is within the spread of batches."""

BATCH_MAX: Final = 8
"""The largest batch that is planned for."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class SchemblePlusOptions(EnsembleOptions):
    """Options of ``schemble+``."""

    stop: Number = option(0.005, "expected agreement that one more model must add")


@mypyc_attr(allow_interpreted_subclasses=True)
class SchemblePlus(EnsemblePolicy):
    """At its best: an idle model starts one job of the plan, everything else stays open.

    Models are added while time allows and while one more adds enough; batches form inside a model where they pay; what
    the finished models said counts."""

    options_type: ClassVar[Type[PolicyOptions]] = SchemblePlusOptions
    lets_urgent_first: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, SchemblePlusOptions)
        self._stop: float = own.stop
        self._taken: Dict[str, Taken] = {}  # by the first lane of a place

    def _join_wait_ns(self, request: RequestRecord) -> int:
        if request.on_late == "answer":
            return 0
        longest_ns = max(self._waits.get(request.app.name, (0,)))
        return min(longest_ns, (request.deadline_ns - request.arrival_ns) // GUARD_PART)

    def _is_enough(self, query: Query, ends: Sequence[int], places: Places) -> bool:
        numbers = places.numbers[query.ensemble.app.name]
        more = query.begun()
        for bit in query.jobs:
            if ends[numbers[bit]] <= query.due_ns:
                more |= 1 << bit
        gain = query.worth(more) - query.worth(query.answered)
        return more == query.answered or (query.is_useful() and gain < self._stop)

    def _decide(self, board: Board, places: Places) -> None:
        queries = self._in_order(places)
        for query in queries:
            query.planned = 0
        if not queries:
            return
        fresh = [query for query in queries if not query.begun()]
        dispatch_gaps_ns = self._dispatch_gaps_ns(places, board)
        others = [others_on(places.lanes(place), places.apps, board) for place in range(places.count)]
        dear = self._dear(others, places, board)
        lasting = self._demands(self._rates(places, board), places, board)
        charged = self._charges(queries, fresh, dispatch_gaps_ns, others, places, board)
        best, own, planner, spent = Plan((), -1, EXACT, 0), queries, places.planner, 0
        for batch in self._batches(board, places, len(queries)):
            plain = places.problem(board, {}, batch, len(fresh) > 1)
            lanes, ends = with_dispatch_gaps(plain, dispatch_gaps_ns), places.ends_ns(plain, board)
            per_ns = [price * each for price, each in zip(prices(lanes, lasting), dear)]
            able, asked = self._able(queries, lanes, ends, places, per_ns, charged, board)
            plan = planner.plan(lanes, asked, spent)
            spent += plan.cells
            self._charge(plan, able, asked, board)
            if plan.value > best.value:
                best, own, places.size = plan, able, batch
            if best.value >= sum([max([option.reward for option in item.options], default=0) for item in asked]):
                break  # everybody gets everything
            if spent >= planner.cells_max:
                break
        for query, subset in zip(own, best.subsets):
            query.planned = self._own(query, subset, places)

    def _rates(self, places: Places, board: Board) -> Dict[str, float]:
        """How often each ensemble is asked for; alike while that is not known of any."""
        rates = {app: board.recent_arrivals(app).per_ns(board.now_ns) for app in places.numbers}
        return rates if any(rates.values()) else dict.fromkeys(rates, 1.0)

    def _unit_ns(self, places: Places, board: Board) -> float:
        """What a request of the dearest ensemble on these lanes counts at value 1."""
        return max([_cost_ns(app, board) for app in places.numbers])

    def _demands(self, counts: Mapping[str, float], places: Places, board: Board) -> List[Demand]:
        unit_ns = self._unit_ns(places, board)
        return [
            Demand(places.numbers[app], board.recent_arrivals(app).worth / unit_ns, count)
            for app, count in counts.items()
        ]

    def _dear(self, others: Sequence[Sequence[OtherApp]], places: Places, board: Board) -> List[float]:
        """Which part of its worth the time of each place costs: all of it while no rate of requests is known."""
        if not any(board.recent_arrivals(app).is_known for app in places.apps):
            return [1.0] * places.count
        found = []
        for place, here in enumerate(others):
            asked = sum([other.per_ns * other.lane_ns for other in here]) / len(places.lanes(place))
            found.append(dearness(asked + places.asked(place, True, board)))
        return found

    def _charges(
        self,
        queries: List[Query],
        fresh: List[Query],
        dispatch_gaps_ns: Sequence[int],
        others: Sequence[Sequence[OtherApp]],
        places: Places,
        board: Board,
    ) -> Dict[str, List[float]]:
        """What each model of an app costs beyond the price: what the other apps lose, and, where two or more requests
        have not begun, what those lose."""
        lanes = with_dispatch_gaps(places.problem(board, {}, 1, True), dispatch_gaps_ns)
        lost = self._charges_of_others(len(fresh), others, places, board)
        found: Dict[str, List[float]] = {}
        for app in dict.fromkeys([query.ensemble.app.name for query in queries]):
            models = places.numbers[app]
            found[app] = [lost[index] for index in models]
            if len(fresh) < 2:
                continue
            last_ns = [query.due_ns for query in fresh if query.ensemble.app.name == app][-1:] or [fresh[-1].due_ns]
            counts: Dict[str, float] = {}
            for query in fresh:
                if query.due_ns <= last_ns[0]:
                    name = query.ensemble.app.name
                    counts[name] = counts.get(name, 0.0) + 1.0
            more = surcharges(lanes, models, self._demands(counts, places, board), last_ns[0])
            found[app] = [own + other for own, other in zip(more, found[app])]
        return found

    def _charges_of_others(
        self, waiting: int, others: Sequence[Sequence[OtherApp]], places: Places, board: Board
    ) -> List[float]:
        """What the other apps on the same lanes lose by each model."""
        unit_ns = self._unit_ns(places, board)
        found = [0.0] * len(places.models)
        for place, here in enumerate(others):
            if here:
                models = [index for index, at in enumerate(places.place_of) if at == place]
                lanes = places.lanes(place)
                taken = self._taken.setdefault(lanes[0].name, Taken()).part(lanes, places.apps, board)
                least, whole = (places.asked(place, is_whole, board) for is_whole in (False, True))
                lost = charges(
                    [places.share_ns(index, board) for index in models],
                    [places.block_ns(index, waiting, board) for index in models],
                    len(lanes),
                    crowding(taken, len(lanes), least, whole, here),
                    here,
                )
                for index, each in zip(models, lost):
                    found[index] = each / unit_ns
        return found

    def _dispatch_gaps_ns(self, places: Places, board: Board) -> List[int]:
        """What lies between two batches at each place, where it counts beside the fastest model there."""
        fastest_ns = [NEVER_NS] * places.count
        for model, place in zip(places.models, places.place_of):
            for lane in board.lanes_of(model):
                latency = board.latency(model, lane.name)
                fastest_ns[place] = min(fastest_ns[place], latency.typical_ns[latency.sizes[0]])
        least_ns = [
            min([lane.dispatch_gap.careful_ns for lane in places.lanes(place)]) for place in range(places.count)
        ]
        return [
            gap_ns if gap_ns * DISPATCH_GAP_PART >= fastest_ns[place] else 0 for place, gap_ns in enumerate(least_ns)
        ]

    def _able(
        self,
        queries: List[Query],
        lanes: Lanes,
        ends: Sequence[int],
        places: Places,
        per_ns: Sequence[float],
        charged: Mapping[str, Sequence[float]],
        board: Board,
    ) -> Tuple[List[Query], List[Asked]]:
        """The requests that some model could end for before their join may have to wait; where there is none, those
        that some model could end for at all. A request with an answer whose further models are not worth their time is
        answered."""
        unit_ns = self._unit_ns(places, board)
        is_single = max(lanes.sizes) == 1  # what is too late in a batch may be in time alone
        known: Dict[Alike, Tuple[Option, ...]] = {}
        able: List[Query] = []
        asked: List[Asked] = []
        for is_late in (False, True):
            for query in queries:
                if is_late and query.answered:
                    continue  # its join does not wait for longer
                app = query.request.app.name
                due_ns = query.last_ns if is_late else query.due_ns
                worth = _cost_ns(app, board) / unit_ns
                item = self._asked(
                    query, lanes, places, ends, PlanParameters(worth, per_ns, charged[app], due_ns), known
                )
                if any(option.reward > 0 for option in item.options):
                    able.append(query)
                    asked.append(item)
                elif is_single and query.jobs and query.answered and not query.running and query.is_useful():
                    board.settle(query.request, query.ensemble.join.name)
                if len(asked) == places.planner.look_ahead:
                    break  # nobody behind would be planned
            if asked:
                break
        return able, asked

    def _batches(self, board: Board, places: Places, waiting: int) -> List[int]:
        """The batch sizes to plan for: those that the models have, while so many wait."""
        sizes = {1}
        for model in places.models:
            for lane in board.lanes_of(model):
                sizes.update(board.latency(model, lane.name).sizes)
        return [size for size in sorted(sizes) if size <= min(waiting, BATCH_MAX)]

    def _that_may_go(self, rows: List[Row], lane: Lane, board: Board) -> List[Row]:
        """Without the models that could make a critical request late, where a request has an answer without them, or
        gets one now."""
        spares: Dict[str, bool] = {}
        kept: List[Row] = []
        late: List[Row] = []
        for row in rows:
            query, bit = row[3], row[4]
            model = query.ensemble.nodes[bit].model
            if model not in spares:
                latency = board.latency(model, lane.name)
                smallest = latency.sizes[0]
                takes_ns = max(latency.slowest_ns[smallest], latency.estimate_ns[smallest])
                spares[model] = board.spares_critical(lane, takes_ns)
            (kept if spares[model] or query.request.klass == "critical" else late).append(row)
        queries = {row[3].request.id for row in kept}
        kept += [row for row in late if not row[3].begun() and row[3].request.id not in queries]
        return kept

    def _batch(self, query: Query) -> int:
        return next(places.size for places in self._places if query.ensemble.app.name in places.apps)


def _cost_ns(app: str, board: Board) -> float:
    """What a request of an ensemble counts in the auction at value 1."""
    return max(1.0, board.recent_arrivals(app).lane_ns)
