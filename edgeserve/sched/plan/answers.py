"""Estimates for answers that language models write: the length still to come, the worth in time, and the times of steps
and prompts. Knows no lane's queue and makes no choice."""

from __future__ import annotations

import math
from typing import Dict, Final, List, Sequence, Tuple

from edgeserve.lognormal import FLAT, SQRT2, TAIL, Lognormal
from edgeserve.priority_class import RANKS
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.window import Window
from edgeserve.sched.plan.candidate import weight_of
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.states import DONE, Job
from edgeserve.sched.requests.worth import each_ns
from edgeserve.sched.resources.lanes import Work

PREDICTED_LEN: Final = 512
"""Predicted lengths of which a quantile tells which answers are long."""

PREFILL_STEPS: Final = 2.0
"""The time of reading prompts where nothing was measured, in steps of as many sequences (RT-LM's models)."""

PREFILL_MAX: Final = 16.0
"""Steps that reading prompts is believed to take at most: an outlier teaches no more."""

PACE_MAX: Final = 16.0
"""The pace of answers is at most this, so that one long break teaches no more."""

KEEP: Final = 0.8
"""The weight that a mean keeps at each new number."""

LEAST: Final = 0.01
"""The least chance of an answer: one that is expected to be late and yet not given up runs where no other does."""


class Each:
    """The worth of every request of an app whose node writes answers, or of one request of an app whose ``worth`` is
    ``work``: ``ns`` of lane time, as of the last :meth:`look`. ``told``: their steps are declared, and counted by
    that."""

    __slots__ = ("app", "cost_share_ns", "model", "told", "ns")

    def __init__(self, job: Job, told: bool, board: Board) -> None:
        self.app = job.request.app
        self.cost_share_ns = job.request.cost_share_ns
        self.model = job.node.model
        self.told = told
        self.ns = 0.0
        self.look(board)

    def look(self, board: Board) -> bool:
        """Set what they count now: of undeclared length as many steps as usual. True if that is something else."""
        before_ns = self.ns
        self.ns = each_ns(self.app, self.cost_share_ns)
        if not self.told:
            share_ns = min([latency.share_ns for _, latency, _ in board.places_of(self.model)])
            self.ns += (board.usual_steps(self.model) - 1) * share_ns
        return self.ns != before_ns


class AnswerProgress:
    """A job and the answer that it writes: the ``length`` predicted when it arrived, its mean in ``steps``, what was
    ``told`` of it, and by when it must end (``due_ns``). One that is late keeps ``soft_ns / (soft_ns + lateness)`` of
    its worth. ``above`` is the chance that it is longer than ``written``, its steps at the last :meth:`look`."""

    __slots__ = (
        "job",
        "length",
        "told",
        "steps",
        "rank",
        "due_ns",
        "soft_ns",
        "_each",
        "_weight",
        "written",
        "above",
        "_remaining",
    )

    def __init__(self, job: Job, length: Lognormal, told: float | None, each: Each, board: Board) -> None:
        request = job.request
        self.job = job
        self.length = length
        self.told = told
        self.steps = length.mean()
        self.rank = RANKS[request.priority_class]
        self.due_ns = request.deadline_ns - (board.rest_ns(request.app, job.node) if job.node.succs else 0)
        self.soft_ns = max(1, request.deadline_ns - request.arrival_ns) if request.on_late == "answer" else 0
        self._each = each
        self._weight = weight_of(request) / _parts(job)
        self.written = 0
        self.above = 1.0
        self._remaining = max(1.0, self.steps)

    @property
    def lane_ns(self) -> float:
        """The lane time that answers of its app take in the mean, in nanoseconds."""
        return self._each.ns

    @property
    def worth(self) -> float:
        """The worth of the answer if it is whole in time, in nanoseconds of lane time."""
        return self._each.ns * self._weight

    def remaining(self, more: int = 0) -> float:
        """Steps that are still expected, when ``more`` were made since the job was launched: as its model said, else by
        the prediction and how long the answer is already."""
        job = self.job
        if job.steps_total:
            return float(max(1, job.steps_total - job.steps - more))
        if more:
            return self.length.remaining(job.steps + more)
        if job.steps != self.written:
            self.look(job.steps)
        return self._remaining

    def per_step(self) -> float:
        """The worth of the answer per step that is still expected."""
        known = self.job.steps == self.written and not self.job.steps_total
        return self._each.ns * self._weight / (self._remaining if known else self.remaining())

    def look(self, written: int) -> None:
        """Update the expected rest of the answer after ``written`` steps."""
        self.written = written
        self.above = self.length.above(written)
        self._remaining = self.length.remaining(written)

    def likely(self, share: float) -> float:
        """Steps that are still to come at most with the chance ``share``."""
        job = self.job
        return float(max(1, job.steps_total - job.steps)) if job.steps_total else self.length.rest(job.steps, share)

    def chance(self, steps: float) -> float:
        """The chance that at most so many steps are still to come."""
        job = self.job
        if job.steps_total:
            return 1.0 if job.steps_total - job.steps <= steps else 0.0
        if steps < 1.0:
            return 0.0
        if job.steps != self.written:
            self.look(job.steps)
        return self.length.chance_of(job.steps, self.above, steps)


