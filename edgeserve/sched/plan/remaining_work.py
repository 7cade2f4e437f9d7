"""Lines: pipelines of equal shape, and the remaining work of each request in one.

A request's cost on one device is the work it still makes, so each request is a list of jobs left per node: existing
ones, and expected ones of nodes that have not run yet (a fan-out's parts, a branch's frequency). As the request moves
on, expectations become facts. Counts are whole numbers of thousandths, so that sums are exact on every Python.

Jobs may be more or less work than usual ones, as the hint ``NODE.work`` says: :class:`Left` has both. Knows no lane and
no time.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, Final, List, Mapping, NamedTuple, Sequence, Set, Tuple

from edgeserve.priority_class import RANKS
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import READY, RUNNING, Job, RequestRecord, new_tuple, steps_left
from edgeserve.sched.requests.work import MILLI, relative_milli

SEEN_LEN = 64
"""Fan-outs and branches remembered per node: a few seconds of a busy pipeline, so that a change of scene is noticed."""

STATES_MAX = 4096
"""States of requests without hints whose remaining work is kept."""

NO_STEPS: Final[Mapping[int, int]] = {}
"""The steps where no request declares any: each stage runs once."""


NO_HINTS: Final[Mapping[str, float]] = {}


PLAIN: Final[Tuple[int, ...]] = ()
"""The kind of requests that have not begun (:meth:`Member.kind`)."""


Steps = Mapping[int, int]
"""Node -> how often its stage runs, where that is more than once (iterative models)."""


class Left(NamedTuple):
    """The remaining work of one or several requests, by node: their ``jobs`` in thousandths, and how much more work
    these are than as many usual ones (``over``, below 0: less), in thousandths of a usual job."""

    jobs: List[int]
    over: List[int]


def shape_of(app: App) -> Tuple[object, ...]:
    """Apps of equal shape make equal work: their requests may share cohorts."""
    return tuple(
        (
            node.name,
            node.model,
            tuple(pred.index for pred in node.preds),
            node.fan_out,
            node.gather,
            node.join,
            node.route_one,
        )
        for node in app.nodes
    )


class Pipeline:
    """One shape of pipeline: its nodes, and what was learnt of its fan-outs and branches.

    ``template`` is what a request that has not begun has left. Only :meth:`observe_parts`, :meth:`observe_branch` and
    :meth:`observe_work` change it.
    """

    __slots__ = (
        "nodes",
        "hints",
        "template",
        "openers",
        "fan_outs",
        "exit",
        "_parts",
        "_branches",
        "_works",
        "_mean_milli",
        "_share_milli",
        "_usual_milli",
        "_known",
    )

    def __init__(self, app: App) -> None:
        self.nodes: Sequence[Node] = app.nodes
        told = [f"{node.name}.{what}" for node in app.nodes for what in ("parts", "route", "steps", "work")]
        self.hints = frozenset([*told, "work"])
        self.openers: List[int] = [_opener(node) for node in app.nodes]  # fan-out that a gather closes, or -1
        self.fan_outs = [node.index for node in app.nodes if node.fan_out]
        ends = [node for node in app.nodes if not node.succs]
        self.exit = ends[0].index if len(ends) == 1 and ends[0].scope is None else -1  # the node that answers, or -1
        self._parts: Dict[int, Deque[int]] = {node.index: deque(maxlen=SEEN_LEN) for node in app.nodes if node.fan_out}
        self._branches: Dict[int, Deque[int]] = {
            node.index: deque(maxlen=SEEN_LEN) for node in app.nodes if node.route_one
        }
        self._works: List[Deque[Tuple[int, int]]] = [deque(maxlen=SEEN_LEN) for _ in app.nodes]
        self._usual_milli = [MILLI] * len(app.nodes)  # work of a job of which nothing is told
        self._mean_milli: Dict[int, int] = {}
        self._share_milli: Dict[Tuple[int, int], int] = {}
        self._known: Dict[Tuple[Tuple[int, ...], ...], Left] = {}
        self._learn()

    def observe_parts(self, node: Node, count: int) -> None:
        """A fan-out made so many parts."""
        self._parts[node.index].append(count)
        self._learn()

    def observe_branch(self, node: Node, taken: int) -> None:
        """A node with ``route = "one"`` chose the successor of this index (-1: none)."""
        self._branches[node.index].append(taken)
        self._learn()

    def observe_work(self, index: int, jobs_milli: int, work_milli: int) -> None:
        """So many jobs of a request at a node turned out to be so much work each, beside a usual one's 1000."""
        self._works[index].append((jobs_milli, jobs_milli * work_milli // MILLI))
        self._learn()

    def declared_milli(self, index: int, hints: Mapping[str, float]) -> int | None:
        """The work of a job at a node, as hints tell it, beside a usual one's 1000; None when they do not."""
        return relative_milli(hints, self.nodes[index].name) if hints else None

    def over_milli(self, index: int, jobs_milli: int, hints: Mapping[str, float]) -> int:
        """The work beyond the usual of ``jobs_milli`` jobs at a node, each as ``hints`` tell, or as they were
        lately."""
        told = self.declared_milli(index, hints)
        work = self._usual_milli[index] if told is None else told
        return jobs_milli * (work - MILLI) // MILLI

    def work_of(self, jobs: Sequence[Job]) -> int | None:
        """The work of jobs at one node beyond the usual; None where none has ever told."""
        index = jobs[0].node.index
        total, tells = 0, bool(self._works[index])
        for job in jobs:
            if job.hints:
                tells = tells or self.declared_milli(index, job.hints) is not None
                total += self.over_milli(index, MILLI, job.hints)
            else:
                total += self._usual_milli[index] - MILLI
        return total if tells else None

    def times(self, count: int, each: Left | None = None) -> Left:
        """The remaining work of ``count`` requests with ``each`` left (None: they have not begun)."""
        left = self.template if each is None else each
        if count == 1:
            return left
        return new_tuple(Left, ([milli * count for milli in left.jobs], [milli * count for milli in left.over]))

    def left_without_hints(self, live: Sequence[int], done: Sequence[int], parts: Mapping[int, int]) -> Left:
        """:meth:`left` of a request without hints, with its work: worked out once per state of a request."""
        key = (tuple(live), tuple(done), *parts.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) == STATES_MAX:
                self._known.clear()
            found = self._known[key] = self.with_work(self.left(live, done, parts, NO_HINTS), NO_HINTS)
        return found

    def with_work(self, jobs: List[int], hints: Mapping[str, float]) -> Left:
        """The work left of a request with so many jobs left, if these are the work that its hints tell, or what it was
        lately."""
        over = [0] * len(jobs)
        for index, milli in enumerate(jobs):
            if milli:
                over[index] = self.over_milli(index, milli, hints)
        return new_tuple(Left, (jobs, over))

    def left(
        self,
        live: Sequence[int],
        done: Sequence[int],
        parts: Mapping[int, int],
        hints: Mapping[str, float],
    ) -> List[int]:
        """Jobs left per node (without their work) of a request with ``live`` jobs (ready or running), ``done`` ones.

        ``parts`` are the parts that its fan-outs have made. ``hints`` of the request predict: ``NODE.parts`` how many
        parts a fan-out will make, ``NODE.route`` which successor (counted from 0) a node will choose. O(edges).
        """
        nodes = self.nodes
        left = [0] * len(nodes)
        for index, node in enumerate(nodes):
            preds = node.preds
            future = 0
            if node.gather:
                opener = self.openers[index]
                if any(left[pred.index] for pred in preds) or left[opener]:
                    future = (done[opener] - done[index] - live[index]) * MILLI + left[opener]
            elif len(preds) == 1:
                future = self._flow(preds[0], index, left, hints)
            elif preds:
                made = (done[index] + live[index]) * MILLI
                future = min(
                    self._span(node, left, parts, hints) - made,
                    sum([self._flow(pred, index, left, hints) for pred in preds]),
                )
            left[index] = live[index] * MILLI + max(0, future)
        return left

    def _flow(self, pred: Node, index: int, left: Sequence[int], hints: Mapping[str, float]) -> int:
        """The expected jobs that the rest of ``pred`` brings to one successor."""
        flow = left[pred.index]
        if not flow:
            return 0
        if pred.fan_out:
            return flow * self._parts_milli(pred, hints) // MILLI
        if pred.route_one:
            named = hints.get(pred.name + ".route") if hints else None
            if named is not None:
                return flow if 0 <= int(named) < len(pred.succs) and pred.succs[int(named)].index == index else 0
            return flow * self._share_milli[pred.index, index] // MILLI
        return flow

    def _span(self, node: Node, left: Sequence[int], parts: Mapping[int, int], hints: Mapping[str, float]) -> int:
        """The most times that a join inside its scope can run: once, or once per part."""
        if node.scope is None:
            return MILLI
        opener = node.scope
        return parts.get(opener.index, 0) * MILLI + left[opener.index] * self._parts_milli(opener, hints) // MILLI

    def _parts_milli(self, node: Node, hints: Mapping[str, float]) -> int:
        if hints:
            declared = hints.get(node.name + ".parts")
            if declared is not None:
                return max(0, round(declared * MILLI))
        return self._mean_milli[node.index]

    def _learn(self) -> None:
        for index, seen in self._parts.items():
            self._mean_milli[index] = sum(seen) * MILLI // len(seen) if seen else MILLI
        for index, taken in self._branches.items():
            succs = self.nodes[index].succs
            for succ in succs:  # before anything was seen, every branch is as likely
                self._share_milli[index, succ.index] = (
                    (taken.count(succ.index) * len(succs) + 1) * MILLI // ((len(taken) + 1) * len(succs))
                )
        for index, works in enumerate(self._works):
            if works:
                self._usual_milli[index] = (
                    sum([total for _, total in works]) * MILLI // max(1, sum([jobs for jobs, _ in works]))
                )
        entries, none = [int(not node.preds) for node in self.nodes], [0] * len(self.nodes)
        jobs = self.left(entries, none, {}, NO_HINTS)
        self.template = self.with_work(jobs, NO_HINTS)
        self._known.clear()


class Member:
    """One open request: its jobs, its remaining work, and the cohort it travels in. ``rank``: its class, 0 is the most
    urgent.

    ``due_ns`` is its deadline; one that is answered late anyway is given more time once its own is over. ``plain``: it
    is as any other of its pipeline that has not begun. The lists are worked out again after its jobs changed, which
    sets ``stale``.
    """

    __slots__ = (
        "request",
        "pipeline",
        "jobs",
        "cohort",
        "due_ns",
        "rank",
        "queued",
        "plain",
        "foretold",
        "learnt",
        "stale",
        "_done",
        "_left",
        "_steps",
        "_kind",
    )

    def __init__(self, request: RequestRecord, pipeline: Pipeline) -> None:
        self.request = request
        self.pipeline = pipeline
        self.jobs: Dict[int, Job] = {}
        self.cohort: object | None = None
        self.due_ns = request.deadline_ns
        self.rank = RANKS[request.priority_class]
        self.queued: List[int] = []  # nodes in whose queues it waits
        self.foretold = bool(request.hints) and not pipeline.hints.isdisjoint(request.hints)
        self.plain = not self.foretold
        self.learnt: Set[int] = set()  # nodes whose work its pipeline has learnt from it
        self._done = [0] * len(pipeline.nodes)
        self._left = pipeline.template
        self._steps: Steps | None = None
        self._kind: Tuple[int, ...] | None = None
        self.stale = True

    def left(self) -> Left:
        """The remaining work, the running jobs included."""
        if self.plain:
            return self.pipeline.template
        if self.stale:
            self.stale = False
            self._steps = None
            pipeline, request = self.pipeline, self.request
            live = [0] * len(self._done)
            for seq, job in list(self.jobs.items()):
                if job.state in (READY, RUNNING):
                    live[job.node.index] += 1
                else:  # it is done, in any way
                    del self.jobs[seq]
                    self._done[job.node.index] += 1
            if not self.jobs:  # it has just arrived
                live = [int(not node.preds) for node in pipeline.nodes]
            parts: Dict[int, int] = {}
            if request.scopes:
                for (index, _), count in request.scopes.items():
                    parts[index] = parts.get(index, 0) + count
            self._kind = None
            if not request.hints and not request.part_hints:
                self._left = pipeline.left_without_hints(live, self._done, parts)
                return self._left
            left = pipeline.with_work(pipeline.left(live, self._done, parts, request.hints), request.hints)
            if request.part_hints:
                for job in self.jobs.values():
                    index = job.node.index
                    left.over[index] += pipeline.over_milli(index, MILLI, job.hints)
                    left.over[index] -= pipeline.over_milli(index, MILLI, request.hints)
            self._left = left
        return self._left

    def kind(self) -> Tuple[int, ...] | None:
        """The remaining work as a key: requests of the same kind are served alike. None where the request's hints make
        it one of its own."""
        if self.foretold or self.request.part_hints:
            return None
        if self.plain:
            return PLAIN
        left = self.left()
        if self._kind is None:
            self._kind = (*left.jobs, *left.over)
        return self._kind

    def learn_work(self) -> None:
        """Tell the pipeline what the request's work at its nodes turned out to be, once the number of jobs is known."""
        pipeline, hints, left = self.pipeline, self.request.hints, self.left().jobs
        if any(left[index] for index in pipeline.fan_outs):
            return
        for index in range(len(pipeline.nodes)):
            told = pipeline.declared_milli(index, hints) if index not in self.learnt else None
            if told is not None:
                self.learnt.add(index)
                jobs_milli = left[index] + self._done[index] * MILLI
                if jobs_milli:
                    pipeline.observe_work(index, jobs_milli, told)

    def steps(self) -> Steps:
        """The number of runs left of an iterative node, where the request declared it (``NODE.steps``)."""
        if not self.foretold:
            return NO_STEPS
        if self._steps is not None and not self.stale:
            return self._steps
        found: Dict[int, int] = {}
        for job in self.jobs.values():
            found[job.node.index] = max(found.get(job.node.index, 1), steps_left(job))
        for node in self.pipeline.nodes:
            declared = self.request.hints.get(node.steps_key)
            if declared is not None and node.index not in found:
                found[node.index] = max(1, int(declared))
        self._steps = found
        return found

    def is_running(self) -> bool:
        """True if any of its jobs is on a lane."""
        for job in self.jobs.values():  # noqa: SIM110 a generator costs a call per job
            if job.state == RUNNING:
                return True
        return False


def total_of(lefts: Sequence[Left], size: int) -> Left:
    """The sum of several requests' remaining work, of a pipeline of ``size`` nodes."""
    jobs, over = [0] * size, [0] * size
    for left in lefts:
        for index, milli in enumerate(left.jobs):
            jobs[index] += milli
        for index, milli in enumerate(left.over):
            over[index] += milli
    return new_tuple(Left, (jobs, over))


def most_steps(members: Sequence[Member]) -> Steps:
    """The most steps that any of the members needs at a node; empty where no request declares any."""
    found: Dict[int, int] = {}
    for member in members:
        if member.request.hints:
            for index, steps in member.steps().items():
                found[index] = max(found.get(index, 1), steps)
    return found


def _opener(node: Node) -> int:
    scope = node.preds[0].scope_after() if node.gather and node.preds else None
    return scope.index if scope is not None else -1
