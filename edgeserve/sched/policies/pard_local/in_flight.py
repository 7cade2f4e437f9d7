"""Cohorts in flight, and when they would end: alone, beside each other, with a new one among them (``pard_local``).

A stage begins when the stages before it are over, wherever they ran. So the time of a host function on another lane
counts in full, and while it lasts the home lane may take a second cohort, if the forecast says that nobody is late.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Tuple

from edgeserve.sched.policies.pard_local.choice import Trial
from edgeserve.sched.policies.pard_local.cost import LaneSchedule, Schedule
from edgeserve.sched.policies.pard_local.remaining_work import (
    Left,
    Member,
    Pipeline,
    Steps,
    most_steps,
    total_of,
)
from edgeserve.sched.policies.pard_local.stages import OnLanes, StageCosts, free_lanes
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import READY, RUNNING, Job
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane

ANSWER_OPERATIONS = 3
"""What each answer of a cohort on trial is charged in the step's budget: its time, and its place in the queue."""


class Cohort:
    """Requests that go through their pipeline together. Their order is that of their deadlines. ``per_ns`` is the value
    per nanosecond of lane time that it was chosen for."""

    __slots__ = ("pipeline", "home", "members", "per_ns")

    def __init__(self, pipeline: Pipeline, home: str, members: Sequence[Member], per_ns: float = 0.0) -> None:
        self.pipeline = pipeline
        self.home = home
        self.members = list(members)
        self.per_ns = per_ns

    def left(self) -> Left:
        """What is left, the running jobs included."""
        plain = sum([member.plain for member in self.members])
        lefts = [member.left() for member in self.members if not member.plain]
        if plain:
            lefts.append(self.pipeline.times(plain))
        return total_of(lefts, len(self.pipeline.nodes))

    def steps(self) -> Steps:
        """How often the stage of an iterative node runs: as often as its longest member."""
        return most_steps(self.members)

    def next_jobs(self, lane: Lane, stage_costs: StageCosts, board: Board) -> List[Job]:
        """The cohort's next batch on this lane, or none. The first node with jobs for the lane whose batch would not
        grow by waiting, since all of its jobs are there, or as many as its first batch takes; a smaller one where
        nothing runs, and nothing at an earlier node can. On other lanes than home the last such node goes first."""
        left: List[int] = []
        smaller: List[Job] = []
        nodes = self.pipeline.nodes
        for node in nodes if lane.name == self.home else nodes[::-1]:
            if node.model not in lane.models or not board.is_resident(node.model, lane):
                continue
            jobs = ready_jobs(self, node.index, lane, bound=not stage_costs.serves(lane, node.model, self.home, board))
            if not jobs:
                continue
            left = left or self.left().jobs
            running = sum(
                [job.state == RUNNING and job.node is node for member in self.members for job in member.jobs.values()]
            )
            split = stage_costs.usual(node.model, lane.name, board).split
            count = -(-left[node.index] // MILLI) - running
            if len(jobs) >= count or len(jobs) >= split.first(count):
                return jobs[: split.first(len(jobs))]
            if not smaller:
                smaller = jobs[: split.first(len(jobs))]
        if not smaller or self.is_running():
            return []
        for member in self.members:
            for job in member.ready():
                if job.node.index < smaller[0].node.index and can_run_now(job.node.model, board):
                    return []
        return smaller

    def is_stuck(self, board: Board) -> bool:
        """Whether nothing of it runs or could run now, since no model that it needs next is in memory."""
        return not self.is_running() and not any(
            can_run_now(job.node.model, board) for member in self.members for job in member.ready()
        )

    def slack_ns(self, answers: Mapping[int, int]) -> int | None:
        """How much later than ``answers`` say, by request, its members may be answered before one would be dropped for
        it; None where none would."""
        return min(
            [
                member.due_ns - answers[member.request.id]
                for member in self.members
                if member.request.on_late != "answer"
            ],
            default=None,
        )

    def answered(self, planned: LaneSchedule, place: int, schedule: Schedule, ends_ns: int) -> Dict[int, int]:
        """When its members are answered, by request, if its ``schedule`` ends then, which is at this place of a plan:
        the tightest are in the first batch of the module that answers."""
        found: Dict[int, int] = {}
        waiting: List[Tuple[int, int]] = []
        exit = self.pipeline.exit
        for member in self.members:
            found[member.request.id] = ends_ns
            if any(job.state == RUNNING and job.node.index == exit for job in member.jobs.values()):
                found[member.request.id] = schedule.running_ns[-1]
            else:
                waiting.append((member.due_ns, member.request.id))
        ends = planned.answers(place)
        if exit >= 0 and len(ends) == len(waiting) and not self.steps():
            for (_, request_id), at_ns in zip(sorted(waiting), ends):
                found[request_id] = at_ns
        return found

    def needs(self, lane: Lane, stage_costs: StageCosts, board: Board) -> bool:
        """Whether anything is left for this lane besides what is on lanes."""
        left, home = self.left().jobs, self.home
        for node in self.pipeline.nodes:
            if left[node.index] and node.model in lane.models and stage_costs.serves(lane, node.model, home, board):
                running = sum(
                    [
                        job.state == RUNNING and job.node is node
                        for member in self.members
                        for job in member.jobs.values()
                    ]
                )
                if left[node.index] > running * MILLI:
                    return True
        return False

    def is_running(self) -> bool:
        """Whether anything of it is on a lane."""
        for member in self.members:
            for job in member.jobs.values():
                if job.state == RUNNING:
                    return True
        return False

    def runs_on(self, lane: Lane) -> bool:
        """Whether a batch of it is on this lane."""
        ours = {member.request.id for member in self.members}
        return any(job.request.id in ours for work in lane.works for job in work.jobs)


class InFlight:
    """The cohorts in flight, in the order in which they go first. Knows when each ends; chooses nobody."""

    __slots__ = ("cohorts", "_stage_costs", "cohorts_max")

    def __init__(self, stage_costs: StageCosts, cohorts_max: int) -> None:
        self.cohorts: List[Cohort] = []
        self._stage_costs = stage_costs
        self.cohorts_max = cohorts_max

    def start(self, cohort: Cohort) -> None:
        """A cohort's first batch runs."""
        self.cohorts.append(cohort)

    def answers(self, cohort: Cohort, board: Board) -> Dict[int, int]:
        """When the members of a cohort, which is in flight or would be the last, are answered, by request, those before
        and beside it considered; empty while a stage has no lane."""
        cohorts = self.cohorts if cohort in self.cohorts else [*self.cohorts, cohort]
        schedules = [(other, self.schedule(other, board)) for other in cohorts]
        known = [(other, schedule) for other, schedule in schedules if schedule is not None]
        planned = LaneSchedule([schedule for _, schedule in known], free_lanes(board), board.budget)
        ends = planned.run()
        for place, (other, schedule) in enumerate(known):
            if other is cohort:
                return cohort.answered(planned, place, schedule, ends[place])
        return {}

    def may_start(self, home: str, lane: Lane, board: Board) -> bool:
        """Whether a new cohort may begin on this lane behind those of its home: when they are about to leave it, or
        when they are elsewhere and there is room for one more. One that waits for memory holds nobody up: memory may
        be waiting for the others to be served."""
        here = [cohort for cohort in self.cohorts if cohort.home == home and not cohort.is_stuck(board)]
        staying = [cohort for cohort in here if cohort.needs(lane, self._stage_costs, board)]
        if not staying:
            return True
        if len(staying) >= self.cohorts_max:
            return False
        return not any(cohort.runs_on(lane) for cohort in staying)

    def schedule(self, cohort: Cohort, board: Board, surely: bool = False) -> Schedule | None:
        """What a cohort has still to run, batch by batch, behind what it has on lanes; None while a stage has no
        lane."""
        pipeline, left = cohort.pipeline, cohort.left()
        route = self._stage_costs.route(pipeline, cohort.home, board)
        if surely:
            left = pipeline.surely(left)
        if not route.is_open(left):
            return None
        size = len(pipeline.nodes)
        running, over, ready = [0] * size, [0] * size, [0] * size
        until_ns = [board.now_ns] * size
        for member in cohort.members:
            for job in member.jobs.values():
                index = job.node.index
                if job.state == READY:
                    ready[index] += 1
                if job.state != RUNNING:
                    continue
                running[index] += MILLI
                over[index] += pipeline.over_milli(index, MILLI, job.hints)
                for lane in board.lanes_of(job.node.model):
                    if any(job in work.jobs for work in lane.works):
                        until_ns[index] = max(until_ns[index], lane.available_ns(board.now_ns))
        return route.schedule(left, cohort.steps(), board.now_ns, OnLanes(running, over, until_ns, ready))


class Forecast:
    """When a new cohort would end beside those in flight, for any number of trials in one decision.

    Those in flight keep room for the noise in batch times, and for what parts and work may be more; so does the new one
    where it ``is_careful``.
    """

    __slots__ = (
        "budget",
        "route",
        "_pipeline",
        "_from_ns",
        "_known",
        "_limits",
        "_free",
        "is_careful",
        "_resident_ns",
    )

    def __init__(
        self,
        flights: InFlight,
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
        self.is_careful = True
        self._resident_ns = self.route.resident_ns()
        self._known: List[Schedule] = []
        cohorts: List[Cohort] = []
        for cohort in flights.cohorts:
            schedule = flights.schedule(cohort, board, surely=True)
            if schedule is not None and any(stage.batches for stage in schedule.stages) and not cohort.is_stuck(board):
                self._known.append(schedule)
                cohorts.append(cohort)
        planned = LaneSchedule(self._known, self._free, board.budget)
        self._limits: List[int] = []  # when those in flight must end
        for place, (ends_ns, cohort) in enumerate(zip(planned.run(), cohorts)):
            slack_ns = cohort.slack_ns(cohort.answered(planned, place, self._known[place], ends_ns))
            noise_ns = stage_costs.route(cohort.pipeline, cohort.home, board).noise_ns(cohort.left(), cohort.steps())
            self._limits.append(2**62 if slack_ns is None else ends_ns + max(0, slack_ns - noise_ns))

    def trial(self, left: Left, steps: Steps, limit_ns: int = 2**62, count: int = 0) -> Trial | None:
        """A new cohort with so much left, of ``count`` equal members (0: of unequal ones); None when it cannot run,
        when one in flight would then be late, or where nothing is left of the step's budget."""
        budget = self.budget
        if budget.left <= 0 or not self.route.is_open(left):
            return None
        if self.is_careful:
            left = self._pipeline.surely(left)
        exit = self._pipeline.exit
        has_one_each = exit >= 0 and left.jobs[exit] == count * MILLI and not left.over[exit]
        answers = self._answers(count if has_one_each else 0, left, steps, limit_ns)
        if not answers:
            return None
        if self.is_careful and answers[-1] <= limit_ns:
            noise_ns = self.route.noise_ns(left, steps)
            answers = [at_ns + noise_ns for at_ns in answers]
        budget.left -= ANSWER_OPERATIONS * len(answers)  # (as charge() does, without its call)
        return Trial(self.route.busy_ns(left, steps), answers)

    def _answers(self, count: int, left: Left, steps: Steps, limit_ns: int) -> List[int]:
        """When its ``count`` members are answered one after the other, or all (0: they do not have one job each at the
        module that answers); empty where one in flight would be late. Where they could not be by ``limit_ns`` even
        alone, some time after that: this is quicker."""
        route, from_ns = self.route, self._from_ns
        is_spread = route.is_spread(left)
        if not is_spread or (self._resident_ns > from_ns and not self._known):
            ends_ns = route.one_by_one_ns(left, steps, from_ns, limit_ns)
            if ends_ns is None or ends_ns > limit_ns or not self._known:
                return [] if ends_ns is None else self._batch_by_batch(0 if is_spread else count, ends_ns)
        new = route.schedule(left, steps, from_ns)
        planned = LaneSchedule([*self._known, new], self._free, self.budget)
        *ends, ends_ns = planned.run()
        if any(at_ns > known_ns for at_ns, known_ns in zip(ends, self._limits)):
            return []
        found = planned.answers(len(ends))
        return found if count and len(found) == count else [ends_ns] * max(1, count)

    def _batch_by_batch(self, count: int, ends_ns: int) -> List[int]:
        """When so many members of a cohort are answered that ends then, on one lane."""
        place = self.route.places[self._pipeline.exit]
        if not count or place is None:
            return [ends_ns]
        found: List[int] = []
        for number, time_ns in reversed(place.usual.split.batches(count)):
            found += [ends_ns] * number
            ends_ns -= time_ns
        found.reverse()
        return found


def can_run_now(model: str, board: Board) -> bool:
    """Whether any lane that is up has the model in memory."""
    for lane in board.lanes_of(model):  # noqa: SIM110 a generator costs a call per lane
        if lane.up and not lane.hung and board.is_resident(model, lane):
            return True
    return False


def ready_jobs(cohort: Cohort, index: int, lane: Lane, bound: bool = False) -> List[Job]:
    """The cohort's jobs at a node that may run on a lane now, most urgent request first; ``bound``: only those whose
    state the lane holds."""
    name = lane.name
    found: List[Tuple[int, int, Job]] = []
    for member in cohort.members:
        for job in member.jobs.values():
            if job.state == READY and job.node.index == index and (job.lane == name or (not job.lane and not bound)):
                found.append((member.due_ns, job.seq, job))
    found.sort()
    return [job for _, _, job in found]
