"""``/health`` for probes and ``/metrics`` for Prometheus, where clients already reach the front."""

from __future__ import annotations

from typing import List

from starlette.routing import Route

from edgeserve import __version__
from edgeserve.answers import TimedOut
from edgeserve.errors import ServerGone
from edgeserve.front import NotServed, Tokens
from edgeserve.fronts.http.asgi import Bounds, Call, Endpoint
from edgeserve.fronts.http.backend import Backend


class HealthRoutes:
    """The routes. Health needs no token, and says nothing but whether the server is ready."""

    def __init__(self, backend: Backend, bounds: Bounds, tokens: Tokens) -> None:
        self._backend = backend
        self._bounds = bounds
        self._tokens = tokens

    def routes(self) -> List[Route]:
        """Both of them."""
        return [
            Route("/health", Endpoint(self.health, self._bounds), methods=["GET"]),
            Route("/metrics", Endpoint(self.metrics, self._bounds, self._tokens), methods=["GET"]),
        ]

    async def health(self, call: Call) -> None:
        """200 when the server accepts requests and every app could run now, else 503."""
        try:
            ready = bool((await self._backend.ask("health")).get("ready"))
        except (ServerGone, TimedOut):
            ready = False
        await call.answer({"ready": ready}, 200 if ready else 503)

    async def metrics(self, call: Call) -> None:
        """One scrape: the server's ``stats``."""
        try:
            from edgeserve.taps.metrics_endpoint import scraped
        except ModuleNotFoundError as error:
            raise NotServed(f"metrics need {error.name}: pip install 'edgeserve-runtime[metrics]'") from None
        body, kind = scraped(await self._backend.ask("stats"), __version__, call.header(b"accept"))
        await call.answer(body, 200, [(b"content-type", kind.encode())])
