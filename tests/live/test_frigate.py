"""Frigate's detector protocol, spoken by a client that was written from its description, against a served app."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zmq
from serving import command

from edgeserve import cli
from edgeserve.client import AsyncClient
from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput
from edgeserve.fronts.frigate import TOGETHER_MAX, Frigate, FrigateFront, header_of
from edgeserve.runtime import Runtime

FUNCTIONS = """
import time
import numpy as np
def detect(inputs):
    image = inputs["image"]
    if image[0, 0, 0] == 255: time.sleep(1.2)
    rows = np.zeros((40, 9), np.float32)
    rows[0] = [24, 16, 16, 16, 0, 0, image[0, 0, 0] / 100, 0, 0]
    return {"output0": rows.T}
def example():
    return {"image": np.zeros((32, 48, 3), np.uint8)}
def line(inputs):
    return {"y": inputs["a"]}
def two(inputs):
    return {"y": inputs["a"]}
"""


@pytest.fixture(scope="module")
def server(module_folder):
    folder = module_folder
    (folder / "frigate_functions.py").write_text(FUNCTIONS)
    python = {"engine": "python", "options": {"example": "frigate_functions:example"}}
    one = {"dtype": "float32", "shape": [1]}
    config = parse_config(
        {
            "server": {"endpoint": f"ipc://{folder}/bus/socket"},
            "model": {
                "detect": {**python, "function": "frigate_functions:detect"},
                "two": {"engine": "python", "function": "frigate_functions:two"},
                "line": {"engine": "python", "function": "frigate_functions:line"},
            },
            "app": {
                "detect": {
                    "model": "detect",
                    "slo": "2s",
                    "stream": "newest_wins",
                    "inputs": {"image": {"dtype": "uint8", "shape": [32, 48, 3]}},
                },
                "two": {"model": "two", "slo": "2s", "inputs": {"a": one, "b": one}},
                "line": {"model": "line", "slo": "2s", "inputs": {"a": one}},
                "text": {"model": "line", "slo": "2s", "inputs": {"a": {"dtype": "text"}}},
                "int8": {"model": "line", "slo": "2s", "inputs": {"a": {"dtype": "int8", "shape": [1, 8, 8, 3]}}},
            },
        },
        directory=str(folder),
    )
    with Runtime(config, serve=True) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def front(server):
    """The address of a front that runs on a loop of its own."""
    places, ready = [], threading.Event()
    ends = {}

    async def serve():
        ends["loop"], ends["stopped"] = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncClient(server.endpoints[0]) as client:
            front = FrigateFront(client, Frigate(app="detect", timeout_ms=1000.0, listen="tcp://127.0.0.1:*"))
            await front.look()
            await front.serve(ends["stopped"], lambda place: (places.append(place), ready.set()))

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield places[0]
    ends["loop"].call_soon_threadsafe(ends["stopped"].set)
    thread.join(20)
    assert not thread.is_alive()


class Recorder:
    """Frigate's side: a REQ socket that is made anew after a time-out."""

    def __init__(self, place, timeout_ms=20_000):
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.RCVTIMEO, timeout_ms)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(place)

    def detect(self, image, **header):
        told = {"shape": list(image.shape), "dtype": image.dtype.name, "model_type": "yologeneric", **header}
        self.socket.send_multipart([json.dumps(told).encode(), image.tobytes()])
        (frame,) = self.socket.recv_multipart()
        return np.frombuffer(frame, np.float32).reshape(20, 6)


def image_of(value, shape=(1, 32, 48, 3), dtype=np.uint8):
    return np.full(shape, value, dtype)


def test_an_image_is_answered_with_what_the_app_found(front):
    rows = Recorder(front).detect(image_of(90))
    np.testing.assert_allclose(rows[0], [2, 0.9, 0.25, 16 / 48, 0.75, 32 / 48], atol=1e-6)
    assert not rows[1:].any()


def test_the_app_has_the_model_and_takes_no_file(front):
    recorder = Recorder(front)
    for frames in ([b'{"model_request": true, "model_name": "a.onnx"}'], [b'{"model_data": true}', b"file"]):
        recorder.socket.send_multipart(frames)
        answer = json.loads(recorder.socket.recv())
        assert answer["model_available"] and answer["model_loaded"] and not answer["model_saved"]
    assert recorder.detect(image_of(90)).any()


@pytest.mark.parametrize(
    ("frames", "is_answered"),
    [
        ([b"{" * 60_000, b"x"], True),
        ([b"x"] * 200_000, False),
        ([b"{}", b"x" * 10**6, b"more"], False),
        ([b"{}", bytes(65 * 1024**2)], False),
    ],
)
def test_what_is_no_request_is_answered_as_empty_or_ends_its_connection(front, frames, is_answered):
    def sent():
        hostile = Recorder(front, timeout_ms=20_000 if is_answered else 2000)
        hostile.socket.send_multipart(frames)
        return np.frombuffer(hostile.socket.recv(), np.float32)

    with ThreadPoolExecutor(1) as others:
        answer = others.submit(sent)
        recorder = Recorder(front)
        for _ in range(5):
            begun_s = time.monotonic()
            assert recorder.detect(image_of(90)).any()
            assert time.monotonic() - begun_s < 2.0
        if is_answered:
            assert len(answer.result(30)) == 120 and not answer.result().any()
        else:
            with pytest.raises(zmq.Again):
                answer.result(30)


