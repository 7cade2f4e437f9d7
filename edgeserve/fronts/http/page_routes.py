"""The page at ``/``: its files, and one stream of the server's events, shared among all viewers.

The stream asks the server only while it has a viewer: ``stats`` once a second, and the steps of ``trace`` as many as a
bound on their bytes allows, so that a busy server is sampled and not slowed down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import Any, AsyncGenerator, Callable, Deque, Dict, List, Mapping, Tuple

from starlette.routing import Route

from edgeserve.errors import EdgeServeError, Malformed
from edgeserve.front import Forbidden, Seats, Unauthorized, seated
from edgeserve.fronts.http.asgi import Call, Site, to_json, whole_of
from edgeserve.fronts.http.backend import Backend
from edgeserve.fronts.http.chat import can_chat
from edgeserve.fronts.http.chat_routes import EVENT_STREAM
from edgeserve.taps.timeline import Timeline
from edgeserve.taps.trace import step_of

FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page/try.js": ("try.js", b"text/javascript; charset=utf-8"),
}
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        b"media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]

LOOK_S = 1.0
LOOKS_KEPT = 60
"""The number of looks kept, one per second: a later viewer sees the last minute too."""

STEPS_S = 0.5
STEPS_BYTES_PER_S = 24 * 1024
"""The average rate at which recorded steps are read: about 30 small requests a second are shown without a gap."""

REST_S_MIN = 4.0
"""A shorter pause of the steps is no pause: they are read without a gap."""

NO_STEP = 2**62
"""Asked for behind this one, the server keeps no more steps: keeping them costs every request some of its time."""

VIEWERS_MAX, VIEWERS_OF_ONE_MAX = 64, 8
"""The most viewers in all, and of one origin: each costs the bytes of every look."""

VIEW_PIECES_MAX = 16
"""The most pieces that wait for a slow viewer; further ones are dropped for it."""

HIDDEN = "this front has several tokens, and single requests may be those of another client; use 'edgeserve top --web'"

APP_KEYS = (
    "outcomes",
    "reasons",
    "late",
    "open",
    "latency_histogram",
    "breakdown_ms",
    "policy",
    "slo_ms",
    "expected_ms",
)
LANE_KEYS = ("works", "jobs", "busy", "refused", "failed", "in_flight", "state")


class PageRoutes:
    """The routes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._backend = site.backend
        self._seats = Seats(VIEWERS_MAX, VIEWERS_OF_ONE_MAX)
        self._view = View(site.backend, self._why_hidden)

    def routes(self) -> List[Route]:
        """The files say nothing of the server, so that they need no token; everything else does."""
        return [
            *[Route(path, _File(*file), methods=["GET"]) for path, file in FILES.items()],
            self._site.route("/page/stream", self.stream, "GET"),
            self._site.route("/page/apps", self.apps, "GET"),
            self._site.route("/page/story/{id}", self.story, "GET"),
        ]

    def end(self) -> None:
        """End the viewers' streams: the front stops."""
        self._seats.end()

    def _why_hidden(self) -> str:
        """The reason why no single requests are shown, or ``""``."""
        return HIDDEN if len(self._site.tokens) > 1 else ""

    async def apps(self, call: Call) -> None:
        """Answer with the facts of each app that "try it" needs."""
        apps = await self._backend.apps()
        await call.answer(
            {
                name: {
                    **{key: app.get(key) for key in ("inputs", "class", "nodes", "needs_stream")},
                    "chat": can_chat(app),
                }
                for name, app in apps.items()
            }
        )

    async def story(self, call: Call) -> None:
        """Answer with the story of one request."""
        if self._why_hidden():
            raise Forbidden(self._why_hidden())
        number = whole_of(call.path("id"))
        if number < 0:
            raise Malformed(f"{call.path('id')[:40]!r} is no request's id; expected a whole number")
        await call.answer({"story": await self._backend.asking.story(number)})

    async def stream(self, call: Call) -> None:
        """Server-sent events until the viewer goes, or another takes its place."""
        headers = [*EVENT_STREAM, *HEADERS[1:2]]
        if call.scope["method"] == "HEAD":
            await call.start(200, headers)
            return await call.write(b"")
        pieces = self._view.pieces()
        try:
            async with call.until_gone(), seated(self._seats, call.origin):
                await call.start(200, headers)
                async for piece in pieces:
                    call.check_token()
                    await call.write(piece, more=True)
            await call.write(b"")
        except Unauthorized as error:
            told = event("failed", {"code": error.code, "error": str(error)})
            await call.write(told)  # and this is its end
        finally:
            await pieces.aclose()


