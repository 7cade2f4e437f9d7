"""The server behind its bus: the same runtime, asked by clients; signals; clients that vanish."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import live_functions
import numpy as np
import pytest
import zmq
from serving import function, wait_until

from edgeserve.client import AsyncClient, Client
from edgeserve.config.loading import load_config, parse_config
from edgeserve.errors import (
    Cancelled,
    ConfigError,
    Dropped,
    Failed,
    Rejected,
    TooLarge,
)
from edgeserve.ipc import wire
from edgeserve.ipc.link import Link
from edgeserve.runtime import Runtime
from edgeserve.server import serve

HERE = Path(live_functions.__file__).parent

ZERO = np.zeros(4, np.float32)
HOLD = np.array([1, 0, 0, 0], np.float32)

SLOW = """
import time
import numpy as np

def example():
    return {"x": np.zeros(1)}

def nap(item):
    time.sleep(float(item["x"][0]))
    return {"x": item["x"]}
"""

EDGE = """
[server]
endpoint = "ipc://{folder}/bus/socket"
drain = "20s"
[model.nap]
engine = "python"
function = "slow:nap"
options = {{ example = "slow:example" }}
[app.nap]
model = "nap"
slo = "100s"
"""


@pytest.fixture
def served(folder: Path) -> Iterator[Runtime]:
    """A server in this process, whose lanes the test can hold."""
    live_functions.close_gate()
    models = {name: function(name) for name in ("request", "double")}
    apps = {name: {"model": name, "slo": "20s", "inputs": {"x": {"dtype": "float32", "shape": [4]}}} for name in models}
    config = parse_config(
        {"server": {"endpoint": f"ipc://{folder}/bus/socket"}, "model": models, "app": apps}, directory=str(HERE)
    )
    with Runtime(config, serve=True) as runtime:
        yield runtime
        live_functions.gate.set()
    assert not (folder / "bus" / "socket").exists()


def outcomes(runtime: Runtime, app: str) -> Dict[str, int]:
    table: Dict[str, int] = runtime.stats()["apps"][app]["outcomes"]
    return table


# --- asked over the bus -----------------------------------------------------------------------------------------------


def test_what_the_bus_itself_refuses_has_a_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "check_size", lambda link, frames: 0)  # this client does not look itself
    tables = {
        "server": {"endpoint": f"ipc://{tmp_path}/bus/socket", "memory": "16MiB"},
        "model": {"double": {"engine": "python", "function": "live_functions:double"}},
        "app": {"double": {"model": "double", "slo": "1s"}},
    }
    with Runtime(parse_config(tables, directory=str(HERE)), serve=True) as runtime:
        with Client(runtime.endpoints[0]) as bus:
            with pytest.raises(TooLarge) as caught:
                bus.infer("double", {"x": np.zeros(3 << 17)})
            number = caught.value.id
            assert bus.story(number) == [
                f"request {number}: ended before it was scheduled: too_large",
                f"  {caught.value}",
            ]
            assert bus.infer("double", {"x": ZERO}).id > number


def test_questions_about_the_server(served: Runtime) -> None:
    with Client(served.endpoints[0]) as bus:
        bus.infer("double", {"x": ZERO})
        assert bus.apps()["double"]["inputs"]["x"] == {"dtype": "float32", "shape": [4], "optional": False}
        assert bus.models()["request"]["resident"] == ["cpu"]
        assert bus.stats()["apps"]["double"]["outcomes"]["completed"] == 1
        health = bus.health()
        assert health["ready"] and health["pid"] == os.getpid() and health["lanes"]["cpu0"] == "up"


def test_a_client_that_vanishes_has_its_queued_work_cancelled(served: Runtime) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(served.endpoints[0])
    socket.send_multipart(wire.encode_request(1, "request", {"x": HOLD}))
    assert live_functions.entered.wait(10)
    for key in range(2, 6):
        socket.send_multipart(wire.encode_request(key, "double", {"x": ZERO}))
    wait_until(lambda: served.stats()["apps"]["double"]["accepted"] == 4)
    with Client(served.endpoints[0]) as other:
        waits = other.submit("double", {"x": ZERO})
        wait_until(lambda: served.stats()["apps"]["double"]["accepted"] == 5)
        socket.close()
        context.term()
        wait_until(lambda: outcomes(served, "double")["cancelled"] == 4)
        assert outcomes(served, "request")["cancelled"] == 1
        live_functions.gate.set()
        assert waits.result(10)["y"].tolist() == ZERO.tolist()  # no other client's work is touched
        assert served.stats()["lanes"]["cpu0"]["jobs"] == 2
    served.check()


def test_drain_over_the_bus_ends_what_was_accepted_and_then_the_server(folder: Path) -> None:
    with Serving(folder) as server, Client(server.endpoint) as bus:
        future = bus.submit("nap", {"x": np.array([0.3])})
        wait_until(lambda: bus.stats()["apps"]["nap"]["accepted"] == 1)
        assert bus.drain()["draining"]
        with pytest.raises(Rejected):
            bus.infer("nap", {"x": np.zeros(1)})
        assert future.result(10)["x"][0] == 0.3
        assert server.process.wait(10) == 0


# --- signals ----------------------------------------------------------------------------------------------------------


class Serving:
    """``edgeserve serve`` as a process of its own."""

    def __init__(self, folder: Path, text: str = "") -> None:
        (folder / "slow.py").write_text(SLOW)
        (folder / "edge.toml").write_text(text or EDGE.format(folder=folder))
        self.endpoint = f"ipc://{folder}/bus/socket"
        self.socket = folder / "bus" / "socket"
        self.log: List[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgeserve.cli", "serve", str(folder / "edge.toml")],
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Serving:
        assert self.process.stderr is not None
        while not self.log or "ready on" not in self.log[-1]:
            line = self.process.stderr.readline()
            assert line, "".join(self.log)
            self.log.append(line)
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


LOSES_GPU = """
[device.cpu]
[device.gpu]
kind = "cuda"
[lane.cpu0]
[lane.gpu0]
device = "gpu"
[model.detect]
engine = "live_engines:Device"
lanes = ["gpu0"]
options = { lost = "gpu0" }
[app.detect]
model = "detect"
slo = "100s"
"""


@pytest.mark.parametrize("manager", [True, False], ids=["under a service manager", "by hand"])
def test_a_lost_device_ends_the_server_where_another_one_will_be_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, manager: bool
) -> None:
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(folder / "notify"))
    if manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    shutil.copy(HERE / "live_engines.py", folder)
    text = EDGE.replace("[model.nap]", '[model.nap]\nlanes = ["cpu0"]')
    with Serving(folder, text.format(folder=folder) + LOSES_GPU) as server, Client(server.endpoint) as bus:
        nap = bus.submit("nap", {"x": np.array([0.5])})
        wait_until(lambda: bus.stats()["lanes"]["cpu0"]["in_flight"] == 1)
        asked = [bus.submit("detect", {"x": HOLD}, slo_ms=100_000 if manager else 1_000) for _ in range(3)]
        errors = [future.exception(10) for future in asked]
        assert any("fell off the bus" in str(error) for error in errors)
        assert all(isinstance(error, (Failed, Rejected, Dropped)) for error in errors), "what waits is answered"
        assert nap.result(10)["x"][0] == 0.5, "the other lanes end what they have"
        if manager:
            assert server.process.wait(20) == 75
            assert server.process.stderr is not None
            said = server.process.stderr.read()
            assert "device gpu is lost for this process" in said and "stopping with status 75" in said
        else:
            assert bus.infer("nap", {"x": np.array([0.0])})["x"][0] == 0.0
            assert server.process.poll() is None and not bus.health()["ready"]
    notify.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_leaves_nothing_behind(folder: Path, number: int) -> None:
    with Serving(folder) as server, Client(server.endpoint) as bus:
        assert (server.socket.parent.stat().st_mode & 0o777) == 0o700
        futures = [bus.submit("nap", {"x": np.array([0.2])}) for _ in range(2)]
        wait_until(lambda: bus.stats()["apps"]["nap"]["accepted"] == 2)
        server.process.send_signal(number)
        assert [future.result(10)["x"][0] for future in futures] == [0.2, 0.2]
        assert server.process.wait(10) == 0
    assert not server.socket.exists()


def test_a_second_signal_stops_at_once(folder: Path) -> None:
    with Serving(folder) as server, Client(server.endpoint) as bus:
        future = bus.submit("nap", {"x": np.array([60.0])})
        wait_until(lambda: bus.stats()["lanes"]["cpu0"]["in_flight"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not bus.health()["ready"])
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(Cancelled, match="shutting down"):
            future.result(10)
        assert server.process.wait(10) == 0
        assert server.process.stderr is not None
        first, second = [line for line in server.process.stderr if "signal" in line]
        assert "what was accepted may end within" in first and "a second signal cancels it" in first
        assert "what was accepted is cancelled; a third signal ends the process" in second
    assert not server.socket.exists()


FAULTY = """
import sys
from edgeserve import cli
from edgeserve.live.world import LiveWorld

