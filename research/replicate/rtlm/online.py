"""Costs of prediction and decisions on this machine, in milliseconds (RT-LM, Table VII)."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping

import numpy as np
from common.lw import FEATURES, HIDDEN, Lw

from edgeserve.config.loading import parse_config
from edgeserve.predict.length import packaged
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.events import Request, RequestArrived

WAITING = 500
LAYERS = (FEATURES, *HIDDEN, 1)
"""The paper's regressor."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {"rtlm": {"side_lanes": ["cpu0"], "phi_ms": 80.0}}

SEQUENCES = {"chat": (512, 1, 22, 0)}
"""Tokens and bytes of a sequence, and slots: so ``plan`` sees a language model, where ``rtlm`` needs no such thing."""

SENTENCES = (
    "What are the causes and consequences of poverty in developing countries?",
    "Tell me about the history of art.",
    "Rice flies like sand.",
    "How do cats and dogs differ in behavior, diet, and social interaction?",
    "John saw a boy in the park with a telescope.",
    "Turn off the light in the kitchen, please.",
)


def measured() -> Dict[str, float]:
    """Per prediction (rules and the paper's regressor, and the linear model that serves; one sentence at a time), and
    per policy: per batch with :data:`WAITING` that wait, and per request of a batch of 11."""
    model = packaged()
    linear = _median_ms(lambda: [model.predict(text).mean() for text in SENTENCES], 50) / len(SENTENCES)
    found = {"prediction": _prediction_ms(), "prediction, linear model": linear}
    for kind in ("rtlm", "plan"):
        found[f"{kind}, 500 wait, per batch"] = _decision_ms(kind, WAITING)
        found[f"{kind}, decision"] = _decision_ms(kind, 20) / 11
    return found


def _median_ms(action: Callable[[], Any], count: int) -> float:
    took: List[float] = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        took.append(1e3 * (time.perf_counter() - began))
    return sorted(took)[count // 2]


def _prediction_ms() -> float:
    draw = np.random.default_rng(1)
    layers = [(draw.normal(0, 0.1, (before, after)), np.zeros(after)) for before, after in zip(LAYERS, LAYERS[1:])]
    model = Lw(np.zeros(FEATURES), np.ones(FEATURES), layers)
    return _median_ms(lambda: [model.log_means([text]) for text in SENTENCES], 50) / len(SENTENCES)


def _decision_ms(kind: str, waiting: int) -> float:
    """A bid while so many wait, on a lane that has just become free."""
    sizes = list(range(1, 12))
    config = parse_config(
        {
            "device": {"gpu": {}, "cpu": {}},
            "lane": {"gpu0": {"device": "gpu"}, "cpu0": {"device": "cpu"}},
            "model": {
                "chat": {
                    "engine": "synthetic",
                    "batch": sizes,
                    "expected": {str(size): f"{17.5 + 0.7 * size}ms" for size in sizes},
                }
            },
            "policy": {"chat": {"kind": kind, **OPTIONS.get(kind, {})}},
            "server": {"pending_max": 10_000},
            "app": {"chat": {"model": "chat", "slo": "600s", "on_late": "answer", "pending_max": 10_000}},
        }
    )
    scheduler = build_scheduler(config, sequences=SEQUENCES if kind == "plan" else None)
    draw = np.random.default_rng(2)
    lengths = np.exp(draw.normal(3.0, 0.5, waiting + 22))

    def arrived(number: int) -> RequestArrived:
        hints = {"steps": float(lengths[number]), "tokens": 14.0}
        return RequestArrived(Request(number + 1, "chat", number, 600 * 10**9, on_late="answer", hints=hints))

    scheduler.step(0, [arrived(number) for number in range(22)])  # both lanes are busy
    scheduler.step(10**9, [arrived(number) for number in range(22, waiting + 22)])
    policy, state = scheduler.policies[0], scheduler.state
    lane = state.lanes["gpu0"]
    return _median_ms(lambda: policy.bid(lane, state.board), 100)
