"""Whoever asked: a caller in this process (a future) or a client on the bus. Both are told the one end of a request.

Only the loop's thread calls these.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Callable, Optional

from edgeserve.answers import SPENT_KEYS, Answer
from edgeserve.engines.base import Values
from edgeserve.errors import RequestError
from edgeserve.sched.protocol.actions import Spent
from edgeserve.units import ns_to_ms

if TYPE_CHECKING:
    from edgeserve.live.gateway import FrontDoor


class RequestFuture(Future):  # type: ignore[type-arg]  # Future is no generic class at run time on Python 3.8
    """The answer to come. ``cancel()`` takes the request out of the queue (what runs already is ignored); it is safe
    from any thread."""

    def __init__(self, on_cancel: Callable[[RequestFuture], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self.held: Any = None

    def cancel(self) -> bool:
        already = self.cancelled()
        cancelled = super().cancel()
        if cancelled and not already:
            self._on_cancel(self)
        return cancelled


class FutureOrigin:
    """A caller in this process."""

    __slots__ = ("future",)
    client = ""
    connection: Optional[bytes] = None

    def __init__(self, future: RequestFuture) -> None:
        self.future = future

    def answer(self, outputs: Values, reason: str, late: bool, now_ns: int, total_ns: int, spent: Spent) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(Answer(
                outputs, late=late, reason=reason, total_ms=ns_to_ms(total_ns),
                spent_ms={key: ns_to_ms(part) for key, part in zip(SPENT_KEYS, spent)}))

    def refuse(self, error: RequestError) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class BusOrigin:
    """A client on the bus: ``connection`` and its own ``key`` of the request."""

    __slots__ = ("door", "connection", "key", "client")

    def __init__(self, door: FrontDoor, connection: bytes, key: Any, client: str) -> None:
        self.door = door
        self.connection = connection
        self.key = key
        self.client = client

    def answer(self, outputs: Values, reason: str, late: bool, now_ns: int, total_ns: int, spent: Spent) -> None:
        self.door.drained = False
        self.door.bus.answer(self.connection, self.key, outputs, reason=reason, late=late, finished_ns=now_ns,
                             total_ns=total_ns, spent=spent)

    def refuse(self, error: RequestError) -> None:
        self.door.drained = False
        self.door.bus.error(self.connection, self.key, error)
