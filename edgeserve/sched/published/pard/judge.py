"""True if a request would be late: what PARD, or a rule it is compared with, asks before a job joins a forming batch.

The rules are those of ``rules.py``; here they meet the numbers of the state planner. The judge holds no queue and drops
no request: ``pard.py`` acts on what it says.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from edgeserve.sched.policies.common.bidding import droppable
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.published.pard.rules import END_TO_END, STAY, Rule
from edgeserve.sched.published.pard.siblings import Siblings
from edgeserve.sched.published.pard.state_planner import Module, Planner
from edgeserve.sched.published.pard.work import DeclaredWork
from edgeserve.sched.published.pard.worker import Worker
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, steps_left
from edgeserve.units import PPM, format_duration

OC_ADMITS_PPM = 600_000
"""Rule ``oc``: an overloaded module admits with probability 1 - alpha, alpha = 0.4 (the paper's section 5)."""


class Judge:
    """One rule. ``siblings``: a branch is judged by the latest of its request's branches too (the rules that look to
    the end). ``work``: what requests declare of their work counts. ``measured`` (may be set later): batches count
    as they run, not as full ones. ``seed``: of the rule ``oc``'s lots."""

    __slots__ = ("_rule", "_planner", "_siblings", "_work", "measured", "_dice", "_first")

    def __init__(
        self,
        rule: Rule,
        apps: Sequence[App],
        planner: Planner,
        *,
        siblings: Siblings | None,
        work: DeclaredWork | None,
        measured: bool,
        seed: int,
    ) -> None:
        self._rule = rule
        self._planner = planner
        self._siblings = siblings if rule.test == END_TO_END else None
        self._work = work
        self.measured = measured
        self._dice: Any = np.random.RandomState(seed)
        self._first = {node.model for app in apps for node in app.entries}

    def refuses(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> bool:
        """True if a job must not join a batch that starts at ``starts_ns``. Asked once per module: rules that learn
        from it, or draw lots, do so."""
        module, now = worker.module, board.now_ns
        if self._rule.worst:
            module.tested(now, starts_ns + module.times_ns[worker.lane.name] - job.ready_ns)
        if self._rule.lottery and droppable(job) and self._turns_away(module):
            return True
        return self.is_late(job, worker, starts_ns, board)

    def is_late(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> bool:
        """True if a request would be late, as the rule sees it, in a batch that starts at ``starts_ns``. In time to
        the nanosecond is in time."""
        return self._excess_ns(job, worker, starts_ns, board) > 0

    def why(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> str:
        """The same for people."""
        excess_ns = self._excess_ns(job, worker, starts_ns, board)
        late = f"late by {format_duration(max(0, excess_ns))}"
        if self._siblings is not None:
            ends_ns, slowest = self._siblings.latest(job, board.now_ns)
            if slowest is not job and ends_ns - job.request.deadline_ns == excess_ns:
                return f"{late} in its branch {slowest.node.name}"
        return late

    def expected_end(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> ExpectedEnd:
        """When a request would end whose job's batch starts at ``starts_ns``, as the rule sees it, and the smallest
        deadline with which it would not be late."""
        request, wait_ns = job.request, starts_ns - board.now_ns
        excess_ns = self._excess_ns(job, worker, starts_ns, board)
        if self._rule.test == END_TO_END:
            ends_ns = request.deadline_ns + excess_ns
            return ExpectedEnd(worker.lane.name, wait_ns, ends_ns - starts_ns, ends_ns)
        part, whole = self._planner.share[job.node]
        needed_ns = (request.deadline_ns - request.arrival_ns) * part // whole + excess_ns  # of its share of the SLO
        slo_ns = -(-needed_ns * whole // part) if part else None
        alone_ns = self._batch_ns(worker, board) + self._planner.batches_ns[job.node]
        return ExpectedEnd(worker.lane.name, wait_ns, alone_ns, None if slo_ns is None else request.arrival_ns + slo_ns)

    def _turns_away(self, module: Module) -> bool:
        """Rule oc: the overloaded module, and the first while any is overloaded, admit by lot."""
        modules = self._planner.modules.values() if module.model in self._first else (module,)
        return any(each.overloaded for each in modules) and int(self._dice.randint(0, PPM)) >= OC_ADMITS_PPM

    def _excess_ns(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> int:
        rule, request = self._rule, job.request
        time_ns = self._batch_ns(worker, board)
        if rule.test == END_TO_END:
            extra_ns = None
            if self._work is not None:
                members = [*worker.forming.values(), job] if job.seq not in worker.forming else worker.forming.values()
                time_ns += self._work.of_batch_ns(members, worker.module.each_ns)
                extra_ns = self._work.behind_ns(job, self._planner.modules)
            if job.hints:
                time_ns *= steps_left(job)
            ends_ns = starts_ns + time_ns + self._planner.rest_of(job, extra_ns)
            if self._siblings is not None:
                ends_ns = max(ends_ns, self._siblings.latest(job, board.now_ns)[0])
            return ends_ns - request.deadline_ns
        part, whole = self._planner.share[job.node]
        share_ns = (request.deadline_ns - request.arrival_ns) * part // whole
        if rule.test == STAY:
            return starts_ns + time_ns - job.ready_ns - share_ns
        return board.now_ns - job.ready_ns - share_ns

    def _batch_ns(self, worker: Worker, board: Board) -> int:
        """The time that the forming batch will take: full, or of as many as are there now."""
        if not self.measured:
            return worker.module.times_ns[worker.lane.name]
        latency = board.latency(worker.module.model, worker.lane.name)
        count = min(worker.module.sizes[worker.lane.name], max(1, len(worker.forming) + len(worker.queue)))
        return latency.likely_ns[latency.size_for[count]]
