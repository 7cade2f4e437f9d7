"""The embedded runtime for asyncio: :class:`AsyncRuntime`, the twin of :class:`~edgeserve.runtime.Runtime`.

The runtime's loop has a thread of its own, so nothing here blocks the event loop: what could wait (starting, stopping,
questions) runs on the event loop's executor.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar

from edgeserve.answer_streams import AsyncAnswerStream
from edgeserve.answers import Answer, TakesPieces, answer_awaited
from edgeserve.config.schema import Config
from edgeserve.live.responders import RequestFuture
from edgeserve.live.runtime_core import RuntimeCore
from edgeserve.live.world import LostDevice
from edgeserve.request_options import RequestOptions
from edgeserve.runtime import ConfigSource, Runtime

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgeserve.app import Sections
    from edgeserve.tap import Tap

T = TypeVar("T")


class AsyncRuntime:
    """The same arguments and methods as :class:`~edgeserve.runtime.Runtime`; what could wait is awaited. Cancelling the
    task that waits cancels the request. ``async with AsyncRuntime("edge.toml") as runtime`` starts and stops it."""

    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        serve: bool = False,
        tracer_provider: Any = None,
        taps: Sequence[Tap] = (),
        freeze: bool = True,
        **sections: Unpack[Sections],
    ) -> None:
        self.runtime = Runtime(
            config, serve=serve, tracer_provider=tracer_provider, taps=taps, freeze=freeze, **sections
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self, progress: Callable[[str], None] | None = None) -> AsyncRuntime:
        """See :meth:`Runtime.start`. A task that is cancelled meanwhile calls the start off."""
        try:
            await self._elsewhere(partial(self.runtime.start, progress))
        except asyncio.CancelledError:
            self.runtime.ask_to_stop(drain=False)
            raise
        return self

    async def stop(self, drain: bool = True) -> None:
        """See :meth:`Runtime.stop`."""
        if self.runtime.is_alive:
            await self._elsewhere(partial(self.runtime.stop, drain))
        else:  # there is nothing to wait for, and a forked child lacks the executor's threads
            self.runtime.stop(drain)

    def ask_to_stop(self, drain: bool = True) -> None:
        """See :meth:`Runtime.ask_to_stop`."""
        self.runtime.ask_to_stop(drain)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """See :meth:`Runtime.wait`."""
        return await self._elsewhere(partial(self.runtime.wait, timeout_s))

    @property
    def was_started(self) -> bool:
        """See :attr:`Runtime.was_started`."""
        return self.runtime.was_started

    @property
    def is_alive(self) -> bool:
        """See :attr:`Runtime.is_alive`."""
        return self.runtime.is_alive

    @property
    def endpoints(self) -> List[str]:
        """See :attr:`Runtime.endpoints`."""
        return self.runtime.endpoints

    @property
    def on_device_lost(self) -> Optional[Callable[[LostDevice], None]]:
        """See :class:`Runtime`: called on the runtime's own thread, not on the event loop's."""
        return self.runtime.on_device_lost

    @on_device_lost.setter
    def on_device_lost(self, call: Optional[Callable[[LostDevice], None]]) -> None:
        self.runtime.on_device_lost = call

    @property
    def tracer_provider(self) -> Any:
        """See :class:`Runtime`."""
        return self.runtime.tracer_provider

    @property
    def taps(self) -> Sequence[Tap]:
        """See :class:`Runtime`."""
        return self.runtime.taps

    @property
    def freeze(self) -> bool:
        """See :class:`Runtime`."""
        return self.runtime.freeze

    def check_process(self) -> None:
        """See :meth:`Runtime.check_process`."""
        self.runtime.check_process()

    def on_loop(self, call: Callable[[RuntimeCore], None]) -> None:
        """See :meth:`Runtime.on_loop`: the loop is the runtime's, not asyncio's."""
        self.runtime.on_loop(call)

    async def reload(self, source: ConfigSource = "") -> None:
        """See :meth:`Runtime.reload`."""
        await self._elsewhere(partial(self.runtime.reload, source))

    # --- requests -----------------------------------------------------------------------------------------------------

    async def infer(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> Answer:
        """See :meth:`Runtime.infer`."""
        pending = self.runtime.submit(app, inputs, **options)
        answer: Answer = await answer_awaited(pending, timeout_ms, f"app {app!r}")
        return answer

    def submit(self, app: str, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> RequestFuture:
        """See :meth:`Runtime.submit`. The future can be awaited, too."""
        return self.runtime.submit(app, inputs, **options)

    def stream(
        self, app: str, inputs: Mapping[str, Any], *, timeout_ms: float | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncAnswerStream:
        """See :meth:`Runtime.stream`. To be called while the event loop runs; iterate with ``async for``."""
        pieces = AsyncAnswerStream(timeout_ms)
        return pieces.follow(self.runtime.submit_pieces(pieces, app, inputs, **options))

    def submit_pieces(
        self, pieces: TakesPieces | None, app: str, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> RequestFuture:
        """See :meth:`Runtime.submit_pieces`."""
        return self.runtime.submit_pieces(pieces, app, inputs, **options)

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Config:
        """See :attr:`Runtime.configuration`."""
        return self.runtime.configuration

    def config(self) -> str:
        """See :meth:`Runtime.config`."""
        return self.runtime.config()

    async def stats(self) -> Dict[str, Any]:
        """See :meth:`Runtime.stats`."""
        return await self._elsewhere(self.runtime.stats)

    async def expected(self) -> Dict[str, Dict[str, Any]]:
        """See :meth:`Runtime.expected`."""
        return await self._elsewhere(self.runtime.expected)

    async def story(self, request_id: int) -> List[str]:
        """See :meth:`Runtime.story`."""
        return await self._elsewhere(partial(self.runtime.story, request_id))

    async def check(self) -> None:
        """See :meth:`Runtime.check`."""
        await self._elsewhere(self.runtime.check)

    async def measured_at_start(self) -> Mapping[Tuple[str, str], Mapping[int, Sequence[int]]]:
        """See :meth:`Runtime.measured_at_start`."""
        return await self._elsewhere(self.runtime.measured_at_start)

    async def _elsewhere(self, call: Callable[[], T]) -> T:
        self.runtime.check_process()  # a forked child lacks the executor's threads
        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def __aenter__(self) -> AsyncRuntime:
        return await self.start()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self.stop(drain=kind is None)