def test_one_socket_that_does_not_wait_leaves_room_for_others(front):
    with sockets(front, 1) as (flood,):
        for _ in range(200):
            flood.send_multipart(question(image_of(255)))  # takes the model long
        assert any(Recorder(front).detect(image_of(90)).any() for _ in range(20))


@contextlib.contextmanager
def sockets(place, count):
    """Sockets that do not wait for answers, each under a name of its own."""
    made = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(count)]
    for number, each in enumerate(made):
        each.setsockopt(zmq.LINGER, 0)
        each.setsockopt(zmq.ROUTING_ID, f"name {number}".encode())
        each.connect(place)
    try:
        yield made
    finally:
        for each in made:
            each.close()


def question(image):
    told = {"shape": list(image.shape), "dtype": image.dtype.name}
    return [b"", json.dumps(told).encode(), image.tobytes()]


def test_many_names_of_one_owner_leave_a_quarter_of_the_places_to_others():
    class Server:
        asked = []

        async def apps(self):
            return {"a": {"inputs": {"image": {"dtype": "uint8", "shape": [4, 4, 3]}}, "stream": "none", "slo_ms": 1e3}}

        async def infer(self, app, inputs, *, origin, **options):
            self.asked.append(origin)
            await asyncio.Event().wait()

    async def run():
        front, stopped, ready = (
            FrigateFront(Server(), Frigate(app="a", listen="tcp://127.0.0.1:*")),
            asyncio.Event(),
            [],
        )
        await front.look()
        serving = asyncio.ensure_future(front.serve(stopped, ready.append))
        while not ready:
            await asyncio.sleep(0.01)
        with sockets(ready[0], TOGETHER_MAX) as made:
            for each in made:
                each.send_multipart(question(image_of(1, (4, 4, 3))))
            while len(Server.asked) + front.refused < TOGETHER_MAX:
                await asyncio.sleep(0.01)
            stopped.set()
            await serving

    asyncio.run(asyncio.wait_for(run(), 30))
    assert len(Server.asked) == TOGETHER_MAX * 3 // 4
    assert set(Server.asked) == {f"uid:{os.getuid()}"}


@pytest.mark.parametrize("listen", ["ipc://{folder}/detector", "tcp://*:*", "tcp://[::1]:*", "tcp://localhost:*"])
def test_a_front_listens_where_its_setting_says(server, tmp_path, listen):
    async def run():
        stopped, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        async with AsyncClient(server.endpoints[0]) as client:
            listens = listen.format(folder=tmp_path)
            front = FrigateFront(client, Frigate(app="detect", timeout_ms=20_000.0, listen=listens))
            await front.look()
            serving = asyncio.ensure_future(front.serve(stopped, ready.set_result))
            place = (await asyncio.wait_for(ready, 10)).replace("*", "127.0.0.1")
            found = await asyncio.get_running_loop().run_in_executor(None, asked, place)
            stopped.set()
            await serving
            return found

    def asked(place):
        recorder = Recorder(place)
        if "[" in place:
            recorder.socket.close()
            recorder.socket = zmq.Context.instance().socket(zmq.REQ)
            recorder.socket.setsockopt(zmq.IPV6, 1)
            recorder.socket.setsockopt(zmq.LINGER, 0)
            recorder.socket.connect(place)
        return recorder.detect(image_of(90)).any()

    assert asyncio.run(asyncio.wait_for(run(), 30))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "frames",
    [
        [b"{}"],
        [b"{", b""],
        [b'{"shape": [1], "dtype": "uint8"}', b"x"],
        [b"[]", b""],
        [b'{"shape": [1, 1], "dtype": "f8,("}', b"x"],
    ],
)
def test_a_header_that_is_none_is_refused(frames):
    with pytest.raises(BadInput):
        header_of(frames)


@pytest.mark.parametrize("order", "<>")
def test_the_order_of_an_images_bytes_is_as_its_header_says(order):
    image = np.array([[1, 256]], order + "u2")
    shape, dtype, _ = header_of([json.dumps({"shape": [1, 2], "dtype": image.dtype.str}).encode(), image.tobytes()])
    assert (np.frombuffer(image.tobytes(), dtype).reshape(shape) == image).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--app", "detct"], "did you mean 'detect'"),
        (["--app", "two"], "Frigate sends no more"),
        (["--app", "line"], "this front brings one image"),
        (["--app", "text"], "this front brings one image"),
        (["--app", "detect", "--form", "yolov9"], "--form = 'yolov9'"),
        (["--app", "detect", "--listen", "x"], "expected such as tcp"),
    ],
)
def test_what_cannot_be_a_detector_is_said_at_once(server, capsys, arguments, says):
    assert cli.main(["front", "frigate", "--endpoint", server.endpoints[0], *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_network_of_whole_numbers_is_a_detector(server):
    async def look():
        async with AsyncClient(server.endpoints[0]) as client:
            await FrigateFront(client, Frigate(app="int8")).look()

    asyncio.run(look())


def test_the_command_serves_and_ends_on_a_signal(server):
    words = f"front frigate --app detect --endpoint {server.endpoints[0]} --listen tcp://127.0.0.1:* --timeout-ms 5000"
    process = subprocess.Popen(
        command(words),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    place = process.stderr.readline().split("ready on ")[1].split(",")[0]
    assert Recorder(place).detect(image_of(90)).any()
    process.send_signal(signal.SIGINT)
    assert "1 images answered, 0 of them as empty" in process.communicate(timeout=20)[1]
    assert process.returncode == 0
