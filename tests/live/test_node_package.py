"""The published Node.js package (``clients/node``) against the bus, and its declarations against the compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from bus_server import BusServer

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "clients", "node")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(not os.path.isdir(os.path.join(PACKAGE, "node_modules")),
                       reason="clients/node/node_modules is missing: run 'make clients'")]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_package_asks_and_every_request_ends_once(tmp_path, transport):
    endpoint = f"ipc://{tmp_path}/bus" if transport == "ipc" else "tcp://127.0.0.1:*"
    with BusServer(endpoint) as server:
        done = subprocess.run([NODE, os.path.join(PACKAGE, "test.js"), server.endpoint], capture_output=True,
                              timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    assert said == {
        "ready": True, "kinds": True, "longs": True, "large": True, "many": True,
        "answer": {"late": False, "shape": [2, 2], "dtype": "float32", "data": [1, 2.5, -3, 4], "text": "grüß dich",
                   "total": True},
        "unknownApp": "unknown_app", "unknownOption": "bad_input", "wrongShape": "bad_input", "noTensor": "bad_input",
        "expired": "deadline_expired", "cancelled": "cancelled", "timedOut": "timed_out", "closed": "client_closed",
        "afterwards": "client_closed", "nobody": "timed_out"}


@pytest.mark.skipif(not os.path.exists(os.path.join(PACKAGE, "node_modules", ".bin", "tsc")),
                    reason="the TypeScript compiler is not installed: run 'make clients'")
def test_the_declarations_compile():
    done = subprocess.run([NODE, os.path.join(PACKAGE, "node_modules", ".bin", "tsc"), "--noEmit", "--strict",
                           "--target", "es2020", "--module", "commonjs", "--esModuleInterop", "--types", "node",
                           "types.test.ts"], cwd=PACKAGE, capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout.decode()
