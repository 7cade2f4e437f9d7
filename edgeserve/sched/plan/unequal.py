"""Plain work whose inputs may be unequal: where the law of a model has a spread, its batches are chosen by that law.

For each of some ceilings of length and each batch size, the most pressing jobs below the ceiling that are expected in
time make a candidate: short inputs need not wait for long ones. It counts each job with its chance to be
in time. A law that widens finds the jobs in the queues of plain work, where they stay.
"""

from __future__ import annotations

from typing import Any, Dict, Final, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import RANKS
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.plan.candidate import K_SHARE, Candidate, worth_of
from edgeserve.sched.plan.law import EVEN, BatchMembers, Law, Length, declared
from edgeserve.sched.plan.plain import RISE, RISE_MAX, PlainModels
from edgeserve.sched.plan.source import path_part
from edgeserve.sched.policies.common.bidding import best_class, bid_for, droppable, postpone, refusal
from edgeserve.sched.policies.common.model_queues import ModelQueues, WorthQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Policy
from edgeserve.sched.requests.critical import NO_ROOMS
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS
from edgeserve.units import FOREVER_NS

SLOW: Final = 0.9
"""The slack of a job whose length is not known is by the time that it takes alone in so many of all cases."""

SAFE: Final = 0.95
"""Beside the batch of jobs that are expected in time, one is made of jobs that are so with this chance: it may be
the more urgent one that wastes the lane."""

LOOK: Final = 64
"""Jobs that a decision looks at, the most pressing ones: some four full batches."""

CEILINGS: Final = 8
"""Lengths that batches are made up to."""

EQUAL: Final = 0.98
"""The share of the most per time: of candidates that bring as much, the one of most jobs goes."""


class JobRow(NamedTuple):
    """A job that a batch could hold. ``slack_ns`` is how long it can wait alone, ``worth`` what it brings in time,
    ``mean_ns`` what it takes alone."""

    rank: int  # of its class
    press: float
    seq: int
    job: Job
    due_ns: int
    length: Length
    mean_ns: int
    slack_ns: int
    worth: float


