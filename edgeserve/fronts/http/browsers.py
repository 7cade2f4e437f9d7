"""Pages of other origins that may ask the front (``[front.http] origins``), as browsers have it: CORS.

A preflight carries no token, so it is answered before tokens are looked at. Every answer to an allowed origin says so,
also an error and one that another part of the front sends.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, Optional

from edgeserve.fronts.http.asgi import Headers, Receive, Scope, Send
from edgeserve.fronts.http.settings import ANY_ORIGIN

METHODS = b"GET, POST, OPTIONS"
EXPOSED = b"edgeserve-reason, inference-header-content-length, retry-after, www-authenticate"
"""Headers of answers that a page may read besides the usual ones."""

PREFLIGHT_S = b"600"
"""Seconds that a browser may remember the answer to a preflight: the shortest maximum among browsers."""


def ahead_of(app: Any, origins: Collection[str]) -> Any:
    """``app``, whose answers tell browsers which pages may read them."""
    if not origins:
        return app
    allowed = frozenset(origin.encode() for origin in origins)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        told = _told(headers.get(b"origin"), allowed)
        if scope["method"] == "OPTIONS" and told and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": [*told, *_preflight(headers)]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def with_headers(message: Dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *told, (b"vary", b"Origin")]}
            await send(message)

        await app(scope, receive, with_headers)

    return application


def _told(origin: Optional[bytes], allowed: Collection[bytes]) -> Headers:
    if origin is None or not (origin.lower() in allowed or ANY_ORIGIN.encode() in allowed):
        return []
    return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED)]


def _preflight(headers: Dict[bytes, bytes]) -> Headers:
    found = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"")),
        (b"access-control-max-age", PREFLIGHT_S),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]
    if b"access-control-request-private-network" in headers:  # a page of the internet asks a machine at home
        found.append((b"access-control-allow-private-network", b"true"))
    return found
