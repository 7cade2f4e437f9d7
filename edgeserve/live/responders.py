"""The receivers of a request's one end: a client on the bus, or a caller in this process that holds a future.

Only the loop's thread tells them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, Sequence, Set

from edgeserve.answers import BREAKDOWN_KEYS, UNREAD, Answer, PendingAnswer
from edgeserve.engines.base import Values
from edgeserve.errors import RequestError
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.units import NS_PER_MS


class Responder(Protocol):
    """Answers the client or caller. ``request`` is the live record of the request; the bus (``ipc/bus.py``) is a
    responder for all of its requests, a :class:`RequestFuture` for its own."""

    def answer(
        self,
        request: Any,
        outputs: Values,
        reason: str,
        late: bool,
        finished_ns: int,
        total_ns: int,
        breakdown: LatencyBreakdown,
        quality: Optional[float] = None,
        branches: Sequence[str] = (),
        variant: str = "",
    ) -> None:
        """Answer a request that completed. ``quality``, ``branches`` and ``variant`` are those of
        :class:`~edgeserve.answers.Answer`."""

    def refuse(self, request: Any, error: RequestError) -> None:
        """Answer a request that ended without outputs, with its error."""

    def piece(self, request: Any, outputs: Values) -> str:
        """A piece of the answer to a request that asked for pieces. Why the request is to be cancelled, or ``""``."""


class RequestFuture(PendingAnswer):
    """The answer to a request that has not ended. ``cancel()``, from any thread, takes the request out of the queue;
    the result of a batch that runs already is ignored. At its end it leaves ``unanswered``."""

    if TYPE_CHECKING:

        def result(self, timeout: float | None = None) -> Answer: ...

    def __init__(self, on_cancel: Callable[[RequestFuture, bool], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel
        self.unanswered: Set[RequestFuture] = set()
        self.request: Any = None

    @property
    def id(self) -> int:
        """The request's number, for ``Runtime.story``; it has one as soon as it was submitted."""
        return 0 if self.request is None else int(self.request.id)

    def cancel(self) -> bool:
        already = self.cancelled()
        cancelled = super().cancel()
        if cancelled and not already:
            self.unanswered.discard(self)
            self._on_cancel(self, False)
        return cancelled

    def end_early(self) -> None:
        self._on_cancel(self, True)

    def answer(
        self,
        request: Any,
        outputs: Values,
        reason: str,
        late: bool,
        finished_ns: int,
        total_ns: int,
        breakdown: LatencyBreakdown,
        quality: Optional[float] = None,
        branches: Sequence[str] = (),
        variant: str = "",
    ) -> None:
        """See :class:`Responder`."""
        if self.set_running_or_notify_cancel():
            self.set_result(
                Answer(
                    outputs,
                    id=request.id,
                    late=late,
                    reason=reason,
                    total_ms=total_ns / NS_PER_MS,
                    quality=quality,
                    branches=branches,
                    variant=variant,
                    breakdown_ms={
                        BREAKDOWN_KEYS[0]: breakdown[0] / NS_PER_MS,
                        BREAKDOWN_KEYS[1]: breakdown[1] / NS_PER_MS,
                        BREAKDOWN_KEYS[2]: breakdown[2] / NS_PER_MS,
                        BREAKDOWN_KEYS[3]: breakdown[3] / NS_PER_MS,
                    },
                )
            )
        self.unanswered.discard(self)

    def piece(self, request: Any, outputs: Values) -> str:
        """See :class:`Responder`."""
        return "" if self.stream is None or self.stream.put(outputs) else UNREAD

    def refuse(self, request: Any, error: RequestError) -> None:
        """See :class:`Responder`."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)
        self.unanswered.discard(self)
