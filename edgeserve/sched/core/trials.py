"""Trials: requests that a policy gave up because of an estimate, run alone where that costs nobody anything.

A policy refuses what it believes to be too slow. What is refused never runs, so what is believed never changes: one
outlier, a wrong profile or a wrong ``expected`` would refuse an app for good. So before a request is refused on an
estimate, the core asks whether running it would tell: one request of an app at a time per lane, on a lane that idles,
is taken from its policy and run alone. Measured, it corrects the latency model that all policies share; in time, it is
an answer that would have been a refusal.

What was measured in the last second confirms an estimate if even the fastest of the last ten runs was too slow: then
there is no trial, so an app that really is too slow has one a second. While one of the ten was fast enough, trials
follow each other until the policy itself believes again. For the policy a request that became a trial is gone
(``on_gone``); its later jobs are queued here. Knows no policy by name.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import WINDOW_AGE_NS
from edgeserve.sched.latency.path_cost import least_alone_ns
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.requests.states import NEW, READY, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS

WAITED_SHARE = 8
"""A request that has waited more than this part of its time was given up because of the load, not of an estimate."""

HURT_RUNS = 16
"""Where a trial is believed to take so long that requests of other apps would be late behind it: at most one in so many
times what it is believed to take: what the last trial took if that was in time."""

LATELY_NS = 1000 * NS_PER_MS
"""What is older is not lately. A measurement confirms an estimate until then, and an app whose times allow its deadline
again is served after this time (a request with hints is refused for what it says of itself, which measurements confirm
for as long as they count). A model that was not measured lately, and is believed to be too slow for the request even
alone, may have a trial although its lanes are busy: it waits for a lane that idles, or goes before a batch that can
wait for it. Apps that were not asked lately are delayed by no trial."""


class AppTrials:
    """The trials of one app. ``open`` counts those that have not ended, ``last_ns`` when the last was taken,
    ``took_ns`` what it took if it was in time, else 0. Counts are for people."""

    __slots__ = ("open", "last_ns", "took_ns", "tried", "in_time")

    def __init__(self) -> None:
        self.open = 0
        self.last_ns = -(2**62)
        self.took_ns = 0
        self.tried = 0
        self.in_time = 0


class TrialUtility:
    """A trial's utility. It competes with nobody: what it is worth is never asked."""

    def value(self, start_ns: int) -> float:
        """Nothing, whenever it starts."""
        return 0.0


class Trials(Policy):
    """The policy of requests that are trials: one job at a time, in the order in which they became ready."""

    def __init__(self, state: State, slack: Slack) -> None:
        super().__init__("trials", tuple(state.apps.values()), {})
        self._state = state
        self._slack = slack
        self._of: Dict[str, AppTrials] = {name: AppTrials() for name in state.apps}
        self.jobs: Dict[int, Job] = {}

    # --- taking a request ---------------------------------------------------------------------------------------------

    def takes(self, request: RequestRecord, reason: str) -> bool:
        """Whether a request that its policy gives up for ``reason`` is run as a trial instead. Then it is taken from
        the policy: nothing else is to be done with it."""
        policy, now = request.policy, self._state.board.now_ns
        if policy is self or reason not in policy.by_estimate or not policy.options.trials:
            return False
        if any(node.model in self._state.sequences.models for node in request.app.nodes):
            return False  # one alone would hold the lane for a whole sequence
        mine = self._of[request.app.name]
        places = self._state.lanes_of[request.app.entries[0].model]
        if mine.open >= len(places) or self._state.draining or request.deadline_ns <= now:
            return False
        allowed_ns = request.deadline_ns - request.arrival_ns
        if now - request.arrival_ns - request.breakdown.execute_ns > allowed_ns // WAITED_SHARE:
            return False
        if self._is_confirmed(request, allowed_ns, now) or not self._would_tell(request, mine, now):
            return False
        mine.open += 1
        mine.tried += 1
        mine.last_ns = now
        request.note(now, "given up by its policy:", reason, "- run as a trial, to measure what the estimate says")
        self._take(request)
        return True

    def _is_confirmed(self, request: RequestRecord, allowed_ns: int, now: int) -> bool:
        """Whether what was measured just now says that the request's app takes longer than ``allowed_ns`` alone."""
        since_ns = now - (WINDOW_AGE_NS if request.hints else LATELY_NS)
        return least_alone_ns(request.app, request.hints, self._state.latencies_of, since_ns) > allowed_ns

    def _would_tell(self, request: RequestRecord, mine: AppTrials, now: int) -> bool:
        """Whether some lane could run the request's next job soon, without harm."""
        state = self._state
        nodes = (
            request.app.entries
            if request.state == NEW
            else [job.node for job in request.jobs.values() if job.state == READY]
        )
        for node in nodes:
            left_ns = request.deadline_ns - now - state.costs[request.app.name].rest_ns[node.name]
            for lane in state.lanes_of[node.model]:
                latency = state.latency[node.model, lane.name]
                is_unknown = now - latency.observed_ns >= LATELY_NS and latency.alone_ns > left_ns
                if not lane.up or lane.hung or (lane.works and not is_unknown):
                    continue
                believed_ns = mine.took_ns or latency.alone_likely_ns
                if now - mine.last_ns >= HURT_RUNS * believed_ns or self._slack.spares_arrivals(
                    lane, believed_ns, now - LATELY_NS, request.app
                ):
                    return True
        return False

    def _take(self, request: RequestRecord) -> None:
        before, board = request.policy, self._state.board
        request.policy = self
        for job in list(request.jobs.values()):
            if job.queued:
                before.on_gone(job, board)
                self.jobs[job.seq] = job

    def ended(self, request: RequestRecord, in_time: bool) -> None:
        """A trial has its end."""
        mine = self._of[request.app.name]
        mine.open -= 1
        mine.took_ns = request.breakdown.execute_ns if in_time else 0
        mine.in_time += in_time

    # --- running it ---------------------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        self.jobs[job.seq] = job

    def on_gone(self, job: Job, board: Board) -> None:
        del self.jobs[job.seq]

    def on_started(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            del self.jobs[job.seq]

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        if not work.failed:
            for job in work.jobs:
                self._state.policy_of[job.request.app.name].on_trial(job, work, finished_ns - started_ns, board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        """The first trial that this lane could run, if the lane idles."""
        if lane.works:
            return None
        for job in self.jobs.values():
            model = job.node.model
            if model in lane.models and job.lane in ("", lane.name) and board.is_resident(model, lane):
                latency = board.latency(model, lane.name)
                return Bid(
                    model,
                    (job,),
                    latency.sizes[0],
                    latency.alone_likely_ns,
                    TrialUtility(),
                    latency.alone_likely_ns,
                    klass=job.request.klass,
                )
        return None

    def may_go_first(self, bid: Bid, other: Bid, at_ns: int) -> bool:
        """Whether a trial goes before a batch of somebody else: the model was not measured lately, and the batch
        delivers as much after it."""
        for lane in self._state.lanes_of[bid.model]:
            if self._state.board.now_ns - self._state.latency[bid.model, lane.name].observed_ns < LATELY_NS:
                return False
        return other.utility.value(at_ns + bid.expected_ns) >= other.utility.value(at_ns)

    def queued(self) -> List[Job]:
        return list(self.jobs.values())

    def figures(self) -> Mapping[str, Any]:
        """Per app that had any: how many trials there were, and how many of them were in time."""
        return {app: {"tried": mine.tried, "in_time": mine.in_time} for app, mine in self._of.items() if mine.tried}
