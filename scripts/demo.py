"""``make demo``: serve ``examples/reader/edge.toml``, load it over the bus with pages and voices, show what came back.
Then twice as many pages as the machine can read, through a plain queue and scheduled (``--no-overload`` leaves it out).

The server is a process of its own on a socket of its own, so that a bus which is already running is left alone. It is
ended and its socket removed in every case, Ctrl-C and SIGTERM included. The exit status is 0 when every page was read
right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Iterator, List, Optional, Sequence

import edgeserve
from edgeserve.errors import RequestError

HERE = os.path.dirname(os.path.abspath(__file__))
READER = os.path.join(os.path.dirname(HERE), "examples", "reader")
READY_S_MAX = 120.0  # loading and warming up took 5 s on two x86 cores; a Jetson may need ten times that
ENDING = (signal.SIGINT, signal.SIGTERM)
TELL_S = 3.0
ENDED_S_MAX = 15.0  # more than the server's own bound for draining


def start(endpoint: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The server, in a session of its own: the terminal's Ctrl-C reaches this process only, which then ends both."""
    command = [
        sys.executable,
        "-m",
        "edgeserve.cli",
        "serve",
        os.path.join(READER, "edge.toml"),
        "--endpoint",
        endpoint,
    ]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals in here take effect at the end, so that no process is started without being known."""
    caught: List[int] = []
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


def wait_until_ready(server: subprocess.Popen[bytes], endpoint: str, log: str) -> None:
    """Return when the server answers that it is ready, and meanwhile print now and then what it says in ``log``. Raises
    ``RuntimeError`` when it ends or takes too long."""
    began_s = printed_s = time.monotonic()
    while time.monotonic() < began_s + READY_S_MAX:
        if time.monotonic() >= printed_s + TELL_S:
            printed_s = time.monotonic()
            print(f"  {printed_s - began_s:.0f} s: {last_line(log) or 'no word yet'}", flush=True)
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}")
        try:
            with edgeserve.Client(endpoint, timeout_ms=1000, connect_ms=1000) as bus:
                if bus.health()["ready"]:
                    return
        except RequestError:
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {READY_S_MAX:.0f} s")


def last_line(log: str) -> str:
    """The last line of a log, without the time, in 64 characters."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    words = lines[-1].split(" ", 3)[-1] if lines else ""
    return words if len(words) <= 64 else words[:63] + "…"


def end(server: subprocess.Popen[bytes]) -> None:
    """Ask it to drain and end; kill it if it does not."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(ENDED_S_MAX)
        except subprocess.TimeoutExpired:
            print(f"the server did not end within {ENDED_S_MAX:.0f} s and is killed", file=sys.stderr)
            server.kill()
            server.wait()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Serve, load, report. The arguments are those of ``examples/reader/load.py``, and ``--no-overload``."""
    sys.path.insert(0, READER)
    import overload

    arguments: List[str] = list(sys.argv[1:] if argv is None else argv)
    whole = "--no-overload" not in arguments
    status = serve_and_load([argument for argument in arguments if argument != "--no-overload"])
    if status or not whole:
        return status
    print("\nThe same pages when too many come (two servers, one after the other; about 30 s) ...", flush=True)
    heed_signals()
    return overload.main([])


def heed_signals() -> None:
    """SIGTERM ends the demo as Ctrl-C does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


def serve_and_load(arguments: Sequence[str]) -> int:
    """The first part: pages and voices, and the server's end."""
    import load

    heed_signals()
    directory = tempfile.mkdtemp(prefix="edgeserve-demo-")  # mode 0700
    endpoint = f"ipc://{directory}/bus"
    server = None
    try:
        with open(os.path.join(directory, "log"), "w+b") as log:
            print("starting the server ...", flush=True)
            start_s = time.monotonic()
            with uninterrupted():
                server = start(endpoint, log)
            try:
                wait_until_ready(server, endpoint, log.name)
            except RuntimeError as error:
                log.seek(0)
                print(f"{error}. It said:\n{log.read().decode(errors='replace')}", file=sys.stderr)
                return 1
            print(f"ready after {time.monotonic() - start_s:.1f} s", flush=True)
            return load.main(["--endpoint", endpoint, *arguments])
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave the server behind
        if server is not None:
            end(server)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
