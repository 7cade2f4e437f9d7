"""What lies between two batches of a lane (``sched/latency/lane_gaps.py``) in plans: counted where it matters."""

from __future__ import annotations

from scenarios import scenario_of


def scenario(start):
    """600 requests a second; a batch of one takes 1 ms, one of eight 2.4; a lane takes ``start`` to begin a batch."""
    sizes = (1, 2, 4, 8)
    free = dict.fromkeys(("event", "receive", "answer", "send", "wake", "stall_every", "lock_wait"), "0us")
    return scenario_of(
        {
            "a": {1: 1, 2: 1.2, 4: 1.6, 8: 2.4, "lanes": ["l"]},
            "b": {**dict.fromkeys(sizes, 9), "lanes": ["l"]},
            "vote": {1: 0.01, 8: 0.01, "lanes": ["side"]},
        },
        {
            "q": {
                "slo": "40ms",
                "node": [
                    {"name": "a", "after": []},
                    {"name": "b", "after": []},
                    {"name": "vote", "after": ["a", "b"], "join": "policy"},
                ],
                "on_late": "partial",
                "ensemble": {"models": ["a", "b"], "edges": [], "agreement": [[0, 0.9, 0.9, 1]]},
            }
        },
        {"q": {"kind": "poisson", "rate": 600}},
        {"p": {"kind": "schemble"}},
        seconds=1.5,
        lane={"l": {}, "side": {}},
        machine={**free, "step": "50us", "start": start, "lock_factor": 1.0},
    )
