"""The front put together: routes over one client of the bus, served by uvicorn, and gRPC beside it where asked for.

Wiring only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import socket
import sys
from typing import Any, List, Tuple

from edgeserve.client import AsyncClient
from edgeserve.config.odd_names import unsayable
from edgeserve.errors import ConfigError, EdgeServeError
from edgeserve.front import Front, Ready, host_and_port, is_loopback, read_tokens
from edgeserve.fronts.http.admission import HttpAdmission
from edgeserve.fronts.http.backend import Backend
from edgeserve.fronts.http.kserve import OpenInference
from edgeserve.fronts.http.names import tidied
from edgeserve.fronts.http.settings import ANY_ORIGIN, HttpConfig
from edgeserve.units import ns_to_s

log = logging.getLogger("edgeserve")

EXAMPLE = "127.0.0.1:8000"
KEEP_ALIVE_S = 75
BACKLOG = 1024

LAST_WRITTEN_S = 0.4
"""Seconds that the last answers have to be written, before uvicorn cancels their tasks: it does so up to a second after
the drain."""

SWITCH_S = 0.0005
"""The time for which one thread may keep the others waiting: the event loop and the bus's thread hand each request over
twice."""


def check_extra(packages: Tuple[str, ...], extra: str) -> None:
    """Raise :class:`ConfigError` with the command that installs the missing packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the front needs {', '.join(missing)}: pip install 'edgeserve-runtime[{extra}]'")


def check_http(config: HttpConfig) -> None:
    """Everything that can be wrong before the front starts. Raises :class:`ConfigError` naming the key."""
    check_extra(("starlette", "uvicorn"), "http")
    places = [("listen", config.listen)] + ([("grpc", config.grpc)] if config.grpc else [])
    if config.grpc:
        check_extra(("grpc", "google.protobuf"), "grpc")
    if ANY_ORIGIN in config.origins and not config.token_file:
        raise ConfigError(
            f"{config.where('origins')} = ['*'] lets every page that this machine's browsers open ask the front: "
            "name the pages, or set token_file"
        )
    for key, place in places:
        host, _ = host_and_port(config.where(key), place, EXAMPLE)
        if not is_loopback(host) and not config.token_file:
            raise ConfigError(
                f"{config.where(key)} = {place!r} can be reached from other machines: set token_file to a file "
                f"with a token that clients must send, or listen on 127.0.0.1"
            )
    read_tokens(config.token_file, config.where("token_file"))


