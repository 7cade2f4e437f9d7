"""The memory of a request that has ended: nothing, also before the garbage collector runs."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from edgeserve.errors import Dropped, Rejected
from edgeserve.fronts.http.backend import Backend
from edgeserve.fronts.http.settings import HttpConfig


class Ending:
    """A client whose requests end at once."""

    def __init__(self, end):
        self._end = end

    def submit(self, app, inputs, **options):
        pending = Future()
        pending.inputs = inputs
        asyncio.get_running_loop().call_soon(self._end, pending)
        return pending


class Answered:
    def __init__(self):
        self.outputs = {"y": np.zeros(4, np.float32)}


@pytest.fixture
def uncollected():
    gc.disable()
    yield
    gc.enable()


async def ask(backend):
    """A weak reference to the input of a request, and how the request ended."""
    x = np.zeros(4, np.float32)
    try:
        return weakref.ref(x), weakref.ref(await backend.infer("a", {"x": x}, {}))
    except Dropped as error:
        return weakref.ref(x), error.code


@pytest.mark.parametrize(
    "end", [lambda pending: pending.set_result(Answered()), lambda pending: pending.set_exception(Dropped("too late"))]
)
def test_nothing_is_kept_of_a_request_that_has_ended(uncollected, end):
    backend = Backend(SimpleNamespace(client=Ending(end)), HttpConfig(in_flight_max=1, timeout_ns=10**9))
    x, answer = asyncio.run(ask(backend))
    assert x() is None
    assert answer == "dropped" or answer() is None


def test_the_bytes_with_the_server_are_bounded_by_what_it_takes_of_one_connection_and_shared():
    class Server:
        async def ask(self, kind, timeout_ms):
            return {"client_bytes_max": 4000}

    class Waiting(Server):
        def submit(self, app, inputs, **options):
            return Future()

        client = property(lambda self: self)

    async def run():
        backend = Backend(Waiting(), HttpConfig())
        await backend.ask("health")
        x = {"x": np.zeros(1400, np.uint8), "text": "x" * 100, "number": 1.0}
        asking = [asyncio.ensure_future(backend.infer("a", x, {}, origin="one")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Rejected, match=r"raise \[server\] memory") as caught:
            await backend.infer("a", x, {}, origin="one")
        assert caught.value.reason == "too many in flight"
        other = asyncio.ensure_future(backend.infer("a", {"x": np.zeros(900, np.uint8)}, {}, origin="other"))
        await asyncio.sleep(0)
        assert not other.done() and backend.bytes.count < 4000
        for task in (*asking, other):
            task.cancel()
        await asyncio.gather(*asking, other, return_exceptions=True)
        assert backend.bytes.count == backend.places.count == 0

    asyncio.run(run())
