"""The cost of a change of the batch size, as a server makes them: a library may search for kernels anew, or plan."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from typing import Any, Dict, Iterator, List, Tuple

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, LaneInfo
from edgeserve.engines.warm import time_changes, warm_up
from edgeserve.errors import EngineError
from lib.gpu_benches import engine_of
from lib.lane_timing import Setting, close
from lib.trt_bench import network

SIZES = (1, 2, 4, 8)


def sizes(setting: Setting) -> Dict[str, Any]:
    """Milliseconds of a batch after one of its own size, and after one of another."""
    rows: List[Dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        lane = setting.lane()
        for name, engine in _engines(setting, lane, folder):
            try:
                engine.load()
                session, item = engine.open(lane), engine.example()
                warm_up(session, item, SIZES, time.monotonic_ns)
                changes = time_changes(session, item, SIZES, time.monotonic_ns)
            finally:
                engine.unload()
            for size, change in sorted(changes.items()):
                times = {"steady_ms": change.steady_ns / 1e6, "changed_ms": change.changed_ns / 1e6}
                rows.append({"engine": name, "batch": size, **times})
        close([lane])
    return {"rows": rows}


def _engines(setting: Setting, lane: LaneInfo, folder: str) -> Iterator[Tuple[str, Engine]]:
    yield "torch", engine_of(setting, [lane], SIZES)
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return
    shapes = {"x": (3, setting.side, setting.side)}
    engine = make_engine(ModelConfig("net", "onnx", network(folder), batch=SIZES, shapes=shapes), [lane], folder)
    try:
        engine.check()
    except EngineError:  # ONNX Runtime for the CPU alone
        return
    yield "onnx", engine
