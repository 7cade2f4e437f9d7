"""The auction: every lane that accepts a work gets the best bid for it, checked and launched.

Which of several bids is best says ``sched/policy_api/arbiter.py``; here it is asked, held to what is legal, and put on
the lane. Knows no policy by name.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.core.probes import Probes
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import READY, move_job
from edgeserve.sched.resources.lanes import RUN, Lane
from edgeserve.sched.resources.model_cache import RESIDENT, Placement
from edgeserve.units import NS_PER_MS

CRITICAL_MEMORY_NS = 1000 * NS_PER_MS
"""How long after its last critical request an app is protected from background work that could block the next."""


class Auction:
    """Fills the lanes. ``background_at_ns``: when background work that had to yield may be tried again, or None."""

    def __init__(self, state: State, request_manager: RequestManager, probes: Probes) -> None:
        self.background_at_ns: int | None = None
        self._state = state
        self._board = state.board
        self._request_manager = request_manager
        self._probes = probes
        self._bidders: Dict[str, Tuple[Policy, ...]] = {
            lane.name: tuple([policy for policy in state.policies if any(_uses(app, lane) for app in policy.apps)])
            for lane in state.run_lanes}

    def run(self) -> None:
        """Fill every lane that accepts a work with the best bid for it."""
        board = self._board
        now = board.now_ns
        self.background_at_ns = None
        for lane in self._state.run_lanes:
            while lane.accepts(now):
                bids: List[Bid] = []
                for policy in self._bidders[lane.name]:
                    bid = policy.bid(lane, board)
                    if bid is not None:
                        bid.policy = policy
                        bids.append(bid)
                if not bids:
                    break
                at_ns = lane.available_ns(now)
                bid = bids[0]
                if len(bids) > 1:  # a probe competes with nobody
                    bid = arbiter.choose([other for other in bids if not other.probe] or bids, at_ns)
                if (bid.probe or bid.klass == "background") and not self._background_may_run(bid, lane):
                    break
                self.launch(lane, bid, at_ns)

    def _background_may_run(self, bid: Bid, lane: Lane) -> bool:
        """Whether background work would be over before the next critical request could need the lane, and a probe
        before anybody could."""
        now = self._board.now_ns
        if bid.probe and not self._probes.may_start(bid, lane, now):
            return False
        for app, (last_ns, slack_ns) in self._state.critical.items():
            until_ns = last_ns + CRITICAL_MEMORY_NS
            if until_ns > now and bid.expected_ns > slack_ns and _uses(self._state.apps[app], lane):
                if self.background_at_ns is None or until_ns < self.background_at_ns:
                    self.background_at_ns = until_ns
                return False
        return True

    def launch(self, lane: Lane, bid: Bid, at_ns: int) -> None:
        """Put a bid's batch on the lane, where it starts at ``at_ns``. An illegal one raises :class:`PolicyError` and
        changes nothing."""
        state, now = self._state, self._board.now_ns
        placement = state.devices[lane.device].placements.get(bid.model)
        problem = self._illegal(lane, bid, placement)
        if problem or placement is None:
            story = "\n".join(bid.jobs[0].request.story()) if bid.jobs else ""
            name = bid.policy.name if bid.policy is not None else "?"
            raise PolicyError(f"policy {name!r} may not run {bid!r} on {lane.name}: {problem}\n{story}")
        for request, reason in bid.drops:
            if not request.ended:
                self._request_manager.end(request, "drop", reason)
        if bid.probe:
            self._launch_probe(lane, bid, placement)
            return
        # What stands behind a work that hangs must be past its window when the hang is noticed: its jobs go elsewhere.
        patience_ns = (min(now, lane.head_due_ns) if lane.works else now) + lane.hang_ns
        work = state.works.put(now, RUN, lane, bid.model, bid.expected_ns, tuple(bid.jobs), bid.size, bid.policy)
        self._board.ends_ns.clear()
        others = len(work.jobs) - 1
        tracked = state.memory.tracked
        for job in work.jobs:
            move_job(job, "launch")
            job.launched_ns = now
            job.queued = False
            if tracked:
                state.memory.unwant(job)
            request = job.request
            request.running += 1
            request.note(now, "launched", job.node.name, job.part or "", "in work", work.id, "on", lane.name, "with",
                         others, "others")
        placement.in_flight += 1
        if tracked:
            state.devices[lane.device].touch(placement)
        ids = tuple([job.id for job in work.jobs]) if others else (work.jobs[0].id,)
        state.actions.append(RunBatch(work.id, lane.name, bid.model, ids, bid.size, bid.start_after_ns,
                                      min(bid.start_before_ns, patience_ns), bid.expected_ns, bid.steps_max))
        work.policy.on_started(work, self._board)

    def _launch_probe(self, lane: Lane, bid: Bid, placement: Placement) -> None:
        """Run kept inputs again. Its model does not count as used by that: demand decides what stays in memory."""
        state, now, job = self._state, self._board.now_ns, bid.jobs[0]
        self._probes.take(job)
        self._board.ends_ns.clear()
        work = state.works.put(now, RUN, lane, bid.model, bid.expected_ns, (), bid.size, bid.policy, job)
        placement.in_flight += 1
        state.actions.append(RunBatch(work.id, lane.name, bid.model, (job.id,), bid.size, bid.start_after_ns,
                                      min(bid.start_before_ns, now + lane.hang_ns), bid.expected_ns, None, True))

    def _illegal(self, lane: Lane, bid: Bid, placement: Placement | None) -> str:
        """Why a bid must not run, or ``""``."""
        if placement is None or placement.state != RESIDENT or bid.model not in lane.models:
            return f"model {bid.model!r} is not resident on this lane's device"
        if bid.probe:
            return self._probes.illegal(bid, lane)
        sizes = self._state.latency[bid.model, lane.name].sizes
        count = len(bid.jobs)
        if not count or count > bid.size or bid.size not in sizes:
            return f"{count} jobs in size {bid.size}: sizes are {sizes}"
        dropped = [request for request, _ in bid.drops] if bid.drops else []
        seen = set()
        for job in bid.jobs:
            if job.state != READY or job.node.model != bid.model or (job.lane and job.lane != lane.name):
                return f"{job!r} is not ready for model {bid.model!r} here"
            if self._state.policy_of[job.request.app.name] is not bid.policy or job.request in dropped:
                return f"{job!r} is not this policy's, or its request is dropped by the same bid"
            seen.add(job.seq)
        if len(seen) != count:
            return "a job stands in the batch twice"
        return ""


def _uses(app: App, lane: Lane) -> bool:
    return any(node.model in lane.models for node in app.nodes)
