"""How many Python-level calls a request costs on the loop's thread: the scheduler alone, and a lone request, live.

    python scripts/bench/calls.py [--quick] [--json FILE]

A count is the same on a busy machine and on a quiet one, so it tells a change of one call, which a time does not. Every
function of the interpreter counts once per call (``sys.setprofile``); functions written in C do not, and before
3.12 every comprehension is a function of its own. A compiled scheduler makes no such calls; measure the interpreted.

*Scheduler*: one arrival, one batch and one end per request (batch 1), or 16 arrivals at once behind a running batch of
16 (batch 16), in virtual time, with the wake time that the loop asks for after each step: the mean of many. *Chain*: a
lone request through three nodes. *Live*: a lone request through an embedded runtime, and over the bus, by the part of
the package in which the calls were made: the middle of several.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.sched.core import scheduler as scheduler_module
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import Action, FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import Event, JobResult, Request, RequestArrived, WorkFinished
from edgeserve.units import NS_PER_MS

POLICIES = ("edf", "clockwork", "fifo", "orloj+", "pard", "pard_local")
BATCH = 16
GAP_NS = 30 * NS_PER_MS
"""From the end of a lone request to the next: a camera. What is done now and then counts with its share."""

LIVE_GAP_S = 0.15
"""The same for live requests, of which the middle is reported: what is done every 100 ms counts in full."""

WARM = 4
"""Requests, or batches, that are served before any is counted: queues and tables exist then."""

SLO_NS = 1000 * NS_PER_MS
LOOP_THREAD = "edgeserve-loop"
PACKAGE = os.path.dirname(os.path.abspath(edgeserve.__file__)) + os.sep


def config_of(policy: str, nodes: int = 1) -> Config:
    """A chain of so many models in batches up to 16, on one lane."""
    names = [f"m{index}" for index in range(nodes)]
    times = {str(size): f"{2 + size}ms" for size in (1, 2, 4, 8, 16)}
    chain = [{"name": name, "after": names[index - 1 : index]} for index, name in enumerate(names)]
    return parse_config(
        {
            "model": {name: {"engine": "synthetic", "batch": [1, 2, 4, 8, 16], "expected": times} for name in names},
            "policy": {"p": {"kind": policy}},
            "app": {"a": {"slo": "1s", "node": chain}},
        }
    )


class Virtual:
    """A scheduler in virtual time: each batch takes what was expected of it. Counts the calls of its turns."""

    def __init__(self, config: Config) -> None:
        self.scheduler = build_scheduler(config)
        self.now_ns = 0
        self.calls = 0
        self.completed = 0
        self.running: List[RunBatch] = []
        self._last_id = 0

    def arrive(self, count: int = 1) -> None:
        """So many more requests, at once."""
        ids = range(self._last_id + 1, self._last_id + count + 1)
        self._last_id += count
        self._step([RequestArrived(Request(id, "a", self.now_ns, self.now_ns + SLO_NS)) for id in ids])

    def finish(self) -> None:
        """The batch that runs ends."""
        batch = self.running.pop(0)
        started_ns, self.now_ns = self.now_ns, self.now_ns + batch.expected_ns
        results = tuple([JobResult(job) for job in batch.jobs])
        self._step([WorkFinished(batch.work_id, started_ns, self.now_ns, results)])

    def _step(self, events: Sequence[Event]) -> None:
        """One turn of the loop."""
        for action in self._decide(events):
            if isinstance(action, RunBatch):
                self.running.append(action)
            elif isinstance(action, FinishRequest):
                assert action.outcome == Outcome.COMPLETED, action
                self.completed += 1

    def _decide(self, events: Sequence[Event]) -> Sequence[Action]:
        sys.setprofile(self._see)
        try:
            actions = self.scheduler.step(self.now_ns, events)
            self.scheduler.wake_at()
        finally:
            sys.setprofile(None)
        return actions

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event == "call"


def part_of(path: str) -> str:
    """The part of the package that a source belongs to. (What the standard library does counts for the live side.)"""
    if not path.startswith(PACKAGE):
        return "<generated>" if path == "<string>" else "live"
    room = path[len(PACKAGE) :].split(os.sep)[0]
    return {"sched": "scheduler", "ipc": "bus"}.get(room, "live")


def lone_calls(config: Config, repetitions: int) -> float:
    """The scheduler's calls per lone request."""
    world = Virtual(config)
    for index in range(WARM + repetitions):
        if index == WARM:
            world.calls = 0
        world.arrive()
        while world.running:
            world.finish()
        world.now_ns += GAP_NS
    assert world.completed == WARM + repetitions
    return world.calls / repetitions


