"""A server under mutated messages, with a healthy client beside it: ``python scripts/dev/hostile.py --messages N``.

The server runs in a process of its own. Attackers send messages that were made from good ones by seeded mutations
(bytes flipped, frames cut, added, moved, doubled; header keys and values of every kind; hints without measure), read
answers or leave them, and vanish at every point. The healthy client asks all the while: every answer must be right and
none may be cancelled, refused or missing. Printed at the end, and exit status 1 where one does not hold: answers of the
healthy client, the longest stall of the loop, memory before and after, and the server's own ledger.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn

import msgpack
import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments
from lib.server_process import ServerProcess

from edgeserve.client import Client

STALL_MS_MAX = 50.0
"""The longest turn of the loop, from one look at all that waits to the next, in processor time of the loop's thread:
what else the machine does is not the server's. Reported beside it: the longest turn on the wall and its processor time,
and ``stall_ms``, how long the loop took to answer a call of another thread, the machine included."""

GROWTH_MAX = 0.10
WARM_SHARE = 0.1
"""Memory is compared with what it was after this share of the messages, both times at rest: the least of
:data:`REST_S` without attacks."""

REST_S = 40.0
"""Longer than the server waits from one attempt to give memory back to the next."""

CONFIG = """
[server]
endpoint = "ipc://{folder}/bus"
memory = "16MiB"
pending_max = 512
[lane.cpu0]
[lane.cpu1]
[policy.edf]
[policy.plan]
[model.quick]
engine = "synthetic"
batch = [1, 4]
expected = {{ 1 = "0.3ms", 4 = "0.6ms" }}
lanes = ["cpu0"]
[model.own]
engine = "python"
function = "attacked:double"
options = {{ example = "attacked:example" }}
lanes = ["cpu1"]
[app.echo]
model = "quick"
policy = "edf"
slo = "200ms"
[app.chain]
policy = "plan"
slo = "200ms"
[[app.chain.node]]
name = "first"
model = "quick"
[[app.chain.node]]
name = "second"
model = "quick"
[app.streams]
model = "quick"
policy = "edf"
stream = "newest_wins"
[app.healthy]
model = "own"
policy = "edf"
slo = "60s"
"""

FUNCTIONS = """
import numpy as np

def example():
    return {"x": np.zeros(4, np.float32)}

def double(item):
    return {"y": item["x"] * 2}
"""

SERVER = """
import contextlib, ctypes, json, os, sys, threading, time
from edgeserve.config.loading import load_config
from edgeserve.ipc.connections import raise_file_limit
from edgeserve.ipc.bus import Bus
from edgeserve.live import loop_io
from edgeserve.runtime import Runtime

turns = {"work_ms": 0.0, "wall_ms": 0.0, "work_of_longest_ms": 0.0}
began = [0.0, 0.0]  # of the present turn: processor time of the loop's thread, and time on the wall without sleep
gather = loop_io.LoopIO.gather

def turn(self, *args):  # from one look at everything that waits to the next
    found = gather(self, *args)
    work, wall = time.thread_time(), time.monotonic()
    if began[0]:
        work_ms, wall_ms = (work - began[0]) * 1e3, (wall - began[1]) * 1e3
        turns["work_ms"] = max(turns["work_ms"], work_ms)
        if wall_ms > turns["wall_ms"]:
            turns["wall_ms"], turns["work_of_longest_ms"] = wall_ms, work_ms
    began[:] = work, wall
    return found

def timed(sleep):
    def asleep(*args):
        begin = time.monotonic()
        found = sleep(*args)
        began[1] += time.monotonic() - begin
        return found
    return asleep
loop_io.LoopIO.gather, loop_io.readable_files, Bus.wait = turn, timed(loop_io.readable_files), timed(Bus.wait)

received = [0, 0]  # read; dropped, since their connection was over
read_one, drop_one = Bus._receive_one, Bus._drop_message

def counted(self, *args):
    received[0] += 1
    read_one(self, *args)

def dropped(self, *args):
    received[1] += 1
    drop_one(self, *args)
Bus._receive_one, Bus._drop_message = counted, dropped

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

