"""PARD for pipelines whose modules share one device: requests travel in cohorts (specification, section 8).

When all modules share a lane, waiting at a module is a consequence of our own choice. So nothing is interleaved: a
cohort is admitted at the entry and driven through its pipeline module by module to the end. Its latency is then known
before it starts, the sum of the batches it needs, and only requests that will be in time are admitted: those that
bring most value per lane time. What is waiting is dropped when it could not make its deadline even alone. Before every
later module the members are tested again, since times are noisy and parts are known only after a detector. Modules
that run on other lanes, host functions above all, run ahead of their cohort, beside it and behind it.

Several pipelines share the device, and others' policies do: a cohort's next stage is a continuation, which others may
interrupt only as long as it still meets its deadlines. ``docs/guide/policies/pard_local.md`` has the whole story; the
parts are beside this file: ``remaining_work`` (what is left of a request), ``stages`` and ``cost`` (what that takes,
and where), ``in_flight`` (cohorts), ``choice`` (who goes), ``filling`` (who joins a batch that is not full).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.plan.remaining_work import (
    NO_STEPS,
    PLAIN,
    Left,
    Member,
    Pipeline,
    Steps,
    most_steps,
    shape_of,
)
from edgeserve.sched.policies.common.bidding import Utility, best_class, bid_for
from edgeserve.sched.policies.pard_local.choice import (
    Candidate,
    Trial,
    equal_cohort,
    unequal_cohort,
)
from edgeserve.sched.policies.pard_local.filling import LOOKED_AT_MAX, Filling, filled, may_be_filled
from edgeserve.sched.policies.pard_local.in_flight import Cohort, Forecast, InFlight
from edgeserve.sched.policies.pard_local.stages import StageCosts, free_lanes
from edgeserve.sched.policies.pard_local.waiting import (
    Group,
    Row,
    Waiting,
    are_alike,
    in_order,
    most_urgent,
    tightest,
)
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Change, Options, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DONE, READY, Job, RequestRecord
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.model_cache import NEVER_NS

NO_LANE = "no_lane"
ROWS_MAX = 32
"""Waiting requests of unequal work, value or class that are looked at for one cohort, the most urgent: the choice is
quadratic in them."""

BURST_PERCENT = 130
"""Of what full batches can serve: where the last requests came faster, a cohort's batch does not take longer for
requests that wait. (The rate of 32 Poisson arrivals has a standard deviation of 18 %.)"""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class PardLocalOptions(PolicyOptions):
    """Options of ``pard_local``."""

    admit: bool = option(True, "refuse at arrival what cannot be in time")
    cohorts: int = option(2, "cohorts in flight at a time on one home lane, where other lanes interrupt them")


@mypyc_attr(allow_interpreted_subclasses=True)
class PardLocal(Policy):
    """Requests go through their pipeline on one device in cohorts, chosen by what they bring per lane time."""

    options_type: ClassVar[Type[PolicyOptions]] = PardLocalOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, PardLocalOptions)
        self._admit = own.admit
        shapes = {shape_of(app): Pipeline(app) for app in reversed(self.apps)}
        self._pipeline_of = {app.name: shapes[shape_of(app)] for app in self.apps}
        for app in self.apps:
            self._pipeline_of[app.name].apps.append(app)
        self._waiting: List[Tuple[Pipeline, Waiting]] = [
            (pipeline, Waiting()) for pipeline in dict.fromkeys(self._pipeline_of[app.name] for app in self.apps)
        ]
        self._waiting_at = {id(pipeline): waiting for pipeline, waiting in self._waiting}
        self._ends_keys = {id(pipeline): f"{name} {index}" for index, (pipeline, _) in enumerate(self._waiting)}
        self._members: Dict[int, Member] = {}
        self._touched: Dict[int, Member] = {}  # members of whom a job has begun or left: their requests may have ended
        self._cut_short = 0
        self._offered: Dict[str, Cohort] = {}  # lane -> the cohort whose first batch was bid for it last
        self._stage_costs = StageCosts(name)
        self._in_flight = InFlight(name, self._stage_costs, max(1, own.cohorts))

    # --- requests and jobs come and go --------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        if not self._admit or request.on_late == "answer":
            return None
        pipeline = self._pipeline_of[request.app.name]
        if request.hints and not pipeline.hints.isdisjoint(request.hints):
            ends_ns = self._alone_ends_ns(Member(request, pipeline), board)
        else:
            ends_ns = self._plain_ends_ns(pipeline, board)
        if ends_ns is None:
            return NO_LANE
        return None if ends_ns <= request.deadline_ns else CANNOT_MAKE_DEADLINE

    def on_ready(self, job: Job, board: Board) -> None:
        request = job.request
        member = self._members.get(request.id)
        if member is None:
            member = self._members[request.id] = Member(request, self._pipeline_of[request.app.name])
        member.jobs[job.seq] = job
        member.stale = True
        if member.cohort is not None:
            self._in_flight.moved = True
        elif member.group is not None:
            self._waiting_at[id(member.pipeline)].changed(member)
        elif not member.waits:
            self._wait(member)

    def on_gone(self, job: Job, board: Board) -> None:
        member = self._members.get(job.request.id)
        if member is None:
            return  # its request has ended, and an earlier job of it took it away
        member.jobs.pop(job.seq, None)
        self._touched[job.request.id] = member
        self._changed(member)
        if job.request.ended or job.request.policy is not self.owner:
            self._remove(member)

    def on_started(self, work: Work, board: Board) -> None:
        cohort = self._offered.pop(work.lane.name, None)
        if cohort is not None and self._members[work.jobs[0].request.id].cohort is None:
            waiting = self._waiting_at[id(cohort.pipeline)]
            for other in cohort.members:
                waiting.remove(other)
                other.cohort = cohort
            self._in_flight.cohorts.append(cohort)
        for job in work.jobs:
            member = self._touched[job.request.id] = self._members[job.request.id]
            member.plain = False
            member.stale = self._in_flight.moved = True
            if member.group is not None:
                self._waiting_at[id(member.pipeline)].changed(member)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        for job in work.jobs:
            member = self._members.get(job.request.id)
            if member is None:
                continue
            member.stale = self._in_flight.moved = True
            if member.group is not None:
                self._waiting_at[id(member.pipeline)].changed(member)
            node = job.node
            if job.state == DONE and (job.hints or member.request.hints or node.fan_out or node.route_one):
                _learn(member, job)
                board.ends_ns.pop(self._ends_keys[id(member.pipeline)], None)

    def on_refused(self, work: Work, board: Board) -> None:
        self._moved_all()

    def on_device(self, change: Change, board: Board) -> None:
        if change.lane:
            self._moved_all()

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """Of a request that waits: by itself, on the home where it ends first. Of one in a cohort: with the
        cohort."""
        pipeline = self._pipeline_of[request.app.name]
        if not self._stage_costs.knows(pipeline):  # to ask for its homes would fix them
            return super().expected_end(request, job, board)
        member = self._members.get(request.id) or Member(request, pipeline)
        if not isinstance(member.cohort, Cohort):
            ends = [
                (found.wait_ns + found.alone_ns, index, found)
                for index, found in enumerate(
                    [
                        self._ends_at(member.pipeline, member.left(), member.steps(), home, board)
                        for home in self._stage_costs.homes(member.pipeline, board)
                    ]
                )
                if found is not None
            ]
            return min(ends)[2] if ends else None
        cohort = member.cohort
        answers = self._in_flight.answers(cohort, board)
        if not answers:
            return None
        ends_ns = answers[request.id] - board.now_ns
        route = self._stage_costs.route(cohort.pipeline, cohort.home, board)
        alone_ns = min(ends_ns, sum(route.lane_times(cohort.left, cohort.steps).values()))
        return ExpectedEnd(cohort.home, ends_ns - alone_ns, alone_ns, answers[request.id])

    def _ends_at(self, pipeline: Pipeline, left: Left, steps: Steps, home: str, board: Board) -> ExpectedEnd | None:
        """When so much work would end at a home, with nothing but what is on the lanes before it."""
        route = self._stage_costs.route(pipeline, home, board)
        ends_ns = route.one_by_one_ns(left, steps, board.now_ns)
        if ends_ns is None or ends_ns >= NEVER_NS or not any(left.jobs):
            return None
        alone_ns = sum(route.lane_times(left, steps).values())
        return ExpectedEnd(home, ends_ns - board.now_ns - alone_ns, alone_ns, ends_ns)

    def queued(self) -> List[Job]:
        return [job for member in self._members.values() for job in member.jobs.values() if job.state == READY]

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        """Who has ended leaves; cohorts whose home is lost are dissolved, and those that are in the way of a more
        urgent class; survivors are tested again before their next module; who waits without hope is dropped."""
        if self._offered:
            self._offered.clear()  # of the step before: bids follow
        for member in list(self._touched.values()):
            if member.request.ended or member.request.policy is not self.owner:
                self._remove(member)
        if self._in_flight.cohorts:
            self._look_at_cohorts(board)
        for _, waiting in self._waiting:
            if waiting.count:
                self._test_waiting(waiting, board)

    def _look_at_cohorts(self, board: Board) -> None:
        cohorts = self._in_flight.cohorts
        lanes = {lane.name: lane for lane in board.lanes}
        for cohort in list(cohorts):
            home = lanes[cohort.home]
            if not cohort.members or not home.up or home.hung:
                self._dissolve(cohort)
        if self._in_flight.moved:
            self._in_flight.look()
        some_wait = sum([waiting.count for _, waiting in self._waiting])
        for cohort in list(cohorts):
            if any(cohort.running):
                continue
            if some_wait and self._is_in_the_way(cohort):
                self._dissolve(cohort)
            else:
                self._test_again(cohort, board)

    def _dissolve(self, cohort: Cohort) -> None:
        """Its members wait again."""
        self._in_flight.cohorts.remove(cohort)
        self._in_flight.moved = True
        for member in cohort.members:
            member.cohort = None
            self._wait(member)

    def _test_again(self, cohort: Cohort, board: Board) -> None:
        """Who would be late with the rest leaves, the tightest first, or a member of a less urgent class in its place.
        They wait again: :meth:`_test_waiting` drops those that could not be in time even alone."""
        while cohort.members and board.budget.left > 0:
            answers = self._in_flight.answers(cohort, board)
            late = [
                (member.due_ns, member.request.id, member)
                for member in cohort.members
                if answers and member.request.on_late != "answer" and member.due_ns < answers[member.request.id]
            ]
            if not late:
                break
            self._leave(self._who_yields(min(late)[2], cohort, board))

    def _is_in_the_way(self, cohort: Cohort) -> bool:
        """Whether a cohort is in flight while a request of a more urgent class waits than all of its members: they wait
        again, and the auction says who goes first."""
        most_urgent = min([member.rank for member in cohort.members])
        return any(any(waiting.by_rank[:most_urgent]) for _, waiting in self._waiting)

    def _leave(self, member: Member) -> None:
        """Out of its cohort, to wait again."""
        if isinstance(member.cohort, Cohort):
            member.cohort.members.remove(member)
        self._in_flight.look()
        member.cohort = None
        self._wait(member)

    def _who_yields(self, late: Member, cohort: Cohort, board: Board) -> Member:
        """The loosest member of the least urgent class, if the late one can make it without those of less urgent
        classes; else the late one."""
        less = [
            (member.rank, member.due_ns, member.request.id, member)
            for member in cohort.members
            if member.rank > late.rank
        ]
        if not less:
            return late
        everybody = cohort.members
        cohort.members = [member for member in everybody if member.rank <= late.rank]
        self._in_flight.look()
        answers = self._in_flight.answers(cohort, board)
        cohort.members = everybody
        self._in_flight.look()
        return max(less)[3] if answers and answers[late.request.id] <= late.due_ns else late

    def _test_waiting(self, waiting: Waiting, board: Board) -> None:
        """Drop who could not make it even alone. Those of one kind all need the same time: of a group, only those that
        are due before it is over are looked at."""
        known: Dict[Tuple[int, ...], int | None] = {}
        rows: List[Tuple[int, int, Member, Group | None]] = [
            (due_ns, number, member, group) for group in waiting.groups() for due_ns, number, member in group.rows[:1]
        ]
        heapify(rows)
        while rows:
            due_ns, _, member, group = heappop(rows)
            kind = member.kind() if group is None else group.kind
            if kind is not None and kind in known:
                ends_ns = known[kind]
            elif kind is PLAIN:
                ends_ns = known[kind] = self._plain_ends_ns(member.pipeline, board)
            else:
                ends_ns = self._alone_ends_ns(member, board)
                if kind is not None:
                    known[kind] = ends_ns
            if group is not None:  # its first: those behind it follow in their turn
                late = len(group.rows) if kind is None else bisect_left(group.rows, (ends_ns or 0,))
                for row in group.rows[1:late]:
                    heappush(rows, (row[0], row[1], row[2], None))
            if ends_ns is None or ends_ns <= due_ns or member.request.ended or member.is_running():
                continue
            if member.request.on_late == "answer":  # as many more of its own time as make it be in time again
                slo_ns = max(1, member.request.deadline_ns - member.request.arrival_ns)
                waiting.remove(member)
                member.due_ns += slo_ns * -(-(ends_ns - due_ns) // slo_ns)
                waiting.add(member)
            else:
                _abandon_branch(self.owner, member, board, CANNOT_MAKE_DEADLINE)

    # --- the next batch -----------------------------------------------------------------------------------------------

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        if self._offered:
            self._offered.pop(lane.name, None)
        if self._in_flight.moved:
            self._in_flight.look()
        for cohort in self._in_flight.cohorts:
            following = self._next_bid(cohort, lane, board)
            if following is not None:
                return following
        fresh = self._fresh_bid(lane, board)
        if len(board.lanes) == 1:
            return fresh
        bids = [
            bid
            for pipeline, waiting in self._waiting
            if waiting.count
            for bid in self._ahead_bids(pipeline, waiting, lane, board)
        ]
        if not bids:
            return fresh
        if fresh is not None:
            bids.insert(0, fresh)
        best = arbiter.choose(bids, lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)
        if best is not fresh:
            self._offered.pop(lane.name, None)
        return best

    def _ahead_bids(self, pipeline: Pipeline, waiting: Waiting, lane: Lane, board: Board) -> List[Bid]:
        """What requests that wait for a cohort may run before it on a lane that is not its home: host functions at the
        entry, above all. They go as they come, the most urgent class and the tightest first."""
        homes = self._stage_costs.homes(pipeline, board)
        if lane.name in homes or not homes:
            return []
        home = self._home_for(pipeline, lane, board) or homes[0]
        by_model: Dict[str, List[Group]] = {}
        for group in sorted(waiting.groups(), key=_head):
            for job in group.rows[0][2].jobs.values():
                if _runs_on(job, lane):
                    by_model.setdefault(job.node.model, []).append(group)  # as often as each has jobs of the model
        bids: List[Bid] = []
        for model, groups in by_model.items():
            if board.is_resident(model, lane) and self._stage_costs.serves(lane, model, home, board):
                split = self._stage_costs.usual(model, lane.name, board).split
                count = split.first(sum([len(group.rows) for group in groups]))
                jobs = [
                    (member.rank, due_ns, job.seq, job)
                    for group in dict.fromkeys(groups)
                    for due_ns, _, member in group.first(count)
                    for job in member.jobs.values()
                    if job.node.model == model and _runs_on(job, lane)
                ]
                chosen = [job for _, _, _, job in sorted(jobs)[:count]]
                size, expected_ns = self._batch_of(pipeline, chosen, lane, board)
                bids.append(bid_for(chosen, size, expected_ns, board))
        return bids

    def _batch_of(self, pipeline: Pipeline, jobs: Sequence[Job], lane: Lane, board: Board) -> Tuple[int, int]:
        """The size of a batch of these jobs, and what it is expected to take: by the work that is known of them, where
        any is."""
        model, over_milli = jobs[0].node.model, pipeline.work_of(jobs)
        latency = board.latency(model, lane.name)
        size = latency.size_for[len(jobs)]
        if over_milli is None:
            return size, latency.likely_ns[size]
        return size, self._stage_costs.usual(model, lane.name, board).time_ns(len(jobs) * MILLI, over_milli)

    def _next_bid(self, cohort: Cohort, lane: Lane, board: Board, is_new: bool = False) -> Bid | None:
        """The next batch of a cohort on this lane, if any may run here now."""
        jobs = cohort.next_jobs(lane, self._stage_costs, board)
        if not jobs:
            return None
        at_ns = lane.available_ns(board.now_ns)
        answers = self._in_flight.answers(cohort, board)
        last_ns = ends_ns = max(answers.values(), default=at_ns)
        slack_ns = None if is_new else cohort.slack_ns(answers)
        pipeline = cohort.pipeline
        size, expected_ns = self._batch_of(pipeline, jobs, lane, board)
        if (
            pipeline.fan_outs
            and answers
            and lane.name == cohort.home
            and not cohort.steps
            and may_be_filled(pipeline, jobs)
        ):
            jobs, alone_ns = self._filled(cohort, jobs, ends_ns, lane, board), expected_ns
            size, expected_ns = self._batch_of(pipeline, jobs, lane, board)
            ends_ns += expected_ns - alone_ns
            slack_ns = None if slack_ns is None else slack_ns - (expected_ns - alone_ns)
        took_ns = max(expected_ns, ends_ns - at_ns)
        route = self._stage_costs.route(pipeline, cohort.home, board)
        here_ns = route.lane_times(cohort.left, cohort.steps).get(lane.name, 0)
        one_each = [next(iter(member.jobs.values())) for member in cohort.members if member.jobs]
        utility = Utility(one_each, took_ns, board.now_ns)
        if answers:  # some are answered before the last
            utility.rows = [
                (
                    due_ns + last_ns - answers[job.request.id] if due_ns == job.request.deadline_ns else due_ns,
                    worth,
                    soft_ns,
                )
                for (due_ns, worth, soft_ns), job in zip(utility.rows, one_each)
            ]
        return Bid(
            jobs[0].node.model,
            jobs,
            size,
            expected_ns,
            utility,
            max(expected_ns, here_ns),
            latest_start_ns=None if slack_ns is None else ends_ns + slack_ns - took_ns,
            klass=best_class(one_each),
        )

    def _filled(self, cohort: Cohort, jobs: List[Job], ends_ns: int, lane: Lane, board: Board) -> List[Job]:
        """The jobs of a batch of a cohort that ends at ``ends_ns``, and those of others that fill it: none that makes
        it longer where another cohort needs the lane, or where more come than even full batches could serve."""
        pipeline, costs = cohort.pipeline, self._stage_costs
        route = costs.route(pipeline, cohort.home, board)
        takes_ns = route.lane_times(pipeline.times(len(cohort.members)), NO_STEPS).get(cohort.home, 0)
        per_ns = sum([board.recent_arrivals(app.name).per_ns(board.now_ns) for app in pipeline.apps])
        is_burst = costs.home_share_ns(pipeline, cohort.home, board) * per_ns * 100 > BURST_PERCENT
        others = [other for other in self._in_flight.cohorts if other is not cohort and other.needs(lane, costs, board)]
        spare_ns: int | None = 0
        if not is_burst and not others:
            spare_ns = cohort.slack_ns(self._in_flight.answers(cohort, board))
        rank_max = max([member.rank for member in cohort.members])
        filling = Filling(lane.name, 2**62 if spare_ns is None else spare_ns, ends_ns + takes_ns, rank_max)
        latency = board.latency(jobs[0].node.model, lane.name)
        rows = tightest(self._waiting_at[id(pipeline)].groups(), LOOKED_AT_MAX)
        return filled(jobs, rows, cohort.members, latency, filling, board.budget)

    def _fresh_bid(self, lane: Lane, board: Board) -> Bid | None:
        """The first batch of the best new cohort that begins on this lane."""
        best: Bid | None = None
        for pipeline, waiting in self._waiting:
            groups = [group for group in waiting.groups() if group.can_begin(lane)] if waiting.count else []
            if not groups or self._home_for(pipeline, lane, board) != lane.name:
                continue  # what may run there runs ahead (:meth:`_ahead_bids`)
            if self._in_flight.cohorts and not self._in_flight.may_start(lane, board):
                continue
            cohort = self._choose(pipeline, groups, lane, board)
            bid = None if cohort is None else self._next_bid(cohort, lane, board, is_new=True)
            if bid is None or cohort is None:
                continue
            if best is not None:
                at_ns, gap_ns = lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns
                if arbiter.choose((best, bid), at_ns, gap_ns) is best:
                    continue
            best, self._offered[lane.name] = bid, cohort
        return best

    def _choose(self, pipeline: Pipeline, groups: Sequence[Group], lane: Lane, board: Board) -> Cohort | None:
        """The next cohort of a pipeline that begins on this lane, its home."""
        if len(groups) == 1 and len(groups[0].rows) == 1 and not self._in_flight.cohorts:  # whatever a trial says
            return Cohort(pipeline, lane.name, [groups[0].rows[0][2]])
        from_ns = lane.available_ns(board.now_ns)
        forecast = Forecast(self._in_flight, self._stage_costs, board, pipeline, lane.name, from_ns)
        chosen = self._choose_among(pipeline, groups, forecast, board)
        if not chosen and board.budget.left <= 0:
            chosen = self._simply(groups, lane, board)
        elif not chosen and not self._in_flight.cohorts:
            # Who waits would be in time alone: nobody must wait for an event that does not come.
            chosen = most_urgent(groups, 1)
        return Cohort(pipeline, lane.name, chosen) if chosen else None

    def _choose_among(
        self, pipeline: Pipeline, groups: Sequence[Group], forecast: Forecast, board: Board
    ) -> List[Member]:
        if are_alike(groups):
            rows = in_order(groups)
            trial_of_number = partial(forecast.trial_of_equals, rows[0][2].left())
            return [rows[place][2] for place in equal_cohort(rows, trial_of_number, board.budget)]
        members = most_urgent(groups, ROWS_MAX)
        steps = most_steps(members)

        def trial_of(left: Left, limit_ns: int) -> Trial | None:
            return forecast.trial(left, steps, limit_ns)

        candidates = [
            Candidate(
                member.due_ns,
                member.left(),
                self._stage_costs.cost_share_ns(pipeline, member.left(), board),
                member.request.value,
                member.rank,
            )
            for member in members
        ]
        return [members[index] for index in unequal_cohort(candidates, trial_of)]

    def _simply(self, groups: Sequence[Group], lane: Lane, board: Board) -> List[Member]:
        """Who goes where nothing is left of the step's budget: the most urgent, as many as one batch takes."""
        self._cut_short += 1
        first = tightest(groups, 1)[0][2]
        models = [job.node.model for job in first.jobs.values() if job.state == READY]
        model = next(model for model in models if model in lane.models)
        chosen = most_urgent(groups, board.latency(model, lane.name).size_max)
        for member in chosen:
            member.request.note(board.now_ns, "goes with the tightest: choosing would have taken too many operations")
        return chosen

    def figures(self) -> Mapping[str, Any]:
        """How often a cohort was chosen by the simple rule, since the step's budget was spent."""
        return {"simple_choices": self._cut_short} if self._cut_short else {}

    def _alone_ends_ns(self, member: Member, board: Board) -> int | None:
        """When a request that waits would end at the earliest, with nothing but what is on the lanes before it."""
        left, steps = member.left(), member.steps()
        ends = [
            self._stage_costs.route(member.pipeline, home, board).one_by_one_ns(left, steps, board.now_ns)
            for home in self._stage_costs.homes(member.pipeline, board)
        ]
        return min([ends_ns for ends_ns in ends if ends_ns is not None], default=None)

    def _plain_ends_ns(self, pipeline: Pipeline, board: Board) -> int | None:
        """The same of a request that is as any other and has not begun: worked out once per step, until something
        changes. (When a model can be loaded depends on the demand, which every arrival changes.)"""
        key = self._ends_keys[id(pipeline)]
        if key in board.ends_ns:
            return board.ends_ns[key]
        found: int | None = None
        lasts = True
        for home in self._stage_costs.homes(pipeline, board):
            route = self._stage_costs.route(pipeline, home, board)
            lasts = lasts and route.resident_ns <= board.now_ns
            ends_ns = route.one_by_one_ns(pipeline.template, NO_STEPS, board.now_ns)
            if ends_ns is not None and (found is None or ends_ns < found):
                found = ends_ns
        if lasts:
            board.ends_ns[key] = found
        return found

    def _home_for(self, pipeline: Pipeline, lane: Lane, board: Board) -> str | None:
        """The home of a cohort that begins on this lane: the lane itself, or that with the fewest cohorts."""
        homes = self._stage_costs.homes(pipeline, board)
        if lane.name in homes:
            return lane.name
        free = free_lanes(board)
        busy = [
            (sum([cohort.home == name for cohort in self._in_flight.cohorts]), free[name], index, name)
            for index, name in enumerate(homes)
        ]
        return min(busy)[3] if busy else None

    # --- who waits ----------------------------------------------------------------------------------------------------

    def _wait(self, member: Member) -> None:
        self._waiting_at[id(member.pipeline)].add(member)

    def _changed(self, member: Member) -> None:
        """Something of its jobs is not as it was."""
        member.stale = self._in_flight.moved = True
        if member.group is not None:
            self._waiting_at[id(member.pipeline)].changed(member)

    def _remove(self, member: Member) -> None:
        """The request has ended."""
        del self._members[member.request.id]
        self._touched.pop(member.request.id, None)
        if member.waits:
            self._waiting_at[id(member.pipeline)].remove(member)
        if isinstance(member.cohort, Cohort):
            member.cohort.members.remove(member)
            self._in_flight.moved = True

    def _moved_all(self) -> None:
        for member in self._members.values():
            self._changed(member)


def _head(group: Group) -> Row:
    return group.rows[0]


def _runs_on(job: Job, lane: Lane) -> bool:
    """Whether a job is ready for this lane."""
    return job.state == READY and job.node.model in lane.models and (not job.lane or job.lane == lane.name)


def _learn(member: Member, job: Job) -> None:
    """What a fan-out or a branch did, and what was said of the work, for the requests to come."""
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
        taken = next(
            (other.node.index for other in member.jobs.values() if node in other.node.preds and other.part == job.part),
            -1,
        )
        if taken >= 0 or not any(len(succ.preds) > 1 for succ in node.succs):  # a join behind it may just be waiting
            pipeline.observe_branch(node, taken)


def _abandon_branch(policy: Policy, member: Member, board: Board, reason: str) -> None:
    """Drop a request that cannot be in time, or let it go on without what is too late, where it may."""
    for job in list(member.jobs.values()):
        if job.state == READY and not member.request.ended and member.request.policy is policy:
            board.abandon_branch(job, reason)