class _File:
    """The ASGI application of one file of the page."""

    def __init__(self, name: str, content_type: bytes) -> None:
        with open(os.path.join(os.path.dirname(__file__), "page", name), "rb") as file:
            self._body = file.read()
        length = (b"content-length", str(len(self._body)).encode())
        self._headers = [(b"content-type", content_type), length, *HEADERS]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self._body})


class View:
    """The events that viewers see, as server-sent events: all but single requests while ``hidden`` says why not. Asks
    the server while there is a viewer. For the event loop's thread."""

    def __init__(self, backend: Backend, hidden: Callable[[], str]) -> None:
        self._backend = backend
        self._hidden = hidden
        self._viewers: List[asyncio.Queue[bytes]] = []
        self._tasks: List[asyncio.Task[None]] = []
        self._looks: Deque[Mapping[str, Any]] = deque(maxlen=LOOKS_KEPT)
        self._history = b""  # the event that tells all of them, where it is made already
        self._started_anew = False  # another server answers: its steps are counted from the first

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The events for one viewer: the last minute's, then the new ones."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(VIEW_PIECES_MAX)
        self._history = self._history or event("looks", list(self._looks))
        queue.put_nowait(self._history)
        if self._hidden():
            queue.put_nowait(event("no_steps", {"code": Forbidden.code, "error": self._hidden()}))
        self._viewers.append(queue)
        if len(self._viewers) == 1:
            self._tasks = [asyncio.ensure_future(self._look())]
            if not self._hidden():
                self._tasks.append(asyncio.ensure_future(self._follow()))
        try:
            while True:
                yield await queue.get()
        finally:
            self._viewers.remove(queue)
            if not self._viewers:
                for task in self._tasks:
                    task.cancel()
                self._looks.clear()
                self._history = b""

    def _publish(self, piece: bytes) -> None:
        for queue in self._viewers:
            if not queue.full():
                queue.put_nowait(piece)

    async def _look(self) -> None:
        while True:
            try:
                look = look_of(await self._backend.ask("stats"))
                if self._looks and look["uptime_s"] < self._looks[-1]["uptime_s"]:
                    self._looks.clear()
                    self._started_anew = True
                self._looks.append(look)
                self._history = b""
                self._publish(event("looks", [look]))
            except EdgeServeError as error:
                self._publish(event("failed", {"code": error.code, "error": str(error)}))
            await asyncio.sleep(LOOK_S)

    async def _follow(self) -> None:
        """The steps: without a gap while they are few, else a page of them now and then."""
        loop = asyncio.get_running_loop()
        timeline, after, bytes_ahead = Timeline(), 0, 0.0
        while True:
            if self._hidden():
                return self._publish(event("no_steps", {"code": Forbidden.code, "error": self._hidden()}))
            if self._started_anew:
                timeline, after, self._started_anew = Timeline(), 0, False
            try:
                entries, page, size = await loop.run_in_executor(None, self._steps, timeline, after)
            except EdgeServeError as error:
                self._publish(event("no_steps", {"code": error.code, "error": str(error)}))
                timeline, after = Timeline(), 0
                await asyncio.sleep(REST_S_MIN)
                continue
            after, bytes_ahead = page["after"], max(0.0, bytes_ahead + size - STEPS_S * STEPS_BYTES_PER_S)
            rests_s = bytes_ahead / STEPS_BYTES_PER_S
            rests = rests_s > REST_S_MIN
            if entries:
                table = {"now_us": page["now_ns"] / 1000, "entries": entries, "rests_s": rests_s if rests else 0}
                self._publish(event("steps", table))
            if rests:
                with contextlib.suppress(EdgeServeError):
                    await loop.run_in_executor(None, self._backend.client.trace, NO_STEP)
                timeline, bytes_ahead = Timeline(), 0.0
            await asyncio.sleep(rests_s if rests else STEPS_S)

    def _steps(self, timeline: Timeline, after: int) -> Tuple[List[Mapping[str, Any]], Dict[str, Any], int]:
        """A page of steps as entries of a timeline, and the bytes that were read; runs on another thread."""
        page = self._backend.client.trace(after)
        for line in page["lines"]:
            timeline.add(*step_of(line))
        return timeline.take() if page["lines"] else [], page, sum(map(len, page["lines"]))


def look_of(stats: Mapping[str, Any]) -> Dict[str, Any]:
    """The part of ``stats`` that the page shows."""
    return {
        "uptime_s": stats["uptime_s"],
        "open": stats["open"],
        "pending_max": stats["pending_max"],
        "apps": {name: {key: row.get(key) for key in APP_KEYS} for name, row in stats["apps"].items()},
        "lanes": {name: {key: row[key] for key in LANE_KEYS} for name, row in stats["lanes"].items()},
        "devices": stats["devices"],
        "device": stats.get("device", {}),
    }


def event(name: str, value: Any) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + to_json(value) + b"\n\n"
