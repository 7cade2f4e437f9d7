"""AcceptedConnections that a front accepts with asyncio: each has a seat of its owner's, and ends with the front."""

from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, Dict

from edgeserve.front.origins import user_at
from edgeserve.front.places import Seats, seated

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


class AcceptedConnections:
    """The connections of one listening socket. ``serve`` is called with reader, writer and origin of each; it ends when
    the client disconnects, or early, where another takes its seat (:class:`~edgeserve.front.Seats`)."""

    def __init__(self, serve: Serve, count_max: int, of_one_max: int) -> None:
        self._serve = serve
        self._seats = Seats(count_max, of_one_max)
        self._tasks: Dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: what ``asyncio.start_server`` calls."""
        task = asyncio.current_task()
        assert task is not None, "a server's callback is a task"
        self._tasks[task] = None
        try:
            origin = user_at(writer)
            async with seated(self._seats, origin):
                await self._serve(reader, writer, origin)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected, or the front ends
        finally:
            writer.close()
            del self._tasks[task]

    async def close(self) -> None:
        """End all of them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
