"""Load for ``research/bench/http_front.py``: one thread, some kept connections, one request made beforehand.

A closed loop: each connection sends its next request when it has its answer, which is read just far enough to know its
status and where it ends.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any, Dict, List

import numpy as np

END = b"\r\n\r\n"
LENGTH = b"content-length: "


def infer_request(place: str, app: str, x: np.ndarray, binary: bool) -> bytes:
    """A whole request of the Open Inference Protocol with one input ``x``."""
    tensor: Dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    raw = x.astype("<f4").tobytes() if binary else b""
    if binary:
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = x.ravel().tolist()
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary}}).encode()
    head = f"POST /v2/models/{app}/infer HTTP/1.1\r\nHost: {place}\r\nContent-Length: {len(body) + len(raw)}\r\n"
    if binary:
        head += f"Inference-Header-Content-Length: {len(body)}\r\nContent-Type: application/octet-stream\r\n"
    return head.encode() + b"\r\n" + body + raw


def connect(place: str) -> socket.socket:
    """A connection without Nagle's delay."""
    host, port = place.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def is_whole(answer: bytes) -> bool:
    """Whether an answer is there to its end. Any status but 200 ends the program."""
    end = answer.find(END)
    if end < 0:
        return False
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the front answered: {answer[:400]!r}")
    at = answer.index(LENGTH) + len(LENGTH)
    return len(answer) >= end + len(END) + int(answer[at : answer.index(b"\r", at)])


def closed_loop(place: str, request: bytes, depth: int, seconds: float) -> List[float]:
    """Keep one request in flight on each of ``depth`` connections; the seconds that each took."""
    poll = select.epoll()
    connections = {}
    for _ in range(depth):
        connection = connect(place)
        connections[connection.fileno()] = connection
        poll.register(connection.fileno(), select.EPOLLIN)
    got = dict.fromkeys(connections, b"")
    sent = {}
    took: List[float] = []
    try:
        for file, connection in connections.items():
            sent[file] = time.perf_counter()
            connection.sendall(request)
        ends = time.perf_counter() + seconds
        while True:
            ready = poll.poll(30)
            if not ready:
                raise SystemExit(f"{place} no longer answers")
            for file, _ in ready:
                got[file] += connections[file].recv(1 << 20)
                if not is_whole(got[file]):
                    continue
                now = time.perf_counter()
                took.append(now - sent[file])
                got[file], sent[file] = b"", now
                connections[file].sendall(request)
            if time.perf_counter() >= ends:
                return took
    finally:
        poll.close()
        for connection in connections.values():
            connection.close()
