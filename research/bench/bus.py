"""EdgeServe over its bus against hand-written servers, side by side in one run on this machine.

    python research/bench/bus.py [--quick] [--json FILE] [--only echo|batching]

*Echo*: an app whose engine returns its input, against a bare pyzmq ROUTER that returns its messages. *Batching*: a
small network that gains from batches, against one thread that drains the socket, batches greedily and sheds what
cannot finish (``research/common/bus_servers.py``); here the client has one core and the server the other. One client
process and the same messages for both. Rounds alternate between the servers; medians of rounds and of the ratios
within a round are reported.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import psutil
import zmq
from common import bus_load as load
from common.replicated import BEYOND, checks_of
from lib.checks import Checks, arguments

from edgeserve import compiled

LIB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "common")
RANDOM_SEED = 20261121
ECHO_RATE_MIN = {"interpreted": 0.42, "compiled": 0.5}  # to the bare server
ECHO_CPU_MAX = {"interpreted": 3.4, "compiled": 2.8}
GOODPUT_MIN = {0.5: 0.97, 0.9: 0.95, 1.2: 0.92, 1.5: 0.90}
"""Share of the thread's capacity -> goodput relative to the thread."""

CRITICAL, CRITICAL_MIN, OTHERS_MIN = 0.2, 0.99, 0.35
"""Share of critical requests at the highest load; in time of them, and of the others."""

CORES = sorted(os.sched_getaffinity(0))  # batching: the client takes the first, the servers the second

ECHO_TOML = """
[server]
endpoint = "{endpoint}"
[lane.cpu0]
[model.echo]
engine = "python"
function = "bus_functions:echo"
batch = [1, 2, 4, 8, 16]
[app.echo]
model = "echo"
slo = "10s"
"""

BATCHING_TOML = """
[server]
endpoint = "{endpoint}"
[lane.cpu0]
[model.net]
engine = "onnx"
file = "{model}"
batch = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
[app.net]
model = "net"
slo = "10s"
"""


