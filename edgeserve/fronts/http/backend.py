"""The server behind the front: one client of its bus, asked from the event loop, with bounds of the front's own.

It knows apps, inputs and answers; it knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import (
    Any,
    AsyncGenerator,
    Awaitable,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Set,
    Tuple,
)

import numpy as np

from edgeserve.answers import LAST_S, Answer, TimedOut
from edgeserve.client import AsyncClient
from edgeserve.errors import Cancelled, UnknownApp, nearest
from edgeserve.front import ClientGone, Places
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.fronts.http.tensors import described
from edgeserve.request_options import TRACEPARENT
from edgeserve.units import ns_to_ms

APPS_FRESH_S = 1.0
"""Seconds for which the list of apps is reused: a server may be given another configuration."""

Shown = Dict[str, Tuple[str, List[int]]]
"""Outputs by name: datatype and shape, -1 where answers differed."""

Gone = Callable[[], Awaitable[None]]
"""Returns when the client of a request has gone."""

_PARENT: ContextVar[Optional[str]] = ContextVar("traceparent", default=None)


def note_parent(headers: Iterable[Tuple[Any, Any]], key: Any) -> None:
    """Keep the ``traceparent`` of the request at hand, from its headers (HTTP) or metadata (gRPC), for the requests
    made on its behalf. One of another form is ignored, as W3C requires."""
    shown = next((value for name, value in headers if name == key), "")
    text = shown.decode("latin-1") if isinstance(shown, bytes) else shown
    _PARENT.set(text if text and TRACEPARENT.match(text) else None)


NUMBER_BYTES = 8
UNKNOWN_BYTES = 2**62
"""The bytes of requests that a server is believed to take until it tells."""

LOOK_AFTER_S = 0.02
"""Seconds that a request waits before its client's connection is watched: most have their answer by then."""


