"""Attackers of the fronts for ``isolation.py``, and the clients beside them: over HTTP, gRPC, Wyoming and Frigate's
sockets.

Each is the text of a program. The arguments of an attacker: the bus's endpoint, the process id of the client,
HOST:PORT of HTTP, of gRPC, of Wyoming, the endpoint for Frigate. Those of a client: HOST:PORT (or the
endpoint) of its front, how many seconds it asks, its requests a second. A client counts an answer that comes within a
second.
"""

from __future__ import annotations

from typing import Dict

TOKENS = {"client": "a-token-of-the-client", "attacker": "a-token-of-the-attacker"}

FUNCTIONS = """
import numpy as np

def example():
    return {"x": np.zeros(4, np.float32)}

def echo(item):
    return {"y": item["x"]}

def say(item):
    return {"text": item["text"]}

def see(item):
    rows = np.zeros((9, 40), np.float32)
    rows[:5, 0] = 4, 4, 4, 4, item["image"][0, 0, 0] / 255
    return {"output0": rows}
"""

COUNT = """
import json, sys, threading, time
place, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
token = {token!r}
told = {{}}
lock = threading.Lock()
def count(name):
    with lock:
        told[name] = told.get(name, 0) + 1
""".format(token=TOKENS["client"])

HTTP_CLIENT = (
    COUNT
    + """
import http.client
WORKERS = 16
body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}'
def ask(connection):
    connection.request("POST", "/v2/models/x/infer", body, {"Authorization": "Bearer " + token})
    answer = connection.getresponse()
    answer.read()
    return answer.status
def work(first, begin):
    connection = http.client.HTTPConnection(place, timeout=10)
    for number in range(first, round(seconds * rate), WORKERS):
        due = begin + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            status = ask(connection)
            count("late" if time.monotonic() - due > 1 else "completed" if status == 200 else str(status))
        except (OSError, http.client.HTTPException) as error:
            count(type(error).__name__)
            connection.close()
print(ask(http.client.HTTPConnection(place, timeout=20)), flush=True)
sys.stdin.readline()
begin = time.monotonic()
threads = [threading.Thread(target=work, args=(first, begin)) for first in range(WORKERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(told))
"""
)

GRPC_CALLS = """
import grpc, numpy as np
from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE
def message(app, size):
    made = KINDS["ModelInferRequest"](model_name=app)
    made.inputs.add(name="x", datatype="FP32", shape=[size // 4])
    made.raw_input_contents.append(np.zeros(size // 4, np.float32).tobytes())
    return made.SerializeToString()
"""

GRPC_CLIENT = (
    COUNT
    + GRPC_CALLS
    + """
channel = grpc.insecure_channel(place)
call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
metadata, data = [("authorization", "Bearer " + token)], message("x", 16)
call(data, metadata=metadata, timeout=20, wait_for_ready=True)
print("ready", flush=True)
sys.stdin.readline()
begin, futures = time.monotonic(), []
for number in range(round(seconds * rate)):
    time.sleep(max(0.0, begin + number / rate - time.monotonic()))
    futures.append(call.future(data, metadata=metadata, timeout=1))
    futures[-1].add_done_callback(lambda one: count(one.code().name.replace("OK", "completed")))
for future in futures:
    try:
        future.result()
    except grpc.RpcError:
        pass
time.sleep(0.2)
print(json.dumps(told))
"""
)

TOKEN = f"token = {TOKENS['attacker']!r}\n"

HTTP_BEGIN = (
    TOKEN
    + """
http_place = sys.argv[3].split(":")
def dial(said=b""):
    one = socket.socket()
    one.settimeout(5)
    try:
        one.connect((http_place[0], int(http_place[1])))
        one.sendall(said)
    except OSError:
        time.sleep(0.01)
    return one
def post(body, path="/v2/models/x/infer", size=None, kind="application/json", shown=token):
    return (f"POST {path} HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer {shown}\\r\\n"
            f"Content-Type: {kind}\\r\\n"
            f"Content-Length: {len(body) if size is None else size}\\r\\n\\r\\n").encode() + body
def keep_asking(requests, pause=0.0):
    one = dial()
    while True:
        try:
            one.sendall(requests() if callable(requests) else requests)
            if not one.recv(1 << 16):
                raise OSError
        except OSError:
            one.close(); one = dial()
        time.sleep(pause)
"""
)

