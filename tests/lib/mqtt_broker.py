"""A real MQTT broker for tests: mosquitto where it is installed, else amqtt."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import Iterator, List

import pytest

AMQTT = """
import asyncio, sys
from amqtt.broker import Broker
class Steady(dict):  # amqtt awaits while it goes through its topics, and forgets the client if one comes or goes
    def __iter__(self):
        return iter(list(self.keys()))
async def main():
    config = {"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:" + sys.argv[1]}}, "plugins": {
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}}
    broker = Broker(config)
    broker._subscriptions = Steady()
    await broker.start()
    await asyncio.Event().wait()
asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _command(port: int, folder: str) -> List[str]:
    mosquitto = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if mosquitto:
        path = os.path.join(folder, "mosquitto.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
        return [mosquitto, "-c", path]
    if importlib.util.find_spec("amqtt") is None:
        pytest.skip("no broker: apt install mosquitto, or pip install amqtt (Python 3.10 and later)")
    return [sys.executable, "-c", AMQTT, str(port)]


@contextlib.contextmanager
def broker(port: int = 0) -> Iterator[int]:
    """A broker that lets everybody in, and its port."""
    port = port or free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(_command(port, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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
