"""Benches of the TensorRT engine on a GPU, without torch: its batches beside a bare loop of ``execute_async_v3`` and
beside ``trtexec``, all on one plan of a convolutional network whose height and width are open."""

from __future__ import annotations

import glob
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Pending, Session
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.tensorrt.library import open_library
from edgeserve.engines.tensorrt.plan_file import deserialized
from lib.lane_timing import Setting, close, ended

CHANNELS = (64, 128, 256, 256)
ROUNDS = 3
TRTEXEC = ("/usr/src/tensorrt/bin/trtexec", "/usr/local/tensorrt/bin/trtexec")
"""The place of ``trtexec`` in JetPack and NVIDIA's containers, outside ``PATH``."""


class Way(NamedTuple):
    """One way to run the plan."""

    mapped: bool
    graph: bool
    lanes: int
    depth: int


WAYS = (
    Way(False, False, 1, 1),
    Way(False, True, 1, 1),
    Way(False, True, 1, 2),
    Way(False, True, 2, 2),
    Way(True, True, 1, 1),
    Way(True, True, 1, 2),
)


def network(folder: str, channels: Sequence[int] = CHANNELS) -> str:
    """A convolutional network of drawn weights: ``y[B,10]`` of ``x[B,3,H,W]``. Needs the ``onnx`` package."""
    from onnx import TensorProto, helper, numpy_helper, save

    draw = np.random.default_rng(1)
    nodes, weights, value = [], [], "x"
    for index, (inputs, outputs) in enumerate(zip((3, *channels), channels)):
        kernel = draw.standard_normal((outputs, inputs, 3, 3)).astype(np.float32) / np.sqrt(9 * inputs)
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"], strides=[2, 2], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        value = f"r{index}"
    head = draw.standard_normal((channels[-1], 10)).astype(np.float32)
    weights.append(numpy_helper.from_array(head, "head"))
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["y"]),
    ]
    tensors = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)]
        for name, dims in (("x", ["B", 3, "H", "W"]), ("y", ["B", 10]))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "conv", *tensors, weights), opset_imports=[helper.make_opsetid("", 13)]
    )
    model.ir_version = 8
    save(model, os.path.join(folder, "conv.onnx"))
    return "conv.onnx"


def tensorrt(setting: Setting, channels: Sequence[int] = CHANNELS) -> Dict[str, Any]:
    """Milliseconds per batch of one frame, in each of :data:`WAYS` and precision, by turns with the bare loop; the
    medians. ``trtexec_ms`` is the median of ``trtexec``'s latency, copies included, where the program is found."""
    rows: List[Dict[str, Optional[float]]] = []
    api = open_library("auto").api
    with tempfile.TemporaryDirectory() as folder:
        file = network(folder, channels)
        for fp16 in (False, True) if api.weak_types else (False,):
            plans = os.path.join(folder, f"plans-{fp16}")
            served: Dict[Way, List[float]] = {way: [] for way in WAYS}
            bare: List[float] = []
            for _ in range(ROUNDS):
                for way in WAYS:
                    served[way].append(_served_ms(setting, folder, file, plans, way, fp16))
                plan = min(
                    glob.glob(os.path.join(plans, "*.plan")), key=os.path.getmtime
                )  # 8.5: one per number of lanes
                bare.append(_bare_ms(setting, plan))
            trtexec_ms = _trtexec_ms(setting, plan)
            for way, took in served.items():
                numbers = {name: float(value) for name, value in way._asdict().items()}
                middle, beside = statistics.median(took), statistics.median(bare)
                rows.append({"fp16": float(fp16), **numbers, "ms": middle, "bare_ms": beside, "trtexec_ms": trtexec_ms})
    return {"rows": rows}


