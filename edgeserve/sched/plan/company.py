"""A company: requests that go through their pipeline together, its next batch, and when its members are answered.

Which requests form one is decided in ``companies.py``.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.plan.paths import LaneSchedule, Paths, Schedule, StagePlace
from edgeserve.sched.plan.remaining_work import NO_STEPS, Left, Member, Pipeline, Steps, most_steps, total_of
from edgeserve.sched.plan.source import is_here
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import READY, RUNNING, Job
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane


class Company:
    """Requests that go through their pipeline together, of ``rank`` or less urgent classes, in order of their
    deadlines. :meth:`look` finds what is ``left`` of all (running jobs included), the ``steps`` of iterative nodes, and
    by node the jobs that are ``ready``, the tightest first, and how many are ``running``. ``answers``: when each member
    is answered, by request."""

    __slots__ = ("pipeline", "home", "members", "rank", "left", "steps", "ready", "running", "answers")

    def __init__(self, pipeline: Pipeline, home: str, members: Sequence[Member]) -> None:
        self.pipeline = pipeline
        self.home = home
        self.members = list(members)
        self.rank = min([member.rank for member in members])
        self.answers: Dict[int, int] = {}
        self.look()

    def look(self) -> None:
        """See what its members have left, and what of it waits and runs."""
        self.ready: List[List[Tuple[int, int, Job]]] = [[] for _ in self.pipeline.nodes]
        self.running = [0] * len(self.ready)
        self.steps: Steps = NO_STEPS
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

    def next_jobs(self, lane: Lane, paths: Paths, board: Board) -> List[Job]:
        """Its next batch on this lane, or none: of the first node whose batch would not grow by waiting, since all of
        its jobs are there, or as many as its first batch takes; a smaller one where nothing runs, and nothing at an
        earlier node can. On other lanes than home the last such node goes first."""
        smaller: List[Job] = []
        nodes = self.pipeline.nodes
        for node in nodes if lane.name == self.home else nodes[::-1]:
            rows = self.ready[node.index]
            if not rows or node.model not in lane.models or not board.is_resident(node.model, lane):
                continue
            serves = lane.name == self.home or paths.serves(lane, node.model, self.home, board)
            jobs = [row[2] for row in rows if row[2].lane == lane.name or (not row[2].lane and serves)]
            if not jobs:
                continue
            count = -(-self.left.jobs[node.index] // MILLI) - self.running[node.index]
            if len(jobs) == 1 and count <= 1:
                return jobs
            split = paths.usual(node.model, lane.name, board).split
            if len(jobs) >= count or len(jobs) >= split.first(count):
                return jobs[: split.first(len(jobs))]
            if not smaller:
                smaller = jobs[: split.first(len(jobs))]
        if not smaller or any(self.running):
            return []
        for index in range(smaller[0].node.index):
            for _, _, job in self.ready[index]:
                if is_here(job.node.model, board):
                    return []
        return smaller

    def is_stuck(self, board: Board) -> bool:
        """True if nothing of it runs or could run now, since no model that it needs next is in memory."""
        if any(self.running):
            return False
        for rows in self.ready:  # noqa: SIM110 a generator costs a call per node
            if rows and is_here(rows[0][2].node.model, board):
                return False
        return True

    def answered(self, ends_ns: int, one_by_one: Sequence[int], running_ns: int) -> None:
        """Set when its members are answered, if it ends then, its jobs that have not begun at the node that answers end
        ``one_by_one``, and the ones that run there at ``running_ns``: the tightest are in its first batch."""
        exit = self.pipeline.exit
        runs = exit >= 0 and self.running[exit]
        waiting: List[Tuple[int, int]] = []
        self.answers = {}
        for member in self.members:
            self.answers[member.request.id] = ends_ns
            if runs and any(job.state == RUNNING and job.node.index == exit for job in member.jobs.values()):
                self.answers[member.request.id] = running_ns
            else:
                waiting.append((member.due_ns, member.request.id))
        if exit >= 0 and len(one_by_one) == len(waiting) and not self.steps:
            for (_, request_id), at_ns in zip(sorted(waiting), one_by_one):
                self.answers[request_id] = at_ns

    def late(self) -> List[Tuple[int, int, Member]]:
        """The members that would be late and are not answered all the same, with when they are due."""
        return [
            (member.due_ns, member.request.id, member)
            for member in self.members
            if member.request.on_late != "answer" and self.answers.get(member.request.id, 0) > member.due_ns
        ]


class Flight(NamedTuple):
    """A company in flight: what it has still to run, when it ends, and by when it must, lest a member be late."""

    company: Company
    schedule: Schedule
    ends_ns: int
    limit_ns: int

    def later(self, by_ns: int, now_ns: int) -> Flight:
        """The same that begins so much later, as of now."""
        ends_ns = self.ends_ns + by_ns
        schedule = self.schedule._replace(ready_ns=now_ns)
        return Flight(self.company, schedule, ends_ns, max(self.limit_ns, ends_ns))


class Standing:
    """When the lane is free that all in flight need, and what their times are made of."""

    __slots__ = ("from_ns", "_lane", "_tables", "_each_ns")

    def __init__(self) -> None:
        self.from_ns = 0
        self._lane: Lane | None = None
        self._tables: List[List[int]] = []
        self._each_ns: List[int] = []

    def add(self, place: StagePlace, now_ns: int) -> bool:
        """A stage is to run there. False: it is on another lane than the others."""
        if self._lane is None:
            self._lane = place.lane
            self.from_ns = place.lane.available_ns(now_ns)
        self._tables.append(place.usual.split.best_ns)
        self._each_ns.append(place.usual.each_ns)
        return place.lane is self._lane

    def is_as(self, before: Standing | None) -> bool:
        """True if nothing is another one than before but the time, which is later. (What would be late then may be in
        time where the lane is free sooner.)"""
        return (
            before is not None
            and self.from_ns >= before.from_ns
            and self._lane is before._lane
            and self._each_ns == before._each_ns
            and not [one for one, other in zip(self._tables, before._tables) if one is not other]
        )


class CompanyChoice:
    """When a new company of a pipeline would be answered at its home, beside those in flight that are ``known``, for
    any number of forecasts in one decision."""

    __slots__ = ("pipeline", "route", "known", "_from_ns", "_board")

    def __init__(self, paths: Paths, pipeline: Pipeline, home: str, from_ns: int, board: Board) -> None:
        self.pipeline = pipeline
        self.route = paths.route(pipeline, home, board)
        self.known: List[Flight] = []
        self._from_ns = from_ns
        self._board = board

    def answers(self, left: Left, steps: Steps, count: int) -> List[int]:
        """When ``count`` equal members with so much left together are answered, in their order (0: of unequal ones,
        when all are); none when that cannot run, makes a known one late, or the step's budget is spent."""
        route, board, from_ns, exit = self.route, self._board, self._from_ns, self.pipeline.exit
        if board.budget.left <= 0 or not route.is_open(left):
            return []
        if not self.known and (route.lane is not None or route.resident_ns > from_ns):
            board.budget.charge(len(left.jobs) + count)
            ends_ns = route.ends_ns(left, steps, from_ns) or from_ns
            return route.answers(left, count, ends_ns) if count else [ends_ns]
        schedules = [flight.schedule for flight in self.known]
        schedules.append(Schedule(route.stages(left, steps), from_ns, route.home))
        planned = LaneSchedule(schedules, free_ns(board), board.budget)
        ends = planned.run()
        if any(at_ns > flight.limit_ns for at_ns, flight in zip(ends, self.known)):
            return []
        found = planned.answers(len(self.known))
        return found if exit >= 0 and count == len(found) and not left.over[exit] else [ends[-1]] * max(1, count)

    def tightest(self, members: Sequence[Member], each: Left, count: int) -> List[Member]:
        """The tightest of these members, in order of deadlines, so many of which with ``each`` left are in time; or
        none."""
        found: List[Member] = []
        place = 0
        for ends_ns in self.answers(self.pipeline.times(count, each), NO_STEPS, count):
            while place < len(members) and members[place].due_ns < ends_ns:
                place += 1
            if place == len(members):
                return []
            found.append(members[place])
            place += 1
        return found


def free_ns(board: Board) -> Dict[str, int]:
    """When each lane is free."""
    return {lane.name: lane.available_ns(board.now_ns) for lane in board.lanes}