def memory():
    with open("/proc/self/statm") as file:
        found = {"rss": int(file.read().split()[1]) * 4096, "files": len(os.listdir("/proc/self/fd")),
                 "threads": len(os.listdir("/proc/self/task")), "blocks": sys.getallocatedblocks()}
    with contextlib.suppress(AttributeError):  # glibc 2.33
        look = ctypes.CDLL(None).mallinfo2
        look.restype = Mallinfo
        seen = look()
        found["malloc_used"], found["malloc_free"] = seen.uordblks + seen.hblkhd, seen.fordblks
    return found

raise_file_limit()
runtime = Runtime(load_config(sys.argv[1]), serve=True).start()
print("ready", flush=True)
STEP_S = 0.00025
stalls = [0] * 40_001  # how many took so many steps, the last one or more: a list of all would be this script's growth
longest = [0.0]
stop = threading.Event()

def beat():  # how long the loop takes to get to a call
    while not stop.is_set():
        asked = time.monotonic()
        done = threading.Event()
        runtime.on_loop(lambda core: done.set())
        done.wait(60)
        took = time.monotonic() - asked
        stalls[min(len(stalls) - 1, int(took / STEP_S))] += 1
        longest[0] = max(longest[0], took)
        time.sleep(0.002)

watch = threading.Thread(target=beat, daemon=True)
watch.start()
for line in sys.stdin:
    if line.startswith("memory"):
        print(json.dumps(memory()), flush=True)
    else:
        break
stop.set()
watch.join(5)
due = time.monotonic() + 15
while runtime.stats()["open"] and time.monotonic() < due:  # the last clients are noticed to be gone
    time.sleep(0.1)
runtime.check()
stats = runtime.stats()
if stats["open"]:
    print([line for request in runtime._core.world.lifecycle.open_requests() for line in runtime.story(request.id)],
          [request.peer.client for request in runtime._core.world.lifecycle.open_requests()], file=sys.stderr)
for name, app in stats["apps"].items():
    assert app["received"] == sum(app["outcomes"].values()) + app["open"], (name, app)
runtime.stop()
seen = 0
for steps, count in enumerate(stalls):
    seen += count
    if seen >= 0.99 * sum(stalls):
        break
print(json.dumps({"received": received[0], "dropped": received[1], "turn": turns, "stall_ms": longest[0] * 1e3,
                  "stall_ms_p99": (steps + 1) * STEP_S * 1e3, "open": stats["open"],
                  "outcomes": {name: app["outcomes"] for name, app in stats["apps"].items()}}), flush=True)
