"""The auction: every lane that accepts a batch gets the best bid for it, checked and launched.

``sched/policy_api/arbiter.py`` chooses the best of several bids; here the choice is checked to be legal and put on the
lane. Knows no policy by name.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from edgeserve.errors import PolicyError
from edgeserve.priority_class import RESERVED
from edgeserve.sched.core.experiments import Probes
from edgeserve.sched.core.holds import Holds
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.returns import Returns
from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.requests.states import READY, STORY_LEN_MAX, move_job
from edgeserve.sched.resources.lanes import RUN, Lane
from edgeserve.sched.resources.placement import RESIDENT, Placement
from edgeserve.sched.resources.sequences import STATE_MEMORY, Fit


class Auction:
    """Fills the lanes; ``holds``: which of them wait for a fuller batch."""

    def __init__(
        self, state: State, request_manager: RequestManager, returns: Returns, probes: Probes, holds: Holds
    ) -> None:
        self._state = state
        self._board = state.board
        self._request_manager = request_manager
        self._returns = returns
        self._trials = request_manager.ends.trials
        self._probes = probes
        self._ready = state.ready
        self._holds = holds
        self._bidders: Dict[str, List[Policy]] = {  # by lane
            lane.name: [
                policy for policy in state.policies if any(app in policy.apps for app in state.board.apps_on[lane.name])
            ]
            for lane in state.run_lanes
        }

    def run(self) -> None:
        """Fill every lane that accepts a work with the best bid for it."""
        board = self._board
        now = board.now_ns
        holds, sequences, retained = self._holds, self._state.sequences.models, self._state.retained
        devices = self._state.devices
        for lane in self._state.run_lanes:
            full: Tuple[str, ...] = ()  # models of sequences that find no room
            while lane.accepts(now) if lane.works else lane.up and not lane.hung:
                bids: List[Bid] = []
                for policy in self._bidders[lane.name]:
                    if policy.is_idle and not retained:
                        continue
                    bid = policy.bid(lane, board)
                    if bid is None or bid.model in full:
                        continue
                    bid.policy = policy
                    if bid.steps_max is None and bid.model in sequences:
                        self._say_steps(bid)
                    bids.append(bid)
                trial = self._trials.bid(lane, board) if self._trials.jobs else None
                if trial is not None and self._trial_may_run(trial, bids, lane):
                    self.launch(lane, trial)
                    continue
                if not bids:
                    break
                bid = bids[0]
                if len(bids) > 1 or bid.is_background:
                    winner = self._winner(bids, lane)
                    if winner is None:
                        break
                    bid = winner
                may_wait = now < holds.awaited_until_ns or holds.waits or devices[lane.device].pressure
                if may_wait and holds.holds(lane, bid, bids):
                    break
                if bid.model not in sequences:
                    self.launch(lane, bid)
                    if lane.depth == 1 and not lane.ahead_ns:
                        break  # it is full
                elif not self._launch_sequences(lane, bid):
                    full = (*full, bid.model)

    def _winner(self, bids: List[Bid], lane: Lane) -> Bid | None:
        """The best bid that may start now: where the best one has to yield to who may come, or can, the next best."""
        gap_ns, passed_ns = lane.dispatch_gap.careful_ns, self._board.passed_ns
        at_ns = lane.available_ns(self._board.now_ns)
        left = bids
        while left:
            bid = arbiter.choose(left, at_ns, gap_ns)
            if not bid.is_background:
                if passed_ns:
                    return arbiter.overdue(left, passed_ns, bid, self._board.now_ns, at_ns + gap_ns)
                return bid
            yielding = self._yielding(bid, lane)
            if yielding is not None:
                return yielding
            left = [other for other in left if other is not bid]
        return None

    def _trial_may_run(self, trial: Bid, bids: List[Bid], lane: Lane) -> bool:
        """True if a trial may have the lane: no other bid wants it, or the others can wait, and no critical request
        could need it before the trial's expected end."""
        trial.policy = self._trials
        others = [bid for bid in bids if not bid.probe]
        gap_ns, at_ns = lane.dispatch_gap.careful_ns, lane.available_ns(self._board.now_ns)
        if others and not self._trials.may_go_first(trial, arbiter.choose(others, at_ns, gap_ns), at_ns + gap_ns):
            return False
        return trial.priority_class in RESERVED or self._fits(trial, trial.size, lane)

    def _yielding(self, bid: Bid, lane: Lane) -> Bid | None:
        """The part of background work or of a probe that may run now: all of it, a smaller batch that is over before
        the next critical request could need the lane, or nothing: near a limit of heat or power it waits until its
        app's ``background_wait`` is over. A probe must delay no request at all."""
        pauses = self._state.devices[lane.device].pressure > 0 and not self._state.draining
        if pauses and (bid.probe or not any(self._board.has_waited(job) for job in bid.jobs)):
            return None
        if bid.probe and not self._probes.may_start(bid, lane, self._board.now_ns):
            return None
        latency = self._state.latency.get((bid.model, lane.name))
        if latency is None or bid.size not in latency.sizes:
            return bid  # which is not legal, as launching it says
        if self._fits(bid, bid.size, lane):
            return bid
        if bid.probe:
            return None
        for size in reversed(latency.sizes):
            if size < bid.size and self._fits(bid, size, lane):
                expected_ns = max(1, bid.expected_ns * latency.likely_ns[size] // latency.likely_ns[bid.size])
                return bid.resized(bid.jobs[:size], size, expected_ns, bid.steps_max)
        return bid if self._has_waited(bid) else None

    def _fits(self, bid: Bid, size: int, lane: Lane) -> bool:
        """True if a batch of this size of a bid's jobs would be over, as slow as the slowest lately, before it could
        make a critical request late."""
        latency = self._state.latency[bid.model, lane.name]
        takes_ns = max(latency.slowest_ns[size], latency.estimate_ns[size])
        likely_ns = latency.likely_ns[bid.size]
        if bid.expected_ns > likely_ns and bid.model not in self._state.sequences.models:  # several steps, more work
            takes_ns = takes_ns * bid.expected_ns // likely_ns
        return self._board.spares_critical(lane, takes_ns)

    def _has_waited(self, bid: Bid) -> bool:
        """True if a job of background work has waited for so long that it need not yield; then its app's next wait
        begins."""
        board = self._board
        for job in bid.jobs:
            if board.has_waited(job):
                board.forced_ns[job.request.app.name] = board.now_ns
                return True
        return False

    def _launch_sequences(self, lane: Lane, bid: Bid) -> bool:
        """Launch the part of a batch of sequences that finds room on the lane: slots, and bytes for the growth of its
        jobs. Where there is none, the sequences that took their places last give them up. False: nothing can run until
        a batch of the model that runs elsewhere has ended."""
        if self._illegal(lane, bid, self._state.devices[lane.device].placements.get(bid.model)):
            self.launch(lane, bid)  # which says why not
        sequences = self._state.sequences
        jobs = bid.jobs
        while jobs:
            fit = sequences.fit(jobs, None if bid.open_steps else bid.steps_max, lane)
            if fit.jobs:
                is_whole = len(fit.jobs) == len(bid.jobs) and fit.steps == bid.steps_max
                if not is_whole or bid.expected_ns % fit.steps:
                    bid = self._of_steps(bid, fit, lane)
                self.launch(lane, bid, fit.extra_bytes)
                return True
            if fit.release is not None:
                self._returns.release(fit.release, "others need its place")
            else:
                alone = next((job for job in jobs if sequences.is_alone(job, lane)), None)
                if alone is None:
                    return False
                self._request_manager.fail(
                    alone,
                    f"{STATE_MEMORY}: alone, its sequence needs more than [model.{bid.model}] state_memory allows",
                )
            jobs = [
                job for job in jobs if job.state == READY and job.lane in ("", lane.name) and job is not fit.release
            ]  # its policy may want that one elsewhere now
        return True

    def _say_steps(self, bid: Bid) -> None:
        """A bid for sequences that leaves the number of steps to the core: as many as the longest of them is expected
        to need. Their time counts in the auction; a batch that others have cut short must not go before these."""
        bid.steps_max = max([self._state.sequences.steps_left(job) for job in bid.jobs], default=1)
        bid.expected_ns *= bid.steps_max
        bid.open_steps = True

    def _of_steps(self, bid: Bid, fit: Fit, lane: Lane) -> Bid:
        """A bid for these jobs of another one, for so many steps."""
        likely_ns = self._state.latency[bid.model, lane.name]
        size = bid.size if len(fit.jobs) == len(bid.jobs) else likely_ns.size_for[len(fit.jobs)]
        step_ns = max(
            1, bid.expected_ns // (bid.steps_max or 1) * likely_ns.likely_ns[size] // likely_ns.likely_ns[bid.size]
        )
        return bid.resized(fit.jobs, size, step_ns * fit.steps, fit.steps)

    def launch(self, lane: Lane, bid: Bid, extra_bytes: int = 0) -> None:
        """Put a bid's batch on the lane. An illegal one raises :class:`PolicyError` and changes nothing."""
        state, now = self._state, self._board.now_ns
        placement = state.devices[lane.device].placements.get(bid.model)
        problem = self._illegal(lane, bid, placement)
        if problem or placement is None:
            story = "\n".join(bid.jobs[0].request.story()) if bid.jobs else ""
            name = bid.policy.name if bid.policy is not None else "?"
            raise PolicyError(f"policy {name!r} may not run {bid!r} on {lane.name}: {problem}\n{story}")
        for request, reason in bid.drops:
            if not request.ended:
                self._request_manager.give_up(request, reason)
        # What stands behind a work that hangs must be past its window when the hang is noticed: its jobs go elsewhere.
        hung_from_ns = (min(now, lane.head_due_ns) if lane.works else now) + lane.hang_ns
        jobs, probe = ((), bid.jobs[0]) if bid.probe else (tuple(bid.jobs), None)
        rest_ns = state.latency[bid.model, lane.name].rest_ns
        if rest_ns and not lane.has_rested(now):
            rest_ns = 0
        work = state.works.put(now, RUN, lane, bid.model, bid.expected_ns + rest_ns, jobs, bid.size, bid.policy, probe)
        work.rested = rest_ns > 0
        placement.in_flight += 1
        self._board.ends_ns.clear()
        if probe is not None:
            self._probes.take(probe)
        else:
            work.steps_max = bid.steps_max
            work.at_once = work.starts_ns == now and lane.depth == 1 and not lane.ahead_ns
            others, tracked = len(work.jobs) - 1, state.memory.tracked
            for job in work.jobs:
                move_job(job, "launch")
                job.launched_ns = now
                self._ready.remove(job)
                if tracked:
                    state.memory.unwant(job)
                log, what = job.request.log, ("launched", job.node.name, job.part or "", "in work", work.id)
                if len(log) < STORY_LEN_MAX:  # as note, without its call
                    log.append((now, (*what, "on", lane.name, "with", others, "others")))
            sequence = state.sequences.models.get(bid.model)
            if sequence is not None:  # once they wait for the model no more, on any lane
                work.reads = bool([job for job in work.jobs if not job.has_state])
                work.step_ns = max(1, bid.expected_ns // (bid.steps_max or 1))
                if sequence.prefill_tokens:  # no turn is longer, for any prompt before the first step
                    work.step_ns = min(work.step_ns, state.latency[bid.model, lane.name].likely_ns[bid.size])
                state.sequences.started(work, extra_bytes)
            if tracked:  # (a probe is no use of its model: demand decides what stays in memory)
                state.devices[lane.device].touch(placement, now)
        state.actions.append(
            RunBatch(
                work.id,
                lane.name,
                bid.model,
                tuple([job.id for job in bid.jobs]) if len(bid.jobs) > 1 else (bid.jobs[0].id,),
                bid.size,
                0,
                min(bid.start_before_ns, hung_from_ns),
                bid.expected_ns,
                bid.steps_max,
                bid.probe,
                bid.variant,
            )
        )
        if probe is None:
            work.policy.on_started(work, self._board)

    def _illegal(self, lane: Lane, bid: Bid, placement: Placement | None) -> str:
        """The reason why a bid must not run, or ``""``."""
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
            if (
                job.state != READY
                or (job.model != bid.model and not job.may_run(bid.model))
                or (job.lane and job.lane != lane.name)
            ):
                return f"{job!r} is not ready for model {bid.model!r} here"
            if job.request.policy is not bid.policy or job.request in dropped:
                return f"{job!r} is not this policy's, or its request is dropped by the same bid"
            seen.add(job.seq)
        if len(seen) != count:
            return "a job stands in the batch twice"
        return ""
