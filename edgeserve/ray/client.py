"""Asking a deployment: :class:`ClusterClient`, with the arguments, answers and errors of ``Runtime.infer``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Protocol, Tuple, Type

from edgeserve.answers import Answer
from edgeserve.errors import ServerGone, TimedOut
from edgeserve.ray.calls import Call, Reply


class Pending(Protocol):
    """A reply that is on its way (``ray.serve.handle.DeploymentResponse``)."""

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for it. Raises ``TimeoutError``."""

    def cancel(self) -> None:
        """Nobody waits for it any more."""

    def __await__(self) -> Any:
        """The same inside a deployment."""


class ClusterClient:
    """Asks the runtimes behind a deployment's handle (``connect`` and ``serve.run`` return one). From any thread;
    ``infer_async`` is for other deployments."""

    def __init__(self, handle: Any, lost: Tuple[Type[BaseException], ...] = ()) -> None:
        self._handle = handle
        self._lost = lost

    def infer(self, app: str, inputs: Mapping[str, Any], *, slo_ms: float | None = None, klass: str | None = None,
              value: float | None = None, stream: str | None = None, on_late: str | None = None,
              hints: Mapping[str, float] | None = None, quality_min: float | None = None,
              timeout_ms: float | None = None) -> Answer:
        """See :meth:`Runtime.infer`. The deadline counts from here, over every hop. :meth:`reply`
        also says which replicas had the request."""
        call = call_of(app, inputs, slo_ms, klass=klass, value=value, stream=stream, on_late=on_late, hints=hints,
                       quality_min=quality_min)
        return answer_of(self.reply(call, timeout_ms), call)

    async def infer_async(self, app: str, inputs: Mapping[str, Any], *, slo_ms: float | None = None,
                          klass: str | None = None, value: float | None = None, stream: str | None = None,
                          on_late: str | None = None, hints: Mapping[str, float] | None = None,
                          quality_min: float | None = None) -> Answer:
        """The same, awaited. Cancelling the task that waits cancels the request."""
        call = call_of(app, inputs, slo_ms, klass=klass, value=value, stream=stream, on_late=on_late, hints=hints,
                       quality_min=quality_min)
        try:
            reply = await self._handle.infer.remote(call)
        except self._lost as error:
            raise self._gone(call, error) from error
        return answer_of(reply, call)

    @staticmethod
    def _gone(call: Call, error: BaseException) -> ServerGone:
        """The dispatcher itself was lost, or failed."""
        return ServerGone(f"app {call.app!r}: the deployment did not reply: {type(error).__name__}: {error}")

    def reply(self, call: Call, timeout_ms: float | None = None) -> Reply:
        """The whole reply to a call: ``tried`` names the replicas that had it."""
        pending: Pending = self._handle.infer.remote(call)
        try:
            reply: Reply = pending.result(timeout_s=None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            pending.cancel()
            raise TimedOut(f"app {call.app!r}: no answer within timeout_ms = {timeout_ms}; the request was cancelled") \
                from None
        except self._lost as error:
            raise self._gone(call, error) from error
        return reply

    def stats(self) -> Dict[str, Any]:
        """``dispatcher``: per replica, whether it answers and what it has in flight. ``replicas``: the ``stats()`` of
        each that answers."""
        return dict(self._handle.stats.remote().result())

    def story(self, replica: str, request_id: int) -> List[str]:
        """What happened to a request at a replica; see :meth:`Runtime.story`."""
        return list(self._handle.story.remote(replica, request_id).result())


def call_of(app: str, inputs: Mapping[str, Any], slo_ms: float | None, **options: Any) -> Call:
    """A call sent now."""
    return Call(app, dict(inputs), slo_ms, {name: value for name, value in options.items() if value is not None})


def answer_of(reply: Reply, call: Call) -> Answer:
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
