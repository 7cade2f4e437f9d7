"""The parts that serve under one configuration, and how they are put together; a reload replaces them whole."""

from __future__ import annotations

from typing import Callable, Mapping, MutableMapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.profile_record import Profile
from edgeserve.config.schema import Config
from edgeserve.live.errors import EarlyRefusals
from edgeserve.live.estimates import ContradictionLog
from edgeserve.live.loop_io import Mailbox, clock_ns
from edgeserve.live.request import RequestValidator
from edgeserve.live.startup import Started, make_lane
from edgeserve.live.world import LiveWorld, LostDevice
from edgeserve.offload.lane_thread import LaneThread
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.latency.batch_time import BatchTime


class Served(NamedTuple):
    """The apps and models under ``config``; ``validators`` check the requests of its apps."""

    config: Config
    validators: Mapping[str, RequestValidator]
    started: Started
    scheduler: Scheduler
    world: LiveWorld


def assemble(
    config: Config,
    validators: Mapping[str, RequestValidator],
    profiles: Sequence[Profile],
    started: Started,
    lanes: MutableMapping[str, LaneThread],
    mailbox: Mailbox,
    early: EarlyRefusals,
    on_device_lost: Optional[Callable[[LostDevice], None]],
    learnt: Mapping[Tuple[str, str], BatchTime] | None = None,
) -> Served:
    """A scheduler and a world of what was ``started``. ``learnt``: what an earlier scheduler knows of models that
    stay."""
    scheduler = build_scheduler(
        config,
        profiles,
        footprints=started.footprints,
        measured=started.measured,
        resident=started.resident,
        sequences=started.sequences,
        learnt=learnt,
        sizes=started.sizes,
    )
    world = LiveWorld(
        config,
        lanes,
        started.engines,
        mailbox,
        lambda name: make_lane(config, name, mailbox, clock_ns),
        started.sequences,
        started.sizes,
    )
    world.lifecycle.early = early
    world.on_device_lost = on_device_lost
    world.contradictions = ContradictionLog(config, scheduler.state.latency, scheduler.state)
    if any(validator.predictors is not None for validator in validators.values()):
        world.predictions.start()
    for name, validator in validators.items():
        source = validator.predictors
        if source is not None and source.usual:
            scheduler.state.apps[name].usual = dict(source.usual)
    return Served(config, validators, started, scheduler, world)
