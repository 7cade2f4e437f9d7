"""The simulated world: a heap of (time, sequence, what happens), lanes that run one work at a time, and the reference
model.

It meets the scheduler only through :func:`edgeserve.loop.drive.drive`. Time is a number here; the scheduler's own
thinking costs virtual time, so a slow policy sees events late and acts late.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from edgeserve.config.schema import Config
from edgeserve.loop.coalescing import AGAIN_PAUSE_NS
from edgeserve.sched.protocol.actions import (
    START_ANY_TIME_NS,
    Action,
    CutBatch,
    DropState,
    EvictModel,
    FinishRequest,
    KeepWritten,
    LatencyBreakdown,
    LeaveOut,
    LoadModel,
    Outcome,
    ReleaseInputs,
    ReleaseState,
    RetainInputs,
    RunBatch,
)
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    Event,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sim import faults
from edgeserve.sim.hardware import POLL_NS, SimHardware
from edgeserve.sim.host import IdealHost, Messages
from edgeserve.sim.jobs import Jobs, OpenRequest
from edgeserve.sim.reference_model import LOST, ReferenceModel
from edgeserve.sim.running import Running, SimLane, Usage, held_up, repaced
from edgeserve.sim.scenario import CONTINUOUS, EARLY_EXIT, STATIC
from edgeserve.sim.sequence_runs import SequenceRun
from edgeserve.sim.truth import TrueResults, TrueTimes
from edgeserve.sim.workload import Arrival, Workload, changed
from edgeserve.units import NS_PER_S

SETTLE_NS_MAX = 3600 * NS_PER_S
"""Virtual time after the last arrival within which everything must have ended."""

READS_MAX = 16
"""The most times that one turn of the loop looks for requests that came while it read others."""

IDLE_STEPS_MAX = 10_000
"""Steps in a row that bring no event and no action: more means that the scheduler's timer makes no progress."""


class SimError(AssertionError):
    """The simulation cannot end: the scheduler's timer stands still or requests never end."""


class Ended(NamedTuple):
    """The end of one request, for reports. ``expected_ns`` is its own expected lane time in full batches
    (``sim/worth.py``: what it counts); ``quality``, ``branches``, ``cut`` and ``variant`` are those of the answer."""

    request: Request
    outcome: str
    reason: str
    end_ns: int
    breakdown: LatencyBreakdown
    expected_ns: int
    quality: float = 1.0
    branches: Tuple[str, ...] = ()
    cut: str = ""
    variant: str = ""

    @property
    def in_time(self) -> bool:
        """True if the whole answer was there by its deadline."""
        return self.outcome == Outcome.COMPLETED and not self.cut and self.end_ns <= self.request.deadline_ns


