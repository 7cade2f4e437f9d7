"""Cohorts in flight, and when they would end: alone, beside each other, with a new one among them (``pard_local``).

A stage begins when the stages before it are over, wherever they ran. So the time of a host function on another lane
counts in full, and while it lasts the home lane may take a second cohort, if the forecast says that nobody is late.
"""

from __future__ import annotations

from typing import Dict, Final, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.plan.remaining_work import (
    NO_STEPS,
    Left,
    Member,
    Pipeline,
    Steps,
    most_steps,
    total_of,
)
from edgeserve.sched.policies.pard_local.choice import Trial
from edgeserve.sched.policies.pard_local.cost import LaneSchedule, Schedule, Stage
from edgeserve.sched.policies.pard_local.stages import NOT_RUNNING, Route, Running, StageCosts, free_lanes
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import READY, RUNNING, Job
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane

ANSWER_OPERATIONS = 3
"""What each answer of a cohort on trial is charged in the step's budget: its time, and its place in the queue."""

COUNT_MAX = 64
TRIALS_MAX = 256
"""Trials that are kept: of cohorts of so many members, so many."""

Trials = Dict[Tuple[int, ...], Trial]
"""By the number of members and what each has left; the answers count from the beginning."""

NO_TRIALS: Final[Tuple[List[List[int]], Trials]] = ([], {})


