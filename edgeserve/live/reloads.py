"""New engines in place of old ones while the server runs: on request, and where a lane hangs.

The new engine is made and loaded on the device's copy lane, and warmed on the lanes that will run it, beside the old
one; then the old one's place is its own, and the old one is unloaded as soon as no lane can have a batch of it. Until
then both occupy memory. Where the new one cannot be loaded the old one stays. Everything belongs to the loop's thread
but what runs as a work of a lane.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Tuple

from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines import lane_info, load_engine, make_engine
from edgeserve.engines.base import Engine
from edgeserve.errors import EngineError
from edgeserve.live.errors import EngineFailures
from edgeserve.live.warming import ReloadTag, Warmed, Warming
from edgeserve.offload.lane_thread import LaneThread, LaneWork, WorkDone
from edgeserve.sched.core.build import copy_lane_name, model_lanes
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS

log = logging.getLogger("edgeserve")

Key = Tuple[str, str]
"""(model, device)."""

Told = Callable[[str], None]
"""Is told why a reload failed, ``""`` when it did not."""


class Reload(ReloadTag):
    """Tag of a reload's works: one model on one device. ``resident``: the new engine is loaded, too. ``stuck``: a call
    hangs inside the old engine. ``dropped``: the scheduler gave the model up meanwhile."""

    def __init__(self, work_id: int, model: str, device: str, resident: bool, stuck: bool, told: Told) -> None:
        self.work_id = work_id
        self.lane = copy_lane_name(device)
        self.model = model
        self.device = device
        self.resident = resident
        self.stuck = stuck
        self.told = told
        self.dropped = False
        self.engine: Optional[Engine] = None


@dataclass(eq=False)
class _Retired(ReloadTag):
    """Tag of the works that let go of an old engine; ``left`` lanes have still to."""

    engine: Engine
    device: str
    left: int
    stuck: bool


class Reloads:
    """The reloads that have not ended. ``usable(device, model)`` are the names of the lanes that could run it now,
    ``sizes_of(model)`` the batch sizes that it runs in."""

    def __init__(
        self,
        config: Config,
        lanes: MutableMapping[str, LaneThread],
        engines: MutableMapping[Key, Engine],
        warming: Warming,
        failures: EngineFailures,
        usable: Callable[[str, str], List[str]],
        sizes_of: Callable[[str], Tuple[int, ...]],
    ) -> None:
        self._config = config
        self._lanes = lanes
        self._engines = engines
        self._warming = warming
        self._failures = failures
        self._usable = usable
        self._sizes_of = sizes_of
        self._open: Dict[Key, Reload] = {}
        self._last_id = 0

    def begin(self, model: str, device: str, resident: bool, told: Told, stuck: bool = False) -> None:
        """Put a new engine of a model in the place of its old one."""
        if (model, device) in self._open:
            told(f"model {model!r} is being reloaded on device {device!r} already")
            return
        self._last_id -= 1  # the scheduler's works count upwards
        reload = self._open[model, device] = Reload(self._last_id, model, device, resident, stuck, told)
        old = self._engines[model, device]
        if stuck and old.ends_calls:
            self._on_copy_lane(device, lambda _: old.unload())
        self._on_copy_lane(device, self._make, reload, reload)

    @property
    def open_count(self) -> int:
        """Reloads that have not ended."""
        return len(self._open)

    def dropped(self, key: Key) -> None:
        """Note that the scheduler evicted a model, or that its load failed."""
        if key in self._open:
            self._open[key].dropped = True

    def answered(self, mail: Any) -> None:
        """Go on after a lane's answer to one of the works of this module."""
        tag = mail.work.tag
        if type(tag) is _Retired:
            tag.left -= 1
            if not tag.left:
                self._unload(tag)
            return
        error = mail.error if isinstance(mail, WorkDone) else RuntimeError(mail.reason)
        if error is not None:
            self._end(tag, self._failures.reason(tag, error))
            return
        tag.engine = mail.value
        if not tag.resident:
            self._swap(tag)
            return
        lanes = [self._lanes[name] for name in self._usable(tag.device, tag.model)]
        unchecked = None if tag.stuck else self._as_run(tag.model)  # the file may be another one than before
        load = self._warming.begin(mail, mail.value, lanes, self._sizes_of(tag.model), unchecked)
        if load is not None:
            self.warmed(load)

    def warmed(self, load: Warmed) -> None:
        """Put the new engine in the old one's place if it is loaded and warm; else end the reload with the reason."""
        reload: Reload = load.mail.work.tag
        engine = reload.engine
        assert engine is not None, "it was loaded before it was warmed"
        if load.error is None:
            self._swap(reload)
            return
        for name in model_lanes(self._config, self._config.models[reload.model]):
            self._lanes[name].forget(engine)
        self._on_copy_lane(reload.device, lambda _: engine.unload())
        self._end(reload, self._failures.reason(reload, load.error))

    def unchecked(self, model: str, device: str) -> Optional[ModelConfig]:
        """The model, where no load has looked at the batch sizes of what its engine loads now."""
        return self._as_run(model) if self._engines[model, device].unchecked else None

    def was_loaded(self, model: str, device: str) -> None:
        """Note that a load at run time went well, warm-up included."""
        self._engines[model, device].unchecked = False

    def _as_run(self, model: str) -> ModelConfig:
        return replace(self._config.models[model], batch=self._sizes_of(model))

    def _make(self, reload: Reload) -> Engine:
        """Make and load the new engine, on the copy lane's thread."""
        config = self._config
        model = config.models[reload.model]
        lanes = [name for name in model_lanes(config, model) if config.lanes[name].device == reload.device]
        if isinstance(model.given, Engine):
            raise EngineError(
                f"model {model.name!r} is an engine object, of which there is no other; give its class: Model(Class)"
            )
        engine = make_engine(model, [lane_info(config, name, serves=True) for name in lanes], config.directory)
        if reload.resident:
            load_engine(engine, model, config.directory)
        return engine

    def _swap(self, reload: Reload) -> None:
        key = reload.model, reload.device
        engine, old = reload.engine, self._engines[key]
        assert engine is not None, "it was made"
        self._engines[key] = engine
        engine.unchecked = not reload.resident and not reload.stuck
        if reload.dropped and reload.resident:
            self._on_copy_lane(reload.device, lambda _: engine.unload())
        lanes = [name for name, lane in self._config.lanes.items() if lane.device == reload.device]
        retired = _Retired(old, reload.device, len(lanes), reload.stuck)
        for name in lanes:  # behind the batches of the old engine that the lane has
            lane = self._lanes[name]
            lane.give(LaneWork(0, 0, START_ANY_TIME_NS, lane.forget, old, retired))
        log.info("model %s is reloaded on device %s", *key)
        self._end(reload, "")

    def _end(self, reload: Reload, failed: str) -> None:
        del self._open[reload.model, reload.device]
        reload.told(failed)

    def _unload(self, retired: _Retired) -> None:
        """Unload an old engine, of which no lane has a batch any more. Where a call hangs inside it, its memory is
        kept: freeing it would pull it from under that call."""
        if not retired.stuck or retired.engine.ends_calls:
            self._on_copy_lane(retired.device, lambda _: retired.engine.unload())

    def _on_copy_lane(self, device: str, call: Callable[[Any], Any], argument: Any = None, tag: Any = None) -> None:
        self._lanes[copy_lane_name(device)].give(LaneWork(0, 0, START_ANY_TIME_NS, call, argument, tag))
