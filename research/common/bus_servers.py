"""The hand-written servers that ``research/bench/bus.py`` measures EdgeServe against. They speak the same messages.

    python research/common/bus_servers.py echo ENDPOINT
    python research/common/bus_servers.py single ENDPOINT MODEL.onnx
    python research/common/bus_servers.py thread ENDPOINT MODEL.onnx

``echo`` returns every message as it came. ``single`` runs one request at a time. ``thread`` is what a good engineer
writes in an afternoon: one thread that drains the socket, batches greedily up to 16 at any size, and sheds what
cannot finish by the median time that such a batch has taken lately.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, List, Tuple

import msgpack
import numpy as np
import zmq

BATCH_MAX = 16
COPY_BELOW_BYTES = 64 * 1024


def bind(endpoint: str) -> Any:
    """A ROUTER socket with a high-water mark that no client here reaches."""
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 100_000
    socket.bind(endpoint)
    return socket


def serve_echo(endpoint: str) -> None:
    """Return every message. Large ones are not copied."""
    socket = bind(endpoint)
    copy = True
    while True:
        frames = socket.recv_multipart(copy=copy)
        if copy:
            copy = len(frames[-1]) < COPY_BELOW_BYTES
        socket.send_multipart(frames, copy=copy)


def session_of(path: str) -> Any:
    """The model on one thread, as EdgeServe runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def reply(socket: Any, client: bytes, key: Any, output: np.ndarray) -> None:
    """An answer in the form that EdgeServe sends, with the fields that a hand-written server would fill."""
    header = b"\x01" + msgpack.packb(
        {"kind": "answer", "id": key, "outcome": "completed", "tensors": [["y", output.dtype.name, list(output.shape)]]}
    )
    socket.send_multipart([client, header, output.tobytes()])


def refuse(socket: Any, client: bytes, key: Any) -> None:
    """A request that cannot finish in time."""
    socket.send_multipart([client, b"\x01" + msgpack.packb({"kind": "error", "id": key, "code": "dropped"})])


def serve_single(endpoint: str, path: str) -> None:
    """One request at a time, no batching, no shedding."""
    socket, session = bind(endpoint), session_of(path)
    while True:
        client, header, tensor = socket.recv_multipart()
        fields = msgpack.unpackb(header[1:])
        (output,) = session.run(None, {"x": np.frombuffer(tensor, np.float32)[None]})
        reply(socket, client, fields["id"], output[0])


def serve_thread(endpoint: str, path: str) -> None:
    """One thread: drain, shed, batch up to 16, run, reply."""
    socket, session = bind(endpoint), session_of(path)
    took: Dict[int, Deque[float]] = {}
    width = session.get_inputs()[0].shape[1]
    for size in range(1, BATCH_MAX + 1):
        took[size] = deque(maxlen=10)
        for _ in range(3):
            started = time.monotonic()
            session.run(None, {"x": np.zeros((size, width), np.float32)})
            took[size].append(time.monotonic() - started)
    waiting: List[Tuple[float, bytes, Any, np.ndarray]] = []
    while True:
        drain(socket, waiting)
        batch = waiting[:BATCH_MAX]
        if not batch:
            continue
        ends = time.monotonic() + statistics.median(took[len(batch)])
        late = [row for row in batch if row[0] < ends]
        if late:
            for row in late:
                waiting.remove(row)
                refuse(socket, row[1], row[2])
            continue  # a smaller batch, or one that others have joined, ends at another time
        del waiting[: len(batch)]
        started = time.monotonic()
        (outputs,) = session.run(None, {"x": np.stack([row[3] for row in batch])})
        took[len(batch)].append(time.monotonic() - started)
        for row, output in zip(batch, outputs):
            reply(socket, row[1], row[2], output)


def drain(socket: Any, waiting: List[Any]) -> None:
    """Everything that has arrived; waits for the first when nothing waits."""
    flags = 0 if not waiting else zmq.NOBLOCK
    while True:
        try:
            client, header, tensor = socket.recv_multipart(flags)
        except zmq.Again:
            return
        fields = msgpack.unpackb(header[1:])
        deadline = (fields["sent_ns"] / 1e9 + fields["slo_ms"] / 1e3) if "slo_ms" in fields else float("inf")
        waiting.append(Row((deadline, client, fields["id"], np.frombuffer(tensor, np.float32))))
        flags = zmq.NOBLOCK


class Row(tuple):  # type: ignore[type-arg]
    """A waiting request; compared by identity, since arrays do not compare to one truth."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    kind, *rest = sys.argv[1:]
    {"echo": serve_echo, "single": serve_single, "thread": serve_thread}[kind](*rest)
