"""The scheduler itself: events in, actions out. No clock, no thread, no socket, no GPU; time is an argument.

:meth:`Scheduler.step` is the only way in and out. It absorbs the events, lets every policy plan once, then fills the
lanes by auction, then the memory by demand. What it coordinates lies beside this file and knows no policy by name: all
tables (``state``), the lives of requests (``request_manager``), the auction, probes.
"""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.errors import PolicyError
from edgeserve.sched.core.auction import Auction
from edgeserve.sched.core.changes import Changes
from edgeserve.sched.core.entry import Entry
from edgeserve.sched.core.experiments import Probes
from edgeserve.sched.core.holds import Holds
from edgeserve.sched.core.moves import Moves
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.returns import Returns
from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.budget import OPERATIONS_MAX
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    Event,
    LaneChanged,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RUNNING, RequestRecord
from edgeserve.sched.requests.work import over_usual_milli
from edgeserve.sched.resources.lanes import NO_JOBS, RUN, Lane, Work
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.sequences import SequenceModel
from edgeserve.units import NS_PER_MS

if TYPE_CHECKING:
    from edgeserve.sched.core.cuts import Cuts  # imported where models make sequences

PENDING_MAX = 2**31
"""The bound on pending requests where none was given."""

WAKES_LATE_NS_MAX = 5 * NS_PER_MS
"""The most of the loop's lateness that is learnt: a longer pause of the machine says nothing about the next time. On
two busy cores it was
0.3 to 4.2 ms."""

FORGET_EVERY_NS = 1000 * NS_PER_MS
"""The time between two removals of old durations: a tenth of their age."""


