"""The contract of :class:`edgeserve.front.Front` as tests: subclass once per front, give it a client, run pytest.

What is asserted here holds for every front that ships with EdgeServe: each end of a request becomes what the protocol
has for it, a client that goes ends its requests, and no client keeps others waiting. What a protocol's answers look
like is the front's own tests' business.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, ClassVar, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np
import pytest

from edgeserve.client import AsyncClient, Client
from edgeserve.config.loading import parse_config
from edgeserve.errors import UnknownApp
from edgeserve.front import Front
from edgeserve.runtime import Runtime
from edgeserve.testing import front_functions
from edgeserve.waits import await_within

ANSWERED, EMPTY = "answered", "empty"
UNKNOWN, REFUSED, LATE, FAILED, SERVER_GONE, TOO_LARGE = (
    "unknown_app",
    "refused",
    "late",
    "failed",
    "server_gone",
    "too_large",
)

KIND_OF_CODE = {
    "unknown_app": UNKNOWN,
    "rejected": REFUSED,
    "dropped": LATE,
    "deadline_expired": LATE,
    "timed_out": LATE,
    "failed": FAILED,
    "server_gone": SERVER_GONE,
    "too_large": TOO_LARGE,
}
"""Code of an error of :mod:`edgeserve.errors` -> what a driver tells."""

NAMES = (
    *("a/b", "a+b", "a#b", "a.b", "a_b", "a b", "x:latest", "Qwen/Qwen3", "%2F", "100%", "名前", "🙂"),
    *("ready", "x/infer", "v/versions/1", "$SYS", "{{ a }}", "a?b=c", " a"),  # words of protocols
)

ODD: Mapping[str, Any] = {
    "no number": np.full(4, np.nan),
    "not a number": np.float64("nan"),
    "JSON": '{"a": [1]}',
    "nothing": np.zeros((0, 3), np.float32),
    "one number": np.float64(1e30),
    "complex": np.ones((9, 40), np.complex64),
    "infinite": np.full((9, 40), np.inf, np.float32),
    "texts of two axes": np.array([["a", "b"], ["c", "d"]], object),
    "bytes": b"\xff\x00",
    "control characters": "\x1b[2J\r\n\u202e\x00",
    "texts": np.array(["a", "b"], object),
    "many axes": np.zeros((1, 1, 1, 1, 1, 2), np.int64),
    "half of a character": "\ud800",
    "the largest numbers": np.full((9, 40), 2**64 - 1, np.uint64),
    "booleans": np.ones((9, 40), np.bool_),
    "an empty text": "",
    "a large number of Python": 10**400,
}
"""Outputs that an app answers in place of the expected ones."""

WAIT_S = 15.0
"""Seconds after which a step that is not over hangs: a failure, not a slow machine."""

GONE_S = 3.0
"""Seconds in which the request of a client that has gone is cancelled: less than its time-out and its deadline."""

END_S = 3.0
"""Seconds beyond its drain in which a front has ended."""

TOGETHER = 24


class FrontConformance:
    """The suite. A subclass says how its front is made (:meth:`make`) and asked (:meth:`ask`), and what its protocol
    cannot say."""

    INPUTS: ClassVar[Mapping[str, Any]]  # what the apps declare, so that the front can ask them
    OUTPUTS: ClassVar[Mapping[str, Any]]  # what they answer
    APP: ClassVar[Mapping[str, Any]] = {}  # more keys of [app.NAME]

    CLIENTS_NAME_APPS: ClassVar[bool] = True  # else the settings name the one app of a front

    SAYS: ClassVar[Mapping[str, Tuple[str, str]]] = {}
    """Kind of end -> what the protocol has instead, and why."""

    CANNOT: ClassVar[Mapping[str, str]] = {}
    """Test, without ``test_`` -> why its case does not exist for the protocol."""

    # --- the driver ---------------------------------------------------------------------------------------------------

    def make(self, client: AsyncClient, app: str) -> Front:
        """A front that listens on a free port. ``app``: the one that its settings name, where clients name none."""
        raise NotImplementedError

    async def ask(self, place: str, app: str) -> str:
        """Ask ``app`` once at ``place``, by a client of its own, and return how that ended: :data:`ANSWERED`,
        :data:`EMPTY`, or an error's kind, by :data:`KIND_OF_CODE`."""
        raise NotImplementedError

    async def ask_too_much(self, place: str, app: str) -> str:
        """The same with a request that is larger than the front takes."""
        raise NotImplementedError

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        """Ask as much as a client can without reading an answer. Returns what closes its connection."""
        raise NotImplementedError

    # --- what the tests share -----------------------------------------------------------------------------------------

    _ended: ClassVar[ExitStack]
    _server: ClassVar[Runtime]

    @classmethod
    def setup_class(cls) -> None:
        """Start the one server of a class's tests."""
        cls._ended = ExitStack()
        cls._server = cls._ended.enter_context(cls().serving())

    @classmethod
    def teardown_class(cls) -> None:
        """End it."""
        cls._ended.close()

    @pytest.fixture
    def server(self) -> Runtime:
        """A server whose apps end in each way, and have each name."""
        return self._server

    @pytest.fixture(autouse=True)
    def _may_be_said(self, request: pytest.FixtureRequest) -> None:
        why = self.CANNOT.get(request.node.originalname[len("test_") :])
        if why:
            pytest.skip(why)

    def serving(self) -> Any:
        """The context of a server."""
        front_functions.outputs.clear()
        front_functions.outputs.update(self.OUTPUTS)
        front_functions.inputs.clear()
        front_functions.inputs.update({name: _example(about) for name, about in self.INPUTS.items()})
        front_functions.gate.clear()
        return _Served(self._tables())

    @contextmanager
    def _occupied(self, server: Runtime, app: str) -> Iterator[None]:
        """While another client's request is at an app that waits."""
        with Client(server.endpoints[0]) as client:
            client.submit(app, front_functions.inputs)
            asyncio.run(until(lambda: server.stats()["apps"][app]["open"] >= 1))
            yield

    def _tables(self) -> Dict[str, Any]:
        app = {"slo": "10s", "inputs": dict(self.INPUTS), **self.APP}
        models = {
            "answers": _function("answers"),
            "fails": _function("fails"),
            "odd": _function("answers_oddly"),
            "waits": _function("waits", "waiting"),
            "blocks": _function("waits", "blocked"),
            "late": _function("answers", "blocked"),
            "full": _function("waits", "full"),
        }
        apps = {name: {"model": name, **app} for name in models}
        apps["late"].update(slo="200ms", on_late="drop")
        apps["full"]["pending_max"] = 1
        return {
            "lane": {lane: {} for lane in ("cpu0", "waiting", "blocked", "full")},
            "model": models,
            "app": {**apps, **{name: {"model": "answers", **app} for name in NAMES}},
        }

    @asynccontextmanager
    async def fronted(self, runtime: Runtime, app: str = "answers") -> AsyncIterator[str]:
        """A front on this loop, and the first place that it tells."""
        place, stopped = asyncio.get_running_loop().create_future(), asyncio.Event()
        async with AsyncClient(runtime.endpoints[0], connect_ms=1_000.0, timeout_ms=5_000.0) as client:
            front = self.make(client, app)
            await front.look()

            def ready(*places: str) -> None:
                if not place.done():
                    place.set_result(places)

            serving = asyncio.ensure_future(front.serve(stopped, ready))
            await asyncio.wait({serving, place}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert place.done(), f"the front is not ready: {serving}"
            try:
                yield self.place_of(place.result())
            finally:
                stopped.set()
                try:
                    await await_within(serving, END_S + front.drain_s(front.settings))
                finally:
                    front_functions.gate.set()

    def place_of(self, places: Tuple[str, ...]) -> str:
        """The place, among the ones that a front tells, at which :meth:`ask` asks."""
        return places[0]

    def expected(self, kind: str) -> str:
        """The protocol's word for a kind of end."""
        return self.SAYS.get(kind, (kind, ""))[0]

    def ends_as(self, runtime: Runtime, app: str, kind: str) -> None:
        """Ask ``app``; the answer is ``kind``, and the front serves the next client."""

        async def run() -> None:
            async with self.fronted(runtime, app) as place:
                found = await within(self.ask(place, app))
                assert found == self.expected(kind), f"{app}: {found}, expected {self.expected(kind)}"
                if self.CLIENTS_NAME_APPS:
                    assert await within(self.ask(place, "answers")) == ANSWERED

        asyncio.run(run())

    # --- the contract -------------------------------------------------------------------------------------------------

    def test_an_app_answers(self, server: Runtime) -> None:
        self.ends_as(server, "answers", ANSWERED)

    def test_an_unknown_app(self, server: Runtime) -> None:
        """Clients are told; a front whose settings name it does not start."""
        if self.CLIENTS_NAME_APPS:
            return self.ends_as(server, "no such app", UNKNOWN)

        async def run() -> None:
            async with AsyncClient(server.endpoints[0]) as client:
                with pytest.raises(UnknownApp, match="no such app"):
                    await self.make(client, "no such app").look()

        asyncio.run(run())

    def test_a_late_answer(self, server: Runtime) -> None:
        """A request whose deadline passes while it waits for its lane."""
        front_functions.gate.clear()
        with self._occupied(server, "blocks"):
            self.ends_as(server, "late", LATE)

    def test_a_refusal(self, server: Runtime) -> None:
        """A request to an app that has as many as it takes."""
        front_functions.gate.clear()
        with self._occupied(server, "full"):
            self.ends_as(server, "full", REFUSED)

    def test_a_failure(self, server: Runtime) -> None:
        self.ends_as(server, "fails", FAILED)

    def test_odd_outputs(self, server: Runtime, caplog: pytest.LogCaptureFixture) -> None:
        """An app may answer anything: the front says so, as its protocol does, and serves the next client."""

        async def run() -> None:
            async with self.fronted(server, "odd") as place:
                for kind, odd in ODD.items():
                    for name in self.OUTPUTS:
                        front_functions.odd.clear()
                        front_functions.odd.update({**self.OUTPUTS, name: odd})
                        assert await within(self.ask(place, "odd")), kind
                    front_functions.odd.clear()
                    front_functions.odd.update(self.OUTPUTS)
                    found = [await within(self.ask(place, "odd"))]
                    while ANSWERED not in found and len(found) < 3:  # a source has older frames
                        found.append(await within(self.ask(place, "odd")))
                    assert ANSWERED in found, f"after {kind}: {found}"
                    faults = [record for record in caplog.records if record.exc_info]
                    assert faults == [], f"{kind}: a fault of the front"

        asyncio.run(run())

    def test_a_client_that_goes_ends_its_request(self, server: Runtime) -> None:
        front_functions.gate.clear()

        async def run() -> None:
            async with self.fronted(server, "waits") as place:
                before = cancelled(server)
                asking = asyncio.ensure_future(self.ask(place, "waits"))
                await until(lambda: server.stats()["apps"]["waits"]["open"] == 1)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await until(lambda: cancelled(server) == before + 1, GONE_S)
                if self.CLIENTS_NAME_APPS:
                    assert await within(self.ask(place, "answers")) == ANSWERED

        asyncio.run(run())

    def test_a_server_that_goes(self) -> None:
        async def run() -> None:
            runtime = self.serving()
            async with self.fronted(runtime.__enter__()) as place:
                try:
                    assert await within(self.ask(place, "answers")) == ANSWERED
                finally:
                    await asyncio.get_running_loop().run_in_executor(None, runtime.__exit__, None, None, None)
                assert await within(self.ask(place, "answers")) == self.expected(SERVER_GONE)

        asyncio.run(run())

    def test_too_large_a_request(self, server: Runtime) -> None:
        async def run() -> None:
            async with self.fronted(server) as place:
                assert await within(self.ask_too_much(place, "answers")) == self.expected(TOO_LARGE)
                assert await within(self.ask(place, "answers")) == ANSWERED

        asyncio.run(run())

    def test_a_client_that_does_not_read_keeps_nobody_waiting(self, server: Runtime) -> None:
        async def run() -> None:
            async with self.fronted(server) as place:
                close = await within(self.ask_unread(place, "answers"))
                try:
                    assert await within(self.ask(place, "answers")) == ANSWERED
                finally:
                    close()

        asyncio.run(run())

    def test_many_clients_at_a_time(self, server: Runtime) -> None:
        async def run() -> None:
            async with self.fronted(server) as place:
                found = await within(asyncio.gather(*[self.ask(place, "answers") for _ in range(TOGETHER)]))
                assert set(found) == {ANSWERED}

        asyncio.run(run())

    def test_odd_names(self, server: Runtime) -> None:
        async def run() -> None:
            async with self.fronted(server) as place:
                found = {name: await within(self.ask(place, name)) for name in NAMES}
                assert set(found.values()) == {ANSWERED}, found

        if self.CLIENTS_NAME_APPS:
            return asyncio.run(run())
        for name in NAMES:
            self.ends_as(server, name, ANSWERED)

    def test_an_open_request_does_not_keep_it_from_ending(self, server: Runtime) -> None:
        """``serve`` returns within its drain of ``stopped``: see :meth:`fronted`."""
        front_functions.gate.clear()

        async def run() -> None:
            async with self.fronted(server, "waits") as place:
                asking = asyncio.ensure_future(self.ask(place, "waits"))
                await until(lambda: server.stats()["apps"]["waits"]["open"] >= 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(run())


def _function(name: str, lane: str = "cpu0") -> Dict[str, Any]:
    return {"engine": "python", "function": f"{front_functions.__name__}:{name}", "lanes": [lane]}


def _example(about: Mapping[str, Any]) -> Any:
    if about["dtype"] == "text":
        return "hi"
    return np.zeros([1 if length < 0 else length for length in about["shape"]], about["dtype"])


class _Served:
    """A server of these tables, in a folder with a short path: sockets allow 107 characters."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = tables
        self._folder = ""
        self._runtime: Optional[Runtime] = None

    def __enter__(self) -> Runtime:
        self._folder = tempfile.mkdtemp(prefix="es")
        server = {"endpoint": f"ipc://{self._folder}/bus/socket"}
        self._runtime = Runtime(parse_config({**self._tables, "server": server}, directory=self._folder), serve=True)
        return self._runtime.__enter__()

    def __exit__(self, *error: Any) -> None:
        front_functions.gate.set()
        if self._runtime is not None:
            self._runtime.__exit__(*error)
        shutil.rmtree(self._folder, ignore_errors=True)


def cancelled(runtime: Runtime) -> int:
    """Requests to the app that waits which were cancelled."""
    return int(runtime.stats()["apps"]["waits"]["outcomes"]["cancelled"])


async def within(work: Awaitable[Any]) -> Any:
    """The result, in time."""
    return await await_within(work, WAIT_S)


async def until(holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Wait until it holds."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while not await loop.run_in_executor(None, holds):
        assert loop.time() < end_s, "it did not happen in time"
        await asyncio.sleep(0.02)
