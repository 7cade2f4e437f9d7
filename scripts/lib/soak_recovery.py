"""Recovery as an invariant: a seed draws apps that their true times allow, wrong beliefs and slow phases, and every app
must be served again soon after its cause has ended.

*Causes*: times that are believed wrongly (0.2 to 10 times the true ones), as ``expected`` in the configuration, as a
profile, or as measured at start; a slow start, a phase in which all runs or some are slower, and single outliers.
*Served again*: from two seconds after the cause's end, or from the third request that arrives after it, whichever is
later, no more than a tenth of an app's requests is refused, dropped or late. Rates go from one request in ten seconds
to a third of what the lane can do. ``scripts/dev/soak.py --recovery`` runs a thousand, the tests a hundred.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import LaneProfile, Profile
from edgeserve.loop.drive import drive
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.latency.timings import timing_of
from edgeserve.sched.policies import POLICIES
from edgeserve.sim.run import make_world, setting_of
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.sim.world import Ended
from edgeserve.units import NS_PER_MS, NS_PER_S

AGAIN_NS = 2 * NS_PER_S
"""The time after its cause's end in which an app may still be refused, unless fewer than :data:`AGAIN_REQUESTS`
came."""

AGAIN_REQUESTS = 3

KINDS = tuple(kind for kind, known in POLICIES.items() if kind != "nexus" and known.__module__.startswith("edgeserve."))
"""Policies that are held to it: all but ``nexus``, a published baseline that plans its batches from profiles alone."""

LOST_SHARE = 0.1
"""Share of the requests after that which may be lost: apps of a world share its lanes, and times are noisy."""

LOST_MIN = 2
"""So many lost requests break no rule: noise, and others on the lane."""

RUN_S_MIN, RUN_S_MAX = 12.0, 120.0
REQUESTS_MIN, REQUESTS_MAX = 12, 2400
"""A run lasts as long as the rarest app needs for the least number of requests, within these times; no app has more
than the largest number."""


PROFILE_RUNS, START_RUNS = 100, 3
"""Measured runs of each batch size in a profile, and at start."""


class Phase(NamedTuple):
    """Between two times (ns) every ``every``-th run of a model takes ``factor`` times as long."""

    model: str
    start_ns: int
    end_ns: int
    factor: float
    every: int


class Beliefs(NamedTuple):
    """Times that are not in the configuration: profiles, and batches measured at start by (model, lane) and size."""

    profiles: Sequence[Profile]
    measured: Mapping[Tuple[str, str], Mapping[int, List[int]]]


class RecoveryError(AssertionError):
    """An app was not served again. The text has the seed that replays it."""


class RecoveryResult(NamedTuple):
    """One run in which every app was served again: how many requests came before and after recovery was due, and how
    many of each were lost."""

    seed: int
    policy: str
    before: int
    lost_before: int
    after: int
    lost_after: int


class SlowPhases:
    """The true times of a world, slower in phases. ``clock()`` is the world's time."""

    def __init__(self, times: Any, clock: Any, phases: Sequence[Phase]) -> None:
        self._times = times
        self._clock = clock
        self._phases = phases
        self._runs: Dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._times, name)

    def batch_ns(self, model: str, *rest: Any) -> int:
        """The true time of a batch, slower where a phase says so."""
        took_ns: int = self._times.batch_ns(model, *rest)
        now_ns = self._clock()
        for phase in self._phases:
            if phase.model == model and phase.start_ns <= now_ns < phase.end_ns:
                self._runs[model] = self._runs.get(model, 0) + 1
                if self._runs[model] % phase.every == 0:
                    took_ns = round(took_ns * phase.factor)
        return took_ns


def recover(seed: int, policies: Sequence[str] = KINDS) -> RecoveryResult:
    """Run one seed. Raises :class:`RecoveryError`, and any error of the simulator."""
    draw = random.Random(f"{seed}/recovery")
    policy = draw.choice(list(policies))
    scenario, phases, beliefs = draw_recovery(draw, policy, random.Random(f"{seed}/beliefs"))
    setting = setting_of(scenario.config, beliefs.profiles)
    scheduler = build_scheduler(
        scenario.config,
        beliefs.profiles,
        footprints=setting.footprints,
        measured=beliefs.measured,
        resident=setting.resident,
    )
    world = make_world(scenario, seed, setting=setting)
    world.jobs.times = SlowPhases(world.jobs.times, lambda: world.now_ns, phases)
    drive(scheduler, world)
    world.reference_model.closed(world.now_ns)
    return judge(seed, policy, world.ended, phases, scheduler)


def judge(seed: int, policy: str, ended: Sequence[Ended], phases: Sequence[Phase], scheduler: Any) -> RecoveryResult:
    """Hold the requests of every app to the rule."""
    cause_ns = max([phase.end_ns for phase in phases], default=0)
    counts = [0, 0, 0, 0]
    for app in sorted({item.request.app for item in ended}):
        mine = sorted([item for item in ended if item.request.app == app], key=lambda item: item.request.arrival_ns)
        later = [item for item in mine if item.request.arrival_ns >= cause_ns]
        due_ns = cause_ns + AGAIN_NS
        if len(later) > AGAIN_REQUESTS:
            due_ns = max(due_ns, later[AGAIN_REQUESTS - 1].request.arrival_ns)
        after = [item for item in later if item.request.arrival_ns > due_ns]
        lost = [item for item in after if not item.in_time]
        counts[0] += len(mine) - len(after)
        counts[1] += len([item for item in mine if not item.in_time]) - len(lost)
        counts[2] += len(after)
        counts[3] += len(lost)
        if len(lost) > max(LOST_MIN, LOST_SHARE * len(after)):
            story = "\n".join(scheduler.story(lost[-1].request.id))
            raise RecoveryError(
                f"seed {seed}, policy {policy}: app {app!r} lost {len(lost)} of {len(after)} requests "
                f"that arrived later than {due_ns / NS_PER_S:.1f} s; the cause was over at "
                f"{cause_ns / NS_PER_S:.1f} s\n{story}"
            )
    return RecoveryResult(seed, policy, *counts)