"""


class Mutator:
    """Messages made from good ones. The same seed makes the same messages."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def message(self) -> List[bytes]:
        draw = self._random
        fields = self._good()
        frames: List[bytes] = [bytes(24)] if fields.get("tensors") else []
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            self._mutate_fields(fields)
        try:
            frames.insert(0, b"\x01" + msgpack.packb(fields))
        except (ValueError, OverflowError, TypeError):
            frames.insert(0, b"\x01\x80")
        for _ in range(draw.choice((0, 0, 1, 2))):
            self._mutate_frames(frames)
        return frames or [b""]

    def _good(self) -> Dict[Any, Any]:
        draw = self._random
        kind = draw.choice(("infer",) * 12 + ("cancel", "beat", "bye", "health", "apps", "models", "story", "stats"))
        fields: Dict[Any, Any] = {"kind": kind}
        if kind not in ("beat", "bye"):
            fields["id"] = draw.randrange(64)
        if kind == "story":
            fields["request_id"] = draw.randrange(1000)
        if kind == "infer":
            fields["app"] = draw.choice(("echo", "chain", "streams"))
            fields["tensors"] = [["x", "float32", [6]]]
            if draw.random() < 0.3:
                fields["hints"] = {
                    draw.choice(("steps", "first.steps", "work", "second.work", "length")): draw.choice(
                        (1, 3.5, 100, 1e4, 2**62, -5, 1e300)
                    )
                }
            if draw.random() < 0.3:
                fields["class"] = draw.choice(("critical", "normal", "background"))
            if draw.random() < 0.3:
                fields["on_late"] = draw.choice(("drop", "answer", "partial"))
            if fields["app"] == "streams":
                fields["stream"] = f"s{draw.randrange(5)}"
            if draw.random() < 0.3:
                fields["slo_ms"] = draw.choice((0.001, 5, 50, 1000, 1e9))
        return fields

    def _value(self) -> Any:
        draw = self._random
        return draw.choice(
            (
                None,
                True,
                -1,
                0,
                2**63,
                2**64 - 1,
                1e308,
                float("nan"),
                float("inf"),
                "",
                "x" * 200,
                b"",
                b"\xff" * 65,
                [],
                [[]] * 70,
                {},
                {"a": {}},
                {1: 2},
                "\ud7ff",
                [["x", "object", [1]]],
                [["x", "float32", [2**40, 2**40]]],
                [["x", "float32", [-1]]],
                draw.getrandbits(63),
            )
        )

    def _mutate_fields(self, fields: Dict[Any, Any]) -> None:
        draw = self._random
        key = draw.choice(tuple(fields) or ("kind",))
        way = draw.randrange(4)
        if way == 0:
            fields.pop(key, None)
        elif way == 1:
            fields[key] = self._value()
        elif way == 2:
            fields[draw.choice(("sent_ns", "value", "client", "texts", "hints", "quality_min", "stream", "zzz"))] = (
                self._value()
            )
        else:
            fields[key] = fields.pop(key, None)

    def _mutate_frames(self, frames: List[bytes]) -> None:
        draw = self._random
        if not frames:
            return
        place = draw.randrange(len(frames))
        way = draw.randrange(6)
        if way == 0:
            damaged = bytearray(frames[place] or b"\0")
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            frames[place] = bytes(damaged)
        elif way == 1:
            frames[place] = frames[place][: draw.randrange(len(frames[place]) + 1)]
        elif way == 2:
            frames.insert(place, draw.choice((b"", b"\0" * draw.randrange(200), frames[place])))
        elif way == 3:
            del frames[place]
        elif way == 4:
            frames.extend([b""] * draw.choice((1, 70, 3000 if draw.random() < 0.02 else 2)))
        else:
            draw.shuffle(frames)


