"""Plain work: models of one app node each, or of paths whose models share no lane. The batch is that of
``policies/common/batches.py``."""

from __future__ import annotations

from typing import List, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.plan.candidate import K_SHARE, Candidate, worth_of
from edgeserve.sched.plan.source import Source
from edgeserve.sched.policies.common.batches import Batches, steps_more_ns
from edgeserve.sched.policies.common.bidding import Utility, refusal
from edgeserve.sched.policies.common.model_queues import ModelQueues
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Policy
from edgeserve.sched.requests.critical import NO_ROOMS
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import FOREVER_NS

TRUST = 2.0
"""A batch of a model of which a tenth was given up lately may wait for a fifth less than its slack, and of one of which
half was, not at all: its plans came to nothing. (Held-out robot, seeds 1, 2, 11, 12 at load 1: with 0, 1, 2, 4 82.3,
82.7, 83.7, 83.1 % of the value; with 0 and 2 home 88.2 and 88.0, workstation 90.3 and 90.5.)"""

RISE, RISE_MAX = 4, 2.0
"""A batch counts twice as dense if four times as many jobs of its model were given up since it ran last as the batch
has; three times at most. So the smaller of two equal apps has its turn."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Plain(Source):
    """Jobs of models whose batches take about the same time whatever is in them."""

    kind = "plain"

    def __init__(self, owner: Policy) -> None:
        super().__init__(owner)
        self._batches = Batches(owner.apps)

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        reason = refusal(request, board)
        if reason is None and request.hints and request.on_late != "answer" and _declares_steps(request):
            found = self.expected_end(request, None, board)
            if found is not None and board.now_ns + found.wait_ns + found.alone_ns > request.deadline_ns:
                return CANNOT_MAKE_DEADLINE
        return reason

    def on_ready(self, job: Job, board: Board) -> None:
        self._batches.models[job.node.model].add(job)

    def on_gone(self, job: Job, board: Board) -> None:
        self._batches.models[job.node.model].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        self._batches.models[work.model].started(work.jobs)

    def plan(self, board: Board) -> None:
        self._batches.drop_all_late(board)

    def queued(self) -> List[Job]:
        return self._batches.queued()

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        for queues in self._batches.models.values():
            if queues.count and queues.model in lane.models and board.is_resident(queues.model, lane):
                item = self._offer(queues, lane, at_ns, board)
                if item is not None:
                    found.append(item)
        return found

    def lone(self, lane: Lane, board: Board) -> Bid | None:
        alone: ModelQueues | None = None
        for queues in self._batches.models.values():
            if queues.count:
                if alone is not None:
                    return None
                alone = queues
        if alone is None or alone.model not in lane.models or board.critical_rooms(lane) is not NO_ROOMS:
            return None
        return self._batches.best_batch(alone, lane, board) if board.is_resident(alone.model, lane) else None

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        queues = self._batches.models[candidate.model]
        latency = board.latency(candidate.model, lane.name)
        for size in latency.sizes:
            if size < len(candidate.jobs):
                bid = self._batches.batch_of(queues, size, lane, board)
                if bid is None:
                    continue
                item = self._candidate(bid, queues.lost, lane, at_ns, board)
                item.press = min(item.press, candidate.press)  # a long batch is not more urgent for being long
                found.append(item)
        return found

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        detail = candidate.detail
        assert isinstance(detail, Bid)
        return detail

    def _offer(self, queues: ModelQueues, lane: Lane, at_ns: int, board: Board) -> Candidate | None:
        """The best batch of a model."""
        bid = self._batches.best_batch(queues, lane, board)
        if bid is None:
            return None
        return self._candidate(bid, queues.lost, lane, at_ns, board)

    def _candidate(self, bid: Bid, lost: int, lane: Lane, at_ns: int, board: Board) -> Candidate:
        utility = bid.utility
        assert isinstance(utility, Utility)
        latency = board.latency(bid.model, lane.name)
        share_ns = latency.share_ns
        takes_steps = self._batches.models[bid.model].takes_steps
        gain = 0.0
        slack_ns = FOREVER_NS
        counted = set()
        row = 0
        worth = 0.0
        alike: RequestRecord | None = None  # the last request; what others like it count is not asked again
        for job in bid.jobs:
            request = job.request
            if job.part:
                if request.id in counted:
                    continue
                counted.add(request.id)
            due_ns, _, soft_ns = utility.rows[row]
            row += 1
            if (
                alike is None
                or job.node.succs
                or alike.app is not request.app
                or alike.klass != request.klass
                or alike.value != request.value
                or alike.cost_share_ns != request.cost_share_ns
            ):
                worth = worth_of(request)
                alike = request
                if job.node.succs:
                    rest_ns = board.rest_lane_ns(request.app, job.node)
                    worth *= share_ns / max(1, share_ns + rest_ns)
                    alike = None
            ends_ns = at_ns + utility.after_ns
            if takes_steps:  # it leaves when its own steps are over
                ends_ns = at_ns + bid.expected_ns + steps_more_ns(job, bid.expected_ns, latency)
                due_ns = min(due_ns, job.deadline_ns)
            if ends_ns <= due_ns:
                gain += worth
                slack_ns = min(slack_ns, due_ns - ends_ns)
            elif soft_ns:
                gain += worth * soft_ns / (soft_ns + ends_ns - due_ns)
        first = bid.jobs[0].request
        found = Candidate(
            self,
            bid.model,
            bid.jobs,
            bid.size,
            bid.expected_ns,
            max(bid.expected_ns, latency.slowest_ns[bid.size]),
            gain * (1.0 + min(RISE_MAX, lost / (RISE * len(bid.jobs)))),
            slack_ns,
            round(K_SHARE * (first.deadline_ns - first.arrival_ns)),
            bid.klass,
            bid,
        )
        found.trust = max(0.0, 1.0 - TRUST * self._batches.models[bid.model].loss)
        return found


def _declares_steps(request: RequestRecord) -> bool:
    """True if a request says how many steps a node of its app takes."""
    return any(node.steps_key in request.hints for node in request.app.nodes)
