"""The published Node.js package (``clients/node``) against the bus, and its declarations against the compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
import zmq
import zmq.auth
from bus_server import BusServer

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "clients", "node")
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="node is not installed"),
    pytest.mark.skipif(
        not os.path.isdir(os.path.join(PACKAGE, "node_modules")),
        reason="clients/node/node_modules is missing: run 'make clients'",
    ),
]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_package_asks_and_every_request_ends_once(tmp_path, transport):
    endpoint = f"ipc://{tmp_path}/bus" if transport == "ipc" else "tcp://127.0.0.1:*"
    with BusServer(endpoint) as server:
        done = subprocess.run(
            [NODE, os.path.join(PACKAGE, "test.js"), server.endpoint], capture_output=True, timeout=100, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    assert said == {
        "ready": True,
        "kinds": True,
        "longs": True,
        "words": True,
        "wrongWords": "bad_input",
        "large": True,
        "many": True,
        "answer": {
            "late": False,
            "shape": [2, 2],
            "dtype": "float32",
            "data": [1, 2.5, -3, 4],
            "text": "grüß dich",
            "total": True,
        },
        "unknownApp": "unknown_app",
        "unknownOption": "bad_input",
        "wrongShape": "bad_input",
        "noTensor": "bad_input",
        "expired": "deadline_expired",
        "cancelled": "cancelled",
        "timedOut": "timed_out",
        "closed": "client_closed",
        "afterwards": "client_closed",
        "nobody": "timed_out",
    }


@pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq was built without CURVE")
def test_a_server_with_a_list_of_keys_lets_in_a_client_with_its_own(tmp_path):
    (tmp_path / "allowed").mkdir()
    _, secret = zmq.auth.create_certificates(str(tmp_path), "server")
    public, own = zmq.auth.create_certificates(str(tmp_path), "hall")
    shutil.move(public, tmp_path / "allowed" / "hall.key")
    with BusServer("tcp://127.0.0.1:*", secret_key_file=secret, client_keys=str(tmp_path / "allowed")) as server:
        done = subprocess.run(
            [
                NODE,
                os.path.join(os.path.dirname(__file__), "node", "keys.js"),
                PACKAGE,
                server.endpoint,
                str(tmp_path / "server.key"),
                own,
            ],
            capture_output=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    own_keys, no_keys, *wrong = json.loads(done.stdout)
    assert own_keys is True and no_keys in ("server_gone", "timed_out") and wrong == ["bad_input"] * 3


@pytest.mark.skipif(
    not os.path.exists(os.path.join(PACKAGE, "node_modules", ".bin", "tsc")),
    reason="the TypeScript compiler is not installed: run 'make clients'",
)
@pytest.mark.nightly
def test_the_declarations_compile():
    done = subprocess.run(
        [
            NODE,
            os.path.join(PACKAGE, "node_modules", ".bin", "tsc"),
            "--noEmit",
            "--strict",
            "--target",
            "es2020",
            "--module",
            "commonjs",
            "--esModuleInterop",
            "--types",
            "node",
            "types.test.ts",
        ],
        cwd=PACKAGE,
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()


def test_no_client_connects_where_others_may_pose_as_the_server(tmp_path):
    (tmp_path / "edgeserve").mkdir()
    os.chmod(tmp_path / "edgeserve", 0o777)
    make = f"new (require({json.dumps(PACKAGE)}).Client)()"
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([NODE, "-e", make], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, "could pose as the server" in done.stderr.decode()) == (1, True)
