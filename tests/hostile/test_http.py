"""Attacks on the HTTP front: connections, bodies, files and pages in a browser."""

from __future__ import annotations

import asyncio
import io
import json
import select
import socket
from typing import Any, Dict, Iterator

import numpy as np
import pytest
from bus_server import BusServer
from http_front import FrontThread
from serving import wait_until

from edgeserve.errors import BadInput, Rejected, TooLarge
from edgeserve.front import Places, images
from edgeserve.fronts.http import connections
from edgeserve.fronts.http.asgi import Bounds, Call
from edgeserve.fronts.http.settings import HttpConfig

APPS = {"echo": {"inputs": {"x": {"dtype": "float32", "shape": [-1]}}, "outputs": ["x"]}}
PIXELS = {"dtype": "uint8", "shape": [-1, -1, 3]}
INFER = "/v2/models/echo/infer"


@pytest.fixture
def server(tmp_path: Any) -> Iterator[BusServer]:
    with BusServer(f"ipc://{tmp_path}/bus") as running:
        running.told = APPS
        yield running


def front_of(server: BusServer, **settings: Any) -> FrontThread:
    return FrontThread(server.endpoint, HttpConfig(listen="127.0.0.1:0", **settings))


def dial(front: FrontThread, said: bytes = b"") -> socket.socket:
    one = socket.create_connection(front.http.split(":"), 20)
    one.sendall(said)
    return one


def read(one: socket.socket) -> bytes:
    """Everything until the connection ends."""
    data = b""
    try:
        while part := one.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data


# --- before a request is complete -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /v2/health",
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode(),
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{".encode(),
    ],
    ids=["silent", "half a head", "half a body", "chunks"],
)
def test_unfinished_connections_keep_nobody_out(server: BusServer, said: bytes) -> None:
    with front_of(server, connections_max=8) as front:
        unfinished = [dial(front, said) for _ in range(30)]
        wait_until(lambda: len(select.select(unfinished, [], [], 0)[0]) == 22)  # that were ended
        assert front.ask("GET", "/v2/health/live")[0] == 200
        for one in unfinished:
            one.close()


def test_new_connections_end_no_kept_one_that_has_asked(server: BusServer) -> None:
    with front_of(server, connections_max=8) as front:
        with dial(front) as kept:
            for _ in range(2):
                kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200")
                idle = [dial(front) for _ in range(20)]
                assert read(idle[0]) == b""
                for one in idle:
                    one.close()


def test_a_connection_that_says_nothing_or_half_a_head_ends(server: BusServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    with front_of(server) as front:
        for said in (b"", b"GET /v2/hea"):
            with dial(front, said) as one:
                assert read(one) == b""
        with dial(front, b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n") as one:
            assert one.recv(12) == b"HTTP/1.1 200"
            one.sendall(b"GET /v2/hea")
            assert b"HTTP" not in read(one)


def test_a_client_that_never_sends_its_body_ends_with_the_front(server: BusServer, capfd: Any) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    with front_of(server, drain_ns=10**8) as front:
        one = dial(front, head.encode())
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 100")
    assert read(one) == b"" and capfd.readouterr().err == ""
    one.close()


def test_a_connection_keeps_its_place_while_it_is_served(server: BusServer) -> None:
    with front_of(server, connections_max=2) as front:
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        with dial(front, head.encode() + b"Expect: 100-continue\r\n\r\n") as served:
            assert served.recv(1 << 16).startswith(b"HTTP/1.1 100")
            idle = [dial(front) for _ in range(4)]
            assert read(idle[0]) == b""
            served.sendall(body)
            assert served.recv(12) == b"HTTP/1.1 200"
            for one in idle:
                one.close()


CHUNKED = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"", b"a" * 60_000),
        (b"GET /", b"a" * 60_000),
        (b"GET / HTTP/1.1\r\nx", b"a" * 60_000),
        (b"GET / HTTP/1.1\r\nx: ", b"a" * 60_000),
        (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 10_000),
        (CHUNKED + b"1;", b"a" * 60_000),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"x: y\r\n" * 10_000),
    ],
    ids=["method", "path", "name", "value", "headers", "extension", "trailers"],
)
def test_what_is_no_body_has_a_bound(server: BusServer, begun: bytes, more: bytes) -> None:
    with front_of(server) as front, dial(front, begun) as one:
        with pytest.raises(ConnectionError):
            for _ in range(500):  # 30 MB: more than the system keeps on the way
                one.sendall(more)
        assert front.ask("GET", "/v2/health/live")[0] == 200