HTTP_ATTACKS: Dict[str, str] = {
    "holds 2,100 idle connections": """
while True:
    many = [dial() for _ in range(2100)]
    time.sleep(1)
    for one in many:
        one.close()
""",
    "sends half a head on 600 connections": """
many = [dial(b"GET /v2/health") for _ in range(600)]
while True:
    for place, one in enumerate(many):
        try:
            one.sendall(b"x")
        except OSError:
            one.close(); many[place] = dial(b"GET /v2/health")
    time.sleep(0.5)
""",
    "leaves 40 bodies unfinished": """
size = 60 << 20
while True:
    many = [dial(post(b"", size=size)) for _ in range(40)]
    for _ in range(59):
        for one in many:
            try:
                one.sendall(bytes(1 << 20))
            except OSError:
                pass
    time.sleep(2)
    for one in many:
        one.close()
""",
    "sends JSON as large as may be": """
body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [' + b"1," * 7_800_000 + b"1]}]}"
keep_asking(post(body))
""",
    "sends deep JSON": """
keep_asking(post(b'{"inputs": ' + b"[" * 8_000_000))
""",
    "sends images that are large when they are decoded": """
import struct as s, zlib
def png(side):
    def chunk(kind, data):
        return s.pack(">I", len(data)) + kind + data + s.pack(">I", zlib.crc32(kind + data))
    rows = zlib.compress(bytes((side + 1) * side), 9)
    head = s.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
fork(4)
keep_asking(post(png(7000), "/v2/models/see/infer", kind="image/png"))
""",
    "sends arrays that claim to be large": """
head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}\\n"
file = b"\\x93NUMPY\\1\\0" + len(head).to_bytes(2, "little") + head + bytes(16)
form = b'--b\\r\\nContent-Disposition: form-data; name="x"; filename="x.npy"\\r\\n\\r\\n' + file + b"\\r\\n--b--\\r\\n"
keep_asking(post(form, kind="multipart/form-data; boundary=b"))
""",
    "sends what cannot be read": """
bodies = [b"", b"{", b"[]", b"null", b'{"inputs": 1}', b'{"inputs": [1]}', b"\\xff" * 99, b'{"inputs": [{}]}',
          b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1e999], "data": [NaN]}]}',
          b'{"inputs": [{"name": "\\\\ud800", "datatype": "FP32", "shape": [4], "data": [1e400, "a"]}]}',
          b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1], "data": {}}], "parameters": []}']
fork(4)
keep_asking(lambda: post(random.choice(bodies)))
""",
    "shows a wrong token at full rate": """
fork(4)
keep_asking(post(bytes(1000), shown="a-token-that-is-wrong"))
""",
    "asks ten times as much": """
body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}'
fork(16)
keep_asking(post(body), 1 / 20)
""",
    "reads no answers": """
body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1000000], "data": [' + b"1," * 999_999 + b"1]}]}"
while True:
    many = [dial() for _ in range(8)]
    for one in many:
        one.settimeout(1)
        try:
            for _ in range(5):
                one.sendall(post(body, "/v2/models/echo/infer"))
        except OSError:
            pass
    time.sleep(1)
    for one in many:
        one.close()
""",
    "holds 1,100 streams of the page": """
ask = f"GET /page/stream HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n".encode()
while True:
    many = [dial(ask) for _ in range(1100)]
    time.sleep(1)
    for one in many:
        one.close()
""",
    "sends chats of odd values": """
values = [b"null", b"-1", b"1" * 401, b"1e999", b"[]", b"{}", b'"x"', b"[" * 1000, b'"' + b"x" * 10000 + b'"']
fields = [b"seed", b"n", b"stop", b"messages", b"tools", b"max_tokens", b"temperature", b"input", b"text"]
paths = ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/api/chat", "/api/generate"]
def odd():
    said = b'{"model": "x", "%s": %s}' % (random.choice(fields), random.choice(values))
    return post(said, random.choice(paths))
fork(4)
keep_asking(odd)
""",
    "asks by names and paths without end": """
def strange():
    name = "".join(random.choice("a/%2F.+# ?") for _ in range(random.randrange(1, 3000)))
    return post(b"{}", f"/v2/models/{name.replace(' ', '%20')}/infer")
fork(4)
keep_asking(strange)
""",
    "sends preflights at full rate": """
ask = (b"OPTIONS /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nOrigin: https://a.example\\r\\n"
       b"Access-Control-Request-Method: POST\\r\\nAccess-Control-Request-Headers: " + b"x," * 2000 + b"x\\r\\n\\r\\n")
fork(4)
keep_asking(ask)
""",
    "sends bytes that are no HTTP": """
def garbage():
    return os.urandom(200)
fork(4)
keep_asking(garbage)
""",
    "leaves 2,100 requests unfinished": """
while True:
    many = [dial(post(b"{", size=1000)) for _ in range(2100)]
    time.sleep(1)
    for one in many:
        one.close()
""",
    "sends heads without an end": """
begun = b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\n"
chunked = b"POST / HTTP/1.1\\r\\nHost: localhost\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
fork(4)
while True:
    one = dial(random.choice([begun, chunked + b"1\\r\\na\\r\\n0\\r\\n"]))
    try:
        while True:
            one.sendall(b"x: y\\r\\n" * 10000)
    except OSError:
        one.close()
""",
    "sends thousands of requests at once": """
fork(4)
keep_asking(b"GET /api/version HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n" * 4000)
""",
    "sends bodies in chunks of a byte": """
fork(4)
keep_asking(b"POST /v2/models/x/infer HTTP/1.1\\r\\nHost: localhost\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
            + b"1\\r\\na\\r\\n" * 100000 + b"0\\r\\n\\r\\n")
""",
}

