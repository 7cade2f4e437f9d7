"""The camera against the contract of fronts: its clients are the source's frames and the viewers of its page."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Callable, Tuple

import numpy as np
import pytest

from edgeserve.client import AsyncClient
from edgeserve.front import Front
from edgeserve.testing.front_conformance import ANSWERED, KIND_OF_CODE, LATE, FrontConformance

pytest.importorskip("PIL", reason="the page draws with Pillow: pip install -e '.[camera]'")

from edgeserve.fronts.boxes_page import HEAD_BYTES_MAX
from edgeserve.fronts.camera_front import CameraFront, CameraSettings

ROWS = np.zeros((9, 40), np.float32)
ROWS[:, 0] = [24, 24, 8, 8, 0.9, 0, 0, 0, 0]


class TestCamera(FrontConformance):
    INPUTS = {"image": {"dtype": "uint8", "shape": [48, 64, 3]}}
    OUTPUTS = {"output0": ROWS}
    CLIENTS_NAME_APPS = False
    CANNOT = {"a_client_that_goes_ends_its_request": "frames are the front's own requests; a viewer asks for none"}

    @pytest.fixture(autouse=True)
    def _in(self, folder: Path) -> None:
        self.lines = str(folder / "lines")

    def make(self, client: AsyncClient, app: str) -> Front:
        open(self.lines, "w").close()
        settings = CameraSettings(source="test:48x64", app=app, lines=self.lines, page="127.0.0.1:0", rate=20.0)
        return CameraFront(client, settings)

    def place_of(self, places: Any) -> str:
        return str(places[1])

    def address(self, place: str) -> Tuple[str, int]:
        host, _, port = place.split("//")[1].strip("/").rpartition(":")
        return host, int(port)

    async def ask(self, place: str, app: str) -> str:
        """The end of the next frame; with an answer, it is on the page, too."""
        with open(self.lines, encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            line = ""
            while not line.endswith("\n"):
                await asyncio.sleep(0.02)
                line += file.readline()
        told = json.loads(line)
        if "lost" in told:
            code = told["lost"].partition(":")[0]
            return LATE if code == "too old" else KIND_OF_CODE.get(code, code)
        assert await self.page(place, "GET /frame.jpg HTTP/1.1\r\nhost: localhost\r\n\r\n") == b"200"
        return ANSWERED

    async def page(self, place: str, request: str) -> bytes:
        reader, writer = await asyncio.open_connection(*self.address(place))
        writer.write(request.encode())
        status = await reader.read(12)
        writer.close()
        return status[9:12]

    async def ask_too_much(self, place: str, app: str) -> str:
        status = await self.page(place, "GET / HTTP/1.1\r\nx: " + "x" * 2 * HEAD_BYTES_MAX + "\r\n\r\n")
        return "too_large" if status == b"431" else status.decode()

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        _, writer = await asyncio.open_connection(*self.address(place))
        writer.write(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return writer.transport.abort
