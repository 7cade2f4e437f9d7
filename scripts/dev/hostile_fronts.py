"""The fronts under mutated requests, with a healthy client beside them.

    python scripts/dev/hostile_fronts.py --requests 100000 --seed 7 [--json FILE]

So many requests to the front over HTTP, then as many over gRPC, Wyoming, Frigate's socket, MQTT and to the camera's
page, made from good ones by seeded mutations: bytes flipped, cut, added; JSON values of every kind; headers, paths and
verbs that are none. The healthy client asks over the same front all the while, each time with numbers of its own: every
answer must be its own and right. The server and its fronts are processes of their own; their memory is compared with
what it was after the first tenth.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict

import grpc
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments

from dev.attacked_server import Server, bus_folder
from dev.front_attackers import TOKENS
from dev.healthy_clients import HEALTHY, Healthy, mqtt_client
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


def mqtt_attacker(place: str) -> Callable[[random.Random], None]:
    """Publishes one question or picture: the broker is not what is attacked."""
    one = mqtt_client(place)

    def ask(draw: random.Random) -> None:
        app, who = draw.choice(("say",) * 6 + ("frames", "x", "%2F", "")), draw.choice(("attacker", "a/b", "\u202e"))
        topic = f"edgeserve/house/ask/{app}/{who}"
        if draw.random() < 0.2:
            topic = draw.choice(("cameras/door", "edgeserve/house/instance", "edgeserve/house/reload"))
        said = json.dumps({"text": draw.choice(("hi", *VALUES))}).encode()
        one.publish(topic, flipped(draw, said) if draw.random() < 0.7 else bytes(draw.choice((0, 10**6))))
        time.sleep(0.002)  # its broker has no bound

    return ask


def ask_camera(place: str, draw: random.Random) -> None:
    """Ask the camera's page."""
    host, port = place.split(":")
    path = draw.choice(("/frame.jpg", "/", "/stream", "/x", "http://x/stream", "\xff"))
    said = f"GET {path} HTTP/1.1\r\nHost: {draw.choice(('localhost', 'x', ''))}\r\n\r\n".encode("latin-1")
    with socket.create_connection((host, int(port)), 20) as one:
        one.sendall(flipped(draw, said) if draw.random() < 0.6 else said)
        if draw.random() < 0.8:
            one.settimeout(0.05)
            one.recv(1 << 16)


ATTACKING: Dict[str, Callable[[str], Callable[[random.Random], None]]] = {
    "http": lambda place: lambda draw: ask_http(place, draw),
    "grpc": grpc_attacker,
    "wyoming": lambda place: lambda draw: ask_wyoming(place, draw),
    "frigate": frigate_attacker,
    "mqtt": mqtt_attacker,
    "camera": lambda place: lambda draw: ask_camera(place, draw),
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
            for front in [each for each in HEALTHY if args.only in each and each in server.places]:
                found = attack(server, front, args.requests, args.seed)
                print(found, flush=True)
                rows.append(found)
                checks.at_least(f"{front}: requests of the healthy client", found["healthy_asked"], 1)
                checks.at_most(f"{front}: wrong answers to the healthy client", len(found["healthy_wrong"]), 0)
                for name, after in found["memory_mib_after"].items():
                    growth = after / found["memory_mib_warm"][name] - 1
                    checks.at_most(f"{front}: growth of the {name}'s memory after the first tenth", growth, GROWTH_MAX)
            checks.at_most("exit status of the server", server.process.stop(), 0)
            log = (folder / "log").read_text(encoding="utf-8")
            checks.at_most("faults of the server and its fronts in the log", log.count("Traceback"), 0)
        finally:
            server.process.kill()
    return checks.finish(args.json, {"seed": args.seed, "requests": args.requests}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
