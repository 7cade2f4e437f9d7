"""A kind of work that an older policy still decides for: the batch that it would bid is a candidate."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.plan.candidate import CRITICAL_FACTOR, K_SHARE, Candidate
from edgeserve.sched.plan.source import NONE, Source
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.policy import Bid, Change, Policy
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work

KEPT = 0.9
"""A batch can wait until a tenth of its worth is lost."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Adopted(Source):
    """The work of some apps, as the bids of a policy of their own."""

    def __init__(self, owner: Policy, kind: str, policy: Policy) -> None:
        super().__init__(owner)
        self.kind = kind
        self._policy = policy
        policy.owner = owner

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return self._policy.on_request(request, board)

    def on_ready(self, job: Job, board: Board) -> None:
        self._policy.on_ready(job, board)

    def on_gone(self, job: Job, board: Board) -> None:
        self._policy.on_gone(job, board)

    def on_started(self, work: Work, board: Board) -> None:
        self._policy.on_started(work, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        self._policy.on_finished(work, started_ns, finished_ns, board)

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        self._policy.on_trial(job, work, took_ns, board)

    def on_refused(self, work: Work, board: Board) -> None:
        self._policy.on_refused(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        self._policy.on_lost(work, board)

    def on_device(self, change: Change, board: Board) -> None:
        self._policy.on_device(change, board)

    def plan(self, board: Board) -> None:
        self._policy.plan(board)

    def cut(self, work: Work, board: Board) -> bool:
        return self._policy.cut(work, board)

    def next_wakeup_ns(self, board: Board) -> int | None:
        return self._policy.next_wakeup_ns(board)

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        return self._policy.expected_end(request, job, board)

    def figures(self) -> Mapping[str, Any]:
        return self._policy.figures()

    def queued(self) -> List[Job]:
        return self._policy.queued()

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        bid = self._policy.bid(lane, board)
        if bid is None:
            return NONE
        latency = board.latency(bid.model, lane.name)
        takes_ns, careful_ns = bid.expected_ns, max(bid.expected_ns, latency.slowest_ns[bid.size])
        if board.makes_sequences(bid.model):
            takes_ns, careful_ns = latency.likely_ns[bid.size], latency.slowest_ns[bid.size]
        gain = bid.utility.value(at_ns) * takes_ns / max(1, bid.remaining_ns, bid.expected_ns)
        if bid.klass == "critical":
            gain *= CRITICAL_FACTOR
        first = bid.jobs[0].request
        slo_ns = first.deadline_ns - first.arrival_ns
        slack_ns = _slack_ns(bid, at_ns, slo_ns)
        if bid.latest_start_ns is not None:
            slack_ns = max(0, min(slack_ns, bid.latest_start_ns - at_ns))
        k_ns = round(K_SHARE * slo_ns)
        return (
            Candidate(self, bid.model, bid.jobs, bid.size, takes_ns, careful_ns, gain, slack_ns, k_ns, bid.klass, bid),
        )

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        detail = candidate.detail
        assert isinstance(detail, Bid)
        return detail


def _slack_ns(bid: Bid, at_ns: int, most_ns: int) -> int:
    """How long a bid can start later and keep :data:`KEPT` of its worth."""
    least = KEPT * bid.utility.value(at_ns)
    if bid.utility.value(at_ns + most_ns) >= least:
        return most_ns
    low_ns, high_ns = 0, most_ns
    for _ in range(10):
        middle_ns = (low_ns + high_ns) // 2
        if bid.utility.value(at_ns + middle_ns) >= least:
            low_ns = middle_ns
        else:
            high_ns = middle_ns
    return low_ns
