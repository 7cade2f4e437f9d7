"""A changed configuration for a server that runs: apps, policies and models, without losing an accepted request.

New and changed models are loaded and warmed beside the old ones, on the caller's thread; batches of others go
between. Then the loop holds what arrives, for as long as the accepted requests need to end under the old scheduler, and
goes on with a new scheduler and world; what was held is accepted there. If the accepted requests do not end in time,
nothing changes. Lanes, devices, the bus and the times learnt of unchanged models stay.
"""

from __future__ import annotations

import queue
from dataclasses import fields, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, MutableMapping, NamedTuple, Optional, Sequence, Set, Tuple

from edgeserve.config.limits import NAME_CHARS_MAX
from edgeserve.config.model_files import parts_of, stamps
from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines.base import Engine
from edgeserve.errors import BadInput, ConfigError, EngineError, RequestError, nearest
from edgeserve.live.errors import EarlyRefusals, error_for
from edgeserve.live.hints import show
from edgeserve.live.loop_io import Mailbox, clock_ns
from edgeserve.live.preflight import check_before_loading
from edgeserve.live.problem import Problem
from edgeserve.live.request import LiveRequest, RequestValidator, check_names, request_validators, unknown_app
from edgeserve.live.served import Served, assemble
from edgeserve.live.startup import Started, Starter, value_of
from edgeserve.live.world import LostDevice
from edgeserve.offload.lane_thread import LaneThread, LaneWork
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS

LOOK_S = 0.2
"""Seconds between two checks, by a thread that waits for a lane, that the lane and the server still run."""

Key = Tuple[str, str]
"""(model, device)."""

FROM_COMMAND_LINE = ("endpoint", "record")
"""Keys of ``[server]`` that the command line may have set; the file's are not looked at."""


class PreparedConfig(NamedTuple):
    """A configuration that could take over: ``kept`` are the models that stay as they are; ``started`` holds the
    engines and measurements of the others."""

    config: Config
    validators: Mapping[str, RequestValidator]
    profiles: Sequence[Profile]
    started: Started
    kept: Set[str]
    problems: Sequence[Problem]


class RunningStarter(Starter):
    """Loads and warms on the lanes of a running server, whose loop reads the mailbox: the works themselves say how they
    ended. ``usable(lane)``: whether it can answer."""

    usable: Callable[[str], bool]

    @property
    def begun(self) -> Started:
        """The engines and estimates made so far."""
        return self._started

    def _call(
        self, lane: str, model: ModelConfig, what: str, call: Callable[[Any], Any], engine: Engine | None = None
    ) -> Any:
        answers: queue.Queue[Tuple[Any, Any]] = queue.Queue()

        def run(here: Any) -> None:
            try:
                answers.put((call(here), None))
            except Exception as error:  # noqa: BLE001 it belongs to the thread that waits
                answers.put((None, error))

        self._lanes[lane].give(LaneWork(0, 0, START_ANY_TIME_NS, run, self._lanes[lane]))
        while True:
            try:
                return value_of(*answers.get(timeout=LOOK_S), model, what)
            except queue.Empty:
                if self._called_off() or not self.usable(lane):
                    raise EngineError(
                        f"model {model.name!r} could not be {what}: lane {lane!r} does not answer, or the server stops"
                    ) from None


