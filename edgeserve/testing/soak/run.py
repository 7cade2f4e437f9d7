"""Soak runs: a seed draws a whole scenario (apps, policies, lanes, budgets, load, trouble, how bad it all is), runs it,
and holds it to every rule there is.

``scripts/dev/soak.py`` runs a thousand of them, the tests a hundred. A failing seed replays exactly.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.schema import DEFAULT_POLICY
from edgeserve.loop.drive import drive
from edgeserve.sched.protocol.actions import ACTION_KINDS, OUTCOMES, Action
from edgeserve.sched.protocol.events import EVENT_KINDS, Event
from edgeserve.sim.run import make_world, sequences_of, setting_of, told_times
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.taps.trace import Recorder, start_of, step_line
from edgeserve.testing.invariants import check_invariants, check_now_and_then
from edgeserve.testing.soak.accounts import Accounts, EndCounts
from edgeserve.testing.soak.ensembles import ENSEMBLE_KINDS, draw_ensemble, draw_ensemble_options, draw_pair, draw_said
from edgeserve.testing.soak.language import LANGUAGE_MARKS, draw_language
from edgeserve.testing.soak.pard import PARD_KINDS, draw_hints, draw_mixed, draw_options, draw_work

EXACT_KINDS = ("fifo", "edf", "clockwork")
"""Policies whose decisions are the same on every Python (integers, and floats only where they are exact)."""

SAMPLING_KINDS = ("orloj",)
"""Policies that have jobs run again alone."""

GRAPH_KINDS = (*PARD_KINDS, DEFAULT_POLICY)
"""Policies that follow a request along its graph: their apps have mixed ones, and declare parts, steps and work."""

POLICY_KINDS = (DEFAULT_POLICY, *EXACT_KINDS, *SAMPLING_KINDS, *PARD_KINDS)
"""Policies that a soak draws from, unless told otherwise: the stored digests are theirs."""

ENSEMBLES = (DEFAULT_POLICY, *ENSEMBLE_KINDS, "edf")
"""Policies of a soak of ensembles: apps of several models behind one join, fitted or not, among apps of all shapes."""

MARKS = tuple(
    [
        name
        for name in (*EVENT_KINDS, *ACTION_KINDS, *OUTCOMES, "probe")
        if name != "LeaveOut" and name not in LANGUAGE_MARKS
    ]
)
"""The events that must have occurred at least once over a soak: a fault that never happens tests nothing. (Only the
policies of ensembles leave branches out, and only batches of language models go on when some of their jobs are
over.)"""


class SoakResult(NamedTuple):
    """One soak run that broke no rule."""

    seed: int
    marks: Dict[str, int]
    requests: int
    steps: int
    digest: str  # sha256 of the recorded lines
    accounts: Dict[str, EndCounts]  # by policy kind: how many requests came, and how they ended


def soak(
    seed: int,
    record: str = "",
    policies: Sequence[str] = POLICY_KINDS,
    deep: bool = False,
    hardware: bool = False,
    language: bool = False,
    pair: bool = False,
) -> SoakResult:
    """Run one seed, on ``deep`` lanes, on ``hardware`` that gets warm, with ``language`` models or with a ``pair`` of
    ensembles if asked. Raises
    (ReferenceModelError, AccountsError, SimError, PolicyError, AssertionError) when a rule is broken. ``record`` names
    a file for the recording, which is then complete up to the broken step."""
    scenario, drain = draw_scenario(seed, policies, deep, hardware, language, pair)
    return hold(scenario, seed, drain, record)


def hold(
    scenario: Scenario, seed: int, drain: bool, record: str = "", prepare: Callable[[Any, Any], None] | None = None
) -> SoakResult:
    """Run a scenario and hold it to every rule, as :func:`soak` says. ``prepare`` sees the scheduler and the world
    before the first step."""
    setting = setting_of(scenario.config)
    from edgeserve.sched.core.build import build_scheduler

    told = told_times(scenario)
    scheduler = build_scheduler(
        scenario.config,
        (),
        footprints=setting.footprints,
        measured=told,
        resident=setting.resident,
        sequences=sequences_of(scenario),
    )
    digest, steps, accounts = hashlib.sha256(), 0, Accounts(scenario.config)
    recorder = (
        Recorder(record, start_of(setting.footprints, setting.resident, told, sequences=sequences_of(scenario)))
        if record
        else None
    )

    def on_step(now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        nonlocal steps
        steps += 1
        digest.update(step_line(now_ns, events, actions).encode())
        if recorder is not None:
            recorder.tap(now_ns, events, actions)
        accounts.step(events, actions)
        check_now_and_then(scheduler.state, steps)

    world = make_world(scenario, seed, setting=setting, drain=drain, settle=True)
    if prepare is not None:
        prepare(scheduler, world)
    try:
        drive(scheduler, world, (on_step,))
        world.reference_model.closed(world.now_ns)
    finally:
        if recorder is not None:
            recorder.close()
    check_invariants(scheduler.state)
    accounts.check(world, scheduler)
    if scheduler.open_count or scheduler.busy:
        raise AssertionError(
            f"seed {seed}: after draining {scheduler.open_count} requests are open in the scheduler, "
            f"busy = {scheduler.busy}"
        )
    if drain and scheduler.state.retained:
        raise AssertionError(f"seed {seed}: after draining {list(scheduler.state.retained.values())} are still kept")
    return SoakResult(
        seed, dict(world.reference_model.marks), len(world.ended), steps, digest.hexdigest(), accounts.by_kind()
    )


def missing_marks(results: Sequence[SoakResult]) -> List[str]:
    """Events, actions and outcomes that never occurred."""
    seen: Counter[str] = Counter()
    for result in results:
        seen.update(result.marks)
    return [name for name in MARKS if not seen[name]]


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_scenario(
    seed: int,
    policies: Sequence[str] = POLICY_KINDS,
    deep: bool = False,
    hardware: bool = False,
    language: bool = False,
    pair: bool = False,
) -> Tuple[Scenario, bool]:
    """The scenario of a seed, and whether the run ends with a drain. ``deep``: the same with lanes that hold several
    works launched, times to pack, and devices whose lanes slow each other. ``hardware``: the same on devices whose
    clocks, heat, power and memory change, and that tell the scheduler of it. ``language``: the same and one or two apps
    of language models; both: on processors that others use. ``pair``: the same and two ensembles that share models."""
    draw = random.Random(f"{seed}/scenario")
    table: Dict[str, Any] = {"model": {}, "app": {}, "truth": {}, "workload": {}, "policy": {}}
    _lanes(draw, table)
    for name in draw.sample(list(policies), draw.randrange(1, len(policies) + 1)):
        table["policy"][name] = {"kind": name}
        if name in SAMPLING_KINDS:  # more often than by default, so that something happens within a second
            table["policy"][name].update(sample=draw.choice((0.1, 1.0)), budget=draw.choice((0.02, 0.3)))
        elif name in PARD_KINDS:
            table["policy"][name].update(draw_options(draw, name))
        elif name in ENSEMBLE_KINDS:
            table["policy"][name].update(draw_ensemble_options(draw, name))
    for index in range(draw.randrange(1, 4)):
        _app(draw, table, f"app{index}")
    _budget(draw, table)
    badness = draw.choice((0.0, 0.0, 0.3, 1.0, 1.0, 3.0))
    table["faults"] = _faults(draw, badness)
    if badness and not set(table["policy"]) <= set(EXACT_KINDS):  # the stored digests know no resets
        table["faults"]["reset_every"] = f"{random.Random(f'{seed}/resets').choice((0, 0, 300, 900))}ms"
    if not set(table["policy"]) <= set(EXACT_KINDS):
        _bound(random.Random(f"{seed}/bound"), table)
    table["run"] = {
        "duration": f"{draw.randrange(200, 700)}ms",
        "noise": draw.choice((0.0, 0.03, 0.15)),
        "step_cost": f"{draw.choice((0, 0, 20, 300))}us",
        "event_cost": f"{draw.choice((0, 15))}us",
    }
    _workloads(draw, random.Random(f"{seed}/work"), table)
    if language:
        draw_language(random.Random(f"{seed}/language"), table)
    if pair:
        draw_pair(random.Random(f"{seed}/pair"), table)
    if deep:
        _deepen(random.Random(f"{seed}/depth"), table)
    if hardware:
        table["hardware"] = draw_hardware(random.Random(f"{seed}/hardware"), table["device"])
        if language:
            draw_processors(random.Random(f"{seed}/processor"), table)
    return parse_scenario(table, source=f"(drawn by seed {seed})"), draw.random() < 0.4


def _lanes(draw: random.Random, table: Dict[str, Any]) -> None:
    table["device"] = {"d0": {}}
    table["lane"] = {}
    if draw.random() < 0.25:
        table["device"]["d1"] = {}
    for index in range(draw.choice((1, 1, 2, 3))):
        table["lane"][f"l{index}"] = {
            "device": draw.choice(sorted(table["device"])),
            "ahead": draw.choice(("0ms", "0ms", "5ms")),
            "hang": f"{draw.choice((100, 400))}ms",
        }
    used = {lane["device"] for lane in table["lane"].values()}
    table["device"] = {name: device for name, device in table["device"].items() if name in used}


def _deepen(draw: random.Random, table: Dict[str, Any]) -> None:
    for lane in table["lane"].values():
        lane["depth"] = draw.choice((2, 2, 3))
    table["run"]["contention"] = {name: draw.choice((1.0, 1.3, 2.5)) for name in table["device"]}
    for truth in table["truth"].values():
        truth["pack"] = f"{draw.choice((0, 100, 800))}us"


def draw_hardware(draw: random.Random, devices: Dict[str, Any]) -> Dict[str, Any]:
    """Hardware for these devices (whose sections get limits to match), fast enough that within half a second clocks
    fall, limits of heat and power are crossed and other programs take the memory."""
    hardware = {}
    for name, device in sorted(devices.items()):
        device.update(
            power_cap=draw.choice((0.0, 0.0, 8.0, 16.0)),
            headroom=f"{draw.choice((0, 0, 30, 150))}MB",
        )
        total = draw.randrange(300, 900)
        hardware[name] = {
            "clocks": [400.0, 800.0, 1000.0, 1300.0],
            "compute": draw.choice((1.0, 0.6)),
            "governor": draw.choice(("locked", "ondemand")),
            "idle_after": "4ms",
            "ramp": f"{draw.choice((0, 3))}ms",
            "jitter": draw.choice((0.0, 0.05, 0.3)),
            "every": f"{draw.choice((5, 20, 60))}ms",
            "caps": [
                {
                    "at": f"{draw.randrange(400)}ms",
                    "for": f"{draw.randrange(1, 200)}ms",
                    "clock": draw.choice((0.3, 0.6)),
                    "why": draw.choice(("", "thermal", "power")),
                }
                for _ in range(draw.randrange(4))
            ],
            "thermal": {
                "ambient": 30.0,
                "resistance": 3.0,
                "time": f"{draw.choice((50, 400))}ms",
                "trip": draw.choice((50.0, 80.0)),
                "release": 45.0,
            },
            "power": {"static": 4.0, "dynamic": 20.0, "limit": draw.choice((0.0, 18.0))},
            "memory": {
                "total": f"{total}MB",
                "others": "0MB",
                "changes": [
                    {"at": f"{at}ms", "others": f"{draw.randrange(total)}MB", "over": f"{draw.choice((0, 50))}ms"}
                    for at in sorted(draw.sample(range(450), draw.randrange(4)))
                ],
            },
        }
    return hardware


def draw_processors(draw: random.Random, table: Dict[str, Any]) -> None:
    """Half of the devices are processors whose cores other programs use at times, and their lanes have threads."""
    for hardware in table["hardware"].values():
        if draw.random() < 0.5:
            cores = draw.choice((1, 2, 8))
            hardware["processor"] = {
                "cores": cores,
                "others": draw.choice((0.0, cores / 2)),
                "changes": [
                    {"at": f"{at}ms", "others": draw.choice((0.0, cores / 2, cores * 3.0))}
                    for at in sorted(draw.sample(range(450), draw.randrange(4)))
                ],
            }
    for lane in table["lane"].values():
        lane.update(threads=draw.choice((1, 1, 2, 4)), nice=draw.choice((0, 0, 10)))


def _model(draw: random.Random, table: Dict[str, Any], stateful: bool = False) -> str:
    """A new model, or at times one that another app uses too."""
    models = table["model"]
    if models and not stateful and draw.random() < 0.2:
        shared = draw.choice(sorted(models))
        if "state" not in table["truth"][shared]:
            return str(shared)
    name = f"m{len(models)}"
    sizes = draw.choice(([1], [1, 2, 4], [1, 4, 8], [2, 8]))
    fixed_us, item_us = draw.randrange(200, 6000), draw.randrange(100, 2500)
    expected = {str(size): f"{fixed_us + item_us * size}us" for size in sizes}
    models[name] = {
        "engine": "synthetic",
        "batch": sizes,
        "expected": expected,
        "memory": f"{draw.randrange(10, 120)}MB",
        "load": f"{draw.randrange(1, 30)}ms",
    }
    lanes = sorted(table["lane"])
    if len(lanes) > 1 and draw.random() < 0.4:
        models[name]["lanes"] = draw.sample(lanes, draw.randrange(1, len(lanes)))
    truth: Dict[str, Any] = {}
    if stateful:
        truth["state"] = f"{draw.randrange(1, 2000)}kB"
    if draw.random() < 0.2:
        truth["fail"] = draw.choice((0.01, 0.2))
    if draw.random() < 0.2:  # the profile is wrong
        truth["times"] = {
            str(size): f"{(fixed_us + item_us * size) * draw.choice((50, 150, 250)) // 100}us" for size in sizes
        }
    if draw.random() < 0.15:
        truth["steps"], truth["steps_per_run"] = [1, 5], draw.choice((0, 1, 2))
    table["truth"][name] = truth
    return name


def _app(draw: random.Random, table: Dict[str, Any], name: str) -> None:
    shape = draw.choice((_single, _single, _chain, _fork, _fan, _nested, _routed, _stream, _stream))
    app: Dict[str, Any] = {
        "policy": draw.choice(sorted(table["policy"])),
        "slo": f"{draw.randrange(8, 200)}ms",
        "class": draw.choice(("critical", "normal", "normal", "background")),
        "on_late": draw.choice(("drop", "drop", "drop", "answer", "partial")),
        "value": draw.choice((1.0, 1.0, 0.5, 4.0)),
    }
    if "idle" in table["policy"] and app["on_late"] == "answer":
        app["on_late"] = "drop"  # what is answered however late cannot end under a policy that never moves
    if draw.random() < 0.2:
        app["pending_max"] = draw.randrange(2, 30)
    if app["policy"] in GRAPH_KINDS and draw.random() < 0.3:
        shape = _mixed
    elif app["policy"] in ENSEMBLES and app["policy"] != "edf" and draw.random() < 0.7:
        shape = _ensemble
    shape(draw, table, app)
    table["app"][name] = app


def _node(
    draw: random.Random, table: Dict[str, Any], name: str, after: Optional[List[str]] = None, **keys: Any
) -> Dict[str, Any]:
    node = {"name": name, "model": keys.pop("model", None) or _model(draw, table), **keys}
    if after is not None:
        node["after"] = after
    return node


def _single(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    app["model"] = _model(draw, table)


def _chain(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    app["node"] = [_node(draw, table, f"n{index}") for index in range(draw.randrange(2, 5))]


def _fork(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    branches = [f"b{index}" for index in range(draw.randrange(2, 5))]
    join = draw.choice(("all", "all", 1, len(branches) - 1))
    head = [_node(draw, table, "a", [])] if draw.random() < 0.7 else []
    app["node"] = (
        head
        + [_node(draw, table, name, ["a"] if head else []) for name in branches]
        + [_node(draw, table, "z", branches, join=join)]
    )


def _fan(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    cut = _own_model(table, parts=draw.choice(([0, 3], [1, 12], 2, [0, 1])))
    app["node"] = [
        _node(draw, table, "cut", [], model=cut, fan_out=True, parts_max=draw.choice((256, 10))),
        _node(draw, table, "read", ["cut"]),
    ]
    if draw.random() < 0.5:
        app["node"].append(_node(draw, table, "more", ["read"]))
    if draw.random() < 0.8:
        last = app["node"][-1]["name"]
        app["node"].append(_node(draw, table, "join", [last], gather=True, join=draw.choice(("all", "all", 1))))


def _nested(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    outer, inner = _own_model(table, parts=[0, 3]), _own_model(table, parts=[0, 2])
    app["node"] = [
        _node(draw, table, "outer", [], model=outer, fan_out=True),
        _node(draw, table, "inner", ["outer"], model=inner, fan_out=True),
        _node(draw, table, "leaf", ["inner"]),
        _node(draw, table, "back", ["leaf"], gather=True),
        _node(draw, table, "end", ["back"], gather=True),
    ]


def _routed(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    chooser = _own_model(table, routes={"left": 0.5, "right": 0.3, **({"": 0.2} if draw.random() < 0.3 else {})})
    app["node"] = [
        _node(draw, table, "pick", [], model=chooser, route="one"),
        _node(draw, table, "left", ["pick"]),
        _node(draw, table, "right", ["pick"]),
    ]
    if draw.random() < 0.7:
        app["node"].append(_node(draw, table, "z", ["left", "right"]))


def _mixed(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    """A fork into a route and a fan-out, which one join closes."""
    app["node"] = draw_mixed(
        draw,
        lambda name, after, **keys: _node(draw, table, name, after, **keys),
        lambda **truth: _own_model(table, **truth),
    )


def _ensemble(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    """Several models and a join behind them, at times scored first or beside, at times fitted."""
    draw_ensemble(
        draw,
        app,
        lambda name, after, **keys: _node(draw, table, name, after, **keys),
        lambda: _own_model(table),
        table["truth"],
    )


def _stream(draw: random.Random, table: Dict[str, Any], app: Dict[str, Any]) -> None:
    app["stream"] = draw.choice(("in_order", "newest_wins"))
    app["state_ttl"] = f"{draw.choice((50, 500))}ms"
    app["streams_max"] = draw.choice((2, 1024))
    app["node"] = [_node(draw, table, "s0", [], model=_model(draw, table, stateful=True))]
    if draw.random() < 0.4:
        app["node"].append(_node(draw, table, "s1", ["s0"]))


def _own_model(table: Dict[str, Any], **truth: Any) -> str:
    """A model that no other app uses, since what it returns belongs to this graph."""
    name = f"m{len(table['model'])}"
    table["model"][name] = {
        "engine": "synthetic",
        "batch": [1, 4],
        "memory": "20MB",
        "load": "5ms",
        "expected": {"1": "1500us", "4": "4ms"},
    }
    table["truth"][name] = {**truth, "state": "0B"}  # the key keeps other apps from sharing it
    return name


def _budget(draw: random.Random, table: Dict[str, Any]) -> None:
    """At times memory for some of the models only, never less than the largest."""
    sizes = [int(model["memory"][:-2]) for model in table["model"].values()]
    for device in table["device"].values():
        if draw.random() < 0.6:
            device["memory"] = f"{max(max(sizes) + 10, sum(sizes) * draw.randrange(30, 110) // 100)}MB"


def _bound(draw: random.Random, table: Dict[str, Any]) -> None:
    """At times a model of many steps that two devices have, one of them with room for one large model at a time: a job
    is bound to the lane that holds its state, also where the other device is free, and answered however late."""
    if draw.random() > 0.15:
        return
    for index in range(2):
        table["device"].setdefault(f"d{index}", {})
        table["lane"][f"b{index}"] = {"device": f"d{index}", "hang": "100ms"}
    for name, lanes, memory in (("bound", ["b0", "b1"], 60), ("rival", ["b0"], 60), ("small", ["b0"], 1)):
        table["model"][name] = {
            "engine": "synthetic",
            "batch": [1, 2],
            "memory": f"{memory}MB",
            "load": "2ms",
            "expected": {"1": "2ms", "2": f"{draw.randrange(2, 5)}ms"},
            "lanes": lanes,
        }
        table["app"][name] = {
            "model": name,
            "policy": draw.choice(sorted(table["policy"])),
            "slo": "30ms",
            "class": "critical" if name == "small" else "normal",
            "on_late": "drop" if name == "small" or "idle" in table["policy"] else "answer",
        }
        table["truth"][name] = {"state": "0B"}
    table["truth"]["bound"] = {"steps": [2, 6], "steps_per_run": 1, "state": f"{draw.randrange(1, 40)}MB"}
    table["device"]["d1"].pop("memory", None)  # drawn before it had to hold these
    table["device"]["d0"]["memory"] = f"{max(int(model['memory'][:-2]) for model in table['model'].values()) + 10}MB"


def _faults(draw: random.Random, badness: float) -> Dict[str, Any]:
    if not badness:
        return {}

    def some(probability: float) -> float:
        return min(1.0, probability * badness) if draw.random() < 0.5 else 0.0

    def every(mean_ms: int) -> str:
        return f"{round(mean_ms / badness)}ms" if draw.random() < 0.4 else "0ms"

    return {
        "slow": some(0.05),
        "refuse": some(0.05),
        "fail_job": some(0.03),
        "fail_batch": some(0.03),
        "fail_load": some(0.2),
        "unfinished": some(0.1),
        "cancel": some(0.1),
        "lane_loss_every": every(400),
        "lane_loss": "60ms",
        "hang": draw.choice((0.0, 0.3)),
        "speed_every": every(200),
        "burst_every": every(200),
        "burst_max": draw.choice((5, 60)),
        "memory_every": every(150),
    }


def _workloads(draw: random.Random, rich: random.Random, table: Dict[str, Any]) -> None:
    """``rich`` draws what older seeds did not have."""
    load = draw.choice((0.3, 0.7, 1.0, 1.5))
    for index, (name, app) in enumerate(table["app"].items()):
        alone_us = sum(_first_us(table, node) for node in app.get("node", [app]))
        rate = min(1500.0, max(5.0, round(load * 1e6 / alone_us / len(table["app"]), 1)))
        kind = draw.choice(("poisson", "gamma", "onoff", "periodic", "closed"))
        workload: Dict[str, Any] = {
            "app": name,
            "kind": kind,
            "rate": rate,
            "window": "100ms",
            "on": "50ms",
            "off": "50ms",
            "clients": draw.randrange(1, 20),
            "think": f"{draw.choice((0, 5))}ms",
        }
        if app.get("stream"):
            workload["streams"] = draw.choice((1, 5))
        if draw.random() < 0.2:
            workload["slo"] = f"{draw.randrange(1, 60)}ms"
        if draw.random() < 0.2:
            workload["class"] = draw.choice(("critical", "background"))
        if "ensemble" in app:
            workload.update(draw_said(rich, app))
        if app["policy"] in GRAPH_KINDS:
            workload.update(draw_hints(draw, app))
            if rich.random() < 0.4:
                work = draw_work(rich, app, table["truth"])
                workload["hints"] = {**workload.get("hints", {}), **work}
        table["workload"][f"w{index}"] = workload


def _first_us(table: Dict[str, Any], node: Dict[str, Any]) -> int:
    expected = table["model"][node["model"]]["expected"]
    return int(next(iter(expected.values())).replace("us", "").replace("ms", "000"))
