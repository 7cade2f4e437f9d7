"""Hints that only a model's results tell: the world keeps them from the scheduler until then."""

from __future__ import annotations

from typing import Any, Dict, List

from edgeserve.sched.protocol.events import RequestArrived, WorkFinished
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

SCENARIO: Dict[str, Any] = {
    "lane": {"cpu0": {}},
    "model": {
        "find": {"engine": "synthetic", "expected": {"1": "2ms"}},
        "read": {"engine": "synthetic", "expected": {"1": "10ms"}},
        "join": {"engine": "synthetic", "expected": {"1": "1ms"}},
    },
    "app": {
        "reader": {
            "slo": "1s",
            "node": [{"name": "find", "fan_out": True}, {"name": "read"}, {"name": "join", "gather": True}],
        }
    },
    "truth": {
        "find": {"parts_hint": "find.parts", "says": ["read.work"]},
        "read": {"hint": "read.work", "per_unit": "10ms"},
    },
    "workload": {
        "pages": {
            "app": "reader",
            "kind": "periodic",
            "rate": 5,
            "hints": {"find.parts": 3, "read.work": 2.5, "length": 7},
        }
    },
    "run": {"duration": "900ms"},
}


def test_the_scheduler_sees_them_when_the_model_has_run() -> None:
    arrived: List[Any] = []
    said: Dict[str, List[Any]] = {}
    took_ms: Dict[str, float] = {}

    def look(now_ns: int, events: Any, actions: Any) -> None:
        for event in events:
            if isinstance(event, RequestArrived):
                arrived.append(dict(event.request.hints))
            elif isinstance(event, WorkFinished):
                for result in event.results:
                    said.setdefault(result.job.node, []).append((result.parts, dict(result.hints)))
                    took_ms[result.job.node] = (event.finished_ns - event.started_ns) / 1e6

    report = simulate(parse_scenario(SCENARIO), 1, on_step=look)
    assert arrived == [{"find.parts": 3, "length": 7}] * 4
    assert said["find"] == [(3, {"read.work": 2.5})] * 4
    assert said["read"] == [(None, {})] * 12
    assert took_ms["read"] == 25.0  # the world knows all along
    assert [request.request.hints["read.work"] for request in report.world.ended] == [2.5] * 4