@pytest.mark.parametrize(
    ("flood", "counted"),
    [
        (b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4000, "on_headers_complete"),
        (b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 8000 + b"\r\n", "on_header"),
        (CHUNKED + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n", "on_body"),
    ],
)
def test_one_connection_leaves_turns_to_others(server: BusServer, monkeypatch: Any, flood: bytes, counted: str) -> None:
    """The parser's events between two turns of the event loop, of one that sends as many as fit into one read."""
    httptools = pytest.importorskip("uvicorn.protocols.http.httptools_impl", reason="h11 parses here")
    protocol, original = httptools.HttpToolsProtocol, getattr(httptools.HttpToolsProtocol, counted)
    seen, most = [0], [0]

    def count(self: Any, *given: Any) -> None:
        seen[0] += 1
        most[0] = max(most[0], seen[0])
        original(self, *given)

    def turn() -> None:
        seen[0] = 0
        front._loop.call_soon(turn)

    monkeypatch.setattr(protocol, counted, count)
    with front_of(server) as front:
        front._loop.call_soon_threadsafe(turn)
        with dial(front, flood) as one:
            assert one.recv(12).startswith(b"HTTP/1.1 ")
    assert 0 < most[0] <= 1000


@pytest.mark.parametrize(("path", "status"), [("/v2/models/nope", 404), ("/v1/models", 200), ("/", 200)])
def test_an_upgrade_is_no_way_around_the_routes(server: BusServer, path: str, status: int, capfd: Any) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "a" * 22
    with front_of(server) as front, dial(front, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode()) as one:
        one.sendall(upgrade.encode() + b"==\r\n\r\n")
        assert one.recv(1 << 16).startswith(f"HTTP/1.1 {status}".encode())
    assert capfd.readouterr().err == "", "a stranger writes into the log"


def call(bounds: Bounds, parts: Any = ()) -> Call:
    left = list(parts)

    async def receive() -> Dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        return None

    return Call({"method": "POST", "headers": [], "client": ("127.0.0.1", 1)}, receive, send, bounds)


def test_bodies_that_are_not_complete_have_a_bound_together() -> None:
    bounds = Bounds(HttpConfig(body_bytes_max=1000), Places(2000, "bytes of bodies", "bodies_max", lasting=True), None)
    first, second, third = (call(bounds, [bytes(400), bytes(400)]) for _ in range(3))
    assert len(asyncio.run(first.body())) == 800
    with pytest.raises(Rejected, match="bodies_max"):
        asyncio.run(second.body())
    second.end()
    first.end()
    assert bounds.bodies.count == 0
    assert len(asyncio.run(third.body())) == 800


def test_json_is_bounded_before_it_is_read() -> None:
    bounds = Bounds(HttpConfig(json_bytes_max=1000), Places(10**4, "bytes of bodies", "bodies_max"), None)
    with pytest.raises(TooLarge, match="json_max"):
        asyncio.run(call(bounds, [b"[" + b"1," * 600 + b"1]"]).json())
    with pytest.raises(Rejected, match="bodies_max"):  # it counts as what it becomes
        for _ in range(3):
            asyncio.run(call(bounds, [b"[" + b"1," * 400 + b"1]"]).json())


def test_large_json_is_the_same_and_what_is_wrong_in_it_is_refused(server: BusServer) -> None:
    x = np.linspace(-1, 1, 60_000, dtype=np.float32)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [60_000], "data": x.tolist()}]}
    with front_of(server) as front:
        for parameters, is_json in (({}, True), ({"binary_data_output": True}, False)):
            status, found, _ = front.ask_raw("POST", INFER, {**body, "parameters": parameters})
            assert status == 200
            if is_json:
                answer = json.loads(found)
                assert answer["outputs"][0]["data"] == x.tolist() and "keep" not in answer
            else:
                assert found.endswith(x.tobytes())
        deep = b'{"inputs": ' + b"[" * 500_000
        assert front.ask("POST", INFER, deep)[0] == 400
        many = b'{"inputs": [' + b'{"name": "x"},' * 100_000 + b'{"name": "x"}]}'
        assert front.ask("POST", INFER, many)[0] == 413, "of what the front itself reads there is less"
        wrong = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [200_000], "data": [300] * 200_000}]}
        assert front.ask("POST", INFER, wrong)[0] == 400
        assert front.ask("POST", INFER, body)[0] == 200


