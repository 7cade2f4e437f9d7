"""Experiments: jobs that run alone in order to measure, where that costs no request anything. Two kinds of them.

*Trials* are requests that a policy gave up because of an estimate. A refused request never runs, so one outlier or a
wrong profile would refuse an app for good. So before a request is refused on an estimate, one request of an app at a
time per lane, on a lane that idles, is taken from its policy and run alone: it corrects the latency model that all
policies share. A measurement of the last second confirms an estimate if even the fastest of the last ten runs was
too slow: an app that really is too slow has one trial a second.

*Probes* run inputs that the world keeps for a policy (``RetainInputs``), however their requests end. Each is
taken by one batch with ``probe`` or let go of (``ReleaseInputs``), never both. Nothing waits for a probe, and no job
moves when the lane answers. The policy says which inputs are worth it; that no probe delays real work is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

from edgeserve.errors import PolicyError
from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import WINDOW_AGE_NS
from edgeserve.sched.latency.path_cost import least_alone_ns
from edgeserve.sched.policies.common.bidding import bid_to_measure
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.actions import Action, EvictModel, ReleaseInputs, RetainInputs
from edgeserve.sched.requests.states import NEW, READY, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import RESIDENT
from edgeserve.units import FOREVER_NS, NS_PER_MS

WAITED_SHARE = 8
"""A request that has waited more than this part of its time was given up because of the load, not of an estimate."""

HURT_RUNS = 16
"""The least pause before another trial that would make requests of other apps late, in multiples of its expected time
(the last trial's time, if that was in time)."""

LATELY_NS = 1000 * NS_PER_MS
"""The greatest age of a measurement that counts as recent. A measurement confirms an estimate for so long (of a request
with hints, for as long as it counts). A model that was not measured lately, and is believed to be too slow even alone,
may have a trial although its lanes are busy: it waits for one that idles, or goes before a batch that can wait. Apps
that were not asked lately are delayed by no trial."""


@dataclass(eq=False)
class AppTrials:
    """The trials of one app. Counts are for people."""

    open: int = 0  # that have not ended
    last_ns: int = -FOREVER_NS  # when the last was taken
    took_ns: int = 0  # what it took if it was in time, else 0
    tried: int = 0
    in_time: int = 0


class Trials(Policy):
    """The policy of requests that are trials: one job at a time, in the order in which they became ready. For its own
    policy such a request is gone (``on_gone``)."""

    def __init__(self, state: State, slack: Slack) -> None:
        super().__init__("trials", tuple(state.apps.values()), {})
        self._state = state
        self._slack = slack
        self._of: Dict[str, AppTrials] = {name: AppTrials() for name in state.apps}
        self.jobs: Dict[int, Job] = {}

    def takes(self, request: RequestRecord, reason: str) -> bool:
        """True if a request that its policy gives up for ``reason`` is run as a trial instead. Then it is taken from
        the policy: nothing else is to be done with it."""
        policy, state = request.policy, self._state
        now = state.board.now_ns
        if policy is self or reason not in policy.by_estimate or not policy.options.trials:
            return False
        if any(node.model in state.sequences.models for node in request.app.nodes):
            return False  # one alone would hold the lane for a whole sequence
        mine = self._of[request.app.name]
        if mine.open >= len(state.lanes_of[request.app.entries[0].model]):
            return False
        allowed_ns = request.deadline_ns - request.arrival_ns
        if (
            state.draining
            or request.deadline_ns <= now
            or now - request.arrival_ns - request.breakdown.execute_ns > allowed_ns // WAITED_SHARE
            or self._is_confirmed(request, allowed_ns, now)
            or not self._would_tell(request, mine, now)
        ):
            return False
        mine.open += 1
        mine.tried += 1
        mine.last_ns = now
        request.note(now, "given up by its policy:", reason, "- run as a trial, to measure what the estimate says")
        request.policy = self
        for job in list(request.jobs.values()):
            if job.queued:
                state.ready.tell(policy.on_gone, job)
                self.jobs[job.seq] = job
        return True

    def _is_confirmed(self, request: RequestRecord, allowed_ns: int, now: int) -> bool:
        """True if what was measured just now says that the request's app takes longer than ``allowed_ns`` alone."""
        since_ns = now - (WINDOW_AGE_NS if request.hints else LATELY_NS)
        return least_alone_ns(request.app, request.hints, self._state.latencies_of, since_ns) > allowed_ns

    def _would_tell(self, request: RequestRecord, mine: AppTrials, now: int) -> bool:
        """True if some lane could run the request's next job soon, without harm."""
        board = self._state.board
        ready = [job.node for job in request.jobs.values() if job.state == READY]
        for node in request.app.entries if request.state == NEW else ready:
            left_ns = request.deadline_ns - now - board.rest_ns(request.app, node)
            for lane, latency, _, _ in board.starts(node.model):
                if lane.works and (now - latency.observed_ns < LATELY_NS or latency.alone_ns <= left_ns):
                    continue
                believed_ns = mine.took_ns or latency.alone_likely_ns
                if now - mine.last_ns >= HURT_RUNS * believed_ns or self._slack.spares_arrivals(
                    lane, believed_ns, now - LATELY_NS, request.app
                ):
                    return True
        return False

    def ended(self, request: RequestRecord, in_time: bool) -> None:
        """A trial has its end."""
        mine = self._of[request.app.name]
        mine.open -= 1
        mine.took_ns = request.breakdown.execute_ns if in_time else 0
        mine.in_time += in_time

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
                return bid_to_measure(job, lane, board)
        return None

    def may_go_first(self, bid: Bid, other: Bid, at_ns: int) -> bool:
        """True if a trial goes before a batch of another policy: the model was not measured lately, and the batch
        delivers as much after it."""
        lately_ns = self._state.board.now_ns - LATELY_NS
        if any(latency.observed_ns > lately_ns for latency in self._state.latencies_of[bid.model]):
            return False
        return other.utility.value(at_ns + bid.expected_ns) >= other.utility.value(at_ns)

    def queued(self) -> List[Job]:
        return list(self.jobs.values())

    def figures(self) -> Mapping[str, Any]:
        """Per app that had any: how many trials there were, and how many of them were in time."""
        return {app: {"tried": mine.tried, "in_time": mine.in_time} for app, mine in self._of.items() if mine.tried}


class Probes:
    """The inputs that the world keeps (``state.retained``), and the start of probes."""

    def __init__(self, state: State, slack: Slack) -> None:
        self._state = state
        self._slack = slack
        self._retained = state.retained

    def retain(self, job: Job) -> bool:
        """Keep a ready job's inputs. False while draining: probes are not begun any more."""
        request = job.request
        if job.state != READY or job.steps or request.stream is not None or job.seq in self._retained:
            raise PolicyError(
                f"retain({job!r}): the job must be ready, not retained yet, and have neither a stream's "
                "state nor steps behind it\n" + "\n".join(request.story())
            )
        if self._state.draining or job.node.model in self._state.sequences.models:
            return False
        self._retained[job.seq] = job
        self._state.actions.append(RetainInputs(job.id))
        return True

    def release(self, job: Job) -> None:
        """No probe of this job will be run."""
        if self._retained.pop(job.seq, None) is None:
            raise PolicyError(f"release({job!r}): it is not retained\n" + "\n".join(job.request.story()))
        self._state.actions.append(ReleaseInputs(job.id))

    def take(self, job: Job) -> None:
        """A probe of it was launched; the batch takes the inputs."""
        del self._retained[job.seq]

    def release_stranded(self) -> None:
        """The server drains, or lanes were lost: inputs that none can run are not kept in the hope of their return."""
        for job in list(self._retained.values()):
            if self._state.draining or not self._state.can_run(job.node.model):
                self.release(job)

    def release_evicted(self, actions: Sequence[Action]) -> None:
        """Models left the memory: a probe is no reason to load one again, so inputs that only these could run go."""
        gone = {action.model for action in actions if type(action) is EvictModel}
        for job in list(self._retained.values()):
            model = job.node.model
            if model in gone and all(item.state != RESIDENT for item in self._state.memory.placements[model]):
                self.release(job)

    def illegal(self, bid: Bid, lane: Lane) -> str:
        """The reason why a bid is no probe, or ``""``. That its model is resident on the lane's device was looked at
        before."""
        smallest = self._state.latency[bid.model, lane.name].sizes[0]
        if len(bid.jobs) != 1 or bid.size != smallest or bid.drops or bid.steps_max is not None:
            return f"a probe runs one job in the smallest size, {smallest}, and drops no job"
        job = bid.jobs[0]
        if self._retained.get(job.seq) is not job or job.node.model != bid.model:
            return f"the inputs of {job!r} are not retained for model {bid.model!r}"
        if self._state.policy_of[job.request.app.name] is not bid.policy:
            return f"{job!r} is not this policy's"
        return ""

    def fits(self, model: str, lane: Lane) -> bool:
        """True if a request that arrives just after a probe started could still be answered by its app's deadline,
        for every app that uses the lane: the probe as slow as planning assumes, then the request alone."""
        return self._slack.spares_arrivals(lane, self._state.latency[model, lane.name].alone_ns)

    def may_start(self, bid: Bid, lane: Lane, now_ns: int) -> bool:
        """True if a probe on this lane now delays no request: nothing is on the lane, no ready job could run on it
        (also one that its policy holds back), and both expected and open requests would be in time after it."""
        if lane.works or not self.fits(bid.model, lane):
            return False
        return self._slack.spares_open(lane, now_ns + self._state.latency[bid.model, lane.name].alone_ns)
