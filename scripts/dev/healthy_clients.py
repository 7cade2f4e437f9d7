"""The healthy client of each front for ``hostile_fronts.py``: it knows every answer."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
import time
from typing import Any, Callable, List

import grpc
import numpy as np
import zmq

from dev.front_attackers import TOKENS
from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE


def mqtt_client(place: str) -> Any:
    """A client of the broker that runs."""
    import paho.mqtt.client as paho

    host, port = place.split(":")
    one = paho.Client(paho.CallbackAPIVersion.VERSION2)
    one.connect(host, int(port))
    one.loop_start()
    return one


class Healthy(threading.Thread):
    """Asks one thing after the other over a front, and knows every answer."""

    def __init__(self, ask: Callable[[np.ndarray], Any]) -> None:
        super().__init__(daemon=True)
        self._ask, self.stopping, self.asked = ask, False, 0
        self.wrong: List[str] = []

    def run(self) -> None:
        while not self.stopping:
            self.asked += 1
            x = np.arange(4, dtype=np.float32) + self.asked
            try:
                found = self._ask(x)
                if list(found) != x.tolist():
                    self.wrong.append(f"request {self.asked}: answered {found}")
            except Exception as error:  # noqa: BLE001 any failure counts
                self.wrong.append(f"request {self.asked}: {type(error).__name__}: {error}")
            time.sleep(0.005)


def healthy_http(place: str) -> Callable[[np.ndarray], Any]:
    def ask(x: np.ndarray) -> Any:
        connection = http.client.HTTPConnection(place, timeout=60)
        item = {"name": "x", "datatype": "FP32", "shape": [4], "data": x.tolist()}
        headers = {"Authorization": "Bearer " + TOKENS["client"]}
        connection.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [item]}), headers)
        answer = connection.getresponse().read()
        connection.close()
        return json.loads(answer)["outputs"][0]["data"]

    return ask


def healthy_grpc(place: str) -> Callable[[np.ndarray], Any]:
    call = grpc.insecure_channel(place).unary_unary(f"/{SERVICE}/ModelInfer")

    def ask(x: np.ndarray) -> Any:
        message = KINDS["ModelInferRequest"](model_name="echo")
        message.inputs.add(name="x", datatype="FP32", shape=[4])
        message.raw_input_contents.append(x.tobytes())
        data = call(message.SerializeToString(), metadata=[("authorization", "Bearer " + TOKENS["client"])], timeout=60)
        return np.frombuffer(KINDS["ModelInferResponse"].FromString(data).raw_output_contents[0], np.float32)

    return ask


def healthy_wyoming(place: str) -> Callable[[np.ndarray], Any]:
    host, port = place.split(":")

    def ask(x: np.ndarray) -> Any:
        data = json.dumps({"text": json.dumps(x.tolist())}).encode()
        with socket.create_connection((host, int(port)), 60) as one, one.makefile("rb") as file:
            one.sendall(json.dumps({"type": "transcript", "data_length": len(data)}).encode() + b"\n" + data)
            while True:
                head = json.loads(file.readline())
                more = json.loads(file.read(head.get("data_length") or 0) or b"{}")
                if head["type"] == "handled":
                    return json.loads({**(head.get("data") or {}), **more}["text"])

    return ask


def healthy_frigate(place: str) -> Callable[[np.ndarray], Any]:
    def ask(x: np.ndarray) -> Any:
        one = zmq.Context.instance().socket(zmq.REQ)
        one.setsockopt(zmq.RCVTIMEO, 60_000)
        one.connect(place)
        value = int(x[0]) % 100 + 120
        about = {"shape": [8, 8, 3], "dtype": "uint8", "model_type": "yologeneric"}
        one.send_multipart([json.dumps(about).encode(), bytes([value]) * 192])
        score = np.frombuffer(one.recv(), np.float32)[1]
        one.close(0)
        return x if abs(score - value / 255) < 1e-3 else [score]

    return ask


def healthy_mqtt(place: str) -> Callable[[np.ndarray], Any]:
    answers: queue.Queue[bytes] = queue.Queue()
    ready, one = threading.Event(), mqtt_client(place)
    topic = "edgeserve/house/answer/say/client0"

    def heard(client: Any, data: Any, message: Any) -> None:
        if message.topic == topic:  # amqtt sends what is retained elsewhere
            answers.put(message.payload)

    one.on_message = heard
    one.on_subscribe = lambda *args: ready.set()
    one.subscribe(topic, 1)
    ready.wait(20)

    def ask(x: np.ndarray) -> Any:
        said = json.dumps({"text": json.dumps(x.tolist())})
        one.publish("edgeserve/house/ask/say/client0", said, 1)
        return json.loads(json.loads(answers.get(timeout=60))["text"])

    return ask


def healthy_camera(place: str) -> Callable[[np.ndarray], Any]:
    def ask(x: np.ndarray) -> Any:
        connection = http.client.HTTPConnection(place, timeout=60)
        connection.request("GET", "/frame.jpg")
        answer = connection.getresponse()
        picture = answer.read()
        connection.close()
        return x if answer.status == 200 and picture[:2] == b"\xff\xd8" else [answer.status]

    return ask


HEALTHY = {
    "http": healthy_http,
    "grpc": healthy_grpc,
    "wyoming": healthy_wyoming,
    "frigate": healthy_frigate,
    "mqtt": healthy_mqtt,
    "camera": healthy_camera,
}
