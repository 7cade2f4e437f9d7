"""Members of ensembles: the models that each request gets, at the price of lane time, and the time at which its join
goes on.

A request wants the subset of its models that can still end whose expected agreement, times its worth, exceeds the price
of its lane time most (``price.py``). What it says nothing without is wanted at any price: the lane decides. Of one
model the jobs that add most go first. Other nodes, an ensemble's join among them, are plain work.

Variants of a model are members of which exactly one runs (``Ensemble.one_of``): the same job, with another model.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, Final, Iterable, List, Mapping, Sequence, Set, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError
from edgeserve.priority_class import LEAST
from edgeserve.sched.plan.asking import Asking, Looked, subsets_of
from edgeserve.sched.plan.candidate import K_SHARE, Behind, Candidate, worth_of
from edgeserve.sched.plan.plain import PlainModels
from edgeserve.sched.plan.price import likely_price, share_ns, steps_on
from edgeserve.sched.plan.source import Source, alone_ns, is_here, path_part, queue_behind
from edgeserve.sched.policies.common.bidding import best_class, bid_for, droppable
from edgeserve.sched.policies.common.ensembles import Ensemble, alternatives_of, ensemble_of
from edgeserve.sched.policies.common.records import RecordDraws
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, QUALITY_TOO_LOW, Bid, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import ANSWERED, DONE, OPEN, READY, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS
from edgeserve.units import FOREVER_NS

OVERLOADED: Final = "overloaded"
"""Reason of a request whose models' lanes are taken until its deadline, though alone it would be in time."""

MARGIN_NS: Final = 200_000
"""The time before the last moment at which models are to end, besides what the loop wakes late."""

JOINS: Final = 32
"""Joins of an app whose waits for a lane are remembered."""

JOIN_PART: Final = 4
"""Models are to end early by a quarter of a request's time at most, since the join may wait for its lane."""

HORIZON: Final = 2
"""Longest SLOs of the ensembles that a price looks ahead (``one_plan`` 6: 1 to 5 are level); of variants one, since
their price must rise with a burst (``docs/research/variants.md``)."""

PRICES: Final = 32
"""A price is worked out anew after this part of its horizon."""

LOOK: Final = 64
"""Jobs of a model that may be in its next batch: the ones that add most."""