GRPC_BEGIN = (
    TOKEN
    + """
import threading
grpc_place = sys.argv[4]
metadata = [("authorization", "Bearer " + token)]
def ask_at_once(data, count, shown=metadata, verb="ModelInfer"):
    with grpc.insecure_channel(grpc_place) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{verb}")
        for one in [call.future(data, metadata=shown, timeout=20) for _ in range(count)]:
            one.exception()
"""
    + GRPC_CALLS
)

GRPC_ATTACKS: Dict[str, str] = {
    "reads nothing of its streams": """
data = message("echo", 2 << 20)
def requests():
    while True:
        yield data
while True:
    with grpc.insecure_channel(grpc_place) as channel:
        calls = [channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(requests(), metadata=metadata) for _ in range(8)]
        time.sleep(4)
        for call in calls:
            call.cancel()
""",
    "sends 40 calls of 60 MiB without a token": """
data = message("echo", 60 << 20)
while True:
    ask_at_once(data, 40, ())
""",
    "sends 40 calls of 60 MiB": """
data = message("echo", 60 << 20)
while True:
    ask_at_once(data, 40)
""",
    "opens 300 streams and says nothing": """
def nothing():
    time.sleep(3600)
    yield b""
while True:
    with grpc.insecure_channel(grpc_place) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        calls = [stream(nothing(), metadata=metadata) for _ in range(300)]
        time.sleep(3)
        for call in calls:
            call.cancel()
""",
    "asks questions at full rate": """
data = KINDS["ModelMetadataRequest"](name="x").SerializeToString()
while True:
    ask_at_once(data, 64, metadata, "ModelMetadata")
""",
    "sends messages that cannot be read": """
while True:
    ask_at_once(os.urandom(300), 64)
""",
    "asks ten times as much": """
data = message("x", 16)
while True:
    ask_at_once(data, 32)
    time.sleep(0.05)
""",
    "holds 1,000 idle connections": """
host, port = grpc_place.split(":")
while True:
    many = []
    for _ in range(1000):
        one = socket.socket()
        one.settimeout(5)
        try:
            one.connect((host, int(port)))
        except OSError:
            time.sleep(0.01)
        many.append(one)
    time.sleep(1)
    for one in many:
        one.close()
""",
}

SAYINGS = """
import json, socket
def dial(place):
    host, port = place.split(":")
    return socket.create_connection((host, int(port)), 10)
def event(kind, data=None, payload=b""):
    more = json.dumps(data or {}).encode()
    head = {"type": kind, "data_length": len(more), "payload_length": len(payload)}
    return json.dumps(head).encode() + b"\\n" + more + payload
def hear(file, *kinds):
    while True:
        head = json.loads(file.readline())
        file.read(head.get("data_length") or 0), file.read(head.get("payload_length") or 0)
        if head["type"] in kinds:
            return head["type"]
"""

TIMED = """
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
def work(first):
    asking = asker()
    for number in range(first, round(seconds * rate), WORKERS):
        due = begin + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            found = asking()
            count("late" if time.monotonic() - due > 1 else found)
        except Exception as error:
            count(type(error).__name__)
            asking = asker()
threads = [threading.Thread(target=work, args=(first,)) for first in range(WORKERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(told))
"""

