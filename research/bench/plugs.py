"""A robot's critical frames while satellites listen and a video recorder asks, all on one lane: do they lose anything?

    python research/bench/plugs.py [--seconds 20] [--rounds 3] [--quick] [--json FILE]

Server, robot, the two fronts (``edgeserve front wyoming`` and ``frigate``), satellites and recorder are processes of
their own. The robot sends a frame every 33 ms with 25 ms to answer it. Four satellites send sound as it comes, in
pieces of 64 ms, and their wake words are looked for; two cameras of the recorder ask five times a second each. The
models sleep instead of computing: what is measured is the scheduler, the bus and the fronts. In each round the robot is
measured alone and beside the others, in alternating order. Needs ``pip install -e '.[wyoming]'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import zmq
from lib.checks import Checks, arguments
from lib.server_process import ServerProcess

from edgeserve.client import Client
from edgeserve.errors import RequestError

CONFIG = """
[server]
endpoint = "ipc://{folder}/bus/socket"
[lane.gpu0]
[model.perceive]
engine = "python"
function = "plug_functions:perceive"
options = {{ example = "plug_functions:frame" }}
[model.detect]
engine = "python"
function = "plug_functions:detect"
options = {{ example = "plug_functions:image" }}
[model.wake]
engine = "python"
function = "plug_functions:wake"
options = {{ example = "plug_functions:sound" }}
[app.perceive]
model = "perceive"
slo = "25ms"
class = "critical"
stream = "newest_wins"
inputs = {{ frame = {{ dtype = "uint8", shape = [240, 320, 3] }} }}
[app.detect]
model = "detect"
slo = "200ms"
stream = "newest_wins"
inputs = {{ image = {{ dtype = "uint8", shape = [320, 320, 3] }} }}
[app.wake]
model = "wake"
slo = "400ms"
inputs = {{ sound = {{ dtype = "float32", shape = [31840] }} }}
"""

FUNCTIONS = """
import time
import numpy as np
def perceive(inputs):
    time.sleep(0.010)
    return {"found": np.float32(1)}
def detect(inputs):
    time.sleep(0.008)
    return {"output0": np.zeros((9, 40), np.float32)}
def wake(inputs):
    time.sleep(0.006)
    return {"word": "house" if np.abs(inputs["sound"]).max() > 1000 else ""}
def frame():
    return {"frame": np.zeros((240, 320, 3), np.uint8)}
def image():
    return {"image": np.zeros((320, 320, 3), np.uint8)}
def sound():
    return {"sound": np.zeros(31840, np.float32)}
