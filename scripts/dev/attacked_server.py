"""The server of ``isolation.py`` and ``hostile_fronts.py``, with every front that its machine can serve."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, Mapping

import psutil
from lib.mqtt import MISSING, broker_command
from lib.server_process import READY_S, ServerProcess

from dev.front_attackers import FUNCTIONS, TOKENS
from dev.home_attackers import ASKERS

APPS = """
[policy.edf]
[policy.plan]
[app.mine]
model = "m"
policy = "edf"
slo = "500ms"
[app.other]
model = "m"
policy = "edf"
slo = "500ms"
[app.chain]
policy = "plan"
slo = "500ms"
[[app.chain.node]]
name = "first"
model = "m"
[[app.chain.node]]
name = "second"
model = "m"
[app.shaped]
model = "m"
policy = "edf"
slo = "500ms"
inputs = {{ image_sizes = {{ dtype = "float32", shape = [-1] }} }}
[app.stream]
model = "m"
policy = "edf"
slo = "500ms"
stream = "newest_wins"
"""


def config_of(batches: Mapping[int, str], server: str = "") -> str:
    """The configuration of a server with the apps that the attackers on the bus ask, and a model whose ``batches`` take
    so long. ``server``: further lines of its table."""
    expected = ", ".join([f'{size} = "{time}"' for size, time in batches.items()])
    head = f"""
[server]
endpoint = "ipc://{{folder}}/bus/socket"
{server}
[lane.cpu0]
[model.m]
engine = "synthetic"
batch = {list(batches)}
expected = {{{{ {expected} }}}}
"""
    return head + APPS


SERVER = """memory = "256MiB"
pending_max = 256
critical_for = ["uid:4294967294"]
"""

PLACES = """
[app.x]
model = "m"
policy = "edf"
slo = "500ms"
inputs = {{ x = {{ dtype = "float32", shape = [-1] }} }}
[app.see]
model = "m"
policy = "edf"
slo = "500ms"
inputs = {{ image = {{ dtype = "uint8", shape = [-1, -1, 3] }} }}
[lane.cpu1]
[model.echo]
engine = "python"
function = "functions:echo"
options = {{ example = "functions:example" }}
lanes = ["cpu1"]
[app.echo]
model = "echo"
policy = "edf"
slo = "10s"
inputs = {{ x = {{ dtype = "float32", shape = [-1] }} }}
[front.http]
listen = "HTTP"
grpc = "GRPC"
token_file = "tokens"
[model.say]
engine = "python"
function = "functions:say"
lanes = ["cpu1"]
[app.say]
model = "say"
policy = "edf"
slo = "10s"
outputs = ["text"]
inputs = {{ text = {{ dtype = "text" }} }}
[front.wyoming]
apps = {{ intent = "say" }}
listen = "WYOMING"
[model.frames]
engine = "python"
function = "functions:see"
lanes = ["cpu1"]
[app.frames]
model = "frames"
policy = "edf"
slo = "10s"
inputs = {{ image = {{ dtype = "uint8", shape = [8, 8, 3] }} }}
[front.frigate]
app = "frames"
timeout_ms = 2000.0
listen = "FRIGATE"
"""
"""The server's settings where its fronts are attacked."""

MQTT = """
[front.mqtt]
port = {port}
name = "house"
ask = ["say"]
askers = {askers}
cameras = {{{{ door = "cameras/door" }}}}
detect = "frames"
"""

CAMERA = """
[front.camera]
source = "test:48x64"
app = "frames"
rate = 10.0
page = "CAMERA"
"""

ANOTHER_USER = 65534
"""The user, and the group that the directory of the bus is open to, of attackers that are another user."""


class Server:
    """The server under attack, with the places where it is asked: ``places`` by the names of :data:`FRONTS`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        http, grpc, wyoming, frigate = (free_place() for _ in range(4))
        self.places = {"bus": f"ipc://{folder}/bus/socket", "http": http, "grpc": grpc}
        self.places.update(wyoming=wyoming, frigate=f"tcp://{frigate}")
        self.has_fast_broker = False
        extra = self._home()
        tokens = "".join([f"{name} {token}\n" for name, token in TOKENS.items()])
        config = config_of({1: "10ms"}, SERVER) + PLACES + extra
        for name, place in self.places.items():
            config = config.replace(name.upper(), place)
        files = {"tokens": tokens, "functions.py": FUNCTIONS}
        self.process = ServerProcess(folder, config, files, log=folder / "log")
        self.process.wait_ready(self.places["bus"])
        due_s = time.monotonic() + READY_S
        for name, place in self.places.items():
            while name != "bus" and not self._is_there(name, place) and time.monotonic() < due_s:
                time.sleep(0.1)

    def _is_there(self, name: str, place: str) -> bool:
        """True if a front accepts clients; that for MQTT connects itself."""
        if name == "mqtt":
            return "as edgeserve/house" in (self.folder / "log").read_text(encoding="utf-8")
        return listens(place.rpartition("/")[2])

    def _home(self) -> str:
        """The tables of the fronts that need more than their package: a broker, Pillow."""
        tables, place = "", free_place()
        command = broker_command(int(place.rpartition(":")[2]), str(self.folder))
        if importlib.util.find_spec("aiomqtt") is None or not command:
            print(f"without the front for MQTT: {MISSING}")
        else:
            broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            atexit.register(broker.kill)
            self.places["mqtt"], self.has_fast_broker = place, command[0] != sys.executable
            tables += MQTT.format(port=place.rpartition(":")[2], askers=json.dumps(ASKERS))
        if importlib.util.find_spec("PIL") is not None:
            self.places["camera"] = free_place()
            tables += CAMERA
        return tables

    def memory_mib(self) -> Dict[str, float]:
        """The memory and files of the server and its fronts."""
        server = psutil.Process(self.process.pid)
        found = {"server": server.memory_info().rss / 2**20}
        for child in server.children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if "edgeserve.front.runner" in words:
                    name = words[words.index("edgeserve.front.runner") + 1]
                    found[f"front {name}"] = child.memory_info().rss / 2**20
        return found


def free_place() -> str:
    """HOST:PORT at which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def listens(place: str) -> bool:
    """True if HOST:PORT accepts a connection."""
    host, port = place.split(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


@contextlib.contextmanager
def bus_folder() -> Iterator[Path]:
    """A folder whose ``bus`` is open to the group of another user too."""
    with tempfile.TemporaryDirectory(prefix="es-") as path:
        folder = Path(path)
        folder.chmod(0o711)
        (folder / "bus").mkdir()
        if os.getuid() == 0:
            os.chown(folder / "bus", 0, ANOTHER_USER)
        (folder / "bus").chmod(0o2750)
        yield folder
