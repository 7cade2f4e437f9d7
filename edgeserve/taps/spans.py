"""Spans of OpenTelemetry, made of the scheduler's steps when a request has ended.

A request is a span. Below it, per stage of a pipeline or member of an ensemble, are its waiting (``queue``), the load
of its model that it waited for (``load``) and its batches (``execute``). Nothing is noted for this while a request runs
but the steps, which there are anyway. No clock, no thread, no exporter: ``span_export.py`` has these.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from edgeserve.config.schema import Config
from edgeserve.sched.core.build import copy_lane_name
from edgeserve.sched.protocol.actions import FinishRequest, LoadModel, Outcome, RunBatch
from edgeserve.sched.protocol.events import (
    BatchProgress,
    JobId,
    JobResult,
    Part,
    Request,
    RequestArrived,
    WorkFinished,
    WorkRefused,
)
from edgeserve.units import ns_to_ms

BATCHES_MAX = 64
"""Batches of one request that become spans: of a long answer of a language model the first, and the last ones."""

LOADS_KEPT = 64
"""Loads that are remembered for the requests that waited for them."""

_Attributes = Dict[str, Any]


class _Batch:
    """A batch that a job was in. ``ended_ns`` of 0: it runs."""

    __slots__ = ("ready_ns", "launched_ns", "started_ns", "ended_ns", "action", "status", "reason")

    def __init__(self, ready_ns: int, launched_ns: int, action: RunBatch) -> None:
        self.ready_ns = ready_ns
        self.launched_ns = launched_ns
        self.started_ns = launched_ns
        self.ended_ns = 0
        self.action = action
        self.status = ""
        self.reason = ""


@dataclass(eq=False)
class _Open:
    """A request that has not ended. ``batches``: of each of its jobs. ``parent`` is its ``traceparent``."""

    request: Request
    parent: Optional[str]
    batches: Dict[Tuple[str, Part], List[_Batch]] = field(default_factory=dict)
    count: int = 0


class RequestSpans:
    """Takes the scheduler's steps in order, and gives ``tracer`` the spans of each request that ends."""

    def __init__(self, tracer: Tracer, config: Config) -> None:
        self._tracer = tracer
        self._context = TraceContextTextMapPropagator()
        self._open: Dict[int, _Open] = {}
        self._works: Dict[int, Any] = {}
        self._loads: Deque[Tuple[str, str, int, int]] = deque(maxlen=LOADS_KEPT)  # model, device, start, end
        self.change(config)

    def change(self, config: Config) -> None:
        """Another configuration is served from the next step on."""
        self._after = {name: {node.name: node.after or () for node in app.nodes} for name, app in config.apps.items()}
        self._device = {name: lane.device for name, lane in config.lanes.items()}
        self._device.update({copy_lane_name(name): name for name in config.devices})

    def forget(self) -> None:
        """Steps are missing: the requests that are open get no spans."""
        self._open.clear()
        self._works.clear()

    def add(
        self,
        now_ns: int,
        events: Iterable[Any],
        actions: Iterable[Any],
        parents: Mapping[int, str],
        offset_ns: int,
    ) -> None:
        """One step. ``parents``: the ``traceparent`` of requests that arrive in it, by id. ``offset_ns`` is what makes
        its times those of the epoch."""
        for event in events:
            kind = type(event)
            if kind is RequestArrived:
                request = event.request
                self._open[request.id] = _Open(request, parents.get(request.id))
            elif kind is WorkFinished:
                self._finished(event)
            elif kind is BatchProgress:
                self._ended(event.work_id, None, event.at_ns, event.results)
            elif kind is WorkRefused:
                self._refused(event.work_id)
        for action in actions:
            kind = type(action)
            if kind is RunBatch and not action.probe:
                self._launched(now_ns, action)
            elif kind is LoadModel:
                self._works[action.work_id] = action
            elif kind is FinishRequest:
                found = self._open.pop(action.request_id, None)
                if found is not None:
                    self._tell(found, action, now_ns, offset_ns)

    # --- what happened ------------------------------------------------------------------------------------------------

    def _launched(self, now_ns: int, action: RunBatch) -> None:
        self._works[action.work_id] = action
        for job in action.jobs:
            found = self._open.get(job.request_id)
            if found is None:
                continue
            found.count += 1
            batches = found.batches.setdefault((job.node, job.part), [])
            ready_ns = batches[-1].ended_ns if batches else self._ready_ns(found, job)
            batches.append(_Batch(ready_ns, now_ns, action))
            if found.count > BATCHES_MAX and len(batches) > 2:
                del batches[1]

    def _ready_ns(self, found: _Open, job: JobId) -> int:
        """When the last stage ended that a job had to wait for."""
        before = self._after.get(found.request.app, {}).get(job.node, ())
        ended = [
            batches[-1].ended_ns
            for (node, part), batches in found.batches.items()
            if node in before and all(one == other for one, other in zip(part, job.part))
        ]
        return max([found.request.arrival_ns, *ended])

    def _finished(self, event: WorkFinished) -> None:
        action = self._works.get(event.work_id)
        if isinstance(action, LoadModel):
            self._loads.append((action.model, self._device.get(action.lane, ""), event.started_ns, event.finished_ns))
        elif action is not None:
            self._ended(event.work_id, event.started_ns, event.finished_ns, event.results)
        self._works.pop(event.work_id, None)

    def _ended(self, work_id: int, started_ns: Optional[int], ended_ns: int, results: Iterable[JobResult]) -> None:
        for result in results:
            for batch in self._of(work_id, result.job):
                batch.started_ns = batch.launched_ns if started_ns is None else started_ns
                batch.ended_ns, batch.status, batch.reason = ended_ns, result.status, result.reason

    def _refused(self, work_id: int) -> None:
        action = self._works.pop(work_id, None)
        for job in action.jobs if isinstance(action, RunBatch) else ():
            for batch in list(self._of(work_id, job)):
                batches = self._open[job.request_id].batches
                batches[job.node, job.part].remove(batch)
                if not batches[job.node, job.part]:
                    del batches[job.node, job.part]

    def _of(self, work_id: int, job: JobId) -> Iterator[_Batch]:
        found = self._open.get(job.request_id)
        batches = found.batches.get((job.node, job.part), ()) if found is not None else ()
        return (batch for batch in batches if batch.action.work_id == work_id)

    # --- spans --------------------------------------------------------------------------------------------------------

    def _tell(self, found: _Open, end: FinishRequest, now_ns: int, offset_ns: int) -> None:
        request = found.request
        attributes = {
            "edgeserve.app": request.app,
            "edgeserve.request_id": request.id,
            "edgeserve.class": request.priority_class,
            "edgeserve.slo_ms": ns_to_ms(request.deadline_ns + request.margin_ns - request.arrival_ns),
            "edgeserve.outcome": end.outcome,
            "edgeserve.late": now_ns > request.deadline_ns + request.margin_ns,
        }
        if end.reason:
            attributes["edgeserve.reason"] = end.reason
        if end.branches or end.variant:
            attributes["edgeserve.quality"] = end.quality
        if end.variant:
            attributes["edgeserve.variant"] = end.variant
        if found.count > BATCHES_MAX:
            attributes["edgeserve.batches"] = found.count
        parent = self._context.extract({"traceparent": found.parent} if found.parent else {})
        root = self._tracer.start_span(
            f"infer {request.app}",
            parent,
            SpanKind.SERVER,
            attributes,
            start_time=request.arrival_ns + offset_ns,
        )
        if root.is_recording():
            whole = set_span_in_context(root, parent)
            is_plain = len(self._after.get(request.app, ())) == 1
            last_ns = request.arrival_ns
            for (node, part), batches in found.batches.items():
                ended_ns = batches[-1].ended_ns or now_ns
                last_ns = max(last_ns, ended_ns)
                if is_plain:
                    self._tell_batches(whole, batches, now_ns, offset_ns)
                    continue
                stage = self._tracer.start_span(
                    f"stage {node}",
                    whole,
                    attributes={"edgeserve.node": node, **({"edgeserve.part": list(part)} if part else {})},
                    start_time=batches[0].ready_ns + offset_ns,
                )
                self._tell_batches(set_span_in_context(stage, whole), batches, now_ns, offset_ns)
                stage.end(ended_ns + offset_ns)
            if end.outcome != Outcome.COMPLETED and last_ns < now_ns:  # what it waited for in vain
                self._span("queue", whole, {}, last_ns + offset_ns, now_ns + offset_ns)
            if end.outcome not in (Outcome.COMPLETED, Outcome.CANCELLED):
                root.set_status(Status(StatusCode.ERROR, f"{end.outcome}: {end.reason}"))
        root.end(now_ns + offset_ns)

    def _tell_batches(self, parent: Any, batches: List[_Batch], now_ns: int, offset_ns: int) -> None:
        for batch in batches:
            action = batch.action
            ended_ns = batch.ended_ns or now_ns
            of_model = {"edgeserve.model": action.model, "edgeserve.lane": action.lane}
            started_ns = min(batch.started_ns, ended_ns)
            if started_ns > batch.ready_ns:
                self._span("queue", parent, of_model, batch.ready_ns + offset_ns, started_ns + offset_ns)
            for model, device, began_ns, loaded_ns in self._loads:
                if (
                    model == action.model
                    and device == self._device.get(action.lane)
                    and batch.ready_ns < loaded_ns <= batch.launched_ns
                ):
                    begin_ns = max(began_ns, batch.ready_ns)
                    self._span("load", parent, of_model, begin_ns + offset_ns, loaded_ns + offset_ns)
            attributes: _Attributes = {
                **of_model,
                "edgeserve.work": action.work_id,
                "edgeserve.batch_size": len(action.jobs),
                "edgeserve.padded_size": action.size,
                "edgeserve.expected_ms": ns_to_ms(action.expected_ns),
            }
            if not batch.ended_ns:
                attributes["edgeserve.left"] = True  # the request ended first
            failed = Status(StatusCode.ERROR, batch.reason) if batch.status == "failed" else None
            self._span("execute", parent, attributes, started_ns + offset_ns, ended_ns + offset_ns, failed)

    def _span(
        self,
        name: str,
        parent: Any,
        attributes: _Attributes,
        start_ns: int,
        end_ns: int,
        status: Optional[Status] = None,
    ) -> None:
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=start_ns)
        if status is not None:
            span.set_status(status)
        span.end(end_ns)