class UnequalChoice(NamedTuple):
    """A batch, what it brings and when its first member is lost."""

    rows: Sequence[JobRow]
    size: int
    members: BatchMembers
    takes_ns: int
    gain: float
    slack_ns: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Unequal(PlainModels):
    """Jobs of models of one step, whose batches take as long as their longest input where inputs differ."""

    def __init__(self, owner: Policy) -> None:
        super().__init__(owner)
        self._laws: Dict[Tuple[str, str], Law] = {}
        self._wide: Dict[str, bool] = {}  # whether some law of a model has a spread, once it was asked for
        self._alike: Dict[str, bool] = {}  # models all of whose inputs have one shape: no law, however noisy the device
        for app in owner.apps:
            for node in app.nodes:
                is_alike = app.one_shape and not node.preds
                self._alike[node.model] = is_alike and self._alike.get(node.model, True)

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        """Nothing is refused by a mean that is not its own: what is hopeless is dropped when it is
        ready."""
        for node in request.app.entries:
            if node.model not in self._wide:
                self._wide[node.model] = self._is_wide(node.model, board)
            if self._wide[node.model]:
                return refusal(request, board, _no_time)
        reason = refusal(request, board)
        if reason is None and request.hints and request.on_late != "answer" and _declares_steps(request):
            found = self.expected_end(request, None, board)
            if found is not None and board.now_ns + found.wait_ns + found.alone_ns > request.deadline_ns:
                return CANNOT_MAKE_DEADLINE
        return reason

    def on_ready(self, job: Job, board: Board) -> None:
        queues = self._models[job.node.model]
        queues.add(job)
        self._count += 1
        self.is_idle = False
        if queues.takes_steps:
            self._wide[queues.model] = False
        length = declared(job) if job.hints and not job.steps else None
        if length is not None:
            for lane in board.lanes_of(queues.model):
                self._law(queues.model, lane.name, board).told(length)
        if length is not None or queues.model not in self._wide:
            self._wide[queues.model] = self._is_wide(queues.model, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        if work.failed or work.probe is not None or work.rested or self._alike[work.model]:
            return
        if self._models[work.model].takes_steps:
            return
        law = self._laws.get((work.model, work.lane.name)) or self._law(work.model, work.lane.name, board)
        was_wide = law.is_wide
        law.took(work.size, work.jobs, finished_ns - started_ns)
        if law.is_wide != was_wide:
            self._wide[work.model] = self._is_wide(work.model, board)

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        if not job.steps and not work.rested:
            self._law(work.model, work.lane.name, board).took(work.size, (job,), took_ns)
            self._wide[work.model] = self._is_wide(work.model, board)

    def plan(self, board: Board) -> None:
        for queues in self._models.values():
            if queues.count:
                if self._wide[queues.model]:
                    self._drop_hopeless(queues, board)
                else:
                    self._batches.drop_late(queues, board)
        self.is_idle = not self._count

    def lone(self, lane: Lane, board: Board) -> Bid | None:
        alone: ModelQueues | None = None
        for queues in self._models.values():
            if queues.count:
                if alone is not None:
                    return None
                alone = queues
        if (
            alone is None
            or (alone.count > 1 and self._wide[alone.model])
            or alone.model not in lane.models
            or not board.is_resident(alone.model, lane)
            or board.critical_rooms(lane) is not NO_ROOMS
        ):
            return None
        latency = lane.models[alone.model]
        at_ns = lane.available_ns(board.now_ns) if lane.works else board.woken_ns(lane, latency, board.now_ns)
        if self._wide[alone.model]:
            due_ns, _, job = [queue.rows[0] for queue in alone.queues if queue.rows][0]
            law = self._law(alone.model, lane.name, board)
            length = law.length_of(job)
            if due_ns < at_ns + law.alone_ns(length, EVEN) or job.lane not in ("", lane.name):
                return None
            return bid_for([job], law.first, law.mean_ns(law.first, law.alike(length, 1)), board)
        jobs = self._batches.best_jobs(alone, lane, latency, at_ns)
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.likely_ns[size], board) if jobs else None

    def may_grow(self, model: str) -> bool:
        """True of inputs that take alike: in a batch with a longer one the others take longer, too."""
        return not self._wide[model]

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        if not self._wide[candidate.model]:
            return super().smaller(candidate, lane, at_ns, board)
        law = self._law(candidate.model, lane.name, board)
        rows = sorted([_row(job, law, at_ns, board) for job in candidate.jobs], key=_by_mean)
        lost = self._models[candidate.model].lost
        found: List[Candidate] = []
        for size in lane.models[candidate.model].sizes:
            if size < len(rows):
                choice = _choice(rows[:size], size, law, at_ns)
                found.append(self._made(choice, law, lost, candidate.press, board))
        return found

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """By the times of the job's own length: what :meth:`plan` judges by."""
        if job is None or not self._wide.get(job.node.model, False):
            return super().expected_end(request, job, board)

        def alone_ns(latency: BatchTime) -> int:
            if latency.model != job.node.model:
                return latency.alone_likely_ns
            law = self._law(latency.model, latency.lane, board)
            return law.alone_ns(law.length_of(job), EVEN)

        return expected_end(request, job, board, alone_ns)

    def figures(self) -> Mapping[str, Any]:
        return {"laws": {f"{model} on {lane}": law.figures() for (model, lane), law in self._laws.items()}}

    # --- one model ----------------------------------------------------------------------------------------------------

    def _law(self, model: str, lane: str, board: Board) -> Law:
        law = self._laws.get((model, lane))
        if law is None:
            law = self._laws[model, lane] = Law(board.latency(model, lane))
        return law

    def _is_wide(self, model: str, board: Board) -> bool:
        """True if some law of a model has a spread. What an iterative model takes is a matter of its steps."""
        if self._alike[model] or self._models[model].takes_steps:
            return False
        laws = [self._law(model, lane.name, board) for lane in board.lanes_of(model)]
        return bool([law for law in laws if law.is_wide])

    def _drop_hopeless(self, queues: ModelQueues, board: Board) -> None:
        """Give up the jobs that are no more likely than not in time alone, on no lane."""
        places = [
            (self._law(queues.model, lane.name, board), lane.name, starts_ns)
            for lane, _, starts_ns, _ in board.starts(queues.model)
            if starts_ns < NEVER_NS
        ]
        if not places:
            return
        latest_ns = min([starts_ns + law.even_ns for law, _, starts_ns in places])
        late: List[Tuple[WorthQueue, Job, int]] = []
        for queue in queues.queues:
            for due_ns, _, job in queue.rows:
                if due_ns >= latest_ns:
                    break
                ends = [
                    starts_ns + law.alone_ns(law.length_of(job), EVEN)
                    for law, lane, starts_ns in places
                    if job.lane in ("", lane)
                ]
                if ends and due_ns < min(ends):
                    late.append((queue, job, min(ends)))
        for queue, job, ends_ns in late:
            if job.key is None:
                continue  # it went with another job of its request
            if droppable(job):
                queues.gave_up(1)
                board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
            else:
                postpone(queue, job, ends_ns)

    def _offer(self, queues: ModelQueues, lane: Lane, at_ns: int, board: Board) -> Candidate | None:
        """The best batch of a model: of the ones that bring almost the most per time, the largest."""
        if not self._wide[queues.model]:
            return super()._offer(queues, lane, at_ns, board)
        law = self._law(queues.model, lane.name, board)
        at_ns = board.woken_ns(lane, board.latency(queues.model, lane.name), at_ns)
        rows: List[JobRow] = []
        for queue in queues.queues:
            found = 0
            for due_ns, _, job in queue.rows[queue.position(at_ns) :]:
                row = _row(job, law, at_ns, board)
                if due_ns >= at_ns + law.alone_ns(row.length, EVEN) and job.lane in ("", lane.name):
                    rows.append(row)
                    found += 1
                    if found == LOOK:
                        break
        if not rows:
            return None
        rows = sorted(rows)[:LOOK]
        choices = _choices(rows, lane.models[queues.model], law, at_ns)
        most = max([choice.gain / choice.takes_ns for choice in choices])
        best = choices[0]
        for choice in choices:
            rate = choice.gain / choice.takes_ns
            if rate >= EQUAL * most and (
                best.gain < EQUAL * most * best.takes_ns
                or len(choice.rows) > len(best.rows)
                or (len(choice.rows) == len(best.rows) and rate * best.takes_ns > best.gain)
            ):
                best = choice
        press = min([max(0, choice.slack_ns) / _k_ns(choice.rows) for choice in choices])
        return self._made(best, law, queues.lost, press, board)

    def _made(self, choice: UnequalChoice, law: Law, lost: int, press: float, board: Board) -> Candidate:
        jobs = [row.job for row in choice.rows]
        made = Candidate(
            self,
            jobs[0].node.model,
            jobs,
            choice.size,
            choice.takes_ns,
            law.within_ns(choice.size, choice.members, SLOW),
            choice.gain * (1.0 + min(RISE_MAX, lost / (RISE * len(jobs)))),
            choice.slack_ns,
            _k_ns(choice.rows),
            best_class(jobs),
        )
        made.press = press
        return made


