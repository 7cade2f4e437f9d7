"""Builds a scheduler from a configuration and profiles: the one place where the pure parts are put together.

The live runtime and the simulator both call :func:`build_scheduler`, so that the simulated scheduler is the serving
one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profile_record import LaneProfile, Profile, Timing
from edgeserve.config.schema import AppConfig, Config, ModelConfig
from edgeserve.errors import ConfigError, ProfileError, did_you_mean
from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.contradiction import ASSUMED, EXPECTED, PROFILE, START
from edgeserve.sched.latency.timings import timing_constant, timing_of
from edgeserve.sched.policies import POLICIES, REPLACED
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import LOAD_AHEAD_NS, Device
from edgeserve.sched.resources.placement import Placement
from edgeserve.sched.resources.sequences import SequenceModel
from edgeserve.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from edgeserve.sched.latency.clock_speed import ClockSpeed

COPY_RATE_BYTES_PER_S = 12_000_000_000
"""Load-time seed where neither a profile, the model nor the device says: Clockwork's table moves 12.3 GB/s."""

Footprints = Mapping[Tuple[str, str], Sequence[int]]
"""(model, device) -> weights, working memory and, where it is known, what the models of a lane share, in bytes, as the
engine said when it was loaded."""

Measured = Mapping[Tuple[str, str], Mapping[int, Sequence[int]]]
"""(model, lane) -> batch size -> durations in ns, as measured by a warm-up; none where the model could not be tried."""

SequenceFacts = Mapping[str, Tuple[int, ...]]
"""Model -> what its engine says of its sequences: tokens of the context, bytes per token, slots per lane and, where it
is bounded, the tokens of prompts that one turn reads."""

ASSUMED_NS = 100 * NS_PER_US
"""The assumed time of a batch before its first run, where no input was there to try it. Too short rather than too long:
the first run corrects it, but a batch refused as too slow never runs."""


class Seed(NamedTuple):
    """The first estimate for a batch size, and its source (``sched/latency/batch_time.py``)."""

    timing: Timing
    source: str


def copy_lane_name(device: str) -> str:
    """The lane that loads and evicts models of a device."""
    return f"copy:{device}"


def model_lanes(config: Config, model: ModelConfig) -> List[str]:
    """The lanes that a model may run on, in the order of the file."""
    return [name for name in config.lanes if not model.lanes or name in model.lanes]


