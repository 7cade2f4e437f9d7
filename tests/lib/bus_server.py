"""A server that is only the bus: app ``echo`` returns its inputs, app ``sleep`` never answers by itself.

Stands in for the runtime in the tests of the bus and its clients; ``news`` is what the bus reported, for assertions.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, List

import msgpack
import zmq

from edgeserve.errors import Cancelled, ConfigError, DeadlineExpired, UnknownApp
from edgeserve.ipc import wire
from edgeserve.ipc.bounds import BusBounds, BusKeys
from edgeserve.ipc.bus import Ask, Bus, Cancel, ClientLost, Control
from edgeserve.units import NS_PER_MS


def bus_of(endpoint: str, clock: List[int] | None = None, *more: str, **bounds: Any) -> Bus:
    """A bus whose news the test itself reads. ``clock`` holds its time, which stands still; else it is real."""
    bounds = {"message_bytes_max": 10**6, "clients_max": 8, "client_silence_ns": 10**10, **bounds}
    return bus_with([endpoint, *more], time.monotonic_ns if clock is None else lambda: clock[0], bounds)


def bus_with(endpoints: List[str], clock_ns: Callable[[], int], options: Dict[str, Any]) -> Bus:
    """A bus whose bounds, keys and further arguments are among ``options``."""
    bounds, keys = (
        {name: value for name, value in options.items() if name in kind._fields} for kind in (BusBounds, BusKeys)
    )
    rest = {name: value for name, value in options.items() if name not in (*bounds, *keys)}
    return Bus(endpoints, BusBounds(**bounds), BusKeys(**keys), clock_ns=clock_ns, **rest)


def dealer(context: Any, endpoint: str, name: bytes = b"", kind: int = zmq.DEALER, **options: Any) -> Any:
    """A socket by hand, connected."""
    one = context.socket(kind)
    one.linger, one.rcvtimeo, one.sndtimeo = 0, 5000, 5000
    if name:
        one.setsockopt(zmq.ROUTING_ID, name)
    for option, value in options.items():
        setattr(one, option, value)
    one.connect(endpoint)
    return one


def header(**fields: Any) -> bytes:
    return b"\x01" + msgpack.packb(fields)


def reply_to(one: Any) -> Any:
    frames = one.recv_multipart()
    return wire.decode_reply(frames[1:] if frames[0] == b"" else frames, 10**9)  # an empty delimiter comes back


class BusServer:
    def __init__(self, endpoint: str, **options: Any) -> None:
        self.bounds: Dict[str, Any] = {
            "message_bytes_max": 8 * 1024**2,
            "clients_max": 64,
            "client_silence_ns": 10**10,
            **options,
        }
        self.wanted = endpoint
        self.endpoint = ""
        self.bus: Any = None  # for assertions about its tables
        self.news: List[Any] = []
        self.stopping = False
        self.told: Dict[Any, Any] = {}  # what control questions are answered with, instead of the usual
        self._ready = threading.Event()
        self._error: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BusServer:
        self.thread.start()
        assert self._ready.wait(10)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopping = True
        self.thread.join(10)
        assert not self.thread.is_alive()

    def seen(self, kind: type, timeout_s: float = 5.0) -> Any:
        """The first news of a kind, waiting for it."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for news in list(self.news):
                if type(news) is kind:
                    return news
            time.sleep(0.005)
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s; seen: {self.news}")

    def _run(self) -> None:
        try:
            bus = bus_with([self.wanted], time.monotonic_ns, self.bounds)
        except ConfigError as error:  # handed to the test that waits for the start
            self._error = error
            self._ready.set()
            return
        self.bus, self.endpoint = bus, bus.endpoints[0]
        bell, ringer = os.pipe()  # nothing rings: only messages end a wait
        self._ready.set()
        try:
            while not self.stopping:
                for news in bus.receive():
                    self.news.append(news)
                    self._handle(bus, news)
                now_ns = time.monotonic_ns()
                bus.wait(bell, now_ns, now_ns + 50 * NS_PER_MS)
        finally:
            bus.close()
            os.close(bell)
            os.close(ringer)

    def _handle(self, bus: Bus, news: Any) -> None:
        if type(news) is Ask:
            if news.slo_ms is not None and news.slo_ms <= 0:
                bus.refuse(news, DeadlineExpired("the deadline had passed when the request was sent"))
            elif news.app == "echo":
                bus.answer(news, news.inputs, total_ns=1000, breakdown=(1, 2, 3, 4))
            elif news.app == "odd":
                bus.answer(news, {"y": object()})
            elif news.app != "sleep":
                bus.refuse(news, UnknownApp(f"no app {news.app!r}"))
        elif type(news) is Cancel:
            bus.refuse(news.ask, Cancelled("cancelled by its client"))
        elif type(news) is Control:
            bus.control_reply(news, self.told or {"kind": news.kind, "ready": True})
        else:
            assert type(news) is ClientLost
