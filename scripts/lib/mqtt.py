"""A real MQTT broker in a process of its own: mosquitto where it is installed, else amqtt."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import List

MISSING = "no broker: apt install mosquitto, or pip install amqtt (Python 3.10 and later)"

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


def broker_command(port: int, folder: str) -> List[str]:
    """The command of a broker that lets every client in; nothing where there is none. Its files lie in ``folder``."""
    mosquitto = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if mosquitto:
        path = Path(folder, "mosquitto.conf")
        path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n", encoding="utf-8")
        return [mosquitto, "-c", str(path)]
    return [sys.executable, "-c", AMQTT, str(port)] if importlib.util.find_spec("amqtt") else []
