"""The front over a real server and real connections: asked by the standard library, then by existing clients."""

from __future__ import annotations

import functools
import gzip
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import live_functions
import numpy as np
import psutil
import pytest
from http_front import CLOCK_S, FrontThread, free_port
from serving import function, served, wait_until

from edgeserve.fronts.http.settings import HttpConfig

try:
    import google.protobuf  # noqa: F401 only whether it is there
    import grpc
except ImportError:
    grpc = None

TOKEN = "a-token-of-these-tests"
PAIR = {"dtype": "int32", "shape": [1, 16]}
TEXT = {"dtype": "text"}
X = {"dtype": "float32", "shape": [4]}


def tables():
    models = {
        "pair": function("pair", "example_pair", "http_functions"),
        "shout": function("shout", "example_text", "http_functions"),
        "colour": function("colour", "example_image", "http_functions"),
        "chat": function("chat", "example_chat", "http_functions"),
        "held": function("request"),
        "double": function("double"),
    }
    inputs = {
        "pair": {"INPUT0": PAIR, "INPUT1": PAIR},
        "shout": {"text": TEXT},
        "held": {"x": X},
        "double": {"x": X},
        "colour": {"image": {"dtype": "uint8", "shape": [4, 6, 3]}},
        "chat": {"messages": TEXT, "max_tokens": {"dtype": "int32", "optional": True}},
    }
    apps = {name: {"model": name, "slo": "20s", "inputs": table} for name, table in inputs.items()}
    apps["pair"]["outputs"] = ["OUTPUT0", "OUTPUT1"]
    apps["held"].update(pending_max=2, stream="in_order")
    apps["simple"], apps["detect"] = apps["pair"], apps["colour"]  # as Triton's examples and the page call them
    return {"model": models, "app": apps, "policy": {"edf": {"trials": False}}}


@pytest.fixture(scope="module")
def server():
    with served(tables()) as (runtime, _):
        yield runtime
        live_functions.gate.set()


@pytest.fixture(scope="module")
def front(server):
    settings = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0" if grpc else "", body_bytes_max=1024**2)
    with FrontThread(server.endpoints[0], settings) as thread:
        yield thread


@pytest.fixture
def gates():
    live_functions.close_gate()
    yield
    live_functions.gate.set()


def infer(x, **parameters):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": x}], "parameters": parameters}


# --- the Open Inference Protocol in plain HTTP ------------------------------------------------------------------------


def test_questions_about_the_server_and_its_apps(front):
    assert front.ask("GET", "/v2/health/live") == (200, b"") == front.ask("GET", "/v2/health/ready")
    assert (
        front.ask("GET", "/v2/models/pair/ready") == (200, b"") == front.ask("GET", "/v2/models/pair/versions/1/ready")
    )
    status, server = front.ask("GET", "/v2")
    assert status == 200 and server["name"] == "edgeserve" and "binary_tensor_data" in server["extensions"]
    status, model = front.ask("GET", "/v2/models/pair")
    assert model["inputs"] == [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")]
    assert [output["name"] for output in model["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert front.ask("GET", "/v2/models/pair/config")[1]["input"][0]["data_type"] == "TYPE_INT32"
    names = {item["name"] for item in front.ask("POST", "/v2/repository/index")[1]}
    assert {"pair", "shout", "chat"} <= names


def test_what_is_nearly_right_is_told_what_would_be(front):
    for path, says in (
        ("/v2/models", "POST /v2/repository/index lists the models"),
        ("/v2/models/double/infer", "a question is sent with POST"),
    ):
        status, error = front.ask("GET", path)
        assert (status, error["code"]) == (501, "not_served") and says in error["error"]


def test_json_in_json_out_and_what_is_learnt_of_the_outputs(front):
    status, answer = front.ask("POST", "/v2/models/double/infer", {"id": "seven", **infer([1, 2, 3, 4], slo_ms=15000)})
    assert status == 200 and answer["id"] == "seven" and answer["model_name"] == "double"
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [4], "data": [2.0, 4.0, 6.0, 8.0]}]
    assert answer["parameters"]["late"] is False and answer["parameters"]["request_id"] > 0
    assert front.ask("GET", "/v2/models/double")[1]["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [4]}]
    count = front.ask("GET", "/v2/models/double/stats")[1]["model_stats"][0]["inference_count"]
    assert count >= 1
    assert len(front.ask("GET", "/v2/models/stats")[1]["model_stats"]) == 8


def test_texts_compressed_bodies_and_curls_default_content_type(front):
    body = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["ab cd"]}]}).encode()
    for headers in ({"Content-Encoding": "gzip"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        sent = gzip.compress(body) if "Content-Encoding" in headers else body
        status, answer = front.ask("POST", "/v2/models/shout/infer", sent, headers)
        assert status == 200
        assert {output["name"]: output["data"] for output in answer["outputs"]} == {
            "loud": ["AB CD"],
            "words": ["ab", "cd"],
        }


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "says"),
    [
        ("/v2/models/dubble/infer", infer([0] * 4), 404, "unknown_app", "Request for unknown model"),
        ("/v2/models/double/versions/2/infer", infer([0] * 4), 404, "unknown_app", "version '1' only"),
        ("/v2/models/double/infer", infer([0] * 3), 400, "bad_input", "FP32 [4]"),
        ("/v2/models/double/infer", {"inputs": []}, 400, "bad_input", "input 'x' is missing"),
        ("/v2/models/double/infer", infer([0] * 4, slo=5), 400, "bad_input", "did you mean 'slo_ms'"),
        ("/v2/models/double/infer", infer([0] * 4, **{"class": "vip"}), 400, "bad_input", "class"),
        ("/v2/models/double/infer", infer([0] * 4, slo_ms=1e-6), 504, "deadline_expired", "had passed"),
        ("/v2/models/double/infer", infer([-1] * 4), 500, "failed", "negative input"),
        ("/v2/models/double/infer", b"{nonsense", 400, "malformed", "not JSON"),
        ("/v2/models/double/infer", b"x" * (1024**2 + 1), 413, "too_large", "raise body_max"),
        ("/v2/repository/models/double/load", {}, 501, "not_served", "scheduler"),
        ("/v2/cudasharedmemory/region/r/register", {}, 501, "not_served", "not served"),
    ],
)
def test_what_goes_wrong_has_a_status_a_code_and_a_text(front, path, body, status, code, says):
    got, error = front.ask("POST", path, body)
    assert (got, error["code"]) == (status, code)
    assert says in error["error"]