def chances_of(answers: Sequence[AnswerProgress], from_ns: int, step_ns: int) -> List[float]:
    """The chance of each of these answers to be whole by when it is due, if its steps begin then."""
    found: List[float] = []
    for answer in answers:
        job = answer.job
        steps = (answer.due_ns - from_ns) / step_ns
        if job.steps_total:
            found.append(1.0 if job.steps_total - job.steps <= steps else 0.0)
        elif steps < 1.0:
            found.append(0.0)
        else:
            if job.steps != answer.written:
                answer.look(job.steps)
            log_mean, sigma, _, _ = answer.length
            if sigma < FLAT or answer.above < TAIL:
                found.append(answer.length.chance_of(job.steps, answer.above, steps))
                continue
            # As chance_of, without its call: no line of the plan runs more often.
            beyond = 0.5 * math.erfc((math.log(job.steps + steps) - log_mean) / sigma / SQRT2) / answer.above
            found.append(1.0 - beyond if beyond < 1.0 else 0.0)
    return found


def kept_of(answers: Sequence[AnswerProgress], from_ns: int, step_ns: int) -> List[float]:
    """The share of its worth that is expected of each; at least :data:`LEAST`."""
    found = chances_of(answers, from_ns, step_ns)
    for place, answer in enumerate(answers):
        chance = found[place]
        if chance < LEAST:
            chance = found[place] = LEAST
        if answer.soft_ns and chance < 1.0:
            late_ns = max(0.0, answer.remaining() - (answer.due_ns - from_ns) / step_ns) * step_ns
            found[place] = chance + (1.0 - chance) * answer.soft_ns / (answer.soft_ns + late_ns)
    return found


class Answers:
    """Answers that share a batch, weighted, as a function of when the batch starts, at ``starts_ns`` as things are:
    ``before_ns`` pass before its first step, of which each takes ``step_ns``, and ``paced_ns`` with what runs between
    two of them."""

    __slots__ = ("answers", "weights", "starts_ns", "before_ns", "step_ns", "paced_ns")

    def __init__(
        self,
        answers: Sequence[AnswerProgress],
        weights: Sequence[float],
        starts_ns: int,
        before_ns: int,
        step_ns: int,
        paced_ns: int,
    ) -> None:
        self.answers = answers
        self.weights = weights
        self.starts_ns = starts_ns
        self.before_ns = before_ns
        self.step_ns = step_ns
        self.paced_ns = paced_ns

    def value(self, start_ns: int) -> float:
        """The weights that are expected in time if the batch starts at ``start_ns`` and others go on between its
        steps."""
        total = 0.0
        for weight, kept in zip(self.weights, kept_of(self.answers, start_ns + self.before_ns, self.paced_ns)):
            total += weight * kept
        return total


