"""What spans of OpenTelemetry cost a server: its processor time per small request, with them and without.

    python research/bench/spans.py [--quick] [--json FILE]

Three servers, asked in turn by one client with four requests in flight: without spans, with all of them, and with one
in a hundred (``OTEL_TRACES_SAMPLER``). Spans go to a receiver in this process that throws them away. Medians of the
ratios within a round. Needs ``pip install 'edgeserve-runtime[otel]'``.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
from common import bus_load as load
from lib.checks import Checks, arguments

from bench import bus

SAMPLED = {"none": "", "all": "always_on", "one in a hundred": "traceidratio"}
SETTLE_S = 1.0
"""What was asked in a round becomes spans until then."""

RATIO_MAX = {"all": 4.0, "one in a hundred": 1.4}


class Receiver(BaseHTTPRequestHandler):
    """Takes spans and forgets them."""

    protocol_version = "HTTP/1.1"
    bytes = 0

    def do_POST(self) -> None:  # noqa: N802 the name is of http.server
        """One batch of spans."""
        Receiver.bytes += len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def main() -> int:
    args = arguments(__doc__, quick="fewer and shorter rounds (noisier)").parse_args()
    rounds, seconds = (3, 2.0) if args.quick else (9, 4.0)
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    small = load.message("echo", np.arange(64, dtype=np.float32))
    servers: Dict[str, bus.Server] = {}
    cpu: Dict[str, List[float]] = {name: [] for name in SAMPLED}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, (name, sampler) in enumerate(SAMPLED.items()):
                os.environ.update(OTEL_TRACES_SAMPLER=sampler or "always_off", OTEL_TRACES_SAMPLER_ARG="0.01")
                address = f"http://127.0.0.1:{receiver.server_port}" if sampler else ""
                os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = address
                os.mkdir(f"{folder}/{number}")
                servers[name] = bus.edgeserve(f"{folder}/{number}", "echo", bus.ECHO_TOML)
            for _ in range(rounds):
                for name, server in servers.items():
                    before_s = server.cpu_s()
                    done = load.closed_loop(server.endpoint, small, 4, seconds)
                    time.sleep(SETTLE_S)
                    cpu[name].append((server.cpu_s() - before_s) / len(done))
        finally:
            for server in servers.values():
                server.stop()
    checks = Checks("research/bench/spans.py")
    for name, times in cpu.items():
        print(f"spans of {name}: {1e6 * statistics.median(times):.0f} us of the server per request")
        if name in RATIO_MAX:
            ratio = statistics.median(one / without for one, without in zip(times, cpu["none"]))
            checks.at_most(f"spans of {name}: the server's processor time to that without", ratio, RATIO_MAX[name])
    checks.is_true("spans were sent", Receiver.bytes > 0)
    circumstances = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": rounds,
        "seconds": seconds,
        "load_average": round(os.getloadavg()[0], 1),
    }
    return checks.finish(args.json, circumstances)


if __name__ == "__main__":
    sys.exit(main())
