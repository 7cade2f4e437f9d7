"""Pipelines whose models share a lane: requests that begin together go through their path together.

Where all stages share a lane, waiting at a stage is a consequence of our own choice. So requests form a *company*. It
begins at its home lane with as many members as bring most worth per lane time of the whole path and are all answered in
time, and waits for its own at every later stage. Companies in flight go before new ones. Stages on other lanes, host
functions above all, run ahead of the company, beside it and behind it (``one_plan``, section 1).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, Final, List, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import CLASSES, RANKS, RESERVED, YIELDING
from edgeserve.sched.plan.candidate import K_SHARE, Behind, Candidate, worth_of
from edgeserve.sched.plan.company import Company, CompanyChoice, Flight, Standing, free_ns
from edgeserve.sched.plan.paths import NOT_RUNNING, LaneSchedule, Paths, Schedule, Stage, StageJobs, StageRoute
from edgeserve.sched.plan.remaining_work import (
    NO_STEPS,
    PLAIN,
    Left,
    Member,
    Pipeline,
    Steps,
    most_steps,
    shape_of,
    total_of,
)
from edgeserve.sched.plan.source import BEHIND, Source
from edgeserve.sched.policies.common.bidding import bid_for, refusal
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, NO_LANE, Bid, Policy
from edgeserve.sched.requests.critical import NO_ROOMS
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import DONE, READY, RUNNING, Job, RequestRecord
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS
from edgeserve.units import FOREVER_NS

EQUAL: Final = 0.98
"""A larger company is taken if it brings so much of the most worth per time (``edf``'s); two of one pipeline go on as
one if that takes less than this part of their time."""

LOOK: Final = 64
"""Requests that are looked at for a company, those due first."""

LOOK_UNEQUAL: Final = 32
"""The same where they differ in work or worth: the choice is quadratic in them."""

FAR: Final = 4
"""The multiple of its path alone beyond which a request's deadline is not checked: a bound on work."""

Row = Tuple[int, int, int, Member]
"""The class of a request (0 is the most urgent), when it is due, its number, and the request."""


class PipelineQueue:
    """A pipeline, and its requests that wait for a company, by the node of a ready job."""

    __slots__ = ("pipeline", "waiting")

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.waiting: List[List[Row]] = [[] for _ in pipeline.nodes]


@mypyc_attr(allow_interpreted_subclasses=True)
class Companies(Source):
    """Requests of pipelines whose models share a lane."""

    kind = "companies"

    def __init__(self, owner: Policy, apps: Sequence[App]) -> None:
        super().__init__(owner)
        self._line_of: Dict[str, PipelineQueue] = {}  # by app; apps of equal shape share one
        shapes: Dict[Tuple[object, ...], PipelineQueue] = {}
        for app in apps:
            shape = shape_of(app)
            if shape not in shapes:
                shapes[shape] = PipelineQueue(Pipeline(app))
            self._line_of[app.name] = shapes[shape]
        self._lines = list(shapes.values())
        self._members: Dict[int, Member] = {}
        self._touched: Dict[int, Member] = {}  # members whose request may have ended
        self._paths = Paths(owner.name)
        self._companies: List[Company] = []  # in flight, in order of their beginning
        self._flights: List[Flight] = []
        self._moved = False  # something in flight has changed
        self._stood = False  # there was a forecast since
        self._seen: Standing | None = None  # as of the forecast
        self._key = f"{owner.name} flights"
        self._begins: Dict[str, Tuple[Company, List[Member]]] = {}  # by lane: if its bid wins, these join this company
        self._counts: Dict[Tuple[object, ...], Tuple[Sequence[List[int]], List[int], List[int]]] = {}

    # --- requests and jobs come and go --------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        if request.on_late == "answer":
            return None
        ends_ns = self._alone_ns(Member(request, self._line_of[request.app.name].pipeline), board)
        if ends_ns is None:
            goes_without = any(node.optional and board.is_lost(node.model) for node in request.app.nodes)
            return refusal(request, board) if goes_without else NO_LANE
        return None if ends_ns <= request.deadline_ns else CANNOT_MAKE_DEADLINE

    def on_ready(self, job: Job, board: Board) -> None:
        request = job.request
        member = self._members.get(request.id)
        if member is None:
            member = self._members[request.id] = Member(request, self._line_of[request.app.name].pipeline)
        member.jobs[job.seq] = job
        self._changed(member)

    def on_gone(self, job: Job, board: Board) -> None:
        member = self._members.get(job.request.id)
        if member is None:
            return  # its request has ended, and an earlier job of it took it away
        member.jobs.pop(job.seq, None)
        self._touched[job.request.id] = member
        if job.request.ended or job.request.policy is not self.owner:
            self._remove(member)
        else:
            self._changed(member)

    def on_started(self, work: Work, board: Board) -> None:
        begins = self._begins.pop(work.lane.name, None)
        if begins is not None:
            company, joining = begins
            if company not in self._companies:
                self._companies.append(company)
            for member in joining:
                self._unqueue(member)
                member.cohort = company
                if member not in company.members:
                    company.members.append(member)
        for job in work.jobs:
            member = self._touched[job.request.id] = self._members[job.request.id]
            member.plain = False
            self._changed(member)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        for job in work.jobs:
            member = self._members.get(job.request.id)
            if member is not None:
                self._touched[job.request.id] = member
                self._changed(member)
                if job.state == DONE and (job.hints or member.request.hints or job.node.fan_out or job.node.route_one):
                    _learn(member, job)

    def on_refused(self, work: Work, board: Board) -> None:
        self.on_lost(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            member = self._members.get(job.request.id)
            if member is not None:
                self._touched[job.request.id] = member
                self._changed(member)

    def forget(self) -> None:
        super().forget()
        self._moved = True
        self._counts.clear()

    def queued(self) -> List[Job]:
        return [job for member in self._members.values() for job in member.jobs.values() if job.state == READY]

    def _changed(self, member: Member) -> None:
        """See what of a member's jobs waits and runs."""
        member.stale = True
        if member.cohort is not None:
            self._moved = True
        else:
            self._unqueue(member)
            self._queue(member)

    def _queue(self, member: Member) -> None:
        waiting = self._line_of[member.request.app.name].waiting
        for job in member.jobs.values():
            index = job.node.index
            if job.state == READY and index not in member.queued:
                member.queued.append(index)
                insort(waiting[index], (member.rank, member.due_ns, member.request.id, member))

    def _unqueue(self, member: Member) -> None:
        waiting = self._line_of[member.request.app.name].waiting
        for index in member.queued:
            del waiting[index][bisect_left(waiting[index], (member.rank, member.due_ns, member.request.id))]
        member.queued.clear()

    def _leave(self, member: Member) -> None:
        """Take a member out of its company: it waits again."""
        company = member.cohort
        assert isinstance(company, Company)
        company.members.remove(member)
        member.cohort = None
        self._moved = True
        self._queue(member)

    def _remove(self, member: Member) -> None:
        """Forget a request that has ended."""
        self._members.pop(member.request.id, None)
        self._touched.pop(member.request.id, None)
        if member.cohort is not None:
            self._leave(member)
        self._unqueue(member)

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        """Forget what has ended, look at companies again whose home is lost or a member of which would be late, and
        drop what cannot be in time even alone."""
        self._begins.clear()
        for member in list(self._touched.values()):
            if member.request.ended or member.request.policy is not self.owner:
                self._remove(member)
        self._touched.clear()
        if self._companies:
            homes = {lane.name: lane for lane in board.lanes}
            for company in list(self._companies):
                home = homes[company.home]
                if not home.up or home.hung:
                    for member in list(company.members):
                        self._leave(member)
                elif home.accepts(board.now_ns) and not self._is_alone_in_time(company, board):
                    self._look_again(company, board)
            left = [company for company in self._companies if company.members]
            if len(left) < len(self._companies):
                self._companies, self._flights, self._moved = left, [], True
        for line in self._lines:
            known: Dict[Tuple[int, ...], int | None] = {}
            for rows in line.waiting:
                if rows:
                    self._drop_late(rows, line.pipeline, known, board)
        self.is_idle = not self._members

    def _is_alone_in_time(self, company: Company, board: Board) -> bool:
        """True if the only request is in time stage by stage, which the forecast never is later than."""
        if len(self._members) != 1 or not company.members:
            return False
        member = company.members[0]
        route = self._paths.route(company.pipeline, company.home, board)
        steps = member.steps() if member.foretold else NO_STEPS
        ends_ns = route.ends_ns(member.left(), steps, board.now_ns)
        return ends_ns is not None and ends_ns <= member.due_ns

    def _look_again(self, company: Company, board: Board) -> None:
        """Have the tightest go first where all are in time so; return members to the queue, the tightest first, while
        one would be late with the rest of all."""
        while board.budget.left > 0:
            if self._moved:
                self._see(board)
            if any(company.running):
                return
            self._forecast(board)
            late = company.late()
            if not late or self._splits(company, board):
                return
            self._leave(min(late)[2])

    def _splits(self, company: Company, board: Board) -> bool:
        """True if it goes on as two companies in which all are in time, with as many as can be in the first one: the
        tightest."""
        members, place = sorted(company.members, key=_by_due), self._companies.index(company)
        before, behind = self._companies[:place], self._companies[place + 1 :]
        low, high = 0, len(members)
        found: Sequence[Company] = ()
        while high - low > 1:
            middle = (low + high) // 2
            parts = [Company(company.pipeline, company.home, some) for some in (members[:middle], members[middle:])]
            self._flights_of([*before, *parts, *behind], board)
            if parts[0].late():
                high = middle
                continue
            low = middle
            if not any(other.late() for other in [*before, *parts, *behind]):
                found = parts
        self._overwritten(board)
        for part in found:
            for member in part.members:
                member.cohort = part
        if found:
            self._companies = [*before, *found, *behind]
            self._moved = True
        return bool(found)

    def _overwritten(self, board: Board) -> None:
        """The forecast of those in flight was overwritten."""
        board.ends_ns.pop(self._key, None)
        self._seen = None

    def _drop_late(
        self, rows: List[Row], pipeline: Pipeline, known: Dict[Tuple[int, ...], int | None], board: Board
    ) -> None:
        """Drop the requests that wait at a node and could not be in time even alone; the ones that are answered all the
        same get more time, by the SLO of their app where their own is shorter. ``known``: the ends by kind of
        request."""
        if PLAIN not in known:
            known[PLAIN] = self._alone_left_ns(pipeline, pipeline.template, NO_STEPS, board)
        far_ns = board.now_ns + FAR * ((known[PLAIN] or board.now_ns) - board.now_ns)
        late: List[Tuple[Member, int]] = []
        place = 0
        while place < len(rows):
            rank, due_ns, _, member = rows[place]
            if due_ns > far_ns:
                place = bisect_left(rows, (rank + 1,))
                continue
            place += 1
            kind = member.kind()
            if kind is None or kind not in known:
                ends_ns = self._alone_ns(member, board)
                if kind is not None:
                    known[kind] = ends_ns
            else:
                ends_ns = known[kind]
            if ends_ns is not None and ends_ns > due_ns and not member.is_running():
                late.append((member, ends_ns))
        for member, ends_ns in late:
            request = member.request
            if request.on_late == "answer":
                slo_ns = max(1, request.deadline_ns - request.arrival_ns)
                if request.claim is not None:
                    slo_ns = max(slo_ns, request.app.slo_ns)
                self._unqueue(member)
                member.due_ns += slo_ns * -(-(ends_ns - member.due_ns) // slo_ns)
                self._queue(member)
                continue
            for job in list(member.jobs.values()):
                if job.state == READY and not request.ended and request.policy is self.owner:
                    board.abandon_branch(job, CANNOT_MAKE_DEADLINE)

    def _alone_ns(self, member: Member, board: Board) -> int | None:
        """The earliest end of a waiting request, behind the lanes' present batches alone."""
        return self._alone_left_ns(member.pipeline, member.left(), member.steps(), board)

    def _alone_left_ns(self, pipeline: Pipeline, left: Left, steps: Steps, board: Board) -> int | None:
        best_ns: int | None = None
        for home in self._paths.homes(pipeline, board):
            ends_ns = self._paths.route(pipeline, home, board).ends_ns(left, steps, board.now_ns)
            if ends_ns is not None and (best_ns is None or ends_ns < best_ns):
                best_ns = ends_ns
        return best_ns

    def _see(self, board: Board) -> None:
        """See what has changed in flight."""
        self._moved = self._stood = False
        board.ends_ns.pop(self._key, None)
        self._seen = None
        for company in self._companies:
            company.look()

    def _forecast(self, board: Board) -> None:
        """When the companies in flight end beside each other, those for whose stages lanes are up: worked out once,
        until something changes."""
        if self._moved:
            self._see(board)
        if self._key not in board.ends_ns:
            board.ends_ns[self._key] = None
            standing = self._standing(board) if self._stood else None  # what has just moved mostly moves again
            self._stood = True
            if standing is not None and standing.is_as(self._seen):
                assert self._seen is not None
                later_ns = standing.from_ns - self._seen.from_ns
                for company in self._companies:
                    company.answers = {request: at_ns + later_ns for request, at_ns in company.answers.items()}
                self._flights = [flight.later(later_ns, board.now_ns) for flight in self._flights]
            else:
                self._flights = self._flights_of(self._companies, board)
            self._seen = standing

    def _standing(self, board: Board) -> Standing | None:
        """The state that the forecast depends on beside the time; None where a company in flight runs, or needs several
        lanes: a later start can then delay an end by more."""
        found = Standing()
        for company in self._companies:
            if any(company.running) or not any(company.left.jobs) or company.is_stuck(board):
                return None
            route = self._paths.route(company.pipeline, company.home, board)
            for place, milli in zip(route.places, company.left.jobs):
                if milli and (place is None or not found.add(place, board.now_ns)):
                    return None
        return found

    def _flights_of(self, companies: Sequence[Company], board: Board) -> List[Flight]:
        """Set when the members of these companies are answered; the flights of the ones that run or could."""
        able: List[Company] = []
        schedules: List[Schedule] = []
        for company in companies:
            route = self._paths.route(company.pipeline, company.home, board)
            company.answers = {}
            if company.members and route.is_open(company.left):
                able.append(company)
                schedules.append(Schedule(self._stages(company, route, board), board.now_ns, company.home))
        planned = LaneSchedule(schedules, free_ns(board), board.budget)
        found: List[Flight] = []
        for place, ends_ns in enumerate(planned.run()):
            company, schedule = able[place], schedules[place]
            running_ns = schedule.stages[-1].running_ns if schedule.stages else ends_ns
            company.answered(ends_ns, planned.answers(place), running_ns)
            if any(bool(stage.batches) for stage in schedule.stages) and not company.is_stuck(board):
                slacks = [
                    max(0, member.due_ns - company.answers[member.request.id])
                    for member in company.members
                    if member.request.on_late != "answer"
                ]
                found.append(Flight(company, schedule, ends_ns, ends_ns + min(slacks) if slacks else FOREVER_NS))
        return found

    def _stages(self, company: Company, route: StageRoute, board: Board) -> List[Stage]:
        """The stages that a company has still to run, behind its batches on lanes."""
        running: List[StageJobs] = [NOT_RUNNING] * len(company.running)
        if any(company.running):
            for member in company.members:
                for job in member.jobs.values():
                    if job.state == RUNNING:
                        index, until_ns = job.node.index, board.now_ns
                        for lane in board.lanes_of(job.node.model):
                            if any(job in work.jobs for work in lane.works):
                                until_ns = lane.available_ns(board.now_ns)
                        own = running[index]
                        over = own.over + company.pipeline.over_milli(index, MILLI, job.hints)
                        running[index] = StageJobs(own.jobs + 1, over, max(own.until_ns, until_ns))
        return route.stages(company.left, company.steps, [len(rows) for rows in company.ready], running)

    # --- offers -------------------------------------------------------------------------------------------------------

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        ranks: Dict[int, int] = {}  # by pipeline: new companies of this class or less urgent ones wait
        if self._moved:
            self._see(board)
        for company in self._companies:
            jobs = company.next_jobs(lane, self._paths, board) if id(company.pipeline) not in ranks else []
            if jobs:
                self._forecast(board)
                found.append(self._candidate(company, jobs, lane, at_ns, board))
                ranks[id(company.pipeline)] = company.rank
        in_flight = list(found)
        for line in self._lines:
            pipeline = line.pipeline
            before: Sequence[Row] = ()
            for node, rows in zip(pipeline.nodes, line.waiting):
                if not rows or rows[0][0] >= ranks.get(id(pipeline), len(CLASSES)):
                    continue
                if node.model not in lane.models or not board.is_resident(node.model, lane):
                    continue
                item: Candidate | None
                if lane.name in self._paths.homes(pipeline, board):
                    if rows == before:
                        continue  # a request that waits at several nodes is in one company
                    before = rows
                    new = self._new(pipeline, rows, lane, at_ns, board)
                    jobs = new.next_jobs(lane, self._paths, board) if new is not None else []
                    item = self._candidate(new, jobs, lane, at_ns, board) if new is not None and jobs else None
                else:
                    item = self._ahead(pipeline, node, rows, lane, at_ns, board)
                if item is not None:
                    left_ns = self._left_ns(item, lane, board) if in_flight else 0
                    if not [other for other in in_flight if _goes_before(other, item, left_ns)]:
                        found.append(item)
        return found

    def behind(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Behind]:
        """The rest of its company's path, and the companies that would begin then."""
        company = candidate.detail
        assert isinstance(company, Company)
        found: List[Behind] = []
        if lane.name != company.home or candidate.slack_ns == FOREVER_NS:
            return ()
        pipeline, route = company.pipeline, self._paths.route(company.pipeline, company.home, board)
        left_ns = self._left_ns(candidate, lane, board) - candidate.takes_ns
        after_ns = at_ns + candidate.takes_ns
        if left_ns > 0:
            found.append(Behind(left_ns, candidate.slack_ns + candidate.takes_ns))
            after_ns += left_ns
        for rows in self._line_of[company.members[0].request.app.name].waiting:
            waits = [row[3] for row in rows[:LOOK] if row[0] == company.rank and row[3] not in company.members]
            place = 0
            while place < len(waits) and len(found) < BEHIND:
                each, count = waits[place].left(), len(waits) - place
                count = self._best_counts(route, pipeline, each, count)[count]
                total = pipeline.times(count, each)
                path_ns = (route.ends_ns(total, NO_STEPS, at_ns) or at_ns) - at_ns
                if waits[place].due_ns < after_ns + path_ns:
                    place += 1
                    continue
                takes_ns = route.lane_times(total, NO_STEPS).get(lane.name, 0)
                found.append(Behind(takes_ns, waits[place].due_ns - at_ns - path_ns))
                after_ns += takes_ns
                place += count
        return found

    def _left_ns(self, candidate: Candidate, lane: Lane, board: Board) -> int:
        """The time of a lane that the company of a candidate needs from here on."""
        company = candidate.detail
        assert isinstance(company, Company)
        route = self._paths.route(company.pipeline, company.home, board)
        return route.lane_times(company.left, company.steps).get(lane.name, 0)

    def lone(self, lane: Lane, board: Board) -> Bid | None:
        """The next batch of the only request: of its company, or of one that it begins at home."""
        if len(self._members) != 1 or board.critical_rooms(lane) is not NO_ROOMS:
            return None
        member = next(iter(self._members.values()))
        company, is_new = member.cohort, member.cohort is None
        if is_new:
            if lane.name not in self._paths.homes(member.pipeline, board) or [
                job for job in member.jobs.values() if job.lane and job.lane != lane.name
            ]:
                return None
            company = Company(member.pipeline, lane.name, [member])
        elif self._moved:
            self._see(board)
        assert isinstance(company, Company)
        jobs = company.next_jobs(lane, self._paths, board)
        if not jobs or company.pipeline.work_of(jobs) is not None:
            return None
        if is_new:
            self._begins[lane.name] = (company, company.members)
        latency = lane.models[jobs[0].node.model]
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board)

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        company = candidate.detail
        if isinstance(company, Company) and lane.name == company.home:
            if company not in self._companies:
                self._begins[lane.name] = (company, company.members)
            elif not [item for item in others if item.source is not self and item.priority_class not in YIELDING]:
                candidate = self._gathered(candidate, company, lane, board)
        return bid_for(candidate.jobs, candidate.size, candidate.takes_ns, board)

    def _candidate(self, company: Company, jobs: List[Job], lane: Lane, at_ns: int, board: Board) -> Candidate:
        """A batch of a company: worth its share of the lane time that is left here."""
        request, model, over_milli = jobs[0].request, jobs[0].node.model, company.pipeline.work_of(jobs)
        latency = lane.models[model]
        size = latency.size_for[len(jobs)]
        takes_ns = latency.likely_ns[size]
        if over_milli is not None:
            takes_ns = self._paths.usual(model, lane.name, board).time_ns(len(jobs) * MILLI, over_milli)
        careful_ns = latency.slowest_ns[size] * takes_ns // max(1, latency.likely_ns[size])
        route = self._paths.route(company.pipeline, company.home, board)
        here_ns = max(takes_ns, route.lane_times(company.left, company.steps).get(lane.name, 0))
        gain, slack_ns = 0.0, FOREVER_NS
        for member in company.members:
            answer_ns = company.answers.get(member.request.id, at_ns + takes_ns)
            slack_ns, worth = _in_time(member, at_ns, answer_ns, slack_ns, board)
            gain += worth * takes_ns / here_ns
        k_ns, priority_class = round(K_SHARE * (request.deadline_ns - request.arrival_ns)), CLASSES[company.rank]
        return Candidate(self, model, jobs, size, takes_ns, careful_ns, gain, slack_ns, k_ns, priority_class, company)

    def _ahead(
        self, pipeline: Pipeline, node: Node, rows: Sequence[Row], lane: Lane, at_ns: int, board: Board
    ) -> Candidate | None:
        """The batch that requests waiting for a company run before it on a lane that is not its home: the first batch
        of the best split, of the most urgent class, the tightest first."""
        home = self._paths.homes(pipeline, board)[0]
        if not self._paths.serves(lane, node.model, home, board):
            return None
        able = [
            (row[3], job)
            for row in rows[:LOOK]
            for job in row[3].jobs.values()
            if job.state == READY and job.node is node and job.lane in ("", lane.name) and row[0] == rows[0][0]
        ]
        if not able:
            return None
        able = able[: self._paths.usual(node.model, lane.name, board).split.first(len(able))]
        company = Company(pipeline, home, list(dict.fromkeys([member for member, _ in able])))
        route = self._paths.route(pipeline, home, board)
        for member in company.members:
            ends_ns = route.ends_ns(member.left(), member.steps(), at_ns)
            if ends_ns is not None:
                company.answers[member.request.id] = ends_ns
        return self._candidate(company, [job for _, job in able], lane, at_ns, board)

    # --- new companies ------------------------------------------------------------------------------------------------

    def _new(self, pipeline: Pipeline, rows: Sequence[Row], lane: Lane, at_ns: int, board: Board) -> Company | None:
        """The company that should begin among the requests that wait at a node, of the most urgent class alone: the
        most worth per lane time of all that is left, of the numbers that are answered in time and make no company in
        flight late."""
        rank = rows[0][0]
        members = [
            row[3]
            for row in rows[:LOOK]
            if row[0] == rank and not [job for job in row[3].jobs.values() if job.lane and job.lane != lane.name]
        ]
        if not members:
            return None
        if self._companies:
            self._forecast(board)
        choice = CompanyChoice(self._paths, pipeline, lane.name, at_ns, board)
        choice.known = [
            flight for flight in self._flights if flight.company.rank <= rank and flight.company.pipeline is pipeline
        ]
        kind, value = members[0].kind(), members[0].request.value
        alike = kind is not None and all(member.kind() == kind and member.request.value == value for member in members)
        chosen = self._alike(members, choice, board) if alike else self._unlike(members[:LOOK_UNEQUAL], choice, board)
        if not chosen:
            if choice.known and board.budget.left > 0:
                return None
            choice.known = []  # its members would be in time alone: none must wait for an event that does not come
            chosen = members[:1]
        company = Company(pipeline, lane.name, chosen)
        answers = choice.answers(company.left, company.steps, len(chosen))
        company.answers = {member.request.id: ends_ns for member, ends_ns in zip(chosen, answers)}
        return company

    def _alike(self, members: List[Member], choice: CompanyChoice, board: Board) -> List[Member]:
        """The members of a company among requests of equal remaining work and worth: the number that brings most per
        time of the ones that can be in time, the tightest that make it."""
        each = members[0].left()
        best = self._best_counts(choice.route, choice.pipeline, each, len(members))
        low, high = 0, best[len(members)]
        found = choice.tightest(members, each, high)
        while not found and high - low > 1:  # more are never answered earlier
            middle = (low + high) // 2
            if choice.tightest(members, each, middle):
                low = middle
            else:
                high = middle
        if low:
            found = choice.tightest(members, each, best[low])
        if found and found[0] is not members[0] and members[0].request.priority_class in RESERVED:
            return _tightest_first(members, len(found), choice, board) or found
        return found

    def _best_counts(self, route: StageRoute, pipeline: Pipeline, each: Left, count: int) -> List[int]:
        """The best number to go, by number of requests that wait with ``each`` left: kept until a time of their path
        changes."""
        times = [place.usual.split.best_ns for place in route.places if place is not None]
        key = (id(pipeline), route.home, *each.jobs, *each.over)
        kept = self._counts.get(key)
        if (
            kept is None
            or len(kept[0]) != len(times)
            or [one for one, other in zip(kept[0], times) if one is not other]
        ):
            if len(self._counts) == LOOK:
                self._counts.clear()
            kept = self._counts[key] = (times, [0], [1])
        _, best, costs = kept
        for number in range(len(best), count + 1):
            costs.append(route.cost_ns(pipeline.times(number, each), NO_STEPS))
            before = best[-1]
            best.append(number if number * costs[before] >= before * costs[number] * EQUAL else before)
        return best

    def _unlike(self, members: List[Member], choice: CompanyChoice, board: Board) -> List[Member]:
        """The members of a company among requests that differ in work or worth: for each as the tightest, requests due
        no earlier join as long as all are in time, the ones of most worth per cost first; the set of most worth goes,
        of equal ones the quickest. O(members^2) forecasts."""
        rows = [
            (choice.route.cost_ns(member.left(), member.steps()) / max(1e-9, worth), index, member, worth)
            for index, (member, worth) in enumerate([(member, worth_of(member.request)) for member in members])
        ]
        steps, size = most_steps(members), len(choice.pipeline.nodes)
        best_worth, best_ns = 0.0, 0
        found: List[Member] = []
        for tightest in members:
            limit_ns = tightest.due_ns
            able = sorted([row for row in rows if row[2].due_ns >= limit_ns])
            if sum([row[3] for row in able]) < best_worth:
                break  # the rest is worth less together
            taken: List[Member] = []
            total, value = Left([0] * size, [0] * size), 0.0
            for _, _, member, worth in able:
                more = total_of([total, member.left()], size)
                answers = choice.answers(more, steps, 0)
                if not answers or answers[-1] > limit_ns:
                    break
                taken.append(member)
                total, value = more, value + worth
                cost_ns = choice.route.cost_ns(total, steps)
                if value > best_worth or (value == best_worth and cost_ns < best_ns):
                    best_worth, best_ns, found = value, cost_ns, list(taken)
        return sorted(found, key=_by_due)

    def _gathered(self, candidate: Candidate, company: Company, lane: Lane, board: Board) -> Candidate:
        """The batch of the requests that wait for a new company, where they join this one and catch up with it before
        it goes on: if both together need less time of the lane, and no member and no company in flight is late for
        it."""
        at_ns, here = lane.available_ns(board.now_ns), candidate.jobs[0].node.index
        line = self._line_of[company.members[0].request.app.name]
        for node in line.pipeline.nodes[here::-1]:
            rows = line.waiting[node.index]
            if not rows or rows[0][0] != company.rank or node.model not in lane.models:
                continue
            new = self._new(line.pipeline, rows, lane, at_ns, board) if board.is_resident(node.model, lane) else None
            if new is None:
                continue
            both = Company(company.pipeline, company.home, [*company.members, *new.members])
            route = self._paths.route(company.pipeline, company.home, board)
            apart_ns = sum([route.lane_times(one.left, one.steps).get(lane.name, 0) for one in (company, new)])
            if route.lane_times(both.left, both.steps).get(lane.name, 0) >= apart_ns * EQUAL:
                continue
            then = [both if other is company else other for other in self._companies]
            self._flights_of(then, board)
            late = any(other.late() for other in then)
            self._overwritten(board)
            jobs = [] if late else both.next_jobs(lane, self._paths, board)
            if jobs:
                self._begins[lane.name] = (company, new.members)
                return self._candidate(both, jobs, lane, at_ns, board)
        return candidate

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """When a request would end by itself, on the home where it ends first."""
        member = self._members.get(request.id) or Member(request, self._line_of[request.app.name].pipeline)
        left, steps = member.left(), member.steps()
        best: Tuple[int, str, int] | None = None
        for home in self._paths.homes(member.pipeline, board):
            route = self._paths.route(member.pipeline, home, board)
            ends_ns = route.ends_ns(left, steps, board.now_ns)
            if ends_ns is not None and ends_ns < NEVER_NS and any(left.jobs) and (best is None or ends_ns < best[0]):
                best = ends_ns, home, sum(route.lane_times(left, steps).values())
        if best is None:
            return None
        ends_ns, home, alone_ns = best
        return ExpectedEnd(home, max(0, ends_ns - board.now_ns - alone_ns), alone_ns, ends_ns)


def _tightest_first(members: List[Member], count: int, choice: CompanyChoice, board: Board) -> List[Member]:
    """The members of the largest company in which the tightest critical request is in time; one of ``count`` would
    leave it out. Empty if the lane could not keep up with the arrivals of their apps in companies of that size."""
    each, low, high = members[0].left(), 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if choice.tightest(members, each, middle)[:1] == members[:1]:
            low = middle
        else:
            high = middle
    apps = {member.request.app.name: member.request.app for member in members}
    comes = sum([app.recent.per_ns(board.now_ns) for app in apps.values()])
    if not low or comes * choice.route.cost_ns(choice.pipeline.times(low, each), NO_STEPS) > low:
        return []
    return choice.tightest(members, each, low)


def _goes_before(candidate: Candidate, new: Candidate, left_ns: int) -> bool:
    """True if a company in flight goes on before another pipeline's begins, which has ``left_ns`` to run: it is of no
    less urgent class, cannot wait for so long, and brings no less per lane time of what it has left."""
    if candidate.is_critical:
        return RANKS[candidate.priority_class] <= RANKS[new.priority_class]
    if RANKS[candidate.priority_class] > RANKS[new.priority_class] or candidate.slack_ns >= left_ns:
        return False
    return candidate.gain * new.takes_ns >= new.gain * candidate.takes_ns


def _by_due(member: Member) -> Tuple[int, int]:
    return member.due_ns, member.request.id


def _in_time(member: Member, at_ns: int, ends_ns: int, slack_ns: int, board: Board) -> Tuple[int, float]:
    """The least slack so far, and what a request counts that starts and is answered then: nothing if it is late or the
    next of its stream has come, less and less if it is answered all the same."""
    request = member.request
    if ends_ns <= member.due_ns:
        slack_ns = min(slack_ns, member.due_ns - ends_ns)
    late_ns = max(0, ends_ns - request.deadline_ns)
    if late_ns and request.on_late != "answer":
        return slack_ns, 0.0
    begin_by_ns = request.begin_by_ns(board.now_ns) if request.successor_ns is not None else None
    if begin_by_ns is not None:
        if at_ns > begin_by_ns:
            return slack_ns, 0.0
        slack_ns = min(slack_ns, begin_by_ns - at_ns)
    slo_ns = max(1, request.deadline_ns - request.arrival_ns)
    return slack_ns, worth_of(request) * slo_ns / (slo_ns + late_ns)


def _learn(member: Member, job: Job) -> None:
    """Learn what a fan-out or a branch did, and what was said of the work, for the requests to come."""
    node, request, pipeline = job.node, job.request, member.pipeline
    if request.hints:
        member.learn_work()
    if job.hints is not request.hints and pipeline.declared_milli(node.index, request.hints) is None:
        told = pipeline.declared_milli(node.index, job.hints)  # of this part alone
        if told is not None:
            pipeline.observe_work(node.index, MILLI, told)
    if node.fan_out:
        count = (request.scopes or {}).get((node.index, job.part))
        if count is not None:
            pipeline.observe_parts(node, count)
    if node.route_one:
        behind = [
            other.node.index for other in member.jobs.values() if node in other.node.preds and other.part == job.part
        ]
        if behind or not any(len(succ.preds) > 1 for succ in node.succs):  # a join behind it may just be waiting
            pipeline.observe_branch(node, behind[0] if behind else -1)
