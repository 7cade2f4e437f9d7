"""Taps of a program's own: they hear all, decide nothing, and one that raises takes nothing down but itself."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from edgeserve import AsyncRuntime, Runtime
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError, EngineError
from edgeserve.tap import FinishRequest, RequestArrived, Tap

TABLES = {
    "model": {"echo": {"engine": "synthetic", "expected": {"1": "1ms"}}},
    "app": {"a": {"model": "echo", "slo": "20s"}},
}
HOOKS = ("begin", "tap", "change", "close")


class Hearing(Tap):
    def __init__(self) -> None:
        self.heard: List[str] = []
        self.ends: List[int] = []
        self.apps: List[List[str]] = []

    def begin(self, config: Any, start: Any) -> None:
        self.heard.append("begin")
        self.apps.append(list(config.apps))

    def tap(self, now_ns: int, events: Any, actions: Any) -> None:
        self.heard.append("tap")
        self.ends += [action.request_id for action in actions if isinstance(action, FinishRequest)]

    def change(self, config: Any) -> None:
        self.heard.append("change")
        self.apps.append(list(config.apps))

    def close(self) -> None:
        self.heard.append("close")


class Raising(Hearing):
    """Raises in one hook, and when it is closed for that."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__()
        setattr(self, hook, self.fault)
        self.error, self.hook = error, hook

    def fault(self, *given: Any) -> None:
        self.heard.append(self.hook)
        raise self.error

    def close(self) -> None:
        super().close()
        raise self.error


@pytest.mark.parametrize("error", [ValueError("a full disk"), SystemExit(3)])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_tap_that_raises_is_logged_once_by_its_name_and_taken_out(
    hook: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Raising(hook, error), Hearing()
    other = parse_config({**TABLES, "app": {**TABLES["app"], "b": {"model": "echo", "slo": "20s"}}})
    with caplog.at_level(logging.INFO, "edgeserve"), Runtime(parse_config(TABLES), taps=[bad, good]) as runtime:
        waits = [runtime.submit("a", {}) for _ in range(3)]
        answers = [future.result(20) for future in waits]
        runtime.reload(other)
        answers.append(runtime.infer("b", {}))
    assert sorted(good.ends) == sorted(answer.id for answer in answers)
    assert (good.heard[0], good.heard[-1], good.heard.count("change")) == ("begin", "close", 1)
    assert good.apps == [["a"], ["a", "b"]]
    assert bad.heard.count("close") == 1
    assert bad.heard[bad.heard.index(hook) :] == ([hook] if hook == "close" else [hook, "close"])
    logged = [record.getMessage() for record in caplog.records if record.exc_info]
    assert len(logged) == 1 and f"tap {__name__}.Raising failed in {hook}()" in logged[0]


class Clearing(Tap):
    """Takes away what the scheduler has decided."""

    def tap(self, now_ns: int, events: Any, actions: Any) -> None:
        actions.clear()


class Asking(Tap):
    """Waits for an answer on the thread that gives it."""

    runtime: Runtime

    def tap(self, now_ns: int, events: Any, actions: Any) -> None:
        if any(isinstance(event, RequestArrived) for event in events):
            self.runtime.infer("a", {})


@pytest.mark.parametrize("kind", [Clearing, Asking])
def test_a_tap_that_interferes_is_taken_out_and_requests_are_answered(kind: Any) -> None:
    tap = kind()
    tap.runtime = Runtime(parse_config(TABLES), taps=[tap])
    with tap.runtime as runtime:
        assert runtime.infer("a", {}, timeout_ms=20_000).id
        assert runtime.stats()


def test_a_start_that_fails_closes_a_tap_that_has_not_begun() -> None:
    tap = Hearing()
    with pytest.raises(EngineError):
        Runtime(models={"m": "no_such_module:f"}, apps={"a": "m"}, taps=[tap]).start()
    assert tap.heard == ["close"]


def test_an_awaited_runtime_has_taps_too() -> None:
    async def asked() -> None:
        async with AsyncRuntime(parse_config(TABLES), taps=[tap]) as runtime:
            await runtime.infer("a", {})
            assert runtime.taps == (tap,)

    tap = Hearing()
    asyncio.run(asked())
    assert len(tap.ends) == 1


PROGRAM = """
import sys
from edgeserve import Runtime
from edgeserve.tap import Tap

class Loud(Tap):
    def begin(self, config, start):
        print("begins with", *config.apps, file=sys.stderr)

runtime = Runtime("edge.toml", taps=[Loud()])
"""
EDGE = """
[server]
endpoint = "ipc://bus"
[model.m]
engine = "synthetic"
expected = { 1 = "1ms" }
[app.a]
model = "m"
slo = "20s"
"""


def test_a_program_gives_a_server_of_a_file_its_taps(tmp_path: Any) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "edge.toml").write_text(EDGE)
    root = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-m", "edgeserve", "serve", "app.py:runtime"]
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert any(line == "begins with a\n" for line in server.stderr or ())
        finally:
            server.terminate()
            server.communicate(timeout=30)


@pytest.mark.parametrize(
    ("taps", "says"),
    [
        ([Hearing], r"taps\[0\] = <class .*Hearing'>: expected an object of a subclass of edgeserve.tap.Tap"),
        ([Hearing(), print], r"taps\[1\] = <built-in function print>: expected an object"),
        (Hearing(), r"taps = <.*Hearing object .*>: expected a list, such as taps=\[MyTap\(\)\]"),
    ],
)
def test_what_is_no_tap_is_said(taps: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Runtime(parse_config(TABLES), taps=taps)