def form(name, content, more=""):
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


def test_an_image_as_a_body_and_in_a_form(front):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed: images cannot be read")
    data = io.BytesIO()
    pillow.new("RGB", (60, 40), (10, 20, 30)).save(data, "png")
    kind = {"Content-Type": "image/png"}
    status, answer = front.ask("POST", "/v2/models/colour/infer?slo_ms=15000", data.getvalue(), kind)
    assert (status, answer["outputs"][0]["data"]) == (200, [10, 20, 30])
    status, error = front.ask("POST", "/v2/models/double/infer", data.getvalue(), kind)
    assert status == 400 and "exactly one input" in error["error"]
    pytest.importorskip("python_multipart", reason="python-multipart is not installed: forms cannot be read")
    named = form("class", b"critical")
    for app, body, wanted in (
        ("colour", named + form("image", data.getvalue(), '; filename="x.png"') + b"--b--\r\n", 200),
        ("colour", named + form("image", b"no image", '; filename="x.png"') + b"--b--\r\n", 400),
        ("colour", named + form("image", data.getvalue(), '; filename="x.png"') * 2 + b"--b--\r\n", 400),
        ("shout", form("text", b"hey") + b"--b--\r\n", 200),
        ("shout", b"--b\r\nnonsense", 400),
    ):
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        assert front.ask("POST", f"/v2/models/{app}/infer", body, kind)[0] == wanted, body


