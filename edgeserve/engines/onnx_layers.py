"""Times of a network's nodes, by ONNX Runtime's own profiler."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from edgeserve.units import NS_PER_US

CONTROL_FLOW = ("If", "Loop", "Scan")
"""Operators whose graphs' nodes are told besides."""

NODE_ENDING = "_kernel_time"
"""Ends the name of an event that is the run of a node's kernel."""


def node_times(
    make: Callable[[str], Any], names: Sequence[str], feeds: Mapping[str, Any], runs: int
) -> List[Tuple[str, int]]:
    """Node -> its nanoseconds in one run, in the mean of ``runs``, the first left out. ``make(path)`` makes a session
    that profiles into files whose names begin so."""
    with tempfile.TemporaryDirectory() as folder:
        session = make(os.path.join(folder, "nodes"))
        for _ in range(runs + 1):
            session.run(names, feeds)
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = [event for event in json.load(file) if event.get("cat") == "Node"]
    seen: Dict[str, List[int]] = {}
    for event in with_own_times([event for event in events if event["name"].endswith(NODE_ENDING)]):
        operator = event.get("args", {}).get("op_name", "")
        name = event["name"][: -len(NODE_ENDING)]
        seen.setdefault(f"{name} ({operator})", []).append(int(event["dur"]) * NS_PER_US)
    # A node of a loop runs often in each run.
    return [(name, sum(times[len(times) // (runs + 1) :]) // runs) for name, times in seen.items()]


def with_own_times(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The events, which follow each other on one thread, each without the time of those within it: the nodes of a
    loop's body are counted by themselves."""
    found: List[Dict[str, Any]] = []
    around: List[Dict[str, Any]] = []  # from the outermost in
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        while around and event["ts"] + event["dur"] > around[-1]["until"]:
            around.pop()
        own = {**event, "until": event["ts"] + event["dur"]}
        if around:
            around[-1]["dur"] = max(0, around[-1]["dur"] - event["dur"])
        if event.get("args", {}).get("op_name") in CONTROL_FLOW:
            around.append(own)
        found.append(own)
    return found
