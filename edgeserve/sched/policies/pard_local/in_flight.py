"""Cohorts in flight, and when they would end: alone, beside each other, with a new one among them (``pard_local``).

A stage begins when the stages before it are over, wherever they ran. So the time of a host function on another lane
counts in full, and while it lasts the home lane may take a second cohort, if the forecast says that nobody is late.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.sched.policies.pard_local.choice import Trial
from edgeserve.sched.policies.pard_local.cost import LaneSchedule, Schedule, forecast
from edgeserve.sched.policies.pard_local.remaining_work import (
    NO_STEPS,
    Left,
    Member,
    Pipeline,
    Steps,
    most_steps,
    total_of,
)
from edgeserve.sched.policies.pard_local.stages import OnLanes, Place, StageCosts, free_lanes
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import READY, RUNNING, Job
from edgeserve.sched.requests.work import MILLI
from edgeserve.sched.resources.lanes import Lane

PPM = 1_000_000

FOLLOWERS = 2
"""Cohorts that a new one is believed to be followed by, where it leaves its home and comes back."""

ANSWER_OPERATIONS = 10
"""What each batch of a cohort's last module is charged in the step's budget: its time, and its place in the queue."""

CUT_INS_MAX = 2
"""Cohorts that may stand before the one that they interrupted: each makes the others' slack smaller."""