class Scheduler:
    """All requests, all lanes, one device or several. Not subclassed; what differs between systems is a policy.

    ``lanes`` run batches; each device has one copy lane for loads and evictions besides. ``latency`` has an entry for
    every (model, lane) that is allowed, ``sequences`` one for every model whose items are sequences. ``pending_max``
    bounds the accepted requests of all apps that have not ended.
    ``state`` has all tables, for reading. ``wake_ns`` is when :meth:`step` wants to be called although nothing happens,
    later than the last step, or None.
    """

    def __init__(
        self,
        apps: Sequence[App],
        policies: Sequence[Policy],
        devices: Sequence[Device],
        lanes: Sequence[Lane],
        latency: Mapping[Tuple[str, str], BatchTime],
        sequences: Mapping[str, SequenceModel] | None = None,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self.state = state = State(apps, policies, devices, lanes, latency, sequences or {}, pending_max)
        self._board = state.board
        slack = Slack(state)
        self._holds = Holds(state, slack)
        self._request_manager = RequestManager(state, slack)
        self._ends = self._request_manager.ends
        self._returns = Returns(state, self._request_manager)
        self._probes = Probes(state, slack)
        self._auction = Auction(state, self._request_manager, self._returns, self._probes, self._holds)
        self._cuts: Cuts | None = None
        if state.sequences.models:
            from edgeserve.sched.core.cuts import Cuts

            self._cuts = Cuts(state, slack)
        self._changes = changes = Changes(state, self._request_manager, self._returns, self._probes)
        state.board.connect(Moves(state, self._request_manager), self._probes)
        self._lanes = tuple(lanes)
        self._wakers = [policy for policy in policies if type(policy).next_wakeup_ns is not Policy.next_wakeup_ns]
        self._thinkers = [policy for policy in policies if type(policy).thought_ns is not Policy.thought_ns]
        self.wake_ns: int | None = None
        self._forget_at_ns = 0
        self._handlers: Dict[type, Callable[[Any], None]] = {
            RequestArrived: Entry(state, self._request_manager, self._holds).arrived,
            RequestCancelled: self._cancelled,
            BatchProgress: self._progressed,
            WorkFinished: self._finished,
            WorkRefused: self._refused,
            LaneChanged: changes.lane_changed,
            DeviceChanged: changes.device_changed,
            DrainRequested: changes.drain_requested,
        }

    # --- the interface ------------------------------------------------------------------------------------------------

    def step(self, now_ns: int, events: Sequence[Event] = ()) -> List[Action]:
        """Absorb ``events`` as of ``now_ns`` and return what to do, in order. Without events it is the timer."""
        board, state, request_manager = self._board, self.state, self._request_manager
        if now_ns < board.now_ns:
            raise PolicyError(f"step at {now_ns} ns after one at {board.now_ns} ns: time must not go backwards")
        board.now_ns = now_ns
        if self.wake_ns is not None and now_ns >= self.wake_ns:
            board.wakes_late_ns = max(min(now_ns - self.wake_ns, WAKES_LATE_NS_MAX), board.wakes_late_ns * 7 // 8)
        board.background_at_ns = None
        board.budget.left = OPERATIONS_MAX
        board.ends_ns.clear()
        actions: List[Action] = []
        state.actions = actions
        if now_ns >= self._forget_at_ns:  # before the events: an arrival is judged by present durations
            self._forget_at_ns = now_ns + FORGET_EVERY_NS
            for latency in state.latency.values():
                latency.forget(now_ns)
        for event in events:
            self._handlers[type(event)](event)
        timers, silent_ns = request_manager.timers, state.streams.due_ns
        if (timers and timers[0][0] <= now_ns) or (silent_ns is not None and silent_ns <= now_ns):
            request_manager.run_timers()
        for lane in self._lanes:
            if lane.works and not lane.hung and lane.head_due_ns + lane.hang_ns <= now_ns:
                self._changes.hang(lane)
        for policy in state.policies:
            if not policy.is_idle or state.retained:
                policy.is_idle = True  # it plans once more after its last request has ended
                for app in policy.apps:
                    if state.admission[app.name].pending:
                        policy.is_idle = False
                        break
                policy.plan(board)
        self._holds.wake_ns = None
        if state.ready.count or state.retained:  # there is something to run
            self._auction.run()
        if self._cuts is not None and events and state.sequences.working:
            self._cuts.run()
        if state.memory.tracked:
            managed = state.memory.manage(now_ns)
            actions.extend(managed)
            if state.retained:
                self._probes.release_evicted(managed)
        self._set_wake(now_ns)
        return actions

    def _set_wake(self, now_ns: int) -> None:
        """Find out when something is due by itself: the earliest of all timers, later than now."""
        state, timers = self.state, self._request_manager.timers
        while timers and timers[0][2].ended:
            heappop(timers)
        times = [
            timers[0][0] if timers else None,
            state.streams.due_ns,
            self._board.background_at_ns,
            self._holds.wake_ns,
        ]
        for policy in self._wakers:
            if policy.is_idle and not state.retained:
                continue
            at = policy.next_wakeup_ns(self._board)
            if at is not None and at <= now_ns:
                raise PolicyError(f"policy {policy.name!r} wants to look again at {at} ns, not after {now_ns} ns")
            times.append(at)
        for lane in self._lanes:
            if lane.works:
                if not lane.hung:
                    times.append(lane.head_due_ns + lane.hang_ns)
                if lane.ahead_ns and state.requests:
                    times.append(lane.asks_at_ns(now_ns))
        if state.memory.tracked:
            times.append(state.memory.retry_at_ns(now_ns))
        wake_ns: int | None = None
        for at in times:
            if at is not None and (wake_ns is None or at < wake_ns):
                wake_ns = at
        self.wake_ns = wake_ns if wake_ns is None or wake_ns > now_ns else now_ns + 1

    def story(self, request_id: int) -> List[str]:
        """The story of a request, for people and error messages; empty when it is not remembered."""
        request = self.request(request_id)
        return request.story() if request is not None else []

    def request(self, request_id: int) -> RequestRecord | None:
        """A request that is open, or one of the last that ended."""
        return self._ends.find(request_id)

    def remembered(self) -> List[RequestRecord]:
        """All requests that :meth:`request` knows."""
        return self._ends.remembered()

    def trials(self) -> Mapping[str, Any]:
        """Per app that had any: requests that were run as a trial, and how many of them were in time."""
        return self._ends.trials.figures()

    def thought_ns(self) -> int:
        """The time of the policies' plans since the last call: for simulations, which charge it."""
        return sum([policy.thought_ns() for policy in self._thinkers])

    def energy(self, now_ns: int) -> Mapping[str, Any]:
        """Per device whose power is reported: joules in all, per app, and while nothing ran."""
        return {name: meter.figures(now_ns) for name, meter in self.state.energy.items() if meter.is_on}

    @property
    def policies(self) -> Tuple[Policy, ...]:
        """The policies, in order of their names in the configuration."""
        return self.state.policies

    @property
    def devices(self) -> Mapping[str, Device]:
        """The devices by name."""
        return self.state.devices

    @property
    def open_count(self) -> int:
        """Accepted requests that have not ended."""
        return len(self.state.requests)

    @property
    def busy(self) -> bool:
        """True if any lane has a work."""
        return bool(self.state.works.by_id)

    # --- events -------------------------------------------------------------------------------------------------------

    def _cancelled(self, event: RequestCancelled) -> None:
        request = self.state.requests.get(event.request_id)
        if request is None:
            return
        if event.keeps:
            self._request_manager.stop(request, event.reason)
        else:
            self._ends.end(request, "cancel", event.reason)

    def _progressed(self, event: BatchProgress) -> None:
        """Some jobs of a batch that goes on are over, or have begun to write."""
        work = self.state.works.running(event.work_id)
        if work is None or work.lost:
            return
        by_id = {job.id: job for job in work.left()}
        took = (max(work.launched_ns, min(work.starts_ns, event.at_ns)), event.at_ns)
        for result in event.results:
            job = by_id.pop(result.job, None)
            if job is None or result.status == "unfinished":
                raise PolicyError(
                    f"work {work.id}: {result!r} before its end: expected a job of it that was not over, done or failed"
                )
            if work.over is NO_JOBS:
                work.over = {}
            work.over[job.seq] = job
            work.steps = max(work.steps, result.steps)
            work.turns = max(work.turns, result.turns)
            work.failed = work.failed or result.status == "done"  # until it is over: something of it was done
            self._returns.returned(job, result, work, took)
        for job_id in event.begun:
            job = by_id.get(job_id)
            if job is not None and job.state == RUNNING:
                self._request_manager.began(job)

    def _finished(self, event: WorkFinished) -> None:
        work = self._answered(event.work_id, event.finished_ns)
        if work is None:
            return
        lane = work.lane
        if work.kind != RUN:
            problem = self.state.memory.finished(work, event, self._board.now_ns)
            if problem:
                self._changes.fail_jobs_of(work.model, problem)
            return
        took_ns = event.finished_ns - event.started_ns
        lane.busy_ns += took_ns
        lane.served_ns[work.model] = lane.served_ns.get(work.model, 0) + took_ns + lane.dispatch_gap.likely_ns
        if self.state.energy[lane.device].is_on:
            self._charge(work, took_ns)
        if work.lost:
            return
        jobs, results = work.left() if work.over else work.jobs, event.results
        if work.probe is not None:
            self._probed(work, event)
            return
        if len(results) != len(jobs):
            raise PolicyError(f"work {work.id} on lane {lane.name!r} has {len(jobs)} jobs but {len(results)} results")
        work.failed = not work.failed
        took = (event.started_ns, event.finished_ns)
        for job, result in zip(jobs, results):
            if result.job != job.id:
                raise PolicyError(f"work {work.id}: result for {result.job} where {job.id} was expected")
            work.failed = work.failed and result.status == "failed"
            if result.steps > work.steps:
                work.steps = result.steps
            work.turns = max(work.turns, result.turns)
            self._returns.returned(job, result, work, took)
        if not work.failed:
            latency = self.state.latency[work.model, lane.name]
            hinted = [job for job in jobs if job.hints] if latency.learns_work else ()
            latency.observe(
                self._board.now_ns,
                work.size,
                took_ns,
                over_usual_milli(jobs) if hinted else None,
                work.turns or work.steps,
                not work.reads,
                work.reads and not work.turns,
                work.rested,
            )
            if work.at_once:
                lane.dispatch_gap.took(self._board.now_ns - work.launched_ns - took_ns)
            if self._holds.learns:
                self._holds.answered(jobs, work, took_ns)
            self._board.ends_ns.clear()
        if work.policy.hears_ends:
            work.policy.on_finished(work, event.started_ns, event.finished_ns, self._board)

    def _charge(self, work: Work, took_ns: int) -> None:
        """The energy of a batch goes to its jobs' apps."""
        jobs = work.jobs if work.probe is None else (work.probe,)
        for job in jobs:
            self.state.energy[work.lane.device].ran(job.request.app.name, took_ns / len(jobs))

    def _probed(self, work: Work, event: WorkFinished) -> None:
        """A probe is over. It teaches the latency model as what it was, a batch of the smallest size: where such are
        rare, it keeps their estimate fresh. (The policy hears of a probe only here: there is no job to unqueue.)"""
        assert work.probe is not None
        if [result.job for result in event.results] != [work.probe.id]:
            raise PolicyError(
                f"work {work.id} on lane {work.lane.name!r} is a probe of {work.probe.id} but has "
                f"results of {[result.job for result in event.results]}"
            )
        took_ns = event.finished_ns - event.started_ns
        work.failed = event.results[0].status != "done"
        if not work.failed:
            latency = self.state.latency[work.model, work.lane.name]
            over_milli = over_usual_milli((work.probe,)) if latency.learns_work else None
            latency.observe(self._board.now_ns, work.size, took_ns, over_milli, rested=work.rested)
            self._board.ends_ns.clear()
        if work.policy.hears_ends:
            work.policy.on_finished(work, event.started_ns, event.finished_ns, self._board)

    def _refused(self, event: WorkRefused) -> None:
        work = self._answered(event.work_id, self._board.now_ns)
        if work is None:
            return
        if work.kind != RUN:
            self.state.memory.refused(work, self._board.now_ns)
            return
        if work.lost or work.probe is not None:
            return
        for job in work.jobs:
            job.request.note(self._board.now_ns, "lane", work.lane.name, "refused work", work.id, "-", event.reason)
        work.policy.on_refused(work, self._board)
        self._returns.give_back(work)

    def _answered(self, work_id: int, at_ns: int) -> Work | None:
        """The lane is done with a work. None for one that was lost with its lane."""
        work = self.state.works.answered(work_id, at_ns)
        self._board.ends_ns.clear()
        if work is not None and work.kind == RUN:
            work.policy.is_idle = False
            self.state.devices[work.lane.device].placements[work.model].in_flight -= 1
            if self.state.sequences.working:
                self.state.sequences.ended(work)
        return work