class Backend:
    """Requests of all clients of the front, over one connection to the server.

    For the event loop's thread.
    """

    def __init__(self, client: AsyncClient, config: HttpConfig) -> None:
        self.client = client.client
        self.asking = client
        self.places = Places(config.in_flight_max, key=config.where("in_flight_max"))
        self.bytes = Places(UNKNOWN_BYTES, "bytes of requests with the server", "[server] memory", lasting=True)
        self.seen: Dict[str, Shown] = {}
        self._open: Set[Any] = set()  # requests without an answer
        self._timeout_ms = ns_to_ms(config.timeout_ns)
        self._timeout_key = config.where("timeout")
        self._apps: Dict[str, Any] = {}
        self._apps_until_s = 0.0

    # --- requests -----------------------------------------------------------------------------------------------------

    async def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        gone: Optional[Gone] = None,
        origin: str = "",
    ) -> Answer:
        """Ask an app. ``options`` are arguments of :meth:`Client.submit`. When ``gone`` returns first, or the waiting
        task is cancelled, so is the request. ``origin``: whose request it is."""
        with self._place(origin, inputs):
            answer = await self._settled(
                self.client.submit(app, inputs, copy=False, origin=origin, traceparent=_PARENT.get(), **options),
                app,
                gone,
            )
        self._learn(app, answer)
        return answer

    async def stream(
        self, app: str, inputs: Mapping[str, Any], options: Mapping[str, Any], origin: str = ""
    ) -> AsyncGenerator[Any, None]:
        """Ask an app whose answer comes in pieces: yields each piece as a table of values, and last the
        :class:`Answer`. Closing the iterator cancels the request."""
        with self._place(origin, inputs):
            stream = self.asking.stream(
                app, inputs, timeout_ms=self._timeout_ms, origin=origin, traceparent=_PARENT.get(), **options
            )
            async with stream:
                self._open.add(stream)
                try:
                    async for piece in stream:
                        yield piece
                    answer = await stream.answer()
                finally:
                    self._open.discard(stream)
        self._learn(app, answer)
        yield answer

    @contextmanager
    def _place(self, origin: str, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Room for a request among those without an answer, and for its bytes: all clients of the front have one
        connection to the server."""
        nbytes = 1 + sum([_bytes_of(value) for value in inputs.values()])
        self.places.enter(origin)
        try:
            self.bytes.enter(origin, nbytes)
            try:
                yield
            finally:
                self.bytes.leave(origin, nbytes)
        finally:
            self.places.leave(origin)

    async def _settled(self, pending: Any, app: str, gone: Optional[Gone]) -> Answer:
        loop = asyncio.get_running_loop()
        future = _ended(pending, loop)
        why: List[str] = []

        def give_up(pending: Any) -> None:
            why.append("timed out")
            pending.end_early()
            watch.append(loop.call_later(LAST_S, future.cancel))

        watch: List[Any] = [loop.call_later(self._timeout_ms / 1000, give_up, pending)]
        if gone is not None:
            watch.append(loop.call_later(LOOK_AFTER_S, lambda: watch.append(loop.create_task(leave()))))

        async def leave() -> None:
            assert gone is not None, "only watched where there is something to watch"
            await gone()
            why.append("gone")
            future.cancel()

        self._open.add(pending)
        try:
            await future
            answer: Answer = pending.result()
            return answer
        except (asyncio.CancelledError, Cancelled):
            pending.cancel()
            if why == ["timed out"]:
                raise TimedOut(
                    f"app {app!r}: no answer within {self._timeout_ms:g} ms ({self._timeout_key}); "
                    "the request was cancelled"
                ) from None
            if "gone" in why:
                raise ClientGone(f"app {app!r}: the client went away") from None
            raise
        finally:
            self._open.discard(pending)
            for item in watch:
                item.cancel()
            del pending  # it holds the error, whose traceback holds this frame: such a cycle keeps the inputs for long

    def end_early(self) -> None:
        """End all requests now, with their partial answers: the gateway stops."""
        for each in list(self._open):
            each.end_early()

    def _learn(self, app: str, answer: Answer) -> None:
        """Note the outputs that an app gives: the configuration names them at most."""
        seen = self.seen.setdefault(app, {})
        for name, value in answer.outputs.items():
            known = seen.get(name)
            shown = described(name, value)
            if known is None or known[0] != shown[0] or len(known[1]) != len(shown[1]):
                seen[name] = shown
            elif known[1] != shown[1]:
                seen[name] = (shown[0], [one if one == other else -1 for one, other in zip(known[1], shown[1])])

    # --- questions ----------------------------------------------------------------------------------------------------

    async def ask(self, kind: str) -> Dict[str, Any]:
        """A question about the server, such as ``stats`` or ``health``, which tells what it takes of one connection."""
        told = await self.asking.ask(kind, self._timeout_ms)
        self.bytes.count_max = told.get("client_bytes_max", self.bytes.count_max)
        return told

    async def apps(self) -> Dict[str, Any]:
        """The apps that are served, as of a moment ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._apps_until_s:
            self._apps = await self.ask("apps")
            self._apps_until_s = now_s + APPS_FRESH_S
            for gone in set(self.seen) - set(self._apps):
                del self.seen[gone]
        return self._apps

    async def app(self, name: str, version: str = "") -> Dict[str, Any]:
        """One app. An app has one version, ``"1"``."""
        apps = await self.apps()
        if name not in apps:
            raise UnknownApp(f"no app {name[:128]!r} is served here{nearest(name[:128], apps)}")
        check_version(name, version)
        app: Dict[str, Any] = apps[name]
        return app


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return sum([len(text) for text in value.flat]) if value.dtype.hasobject else value.nbytes
    return len(value) if isinstance(value, (str, bytes, memoryview)) else NUMBER_BYTES


def _ended(pending: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """A future of the event loop that is done, or cancelled, when the request is. ``asyncio.wrap_future`` costs a small
    request more than its route and its answer's JSON together; cancelling this one does not cancel the request."""
    future = loop.create_future()

    def settle(pending: Any) -> None:
        if future.done():
            return
        if pending.cancelled():
            future.cancel()
        else:
            future.set_result(None)

    def ended(pending: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle, pending)
        except RuntimeError:
            pass  # the loop is closed: no request waits any more

    pending.add_done_callback(ended)
    return future


def check_version(name: str, version: str) -> None:
    """An app has one version; none named means that one."""
    if version not in ("", "1"):
        raise UnknownApp(f"app {name[:128]!r} has version '1' only, not {version[:32]!r}")
