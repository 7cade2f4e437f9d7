"""Python-level calls of a request on the loop's thread: the scheduler alone, and a lone request, live.

    python research/bench/calls.py [--quick] [--json FILE]

A count is the same on a busy machine and on a quiet one, so it tells a change of one call, which a time does not. Every
function of the interpreter counts once per call (``sys.setprofile``); functions written in C do not, and before
3.12 every comprehension is a function of its own. A compiled scheduler makes no such calls; measure the interpreted.

*Scheduler*: one arrival, one batch and one end per request (batch 1), or 16 arrivals at once behind a running batch of
16 (batch 16), in virtual time: the mean of many. *Chain*: a lone request through three nodes. *Pending*: how many times
more calls a request of batch 16 costs behind a long queue than behind a short one. *Live*: a lone request through an
embedded runtime, and over the bus, by the part of the package in which the calls were made, and how many files they lie
in: the middle of several. Over the bus also an ensemble of three models and a vote, and an answer of a language model:
a piece of it, and all but its pieces; under ``plan``, and under ``edf``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from common.replicated import BEYOND, checks_of
from lib.checks import Checks, arguments

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.sched.core import scheduler as scheduler_module
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import Action, FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import Event, JobResult, Request, RequestArrived, WorkFinished
from edgeserve.units import NS_PER_MS

POLICIES = ("plan", "edf", "clockwork", "fifo", "orloj", "pard")
BATCH = 16
GAP_NS = 30 * NS_PER_MS
"""From the end of a lone request to the next: a camera. What is done now and then counts with its share."""

LIVE_GAP_S = 0.15
"""The same for live requests, of which the middle is reported: what is done every 100 ms counts in full."""

WARM = 4
"""Requests, or batches, that are served before any is counted: queues and tables exist then."""

SLO_NS = 1000 * NS_PER_MS
PENDING = (100, 2000)
"""Requests that wait while the next ones are counted: what grows with them is a scan of the queue."""

PENDING_SLO_NS = 1_000_000 * NS_PER_MS
"""Far enough away that none of them is dropped."""

PIECES = (4, 20)
"""The lengths of a short and of a long answer: their difference tells what a piece costs."""

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
            "server": {"pending_max": 2 * PENDING[1]},
            "policy": {"p": {"kind": policy}},
            "app": {"a": {"slo": "1s", "node": chain, "pending_max": 2 * PENDING[1]}},
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

    def arrive(self, count: int = 1, slo_ns: int = SLO_NS) -> None:
        """So many more requests, at once."""
        ids = range(self._last_id + 1, self._last_id + count + 1)
        self._last_id += count
        self._step([RequestArrived(Request(id, "a", self.now_ns, self.now_ns + slo_ns)) for id in ids])

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
            return self.scheduler.step(self.now_ns, events)
        finally:
            sys.setprofile(None)

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


def growth(config: Config) -> float:
    """The scheduler's calls per request behind the larger number of :data:`PENDING` ones, beside the smaller."""
    found = []
    for pending in PENDING:
        world = Virtual(config)
        world.arrive(pending, PENDING_SLO_NS)
        world.calls = 0
        for _ in range(WARM):
            world.arrive(BATCH, PENDING_SLO_NS)
            world.finish()
        assert world.scheduler.open_count == pending, "none may be dropped"
        found.append(world.calls)
    return found[1] / found[0]


