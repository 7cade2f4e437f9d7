"""A server whose loop is stuck ends on the second signal, and leaves no socket behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

STUCK = r"""
import os
import sys
import edgeserve.server as server
from edgeserve.config.loading import parse_config
from edgeserve.runtime import Runtime

server.STOP_GRACE_S = 0.5
ready = server.log.info

def stuck(text, *rest):
    if text.startswith("ready"):
        os.write(1, b"ready\n")  # in one piece: another thread says the other word
server.log.info = stuck
start = Runtime.start

def start_and_stick(self, *given):
    start(self, *given)
    def stick(core):
        os.write(1, b"stuck\n")
        while True:
            pass
    self._ready.set()
    self.on_loop(stick)
Runtime.start = start_and_stick
config = parse_config({"server": {"endpoint": sys.argv[1]}, "model": {"m": {"engine": "synthetic", "expected": {
    "1": "1ms"}}}, "app": {"a": {"model": "m"}}})
sys.exit(server.serve(config))
"""


def test_a_stuck_loop_ends_on_the_second_signal(tmp_path: Any) -> None:
    path = tmp_path / "bus"
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, f"ipc://{path}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert {child.stdout.readline(), child.stdout.readline()} == {b"ready\n", b"stuck\n"}
        assert path.exists()
        for patience_s in (0.3, 10, 10):  # the system merges a signal with one that was not handled yet
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                pass
        _, errors = child.communicate(timeout=30)
        assert child.returncode == 70, errors
        assert b"stick" in errors  # it says where
        assert not os.path.exists(path)
    finally:
        child.kill()
