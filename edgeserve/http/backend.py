"""The server behind the front: one client of its bus, asked from the event loop, with bounds of the front's own.

It knows apps, inputs and answers; it knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncGenerator, Awaitable, Callable, Dict, List, Mapping, Optional, Tuple

from edgeserve.answers import Answer, TimedOut
from edgeserve.client import AsyncClient, Client
from edgeserve.errors import Rejected, UnknownApp, nearest
from edgeserve.http.failures import ClientGone
from edgeserve.http.tensors import described

APPS_FRESH_S = 1.0
"""For how long what apps there are is not asked again: a server may be given another configuration."""

Shown = Dict[str, Tuple[str, List[int]]]
"""Outputs by name: datatype and shape, -1 where answers differed."""

Gone = Callable[[], Awaitable[None]]
"""Returns when the client of a request has gone."""

LOOK_AFTER_S = 0.02
"""How long a request waits before its client's connection is watched: most have their answer by then."""


class Places:
    """The requests of the front without an answer, by origin. The last quarter of the places is for origins that have
    less than an equal part of them: one of several clients cannot keep the others out."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.count = 0
        self._of: Dict[str, int] = {}

    def enter(self, origin: str) -> None:
        """Take a place. Raises :class:`Rejected`."""
        held = self._of.get(origin, 0)
        if self.count >= self.count_max:
            raise Rejected(f"this front has {self.count_max} requests without an answer, its bound; send fewer at a "
                           "time, or raise [http] in_flight_max", "too many in flight")
        if self.count >= self.count_max - self.count_max // 4:
            part = max(1, self.count_max // (len(self._of) + (0 if held else 1)))
            if held >= part:
                raise Rejected(f"{origin} has {held} requests without an answer at this front, of {self.count_max} "
                               "that all its clients may have; send fewer at a time, or raise [http] in_flight_max",
                               "too many in flight")
        self._of[origin] = held + 1
        self.count += 1

    def leave(self, origin: str) -> None:
        """Give it back."""
        self.count -= 1
        left = self._of[origin] - 1
        if left:
            self._of[origin] = left
        else:
            del self._of[origin]


class Backend:
    """Requests of all clients of the front, over one connection to the server, and one more for answers in pieces.

    ``in_flight_max`` bounds those without an answer, ``timeout_ms`` how long one may wait. For the event loop's thread.
    """

    def __init__(self, client: Client, streams: AsyncClient, *, in_flight_max: int, timeout_ms: float) -> None:
        self.client = client
        self._streams = streams
        self.places = Places(in_flight_max)
        self.seen: Dict[str, Shown] = {}
        self._timeout_ms = timeout_ms
        self._apps: Dict[str, Any] = {}
        self._apps_until_s = 0.0

    # --- requests -----------------------------------------------------------------------------------------------------

    async def infer(self, app: str, inputs: Mapping[str, Any], options: Mapping[str, Any],
                    gone: Optional[Gone] = None, origin: str = "") -> Answer:
        """Ask an app. ``options`` are arguments of :meth:`Client.submit`. When ``gone`` returns first, or the waiting
        task is cancelled, so is the request. ``origin``: whose request it is."""
        self.places.enter(origin)
        try:
            pending = self.client.submit(app, inputs, copy=False, origin=origin, **options)
            answer = await self._settled(pending, app, gone)
        finally:
            self.places.leave(origin)
        self._learn(app, answer)
        return answer

    async def stream(self, app: str, inputs: Mapping[str, Any], options: Mapping[str, Any],
                     origin: str = "") -> AsyncGenerator[Any, None]:
        """Ask an app whose answer comes in pieces: yields each piece as a table of values, and last the
        :class:`Answer`. Closing the iterator cancels the request."""
        self.places.enter(origin)
        try:
            stream = self._streams.stream(app, inputs, timeout_ms=self._timeout_ms, origin=origin, **options)
            async with stream:
                async for piece in stream:
                    yield piece
                answer = await stream.answer()
        finally:
            self.places.leave(origin)
        self._learn(app, answer)
        yield answer

    async def _settled(self, pending: Any, app: str, gone: Optional[Gone]) -> Answer:
        loop = asyncio.get_running_loop()
        future = _awaitable(pending, loop)
        why: List[str] = []

        def give_up() -> None:
            why.append("timed out")
            future.cancel()

        watch: List[Any] = [loop.call_later(self._timeout_ms / 1000, give_up)]
        if gone is not None:
            watch.append(loop.call_later(LOOK_AFTER_S, lambda: watch.append(loop.create_task(leave()))))

        async def leave() -> None:
            assert gone is not None, "only watched where there is something to watch"
            await gone()
            why.append("gone")
            future.cancel()

        try:
            answer: Answer = await future
            return answer
        except asyncio.CancelledError:
            pending.cancel()
            if why == ["timed out"]:
                raise TimedOut(f"app {app!r}: no answer within {self._timeout_ms:g} ms ([http] timeout); the request "
                               "was cancelled") from None
            if why:
                raise ClientGone(f"app {app!r}: the client went away") from None
            raise
        finally:
            for item in watch:
                item.cancel()

    def _learn(self, app: str, answer: Answer) -> None:
        """Which outputs an app gives: the configuration names them at most."""
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
        """A question about the server, such as ``stats`` or ``health``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self.client.ask, kind, self._timeout_ms)

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


def _awaitable(pending: Any, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """The end of a request as a future of the event loop. ``asyncio.wrap_future`` costs a small request more than its
    route and its answer's JSON together; cancelling this one does not cancel the request."""
    future = loop.create_future()

    def settle() -> None:
        if future.done():
            return
        if pending.cancelled():
            future.cancel()
        elif pending.exception() is not None:
            future.set_exception(pending.exception())
        else:
            future.set_result(pending.result())

    def ended(_: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more
    pending.add_done_callback(ended)
    return future


def check_version(name: str, version: str) -> None:
    """An app has one version; none named means that one."""
    if version not in ("", "1"):
        raise UnknownApp(f"app {name[:128]!r} has version '1' only, not {version[:32]!r}")
