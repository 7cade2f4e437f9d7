"""What looking costs a server of 1,000 requests a second: a scrape of its metrics, a look of ``edgeserve top``, and
somebody who looks at the page of its HTTP front.

    python research/bench/observe.py [--quick] [--json FILE]

One process sends small requests at 1,000/s. Rounds without looks alternate with rounds of many looks a second of one
kind (:data:`LOOKS_HZ`), so that a look's share stands out of the noise; what a look costs is the server's processor
time beyond that of the rounds without, by look. Reported is the share of a core at one look a second, the rate of
``top`` and more than that of any Prometheus. What happens between looks is a part of every round. The page's rounds
count the front's processor time too; there everything happens ten times as often.
"""

from __future__ import annotations

import http.client
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Callable, Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import psutil
from lib.checks import Checks, arguments

import edgeserve
from bench import bus
from edgeserve.front.runner import run_front
from edgeserve.fronts.http import page_routes
from edgeserve.fronts.http.front import HttpFront
from edgeserve.fronts.http.settings import HttpConfig

RATE_HZ = 1000.0
LOOKS_HZ = 40.0
FASTER = 10.0
"""The page's front does everything so many times as often while it is measured, for the same reason."""
TOML = bus.ECHO_TOML.replace("[lane.cpu0]", 'metrics = "127.0.0.1:{port}"\n[lane.cpu0]')
X = {"x": np.zeros(64, np.float32)}


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def send(endpoint: str) -> None:
    """Small requests at :data:`RATE_HZ`, until the process is ended."""
    with edgeserve.Client(endpoint) as client:
        due_s = time.monotonic()
        while True:
            client.submit("echo", X)
            due_s = max(due_s + 1 / RATE_HZ, time.monotonic() - 1.0)  # what it is behind is made up for
            time.sleep(max(0.0, due_s - time.monotonic()))


def look_often(look: Callable[[], object], seconds: float) -> int:
    """Look :data:`LOOKS_HZ` times a second; how often it was."""
    count, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        look()
        count += 1
        time.sleep(max(0.0, began_s + 1 / LOOKS_HZ - time.monotonic()))
    return count


class Viewer:
    """Reads the stream of the page, and nothing else, until it is closed."""

    def __init__(self, place: str) -> None:
        self._stream = urllib.request.urlopen(f"http://{place}/page/stream", timeout=60)
        self.bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                self.bytes += len(self._stream.read1(65536)) or 1
        except (OSError, ValueError, http.client.HTTPException):
            pass  # it was closed meanwhile

    def close(self) -> None:
        """Go away."""
        self._stream.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)


def watch(server: bus.Server, rounds: int, seconds: float, checks: Checks) -> None:
    """Rounds with a viewer of the page and without, of the server and the front together."""
    front = subprocess.Popen([sys.executable, __file__, "--front", server.endpoint], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    place = front.stdout.readline().strip()
    both = [psutil.Process(server.process.pid), psutil.Process(front.pid)]
    costs: List[List[float]] = []
    try:
        for _ in range(rounds):
            plain_s = _cpu_s(both, seconds)
            viewer = Viewer(place)
            costs.append(
                [(with_s - without_s) / seconds / FASTER for with_s, without_s in zip(_cpu_s(both, seconds), plain_s)]
            )
            viewer.close()
    finally:
        front.kill()
        front.wait()
    for at, what in enumerate(("the server", "the front")):
        print(f"a viewer: {', '.join(f'{100 * cost[at]:.2f}' for cost in costs)} % of a core in {what}")
    checks.at_most("a viewer of the page, of a core", statistics.median(map(sum, costs)), 0.01)


def serve_front(endpoint: str) -> None:
    """A front whose page looks :data:`FASTER` times as often, and reads so much more; until the process is ended."""
    page_routes.LOOK_S /= FASTER
    page_routes.STEPS_S /= FASTER
    page_routes.REST_S_MIN /= FASTER
    page_routes.STEPS_BYTES_PER_S = int(page_routes.STEPS_BYTES_PER_S * FASTER)
    config = HttpConfig(listen="127.0.0.1:0")
    run_front(HttpFront, config, endpoint, "http", lambda _, *places: print(places[0].split("//")[1], flush=True))


def _cpu_s(processes: List[psutil.Process], seconds: float) -> List[float]:
    """Processor time that each takes in so long."""
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(seconds)
    return [sum(process.cpu_times()[:2]) - was for process, was in zip(processes, before)]


def bench(folder: str, rounds: int, seconds: float, checks: Checks) -> Dict[str, float]:
    """Costs of both kinds of looks. Returns the rate that was reached."""
    port = free_port()
    server = bus.edgeserve(folder, "echo", TOML, port=str(port))
    load = subprocess.Popen([sys.executable, __file__, "--send", server.endpoint])
    costs: Dict[str, List[float]] = {"metrics": [], "top": []}
    try:
        with edgeserve.Client(server.endpoint) as client:
            looks: Dict[str, Callable[[], object]] = {
                "metrics": lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read(),
                "top": client.stats,
            }
            time.sleep(1.0)
            began, began_s = client.stats()["apps"]["echo"]["received"], time.monotonic()
            for _ in range(rounds):
                for name, look in looks.items():
                    before_s = server.cpu_s()
                    time.sleep(seconds)
                    plain_s = (server.cpu_s() - before_s) / seconds
                    before_s, at_s = server.cpu_s(), time.monotonic()
                    count = look_often(look, seconds)
                    took_s = time.monotonic() - at_s
                    costs[name].append((server.cpu_s() - before_s - plain_s * took_s) / count)
            watch(server, 2 * rounds, seconds, checks)
            rate = (client.stats()["apps"]["echo"]["received"] - began) / (time.monotonic() - began_s)
    finally:
        load.kill()
        load.wait()
        server.stop()
    for name, what in (("metrics", "a scrape"), ("top", "a look of top")):
        print(f"{what}: {', '.join(f'{1e3 * cost:.2f}' for cost in costs[name])} ms of the server")
        checks.at_most(f"{what} a second, of a core", statistics.median(costs[name]), 0.01)
    return {"rate": round(rate)}


def main() -> int:
    parser = arguments(__doc__, quick="fewer and shorter rounds (noisier)")
    parser.add_argument("--send", metavar="ENDPOINT", help="only send: for the script itself")
    parser.add_argument("--front", metavar="ENDPOINT", help="only serve the page: for the script itself")
    args = parser.parse_args()
    if args.front:
        serve_front(args.front)
    if args.send:
        send(args.send)
    rounds, seconds = (3, 3.0) if args.quick else (7, 5.0)
    checks = Checks("research/bench/observe.py")
    with tempfile.TemporaryDirectory() as folder:
        reached = bench(folder, rounds, seconds, checks)
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "machine": platform.machine(),
            "cores": len(bus.CORES),
            "rounds": rounds,
            "seconds": seconds,
            "load_average": round(os.getloadavg()[0], 1),
            **reached,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
