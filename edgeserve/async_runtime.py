"""The embedded runtime for asyncio: :class:`AsyncRuntime`, the twin of :class:`~edgeserve.runtime.Runtime`.

The runtime's loop has a thread of its own, so nothing here blocks the event loop: what could wait (starting, stopping,
questions) runs on the event loop's executor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, TypeVar

from edgeserve.answer_streams import AsyncAnswerStream
from edgeserve.answers import Answer, answer_awaited
from edgeserve.request_options import RequestOptions
from edgeserve.runtime import ConfigSource, Runtime

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncRuntime:
    """The same arguments as :class:`~edgeserve.runtime.Runtime`, awaited. Cancelling the task that waits cancels the
    request. ``async with AsyncRuntime.from_config("edge.toml") as runtime`` starts and stops it."""

    def __init__(
        self, config: ConfigSource, *, serve: bool = False, tracer_provider: Any = None, freeze: bool = True
    ) -> None:
        self.runtime = Runtime(config, serve=serve, tracer_provider=tracer_provider, freeze=freeze)

    @classmethod
    def from_config(
        cls, path: ConfigSource, *, serve: bool = False, tracer_provider: Any = None, freeze: bool = True
    ) -> AsyncRuntime:
        """The same as ``AsyncRuntime(path)``."""
        return cls(path, serve=serve, tracer_provider=tracer_provider, freeze=freeze)

    async def infer(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> Answer:
        """See :meth:`Runtime.infer`."""
        pending = self.runtime.submit(app, inputs, **options)
        answer: Answer = await answer_awaited(pending, timeout_ms, f"app {app!r}")
        return answer

    def stream(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncAnswerStream:
        """See :meth:`Runtime.stream`. To be called while the event loop runs; iterate with ``async for``."""
        pieces = AsyncAnswerStream(timeout_ms)
        return pieces.follow(self.runtime.submit_pieces(pieces, app, inputs, **options))

    async def start(self) -> AsyncRuntime:
        """See :meth:`Runtime.start`. A task that is cancelled meanwhile calls the start off."""
        try:
            await self._elsewhere(self.runtime.start)
        except asyncio.CancelledError:
            self.runtime.ask_to_stop(drain=False)
            raise
        return self

    async def stop(self, drain: bool = True) -> None:
        """See :meth:`Runtime.stop`."""
        if self.runtime.is_alive:
            await self._elsewhere(lambda: self.runtime.stop(drain))
        else:  # there is nothing to wait for, and a forked child lacks the executor's threads
            self.runtime.stop(drain)

    async def stats(self) -> Dict[str, Any]:
        """See :meth:`Runtime.stats`."""
        return await self._elsewhere(self.runtime.stats)

    async def expected(self) -> Dict[str, Dict[str, Any]]:
        """See :meth:`Runtime.expected`."""
        return await self._elsewhere(self.runtime.expected)

    async def story(self, request_id: int) -> List[str]:
        """See :meth:`Runtime.story`."""
        return await self._elsewhere(lambda: self.runtime.story(request_id))

    async def _elsewhere(self, call: Callable[[], T]) -> T:
        self.runtime.check_process()  # a forked child lacks the executor's threads
        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def __aenter__(self) -> AsyncRuntime:
        return await self.start()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self.stop(drain=kind is None)
