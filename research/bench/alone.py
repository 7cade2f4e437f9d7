"""Measure how the times of the dynamic example's requests are spread: ``research/data/dynamic_alone.json``.

    python -m edgeserve.commands.assets examples/dynamic/assets.toml && python examples/dynamic/build.py
    python research/bench/alone.py --out research/data/dynamic_alone.json

For both models: each app's requests alone (the median of three passes over all), and random batches of both apps'
requests, to see how well ``fixed + size * (longest - fixed)`` describes them. Time is the CPU time of the thread that
runs the model, which is what an idle core would take: whoever shares the machine hardly shows. Milliseconds, in the
form that ``research/replicate/orloj/run.py`` reads.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import shlex
import sys
import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import onnxruntime

from edgeserve import __version__
from edgeserve.commands.alone import entry_nodes, example_items, measure_alone
from edgeserve.commands.measure import quantile_bounds
from edgeserve.config.loading import load_config
from edgeserve.config.machine import device_name
from edgeserve.config.schema import Config
from edgeserve.device.host import load_average
from edgeserve.engines import lane_info, make_engine
from edgeserve.engines.base import Batch, Session, Values, run_whole
from edgeserve.engines.warm import warm_up

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG = os.path.join(ROOT, "examples", "dynamic", "edge.toml")
APP_NS_MAX = 300 * 10**9
GRID = 60
"""Values of the fixed part that are tried."""

Row = Tuple[int, float, float]
"""A batch: its size, the longest time alone in it, and what it took (ms)."""


def measure(config: Config, model: str, batches: int, seed: int) -> Dict[str, Any]:
    """One model: its apps' times alone, and the law of its batches."""
    settings = config.models[model]
    lane = lane_info(config, settings.lanes[0])
    engine = make_engine(settings, [lane], config.directory)
    engine.load()
    try:
        session = engine.open(lane)
        warm_up(session, engine.example(), settings.batch, time.thread_time_ns)
        items = {
            app: example_items(config.apps[app], node, config.directory)
            for app, node in entry_nodes(config, model).items()
        }
        alone = {
            app: [ms(took) for took in measure_alone(session, rows, time.thread_time_ns, APP_NS_MAX)]
            for app, rows in items.items()
        }
        rows = measure_batches(session, items, alone, settings.batch, batches, seed)
    finally:
        engine.unload()
    return {"alone_ms": alone, **law_of(rows, min(map(min, alone.values())))}


def measure_batches(
    session: Session,
    items: Mapping[str, Sequence[Values]],
    alone: Mapping[str, Sequence[float]],
    sizes: Sequence[int],
    count: int,
    seed: int,
) -> List[Row]:
    """``count`` random batches of each size, of requests of any app."""
    draw = random.Random(f"{seed}/batches")
    everything = [(item, took) for app in items for item, took in zip(items[app], alone[app])]
    rows = []
    for _ in range(count):
        for size in sizes:
            chosen = [draw.choice(everything) for _ in range(size)]
            batch = Batch([item for item, _ in chosen], size)
            started_ns = time.thread_time_ns()
            run_whole(session, batch)
            rows.append((size, max(took for _, took in chosen), ms(time.thread_time_ns() - started_ns)))
    return rows


def law_of(rows: Sequence[Row], shortest: float) -> Dict[str, Any]:
    """The fixed part, from 0 to the shortest request, that describes the batches best (median relative error), and how
    far each size is off by it: measured over predicted, at three quantiles."""

    def ratios(fixed: float, only: int = 0) -> List[float]:
        return [took / (fixed + size * (longest - fixed)) for size, longest, took in rows if only in (0, size)]

    fixed = min(
        (shortest * step / GRID for step in range(GRID + 1)),
        key=lambda fixed: float(np.median(np.abs(np.log(ratios(fixed))))),
    )
    off = {
        size: [round(float(np.quantile(ratios(fixed, size), q)), 3) for q in (0.1, 0.5, 0.9)]
        for size in sorted({size for size, _, _ in rows})
    }
    return {
        "fixed_ms": round(fixed, 3),
        "measured_over_predicted": off,
        "error_median": round(float(np.median(np.abs(np.array(ratios(fixed)) - 1))), 3),
    }


def ms(time_ns: int) -> float:
    """Milliseconds, to the microsecond."""
    return round(time_ns / 1e6, 3)


def describe(name: str, times: Sequence[float]) -> str:
    """One app's times for people; the 0.9-quantile with its 95 % interval, where there are enough."""
    shown = " / ".join(f"{np.quantile(times, q):.2f}" for q in (0.1, 0.5, 0.9, 0.99))
    bounds = quantile_bounds(sorted(round(value * 1e6) for value in times), 0.9)
    sure = f" (90 %: {bounds[0] / 1e6:.2f} to {bounds[1] / 1e6:.2f})" if bounds else ""
    return f"  {name:<8} {len(times)} requests: {shown} ms{sure}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", action="append", default=[], help="only this model (default: both)")
    parser.add_argument("--batches", type=int, default=40, help="random batches per size (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the random batches")
    parser.add_argument("--out", default="", metavar="FILE", help="write the JSON file here")
    args = parser.parse_args(words)
    config = load_config(CONFIG)
    table: Dict[str, Any] = {
        "command": shlex.join(["python", "research/bench/alone.py", *words]),
        "device": device_name(),
        "clock": "CPU time of the thread that runs the model, one thread",
        "unit": "ms",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "load_average": round(load_average(), 2),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "edgeserve": __version__,
        },
        "cases": {},
        "laws": {},
    }
    for model in args.model or list(config.models):
        result = measure(config, model, args.batches, args.seed)
        table["cases"][model] = result.pop("alone_ms")
        table["laws"][model] = result
        print(
            f"{model}: fixed {result['fixed_ms']:.2f} ms; a batch is {result['error_median']:.0%} off the law in the "
            f"median; 10 / 50 / 90 / 99 % of the times alone:"
        )
        for app, times in table["cases"][model].items():
            print(describe(app, times), flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(compact(table))
    return 0


def compact(table: Mapping[str, Any]) -> str:
    """JSON with one line per list of times."""
    lines = []
    for key, value in table.items():
        if key != "cases":
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
            continue
        cases = [
            f"  {json.dumps(model)}: {{\n"
            + ",\n".join(f"   {json.dumps(app)}: {json.dumps(times)}" for app, times in apps.items())
            + "}"
            for model, apps in value.items()
        ]
        lines.append(' "cases": {\n' + ",\n".join(cases) + "}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