def test_bounds_of_the_front_itself(server, gates):
    settings = HttpConfig(listen="127.0.0.1:0", in_flight_max=1, timeout_ns=300 * 10**6, body_timeout_ns=10**8)
    with FrontThread(server.endpoints[0], settings) as front:
        status, error = front.ask("POST", "/v2/models/held/infer", infer([1, 0, 0, 0]))
        assert (status, error["code"]) == (504, "timed_out")
        connection = socket.create_connection(front.http.split(":"))
        connection.settimeout(20)
        connection.sendall(b"POST /v2/models/held/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert b"did not arrive" in connection.makefile("rb").read()  # to its end: the connection is closed
        connection.close()


@pytest.mark.nightly
def test_the_command_warns_where_no_server_answers(tmp_path):
    command = [sys.executable, "-m", "edgeserve", "front", "http", "--listen", "127.0.0.1:0"]
    command += ["--endpoint", f"ipc://{tmp_path}/nobody"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as front:
        assert front.stderr is not None
        said = front.stderr.readline() + front.stderr.readline()
        front.terminate()
    assert (
        "ready on http://" in said and "the server at ipc://" in said and "edgeserve serve, or give --endpoint" in said
    )


# --- OpenAI's protocol ------------------------------------------------------------------------------------------------


def events_of(data):
    """The server-sent events before the one that ends them."""
    events = [line[len("data: ") :] for line in data.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return events


def talk(text, **fields):
    return {"model": "chat", "messages": [{"role": "user", "content": text}], **fields}


def test_a_completion_whole_and_as_events(front):
    listed = {"id": "chat", "object": "model", "created": int(CLOCK_S), "owned_by": "edgeserve"}
    assert front.ask("GET", "/v1/models")[1] == {"object": "list", "data": [listed]}
    assert front.ask("GET", "/v1/models/chat")[1] == listed
    status, whole = front.ask("POST", "/v1/chat/completions", talk("one two three", max_tokens=2, deadline_ms=15000))
    assert status == 200 and whole["created"] == int(CLOCK_S)
    assert whole["choices"][0]["message"]["content"] == "one two" and whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    status, data, headers = front.ask_raw("POST", "/v1/chat/completions", talk("one two", stream=True))
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events_of(data)]
    assert "".join(delta.get("content", "") for delta in deltas) == "one two"


@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_chat_have_a_status_even_in_a_stream(front, stream):
    for fields, status, code in (
        ({"model": "double"}, 404, "unknown_app"),
        ({"messages": []}, 400, "bad_input"),
        ({"deadline_ms": 1e-6}, 504, "deadline_expired"),
        ({"n": 99}, 400, "bad_input"),
        ({"frequency_penalty": 1}, 400, "bad_input"),
    ):
        got, error = front.ask("POST", "/v1/chat/completions", {**talk("hi"), **fields, "stream": stream})
        assert (got, error["error"]["code"]) == (status, code)


# --- Triton's client --------------------------------------------------------------------------------------------------


def pair_inputs(library):
    left, right = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    inputs = [library.InferInput("INPUT0", [1, 16], "INT32"), library.InferInput("INPUT1", [1, 16], "INT32")]
    inputs[0].set_data_from_numpy(left)
    inputs[1].set_data_from_numpy(right)
    return left, right, inputs


def test_tritons_http_client(front):
    library = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    left, right, inputs = pair_inputs(library)
    with library.InferenceServerClient(front.http) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("pair")
        assert not client.is_model_ready("nobody")
        assert client.get_model_metadata("pair")["inputs"][0]["datatype"] == "INT32"
        assert client.get_model_config("pair")["max_batch_size"] == 0
        assert "pair" in {item["name"] for item in client.get_model_repository_index()}
        inputs[0].set_data_from_numpy(left, binary_data=False)
        wishes = [library.InferRequestedOutput("OUTPUT0"), library.InferRequestedOutput("OUTPUT1", binary_data=False)]
        for wanted in (wishes, None):
            result = client.infer(
                "pair",
                inputs,
                outputs=wanted,
                request_id="7",
                timeout=15_000_000,
                priority=1,
                request_compression_algorithm="gzip",
            )
            assert (result.as_numpy("OUTPUT0") == left + right).all()
            assert (result.as_numpy("OUTPUT1") == left - right).all()
            assert result.get_response()["id"] == "7"
        assert client.get_inference_statistics("pair")["model_stats"][0]["inference_count"] >= 2
        text = library.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array(["hey you"], dtype=object))
        assert client.infer("shout", [text]).as_numpy("words").tolist() == [b"hey", b"you"]
        with pytest.raises(library.InferenceServerException, match="unknown model"):
            client.infer("nobody", inputs)
        with pytest.raises(library.InferenceServerException) as caught:
            client.infer("pair", inputs, timeout=1)
        assert caught.value.status() in ("503", "504")


def ask_shared(library, client):
    _, _, inputs = pair_inputs(library)
    inputs[0].set_shared_memory("in", 64)
    with pytest.raises(library.InferenceServerException, match="'INPUT0': shared_memory_region = 'in' .* over the bus"):
        client.infer("pair", inputs)
    wish = library.InferRequestedOutput("OUTPUT0")
    wish.set_shared_memory("out", 64)
    with pytest.raises(
        library.InferenceServerException, match="'OUTPUT0': shared_memory_region = 'out' .* over the bus"
    ):
        client.infer("pair", pair_inputs(library)[2], outputs=[wish])


def test_tritons_http_client_hears_where_shared_memory_went(front):
    library = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    with library.InferenceServerClient(front.http) as client:
        ask_shared(library, client)
        with pytest.raises(library.InferenceServerException, match="is not served any more.*over the bus"):
            client.register_system_shared_memory("in", "/in", 128)


def grpc_library():
    if grpc is None:
        pytest.skip("grpcio or protobuf is not installed: there is no gRPC front")
    return pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")


def test_tritons_grpc_client(front):
    library = grpc_library()
    left, right, inputs = pair_inputs(library)
    with library.InferenceServerClient(front.grpc) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("pair")
        assert client.get_server_metadata().name == "edgeserve"
        assert client.get_model_metadata("pair").inputs[0].datatype == "INT32"
        assert client.get_model_config("pair", as_json=True)["config"]["input"][0]["data_type"] == "TYPE_INT32"
        assert "pair" in {item.name for item in client.get_model_repository_index().models}
        result = client.infer("pair", inputs, request_id="7", timeout=15_000_000, parameters={"class": "critical"})
        assert (result.as_numpy("OUTPUT0") == left + right).all() and (result.as_numpy("OUTPUT1") == left - right).all()
        assert result.get_response().id == "7" and not result.get_response().parameters["late"].bool_param
        statistics = client.get_inference_statistics("pair").model_stats
        assert len(statistics) == 1 and statistics[0].inference_stats.success.count >= 1
        text = library.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array(["hey you"], dtype=object))
        assert client.infer("shout", [text]).as_numpy("words").tolist() == [b"hey", b"you"]
        for model, options, status in (
            ("nobody", {}, "NOT_FOUND"),
            ("pair", {"timeout": 1}, "DEADLINE_EXCEEDED"),
            ("shout", {}, "INVALID_ARGUMENT"),
            ("pair", {"model_version": "3"}, "NOT_FOUND"),
        ):
            with pytest.raises(library.InferenceServerException) as caught:
                client.infer(model, inputs, **options)
            assert caught.value.status() in ("StatusCode." + status, "StatusCode.UNAVAILABLE")
        ask_shared(library, client)


