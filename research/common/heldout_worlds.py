"""Worlds that ``research/bench/heldout.py --world NAME`` draws: one difficulty each, for any policy.

``cameras``: streams of frames beside an app of equal worth. ``dynamic_told``, ``dynamic_untold``: an app of short and
one of long inputs on one model, whose batches take as long as their longest input. ``eight_values``: apps of values 1
to 8 on one model. ``fan_tail``: a fan-out into few parts as a rule and many at times. ``long_beside_short``: batches of
60 + 20 n ms beside critical pipelines of 100 ms. ``mixed_slo_critical``: a critical loop of 20 ms beside apps of ever
later deadlines. ``rare_models``: a hot pipeline beside models that are rarely asked, and memory for a few of all.
``shapes``: any apps, of values from 0.2 to 20 and deadlines from little more than a request takes to a hundred times
that.
"""

from __future__ import annotations

from typing import Callable, Mapping

from common.heldout_apps import (
    LENGTH,
    SECONDS,
    Draft,
    Mix,
    chain,
    draw_parts,
    ensemble,
    fan,
    language,
    periodic,
    plain,
    scarce_memory,
    unequal,
    varying,
)
from common.heldout_mixes import MIXES, draw_mix
from common.worlds import log_uniform


def cameras(draft: Draft) -> None:
    """Streams whose newest frame counts take half of the load, requests of no stream the other half."""
    draw = draft.draw
    sizes = draw.choice(((1, 2, 4), (1, 2, 4, 8)))
    plain(draft, "cam", draw.uniform(4.0, 12.0), log_uniform(draw, 5.0, 14.0), 1.0, sizes, stream="newest_wins")
    periodic(draft, "cam", draw.choice((2, 3, 4, 8)))
    plain(draft, "other", draw.uniform(4.0, 12.0), log_uniform(draw, 5.0, 14.0), 1.0, sizes)


def dynamic(draft: Draft, told: bool) -> None:
    """Inputs of a few lengths that are short or long; a request needs what inputs of its app's mean length do."""
    draw = draft.draw
    short, long = 0.5, 0.5 * log_uniform(draw, 5.0, 12.0)
    draft.model("m", draw.uniform(5.0, 12.0), draw.choice(((1, 2, 4), (1, 2, 4, 8))))
    varying(draft, "m", told)
    truth, largest = draft.table["truth"]["m"], draft.table["model"]["m"]["batch"][-1]
    fixed_ms, each_ms = float(truth["fixed"][:-2]), float(truth["per_unit"][:-2])
    slo = log_uniform(draw, 6.0, 16.0)
    for name, length in (("short", short), ("long", long)):
        need_ms, alone_ms = fixed_ms / largest + each_ms * length, fixed_ms + each_ms * length
        slo_ms = slo * alone_ms + (fixed_ms + each_ms * long if name == "short" else 0.0)
        draft.app(name, need_ms, slo_ms, 1.0, model="m")
        draft.arrivals[name]["hints"] = {LENGTH: {f"{length * part:.4f}": 1.0 / 3 for part in (0.8, 1.0, 1.2)}}


def dynamic_told(draft: Draft) -> None:
    """The requests declare their lengths."""
    dynamic(draft, True)


def dynamic_untold(draft: Draft) -> None:
    """No request declares a length."""
    dynamic(draft, False)


def eight_values(draft: Draft) -> None:
    """Equal shares of the load and SLOs that differ little."""
    draw = draft.draw
    draft.model("shared", draw.uniform(4.0, 12.0), (1, 2, 4, 8))
    slo_ms = log_uniform(draw, 4.0, 10.0) * draft.time_ms("shared")
    for index in range(8):
        own_ms = slo_ms * log_uniform(draw, 0.8, 1.6)
        draft.app(f"a{index}", draft.item_ms("shared"), own_ms, 1.0, model="shared", value=index + 1.0)


def fan_tail(draft: Draft) -> None:
    """One app alone."""
    draw = draft.draw
    parts = {1: 0.6, 2: 0.25, 4: 0.1, draw.choice((12, 16, 24)): 0.05}
    fan(draft, "a", draw.uniform(4.0, 10.0), log_uniform(draw, 5.0, 12.0), 1.0, parts)


def long_beside_short(draft: Draft) -> None:
    """Two fifths of the load are critical, one every 5 ms on average."""
    draw = draft.draw
    for name in ("pipe0", "pipe1"):
        draft.model(name, 2.0 * draw.uniform(0.4, 0.6), (1, 2, 4, 8, 16))
    nodes = [{"name": "pipe0", "after": []}, {"name": "pipe1", "after": ["pipe0"]}]
    need_ms = draft.item_ms("pipe0") + draft.item_ms("pipe1")
    draft.app("pipe", need_ms, 100.0, need_ms / 5.0, node=nodes, **{"class": "critical"})
    draft.arrivals["pipe"] = {"kind": "poisson"}
    draft.add_model("big", {size: 60.0 + 20.0 * size for size in (1, 2, 4, 8)})
    draft.app("big", draft.item_ms("big"), draw.uniform(800.0, 2000.0), 1.0 - need_ms / 5.0, model="big")