class Attacker(threading.Thread):
    """Sends its part of the messages; every few hundred of them from a new connection."""

    def __init__(self, endpoint: str, seed: str, count: int, sent: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._count, self._sent = endpoint, count, sent
        self._mutator, self._random = Mutator(seed + "/messages"), random.Random(seed + "/connections")

    def run(self) -> None:
        context: Any = zmq.Context()
        left = self._count
        while left > 0:
            draw = self._random
            one = context.socket(draw.choice((zmq.DEALER, zmq.DEALER, zmq.DEALER, zmq.REQ)))
            is_req = one.type == zmq.REQ
            one.linger, one.sndtimeo = draw.choice((0, 2000, 2000, 2000)), 5000
            if draw.random() < 0.2:
                one.setsockopt(zmq.ROUTING_ID, draw.choice((b"robot", b"camera", b"\0abcd", os.urandom(5))))
            one.connect(self._endpoint)
            reads = draw.random() < 0.7
            burst = 1 if is_req else min(left, draw.choice((1, 20, 200, 500)))
            for _ in range(burst):
                try:
                    one.send_multipart(self._mutator.message())
                except zmq.Again:
                    break
                while reads and not is_req and one.poll(0):
                    one.recv_multipart()
            due = time.monotonic() + 2.0
            if draw.random() < 0.8:  # else it vanishes while what it sent is being read
                while one.poll(50) and time.monotonic() < due:
                    one.recv_multipart()
            left -= burst
            self._sent(burst)
            one.close()
        context.destroy(0)


class Healthy(threading.Thread):
    """Asks one thing after the other, and knows every answer."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(endpoint, timeout_ms=60_000)
        self.stopping = False
        self.asked = 0
        self.wrong: List[str] = []
        self.slowest_s = 0.0

    def run(self) -> None:
        while not self.stopping:
            self.asked += 1
            x = np.full(4, self.asked, np.float32)
            begin = time.monotonic()
            try:
                answer = self.client.infer("healthy", {"x": x})
                if answer["y"].tolist() != [2.0 * self.asked] * 4:
                    self.wrong.append(f"request {self.asked}: answered {answer['y']}")
            except Exception as error:  # noqa: BLE001 any of them counts
                self.wrong.append(f"request {self.asked}: {type(error).__name__}: {error}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
            time.sleep(0.001)


class Server:
    """The server in a process of its own, asked by lines."""

    def __init__(self, folder: str) -> None:
        server = ServerProcess(
            Path(folder),
            CONFIG,
            {"attacked.py": FUNCTIONS},
            program=("-c", SERVER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._child = server.process
        self._errors: List[str] = []
        errors = self._child.stderr
        assert errors is not None
        self._reader = threading.Thread(target=lambda: self._errors.extend(errors), daemon=True)
        self._reader.start()
        if self._line() != "ready\n":
            self.ended()

    def ask(self, word: str) -> Dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        line = self._line()
        if not line:
            self.ended()
        found: Dict[str, Any] = json.loads(line)
        return found

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def ended(self) -> NoReturn:
        self._reader.join(5)
        raise SystemExit("the server ended:\n" + "".join(self._errors[-50:]))

    def status(self) -> int:
        return self._child.wait(30)

    def close(self) -> None:
        self._child.kill()
        self._child.wait(30)
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert pipe is not None
            pipe.close()


def attack(messages: int, seed: int, attackers: int = 2, rest_s: float = REST_S) -> Dict[str, Any]:
    """Run it; what was found."""
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        server = Server(folder)
        try:
            return _attack(server, f"ipc://{folder}/bus", messages, seed, attackers, rest_s)
        finally:
            server.close()


def _attack(server: Server, endpoint: str, messages: int, seed: int, attackers: int, rest_s: float) -> Dict[str, Any]:
    healthy = Healthy(endpoint)
    healthy.start()
    sent: List[int] = []
    memory: List[Dict[str, int]] = []
    begin = time.monotonic()
    for part, share in (("warm", WARM_SHARE), ("main", 1 - WARM_SHARE)):
        threads = [
            Attacker(endpoint, f"{seed}/{part}/{number}", round(messages * share) // attackers, sent.append)
            for number in range(attackers)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            memory.append(server.ask("memory"))
        memory.append(_at_rest(server, rest_s))
        if part == "warm":
            rest = memory[-1]
    took_s, after = time.monotonic() - begin, memory[-1]
    healthy.stopping = True
    healthy.join(60)
    healthy.client.close()
    end = server.ask("end")
    return {
        "seed": seed,
        "messages": sum(sent),
        "took_s": round(took_s, 1),
        "status": server.status(),
        "healthy_asked": healthy.asked,
        "healthy_wrong": healthy.wrong[:5],
        "healthy_slowest_ms": round(healthy.slowest_s * 1e3, 1),
        "memory_warm": rest,
        "memory_after": after,
        "rss_mib_max": max(seen["rss"] for seen in memory) / 2**20,
        **end,
    }


def _at_rest(server: Server, rest_s: float) -> Dict[str, int]:
    """The memory of the server when the attacks are over and it has given back what it does not use."""
    seen = server.ask("memory")
    due = time.monotonic() + rest_s
    while time.monotonic() < due:
        time.sleep(0.5)
        now = server.ask("memory")
        seen = now if now["rss"] < seen["rss"] else seen
    return seen


def check(found: Dict[str, Any]) -> Checks:
    """The checks of a run."""
    checks = Checks("scripts/dev/hostile.py")
    checks.at_most("growth of memory", found["memory_after"]["rss"] / found["memory_warm"]["rss"] - 1, GROWTH_MAX)
    checks.at_most("longest turn of the loop, ms of its processor time", found["turn"]["work_ms"], STALL_MS_MAX)
    checks.at_least("requests of the healthy client", found["healthy_asked"], 1)
    checks.at_most("wrong answers to the healthy client", len(found["healthy_wrong"]), 0)
    checks.at_most("requests still open", found["open"], 0)
    checks.at_most("exit status of the server", found["status"], 0)
    return checks


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attackers", type=int, default=2)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    found = attack(args.messages, args.seed, args.attackers)
    return check(found).finish(args.json, found)


if __name__ == "__main__":
    sys.exit(main())
