"""The share that a well-behaved client finishes beside one attacker of each kind, of what it finishes alone.

    python scripts/dev/isolation.py [--seconds 8] [--rounds 2] [--only "http: "] [--json FILE]

The server with its front, the client and each attacker are processes of their own. The client asks at a steady rate
over the bus, HTTP or gRPC, less than half of what the lane can do, and counts the answers that come in time. Attackers
run at the lowest priority of the system: what is measured is what the server gives away, not how the system shares its
cores. Each measurement beside an attacker stands between two of the client alone, and is compared with their mean. The
class ``critical`` is restricted, as it must be where clients are not trusted with it. As root, attackers for which that
matters are another user, to whose group the bus's directory is open.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments

from dev import front_attackers, home_attackers
from dev.attacked_server import ANOTHER_USER, Server, bus_folder

RATE = 30.0
"""Requests a second of the client; the lane does 100."""

SHARE_MIN = 0.95

CLIENT = """
import json, sys, threading, time
from edgeserve.client import Client
endpoint, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
told = {}
lock = threading.Lock()
def done(future):
    error = future.exception()
    name = "completed" if error is None else type(error).__name__
    with lock:
        told[name] = told.get(name, 0) + 1
with Client(endpoint, timeout_ms=20_000, connect_ms=20_000) as client:
    client.health()
    print("ready", flush=True)
    sys.stdin.readline()
    futures = []
    begin = time.monotonic()
    for number in range(round(seconds * rate)):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        futures.append(client.submit("mine", {}))
        futures[-1].add_done_callback(done)
    for future in futures:
        future.exception(30)
print(json.dumps(told))
"""

BEGIN = """
import itertools, os, random, socket, struct, sys, time
import msgpack, zmq
from edgeserve.client import Client
os.nice(19)
endpoint, victim = sys.argv[1:3]
path = endpoint[6:]
numbers = itertools.count()
def become_another():
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(ANOTHER); os.setuid(ANOTHER)
def fork(count):
    for _ in range(count - 1):
        if os.fork() == 0:
            return
def greeted(version=3, **properties):
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect(path)
        if version < 3:
            one.sendall(b"\\xff" + bytes(8) + b"\\x7f" + bytes([version - 1, 5]) + b"\\0\\0")
            return one
        one.sendall(b"\\xff" + bytes(8) + b"\\x7f\\3\\1" + b"NULL".ljust(20, b"\\0") + bytes(32))
        ready = b"\\5READY"
        for name, value in {"Socket-Type": "DEALER", "Identity": "", **properties}.items():
            ready += bytes([len(name)]) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        one.sendall(b"\\4" + bytes([len(ready)]) + ready)
        one.settimeout(5)
        said = b""
        while b"READY" not in said:  # who sends before that is not heard
            part = one.recv(4096)
            if not part:
                raise OSError
            said += part
        one.settimeout(None)
    except OSError:
        time.sleep(0.01)
    return one
def frame(data, more=False):
    return bytes([(2 if len(data) > 255 else 0) | more]) + (
        struct.pack(">Q", len(data)) if len(data) > 255 else bytes([len(data)])) + data
def header(app="mine", **fields):
    return b"\\1" + msgpack.packb({"kind": "infer", "id": next(numbers), "app": app, **fields})
def dealer(**options):
    global context
    context = globals().get("context") or zmq.Context()  # not before a fork
    one = context.socket(zmq.DEALER)
    one.linger, one.sndtimeo = 0, 100
    for name, value in options.items():
        setattr(one, name, value)
    one.connect(endpoint)
    return one
def ask(one, app="mine", frames=(), **fields):
    try:
        one.send_multipart([header(app, **fields), *frames])
    except zmq.Again:
        pass
def read(one):
    while one.poll(0):
        one.recv_multipart()
"""

IN_TURN = """
def question():
    one.send(b"\\1" + msgpack.packb({"kind": QUESTION, "id": next(numbers)}))
for _ in range(64):
    question()
while True:
    one.recv_multipart(); question()