def critical_alone(draft: Draft) -> None:
    """A critical pipeline has the lane to itself."""
    draw = draft.draw
    for name in ("pipe0", "pipe1"):
        draft.model(name, 2.0 * draw.uniform(0.4, 0.6), (1, 2, 4, 8, 16))
    nodes = [{"name": "pipe0", "after": []}, {"name": "pipe1", "after": ["pipe0"]}]
    need_ms = draft.item_ms("pipe0") + draft.item_ms("pipe1")
    draft.app("pipe", need_ms, draw.choice((40.0, 100.0)), 1.0, node=nodes, **{"class": "critical"})
    draft.arrivals["pipe"] = {"kind": "poisson"}


def mixed_slo_critical(draft: Draft) -> None:
    """The loop takes a tenth of the load."""
    draw = draft.draw
    plain(draft, "img", draw.uniform(5.0, 10.0), 1.0, 0.3)
    plain(draft, "txt", draw.uniform(6.0, 14.0), 1.0, 0.25)
    plain(draft, "rep", draw.uniform(8.0, 20.0), 1.0, 0.2, (1, 2, 4, 8))
    plain(draft, "job", draw.uniform(10.0, 25.0), 1.0, 0.15, (1, 2, 4, 8))
    for name, slo_ms in (("img", 150.0), ("txt", 500.0), ("rep", 2000.0), ("job", 10_000.0)):
        draft.table["app"][name]["slo"] = f"{slo_ms * draw.uniform(0.8, 1.2):.3f}ms"
    draft.model("ctl", draw.uniform(1.0, 2.0), (1, 2))
    draft.app(
        "ctl", draft.item_ms("ctl"), 20.0, 0.1, model="ctl", value=draw.choice((1.0, 3.0)), **{"class": "critical"}
    )
    periodic(draft, "ctl")


def rare_models(draft: Draft) -> None:
    """The pipeline takes most of the load; each of the others is asked every few seconds."""
    draw = draft.draw
    items_ms = [draw.uniform(3.0, 8.0) for _ in range(3)]
    chain(draft, "hot", items_ms, log_uniform(draw, 10.0, 25.0), 0.0, 1.0)
    rare = [f"rare{index}" for index in range(draw.randrange(3, 6))]
    for name in rare:
        plain(draft, name, draw.uniform(10.0, 25.0), log_uniform(draw, 15.0, 40.0), 0.02, (1, 2))
        draft.arrivals[name] = {"kind": "poisson"}
    memories_mb = dict.fromkeys([f"hot{index}" for index in range(3)], 100)
    scarce_memory(draft, {**memories_mb, **{name: draw.randrange(200, 500) for name in rare}}, rare)


def shapes(draft: Draft) -> None:
    """One to sixteen apps of any kind beside each other."""
    draw = draft.draw
    for index in range(draw.choice((1, 2, 2, 3, 3, 4, 6, 10, 16))):
        kind = draw.choice(("plain", "plain", "plain", "unequal", "language", "chain", "fan", "ensemble", "stream"))
        name, part, ms, slo = (
            f"{kind}{index}",
            log_uniform(draw, 0.05, 2.0),
            log_uniform(draw, 3.0, 40.0),
            log_uniform(draw, 1.3, 100.0),
        )
        if kind in ("plain", "stream"):
            sizes = draw.choice(((1,), (1, 2), (1, 4), (1, 2, 4, 8), (1, 8), (1, 3, 5), (1, 16)))
            plain(draft, name, ms, slo, part, sizes)
            if kind == "stream":
                draft.table["app"][name]["stream"] = draw.choice(("newest_wins", "in_order"))
                periodic(draft, name, draw.choice((1, 2, 5, 9)))
        elif kind == "unequal":
            unequal(draft, name, ms, slo, part, draw.random() < 0.5)
        elif kind == "language":
            language(draft, name, ms, slo, part, draw.random() < 0.5)
        elif kind == "chain":
            items_ms = [ms * log_uniform(draw, 0.3, 3.0) for _ in range(draw.choice((2, 3, 5, 7)))]
            chain(draft, name, items_ms, slo, draw.choice((0.0, 20.0, 200.0)), part)
        elif kind == "fan":
            fan(draft, name, ms, slo, part, draw_parts(draw))
        else:
            ensemble(draft, name, draw.choice((2, 3, 5)), ms, slo, part, draw.random() < 0.5)
        if draw.random() < 0.3:
            draft.table["app"][name]["value"] = draw.choice((0.2, 2.0, 5.0, 20.0))


WORLDS: Mapping[str, Callable[[Draft], None]] = {
    "cameras": cameras,
    "critical_alone": critical_alone,
    "dynamic_told": dynamic_told,
    "dynamic_untold": dynamic_untold,
    "eight_values": eight_values,
    "fan_tail": fan_tail,
    "long_beside_short": long_beside_short,
    "mixed_slo_critical": mixed_slo_critical,
    "rare_models": rare_models,
    "shapes": shapes,
}


def draw_any(name: str, seed: int, load: float = 1.0, seconds: float = SECONDS) -> Mix:
    """The mix or world of a name."""
    if name in MIXES:
        return draw_mix(name, seed, load, seconds)
    draft = Draft(name, seed, seconds)
    WORLDS[name](draft)
    return draft.finish(name, seed, load)
