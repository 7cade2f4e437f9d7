"""A client in another language, written from docs/reference/protocol.md alone, talks to the bus."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from bus_server import BusServer

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node is not installed: the client in tests/live/node cannot run")
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_node_client_reads_and_is_read(tmp_path, transport):
    endpoint = f"ipc://{tmp_path}/bus" if transport == "ipc" else "tcp://127.0.0.1:*"
    with BusServer(endpoint) as server:
        done = subprocess.run(
            [NODE, os.path.join(os.path.dirname(__file__), "node", "ask.js"), server.endpoint],
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    assert said["health"] == {"kind": "health", "ready": True}
    assert said["answer"] == {
        "outcome": "completed",
        "late": False,
        "breakdown": 4,
        "shape": [2, 2],
        "dtype": "float32",
        "data": [1, 2.5, -3, 4],
        "text": "grüß dich",
    }
    assert said["large"] is True
    assert said["many"] is True
    assert (said["unknown"], said["expired"], said["cancelled"]) == ("unknown_app", "deadline_expired", "cancelled")
    assert "did you mean 'slo_ms'" in said["malformed"]
