"""How long a device waits between two batches: lanes that hold one batch launched, or two.

    python research/bench/lanes.py [--quick] [--json FILE]

A runtime (embedded, no socket) with a synthetic device of its own clock: batches of 2 ms, packed for 0.3 ms on the
lane's thread. Enough requests are in flight that the next batch always waits. Per depth, from the times that the lane
reported to the scheduler: the gap between a batch's end and the next one's start, and what the latency model has
learnt.
The gap at depth 1 is packing, unpacking and the loop's turn; at depth 2 these run beside the batch before.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from lib.checks import Checks, arguments

from edgeserve.config.loading import parse_config
from edgeserve.config.machine import device_name
from edgeserve.runtime import Runtime
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import WorkFinished
from edgeserve.taps.replay import replay
from edgeserve.taps.trace import Recording, build_inputs, read_recording
from edgeserve.units import NS_PER_MS

KERNEL_MS, PACK_MS = 2.0, 0.3
IN_FLIGHT = 8
WARM = 50
"""Batches at the start that are not counted."""

DEPTHS = (1, 2)
GAP_MS_MAX = 0.1
LEARNT_MAX = 1.01
"""What is learnt may be rounded up; packing would add 15 %."""

Spans = List[Tuple[int, int]]


def run(depth: int, count: int, directory: str) -> Tuple[Spans, int]:
    """``count`` requests, so many in flight: when each batch ran on the device, and how long one is thought to take."""
    config = parse_config(
        {
            "server": {"record": "run.jsonl"},
            "device": {"gpu": {}},
            "lane": {"gpu0": {"device": "gpu", "depth": depth}},
            "model": {
                "m": {
                    "engine": "synthetic",
                    "shapes": {"x": [4]},
                    "options": {"c0": f"{KERNEL_MS}ms", "pack": f"{PACK_MS}ms"},
                }
            },
            "policy": {"edf": {}},
            "app": {"a": {"model": "m", "slo": "1s"}},
        },
        directory,
    )
    item = {"x": np.zeros(4, np.float32)}
    with Runtime(config) as runtime:
        waiting = [runtime.submit("a", item) for _ in range(IN_FLIGHT)]
        for _ in range(count):
            waiting.pop(0).result(10)
            waiting.append(runtime.submit("a", item))
        for future in waiting:
            future.result(10)
    recording = read_recording(str(Path(directory) / "run.jsonl"))
    scheduler = build_scheduler(config, (), **build_inputs(recording.start))
    difference = replay(scheduler, recording.steps)
    if difference is not None:
        raise SystemExit(f"the recording does not replay: {difference}")
    return spans_of(recording)[WARM:], scheduler.state.latency["m", "gpu0"].typical_ns[1]


def spans_of(recording: Recording) -> Spans:
    """When each batch began and ended, as the lane told."""
    batches = {action.work_id for step in recording.steps for action in step.actions if isinstance(action, RunBatch)}
    return sorted(
        (event.started_ns, event.finished_ns)
        for step in recording.steps
        for event in step.events
        if isinstance(event, WorkFinished) and event.work_id in batches
    )


def gaps_ms(spans: Spans) -> List[float]:
    """The waits of the device between two batches."""
    return [(following[0] - before[1]) / NS_PER_MS for before, following in zip(spans, spans[1:])]


def main() -> int:
    parser = arguments(__doc__, quick="500 batches per depth instead of 3000")
    args = parser.parse_args()
    count = 500 if args.quick else 3000
    checks, rows = Checks("research/bench/lanes.py"), []
    for depth in DEPTHS:
        with tempfile.TemporaryDirectory() as directory:
            spans, learnt_ns = run(depth, count, directory)
        gaps = sorted(gaps_ms(spans))
        busy = sum(end - start for start, end in spans) / (spans[-1][1] - spans[0][0])
        row = {
            "depth": depth,
            "gap_ms": statistics.median(gaps),
            "gap_p90_ms": gaps[len(gaps) * 9 // 10],
            "busy": busy,
            "learnt_ms": learnt_ns / NS_PER_MS,
        }
        rows.append(row)
        print(
            f"depth {depth}: gap {row['gap_ms']:.3f} ms (90 %: {row['gap_p90_ms']:.3f}), device busy {busy:.1%}, "
            f"a batch is thought to take {row['learnt_ms']:.3f} ms",
            flush=True,
        )
        if depth > 1:
            checks.at_most(f"depth {depth}: gap between batches (ms, median)", row["gap_ms"], GAP_MS_MAX)
        checks.at_most(f"depth {depth}: learnt time over the device's", row["learnt_ms"] / KERNEL_MS, LEARNT_MAX)
    return checks.finish(
        args.json,
        {"device": device_name(), "batches": count, "kernel_ms": KERNEL_MS, "pack_ms": PACK_MS, "in_flight": IN_FLIGHT},
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
