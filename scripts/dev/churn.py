"""Half as many requests again as a server can do, from clients that come and go, beside attackers: does anything grow?

    python scripts/dev/churn.py --minutes 60 [--json FILE]

The server runs as a process of its own (``edgeserve serve``). A steady client asks half of the load, at random times;
the rest comes from clients that connect, ask a few things and vanish: most close their socket in the midst of it, some
are processes that are killed. Beside them every attacker of ``isolation.py`` has its turn in each tenth of the run, and
the end of a tenth has none. Memory, open files and threads of the server are looked at every second, and so is its log.
The time without attackers in the sixth tenth is compared with that in the last: memory rises until each attacker had
a turn or two (60 to 66 MB in an hour's first 20 minutes) and must then stay. At the end the server's ledger must
balance and the server must end by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

import msgpack
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib.checks import Checks, arguments
from lib.server_process import ServerProcess

from dev.attacked_server import bus_folder, config_of
from dev.isolation import ATTACKS, attacker
from edgeserve.client import Client

SPAWN = multiprocessing.get_context("spawn")

CONFIG = (
    config_of({1: "10ms", 2: "16ms", 4: "28ms"})
    + """
[app.one]
model = "m"
slo = "250ms"
policy = "edf"
"""
)

JOBS_PER_S = 4 / 0.028
"""The rate of the lane in full batches."""

APPS = {"one": 1, "chain": 2, "stream": 1}
"""App -> jobs of a request."""

VICTIM = """
import sys, time
from edgeserve.client import Client
client = Client(sys.argv[1])
futures = [client.submit(app, {}) for app in ("one", "chain") for _ in range(5)]
futures[0].exception(20)
print("in flight", flush=True)
time.sleep(60)
"""

KILL_EVERY_S = 10.0
TENTHS = 10
QUIET_SHARE = 0.25
"""The part of each tenth, at its end, in which no attacker runs."""

SETTLE_SHARE = 0.2
"""The part of the time without attackers, at its begin, that is not counted: the server ends what they left, and gives
memory back."""

GROWTH_MAX = 0.02
LOG_BYTES_PER_S_MAX = 1000.0


class Steady(threading.Thread):
    """Half of the load, from one client that stays."""

    def __init__(self, endpoint: str, load: float, ending: Any) -> None:
        super().__init__(name="steady", daemon=True)
        self.told: Counter[str] = Counter()
        self._endpoint, self._rate, self._ending = endpoint, load / 2 * JOBS_PER_S, ending

    def run(self) -> None:
        draw = random.Random("steady")
        with Client(self._endpoint, timeout_ms=30_000) as client:
            due_s = time.monotonic()
            while not self._ending.wait(max(0.0, due_s - time.monotonic())):
                app = draw.choice(tuple(APPS))
                due_s += draw.expovariate(self._rate / APPS[app])
                future = client.submit(app, {}, stream="camera") if app == "stream" else client.submit(app, {})
                future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error = future.exception()
        self.told["completed" if error is None else getattr(error, "code", type(error).__name__)] += 1


class Churn(SPAWN.Process):  # type: ignore[name-defined,misc]  # the class of a context
    """The other half, from clients that connect, ask a few things and vanish: a process of their own, since what one of
    them does (a routing id of its own, again and again) is put down to its process."""

    def __init__(self, endpoint: str, load: float, ending: Any) -> None:
        super().__init__(name="churn", daemon=True)
        self._clients = SPAWN.Value("q", 0)
        self._endpoint, self._rate, self._ending = endpoint, load / 2 * JOBS_PER_S, ending

    @property
    def clients(self) -> int:
        """The number of clients that came and went."""
        return int(self._clients.value)

    def run(self) -> None:
        draw = random.Random("churn")
        context: zmq.Context[Any] = zmq.Context()
        due_s = time.monotonic()
        while not self._ending.wait(max(0.0, due_s - time.monotonic())):
            self._clients.value += 1
            one = context.socket(zmq.DEALER)
            one.linger = draw.choice((0, 200))
            if draw.random() < 0.1:
                one.setsockopt(zmq.ROUTING_ID, draw.choice((b"robot", b"camera")))
            one.connect(self._endpoint)
            for number in range(draw.randrange(1, 8)):
                app = draw.choice(tuple(APPS))
                due_s += APPS[app] / self._rate
                header: Dict[str, Any] = {"kind": "infer", "id": number, "app": app}
                if app == "stream":
                    header["stream"] = f"s{draw.randrange(100)}"
                one.send(b"\1" + msgpack.packb(header))
            if draw.random() < 0.5:
                one.poll(20)
            one.close()
        context.destroy(0)


class Killer(threading.Thread):
    """Client processes that are killed with requests in flight."""

    def __init__(self, endpoint: str, ending: Any) -> None:
        super().__init__(name="killer", daemon=True)
        self.killed = 0
        self._endpoint, self._ending = endpoint, ending

    def run(self) -> None:
        while not self._ending.wait(KILL_EVERY_S):
            victim = subprocess.Popen([sys.executable, "-c", VICTIM, self._endpoint], stdout=subprocess.PIPE)
            assert victim.stdout is not None
            victim.stdout.readline()
            victim.kill()
            victim.wait()
            victim.stdout.close()
            self.killed += 1


class Attackers(threading.Thread):
    """Every attacker in turn, in each tenth of the run. ``is_quiet``: none runs, and what they left has ended."""

    def __init__(self, endpoint: str, seconds: float, ending: Any) -> None:
        super().__init__(name="attackers", daemon=True)
        self.turns = 0
        self.is_quiet = False
        self._endpoint, self._tenth_s, self._ending = endpoint, seconds / TENTHS, ending

    def run(self) -> None:
        begin_s = time.monotonic()
        turn_s = self._tenth_s * (1 - QUIET_SHARE) / len(ATTACKS)
        for tenth in range(TENTHS):
            self.is_quiet = False
            for number, text in enumerate(ATTACKS.values()):
                due_s = begin_s + tenth * self._tenth_s + (number + 1) * turn_s
                with attacker(text, self._endpoint, str(os.getpid())):
                    if self._ending.wait(due_s - time.monotonic()):
                        return
                self.turns += 1
            quiet_s = begin_s + (tenth + 1) * self._tenth_s - time.monotonic()
            if self._ending.wait(SETTLE_SHARE * quiet_s):
                return
            self.is_quiet = True
            if self._ending.wait(begin_s + (tenth + 1) * self._tenth_s - time.monotonic()):
                return


def look(pid: int, log: Path) -> Dict[str, int]:
    """Memory, open files and threads of a process; bytes of its log."""
    with open(f"/proc/{pid}/statm") as file:
        rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "rss": rss,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "log": log.stat().st_size,
    }


def run(minutes: float, load: float) -> Dict[str, Any]:
    """Run it; what was found."""
    with bus_folder() as folder:
        server = ServerProcess(folder, CONFIG, log=folder / "log")
        try:
            return _load(server, f"ipc://{folder}/bus/socket", folder / "log", minutes * 60, load)
        finally:
            server.kill()


def _load(server: ServerProcess, endpoint: str, log: Path, seconds: float, load: float) -> Dict[str, Any]:
    server.wait_ready(endpoint)
    ending = SPAWN.Event()
    steady, churn, killer = Steady(endpoint, load, ending), Churn(endpoint, load, ending), Killer(endpoint, ending)
    attackers = Attackers(endpoint, seconds, ending)
    workers: List[Any] = [steady, churn, killer, attackers]
    for worker in workers:
        worker.start()
    begin_s = time.monotonic()
    samples: List[Dict[str, int]] = []
    while time.monotonic() - begin_s < seconds:
        time.sleep(1.0)
        if server.has_ended():
            raise SystemExit(f"the server ended with {server.process.returncode}:\n{server.said()}")
        is_quiet = attackers.is_quiet
        seen = look(server.pid, log)
        tenth = min(TENTHS - 1, int((time.monotonic() - begin_s) / seconds * TENTHS))
        samples.append({**seen, "quiet_tenth": tenth if is_quiet and attackers.is_quiet else -1})
        if len(samples) % 60 == 0:
            print(f"{len(samples) // 60} min: {samples[-1]}", flush=True)
    ending.set()
    for worker in workers:
        worker.join(30)
    stats = _at_rest(endpoint)
    apps = {name: {"received": app["received"], **app["outcomes"]} for name, app in stats["apps"].items()}
    return {
        "seconds": len(samples),
        "clients": churn.clients,
        "killed": killer.killed,
        "attackers": attackers.turns,
        "steady": dict(steady.told),
        "apps": apps,
        "open": stats["open"],
        "status": server.stop(),
        "samples": samples,
        "unbalanced": sum(app["received"] - sum(app["outcomes"].values()) for app in stats["apps"].values()),
    }


def _at_rest(endpoint: str) -> Dict[str, Any]:
    due_s = time.monotonic() + 60
    with Client(endpoint) as client:
        while True:
            stats: Dict[str, Any] = client.stats()
            if not stats["open"] or time.monotonic() > due_s:
                return stats
            time.sleep(0.1)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--load", type=float, default=1.5, help="of what the lane can do (1.5)")
    args = parser.parse_args()
    found = run(args.minutes, args.load)
    samples = found.pop("samples")
    for name, value in found.items():
        print(f"{name}: {value}")
    checks = Checks("scripts/dev/churn.py")
    check(found, samples, checks)
    rows = [{"second": second, **samples[second]} for second in range(0, len(samples), max(1, len(samples) // 60))]
    return checks.finish(args.json, {"minutes": args.minutes, "load": args.load, **found}, rows=rows)


def check(found: Dict[str, Any], samples: List[Dict[str, int]], checks: Checks) -> None:
    """Everything this script must show."""
    early = [one for one in samples if one["quiet_tenth"] == TENTHS // 2]
    late = [one for one in samples if one["quiet_tenth"] == TENTHS - 1]
    growth = statistics.median([one["rss"] for one in late]) / statistics.median([one["rss"] for one in early]) - 1
    checks.at_most("growth of memory after the sixth tenth", growth, GROWTH_MAX)
    for name in ("files", "threads"):
        more = statistics.median([one[name] for one in late]) - statistics.median([one[name] for one in early])
        checks.at_most(f"more {name} than after the sixth tenth (median)", more, 0 if name == "threads" else 2)
    checks.at_most("bytes of log a second", samples[-1]["log"] / len(samples), LOG_BYTES_PER_S_MAX)
    checks.at_most("requests without an end", found["open"] + abs(found["unbalanced"]), 0)
    checks.at_most("exit status of the server", found["status"], 0)


if __name__ == "__main__":
    sys.exit(main())
