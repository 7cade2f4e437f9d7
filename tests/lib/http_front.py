"""A front on a thread of this process, and requests to it with the standard library alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from typing import Any, Dict, List, Optional, Tuple

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: there is no HTTP front")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: there is no HTTP front")

from edgeserve.client import AsyncClient
from edgeserve.fronts.http.settings import HttpConfig

CLOCK_S = 1_700_000_000.0


class FrontThread:
    """``places`` is where it listens: HTTP first, then gRPC."""

    def __init__(self, endpoint: str, config: HttpConfig, connect_ms: float = 300.0) -> None:
        from edgeserve.fronts.http.front import HttpFront

        client = AsyncClient(endpoint, connect_ms=connect_ms)
        self.client = client.client
        self.front = HttpFront(client, config)
        self.front.clock_s = lambda: CLOCK_S
        self.places: List[str] = []
        self._loop: Any = None
        self._stopped: Any = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FrontThread:
        self._thread.start()
        assert self._ready.wait(30), "the front did not start"
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)
        self.client.close()
        assert not self._thread.is_alive()

    @property
    def http(self) -> str:
        """HOST:PORT."""
        return self.places[0].split("//")[1]

    @property
    def grpc(self) -> str:
        """HOST:PORT."""
        return self.places[1].split("//")[1]

    def _run(self) -> None:
        async def serve() -> None:
            self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
            await self.front.serve(self._stopped, self._is_ready)

        asyncio.run(serve())

    def _is_ready(self, *places: str) -> None:
        self.places = list(places)
        self._ready.set()

    def ask(
        self, method: str, path: str, body: Any = None, headers: Optional[Dict[str, str]] = None
    ) -> Tuple[int, Any]:
        """Status and body, parsed where it is JSON."""
        status, data, _ = self.ask_raw(method, path, body, headers)
        return status, json.loads(data) if data[:1] in (b"{", b"[") else data

    def ask_raw(
        self, method: str, path: str, body: Any = None, headers: Optional[Dict[str, str]] = None
    ) -> Tuple[int, bytes, Dict[str, str]]:
        """Status, body and headers. A body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self.http, timeout=30)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read(), {key.lower(): value for key, value in response.getheaders()}
        finally:
            connection.close()


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
