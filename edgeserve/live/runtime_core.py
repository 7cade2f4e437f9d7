"""Everything that lives as long as one running runtime: opened, lived in and closed by the loop's thread.

Wiring: lanes, engines, scheduler, world, the front gateway and the recorder, in the order in which they depend on each
other, and their end in the reverse order. It also answers the questions about all of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from edgeserve import __version__, compiled
from edgeserve.config.language_apps import WRITING_ENGINES
from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import AppConfig, Config
from edgeserve.engines.base import Engine
from edgeserve.errors import BadInput, RequestError, nearest
from edgeserve.interpreter import forked, stays_with_parent
from edgeserve.live.errors import EarlyRefusals, error_for
from edgeserve.live.estimates import ContradictionLog, app_fit, log_fits, times_table
from edgeserve.live.hints import show
from edgeserve.live.loop_io import Mailbox, clock_ns
from edgeserve.live.preflight import check_before_loading, raise_or_tell
from edgeserve.live.request import LiveRequest, RequestValidator, check_names, unknown_app
from edgeserve.live.responders import RequestFuture
from edgeserve.live.sensors import card_free_bytes, device_table, started_watch
from edgeserve.live.startup import Progress, Started, Starter, make_lane, make_lanes
from edgeserve.live.stats import energy_of
from edgeserve.live.value_flow import output_types
from edgeserve.live.world import CallAsked, LiveWorld, LostDevice, StopAsked
from edgeserve.loop.drive import OnStep, drive
from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork
from edgeserve.sched.core.build import build_scheduler, copy_lane_name, model_lanes
from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.taps.last_steps import LastSteps
from edgeserve.taps.span_export import SpanExport, export_for
from edgeserve.taps.trace import Recorder
from edgeserve.units import ns_to_s

if TYPE_CHECKING:
    from edgeserve.live.answer_lengths import AnswerLengths
    from edgeserve.live.config_reload import Prepared, RunningStarter
    from edgeserve.live.device_watch import DeviceWatch
    from edgeserve.live.history_recorder import AppRecords
    from edgeserve.taps.last_steps import LastSteps
    from edgeserve.taps.span_export import SpanExport
    from edgeserve.taps.trace import Recorder

log = logging.getLogger("edgeserve")

LANES_END_S = 2.0
"""Seconds that closing waits for running batches, all lanes together; then they are aborted where the engine can."""

LANES_GIVE_UP_S = 0.2
"""Seconds that a lane may take to abort its batches; then its thread is abandoned."""


NOT_PREDICTED: Dict[str, Any] = {"count": 0, "mean_ms": 0.0, "went_without": 0}
"""The table of an app without predictors."""


class RuntimeCore:
    """One running runtime's parts. ``mailbox`` and :meth:`sweep` are for any thread, the rest for the loop's.
    ``settle`` is called when other models have taken over, and no request is on its way. ``unanswered``: futures of
    requests that have no end yet."""

    def __init__(
        self,
        config: Config,
        validators: Mapping[str, RequestValidator],
        serve: bool,
        called_off: Callable[[], bool],
        progress: Progress | None = None,
        tracer_provider: Any = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.mailbox = Mailbox()
        self.unanswered: Set[RequestFuture] = set()
        self._process = os.getpid()
        self._settle = settle
        self.config = config
        self.validators = validators
        self.early = EarlyRefusals(next((validator.ids for validator in validators.values()), count(1)))
        self._serve = serve
        self._called_off = called_off
        self._progress = progress
        self._lanes: Dict[str, LaneThread] = {}
        self._started: Optional[Started] = None
        self._recorder: Optional[Recorder] = None
        self._taps: List[OnStep] = []
        self._last_steps: Optional[LastSteps] = None
        self._tracer_provider = tracer_provider
        self._spans: Optional[SpanExport] = None
        self._watch: Optional[DeviceWatch] = None
        self._gateway: Any = None
        self.on_device_lost: Optional[Callable[[LostDevice], None]] = None
        self.reload_file: Callable[[], None] = lambda: None  # the runtime's, on a thread of its own
        self._prepared: Optional[Prepared] = None  # what takes over when the accepted requests have ended
        self._told: Optional[Callable[[Optional[BaseException]], None]] = None
        self.scheduler: Scheduler
        self.world: LiveWorld
        stays_with_parent(self)

    def left_behind(self) -> None:
        """See :class:`~edgeserve.interpreter.LeftBehind`."""
        error = forked("Runtime", self._process)
        for future in list(self.unanswered):
            future.give_up_in_child(error)

    def open(self) -> None:
        """Lanes up, models warm, scheduler built, bus bound: ready."""
        config = self.config
        profiles = profiles_of(config)
        recorded = recorded_of(config)
        engines: Dict[Tuple[str, str], Engine] = {}
        problems = check_before_loading(config, profiles, engines)
        if self._serve:
            from edgeserve.ipc.endpoints import check_endpoint

            check_endpoint(config.server.endpoint, config.curve_secret_key_path)
        raise_or_tell(problems, log.warning)
        if config.server.trace_steps:
            self._steps()
        self._spans = self._spans_export()
        if self._spans is not None:
            self._taps.append(self._spans.tap)
        lanes = make_lanes(config, self.mailbox, clock_ns)
        for lane in lanes.values():
            lane.start()
        self._lanes = lanes
        self._started = started = Starter(
            config, profiles, lanes, self.mailbox, clock_ns, self._called_off, engines, self._progress, card_free_bytes
        ).start()
        check_names(self.validators, started.names)
        self.scheduler = build_scheduler(
            config,
            profiles,
            footprints=started.footprints,
            measured=started.measured,
            resident=started.resident,
            sequences=started.sequences,
            sizes=started.sizes,
        )
        self._tell_usual(self.scheduler, self.validators)
        log_fits(self.scheduler.state, [problem.app for problem in problems])
        self.world = LiveWorld(
            config,
            lanes,
            started.engines,
            self.mailbox,
            lambda name: make_lane(config, name, self.mailbox, clock_ns),
            started.sequences,
            started.sizes,
        )
        self._start_predictions(self.world, self.validators)
        self.world.early = self.early
        self.world.on_device_lost = self.on_device_lost
        state = self.scheduler.state
        self.world.contradictions = ContradictionLog(config, state.latency, state)
        if recorded:
            from edgeserve.live.history_recorder import HistoryRecorder

            self.world.history = HistoryRecorder(recorded)
        if config.server.record:
            from edgeserve.config.profiles import parts_of
            from edgeserve.taps.trace import Recorder, start_of

            path = os.path.join(config.directory, config.server.record)
            self._recorder = Recorder(
                path,
                start_of(
                    started.footprints,
                    started.resident,
                    started.measured,
                    parts_of(profiles),
                    started.sequences,
                    started.sizes,
                ),
            )
            self._taps.append(self._recorder.record)
        if self._serve:
            from edgeserve.live.gateway import Gateway  # opens a socket library that an embedded runtime spares

            self._gateway = self.world.io.source = Gateway(config, self.validators, self.world, self, self.early)
        self._watch = started_watch(config, self.mailbox.post, clock_ns)

    def _spans_export(self) -> Optional[SpanExport]:
        """The tap that exports spans, where a provider, the configuration or a server's environment asks for it."""
        asks = self._serve and any(name.startswith("OTEL_") for name in os.environ)
        if self._tracer_provider is None and not self.config.server.otlp and not asks:
            return None

        return export_for(
            self.config,
            self._serve,
            __version__,
            self._tracer_provider,
            parent_of=lambda request_id: self.world.values.requests[request_id].traceparent,
            offset_ns=lambda: time.time_ns() - clock_ns(),
        )

    def _steps(self) -> LastSteps:
        """The last steps of the scheduler, which are kept from the first question on, or always."""
        if self._last_steps is None:
            from edgeserve.taps.last_steps import LastSteps

            self._last_steps = LastSteps(self._taps, self.config.server.trace_steps)
        return self._last_steps

    # --- another configuration ----------------------------------------------------------------------------------------

    def hold(self, prepared: Prepared, told: Callable[[Optional[BaseException]], None]) -> None:
        """Hold what arrives until the accepted requests have ended, then change; ``told`` hears None, or why not."""
        self._prepared, self._told = prepared, told
        self.world.held = []

    def call_off(self) -> bool:
        """Go on with the old configuration, if the new one has not taken over yet; whether it has not."""
        held, self.world.held, self._prepared = self.world.held, None, None
        for request in held or ():
            self.mailbox.post(request)
        return held is not None

    def _change(self) -> None:
        """No request is open and no lane works: another scheduler and world take over."""
        prepared, told, old = self._prepared, self._told, self.world
        assert prepared is not None and told is not None and self._started is not None, "hold() was called"
        held, old.held = old.held or [], None
        try:
            scheduler, world, started = self._successors(prepared)
        except Exception as error:  # noqa: BLE001 the old ones go on, and the caller gets the error
            for request in held:
                self.mailbox.post(request)
            told(error)
            return
        gone = {key: engine for key, engine in old.engines.items() if started.engines.get(key) is not engine}
        old.predictions.close()
        world.io.source = old.io.source
        world.take_over(old)
        recorded = recorded_of(prepared.config)
        if old.history is not None:
            old.history.close(wait=False)
        if recorded or old.history is not None:
            from edgeserve.live.history_recorder import HistoryRecorder

            world.history = HistoryRecorder(recorded, old.history)
        self.scheduler, self.world, self._started = scheduler, world, started
        self.config, self.validators, self._prepared = prepared.config, prepared.validators, None
        if self._gateway is not None:
            self._gateway.change(self.validators, world)
        if self._spans is not None:
            self._spans.change(self.config)
        self._unload(gone)
        if self._watch is not None:  # a new one tells the new scheduler all it knows
            self._watch.stop()
        self._watch = started_watch(self.config, self.mailbox.post, clock_ns)
        for name, counts in world.works.counts.items():
            if not counts.up:
                self.mailbox.post(LaneDown(name, "it was down before the configuration changed"))
        self._settle()
        for request in held:
            self.mailbox.post(request)
        log_fits(scheduler.state, [problem.app for problem in prepared.problems])
        told(None)

    def _successors(self, prepared: Prepared) -> Tuple[Scheduler, LiveWorld, Started]:
        from edgeserve.live.config_reload import merged

        assert self._started is not None, "asked when it has started"
        config = prepared.config
        resident = {
            name: [model for model in device.placements if device.is_resident(model)]
            for name, device in self.scheduler.devices.items()
        }
        started = merged(self._started, prepared, self.world.engines, resident)
        learnt = {key: latency for key, latency in self.scheduler.state.latency.items() if key[0] in prepared.kept}
        scheduler = build_scheduler(
            config,
            prepared.profiles,
            footprints=started.footprints,
            measured=started.measured,
            resident=started.resident,
            sequences=started.sequences,
            learnt=learnt,
            sizes=started.sizes,
        )
        self._tell_usual(scheduler, prepared.validators)
        world = LiveWorld(
            config,
            self._lanes,
            dict(started.engines),
            self.mailbox,
            lambda name: make_lane(config, name, self.mailbox, clock_ns),
            started.sequences,
            started.sizes,
        )
        self._start_predictions(world, prepared.validators)
        world.contradictions = ContradictionLog(config, scheduler.state.latency, scheduler.state)
        world.adopt = partial(self._adopt, prepared.validators)
        world.early = self.early
        world.on_device_lost = self.on_device_lost
        return scheduler, world, started

    @staticmethod
    def _tell_usual(scheduler: Scheduler, validators: Mapping[str, RequestValidator]) -> None:
        """Give the scheduler the hints of a usual request of each app with predicted answer lengths."""
        for name, validator in validators.items():
            if validator.lengths is not None:
                lengths = validator.lengths
                scheduler.state.apps[name].usual = {"steps": lengths.steps({}), "steps_sd": lengths.steps_sd({})}

    def _start_predictions(self, world: LiveWorld, validators: Mapping[str, RequestValidator]) -> None:
        if any(validator.predictors is not None for validator in validators.values()):
            world.predictions.start()
        for name, validator in validators.items():
            if validator.lengths is not None and validator.lengths.learnt_from is not None:
                world.endings.teach[name] = partial(self._teach, world, validator.lengths)

    @staticmethod
    def _teach(world: LiveWorld, lengths: AnswerLengths, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        world.predictions.teach(partial(lengths.learn, inputs, outputs))

    def _adopt(self, validators: Mapping[str, RequestValidator], request: LiveRequest) -> bool:
        """Whether a request that was checked by an earlier configuration can be served; it is refused if not."""
        validator = validators.get(request.app)
        try:
            if validator is None:
                raise unknown_app(request.app, validators)
            validator.adopt(request)
        except RequestError as error:
            request.ended = True
            error = error_for(request.id, error)
            self.early.add(request.app, error)
            request.responder.refuse(request, error)
            return False
        return True

    def _unload(self, engines: Mapping[Tuple[str, str], Engine]) -> None:
        """Give back what no model uses any more. No lane has a batch of it."""
        for (_, device), engine in engines.items():
            for lane in self._lanes.values():
                lane.forget(engine)
            self._lanes[copy_lane_name(device)].give(LaneWork(0, 0, START_ANY_TIME_NS, _unload_engine, engine))

    def prepare(self, config: Config) -> Prepared:
        """Check another configuration, then load and warm its new and changed models. For any thread but the loop's."""
        from edgeserve.live.config_reload import RunningStarter, merged, prepare

        recorded_of(config)
        starters: List[RunningStarter] = []

        def make_starter(others: Config, profiles: Any, engines: Any) -> RunningStarter:
            starter = RunningStarter(
                others, profiles, self._lanes, self.mailbox, clock_ns, lambda: self.world.stopping, engines
            )
            starter.usable = lambda lane: self.world.works.counts[lane].up
            starters.append(starter)
            return starter

        try:
            prepared = prepare(
                self.config, config, profiles_of(config), self.world.engines, self.validators, make_starter
            )
            assert self._started is not None, "asked when it has started"
            names = merged(self._started, prepared, {}, {}).names
            check_names(prepared.validators, names)
            return prepared
        except BaseException:
            for starter in starters:
                self.discard(starter.begun)
            raise

    def discard(self, started: Started) -> None:
        """The engines that were loaded for a configuration that does not take over are not needed. For any thread."""
        self._unload(started.engines)

    def measured(self) -> Dict[Tuple[str, str], Dict[int, List[int]]]:
        """The times, measured at start, of models without a profile, by (model, lane)."""
        assert self._started is not None, "asked when it has started"
        return self._started.measured

    def endpoints(self) -> List[str]:
        """The endpoints on which the bus listens; none without a gateway."""
        source = self.world.io.source
        return source.endpoints if source is not None else []

    def live(self) -> None:
        """Turn the loop until the world has stopped."""
        while True:
            drive(self.scheduler, self.world, self._taps)
            if self.world.held is None or self.world.stopping:
                return
            if self.world.is_quiet:
                self._change()
            else:  # the last step began something more
                self.world.stopped = False

    def close(self, error: RequestError) -> None:
        """Notify all waiting callers, then release everything. Never raises: it runs on the way out."""
        world: Optional[LiveWorld] = getattr(self, "world", None)
        if world is not None:
            world.predictions.close()
            world.preparations.close()
            for request in world.open_requests():
                request.responder.refuse(request, error_for(request.id, error))
        self.sweep(error)
        if world is not None and world.io.source is not None:
            world.io.source.close()
        if self._recorder is not None:
            self._recorder.close()
        if self._spans is not None:
            self._spans.close()
        if world is not None and world.history is not None:
            world.history.close()
        for lane in self._lanes.values():
            lane.stop()
        if self._watch is not None:
            self._watch.stop()
        self._end_lanes()

    def _end_lanes(self) -> None:
        due_ns = clock_ns() + int(LANES_END_S * 1e9)
        hung = [name for name, lane in self._lanes.items() if not lane.join(max(0.0, ns_to_s(due_ns - clock_ns())))]
        for name in hung:
            self._lanes[name].give_up()
        hung = [name for name in hung if not self._lanes[name].join(LANES_GIVE_UP_S)]
        if hung:
            log.warning(
                "lanes %s still run a work after %.0f s; their threads are abandoned", ", ".join(hung), LANES_END_S
            )
        devices = {
            self.config.lanes[name].device if name in self.config.lanes else name.split(":", 1)[1] for name in hung
        }
        for (model, device), engine in (self._started.engines if self._started is not None else {}).items():
            if device in devices:
                continue  # a hung work may still be inside the engine
            try:
                engine.unload()
            except Exception as error:  # noqa: BLE001 the others' memory must be given back too
                log.warning("model %s on device %s could not be unloaded: %s", model, device, error)

    def sweep(self, error: RequestError) -> None:
        """Refuse the requests that stay in the mailbox: the loop takes no more."""
        for item in self.mailbox.take():
            if isinstance(item, LiveRequest):
                item.responder.refuse(item, error_for(item.id, error))

    # --- questions ----------------------------------------------------------------------------------------------------

    def ask(self, kind: str, number: int = 0) -> Dict[str, Any]:
        """The answer to a control question of the bus."""
        if kind == "story":
            return {"story": self.story(number)}
        if kind == "trace":
            now_ns = clock_ns()
            return {"now_ns": now_ns, **self._steps().page(number, now_ns)._asdict()}
        if kind == "drain":
            self.mailbox.post(StopAsked(self.config.server.drain_ns))
            return {"draining": True, "open": self.world.open_count}
        answers: Dict[str, Callable[[], Dict[str, Any]]] = {
            "stats": self.stats,
            "models": self.models,
            "apps": self.apps,
            "health": self.health,
        }
        return answers[kind]()

    def story(self, request_id: int) -> List[str]:
        """The story of a request, line by line; no line when it is not remembered."""
        from edgeserve.live.why import story_of

        lines = story_of(self.scheduler, request_id) or self.early.story(request_id)
        if lines:
            return lines
        for request in self.world.predictions.requests():
            if request.id == request_id:
                return [f"request {request_id} of app {request.app}: waits for its prediction"]
        for request in self.world.held or ():
            if request.id == request_id:
                return [f"request {request_id} of app {request.app}: waits for another configuration to take over"]
        arriving = self.world.values.requests.get(request_id)
        return [] if arriving is None else [f"request {request_id} of app {arriving.app}: is arriving"]

    def health(self) -> Dict[str, Any]:
        """``ready``: it accepts requests, and every app could run now; else ``stopping`` or ``blocked`` says why not
        (app -> why). And which lanes are up."""
        blocked = self.blocked_apps()
        return {
            "ready": not self.world.stopping and not blocked,
            "stopping": self.world.stopping,
            "blocked": blocked,
            "version": __version__,
            "core": compiled.running().kind,
            "pid": os.getpid(),
            "open": self.world.open_count,
            "lanes": {name: lane["state"] for name, lane in self._lane_tables().items()},
        }

    def blocked_apps(self) -> Dict[str, str]:
        """Apps that could not run now -> why: no lane is up for a model, its process is down, it cannot be loaded."""
        config = self.config
        why = {name: self._blocked_model(name) for name in config.models}
        found: Dict[str, str] = {}
        for app in config.apps.values():
            reasons = [why[node.model or node.name] for node in app.nodes]
            if any(reasons) and not any(not why[variant] for variant in app.variants):
                found[app.name] = next(reason for reason in reasons if reason)
        return found

    def _blocked_model(self, model: str) -> str:
        """Why no lane could run a model now, or ``""``: of the lanes' reasons the first."""
        config, now_ns, reasons = self.config, clock_ns(), []
        for lane in model_lanes(config, config.models[model]):
            device = config.lanes[lane].device
            engine = self.world.engine(model, device)
            placement = self.scheduler.devices[device].placements[model]
            if self.world.works.counts[lane].is_stuck(now_ns, config.lanes[lane].hang_ns):
                reason = f"lane {lane} {'hangs' if self.world.works.counts[lane].up else 'is down'}"
            elif placement.failures and not self.scheduler.devices[device].is_resident(model):
                reason = f"model {model} could not be loaded on device {device}"
            else:
                said = engine.trouble(lane) if engine is not None else ""
                reason = f"model {model} on lane {lane}: {said}" if said else ""
            if not reason:
                return ""
            reasons.append(reason)
        return reasons[0] if reasons else f"model {model} has no lane"

    def reload(self, model: str, told: Callable[[Dict[str, Any]], None]) -> None:
        """Put new engines of a model in the place of its old ones, on every device that may run it. ``told`` gets
        ``failed``, per device that could not, when the last is done. Raises :class:`BadInput` for an unknown model.
        Without a name the configuration's file is read again."""
        if not model:
            threading.Thread(target=self._reload_file, args=(told,), name="edgeserve-reload", daemon=True).start()
            return
        if model not in self.config.models:
            raise BadInput(
                f"no model {show(model)} is served here{nearest(model[:NAME_CHARS_MAX], self.config.models)}"
            )
        devices = [device for device in self.config.devices if self.world.engine(model, device) is not None]
        left, failed = set(devices), {}

        def ended(device: str, reason: str) -> None:
            left.discard(device)
            if reason:
                failed[device] = reason
            if not left:
                told({"model": model, "devices": devices, "failed": failed})

        for device in devices:
            resident = self.scheduler.devices[device].is_resident(model)
            self.world.reloads.begin(model, device, resident, partial(ended, device))

    def _reload_file(self, told: Callable[[Dict[str, Any]], None]) -> None:
        failed = {}
        try:
            self.reload_file()
        except Exception as error:  # noqa: BLE001 the caller gets the error
            failed["configuration"] = str(error)
        apps = list(self.config.apps)
        self.mailbox.post(
            CallAsked(lambda: told({"model": "", "devices": ["configuration"], "failed": failed, "apps": apps}))
        )

    def stats(self) -> Dict[str, Any]:
        """Counts per app, model, lane and device, and what policies have learnt, as plain numbers and strings."""
        from edgeserve.live.figures import figures_of

        world, energy = self.world, self.scheduler.energy(clock_ns())
        return {
            "uptime_s": ns_to_s(clock_ns() - world.started_ns),
            "open": world.open_count,
            "pending_max": self.config.server.pending_max,
            "apps": {
                name: {
                    **counts.table(),
                    **self._predictions(name),
                    **self._expected(name),
                    **self._cached(name),
                    **self._history(name),
                    **energy_of(name, energy, counts),
                }
                for name, counts in world.app_counts.items()
            },
            "models": {
                name: {"ignored_hints": world.values.result_hints.ignored_hints(name), "latency": self._latency(name)}
                for name in self.config.models
            },
            "policies": figures_of(self.scheduler.policies),
            "trials": self.scheduler.trials(),
            "lanes": self._lane_tables(),
            "devices": self._devices(energy),
            "device": device_table(self._watch),
            "streams_with_state": world.values.state_count(),
        }

    def _predictions(self, app: str) -> Dict[str, Any]:
        predictors, lengths = self.validators[app].predictors, self.validators[app].lengths
        table = predictors.table() if predictors is not None else NOT_PREDICTED
        if lengths is not None and lengths.learnt_from is not None:
            table = {**table, "learnt_from": lengths.learnt_from}
        return {"failed_predictions": predictors.failed() if predictors is not None else {}, "predictions": table}

    def _history(self, app: str) -> Mapping[str, Any]:
        return self.world.history.table(app) if self.world.history is not None else {}

    def _expected(self, app: str) -> Dict[str, Any]:
        state = self.scheduler.state
        known = state.apps[app]
        answers = known.simple and known.nodes[0].model in state.sequences.models  # a step alone would say nothing
        fit = app_fit(state, known, by_policy=answers)
        return {"policy": known.policy, **fit.table()}

    def _cached(self, app: str) -> Dict[str, Any]:
        """The part of the prompts of an app's language models that was in memory before they were read."""
        sequences = self.scheduler.state.sequences
        nodes = [node for node in self.scheduler.state.apps[app].nodes if node.model in sequences.models]
        shares = {node.name: sequences.cached_milli(app, node.name) / 1000 for node in nodes}
        return {"prompt_cached": shares} if shares else {}

    def expected(self) -> Dict[str, Dict[str, Any]]:
        """Per app, what a request could expect that arrived now."""
        state = self.scheduler.state
        since_ns = max(0, clock_ns() - state.board.now_ns)  # the estimate is of the last step
        return {app.name: app_fit(state, app, by_policy=True).prospect(since_ns) for app in state.apps.values()}

    def _lane_tables(self) -> Dict[str, Dict[str, Any]]:
        now_ns, lanes = clock_ns(), self.config.lanes
        return {
            name: counts.table(now_ns, self.world.started_ns, lanes[name].hang_ns if name in lanes else 0)
            for name, counts in self.world.works.counts.items()
        }

    def _latency(self, model: str) -> Dict[str, Any]:
        """The estimates of a model's times, per lane, and their basis."""
        now_ns, state = clock_ns(), self.scheduler.state
        return {lane.name: times_table(state.latency[model, lane.name], now_ns) for lane in state.lanes_of[model]}

    def _devices(self, energy: Mapping[str, Any]) -> Dict[str, Any]:
        return {
            name: {
                "models": [model for model in device.placements if device.is_resident(model)],
                "used_bytes": device.used_bytes,
                "state_bytes": device.state_bytes,
                "budget_bytes": device.budget_bytes,
                "free_bytes": device.free_bytes,
                "thermal": device.thermal,
                "power": device.power,
                **energy.get(name, {}),
            }
            for name, device in self.scheduler.devices.items()
        }

    def models(self) -> Dict[str, Any]:
        """The models: lanes, batch sizes, and whether each is in memory."""
        return {
            model.name: {
                "engine": model.engine,
                "batch": list(self.world.sizes_of(model.name)),
                "pinned": model.pinned,
                "lanes": model_lanes(self.config, model),
                "resident": [
                    device.name
                    for device in self.scheduler.devices.values()
                    if model.name in device.placements and device.is_resident(model.name)
                ],
            }
            for model in self.config.models.values()
        }

    def apps(self) -> Dict[str, Any]:
        """The apps: inputs, outputs, deadline."""
        return {
            app.name: {
                "nodes": [node.name for node in app.nodes],
                **self._expected(app.name),
                "class": app.klass,
                "stream": app.stream,
                "needs_stream": bool(self.validators[app.name].stateful),
                "on_late": app.on_late,
                "outputs": [source.argument for source in self.validators[app.name].plan.outputs],
                "output_types": self._output_types(app.name),
                **self._writing(app),
                "inputs": {
                    name: {
                        "dtype": tensor.dtype,
                        "shape": list(tensor.shape),
                        "optional": tensor.optional,
                        **self._usual(app, name),
                    }
                    for name, tensor in app.inputs.items()
                },
            }
            for app in self.config.apps.values()
        }

    def _output_types(self, app: str) -> Dict[str, Any]:
        known = self._started.outputs if self._started is not None else {}
        types = output_types(self.validators[app].plan, known)
        return {name: {"dtype": kind.dtype, "shape": list(kind.shape)} for name, kind in types.items()}

    def _writing(self, app: AppConfig) -> Dict[str, Any]:
        """Whether an answer may come in pieces, and how many tokens its longest conversation has, if that is known."""
        exits = self.validators[app.name].plan.exits
        last = [self.config.models[node.model] for node in app.nodes if node.name in exits]
        sequences = self._started.sequences if self._started is not None else {}
        contexts = [sequences[model.name].context_tokens for model in last if model.name in sequences]
        in_pieces = bool(contexts) or any(model.engine in WRITING_ENGINES for model in last)
        return {"pieces": in_pieces, **({"context_tokens": min(contexts)} if contexts else {})}

    def _usual(self, app: AppConfig, name: str) -> Dict[str, List[int]]:
        """The lengths that an input of an app of one node is warmed up with, where the configuration says them."""
        shape = self.config.models[app.nodes[0].model].shapes.get(name) if len(app.nodes) == 1 else None
        return {} if shape is None or shape == app.inputs[name].shape else {"usual": list(shape)}


def profiles_of(config: Config) -> List[Profile]:
    """The profiles to begin with; none where there is no folder of profiles."""
    if not os.path.isdir(config.profiles_path):
        return []
    from edgeserve.live.profiles import usable_profiles

    return usable_profiles(config)


def recorded_of(config: Config) -> Dict[str, AppRecords]:
    """The recorders of histories by app. Raises ``ConfigError`` where an app cannot be recorded."""
    if not any(app.history for app in config.apps.values()):
        return {}
    from edgeserve.live.history_recorder import recorded_apps

    return recorded_apps(config)


def _unload_engine(engine: Engine) -> None:
    """Unload an engine, on a copy lane's thread."""
    engine.unload()
