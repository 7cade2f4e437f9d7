"""Load for ``research/bench/bus.py``: one thread, one DEALER socket, messages of EdgeServe's protocol made beforehand.

A closed loop keeps a number of requests in flight; an open loop sends at drawn times in any case. Replies are read just
far enough to know which request they answer and whether it was served.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple, TypeVar

import msgpack
import numpy as np
import zmq

T = TypeVar("T")

WIDTH = 2048  # of the network's layers: 16 MB of weights each, so that reading them dominates a batch of one
LAYERS = 8
COPY_BELOW_BYTES = 64 * 1024


class Message(NamedTuple):
    """A request but for its id: the fields of its header, and its tensor."""

    fields: Dict[str, Any]
    tensor: bytes


def message(app: str, x: np.ndarray) -> Message:
    """A request with one input ``x``."""
    return Message({"kind": "infer", "app": app, "tensors": [["x", "float32", list(x.shape)]]}, x.tobytes())


def connect(endpoint: str) -> Any:
    """A DEALER whose high-water mark is never in the way."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 100_000
    socket.connect(endpoint)
    return socket


def header(fields: Dict[str, Any], key: int) -> bytes:
    """The header frame of one request."""
    fields["id"] = key
    return b"\x01" + bytes(msgpack.packb(fields))


def ping(endpoint: str) -> None:
    """Wait until the server says that it is up."""
    socket = connect(endpoint)
    try:
        socket.send(b"\x01" + msgpack.packb({"kind": "health", "id": 1}))
        if not socket.poll(60_000):
            raise SystemExit(f"no answer from {endpoint}")
    finally:
        socket.close()


def closed_loop(endpoint: str, request: Message, depth: int, seconds: float) -> List[float]:
    """Keep ``depth`` requests in flight; the seconds that each took which ended within the time."""
    socket = connect(endpoint)
    large = len(request.tensor) >= COPY_BELOW_BYTES
    fields = dict(request.fields)
    sent: Dict[int, float] = {}
    took: List[float] = []
    key = 0
    try:
        ends = time.perf_counter() + seconds
        while True:
            while len(sent) < depth:
                key += 1
                frames = [header(fields, key), request.tensor]
                sent[key] = time.perf_counter()
                socket.send_multipart(frames, copy=not large)
            if not socket.poll(30_000):
                raise SystemExit(f"{endpoint} no longer answers")
            frames = socket.recv_multipart(copy=not large)
            now = time.perf_counter()
            reply = msgpack.unpackb(bytes(frames[0])[1:])
            if reply["kind"] == "error":
                raise SystemExit(f"{endpoint}: {reply}")
            took.append(now - sent.pop(reply["id"]))
            if now >= ends:
                return took
    finally:
        socket.close()


def rounds(count: int, subjects: Mapping[str, T], measure: Callable[[T], float]) -> Dict[str, List[float]]:
    """Measure each in turn, ``count`` times after one warm-up round, every other round in reverse."""
    results: Dict[str, List[float]] = {name: [] for name in subjects}
    for index in range(count + 1):
        for name in list(subjects)[:: 1 if index % 2 else -1]:
            value = measure(subjects[name])
            if index:
                results[name].append(value)
    return results


def open_loop(
    endpoint: str, app: str, x: np.ndarray, rate: float, slo_ms: float, seconds: float, seed: int, critical: float = 0.0
) -> Dict[str, float]:
    """Poisson arrivals at ``rate`` per second, each with its deadline stamped at sending. Returns the share that was
    answered by it, by class."""
    rng = random.Random(f"{seed}/arrivals")
    socket = connect(endpoint)
    plan: List[Tuple[float, str]] = []
    at = 0.0
    while at < seconds:
        at += rng.expovariate(rate)
        plan.append((at, "critical" if rng.random() < critical else "normal"))
    fields = {**message(app, x).fields, "slo_ms": slo_ms}
    tensor = x.tobytes()
    open_requests: Dict[int, Tuple[int, str]] = {}
    in_time = {"critical": 0, "normal": 0}
    index = 0
    try:
        began = time.monotonic_ns() + 20_000_000
        while index < len(plan) or open_requests:
            now = time.monotonic_ns()
            if index < len(plan) and now >= began + plan[index][0] * 1e9:
                priority_class = plan[index][1]
                fields["sent_ns"] = now
                if priority_class != "normal":
                    fields["class"] = priority_class
                else:
                    fields.pop("class", None)
                index += 1
                open_requests[index] = (now + int(slo_ms * 1e6), priority_class)
                socket.send_multipart([header(fields, index), tensor])
                continue
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if index >= len(plan) and now > began + seconds * 1e9 + 5e9:
                    raise SystemExit(f"{endpoint}: {len(open_requests)} requests never ended") from None
                continue
            reply = msgpack.unpackb(frames[0][1:])
            deadline_ns, priority_class = open_requests.pop(reply["id"])
            if reply["kind"] == "answer" and time.monotonic_ns() <= deadline_ns:
                in_time[priority_class] += 1
    finally:
        socket.close()
    asked = Counter(priority_class for _, priority_class in plan)
    return {priority_class: count / max(1, asked[priority_class]) for priority_class, count in in_time.items()}


def make_network(path: str) -> None:
    """A small network that gains from batches on a CPU: fully connected layers whose weights do not fit the caches
    near a core, so that one pass over them costs about the same for one row as for several."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(1)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        name = f"w{layer}"
        matrix = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, name))
        product, out = f"p{layer}", "y" if layer == LAYERS - 1 else f"h{layer}"
        nodes += [helper.make_node("MatMul", [last, name], [product]), helper.make_node("Relu", [product], [out])]
        last = out
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    save(model, path)


def batching_gain(path: str) -> Tuple[float, float]:
    """Seconds of a batch of one, and the cost per item at batch 16 as a share of it."""
    from common.bus_servers import session_of

    session = session_of(path)

    def median_s(size: int) -> float:
        rows = np.ones((size, WIDTH), np.float32)
        times = []
        for _ in range(40):
            started = time.perf_counter()
            session.run(None, {"x": rows})
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    alone = median_s(1)
    return alone, median_s(16) / 16 / alone