def compatible(old: Config, new: Config) -> Config:
    """``new`` with the parts that a running server cannot change taken from ``old``. :class:`ConfigError` names the
    different ones."""
    changed: List[str] = []
    for section, one, other in (
        ("device", old.devices, new.devices),
        ("lane", old.lanes, new.lanes),
        ("front", old.fronts, new.fronts),
    ):
        changed += [f"[{section}.{name}]" for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    for item in fields(old.server):
        if item.name not in FROM_COMMAND_LINE and getattr(old.server, item.name) != getattr(new.server, item.name):
            changed.append(f"[server] {item.metadata.get('key') or item.name}")
    if changed:
        raise ConfigError(
            f"{new.source}: {', '.join(changed)} changed; a reload changes apps, policies and models. "
            "Restart the server for the rest"
        )
    if old.server.record:
        raise ConfigError(
            f"[server] record = {old.server.record!r}: a recording is of one configuration; stop the "
            "server to change it"
        )
    return replace(new, server=old.server)


def kept_models(old: Config, new: Config, engines: Mapping[Key, Engine]) -> Set[str]:
    """Models that are the same in both, and whose files the running engines were made from."""
    same = {
        name
        for name, model in new.models.items()
        if old.models.get(name) == model and old.models[name].given is model.given and old.directory == new.directory
    }
    changed = {
        name
        for (name, _), engine in engines.items()
        if name in same and engine.made_from != stamps(parts_of(new.models[name], new.directory))
    }
    return same - changed


def prepare(
    running: Served,
    new: Config,
    profiles: Sequence[Profile],
    lanes: MutableMapping[str, LaneThread],
    mailbox: Mailbox,
    begin: Callable[[Started], None],
) -> PreparedConfig:
    """Check ``new``, then load and warm its new and changed models beside what is ``running``. Raises the error that
    prevents it; nothing has changed then. ``begin`` gets the engines that are loaded for it, as they come."""
    config, world = compatible(running.config, new), running.world
    kept = kept_models(running.config, config, world.engines)
    ids = next((validator.ids for validator in running.validators.values()), None)
    fresh = request_validators(config, ids)
    made: Dict[Key, Engine] = {key: engine for key, engine in world.engines.items() if key[0] in kept}
    problems = check_before_loading(config, profiles, made)
    stopping = next((problem for problem in problems if problem.stops), None)
    if stopping is not None:
        raise stopping.error or ConfigError(stopping.text)
    others = replace(config, models={name: model for name, model in config.models.items() if name not in kept})
    begun = {key: engine for key, engine in made.items() if key[0] not in kept}
    starter = RunningStarter(others, profiles, lanes, mailbox, clock_ns, lambda: world.lifecycle.stopping, begun)
    starter.usable = lambda lane: world.works.counts[lane].up
    begin(starter.begun)
    prepared = PreparedConfig(config, fresh, profiles, starter.start(), kept, problems)
    check_names(fresh, merged(running.started, prepared, {}, {}).names)
    return prepared


def successor(
    running: Served,
    prepared: PreparedConfig,
    lanes: MutableMapping[str, LaneThread],
    mailbox: Mailbox,
    early: EarlyRefusals,
    on_device_lost: Optional[Callable[[LostDevice], None]],
) -> Served:
    """The runtime that takes over from what is ``running``, with the times learnt of the models that stay."""
    resident = {
        name: [model for model in device.placements if device.is_resident(model)]
        for name, device in running.scheduler.devices.items()
    }
    started = merged(running.started, prepared, running.world.engines, resident)
    learnt = {key: latency for key, latency in running.scheduler.state.latency.items() if key[0] in prepared.kept}
    served = assemble(
        prepared.config,
        prepared.validators,
        prepared.profiles,
        started,
        lanes,
        mailbox,
        early,
        on_device_lost,
        learnt,
    )
    served.world.lifecycle.adopt = partial(_adopt, prepared.validators, early)
    return served


def _adopt(validators: Mapping[str, RequestValidator], early: EarlyRefusals, request: LiveRequest) -> bool:
    """True if a request that was checked by an earlier configuration can be served; it is refused if not."""
    validator = validators.get(request.app)
    try:
        if validator is None:
            raise unknown_app(request.app, validators)
        validator.adopt(request)
    except RequestError as error:
        request.ended = True
        error = error_for(request.id, error)
        early.add(request.app, error)
        request.responder.refuse(request, error)
        return False
    return True


def reload_model(running: Served, model: str, told: Callable[[Dict[str, Any]], None]) -> None:
    """Put new engines of a model in the place of its old ones, on every device that may run it. ``told`` gets
    ``failed``, per device that could not, when the last is done. Raises :class:`BadInput` for an unknown model."""
    config, world = running.config, running.world
    if model not in config.models:
        raise BadInput(f"no model {show(model)} is served here{nearest(model[:NAME_CHARS_MAX], config.models)}")
    devices = [device for device in config.devices if world.engine(model, device) is not None]
    left, failed = set(devices), {}

    def ended(device: str, reason: str) -> None:
        left.discard(device)
        if reason:
            failed[device] = reason
        if not left:
            told({"model": model, "devices": devices, "failed": failed})

    for device in devices:
        resident = running.scheduler.devices[device].is_resident(model)
        world.reloads.begin(model, device, resident, partial(ended, device))


def merged(
    running: Started, prepared: PreparedConfig, engines: Mapping[Key, Engine], resident: Mapping[str, Sequence[str]]
) -> Started:
    """The parts of the new scheduler and world; models that stay keep their present engines."""
    new, kept = prepared.started, prepared.kept
    parts: Dict[str, Any] = {
        part: {
            **{key: value for key, value in table.items() if (key if isinstance(key, str) else key[0]) in kept},
            **getattr(new, part),
        }
        for part, table in {**running._asdict(), "engines": engines}.items()
    }
    parts["resident"] = {
        device: [*(name for name in resident.get(device, ()) if name in kept), *names]
        for device, names in new.resident.items()
    }
    return Started(**parts)
