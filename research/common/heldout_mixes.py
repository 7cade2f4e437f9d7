"""Mixes that ``research/bench/heldout.py`` draws by seed: apps of many kinds on one lane, new shapes with each seed.

``home``: a wake word, streams of sound, intents of declared length, a reader (an ensemble or a chain), a language model
whose answers have no declared length, and an index. ``robot``: cameras, a language model, a map, a rarely asked model
and a critical loop, with too little memory for all models. ``workstation``: two models of unequal inputs (one declared,
one not), a fan-out of unknown size, a language model, a critical chain and an ensemble with a vote.

Times, SLOs, rates, batch sizes, burstiness and values are drawn from the seed; the load only scales the rates. Load 1
keeps the lane in use all the time when every batch is full. A request *needs* its app's mean lane time in full batches.
No app names a policy, and nothing here knows one. What is not declared stands in ``[truth]`` alone.
"""

from __future__ import annotations

from typing import Callable, Mapping

from common.heldout_apps import (
    SECONDS,
    STATES_MB,
    Draft,
    Mix,
    chain,
    draw_parts,
    ensemble,
    fan,
    language,
    loop,
    periodic,
    plain,
    scarce_memory,
    unequal,
)
from common.worlds import log_uniform


def home(draft: Draft) -> None:
    """A home's box."""
    draw = draft.draw
    unequal(draft, "intent", draw.uniform(5.0, 12.0), draw.uniform(6.0, 14.0), draw.uniform(0.8, 1.4), True, value=2.0)
    if draw.random() < 0.5:
        ensemble(
            draft,
            "reader",
            draw.choice((2, 3)),
            draw.uniform(15.0, 40.0),
            draw.uniform(4.0, 10.0),
            1.2,
            draw.random() < 0.5,
        )
    else:
        items_ms = [draw.uniform(4.0, 14.0) for _ in range(draw.choice((2, 3, 4)))]
        chain(draft, "reader", items_ms, draw.uniform(4.0, 10.0), 0.0, draw.uniform(0.8, 1.4))
    language(draft, "answers", draw.uniform(9.0, 18.0), log_uniform(draw, 9.0, 24.0), draw.uniform(0.8, 1.4), True)
    sizes = draw.choice(((1, 2, 4), (1, 2, 4, 8)))
    plain(draft, "index", draw.uniform(10.0, 20.0), log_uniform(draw, 10.0, 60.0), draw.uniform(1.0, 1.6), sizes)
    streams = draw.choice((2, 3, 4, 6))
    plain(
        draft, "vad", draw.uniform(0.8, 2.0), log_uniform(draw, 30.0, 80.0), draw.uniform(0.4, 0.8), stream="in_order"
    )
    periodic(draft, "vad", streams)
    loop(draft, "wake", draw.uniform(0.6, 1.5), draw.uniform(0.3, 0.6))


def robot(draft: Draft) -> None:
    """A robot's board. The device holds all models but one of the rarely requested ones."""
    draw = draft.draw
    plain(
        draft,
        "camera",
        draw.uniform(4.0, 8.0),
        log_uniform(draw, 8.0, 25.0),
        draw.uniform(1.6, 2.4),
        draw.choice(((1, 2, 4), (1, 4))),
        stream="newest_wins",
    )
    periodic(draft, "camera", draw.choice((2, 3, 4, 6)))
    language(
        draft,
        "chat",
        draw.uniform(9.0, 16.0),
        log_uniform(draw, 9.0, 24.0),
        draw.uniform(0.8, 1.4),
        draw.random() < 0.5,
    )
    plain(draft, "map", draw.uniform(15.0, 35.0), log_uniform(draw, 10.0, 35.0), draw.uniform(1.0, 1.6))
    rare = ["rare", "rare1", "rare2"][: draw.choice((2, 3))]
    for name in rare:
        plain(draft, name, draw.uniform(12.0, 30.0), log_uniform(draw, 10.0, 25.0), draw.uniform(0.06, 0.16), (1, 2))
    loop(draft, "vad", draw.uniform(0.8, 2.0), draw.uniform(0.5, 0.9))
    memories = {
        "camera": (200, 500),
        "chat": (600, 1200),
        "map": (200, 500),
        "vad": (30, 80),
        **dict.fromkeys(rare, (300, 600)),
    }
    scarce_memory(draft, {name: draw.randrange(*span) for name, span in memories.items()}, rare)
    draft.table["model"]["chat"]["state_memory"] = f"{STATES_MB}MB"


def workstation(draft: Draft) -> None:
    """A workstation that several people use."""
    draw = draft.draw
    unequal(draft, "dyna", draw.uniform(8.0, 20.0), log_uniform(draw, 5.0, 16.0), draw.uniform(0.8, 1.4), True)
    unequal(draft, "dynb", draw.uniform(8.0, 20.0), log_uniform(draw, 5.0, 16.0), draw.uniform(0.8, 1.4), False)
    fan(draft, "fan", draw.uniform(5.0, 12.0), log_uniform(draw, 5.0, 14.0), draw.uniform(0.8, 1.4), draw_parts(draw))
    language(
        draft,
        "lmjob",
        draw.uniform(9.0, 18.0),
        log_uniform(draw, 9.0, 24.0),
        draw.uniform(0.8, 1.4),
        draw.random() < 0.5,
    )
    ensemble(draft, "vote4_", 4, draw.uniform(30.0, 70.0), log_uniform(draw, 2.0, 5.0), draw.uniform(0.8, 1.4), True)
    items_ms = [draw.uniform(4.0, 10.0) for _ in range(draw.choice((2, 3)))]
    value = draw.choice((1.0, 2.0))
    spare_ms = draw.uniform(200.0, 260.0)
    chain(draft, "pipe", items_ms, 1.0, spare_ms, draw.uniform(0.6, 1.2), value=value, **{"class": "critical"})


MIXES: Mapping[str, Callable[[Draft], None]] = {"home": home, "robot": robot, "workstation": workstation}


def draw_mix(name: str, seed: int, load: float = 1.0, seconds: float = SECONDS) -> Mix:
    """The mix of a name and seed at a load: the same whenever it is drawn."""
    draft = Draft(name, seed, seconds)
    MIXES[name](draft)
    return draft.finish(name, seed, load)