class LoopCalls:
    """Counts the calls of a runtime's loop by source; nothing of any other thread."""

    def __init__(self) -> None:
        self._by_file: Dict[str, int] = {}

    def start(self) -> None:
        """From now on, threads that begin are looked at."""
        threading.setprofile(self._begin)

    def _begin(self, frame: Any, event: str, argument: Any) -> None:
        ours = threading.current_thread().name == LOOP_THREAD
        sys.setprofile(self._see if ours else None)

    def _see(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            self._by_file[path] = self._by_file.get(path, 0) + 1

    def take(self) -> Dict[str, int]:
        """The counts since the last call: by part, ``all`` together, and ``files`` of the package."""
        taken, self._by_file = self._by_file, {}
        found = dict.fromkeys(("scheduler", "live", "bus", "<generated>"), 0)
        for path, count in taken.items():
            found[part_of(path)] += count
        return {**found, "all": sum(taken.values()), "files": sum(path.startswith(PACKAGE) for path in taken)}


def live_config(endpoint: str, kind: str | None = None) -> Config:
    """A model alone, an ensemble of three with a vote, and a language model; under one policy of this kind, or
    under the default."""
    times = {str(size): f"{2 + size}ms" for size in (1, 2, 4, 8, 16)}
    votes = [{"name": name, "after": []} for name in ("a", "b", "c")] + [{"name": "vote", "after": ["a", "b", "c"]}]
    names = ("m", "a", "b", "c", "vote")
    sequence = {"slots": 4, "context_tokens": 100_000, "bytes_per_token": 10}
    model = {name: {"engine": "synthetic", "batch": [1, 2, 4, 8, 16], "expected": times} for name in names}
    model["lm"] = {"engine": "synthetic", "batch": [1], "expected": {"1": "4ms"}, "options": {"sequence": sequence}}
    return parse_config(
        {
            "server": {"endpoint": endpoint},
            "model": model,
            "policy": {} if kind is None else {kind: {"kind": kind}},
            "app": {
                "one": {"model": "m", "slo": "1s"},
                "ensemble": {"slo": "1s", "node": votes},
                "chat": {"model": "lm", "slo": "100s"},
            },
        }
    )


def live_calls(repetitions: int) -> Dict[str, Dict[str, float]]:
    """Calls per lone request on the loop's thread, by what is asked; the middle of several requests."""
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/bus"
        config = live_config(endpoint)
        calls = LoopCalls()
        calls.start()
        try:
            with edgeserve.Runtime(config) as runtime:
                found = {"embedded": _measure(lambda: runtime.infer("one", {}), calls, repetitions)}
            with edgeserve.Runtime(config, serve=True), edgeserve.Client(endpoint) as client:
                found["bus"] = _measure(lambda: client.infer("one", {}), calls, repetitions)
                found.update(_measure_apps(client, calls, repetitions))
            edf = live_config(endpoint, "edf")
            with edgeserve.Runtime(edf, serve=True), edgeserve.Client(endpoint) as client:
                under_edf = _measure_apps(client, calls, repetitions)
                found.update({f"{asked}, edf": count for asked, count in under_edf.items() if asked != "piece"})
        finally:
            threading.setprofile(None)
    return found


def _measure_apps(client: edgeserve.Client, calls: LoopCalls, repetitions: int) -> Dict[str, Dict[str, float]]:
    """The costs of an ensemble, of a piece of an answer, and of an answer without its pieces."""
    ensemble = _measure(lambda: client.infer("ensemble", {}), calls, repetitions)
    few, many = (_measure(lambda count=count: _read(client, count), calls, repetitions) for count in PIECES)
    piece = {part: (many[part] - few[part]) / (PIECES[1] - PIECES[0]) for part in few if part != "files"}
    rest = {part: few[part] - PIECES[0] * count for part, count in piece.items()}
    return {"ensemble": ensemble, "piece": piece, "answer in pieces, all else": rest}


def _read(client: edgeserve.Client, count: int) -> None:
    """An answer in so many pieces."""
    with client.stream("chat", {"steps": np.int64(count)}, hints={"steps": float(count)}) as answer:
        pieces = sum(1 for _ in answer)
    assert pieces >= count - 1, pieces


def _measure(ask: Callable[[], Any], calls: LoopCalls, repetitions: int) -> Dict[str, float]:
    rows: List[Mapping[str, int]] = []
    for _ in range(WARM + repetitions):
        time.sleep(LIVE_GAP_S / 2)  # what the loop does after an answer belongs to the request before
        calls.take()
        time.sleep(LIVE_GAP_S / 2)
        calls.take()
        ask()
        time.sleep(LIVE_GAP_S / 2)
        rows.append(calls.take())
    return {part: statistics.median([row[part] for row in rows[WARM:]]) for part in rows[0]}


def main() -> int:
    args = arguments(__doc__, quick="fewer repetitions (same checks)").parse_args()
    if not scheduler_module.__file__.endswith(".py"):
        raise SystemExit("this scheduler is compiled and makes no Python-level calls; measure the interpreted one")
    repetitions = 30 if args.quick else 120
    rows: List[Dict[str, Any]] = []
    heads = f"{'batch 1':>8} {'batch 16':>8} {'chain of 3':>10} {f'{PENDING[1]} pending / {PENDING[0]}':>18}"
    print(f"{'scheduler, calls per request':30} {heads}")
    for policy in POLICIES:
        row = {
            "policy": policy,
            "batch_1": lone_calls(config_of(policy), repetitions),
            "batch_16": batch_calls(config_of(policy), repetitions),
            "chain": lone_calls(config_of(policy, nodes=3), repetitions),
            "growth": growth(config_of(policy)),
        }
        rows.append(row)
        print(f"{policy:30} {row['batch_1']:8.1f} {row['batch_16']:8.1f} {row['chain']:10.1f} {row['growth']:18.2f}")
    live = live_calls(5 if args.quick else 15)
    for asked, found in live.items():
        parts = ", ".join(f"{part} {count:.0f}" for part, count in found.items())
        print(f"lone request, {asked}: {parts}")
    checks = checks_of("research/bench/calls.py", one_side=BEYOND)
    check({row["policy"]: row for row in rows}, live, checks)
    return checks.finish(args.json, {"repetitions": repetitions}, rows=rows, live=live)


def check(rows: Mapping[str, Mapping[str, Any]], live: Mapping[str, Mapping[str, float]], checks: Checks) -> None:
    """Everything this script must show."""
    checks.at_most("lone request over the bus, loop's thread", live["bus"]["all"], 125)
    checks.at_most("lone request over the bus, files", live["bus"]["files"], 30)
    checks.at_most("ensemble of three and a vote over the bus, edf", live["ensemble, edf"]["all"], 350)
    checks.at_most("ensemble of three and a vote over the bus, plan", live["ensemble"]["all"], 350)
    checks.at_most("answer in pieces, without them, edf", live["answer in pieces, all else, edf"]["all"], 220)
    checks.at_most("answer in pieces, without them, plan", live["answer in pieces, all else"]["all"], 220)
    checks.at_most("a piece of an answer over the bus", live["piece"]["all"], 14)
    checks.at_most("lone request embedded, loop's thread", live["embedded"]["all"], 135)
    checks.at_most("edf: scheduler, batch 1", rows["edf"]["batch_1"], 63)
    checks.at_most("plan: scheduler, batch 1", rows["plan"]["batch_1"], 76)
    checks.at_most("edf: scheduler, batch 16", rows["edf"]["batch_16"], 31)
    checks.at_most("plan: scheduler, batch 16", rows["plan"]["batch_16"], 34)
    checks.at_most("edf: scheduler, chain of three", rows["edf"]["chain"], 173)
    checks.at_most("plan: scheduler, chain of three", rows["plan"]["chain"], 262)
    for policy, row in rows.items():
        checks.at_most(f"{policy}: calls behind {PENDING[1]} pending to those behind {PENDING[0]}", row["growth"], 1.1)


if __name__ == "__main__":
    sys.exit(main())
