"""Which apps are ready by what the server says of itself."""

from __future__ import annotations

import asyncio
from typing import Any, Dict

import pytest

pytest.importorskip("starlette", reason="the extra 'http' is not installed")

from edgeserve.errors import ServerGone
from edgeserve.fronts.http.kserve import OpenInference


class Backend:
    def __init__(self, health: Any) -> None:
        self.health = health

    async def ask(self, kind: str) -> Dict[str, Any]:
        assert kind == "health"
        if isinstance(self.health, Exception):
            raise self.health
        return dict(self.health)

    async def app(self, name: str, version: str) -> Dict[str, Any]:
        return {}

    async def apps(self) -> Dict[str, Any]:
        return {"detect": {}, "speak": {}}


BLOCKED = {"ready": False, "stopping": False, "blocked": {"speak": "lane gpu0 is down"}}


@pytest.mark.parametrize(
    ("health", "server", "detect", "speak"),
    [
        ({"ready": True, "stopping": False, "blocked": {}}, True, True, True),
        (BLOCKED, False, True, False),
        ({"ready": False, "stopping": True, "blocked": {}}, False, False, False),
        (ServerGone("gone"), False, False, False),
    ],
)
def test_an_app_is_ready_when_it_could_run(health: Any, server: bool, detect: bool, speak: bool) -> None:
    kserve = OpenInference(Backend(health))  # type: ignore[arg-type]
    assert asyncio.run(kserve.ready()) is server
    assert asyncio.run(kserve.model_ready("detect")) is detect
    assert asyncio.run(kserve.model_ready("speak")) is speak
    rows = asyncio.run(kserve.index())
    assert [row["state"] == "READY" for row in rows] == [detect, speak]
    assert asyncio.run(kserve.index(True)) == [row for row in rows if row["state"] == "READY"]


def test_what_blocks_an_app_is_said() -> None:
    rows = asyncio.run(OpenInference(Backend(BLOCKED)).index())  # type: ignore[arg-type]
    assert rows[1]["reason"] == "lane gpu0 is down"