def test_the_front_answers_while_large_json_is_read(server: BusServer) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [' + b"1," * 4_000_000 + b"1]}]}"
    with front_of(server) as front:
        said = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        with dial(front, said) as large:
            asked = 0
            large.setblocking(False)
            while not select.select([large], [], [], 0)[0]:
                assert front.ask("GET", "/v2/health/live")[0] == 200
                asked += 1
            assert asked > 5, "it took that long"
            large.setblocking(True)
            assert large.recv(12) == b"HTTP/1.1 400", "its shape is another"


# --- files ------------------------------------------------------------------------------------------------------------


def test_good_array_files_are_read() -> None:
    for array in (np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.ones((2, 3), np.int16))):
        file = io.BytesIO()
        np.save(file, array)
        assert (images.decode_file("x", file.getvalue(), PIXELS, 10**6) == array).all()


@pytest.mark.parametrize(("kind", "is_read"), [("PNG", True), ("BMP", True), ("TIFF", False), ("PPM", False)])
def test_few_kinds_of_images_are_opened(kind: str, is_read: bool) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: no images")
    file = io.BytesIO()
    image.new("RGB", (4, 2)).save(file, kind)
    if is_read:
        assert images.decode_file("x", file.getvalue(), PIXELS, 10**6).shape == (2, 4, 3)
        return
    with pytest.raises(BadInput, match="no image"):
        images.decode_file("x", file.getvalue(), PIXELS, 10**6)


def test_an_image_is_bounded_by_what_it_takes_to_decode() -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: no images")
    file = io.BytesIO()
    image.new("L", (1000, 1000)).save(file, "PNG")
    assert images.decode_file("x", file.getvalue(), PIXELS, 3 * 10**6).shape == (1000, 1000, 3)
    with pytest.raises(TooLarge, match="to decode"):
        images.decode_file("x", file.getvalue(), {"dtype": "float64", "shape": [-1, -1, 3]}, 3 * 10**6)


# --- pages in a browser -----------------------------------------------------------------------------------------------


def test_no_page_asks_a_front_without_a_token(server: BusServer) -> None:
    with front_of(server) as front:
        for header, value, status in (
            ("Host", "localhost:8000", 200),
            ("Host", "127.0.0.1", 200),
            ("Host", "[::1]:8000", 200),
            ("Host", "evil.example:8000", 403),
            ("Host", "127.0.0.1.evil.example", 403),
            ("Host", "localhost.evil.example:80", 403),
            ("Origin", "http://localhost:8000", 403),
            ("Sec-Fetch-Site", "cross-site", 403),
            ("Sec-Fetch-Site", "same-site", 403),
            ("Sec-Fetch-Site", "none", 200),
        ):
            assert front.ask("GET", "/v2/health/live", headers={header: value})[0] == status, (header, value)


def test_a_front_with_a_token_is_asked_by_any_name(server: BusServer, tmp_path: Any) -> None:
    (tmp_path / "token").write_text("a-token-of-these-tests")
    headers = {
        "Host": "front.example",
        "Sec-Fetch-Site": "cross-site",
        "Authorization": "Bearer a-token-of-these-tests",
    }
    with front_of(server, token_file=str(tmp_path / "token")) as front:
        assert front.ask("GET", "/v2", headers=headers)[0] == 200


# --- what a file says of itself ---------------------------------------------------------------------------------------