class Server:
    """A server process on the second core, and how much CPU it has used."""

    def __init__(self, command: List[str], endpoint: str, own_core: bool, tree: str = "") -> None:
        self.endpoint = endpoint
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        if tree:
            environment["PYTHONPATH"] = tree
        self.process = subprocess.Popen(
            command, cwd=LIB, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        os.sched_setaffinity(self.process.pid, set(CORES))
        if own_core and len(CORES) > 1:
            os.sched_setaffinity(self.process.pid, {CORES[1]})
        path = endpoint[len("ipc://") :]
        for _ in range(600):
            if os.path.exists(path):
                break
            if self.process.poll() is not None:
                assert self.process.stderr is not None
                raise SystemExit(f"{command}: {self.process.stderr.read().decode()}")
            time.sleep(0.05)

    def cpu_s(self) -> float:
        """User and system seconds so far, all threads."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def edgeserve(folder: str, name: str, text: str, tree: str = "", **values: str) -> Server:
    """``edgeserve serve`` on a configuration of its own, of the package in ``tree`` where one is named."""
    endpoint = f"ipc://{folder}/edgeserve-{name}.bus"
    path = os.path.join(LIB, f".bench-{os.getpid()}-{name}.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.format(endpoint=endpoint, **values))
    try:
        command = [sys.executable, "-m", "edgeserve.cli", "serve", path]
        server = Server(command, endpoint, own_core=name != "echo", tree=tree)
        load.ping(endpoint)
    finally:
        os.unlink(path)
    return server


def by_hand(folder: str, kind: str, *rest: str) -> Server:
    """One of the hand-written servers."""
    endpoint = f"ipc://{folder}/by-hand-{kind}.bus"
    return Server(
        [sys.executable, os.path.join(LIB, "bus_servers.py"), kind, endpoint, *rest], endpoint, own_core=kind != "echo"
    )


def ratio(results: Dict[str, List[float]], a: str, b: str) -> float:
    """The median over rounds of a's figure to b's."""
    return statistics.median(x / y for x, y in zip(results[a], results[b]))


def core_of_servers() -> str:
    """The core that this tree's servers run, as this process does; one that is compiled in part is held to less."""
    return "compiled" if compiled.running().kind == "compiled" else "interpreted"


def bench_echo(folder: str, count: int, seconds: float, checks: Checks) -> None:
    """Small requests, one in flight, large tensors, CPU per request."""
    servers = {"ours": edgeserve(folder, "echo", ECHO_TOML), "bare": by_hand(folder, "echo")}
    small = load.message("echo", np.arange(64, dtype=np.float32))
    large = load.message("echo", np.zeros((3, 224, 224), np.float32))
    try:
        cpu: Dict[str, List[float]] = {"ours": [], "bare": []}

        def small_rate(server: Server) -> float:
            before = server.cpu_s()
            done = load.closed_loop(server.endpoint, small, 16, seconds)
            name = "ours" if server is servers["ours"] else "bare"
            cpu[name].append((server.cpu_s() - before) / len(done))
            return len(done) / seconds

        rates = load.rounds(count, servers, small_rate)
        show("64 floats, 16 in flight, requests/s", rates)
        core = core_of_servers()
        checks.at_least("echo 64 floats, 16 in flight: rate to bare", ratio(rates, "ours", "bare"), ECHO_RATE_MIN[core])
        checks.at_most("echo 64 floats: server CPU per request to bare", ratio(cpu, "ours", "bare"), ECHO_CPU_MAX[core])
        show("  server CPU per request, us", {key: [v * 1e6 for v in values] for key, values in cpu.items()})
        p50 = load.rounds(count, servers, lambda s: statistics.median(load.closed_loop(s.endpoint, small, 1, seconds)))
        show("64 floats, 1 in flight, p50 us", {key: [v * 1e6 for v in values] for key, values in p50.items()})
        checks.at_most("echo 64 floats, 1 in flight: p50 to bare", ratio(p50, "ours", "bare"), 2.5)
        rates = load.rounds(count, servers, lambda s: len(load.closed_loop(s.endpoint, large, 16, seconds)) / seconds)
        show("602 KB, 16 in flight, requests/s", rates)
        checks.at_least("echo 602 KB, 16 in flight: rate to bare", ratio(rates, "ours", "bare"), 0.7)
    finally:
        for server in servers.values():
            server.stop()


def bench_batching(folder: str, count: int, seconds: float, checks: Checks) -> None:
    """A network that gains from batches, against the hand-written thread."""
    os.sched_setaffinity(0, {CORES[0]})
    path = os.path.join(folder, "net.onnx")
    load.make_network(path)
    single_s, gain = load.batching_gain(path)
    print(f"network: {single_s * 1e3:.2f} ms alone, {gain:.2f} of that per item at batch 16")
    checks.at_most("network: cost per item at batch 16 to batch 1", gain, 1 / 3)
    one = load.message("net", np.ones(load.WIDTH, np.float32))
    pair = {"ours": edgeserve(folder, "net", BATCHING_TOML, model=path), "single": by_hand(folder, "single", path)}
    try:
        p50 = load.rounds(count, pair, lambda s: statistics.median(load.closed_loop(s.endpoint, one, 1, seconds)))
        show("network, 1 in flight, p50 ms", {key: [v * 1e3 for v in values] for key, values in p50.items()})
        checks.at_most("network, 1 in flight: p50 to an unbatched bare server", ratio(p50, "ours", "single"), 1.15)
    finally:
        pair["single"].stop()
    servers = {"ours": pair["ours"], "thread": by_hand(folder, "thread", path)}
    try:
        capacity = 0.0
        for depth in (16, 32):
            rates = load.rounds(
                count,
                servers,
                lambda s, n=depth: len(  # type: ignore[misc]
                    load.closed_loop(s.endpoint, one, n, seconds)
                )
                / seconds,
            )
            show(f"network, closed loop, {depth} in flight, requests/s", rates)
            checks.at_least(
                f"network, closed loop, {depth} in flight: rate to the thread", ratio(rates, "ours", "thread"), 0.9
            )
            capacity = max(capacity, statistics.median(rates["thread"]))
        slo_ms = 5 * 1e3 * statistics.median(p50["single"])
        print(f"open loop: capacity of the thread {capacity:.0f} requests/s, deadline {slo_ms:.1f} ms")
        open_loop(servers, count, seconds * 2, capacity, slo_ms, checks)
    finally:
        for server in servers.values():
            server.stop()


def open_loop(
    servers: Dict[str, Server], count: int, seconds: float, capacity: float, slo_ms: float, checks: Checks
) -> None:
    """Poisson arrivals at shares of the thread's capacity: goodput, and what the critical class gets."""
    x = np.ones(load.WIDTH, np.float32)
    for share, must in GOODPUT_MIN.items():
        seeds = seed_numbers()

        def goodput(server: Server, share: float = share, seeds: Iterator[int] = seeds) -> float:
            return load.open_loop(
                server.endpoint, "net", x, share * capacity, slo_ms, seconds, next(seeds) // len(servers)
            )["normal"]

        results = load.rounds(count, servers, goodput)
        show(f"network, open loop at {share:.0%}, share in time", results)
        checks.at_least(
            f"network, open loop at {share:.0%}: goodput to the thread", ratio(results, "ours", "thread"), must
        )
    most = max(GOODPUT_MIN)
    mixed = [
        load.open_loop(
            servers["ours"].endpoint, "net", x, most * capacity, slo_ms, seconds, RANDOM_SEED + index, critical=CRITICAL
        )
        for index in range(count)
    ]
    critical = statistics.median(run["critical"] for run in mixed)
    others = statistics.median(run["normal"] for run in mixed)
    what = f"network at {most:.0%}, {CRITICAL:.0%} critical"
    print(f"{what}: {critical:.3f} of them in time, {others:.3f} of the others")
    checks.at_least(f"{what}: critical in time", critical, CRITICAL_MIN)
    checks.at_least(f"{what}: others in time", others, OTHERS_MIN)


def seed_numbers() -> Iterator[int]:
    """Pairs of equal seeds after division by the number of servers: both see the same arrivals in a round."""
    number = RANDOM_SEED
    while True:
        yield number
        number += 1


def show(name: str, results: Dict[str, List[float]]) -> None:
    """One line: median and range per server."""
    parts = [
        f"{key} {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
        for key, values in results.items()
    ]
    print(f"{name}: " + ", ".join(parts), flush=True)


def main() -> int:
    parser = arguments(__doc__, quick="shorter rounds (same checks; noisier)")
    parser.add_argument("--only", choices=("echo", "batching"))
    args = parser.parse_args()
    count, seconds = (3, 1.0) if args.quick else (5, 3.0)
    checks = checks_of("research/bench/bus.py", one_side=BEYOND)
    parts: List[Tuple[str, Callable[[str, int, float, Checks], None]]] = [
        ("echo", bench_echo),
        ("batching", bench_batching),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts:
            if args.only in (None, name):
                part(folder, count, seconds, checks)
    versions: Dict[str, Any] = {
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "core": compiled.running().kind,
        "rounds": count,
        "seconds": seconds,
    }
    return checks.finish(args.json, versions)


if __name__ == "__main__":
    sys.exit(main())
