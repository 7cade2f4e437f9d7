"""The exporter of spans: a thread that makes them of the scheduler's steps, and the exporter of OpenTelemetry's SDK.

The loop does no more than keep each step until the thread takes it, a few times a second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Mapping, Optional, Sequence

from edgeserve import __version__
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event, RequestArrived

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger("edgeserve")

STEPS_MAX = 16_384
"""Steps that wait for the thread: two seconds of a busy server. With more, the requests then open get no spans."""

TAKE_S = 0.25
"""The period at which the thread takes them. It wakes no more often, since waking competes with the loop."""

CLOSE_S = 3.0
"""The time that closing waits for the last spans to be sent."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Standard variables that say where spans are to be sent."""

_NO_PARENTS: Mapping[int, str] = {}


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """True if the standard variables ask a server for spans."""
    return (
        any(environ.get(name) for name in ENDPOINTS)
        and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


def provider_for(version: str) -> Any:
    """A provider that sends spans over HTTP where the standard variables say, which say all the rest, too: sampling,
    headers, batches, the service's name."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):  # it has no name
        resource = resource.merge(Resource({"service.name": "edgeserve", "service.version": version}))
    provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class SpanExport:
    """Gives a provider's exporters the spans of every request. :meth:`tap` and :meth:`change` are for the loop's
    thread. ``parent_of``: the ``traceparent`` of a request that arrives. ``offset_ns``: what makes the loop's clock
    the time since the epoch. ``owned``: the provider ends with this."""

    def __init__(
        self,
        provider: TracerProvider,
        config: Config,
        version: str,
        parent_of: Callable[[int], Optional[str]],
        offset_ns: Callable[[], int],
        owned: bool,
    ) -> None:
        from edgeserve.taps.spans import RequestSpans

        self._provider: Any = provider
        self._spans = RequestSpans(provider.get_tracer("edgeserve", version), config)
        self._parent_of = parent_of
        self._offset_ns = offset_ns
        self._owned = owned
        self._steps: Deque[Any] = deque()
        self._lost = self._has_failed = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="edgeserve-spans", daemon=True)
        self._thread.start()

    def tap(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Take one step of the scheduler, which does not change any more."""
        if len(self._steps) >= STEPS_MAX:
            self._lost = True
            return
        parents: Dict[int, str] = {}
        for event in events:
            if type(event) is RequestArrived:
                parent = self._parent_of(event.request.id)
                if parent is not None:
                    parents[event.request.id] = parent
        self._steps.append((now_ns, events, actions, parents or _NO_PARENTS))

    def begin(self, config: Config, start: Mapping[str, Any]) -> None:
        """Spans need nothing of a start."""

    def change(self, config: Config) -> None:
        """Another configuration is served from the next step on."""
        self._steps.append(config)

    def close(self) -> None:
        """Send what is left."""
        self._ending.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("the last spans could not be sent within %.0f s; they are lost", CLOSE_S)

    def _work(self) -> None:
        while not self._ending.wait(TAKE_S):
            self._take()
        self._take()
        if self._owned:
            self._provider.shutdown()

    def _take(self) -> None:
        offset_ns = self._offset_ns()
        for _ in range(len(self._steps)):
            step = self._steps.popleft()
            if isinstance(step, Config):
                self._spans.change(step)
            else:
                now_ns, events, actions, parents = step
                try:
                    self._spans.add(now_ns, events, actions, parents, offset_ns)
                except Exception:  # of the program's provider; later requests have spans again
                    self._spans.forget()
                    if not self._has_failed:
                        log.exception("the requests that are open get no spans, since these could not be made")
                    self._has_failed = True
        if self._lost:
            self._lost = False
            self._spans.forget()
            log.warning("the server decides faster than spans are made of it: the requests that are open get none")


def opened(place: Any) -> Optional[SpanExport]:
    """The export that a program's provider, or the standard variables of a server, ask for; ``place``:
    :class:`~edgeserve.live.taps.TapPlace`. Raises :class:`ConfigError` where a program's packages are missing; a
    variable may be meant for others, so that there it is a warning."""
    given = place.tracer_provider
    if given is None and not (place.serve and is_asked_for(os.environ)):
        return None
    try:
        provider = provider_for(__version__) if given is None else given
        return SpanExport(provider, place.config, __version__, place.parent_of, epoch_offset_ns, owned=given is None)
    except ImportError as error:
        need = f"spans need OpenTelemetry's SDK ({error}): pip install 'edgeserve-runtime[otel]'"
        if given is not None:
            raise ConfigError(f"tracer_provider: {need}") from None
        log.warning("%s", need)
        return None


def epoch_offset_ns() -> int:
    """The difference between the time since the epoch and the loop's monotonic clock."""
    return time.time_ns() - time.monotonic_ns()