class Cohort:
    """Requests that go through their pipeline together. Their order is that of their deadlines.

    What :meth:`look` finds stands until something of its members changes: what is ``left`` of all (the running jobs
    included), the ``steps`` of iterative nodes, and by node the jobs that are ``ready``, the tightest first, and how
    many are ``running``. ``answers``: when each member is answered, as :class:`InFlight` worked out last.
    """

    __slots__ = ("pipeline", "home", "members", "left", "steps", "ready", "running", "answers")

    def __init__(self, pipeline: Pipeline, home: str, members: Sequence[Member]) -> None:
        self.pipeline = pipeline
        self.home = home
        self.members = list(members)
        self.answers: Dict[int, int] | None = None
        self.look()

    def look(self) -> None:
        """See what its members have left, and what of it waits and runs."""
        self.ready: List[List[Tuple[int, int, Job]]] = [[] for _ in self.pipeline.nodes]
        self.running = [0] * len(self.ready)
        self.answers = None
        self.steps = NO_STEPS
        lefts: List[Left] = []
        plain = 0
        for member in self.members:
            for job in member.jobs.values():
                if job.state == READY:
                    self.ready[job.node.index].append((member.due_ns, job.seq, job))
                elif job.state == RUNNING:
                    self.running[job.node.index] += 1
            if member.plain:
                plain += 1
            else:
                lefts.append(member.left())
            if member.foretold and self.steps is NO_STEPS:
                self.steps = most_steps(self.members)
        for rows in self.ready:
            rows.sort()
        if plain:
            lefts.append(self.pipeline.times(plain))
        self.left = lefts[0] if len(lefts) == 1 else total_of(lefts, len(self.ready))

    def next_jobs(self, lane: Lane, stage_costs: StageCosts, board: Board) -> List[Job]:
        """The cohort's next batch on this lane, or none. The first node with jobs for the lane whose batch would not
        grow by waiting, since all of its jobs are there, or as many as its first batch takes; a smaller one where
        nothing runs, and nothing at an earlier node can. On other lanes than home the last such node goes first."""
        smaller: List[Job] = []
        nodes = self.pipeline.nodes
        for node in nodes if lane.name == self.home else nodes[::-1]:
            rows = self.ready[node.index]
            if not rows or node.model not in lane.models or not board.is_resident(node.model, lane):
                continue
            bound = lane.name != self.home and not stage_costs.serves(lane, node.model, self.home, board)
            jobs = [row[2] for row in rows if row[2].lane == lane.name or (not row[2].lane and not bound)]
            if not jobs:
                continue
            count = -(-self.left.jobs[node.index] // MILLI) - self.running[node.index]
            if count == 1:
                return jobs
            split = stage_costs.usual(node.model, lane.name, board).split
            if len(jobs) >= count or len(jobs) >= split.first(count):
                return jobs[: split.first(len(jobs))]
            if not smaller:
                smaller = jobs[: split.first(len(jobs))]
        if not smaller or any(self.running):
            return []
        for index in range(smaller[0].node.index):
            for _, _, job in self.ready[index]:
                if can_run_now(job.node.model, board):
                    return []
        return smaller

    def is_stuck(self, board: Board) -> bool:
        """Whether nothing of it runs or could run now, since no model that it needs next is in memory."""
        return not any(self.running) and not any(
            rows and can_run_now(rows[0][2].node.model, board) for rows in self.ready
        )

    def slack_ns(self, answers: Mapping[int, int]) -> int | None:
        """How much later than ``answers`` say, by request, its members may be answered before one would be dropped for
        it; None where none would, or nothing is known."""
        slacks = [
            member.due_ns - answers[member.request.id]
            for member in self.members
            if answers and member.request.on_late != "answer"
        ]
        return min(slacks, default=None)

    def answered(self, ends_ns: int, one_by_one: Sequence[int], running_ns: int) -> Dict[int, int]:
        """When its members are answered, by request, if it ends then, its jobs that have not begun at the module that
        answers end ``one_by_one``, and those that run there at ``running_ns``: the tightest are in its first batch."""
        found: Dict[int, int] = {}
        waiting: List[Tuple[int, int]] = []
        exit = self.pipeline.exit
        runs = exit >= 0 and self.running[exit]
        for member in self.members:
            found[member.request.id] = ends_ns
            if runs and any(job.state == RUNNING and job.node.index == exit for job in member.jobs.values()):
                found[member.request.id] = running_ns
            else:
                waiting.append((member.due_ns, member.request.id))
        if exit >= 0 and len(one_by_one) == len(waiting) and not self.steps:
            for (_, request_id), at_ns in zip(sorted(waiting), one_by_one):
                found[request_id] = at_ns
        return found

    def needs(self, lane: Lane, stage_costs: StageCosts, board: Board) -> bool:
        """Whether anything is left for this lane besides what is on lanes."""
        for node in self.pipeline.nodes:
            if (
                self.left.jobs[node.index] > self.running[node.index] * MILLI
                and node.model in lane.models
                and stage_costs.serves(lane, node.model, self.home, board)
            ):
                return True
        return False

    def runs_on(self, lane: Lane) -> bool:
        """Whether a batch of it is on this lane."""
        ours = {member.request.id for member in self.members}
        return any(job.request.id in ours for work in lane.works for job in work.jobs)


class Flight(NamedTuple):
    """A cohort in flight: what it has still to run, when that is over, and when its members are answered, by
    request."""

    cohort: Cohort
    schedule: Schedule
    ends_ns: int
    answers: Dict[int, int]


class InFlight:
    """The cohorts in flight, in the order in which they go first. Knows when each ends; chooses nobody. ``moved``: the
    cohorts, or something of theirs, have changed since it looked."""

    __slots__ = ("cohorts", "moved", "_stage_costs", "cohorts_max", "_key", "_trials")

    def __init__(self, name: str, stage_costs: StageCosts, cohorts_max: int) -> None:
        self.cohorts: List[Cohort] = []
        self.moved = False
        self._stage_costs = stage_costs
        self.cohorts_max = cohorts_max
        self._key = f"{name} in flight"
        self._trials: Dict[Tuple[int, str], Tuple[List[List[int]], Trials]] = {}  # by pipeline (its identity) and home

    def look(self) -> None:
        """See what has changed."""
        self.moved = False
        for cohort in self.cohorts:
            cohort.look()

    def answers(self, cohort: Cohort, board: Board) -> Dict[int, int]:
        """When the members of a cohort, which is in flight or would be the last, are answered, by request, those before
        and beside it considered; empty while a stage has no lane. Worked out once, until something changes."""
        if self.moved:
            self.look()
        if self._key not in board.ends_ns:
            board.ends_ns[self._key] = None
            for other in self.cohorts:
                other.answers = None
        if cohort.answers is None:
            cohorts = self.cohorts if cohort in self.cohorts else [*self.cohorts, cohort]
            if not self._one_after_the_other(cohorts, board):
                for flight in self.flights(cohorts, board):
                    if flight.cohort is cohort or cohorts is self.cohorts:
                        flight.cohort.answers = flight.answers
        return cohort.answers or {}

    def _one_after_the_other(self, cohorts: Sequence[Cohort], board: Board) -> bool:
        """The same where one lane runs all that is left of all cohorts: the cohorts before are over first."""
        at_ns = board.now_ns
        lane: Lane | None = None
        for cohort in cohorts:
            route = self._stage_costs.route(cohort.pipeline, cohort.home, board)
            if route.lane is None or any(cohort.running) or route.resident_ns > board.now_ns:
                return False
            if lane is not None and route.lane is not lane:
                return False
            lane = route.lane
            at_ns = route.one_by_one_ns(cohort.left, cohort.steps, at_ns) or at_ns
            if len(cohort.members) == 1:
                cohort.answers = {cohort.members[0].request.id: at_ns}
            else:
                cohort.answers = cohort.answered(at_ns, route.answers(cohort.left, len(cohort.members), at_ns), at_ns)
        return True

    def flights(self, cohorts: Sequence[Cohort], board: Board) -> List[Flight]:
        """How these cohorts would end beside each other, those for whose stages lanes are up."""
        schedules: List[Tuple[Cohort, Schedule]] = []
        for cohort in cohorts:
            stages = self._stages(cohort, board)
            if stages is not None:
                schedules.append((cohort, Schedule(stages, board.now_ns, cohort.home)))
        planned = LaneSchedule([schedule for _, schedule in schedules], free_lanes(board), board.budget)
        found: List[Flight] = []
        for place, ends_ns in enumerate(planned.run()):
            cohort, schedule = schedules[place]
            running_ns = schedule.stages[-1].running_ns if schedule.stages else ends_ns
            answers = cohort.answered(ends_ns, planned.answers(place), running_ns)
            found.append(Flight(cohort, schedule, ends_ns, answers))
        return found

    def _stages(self, cohort: Cohort, board: Board) -> List[Stage] | None:
        """What a cohort has still to run, behind what it has on lanes; None while a stage has no lane."""
        pipeline, left = cohort.pipeline, cohort.left
        route = self._stage_costs.route(pipeline, cohort.home, board)
        if not route.is_open(left):
            return None
        running: List[Running] = [NOT_RUNNING] * len(left.jobs)
        if any(cohort.running):
            for member in cohort.members:
                for job in member.jobs.values():
                    if job.state == RUNNING:
                        index, until_ns = job.node.index, board.now_ns
                        for lane in board.lanes_of(job.node.model):
                            if any(job in work.jobs for work in lane.works):
                                until_ns = lane.available_ns(board.now_ns)
                        own = running[index]
                        over = own.over + pipeline.over_milli(index, MILLI, job.hints)
                        running[index] = Running(own.jobs + 1, over, max(own.until_ns, until_ns))
        return route.stages(left, cohort.steps, [len(rows) for rows in cohort.ready], running)

    def trials_on_free_lanes(
        self, pipeline: Pipeline, route: Route, free_ns: Mapping[str, int], from_ns: int
    ) -> Dict[Tuple[int, ...], Trial] | None:
        """Trials of new cohorts that have the lanes of their route to themselves from then on, tried since the times of
        a stage last changed; None where a lane is in use then, or a model not in memory."""
        times: List[List[int]] = []
        for place in route.places:
            if place is None or free_ns[place.lane.name] > from_ns:
                return None
            times.append(place.usual.split.best_ns)
        if route.resident_ns > from_ns:
            return None
        key = (id(pipeline), route.home)
        known, trials = self._trials.get(key, NO_TRIALS)
        if len(known) < len(times) or any(one is not other for one, other in zip(known, times)):
            trials = {}
            self._trials[key] = (times, trials)
        return trials

    def may_start(self, lane: Lane, board: Board) -> bool:
        """Whether a new cohort may begin on this lane, behind those at home there: when they are about to leave it, or
        when they are elsewhere and there is room for one more. One that waits for memory holds nobody up: memory may
        be waiting for the others to be served."""
        staying = [
            cohort
            for cohort in self.cohorts
            if cohort.home == lane.name and not cohort.is_stuck(board) and cohort.needs(lane, self._stage_costs, board)
        ]
        if not staying:
            return True
        if len(staying) >= self.cohorts_max:
            return False
        return not any(cohort.runs_on(lane) for cohort in staying)


class Forecast:
    """When a new cohort would end beside those in flight, for any number of trials in one decision."""

    __slots__ = ("budget", "route", "_pipeline", "_from_ns", "_known", "_limits", "_free", "_on_free_lanes")

    def __init__(
        self,
        in_flight: InFlight,
        stage_costs: StageCosts,
        board: Board,
        pipeline: Pipeline,
        home: str,
        from_ns: int,
    ) -> None:
        self.budget = board.budget
        self.route = stage_costs.route(pipeline, home, board)
        self._pipeline = pipeline
        self._from_ns = from_ns
        self._free = free_lanes(board)
        self._known: List[Schedule] = []
        self._limits: List[int] = []  # when those in flight must end
        self._on_free_lanes: Trials | None = None
        others = [cohort for cohort in in_flight.cohorts if not cohort.is_stuck(board)]
        for cohort, schedule, ends_ns, answers in in_flight.flights(others, board):
            if any(stage.batches for stage in schedule.stages):
                slack_ns = cohort.slack_ns(answers)
                self._known.append(schedule)
                self._limits.append(2**62 if slack_ns is None else ends_ns + max(0, slack_ns))
        if self.route.lane is None and not self._known:
            self._on_free_lanes = in_flight.trials_on_free_lanes(pipeline, self.route, self._free, from_ns)

    def trial(self, left: Left, steps: Steps, limit_ns: int = 2**62, count: int = 0) -> Trial | None:
        """A new cohort with so much left, of ``count`` equal members (0: of unequal ones); None when it cannot run,
        when one in flight would then be late, or where nothing is left of the step's budget."""
        budget = self.budget
        if budget.left <= 0 or not self.route.is_open(left):
            return None
        answers = self._answers(count, left, steps, limit_ns)
        if not answers:
            return None
        budget.left -= ANSWER_OPERATIONS * len(answers)  # (as charge() does, without its call)
        return Trial(self.route.busy_ns(left, steps), answers)

    def trial_of_equals(self, each: Left, count: int, most_ns: int) -> Trial | None:
        """The trial of ``count`` members with the same left; of one that takes longer than ``most_ns`` only the last
        answer counts."""
        route, exit = self.route, self._pipeline.exit
        if route.lane is None or self._known:
            return self._trial_beside(each, count)
        time_ns, ends_ns = 0, self._from_ns
        for index, milli in enumerate(each.jobs):  # as one_by_one_ns() and busy_ns() do, without their calls
            if milli:
                place = route.places[index]
                assert place is not None, "a route on one lane has all places"
                best_ns, whole = place.usual.split.best_ns, milli * count // MILLI
                if whole * MILLI == milli * count and whole < len(best_ns) and not each.over[index]:
                    stage_ns = best_ns[whole]
                else:
                    stage_ns = place.usual.time_ns(milli * count, each.over[index] * count)
                time_ns += stage_ns
                ends_ns = max(ends_ns, route.starts_ns[index]) + stage_ns
        one_by_one = exit >= 0 and each.jobs[exit] == MILLI and not each.over[exit]
        self.budget.left -= ANSWER_OPERATIONS * (count if one_by_one else 1)
        if time_ns > most_ns or not one_by_one:
            return Trial(max(1, time_ns), [ends_ns])
        return Trial(max(1, time_ns), route.answers(self._pipeline.times(count, each), count, ends_ns))

    def _trial_beside(self, each: Left, count: int) -> Trial | None:
        """The same where lanes are planned batch by batch. On lanes that are free it takes as long at any time."""
        known = self._on_free_lanes
        key = (count, *each.jobs, *each.over)
        found = None if known is None else known.get(key)
        if found is not None:
            self.budget.left -= ANSWER_OPERATIONS * len(found.answers)
            return Trial(found.time_ns, [self._from_ns + after_ns for after_ns in found.answers])
        found = self.trial(self._pipeline.times(count, each), NO_STEPS, count=count)
        if found is not None and known is not None and count <= COUNT_MAX and len(known) < TRIALS_MAX:
            known[key] = Trial(found.time_ns, [at_ns - self._from_ns for at_ns in found.answers])
        return found

    def _answers(self, count: int, left: Left, steps: Steps, limit_ns: int) -> List[int]:
        """When its ``count`` members are answered one after the other, or all together; empty where one in flight would
        be late. Where they could not be by ``limit_ns`` even alone, some time after that: this is quicker."""
        route, from_ns = self.route, self._from_ns
        is_spread = route.is_spread(left)
        if not is_spread or (route.resident_ns > from_ns and not self._known):
            ends_ns = route.one_by_one_ns(left, steps, from_ns, limit_ns)
            if ends_ns is None or ends_ns > limit_ns or not self._known:
                return [] if ends_ns is None else route.answers(left, 0 if is_spread else count, ends_ns)
        new = Schedule(route.stages(left, steps), from_ns, route.home)
        planned = LaneSchedule([*self._known, new], self._free, self.budget)
        *ends, ends_ns = planned.run()
        if any(at_ns > known_ns for at_ns, known_ns in zip(ends, self._limits)):
            return []
        found = planned.answers(len(ends))
        exit = self._pipeline.exit
        return found if exit >= 0 and count == len(found) and not left.over[exit] else [ends_ns]


def can_run_now(model: str, board: Board) -> bool:
    """Whether any lane that is up has the model in memory."""
    for lane in board.lanes_of(model):  # noqa: SIM110 a generator costs a call per lane
        if lane.up and not lane.hung and board.is_resident(model, lane):
            return True
    return False
