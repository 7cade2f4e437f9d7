"""Common pieces of the policies of ensembles: who waits, what has begun, when a request has enough, and the bids.

Requests of apps that are ensembles (``policies/common/ensembles.py``) wait until the models that they get are named;
everything else that these policies are asked to run, they run as ``edf`` does. What differs between them is who chooses
a subset, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, Final, FrozenSet, Iterable, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError
from edgeserve.sched.policies.common.bidding import bid_for, droppable, take
from edgeserve.sched.policies.common.ensembles import Ensemble, Query, ensemble_of
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policies.common.records import RecordDraws
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Change, Options, Policy
from edgeserve.sched.published.common.edf import Edf
from edgeserve.sched.published.common.orders import choose
from edgeserve.sched.published.schemble.lanes import NodePlaces, places_of
from edgeserve.sched.published.schemble.planner import BOUNDED
from edgeserve.sched.published.schemble.problem import REWARD_UNIT, AskedRequest, Lanes, ModelChoice, Plan
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import ANSWERED, DONE, OPEN, READY, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS

OVERLOADED = "overloaded"
"""Reason of a request whose models' lanes are taken until its deadline, though alone it would be in time."""

MARGIN_NS: Final = 200_000
"""The time before the last moment at which models are to end, besides what the loop wakes late."""

FORCED_WAIT_NS = 10_000_000_000
"""The time that a request that is answered however late waits at most before its models are looked at again."""

CELL_NS = 150
"""The time of one cell of a plan, interpreted (``research/results/bench_planner.json``): charged in simulations."""

ASKED_CELLS = 80
"""The least cost of one request of a local problem before its plan, in cells."""

OPTION_CELLS = 11
"""The cost of one of its options, in cells."""

EVERY_SUBSET = 6
"""Waiting models up to which a request is offered every subset of them. Of more, 1,023 of ten, the plan would take
longer than its bound: then single models, pairs, and the subsets that grow by the best model each."""


