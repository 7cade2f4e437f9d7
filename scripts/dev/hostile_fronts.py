"""The fronts under mutated requests, with a healthy client beside them.

    python scripts/dev/hostile_fronts.py --requests 100000 --seed 7 [--json FILE]

So many requests to the front over HTTP, then as many over gRPC, Wyoming and Frigate's socket, made from good ones by
seeded mutations: bytes flipped, cut, added; JSON values of every kind; headers, paths and verbs that are none. The
healthy client asks over the same front all the while, each time with numbers of its own: every answer must be its own
and right. The server and its fronts are processes of their own; their memory is compared with what it was after the
first tenth.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import grpc
import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments

from dev.front_attackers import TOKENS
from dev.isolation import Server, bus_folder
from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

GROWTH_MAX = 0.10
ATTACKERS = 2
REST_S = 20.0
VALUES = (None, True, -1, 2**63, 1e308, "", "x" * 200, [], [[]] * 70, {}, {"a": {}}, "\ud7ff", [2**40, 2**40], "FP32")


def flipped(draw: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut or added."""
    found = bytearray(data)
    for _ in range(draw.choice((0, 1, 1, 3))):
        place = draw.randrange(len(found) + 1)
        way = draw.randrange(3)
        if way == 0 and place < len(found):
            found[place] = draw.randrange(256)
        elif way == 1:
            del found[place : place + draw.randrange(1, 20)]
        else:
            found[place:place] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 20)))
    return bytes(found)


def http_request(draw: random.Random) -> bytes:
    """A whole request: mostly good, or nearly."""
    item: Dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    body: Dict[str, Any] = {"inputs": [item], "parameters": {"slo_ms": 500}}
    for table in (item, body):
        if draw.random() < 0.4:
            table[draw.choice([*table, "outputs", "id", "zzz"])] = draw.choice(VALUES)
    data = json.dumps(body).encode()
    data = flipped(draw, data) if draw.random() < 0.5 else data
    method = draw.choice(("POST",) * 8 + ("GET", "PUT", "X"))
    path = draw.choice(
        ("/v2/models/echo/infer",) * 6
        + ("/v2/models/x/infer", "/v2/models/see/infer", "/v1/chat/completions", "/v2/%ff")
    )
    size = len(data) if draw.random() < 0.95 else draw.choice((0, 5, len(data) + 3, -1))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['attacker']}\r\n"
    kind = draw.choice(("application/json",) * 4 + ("image/png", "multipart/form-data; boundary=b", "\xff"))
    head += f"Content-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n"
    if draw.random() < 0.1:
        head += f"Inference-Header-Content-Length: {draw.choice((0, 5, len(data), -1, 10**9))}\r\n"
    if draw.random() < 0.05:
        head += f"Content-Encoding: {draw.choice(('gzip', 'deflate', 'br'))}\r\n"
    said = head.encode("latin-1") + b"\r\n" + data
    return flipped(draw, said) if draw.random() < 0.1 else said


def ask_http(place: str, draw: random.Random) -> None:
    """Send one, and read its answer or leave it."""
    host, port = place.split(":")
    with socket.create_connection((host, int(port)), 20) as one:
        one.sendall(http_request(draw))
        if draw.random() < 0.8:
            one.settimeout(0.5)  # some wait for a body that does not come
            while one.recv(1 << 16):
                pass


def grpc_attacker(place: str) -> Callable[[random.Random], None]:
    """Sends one request over its channel."""
    channel = grpc.insecure_channel(place)
    metadata = [("authorization", "Bearer " + TOKENS["attacker"])]

    def ask(draw: random.Random) -> None:
        message = KINDS["ModelInferRequest"](model_name=draw.choice(("echo", "x", "see", "none")))
        shape = [draw.choice((4, 4, 4, -1, 0, 2**40))]
        message.inputs.add(
            name=draw.choice(("x", "x", "image", "")), datatype=draw.choice(("FP32", "INT8")), shape=shape
        )
        message.raw_input_contents.append(bytes(draw.choice((16, 16, 0, 7))))
        data = message.SerializeToString()
        verb = draw.choice(("ModelInfer",) * 6 + ("ModelMetadata", "ModelConfig", "ServerReady", "None"))
        sent = flipped(draw, data) if draw.random() < 0.6 else data
        call = channel.unary_unary(f"/{SERVICE}/{verb}").future(
            sent, metadata=metadata if draw.random() < 0.95 else (), timeout=20
        )
        if draw.random() < 0.1:
            call.cancel()
        else:
            call.exception()

    return ask


