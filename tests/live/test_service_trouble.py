"""A server under a service manager that is not there: builds that take longer than its patience, and a disk that fills
up. A lost device: ``test_server.py``."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import onnx_models
import pytest
import trt_worlds

from edgeserve.config.loading import load_config
from edgeserve.engines.tensorrt import plan_source
from edgeserve.engines.tensorrt.building import BuildProgress
from edgeserve.errors import EngineError
from edgeserve.live import startup
from edgeserve.live.service_manager import ServiceManager
from edgeserve.runtime import Runtime

EDGE = """
[device.gpu]
kind = "cuda"
[lane.gpu0]
device = "gpu"
[model.net]
engine = "tensorrt"
file = "linear.onnx"
options = { plans = "plans", allow_build = true }
[app.net]
model = "net"
slo = "10s"
"""
TIMEOUT_START_S = 900.0  # of the unit: jetson/edgeserve.service


class Killed(Exception):
    """The service manager ended the process."""


class FakeManager:
    """systemd's side of a start, on a clock that the test moves: READY=1 must come before the time is up, and
    EXTEND_TIMEOUT_USEC gives so much more from when it is said."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.ends_s = TIMEOUT_START_S
        self.status: List[str] = []
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(20)

    def move(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s > self.ends_s:
            raise Killed(f"no READY=1 within {self.ends_s:.0f} s")

    def hear_until(self, words: str) -> None:
        """Take what was said up to a status with these words."""
        while not self.status or words not in self.status[-1]:
            said: Dict[str, str] = dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))
            self.status.append(said["STATUS"])
            if "EXTEND_TIMEOUT_USEC" in said:
                self.ends_s = max(self.ends_s, self.now_s + int(said["EXTEND_TIMEOUT_USEC"]) / 1e6)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(folder: Path) -> Iterator[FakeManager]:
    made = FakeManager(folder)
    yield made
    made.close()


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    onnx_models.linear(str(tmp_path))
    (tmp_path / "edge.toml").write_text(EDGE)
    monkeypatch.setattr(startup, "LOOK_NS", 5_000_000)
    with trt_worlds.world(monkeypatch, "8.6"):
        yield str(tmp_path / "edge.toml")


def start(path: str, manager: FakeManager) -> Runtime:
    told = ServiceManager(manager.address)
    try:
        return Runtime(load_config(path)).start(told.loading)
    finally:
        told.close()


def answers(runtime: Runtime) -> bool:
    with runtime:
        return bool(runtime.infer("net", {"x": np.ones(4, np.float32)})["y"].shape == (3,))


@pytest.mark.parametrize("says", [True, False], ids=["and it says how far it is", "in silence"])
def test_a_first_start_of_forty_minutes_is_waited_for_as_long_as_the_build_tells_of_itself(
    edge: str, manager: FakeManager, monkeypatch: pytest.MonkeyPatch, says: bool
) -> None:
    killed = threading.Event()

    def forty_minutes(*asked: Any) -> Any:
        *rest, tell, index = asked
        for half_minutes in range(1, 81):
            try:
                manager.move(30.0)
            except Killed as end:
                killed.set()
                raise EngineError(str(end)) from end
            if says:
                tell(BuildProgress("build", half_minutes / 80, 30.0 * half_minutes))
                manager.hear_until(f"building for {30 * half_minutes} s")
        return trt_worlds.build_here(*rest, tell, index)

    monkeypatch.setattr(plan_source, "build_plan", forty_minutes)
    if not says:
        with pytest.raises(EngineError, match="no READY=1 within 900 s"):
            start(edge, manager)
        assert killed.is_set()
        return
    assert answers(start(edge, manager))
    assert manager.now_s == 2400.0 and not killed.is_set()
    assert sum("building for" in status for status in manager.status) == 80


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that has no room, as Linux has it")
def test_a_disk_that_fills_up_while_a_plan_is_written_ends_the_start_and_the_next_one_needs_no_help(
    edge: str, manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]

    def build(library: str, request: Any, where: str, plan: str, *rest: Any) -> Any:
        if full:
            os.symlink("/dev/full", plan)
        return trt_worlds.build_here(library, request, where, plan, *rest)

    monkeypatch.setattr(plan_source, "build_plan", build)
    with pytest.raises(EngineError, match="model 'net': the plan .* cannot be written .*: No space left on device"):
        start(edge, manager)
    left = sorted(name.rpartition(".")[2] for name in os.listdir(Path(edge).parent / "plans"))
    assert left == ["cache", "lock"], "no half of a plan"
    full.clear()
    assert answers(start(edge, manager))
