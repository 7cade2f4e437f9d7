"""The live world: what the scheduler decides becomes real here, on lanes, sockets and a monotonic clock.

It implements :class:`edgeserve.loop.drive.World` and takes no decision: it counts what comes in, assembles the
inputs of jobs, hands works to lanes, and tells the client or caller how a request ended. How it sleeps is
``loop_io.py``'s. Everything but :meth:`LiveWorld.post` belongs to the loop's thread."""

from __future__ import annotations

import logging
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    MutableMapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
    Union,
)

from edgeserve.config.schema import Config
from edgeserve.engines import load_engine
from edgeserve.engines.base import Batch, Engine
from edgeserve.errors import EdgeServeError, EngineError, WrongInput
from edgeserve.live.device_news import DeviceNews
from edgeserve.live.endings import Endings
from edgeserve.live.errors import EngineFailures, cut
from edgeserve.live.estimates import LOOK_NS, ContradictionLog
from edgeserve.live.lane_works import LaneWorks
from edgeserve.live.lifecycle import Lifecycle
from edgeserve.live.loop_io import LoopIO, Mailbox, MailHandler, clock_ns
from edgeserve.live.prediction_worker import Prediction, PredictionWorker
from edgeserve.live.preparation import Preparation, PreparationWorker, preparers
from edgeserve.live.request import LiveRequest
from edgeserve.live.running_batches import RunningBatch, RunningBatches
from edgeserve.live.stats import AppCounts
from edgeserve.live.values import RequestValues, item_error, wrong_form
from edgeserve.live.warming import ReloadTag, Warmed, Warming, WarmStep
from edgeserve.loop.coalescing import ReceiveCoalescing, lane_threads
from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork, WorkDone, WorkNotStarted
from edgeserve.offload.pin import allowed_cores
from edgeserve.sched.protocol.actions import (
    START_ANY_TIME_NS,
    Action,
    CutBatch,
    DropState,
    EvictModel,
    FinishRequest,
    KeepWritten,
    LeaveOut,
    LoadModel,
    ReleaseInputs,
    ReleaseState,
    RetainInputs,
    RunBatch,
)
from edgeserve.sched.protocol.events import (
    Event,
    JobResult,
    LaneChanged,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sched.requests.states import new_tuple

if TYPE_CHECKING:
    from edgeserve.live.reloads import Reloads
    from edgeserve.live.retained_inputs import RetainedInputs

log = logging.getLogger("edgeserve")


class CancelAsked(NamedTuple):
    """A caller in this process no longer wants its answer, or (``keeps``) only its partial answer."""

    request: LiveRequest
    keeps: bool = False


class StopAsked(NamedTuple):
    """Stop: with ``drain_ns`` accepted requests may still end within that time, without they are cancelled now."""

    drain_ns: int


class LostDevice(NamedTuple):
    """A device that this process can use no more, as a CUDA context after a fault: only another process can. ``lane``
    is the one that noticed, ``reason`` its error."""

    device: str
    lane: str
    reason: str


class LaneBack(NamedTuple):
    """A lane whose thread was replaced may be used again; ``failed`` says why its model was not made anew."""

    lane: str
    failed: str


class CallAsked:
    """Run ``call()`` on the loop's thread (questions about its tables); the asking thread waits in
    :meth:`result`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: Optional[BaseException] = None
        self._done = threading.Event()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 it belongs to the asking thread, not to the loop
            self._error = error
        self._done.set()

    def result(self, timeout_s: float) -> Any:
        if not self._done.wait(timeout_s):
            raise EdgeServeError(
                f"the loop did not answer within {timeout_s:.0f} s; is an engine holding the interpreter's lock?"
            )
        if self._error is not None:
            raise self._error
        return self._value


class LiveWorld:
    """Values, lanes, engines and the clock of one running server or embedded runtime.

    ``engines`` are by (model, device), ``lanes`` by name, copy lanes included; ``sequences`` are the models whose items
    are sequences, ``sizes`` the batch sizes of models that run in fewer than are configured. Everything it keeps is
    bounded by ``[server] pending_max``, the lanes' inboxes and ``streams_max`` of the apps. ``io`` holds its sources of
    work: the mailbox, and for a server the gateway. ``make_lane`` makes another lane of a name, for one that hangs.
    """

    def __init__(
        self,
        config: Config,
        lanes: MutableMapping[str, LaneThread],
        engines: MutableMapping[Tuple[str, str], Engine],
        mailbox: Mailbox,
        make_lane: Callable[[str], LaneThread],
        sequences: Iterable[str] = (),
        sizes: Mapping[str, Tuple[int, ...]] | None = None,
    ) -> None:
        self.config = config
        self._sizes = dict(sizes or {})
        self.values = RequestValues()
        self._retained: Optional[RetainedInputs] = None
        self.app_counts = {name: AppCounts() for name in config.apps}
        self.works = LaneWorks(config, lanes, make_lane)
        self.started_ns = clock_ns()
        self._engines = engines
        self._coalescing = ReceiveCoalescing(shares_cores=lane_threads(config) >= len(allowed_cores()))
        self.stopped = False  # the loop may end, or change its scheduler
        self._failures = EngineFailures()
        self._warming = Warming()
        self._sequences = frozenset(sequences)
        self._batches = RunningBatches(self.values, mailbox.post, self._failures.reason, self._cancel)
        self.endings = Endings(self.values, self._batches, self.app_counts)
        self.predictions = PredictionWorker(mailbox.post, clock_ns)
        self.preparations = PreparationWorker(mailbox.post, clock_ns, self._engine_of)
        self.lifecycle = Lifecycle(
            config,
            self.values,
            self.app_counts,
            self.endings,
            self.predictions,
            self.preparations,
            preparers(config.apps, engines),
            self._sequences,
        )
        self._reloads: Optional[Reloads] = None
        self.contradictions: Optional[ContradictionLog] = None
        self.history: Any = None  # records what the models of ensembles say (``plug_ins.py``)
        self.on_device_lost: Optional[Callable[[LostDevice], None]] = None  # told once per device
        self._lost: Set[str] = set()
        self._look_ns = self.started_ns + LOOK_NS
        self._perform = self._performers()
        self.io = LoopIO(
            mailbox,
            self._mail_handlers(),
            self._coalescing,
            self.works,
            looks_ahead=any(lane.ahead_ns for lane in config.lanes.values()),
        )

    def _performers(self) -> Dict[type, Callable[[Any], None]]:
        """Action -> what performs it."""
        return {
            RunBatch: self._run_batch,
            FinishRequest: self.endings.waiting.append,
            LoadModel: self._load,
            EvictModel: self._evict,
            DropState: self._drop_state,
            LeaveOut: self._leave_out,
            KeepWritten: self._keep_written,
            CutBatch: self._batches.cut,
            ReleaseState: lambda action: self.values.release_job_state(action.job),
            RetainInputs: self._retain,
            ReleaseInputs: lambda action: self.retained.release(action),
        }

    def _mail_handlers(self) -> Dict[type, MailHandler]:
        """Mail -> what takes it, and adds the events that follow from it."""
        return {
            RunningBatch: self._batches.look,
            WorkDone: self._work_done,
            WorkNotStarted: self._work_not_started,
            LaneDown: self._lane_down,
            LiveRequest: self.lifecycle.accept,
            CancelAsked: lambda mail, events: self.lifecycle.cancel(mail.request, events, keeps=mail.keeps),
            StopAsked: lambda mail, events: self.lifecycle.stop(mail.drain_ns, events),
            CallAsked: lambda mail, events: mail.run(),
            Prediction: self.lifecycle.predicted,
            Preparation: self.lifecycle.prepared,
            DeviceNews: lambda news, events: events.extend(news.events),
            LaneBack: self._lane_back,
        }

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Asked to stop or to change, and every accepted request has its end."""
        lifecycle = self.lifecycle
        return (lifecycle.stopping and self.values.open_count == 0) or (lifecycle.held is not None and self.is_quiet)

    @property
    def is_quiet(self) -> bool:
        """True if no request is open and no lane has a work: another scheduler could take over."""
        return (
            self.lifecycle.open_count == 0
            and not self.endings.waiting
            and (self._reloads is None or not self._reloads.open_count)
            and not any(counts.in_flight for counts in self.works.counts.values())
        )

    @property
    def retained(self) -> RetainedInputs:
        """Inputs for probes, from the first that is kept on."""
        if self._retained is None:
            from edgeserve.live.retained_inputs import RetainedInputs

            self._retained = RetainedInputs(self.values)
        return self._retained

    @property
    def reloads(self) -> Reloads:
        """New engines in place of old ones, from the first on."""
        if self._reloads is None:
            from edgeserve.live.reloads import Reloads

            engines: Any = self._engines
            self._reloads = Reloads(
                self.config, self.works.lanes, engines, self._warming, self._failures, self._usable_lanes, self.sizes_of
            )
        return self._reloads

    @property
    def engines(self) -> Mapping[Tuple[str, str], Engine]:
        """The engines that are in use now."""
        return self._engines

    def take_over(self, other: LiveWorld) -> None:
        """Go on counting where another world stopped."""
        for name in self.app_counts.keys() & other.app_counts.keys():
            self.app_counts[name] = other.app_counts[name]
        self.works.take_over(other.works)
        self.started_ns = other.started_ns
        self.endings.overhead = other.endings.overhead
        self._failures = other._failures

    def perform(self, action: Action) -> None:
        """Begin an action. Requests are answered by the next :meth:`wait`."""
        self._perform[type(action)](action)

    def wait(self, until_ns: Optional[int]) -> Tuple[int, List[Event]]:
        """Everything that has happened; if nothing has, wait for it or until ``until_ns``."""
        events: List[Event] = []
        lifecycle = self.lifecycle
        if self.endings.waiting:
            count = self.endings.tell()
            self._coalescing.answered(clock_ns(), count, self.works.idle == 0)
        while True:
            self.stopped = (lifecycle.stopping or lifecycle.held is not None) and self._is_over()
            if self.stopped:
                return clock_ns(), events
            due_ns = until_ns
            if lifecycle.drained_by_ns is not None or self.predictions.waiting or self.preparations.waiting:
                due_ns = lifecycle.first_due_ns(until_ns)
            look_ns = self.works.due_ns
            if look_ns is not None and (due_ns is None or look_ns < due_ns):
                due_ns = look_ns
            now_ns = self.io.gather(due_ns, events)
            if due_ns is not None and now_ns >= due_ns:
                self._come_due(now_ns, events)
            if events or (until_ns is not None and now_ns >= until_ns):
                return now_ns, events

    def _come_due(self, now_ns: int, events: List[Event]) -> None:
        self.lifecycle.come_due(now_ns, events)
        if self.works.due_ns is not None and now_ns >= self.works.due_ns:
            for name in self.works.look(now_ns):
                self._replace(name, events)

    def post(self, item: Any) -> None:
        """Mail for the loop, from any thread."""
        self.io.mailbox.post(item)

    def _engine_of(self, model: str) -> Optional[Engine]:
        """An engine of a model, on any device. Any thread."""
        return next((engine for (name, _), engine in dict(self._engines).items() if name == model), None)

    # --- mail ---------------------------------------------------------------------------------------------------------

    def _cancel(self, request: LiveRequest, events: List[Event], reason: str) -> None:
        self.lifecycle.cancel(request, events, reason)

    def _lane_down(self, mail: LaneDown, events: List[Event]) -> None:
        reason = cut(mail.reason)
        log.error("lane %s is down: %s", mail.lane, reason)
        self.works.counts[mail.lane].up = False
        self._batches.lane_down(mail.lane, events)
        events.append(LaneChanged(mail.lane, up=False, reason=reason, lost=True))
        device = self.works.devices[mail.lane]
        if mail.lost and device not in self._lost:
            self._lost.add(device)
            self._tell_lost(LostDevice(device, mail.lane, reason))

    def _tell_lost(self, lost: LostDevice) -> None:
        log.error("device %s is lost for this process: only another process can use it", lost.device)
        if self.on_device_lost is not None:
            try:
                self.on_device_lost(lost)
            except Exception:  # the application's own code must not end the loop
                log.exception("on_device_lost failed")

    def _replace(self, name: str, events: List[Event]) -> None:
        """Put another thread in the place of a lane that hangs for good, and make the model anew that hangs."""
        taken = self.works.replace(name)
        if not taken:
            return
        model = taken[0].model
        self._batches.lane_down(name, events)
        for action in taken:
            self._does_not_run(action)
        events.append(LaneChanged(name, up=False, reason=f"it hangs in model {model!r} and is replaced"))
        self.reloads.begin(
            model, self.works.devices[name], True, lambda failed: self.post(LaneBack(name, failed)), stuck=True
        )

    def _does_not_run(self, action: Any) -> None:
        """Take back what a lane was given and will not run."""
        if type(action) is RunBatch and not action.probe:
            batch = self._batches.by_id.pop(action.work_id, None)
            for index, job in enumerate(action.jobs):
                if batch is None or index not in batch.over:
                    self.values.not_started(job)

    def _lane_back(self, mail: LaneBack, events: List[Event]) -> None:
        if mail.failed:
            log.error("lane %s is back, and the model that hung could not be made anew: %s", mail.lane, mail.failed)
        if self.works.back(mail.lane, clock_ns()):
            events.append(LaneChanged(mail.lane, up=True))

    def _usable_lanes(self, device: str, model: str) -> List[str]:
        return self.works.usable(device, model, clock_ns())

    def _is_internal(self, mail: Union[WorkDone, WorkNotStarted], action: Any, events: List[Event]) -> bool:
        """True if the scheduler knows nothing of a work."""
        if action is None:  # start-up's own
            return True
        if type(action) is WarmStep:
            self._warmed(self._warming.stepped(mail), events)
            return True
        if isinstance(action, ReloadTag):
            self.reloads.answered(mail)
            return True
        return False

    def _work_not_started(self, mail: WorkNotStarted, events: List[Event]) -> None:
        action = mail.work.tag
        if self._is_internal(mail, action, events):
            return
        if self.works.answered(action) is None:
            return  # its lane was replaced meanwhile
        self.works.counts[action.lane].refused += 1
        self._does_not_run(action)
        events.append(WorkRefused(action.work_id, mail.reason))

    def _work_done(self, mail: WorkDone, events: List[Event]) -> None:
        action = mail.work.tag
        if type(action) is not RunBatch and self._is_internal(mail, action, events):
            return
        works = self.works
        given_ns = works.answered(action)
        if given_ns is None:
            return  # its lane was replaced meanwhile
        # What came on top of the time on the lane, from when the work could have begun.
        ready_ns = max(given_ns, works.free_ns[action.lane])
        works.free_ns[action.lane] = mail.finished_ns
        self.endings.overhead_from_ns = mail.finished_ns - max(0, mail.started_ns - ready_ns)
        counts = works.counts[action.lane]
        counts.works += 1
        counts.busy_ns += mail.finished_ns - mail.started_ns
        if type(action) is LoadModel and mail.error is None:
            self._warm_up(mail, action, events)
            return
        error = mail.error
        if isinstance(error, WrongInput) and type(action) is RunBatch:
            error = self.values.fault(action.jobs[0], error)
        failed = "" if error is None else self._failures.reason(action, error)
        results: Tuple[JobResult, ...] = ()
        if type(action) is RunBatch:
            counts.jobs += len(action.jobs)
            counts.probes += action.probe
            results = self._results(action, mail.value, failed, events)
            failed = ""
        events.append(WorkFinished(action.work_id, mail.started_ns, mail.finished_ns, results, failed))
        if mail.finished_ns >= self._look_ns and self.contradictions is not None:
            self._look_ns = mail.finished_ns + LOOK_NS
            self.contradictions.look()

    def _warm_up(self, mail: WorkDone, action: LoadModel, events: List[Event]) -> None:
        """Have the lanes of a loaded model warm up before the scheduler may use it."""
        lanes = [self.works.lanes[name] for name in self._usable_lanes(self.works.devices[action.lane], action.model)]
        engine = self._engines[action.model, self.works.devices[action.lane]]
        unchecked = self.reloads.unchecked(action.model, self.works.devices[action.lane])
        self._warmed(self._warming.begin(mail, engine, lanes, self.sizes_of(action.model), unchecked), events)

    def _warmed(self, load: Optional[Warmed], events: List[Event]) -> None:
        """Tell the scheduler of a load that is over, with all its warm-ups; a reload goes on instead."""
        if load is None:
            return
        if isinstance(load.mail.work.tag, ReloadTag):
            self.reloads.warmed(load)
            return
        action: LoadModel = load.mail.work.tag
        failed = ""
        if load.error is None:
            self.reloads.was_loaded(action.model, self.works.devices[action.lane])
        else:
            failed = self._failures.reason(action, load.error)
            engine = self._forgotten(action)
            self.works.lanes[action.lane].give(LaneWork(0, 0, START_ANY_TIME_NS, lambda _: engine.unload(), None))
        events.append(WorkFinished(action.work_id, load.mail.started_ns, clock_ns(), (), failed))

    def sizes_of(self, model: str) -> Tuple[int, ...]:
        """The batch sizes that a model runs in: as configured, or the ones that its start has left."""
        return self._sizes.get(model, self.config.models[model].batch)

    def engine(self, model: str, device: str) -> Optional[Engine]:
        """The engine of a model on a device, ``None`` where no lane of it may run the model."""
        return self._engines.get((model, device))

    def _results(self, action: RunBatch, value: Any, failed: str, events: List[Event]) -> Tuple[JobResult, ...]:
        """One result per job that was not over before. A batch whose result has the wrong form fails as if the engine
        had raised."""
        if self.history is not None and not failed:
            self.history.said(action, value)
        returned = self.retained.returned if action.probe else self.values.returned
        said = () if failed or not isinstance(value, (list, tuple)) else value
        batch = self._batches.ended(action.work_id, events, said) if self._batches.by_id else None
        if not failed and (type(value) is not list or len(value) != len(action.jobs)):
            failed = wrong_form(action, value)
            if failed:
                self._failures.reason(action, EngineError(failed))
        jobs = action.jobs
        if batch is not None:
            jobs, value = self._batches.rest(batch, value if not failed else [None] * len(jobs))
        if failed:
            if batch is not None:
                self._batches.keep_states(batch)
            self.works.counts[action.lane].failed += 1
            return tuple([returned(job, None, failed) for job in jobs])
        results = []
        errors = 0
        for job, result in zip(jobs, value):
            error = item_error(action.model, result)
            if error is None:
                results.append(returned(job, result))
            else:
                if batch is not None:
                    self._batches.keep_state(batch, job)
                error = self.values.fault(job, error)
                errors += not isinstance(error, WrongInput)
                results.append(returned(job, None, self._failures.reason(action, error)))
        self.works.counts[action.lane].failed += errors == len(results) > 0
        return tuple(results)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _run_batch(self, action: RunBatch) -> None:
        items = []
        states = []
        launch = self.values.launch
        if action.probe:
            missing = self.retained.refusal(action)
            if missing is not None:
                self.works.gave(action, clock_ns())
                self.post(missing)
                return
            launch = self.retained.launch
        engine = self._engines[action.model, self.works.devices[action.lane]]
        for job in action.jobs:
            item, state = launch(job, engine.loaded_from)
            items.append(item)
            states.append(state)
        control, expected_ns = None, action.expected_ns
        owners: Tuple[str, ...] = ()
        if action.model in self._sequences:
            requests = self.values.requests
            owners = tuple([self.values.owner_of(requests[job.request_id]) for job in action.jobs])
            control = self._batches.begin(action)
            expected_ns //= action.steps_max or 1  # it can be cut after a step: what comes could start then
        batch = items, action.size, states, action.steps_max, action.variant, control, owners, False
        now_ns = clock_ns()
        self._coalescing.launched(now_ns, expected_ns)
        self.works.gave(action, now_ns)
        self.works.lanes[action.lane].give(
            LaneWork(
                action.work_id,
                action.start_after_ns,
                action.start_before_ns,
                None,
                new_tuple(Batch, batch),
                action,
                engine,
                action.expected_ns,
            )
        )

    def _retain(self, action: RetainInputs) -> None:
        if self.history is None or self.history.begin(action.job, self.values.requests[action.job.request_id]):
            self.retained.retain(action)

    def _load(self, action: LoadModel) -> None:
        engine = self._engines[action.model, self.works.devices[action.lane]]
        model, directory = self.config.models[action.model], self.config.directory
        self._give(action, action.start_before_ns, lambda _: load_engine(engine, model, directory))

    def _evict(self, action: EvictModel) -> None:
        engine = self._forgotten(action)
        self._give(action, START_ANY_TIME_NS, lambda _: engine.unload())

    def _forgotten(self, action: Union[LoadModel, EvictModel]) -> Engine:
        """The engine of a model that is about to be unloaded; its lanes have no session of it any more."""
        device = self.works.devices[action.lane]
        engine = self._engines[action.model, device]
        if self._reloads is not None:
            self._reloads.dropped((action.model, device))
        for name in self.works.of_model(action.model, device):
            self.works.lanes[name].forget(engine)
        return engine

    def _give(self, action: Any, start_before_ns: int, call: Callable[[Any], Any]) -> None:
        self.works.gave(action, clock_ns())
        self.works.lanes[action.lane].give(LaneWork(action.work_id, 0, start_before_ns, call, None, action))

    def _drop_state(self, action: DropState) -> None:
        if action.job is not None:
            self.values.drop_job_state(action.job)
        else:
            self.values.drop_stream_state(action.app, action.stream)

    def _keep_written(self, action: KeepWritten) -> None:
        self.values.keep_written(action.job, self._batches.state_of(action.job))
        self._batches.leave_out(action)

    def _leave_out(self, action: LeaveOut) -> None:
        self.values.leave_out(action.job)
        if self._batches.by_id:
            self._batches.leave_out(action)
