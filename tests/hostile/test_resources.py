"""The system gives the server no more memory or threads: what needs them is refused, and the rest goes on."""

from __future__ import annotations

import threading
from typing import Any, Iterator

import numpy as np
import pytest
from bus_server import BusServer

from edgeserve.client import Client
from edgeserve.config.loading import parse_config
from edgeserve.errors import Failed
from edgeserve.ipc import client_registry, memory, segments, wire
from edgeserve.live.lane_works import LaneWorks
from edgeserve.runtime import Runtime

MIB = 1024**2
X = {"x": np.arange(6, dtype=np.float32)}
LARGE = {"x": np.ones(MIB, np.uint8)}


@pytest.fixture
def server(tmp_path: Any) -> Iterator[BusServer]:
    with BusServer(f"ipc://{tmp_path}/bus", shared_memory_bytes=4 * MIB) as running:
        yield running


def no_more_threads(thread: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.skipif(not segments.is_supported(), reason="this system has no sealed memory without a name")
def test_shared_memory_that_cannot_be_mapped_is_refused(server: BusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(segment: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(segments.SharedSegment, "open", fail)
    with Client(server.endpoint) as client:
        assert client.buffer((MIB,), np.uint8) is not None
        assert client.infer("echo", LARGE)["x"].sum() == MIB, "in frames"
    assert server.thread.is_alive()


@pytest.mark.parametrize("where", ["decode_infer", "encode_answer"])
def test_a_message_without_memory_for_it_is_refused_alone(
    server: BusServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    usual = getattr(wire, where)

    def fail(*arguments: Any) -> Any:
        raise MemoryError

    with Client(server.endpoint) as client:
        pending = client.submit("sleep", X)
        client.infer("echo", X)
        monkeypatch.setattr(wire, where, fail)
        for _ in range(5):
            with pytest.raises(Failed, match="MemoryError"):
                client.infer("echo", {**X, "text": "no form"})
        monkeypatch.setattr(wire, where, usual)
        assert client.infer("echo", X)["x"].sum() == 15
        assert not pending.done()
    assert [record.levelname for record in caplog.records].count("ERROR") == 3, "at 1, 2 and 4"


def test_a_connection_that_cannot_be_met_ends_nothing_else(server: BusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(server.endpoint) as client:
        client.infer("echo", X)
        with monkeypatch.context() as patch, Client(server.endpoint, timeout_ms=100) as other:
            patch.setattr(client_registry.ClientRegistry, "meet", lambda *arguments: 1 // 0)
            with pytest.raises(Exception, match="."):
                other.infer("echo", LARGE)
        assert client.infer("echo", X)["x"].sum() == 15


def test_unused_memory_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [10**8]
    monkeypatch.setattr(memory, "resident_bytes", lambda: held[0])
    give_back = memory.GiveBack(0)
    held[0] += 2 * memory.SLACK_BYTES
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    assert not give_back.look(memory.FIRST_NS)


def test_a_server_without_more_threads_goes_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "server": {"endpoint": f"ipc://{tmp_path}/bus"},
        "model": {"m": {"engine": "synthetic", "batch": [1], "expected": {"1": "1ms"}}},
        "app": {"mine": {"model": "m", "slo": "20s", "predict": {"length": "live_functions:total_of_x"}}},
    }
    with Runtime(parse_config(config), serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        assert client.health()["ready"]
        monkeypatch.setattr(threading.Thread, "start", no_more_threads)
        client.infer("mine", X)
        with pytest.raises(Failed, match="new thread"):
            client.reload()
        assert client.health()["ready"]


def test_a_lane_that_hangs_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lane:
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    config = parse_config({"model": {"m": {"engine": "synthetic", "batch": [1], "expected": {"1": "1ms"}}}})
    works = LaneWorks(config, {name: Lane() for name in (*config.lanes, "copy:cpu")}, lambda name: Lane())  # type: ignore
    assert works.replace(next(iter(config.lanes))) == []
