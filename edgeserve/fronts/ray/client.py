"""Asking a deployment: :class:`ClusterClient`, with the arguments, answers and errors of ``Runtime.infer``."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Protocol, Tuple, Type

from edgeserve.answer_streams import AnswerStream, AsyncAnswerStream
from edgeserve.answers import UNREAD, Answer
from edgeserve.errors import Cancelled, RequestError, ServerGone, TimedOut
from edgeserve.fronts.ray.calls import RayCall, RayReply, Told
from edgeserve.request_options import RequestOptions, given

if TYPE_CHECKING:
    from typing_extensions import Unpack

    AnswerFuture = Future[Answer]
else:
    AnswerFuture = Future  # no generic class at run time on Python 3.8


class RayPending(Protocol):
    """A reply that is on its way (``ray.serve.handle.DeploymentResponse``)."""

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for it. Raises ``TimeoutError``."""

    def cancel(self) -> None:
        """No client waits for it any more."""

    def __await__(self) -> Any:
        """The same inside a deployment."""


class ClusterClient:
    """Asks the runtimes behind a deployment's handle (``connect`` and ``serve.run`` return one). From any thread;
    ``infer_async`` is for other deployments."""

    def __init__(self, handle: Any, lost: Tuple[Type[BaseException], ...] = ()) -> None:
        self._handle = handle
        self._lost = lost

    def infer(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> Answer:
        """See :meth:`Runtime.infer`. The deadline counts from here, over every hop. :meth:`reply`
        also says which replicas had the request."""
        call = call_of(app, inputs, options)
        return answer_of(self.reply(call, timeout_ms), call)

    async def infer_async(self, app: str, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> Answer:
        """The same, awaited. Cancelling the task that waits cancels the request."""
        call = call_of(app, inputs, options)
        with self._typed(f"app {app!r}"):
            reply = await self._handle.infer.remote(call)
        return answer_of(reply, call)

    def stream(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> AnswerStream:
        """See :meth:`Runtime.stream`; a thread of its own reads what comes. A request whose replica refuses it or dies
        is tried elsewhere as long as no piece has come."""
        call = call_of(app, inputs, options)
        coming = self._coming(call)
        pieces = AnswerStream(timeout_ms).follow(coming)
        threading.Thread(target=self._read, args=(coming, pieces, call), name="edgeserve-pieces", daemon=True).start()
        return pieces

    def _read(self, coming: _Coming, pieces: AnswerStream, call: RayCall) -> None:
        try:
            for item in coming.items:
                coming.take(item, pieces, call)
            coming.end(ServerGone(f"app {call.app!r}: the deployment ended its pieces without a reply"))
        except BaseException as error:  # noqa: BLE001 who waits must be told
            coming.end(self._gone(f"app {call.app!r}", error) if isinstance(error, self._lost) else error)

    def stream_async(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncAnswerStream:
        """The same for other deployments: to be called while the event loop runs, iterated with ``async for``."""
        call = call_of(app, inputs, options)
        coming = self._coming(call)
        pieces = AsyncAnswerStream(timeout_ms).follow(coming)
        coming.reader = asyncio.ensure_future(self._read_async(coming, pieces, call))
        return pieces

    async def _read_async(self, coming: _Coming, pieces: AsyncAnswerStream, call: RayCall) -> None:
        try:
            async for item in coming.items:
                coming.take(item, pieces, call)
            coming.end(ServerGone(f"app {call.app!r}: the deployment ended its pieces without a reply"))
        except BaseException as error:  # noqa: BLE001 who waits must be told
            coming.end(self._gone(f"app {call.app!r}", error) if isinstance(error, self._lost) else error)

    def _coming(self, call: RayCall) -> _Coming:
        with self._typed(f"app {call.app!r}"):
            return _Coming(self._handle.options(stream=True).stream.remote(call))

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        """Every call of the handle stands in here: Ray's errors become :class:`ServerGone`."""
        try:
            yield
        except self._lost as error:
            raise self._gone(what, error) from error

    @staticmethod
    def _gone(what: str, error: BaseException) -> ServerGone:
        """The dispatcher itself was lost, or failed."""
        return ServerGone(f"{what}: the deployment did not reply: {type(error).__name__}: {error}")

    def reply(self, call: RayCall, timeout_ms: float | None = None) -> RayReply:
        """The whole reply to a call: ``tried`` names the replicas that had it. Raises
        :class:`~edgeserve.errors.TimedOut` after ``timeout_ms``, :class:`~edgeserve.errors.ServerGone`."""
        with self._typed(f"app {call.app!r}"):
            pending: RayPending = self._handle.infer.remote(call)
            try:
                reply: RayReply = pending.result(timeout_s=None if timeout_ms is None else timeout_ms / 1000)
            except TimeoutError:
                pending.cancel()
                raise TimedOut(
                    f"app {call.app!r}: no answer within timeout_ms = {timeout_ms}; the request was cancelled"
                ) from None
        return reply

    def stats(self) -> Dict[str, Any]:
        """``dispatcher``: per replica, whether it answers and what it has in flight. ``replicas``: the ``stats()`` of
        each that answers. Raises :class:`~edgeserve.errors.ServerGone`."""
        with self._typed("stats"):
            return dict(self._handle.stats.remote().result())

    def story(self, replica: str, request_id: int) -> List[str]:
        """The story of a request at a replica; see :meth:`Runtime.story`. Raises
        :class:`~edgeserve.errors.BadInput` for an unknown replica, :class:`~edgeserve.errors.ServerGone` for one that
        does not answer."""
        with self._typed("story"):
            told: Told = self._handle.story.remote(replica, request_id).result()
        if isinstance(told, RequestError):
            raise told
        return list(told)


class _Coming(AnswerFuture):
    """The answer to come, of which pieces come first: ``items`` is what Ray sends. ``cancel()`` also cancels there.
    From any thread."""

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items
        self.reader: Optional[asyncio.Future[None]] = None
        self._ending = threading.Lock()

    def cancel(self) -> bool:
        with self._ending:
            if self.done():
                return self.cancelled()
            super().cancel()
            self.set_running_or_notify_cancel()
        self.items.cancel()
        return True

    def take(self, item: Any, pieces: Any, call: RayCall) -> None:
        """A piece, or the reply behind the last."""
        if not isinstance(item, RayReply):
            if not self.done() and not pieces.put(item):
                self.end(Cancelled(UNREAD))
                self.items.cancel()
            return
        try:
            self.end(None, answer_of(item, call))
        except RequestError as error:
            self.end(error)

    def end(self, error: Optional[BaseException], answer: Optional[Answer] = None) -> None:
        """End it with an answer or an error, unless it has ended."""
        with self._ending:
            if self.done():
                return
            self.set_running_or_notify_cancel()
            if error is not None:
                self.set_exception(error)
            elif answer is not None:
                self.set_result(answer)


def call_of(app: str, inputs: Mapping[str, Any], options: RequestOptions) -> RayCall:
    """A call sent now."""
    rest = given(options)
    return RayCall(app, dict(inputs), rest.pop("slo_ms", None), rest)


def answer_of(reply: RayReply, call: RayCall) -> Answer:
    """The answer in a reply, its times counted from sending to here; or raises the reply's error."""
    if reply.error is not None:
        raise reply.error
    assert reply.answer is not None, "a reply has an answer or an error"
    answer = reply.answer
    total_ms = max(call.sent.age_ms(), answer.total_ms)
    answer.breakdown_ms["other"] += total_ms - answer.total_ms
    answer.total_ms = total_ms
    answer.late = answer.late or bool(reply.slo_ms) and total_ms > reply.slo_ms
    return answer
