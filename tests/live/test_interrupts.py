"""Ctrl-C and other early ends of a start, a reload and a stop: what is served afterwards is what is said."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext

import pytest
from live_engines import Echo

from edgeserve import App, Model, Runtime
from edgeserve.app import configuration
from edgeserve.client import Client
from edgeserve.errors import BadInput, EdgeServeError, EngineError, RequestError

WAIT_S = 20


class _Gated(Echo):
    """Loads once ``gate`` is open."""

    def __init__(self, gate, begun):
        self._gate, self._begun = gate, begun

    def load(self):
        self._begun.set()
        assert self._gate.wait(WAIT_S)
        return super().load()


class _Interrupt(threading.Thread):
    """Sends Ctrl-C once ``begun`` is set."""

    def __init__(self, begun):
        super().__init__()
        self._begun = begun

    def run(self):
        assert self._begun.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_start_that_is_interrupted_serves_nothing():
    gate, begun = threading.Event(), threading.Event()
    runtime = Runtime(models={"m": Model(_Gated(gate, begun))}, apps={"a": App("m")})
    _Interrupt(begun).start()
    with pytest.raises(KeyboardInterrupt):
        with runtime:
            pytest.fail("it was interrupted")
    gate.set()
    assert runtime.wait(WAIT_S)
    with pytest.raises(RequestError, match="called off"):
        runtime.infer("a", {"x": 1})


def _tell_when_held(core, held):
    hold = core.hold

    def noted(*given):
        hold(*given)
        held.set()

    core.hold = noted


@pytest.fixture
def held():
    """A runtime with a request that runs until the event is set, and a configuration with another app."""
    go, running = threading.Event(), threading.Event()

    def wait(item):
        if item["x"] == "wait":
            running.set()
            assert go.wait(WAIT_S)
        return {"y": item["x"]}

    models = {"m": Model(wait)}
    with Runtime(models=models, apps={"a": App("m", slo="20s")}) as runtime:
        future = runtime.submit("a", {"x": "wait"})
        assert running.wait(WAIT_S)
        held = threading.Event()
        runtime.on_loop(lambda core: _tell_when_held(core, held))
        try:
            yield runtime, future, go, held, configuration(models=models, apps={"b": App("m", slo="20s")})
        finally:
            go.set()


def test_a_reload_that_is_interrupted_changes_nothing_at_all(held):
    runtime, future, go, is_held, other = held
    _Interrupt(is_held).start()
    with pytest.raises(KeyboardInterrupt):
        runtime.reload(other)
    go.set()
    assert future.result(WAIT_S)["y"] == "wait"
    assert list(runtime.configuration.apps) == list(runtime.stats()["apps"]) == ["a"]
    assert runtime.infer("a", {"x": 1})["y"] == 1
    runtime.reload(other)
    assert list(runtime.configuration.apps) == ["b"]
    assert runtime.infer("b", {"x": 1})["y"] == 1


def test_a_reload_ends_with_the_runtime_and_so_does_what_waited_for_it(held):
    runtime, future, go, is_held, other = held
    found = []

    def reload():
        with pytest.raises(EdgeServeError, match="stopped") as caught:
            runtime.reload(other)
        found.append(caught.value)

    reloading = threading.Thread(target=reload)
    reloading.start()
    assert is_held.wait(WAIT_S)
    waited = runtime.submit("a", {"x": 1})
    runtime.ask_to_stop()
    go.set()
    assert future.result(WAIT_S)["y"] == "wait"
    with pytest.raises(RequestError, match="stopped"):
        waited.result(WAIT_S)
    reloading.join(3)
    assert found


@pytest.mark.parametrize(
    "question", ["stats", "expected", "check", "measured_at_start", "reload", "story", "endpoints", "infer", "start"]
)
def test_a_runtime_that_could_not_start_says_so(question):
    class Broken(_Gated):
        def load(self):
            raise ValueError("no weights")

    runtime = Runtime(models={"m": Model(Broken(None, None))}, apps={"a": App("m")})
    with pytest.raises(EdgeServeError, match="started; call start"):
        runtime.wait()
    with pytest.raises(EngineError, match="no weights"):
        runtime.start()
    arguments = {"story": (1,), "infer": ("a", {"x": 1})}.get(question, ())
    if question == "endpoints":
        assert runtime.endpoints == []
        return
    with pytest.raises(EdgeServeError, match="start|stopped"):
        getattr(runtime, question)(*arguments)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
@pytest.mark.parametrize("over_the_bus", [False, True])
def test_what_a_callback_raises_ends_nothing(kind, over_the_bus, tmp_path, caplog):
    go = threading.Event()

    def raising(_):
        raise kind("from a callback")

    def function(item):
        assert go.wait(WAIT_S)
        return item

    server = {"endpoint": f"ipc://{tmp_path}/bus"} if over_the_bus else None
    with Runtime(
        models={"m": Model(function)}, apps={"a": App("m", slo="20s")}, server=server, serve=over_the_bus
    ) as runtime, Client(runtime.endpoints[0]) if over_the_bus else nullcontext(runtime) as asked:
        told = threading.Event()
        future = asked.submit("a", {"x": 1})
        future.add_done_callback(raising)
        future.add_done_callback(lambda _: told.set())
        go.set()
        assert future.result(WAIT_S)["x"] == 1
        assert told.wait(WAIT_S)
        assert asked.infer("a", {"x": 2}, timeout_ms=1000 * WAIT_S)["x"] == 2


class _Lying:
    __cuda_array_interface__: dict = {}


class _Raising:
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize("kind", [_Lying, _Raising])
def test_a_value_that_does_not_say_what_it_is_is_bad_input(kind):
    with Runtime(models={"m": Model(lambda item: item)}, apps={"a": App("m", slo="20s")}) as runtime:
        with pytest.raises(BadInput, match="input 'x': its .* does not say where it lies"):
            runtime.infer("a", {"x": kind()})


@pytest.mark.parametrize("timeout_ms", [float("inf"), 1e30, 10**400])
def test_a_wait_may_be_without_end(timeout_ms):
    with Runtime(models={"m": Model(lambda item: item)}, apps={"a": App("m", slo="20s")}) as runtime:
        assert runtime.infer("a", {"x": 1}, timeout_ms=timeout_ms)["x"] == 1
        assert runtime.stream("a", {"x": 1}, timeout_ms=timeout_ms).answer()["x"] == 1