"""
"""Requests of a ``QUESTION``, 64 without an answer at a time."""

ATTACKS: Dict[str, str] = {
    "asks ten times as much": """
one = dealer()
while True:
    ask(one); read(one); time.sleep(1 / 300)
""",
    "asks three apps from many connections": """
many = [dealer() for _ in range(64)]
while True:
    for one in many:
        ask(one, random.choice(("mine", "other", "chain"))); read(one)
        time.sleep(1 / 400)
""",
    "asks with class critical": """
one = dealer()
while True:
    ask(one, **{"class": "critical"}); read(one); time.sleep(1 / 300)
""",
    "tells hints without measure": """
one = dealer()
while True:
    ask(one, "chain", hints={"first.steps": 65536, "second.work": 1e6}, on_late="answer"); read(one); time.sleep(0.005)
""",
    "floods and does not read": """
one = dealer(sndhwm=0)
while True:
    for _ in range(1000):
        ask(one)
    time.sleep(0.01)
""",
    "sends garbage": """
one = dealer()
while True:
    one.send(os.urandom(100)); read(one); time.sleep(0.0005)
""",
    "sends many frames": """
one = dealer(sndhwm=0)
while True:
    ask(one, frames=[b""] * 60000); time.sleep(0.2); read(one)
""",
    "sends messages of empty frames again and again": """
while True:
    one = dealer(sndhwm=0, linger=1000)
    ask(one, frames=[b""] * 300000); one.close()
""",
    "asks for stats all the time": """
QUESTION, one = "stats", dealer()
"""
    + IN_TURN,
    "asks for apps all the time": """
QUESTION, one = "apps", dealer()
"""
    + IN_TURN,
    "asks for apps with nearly right names": """
one = dealer(rcvhwm=0)
for _ in range(64):
    ask(one, "other" + "x" * random.randrange(3))
while True:
    one.recv_multipart(); ask(one, "".join(random.sample("othermine", 5)))
""",
    "sends nearly right inputs": """
def inputs():
    return {"image" + "".join(random.sample("sizemage", 4)) + str(n): "" for n in range(60)}
one = dealer(rcvhwm=0)
for _ in range(64):
    ask(one, "shaped", texts=inputs())
while True:
    one.recv_multipart(); ask(one, "shaped", texts=inputs())
""",
    "tells strange hints": """
def hints():
    return {"".join(random.sample("firstwork.steps", random.randrange(4, 12))) + str(n): 1.0 for n in range(32)}
one = dealer(rcvhwm=0)
for _ in range(64):
    ask(one, "chain", hints=hints())
while True:
    one.recv_multipart(); ask(one, "chain", hints=hints())
""",
    "sends large messages": """
one = dealer()
while True:
    ask(one, frames=[bytes(4 << 20)], tensors=[["x", "uint8", [4 << 20]]]); read(one); time.sleep(0.02)
""",
    "connects and vanishes": """
while True:
    one = dealer(); ask(one); ask(one, "chain"); time.sleep(0.002); one.close()
""",
    "connects and does nothing": """
while True:
    many = []
    for _ in range(600):
        one = socket.socket(socket.AF_UNIX)
        try:
            one.connect(path)
        except OSError:
            time.sleep(0.01)
        many.append(one)
    time.sleep(1)
    for one in many:
        one.close()
""",
    "sends a message that does not end": """
part = frame(bytes(1 << 20), True)
while True:
    one = greeted()
    try:
        while True:
            one.sendall(part)
    except OSError:
        one.close(); time.sleep(0.01)
""",
    "opens streams": """
one = dealer()
while True:
    ask(one, "stream", stream=f"s{random.randrange(100000)}"); read(one); time.sleep(1 / 300)
""",
    "asks from twelve processes of another user": """
become_another(); fork(12)
one = dealer()
while True:
    ask(one); read(one); time.sleep(1 / 50)
""",
    "asks and ends, a process of another user each time": """
become_another()
while True:
    if os.fork() == 0:
        with Client(endpoint) as client:
            for future in [client.submit("mine", {}) for _ in range(4)]:
                future.exception(5)
        os._exit(0)
    time.sleep(0.02)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