"""

FRAME_S = 1 / 30
SATELLITES, CAMERAS = 4, 2
PIECE = 1024  # samples of an event, at 16 kHz
CAMERA_S = 0.2
WORD_S = 5.0  # a wake word is said so often
WARM_S = 3.0
"""Until satellites and recorder all ask."""

IN_TIME_MIN = 0.995
LOST_MAX = 0.005
"""Of the share in time alone: "nothing", as far as a general-purpose system lets it be measured."""


def robot(endpoint: str, seconds: float) -> None:
    """Print how many frames were sent, how many answered in time, and the 99th percentile of their times in ms."""
    frame = np.zeros((240, 320, 3), np.uint8)
    took: List[float] = []
    sent = 0
    with Client(endpoint) as client:
        client.infer("perceive", {"frame": frame}, stream="front", slo_ms=1000)
        due = time.monotonic()
        ends = due + seconds
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            sent += 1
            began = time.monotonic()
            with contextlib.suppress(RequestError):
                client.infer("perceive", {"frame": frame}, stream="front")
                took.append(time.monotonic() - began)
            due = max(due + FRAME_S, time.monotonic())
    in_time = sum(each <= 0.025 for each in took)
    print(json.dumps({"sent": sent, "in_time": in_time, "p99_ms": round(1e3 * float(np.quantile(took, 0.99)), 3)}))


def satellites(port: int) -> None:
    """Send sound until ended by a signal; print a line per wake word heard."""
    from wyoming.audio import AudioChunk
    from wyoming.client import AsyncTcpClient
    from wyoming.wake import Detect, Detection

    async def one(index: int) -> None:
        async with AsyncTcpClient("127.0.0.1", port) as client:

            async def hear() -> None:
                while True:
                    event = await client.read_event()
                    if event is None:
                        return
                    if Detection.is_type(event.type):
                        print("heard", index, flush=True)
                        await client.write_event(Detect().event())

            hearing = asyncio.ensure_future(hear())
            await client.write_event(Detect().event())
            due = time.monotonic() + 0.016 * index
            said = due + WORD_S
            while not hearing.done():
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                loud = due >= said
                said += WORD_S if loud else 0.0
                piece = np.full(PIECE, 2000 if loud else 0, np.int16)
                await client.write_event(AudioChunk(16_000, 2, 1, piece.tobytes()).event())
                due += PIECE / 16_000

    async def run() -> None:
        await asyncio.gather(*[one(index) for index in range(SATELLITES)])

    asyncio.run(run())


def recorder(place: str) -> None:
    """Ask as Frigate does, until ended by a signal; print a line per answer."""
    image = np.zeros((1, 320, 320, 3), np.uint8)
    header = json.dumps({"shape": list(image.shape), "dtype": "uint8", "model_type": "yologeneric"}).encode()
    sockets = [zmq.Context.instance().socket(zmq.REQ) for _ in range(CAMERAS)]
    for each in sockets:
        each.connect(place)
    due = time.monotonic()
    while True:
        for each in sockets:
            each.send_multipart([header, image.tobytes()])
        for each in sockets:
            each.recv_multipart()
            print("answered", flush=True)
        due = max(due + CAMERA_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def others(folder: Path, endpoint: str) -> Iterator[Dict[str, List[str]]]:
    """Fronts, satellites and recorder, each a process of its own. Yields what was answered, filled when they end."""
    answered: Dict[str, List[str]] = {}
    place = f"ipc://{folder}/frigate"
    python = [sys.executable, "-m", "edgeserve.cli"]
    wake_front = [*python, "front", "wyoming", "--endpoint", endpoint, "--wake", "wake", "--listen", "127.0.0.1:0"]
    frigate_front = [*python, "front", "frigate", "--endpoint", endpoint, "--app", "detect", "--listen", place]
    started: List[subprocess.Popen[str]] = []

    def start(command: List[str], **how: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how))
        return started[-1]

    try:
        front = start(wake_front, stderr=subprocess.STDOUT)
        line = ""
        while "127.0.0.1:" not in line:
            assert front.stdout is not None
            line = front.stdout.readline()
            if not line:
                raise SystemExit("edgeserve front wyoming ended before it listened")
        port = line.rpartition("127.0.0.1:")[2].split()[0].strip(".,;:")
        start(frigate_front, stderr=subprocess.DEVNULL)
        asking = {
            "wake words": start([sys.executable, __file__, "satellites", port]),
            "images": start([sys.executable, __file__, "recorder", place]),
        }
        time.sleep(WARM_S)
        yield answered
        for name, process in asking.items():
            process.terminate()
            answered[name] = process.communicate()[0].splitlines()
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def of_robot(endpoint: str, seconds: float) -> Dict[str, float]:
    """One measurement, by a process of its own."""
    command = [sys.executable, __file__, "robot", endpoint, str(seconds)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def main() -> int:
    parser = arguments(__doc__, quick="one round of five seconds")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rounds, seconds = (1, 5.0) if args.quick else (args.rounds, args.seconds)
    checks = Checks("research/bench/plugs.py")
    rows: List[Dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="es") as name:
        folder = Path(name)
        endpoint = f"ipc://{folder}/bus/socket"
        server = ServerProcess(folder, CONFIG, {"plug_functions.py": FUNCTIONS})
        try:
            server.wait_ready(endpoint)
            for index in range(rounds):
                row: Dict[str, Any] = {}
                for case in ("alone", "beside")[:: -1 if index % 2 else 1]:
                    with others(folder, endpoint) if case == "beside" else contextlib.nullcontext({}) as answered:
                        row[case] = of_robot(endpoint, seconds)
                    row.update({what: len(lines) for what, lines in answered.items()})
                rows.append(row)
                print(row, flush=True)
        finally:
            server.stop()
    shares = {case: [row[case]["in_time"] / row[case]["sent"] for row in rows] for case in ("alone", "beside")}
    lost = [alone - beside for alone, beside in zip(shares["alone"], shares["beside"])]
    checks.at_least("critical frames in time, beside fronts", statistics.median(shares["beside"]), IN_TIME_MIN)
    checks.at_most("of those in time alone, lost", statistics.median(lost), LOST_MAX)
    asking_s = WARM_S + seconds
    due = {"wake words": SATELLITES * (asking_s // WORD_S), "images": CAMERAS * asking_s / CAMERA_S}
    for what, count in due.items():
        checks.at_least(f"{what} answered, of those asked", statistics.median([row[what] for row in rows]) / count, 0.9)
    circumstances = {
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
        "rounds": rounds,
        "seconds": seconds,
        "load_average": round(os.getloadavg()[0], 1),
    }
    return checks.finish(args.json, circumstances, rows=rows)


if __name__ == "__main__":
    kind, rest = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if kind == "robot":
        robot(rest[0], float(rest[1]))
    elif kind == "satellites":
        satellites(int(rest[0]))
    elif kind == "recorder":
        recorder(rest[0])
    else:
        sys.exit(main())
