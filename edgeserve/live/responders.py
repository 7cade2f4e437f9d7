"""Whoever asked: a caller in this process (a future) or a client on the bus. Both are told the one end of a request.

Only the loop's thread calls these.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Callable, Optional

from edgeserve.answers import BREAKDOWN_KEYS, Answer
from edgeserve.engines.base import Values
from edgeserve.errors import RequestError
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.units import ns_to_ms

if TYPE_CHECKING:
    from edgeserve.live.gateway import Gateway


class RequestFuture(Future):  # type: ignore[type-arg]  # Future is no generic class at run time on Python 3.8
    """The answer to come. ``cancel()`` takes the request out of the queue (what runs already is ignored); it is safe
    from any thread."""

    def __init__(self, on_cancel: Callable[[RequestFuture], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self.request: Any = None

    def cancel(self) -> bool:
        already = self.cancelled()
        cancelled = super().cancel()
        if cancelled and not already:
            self._on_cancel(self)
        return cancelled


class FutureResponder:
    """A caller in this process."""

    __slots__ = ("future",)
    client = ""
    connection: Optional[bytes] = None

    def __init__(self, future: RequestFuture) -> None:
        self.future = future

    def answer(self, outputs: Values, reason: str, late: bool, now_ns: int, total_ns: int,
               breakdown: LatencyBreakdown) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(Answer(
                outputs, late=late, reason=reason, total_ms=ns_to_ms(total_ns),
                breakdown_ms={key: ns_to_ms(part) for key, part in zip(BREAKDOWN_KEYS, breakdown)}))

    def refuse(self, error: RequestError) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class BusResponder:
    """A client on the bus: ``connection`` and its own ``key`` of the request."""

    __slots__ = ("gateway", "connection", "key", "client")

    def __init__(self, gateway: Gateway, connection: bytes, key: Any, client: str) -> None:
        self.gateway = gateway
        self.connection = connection
        self.key = key
        self.client = client

    def answer(self, outputs: Values, reason: str, late: bool, now_ns: int, total_ns: int,
               breakdown: LatencyBreakdown) -> None:
        self.gateway.drained = False
        self.gateway.bus.answer(self.connection, self.key, outputs, reason=reason, late=late, finished_ns=now_ns,
                             total_ns=total_ns, breakdown=breakdown)

    def refuse(self, error: RequestError) -> None:
        self.gateway.drained = False
        self.gateway.bus.error(self.connection, self.key, error)
