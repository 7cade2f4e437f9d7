"""The answer to one request: what :meth:`Runtime.infer` and the clients return when a request completed.

It knows no socket and no scheduler. An answer that comes in pieces is :mod:`edgeserve.answer_streams`'s. A request that
did not complete raises one of the errors of :mod:`edgeserve.errors` instead.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Iterator, Mapping, Optional, Protocol, Sequence

from edgeserve.errors import Cancelled, RequestError, UnknownOutput, did_you_mean
from edgeserve.errors import TimedOut as TimedOut  # where it was first
from edgeserve.interpreter import check_may_wait, may_wait

log = logging.getLogger("edgeserve")

BREAKDOWN_KEYS = ("queue", "load", "batch", "execute", "other")
"""The keys of an answer's breakdown of its time: waiting in the queue, waiting for its model to be loaded, launched but
behind other work on the lane, running, and what remains of the total: transport, checks, decisions, hand-over."""


class Answer(Mapping[str, Any]):
    """Named outputs of one completed request, and how it went. ``answer["y"]`` is ``answer.outputs["y"]``.

    ``outcome`` is ``"completed"``; ``late`` says that the deadline had passed by then; ``reason`` is empty unless the
    answer is partial, then it says why; ``breakdown_ms`` has the keys of :data:`BREAKDOWN_KEYS` and adds up to
    ``total_ms``, which runs to its end from when it was sent, or arrived where that is not known. ``id`` is the number
    that the server gave the request, for ``story``. ``branches`` names, in an app with a join, the nodes whose results
    were combined; the others were not there. ``quality`` is what a fitted ensemble's policy expects the answer to be
    worth beside that of all its models (for a classifier the chance that both agree), ``None`` where nothing tells.
    Where the app's model has variants, ``variant`` names the one that answered (else ``""``), and ``quality`` is that
    of this one."""

    __slots__ = (
        "outputs",
        "outcome",
        "late",
        "reason",
        "breakdown_ms",
        "total_ms",
        "id",
        "quality",
        "branches",
        "variant",
    )

    def __init__(
        self,
        outputs: Dict[str, Any],
        outcome: str = "completed",
        late: bool = False,
        breakdown_ms: Mapping[str, float] | None = None,
        total_ms: float = 0.0,
        reason: str = "",
        id: int = 0,
        quality: Optional[float] = None,
        branches: Sequence[str] = (),
        variant: str = "",
    ) -> None:
        self.outputs = outputs
        self.outcome = outcome
        self.late = late
        self.reason = reason
        self.breakdown_ms: Dict[str, float] = dict.fromkeys(BREAKDOWN_KEYS, 0.0)
        self.breakdown_ms.update(breakdown_ms or {})
        self.breakdown_ms["other"] = max(0.0, total_ms - sum(self.breakdown_ms.values()))
        self.total_ms = total_ms
        self.id = id
        self.quality = quality
        self.branches = tuple(branches)
        self.variant = variant

    def __getitem__(self, name: str) -> Any:
        try:
            return self.outputs[name]
        except KeyError:
            has = ", ".join(map(repr, sorted(self.outputs))) or "no output at all"
            raise UnknownOutput(
                f"the answer has no output {name!r}{did_you_mean(str(name), self.outputs)} It has {has}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        breakdown = ", ".join(f"{key} {value:.2f}" for key, value in self.breakdown_ms.items())
        late = ", late" if self.late else ""
        worth = "" if self.quality is None else f", quality {self.quality:.3f}"
        worth += f" of {', '.join(self.branches) or self.variant}" if self.branches or self.variant else ""
        return f"Answer({sorted(self.outputs)}, {self.outcome}{late}{worth}, {self.total_ms:.2f} ms: {breakdown})"


PIECES_UNREAD_MAX = 1024
"""Pieces of one answer that its reader may leave unread. One more, and the request is cancelled."""

UNREAD = f"its reader left {PIECES_UNREAD_MAX} pieces of the answer unread"
"""The reason why such a request is cancelled."""


class TakesPieces(Protocol):
    """An answer in pieces, as the thread that brings them sees it."""

    def put(self, piece: Dict[str, Any]) -> bool:
        """A piece has come; False when too many are unread."""

    def end(self) -> None:
        """No more pieces come."""


if TYPE_CHECKING:
    _AnyFuture = Future[Any]
else:
    _AnyFuture = Future  # no generic class at run time on Python 3.8


class PendingAnswer(_AnyFuture):
    """An answer to come, and ``stream``, which takes its pieces. It comes to the process that asked, on a thread that
    may not wait for it: waiting there raises :class:`~edgeserve.errors.RequestError`."""

    stream: TakesPieces | None = None

    def end_early(self) -> None:
        """Have it end now: the answer is what a language model has written of it, else the error that it is
        cancelled."""
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> Any:
        """See :class:`concurrent.futures.Future`."""
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See :class:`concurrent.futures.Future`."""
        self._check_may_wait()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], Any]) -> None:
        """See :class:`concurrent.futures.Future`. On the thread that gives the answers a callback may raise anything:
        it is logged."""
        super().add_done_callback(partial(_called_back, fn))

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # 3 MB that a program of threads does without

        return asyncio.wrap_future(self).__await__()

    def give_up_in_child(self, error: RequestError) -> None:
        """This is the copy of a forked child, where the answer will not come. Callbacks are the parent's: none is
        called."""
        Future.__init__(self)  # the copied lock may be one that a thread of the parent held
        self.set_exception(error)
        if self.stream is not None:
            self.stream.end()

    def _check_may_wait(self) -> None:
        if not may_wait() and not self.done():
            check_may_wait("the result of a request")