def build_scheduler(
    config: Config,
    profiles: Sequence[Profile] = (),
    *,
    footprints: Footprints | None = None,
    measured: Measured | None = None,
    resident: Mapping[str, Sequence[str]] | None = None,
    sequences: SequenceFacts | None = None,
    learnt: Mapping[Tuple[str, str], BatchTime] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Scheduler:
    """Put a scheduler together.

    Times come from ``profiles``, else from ``measured``, else from the models' ``expected``; a batch size without any
    raises :class:`ProfileError` naming the mend. ``resident`` names the models in memory at start per device; by
    default as many as fit, pinned ones first, in the order of the file. ``sequences`` are the models whose items are
    sequences. ``learnt``: what an earlier scheduler knows of models on lanes, in place of all that. ``sizes``: the
    batch sizes of models that run in fewer than are configured, as a start has found.
    """
    for app in config.apps.values():
        if app.ensemble and app.ensemble_profile is None and not app.history:
            raise ConfigError(
                f"[app.{app.name}] ensemble = {app.ensemble!r}: there is no such file; make it with 'edgeserve profile "
                f"--fit {app.name}=HISTORY.npz', record a history first ([app.{app.name}] history), or leave it out"
            )
    config = with_sizes(config, sizes or {})
    lanes = {
        name: Lane(
            name,
            lane.device,
            lane.ahead_ns,
            lane.hang_ns,
            depth=lane.depth,
            threads=lane.threads,
            nice=lane.nice,
        )
        for name, lane in config.lanes.items()
    }
    for lane in lanes.values():
        if config.devices[lane.device].kind == "cuda":
            lane.same_clocks = [other for other in lanes.values() if other is not lane and other.device == lane.device]
    seeds = seed_timings(config, profiles, measured or {})
    profiled = profiled_lanes(profiles)
    latency: Dict[Tuple[str, str], BatchTime] = {}
    for model in config.models.values():
        for name in model_lanes(config, model):
            known = profiled.get((model.name, name), LaneProfile({}))
            here = seeds[model.name, name]
            if learnt is not None and (model.name, name) in learnt:
                latency[model.name, name] = learnt[model.name, name]
                latency[model.name, name].set_clocks(known.clocks, 1.0)  # as the monitor takes it until it tells others
                lanes[name].models[model.name] = latency[model.name, name]
                continue
            latency[model.name, name] = lanes[name].models[model.name] = BatchTime(
                model.name,
                name,
                {size: seed.timing for size, seed in here.items()},
                model.batch,
                fixed_ns=known.fixed_ns,
                alone=known.alone,
                sources={size: seed.source for size, seed in here.items()},
                clocks=_clock_speed(known),
                rested_ns=0 if model.name in (sequences or {}) else known.rested_ns,
            )
    devices = [
        _device(config, name, profiles, footprints or {}, None if resident is None else resident.get(name, ()))
        for name in config.devices
    ]
    copies = [Lane(copy_lane_name(device.name), device.name, ahead_ns=LOAD_AHEAD_NS, copy=True) for device in devices]
    apps = [App(app, policy_of(config, app)) for app in config.apps.values()]
    policies = [_policy(config, name, apps) for name in sorted(config.policies)]
    return Scheduler(
        apps,
        policies,
        devices,
        list(lanes.values()) + copies,
        latency,
        sequence_models(config, sequences or {}),
        config.server.pending_max,
    )


def _clock_speed(known: LaneProfile) -> ClockSpeed | None:
    if not known.clock_mhz:
        return None
    from edgeserve.sched.latency.clock_speed import ClockSpeed

    return ClockSpeed(known.clocks, known.memory_share)


def with_sizes(config: Config, sizes: Mapping[str, Sequence[int]]) -> Config:
    """The configuration with other batch sizes of these models."""
    models = {
        name: replace(model, batch=tuple(sizes[name])) if name in sizes else model
        for name, model in config.models.items()
    }
    return replace(config, models=models) if sizes else config


def policy_of(config: Config, app: AppConfig) -> str:
    """The name of the policy that an app has."""
    return app.policy or next(iter(config.policies))


def sequence_models(config: Config, facts: SequenceFacts) -> Dict[str, SequenceModel]:
    """The models of sequences by name, as their engines describe them and the configuration bounds them."""
    known = {}
    for name, told in facts.items():
        model = config.models[name]
        known[name] = SequenceModel(
            told[0], told[1], model.slots or told[2], model.state_memory_bytes, told[3] if len(told) > 3 else 0
        )
    return known


def seed_timings(
    config: Config, profiles: Sequence[Profile], measured: Measured
) -> Dict[Tuple[str, str], Dict[int, Seed]]:
    """The best first estimates for every allowed (model, lane): batch size -> timing."""
    profiled = profiled_lanes(profiles)
    seeds: Dict[Tuple[str, str], Dict[int, Seed]] = {}
    for model in config.models.values():
        for lane in model_lanes(config, model):
            known = {size: Seed(timing_constant(time_ns), EXPECTED) for size, time_ns in model.expected.items()}
            for size, samples in measured.get((model.name, lane), {}).items():
                known[size] = Seed(timing_of(samples), START) if samples else Seed(timing_constant(ASSUMED_NS), ASSUMED)
            if (model.name, lane) in profiled:
                for size, timing in profiled[model.name, lane].timings.items():
                    known[size] = Seed(timing, PROFILE)
            missing = [size for size in model.batch if size not in known]
            if missing:
                raise ProfileError(
                    f"model {model.name!r} on lane {lane!r}: batch sizes {missing} have no time (known: "
                    f"{', '.join(map(str, sorted(known))) or 'none'}); run 'edgeserve profile' or give "
                    f"[model.{model.name}.expected]"
                )
            seeds[model.name, lane] = known
    return seeds


def profiled_lanes(profiles: Sequence[Profile]) -> Dict[Tuple[str, str], LaneProfile]:
    """(model, lane) -> what was measured of it."""
    return {(profile.model, lane): known for profile in profiles for lane, known in profile.lanes.items()}


def _device(
    config: Config, name: str, profiles: Sequence[Profile], footprints: Footprints, resident: Sequence[str] | None
) -> Device:
    """A device with its models: bytes and load times from the engine, the profile or the configuration."""
    by_model = {profile.model: profile for profile in profiles}
    here: Dict[str, Sequence[int]] = {model: profile.footprint for model, profile in by_model.items()}
    here.update({model: footprint for (model, device), footprint in footprints.items() if device == name})
    here = {model: footprint for model, footprint in here.items() if model in config.models}
    budget = config.devices[name].memory_bytes
    budget = budget and max(1, budget - shared_bytes(config, name, here))
    device = Device(name, budget, max(0, config.devices[name].headroom_bytes))
    lanes_here = [lane.name for lane in config.lanes.values() if lane.device == name]
    models = [
        model for model in config.models.values() if any(lane in lanes_here for lane in model_lanes(config, model))
    ]
    left = device.budget_bytes or 2**62
    for model in sorted(models, key=lambda item: not item.pinned):
        profile = by_model.get(model.name)
        weights, work = here.get(model.name, (0, 0))[:2]
        bytes = model.memory_bytes or weights + work
        load_ns = (
            model.load_ns
            or max([lane.load_ns for lane in profile.lanes.values()] if profile else [0])
            or bytes * NS_PER_S // COPY_RATE_BYTES_PER_S
        )
        fits = bytes <= left
        is_here = fits if resident is None else model.name in resident
        device.add(Placement(model.name, name, bytes, load_ns, model.pinned), is_here)
        if is_here:
            left -= bytes
    return device


def shared_bytes(config: Config, device: str, footprints: Mapping[str, Sequence[int]]) -> int:
    """The memory that models of this device share, each lane's as large as the largest of its models needs: by the
    footprints of models by name. It stays while they come and go."""
    largest: Dict[str, int] = {}
    for name, footprint in footprints.items():
        model = config.models[name]
        for lane in model_lanes(config, model):
            if config.lanes[lane].device == device and not model.memory_bytes:
                largest[lane] = max(largest.get(lane, 0), *footprint[2:], 0)
    return sum(largest.values())


def _policy(config: Config, name: str, apps: Sequence[App]) -> Policy:
    entry = config.policies[name]
    if entry.kind in REPLACED:
        raise ConfigError(f"[policy.{name}] kind = {entry.kind!r} is 'plan' now, which has no options; leave it out")
    if entry.kind not in POLICIES:
        known = ", ".join(sorted([kind for kind in POLICIES if ":" not in kind]))
        said = (
            f"[policy.{name}] has no kind, so that its name is its kind, and there is no policy {name!r}"
            if entry.kind == name
            else f"[policy.{name}] kind = {entry.kind!r} does not exist"
        )
        raise ConfigError(
            f"{said}{did_you_mean(entry.kind, POLICIES)} "
            f"Expected one of {known}, or 'module:Class' of a policy of your own"
        )
    own = [app for app in apps if app.policy == name]
    recorded = [app.name for app in own if app.history_share > 0.0]
    if recorded and not POLICIES[entry.kind].records_history:
        able = sorted([kind for kind, policy in POLICIES.items() if policy.records_history])
        raise ConfigError(
            f"[app.{recorded[0]}] history: policy {name!r} is of kind {entry.kind!r}, which runs no "
            f"model for the sake of a history; expected one of {', '.join(able)}"
        )
    return POLICIES[entry.kind](name, own, entry.options)
