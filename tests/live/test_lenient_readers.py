"""No reader is stricter than its protocol: what other clients write in another form means the same."""

from __future__ import annotations

import gzip
import io
import json
import socket
import tempfile
import wave
from pathlib import Path

import pytest
from http_front import FrontThread
from serving import served

from edgeserve.fronts.http.settings import HttpConfig

FUNCTIONS = """
def echo(inputs): return {"y": inputs["x"]}
def hear(inputs): return {"text": "hi"}
"""
ITEM = {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
JSON = json.dumps({"inputs": [ITEM]}).encode()
INFER, HEAR = "/v2/models/echo/infer", "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def front():
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        (Path(folder) / "lenient_functions.py").write_text(FUNCTIONS)
        inputs = {"echo": {"x": {"dtype": "float32", "shape": [-1]}}, "hear": {"audio": {"shape": [-1]}}}
        tables = {
            "model": {name: {"engine": "python", "function": f"lenient_functions:{name}"} for name in inputs},
            "app": {name: {"model": name, "slo": "10s", "inputs": about} for name, about in inputs.items()},
        }
        with served(tables, folder) as (runtime, _):
            with FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as front:
                yield front


def sound():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(bytes(3200))
    return file.getvalue()


def form(**fields):
    parts = b""
    for name, value in fields.items():
        file = '; filename="a.wav"' if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        parts += f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
    return parts + b"--b--\r\n"


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (INFER, gzip.compress(JSON), {"Content-Encoding": "GZIP"}),
        (INFER, gzip.compress(JSON), {"Content-Encoding": "x-gzip"}),
        (INFER, JSON, {"Content-Encoding": "Identity"}),
        (INFER, b"\xef\xbb\xbf" + JSON, {}),
        (INFER, form(x="[1, 2, 3, 4]"), {"Content-Type": "Multipart/Form-Data; boundary=b"}),
        (INFER, {"inputs": [{**ITEM, "shape": [4.0]}]}, {}),
        (INFER, {"inputs": [{**ITEM, "parameters": None}], "parameters": {"slo_ms": None}, "outputs": None}, {}),
        (
            HEAR,
            form(file=sound(), model="hear", temperature="0.00"),
            {"Content-Type": "Multipart/Form-data;boundary=b"},
        ),
        (HEAR, form(file=sound(), model="hear", temperature=""), {"Content-Type": "multipart/form-data; boundary=b"}),
    ],
    ids=("GZIP", "x-gzip", "Identity", "mark", "Form", "float", "null", "sound", "temperature"),
)
def test_another_form_means_the_same(front, path, body, headers):
    status, answer = front.ask("POST", path, body, headers)
    assert status == 200, answer


def test_a_name_of_a_request_that_is_null_is_none(front):
    for name, told in ((None, None), ("", None), ("7", "7"), (7, "7")):
        assert front.ask("POST", INFER, {"inputs": [ITEM], "id": name})[1].get("id") == told


@pytest.mark.parametrize(
    ("wish", "is_binary"), [("true", True), ("1", True), ("false", False), ("0", False), ("", False)]
)
def test_binary_answers_are_asked_for_in_the_address_too(front, wish, is_binary):
    query = f"?binary_data_output={wish}" if wish else ""
    _, _, headers = front.ask_raw("POST", INFER + query, JSON)
    assert ("inference-header-content-length" in headers) is is_binary


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_older_client_gets_no_chunks(front, version, stream):
    body = form(file=sound(), model="hear", stream=stream)
    head = f"POST {HEAR} HTTP/{version}\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with socket.create_connection(front.http.split(":"), 20) as asked:
        asked.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        headers, _, told = asked.makefile("rb").read().partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200") and b"connection: close" in headers
    is_chunked = version == "1.1" and stream == "true"
    assert (b"transfer-encoding" in headers) is told.endswith(b"0\r\n\r\n") is is_chunked
    assert is_chunked or told.startswith(b"data: {" if stream == "true" else b"{")


def test_a_compressed_body_is_read_to_its_end(front):
    """Nothing compressed is nothing; what follows the end is no part that is left out in silence."""
    coded = {"Content-Encoding": "gzip"}
    assert front.ask("POST", "/v2/repository/index", gzip.compress(b""), coded)[0] == 200
    status, answer = front.ask("POST", INFER, gzip.compress(JSON) + gzip.compress(b"x"), coded)
    assert status == 400 and "follow" in answer["error"], answer
    status, answer = front.ask("POST", INFER, gzip.compress(b""), coded)
    assert status == 400 and "gzip" not in answer["error"], answer