class SimWorld:
    """One run. ``ended`` holds every request that has ended, ``reference_model`` what really happened.

    Knows nothing of policies. ``perform`` and ``wait`` are called by the loop alone.
    """

    def __init__(
        self,
        config: Config,
        sources: Sequence[Workload],
        times: TrueTimes,
        results: TrueResults,
        reference_model: ReferenceModel,
        *,
        trouble: faults.Trouble | None = None,
        duration_ns: int = 0,
        host: IdealHost | None = None,
        drain: bool = False,
        settle: bool = False,
        hardware: Mapping[str, SimHardware] | None = None,
        contention: Mapping[str, float] | None = None,
    ) -> None:
        self.config = config
        self.reference_model = reference_model
        self.stopped = False
        self.now_ns = 0
        self.ended: List[Ended] = []
        self.lanes = {name: SimLane(name, lane.device, lane.hang_ns, lane.depth) for name, lane in config.lanes.items()}
        self.lanes.update(
            {f"copy:{name}": SimLane(f"copy:{name}", name, 30 * NS_PER_S, copy=True) for name in config.devices}
        )
        self._contention = dict.fromkeys(config.devices, 1.0)
        self._contention.update(contention or {})
        self.jobs = Jobs(times, results, trouble)
        self._results = results
        self._trouble = trouble
        self._settle = settle
        self.hardware: Mapping[str, SimHardware] = hardware or {}
        self._host = IdealHost() if host is None else host
        self._host.begin(self.lanes)
        self._answers = 0  # sent since the loop looked for news
        self._to_finish: List[FinishRequest] = []  # answers that the loop sends after the present step
        self.usage = Usage()
        self.policies: Mapping[str, str] = {}  # app -> the kind of its policy, for what its decisions take
        self._open: Counter[str] = Counter()  # requests open, by that kind
        self.thought_ns: Callable[[], int] | None = None  # what the plans of the last step took
        self._end_ns = duration_ns + SETTLE_NS_MAX
        self._acts_ns = 0  # when the actions of the present step take effect
        self._free_ns = 0  # when the loop has sent what it has to: it looks for news then
        self._turn_ns = 0  # when the loop's last turn began
        self._overhead_from_ns = 0  # when the last work that ended would have, had starting it taken no time
        self._idle_steps = 0
        self._heap: List[Tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._events: List[Event] = []
        self._given_ns: Dict[int, int] = {}  # work -> when its lane was given it
        self._cut: Set[int] = set()  # works that are to end after their first step
        self._request_id = 0
        self._sources = list(sources)
        self._share_ns: Dict[str, int] = {}
        for source in self._sources:
            for arrival, client in source.first():
                self._at(arrival.at_ns, self._arrive, (source, arrival, client))
        if trouble is not None:
            budgets = [(name, device.memory_bytes) for name, device in config.devices.items()]
            for happening in trouble.happenings(list(config.lanes), budgets):
                self._at(happening.at_ns, self._befall, happening)
        for name, device in self.hardware.items():
            for at_ns in range(POLL_NS, duration_ns, POLL_NS):
                self._at(at_ns, self._poll, device)
            for at_ns in range(0, duration_ns, device.config.every_ns):
                self._at(at_ns, self._read, name)
            self._at(duration_ns, self._heal, name)
        if drain:
            self._at(duration_ns, self._emit, DrainRequested())

    # --- what the loop calls --------------------------------------------------------------------------------------

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """Let time pass until something is to be told, or until ``until_ns``; never before the last step's thinking
        was over. Without events, with nothing open and nothing to come, the world has stopped."""
        self.reference_model.stepped(self.now_ns)
        self._think()
        for action in self._to_finish:  # one after the other, once all lanes were given their works
            self._finish(action)
        self._to_finish.clear()
        host, reads = self._host, True
        messages = host.messages
        if messages is None:
            ready_ns, slept = self._await_events(until_ns)
            wanted_ns = ready_ns if slept else self._turn_ns
        else:
            if self._answers:
                messages.answered(self._free_ns, self._answers)
                self._answers = 0
            ready_ns, slept, reads = self._await_messages(messages, until_ns)
            wanted_ns = messages.wanted_ns(ready_ns if slept else self._turn_ns, until_ns if slept else None)
        if not host.is_ideal and not self.stopped:
            ready_ns = self._turn_ns = self._wake(ready_ns, slept, reads)
            self.reference_model.held_up_ns = ready_ns - wanted_ns
        self.now_ns = ready_ns
        if messages is not None:
            messages.told(self._events)  # those too that came while the loop woke up and read
        events, self._events = self._events, []
        host.begin_step()
        self._acts_ns = ready_ns + host.turn_ns(events, self.policies, self._open)
        self._hold_up(self._acts_ns - ready_ns)
        self._free_ns = self._acts_ns
        self._watch(events)
        return ready_ns, events

    def _await_events(self, until_ns: Optional[int]) -> Tuple[int, bool]:
        """Let time pass until there is an event, or until ``until_ns``: when that is, and whether the loop slept."""
        ready_ns, slept = self._free_ns, False
        while True:
            self._happen(ready_ns)
            if self._events:
                break
            next_ns = self._heap[0][0] if self._heap else None
            if next_ns is None and self._over(until_ns):
                self.stopped = True
                break
            if until_ns is not None and until_ns <= ready_ns:
                break
            ready_ns, slept = min(item for item in (next_ns, until_ns) if item is not None), True
        return ready_ns, slept

    def _await_messages(self, messages: Messages, until_ns: Optional[int]) -> Tuple[int, bool, bool]:
        """Sleep as a live loop does: until there is mail, until it looks for messages and there are some, or until
        ``until_ns``, which may have to wait as messages do. Returns that time, whether it slept, and whether it
        reads."""
        ready_ns, slept, was_held = self._free_ns, False, False
        while True:
            self._happen(ready_ns)
            messages.told(self._events)
            held_ns = messages.held_until_ns(ready_ns)
            if self._events:
                return ready_ns, slept, slept or held_ns is None
            if until_ns is not None and until_ns <= ready_ns and (not slept or held_ns is None or messages.looks_ahead):
                return ready_ns, slept, slept
            if messages.waiting and held_ns is None:
                if was_held or not messages.lets_more_come(ready_ns):
                    return ready_ns, slept, True
                held_ns = messages.held_until_ns(ready_ns)
            next_ns = self._heap[0][0] if self._heap else None
            if next_ns is None and not messages.waiting and self._over(until_ns):
                self.stopped = True
                return ready_ns, slept, False
            wake_ns = until_ns
            if held_ns is not None and not (messages.looks_ahead and until_ns is not None and until_ns < held_ns):
                wake_ns = held_ns
            ready_ns, slept = min(item for item in (next_ns, wake_ns) if item is not None), True
            was_held = held_ns is not None

    def _happen(self, until_ns: int) -> None:
        while self._heap and self._heap[0][0] <= until_ns:
            at_ns, _, what, argument = heapq.heappop(self._heap)
            self.now_ns = at_ns
            what(argument)

    def _wake(self, ready_ns: int, slept: bool, reads: bool) -> int:
        """When the loop has read what there is for it: it wakes up if it slept, and ``reads`` what came."""
        if slept:
            ready_ns += self._host.wake_ns(ready_ns)
            self._happen(ready_ns)
        if self._host.messages is not None:
            return self._read_messages(self._host.messages, ready_ns) if reads else ready_ns
        read = 0
        for _ in range(READS_MAX):
            came = sum(type(event) is RequestArrived for event in self._events)
            if came == read:
                break
            ready_ns = self._receive(came - read, ready_ns)  # messages that come meanwhile: in the same turn
            read = came
        return ready_ns

    def _read_messages(self, messages: Messages, ready_ns: int) -> int:
        """When all that waits is read, those included who come meanwhile or are expected at once."""
        messages.told(self._events)
        count, looks = 0, 0
        while looks < READS_MAX:
            came = messages.read()
            if came:
                looks += 1
                self._events += came
                count += len(came)
                ready_ns = self._receive(len(came), ready_ns)
            elif count and messages.expects_more(ready_ns, len(self._events)):
                ready_ns += AGAIN_PAUSE_NS
                self._happen(ready_ns)
                if not messages.waiting:
                    break
            else:
                break
        if count:
            messages.were_read(ready_ns, count)
        return ready_ns

    def _receive(self, count: int, ready_ns: int) -> int:
        """When so many requests are read."""
        self.now_ns = ready_ns
        reads_ns = self._host.receive_ns(count, ready_ns)
        self._hold_up(reads_ns)
        ready_ns += reads_ns
        self._happen(ready_ns)
        return ready_ns

    def perform(self, action: Action) -> None:
        """Begin an action, when the step that decided it is over."""
        self._idle_steps = 0
        self._think()
        self.reference_model.ordered(self.now_ns, action)
        if isinstance(action, FinishRequest):
            if self._host.is_ideal:
                self._finish(action)
            else:
                self._to_finish.append(action)
        elif isinstance(action, DropState):
            pass  # states are counted by the scheduler; the reference model looks at both
        elif isinstance(action, (LeaveOut, KeepWritten)):
            self._when_acted(self._drop_job, action.job)
        elif isinstance(action, ReleaseState):
            self.jobs.progress(action.job).lane = ""
        elif isinstance(action, CutBatch):
            self._when_acted(self._cut_batch, action)
        elif isinstance(action, RetainInputs):
            self.jobs.retained[action.job] = self.jobs.open[action.job.request_id]
        elif isinstance(action, ReleaseInputs):
            del self.jobs.retained[action.job]
        else:
            if isinstance(action, RunBatch) and action.probe:
                self.jobs.probed[action.work_id] = self.jobs.retained.pop(action.jobs[0])
            self._host.give(action, self._acts_ns, self._until_another_ns(action))
            lane = self.lanes[action.lane]
            untold = [event for event in self._events if isinstance(event, LaneChanged) and event.lane == lane.name]
            known = lane.losses - sum(event.up is False for event in untold)
            self._when_acted(self._deliver, (action, lane, known))

    def _until_another_ns(self, action: Any) -> int:
        """The expected time of a batch after which another could start on its lane."""
        if not isinstance(action, RunBatch):
            return 0
        steps = action.steps_max if self.jobs.times.batching(action.model) != STATIC else None
        return action.expected_ns // (steps or 1)

    def _when_acted(self, what: Callable[[Any], None], argument: Any) -> None:
        """Do something when the actions of the present step take effect."""
        if self._acts_ns > self.now_ns:
            self._at(self._acts_ns, what, argument)
        else:
            what(argument)

    def _think(self) -> None:
        """The plans of the present step took their time: its actions take effect later, and so does the next step."""
        if self.thought_ns is not None:
            took_ns = self.thought_ns()
            if took_ns:
                self._acts_ns += took_ns
                self._free_ns += took_ns

    # --- time -----------------------------------------------------------------------------------------------------

    def _at(self, at_ns: int, what: Callable[[Any], None], argument: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_ns, self._sequence, what, argument))

    def _emit(self, event: Event) -> None:
        if not self._host.keeps(event, self.now_ns):
            self._events.append(event)

    def _over(self, until_ns: Optional[int]) -> bool:
        if until_ns is None:
            return True
        if until_ns > self._end_ns:
            count = self.reference_model.open_count
            raise SimError(f"not drained an hour after the last arrival: {count} requests are open")
        return not self._settle and not self.reference_model.open_count and not self.reference_model.works_count

    def _watch(self, events: Sequence[Event]) -> None:
        self._idle_steps = 0 if events else self._idle_steps + 1
        if self._idle_steps > IDLE_STEPS_MAX:
            raise SimError(
                f"{IDLE_STEPS_MAX} timer steps brought nothing; the last at {self.now_ns} ns with "
                f"{self.reference_model.open_count} requests open"
            )
        for event in events:
            self.reference_model.marks[type(event).__name__] += 1
            if isinstance(event, RequestArrived):
                self.reference_model.told(event.request.id)
            elif isinstance(event, DrainRequested):
                self.reference_model.draining()

    # --- requests -------------------------------------------------------------------------------------------------

    def _arrive(self, item: Tuple[Workload, Arrival, str]) -> None:
        source, _, client = item
        self._send(item)
        following = source.next_open()
        if following is not None:
            self._at(following.at_ns, self._arrive, (source, following, client))

    def _send(self, item: Tuple[Workload, Arrival, str]) -> None:
        sent_ns = self._host.send_ns()
        if sent_ns:
            self._at(self.now_ns + sent_ns, self._request, item)
        else:
            self._request(item)

    def _request(self, item: Tuple[Workload, Arrival, str], echo: bool = True) -> None:
        source, arrival, client = item
        self._request_id += 1
        place = f"{source.config.name}/{source.serial}"
        request = source.request(self._request_id, arrival, client)
        self._open[self.policies.get(request.app, "")] += 1
        self.jobs.open[request.id] = OpenRequest(request, source if echo else None, arrival, place, {}, set())
        self.reference_model.arrived(request, self.now_ns)
        self._emit(RequestArrived(self._planned(self._results.declared(request, place))))
        if arrival.cancel_after_ns is not None:
            self._at(self.now_ns + arrival.cancel_after_ns, self._emit, RequestCancelled(request.id))
        if self._trouble is not None:
            for delay_ns in self._trouble.cancel_delays_ns(self.now_ns, request.deadline_ns - request.arrival_ns):
                self._at(self.now_ns + delay_ns, self._emit, RequestCancelled(request.id))

    def _planned(self, request: Request) -> Request:
        """The request with the deadline for the scheduler."""
        due_ns = self._host.planned_ns(request.arrival_ns, request.deadline_ns)
        return request if due_ns == request.deadline_ns else changed(request, deadline_ns=due_ns)

    def _finish(self, action: FinishRequest) -> None:
        entry = self.jobs.open.pop(action.request_id)
        request, source = entry.request, entry.source
        self._open[self.policies.get(request.app, "")] -= 1
        for job in entry.steps:
            self._when_acted(self._drop_job, job)
        self._answers += 1
        self._free_ns += self._host.answer_ns(self._free_ns, self._acts_ns)
        if action.outcome == Outcome.COMPLETED:
            self._host.answered(self._free_ns - self._overhead_from_ns)
        self.ended.append(
            Ended(
                request,
                action.outcome,
                action.reason,
                self._free_ns,
                action.breakdown,
                self._share(request),
                action.quality,
                action.branches,
                action.cut,
                action.variant,
            )
        )
        if source is None:
            return
        arrival = None
        if source.config.kind == "closed":
            answered = action.outcome == Outcome.COMPLETED
            arrival = source.next_closed(self._free_ns, entry.arrival.app_index, answered)
        elif source.config.again and action.shortfall is not None and action.shortfall.slo_ns_min is not None:
            slo_ns = self._host.slo_ns(action.shortfall.slo_ns_min)
            arrival = source.asks_again(self._free_ns, entry.arrival, slo_ns)
        if arrival is not None:
            self._at(arrival.at_ns, self._send, (source, arrival, request.client))

    def _share(self, request: Request) -> int:
        """The request's expected lane time in full batches; nodes inside a fan-out count once per expected part."""
        if request.app in self._share_ns and not request.hints:
            return self._share_ns[request.app]
        weights: Dict[str, float] = {}
        total = 0.0
        for node in self.config.apps[request.app].nodes:
            before = [weights[name] for name in node.after or ()]
            weight = 1.0 if node.gather or not before else max(before)
            total += weight * self.jobs.times.share_ns(node.model, request.hints)
            weights[node.name] = weight * self._results.parts_mean(request.app, node.name)
        self._share_ns[request.app] = round(total)
        return round(total)

    # --- lanes ----------------------------------------------------------------------------------------------------

    def _deliver(self, given: Tuple[Any, SimLane, int]) -> None:
        """Hand a work to its lane, or refuse it: the lane is down, or was lost since the scheduler knew of so many
        losses."""
        action, lane, known = given
        if not lane.up or lane.losses != known:
            self._refuse(action, f"lane {lane.name} is down")
            return
        if not lane.inbox and not lane.launched_count:
            lane.awake_ns = self.now_ns + self._host.start_ns(lane, action, self.now_ns, self._acts_ns)
        lane.inbox.append(action)
        self._given_ns[action.work_id] = self.now_ns
        self._advance(lane)

    def _hold_up(self, held_ns: int) -> None:
        """The loop holds the interpreter lock for so long."""
        for lane, finish_ns in held_up(list(self.lanes.values()), self.now_ns, held_ns):
            self._at(finish_ns, self._finished, (lane, lane.epoch))

    def _poke(self, lane: SimLane) -> None:
        lane.poked_ns = -1
        self._advance(lane)

    def _poke_at(self, lane: SimLane, at_ns: int) -> None:
        if lane.poked_ns != at_ns:
            lane.poked_ns = at_ns
            self._at(at_ns, self._poke, lane)

    def _advance(self, lane: SimLane) -> None:
        """Launch what may be launched and start what the lane's device can run."""
        while self._launch_next(lane) or self._start_next(lane):
            pass

    def _launch_next(self, lane: SimLane) -> bool:
        """Launch or refuse the next work, if the lane has room for it and its window is open."""
        if not lane.inbox or lane.launched_count >= lane.depth:
            return False
        action = lane.inbox[0]
        opens_ns = max(getattr(action, "start_after_ns", 0), lane.packed_ns, lane.awake_ns)
        if self.now_ns < opens_ns:
            self._poke_at(lane, opens_ns)
            return False
        start_before_ns = getattr(action, "start_before_ns", START_ANY_TIME_NS)
        if lane.launched_count and self.now_ns <= start_before_ns < lane.due_ns:
            return False  # as a live lane: it would begin too late, unless the one before ends early
        lane.inbox.popleft()
        if self.now_ns > start_before_ns:
            self._refuse(action, "the start window has passed")
        elif self._trouble is not None and not isinstance(action, EvictModel) and self._trouble.refuses(self.now_ns):
            self._refuse(action, "the lane would not")
        else:
            self.reference_model.started(self.now_ns, action)
            pack_ns = self.jobs.times.pack_ns(action.model) if isinstance(action, RunBatch) else 0
            lane.launch(action, self.now_ns, pack_ns)
        return True

    def _start_next(self, lane: SimLane) -> bool:
        """Start the oldest launched work, if the one before is over and it is packed."""
        if lane.running is not None or not lane.launched:
            return False
        action, packed_ns = lane.launched[0]
        if self.now_ns < packed_ns:
            self._poke_at(lane, packed_ns)
            return False
        lane.launched.popleft()
        self._start(lane, action)
        return True

    def _start(self, lane: SimLane, action: Any) -> None:
        if isinstance(action, RunBatch) and not action.probe and self.jobs.times.batching(action.model) != STATIC:
            self._start_sequences(lane, action)
            return
        duration_ns = max(1, round(self.jobs.duration_ns(lane.name, action) / lane.speed))
        if self._trouble is not None and isinstance(action, RunBatch):
            duration_ns = self._trouble.slowed(self.now_ns, duration_ns)
            if lane.hangs:
                duration_ns += lane.hang_ns + round(lane.hangs * lane.hang_ns)
                lane.hangs = 0.0
        share = 0.0
        if isinstance(action, RunBatch):
            share = self._host.share(action.model)
            if not self.jobs.times.is_measured(action.model, lane.name):
                duration_ns += self._host.stalls_ns(duration_ns)  # measured times have them
        lane.running = Running(action, self.now_ns, duration_ns, share, shares_cores=self._shares_cores(lane, action))
        lane.works += 1
        self._repace(lane)

    def _start_sequences(self, lane: SimLane, action: RunBatch) -> None:
        """Start, as :meth:`_start`, a batch whose sequences end one after the other."""
        slow, hangs_ns = self.jobs.times.pace(action.model) / lane.speed, 0
        if self._trouble is not None:
            slow *= self._trouble.slowed(self.now_ns, NS_PER_S) / NS_PER_S
            hangs_ns = lane.hang_ns + round(lane.hangs * lane.hang_ns) if lane.hangs else 0
            lane.hangs = 0.0
        share = self._host.share(action.model)
        needs = [self.jobs.left(job) for job in action.jobs]
        self.reference_model.ran(self.now_ns, action, [job for job, need in zip(action.jobs, needs) if need])
        reads, turn_ns = self.jobs.reads(lane.name, action)
        prompts = [] if turn_ns else self.jobs.prompts(lane.name, action)
        before_ns = 0 if turn_ns else self.jobs.times.prefill_ns(action.model, lane.name, prompts)
        run = SequenceRun(
            needs,
            action.steps_max,
            before_ns + round(hangs_ns / slow),
            lambda count: int(self.jobs.times.step_ns(action.model, lane.name, count)),
            action.size if self.jobs.times.batching(action.model) == EARLY_EXIT else 0,
            reads,
            turn_ns,
            self.jobs.silent(action.jobs),
        )
        stretch_ns = run.begin()
        if action.work_id in self._cut:
            self._cut.discard(action.work_id)
            stretch_ns = run.stop(0)
        lane.running = Running(
            action, self.now_ns, max(1, round(stretch_ns * slow)), share, run, slow, self._shares_cores(lane, action)
        )
        lane.works += 1
        self._repace(lane)

    def _goes_on(self, lane: SimLane, running: Running, run: SequenceRun) -> bool:
        """End a stretch of a batch of sequences: report the ones that ended with it, and begin the next one. False
        where the batch is over."""
        action, computed = running.action, list(run.left)
        ended = run.pass_stretch()
        self.usage.charge(lane.name, [action.jobs[place] for place in computed], self.now_ns - running.began_ns)
        running.began_ns = self.now_ns
        self.reference_model.grew(
            self.now_ns,
            {action.jobs[place]: self.jobs.held_bytes(action.jobs[place], run.made[place]) for place in computed},
        )
        begun = [action.jobs[place] for place in run.begun() if place not in ended]
        goes_on = run.begin() > 0
        self._tell_begun(action, begun)
        if ended and (goes_on or self.jobs.times.batching(action.model) == CONTINUOUS):
            results = tuple(
                self.jobs.sequence_result(self.now_ns, lane.name, running, run, place, False) for place in ended
            )
            run.told += ended
            self.reference_model.progressed(self.now_ns, action, results)
            self._events.append(BatchProgress(action.work_id, self.now_ns, results))
        if goes_on:
            running.goes_on(self.now_ns, run.stretch_ns)
            self._at(running.ends_ns(), self._finished, (lane, lane.epoch))
        return goes_on

    def _tell_begun(self, action: RunBatch, jobs: Sequence[JobId]) -> None:
        """Sequences of a batch have written something."""
        begun = self.jobs.begin(jobs)
        if begun:
            self.reference_model.began(begun)
            self._events.append(BatchProgress(action.work_id, self.now_ns, (), begun))

    def _cut_batch(self, action: CutBatch) -> None:
        """End a batch after its present step, or after its first one where it has not begun. An engine that returns all
        its sequences together does not ask whether it should."""
        lane = self.lanes[action.lane]
        running = lane.running
        if running is not None and running.action.work_id == action.work_id:
            if running.sequences is not None and not running.over:
                self._shortened(lane, running, running.sequences.stop(running.passed_ns(self.now_ns)))
        elif any(work.work_id == action.work_id for work in (*lane.inbox, *(item for item, _ in lane.launched))):
            self._cut.add(action.work_id)

    def _drop_job(self, job: JobId) -> None:
        """Drop a job whose request has ended: if it runs in a batch of sequences, no further step is made for it."""
        for lane in self.lanes.values():
            running = lane.running
            if running is None or running.sequences is None or running.over:
                continue
            for place in running.sequences.left:
                if running.action.jobs[place] == job:
                    self._shortened(lane, running, running.sequences.drop(place, running.passed_ns(self.now_ns)))
                    return

    def _shortened(self, lane: SimLane, running: Running, stretch_ns: int) -> None:
        running.shorten(stretch_ns)
        lane.epoch += 1
        self._at(running.ends_ns(), self._finished, (lane, lane.epoch))

    def _shares_cores(self, lane: SimLane, action: Any) -> bool:
        return isinstance(action, RunBatch) and self._host.shares_cores(
            lane, self.jobs.times.is_measured(action.model, lane.name)
        )

    def _repace(self, changed: SimLane, over: Optional[Running] = None) -> None:
        """Set the paces anew after a batch of a lane began, or was ``over``: batches on its device go on slower or
        faster, and if it holds the interpreter lock or shares cores, so do all others that do."""
        work = over or changed.running
        everywhere = work is not None and (work.share > 0.0 or work.shares_cores)
        groups = (
            [[changed]]
            if changed.copy
            else [
                [lane for lane in self.lanes.values() if lane.device == device and not lane.copy]
                for device in self.config.devices
                if device == changed.device or everywhere
            ]
        )
        for beside in groups:
            device = beside[0].device
            paces: Dict[str, float] = {}
            if device in self.hardware and not changed.copy:
                self._load(device)
                paces = {lane.name: self.hardware[device].pace_of(lane.name) for lane in beside}
            for lane, finish_ns in repaced(
                beside,
                self._contention[device],
                self.now_ns,
                self._host.pace,
                paces,
            ):
                self._at(finish_ns, self._finished, (lane, lane.epoch))

    def _load(self, name: str) -> None:
        """Tell a device what runs on it now. Its governor acts some time after it turned busy or idle."""
        device = self.hardware[name]
        lanes = [
            lane for lane in self.lanes.values() if lane.device == name and not lane.copy and lane.running is not None
        ]
        running = [lane.running.action for lane in lanes if lane.running is not None]
        was_busy = device.is_busy
        device.runs(
            self.now_ns,
            [(action.size, self.config.models[action.model].batch[-1]) for action in running],
            [lane.name for lane in lanes],
        )
        if device.config.governor == "ondemand" and device.is_busy != was_busy:
            after_ns = device.config.ramp_ns if device.is_busy else device.config.idle_after_ns
            self._at(self.now_ns + after_ns, self._govern, (name, device.turns))

    def _govern(self, item: Tuple[str, int]) -> None:
        name, turn = item
        device = self.hardware[name]
        if device.turns == turn and not device.healed:
            device.govern(self.now_ns)
            self._repace_device(name)

    def _poll(self, device: SimHardware) -> None:
        device.poll(self.now_ns)
        device.takes(self.now_ns, self.reference_model.used_bytes(device.filter.device))
        self._repace_device(device.filter.device)

    def _repace_device(self, name: str) -> None:
        lane = next((lane for lane in self.lanes.values() if lane.device == name and not lane.copy), None)
        if lane is not None:
            self._repace(lane)

    def _read(self, name: str) -> None:
        self._events += self.hardware[name].read(self.now_ns, self.reference_model.used_bytes(name))

    def _heal(self, name: str) -> None:
        self._events += self.hardware[name].heal(self.now_ns, self.reference_model.used_bytes(name))
        self._repace_device(name)

    def _refuse(self, action: Any, reason: str) -> None:
        self.jobs.probed.pop(action.work_id, None)
        self._given_ns.pop(action.work_id, None)
        self._cut.discard(action.work_id)
        self.reference_model.answered(self.now_ns, action, failed=True)
        self._events.append(WorkRefused(action.work_id, reason))

    def _finished(self, item: Tuple[SimLane, int]) -> None:
        lane, epoch = item
        if epoch != lane.epoch or lane.running is None:
            return
        run = lane.running.sequences
        if run is not None and not lane.running.over and self._goes_on(lane, lane.running, run):
            return
        if self._waits_for_lock(lane, lane.running) or self._is_held_back(lane, lane.running):
            return
        running = lane.running
        done_ns = lane.running.done_ns or self.now_ns
        action, started_ns = lane.running.action, lane.running.started_ns
        self.usage.ran(lane.name, action, self.now_ns - running.began_ns)
        lane_free_ns, lane.free_ns = lane.free_ns, self.now_ns
        ready_ns = max(self._given_ns.pop(action.work_id), lane_free_ns)
        self._overhead_from_ns = self.now_ns - max(0, started_ns - ready_ns)
        lane.end(self.now_ns)
        self._repace(lane, running)
        results: Tuple[JobResult, ...] = ()
        failed = ""
        if isinstance(action, RunBatch):
            results = self.jobs.results(self.now_ns, lane.name, running)
            if not action.probe and self.jobs.times.batching(action.model) != STATIC:
                unfinished = [result.job for result in results if result.status == "unfinished"]
                self._tell_begun(action, [job for job in unfinished if self.jobs.progress(job).done > 0])
        elif isinstance(action, LoadModel) and self._trouble is not None and self._trouble.load_fails(self.now_ns):
            failed = "out of memory while loading"
        self.reference_model.answered(self.now_ns, action, results, bool(failed))
        self._events.append(WorkFinished(action.work_id, started_ns, done_ns, results, failed))
        self._advance(lane)

    def _is_held_back(self, lane: SimLane, running: Running) -> bool:
        """True if the loop hears of the batch only later; its lane is not free before, since it gets no other batch."""
        lag_ns = 0 if running.done_ns else self._host.news_lag_ns(lane.name)
        if lag_ns:
            running.over, running.done_ns = True, self.now_ns
            self._at(self.now_ns + lag_ns, self._finished, (lane, lane.epoch))
        return lag_ns > 0

    def _waits_for_lock(self, lane: SimLane, running: Running) -> bool:
        """True if a thread that comes back from its device has to wait for the interpreter lock first."""
        if running.over or running.share or not isinstance(running.action, RunBatch):
            return False
        wait_ns = self._host.return_wait_ns(self.now_ns)
        if wait_ns:
            running.over = True
            self._at(self.now_ns + wait_ns, self._finished, (lane, lane.epoch))
        return wait_ns > 0

    # --- trouble --------------------------------------------------------------------------------------------------

    def _befall(self, happening: faults.Happening) -> None:
        kind, target = happening.kind, happening.target
        if kind in (faults.LANE_DIES, faults.LANE_GONE):
            self._die(self.lanes[target], happening.amount, kind == faults.LANE_GONE)
        elif kind == faults.LANE_BACK:
            self._revive(self.lanes[target])
        elif kind in (faults.RESET, faults.RESET_OVER):
            for lane in self.lanes.values():
                if lane.device == target:
                    self._die(lane, happening.amount) if kind == faults.RESET else self._revive(lane)
        elif kind == faults.LANE_HANGS:
            self.lanes[target].hangs = max(0.01, happening.amount)
        elif kind == faults.SPEED:
            lane = self.lanes[target]
            if lane.speed != happening.amount:
                lane.speed = happening.amount
                if lane.up:
                    self._emit(LaneChanged(target, True, lane.speed, "throttled" if lane.speed < 1.0 else ""))
        elif kind == faults.MEMORY:
            budget = self.config.devices[target].memory_bytes
            self._emit(DeviceChanged(target, round(budget * happening.amount), heat=1.0 - happening.amount))
        else:
            self._burst(round(happening.amount))

    def _die(self, lane: SimLane, amount: float, is_gone: bool = False) -> None:
        """The lane forgets its inbox and what it was running. At times answers come all the same, after the news."""
        if not lane.up:
            return
        lane.up = False
        lane.losses += 1
        lane.epoch += 1
        self._emit(LaneChanged(lane.name, False, lane.speed, "lost", lost=is_gone))
        running, told = lane.running, set()
        if running is not None:
            self.usage.ran(lane.name, running.action, self.now_ns - running.began_ns)
            if running.sequences is not None:
                running.sequences.interrupt(running.passed_ns(self.now_ns))
                told = self.jobs.interrupted(running, running.sequences)
        self.jobs.lane_lost(lane.name)
        lost = lane.clear(self.now_ns)
        self.reference_model.lane_lost(lane.name)
        self._repace(lane, running)
        for action in lost:
            self.jobs.probed.pop(action.work_id, None)
            self._given_ns.pop(action.work_id, None)
            self._cut.discard(action.work_id)
            jobs = [job for job in action.jobs if job not in told] if isinstance(action, RunBatch) else ()
            self.reference_model.answered(
                self.now_ns, action, [JobResult(job, "failed", reason=LOST) for job in jobs], True
            )
            if amount < 0.5:
                answer = WorkRefused(action.work_id, "the lane was lost")
                self._at(self.now_ns + round(amount * 1e6), self._emit, answer)

    def _revive(self, lane: SimLane) -> None:
        lane.up = True
        self._emit(LaneChanged(lane.name, True, lane.speed))

    def _burst(self, count: int) -> None:
        assert self._trouble is not None
        source = self._sources[self._trouble.dice.randrange(len(self._sources))]
        for _ in range(count):
            self._request((source, Arrival(self.now_ns, source.serial), "burst"), echo=False)
        # A client that cancels what never was must disturb no other client.
        self._emit(RequestCancelled(self._request_id + 1_000_000_000, "unknown"))
