"""Clients of a front over gRPC that want its memory. The front is a process of its own, as it is in service."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from serving import LIB, command, function

from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime

pytest.importorskip("starlette", reason="starlette is not installed: there is no front")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: there is no front")
pytest.importorskip("google.protobuf", reason="protobuf is not installed: there is no gRPC front")
pytest.importorskip("grpc", reason="grpcio is not installed: there is no gRPC front")

import grpc

from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

MIB = 1024**2
TOKEN = "a-token-of-these-tests"
MESSAGE_MIB = 16
"""A message has at most, by default."""


@pytest.fixture(scope="module")
def front(module_folder):
    """HOST:PORT of gRPC, and the process."""
    folder = module_folder
    config = parse_config(
        {
            "server": {"endpoint": f"ipc://{folder}/bus/s"},
            "model": {"echo": function("echo")},
            "app": {"echo": {"model": "echo", "slo": "20s", "inputs": {"x": {"dtype": "float32", "shape": [-1]}}}},
        },
        directory=LIB,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "token").write_text(TOKEN)
    (folder / "edge.toml").write_text(f'[front.http]\nlisten = "127.0.0.1:0"\ngrpc = "{place}"\ntoken_file = "token"\n')
    with Runtime(config, serve=True) as runtime:
        process = subprocess.Popen(
            command(f"front http {folder}/edge.toml --endpoint {runtime.endpoints[0]}"),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            with grpc.insecure_channel(place) as channel:
                grpc.channel_ready_future(channel).result(60)
                infer(channel, request_of(100), TOKEN)
            yield place, psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


class Watched:
    """The front's memory: ``mib`` is its largest growth among the readings."""

    def __init__(self, process):
        self._process = process
        self._before = process.memory_info().rss
        self.mib = 0.0

    def look(self):
        self.mib = max(self.mib, (self._process.memory_info().rss - self._before) / MIB)


def request_of(size):
    message = KINDS["ModelInferRequest"](model_name="echo")
    message.inputs.add(name="x", datatype="FP32", shape=[size // 4])
    message.raw_input_contents.append(np.zeros(size // 4, np.float32).tobytes())
    return message.SerializeToString()


def infer(channel, data, token):
    return channel.unary_unary(f"/{SERVICE}/ModelInfer")(
        data, metadata=[("authorization", f"Bearer {token}")], timeout=30
    )


def test_large_messages_with_a_wrong_token_take_no_memory(front):
    place, process = front
    grown = Watched(process)
    data = request_of(MESSAGE_MIB * MIB - 1000)
    with grpc.insecure_channel(place) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        calls = [
            call.future(data, metadata=[("authorization", "Bearer another-token-than-it")], timeout=30)
            for _ in range(20)
        ]
        while not all(call.done() for call in calls):
            grown.look()
            time.sleep(0.005)
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
    assert grown.mib < 100  # 20 messages have 320 MiB
