"""Worlds of models with variants, for ``research/bench/variants.py``. A batch of b takes ``.4 + .6 * b`` of one alone.

A load of 1 fills the first lane with full batches of the best variants. A request is worth its app's lane time at that,
times its value, times the quality of its answer: the same under every policy.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sim.scenario import Scenario, parse_scenario

SIZES = (1, 2, 4, 8)
FIXED = 0.4
"""The cost of a batch besides its items, in times of one item."""

Variant = Tuple[str, float, float]
"""Name, milliseconds of one item alone, quality; of a model the best comes first."""

CAMERA: Sequence[Variant] = (("full", 20.0, 1.0), ("medium", 9.0, 0.93), ("small", 4.0, 0.8))
BACKWARDS: Sequence[Variant] = (("full", 20.0, 1.0), ("medium", 12.0, 0.82), ("small", 7.0, 0.9))
ONE_MODEL: Sequence[Variant] = (("other", 10.0, 1.0),)


class Asks(NamedTuple):
    """One app: its model's variants, its deadline, which part of the load is its own, the least quality, how it is
    asked, and the lanes of variants that are not the first one's."""

    name: str
    variants: Sequence[Variant]
    slo_ms: float
    part: float
    least: float = 0.0
    value: float = 1.0
    workload: Mapping[str, Any] = {}
    lanes: Mapping[str, Sequence[str]] = {}


class VariantWorld(NamedTuple):
    """Apps on some lanes, the first of which runs all models whose lanes are not named."""

    name: str
    apps: Sequence[Asks]
    lanes: Sequence[str] = ("gpu",)


def exits(name: str, alone_ms: float) -> List[Variant]:
    """The exits of one network: after a fifth, two fifths, seven tenths and all of its time."""
    return [
        (f"{name}_{exit}", alone_ms * part, quality)
        for exit, part, quality in (
            ("final", 1.0, 1.0),
            ("third", 0.7, 0.98),
            ("second", 0.4, 0.93),
            ("first", 0.2, 0.74),
        )
    ]


BURSTS = {"kind": "onoff", "on": "2s", "off": "2s"}
WORLDS = {
    world.name: world
    for world in (
        VariantWorld("camera", [Asks("camera", CAMERA, 100, 0.5), Asks("other", ONE_MODEL, 60, 0.5)]),
        VariantWorld(
            "cameras",
            [
                Asks("front", CAMERA, 100, 0.4, 0.9),
                Asks("rear", CAMERA, 150, 0.35),
                Asks("other", ONE_MODEL, 60, 0.25),
            ],
        ),
        VariantWorld(
            "bursts",
            [Asks("camera", CAMERA, 150, 0.6, 0.0, 1.0, BURSTS), Asks("other", ONE_MODEL, 80, 0.4)],
        ),
        VariantWorld(
            "lanes",
            [
                Asks("camera", CAMERA, 120, 0.5, lanes={"small": ("gpu", "cpu")}),
                Asks("other", ONE_MODEL, 60, 0.5),
            ],
            ("gpu", "cpu"),
        ),
        VariantWorld("backwards", [Asks("camera", BACKWARDS, 100, 0.6), Asks("other", ONE_MODEL, 60, 0.4)]),
        VariantWorld(
            "exits",
            [
                Asks("r50", exits("r50", 6.0), 60, 0.33),
                Asks("r101", exits("r101", 11.0), 60, 0.33),
                Asks("r152", exits("r152", 16.0), 60, 0.34),
            ],
        ),
    )
}


def batch_ms(alone_ms: float, size: int) -> float:
    """A batch of a model."""
    return alone_ms * (FIXED + (1.0 - FIXED) * size)


def share_ms(alone_ms: float) -> float:
    """The lane time of one request in full batches."""
    return batch_ms(alone_ms, SIZES[-1]) / SIZES[-1]


def worth_ms(app: Asks) -> float:
    """The value of a request in time, with the best answer."""
    return share_ms(app.variants[0][1]) * app.value


def scenario_of(world: VariantWorld, load: float, seconds: float, serves: str = "variants") -> Scenario:
    """The scenario of a world under ``plan``. ``serves``: all "variants", or of each app the "largest" or the
    "smallest" useful one alone, whose answers then set the value of its requests."""
    table: Dict[str, Any] = {
        "lane": {name: {} for name in world.lanes},
        "model": {},
        "policy": {"plan": {}},
        "app": {},
        "workload": {},
        "run": {"duration": f"{seconds}s", "step_cost": "20us", "event_cost": "15us", "noise": 0.03},
    }
    for app in world.apps:
        best = app.variants[0]
        for name, alone_ms, _ in app.variants:
            lanes = app.lanes.get(name, world.lanes[:1])
            table["model"][name] = {
                "engine": "synthetic",
                "batch": list(SIZES),
                "expected": {str(size): f"{batch_ms(alone_ms, size):.4f}ms" for size in SIZES},
                "lanes": list(lanes),
            }
        if serves == "variants" and len(app.variants) > 1:
            table["model"][best[0]]["variants"] = {name: quality for name, _, quality in app.variants[1:]}
        served = best if serves != "smallest" else fastest(app)
        table["app"][app.name] = {
            "model": served[0],
            "slo": f"{app.slo_ms}ms",
            "value": worth_ms(app) * served[2] / share_ms(served[1]),
            **({"least_quality": app.least} if app.least and serves == "variants" else {}),
        }
        rate = load * app.part * 1000.0 / share_ms(best[1])
        table["workload"][app.name] = {"kind": "poisson", "rate": rate, **app.workload, "app": app.name}
    return parse_scenario(table)


def fastest(app: Asks) -> Variant:
    """The fastest variant that is of use to an app."""
    return min([variant for variant in app.variants if variant[2] >= app.least], key=lambda variant: variant[1])
