"""One simulated run: a scenario and a seed become a scheduler, a world and what came of it."""

from __future__ import annotations

import logging
import os
import random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.machine_costs import find_machine
from edgeserve.config.profile_match import match_profile
from edgeserve.config.profiles import Profile, find_profiles
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.lognormal import Lognormal
from edgeserve.loop.drive import OnStep, drive
from edgeserve.sched.core.build import build_scheduler, model_lanes, policy_of, shared_bytes
from edgeserve.sim.faults import Trouble
from edgeserve.sim.hardware import SimHardware
from edgeserve.sim.host import NOT_MEASURED, IdealHost, MachineHost, Measured, charged
from edgeserve.sim.reference_model import ReferenceModel
from edgeserve.sim.scenario import STATIC, Scenario
from edgeserve.sim.truth import TrueResults, TrueTimes
from edgeserve.sim.workload import Workload, check_counts, origins
from edgeserve.sim.world import SimWorld

log = logging.getLogger("edgeserve")

Footprints = Mapping[Tuple[str, str], Tuple[int, int, int]]


TOLD_RUNS = 20
"""Durations per batch size that a scheduler counts as measured, which is told the true times."""


class StartState(NamedTuple):
    """The state of the models before the first request: their bytes, and which are resident."""

    footprints: Footprints
    resident: Dict[str, List[str]]


class Run(NamedTuple):
    """A finished run: the world with its reference model, and the scheduler as it was left."""

    world: SimWorld
    scheduler: Any


def setting_of(config: Config, profiles: Sequence[Profile] = (), cold: bool = False) -> StartState:
    """Footprints from the configuration, else the profiles; resident is what fits the budgets, in the order of the
    file, pinned models first. Nothing but pinned models when ``cold``."""
    profiled = {profile.model: profile for profile in profiles}
    footprints: Dict[Tuple[str, str], Tuple[int, int, int]] = {}
    resident: Dict[str, List[str]] = {name: [] for name in config.devices}
    used = dict.fromkeys(config.devices, 0)
    for model in sorted(config.models.values(), key=lambda item: not item.pinned):
        profile = profiled.get(model.name)
        measured = profile.footprint if profile is not None else (0, 0, 0)
        for lane in model.lanes or tuple(config.lanes):
            device = config.lanes[lane].device
            if (model.name, device) in footprints:
                continue
            footprints[model.name, device] = (model.memory_bytes, 0, 0) if model.memory_bytes else measured
            there = {name: footprints[name, device] for name in resident[device]}
            grown = shared_bytes(config, device, {**there, model.name: measured})
            need = sum(footprints[model.name, device][:2]) + grown - shared_bytes(config, device, there)
            budget = config.devices[device].memory_bytes
            if (model.pinned or not cold) and (not budget or used[device] + need <= budget):
                used[device] += need
                resident[device].append(model.name)
    return StartState(footprints, resident)


def make_world(
    scenario: Scenario,
    seed: Any,
    profiles: Sequence[Profile] = (),
    *,
    setting: StartState | None = None,
    measured: Optional[Measured] = None,
    drain: bool = False,
    settle: bool = False,
) -> SimWorld:
    """The world of a scenario at one seed. Equal arguments make worlds that behave equally. ``drain`` asks the
    scheduler to drain when the arrivals end; ``settle`` lets its timers run out after that. ``measured``: the costs of
    a machine, and where they come from; see :func:`~edgeserve.sim.host.charged`."""
    config, run = scenario.config, scenario.run
    setting = setting or setting_of(config, profiles, run.cold)
    begins_ns = origins(scenario.workloads, seed, scenario.directory)
    sources = [
        Workload(item, config, seed, run.duration_ns, scenario.directory, begins_ns.get(item.axis))
        for item in scenario.workloads
    ]
    times = TrueTimes(config, scenario.truths, profiles, run.noise, random.Random(f"{seed}/times"))
    laws = {
        (item.name, hint): law
        for item in scenario.workloads
        for hint, law in item.hints.items()
        if isinstance(law, Lognormal)
    }
    costs = charged(scenario, measured)
    host = IdealHost(costs.step_ns, costs.event_ns)
    if costs.machine is not None:
        host = MachineHost(costs.machine, config, seed, apart=run.contention)
    return SimWorld(
        config,
        sources,
        times,
        TrueResults(config, scenario.truths, seed, laws),
        ReferenceModel(config, setting.footprints, setting.resident, sequences_of(scenario)),
        trouble=Trouble(scenario.faults, seed, run.duration_ns),
        duration_ns=run.duration_ns,
        host=host,
        drain=drain,
        settle=settle,
        hardware={
            name: SimHardware(
                item, config.devices[name], [lane for lane in config.lanes.values() if lane.device == name], seed
            )
            for name, item in scenario.hardware.items()
        },
        contention=run.contention,
    )