def wait(self, *arguments):
    raise ZeroDivisionError("a planted fault")

LiveWorld.wait = wait
sys.exit(cli.main(["serve", sys.argv[1]]))
"""


def test_a_fault_that_ends_the_loop_is_told_once(folder: Path) -> None:
    (folder / "edge.toml").write_text(
        f'[server]\nendpoint = "ipc://{folder}/bus/socket"\n[model.m]\nengine = "synthetic"\n'
        'expected = { 1 = "1ms" }\n[app.a]\nmodel = "m"\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-c", FAULTY, str(folder / "edge.toml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert (done.stdout, done.stderr.count("Traceback"), done.stderr.count("ended because of a fault")) == ("", 1, 1)


def test_a_mistake_in_the_table_of_a_front_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('[model.m]\nengine = "synthetic"\n[app.a]\nmodel = "m"\n[front.http]\nlsten = "127.0.0.1:0"\n')
    with pytest.raises(ConfigError, match=r"edge.toml: \[front.http\] has no key 'lsten'; did you mean 'listen'"):
        serve(load_config(file))


def test_sighup_reads_the_file_again_and_a_mistake_in_it_changes_nothing(folder: Path) -> None:
    with Serving(folder) as server, Client(server.endpoint) as bus:
        file = folder / "edge.toml"
        text = file.read_text()
        file.write_text(f'{text}\n[app.again]\nmodel = "nap"\nslo = "30s"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "again" in bus.apps())
        assert bus.infer("again", {"x": np.array([0.0])})["x"][0] == 0.0
        file.write_text("[app")
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stderr is not None
        while "has not changed" not in server.log[-1]:
            server.log.append(server.process.stderr.readline())
            assert server.log[-1], "".join(server.log)
        assert "is not TOML" in server.log[-1]
        assert bus.infer("again", {"x": np.array([0.0])})["x"][0] == 0.0


# --- the service manager ----------------------------------------------------------------------------------------------


def test_systemd_hears_ready_heartbeats_and_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(folder / "notify"))
    notify.settimeout(20)
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    with Serving(folder) as server, Client(server.endpoint) as bus:
        told = notify.recv(4096)
        starting = []
        while not told.startswith(b"READY=1"):
            starting.append(told)
            told = notify.recv(4096)
        assert starting[0] == b"STATUS=loading 1 model"
        assert any(b"warmed up on lane" in each for each in starting)
        assert all(each.startswith(b"EXTEND_TIMEOUT_USEC=900000000\n") for each in starting[1:])
        assert told.startswith(b"READY=1\nSTATUS=2 of 2 lanes up; 0 open requests")
        for _ in range(3):
            assert notify.recv(4096).startswith(b"WATCHDOG=1\n")
        bus.drain()
        messages = []
        while not any(message.startswith(b"STOPPING=1") for message in messages):
            messages.append(notify.recv(4096))
        assert server.process.wait(10) == 0
    notify.close()


@pytest.mark.parametrize("way", ["Client", "AsyncClient"])
def test_connecting_costs_the_first_request_none_of_its_time(
    served: Runtime, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeserve.ipc.courier.STAND_S", 30.0)
    client = Client(served.endpoints[0]) if way == "Client" else AsyncClient(served.endpoints[0])
    courier = client._courier if isinstance(client, Client) else client._client._courier
    make_link = courier._make_link

    def slowly(context: Any) -> Any:
        time.sleep(1.0)
        return make_link(context)

    courier._make_link = slowly  # type: ignore[method-assign]

    async def ask() -> Any:
        assert isinstance(client, AsyncClient)
        async with client:
            return await client.infer("double", {"x": ZERO}, slo_ms=900)

    if isinstance(client, Client):
        with client:
            answer = client.infer("double", {"x": ZERO}, slo_ms=900)
    else:
        answer = asyncio.run(ask())
    assert answer.outcome == "completed" and answer.total_ms < 900
