"""``schemble+``: one job of a plan at a time, more models while time allows, none that adds too little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Final, FrozenSet, List, Mapping, NamedTuple, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import Utility
from edgeserve.sched.policies.ensemble.base import Alike, EnsembleOptions, EnsemblePolicy, PlanParameters, Row
from edgeserve.sched.policies.ensemble.lanes import NEVER_NS, Places, ends_at_ns, with_dispatch_gaps
from edgeserve.sched.policies.ensemble.planner import EXACT
from edgeserve.sched.policies.ensemble.problem import Asked, Lanes, Option, Plan
from edgeserve.sched.policies.ensemble.queries import Ensemble, Query
from edgeserve.sched.policies.schemble_plus.backlog import Demand, prices, surcharges
from edgeserve.sched.policies.schemble_plus.others import OtherApp, charges, dearness, others_on
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.sched.resources.lanes import Lane

GUARDED, LIKELY, LATE = "guarded", "likely", "late"
"""When models are to end: early enough should one be slow; by the likely times; or just in time for an idle join."""

GUARD_PART: Final = 4
"""Models are asked to end early by a quarter of a request's time at most, for each of two reasons: they may be slow,
and the join may wait for its lane."""

DISPATCH_GAP_PART: Final = 8
"""What lies between two batches counts where it is this part of one at least: less is within the spread of batches."""

REMEMBERED: Final = 64
"""Requests, of all ensembles of the policy, after which an arrival counts a third of what it did."""


class Arrivals:
    """What came of one ensemble lately: ``count`` forgets, ``cost_ns`` is what the last request counts in the auction
    at value 1, ``value`` the mean that requests name."""

    __slots__ = ("count", "cost_ns", "value")

    def __init__(self, value: float) -> None:
        self.count = 0.0
        self.cost_ns = 1
        self.value = value

    def came(self, request: RequestRecord) -> None:
        """Count a request."""
        self.count += 1.0
        self.cost_ns = max(1, request.cost_share_ns)
        self.value += (request.value - self.value) / REMEMBERED


class Surroundings(NamedTuple):
    """The other apps at each place, and the part of its worth that lane time costs there."""

    at_ns: int
    others: List[List[OtherApp]]
    dear: List[float]


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class SchemblePlusOptions(EnsembleOptions):
    """Options of ``schemble+``."""

    stop: Number = option(0.005, "expected agreement that one more model must add")
    lone: str = option(
        "fastest",
        "a lone new request starts on the fastest idle model alone, or as planned",
        one_of=("fastest", "plan"),
    )
    price: Number = option(
        0.05, "what a plan pays at most for the time of all models, in agreement: room for requests to come"
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class SchemblePlus(EnsemblePolicy):
    """At its best: an idle model starts one job of the plan, everything else stays open.

    Models are added while time allows and while one more adds enough; batches form inside a model where they pay; what
    the finished models said counts."""

    options_type: ClassVar[Type[PolicyOptions]] = SchemblePlusOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, SchemblePlusOptions)
        self._stop: float = own.stop
        self._price: float = own.price
        self._starts_alone = own.lone == "fastest"
        self._arrivals: Dict[str, Arrivals] = {}
        self._seen: Dict[FrozenSet[str], Surroundings] = {}

    def _query(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> Query:
        if request.id not in self._queries:
            for seen in self._arrivals.values():
                seen.count *= 1.0 - 1.0 / REMEMBERED
            self._arrivals.setdefault(request.app.name, Arrivals(request.value)).came(request)
        return super()._query(request, ensemble, board)

    def _join_wait_ns(self, request: RequestRecord) -> int:
        if request.on_late == "answer":
            return 0
        longest_ns = max(self._waits.get(request.app.name, (0,)))
        return min(longest_ns, (request.deadline_ns - request.arrival_ns) // GUARD_PART)

    def _adjust(self, bid: Bid, behind: Sequence[Row], lane: Lane, board: Board) -> None:
        """The auction sees one bid: it is to end as early as planned, should it be slow, and what runs behind it on
        the lane is late where the bid waits for longer than that could."""
        utility, latency = bid.utility, board.latency(bid.model, lane.name)
        assert isinstance(utility, Utility)
        ends_ns = lane.available_ns(board.now_ns) + utility.after_ns
        slower_ns = max(0, latency.slowest_ns[latency.sizes[0]] - latency.typical_ns[latency.sizes[0]])
        for index, job in enumerate(bid.jobs):
            due_ns, worth, soft_ns = utility.rows[index]
            early_ns = min(slower_ns, (job.request.deadline_ns - job.request.arrival_ns) // GUARD_PART)
            if ends_ns <= due_ns - early_ns:
                utility.rows[index] = (due_ns - early_ns, worth, soft_ns)
        behind_ns = 0
        for _, _, _, query, bit in behind:
            job = query.jobs[bit]
            latency = board.latency(job.node.model, lane.name)
            behind_ns += latency.likely_ns[latency.size_max] // latency.size_max
            worth = job.request.cost_share_ns * job.request.value * self._share(query)
            due_ns = job.request.deadline_ns - (query.last_ns - query.due_ns)
            utility.rows.append((due_ns - behind_ns, worth, 0))
        bid.remaining_ns += behind_ns

    def _decide(self, board: Board, places: Places) -> None:
        queries = self._in_order(places)
        for query in queries:
            query.planned = 0
        if not queries:
            return
        fresh = [query for query in queries if not query.begun()]
        lone = 0
        if len(fresh) == 1 and self._starts_alone:
            lone = self._fastest_idle(fresh[0], board, places)
            fresh[0].planned = lone
            if lone and (len(queries) == 1 or not places.is_shared(fresh[0], lone.bit_length() - 1)):
                return
        best, own, planner, spent = Plan((), -1, EXACT, 0), queries, places.planner, 0
        dispatch_gaps_ns = self._dispatch_gaps_ns(places, board)
        charges = self._charges(queries, fresh, dispatch_gaps_ns, places, board)
        for batch in self._batches(board, places, len(queries)):
            plain = places.problem(board, {}, batch, len(fresh) > 1)
            lanes, ends = with_dispatch_gaps(plain, dispatch_gaps_ns), places.ends_ns(plain, board)
            able, asked = self._able(queries, lanes, ends, places, board, charges)
            if lone and fresh[0] in able:
                _only(asked[able.index(fresh[0])], 1 << places.number(fresh[0], lone.bit_length() - 1))
            if batch > 1:
                planner.forget()
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
        if lone:
            fresh[0].planned = lone

    def _worth(self, app: str, places: Places) -> float:
        """What a request of an ensemble counts beside one of those that it shares lanes with, at equal value."""
        costs = [seen.cost_ns for name, seen in self._arrivals.items() if name in places.apps]
        return self._arrivals[app].cost_ns / max(costs)

    def _demands(self, counts: Mapping[str, float], places: Places) -> List[Demand]:
        return [
            Demand(places.numbers[app], self._worth(app, places) * self._arrivals[app].value, count)
            for app, count in counts.items()
        ]

    def _prices(self, lanes: Lanes, places: Places, board: Board) -> List[float]:
        """Of a nanosecond of each place, by the requests that came lately."""
        counts = {app: seen.count for app, seen in self._arrivals.items() if app in places.apps}
        found = prices(lanes, self._demands(counts, places), self._price)
        return [each * dear for each, dear in zip(found, self._look(places, board).dear)]

    def _look(self, places: Places, board: Board) -> Surroundings:
        """Who else uses the lanes, and how dear their time is, as of this step: as dear as can be while no rate of
        requests is known."""
        found = self._seen.get(places.apps)
        if found is None or found.at_ns != board.now_ns:
            others, dear = [], []
            known = any(board.recent_arrivals(app).is_known for app in places.apps)
            for place in range(places.count):
                here = places.lanes(place)
                others.append(others_on(here, places.apps, board))
                asked = sum([other.per_ns * other.lane_ns for other in others[-1]]) / len(here)
                dear.append(dearness(asked + places.asked(place, True, board)) if known else 1.0)
            found = self._seen[places.apps] = Surroundings(board.now_ns, others, dear)
        return found

    def _charges(
        self, queries: List[Query], fresh: List[Query], dispatch_gaps_ns: Sequence[int], places: Places, board: Board
    ) -> Dict[str, Tuple[List[float], int]]:
        """What the requests that have not begun make each model of an app cost beyond the price, and how much earlier
        than they must its models are to end: nothing where one request waits, whom no other makes late."""
        lanes = with_dispatch_gaps(places.problem(board, {}, 1, True), dispatch_gaps_ns)
        others = self._charges_of_others(len(fresh), places, board)
        found: Dict[str, Tuple[List[float], int]] = {}
        for app in dict.fromkeys([query.ensemble.app.name for query in queries]):
            if len(fresh) < 2:
                if others:
                    found[app] = ([others[index] for index in places.numbers[app]], 0)
                continue
            last_ns = [query.due_ns for query in fresh if query.ensemble.app.name == app][-1:] or [fresh[-1].due_ns]
            counts: Dict[str, float] = {}
            for query in fresh:
                if query.due_ns <= last_ns[0]:
                    name = query.ensemble.app.name
                    counts[name] = counts.get(name, 0.0) + 1.0
            models = places.numbers[app]
            fastest = min(models, key=lambda index: (lanes.times_ns[index], index))
            more = surcharges(lanes, models, self._demands(counts, places), last_ns[0], self._price)
            if others:
                more = [each + others[index] for each, index in zip(more, models)]
            found[app] = (more, _guard_ns(places.models[fastest], board))
        return found

    def _charges_of_others(self, waiting: int, places: Places, board: Board) -> List[float]:
        """What the other apps on the same lanes lose by each model; empty where there are none."""
        unit_ns = max([seen.cost_ns for name, seen in self._arrivals.items() if name in places.apps])
        found = [0.0] * len(places.models)
        seen = self._look(places, board).others
        for place, others in enumerate(seen):
            if others:
                models = [index for index, at in enumerate(places.place_of) if at == place]
                lost = charges(
                    [places.share_ns(index, board) for index in models],
                    [places.block_ns(index, waiting, board) for index in models],
                    len(places.lanes(place)),
                    places.asked(place, False, board),
                    others,
                )
                for index, each in zip(models, lost):
                    found[index] = each / unit_ns
        return found if any(seen) else []

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
            own_ns if own_ns * DISPATCH_GAP_PART >= fastest_ns[place] else 0 for place, own_ns in enumerate(least_ns)
        ]

    def _able(
        self,
        queries: List[Query],
        lanes: Lanes,
        ends: Sequence[int],
        places: Places,
        board: Board,
        charges: Mapping[str, Tuple[List[float], int]],
    ) -> Tuple[List[Query], List[Asked]]:
        """The requests that some model could end for with the guard, should it be slow; where there is none, those that
        some model could end for by the likely times."""
        per_ns = self._prices(lanes, places, board)
        known: Dict[Alike, Tuple[Option, ...]] = {}
        for level in (GUARDED, LIKELY, LATE):
            able, asked = [], []
            for query in queries:
                if level == LATE and query.answered:
                    continue  # its join does not wait for longer
                request, app = query.request, query.ensemble.app.name
                more, early_ns = charges.get(app, ((), 0))
                limit_ns = (
                    0
                    if request.on_late == "answer" or level != GUARDED
                    else (request.deadline_ns - request.arrival_ns) // GUARD_PART
                )
                due_ns = query.last_ns if level == LATE else query.due_ns - min(early_ns, limit_ns)
                item = self._asked(
                    query, lanes, places, ends, PlanParameters(self._worth(app, places), per_ns, more, due_ns), known
                )
                if any(option.reward > 0 for option in item.options):
                    able.append(query)
                    asked.append(item)
                if len(asked) == places.planner.look_ahead:
                    break  # nobody behind would be planned
            if asked:
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

    def _batch(self, query: Query) -> int:
        return next(places.size for places in self._places if query.ensemble.app.name in places.apps)

    def _is_enough(self, query: Query, lanes: Lanes, places: Places, board: Board) -> bool:
        now = query.worth(query.answered)
        useful = now >= query.request.quality_min
        if query.running and (not useful or query.worth(query.answered | query.running) - now >= self._stop):
            return False
        more, ends = query.answered | query.running, places.ends_ns(lanes, board)
        for bit in query.jobs:
            if ends[places.number(query, bit)] <= query.due_ns:
                more |= 1 << bit
        gain = query.worth(more) - now
        if more == query.answered or (useful and gain < self._stop):
            return True
        asked = self._asked(
            query,
            lanes,
            places,
            ends,
            PlanParameters(
                self._worth(query.ensemble.app.name, places), self._prices(lanes, places, board), (), query.due_ns
            ),
        )
        return useful and not query.running and not any(option.reward > 0 for option in asked.options)


def _only(asked: Asked, subset: int) -> None:
    """Leave a request no other option."""
    asked.options = tuple([option for option in asked.options if option.subset == subset])


def _guard_ns(model: str, board: Board) -> int:
    """How much longer than typically a model took when it was slowest lately, where that is least."""
    spans = []
    for lane in board.lanes_of(model):
        latency = board.latency(model, lane.name)
        size = latency.sizes[0]
        spans.append(max(0, latency.slowest_ns[size] - latency.typical_ns[size]))
    return min(spans, default=0)
