"""Everything that lives as long as one running runtime: opened, lived in and closed by the loop's thread.

Wiring: lanes, engines, scheduler, world, the front gateway and the recorder, in the order in which they depend on each
other, and their end in the reverse order. Questions about them are answered by ``questions.py``, another configuration
is prepared by ``config_reload.py``.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
from itertools import count
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from edgeserve.config.profile_record import Profile
from edgeserve.config.python_names import as_given
from edgeserve.config.schema import Config
from edgeserve.engines.base import Engine
from edgeserve.errors import EdgeServeError, RequestError
from edgeserve.interpreter import forked, stays_with_parent
from edgeserve.live.errors import EarlyRefusals, error_for
from edgeserve.live.estimates import log_fits
from edgeserve.live.loop_io import Mailbox, clock_ns
from edgeserve.live.plug_ins import asked_taps, plug_in
from edgeserve.live.preflight import check_before_loading, raise_or_tell
from edgeserve.live.request import LiveRequest, RequestValidator, check_names
from edgeserve.live.responders import RequestFuture
from edgeserve.live.sensors import card_free_bytes, device_table, started_watch, with_headroom
from edgeserve.live.served import Served, assemble
from edgeserve.live.startup import Progress, Started, Starter, make_lanes
from edgeserve.live.world import CallAsked, LiveWorld, LostDevice, StopAsked
from edgeserve.loop.drive import OnStep, drive
from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork
from edgeserve.sched.core.build import copy_lane_name
from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.units import ns_to_s

if TYPE_CHECKING:
    from edgeserve.live.config_reload import PreparedConfig
    from edgeserve.live.device_watch import DeviceWatch
    from edgeserve.live.taps import GuardedTap
    from edgeserve.tap import Tap

log = logging.getLogger("edgeserve")

LANES_END_S = 2.0
"""Seconds that closing waits for running batches, all lanes together; then they are aborted where the engine can."""

LANES_GIVE_UP_S = 0.2
"""Seconds that a lane may take to abort its batches; then its thread is abandoned."""


ANSWERING = (
    "edgeserve.live.questions",
    "edgeserve.live.figures",
    "edgeserve.live.why",
    "edgeserve.device.boards",
    "edgeserve.taps.last_steps",
)
"""Modules that answers to questions need, as far as they are installed."""


def learn_to_answer() -> None:
    """Import what answers to questions need, on a thread that may take its time: the loop's has requests to serve."""
    for name in ANSWERING:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


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
        taps: Sequence[Tap] = (),
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
        self._served: Optional[Served] = None
        self._taps: List[GuardedTap] = []
        if taps:
            from edgeserve.live.taps import guarded

            self._taps += guarded(taps)
        self._on_step: List[OnStep] = []
        self._last_steps: Any = None
        self._tracer_provider = tracer_provider
        self._watch: Optional[DeviceWatch] = None
        self._gateway: Any = None
        self.on_device_lost: Optional[Callable[[LostDevice], None]] = None
        self.reload_file: Callable[[], None] = lambda: None  # the runtime's, on a thread of its own
        self._prepared: Optional[PreparedConfig] = None  # what takes over when the accepted requests have ended
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
        config = self.config = with_headroom(self.config)
        profiles = profiles_of(config)
        recorded = recorded_of(config)
        engines: Dict[Tuple[str, str], Engine] = {}
        problems = check_before_loading(config, profiles, engines)
        if self._serve:
            from edgeserve.ipc.endpoints import check_endpoint

            check_endpoint(config.server.endpoint, config.curve_secret_key_path)
        raise_or_tell(problems, lambda text: log.warning("%s", as_given(config.source, text)))
        if self._serve:
            learn_to_answer()
        ours = asked_taps(config, self._serve, self._tracer_provider)
        if ours:
            from edgeserve.live.taps import TapPlace, guarded

            place = TapPlace(config, self._serve, self._tracer_provider, self._parent_of)
            for name in ours:  # one at a time: where the next cannot be opened, those before are closed
                self._taps += guarded([plug_in(name)(place)])
        lanes = make_lanes(config, self.mailbox, clock_ns)
        for lane in lanes.values():
            lane.start()
        self._lanes = lanes
        self._started = started = Starter(
            config, profiles, lanes, self.mailbox, clock_ns, self._called_off, engines, self._progress, card_free_bytes
        ).start()
        check_names(self.validators, started.names)
        self._serve_with(
            assemble(config, self.validators, profiles, started, lanes, self.mailbox, self.early, self.on_device_lost)
        )
        log_fits(self.scheduler.state, [problem.app for problem in problems], config.source)
        if recorded:
            self.world.history = plug_in("history")(recorded)
        for tap in self._taps:
            tap.begin(config, {**started._asdict(), "profiles": profiles})
            self._on_step.append(tap.tap)
        if self._serve:
            from edgeserve.live.gateway import Gateway  # opens a socket library that an embedded runtime spares

            self._gateway = self.world.io.source = Gateway(config, self.validators, self.world, self, self.early)
        self._watch = started_watch(config, self.mailbox.post, clock_ns, profiles)

    def _parent_of(self, request_id: int) -> Optional[str]:
        return self.world.values.requests[request_id].traceparent

    def _steps(self) -> Any:
        """The last steps of the scheduler, which are kept from the first question on."""
        if self._last_steps is None:
            self._last_steps = plug_in("last steps")(self._on_step)
        return self._last_steps

    def _serve_with(self, served: Served) -> None:
        self._served = served
        self.config, self.validators, self._started, self.scheduler, self.world = served

    # --- another configuration ----------------------------------------------------------------------------------------

    def hold(self, prepared: PreparedConfig, told: Callable[[Optional[BaseException]], None]) -> None:
        """Hold what arrives until the accepted requests have ended, then change; ``told`` hears None, or why not."""
        self._prepared, self._told = prepared, told
        self.world.lifecycle.held = []

    def call_off(self) -> bool:
        """Go on with the old configuration, if the new one has not taken over yet; whether it has not."""
        held, self.world.lifecycle.held, self._prepared = self.world.lifecycle.held, None, None
        for request in held or ():
            self.mailbox.post(request)
        return held is not None

    def _change(self) -> None:
        """Let another scheduler and world take over, now that no request is open and no lane works."""
        prepared, told, old = self._prepared, self._told, self.world
        assert prepared is not None and told is not None and self._served is not None, "hold() was called"
        held, old.lifecycle.held, self._prepared = old.lifecycle.held or [], None, None
        from edgeserve.live.config_reload import successor

        try:
            served = successor(self._served, prepared, self._lanes, self.mailbox, self.early, self.on_device_lost)
        except Exception as error:  # noqa: BLE001 the old ones go on, and the caller gets the error
            for request in held:
                self.mailbox.post(request)
            told(error)
            return
        world = served.world
        gone = {key: engine for key, engine in old.engines.items() if served.started.engines.get(key) is not engine}
        old.predictions.close()
        world.io.source = old.io.source
        world.take_over(old)
        recorded = recorded_of(prepared.config)
        if old.history is not None:
            old.history.close(wait=False)
        if recorded or old.history is not None:
            world.history = plug_in("history")(recorded, old.history)
        self._serve_with(served)
        if self._gateway is not None:
            self._gateway.change(self.validators, world)
        for tap in self._taps:
            tap.change(self.config)
        self._unload(gone)
        if self._watch is not None:  # a new one tells the new scheduler all it knows
            self._watch.stop()
        self._watch = started_watch(self.config, self.mailbox.post, clock_ns, prepared.profiles)
        for name, counts in world.works.counts.items():
            if not counts.up:
                self.mailbox.post(LaneDown(name, "it was down before the configuration changed"))
        self._settle()
        for request in held:
            self.mailbox.post(request)
        log_fits(self.scheduler.state, [problem.app for problem in prepared.problems], self.config.source)
        told(None)

    def _unload(self, engines: Mapping[Tuple[str, str], Engine]) -> None:
        """Give back what no model uses any more. No lane has a batch of it."""
        for (_, device), engine in engines.items():
            for lane in self._lanes.values():
                lane.forget(engine)
            self._lanes[copy_lane_name(device)].give(
                LaneWork(0, 0, START_ANY_TIME_NS, lambda gone: gone.unload(), engine)
            )

    def prepare(self, config: Config) -> PreparedConfig:
        """Check another configuration, then load and warm its new and changed models. For any thread but the loop's."""
        from edgeserve.live.config_reload import prepare

        recorded_of(config)
        begun: List[Started] = []
        try:
            return prepare(
                self.serving, with_headroom(config), profiles_of(config), self._lanes, self.mailbox, begun.append
            )
        except BaseException:
            for started in begun:
                self.discard(started)
            raise

    def discard(self, started: Started) -> None:
        """Unload the engines that were loaded for a configuration that does not take over. For any thread."""
        self._unload(started.engines)

    def measured(self) -> Dict[Tuple[str, str], Dict[int, List[int]]]:
        """The times, measured at start, of models without a profile, by (model, lane)."""
        return self.serving.started.measured

    @property
    def has_served(self) -> bool:
        """True from when its models are loaded, to the end and after it."""
        return self._served is not None

    @property
    def serving(self) -> Served:
        """The present runtime."""
        assert self._served is not None, "asked when it has started"
        return self._served

    def endpoints(self) -> List[str]:
        """The endpoints on which the bus listens; none without a gateway."""
        source = self.world.io.source
        return source.endpoints if source is not None else []

    def live(self) -> None:
        """Turn the loop until the world has stopped."""
        while True:
            drive(self.scheduler, self.world, self._on_step)
            if self.world.lifecycle.held is None or self.world.lifecycle.stopping:
                return
            if self.world.is_quiet:  # else the last step began something more
                self._change()
            self.world.stopped = False

    def close(self, error: RequestError) -> None:
        """Notify all waiting callers, then release everything. Never raises: it runs on the way out."""
        world: Optional[LiveWorld] = getattr(self, "world", None)
        if self._prepared is not None and self._told is not None:
            self._prepared = None
            self._told(EdgeServeError("the configuration has not changed: the runtime has stopped"))
        if world is not None:
            world.predictions.close()
            world.preparations.close()
            for request in world.lifecycle.open_requests():
                request.responder.refuse(request, error_for(request.id, error))
        self.sweep(error)
        if world is not None and world.io.source is not None:
            world.io.source.close()
        for tap in self._taps:
            tap.close()
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
            return {"draining": True, "open": self.world.lifecycle.open_count}
        from edgeserve.live import questions

        answers: Dict[str, Callable[[], Dict[str, Any]]] = {
            "stats": self.stats,
            "models": lambda: questions.models(self.serving),
            "apps": lambda: questions.apps(self.serving),
            "health": self.health,
        }
        return answers[kind]()

    def stats(self) -> Dict[str, Any]:
        """See :func:`edgeserve.live.questions.stats`."""
        from edgeserve.live import questions

        return questions.stats(self.serving, clock_ns(), device_table(self._watch))

    def health(self) -> Dict[str, Any]:
        """See :func:`edgeserve.live.questions.health`."""
        from edgeserve.live import questions

        return questions.health(self.serving, clock_ns())

    def blocked_apps(self) -> Dict[str, str]:
        """See :func:`edgeserve.live.questions.blocked_apps`."""
        from edgeserve.live import questions

        return questions.blocked_apps(self.serving, clock_ns())

    def expected(self) -> Dict[str, Dict[str, Any]]:
        """See :func:`edgeserve.live.questions.expected`."""
        from edgeserve.live import questions

        return questions.expected(self.serving, clock_ns())

    def story(self, request_id: int) -> List[str]:
        """See :func:`edgeserve.live.questions.story`."""
        from edgeserve.live import questions

        return questions.story(self.serving, self.early, request_id)

    def reload(self, model: str, told: Callable[[Dict[str, Any]], None]) -> None:
        """Put new engines of a model in the place of its old ones, on every device that may run it. ``told`` gets
        ``failed``, per device that could not, when the last is done. Raises :class:`BadInput` for an unknown model.
        Without a name the configuration's file is read again."""
        if not model:
            threading.Thread(target=self._reload_file, args=(told,), name="edgeserve-reload", daemon=True).start()
            return
        from edgeserve.live.config_reload import reload_model

        reload_model(self.serving, model, told)

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


def profiles_of(config: Config) -> List[Profile]:
    """The profiles to begin with; none where there is no folder of profiles."""
    if not os.path.isdir(config.profiles_path):
        return []
    from edgeserve.live.profiles import usable_profiles

    return usable_profiles(config)


def recorded_of(config: Config) -> Dict[str, Any]:
    """The recorders of histories by app. Raises ``ConfigError`` where an app cannot be recorded."""
    if not any(app.history for app in config.apps.values()):
        return {}
    found: Dict[str, Any] = plug_in("recorded apps")(config)
    return found
