"""One run of the replication of Orloj: a system, a trace and an SLO become a finish rate, in the simulator."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import Profile
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import options_of
from edgeserve.sim.scenario import parse_scenario
from replicate.orloj.cases import ALL_SIZES, FACT, GUESS, HISTORY, LANE, MODEL, SIZES, Trace, app_name, requests_of
from replicate.orloj.world import LaneWorld


class System(NamedTuple):
    """A row of the tables: a policy with its options, the batch sizes of the model, how far the lane plans ahead.

    ``answers_late``: nothing is dropped, late answers count as missed, and the lane spends its time on them. ``tells``:
    the hint of a trace that each request declares as its ``length``.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = {}
    sizes: Tuple[int, ...] = SIZES
    ahead: str = "0ms"
    answers_late: bool = False
    tells: str = ""

    @property
    def exists(self) -> bool:
        """True if this version has the policy, with these options."""
        return self.kind in POLICIES and set(self.options) <= set(options_of(POLICIES[self.kind].options_type))


KNOWN: Dict[str, Any] = {"window": HISTORY, "learn": False, "sample": 0.0}
"""Orloj plans with the whole history that every system's profile was made of, and learns nothing besides."""

SYSTEMS = (
    System("Clipper", "clipper", {}, ALL_SIZES, answers_late=True),
    System("Nexus, no drop", "nexus", {"early_drop": False}, ALL_SIZES, answers_late=True),
    System("Nexus, early drop", "nexus", {"early_drop": True}, ALL_SIZES),
    # A window of exactly 0 would refuse every action, since the decision itself takes 35 us of virtual time.
    System(
        "Clockwork, fixed mean", "clockwork", {"estimate": "mean", "window_ms": 0.1, "refuse_early": False}, ahead="5ms"
    ),
    System("Clockwork", "clockwork", {"refuse_early": False}, ahead="5ms"),
    System("edf", "edf", {}, ALL_SIZES),
    System("Orloj C", "orloj", {"reading": "single", **KNOWN}),
    System("Orloj B", "orloj", {"reading": "urgent", **KNOWN}),
    System("Orloj A, common", "orloj", {"estimate": "common", **KNOWN}),
    System("Orloj A", "orloj", KNOWN),
    System("Orloj A, all sizes", "orloj", KNOWN, ALL_SIZES),
    System("plan", "plan", {}, ALL_SIZES),
    System("plan, guessed lengths", "plan", {}, ALL_SIZES, tells=GUESS),
    System("plan, true lengths", "plan", {}, ALL_SIZES, tells=FACT),
)


class Result(NamedTuple):
    """The result of one run."""

    in_time: int
    late: int
    ended: Dict[str, int]  # the other ends by reason
    batches: int
    step_us: float  # what one step of the scheduler really cost, median; 0 when it was not measured
    step_us_p99: float


class Timed:
    """A scheduler whose steps are timed, for the loop."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.took_us: List[float] = []

    @property
    def wake_ns(self) -> Any:
        return self._scheduler.wake_ns

    def step(self, now_ns: int, events: Sequence[Any] = ()) -> Any:
        began = time.perf_counter()
        actions = self._scheduler.step(now_ns, events)
        self.took_us.append((time.perf_counter() - began) * 1e6)
        return actions


def scenario_table(system: System, trace: Trace, slo_ns: int) -> Dict[str, Any]:
    """The scenario: one model, one lane, one app per class, all under one policy."""
    law = trace.law
    sizes = [size for size in system.sizes if not law.static_ms or size in dict(law.static_ms)]
    apps = {
        app_name(index): {
            "model": MODEL,
            "slo": f"{slo_ns}ns",
            "pending_max": 1_000_000,
            "on_late": "answer" if system.answers_late else "drop",
        }
        for index in range(len(trace.case.classes))
    }
    truth: Dict[str, Any] = {"hint": FACT, "fixed": f"{trace.fixed_ns}ns", "per_unit": "1ns"}
    if law.static_ms:
        truth = {"times": {str(size): f"{time_ms}ms" for size, time_ms in law.static_ms}, "noise": law.noise}
    return {
        "server": {"pending_max": 1_000_000},
        "lane": {LANE: {"ahead": system.ahead}},
        "model": {MODEL: {"engine": "synthetic", "batch": sizes}},
        "policy": {"p": {"kind": system.kind, **system.options}},
        "app": apps,
        "truth": {MODEL: truth},
        "run": {"step_cost": "20us", "event_cost": "15us"},
    }


def simulate(system: System, trace: Trace, profile: Profile, factor: float, timed: bool = False) -> Result:
    """Run ``trace`` under ``system`` with an SLO of ``factor`` times the 99th percentile of its time alone.

    Each step costs the same in virtual time (20 us, and 15 us an event) for every system, so that the
    result does not depend on the machine; ``timed`` measures what the steps really cost.
    """
    slo_ns = round(factor * trace.p99_alone_ns())
    scenario = parse_scenario(scenario_table(system, trace, slo_ns))
    config, run = scenario.config, scenario.run
    scheduler: Any = build_scheduler(config, [profile], measured={})
    if timed:
        scheduler = Timed(scheduler)
    world = LaneWorld(
        trace,
        requests_of(trace, slo_ns, "answer" if system.answers_late else "drop", system.tells),
        random.Random(f"{trace.law.name}/{trace.case.name}/{trace.at_ns[-1]}/times"),
        run.step_cost_ns,
        run.event_cost_ns,
    )
    drive(scheduler, world)
    took_us = sorted(scheduler.took_us) if timed else [0.0]
    return Result(
        world.in_time(),
        len(world.ends) - world.in_time() - sum(world.reasons.values()),
        dict(world.reasons),
        world.batches,
        statistics.median(took_us),
        took_us[int(0.99 * (len(took_us) - 1))],
    )
