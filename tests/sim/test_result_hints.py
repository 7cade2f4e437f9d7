"""Hints that only a model's results tell: the world keeps them from the scheduler until then."""

from __future__ import annotations

from typing import Any, Dict, List

from scenarios import scenario_of

from edgeserve.sched.protocol.events import RequestArrived, WorkFinished
from edgeserve.sim.run import simulate

SCENARIO = scenario_of(
    {"find": {1: 2}, "read": {1: 10}, "join": {1: 1}},
    {
        "reader": {
            "slo": "1s",
            "node": [{"name": "find", "fan_out": True}, {"name": "read"}, {"name": "join", "gather": True}],
        }
    },
    {"reader": {"kind": "periodic", "rate": 5, "hints": {"find.parts": 3, "read.work": 2.5, "length": 7}}},
    seconds=0.9,
    lane={"cpu0": {}},
    truth={
        "find": {"parts_hint": "find.parts", "says": ["read.work"]},
        "read": {"hint": "read.work", "per_unit": "10ms"},
    },
)


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

    report = simulate(SCENARIO, 1, on_step=look)
    assert arrived == [{"find.parts": 3, "length": 7}] * 4
    assert said["find"] == [(3, {"read.work": 2.5})] * 4
    assert said["read"] == [(None, {})] * 12
    assert took_ms["read"] == 25.0  # the world knows all along
    assert [request.request.hints["read.work"] for request in report.world.ended] == [2.5] * 4
