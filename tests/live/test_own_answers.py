"""Clients that ask at the same time, over one connection of their front to the server: each gets its own numbers."""

from __future__ import annotations

import asyncio
import json
import random
from http.client import HTTPConnection

import numpy as np
import pytest
from http_front import FrontThread
from serving import function, served

pytest.importorskip("starlette", reason="pip install -e '.[http]'")
pytest.importorskip("uvicorn", reason="pip install -e '.[http]'")

from edgeserve.client import AsyncClient
from edgeserve.fronts.http.settings import HttpConfig

CLIENTS, QUESTIONS = 6, 20
TABLES = {
    "lane": {"cpu0": {}, "cpu1": {}},
    "model": {"double": function("double", home="own_functions")},
    "app": {"double": {"model": "double", "slo": "20s", "inputs": {"x": {"dtype": "float32", "shape": [-1]}}}},
}
FUNCTIONS = """
import time
import numpy as np
def double(inputs):
    time.sleep(float(inputs["x"][0] % 7) / 2000)
    return {"y": inputs["x"] * 2}
def example():
    return {"x": np.zeros(3, np.float32)}
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_functions.py").write_text(FUNCTIONS)
    with served(TABLES, str(folder)) as (runtime, _):
        yield runtime.endpoints[0]


def questions(seed):
    draw = random.Random(seed)
    return [[float(draw.randrange(1000)) for _ in range(draw.randrange(1, 5))] for _ in range(QUESTIONS)]


def doubled(values):
    return [2 * value for value in values]


def ask_all(ask):
    """Ask by several clients, each in a thread: ``ask(seed)`` answers the questions of that seed."""

    async def run():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*[loop.run_in_executor(None, ask, seed) for seed in range(CLIENTS)])

    assert asyncio.run(run()) == [list(map(doubled, questions(seed))) for seed in range(CLIENTS)]


def test_over_http(endpoint):
    with FrontThread(endpoint, HttpConfig(listen="127.0.0.1:0")) as front:

        def ask(seed):
            connection, found = HTTPConnection(front.http, timeout=30), []
            for values in questions(seed):
                tensor = {"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}
                connection.request("POST", "/v2/models/double/infer", json.dumps({"inputs": [tensor]}))
                found.append(json.loads(connection.getresponse().read())["outputs"][0]["data"])
            connection.close()
            return found

        ask_all(ask)


@pytest.mark.parametrize("streams", [False, True])
def test_over_grpc(endpoint, streams):
    grpc = pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
    from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

    def message(number, values):
        asked = KINDS["ModelInferRequest"](model_name="double", id=str(number))
        asked.inputs.add(name="x", datatype="FP32", shape=[len(values)])
        asked.raw_input_contents.append(np.array(values, np.float32).tobytes())
        return asked

    def numbers(response):
        return np.frombuffer(response.raw_output_contents[0], np.float32).tolist()

    with FrontThread(endpoint, HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0")) as front:

        def ask(seed):
            with grpc.insecure_channel(front.grpc) as channel:
                asked = [message(*each).SerializeToString() for each in enumerate(questions(seed))]
                if not streams:
                    kind = KINDS["ModelInferResponse"].FromString
                    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, kind)
                    return [numbers(infer(each, timeout=30)) for each in asked]
                kind = KINDS["ModelStreamInferResponse"].FromString
                open_stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", None, kind)
                found = {
                    each.infer_response.id: numbers(each.infer_response)
                    for each in open_stream(iter(asked), timeout=30)
                }
                return [found[str(number)] for number in range(len(asked))]

        ask_all(ask)


def test_over_mqtt(endpoint):
    aiomqtt = pytest.importorskip("aiomqtt", reason="pip install -e '.[mqtt]'")
    from mqtt_broker import broker

    from edgeserve.fronts.mqtt import Mqtt, MqttFront

    async def ask(port, seed):
        found = {}
        async with aiomqtt.Client("127.0.0.1", port) as client:
            await client.subscribe(f"edgeserve/own/answer/double/{seed}/+", qos=1)
            for number, values in enumerate(questions(seed)):
                await client.publish(f"edgeserve/own/ask/double/{seed}/{number}", json.dumps({"x": values}), qos=1)
            async for answer in client.messages:
                if answer.retain:  # amqtt 0.12 sends a newcomer what it keeps for others
                    continue
                told = json.loads(answer.payload)
                number = int(str(answer.topic).rpartition("/")[2])
                if "outputs" in told:
                    found[number] = told["outputs"]["y"]
                else:  # its share is in use
                    values = questions(seed)[number]
                    await client.publish(f"edgeserve/own/ask/double/{seed}/{number}", json.dumps({"x": values}), qos=1)
                if len(found) == QUESTIONS:
                    return [found[each] for each in range(QUESTIONS)]

    async def run(port):
        ready, stopped = asyncio.Event(), asyncio.Event()
        async with AsyncClient(endpoint) as client:
            front = MqttFront(client, Mqtt(port=port, name="own", ask=("double",), discovery=""))
            await front.look()
            serving = asyncio.ensure_future(front.serve(stopped, lambda place: ready.set()))
            await asyncio.wait_for(ready.wait(), 20)
            try:
                return await asyncio.wait_for(asyncio.gather(*[ask(port, seed) for seed in range(CLIENTS)]), 60)
            finally:
                stopped.set()
                await serving

    with broker() as port:
        assert asyncio.run(run(port)) == [list(map(doubled, questions(seed))) for seed in range(CLIENTS)]
