"""The C++ client (``clients/cpp/edgeserve.hpp``) against the bus: compiled, and asked to try everything that it can.

libzmq is that of pyzmq's wheel where the machine has none of its own; then its header is ``tests/lib/zmq_header``.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zmq
from bus_server import BusServer

from edgeserve.errors import Rejected
from edgeserve.ipc.bus import Ask
from edgeserve.ipc.segments import is_supported

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++")
OWN_LIBRARIES = sorted(glob.glob(os.path.join(os.path.dirname(zmq.__file__), "..", "pyzmq.libs", "libzmq*.so*")))
MIB = 1024**2

SAID = (
    "numbers",
    "longs",
    "bytes",
    "empty",
    "text",
    "terms",
    "words",
    "wrong words",
    "wrong type",
    "wrong shape",
    "question",
    "unknown app",
    "expired",
    "refusal",
    "timed out",
    "many",
    "cancelled",
    "pieces",
    "large",
    "shared",
)
SHARED = ("fallback", "given back", "buffers")
ENDED = ("server gone", "not sent again", "nobody")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed (g++ or clang++)"),
    pytest.mark.skipif(
        not OWN_LIBRARIES and not os.path.exists("/usr/include/zmq.h"),
        reason="no libzmq to link with: pyzmq's wheel has none of its own, and libzmq3-dev is missing",
    ),
]


class Server(BusServer):
    """With apps that answer in pieces, refuse with numbers, and end the server."""

    def _handle(self, bus, news):
        if type(news) is not Ask or news.app not in ("parts", "late", "end"):
            super()._handle(bus, news)
        elif news.app == "parts":
            for number in range(3):
                assert bus.piece(news, {"n": np.int32(number)}) == ""
            bus.answer(news, {"n": np.int32(3)})
        elif news.app == "late":
            error = Rejected("it cannot make its deadline", "cannot_make_deadline")
            error.lane, error.expected_ms, error.wait_ms, error.left_ms, error.slo_ms_min = "cpu0", 7.5, 2.0, 5.0, 9.5
            bus.refuse(news, error)
        else:
            self.stopping = True


def build(source, target):
    """Compile a program of the client's folder."""
    command = [
        COMPILER,
        "-std=c++17",
        "-O0",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        f"-I{ROOT}/clients/cpp",
        str(ROOT / "clients" / "cpp" / source),
        "-o",
        str(target),
    ]
    if OWN_LIBRARIES:
        library = os.path.realpath(OWN_LIBRARIES[0])
        command += [f"-I{ROOT}/tests/lib/zmq_header", library, f"-Wl,-rpath,{os.path.dirname(library)}"]
    else:
        command += ["-lzmq"]
    done = subprocess.run([*command, "-pthread"], capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return str(target)


def said_by(program, endpoint, mode):
    done = subprocess.run([program, endpoint, mode], capture_output=True, timeout=110, check=False)
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build("test.cpp", tmp_path_factory.mktemp("cpp") / "test")


@pytest.mark.skipif(not is_supported(), reason="this system has no sealed memory without a name")
def test_everything_over_ipc_with_shared_memory(program, tmp_path):
    with Server(f"ipc://{tmp_path}/bus", shared_memory_bytes=4 * MIB) as server:
        code, said, errors = said_by(program, server.endpoint, "share")
    assert said == [f"{what}: yes" for what in SAID + SHARED + ENDED], errors
    assert code == 0
    asks = [news for news in server.news if type(news) is Ask and news.app == "echo" and news.bytes > 500_000]
    assert sum(news.room is not None for news in asks) >= 4
    assert [(news.priority_class, news.slo_ms, news.hints) for news in server.news if type(news) is Ask][0] == (
        "background",
        5000,
        {"length": 2},
    )


def test_everything_over_tcp_in_frames(program):
    with Server("tcp://127.0.0.1:*", shared_memory_bytes=4 * MIB) as server:
        code, said, errors = said_by(program, server.endpoint, "frames")
    assert said == [f"{what}: yes" for what in SAID + ENDED], errors
    assert code == 0


@pytest.mark.nightly  # compiles a second program
def test_the_example_asks_an_app_by_what_it_declares(tmp_path):
    example = build("example.cpp", tmp_path / "example")
    with BusServer(f"ipc://{tmp_path}/bus") as server:
        server.told = {"echo": {"inputs": {"x": {"dtype": "float32", "shape": [-1, 3]}}}}
        done = subprocess.run([example, "echo", server.endpoint], capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode().splitlines()[0] == "x: float32, 3 elements"
        done = subprocess.run([example, "nothing", server.endpoint], capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.decode()) == (1, "unknown_app: the server has no app nothing\n")


def test_no_client_connects_where_others_may_pose_as_the_server(program, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "edgeserve").mkdir()
    os.chmod(tmp_path / "edgeserve", 0o777)
    code, said, errors = said_by(program, "", "frames")
    assert (code, len(said)) == (1, 1), errors
    assert "could pose as the server" in said[0]
