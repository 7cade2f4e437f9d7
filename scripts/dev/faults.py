"""Kill what can be killed, again and again: clients, the processes of models, and the server itself.

    python scripts/dev/faults.py --rounds 1000 --seed 1

A server with a model in its own process and one in a process of its own answers clients that never stop asking. Each
round kills one thing with SIGKILL while requests are in flight: a client, a model's process, or the server, which is
then started again on the same path. What must hold is checked all the time and at the end:

* every request that a living client sent is answered once, with the right numbers, or its client gets the reason;
* no reply comes twice, and none without a request;
* what a killed client or server left behind is gone within seconds: requests, processes, and at the end the socket's
  file and everything else that the server made.

The exit status is 1 when something of it does not hold.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

import msgpack
import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments
from lib.server_process import ServerProcess

from edgeserve.client import Client
from edgeserve.errors import RequestError

CONFIG = """
[server]
endpoint = "ipc://{folder}/bus/socket"
[lane.here]
[lane.there]
[model.here]
engine = "python"
function = "faulty:double"
lanes = ["here"]
batch = [1, 4]
options = {{ example = "faulty:example" }}
[model.there]
engine = "python"
function = "faulty:double"
lanes = ["there"]
batch = [1, 4]
options = {{ example = "faulty:example", process = true }}
[app.here]
model = "here"
slo = "30s"
[app.there]
model = "there"
slo = "30s"
"""

FUNCTIONS = """
import time
import numpy as np

def example():
    return {"x": np.zeros(4, np.float32)}

def double(item):
    time.sleep(0.002)
    return {"y": item["x"] * 2}
"""

VICTIM = """
import sys
import numpy as np
from edgeserve.client import Client
client = Client(sys.argv[1])
futures = [client.submit(app, {"x": np.full(4, n, np.float32)}) for n in range(40) for app in ("here", "there")]
futures[0].result(60)
print("in flight", flush=True)
while True:
    futures.append(client.submit("there", {"x": np.ones(4, np.float32)}))
    futures.pop(0).exception(60)
"""

PATIENCE_S = 60.0
"""The seconds after which a process or reply counts as lost: beyond what a loaded machine needs. (30 s were too few
beside a load of 15 on two cores, at a low priority.)"""

IN_FLIGHT = 8


class Broken(Exception):
    """Something that must hold did not."""


class Server:
    """One server at a time, on one path."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/bus/socket"
        self.children: Set[int] = set()
        self.served = ServerProcess(folder, CONFIG, {"faulty.py": FUNCTIONS}, log=folder / "log")
        self._listens()

    def _listens(self) -> None:
        until(lambda: self.served.has_ended() or self.served.is_ready(self.endpoint), "the server to listen")
        if self.served.has_ended():
            raise Broken(f"the server ended at once with {self.served.process.returncode}")
        self.children |= set(children_of(self.served.pid))

    def model_process(self) -> int:
        """The process id of a model's process, waiting for one."""
        found: List[int] = []

        def look() -> bool:
            found[:] = [pid for pid in children_of(self.served.pid) if "serve_child" in command_of(pid)]
            return bool(found)

        until(look, "a model's process")
        self.children |= set(found)
        return found[0]

    def kill_and_restart(self) -> None:
        self.children |= set(children_of(self.served.pid))
        self.served.kill()
        until(lambda: not any(map(is_alive, self.children)), "the models' processes to end with their server")
        self.served.start()
        self._listens()

    def stop(self) -> None:
        self.children |= set(children_of(self.served.pid))
        status = self.served.stop()
        if status:
            raise Broken(f"the server ended with status {status}")


class Asker(threading.Thread):
    """A client that never stops asking, and counts the replies."""

    def __init__(self, endpoint: str, app: str) -> None:
        super().__init__(name=f"asker-{app}", daemon=True)
        self.endpoint = endpoint
        self.app = app
        self.told: Counter[str] = Counter()
        self.broken = ""
        self.ending = threading.Event()

    def run(self) -> None:
        rng = np.random.default_rng(len(self.app))
        try:
            with Client(self.endpoint, connect_ms=PATIENCE_S * 1000, timeout_ms=PATIENCE_S * 1000) as client:
                waiting: List[Tuple[Any, Future[Any]]] = []
                while waiting or not self.ending.is_set():
                    while len(waiting) < IN_FLIGHT and not self.ending.is_set():
                        x = rng.random(4, np.float32)
                        waiting.append((x, client.submit(self.app, {"x": x})))
                    self._take(*waiting.pop(0))
        except Exception as error:  # noqa: BLE001 told by the main thread
            self.broken = f"{type(error).__name__}: {error}"

    def _take(self, x: Any, future: Future[Any]) -> None:
        try:
            answer = future.result(2 * PATIENCE_S)  # its own client gives it up after PATIENCE_S
        except FutureTimeout:
            raise Broken(
                f"a request to {self.app} was neither answered nor refused for {2 * PATIENCE_S:g} s, and its "
                "client did not give it up"
            ) from None
        except RequestError as error:
            self.told[error.code] += 1
            return
        if answer["y"].tolist() != (x * 2).tolist():
            raise Broken(f"a wrong answer: {answer['y']} for {x}")
        self.told["completed"] += 1