def wyoming_events(draw: random.Random) -> bytes:
    """Some events: mostly good, or nearly."""
    said = b""
    for _ in range(draw.randrange(1, 6)):
        kind = draw.choice(
            ("transcript", "recognize", "describe", "ping", "audio-chunk", "audio-stop", "synthesize", "")
        )
        data = {
            "text": draw.choice(("hi", *VALUES)),
            "rate": draw.choice((16_000, -1, None)),
            "width": 2,
            "channels": 1,
        }
        more, sound = json.dumps(data).encode(), bytes(draw.choice((0, 0, 64, 63)))
        head = {"type": draw.choice((kind,) * 6 + VALUES), "data_length": len(more), "payload_length": len(sound)}
        said += json.dumps(head).encode() + b"\n" + more + sound
    return flipped(draw, said) if draw.random() < 0.5 else said


def ask_wyoming(place: str, draw: random.Random) -> None:
    """Send some on a connection, and read what comes or leave it."""
    host, port = place.split(":")
    with socket.create_connection((host, int(port)), 20) as one:
        one.sendall(wyoming_events(draw))
        if draw.random() < 0.8:
            one.settimeout(0.02)
            while one.recv(1 << 16):
                pass


def frigate_attacker(place: str) -> Callable[[random.Random], None]:
    """Sends one message over its socket."""
    context = zmq.Context.instance()
    sockets = [context.socket(zmq.DEALER)]

    def ask(draw: random.Random) -> None:
        if draw.random() < 0.02 or not sockets:
            for one in sockets:
                one.close(0)
            sockets[:] = [context.socket(zmq.DEALER)]
        one = sockets[0]
        if not one.getsockopt(zmq.LAST_ENDPOINT):
            one.setsockopt(zmq.LINGER, 0)
            one.connect(place)
        about = {"shape": [8, 8, 3], "dtype": "uint8", "model_type": "yologeneric"}
        if draw.random() < 0.5:
            about[draw.choice((*about, "model_request"))] = draw.choice(VALUES)
        frames = [b"", flipped(draw, json.dumps(about).encode()), bytes(draw.choice((192, 192, 0, 7)))]
        if draw.random() < 0.1:
            frames = frames[: draw.randrange(1, 4)] + [b"x"] * draw.randrange(50)
        one.setsockopt(zmq.SNDTIMEO, 1000)
        one.send_multipart(frames)

    return ask


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
            except Exception as error:  # noqa: BLE001 whatever it is counts
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


HEALTHY = {"http": healthy_http, "grpc": healthy_grpc, "wyoming": healthy_wyoming, "frigate": healthy_frigate}
ATTACKING: Dict[str, Callable[[str], Callable[[random.Random], None]]] = {
    "http": lambda place: lambda draw: ask_http(place, draw),
    "grpc": grpc_attacker,
    "wyoming": lambda place: lambda draw: ask_wyoming(place, draw),
    "frigate": frigate_attacker,
}


def attack(server: Server, front: str, requests: int, seed: int) -> Dict[str, Any]:
    """So many requests to one front; what was found."""
    place = server.places[front]
    healthy = Healthy(HEALTHY[front](place))
    healthy.start()
    begin_s, memory = time.monotonic(), []
    for part, share in (("warm", 0.1), ("main", 0.9)):
        threads = []
        for number in range(ATTACKERS):
            draw = random.Random(f"{seed}/{front}/{part}/{number}")
            ask = ATTACKING[front](place)
            count = round(requests * share) // ATTACKERS
            threads.append(threading.Thread(target=_ask_all, args=(ask, draw, count), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        time.sleep(REST_S)
        memory.append(server.memory_mib())
    healthy.stopping = True
    healthy.join(90)
    return {
        "front": front,
        "requests": requests,
        "seconds": round(time.monotonic() - begin_s, 1),
        "healthy_asked": healthy.asked,
        "healthy_wrong": healthy.wrong[:5],
        "memory_mib_warm": memory[0],
        "memory_mib_after": memory[1],
    }


def _ask_all(ask: Callable[[random.Random], None], draw: random.Random, count: int) -> None:
    for _ in range(count):
        try:
            ask(draw)
        except (OSError, grpc.RpcError, zmq.ZMQError, ValueError):
            pass  # what the front ends


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="FRONT", help="that front alone")
    args = parser.parse_args()
    checks, rows = Checks("scripts/dev/hostile_fronts.py"), []
    with bus_folder() as folder:
        server = Server(folder)
        try:
            for front in [each for each in HEALTHY if args.only in each]:
                found = attack(server, front, args.requests, args.seed)
                print(found, flush=True)
                rows.append(found)
                checks.at_least(f"{front}: requests of the healthy client", found["healthy_asked"], 1)
                checks.at_most(f"{front}: wrong answers to the healthy client", len(found["healthy_wrong"]), 0)
                for name, after in found["memory_mib_after"].items():
                    growth = after / found["memory_mib_warm"][name] - 1
                    checks.at_most(f"{front}: growth of the {name}'s memory after the first tenth", growth, GROWTH_MAX)
            checks.at_most("exit status of the server", server.process.stop(), 0)
        finally:
            server.process.kill()
    return checks.finish(args.json, {"seed": args.seed, "requests": args.requests}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