Row = Tuple[float, int, int, float, Job]
"""A job that may run, in order of what it adds: that less than 0, by when it is to end, its number, which part of its
request it adds, the job."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Members(Source):
    """The requests of ensembles."""

    kind = "members"

    def __init__(self, owner: Policy, apps: Sequence[App]) -> None:
        super().__init__(owner)
        self._plain = PlainModels(owner)
        self._ensembles: Dict[str, Ensemble] = {}
        for app in apps:
            found = members_of(app)
            assert found is not None
            self._ensembles[app.name] = found
        self._models = list(dict.fromkeys([node.model for item in self._ensembles.values() for node in item.nodes]))
        self._records = RecordDraws(owner.name, apps)
        self._queries: Dict[int, Asking] = {}
        self._leads: Dict[int, Job] = {}  # of the nodes before the models, and beside them
        self._prices: Dict[str, float] = {}  # of a nanosecond of each model
        self._priced = 0  # how often
        self._priced_ns = -1
        self._rows: Dict[str, List[Row]] = {}
        self._spare: Dict[str, List[Row]] = {}
        self._is_stale = True  # something happened since the rows were made
        self._again: Set[int] = set()  # requests that something happened to since they were looked at
        self._looked = Looked()
        self._empty: List[RequestRecord] = []  # whose join goes on without any model: there is no answer
        self._waits: Dict[str, Deque[int]] = {}  # of the last joins of each app
        self._answers: Dict[int, int] = {}  # models that took part -> answers
        self._variants: Dict[str, int] = {}  # variant -> answers

    # --- requests come and go -----------------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        ensemble = self._ensembles[request.app.name]
        if ensemble.one_of and ensemble.mean[-1] < request.quality_min:
            return QUALITY_TOO_LOW
        if request.on_late == "answer":
            return None
        leads_ns = sum([alone_ns(request.app.by_name[name].model, board) for name in sorted(ensemble.leads)])
        for bit, node in enumerate(ensemble.nodes):  # with one model alone, on lanes as they are
            if ensemble.one_of and ensemble.mean[1 << bit] < request.quality_min:
                continue
            ends_ns = board.earliest_end_ns(node.model)
            if ends_ns is not None and ends_ns + leads_ns + board.rest_ns(request.app, node) <= request.deadline_ns:
                return None
        return CANNOT_MAKE_DEADLINE

    def on_ready(self, job: Job, board: Board) -> None:
        ensemble = self._ensembles[job.request.app.name]
        bit = -1 if job.part else ensemble.bits.get(job.node.name, -1)
        if ensemble.one_of:
            query = self._query(job.request, ensemble, board)
            query.jobs = {bit: job for bit, node in enumerate(ensemble.nodes) if job.may_run(node.model)}
            query.gone, query.told = 0, -1
            self._is_stale = True
            self._again.add(job.request.id)
        elif bit >= 0:
            query = self._query(job.request, ensemble, board)
            query.jobs[bit] = job
            query.gone &= ~(1 << bit)
            query.told &= ~(1 << bit)
            board.want(job, False)
            self._again.add(job.request.id)
            self._records.on_ready(job, board)
            self._is_stale = True
        elif not job.part and job.node.name in ensemble.before:
            self._leads[job.seq] = job
            self._is_stale = True
        else:
            if job.node is ensemble.join:
                self._combined(job.request, ensemble, board)
            self._plain.on_ready(job, board)
            self._plain.is_idle = False

    def _query(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> Asking:
        query = self._queries.get(request.id)
        if query is None:
            behind_ns = max([board.rest_ns(request.app, node) for node in ensemble.nodes])
            latest_ns = request.deadline_ns - behind_ns - MARGIN_NS - board.wakes_late_ns
            early_ns = 0
            if request.on_late != "answer":
                waits = self._waits.get(request.app.name)
                early_ns = max(waits) if waits else 0
                early_ns = min(early_ns, (request.deadline_ns - request.arrival_ns) // JOIN_PART)
            query = self._queries[request.id] = Asking(request, ensemble, latest_ns, early_ns)
        return query

    def _combined(self, request: RequestRecord, ensemble: Ensemble, board: Board) -> None:
        """The join goes on: say what the answer is worth."""
        self._queries.pop(request.id, None)
        self._is_stale = True
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
        self._is_stale, self.is_idle = True, False
        self._again.add(job.request.id)
        if self._leads.pop(job.seq, None) is not None:
            return
        bit = self._bit(job, job.model)
        if bit >= 0:
            query = self._queries.get(job.request.id)
            if query is not None:
                query.took(bit)
                query.gone |= 1 << bit
            return
        ends_ns = board.earliest_end_ns(job.node.model)
        if ends_ns is not None:  # given up because of what runs on its lane, before it has waited
            self._join_waited(job, ends_ns - alone_ns(job.node.model, board) - job.ready_ns)
        self._plain.on_gone(job, board)

    def on_started(self, work: Work, board: Board) -> None:
        self._is_stale, self.is_idle = True, False
        others = False
        for job in work.jobs:
            self._again.add(job.request.id)
            bit = self._bit(job, work.model)
            if bit >= 0:
                query = self._queries.get(job.request.id)
                if query is not None and query.took(bit):
                    query.running |= 1 << bit
            elif self._leads.pop(job.seq, None) is None:
                others = True
        if others:
            latency = work.lane.models[work.model]
            slower_ns = max(0, latency.likely_ns[work.size] - latency.typical_ns[latency.sizes[0]])
            for job in work.jobs:
                self._join_waited(job, board.now_ns - job.ready_ns + slower_ns)
            self._plain.on_started(work, board)

    def _join_waited(self, job: Job, wait_ns: int) -> None:
        """Remember how long joins waited, and how much longer than typical they may take."""
        if job.node is self._ensembles[job.request.app.name].join:
            self._waits.setdefault(job.request.app.name, deque(maxlen=JOINS)).append(max(0, wait_ns))

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        self._records.finished(work, board)
        self._is_stale, self.is_idle = True, False
        for job in work.jobs:
            self._again.add(job.request.id)
            query = self._queries.get(job.request.id)
            bit = self._bit(job, work.model)
            if query is not None and bit >= 0:
                if job.state == DONE:
                    query.answers(bit)
                    if query.ensemble.one_of:
                        self._variants[work.model] = self._variants.get(work.model, 0) + 1
                else:
                    query.running &= ~(1 << bit)
                    if job.state != READY:
                        query.gone |= 1 << bit

    def on_refused(self, work: Work, board: Board) -> None:
        self.on_lost(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        self._records.lost(work, board)
        self._is_stale, self.is_idle = True, False
        for job in work.jobs:
            self._again.add(job.request.id)
            query = self._queries.get(job.request.id)
            bit = self._bit(job, work.model)
            if query is not None and bit >= 0:
                query.running &= ~(1 << bit)
                query.gone |= 1 << bit  # unless it becomes ready again

    def _bit(self, job: Job, model: str) -> int:
        """Which model of its ensemble a job is, on ``model`` where it has variants; -1 where it is none."""
        ensemble = self._ensembles[job.request.app.name]
        return -1 if job.part else ensemble.bits.get(model if ensemble.one_of else job.node.name, -1)

    def forget(self) -> None:
        super().forget()
        self._plain.forget()
        self._looked = Looked()
        self._is_stale = True

    def queued(self) -> List[Job]:
        waiting = [job for query in self._queries.values() for job in query.waits()]
        return self._plain.queued() + list(self._leads.values()) + waiting

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        owner = self.owner
        ended = [
            number
            for number, query in self._queries.items()
            if query.request.ended or query.request.policy is not owner
        ]
        for number in ended:
            del self._queries[number]
        while self._empty:
            request = self._empty.pop()
            if self._is_mine(request):
                board.drop(request, OVERLOADED)
        self._drop_late_leads(board)
        if not self._queries:
            self._again.clear()
        else:
            self._reprice(board)
            changed = self._changed(board)
            if len(changed) == len(self._queries):
                self._looked = Looked()
            self._looked.price = self._priced
            self._again.clear()
            for query in changed:
                request = query.request
                if self._is_mine(request) and request.id in self._queries:
                    if request.state == OPEN:
                        self._look(query, board)
                    if request.state != OPEN or [job for job in query.jobs.values() if job.lane]:
                        self._again.add(request.id)
                    self._looked.at(query, board)
        if not self._plain.is_idle:
            self._plain.plan(board)
        self.is_idle = self._plain.is_idle and not (self._queries or self._leads or self._records.any)
        if self.is_idle:
            self._rows, self._spare = {}, {}

    def _changed(self, board: Board) -> List[Asking]:
        """The requests that something happened to, or all of them where the price or the lanes changed what is able to
        end in time for one."""
        if self._looked.price != self._priced or self._looked.is_over(board):
            self._looked.price = -1  # until all are looked at
            return list(self._queries.values())
        return [query for number, query in self._queries.items() if number in self._again]

    def _is_mine(self, request: RequestRecord) -> bool:
        return not request.ended and request.policy is self.owner

    def _look(self, query: Asking, board: Board) -> None:
        """Answer a request that has enough, or no time for more; give one up that can have nothing."""
        request = query.request
        query.score_came()
        self._decide(query, board)
        if query.answered:
            is_over = query.due_ns <= board.now_ns and request.on_late != "answer"
            if is_over or self._is_enough(query):
                board.settle(request, query.ensemble.join.name)
                return
        elif not query.running and query.jobs:
            ends = [self._ends_ns(job, query.model(bit), board) for bit, job in query.jobs.items()]
            if min(ends) > query.last_ns:
                if request.on_late != "answer":
                    fastest_ns = min([alone_ns(node.model, board) for node in query.ensemble.nodes])
                    is_slow = request.arrival_ns + fastest_ns > query.last_ns
                    board.drop(request, CANNOT_MAKE_DEADLINE if is_slow else OVERLOADED)
                    return
                slowest_ns = max([alone_ns(query.model(bit), board) for bit in query.jobs])
                soonest_ns = min(ends)
                if soonest_ns >= NEVER_NS:  # no lane is up: look again later
                    soonest_ns = board.now_ns + request.app.slo_ns
                query.due_ns = query.last_ns = max(board.now_ns, soonest_ns) + slowest_ns
                self._decide(query, board)
        for bit, job in query.jobs.items():
            if query.ensemble.one_of:
                if query.told < 0 and query.wanted >> bit & 1:
                    board.want(job, True, query.model(bit), query.lacks)
            elif (query.planned ^ query.told) >> bit & 1:
                board.want(job, bool(query.planned >> bit & 1))
        query.told = query.planned

    def _is_enough(self, query: Asking) -> bool:
        """True if nothing more is to gain by waiting."""
        if (
            query.planned
            or query.spare
            or bin(query.begun() | query.gone | query.waiting()).count("1") < len(query.ensemble.nodes)
        ):
            return False
        return not query.running or query.worth(query.begun()) <= query.worth(query.answered)

    def _drop_late_leads(self, board: Board) -> None:
        """Give up the requests that wait for a node before their models, and have no time for any of them behind it."""
        for job in list(self._leads.values()):
            if not droppable(job):
                self._is_stale = True  # it is due later the later it is
            elif (
                job.seq in self._leads
                and job.node.name in self._ensembles[job.request.app.name].leads
                and self._ends_ns(job, job.model, board) > self._lead_due_ns(job, board)
            ):
                board.drop(job.request, OVERLOADED)

    def _lead_due_ns(self, job: Job, board: Board) -> int:
        """When a node before the models, or beside them, is to end."""
        app, ensemble = job.request.app, self._ensembles[job.request.app.name]
        if job.node.name not in ensemble.leads:
            return job.request.deadline_ns - board.rest_ns(app, job.node)
        behind = [alone_ns(node.model, board) + board.rest_ns(app, node) for node in ensemble.nodes]
        return job.request.deadline_ns - min(behind)

    def _ends_ns(self, job: Job, model: str, board: Board) -> int:
        """When a job would end at the earliest on a model."""
        if job.lane:
            return board.ends_by_lane(model).get(job.lane, NEVER_NS)
        ends_ns = board.earliest_end_ns(model)
        return NEVER_NS if ends_ns is None else ends_ns

    def next_wakeup_ns(self, board: Board) -> int | None:
        times = [query.due_ns for query in self._queries.values() if query.due_ns > board.now_ns]
        return min(times) if times else None

    # --- which models -------------------------------------------------------------------------------------------------

    def _reprice(self, board: Board) -> None:
        """Work out what the time of each model costs, from time to time."""
        horizon_ns = max([item.app.slo_ns * (1 if item.one_of else HORIZON) for item in self._ensembles.values()])
        if self._priced and board.now_ns - self._priced_ns < horizon_ns // PRICES:
            return
        self._priced += 1
        self._priced_ns = board.now_ns
        waiting: Dict[str, int] = {}
        for query in self._queries.values():
            if not query.begun():
                name = query.request.app.name
                waiting[name] = waiting.get(name, 0) + 1
        known: Dict[Tuple[str, ...], float] = {}
        for model in self._models:
            lanes = board.lanes_of(model)
            place = tuple([lane.name for lane in lanes])
            if place not in known:
                up = len([lane for lane in lanes if lane.up and not lane.hung])
                steps = steps_on(lanes, self._ensembles, waiting, horizon_ns, board)
                known[place] = likely_price(steps, float(up * horizon_ns))
            self._prices[model] = known[place]

    def _decide(self, query: Asking, board: Board) -> None:
        """Name the models that a request wants, and what each of them adds."""
        query.until_ns = query.due_ns
        able = self._able(query, board)
        if not able and not query.begun():
            query.until_ns = query.last_ns  # its join may have to wait then, which is better than no answer
            able = self._able(query, board)
        seen = (self._priced, able, query.running, query.answered, query.is_scored)
        if seen == query.seen:
            return
        query.seen = seen
        self._is_stale = True
        query.planned = query.spare = 0
        bits = [bit for bit in sorted(query.jobs) if able >> bit & 1]
        if not bits:
            return
        nodes = query.ensemble.nodes
        shares = {bit: share_ns(nodes[bit].model, board, query.ensemble.batch_ns) for bit in bits}
        costs = {bit: shares[bit] * self._prices[nodes[bit].model] for bit in bits}
        worth = worth_of(query.request)
        if query.ensemble.one_of:
            self._want_one(query, worth, board)
        found: List[Tuple[int, float, float]] = []  # subset, what it adds, the same by its time
        best, rate = 0.0, 0.0
        least = 0
        for subset in subsets_of(query, bits):
            gain, cost, takes_ns = query.gain(subset) * worth, 0.0, 0
            for bit in bits:
                if subset >> bit & 1:
                    cost += costs[bit]
                    takes_ns += shares[bit]
            found.append((subset, gain, gain / max(1, takes_ns)))
            if gain - cost > best:
                best, query.planned = gain - cost, subset
            if gain > rate * takes_ns:
                rate, least = gain / max(1, takes_ns), subset
        if not query.planned and not (query.begun() and query.worth(query.begun()) >= query.request.quality_min):
            query.planned = least
        for bit in bits:
            within = query.planned if query.planned >> bit & 1 else able
            most = 0.0
            for subset, _, each in found:
                if subset >> bit & 1 and not subset & ~within and each > most:
                    most = each
            query.gains[bit] = most * shares[bit]
            if not query.planned >> bit & 1 and query.gains[bit] > 0.0 and query.adds(1 << bit, query.planned):
                query.spare |= 1 << bit

    def _want_one(self, query: Asking, worth: float, board: Board) -> None:
        """Name the variant that a request would have if all were in memory, and what it lacks without that one."""
        best = here = 0.0
        for bit in sorted(query.jobs):
            model = query.model(bit)
            cost = share_ns(model, board, query.ensemble.batch_ns) * self._prices[model]
            gain = query.gain(1 << bit) * worth - cost
            if gain > best:
                best, query.wanted = gain, 1 << bit
            if gain > here and is_here(model, board):
                here = gain
        query.lacks = 1.0 if here <= 0.0 else (best - here) / max(1e-9, worth)
        query.told = -1

    def _able(self, query: Asking, board: Board) -> int:
        """The models that wait and could still end in time; of variants those in memory, if any of them is."""
        found = here = 0
        nodes = query.ensemble.nodes
        for bit, job in query.jobs.items():
            model = nodes[bit].model
            if self._ends_ns(job, model, board) <= query.until_ns:
                found |= 1 << bit
                if query.ensemble.one_of and is_here(model, board):
                    here |= 1 << bit
        return here or found

    # --- whenever a lane is about to be free --------------------------------------------------------------------------

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        others = [] if self._plain.is_idle else list(self._plain.offers(lane, at_ns, board))
        if self._is_stale:
            self._make_rows(board)
        found = self._batches(self._rows, lane, at_ns, board)
        if found:
            press = min([item.press for item in found])
            for item in found:
                item.press = press  # a long model is not more urgent than the others of its request
        elif not others:
            for item in self._batches(self._spare, lane, at_ns, board):
                item.priority_class, item.is_critical = LEAST, False  # all other work goes first
                if board.spares_critical(lane, item.careful_ns):
                    found.append(item)
            probe = None if found else self._records.offer(lane, board)
            if probe is not None:
                jobs, takes_ns = probe.jobs, probe.expected_ns
                found.append(
                    Candidate(self, probe.model, jobs, probe.size, takes_ns, takes_ns, 0.0, FOREVER_NS, 1, LEAST, probe)
                )
        return others + found

    def _batches(self, rows_of: Mapping[str, Sequence[Row]], lane: Lane, at_ns: int, board: Board) -> List[Candidate]:
        found: List[Candidate] = []
        for model, rows in rows_of.items():
            if model in lane.models and board.is_resident(model, lane):
                item = self._best(model, rows, lane.models[model].size_max, lane, at_ns, board)
                if item is not None:
                    found.append(item)
        return found

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        rows, model = self._rows.get(candidate.model, []), candidate.model
        found: List[Candidate] = []
        for size in lane.models[model].sizes:
            if size < len(candidate.jobs):
                item = self._best(model, rows, size, lane, at_ns, board)
                if item is not None and len(item.jobs) == size:
                    item.press = candidate.press
                    found.append(item)
        return found

    def behind(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Behind]:
        chosen = {job.seq for job in candidate.jobs}
        rows = self._rows.get(candidate.model, [])
        return queue_behind(sorted([row[1] for row in rows if row[2] not in chosen]), candidate, at_ns)

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        if isinstance(candidate.detail, Bid):
            return candidate.detail
        shares = candidate.detail
        assert isinstance(shares, list)
        bid = bid_for(candidate.jobs, candidate.size, candidate.takes_ns, board, shares=shares)
        bid.model = candidate.model
        return bid

    def _make_rows(self, board: Board) -> None:
        """The jobs that may run, by model, in order of what they add."""
        self._rows = {}
        self._spare = {}
        for query in self._changed(board):
            if query.jobs:
                self._decide(query, board)
        self._is_stale = False
        for query in self._queries.values():
            worth = max(1e-9, worth_of(query.request)) if query.planned | query.spare else 1.0
            nodes = query.ensemble.nodes
            for bit, job in query.jobs.items():
                if (query.planned | query.spare) >> bit & 1:
                    rows_of = self._rows if query.planned >> bit & 1 else self._spare
                    gain = query.gains[bit]
                    row = (-gain, query.until_ns, job.seq, gain / worth, job)
                    rows_of.setdefault(nodes[bit].model, []).append(row)
        for job in self._leads.values():
            part = path_part(job, share_ns(job.node.model, board), board)
            due_ns = self._lead_due_ns(job, board)
            if not droppable(job):
                due_ns = max(due_ns, self._ends_ns(job, job.model, board) + alone_ns(job.node.model, board))
            row = (-worth_of(job.request) * part, due_ns, job.seq, 1.0, job)
            self._rows.setdefault(job.node.model, []).append(row)
        for rows in list(self._rows.values()) + list(self._spare.values()):
            rows.sort()
            del rows[LOOK:]

    def _best(
        self, model: str, rows: Sequence[Row], size_max: int, lane: Lane, at_ns: int, board: Board
    ) -> Candidate | None:
        """The batch of a model that adds most per time, of those up to a size."""
        latency = lane.models[model]
        gap_ns = lane.dispatch_gap.likely_ns
        best: List[Row] = []
        best_size, best_gain, best_rate = 0, 0.0, 0.0
        for size in latency.sizes:
            if size > size_max:
                break
            ends_ns = at_ns + latency.likely_ns[size]
            chosen: List[Row] = []
            gain = 0.0
            for row in rows:
                if row[1] >= ends_ns and row[4].lane in ("", lane.name):
                    chosen.append(row)
                    gain -= row[0]
                    if len(chosen) == size:
                        break
            if not chosen:
                break
            rate = gain / (latency.likely_ns[size] + gap_ns)
            if rate > best_rate or not best:
                best, best_size, best_gain, best_rate = chosen, size, gain, rate
            if len(chosen) < size:
                break
        if not best:
            return None
        takes_ns = latency.likely_ns[best_size]
        jobs = [row[4] for row in best]
        first = jobs[0].request
        return Candidate(
            self,
            model,
            jobs,
            best_size,
            takes_ns,
            max(takes_ns, latency.slowest_ns[best_size]),
            best_gain,
            min([row[1] for row in best]) - at_ns - takes_ns,
            round(K_SHARE * (first.deadline_ns - first.arrival_ns)),
            best_class(jobs),
            [row[3] for row in best],
        )

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        return expected_end(request, job, board, variants=True)

    # --- for people ---------------------------------------------------------------------------------------------------

    def figures(self) -> Mapping[str, Any]:
        fitted = {name: item.profile is not None for name, item in self._ensembles.items() if not item.one_of}
        figures: Dict[str, Any] = {"open": len(self._queries)}
        if self._answers:
            figures["answers by models"] = dict(sorted(self._answers.items()))
        if self._variants:
            figures["answers by variant"] = dict(self._variants)
        if not all(fitted.values()):
            figures["not fitted"] = [name for name, is_fitted in fitted.items() if not is_fitted]
            figures["to fit"] = (
                "[app.APP] history = 'APP.npz' records; then 'edgeserve profile --fit APP=APP.npz' and [app.APP] "
                "ensemble = 'FILE'"
            )
        return figures


def check_history(apps: Iterable[App]) -> None:
    """Raise where a history is wanted of an app that is no ensemble."""
    for app in apps:
        if app.history_share > 0.0 and ensemble_of(app) is None:
            raise ConfigError(
                f"[app.{app.name}] history: the app is no ensemble; expected models of their own "
                'before one join with join = "policy" (policies/schemble.md), or no history'
            )


def members_of(app: App) -> Ensemble | None:
    """The models that an app's requests are to choose among: of an ensemble some, of variants one; None of others."""
    return ensemble_of(app) or alternatives_of(app)
