"""What the scheduler's reactions to its device are worth: clocks, heat, memory and power. In virtual time.

    python research/bench/device.py [--quick] [--json FILE]

Each world is simulated with the device model of ``[hardware.NAME]`` (``docs/guide/simulate.md``), several seeds, the
same arrivals for all that are compared:

* **told**: the monitor reads the device twice a second and the scheduler is told what is news.
* **measured**: no monitor. The latency model follows what batches take (its drift), as everywhere.
* **profile**: no monitor, and nothing measured counts: every time is that of the profile. "Without a speed factor"
  means this one, since measured over predicted time is one of the three sources of the speed factor.

Throttling: the clock falls by 40 % for 30 s, three times. The finish rate is that of requests that came while it did.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from edgeserve import compiled
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.protocol.actions import EvictModel
from edgeserve.sim.run import Run, setting_of, simulate
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.sim.world import Ended
from edgeserve.units import NS_PER_S

FALLS_S, FALL_S, THROTTLED_S = (20, 70, 120), 30, 160
CLOCKS = [600.0, 780.0, 1000.0, 1300.0]
ARMS = ("told", "measured", "profile")
RATIO_MIN, LOST_MAX = 1.3, 0.01
SAVED_MIN, SAVED_LOST_MAX = 0.15, 0.02
WORKING_S = 1.0
"""A model that ran in the last second was at work."""


class Unlearning(BatchTime):
    """A latency model that never learns: every time stays that of the profile."""

    __slots__ = ()

    def observe(self, *args: Any, **keys: Any) -> None:
        """Nothing."""


def scenario(
    models: int,
    rate: float,
    slo_ms: float,
    fixed_ms: float,
    each_ms: float,
    seconds: float,
    policy: str = "edf",
    nodes: int = 1,
    sizes: Sequence[int] = (1, 2, 4, 8),
    device: Mapping[str, Any] | None = None,
    **hardware: Any,
) -> Scenario:
    """Apps of ``nodes`` models each, asked ``rate`` times a second in all, on one lane."""
    times = {str(size): f"{fixed_ms + each_ms * size}ms" for size in sizes}
    names = [f"m{index}" for index in range(models * nodes)]
    apps = {
        f"a{index}": {
            "slo": f"{slo_ms}ms",
            "policy": "p",
            "node": [{"name": name, "model": name} for name in names[index * nodes : (index + 1) * nodes]],
        }
        for index in range(models)
    }
    return parse_scenario(
        {
            "device": {"gpu": dict(device or {})},
            "lane": {"gpu0": {"device": "gpu"}},
            "policy": {"p": {"kind": policy}},
            "model": {name: {"engine": "synthetic", "batch": list(sizes), "expected": times} for name in names},
            "app": apps,
            "hardware": {"gpu": {"clocks": CLOCKS, **hardware}},
            "workload": {app: {"app": app, "rate": rate / models} for app in apps},
            "run": {"duration": f"{seconds}s", "noise": 0.03, "step_cost": "20us", "event_cost": "15us"},
        }
    )


def run(told: Scenario, seed: int, arm: str = "told", on_step: Any = None) -> Run:
    """One run of a scenario under one of :data:`ARMS`."""
    known = setting_of(told.config)
    scheduler = build_scheduler(told.config, footprints=known.footprints, resident=known.resident)
    if arm == "profile":
        if compiled.running().kind != "interpreted":
            raise SystemExit(
                "a compiled scheduler learns whatever stands in for its latency model: run this script "
                "with EDGESERVE_CORE=interpreted"
            )
        for latency in scheduler.state.latency.values():
            latency.__class__ = Unlearning
    return simulate(told, seed, [], scheduler=scheduler, on_step=on_step)


def in_time(ended: Sequence[Ended]) -> float:
    """The finish rate of these requests."""
    return sum(item.in_time for item in ended) / max(1, len(ended))


def throttled(ended: Sequence[Ended]) -> List[Ended]:
    """The requests that came while the clock was low."""
    return [
        item for item in ended if any(begin <= item.request.arrival_ns / NS_PER_S < begin + FALL_S for begin in FALLS_S)
    ]


# --- clocks -----------------------------------------------------------------------------------------------------------

WORLDS: Dict[str, Dict[str, Any]] = {
    "one busy model": {"models": 1, "rate": 55.0, "slo_ms": 220.0, "fixed_ms": 24.0, "each_ms": 12.0},
    "four models": {"models": 4, "rate": 40.0, "slo_ms": 220.0, "fixed_ms": 18.0, "each_ms": 10.0},
    "pipelines of three": {
        "models": 2,
        "rate": 16.0,
        "slo_ms": 500.0,
        "fixed_ms": 12.0,
        "each_ms": 8.0,
        "nodes": 3,
        "policy": "plan",
    },
    "40 slow, rare models": {
        "models": 40,
        "rate": 1.8,
        "slo_ms": 6000.0,
        "fixed_ms": 400.0,
        "each_ms": 150.0,
        "sizes": (1, 2),
    },
    "a third waits for memory": {
        "models": 1,
        "rate": 55.0,
        "slo_ms": 220.0,
        "fixed_ms": 24.0,
        "each_ms": 12.0,
        "compute": 0.67,
    },
}
CAPS = [{"at": f"{at}s", "for": f"{FALL_S}s", "clock": 0.6, "why": "thermal"} for at in FALLS_S]


def clocks(seeds: Sequence[int]) -> Iterator[Dict[str, Any]]:
    """Per world: the finish rate of each arm while throttled, and of told and measured when nothing throttles."""
    for name, keys in WORLDS.items():
        found: Dict[str, List[float]] = {}
        for seed in seeds:
            for arm in ARMS:
                world = run(scenario(seconds=THROTTLED_S, caps=CAPS, monitor=arm == "told", **keys), seed, arm).world
                found.setdefault(arm, []).append(in_time(throttled(world.ended)))
                found.setdefault(f"{arm}, whole run", []).append(in_time(world.ended))
            for arm in ARMS[:2]:
                calm = run(scenario(seconds=THROTTLED_S / 2, monitor=arm == "told", **keys), seed, arm).world
                found.setdefault(f"{arm}, calm", []).append(in_time(calm.ended))
                calm = run(scenario(seconds=THROTTLED_S / 2, monitor=arm == "told", jitter=0.05, **keys), seed, arm)
                found.setdefault(f"{arm}, jitter", []).append(in_time(calm.world.ended))
                if arm == "told":
                    told = calm.world.reference_model.marks["LaneChanged"] - 1  # the run's end tells the speed once
                    found.setdefault("speeds told under jitter", []).append(told)
        yield {"world": name, **{key: statistics.fmean(values) for key, values in found.items()}}


def check_clocks(seeds: Sequence[int], checks: Checks) -> List[Dict[str, Any]]:
    """Print and check the worlds with a clock that falls, jitters or stays."""
    rows = []
    print("while the clock is 40 % lower, in time:")
    for row in clocks(seeds):
        rows.append(row)
        print(
            f"{row['world']:>26}: told {row['told']:.1%}, measured {row['measured']:.1%}, profile "
            f"{row['profile']:.1%}; calm {row['told, calm']:.1%} / {row['measured, calm']:.1%}, with jitter "
            f"{row['told, jitter']:.1%} / {row['measured, jitter']:.1%}",
            flush=True,
        )
    checks.at_least(f"throttled, {rows[0]['world']}: told / profile", rows[0]["told"] / rows[0]["profile"], RATIO_MIN)
    for row in rows:
        checks.at_least(f"throttled, {row['world']}: told - measured", row["told"] - row["measured"], -LOST_MAX)
        checks.at_most(f"calm, {row['world']}: points lost", row["measured, calm"] - row["told, calm"], LOST_MAX)
        checks.at_most(
            f"jitter of 5 %, {row['world']}: points lost", row["measured, jitter"] - row["told, jitter"], 0.002
        )
        checks.at_most(f"jitter of 5 %, {row['world']}: speeds told", row["speeds told under jitter"], 0)
    return rows


# --- memory -----------------------------------------------------------------------------------------------------------

AT_WORK = ("m0", "m1", "m2")


def memory_scenario(told: bool, headroom: str) -> Scenario:
    """Eight models of 400 MB, three of them at work ten times a second, and other programs that take 2 to 3 GB within
    seconds, twice."""
    models, apps, workloads = {}, {}, {}
    for index in range(8):
        name, works = f"m{index}", f"m{index}" in AT_WORK
        models[name] = {
            "engine": "synthetic",
            "batch": [1, 2, 4],
            "memory": "400MB",
            "load": "300ms",
            "expected": {"1": "10ms", "2": "14ms", "4": "22ms"},
        }
        apps[name] = {"model": name, "slo": "100ms" if works else "1500ms", "policy": "p"}
        workloads[name] = (
            {"app": name, "kind": "periodic", "rate": 10.0, "jitter": "5ms"} if works else {"app": name, "rate": 0.08}
        )
    changes = [
        {"at": "10s", "others": "5500MB", "over": "2s"},
        {"at": "25s", "others": "3000MB"},
        {"at": "35s", "others": "5900MB", "over": "3s"},
        {"at": "50s", "others": "3000MB"},
    ]
    return parse_scenario(
        {
            "device": {"gpu": {"headroom": headroom}},
            "lane": {"gpu0": {"device": "gpu"}},
            "policy": {"p": {"kind": "edf"}},
            "model": models,
            "app": apps,
            "workload": workloads,
            "hardware": {
                "gpu": {
                    "clocks": CLOCKS,
                    "monitor": told,
                    "memory": {"total": "8GB", "others": "3500MB", "changes": changes},
                }
            },
            "run": {"duration": "60s", "noise": 0.03, "step_cost": "20us", "event_cost": "15us"},
        }
    )


def check_memory(seeds: Sequence[int], checks: Checks) -> List[Dict[str, Any]]:
    """Count kills, and evictions of models that were at work."""
    rows = []
    for told in (True, False):
        kills = evicted = working = 0
        rates: Tuple[List[float], List[float]] = ([], [])
        for seed in seeds:
            ran_ns: Dict[str, int] = {}
            evictions: List[Tuple[str, int]] = []

            def watch(
                now_ns: int,
                events: Any,
                actions: Any,
                ran_ns: Dict[str, int] = ran_ns,
                evictions: List[Tuple[str, int]] = evictions,
            ) -> None:
                for action in actions:
                    if isinstance(action, EvictModel):
                        evictions.append((action.model, now_ns - ran_ns.get(action.model, -(2**62))))
                    elif hasattr(action, "jobs"):
                        ran_ns[action.model] = now_ns

            world = run(memory_scenario(told, "768MB"), seed, on_step=watch).world
            kills += world.hardware["gpu"].oom_kills
            evicted += len(evictions)
            working += sum(since_ns < WORKING_S * NS_PER_S or model in AT_WORK for model, since_ns in evictions)
            for part in (0, 1):
                rates[part].append(
                    in_time([item for item in world.ended if (item.request.app in AT_WORK) == (not part)])
                )
        rows.append(
            {
                "told": told,
                "oom_kills": kills,
                "evicted": evicted,
                "working_evicted": working,
                "at_work": statistics.fmean(rates[0]),
                "rare": statistics.fmean(rates[1]),
            }
        )
        print(
            f"memory, {'told' if told else 'not told'}: {kills} kills, {evicted} evictions, {working} of models at "
            f"work; in time {rows[-1]['at_work']:.1%} of those at work, {rows[-1]['rare']:.1%} of the others",
            flush=True,
        )
    checks.at_most("memory: out-of-memory kills", rows[0]["oom_kills"], 0)
    checks.at_least("memory: kills without (else the world shows nothing)", rows[1]["oom_kills"], 1)
    checks.at_most("memory: models at work that were evicted", rows[0]["working_evicted"], 0)
    checks.at_least("memory: in time, models at work", rows[0]["at_work"], 0.99)
    return rows


# --- power and heat ---------------------------------------------------------------------------------------------------

POWERS = {
    "static 5 W, dynamic 20 W": {"static": 5.0, "dynamic": 20.0},
    "static 10 W, dynamic 20 W": {"static": 10.0, "dynamic": 20.0},
}
POWER_WORLDS: Dict[str, Dict[str, Any]] = {
    "one model": {"models": 1, "rate": 60.0, "slo_ms": 100.0, "fixed_ms": 8.0, "each_ms": 2.0},
    "one model, busier": {"models": 1, "rate": 110.0, "slo_ms": 100.0, "fixed_ms": 8.0, "each_ms": 2.0},
    "three models": {"models": 3, "rate": 60.0, "slo_ms": 200.0, "fixed_ms": 8.0, "each_ms": 2.0},
}


def check_power(seeds: Sequence[int], checks: Checks) -> List[Dict[str, Any]]:
    """Joules per answer in time with a cap below what fuller batches draw, against the same without a cap."""
    rows = []
    for name, keys in POWER_WORLDS.items():
        for power_name, power in POWERS.items():
            for policy in ("edf", "clockwork"):
                found: Dict[float, List[Tuple[float, float]]] = {0.0: [], power["static"] + 1.0: []}
                for cap, results in found.items():
                    for seed in seeds:
                        world = run(
                            scenario(seconds=40.0, policy=policy, device={"power_cap": cap}, power=power, **keys), seed
                        ).world
                        rate = in_time(world.ended)
                        used_j = world.hardware["gpu"].energy_j
                        results.append((used_j / max(1.0, rate * len(world.ended)), rate))
                (free_j, free_rate), (capped_j, capped_rate) = (
                    [statistics.fmean(column) for column in zip(*results)] for results in found.values()
                )
                rows.append(
                    {
                        "world": name,
                        "power": power_name,
                        "policy": policy,
                        "joules": free_j,
                        "in_time": free_rate,
                        "joules_capped": capped_j,
                        "in_time_capped": capped_rate,
                    }
                )
                print(
                    f"power, {name}, {power_name}, {policy}: {free_j:.3f} -> {capped_j:.3f} J per answer in time "
                    f"({1 - capped_j / free_j:.0%} less), in time {free_rate:.1%} -> {capped_rate:.1%}",
                    flush=True,
                )
    first = list(POWERS)[0]
    for row in rows:
        if row["power"] == first:
            checks.at_least(
                f"power cap, {row['world']}, {row['policy']}: energy saved",
                1 - row["joules_capped"] / row["joules"],
                SAVED_MIN,
            )
        checks.at_most(
            f"power cap, {row['world']}, {row['power'].split(',')[0]}, {row['policy']}: points lost",
            row["in_time"] - row["in_time_capped"],
            SAVED_LOST_MAX,
        )
    return rows


def check_heat(seeds: Sequence[int], checks: Checks) -> List[Dict[str, Any]]:
    """A device that would throttle: background work waits and batches are fuller above the soft limit."""
    rows = []
    for told in (True, False):
        found = []
        for seed in seeds:
            heat = scenario(
                1,
                75.0,
                100.0,
                8.0,
                2.0,
                120.0,
                monitor=told,
                power={"static": 5.0, "dynamic": 25.0},
                thermal={"ambient": 35.0, "resistance": 4.0, "time": "15s", "trip": 95.0, "release": 90.0},
            )
            world = run(heat, seed).world
            found.append(
                (in_time(world.ended), world.hardware["gpu"].heat_c_max, world.hardware["gpu"].throttled_ns / NS_PER_S)
            )
        rate, heat_c, slow_s = [statistics.fmean(column) for column in zip(*found)]
        rows.append({"told": told, "in_time": rate, "heat_c_max": heat_c, "throttled_s": slow_s})
        print(
            f"heat, {'told' if told else 'not told'}: in time {rate:.1%}, at most {heat_c:.1f} C, throttled for "
            f"{slow_s:.1f} of 120 s",
            flush=True,
        )
    checks.at_most("heat: throttled, told / not told", rows[0]["throttled_s"] / max(1e-9, rows[1]["throttled_s"]), 0.5)
    checks.at_most("heat: points lost", rows[1]["in_time"] - rows[0]["in_time"], LOST_MAX)
    return rows


def main() -> int:
    parser = arguments(__doc__, quick="one seed")
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else 3))
    checks = Checks("research/bench/device.py")
    results = {
        "clocks": check_clocks(seeds, checks),
        "memory": check_memory(seeds, checks),
        "power": check_power(seeds, checks),
        "heat": check_heat(seeds, checks),
    }
    circumstances = {"python": sys.version.split()[0], "seeds": f"{seeds[0]} to {seeds[-1]}"}
    return checks.finish(args.json, circumstances, **results)


if __name__ == "__main__":
    sys.exit(main())