class HttpFront(Front):
    """A front of one server. Answers in pieces come over the connection of all others."""

    Settings = HttpConfig

    def __init__(self, client: AsyncClient, settings: HttpConfig) -> None:
        super().__init__(client, settings)
        self.config = settings
        self._tokens = read_tokens(settings.token_file, settings.where("token_file"))
        self._backend = Backend(client, settings)
        self._service = OpenInference(self._backend, settings.server_name)

    @functools.cached_property
    def _admission(self) -> HttpAdmission:
        """Made on the event loop that serves: with Python 3.8 asyncio's locks belong to the loop they are made on."""
        return HttpAdmission(self.config)

    @classmethod
    def check(cls, settings: HttpConfig) -> None:
        """See :class:`~edgeserve.front.Front`."""
        check_http(settings)
        for key, place in (("listen", settings.listen), ("grpc", settings.grpc)):
            if place:
                bind(settings.where(key), place).close()

    @classmethod
    def prepare(cls) -> None:
        """See :class:`~edgeserve.front.Front`."""
        sys.setswitchinterval(SWITCH_S)
        if importlib.util.find_spec("uvloop") is not None:
            import uvloop

            uvloop.install()

    @classmethod
    def drain_s(cls, settings: HttpConfig) -> float:
        """See :class:`~edgeserve.front.Front`."""
        return ns_to_s(settings.drain_ns)

    def app(self) -> Any:
        """The ASGI application."""
        from starlette.applications import Starlette

        from edgeserve.fronts.http import browsers
        from edgeserve.fronts.http.asgi import Bounds, Site
        from edgeserve.fronts.http.audio_routes import AudioRoutes
        from edgeserve.fronts.http.chat_routes import ChatRoutes
        from edgeserve.fronts.http.health_routes import HealthRoutes
        from edgeserve.fronts.http.kserve_routes import KServeRoutes
        from edgeserve.fronts.http.ollama_routes import OllamaRoutes
        from edgeserve.fronts.http.page_routes import PageRoutes

        config = self.config
        host = None if self._tokens else host_and_port(config.where("listen"), config.listen, EXAMPLE)[0]
        site = Site(self._backend, Bounds(config, self._admission.bodies, host), self._tokens)
        kserve = KServeRoutes(self._service, site)
        self._page = PageRoutes(site)
        routes = [
            *kserve.routes(),
            *AudioRoutes(site).routes(),
            *ChatRoutes(site, self.clock_s).routes(),
            *OllamaRoutes(site, self.clock_s).routes(),
            *HealthRoutes(site).routes(),
            *self._page.routes(),
        ]
        router = Starlette(routes=routes)
        router.router.redirect_slashes = False  # the way back is the proxy's, where there is one
        return browsers.ahead_of(tidied(kserve.ahead_of(router)), config.origins)

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """See :class:`~edgeserve.front.Front`."""
        import uvicorn

        from edgeserve.fronts.http.connections import HttpConnections, protocol_of

        config = self.config
        listener = bind(config.where("listen"), config.listen)
        connections = HttpConnections(config.connections_max)
        settings = uvicorn.Config(
            self.app(),
            lifespan="off",
            log_level="error",  # its warnings are of what strangers send: a line each
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            http=protocol_of(connections),
            ws="none",  # else an upgrade leaves these connections and their bounds
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(ns_to_s(config.drain_ns)) + 1,
        )
        server = uvicorn.Server(settings)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # of older ones: signals are ours
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # and of newer ones
        grpc_server, beside = None, []
        try:
            grpc_server, places = await self._start_grpc(stopped)
            beside.append(asyncio.ensure_future(self._end(stopped, server, connections, grpc_server)))
            ready(f"http://{place_of(listener)}", *places)
            beside.append(asyncio.ensure_future(self._warn_at_start()))
            await server.serve(sockets=[listener])
        finally:
            listener.close()
            if grpc_server is not None:
                await grpc_server.stop(self._grace_s)  # begun at the same time as HTTP's end
            for task in beside:
                task.cancel()

    @property
    def _grace_s(self) -> float:
        """For gRPC's calls: the last answers are written after the drain."""
        return ns_to_s(self.config.drain_ns) + 1

    async def _end(self, stopped: asyncio.Event, server: Any, connections: Any, grpc_server: Any) -> None:
        await stopped.wait()
        server.should_exit = True
        self._page.end()
        stopping = asyncio.ensure_future(grpc_server.stop(self._grace_s)) if grpc_server is not None else None
        await asyncio.sleep(ns_to_s(self.config.drain_ns))
        self._backend.end_early()
        await asyncio.sleep(LAST_WRITTEN_S)
        connections.end()
        if stopping is not None:
            await stopping

    async def _warn_at_start(self) -> None:
        """Requests are answered with an error until a server is there, which the log should have first; and apps whose
        paths mean something else are asked by other protocols alone."""
        try:
            why = unsayable(await self._backend.apps())
            if why:
                log.warning("%s", why)
        except EdgeServeError as error:
            log.warning("%s, or give --endpoint; until a server answers, requests get this error", error)

    async def _start_grpc(self, stopped: asyncio.Event) -> Tuple[Any, List[str]]:
        if not self.config.grpc:
            return None, []
        from edgeserve.fronts.http.grpc_service import start_grpc

        server, port = await start_grpc(self._service, self.config, self._tokens, self._admission, stopped)
        return server, [f"grpc://{self.config.grpc.rpartition(':')[0]}:{port}"]


def bind(where: str, place: str) -> socket.socket:
    """A listening socket; port 0 is any free one. ``where``: the key of its place."""
    host, port = host_and_port(where, place, EXAMPLE)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{where} = {place!r}: cannot listen there ({error.strerror}); another program may, or "
            "another front; give another port"
        ) from None
    listener.set_inheritable(False)
    return listener


def place_of(listener: socket.socket) -> str:
    """``127.0.0.1:8000`` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
