"""Spans of OpenTelemetry: of a request and its parts, below its caller's, by every way in, and to a collector."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Dict, List

import numpy as np
import pytest
from http_front import FrontThread

pytest.importorskip("opentelemetry.sdk", reason="pip install -e '.[otel]'")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput, RequestError
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.taps import span_export
from edgeserve.taps.trace import TraceError

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{CALLER:016x}-01"
X = np.zeros(4, np.float32)


def model(ms: int, **more: Any) -> Dict[str, Any]:
    return {"engine": "synthetic", "expected": {1: f"{ms}ms", 2: f"{ms + 1}ms"}, "batch": [1, 2], **more}


TABLES: Dict[str, Any] = {
    "lane": {"cpu0": {}, "cpu1": {}},
    "model": {"echo": model(4), "first": model(3), "left": model(5), "right": model(2)},
    "app": {
        "echo": {"model": "echo", "slo": "20s", "inputs": {"x": {"shape": [4]}}},
        "graph": {
            "slo": "20s",
            "node": [
                {"name": "first"},
                {"name": "left", "after": ["first"]},
                {"name": "right", "after": ["first"]},
                {"name": "join", "model": "echo", "after": ["left", "right"], "inputs": {"x": "left.x"}},
            ],
        },
    },
}


class Traced:
    """A runtime whose spans are kept: :attr:`spans` once it has stopped, by name in the order of their ends."""

    def __init__(self, tables: Dict[str, Any] = TABLES, serve: bool = False) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.runtime = edgeserve.Runtime(parse_config(tables), serve=serve, tracer_provider=provider)

    def __enter__(self) -> edgeserve.Runtime:
        return self.runtime.start()

    def __exit__(self, *_: Any) -> None:
        self.runtime.stop()
        self.spans: Dict[str, List[Any]] = {}
        for span in self._kept.get_finished_spans():
            self.spans.setdefault(span.name, []).append(span)


def test_a_request_is_a_span_below_its_callers_with_its_waiting_and_its_batch():
    with (traced := Traced()) as runtime:
        answer = runtime.infer("echo", {"x": X}, traceparent=PARENT)
        runtime.infer("echo", {"x": X})
    below, alone = traced.spans["infer echo"]
    assert (below.context.trace_id, below.parent.span_id, below.kind) == (TRACE, CALLER, SpanKind.SERVER)
    assert alone.parent is None and alone.context.trace_id != TRACE
    assert dict(below.attributes) == {
        "edgeserve.app": "echo",
        "edgeserve.request_id": answer.id,
        "edgeserve.class": "normal",
        "edgeserve.slo_ms": 20_000,
        "edgeserve.outcome": "completed",
        "edgeserve.late": False,
    }
    execute = traced.spans["execute"][0]
    assert execute.parent.span_id == below.context.span_id
    assert execute.attributes["edgeserve.model"] == "echo" and execute.attributes["edgeserve.batch_size"] == 1
    assert below.start_time <= execute.start_time < execute.end_time <= below.end_time
    assert execute.end_time - execute.start_time >= 3_500_000
    assert "load" not in traced.spans


def test_each_stage_is_a_span_and_starts_when_those_before_it_have_ended():
    with (traced := Traced()) as runtime:
        runtime.infer("graph", {"x": X})
    (whole,) = traced.spans["infer graph"]
    stages = {name: traced.spans[f"stage {name}"][0] for name in ("first", "left", "right", "join")}
    assert all(stage.parent.span_id == whole.context.span_id for stage in stages.values())
    assert stages["left"].start_time == stages["right"].start_time == stages["first"].end_time
    assert stages["join"].start_time == max(stages["left"].end_time, stages["right"].end_time)
    assert stages["join"].end_time <= whole.end_time
    inside = {span.parent.span_id: span for span in traced.spans["execute"]}
    assert inside[stages["join"].context.span_id].attributes["edgeserve.model"] == "echo"


def test_a_refusal_is_an_error_and_says_why():
    with (traced := Traced()) as runtime, pytest.raises(RequestError) as raised:
        runtime.infer("graph", {"x": X}, slo_ms=4)
    (refused,) = traced.spans["infer graph"]
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes["edgeserve.outcome"] in ("rejected", "dropped")  # it may be tried before it is given up
    assert refused.attributes["edgeserve.reason"] == raised.value.reason
    assert raised.value.reason in refused.status.description


def test_a_request_shows_the_load_that_it_waited_for():
    tables = {
        "device": {"cpu": {"memory": "30MB"}},
        "model": {name: model(2, memory="20MB", load="5ms") for name in ("one", "two")},
        "app": {name: {"model": name, "slo": "20s"} for name in ("one", "two")},
    }
    with (traced := Traced(tables)) as runtime:
        for app in ("one", "two", "one"):
            runtime.infer(app, {})
    loads = [span for span in traced.spans["load"] if span.attributes["edgeserve.model"] == "two"]
    (whole,) = traced.spans["infer two"]
    assert [span.parent.span_id for span in loads] == [whole.context.span_id]
    assert whole.start_time <= loads[0].start_time < loads[0].end_time <= whole.end_time


def test_the_parent_comes_over_the_bus_http_and_grpc(tmp_path):
    grpc = pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
    from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

    endpoint = f"ipc://{tmp_path}/bus"
    parents = [PARENT.replace(f"{CALLER:016x}", f"{number:016x}") for number in (1, 2, 3)]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [0, 0, 0, 0]}]}
    tables = {**TABLES, "server": {"endpoint": endpoint}}
    config = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0")
    with (traced := Traced(tables, serve=True)), FrontThread(endpoint, config) as front:
        front.client.infer("echo", {"x": X}, traceparent=parents[0])
        with pytest.raises(BadInput, match="traceparent"):
            front.client.infer("echo", {"x": X}, traceparent="17")
        path = "/v2/models/echo/infer"
        assert front.ask("POST", path, body, {"traceparent": parents[1]})[0] == 200
        assert front.ask("POST", path, body, {"traceparent": "17"})[0] == 200
        message = KINDS["ModelInferRequest"](model_name="echo", raw_input_contents=[X.tobytes()])
        message.inputs.add(name="x", datatype="FP32", shape=[4])
        with grpc.insecure_channel(front.grpc) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer", lambda item: item.SerializeToString(), bytes)
            call(message, metadata=[("traceparent", parents[2])], timeout=20)
    parents_found = [span.parent and span.parent.span_id for span in traced.spans["infer echo"]]
    assert parents_found == [1, 2, None, 3]


class Collector(HTTPServer):
    """Takes spans as OpenTelemetry's collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.taken: List[Any] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # noqa: N802 the name is of http.server
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        data = self.rfile.read(int(self.headers["content-length"]))
        assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        self.server.taken.append(ExportTraceServiceRequest.FromString(data))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def sent(server: Dict[str, Any], serve: bool = False) -> None:
    with edgeserve.Runtime(parse_config({**TABLES, "server": server}), serve=serve) as runtime:
        runtime.infer("echo", {"x": X}, traceparent=PARENT)


