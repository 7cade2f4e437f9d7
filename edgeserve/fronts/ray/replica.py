"""One replica: a runtime for one device, inside a process that Ray started. Knows neither Ray nor other replicas."""

from __future__ import annotations

from typing import Any, AsyncGenerator, Dict, List, Optional, Protocol

from edgeserve.async_runtime import AsyncRuntime
from edgeserve.config.loading import load_config
from edgeserve.config.schema import Config
from edgeserve.errors import DeadlineExpired, Dropped, EdgeServeError, Rejected, RequestError
from edgeserve.fronts.ray.calls import Outlook, Outlooks, RayCall, RayReply
from edgeserve.live.errors import label
from edgeserve.units import ns_to_ms

LEFT_MS_MIN = 0.001
"""The deadline given to a request whose own has passed and that wants a late answer."""


class Meters(Protocol):
    """The counters of the ends of requests; see ``deployment.RayMeters``."""

    def ended(self, app: str, outcome: str, reason: str, late: bool, total_ms: float) -> None:
        """A request ended. ``reason`` is of a closed set or a policy's code."""

    def open(self, count: int) -> None:
        """So many requests have not ended."""


class Replica:
    """Embeds a :class:`~edgeserve.runtime.Runtime` and answers calls with it. Made inside the process that Ray starts;
    returns from the constructor when every model is loaded and warm."""

    def __init__(self, config: str | Config, meters: Optional[Meters] = None) -> None:
        self._config = load_config(config) if isinstance(config, str) else config
        self._runtime = AsyncRuntime(self._config)
        self._meters = meters
        self._open = 0
        self._runtime.runtime.start()

    async def infer(self, call: RayCall) -> RayReply:
        """Serve a call. Its deadline counts from when it was sent, so the way here has cost part of it. Every end is a
        reply: what this raises is a fault, or the caller's own cancellation."""
        age_ms = call.sent.age_ms()
        reply = RayReply(slo_ms=self._slo_ms(call) or 0.0)
        self._count(1)
        try:
            reply.answer = await self._runtime.infer(call.app, call.inputs, **self._options(call, age_ms))
        except RequestError as error:
            reply.error = _worded(call, reply, age_ms, error)
        finally:
            self._count(-1)
        self._ended(call, reply, age_ms)
        return reply

    async def stream(self, call: RayCall) -> AsyncGenerator[Any, None]:
        """Serve a call whose answer comes in pieces: yields each as a table of values, and last the reply. Closing it
        cancels the request."""
        age_ms = call.sent.age_ms()
        reply = RayReply(slo_ms=self._slo_ms(call) or 0.0)
        self._count(1)
        try:
            async with self._runtime.stream(call.app, call.inputs, **self._options(call, age_ms)) as pieces:
                async for piece in pieces:
                    yield piece
                reply.answer = await pieces.answer()
        except RequestError as error:
            reply.error = _worded(call, reply, age_ms, error)
        finally:
            self._count(-1)
        self._ended(call, reply, age_ms)
        yield reply

    def _slo_ms(self, call: RayCall) -> Any:
        app = self._config.apps.get(call.app)
        return ns_to_ms(app.slo_ns) if call.slo_ms is None and app is not None else call.slo_ms

    def _ended(self, call: RayCall, reply: RayReply, age_ms: float) -> None:
        if self._meters is not None:
            self._meters.ended(*outcome_of(call.app if call.app in self._config.apps else "", reply, age_ms))

    def _options(self, call: RayCall, age_ms: float) -> Dict[str, Any]:
        """The arguments of the runtime: the deadline counts from here, and is none any more where it has passed."""
        options, slo_ms = dict(call.options), self._slo_ms(call)
        if isinstance(slo_ms, (int, float)) and slo_ms > 0:  # anything else is the runtime's to refuse
            left_ms = slo_ms - age_ms
            on_late = (
                options.get("on_late") or self._config.apps[call.app].on_late if call.app in self._config.apps else ""
            )
            slo_ms = max(LEFT_MS_MIN, left_ms) if on_late == "answer" else left_ms
        return {**options, "slo_ms": slo_ms}

    def _count(self, change: int) -> None:
        self._open += change
        if self._meters is not None:
            self._meters.open(self._open)

    async def outlook(self) -> Outlooks:
        """Per app, what a request that arrived now could expect."""
        expected = await self._runtime.expected()
        return {
            app: Outlook(row["slo_ms"], row["expected_ms"], row["slo_ms_min"], self._open)
            for app, row in expected.items()
        }

    async def stats(self) -> Dict[str, Any]:
        """See :meth:`Runtime.stats`."""
        return await self._runtime.stats()

    async def story(self, request_id: int) -> List[str]:
        """See :meth:`Runtime.story`."""
        return await self._runtime.story(request_id)

    def check_health(self) -> None:
        """Ray Serve asks now and then, and starts a replica anew that raises."""
        if not self._runtime.runtime.is_alive:
            raise EdgeServeError("the runtime's loop has ended; its log says why")

    def close(self) -> None:
        """Accept nothing more, let accepted requests end, give everything back."""
        self._runtime.runtime.stop()


def _worded(call: RayCall, reply: RayReply, age_ms: float, error: RequestError) -> RequestError:
    """The error of a runtime, with the deadline as the caller gave it."""
    if not isinstance(error, DeadlineExpired) or not 0 < reply.slo_ms <= age_ms:
        return error
    expired = DeadlineExpired(
        f"app {call.app!r}: the deadline ({reply.slo_ms:g} ms after sending) had passed "
        f"{age_ms - reply.slo_ms:.1f} ms before the request reached a replica"
    )
    expired.id = error.id
    return expired


def outcome_of(app: str, reply: RayReply, age_ms: float) -> tuple[str, str, str, bool, float]:
    """The arguments of :meth:`Meters.ended`: no text of a client or an exception becomes a label."""
    if reply.answer is not None:
        return app, "completed", "", reply.answer.late, reply.answer.total_ms + age_ms
    error = reply.error
    assert error is not None, "a reply has an answer or an error"
    reason = label(error.code, error.reason) if isinstance(error, (Rejected, Dropped)) else ""
    return app, error.code, reason, False, age_ms