def batch_calls(config: Config, repetitions: int) -> float:
    """The scheduler's calls per request where 16 arrive at once while the 16 before them run."""
    world = Virtual(config)
    world.arrive(BATCH)
    for index in range(WARM + repetitions):
        if index == WARM:
            world.calls = 0
        world.arrive(BATCH)
        world.finish()
    assert len(world.running[0].jobs) == BATCH, "batches of another size are not what is counted here"
    return world.calls / (repetitions * BATCH)


class LoopCalls:
    """Counts the calls of a runtime's loop by part; nothing of any other thread."""

    def __init__(self) -> None:
        self.by_part: Dict[str, int] = {}
        self._parts: Dict[str, str] = {}

    def start(self) -> None:
        """From now on, threads that begin are looked at."""
        threading.setprofile(self._begin)

    def _begin(self, frame: Any, event: str, argument: Any) -> None:
        ours = threading.current_thread().name == LOOP_THREAD
        sys.setprofile(self._see if ours else None)

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            part = self._parts.get(path)
            if part is None:
                part = self._parts[path] = part_of(path)
            self.by_part[part] = self.by_part.get(part, 0) + 1

    def take(self) -> Dict[str, int]:
        """What was counted since the last time."""
        taken, self.by_part = self.by_part, {}
        return taken


def live_calls(over_bus: bool, repetitions: int) -> Dict[str, float]:
    """Calls per lone request on the loop's thread, by part; the middle of several requests."""
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/bus"
        config = parse_config(
            {
                "server": {"endpoint": endpoint},
                "model": {
                    "m": {
                        "engine": "synthetic",
                        "batch": [1, 2, 4, 8, 16],
                        "expected": {str(size): f"{2 + size}ms" for size in (1, 2, 4, 8, 16)},
                    }
                },
                "app": {"a": {"model": "m", "slo": "1s"}},
            }
        )
        calls = LoopCalls()
        calls.start()
        try:
            with edgeserve.Runtime(config, serve=over_bus) as runtime:
                if not over_bus:
                    return _measure(lambda: runtime.infer("a", {}), calls, repetitions)
                with edgeserve.Client(endpoint) as client:
                    return _measure(lambda: client.infer("a", {}), calls, repetitions)
        finally:
            threading.setprofile(None)


def _measure(infer: Callable[[], Any], calls: LoopCalls, repetitions: int) -> Dict[str, float]:
    rows: List[Mapping[str, int]] = []
    for _ in range(WARM + repetitions):
        time.sleep(LIVE_GAP_S / 2)  # what the loop does after an answer belongs to the request before
        calls.take()
        time.sleep(LIVE_GAP_S / 2)
        calls.take()
        infer()
        time.sleep(LIVE_GAP_S / 2)
        rows.append(calls.take())
    parts = ("scheduler", "live", "bus", "<generated>")
    found = {part: statistics.median([row.get(part, 0) for row in rows[WARM:]]) for part in parts}
    found["all"] = statistics.median([sum(row.values()) for row in rows[WARM:]])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions (same checks)")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if not scheduler_module.__file__.endswith(".py"):
        raise SystemExit("this scheduler is compiled and makes no Python-level calls; measure the interpreted one")
    repetitions = 30 if args.quick else 120
    rows: List[Dict[str, Any]] = []
    print(f"{'scheduler, calls per request':30} {'batch 1':>8} {'batch 16':>8} {'chain of 3':>10}")
    for policy in POLICIES:
        row = {
            "policy": policy,
            "batch_1": lone_calls(config_of(policy), repetitions),
            "batch_16": batch_calls(config_of(policy), repetitions),
            "chain": lone_calls(config_of(policy, nodes=3), repetitions),
        }
        rows.append(row)
        print(f"{policy:30} {row['batch_1']:8.1f} {row['batch_16']:8.1f} {row['chain']:10.1f}")
    live = {way: live_calls(way == "bus", 5 if args.quick else 15) for way in ("embedded", "bus")}
    for way, found in live.items():
        parts = ", ".join(f"{part} {count:.0f}" for part, count in found.items())
        print(f"lone request, {way}: {parts}")
    checks = Checks("scripts/bench/calls.py")
    check({row["policy"]: row for row in rows}, live, checks)
    return checks.finish(
        args.json, {"python": sys.version.split()[0], "repetitions": repetitions}, rows=rows, live=live
    )


def check(rows: Mapping[str, Mapping[str, Any]], live: Mapping[str, Mapping[str, float]], checks: Checks) -> None:
    """Everything this script must show."""
    checks.at_most("lone request over the bus, loop's thread", live["bus"]["all"], 160)
    checks.at_most("lone request embedded, loop's thread", live["embedded"]["all"], 160)
    checks.at_most("edf: scheduler, batch 16", rows["edf"]["batch_16"], 30)
    checks.at_most("pard_local: scheduler, batch 16", rows["pard_local"]["batch_16"], 60)
    checks.at_most("edf: scheduler, chain of three", rows["edf"]["chain"], 240)


if __name__ == "__main__":
    sys.exit(main())