def _no_time(latency: BatchTime) -> int:
    return 0


def _by_mean(row: JobRow) -> Tuple[int, int]:
    return row.mean_ns, row.seq


def _k_ns(rows: Sequence[JobRow]) -> int:
    request = rows[0].job.request
    return max(1, round(K_SHARE * (request.deadline_ns - request.arrival_ns)))


def _row(job: Job, law: Law, at_ns: int, board: Board) -> JobRow:
    """A job as a member of batches that start at ``at_ns``."""
    request, length = job.request, law.length_of(job)
    due_ns = job.deadline_ns
    if request.successor_ns is not None:
        begin_by_ns = request.begin_by_ns(board.now_ns)
        if begin_by_ns is not None:
            due_ns = min(due_ns, begin_by_ns + law.alone_ns(length, EVEN))
    slack_ns = due_ns - at_ns - law.alone_ns(length, SLOW)
    worth = worth_of(request)
    if job.node.succs:
        share_ns = board.latency(job.node.model, board.lanes_of(job.node.model)[0].name).share_ns
        worth *= path_part(job, share_ns, board)
    press = max(0, slack_ns) / max(1.0, K_SHARE * (request.deadline_ns - request.arrival_ns))
    mean_ns = law.mean_ns(law.first, law.alike(length, 1))
    return JobRow(RANKS[request.priority_class], press, job.seq, job, due_ns, length, mean_ns, slack_ns, worth)


def _choices(rows: Sequence[JobRow], latency: BatchTime, law: Law, at_ns: int) -> List[UnequalChoice]:
    """The most pressing jobs, for ceilings of length and sizes, of those below that are expected in time. At least
    one."""
    lengths = sorted({(row.mean_ns, row.length) for row in rows})
    count = min(CEILINGS, len(lengths))
    found: List[UnequalChoice] = []
    for place in range(1, count + 1):
        ceiling_ns, longest = lengths[place * len(lengths) // count - 1]
        shorter = [row for row in rows if row.mean_ns <= ceiling_ns]
        for size in latency.sizes:
            needs = law.alike(longest, min(size, len(shorter)))
            before: Sequence[JobRow] = ()
            for needs_ns in (law.mean_ns(size, needs), law.within_ns(size, needs, SAFE)):
                chosen = [row for row in shorter if row.due_ns >= at_ns + needs_ns][:size]
                if chosen and chosen != before:
                    found.append(_choice(chosen, latency.size_for[len(chosen)], law, at_ns))
                    before = chosen
            if size >= len(shorter):
                break
    return found or [_choice(rows[:1], latency.sizes[0], law, at_ns)]


def _choice(rows: Sequence[JobRow], size: int, law: Law, at_ns: int) -> UnequalChoice:
    members = law.members([row.length for row in rows])
    takes_ns = law.mean_ns(size, members)
    gain, slack_ns = 0.0, FOREVER_NS
    counted = set()
    for row in rows:
        request = row.job.request
        if row.job.part:  # several parts of one request count it once
            if request.id in counted:
                continue
            counted.add(request.id)
        chance = law.chance(size, members, row.due_ns - at_ns)
        gain += row.worth * chance
        if chance > 0.0:
            slack_ns = min(slack_ns, row.slack_ns if row.length[0] else row.due_ns - at_ns - takes_ns)
        if chance < 1.0 and request.on_late == "answer":
            soft_ns = max(1, request.deadline_ns - request.arrival_ns)
            gain += (1.0 - chance) * row.worth * soft_ns / (soft_ns + max(0, at_ns + takes_ns - row.due_ns))
    return UnequalChoice(rows, size, members, takes_ns, gain, slack_ns)


def _declares_steps(request: RequestRecord) -> bool:
    """True if a request says how many steps a node of its app takes."""
    return any(node.steps_key in request.hints for node in request.app.nodes)