@pytest.mark.parametrize("name", ["", "robot"])
def test_a_collector_gets_the_spans(name, monkeypatch, tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install -e '.[otel]'")
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    if name:
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    sent({"endpoint": f"ipc://{tmp_path}/bus"}, serve=True)
    collector.shutdown()
    resource = collector.taken[0].resource_spans[0]
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert names["service.name"] == (name or "edgeserve")
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    assert spans["infer echo"].trace_id == TRACE.to_bytes(16, "big")
    assert spans["infer echo"].parent_span_id == CALLER.to_bytes(8, "big")
    assert spans["execute"].parent_span_id == spans["infer echo"].span_id


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_switch_it_on_and_off(environ, asked):
    assert span_export.is_asked_for(environ) is asked


def test_without_a_wish_nothing_runs_for_it(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")  # for servers, not for programs
    with edgeserve.Runtime(parse_config(TABLES)) as runtime:
        runtime.infer("echo", {"x": X}, traceparent=PARENT)
        assert not [thread for thread in threading.enumerate() if thread.name == "edgeserve-spans"]


def test_a_server_that_is_too_fast_for_its_spans_says_so_and_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(span_export, "STEPS_MAX", 4)
    monkeypatch.setattr(span_export, "TAKE_S", 0.02)
    with (traced := Traced()) as runtime:
        while "faster than spans" not in caplog.text:
            runtime.infer("echo", {"x": X})
        caught = threading.Event()
        while not caught.wait(0.05) and not traced._kept.get_finished_spans():
            runtime.infer("echo", {"x": X})
    assert all(span.attributes["edgeserve.outcome"] == "completed" for span in traced.spans["infer echo"])


def test_a_start_that_fails_at_the_next_tap_ends_the_thread_of_the_spans() -> None:
    tables = {**TABLES, "server": {"record": "/nowhere/run.jsonl"}}
    with pytest.raises(TraceError, match="/nowhere/run.jsonl"), Traced(tables).runtime:
        pass
    assert "edgeserve-spans" not in [thread.name for thread in threading.enumerate()]