Row = Tuple[int, int, int, Query, int]
"""A model that may run: when it is to end, its request's arrival, its job's number, its request, its bit."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class EnsembleOptions(PolicyOptions):
    """Options of all policies of ensembles."""

    cells_max: int = option(20_000, "bound of one plan, in cells")


@mypyc_attr(allow_interpreted_subclasses=True)
class EnsemblePolicy(Policy):
    """Base: who waits, what has begun, and the bids. Subclasses decide who gets which models. What is no model of an
    ensemble, joins among it, an ``edf`` serves."""

    options_type: ClassVar[Type[PolicyOptions]] = EnsembleOptions

    by_estimate: ClassVar[FrozenSet[str]] = frozenset((CANNOT_MAKE_DEADLINE,))

    records_history: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, EnsembleOptions)
        self._plain = Edf(name, apps, {})
        self._ensembles: Dict[str, Ensemble] = {}
        for app in self.apps:
            found = ensemble_of(app)
            if found is not None:
                self._ensembles[app.name] = found
            elif app.history_share > 0.0:
                raise ConfigError(
                    f"[app.{app.name}] history: the app is no ensemble; expected models of their own "
                    'before one join with join = "policy" (policies/schemble.md), or no history'
                )
        self._records = RecordDraws(name, self.apps)
        self._queries: Dict[int, Query] = {}
        self._leads: Dict[str, JobQueue] = {}
        self._places: List[NodePlaces] = []  # ensembles that share no lane with others are planned without them
        self._cells_max = own.cells_max
        self._empty: List[RequestRecord] = []  # whose join goes on without any model: there is no answer
        self._is_stale = True  # something happened since the last plan
        self._thought = 0  # cells of the plans of this step
        self._plans = 0
        self._bounded = 0
        self._answers: Dict[int, int] = {}  # models that took part -> answers

    # --- what differs -------------------------------------------------------------------------------------------------

    def _decide(self, board: Board, places: NodePlaces) -> None:
        """Name the models that each request gets: ``planned``."""
        raise NotImplementedError(f"policy {self.name!r} does not decide")

    # --- who comes in, who waits --------------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        ensemble = self._ensembles.get(request.app.name)
        if ensemble is None:
            return self._plain.on_request(request, board)
        if request.on_late == "answer":
            return None
        latest_ns = request.deadline_ns - self._lead_ns(request.app, board)
        for node in ensemble.nodes:  # with one model alone, on lanes as they are
            ends_ns = board.earliest_end_ns(node.model)
            if ends_ns is not None and ends_ns + board.rest_ns(request.app, node) <= latest_ns:
                return None
        return CANNOT_MAKE_DEADLINE

    def _lead_ns(self, app: App, board: Board) -> int:
        """The time of the nodes before the models."""
        total_ns = 0
        for name in sorted(self._ensembles[app.name].leads):
            model = app.by_name[name].model
            total_ns += min([board.latency(model, lane.name).alone_likely_ns for lane in board.lanes_of(model)])
        return total_ns

    def on_ready(self, job: Job, board: Board) -> None:
        ensemble = self._ensembles.get(job.request.app.name)
        if ensemble is None or job.part:
            self._plain.on_ready(job, board)
            return
        bit = ensemble.bits.get(job.node.name, -1)
        if bit >= 0:
            query = self._query(job.request, ensemble, board)
            query.jobs[bit] = job
            query.gone &= ~(1 << bit)
            board.want(job, False)
            self._records.on_ready(job, board)
            self._is_stale = True
        elif job.node.name in ensemble.before:
            self._leads.setdefault(job.node.model, JobQueue()).add(job.request.deadline_ns, job)
        else:
            if job.node is ensemble.join:
                self._combined(job.request, ensemble, board)
            self._plain.on_ready(job, board)

    def _query(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> Query:
        query = self._queries.get(request.id)
        if query is None:
            behind_ns = max([board.rest_ns(request.app, node) for node in ensemble.nodes])
            latest_ns = request.deadline_ns - behind_ns - MARGIN_NS - board.wakes_late_ns
            query = self._queries[request.id] = Query(request, ensemble, latest_ns)
        return query

    def _combined(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> None:
        """The join goes on: say what the answer is worth."""
        self._queries.pop(request.id, None)
        answered = 0
        for branch in board.branches(request, ensemble.join.name):
            if branch.state == ANSWERED and branch.node in ensemble.bits:
                answered |= 1 << ensemble.bits[branch.node]
        if not answered:
            self._empty.append(request)
        count = bin(answered).count("1")
        self._answers[count] = self._answers.get(count, 0) + 1
        if ensemble.profile is not None:
            observed = ensemble.observed(request, answered)
            row = ensemble.row(request) if observed is None else observed
            board.rate(request, min(1.0, max(0.0, row[answered])))

    def on_gone(self, job: Job, board: Board) -> None:
        self._records.on_gone(job, board)
        found = self._of((job,))
        if found:
            query, bit, _ = found[0]
            query.jobs.pop(bit, None)
            query.gone |= 1 << bit
            self._is_stale = True
        elif self._is_lead(job):
            self._leads[job.node.model].remove(job)
        else:
            self._plain.on_gone(job, board)

    def _is_lead(self, job: Job) -> bool:
        """True if a job is of a node before the models, or beside them."""
        ensemble = self._ensembles.get(job.request.app.name)
        return ensemble is not None and not job.part and job.node.name in ensemble.before

    def on_started(self, work: Work, board: Board) -> None:
        if self._is_lead(work.jobs[0]):
            for job in work.jobs:
                self._leads[work.model].remove(job)
            self._is_stale = True
        elif self._of(work.jobs):
            for query, bit, _ in self._of(work.jobs):
                if query.jobs.pop(bit, None):
                    query.running |= 1 << bit
            self._is_stale = True
        else:
            self._plain.on_started(work, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        self._records.finished(work, board)
        self._is_stale = True
        for query, bit, job in self._of(work.jobs):
            if job.state == DONE:
                query.answers(bit)
            else:
                query.running &= ~(1 << bit)
                if job.state != READY:
                    _lose(query, bit)

    def on_refused(self, work: Work, board: Board) -> None:
        self._is_back(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        self._is_back(work, board)

    def _is_back(self, work: Work, board: Board) -> None:
        """The jobs of a work did not run to their end: gone, unless they become ready again."""
        self._records.lost(work, board)
        for query, bit, _ in self._of(work.jobs):
            query.running &= ~(1 << bit)
            _lose(query, bit)
            self._is_stale = True

    def _of(self, jobs: Iterable[Job]) -> List[Tuple[Query, int, Job]]:
        """The jobs that are models of open queries."""
        found = []
        for job in jobs:
            query = self._queries.get(job.request.id)
            bit = -1 if query is None else query.ensemble.bits.get(job.node.name, -1)
            if query is not None and bit >= 0 and not job.part:
                found.append((query, bit, job))
        return found

    def on_device(self, change: Change, board: Board) -> None:
        self._is_stale = True

    def queued(self) -> List[Job]:
        waiting = [job for query in self._queries.values() for job in query.jobs.values()]
        return self._plain.queued() + [job for queue in self._leads.values() for job in queue] + waiting

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        self._forget_ended()
        while self._empty:
            request = self._empty.pop()
            if not request.ended and request.policy is self.owner:
                board.drop(request, OVERLOADED)
        self._drop_late_leads(board)
        if self._queries:
            self._plan_ensembles(board)
        self._plain.plan(board)

    def _plan_ensembles(self, board: Board) -> None:
        if not self._places:
            self._places = places_of(list(self._ensembles.values()), board, self._cells_max)
        for places in self._places:
            self._settle_all(board, places)
            places.is_stale = places.is_stale or self._is_stale
        self._is_stale = False
        for places in self._places:
            if places.is_stale and self._of_places(places) and (places.may_start(board) or self._must_load(board)):
                places.is_stale = False
                self._decide(board, places)
                for query in self._of_places(places):
                    for bit, job in query.jobs.items():
                        board.want(job, bool((query.planned | query.wanted) >> bit & 1))

    def _of_places(self, places: NodePlaces) -> List[Query]:
        """The open requests of the ensembles whose models run at these places."""
        if len(self._places) == 1:
            return list(self._queries.values())
        return [query for query in self._queries.values() if query.ensemble.app.name in places.apps]

    def _drop_late_leads(self, board: Board) -> None:
        """Give up the requests that wait for a node before their models, and have no time for any of them behind it."""
        for model, queue in self._leads.items():
            ends_ns = board.earliest_end_ns(model) if queue.rows else None
            while ends_ns is not None and queue.rows:
                job = queue.rows[0][2]
                ensemble = self._ensembles[job.request.app.name]
                behind_ns = min(
                    [_alone_ns(node.model, board) + board.rest_ns(ensemble.app, node) for node in ensemble.nodes]
                )
                if (
                    ends_ns + behind_ns <= job.request.deadline_ns
                    or not droppable(job)
                    or job.node.name in ensemble.helpers
                ):
                    break
                board.drop(job.request, OVERLOADED)

    def _must_load(self, board: Board) -> bool:
        return any(
            not board.is_resident(node.model, lane)
            for item in self._ensembles.values()
            for node in item.nodes
            for lane in board.lanes_of(node.model)
        )

    def _forget_ended(self) -> None:
        ended = [
            number
            for number, query in self._queries.items()
            if query.request.ended or query.request.policy is not self.owner
        ]
        for number in ended:
            del self._queries[number]

    def _settle_all(self, board: Board, places: NodePlaces) -> None:
        """Answer the requests that have enough, or no time for more; give up the ones that can have nothing."""
        queries = self._of_places(places)
        if not queries:
            return
        lanes = places.problem(board, self._backlog(places, board))
        ends = places.ends_ns(lanes, board)
        for query in queries:
            request = query.request
            if request.ended or request.state != OPEN or request.id not in self._queries:
                continue
            if query.score_came():
                self._scored(query)
            if query.answered:
                is_over = query.due_ns <= board.now_ns and request.on_late != "answer"
                if is_over or not query.planned & ~(query.answered | query.gone):
                    board.settle(request, query.ensemble.join.name)
                    ends = places.ends_ns(lanes, board)  # a model without demand may not be loaded
            elif not query.running and query.jobs and not _may_end(query, ends, places):
                if request.on_late == "answer":
                    self._renew(query, lanes, ends, places, board)
                else:
                    board.drop(request, self._why_late(query, board))
                    ends = places.ends_ns(lanes, board)

    def _renew(self, query: Query, lanes: Lanes, at_ns: Sequence[int], places: NodePlaces, board: Board) -> None:
        """A late request that is answered however late gets a new time, at which its slowest model would have ended
        behind its fastest (the specification's forced mode); a model that has to be loaded first is asked for."""
        ends = [at_ns[places.number(query, bit)] for bit in query.jobs]
        query.due_ns = max(board.now_ns, min(min(ends), board.now_ns + FORCED_WAIT_NS)) + max(lanes.times_ns)
        if min(ends) >= NEVER_NS:
            query.wanted = query.waiting()
        self._is_stale = True

    def _scored(self, query: Query) -> None:
        """A request's difficulty has become known."""
        self._is_stale = True

    def _why_late(self, query: Query, board: Board) -> str:
        """The reason why a request cannot be in time: by the estimates of its models, or by what is on their lanes."""
        fastest_ns = min([_alone_ns(node.model, board) for node in query.ensemble.nodes])
        slow = query.request.arrival_ns + fastest_ns > query.due_ns
        return CANNOT_MAKE_DEADLINE if slow else OVERLOADED

    def _backlog(self, places: NodePlaces, board: Board) -> Dict[int, int]:
        """Lane time of committed models that have not started, by place."""
        found: Dict[int, int] = {}
        for query in self._of_places(places):
            for bit in query.jobs:
                if query.planned >> bit & 1:
                    model = query.ensemble.nodes[bit].model
                    place = places.place_of[places.number(query, bit)]
                    found[place] = found.get(place, 0) + _alone_ns(model, board)
        return found

    def next_wakeup_ns(self, board: Board) -> int | None:
        times = [query.due_ns for query in self._queries.values() if query.due_ns > board.now_ns]
        return min(times, default=None)

    # --- planning -----------------------------------------------------------------------------------------------------

    def _in_order(self, places: NodePlaces) -> List[Query]:
        """The requests that are open to a plan, in order of their deadlines."""
        queries = [query for query in self._of_places(places) if query.jobs and not query.is_committed]
        return sorted(queries, key=Query.key)

    def _asked(
        self, query: Query, lanes: Lanes, places: NodePlaces, ends: Sequence[int], per_ns: float
    ) -> AskedRequest:
        """A request as part of the local problem: the subsets of its waiting models that could end in time, with what
        they bring less the price of their time, ``per_ns``. ``ends``: when one batch of each model would."""
        numbers = places.numbers[query.ensemble.app.name]
        bits = [bit for bit in sorted(query.jobs) if ends[numbers[bit]] <= query.due_ns]
        costs_of = [lanes.times_ns[numbers[bit]] * per_ns for bit in bits]
        options: List[ModelChoice] = []
        for chosen in self._subsets(query, bits):
            own = subset = 0
            costs = 0.0
            for place, bit in enumerate(bits):
                if chosen >> place & 1:
                    own |= 1 << bit
                    subset |= 1 << numbers[bit]
                    costs += costs_of[place]
            options.append(ModelChoice(subset, round((query.gain(own) * query.request.value - costs) * REWARD_UNIT)))
        return AskedRequest(query.due_ns, options)

    def _subsets(self, query: Query, bits: Sequence[int]) -> Iterable[int]:
        """The subsets of the models ``bits`` that a plan may give a request, as bits over ``bits``."""
        count = len(bits)
        if count <= EVERY_SUBSET:
            return range(1, 1 << count)
        found = {1 << one | 1 << other for one in range(count) for other in range(one + 1)}
        chain = own = 0
        while chain + 1 < 1 << count:
            _, place = max(
                [(query.gain(own | 1 << bit), -place) for place, bit in enumerate(bits) if not chain >> place & 1]
            )
            chain, own = chain | 1 << -place, own | 1 << bits[-place]
            found.add(chain)
        return sorted(found)

    def _charge(self, plan: Plan, queries: Sequence[Query], asked: Sequence[AskedRequest], board: Board) -> None:
        """Count a plan and what it costs; one that met its bound says so in the stories of its requests."""
        self._plans += 1
        self._thought += plan.cells + sum([max(ASKED_CELLS, OPTION_CELLS * len(item.options)) for item in asked])
        if plan.method == BOUNDED:
            self._bounded += 1
            for query in queries:
                if not query.is_noted:
                    query.is_noted = True
                    board.note(query.request, "planned greedily: the plan met", "cells_max =", self._cells_max)

    def thought_ns(self) -> int:
        thought, self._thought = self._thought, 0
        return thought * CELL_NS

    def _own(self, query: Query, subset: int, places: NodePlaces) -> int:
        """A subset of the local problem as one of the request's own models."""
        own = 0
        for bit in query.jobs:
            if subset >> places.number(query, bit) & 1:
                own |= 1 << bit
        return own

    def _idle_models(self, board: Board, places: NodePlaces) -> int:
        """The models that could start now, as bits of the local problem."""
        found = 0
        for index, model in enumerate(places.models):
            for lane in board.lanes_of(model):
                if (
                    lane.accepts(board.now_ns)
                    and board.is_resident(model, lane)
                    and lane.available_ns(board.now_ns) <= board.now_ns
                ):
                    found |= 1 << index
        return found

    # --- whenever a lane is about to be free --------------------------------------------------------------------------

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids = []
        plain = self._plain.bid(lane, board)
        if plain is not None:
            bids.append(plain)
        for model, queue in self._leads.items():
            if queue.rows and model in lane.models and board.is_resident(model, lane):
                lead = self._lead_bid(queue, lane, board)
                if lead is not None:
                    bids.append(lead)
        mine = self._model_bid(lane, board)
        if mine is not None:
            bids.append(mine)
        if not bids:
            return self._records.offer(lane, board)
        return bids[0] if len(bids) == 1 else choose(bids, lane.available_ns(board.now_ns))

    def _lead_bid(self, queue: JobQueue, lane: Lane, board: Board) -> Bid | None:
        latency = board.latency(queue.rows[0][2].node.model, lane.name)
        jobs = take(queue, lane, 0, latency.size_max)
        if not jobs:
            return None
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board)

    def _model_bid(self, lane: Lane, board: Board) -> Bid | None:
        """The first request, in order of deadlines, that is to have a model which may run here."""
        rows: List[Row] = []
        for query in self._queries.values():
            for bit, job in query.jobs.items() if query.planned else ():
                if (
                    query.planned >> bit & 1
                    and job.node.model in lane.models
                    and (not job.lane or job.lane == lane.name)
                    and board.is_resident(job.node.model, lane)
                ):
                    rows.append((query.due_ns, job.request.arrival_ns, job.seq, query, bit))
        if not rows:
            return None
        _, _, _, query, bit = min(rows, key=_by_due)
        job = query.jobs[bit]
        latency = board.latency(job.node.model, lane.name)
        return bid_for([job], latency.sizes[0], latency.alone_likely_ns, board, shares=[self._share(query)])

    def _share(self, query: Query) -> float:
        """Which part of a request's worth each of its models adds that are to run: all of them add as much together as
        they bring beside what has begun."""
        together = query.planned & query.waiting()
        return max(0.0, query.gain(together)) / bin(together).count("1")

    # --- for people ---------------------------------------------------------------------------------------------------

    def figures(self) -> Mapping[str, object]:
        fitted = {name: item.profile is not None for name, item in self._ensembles.items()}
        said = (
            {}
            if all(fitted.values())
            else {
                "not fitted": [name for name, is_fitted in fitted.items() if not is_fitted],
                "to fit": "[app.APP] history = 'APP.npz' records; then 'edgeserve profile --fit APP=APP.npz' and "
                "[app.APP] ensemble = 'FILE'",
            }
        )
        return {
            "plans": self._plans,
            "plans cut short": self._bounded,
            "open": len(self._queries),
            "answers by models": dict(sorted(self._answers.items())),
            **said,
        }


def _may_end(query: Query, ends: Sequence[int], places: NodePlaces) -> bool:
    """True if any of the models of a request that wait, of which there must be one, could still end in time."""
    numbers = places.numbers[query.ensemble.app.name]
    return min([ends[numbers[bit]] for bit in query.jobs]) <= query.due_ns


def _lose(query: Query, bit: int) -> None:
    """A model of a request failed. Where no other was committed to it, it is planned again."""
    query.gone |= 1 << bit
    if not query.planned & ~query.gone:
        query.planned, query.is_committed = 0, False


def _by_due(row: Row) -> Tuple[int, int, int]:
    return row[0], row[1], row[2]


def _alone_ns(model: str, board: Board) -> int:
    return min([board.latency(model, lane.name).alone_likely_ns for lane in board.lanes_of(model)])