def _served_ms(setting: Setting, folder: str, file: str, plans: str, way: Way, fp16: bool) -> float:
    side = setting.side
    options = {
        "plans": plans,
        "precision": "fp16" if fp16 else "model",
        "ranges": {"x": [[3, side // 2, side // 2], [3, side, side], [3, side, side]]},
        "mapped": "yes" if way.mapped else "no",
        "graph": way.graph,
    }
    lanes = [setting.lane(way.depth, number) for number in range(way.lanes)]
    engine = make_engine(ModelConfig("conv", "tensorrt", file=file, batch=(1,), options=options), lanes, folder)
    engine.load()
    sessions = [engine.open(lane) for lane in lanes]
    try:
        return _together_ms([_launches(session, setting, way.depth) for session in sessions], setting.runs)
    finally:
        engine.unload()
        close(lanes)


def _launches(session: Session, setting: Setting, depth: int) -> Callable[[int], None]:
    random = np.random.default_rng(1)
    batch = Batch([{"x": random.random((3, setting.side, setting.side), np.float32)}], 1)

    def run(count: int) -> None:
        flight: List[Pending] = []
        for _ in range(count):
            flight.append(session.launch(batch))
            if len(flight) == depth:
                ended(flight.pop(0))
        for pending in flight:
            ended(pending)

    return run


def _together_ms(calls: Sequence[Callable[[int], None]], runs: int) -> float:
    """Milliseconds per batch while each call makes so many in a thread of its own, after three that do not count."""
    for call in calls:
        call(3)
    threads = [threading.Thread(target=call, args=(runs,), daemon=True) for call in calls]
    begun_ns = time.monotonic_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.monotonic_ns() - begun_ns) / 1e6 / (runs * len(calls))


def _bare_ms(setting: Setting, plan: str) -> float:
    """The loop of a program without an engine: copy in, execute, copy out, wait."""
    library = open_library("auto")
    device = CudaDevice(open_driver(), setting.index)
    try:
        with device.current():
            return _loop_ms(library, device, setting, plan)
    finally:
        device.close()


def _loop_ms(library: Any, device: CudaDevice, setting: Setting, plan: str) -> float:
    kept, engine = deserialized(library, plan, plan)
    context = library.new_context(engine)
    stream, memory = device.stream(), device.buffer(max(1, library.api.context_bytes(engine)))
    library.api.give_memory(context, memory.pointer, memory.size)
    context.set_optimization_profile_async(0, stream.handle)
    stream.synchronize()
    shape = (1, 3, setting.side, setting.side)
    context.set_input_shape("x", shape)
    frame, answer = device.pinned(4 * int(np.prod(shape))), device.pinned(40)
    there, back = device.buffer(frame.size), device.buffer(answer.size)
    frame.array(shape, np.float32)[:] = np.random.default_rng(1).random(shape, np.float32)

    addresses = {"x": there.pointer, "y": back.pointer}

    def run(count: int) -> None:
        with device.current():
            for _ in range(count):
                stream.to_device(there, frame)
                for name, pointer in addresses.items():
                    held[0].set_tensor_address(name, pointer)
                if not held[0].execute_async_v3(stream.handle):
                    raise RuntimeError(library.why("TensorRT did not say why"))
                stream.to_host(answer, back)
                stream.synchronize()

    held = [context]
    del context
    try:
        return _together_ms([run], setting.runs)
    finally:  # the context before its memory, the engine before what it was read from
        held.clear()
        del engine, kept


def _trtexec_ms(setting: Setting, plan: str) -> Optional[float]:
    """``trtexec``'s own median latency of the plan; ``None`` where the program is missing or fails."""
    program = next((path for path in (shutil.which("trtexec"), *TRTEXEC) if path and os.path.exists(path)), None)
    if program is None:
        return None
    words = [f"--loadEngine={plan}", f"--shapes=x:1x3x{setting.side}x{setting.side}", f"--iterations={setting.runs}"]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300, check=False)
    return latency_of(done.stdout) if done.returncode == 0 else None


def latency_of(said: str) -> Optional[float]:
    """The median latency in ``trtexec``'s summary, in milliseconds."""
    found = re.search(r"\bLatency: .*\bmedian = ([\d.]+) ms", said)
    return float(found.group(1)) if found else None