def draw_recovery(draw: random.Random, policy: str, source: random.Random) -> Tuple[Scenario, List[Phase], Beliefs]:
    """One or two apps of one to three nodes on one or two lanes, and what is wrong about them. ``source`` draws where
    the believed times come from."""
    lanes = draw.choice((1, 1, 2))
    table: Dict[str, Any] = {
        "lane": {f"l{index}": {} for index in range(lanes)},
        "model": {},
        "truth": {},
        "app": {},
        "policy": {policy: {}},
        "workload": {},
    }
    batch_ms: Dict[str, float] = {}
    path_ms: Dict[str, float] = {}
    for name in ("first", "second")[: draw.choice((1, 1, 2))]:
        nodes = []
        for index in range(draw.choice((1, 1, 2, 3))):
            model = f"{name}{index}"
            times = _model(draw, table, model)
            batch_ms[model] = times[max(times)]
            path_ms[name] = path_ms.get(name, 0.0) + times[1]
            nodes.append({"name": model, "model": model, **({"after": [f"{name}{index - 1}"]} if index else {})})
        table["app"][name] = {"node": nodes}
    longest_ms = max(batch_ms.values())
    duration_s = 0.0
    for name, alone_ms in path_ms.items():
        # Alone, and behind one batch of any app: the true times allow it.
        slo_ms = (alone_ms + longest_ms) * draw.uniform(1.5, 4.0)
        table["app"][name]["slo"] = f"{slo_ms:.3f}ms"
        highest = 0.33 / len(path_ms) * 1000.0 / alone_ms
        rate = max(0.1, highest * 10 ** draw.uniform(-2.5, 0.0))
        table["workload"][name] = {"app": name, "kind": draw.choice(("poisson", "periodic")), "rate": rate}
        duration_s = max(duration_s, min(REQUESTS_MIN / rate, RUN_S_MAX))
    duration_s = max(RUN_S_MIN, duration_s)
    for workload in table["workload"].values():
        workload["rate"] = min(workload["rate"], REQUESTS_MAX / duration_s)
    phases = _phases(draw, sorted(batch_ms), duration_s)
    table["run"] = {"duration": f"{duration_s:.3f}s", "noise": draw.choice((0.0, 0.05, 0.1))}
    beliefs = _beliefs(source, table)
    return parse_scenario(table), phases, beliefs


def _beliefs(draw: random.Random, table: Dict[str, Any]) -> Beliefs:
    """Moves what some models are ``expected`` to take into a profile, or into measurements at start."""
    profiles: List[Profile] = []
    measured: Dict[Tuple[str, str], Dict[int, List[int]]] = {}
    for name, model in table["model"].items():
        source = draw.choice(("expected", "profile", "start-up"))
        if source == "expected":
            continue
        count = PROFILE_RUNS if source == "profile" else START_RUNS
        runs = {
            int(size): [round(float(text[:-2]) * draw.uniform(0.97, 1.03) * NS_PER_MS) for _ in range(count)]
            for size, text in model.pop("expected").items()
        }
        if source == "start-up":
            measured.update({(name, lane): runs for lane in table["lane"]})
            continue
        asking = [app for app, keys in table["app"].items() if any(node["model"] == name for node in keys["node"])]
        lane_profile = LaneProfile(
            {size: timing_of(times) for size, times in runs.items()},
            alone={app: tuple(sorted(runs[1])) for app in asking},
        )
        profiles.append(Profile(name, "cpu", dict.fromkeys(table["lane"], lane_profile)))
    return Beliefs(profiles, measured)


def _model(draw: random.Random, table: Dict[str, Any], model: str) -> Mapping[int, float]:
    """True times of a model, and what the configuration believes of them."""
    first_ms = 2.0 * 30.0 ** draw.random()
    sizes = (1, 2, 4, 8)[: draw.randrange(1, 5)]
    share = draw.uniform(0.1, 0.9)  # of the time that grows with the batch
    times = {size: first_ms * (1 - share + share * size) for size in sizes}
    wrong = 0.2 * 50.0 ** draw.random() if draw.random() < 0.7 else 1.0
    each = draw.random() < 0.3  # every size wrong in its own way
    table["model"][model] = {
        "engine": "synthetic",
        "batch": list(sizes),
        "expected": {
            str(size): f"{ms * (0.2 * 50.0 ** draw.random() if each else wrong):.4f}ms" for size, ms in times.items()
        },
    }
    table["truth"][model] = {"times": {str(size): f"{ms:.4f}ms" for size, ms in times.items()}}
    return times


def _phases(draw: random.Random, models: Sequence[str], duration_s: float) -> List[Phase]:
    """None, a slow start, a slow phase, or outliers, in the first half."""
    what = draw.choice(("none", "start", "phase", "outliers"))
    if what == "none":
        return []
    start_s = 0.0 if what == "start" else draw.uniform(0.1, 0.3) * duration_s
    end_s = start_s + draw.uniform(0.02, 0.2) * duration_s
    every = draw.choice((3, 10)) if what == "outliers" else 1
    factor = draw.uniform(2.0, 12.0)
    return [
        Phase(model, round(start_s * NS_PER_S), round(end_s * NS_PER_S), factor, every)
        for model in models
        if draw.random() < 0.7
    ]
