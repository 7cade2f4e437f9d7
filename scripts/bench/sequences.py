"""What one step of a steady batch of eight sequences costs the server beside its engine, in CPU time.

    python scripts/bench/sequences.py [--quick] [--json FILE]

A server with a synthetic model (its steps compute nothing) runs in a process of its own, and its whole CPU time over
many steps counts: loop, lane, sockets and what the stand-in for an engine does. *One work*: the batch is one work of
many steps; who asked gets the answer. *Pieces*: the same, and each of the eight requests gets a piece per step over the
bus. *A launch per step*: the policy bids for one step at a time, so each is a work of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.sched.policies.fifo import Fifo
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.resources.lanes import Lane

APPS = ("chat", "again")
SEQUENCES = 8
STEP_MS = 4
BOUND_US = 100.0
"""The most that one step of eight sequences may cost where nobody listens to pieces."""


def config_of(endpoint: str, steps: int) -> Any:
    """Apps ``chat`` and ``again`` (a launch per step), each with a model and a lane of its own."""
    times = {str(size): f"{STEP_MS}ms" for size in (1, 2, 4, 8)}
    options = {"steps": steps, "sequence": {"slots": SEQUENCES}}
    return parse_config(
        {
            "server": {"endpoint": endpoint},
            "lane": {name: {} for name in APPS},
            "policy": {"chat": {"kind": "fifo"}, "again": {"kind": "sequences:StepByStep"}},
            "model": {
                name: {
                    "engine": "synthetic",
                    "batch": [1, 2, 4, 8],
                    "expected": times,
                    "lanes": [name],
                    "options": options,
                }
                for name in APPS
            },
            "app": {name: {"model": name, "slo": "1000s", "policy": name} for name in APPS},
        },
        directory=str(Path(__file__).resolve().parent),
    )


class StepByStep(Fifo):
    """Every step is a work of its own."""

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bid = super().bid(lane, board)
        if bid is not None:
            bid.steps_max = 1
        return bid


def serve(endpoint: str, steps: int, pipe: Any) -> None:
    """The server's process: answers every message with its CPU time so far."""
    with edgeserve.Runtime(config_of(endpoint, steps), serve=True):
        pipe.send(time.process_time())
        while pipe.recv():
            pipe.send(time.process_time())


def cpu_us_per_step(client: edgeserve.Client, pipe: Any, app: str, steps: int, listens: bool) -> float:
    """CPU time of the server per step while eight sequences of one batch run."""
    hints = {"steps": float(steps)}
    first = client.submit(app, {}, hints=hints)  # the eight come while it runs, so they are one batch
    time.sleep(0.05)
    if listens:
        streams = [client.stream(app, {}, hints=hints) for _ in range(SEQUENCES)]
        readers = [threading.Thread(target=lambda stream=stream: [None for _ in stream]) for stream in streams]
        for reader in readers:
            reader.start()
        futures = [stream._future for stream in streams]
    else:
        futures = [client.submit(app, {}, hints=hints) for _ in range(SEQUENCES)]
    first.result(120)
    before_s = _asked(pipe)
    for future in futures:
        future.result(120)
    return (_asked(pipe) - before_s) / steps * 1e6


def _asked(pipe: Any) -> float:
    pipe.send(True)
    cpu_s: float = pipe.recv()
    return cpu_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and repetitions (same checks)")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    steps, repetitions = (100, 2) if args.quick else (300, 5)
    rows: Dict[str, List[float]] = {"one work": [], "pieces": [], "a launch per step": []}
    with tempfile.TemporaryDirectory() as directory:
        endpoint = f"ipc://{directory}/bus"
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(endpoint, steps, theirs))
        server.start()
        try:
            ours.recv()
            with edgeserve.Client(endpoint) as client:
                for _ in range(repetitions):
                    rows["one work"].append(cpu_us_per_step(client, ours, "chat", steps, listens=False))
                    rows["pieces"].append(cpu_us_per_step(client, ours, "chat", steps, listens=True))
                    if len(rows["a launch per step"]) < 2:
                        rows["a launch per step"].append(cpu_us_per_step(client, ours, "again", steps, listens=False))
        finally:
            ours.send(False)
            server.join(30)
    found = {name: statistics.median(values) for name, values in rows.items()}
    for name, value in found.items():
        print(f"{name:20} {value:8.1f} us of CPU per step of {SEQUENCES}")
    checks = Checks("scripts/bench/sequences.py")
    checks.at_most("CPU time per step of eight sequences, us", found["one work"], BOUND_US)
    checks.at_most("the same beside a launch per step", found["one work"] / found["a launch per step"], 0.5)
    return checks.finish(
        args.json, {"python": sys.version.split()[0], "steps": steps, "repetitions": repetitions}, cpu_us_per_step=found
    )


if __name__ == "__main__":
    sys.exit(main())
