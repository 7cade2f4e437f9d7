"""Answers that come in pieces: what ``stream`` of a runtime or a client returns. Knows no socket and no scheduler."""

from __future__ import annotations

import queue
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any, Deque, Dict, Iterator, Optional

from edgeserve.answers import (
    BY_CALLER,
    LAST_S,
    PIECES,
    PIECES_UNREAD_MAX,
    Answer,
    answer_within,
    end_early,
    seconds,
    timed_out,
)
from edgeserve.errors import Cancelled
from edgeserve.interpreter import check_may_wait
from edgeserve.waits import await_within


class _LastPiece:
    """Stands behind the last piece."""


class AnswerStream(Iterator[Dict[str, Any]]):
    """An answer that comes in pieces: iterating yields each as a dict of named values, until the request has ended; a
    request that did not complete then raises its :class:`~edgeserve.errors.RequestError`. :meth:`answer` is the whole.

    A wait for the next piece takes ``timeout_ms`` at most (None: no bound); then the answer ends with what is written.
    Use it as a context manager, or call :meth:`cancel`: the server stops computing an answer whose stream is closed.
    One thread reads it.
    """

    def __init__(self, timeout_ms: float | None = None) -> None:
        self._timeout_ms = timeout_ms
        self._has_given_up = False
        self._pieces: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = False
        self._future: Future[Answer]

    def follow(self, future: Future[Answer]) -> AnswerStream:
        """Attach the stream to the request whose answer is ``future``. Called once, by the stream's creator."""
        self._future = future
        future.add_done_callback(lambda _: self.end())
        return self

    def end(self) -> None:
        """No more pieces come."""
        self._pieces.put(_LastPiece)

    def put(self, piece: Dict[str, Any]) -> bool:
        """A piece has come; False when too many are unread. For the thread that receives."""
        if self._pieces.qsize() >= PIECES_UNREAD_MAX:
            return False
        self._pieces.put(piece)
        return True

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Dict[str, Any]:
        if not self._over:
            if self._pieces.empty():
                check_may_wait("the next piece of an answer")
            try:
                piece = self._pieces.get(timeout=seconds(self._timeout_ms))
            except queue.Empty:
                piece = self._last_piece()
            if piece is not _LastPiece:
                return dict(piece)
            self._over = True
            self.answer()  # raises what kept the request from completing
        raise StopIteration

    def _last_piece(self) -> Any:
        if not self._has_given_up:
            self._has_given_up = True
            end_early(self._future)
        try:
            return self._pieces.get(timeout=LAST_S)
        except queue.Empty:
            self.cancel()
            raise timed_out(PIECES, self._timeout_ms, self._future) from None

    def answer(self) -> Answer:
        """The whole answer, when the request has ended. Pieces that were not read may be read afterwards."""
        try:
            answer: Answer = answer_within(self._future, self._timeout_ms, PIECES)
            return answer
        except (Cancelled, CancelledError) as error:
            if self._has_given_up:
                raise timed_out(PIECES, self._timeout_ms, self._future) from None
            if isinstance(error, Cancelled):
                raise
            raise Cancelled(BY_CALLER) from None

    def cancel(self) -> None:
        """Cancel the rest of the answer. Does nothing when the request has ended."""
        self._future.cancel()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()


class AsyncAnswerStream:
    """The asyncio twin of :class:`AnswerStream`: ``async for piece in stream``, ``await
    stream.answer()``, ``async with``."""

    def __init__(self, timeout_ms: float | None = None) -> None:
        import asyncio  # 3 MB that a program of threads does without

        self._timeout_ms = timeout_ms
        self._has_given_up = False
        self._loop = asyncio.get_running_loop()
        self._pieces: Deque[Optional[Dict[str, Any]]] = deque()  # None: no more come
        self._came = asyncio.Event()
        self._put = self._taken = 0  # each is counted by one thread alone
        self._over = False
        self._pending: Future[Answer]

    def follow(self, pending: Future[Answer]) -> AsyncAnswerStream:
        """Belong to the request that this is the answer of."""
        self._pending = pending
        pending.add_done_callback(lambda _: self.end())
        return self

    def end(self) -> None:
        """No more pieces come."""
        self._hand_over(None)

    def put(self, piece: Dict[str, Any]) -> bool:
        """A piece has come; False when too many are unread."""
        if self._put - self._taken >= PIECES_UNREAD_MAX:
            return False
        self._put += 1
        return self._hand_over(piece)

    def _hand_over(self, piece: Optional[Dict[str, Any]]) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._take_in, piece)
        except RuntimeError:  # the event loop is closed, and with it the stream's reader
            return False
        return True

    def _take_in(self, piece: Optional[Dict[str, Any]]) -> None:
        self._pieces.append(piece)
        self._came.set()

    async def _next(self, wait_s: Optional[float]) -> Optional[Dict[str, Any]]:
        """The next piece, which stays where the wait is cancelled."""
        while not self._pieces:
            self._came.clear()
            await await_within(self._came.wait(), wait_s)
        return self._pieces.popleft()

    def __aiter__(self) -> AsyncAnswerStream:
        return self

    async def __anext__(self) -> Dict[str, Any]:
        import asyncio

        if not self._over:
            try:
                piece = await self._next(seconds(self._timeout_ms))
            except asyncio.TimeoutError:
                piece = await self._last_piece()
            if piece is not None:
                self._taken += 1
                return piece
            self._over = True
            await self.answer()  # raises what kept the request from completing
        raise StopAsyncIteration

    async def _last_piece(self) -> Optional[Dict[str, Any]]:
        import asyncio

        self._give_up()
        try:
            return await self._next(LAST_S)
        except asyncio.TimeoutError:
            self.cancel()
            raise timed_out(PIECES, self._timeout_ms, self._pending) from None

    async def answer(self) -> Answer:
        """The whole answer, when the request has ended."""
        import asyncio

        for wait_s in (seconds(self._timeout_ms), LAST_S):
            if self._pending.cancelled():
                break
            try:
                answer: Answer = await await_within(asyncio.shield(asyncio.wrap_future(self._pending)), wait_s)
                return answer
            except asyncio.TimeoutError:
                self._give_up()
            except Cancelled:
                if self._has_given_up:
                    break
                raise
        self.cancel()
        if not self._has_given_up:
            raise Cancelled(BY_CALLER)
        raise timed_out(PIECES, self._timeout_ms, self._pending)

    def end_early(self) -> None:
        """End the request now, with its partial answer."""
        end_early(self._pending)

    def _give_up(self) -> None:
        if not self._has_given_up:
            self._has_given_up = True
            self.end_early()

    def cancel(self) -> None:
        """Cancel the rest of the answer. Does nothing when the request has ended."""
        self._pending.cancel()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.cancel()