def test_what_a_sound_becomes_has_room_before_it_is_made(server: BusServer) -> None:
    pytest.importorskip("python_multipart", reason="python-multipart is not installed: forms cannot be read")
    from declared_sizes import wav

    audio = {"dtype": "float32", "shape": [-1], "optional": False}
    server.told = {"echo": {"inputs": {"audio": audio}, "outputs": ["text"]}}
    with front_of(server, bodies_bytes_max=1 << 20) as front:

        def status(file: bytes) -> int:
            parts = b"".join(
                b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % part
                for part in ((b"model", b"", b"echo"), (b"file", b'; filename="a.wav"', file))
            )
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            return front.ask_raw("POST", "/v1/audio/transcriptions", parts + b"--b--\r\n", kind)[0]

        assert status(wav(rate=16_000, width=1, count=10_000)) == 200
        assert status(wav(rate=4_000, width=1, count=10_000)) == 429  # four times as many samples
        assert status(wav(rate=16_000, width=1, count=10_000)) == 200, "what was refused has left its place"


MULTIPART = "multipart/form-data; boundary=b"
FIELD = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n'
END = b"--b--\r\n"
BROKEN = {
    "more fields than one may have": (MULTIPART, FIELD * 65 + END),
    "more files": (MULTIPART, FIELD.replace(b'"x"', b'"x"; filename="a"') * 65 + END),
    "many lines at the head of a part": (MULTIPART, b"--b\r\n" + b"A: b\r\n" * 10_000 + b"\r\n1\r\n" + END),
    "a long line there": (MULTIPART, b"--b\r\nA: " + b"b" * 100_000 + b"\r\n\r\n1\r\n" + END),
    "a part without a name": (MULTIPART, b"--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n" + END),
    "a part of no kind": (MULTIPART, b"--b\r\n\r\n1\r\n" + END),
    "a field of over a megabyte": (MULTIPART, FIELD.replace(b"1", b"1" * (1 << 21)) + END),
    "no such character set": (MULTIPART + "; charset=rot99", FIELD + END),
    "a character set of no texts": (MULTIPART + "; charset=hex", FIELD + END),
    "bytes that are no UTF-8": (MULTIPART, FIELD.replace(b"1", b"\xff\xfe") + END),
    "a name that is no UTF-8": (MULTIPART, FIELD.replace(b'"x"', b'"\xff"') + END),
    "no boundary": ("multipart/form-data", FIELD + END),
    "an empty boundary": ('multipart/form-data; boundary=""', FIELD + END),
    "a long boundary": ("multipart/form-data; boundary=" + "b" * 5000, FIELD + END),
    "another boundary": ("multipart/form-data; boundary=other", FIELD + END),
    "no end": (MULTIPART, FIELD[:-4]),
    "nothing": (MULTIPART, b""),
    "lists within lists": (MULTIPART, FIELD.replace(b"1", b"[" * 100_000) + END),
    "no number of JSON": (MULTIPART, FIELD.replace(b"1", b"[NaN]") + END),
}


@pytest.mark.parametrize("path", [INFER, "/v1/audio/transcriptions"])
def test_a_form_that_is_none_is_its_clients_fault(server: BusServer, path: str, caplog: Any) -> None:
    pytest.importorskip("python_multipart", reason="python-multipart is not installed: forms cannot be read")
    with front_of(server) as front:
        for why, (kind, body) in BROKEN.items():
            status, told, _ = front.ask_raw("POST", path, body, {"Content-Type": kind})
            assert status < 500, (why, status, told)
    assert not [record for record in caplog.records if record.exc_info], "no client writes a traceback into the log"


def test_a_form_that_is_cut_off_is_answered_nowhere(server: BusServer) -> None:
    pytest.importorskip("python_multipart", reason="python-multipart is not installed: forms cannot be read")
    body = FIELD.replace(b"1", b"[1]") + FIELD.replace(b'"x"', b'"slo_ms"').replace(b"1", b"5000") + END
    with front_of(server) as front:
        for end in range(len(body)):
            status, told, _ = front.ask_raw("POST", INFER, body[:end], {"Content-Type": MULTIPART})
            assert status == (200 if end >= len(body) - 2 else 400), (end, status, told)
