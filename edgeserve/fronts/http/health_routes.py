"""``/health`` for probes and ``/metrics`` for Prometheus, where clients already reach the front."""

from __future__ import annotations

from typing import List

from starlette.routing import Route

from edgeserve import __version__
from edgeserve.answers import TimedOut
from edgeserve.errors import ServerGone
from edgeserve.front import NotServed
from edgeserve.fronts.http.asgi import Call, Site


class HealthRoutes:
    """The routes. Health needs no token, and says nothing but whether the server is ready."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._backend = site.backend

    def routes(self) -> List[Route]:
        """Both of them."""
        health = self._site.route("/health", self.health, "GET", is_open=True)
        return [health, self._site.route("/metrics", self.metrics, "GET")]

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
