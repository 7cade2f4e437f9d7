"""Run the examples of NVIDIA's Triton client unchanged against EdgeServe's front.

    python scripts/dev/triton_examples.py DIRECTORY

DIRECTORY is ``src/python/examples`` of a checkout of https://github.com/triton-inference-server/client. The examples
ask a model ``simple`` on ports 8000 (HTTP) and 8001 (gRPC): an app of that name adds and subtracts 16 numbers. Needs
the extras ``http`` and ``grpc`` and ``tritonclient[all]``. Exit status 1 when an example fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

EXAMPLES = (
    "simple_http_infer_client",
    "simple_grpc_infer_client",
    "simple_http_async_infer_client",
    "simple_grpc_async_infer_client",
    "simple_http_aio_infer_client",
    "simple_grpc_aio_infer_client",
    "simple_grpc_keepalive_client",
    "simple_http_health_metadata",
)
READY_S_MAX = 60.0

CONFIG = """
[server]
endpoint = "ipc://{place}/bus"

[front.http]
listen = "127.0.0.1:8000"
grpc = "127.0.0.1:8001"
server_name = "triton"    # simple_http_health_metadata insists on it

[model.simple]
engine = "python"
function = "model:simple"

[app.simple]
model = "simple"
slo = "10s"

[app.simple.inputs]
INPUT0 = {{ dtype = "int32", shape = [1, 16] }}
INPUT1 = {{ dtype = "int32", shape = [1, 16] }}
"""
MODEL = """
def simple(inputs):
    return {"OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"], "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"]}
"""


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    """Return when the front answers. Raises ``RuntimeError`` when the server ends or takes too long."""
    end_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < end_s and server.poll() is None:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8000/v2/health/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the server did not get ready; are ports 8000 and 8001 free?")


def main() -> int:
    """Serve, run each example in a process of its own, report."""
    parser = argparse.ArgumentParser(description="Run the examples of Triton's client unchanged.")
    parser.add_argument("directory", help="src/python/examples of triton-inference-server/client")
    folder = Path(parser.parse_args().directory)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="es-triton-") as place:
        Path(place, "edge.toml").write_text(CONFIG.format(place=place), encoding="utf-8")
        Path(place, "model.py").write_text(MODEL, encoding="utf-8")
        server = subprocess.Popen([sys.executable, "-m", "edgeserve.cli", "serve", os.path.join(place, "edge.toml")])
        try:
            wait_until_ready(server)
            for name in EXAMPLES:
                done = subprocess.run(
                    [sys.executable, str(folder / f"{name}.py")],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                failed += done.returncode != 0
                lines = (done.stdout + done.stderr).strip().splitlines() or [""]
                print(
                    f"{'passed' if done.returncode == 0 else 'FAILED'}  {name}"
                    + (f": {lines[-1]}" if done.returncode else ""),
                    flush=True,
                )
        finally:
            server.terminate()
            server.wait()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