class Counting(threading.Thread):
    """A client without our library: each id has one reply at most, and none while it was not sent."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(name="counting", daemon=True)
        self.endpoint = endpoint
        self.told: Counter[str] = Counter()
        self.broken = ""
        self.ending = threading.Event()

    def run(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self.endpoint)
        waiting: Dict[int, float] = {}
        replied: Set[int] = set()
        number = 0
        try:
            while not self.ending.is_set():
                if len(waiting) < IN_FLIGHT:
                    number += 1
                    waiting[number] = time.monotonic()
                    header = {"kind": "infer", "id": number, "app": "there", "tensors": [["x", "float32", [4]]]}
                    socket.send_multipart([b"\1" + msgpack.packb(header), np.ones(4, np.float32).tobytes()])
                if socket.poll(20):
                    reply = msgpack.unpackb(socket.recv_multipart()[0][1:])
                    if not 0 < reply["id"] <= number or reply["id"] in replied:
                        self.broken = f"a second reply, or one without a request: {reply}"
                        return
                    replied.add(reply["id"])
                    waiting.pop(reply["id"], None)
                    self.told[reply["kind"]] += 1
                for key in [key for key, at_s in waiting.items() if time.monotonic() - at_s > 3.0]:
                    del waiting[key]  # its server was killed: the connection said so, which this client does not watch
                    self.told["given up"] += 1
        finally:
            socket.close()
            context.term()


def kill_a_client(server: Server) -> None:
    """A client with requests in flight is killed: they end, and no other client notices."""
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, server.endpoint], stdout=subprocess.PIPE)
    try:
        assert victim.stdout is not None
        if victim.stdout.readline() != b"in flight\n":
            raise Broken("a client could not ask")
    finally:
        victim.kill()
        victim.wait()
        assert victim.stdout is not None
        victim.stdout.close()


def kill_a_model(server: Server) -> None:
    """A model's process is killed: its batch fails, and another process takes its place."""
    before = server.model_process()
    os.kill(before, signal.SIGKILL)
    until(lambda: not is_alive(before) and server.model_process() != before, "another process of the model")


def kill_the_server(server: Server) -> None:
    """The server is killed, and started again on the same path."""
    server.kill_and_restart()


FAULTS: Dict[str, Callable[[Server], None]] = {
    "client": kill_a_client,
    "model": kill_a_model,
    "server": kill_the_server,
}


def run(rounds: int, seed: int, say: Callable[[str], None]) -> Dict[str, Any]:
    """So many rounds; what was done and told. Raises :class:`Broken`."""
    rng = random.Random(seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="es-faults-") as path:
        folder = Path(path)
        server = Server(folder)
        askers: List[Any] = [Asker(server.endpoint, "here"), Asker(server.endpoint, "there"), Counting(server.endpoint)]
        try:
            for asker in askers:
                asker.start()
            for number in range(rounds):
                kind = list(FAULTS)[number] if number < len(FAULTS) else rng.choice(list(FAULTS))
                time.sleep(rng.random() * 0.2)
                FAULTS[kind](server)
                done[kind] += 1
                _hold(askers)
                if (number + 1) % 50 == 0:
                    say(f"{number + 1} rounds: {dict(done)}; told {_told(askers)}")
            _end(server, askers, folder)
        finally:
            server.served.kill()
    return {"rounds": dict(done), "told": _told(askers)}


def _hold(askers: List[Any]) -> None:
    for asker in askers:
        if asker.broken:
            raise Broken(f"{asker.name}: {asker.broken}")


def _told(askers: List[Any]) -> Dict[str, int]:
    return dict(sum((asker.told for asker in askers), Counter()))


def _end(server: Server, askers: List[Any], folder: Path) -> None:
    """All clients stop; nothing may be left."""
    for asker in askers:
        asker.ending.set()
    for asker in askers:
        asker.join(2 * PATIENCE_S)
        if asker.is_alive():
            raise Broken(f"{asker.name} still waits for replies")
    _hold(askers)
    if not all(asker.told["completed"] + asker.told["answer"] for asker in askers):
        raise Broken(f"clients without an answer: {[(asker.name, dict(asker.told)) for asker in askers]}")
    with Client(server.endpoint) as client:
        until(lambda: client.stats()["open"] == 0, "the requests of clients that are gone to end")
    server.stop()
    until(lambda: not any(map(is_alive, server.children)), "the models' processes to end")
    left = sorted(
        str(item.relative_to(folder))
        for item in folder.rglob("*")
        if item.is_file() or item.is_socket() or item.is_fifo()
    )
    left = [name for name in left if not name.startswith("__pycache__")]
    if left != ["edge.toml", "faulty.py", "log"]:
        raise Broken(f"left behind: {left}")
    if b"the loop ended" in (folder / "log").read_bytes():
        raise Broken(f"the loop of a server ended by itself: {(folder / 'log').read_text(errors='replace')[-2000:]}")


def until(question: Callable[[], bool], what: str) -> None:
    """Wait for it."""
    due_s = time.monotonic() + PATIENCE_S
    while not question():
        if time.monotonic() > due_s:
            raise Broken(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(0.01)


def children_of(pid: int) -> List[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == pid and stat[0] != "Z":
                    found.append(int(name))
    return found


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def is_alive(pid: int) -> bool:
    """True if a process runs; one that has ended and is not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        told = run(args.rounds, args.seed, lambda line: print(line, flush=True))
    except Broken as error:
        print(f"faults: seed {args.seed}: {error}", file=sys.stderr)
        return 1
    took_s = round(time.monotonic() - began_s)
    print(
        f"{sum(told['rounds'].values())} rounds in {took_s} s: {told['rounds']}; every request was answered once or "
        f"its client told: {told['told']}; nothing was left behind"
    )
    checks = Checks("scripts/dev/faults.py")  # what does not hold has ended it above
    checks.at_least("rounds in which everything held", sum(told["rounds"].values()), args.rounds)
    return checks.finish(
        args.json,
        {"rounds": args.rounds, "seed": args.seed, "took_s": took_s, "load_average": os.getloadavg()[0]},
        **told,
    )


if __name__ == "__main__":
    sys.exit(main())