def _called_back(fn: Callable[[Future[Any]], Any], future: Future[Any]) -> None:
    try:
        fn(future)
    except Exception:
        raise  # the library logs it
    except BaseException as error:
        if may_wait():
            raise
        log.exception("a callback of request %s raised %s", getattr(future, "id", ""), type(error).__name__)


PIECES = "an answer in pieces"
BY_CALLER = "the request was cancelled by its caller"
LAST_S = 0.1
"""Seconds that an ended wait still allows for the partial answer, or for the reply that there is none."""


WAIT_MS_MAX = 1e12
"""30 years: longer waits are more than the system's clocks count."""


def end_early(pending: Future[Any]) -> None:
    """Request the partial answer; cancel a request whose answer can only be whole."""
    if isinstance(pending, PendingAnswer):
        pending.end_early()
    else:
        pending.cancel()


def seconds(timeout_ms: Optional[float]) -> Optional[float]:
    """A time limit in seconds, as the standard library counts."""
    return None if timeout_ms is None else float(min(timeout_ms, WAIT_MS_MAX)) / 1000  # numpy's numbers, too


def timed_out(what: str, timeout_ms: Optional[float], pending: Future[Any]) -> TimedOut:
    """The error of a request whose answer did not come in time."""
    error = TimedOut(f"{what}: no answer within {timeout_ms or 0:g} ms; the request was cancelled")
    error.id = getattr(pending, "id", 0)
    return error


def answer_within(pending: Future[Any], timeout_ms: Optional[float], what: str) -> Any:
    """The answer, within so long; else what was written of it by then. Raises :class:`TimedOut` where that is
    nothing. ``what`` was asked, for its text."""
    try:
        try:
            return pending.result(seconds(timeout_ms))
        except FutureTimeout:
            if pending.done() and not pending.cancelled():
                return pending.result()  # the reply came (or was itself a time-out) at the last moment
        end_early(pending)
        try:
            return pending.result(LAST_S)
        except (FutureTimeout, Cancelled, CancelledError) as error:
            if isinstance(error, TimedOut):
                raise
    except BaseException:
        pending.cancel()  # also Ctrl-C while waiting: the answer is not wanted any more
        raise
    pending.cancel()
    raise timed_out(what, timeout_ms, pending)


async def answer_awaited(pending: Future[Any], timeout_ms: Optional[float], what: str) -> Any:
    """Await what :func:`answer_within` waits for. Cancelling the awaiting task cancels the request."""
    import asyncio

    future = asyncio.wrap_future(pending)
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds(timeout_ms))
        if done:
            return future.result()
        end_early(pending)
        done, _ = await asyncio.wait({future}, timeout=LAST_S)
    except asyncio.CancelledError:
        pending.cancel()
        raise
    if done and not future.cancelled():
        try:
            return future.result()
        except Cancelled as error:
            if isinstance(error, TimedOut):
                raise
    pending.cancel()
    raise timed_out(what, timeout_ms, pending)
