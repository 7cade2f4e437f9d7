"""The tables of ``rtlm``: the tasks that wait or run, by model, and what answers taught of their lengths.

A *task* here is a job with the predicted length of its answer. Knows no lane and no clock.
"""

from __future__ import annotations

from typing import Any, Dict, Final, List, Tuple

from edgeserve.lognormal import Lognormal
from edgeserve.priority_class import RANKS
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policies.common.lengths import LearnedLengths
from edgeserve.sched.published.rtlm.offload import RankWindow
from edgeserve.sched.published.rtlm.priority import Task
from edgeserve.sched.requests.states import Job

TAU_LEN: Final = 512
"""Predicted lengths of which ``tau`` is a quantile."""


class Waiting:
    """A task: its job, the prediction when it arrived, and what orders go by. ``tier`` is the rank of its class, and
    within a class who was promised the deadline comes first."""

    __slots__ = ("job", "length", "steps", "tier", "task", "declared")

    def __init__(self, job: Job, length: Lognormal, declared: float | None, due_ns: int) -> None:
        self.job = job
        self.length = length
        self.declared = declared
        self.steps = length.mean()
        self.tier = 2 * RANKS[job.request.priority_class] + (job.request.rank <= 1.0)
        self.task = Task(self.steps, job.request.arrival_ns, due_ns, job.seq)

    def chance(self, steps: float) -> float:
        """The chance that at most so many steps are still to come."""
        job = self.job
        if job.steps_total:
            return 1.0 if job.steps_total - job.steps <= steps else 0.0
        return self.length.chance(job.steps, steps) if steps >= 1.0 else 0.0

    def likely_steps(self, share: float) -> float:
        """Steps that are still to come at most with the chance ``share``."""
        job = self.job
        if job.steps_total:
            return float(max(1, job.steps_total - job.steps))
        return self.length.rest(job.steps, share)

    def remaining(self) -> float:
        """Steps that are still expected: as its model said, else by the prediction and how long it is already."""
        job = self.job
        if job.steps_total:
            return float(max(1, job.steps_total - job.steps))
        return self.length.remaining(job.steps)


def declared(job: Job, what: str) -> float | None:
    """A hint of the job's node: ``NODE.what``, or ``what`` alone in an app of one node."""
    hints = job.hints
    if not hints:
        return None
    found = hints.get(job.node.name + "." + what)
    return hints.get(what) if found is None and job.request.app.simple else found


class ModelTasks:
    """The tasks of one model: ``fresh`` ones that have not begun, ``begun`` ones whose answer has, ``running`` ones.
    All by ``seq``, in the order in which they became ready. ``due`` has the fresh ones that may be given up, by when
    they are. ``stepwise``: some job told that it needs steps, or took several; before, every job of the model counts as
    one step.
    """

    __slots__ = ("model", "fresh", "begun", "running", "due", "predicted", "stepwise")

    def __init__(self, model: str) -> None:
        self.model = model
        self.fresh: Dict[int, Waiting] = {}
        self.begun: Dict[int, Waiting] = {}
        self.running: Dict[int, Waiting] = {}
        self.due = JobQueue()
        self.predicted = RankWindow(TAU_LEN)
        self.stepwise = False

    def __len__(self) -> int:
        return len(self.fresh) + len(self.begun)

    def add(self, waiting: Waiting, hopeless_ns: int) -> None:
        """A job is ready: it goes on, or is new. ``hopeless_ns``: if its first step cannot end by then, it will hardly
        be in time."""
        job = waiting.job
        if job.steps or job.lane:
            self.begun[job.seq] = waiting
            return
        if job.request.on_late != "answer":
            self.due.add(hopeless_ns, job)
        self.fresh[job.seq] = waiting

    def remove(self, job: Job) -> Waiting:
        """A job was launched or has left."""
        if job.key is not None:
            self.due.remove(job)
        return self.begun.pop(job.seq) if job.seq in self.begun else self.fresh.pop(job.seq)

    def bound_to(self, lane: str) -> List[Waiting]:
        """Tasks that have begun and whose state a lane holds."""
        return [waiting for waiting in self.begun.values() if waiting.job.lane == lane]

    def loose(self) -> List[Waiting]:
        """Tasks that have begun and whose state is gone, with its lane or to make room: they may go on anywhere."""
        return [waiting for waiting in self.begun.values() if not waiting.job.lane]

    def jobs(self) -> List[Job]:
        """All that wait."""
        return [waiting.job for table in (self.fresh, self.begun) for waiting in table.values()]


class Learnt:
    """The lengths that finished answers taught, by app and node."""

    __slots__ = ("_default", "_lengths")

    def __init__(self, default_steps: float) -> None:
        self._default = default_steps
        self._lengths: Dict[Tuple[str, str], LearnedLengths] = {}

    def of(self, job: Job) -> LearnedLengths:
        """The known lengths of answers of a job's node."""
        return self.of_node(job.request.app.name, job.node.name)

    def of_node(self, app: str, node: str) -> LearnedLengths:
        """The same by names."""
        key = (app, node)
        found = self._lengths.get(key)
        if found is None:
            found = self._lengths[key] = LearnedLengths(False, self._default)
        return found

    def finished(self, waiting: Waiting) -> None:
        """The answer of a task is whole: its length is known."""
        if waiting.job.steps > 0:
            self.of(waiting.job).finished(waiting.declared, waiting.job.steps)

    def figures(self) -> Dict[str, Any]:
        """By app and node, for people."""
        return {f"{app}/{node}": lengths.figures() for (app, node), lengths in self._lengths.items()}
