"""``edgeserve profile --layers``: which layers of a model a batch spends its time in. Measures nothing else and writes
no profile: a layer that is timed by itself takes longer than within a batch."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.engines import lane_info, make_engine
from edgeserve.errors import EngineError
from edgeserve.units import format_duration

SHOWN = 10
"""Layers of a model that are printed; ``--json`` has all."""

Times = List[Tuple[str, int]]


def layer_times(config: Config, model: str, lane: str, size: int) -> Times:
    """Layer -> its nanoseconds in a batch of ``size``, the longest first. Raises :class:`EngineError` for an engine
    that cannot tell."""
    info = lane_info(config, lane)._replace(depth=1, clock_ns=time.perf_counter_ns, common={})
    served = config.models[model]
    here = replace(served, options={**served.options, "process": False})
    engine = make_engine(here, [info], config.directory)
    engine.load()
    try:
        engine.open(info)
        times = engine.layer_times(info, engine.example(), size)
    finally:
        engine.unload()
        for shared in (info.common or {}).values():
            if hasattr(shared, "close"):
                shared.close()
    if not times:
        raise EngineError(
            f"model {model!r}: engine {served.engine!r} does not time layers; engines 'onnx' and 'tensorrt' do"
        )
    summed: Dict[str, int] = {}
    for name, took_ns in times:
        summed[name] = summed.get(name, 0) + took_ns
    return sorted(summed.items(), key=lambda pair: (-pair[1], pair[0]))


def show_layers(config: Config, plans: Sequence[Tuple[str, str, Sequence[int]]], as_json: bool) -> int:
    """Print the layers of each model on each lane, of its largest batch."""
    found = []
    for model, lane, sizes in plans:
        times = layer_times(config, model, lane, max(sizes))
        found.append({"model": model, "lane": lane, "batch": max(sizes), "layers_ns": dict(times)})
        if as_json:
            continue
        total_ns = max(1, sum(took_ns for _, took_ns in times))
        print(f"{model} on {lane}, a batch of {max(sizes)}: {len(times)} layers, {format_duration(total_ns)} in sum")
        for name, took_ns in times[:SHOWN]:
            print(f"  {took_ns / total_ns:4.0%}  {format_duration(took_ns):>8}  {name}")
    if as_json:
        print(json.dumps(found))
    return 0