WYOMING_CLIENT = (
    COUNT
    + SAYINGS
    + """
WORKERS = 8
def asker():
    connection = dial(place)
    connection.settimeout(10)
    file = connection.makefile("rb")
    def ask():
        connection.sendall(event("transcript", {"text": "hi"}))
        return "completed" if hear(file, "handled", "not-handled") == "handled" else "not handled"
    return ask
asker()()
"""
    + TIMED
)

WYOMING_BEGIN = (
    SAYINGS
    + """
import encodings.idna, random, threading, time
os.setgroups([]); os.setgid(ANOTHER); os.setuid(ANOTHER)
place = sys.argv[5]
def again(act):
    def run():
        while True:
            try:
                act()
            except OSError:
                time.sleep(0.05)
    return threading.Thread(target=run)
def all_of(count, act):
    threads = [again(act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
)

WYOMING_ATTACKS: Dict[str, str] = {
    "sends text in pieces of one character": """
def act():
    with dial(place) as one:
        one.sendall(event("synthesize-start"))
        while True:
            one.sendall(event("synthesize-chunk", {"text": "x"}) * 1000)
all_of(4, act)
""",
    "holds 300 connections": """
held = []
def act():
    held.append(dial(place))
    if len(held) > 300:
        time.sleep(0.1); held.pop(0).close()
all_of(1, act)
""",
    "announces 4 MiB on 100 connections and sends it slowly": """
def act():
    with dial(place) as one:
        one.sendall(b'{"type": "audio-chunk", "payload_length": 4194304}' + b"\\n")
        while True:
            one.sendall(bytes(8192)); time.sleep(0.1)
all_of(100, act)
""",
    "sends events that are none": """
def act():
    with dial(place) as one:
        one.settimeout(1)
        while True:
            wrong = event("audio-chunk", {"rate": -1})
            one.sendall(random.choice((b"[]\\n", b"{}\\n", b'{"type": 5}\\n', b"{" * 5000 + b"\\n", wrong)))
all_of(8, act)
""",
    "asks at full rate and reads nothing": """
def act():
    with dial(place) as one:
        while True:
            one.sendall(event("transcript", {"text": "hi"}) * 10)
all_of(8, act)
""",
}

FRIGATE_CALLS = """
import json, zmq
SIZE = (8, 8, 3)
HEAD = json.dumps({"shape": SIZE, "dtype": "uint8", "model_type": "yologeneric"}).encode()
def dealer(kind=zmq.DEALER):
    one = zmq.Context.instance().socket(kind)
    one.setsockopt(zmq.LINGER, 0); one.setsockopt(zmq.RCVTIMEO, 2000); one.setsockopt(zmq.SNDTIMEO, 2000)
    one.connect(place)
    return one
"""

FRIGATE_CLIENT = (
    COUNT
    + FRIGATE_CALLS
    + """
WORKERS = 4
def asker():
    one = dealer(zmq.REQ)
    def ask():
        one.send_multipart([HEAD, bytes(192)])
        return "completed" if len(one.recv()) == 480 else "odd"
    return ask
asker()()
"""
    + TIMED
)

FRIGATE_BEGIN = (
    "place = sys.argv[6]\n" + FRIGATE_CALLS + "import time\nos.setgroups([]); os.setgid(ANOTHER); os.setuid(ANOTHER)\n"
)

FRIGATE_ATTACKS: Dict[str, str] = {
    "sends messages of 200,000 frames": """
one = dealer()
while True:
    try:
        for _ in range(200_000):
            one.send(b"x", zmq.SNDMORE)
        one.send(b"x")
    except zmq.ZMQError:
        one.close(); one = dealer()
""",
    "sends headers of 60 kB": """
one = dealer()
while True:
    try:
        one.send_multipart([b"", b"{" + b"x" * 60_000, bytes(192)])
    except zmq.ZMQError:
        pass
""",
    "asks at full rate on 64 sockets": """
sockets = [dealer() for _ in range(64)]
while True:
    for one in sockets:
        try:
            one.send_multipart([b"", HEAD, bytes(192)], zmq.NOBLOCK)
        except zmq.ZMQError:
            pass
    time.sleep(0.001)
""",
    "claims shapes and types that are none": """
import random
one = dealer()
while True:
    shape = random.choice(([], [-1, 8, 3], [2**40, 2**40, 3], "x"))
    about = {"shape": shape, "dtype": random.choice(("O", "u1,u1", "x" * 500))}
    try:
        one.send_multipart([b"", json.dumps(about).encode(), bytes(192)])
    except zmq.ZMQError:
        pass
""",
}
