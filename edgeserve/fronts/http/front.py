"""The front put together: routes over one client of the bus, served by uvicorn, and gRPC beside it where asked for.

Wiring only. ``tools/http.py`` is its command.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
from typing import Any, Callable, List, Tuple

from edgeserve.client import AsyncClient, Client
from edgeserve.config.addresses import host_and_port, is_loopback
from edgeserve.config.readers import ANY_ORIGIN
from edgeserve.config.schema import HttpConfig
from edgeserve.errors import ConfigError
from edgeserve.fronts.http.backend import Backend, Places
from edgeserve.fronts.http.kserve import OpenInference
from edgeserve.fronts.http.names import tidied
from edgeserve.fronts.http.origins import read_tokens
from edgeserve.units import ns_to_ms, ns_to_s

log = logging.getLogger("edgeserve")

EXAMPLE = "127.0.0.1:8000"
KEEP_ALIVE_S = 75
BACKLOG = 1024


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
            "[http] origins = ['*'] lets every page that this machine's browsers open ask the front: name the pages, "
            "or set token_file"
        )
    for key, place in places:
        host, _ = host_and_port(f"[http] {key}", place, EXAMPLE)
        if not is_loopback(host) and not config.token_file:
            raise ConfigError(
                f"[http] {key} = {place!r} can be reached from other machines: set token_file to a file "
                f"with a token that clients must send, or listen on 127.0.0.1"
            )


class Front:
    """A front of one server. ``client`` talks to the server, ``streams`` too, for answers in pieces; ``clock_s`` gives
    the time of day in seconds."""

    def __init__(self, config: HttpConfig, client: Client, streams: AsyncClient, clock_s: Callable[[], float]) -> None:
        self.config = config
        self._tokens = read_tokens(config.token_file)
        self._clock_s = clock_s
        self._backend = Backend(
            client, streams, in_flight_max=config.in_flight_max, timeout_ms=ns_to_ms(config.timeout_ns)
        )
        self._service = OpenInference(self._backend, config.server_name)

    def app(self) -> Any:
        """The ASGI application."""
        from starlette.applications import Starlette

        from edgeserve.fronts.http import browsers
        from edgeserve.fronts.http.asgi import Bounds
        from edgeserve.fronts.http.audio_routes import AudioRoutes
        from edgeserve.fronts.http.chat_routes import ChatRoutes
        from edgeserve.fronts.http.health_routes import HealthRoutes
        from edgeserve.fronts.http.kserve_routes import KServeRoutes
        from edgeserve.fronts.http.ollama_routes import OllamaRoutes
        from edgeserve.fronts.http.page_routes import PageRoutes

        config = self.config
        bounds = Bounds(
            config.body_bytes_max,
            ns_to_s(config.body_timeout_ns),
            config.json_bytes_max,
            Places(config.bodies_bytes_max, "bytes of bodies", "bodies_max", lasting=True),
            None if self._tokens else host_and_port("[http] listen", config.listen, EXAMPLE)[0],
            config.origins,
        )
        kserve = KServeRoutes(self._service, bounds, self._tokens)
        routes = [
            *kserve.routes(),
            *AudioRoutes(self._backend, bounds, self._tokens).routes(),
            *ChatRoutes(self._backend, bounds, self._tokens, self._clock_s).routes(),
            *OllamaRoutes(self._backend, bounds, self._tokens, self._clock_s).routes(),
            *HealthRoutes(self._backend, bounds, self._tokens).routes(),
            *PageRoutes(self._backend, bounds, self._tokens).routes(),
        ]
        router = Starlette(routes=routes)
        router.router.redirect_slashes = False  # the way back is the proxy's, where there is one
        return browsers.ahead_of(tidied(kserve.ahead_of(router)), config.origins)

    async def serve(self, stopped: asyncio.Event, ready: Callable[[List[str]], None]) -> None:
        """Serve until ``stopped``. ``ready`` hears where. Raises :class:`ConfigError` when a port cannot be had."""
        import uvicorn

        from edgeserve.fronts.http.connections import Connections, protocol_of

        config = self.config
        listener = bind("listen", config.listen)
        settings = uvicorn.Config(
            self.app(),
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            http=protocol_of(Connections(config.connections_max)),
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(ns_to_s(config.drain_ns)) + 1,
        )
        server = uvicorn.Server(settings)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # of older ones: signals are ours
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # and of newer ones
        grpc_server = None
        try:
            grpc_server, places = await self._start_grpc()
            ending = asyncio.ensure_future(self._end(stopped, server))
            ready([f"http://{place_of(listener)}", *places])
            try:
                await server.serve(sockets=[listener])
            finally:
                ending.cancel()
        finally:
            listener.close()
            if grpc_server is not None:
                drain_s = ns_to_s(config.drain_ns)
                ending_calls = asyncio.get_running_loop().call_later(drain_s, self._backend.end_early)
                await grpc_server.stop(drain_s + 1)
                ending_calls.cancel()

    async def _end(self, stopped: asyncio.Event, server: Any) -> None:
        await stopped.wait()
        server.should_exit = True
        await asyncio.sleep(ns_to_s(self.config.drain_ns))
        self._backend.end_early()

    async def _start_grpc(self) -> Tuple[Any, List[str]]:
        if not self.config.grpc:
            return None, []
        from edgeserve.fronts.http.grpc_service import start_grpc

        server, port = await start_grpc(self._service, self.config, self._tokens)
        return server, [f"grpc://{self.config.grpc.rpartition(':')[0]}:{port}"]


def bind(key: str, place: str) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    host, port = host_and_port(f"[http] {key}", place, EXAMPLE)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio sets no TCP_NODELAY
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"[http] {key} = {place!r}: cannot listen there ({error.strerror}); another program may, or "
            "another front; give another port"
        ) from None
    listener.set_inheritable(False)
    return listener


def place_of(listener: socket.socket) -> str:
    """``127.0.0.1:8000`` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def run(
    front: Front,
    stopped: Callable[[asyncio.AbstractEventLoop, asyncio.Event], None],
    ready: Callable[[List[str]], None],
) -> None:
    """Serve on an event loop of this thread. ``stopped`` arranges that the event is set when it should end."""

    async def serve() -> None:
        event = asyncio.Event()
        stopped(asyncio.get_running_loop(), event)
        await front.serve(event, ready)

    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.install()
    asyncio.run(serve())