def simulate(
    scenario: Scenario,
    seed: Any,
    profiles: Optional[Sequence[Profile]] = None,
    *,
    on_step: Optional[OnStep] = None,
    scheduler: Any = None,
    drain: bool = False,
    settle: bool = False,
    measured: Optional[Measured] = None,
) -> Run:
    """Run a scenario to its end: every request has ended and the reference model agrees, or
    :class:`ReferenceModelError` and :class:`SimError` name the fault.

    Without ``profiles``, those of :func:`profiles_to_simulate` count, and the costs of the machine that was measured
    beside them, or assumed ones. With ``profiles``, a machine is charged only if ``measured`` gives its costs
    (:class:`~edgeserve.config.machine_costs.MachineCosts`, and a name for people) or the scenario has ``[machine]``:
    else 20 us per step and 15 us per event. A ``scheduler`` of your own has to be made with the same profiles.
    """
    if not scenario.workloads:
        raise ConfigError(no_workload(scenario))
    check_counts(scenario)
    if profiles is None:
        profiles = profiles_to_simulate(scenario.config)
        measured = measured or machine_to_simulate(scenario.config)
    setting = setting_of(scenario.config, profiles, scenario.run.cold)
    if scheduler is None:
        scheduler = build_scheduler(
            scenario.config,
            profiles,
            footprints=setting.footprints,
            measured=told_times(scenario, profiles),
            resident=setting.resident,
            sequences=sequences_of(scenario),
        )
    world = make_world(scenario, seed, profiles, setting=setting, measured=measured, drain=drain, settle=settle)
    world.thought_ns = scheduler.thought_ns
    world.policies = kinds_of(scenario)
    drive(scheduler, world, () if on_step is None else (on_step,))
    world.reference_model.closed(world.now_ns)
    return Run(world, scheduler)


def kinds_of(scenario: Scenario) -> Dict[str, str]:
    """App -> the kind of its policy."""
    config = scenario.config
    return {app.name: config.policies[policy_of(config, app)].kind for app in config.apps.values()}


def told_times(scenario: Scenario, profiles: Sequence[Profile] = ()) -> Dict[Tuple[str, str], Dict[int, List[int]]]:
    """The times that the scheduler knows of models with ``[truth.MODEL] told``, by (model, lane): the true ones of
    all batch sizes, as if they had been measured at start-up."""
    config = scenario.config
    told = {name: truth for name, truth in scenario.truths.items() if truth.told}
    if not told:
        return {}
    times = TrueTimes(config, scenario.truths, profiles, 0.0, random.Random(0))
    return {
        (name, lane): {size: [times.step_ns(name, lane, size)] * TOLD_RUNS for size in config.models[name].batch}
        for name in told
        for lane in model_lanes(config, config.models[name])
    }


def sequences_of(scenario: Scenario) -> Dict[str, Tuple[int, int, int, int]]:
    """The facts from engines on models whose sequences are answered one by one: tokens of the context, bytes per token
    of their states, as many slots per lane as the largest batch has, and the tokens of prompts that a turn reads."""
    return {
        name: (truth.context, truth.state_token_bytes, scenario.config.models[name].batch[-1], truth.prefill_turn)
        for name, truth in scenario.truths.items()
        if truth.batching != STATIC
    }


def machine_to_simulate(config: Config, directory: str = "") -> Measured:
    """The costs of this machine below ``directory`` (``""``: ``[server] profiles``), else those of the only device that
    was measured, else assumed ones."""
    found = find_machine(directory or config.profiles_path, elsewhere=True)
    if found is None:
        return NOT_MEASURED
    path, costs = found
    return f"measured {costs.circumstances.get('date', '')} ({path})", costs


def profiles_to_simulate(config: Config, directory: str = "") -> List[Profile]:
    """The profiles below ``directory`` (``""``: ``[server] profiles``): this machine's, else those of the only device
    that was measured with models of the configuration.

    A profile that does not match the configuration is left out where ``expected`` has the model's times, and used where
    nothing else is known; a warning says which. Versions are not compared: the device may be another one.
    """
    used = []
    for profile in find_profiles(directory or config.profiles_path, elsewhere=True, models=config.models):
        match, model = match_profile(profile, config), config.models[profile.model]
        is_whole = set(match.usable.lanes) == set(model.lanes or config.lanes) & set(profile.lanes)
        chosen, what = match.usable, "the rest of it is used"
        if not is_whole and set(model.batch) <= set(model.expected):
            what = f"[model.{model.name}.expected] is used instead"
        elif not is_whole:
            chosen, what = profile, "it is used all the same, since nothing else is known of the model's times"
        if match.mismatches:
            log.warning(
                "the profile of model %s (%s) does not hold: %s; %s",
                model.name,
                profile.device,
                "; ".join(match.mismatches),
                what,
            )
        if match.doubts and chosen.lanes:
            log.warning(
                "the profile of model %s (%s) may be off: %s; it is used",
                model.name,
                profile.device,
                "; ".join(match.doubts),
            )
        if chosen.lanes:
            used.append(chosen)
    return used


def no_workload(scenario: Scenario) -> str:
    """The error text for a scenario without requests, with an entry to add."""
    source, app = scenario.config.source, next(iter(scenario.config.apps), "NAME")
    return (
        f"{source} has no [workload.NAME]: no request comes, so there is nothing to simulate. Say who asks "
        "what in a scenario, a file of its own (docs/reference/scenarios.md), such as\n"
        f'  config = "{os.path.basename(source)}"\n'
        f'  [workload.load]\n  app = "{app}"\n  rate = 20.0    # requests per second'
    )