class Cohort:
    """Requests that go through their pipeline together. Their order is that of their deadlines. ``is_sure``: it began
    with its margin; otherwise it began only because nobody could have had one."""

    __slots__ = ("pipeline", "home", "members", "cuts_in", "is_sure")

    def __init__(
        self, pipeline: Pipeline, home: str, members: Sequence[Member], cuts_in: bool = False, is_sure: bool = True
    ) -> None:
        self.pipeline = pipeline
        self.home = home
        self.members = list(members)
        self.cuts_in = cuts_in
        self.is_sure = is_sure

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
        nothing runs, and nothing at an earlier node can."""
        left: List[int] = []
        smaller: List[Job] = []
        for node in self.pipeline.nodes:
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

    def due_ns(self, early_ns: Mapping[int, int]) -> int | None:
        """The latest end at which nobody is late of those that would be dropped then; ``early_ns`` says how long
        before the end members are answered (:meth:`InFlight.early_ns`)."""
        found: int | None = None
        for member in self.members:
            if member.request.on_late != "answer":
                due_ns = member.due_ns + early_ns.get(member.request.id, 0)
                if found is None or due_ns < found:
                    found = due_ns
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
        if cohort.cuts_in:
            self.cohorts.insert(0, cohort)
        else:
            self.cohorts.append(cohort)

    def ends_ns(self, cohort: Cohort, board: Board) -> int | None:
        """When a cohort in flight ends, those before and beside it considered; None while a stage has no lane."""
        schedules = self.schedules(board)
        own = schedules[self.cohorts.index(cohort)]
        if own is None:
            return None
        known = [schedule for schedule in schedules if schedule is not None]
        ends = forecast(known, free_lanes(board), board.budget)
        return next(ends_ns for schedule, ends_ns in zip(known, ends) if schedule is own)

    def early_ns(self, cohort: Cohort, board: Board) -> Dict[int, int]:
        """How long before the cohort's end its members are answered, by request, where the module that answers takes
        several batches: the tightest are in the first. Empty where all are answered together."""
        pipeline = cohort.pipeline
        if pipeline.exit < 0 or len(cohort.members) < 2:
            return {}
        places = self._stage_costs.route(pipeline, cohort.home, board).places
        tail = tail_of(pipeline, places, cohort.home)
        if tail:
            return {} if cohort.steps() else _early_behind(cohort, tail, places)
        node, place = pipeline.nodes[pipeline.exit], places[pipeline.exit]
        if place is None:
            return {}
        usual = place.usual
        if usual.split.first(len(cohort.members)) == len(cohort.members) or usual.is_told or cohort.steps():
            return {}
        found: Dict[int, int] = {}
        ahead: List[Tuple[int, int]] = []
        for member in cohort.members:
            running = sum([job.state == RUNNING and job.node is node for job in member.jobs.values()])
            if running:
                found[member.request.id] = 0
            else:
                ahead.append((member.due_ns, member.request.id))
        batches = usual.split.batches(len(ahead))
        later_ns = sum([time_ns for _, time_ns in batches])
        for request_id in found:
            found[request_id] = later_ns
        begun = 0
        ahead.sort()
        for count, time_ns in batches:
            later_ns -= time_ns
            for _, request_id in ahead[begun : begun + count]:
                found[request_id] = later_ns
            begun += count
        return found

    def schedules(self, board: Board, surely: bool = False) -> List[Schedule | None]:
        """What each cohort in flight has still to run; ``surely``: and what its parts may be more."""
        return [self.schedule(cohort, board, surely) for cohort in self.cohorts]

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

    def may_cut_in(self) -> bool:
        """Whether one more cohort may go before those in flight."""
        return sum([cohort.cuts_in for cohort in self.cohorts]) < CUT_INS_MAX

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

    ``goes_first``: it cuts in, and those in flight come after it. With a ``margin_ppm`` these keep theirs: what their
    parts may be more, that share of their time, and room for the noise in it.
    """

    __slots__ = (
        "budget",
        "route",
        "_from_ns",
        "_now_ns",
        "_known",
        "_limits",
        "_free",
        "_first",
        "margin_ppm",
        "ends",
        "later_ns",
        "_cohorts_max",
        "_resident_ns",
        "_tail",
    )

    def __init__(
        self,
        flights: InFlight,
        stage_costs: StageCosts,
        board: Board,
        pipeline: Pipeline,
        home: str,
        from_ns: int,
        goes_first: bool,
        margin_ppm: int = 0,
    ) -> None:
        self.budget = board.budget
        self.route = stage_costs.route(pipeline, home, board)
        self._from_ns, self._now_ns = from_ns, board.now_ns
        self._free = free_lanes(board)
        self._first = goes_first
        self.margin_ppm = self.route.margin_ppm(margin_ppm)
        self._cohorts_max = flights.cohorts_max
        self._resident_ns = self.route.resident_ns()
        self._tail = tail_of(pipeline, self.route.places, home)
        self._known: List[Schedule] = []
        dues: List[int | None] = []
        noises: List[int] = []
        margins: List[int] = []
        for cohort, schedule in zip(flights.cohorts, flights.schedules(board, margin_ppm > 0)):
            if schedule is not None and any(stage.batches for stage in schedule.stages) and not cohort.is_stuck(board):
                self._known.append(schedule)
                dues.append(cohort.due_ns(flights.early_ns(cohort, board)))
                route = stage_costs.route(cohort.pipeline, cohort.home, board)
                noises.append(route.noise_ns(cohort.left(), cohort.steps()) if margin_ppm > 0 else 0)
                margins.append(route.margin_ppm(margin_ppm))
        planned = LaneSchedule(self._known, self._free, board.budget)
        self.ends = planned.run()  # of those in flight, without the new one
        self.later_ns = planned.home_over_ns(home)
        self._limits = [
            2**62 if due_ns is None else max(self._without_margin_ns(due_ns - noise_ns, share_ppm), ends_ns)
            for due_ns, noise_ns, share_ppm, ends_ns in zip(dues, noises, margins, self.ends)
        ]

    def _without_margin_ns(self, due_ns: int, margin_ppm: int) -> int:
        """The end that becomes ``due_ns`` with the margin."""
        now_ns = self._now_ns
        return now_ns + max(0, due_ns - now_ns) * PPM // (PPM + margin_ppm)

    def with_margin_ns(self, ends_ns: int, left: Left, steps: Steps, limit_ns: int = 2**62) -> int:
        """An end with the margin, and with room for noise where it is not beyond the limit anyway."""
        ends_ns += max(0, ends_ns - self._from_ns) * self.margin_ppm // PPM
        return ends_ns if ends_ns > limit_ns else ends_ns + self.route.noise_ns(left, steps)

    def answers(self, count: int, left: Left, ends_ns: int, exit: int) -> List[Tuple[int, int]]:
        """When the members of a cohort of so many that ends then are answered: (how many, when) for each batch of the
        module at ``exit``, where each member has one job there."""
        places, jobs, over = self.route.places, left.jobs, left.over
        place = places[exit] if exit >= 0 else None
        if place is None or jobs[exit] != count * MILLI or over[exit]:
            return [(count, ends_ns)]
        tail = [places[index] for index in self._tail]
        if tail and all(jobs[index] == count * MILLI and not over[index] for index in self._tail):
            each_ns = sum([stage.usual.time_ns(MILLI) for stage in tail[1:] if stage is not None])
            early = early_of(tail[0].usual.split.batches(count) if tail[0] is not None else [], each_ns)
            return [(1, ends_ns - time_ns) for time_ns in early]
        batches = place.usual.split.batches(count)
        found: List[Tuple[int, int]] = []
        for number, time_ns in reversed(batches):
            found.append((number, ends_ns))
            ends_ns -= time_ns
        found.reverse()
        return found

    def is_shared(self) -> bool:
        """Whether it would run among others that need its home again, and go first."""
        return self.later_ns > 0 and not self._first

    def alone_ns(self, left: Left, steps: Steps, limit_ns: int = 2**62) -> int | None:
        """How long it would take with none in flight; None when it cannot run. Where it could not end by ``limit_ns``,
        any time that is too long."""
        route, from_ns = self.route, self._from_ns
        if self._resident_ns <= from_ns and self.budget.left > 0 and route.is_spread(left):
            if not route.is_open(left):
                return None
            return self._planned([], [route.schedule(left, steps, from_ns)]).ends_ns[0] - from_ns
        ends_ns = route.one_by_one_ns(left, steps, from_ns, limit_ns)
        return None if ends_ns is None else ends_ns - from_ns

    def home_ns(self, left: Left) -> int:
        """How long it would need its home with none in flight, what it does not use of that included."""
        schedule = self.route.schedule(left, NO_STEPS, self._from_ns)
        return self._planned([], [schedule]).left_ns[0] - self._from_ns

    def _planned(self, known: Sequence[Schedule], new: Sequence[Schedule]) -> LaneSchedule:
        planned = LaneSchedule([*known, *new], self._free, self.budget)
        planned.run()
        return planned

    def paced(self, left: Left, followers: int = FOLLOWERS) -> Tuple[int, int] | None:
        """When it would end if so many like it follow as soon as the home has nothing else to do, and how much time the
        home takes for each of these; without any, how much longer it is needed. What the home waits meanwhile counts.
        None when it cannot run, or when one in flight would be late (or nothing is left of the step's budget)."""
        if self.budget.left <= 0 or not self.route.is_open(left):
            return None
        new, known = self.route.schedule(left, NO_STEPS, self._from_ns), len(self._known)
        like = [new._replace(after=max(-1, known + number - self._cohorts_max)) for number in range(1, 1 + followers)]
        planned = self._planned(self._known, [new, *like])
        if self._is_late(planned.ends_ns):
            return None
        ends_ns, over_ns = planned.ends_ns[known], planned.left_ns
        if not followers:
            return ends_ns, max(1, over_ns[known] - max(self.later_ns, self._from_ns))
        return ends_ns, max(1, (over_ns[known + followers] - over_ns[known]) // followers)

    def ends_ns(self, left: Left, steps: Steps, limit_ns: int = 2**62) -> int | None:
        """When it would end; None when it cannot run, or when one in flight would then be late (or nothing is left of
        the step's budget). Where it could not end by ``limit_ns`` even alone, some time after that: this is quicker."""
        if self.budget.left <= 0:
            return None
        alone_ns = self.alone_ns(left, steps, limit_ns)
        if alone_ns is None or not self._known or self._from_ns + alone_ns > limit_ns:
            return None if alone_ns is None else self._from_ns + alone_ns
        new = self.route.schedule(left, steps, self._from_ns)
        if self._first:
            new_ns, *ends = forecast([new, *self._known], self._free, self.budget)
        else:
            *ends, new_ns = forecast([*self._known, new], self._free, self.budget)
        return None if self._is_late(ends) else new_ns

    def _is_late(self, ends: Sequence[int]) -> bool:
        """Whether any of those in flight would be late."""
        return any(ends_ns > limit_ns for ends_ns, limit_ns in zip(ends, self._limits))


class CohortTimes:
    """New cohorts of any number of requests that have ``each`` left: what they would cost, and when they would answer.

    ``has_margin``: with the margin, with room for noise and for what may turn out to be more.
    """

    __slots__ = ("_forecast", "_pipeline", "_each", "_has_margin", "has_gaps")

    def __init__(self, forecast: Forecast, pipeline: Pipeline, each: Left, has_margin: bool) -> None:
        self._forecast = forecast
        self._pipeline = pipeline
        self._each = each
        self._has_margin = has_margin
        self.has_gaps = forecast.route.has_gaps(each)

    def _left(self, count: int) -> Left:
        left = self._pipeline.times(count, self._each)
        return self._pipeline.surely(left) if self._has_margin else left

    def now(self, count: int) -> Trial | None:
        """It begins now."""
        forecast, left = self._forecast, self._left(count)
        busy_ns = forecast.route.busy_ns(left, NO_STEPS)
        if self.has_gaps:
            found = forecast.paced(left, 0)
            return None if found is None else Trial(max(busy_ns, found[1]), self._answers(count, left, found[0]))
        ends_ns = forecast.ends_ns(left, NO_STEPS)
        return None if ends_ns is None else Trial(busy_ns, self._answers(count, left, ends_ns))

    def paced(self, count: int) -> Trial | None:
        """It begins now, and others like it take turns with it at home."""
        forecast, left = self._forecast, self._left(count)
        found = forecast.paced(left)
        if found is None:
            return None
        ends_ns, period_ns = found
        return Trial(max(forecast.route.busy_ns(left, NO_STEPS), period_ns), self._answers(count, left, ends_ns))

    def later(self, count: int) -> Trial | None:
        """It begins when those in flight need its home no more. None too where nothing is left of the step's budget."""
        if self._forecast.budget.left <= 0:
            return None
        forecast, left = self._forecast, self._left(count)
        alone_ns = forecast.alone_ns(left, NO_STEPS)
        if alone_ns is None:
            return None
        busy_ns = forecast.route.busy_ns(left, NO_STEPS)
        if self.has_gaps:
            busy_ns = max(busy_ns, forecast.home_ns(left))
        return Trial(busy_ns, self._answers(count, left, forecast.later_ns + alone_ns))

    def _answers(self, count: int, left: Left, ends_ns: int) -> List[Tuple[int, int]]:
        forecast = self._forecast
        if self._has_margin:
            ends_ns = forecast.with_margin_ns(ends_ns, left, NO_STEPS)
        found = forecast.answers(count, left, ends_ns, self._pipeline.exit)
        forecast.budget.left -= ANSWER_OPERATIONS * len(found)  # (as charge() does, without its call)
        return found


def tail_of(pipeline: Pipeline, places: Sequence[Place | None], home: str) -> List[int]:
    """The module at home whose batches are answered, and the functions behind it that take its jobs one by one on one
    other lane; empty where the last module is at home itself, or where it is not so simple."""
    if pipeline.exit < 0:
        return []
    node, behind = pipeline.nodes[pipeline.exit], [pipeline.exit]
    lanes: Set[str] = set()
    while True:
        plan = places[node.index]
        if plan is None or plan.usual.is_told:
            return []
        if plan.lane == home:
            return behind if lanes else []
        if len(node.preds) != 1 or node.gather or plan.usual.split.first(2) != 1:
            return []
        lanes.add(plan.lane)
        node = node.preds[0]
        if node.fan_out or node.route_one or len(node.succs) != 1 or len(lanes) > 1:
            return []
        behind.insert(0, node.index)


def early_of(batches: Sequence[Tuple[int, int]], each_ns: int, before: int = 0) -> List[int]:
    """How long before the last of them members are answered, in their order: ``before`` that wait for the functions
    behind the batches, and those of the batches, (jobs, time) each. The functions take ``each_ns`` for each job."""
    over_ns = at_ns = 0
    ends = []
    for count, time_ns in ([(before, 0)] if before else []) + list(batches):
        over_ns += time_ns
        for _ in range(count):
            at_ns = max(at_ns, over_ns) + each_ns
            ends.append(at_ns)
    return [at_ns - end_ns for end_ns in ends]


def _early_behind(cohort: Cohort, tail: Sequence[int], places: Sequence[Place | None]) -> Dict[int, int]:
    """How long before the cohort's end each member is answered, by request, where functions follow the last module at
    home. When its first batch begins is not asked: later would only mean that those before it are answered earlier."""
    stages = [plan for plan in (places[index] for index in tail) if plan is not None]
    each_ns = sum([stage.usual.time_ns(MILLI) for stage in stages[1:]])
    rows: List[Tuple[int, int, int]] = []  # 0: behind the module, 1: in its running batch, 2: before it
    for member in cohort.members:
        place = 2 if member.left().jobs[tail[0]] else 0
        for job in member.jobs.values():
            if place and job.state == RUNNING and job.node.index == tail[0]:
                place = 1
        rows.append((place, member.due_ns, member.request.id))
    rows.sort()
    counts = [sum([row[0] == place for row in rows]) for place in range(3)]
    batches = stages[0].usual.split.batches(counts[2])
    if counts[1]:
        batches = [(counts[1], 0), *batches]
    return dict(zip([row[2] for row in rows], early_of(batches, each_ns, counts[0])))


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