def test_a_refusal_over_grpc_tells_programs_why_and_a_token_is_asked_for(front, server, tmp_path):
    library = grpc_library()
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    (tmp_path / "token").write_text(TOKEN)
    settings = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0", token_file=str(tmp_path / "token"))
    with FrontThread(server.endpoints[0], settings) as locked, grpc.insecure_channel(locked.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ServerMetadata(service_pb2.ServerMetadataRequest())
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        said = stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=[("authorization", "Bearer " + TOKEN)])
        assert said.name == "edgeserve"
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(
                service_pb2.ModelInferRequest(model_name="nobody"), metadata=[("authorization", "Bearer " + TOKEN)]
            )
        assert dict(caught.value.trailing_metadata())["edgeserve-code"] == "unknown_app"
    assert library


def test_the_messages_are_those_of_tritons_client():
    library = grpc_library()
    from tritonclient.grpc import model_config_pb2, service_pb2

    from edgeserve.fronts.http.grpc_messages import KINDS

    assert library
    for path, kind in KINDS.items():
        home = service_pb2 if hasattr(service_pb2, path.split(".")[0]) else model_config_pb2
        theirs = {field.name: field for field in functools.reduce(getattr, path.split("."), home).DESCRIPTOR.fields}
        for field in kind.DESCRIPTOR.fields:
            if field.name != "data_type":  # an enumeration there; the same number on the wire
                assert shape_of(field) == shape_of(theirs[field.name]), (path, field.name)


def shape_of(field):
    inner = field.message_type.full_name if field.message_type else ""
    return field.number, field.type, inner, field.containing_oneof.name if field.containing_oneof else ""


# --- as a child of the server -----------------------------------------------------------------------------------------


def free_place():
    return f"127.0.0.1:{free_port()}"


def status_of(place):
    try:
        connection = http.client.HTTPConnection(place, timeout=20)
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status
    except OSError:
        return 0


def has_ended(process):
    """Also where no process reaps orphans."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_serve_starts_the_front_again_after_a_crash_and_ends_it(tmp_path):
    folder, place = tempfile.mkdtemp(prefix="es"), free_place()
    (tmp_path / "edge.toml").write_text(
        f'[server]\nendpoint = "ipc://{folder}/bus/s"\n[front.http]\nlisten = "{place}"\n'
        '[app.a]\nmodel = "m"\n[model.m]\nengine = "synthetic"\n'
        'expected = { 1 = "1ms" }\n'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        [sys.executable, "-m", "edgeserve.cli", "serve", "edge.toml"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: status_of(place) == 200 or server.poll() is not None, 60)
        assert server.poll() is None, server.stderr.read()
        (front,) = psutil.Process(server.pid).children()
        front.kill()
        wait_until(lambda: has_ended(front) and status_of(place) == 200, 60)
        (front,) = psutil.Process(server.pid).children()
        server.kill()  # without a chance to say anything
        wait_until(lambda: has_ended(front), 60)
    finally:
        server.kill()
        server.communicate(timeout=30)
        shutil.rmtree(folder)
