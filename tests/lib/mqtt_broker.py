"""A real MQTT broker for tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from typing import Iterator

import pytest
from lib.mqtt import MISSING, broker_command


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextlib.contextmanager
def broker(port: int = 0) -> Iterator[int]:
    """A broker that lets everybody in, and its port."""
    port = port or free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = broker_command(port, folder)
        if not command:
            pytest.skip(MISSING)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            end_s = time.monotonic() + 30
            while True:
                assert process.poll() is None and time.monotonic() < end_s, process.communicate()[1]
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.kill()
            process.communicate()
