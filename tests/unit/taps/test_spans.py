"""Spans made of steps by hand: what live runs show seldom."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install -e '.[otel]'")

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from edgeserve.config.loading import parse_config
from edgeserve.sched.protocol.actions import FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import (
    BatchProgress,
    JobId,
    JobResult,
    Request,
    RequestArrived,
    WorkFinished,
    WorkRefused,
)
from edgeserve.taps.span_export import SpanExport
from edgeserve.taps.spans import BATCHES_MAX, RequestSpans

EPOCH_NS = 10**18


class Steps:
    """The spans of steps, by name."""

    def __init__(self, *nodes: Dict[str, Any]) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        names = [node["name"] for node in nodes] or ["m"]
        app = {"slo": "1s", **({"node": list(nodes)} if nodes else {"model": "m"})}
        models = {name: {"engine": "synthetic", "expected": {1: "1ms"}} for name in names}
        self.config = parse_config({"model": models, "app": {"a": app}})
        self.maker = RequestSpans(provider.get_tracer("test"), self.config)

    def arrive(self, at: int, number: int = 1) -> None:
        self.step(at, [RequestArrived(Request(number, "a", at, at + 1000))])

    def run(self, at: int, work: int, *jobs: JobId) -> None:
        self.step(at, [], [RunBatch(work, "cpu0", jobs[0].node, jobs, len(jobs), 0, 10**6, 5)])

    def end(self, at: int, work: int, *jobs: JobId, status: str = "done", finish: str = "", started: int = 0) -> None:
        results = tuple(JobResult(job, status, reason="why" if status == "failed" else "") for job in jobs)
        ends = [FinishRequest(1, finish)] if finish else []
        self.step(at, [WorkFinished(work, started or at - 5, at, results)], ends)

    def step(self, at: int, events: Sequence[Any], actions: Sequence[Any] = ()) -> None:
        self.maker.add(at, events, actions, {}, EPOCH_NS)

    def spans(self, name: str) -> List[Any]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def times(self, name: str) -> List[Any]:
        return [(span.start_time - EPOCH_NS, span.end_time - EPOCH_NS) for span in self.spans(name)]


M = JobId(1, "m", ())


def test_parts_are_ready_when_their_fan_out_ended_and_a_join_when_its_last_part_has():
    steps = Steps(
        {"name": "split", "fan_out": True},
        {"name": "each", "after": ["split"]},
        {"name": "all", "after": ["each"], "gather": True},
    )
    one, two = JobId(1, "each", (0,)), JobId(1, "each", (1,))
    steps.arrive(0)
    steps.run(1, 1, JobId(1, "split", ()))
    steps.end(10, 1, JobId(1, "split", ()))
    steps.run(10, 2, one)
    steps.end(20, 2, one)
    steps.run(20, 3, two)
    steps.end(30, 3, two)
    steps.run(32, 4, JobId(1, "all", ()))
    steps.end(40, 4, JobId(1, "all", ()), finish=Outcome.COMPLETED)
    assert steps.times("stage each") == [(10, 20), (10, 30)]
    assert [span.attributes["edgeserve.part"] for span in steps.spans("stage each")] == [(0,), (1,)]
    assert steps.times("stage all") == [(30, 40)]


def test_a_batch_that_its_lane_refused_is_waiting():
    steps = Steps()
    steps.arrive(0)
    steps.run(1, 1, M)
    steps.step(50, [WorkRefused(1, "its window had passed")])
    steps.run(60, 2, M)
    steps.end(70, 2, M, finish=Outcome.COMPLETED)
    assert steps.times("queue") == [(0, 65)] and steps.times("execute") == [(65, 70)]


def test_a_request_whose_only_batch_was_refused_has_waited_in_vain():
    steps = Steps({"name": "one"}, {"name": "two"}, {"name": "all", "after": ["one", "two"], "join": 1})
    steps.arrive(0)
    steps.run(1, 1, JobId(1, "one", ()))
    steps.run(1, 2, JobId(1, "two", ()))
    steps.step(5, [WorkRefused(1, "its window had passed")])
    steps.end(9, 2, JobId(1, "two", ()))
    steps.run(9, 3, JobId(1, "all", ()))
    steps.step(12, [WorkRefused(3, "its window had passed")], [FinishRequest(1, Outcome.DROPPED, "expired")])
    assert steps.times("stage two") == [(0, 9)] and not steps.times("stage one") and not steps.times("stage all")
    assert steps.times("infer a") == [(0, 12)]


def test_spans_go_on_after_a_provider_that_raised(caplog):
    class Raises(SpanProcessor):
        def on_start(self, span, parent_context=None):
            if span.attributes.get("edgeserve.request_id") in (1, 2):
                raise ValueError("no span today")
            told.append(span.attributes.get("edgeserve.request_id"))

    told: List[Any] = []
    provider = TracerProvider()
    provider.add_span_processor(Raises())
    export = SpanExport(provider, Steps().config, "1", lambda number: None, lambda: EPOCH_NS, owned=False)
    for number in (1, 2, 3):
        export.tap(number, [RequestArrived(Request(number, "a", number, 1000))], [])
        export.tap(number, [], [FinishRequest(number, Outcome.DROPPED)])
    export.close()
    assert told == [3] and "no span today" in caplog.text
    assert len([record for record in caplog.records if "get no spans" in record.message]) == 1


def test_a_request_that_ends_first_ends_its_batch_and_what_waits_in_vain_has_waited():
    steps = Steps()
    steps.arrive(0)
    steps.run(5, 1, M)
    steps.step(9, [], [FinishRequest(1, Outcome.CANCELLED)])
    steps.end(30, 1, M)
    assert steps.times("execute") == [(5, 9)] and steps.spans("execute")[0].attributes["edgeserve.left"]
    assert steps.spans("infer a")[0].status.status_code is StatusCode.UNSET
    steps.arrive(100)
    steps.step(140, [], [FinishRequest(1, Outcome.DROPPED, "expired")])
    assert steps.times("queue")[-1] == (100, 140)


def test_a_failed_batch_says_why():
    steps = Steps()
    steps.arrive(0)
    steps.run(0, 1, M)
    steps.end(9, 1, M, status="failed", finish=Outcome.FAILED)
    (execute,) = steps.spans("execute")
    assert (execute.status.status_code, execute.status.description) == (StatusCode.ERROR, "why")


def test_a_sequence_that_leaves_its_batch_ends_then():
    steps = Steps()
    steps.arrive(0)
    steps.run(1, 1, M, JobId(2, "m", ()))
    steps.step(30, [BatchProgress(1, 29, (JobResult(M),))], [FinishRequest(1, Outcome.COMPLETED)])
    assert steps.times("execute") == [(1, 29)] and steps.spans("execute")[0].attributes["edgeserve.batch_size"] == 2


def test_a_long_answer_has_some_of_its_batches_and_their_number():
    steps = Steps()
    steps.arrive(0)
    for turn in range(2 * BATCHES_MAX):
        steps.run(10 * turn, turn, M)
        steps.end(10 * turn + 9, turn, M, status="unfinished")
    steps.step(10**4, [], [FinishRequest(1, Outcome.COMPLETED)])
    assert len(steps.spans("execute")) == BATCHES_MAX
    assert steps.times("execute")[0] == (4, 9) and steps.times("execute")[-1][1] == 10 * (2 * BATCHES_MAX - 1) + 9
    assert steps.spans("infer a")[0].attributes["edgeserve.batches"] == 2 * BATCHES_MAX


def test_after_lost_steps_open_requests_have_no_span_and_the_next_ones_do():
    steps = Steps()
    steps.arrive(0)
    steps.maker.forget()
    steps.run(1, 1, M)
    steps.end(9, 1, M, finish=Outcome.COMPLETED)
    assert steps.spans("infer a") == []
    steps.arrive(20)
    steps.step(30, [], [FinishRequest(1, Outcome.COMPLETED)])
    assert steps.times("infer a") == [(20, 30)]
