"""The live world: what the scheduler decides becomes real here, on lanes, sockets and a monotonic clock.

It implements :class:`edgeserve.sched.core.loop.World` and takes no decision: it counts what comes in, assembles the
inputs of jobs, hands works to lanes, and tells whoever asked how a request ended. Everything but :meth:`LiveWorld.post`
belongs to the loop's thread. """

from __future__ import annotations

import logging
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from edgeserve.config.schema import Config
from edgeserve.engines.base import Batch, Engine
from edgeserve.errors import EdgeServeError, EngineError, Rejected
from edgeserve.lanes.thread import Lane, LaneDown, Work, WorkDone, WorkNotStarted
from edgeserve.live.engine_failures import Failures
from edgeserve.live.error_messages import refusal
from edgeserve.live.mailbox import Mailbox
from edgeserve.live.receive_coalescing import AGAIN_PAUSE_NS, ReceiveCoalescing
from edgeserve.live.request import RequestValidator
from edgeserve.live.response_overhead import ResponseOverhead
from edgeserve.live.retained_inputs import RetainedInputs
from edgeserve.live.stats import AppCounts, LaneCounts
from edgeserve.live.values import LiveRequest, Payloads, item_error, wrong_form
from edgeserve.live.warming import Warmed, Warming, WarmStep
from edgeserve.offload.pin import allowed_cores
from edgeserve.sched.core.build import copy_lane_name, model_lanes
from edgeserve.sched.protocol.actions import (
    START_ANY_TIME_NS,
    Action,
    DropState,
    EvictModel,
    FinishRequest,
    LoadModel,
    Outcome,
    ReleaseInputs,
    RetainInputs,
    RunBatch,
)
from edgeserve.sched.protocol.events import (
    DrainRequested,
    Event,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.units import NS_PER_S

if TYPE_CHECKING:
    from edgeserve.live.gateway import Gateway

log = logging.getLogger("edgeserve")

clock_ns: Callable[[], int] = time.monotonic_ns
"""The one clock of the live side; everything else is handed it."""

SLEEP_S_MAX = 3600.0
"""A bound on one wait, so that a deadline far away never overflows what the operating system takes."""

FD_SELECT_MAX = 1024
"""``select`` waits to the microsecond but takes no file number beyond this; ``poll`` then waits whole milliseconds."""


class CancelAsked:
    """A caller in this process no longer wants its answer."""

    __slots__ = ("request",)

    def __init__(self, request: LiveRequest) -> None:
        self.request = request


class StopAsked:
    """Stop: with ``drain_ns`` accepted requests may still end within that time, without they are cancelled now."""

    __slots__ = ("drain_ns",)

    def __init__(self, drain_ns: int) -> None:
        self.drain_ns = drain_ns


class CallAsked:
    """Run ``call()`` on the loop's thread (questions about its tables); whoever asked waits in :meth:`result`."""

    __slots__ = ("_call", "_value", "_error", "_done")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: Optional[Exception] = None
        self._done = threading.Event()

    def run(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:  # noqa: BLE001 it belongs to whoever asked, not to the loop
            self._error = error
        self._done.set()

    def result(self, timeout_s: float) -> Any:
        if not self._done.wait(timeout_s):
            raise EdgeServeError(f"the loop did not answer within {timeout_s:.0f} s; is an engine holding the "
                                 "interpreter's lock?")
        if self._error is not None:
            raise self._error
        return self._value


class LiveWorld:
    """Payloads, lanes, engines, the front gateway and the clock of one running server or embedded runtime.

    ``engines`` are by (model, device), ``lanes`` by name, copy lanes included. Everything it keeps is bounded by
    ``[server] pending_max``, the lanes' inboxes and ``streams_max`` of the apps.
    """

    def __init__(self, config: Config, validators: Mapping[str, RequestValidator], lanes: Mapping[str, Lane],
                 engines: Mapping[Tuple[str, str], Engine], mailbox: Mailbox) -> None:
        self.config = config
        self.payloads = Payloads()
        self.retained = RetainedInputs(self.payloads)
        self.app_counts = {name: AppCounts() for name in validators}
        self.lane_counts = {name: LaneCounts() for name in lanes}
        self.started_ns = clock_ns()
        self.gateway: Optional[Gateway] = None
        self._run_counts = [self.lane_counts[name] for name in config.lanes]
        self._lanes = lanes
        self._engines = engines
        self._mailbox = mailbox
        self._devices = {name: lane.device for name, lane in config.lanes.items()}
        self._devices.update({copy_lane_name(name): name for name in config.devices})
        self._request_id = 0
        self._response_overhead = ResponseOverhead()
        self._looks_ahead = any(lane.ahead_ns for lane in config.lanes.values())
        self._coalescing = ReceiveCoalescing(shares_cores=_lane_threads(config) >= len(allowed_cores()))
        self._overhead_from_ns = self.started_ns
        self.stopping = False
        self._drained_by_ns: Optional[int] = None
        self._cancelled_rest = False
        self._failures = Failures()
        self._warming = Warming()
        self._lane_free_ns = dict.fromkeys(lanes, 0)  # when the last work on each was over
        self._to_finish: List[FinishRequest] = []
        self._perform: Dict[type, Callable[[Any], None]] = {
            RunBatch: self._run_batch, FinishRequest: self._to_finish.append, LoadModel: self._load,
            EvictModel: self._evict, DropState: self._drop_state,
            RetainInputs: self.retained.retain, ReleaseInputs: self.retained.release}
        self._open_mail: Dict[type, Callable[[Any, List[Event]], None]] = {
            WorkDone: self._work_done, WorkNotStarted: self._work_not_started, LaneDown: self._lane_down,
            LiveRequest: self.accept, CancelAsked: self._cancel_asked, StopAsked: self._stop_asked,
            CallAsked: self._call_asked}

    # --- the loop's side ----------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Asked to stop, and every accepted request has its end."""
        return self.stopping and self.payloads.open_count == 0

    def perform(self, action: Action) -> None:
        """Begin an action. Requests are answered by the next :meth:`wait`."""
        self._perform[type(action)](action)

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """Everything that has happened; if nothing has, wait for it or until ``until_ns``."""
        events: List[Event] = []
        if self._to_finish:  # after all lanes were given their works: they run while the answers are sent
            self._finish_all()
        look = False  # at the gateway, although there is no other sign that somebody stands there
        slept = False
        while True:
            self._read(events, look, slept)
            now_ns = clock_ns()
            if self._drained_by_ns is not None and now_ns >= self._drained_by_ns:
                self._cancel_the_rest(events)
            if events or self.stopped or (until_ns is not None and now_ns >= until_ns):
                return now_ns, events
            look = self._sleep(now_ns, until_ns)
            slept = True

    def _read(self, events: List[Event], look: bool, slept: bool) -> None:
        """Mail, and messages where it is time for them."""
        mail = self._open_all_mail(events)
        gateway = self.gateway
        # With mail there is no sleep, so the gateway gets its turn here; without, the sleep says whether to look.
        if gateway is None or not (look or not gateway.drained or (mail and not slept)):
            return
        all_busy = self._all_busy()
        if all_busy and not look and self._coalescing.receive_at_ns(clock_ns()) is not None:
            return
        before = len(events)
        gateway.receive(events)
        if len(events) == before:
            return
        if all_busy:
            self._coalescing.hold_from(clock_ns())
            return
        while self._coalescing.expects_more(clock_ns(), len(events)):
            before = len(events)
            time.sleep(AGAIN_PAUSE_NS / NS_PER_S)
            self._open_all_mail(events)
            gateway.receive(events)
            if len(events) == before:
                return

    def _open_all_mail(self, events: List[Event]) -> bool:
        handlers = self._open_mail
        mail = self._mailbox.take()
        for item in mail:
            handlers[type(item)](item, events)
        return bool(mail)

    def _all_busy(self) -> bool:
        return all(counts.in_flight for counts in self._run_counts)

    def post(self, item: Any) -> None:
        """Mail for the loop, from any thread."""
        self._mailbox.post(item)

    def _sleep(self, now_ns: int, until_ns: Optional[int]) -> bool:
        """Until mail, a message or the next thing that is due, to the microsecond and without spinning. Whether
        somebody may be at the gateway."""
        gateway = self.gateway
        bell = self._mailbox.fileno()
        due_ns = until_ns
        for other_ns in (self._drained_by_ns, gateway.next_due_ns() if gateway is not None else None):
            if other_ns is not None and (due_ns is None or other_ns < due_ns):
                due_ns = other_ns
        while True:
            files, wake_ns = [bell], due_ns
            receive_at_ns = self._coalescing.receive_at_ns(now_ns) if gateway is not None and self._all_busy() else None
            if receive_at_ns is not None:
                # What is due waits as messages do (a deadline that passed is told a little later), unless works are
                # given to lanes before they are free.
                wake_ns = min(due_ns, receive_at_ns) if due_ns is not None and self._looks_ahead else receive_at_ns
            elif gateway is not None:
                if not gateway.drained:
                    return True
                files.append(gateway.fileno)
            if (wake_ns is not None and wake_ns <= now_ns) or not self._mailbox.going_to_sleep():
                return True
            ready = _wait_readable(files, SLEEP_S_MAX if wake_ns is None
                                   else min(SLEEP_S_MAX, (wake_ns - now_ns) / NS_PER_S))
            self._mailbox.awake(rang=bell in ready)
            held_off = receive_at_ns is not None
            if held_off or not ready or bell in ready or not (self._coalescing.hold_ns and self._all_busy()):
                return held_off or ready != [bell]
            # Nothing that just came can start: let more come, and read them together.
            now_ns = clock_ns()
            self._coalescing.hold_from(now_ns)

    # --- mail ---------------------------------------------------------------------------------------------------------

    def accept(self, request: LiveRequest, events: List[Event]) -> None:
        """A checked request becomes the scheduler's, unless the server is full or stopping."""
        limit = self.config.server.pending_max
        if self.payloads.open_count >= limit:
            self._turn_away(request, Rejected(f"the server has {limit} requests that have not ended, its bound; send "
                                           "fewer at a time or raise [server] pending_max", "server_full"))
            return
        if self.stopping:
            self._turn_away(request, Rejected("the server is shutting down and accepts nothing more", "draining"))
            return
        self._request_id += 1
        request.id = self._request_id
        self.payloads.add(request)
        options = request.options
        app = request.plan.config.name
        self.app_counts[app].accepted += 1
        planned_ns = self._response_overhead.planned_ns(request.arrival_ns, request.deadline_ns)
        events.append(RequestArrived(Request(request.id, app, request.arrival_ns, planned_ns, request.responder.client,
                                             options.klass,
                                             options.value, options.stream, options.on_late, options.hints)))

    def _turn_away(self, request: LiveRequest, error: Rejected) -> None:
        counts = self.app_counts[request.plan.config.name]
        counts.accepted += 1
        counts.ended(Outcome.REJECTED, error.reason)
        request.responder.refuse(error)

    def _cancel_asked(self, mail: CancelAsked, events: List[Event]) -> None:
        if mail.request.id and not mail.request.ended:
            events.append(RequestCancelled(mail.request.id))

    def _stop_asked(self, mail: StopAsked, events: List[Event]) -> None:
        """The first asks to drain; a later one can only shorten the time."""
        due_ns = clock_ns() + mail.drain_ns
        if not self.stopping:
            self.stopping = True
            self._drained_by_ns = due_ns
            events.append(DrainRequested())
        elif self._drained_by_ns is not None:
            self._drained_by_ns = min(self._drained_by_ns, due_ns)

    def _cancel_the_rest(self, events: List[Event]) -> None:
        self._drained_by_ns = None
        rest = self.payloads.open_requests()
        if rest:
            log.warning("stopping: %d accepted requests have not ended in time and are cancelled", len(rest))
        events.extend(RequestCancelled(request.id, "the server is shutting down") for request in rest)

    def _call_asked(self, mail: CallAsked, events: List[Event]) -> None:
        mail.run()

    def _lane_down(self, mail: LaneDown, events: List[Event]) -> None:
        log.error("lane %s is down: %s", mail.lane, mail.reason)
        self.lane_counts[mail.lane].up = False
        events.append(LaneChanged(mail.lane, up=False, reason=mail.reason))

    def _work_not_started(self, mail: WorkNotStarted, events: List[Event]) -> None:
        action = mail.work.tag
        if action is None:  # start-up's own
            return
        if type(action) is WarmStep:
            self._warmed(self._warming.stepped(mail), events)
            return
        counts = self.lane_counts[action.lane]
        counts.refused += 1
        counts.in_flight.pop(action.work_id, None)
        if type(action) is RunBatch:
            for job in action.jobs:
                self.retained.of(action).not_started(job)
        events.append(WorkRefused(action.work_id, mail.reason))

    def _work_done(self, mail: WorkDone, events: List[Event]) -> None:
        action = mail.work.tag
        if action is None:  # start-up's own
            return
        if type(action) is WarmStep:
            self._warmed(self._warming.stepped(mail), events)
            return
        counts = self.lane_counts[action.lane]
        counts.works += 1
        # What came on top of the time on the lane, from when the work could have begun.
        ready_ns = max(counts.in_flight.pop(action.work_id), self._lane_free_ns[action.lane])
        self._lane_free_ns[action.lane] = mail.finished_ns
        self._overhead_from_ns = mail.finished_ns - max(0, mail.started_ns - ready_ns)
        counts.busy_ns += mail.finished_ns - mail.started_ns
        if type(action) is LoadModel and mail.error is None:
            self._warm_up(mail, action, events)
            return
        failed = "" if mail.error is None else self._failures.reason(action, mail.error)
        results: Tuple[JobResult, ...] = ()
        if type(action) is RunBatch:
            counts.jobs += len(action.jobs)
            counts.probes += action.probe
            results = self._results(action, mail.value, failed)
            failed = ""
        events.append(WorkFinished(action.work_id, mail.started_ns, mail.finished_ns, results, failed))

    def _warm_up(self, mail: WorkDone, action: LoadModel, events: List[Event]) -> None:
        """A model was loaded: its lanes warm up before the scheduler may use it."""
        now_ns = clock_ns()
        lanes = [self._lanes[name] for name in self._lanes_of(action.model, self._devices[action.lane])
                 if not self.lane_counts[name].is_stuck(now_ns, self.config.lanes[name].hang_ns)]
        engine = self._engines[action.model, self._devices[action.lane]]
        self._warmed(self._warming.begin(mail, engine, lanes, self.config.models[action.model].batch), events)

    def _warmed(self, load: Optional[Warmed], events: List[Event]) -> None:
        """A load is over, with all its warm-ups."""
        if load is None:
            return
        action: LoadModel = load.mail.work.tag
        failed = ""
        if load.error is not None:
            failed = self._failures.reason(action, load.error)
            engine = self._forgotten(action)
            self._lanes[action.lane].give(Work(0, 0, START_ANY_TIME_NS, lambda _: engine.unload(), None))
        events.append(WorkFinished(action.work_id, load.mail.started_ns, clock_ns(), (), failed))

    def _lanes_of(self, model: str, device: str) -> List[str]:
        """The lanes of a device that may run a model."""
        return [name for name in model_lanes(self.config, self.config.models[model]) if self._devices[name] == device]

    def _results(self, action: RunBatch, value: Any, failed: str) -> Tuple[JobResult, ...]:
        """One result per job. A batch whose result has the wrong form fails as if the engine had raised."""
        returned = self.retained.of(action).returned
        if not failed:
            failed = wrong_form(action, value)
            if failed:
                self._failures.reason(action, EngineError(failed))
        if failed:
            self.lane_counts[action.lane].failed += 1
            return tuple([returned(job, None, failed) for job in action.jobs])
        errors = [item_error(action.model, result) for result in value]
        self.lane_counts[action.lane].failed += None not in errors
        reason = self._failures.reason
        return tuple([returned(job, result) if error is None else returned(job, None, reason(action, error))
                      for job, result, error in zip(action.jobs, value, errors)])

    # --- actions ------------------------------------------------------------------------------------------------------

    def _run_batch(self, action: RunBatch) -> None:
        items = []
        states = []
        missing = self.retained.refusal(action)
        if missing is not None:
            self.post(missing)
            return
        launch = self.retained.of(action).launch
        for job in action.jobs:
            item, state = launch(job)
            items.append(item)
            states.append(state)
        engine = self._engines[action.model, self._devices[action.lane]]
        now_ns = clock_ns()
        self._coalescing.launched(now_ns, action.expected_ns)
        self.lane_counts[action.lane].in_flight[action.work_id] = now_ns
        self._lanes[action.lane].give(Work(
            action.work_id, action.start_after_ns, action.start_before_ns, None,
            Batch(items, action.size, states, action.steps_max), action, engine, action.expected_ns))

    def _load(self, action: LoadModel) -> None:
        engine = self._engines[action.model, self._devices[action.lane]]
        self._give(action, action.start_before_ns, lambda _: engine.load())

    def _evict(self, action: EvictModel) -> None:
        engine = self._forgotten(action)
        self._give(action, START_ANY_TIME_NS, lambda _: engine.unload())

    def _forgotten(self, action: Union[LoadModel, EvictModel]) -> Engine:
        """The engine of a model that is about to be unloaded; its lanes have no session of it any more."""
        device = self._devices[action.lane]
        engine = self._engines[action.model, device]
        for name in self._lanes_of(action.model, device):
            self._lanes[name].forget(engine)
        return engine

    def _give(self, action: Any, start_before_ns: int, call: Callable[[Any], Any]) -> None:
        self.lane_counts[action.lane].in_flight[action.work_id] = clock_ns()
        self._lanes[action.lane].give(Work(action.work_id, 0, start_before_ns, call, None, action))

    def _drop_state(self, action: DropState) -> None:
        if action.job is not None:
            self.payloads.drop_job_state(action.job)
        else:
            self.payloads.drop_stream_state(action.app, action.stream)

    def _finish_all(self) -> None:
        finishing, self._to_finish[:] = list(self._to_finish), ()
        for action in finishing:
            self._finish(action)
        self._coalescing.answered(clock_ns(), len(finishing))

    def _finish(self, action: FinishRequest) -> None:
        request = self.payloads[action.request_id]
        counts = self.app_counts[request.plan.config.name]
        if action.outcome == Outcome.COMPLETED:
            now_ns = clock_ns()
            late = now_ns > request.deadline_ns
            counts.completed(now_ns - request.arrival_ns, late, action.breakdown)
            request.responder.answer(self.payloads.outputs(request), action.reason, late, now_ns,
                                     now_ns - request.arrival_ns,
                               action.breakdown)
            self._response_overhead.took(clock_ns() - self._overhead_from_ns)
        else:
            counts.ended(action.outcome, action.reason)
            request.responder.refuse(refusal(request.plan.config.name, action.outcome, action.reason))
        if self.gateway is not None:
            self.gateway.forget(request)
        self.payloads.end(request)


def _lane_threads(config: Config) -> int:
    """Threads that the lanes compute with on this machine's cores; a GPU's lane waits."""
    return sum(lane.threads for lane in config.lanes.values() if config.devices[lane.device].kind == "cpu")


def _wait_readable(files: Sequence[int], timeout_s: float) -> List[int]:
    """Those of ``files`` that can be read, none after ``timeout_s``."""
    if max(files) < FD_SELECT_MAX:
        return select.select(files, (), (), timeout_s)[0]
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(timeout_s * 1000)]
