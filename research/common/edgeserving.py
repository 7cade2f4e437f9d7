"""EdgeServing (arXiv 2605.05527) as baselines of ``bench/variants.py``: the rule of its paper, and those of its
public code. Nothing serves by them. Importing this module adds their kinds.

Both choose model, exit (here: variant) and batch at once, whenever a lane is free, from one queue for each app in order
of arrival. Both are given what their authors leave out: a request that no variant can answer in time is dropped.
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Sequence

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS

PAPER, CODE, CODE_SUM = "edgeserving", "edgeserving_code", "edgeserving_sum"

CLIP = 20.0
"""The exponent of the stability score is bounded: a request that is late for long must not outweigh all others."""

VIOLATIONS = 0.05
"""The public code's target: so many violations for each request."""

UTILITY = 9.0
"""The share of the best exit in the score of :class:`EdgeServingSum` for each request: .8 times about 11 in the code,
where the first exit has next to nothing."""

VIRTUAL_MAX = 1000.0
LONG_QUEUE = 10
"""The public code serves the longest queue alone where one is longer than this."""


class Choice(NamedTuple):
    """A batch that could start now: of which app, on which model."""

    app: str
    model: str
    jobs: Sequence[Job]
    size: int
    takes_ns: int


class EdgeServing(Policy):
    """The paper's rule. Of each queue the deepest exit with which its head is in time, in the largest batch; of the
    queues that whose batch leaves least behind: the sum over all that still wait of ``exp(waited / SLO)``."""

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._queues: Dict[str, Dict[int, Job]] = {app.name: {} for app in apps}

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        models = request.app.nodes[0].models
        ends = [board.earliest_end_ns(model) for model in models]
        known = [ends_ns for ends_ns in ends if ends_ns is not None]
        return None if known and min(known) <= request.deadline_ns else CANNOT_MAKE_DEADLINE

    def on_ready(self, job: Job, board: Board) -> None:
        self._queues[job.request.app.name][job.seq] = job

    def on_gone(self, job: Job, board: Board) -> None:
        del self._queues[job.request.app.name][job.seq]

    def on_started(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            del self._queues[job.request.app.name][job.seq]

    def plan(self, board: Board) -> None:
        for app in self.apps:
            ends = [board.earliest_end_ns(model) for model in app.nodes[0].models]
            ends_ns = min([end for end in ends if end is not None], default=0)
            for job in list(self._queues[app.name].values()):
                if job.request.deadline_ns < ends_ns:
                    board.drop(job.request, CANNOT_MAKE_DEADLINE)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        found = self.choose(lane, board)
        return None if found is None else bid_of(found, board)

    def choose(self, lane: Lane, board: Board) -> Choice | None:
        """The batch to start."""
        best: Choice | None = None
        least = math.inf
        for app in self.apps:
            found = self._deepest(app, lane, board)
            if found is not None:
                left = self._left(found, lane.available_ns(board.now_ns) + found.takes_ns)
                if left < least:
                    best, least = found, left
        return best

    def models_on(self, app: App, lane: Lane, board: Board) -> List[str]:
        """The variants that the lane could run now, the best first."""
        return [model for model in app.nodes[0].models if model in lane.models and board.is_resident(model, lane)]

    def waiting(self, app: App) -> List[Job]:
        """The queue of an app, in order of arrival."""
        return list(self._queues[app.name].values())

    def _deepest(self, app: App, lane: Lane, board: Board) -> Choice | None:
        jobs, found = self.waiting(app), None
        for model in self.models_on(app, lane, board) if jobs else ():
            latency = board.latency(model, lane.name)
            batch = jobs[: latency.size_max]
            size = latency.size_for[len(batch)]
            found = Choice(app.name, model, batch, size, latency.likely_ns[size])
            if lane.available_ns(board.now_ns) + found.takes_ns <= batch[0].request.deadline_ns:
                break
        return found

    def _left(self, choice: Choice, at_ns: int) -> float:
        taken = {job.seq for job in choice.jobs}
        total = 0.0
        for queue in self._queues.values():
            for job in queue.values():
                if job.seq not in taken:
                    request = job.request
                    waited = (at_ns - request.arrival_ns) / max(1, request.deadline_ns - request.arrival_ns)
                    total += math.exp(min(CLIP, waited))
        return total

    def queued(self) -> List[Job]:
        return [job for queue in self._queues.values() for job in queue.values()]


class EdgeServingCode(EdgeServing):
    """A rule of the public code: backlog times batch times accuracy per time, less a virtual queue of violations of
    each model for every request that the batch brings late."""

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._virtual: Dict[str, float] = {app.name: 0.0 for app in apps}

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        for job in work.jobs:
            name = job.request.app.name
            more = (finished_ns > job.request.deadline_ns) - VIOLATIONS
            self._virtual[name] = min(VIRTUAL_MAX, max(0.0, self._virtual[name] + more))

    def choose(self, lane: Lane, board: Board) -> Choice | None:
        best: Choice | None = None
        most = -math.inf
        longest = max([len(queue) for queue in self._queues.values()])
        for app in self.apps:
            jobs, virtual = self.waiting(app), self._virtual[app.name]
            if longest > LONG_QUEUE and len(jobs) < longest:
                continue
            for model in self.models_on(app, lane, board) if jobs else ():
                latency = board.latency(model, lane.name)
                for size in latency.sizes:
                    batch = jobs[:size]
                    ends_ns = lane.available_ns(board.now_ns) + latency.likely_ns[size]
                    late = sum([job.request.deadline_ns < ends_ns for job in batch])
                    score = self.score(app, model, len(jobs), batch, latency.likely_ns[size] / NS_PER_MS, board.now_ns)
                    score += virtual * (VIOLATIONS * len(batch) - late)
                    if score > most:
                        best, most = Choice(app.name, model, batch, size, latency.likely_ns[size]), score
                    if len(batch) < size:
                        break
        return best

    def score(self, app: App, model: str, backlog: int, batch: Sequence[Job], takes_ms: float, now_ns: int) -> float:
        """The score of a batch."""
        return backlog * len(batch) * app.nodes[0].qualities.get(model, 1.0) / takes_ms


class EdgeServingSum(EdgeServingCode):
    """The rule that the public code runs at last ("ours_normalized" of dododo99k/EdgeServing): a tenth of the backlog
    times what the batch has waited, in milliseconds, per time to the power of .4; and for each request what its exit is
    worth, which the authors set by hand from nothing for the first exit to about 11 for the last."""

    def score(self, app: App, model: str, backlog: int, batch: Sequence[Job], takes_ms: float, now_ns: int) -> float:
        waited_ms = sum([(now_ns - job.request.arrival_ns) / NS_PER_MS for job in batch])
        qualities = app.nodes[0].qualities
        least = min(qualities.values(), default=0.0)
        worth = (qualities.get(model, 1.0) - least) / (1.0 - least) if least < 1.0 else 1.0
        return backlog / 10 * waited_ms / takes_ms**0.4 + UTILITY * len(batch) * worth


def bid_of(choice: Choice, board: Board) -> Bid:
    """The bid that starts a batch."""
    bid = bid_for(choice.jobs, choice.size, choice.takes_ns, board)
    bid.model = choice.model
    return bid


POLICIES[PAPER] = EdgeServing
POLICIES[CODE] = EdgeServingCode
POLICIES[CODE_SUM] = EdgeServingSum