""",
    "asks by another's name": """
become_another()
one = dealer()
while True:
    ask(one, client=random.choice((f"pid:{victim}", f"uid:0/pid:{victim}"))); read(one); time.sleep(1 / 300)
""",
    "claims to be another in its handshake": """
become_another()
def flood():
    one = greeted(**{"User-Id": "uid:0", "Peer-Address": f":0:0:{victim}"})
    try:
        while True:
            one.sendall(frame(header())); time.sleep(1 / 300)
    except OSError:
        one.close()
while True:
    flood()
""",
    "greets as ZMTP 2.0 and floods": """
become_another()
part = frame(bytes(1 << 20), True)
while True:
    one = greeted(version=random.choice((1, 2)))
    try:
        while True:
            one.sendall(part)
    except OSError:
        one.close(); time.sleep(0.001)
""",
    "sends messages of empty frames, a process each time": """
become_another()
while True:
    if os.fork() == 0:
        one = greeted()
        try:
            one.sendall(frame(header(), True) + bytes([1, 0]) * 300000 + bytes([0, 0]))
        except OSError:
            pass
        os._exit(0)
    os.wait()
""",
    "hides a message that does not end behind small ones": """
part = frame(bytes(1 << 20), True)
shield = dealer()
while True:
    one = greeted()
    one.settimeout(0.05)
    try:
        for _ in itertools.count():
            for _ in range(20):
                shield.send(b"\\1" + msgpack.packb({"kind": "beat"}))
            read(shield)
            one.sendall(part)
    except OSError:
        one.close()
""",
    "takes all shared memory from twelve processes": """
fork(12)
one = Client(endpoint)
while True:
    try:
        one.buffer(1 << 20)
    except Exception:
        pass
    time.sleep(0.1)
""",
    "asks to drain, to reload and to trace all the time": """
become_another()
one = dealer()
kinds = [{"kind": "drain"}, {"kind": "trace", "after": 0}, {"kind": "reload", "model": "m"}]
def question():
    one.send(b"\\1" + msgpack.packb({"id": next(numbers), **random.choice(kinds)}))
for _ in range(64):
    question()
while True:
    one.recv_multipart(); question()
""",
    "forges forms": """
one = dealer(rcvhwm=0)
good = {"kind": "infer", "id": 0, "app": "other", "tensors": [["x", "float32", [6]]]}
while True:
    for _ in range(20):
        ask(one, "other", frames=[bytes(24)], tensors=[["x", "float32", [6]]], slo_ms=1)
        data = bytearray(b"\\1" + msgpack.packb({**good, "id": next(numbers)}))
        data[random.randrange(len(data))] = random.randrange(256)
        one.send_multipart([bytes(data), bytes(24)])
    read(one); time.sleep(0.01)