class AnswerTable:
    """The answers of one model: ``fresh`` ones, ``begun`` ones that a lane may hold the state of, ``running`` ones, all
    by the number of their job; ``due``: the fresh ones that may be given up, by when they hardly can be in time.
    ``has_sides``: some lane may be a side lane. ``ordered`` and ``turns`` are the fresh ones in the order in which they
    are served, and that in turns of their clients; empty where they are to be put in order again."""

    __slots__ = ("model", "has_sides", "fresh", "begun", "running", "due", "predicted", "ordered", "turns")

    def __init__(self, model: str, has_sides: bool) -> None:
        self.model = model
        self.has_sides = has_sides
        self.fresh: Dict[int, AnswerProgress] = {}
        self.begun: Dict[int, AnswerProgress] = {}
        self.running: Dict[int, AnswerProgress] = {}
        self.due = JobQueue()
        self.predicted = Window(PREDICTED_LEN)
        self.ordered: List[AnswerProgress] = []
        self.turns: List[AnswerProgress] = []

    def changed(self) -> None:
        """Answers came, went, began or ended, or count something else."""
        self.ordered, self.turns = [], []

    def add(self, answer: AnswerProgress, hopeless_ns: int) -> None:
        """An answer waits, again or for the first time."""
        job = answer.job
        self.ordered, self.turns = [], []
        if job.steps or job.lane:
            self.begun[job.seq] = answer
            return
        if not answer.soft_ns:
            self.due.add(hopeless_ns, job)
        self.fresh[job.seq] = answer

    def remove(self, job: Job) -> AnswerProgress | None:
        """An answer does not wait any more."""
        self.ordered, self.turns = [], []
        if job.key is not None:
            self.due.remove(job)
        return self.begun.pop(job.seq, None) or self.fresh.pop(job.seq, None)

    def find(self, job: Job) -> AnswerProgress | None:
        """The answer of a job, None if it has none here."""
        return self.fresh.get(job.seq) or self.begun.get(job.seq) or self.running.get(job.seq)

    def bound_to(self, lane: str) -> List[AnswerProgress]:
        """Answers whose state a lane holds; ``""``: the begun ones whose state is gone."""
        return [answer for answer in self.begun.values() if answer.job.lane == lane]

    def long_from(self, share: float) -> float:
        """The length that so many of the predicted ones do not exceed, in steps; at least 1."""
        return max(1.0, float(self.predicted.quantile(share))) if self.predicted.values else 1.0


class StepTimes:
    """The times of steps and prompts, and the pace of answers. Batches that read prompts teach the time of reading
    beyond their steps; how long answers waited for their next batch teaches the pace."""

    __slots__ = ("prefills", "paces", "_reading", "_paused_ns")

    def __init__(self) -> None:
        self.prefills: Dict[Tuple[str, str], float] = {}  # (model, lane) -> in steps of as many sequences
        self.paces: Dict[Tuple[str, str], float] = {}  # (model, lane) -> times as long as its steps an answer takes
        self._reading: Dict[int, int] = {}  # work -> prompts that it reads
        self._paused_ns: Dict[Tuple[str, str], int] = {}  # (model, lane) -> when answers began to wait for a batch

    def step_ns(self, latency: BatchTime, count: int) -> int:
        """One step of so many sequences."""
        return max(1, latency.typical_ns[latency.size_for[min(count, latency.size_max)]])

    def prefill_ns(self, latency: BatchTime, count: int) -> int:
        """The prompts of so many sequences, read at once."""
        steps = self.prefills.get((latency.model, latency.lane), PREFILL_STEPS)
        return round(max(0.0, steps) * self.step_ns(latency, count)) if count else 0

    def started(self, work: Work, board: Board) -> None:
        """A batch runs: remember how many prompts it reads whole. One of new answers alone says nothing of a pace: the
        ones that waited before have gone."""
        if not [job for job in work.jobs if job.has_state]:
            self._paused_ns.pop((work.model, work.lane.name), None)
        if not board.reads_in_turns(work.model):
            count = sum([not job.has_state for job in work.jobs])
            if count:
                self._reading[work.id] = count

    def ended(self, work: Work, took_ns: int, board: Board) -> None:
        """A batch is over; ``took_ns`` 0: it tells nothing."""
        count = self._reading.pop(work.id, 0)
        key = (work.model, work.lane.name)
        paused_ns = self._paused_ns.pop(key, None)
        if not took_ns:
            return
        if paused_ns is not None:
            times = max(1.0, min(PACE_MAX, (board.now_ns - paused_ns) / took_ns))
            self.paces[key] = KEEP * self.paces.get(key, 1.0) + (1.0 - KEEP) * times
        if [job for job in work.jobs if job.state != DONE]:
            self._paused_ns[key] = board.now_ns
        if not count:
            return
        latency = work.lane.models[work.model]
        more = (took_ns - work.steps * self.step_ns(latency, work.size)) / self.step_ns(latency, count)
        before = self.prefills.get(key, PREFILL_STEPS)
        self.prefills[key] = KEEP * before + (1.0 - KEEP) * max(-PREFILL_MAX, min(PREFILL_MAX, more))


def _parts(job: Job) -> int:
    """Into how many parts fan-outs divided a request at a job's node."""
    count, scope, part = 1, job.node.scope, job.part
    while scope is not None and part:
        part = part[:-1]
        count *= max(1, (job.request.scopes or {}).get((scope.index, part), 1))
        scope = scope.scope
    return count