""",
}


class Front(NamedTuple):
    """A front that a client asks: the text of the client, how its attackers begin, and what they are."""

    client: str
    begin: str
    attacks: Mapping[str, str]


FRONTS = {
    "bus": Front(CLIENT, "", ATTACKS),
    "http": Front(front_attackers.HTTP_CLIENT, front_attackers.HTTP_BEGIN, front_attackers.HTTP_ATTACKS),
    "grpc": Front(front_attackers.GRPC_CLIENT, front_attackers.GRPC_BEGIN, front_attackers.GRPC_ATTACKS),
    "wyoming": Front(front_attackers.WYOMING_CLIENT, front_attackers.WYOMING_BEGIN, front_attackers.WYOMING_ATTACKS),
    "frigate": Front(front_attackers.FRIGATE_CLIENT, front_attackers.FRIGATE_BEGIN, front_attackers.FRIGATE_ATTACKS),
    "mqtt": Front(home_attackers.MQTT_CLIENT, home_attackers.MQTT_BEGIN, home_attackers.MQTT_ATTACKS),
    "camera": Front(home_attackers.CAMERA_CLIENT, home_attackers.CAMERA_BEGIN, home_attackers.CAMERA_ATTACKS),
}


@contextlib.contextmanager
def attacker(attack: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that attacks all the while, with its processes. ``args``: the bus's endpoint, the process id of the client,
    where the fronts listen."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"ANOTHER = {ANOTHER_USER}\n" + BEGIN + attack, *args],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(server: Server, front: str, seconds: float, attack: str = "") -> Dict[str, Any]:
    """The ends of a client's requests there, beside the attacker where one is given, and the most memory."""
    client = subprocess.Popen(
        [sys.executable, "-c", FRONTS[front].client, server.places[front], str(seconds), str(RATE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert client.stdout is not None and client.stdin is not None
    fronts = [server.places.get(name, "") for name in FRONTS if name != "bus"]
    places = (server.places["bus"], str(client.pid), *fronts)
    most: Dict[str, float] = {}
    program = FRONTS[front].begin + attack
    with client, attacker(program, *places) if attack else contextlib.nullcontext() as other:
        client.stdout.readline()
        time.sleep(1.0 if attack else 0.0)
        client.stdin.write("go\n")
        client.stdin.flush()
        while client.poll() is None:
            most = {name: max(value, most.get(name, 0.0)) for name, value in server.memory_mib().items()}
            time.sleep(0.1)
        told = client.stdout.read()
        if other is not None and other.poll() is not None:
            raise SystemExit(f"the attacker ended by itself with {other.returncode}")
    time.sleep(1.0 if attack else 0.0)
    found: Dict[str, Any] = json.loads(told) if client.returncode == 0 else {"ended": client.returncode}
    return {**found, "memory_mib": {name: round(value) for name, value in most.items()}}


def run(only: str, seconds: float, rounds: int, say: Any) -> List[Dict[str, Any]]:
    """Every attack whose name with its front's holds this text in turn, so many times."""
    rows: List[Dict[str, Any]] = []
    with bus_folder() as folder:
        server = Server(folder)
        try:
            for front, about in FRONTS.items():
                if front not in server.places or front == "mqtt" and not server.has_fast_broker:
                    print(f"{front}: not measured; over MQTT amqtt is slower than the front: apt install mosquitto")
                    continue
                attacks = {name: attack for name, attack in about.attacks.items() if only in f"{front}: {name}"}
                before = measure(server, front, 2.0) if attacks else {}
                for name, attack in [*attacks.items()] * rounds:
                    before = measure(server, front, seconds) if not rows or rows[-1]["front"] != front else before
                    beside, after = measure(server, front, seconds, attack), measure(server, front, seconds)
                    alone = (before.get("completed", 0) + after.get("completed", 0)) / 2
                    share = beside.get("completed", 0) / max(1.0, alone)
                    rows.append({"front": front, "attack": name, "alone": alone, "beside": beside, "share": share})
                    say(rows[-1])
                    before = after
                    if server.process.has_ended():
                        status, said = server.process.process.returncode, (folder / "log").read_text()[-2000:]
                        raise SystemExit(f"the server ended with {status}, attacked by one that {name}:\n{said}")
            rows.append({"status": server.process.stop(), "front": ""})
        finally:
            server.process.kill()
    return rows


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", metavar="TEXT", help="only where 'FRONT: NAME' holds it")
    args = parser.parse_args()
    rows = run(args.only, args.seconds, args.rounds, lambda row: print(row, flush=True))
    checks = Checks("scripts/dev/isolation.py")
    checks.at_most("exit status of the server", rows.pop()["status"], 0)
    for front, name in dict.fromkeys((row["front"], row["attack"]) for row in rows):
        shares = [row["share"] for row in rows if (row["front"], row["attack"]) == (front, name)]
        checks.at_least(f"{front}: share kept beside one that {name}", sum(shares) / len(shares), SHARE_MIN)
    return checks.finish(
        args.json,
        {"seconds": args.seconds, "rounds": args.rounds, "rate": RATE, "load_average": os.getloadavg()[0]},
        rows=rows,
    )


if __name__ == "__main__":
    sys.exit(main())
