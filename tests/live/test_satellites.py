"""Two real satellites (``wyoming-satellite``) run the steps of docs/guide/wyoming.md: the listener's networks hear each
one's own wake word in synthetic speech, and Home Assistant's part is played by the protocol's own client."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from serving import served

from edgeserve.client import AsyncClient as Bus
from edgeserve.commands import assets
from edgeserve.config.toml_files import read_toml

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

pytest.importorskip("wyoming", reason="pip install '.[wyoming]'")
pytest.importorskip("onnxruntime", reason="the listener's networks need onnxruntime: pip install '.[onnx]'")
espeak = pytest.importorskip("espeakng_loader", reason="speech for the microphones: pip install espeakng-loader")

from wyoming.audio import AudioChunk  # noqa: E402
from wyoming.client import AsyncTcpClient  # noqa: E402
from wyoming.info import Describe, Info  # noqa: E402
from wyoming.pipeline import RunPipeline  # noqa: E402
from wyoming.satellite import RunSatellite  # noqa: E402
from wyoming.vad import VoiceStarted, VoiceStopped  # noqa: E402

from edgeserve.fronts.wyoming import Voice, WyomingFront  # noqa: E402

ROOT = Path(__file__).parents[2]
RATE = 16_000
SPEAK = """
import sys, time
sound, at = open(sys.argv[1], "rb").read(), 0
start = time.monotonic()
while True:
    for at in range(0, len(sound), 2048):
        sys.stdout.buffer.write(sound[at:at + 2048]); sys.stdout.buffer.flush()
        start += 2048 / 32000
        time.sleep(max(0.0, start - time.monotonic()))
"""


def speech(words):
    """Synthetic speech, int16 at 16 kHz."""
    library = ctypes.CDLL(espeak.get_library_path())
    rate = library.espeak_Initialize(1, 0, espeak.get_data_path().encode(), 0)
    assert rate > 0
    parts = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

    def take(samples, count, _):
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = kind(take)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(b"en-us")
    text = words.encode()
    library.espeak_Synth(text, len(text) + 1, 0, 1, 0, 1, None, None)
    library.espeak_Synchronize()
    sound = np.concatenate(parts)
    at = np.arange(int(len(sound) * RATE / rate)) * rate / RATE
    return np.interp(at, np.arange(len(sound)), sound).astype(np.int16)


@pytest.fixture(scope="module")
def satellite_python(tmp_path_factory):
    """A Python with satellites: they want an older release of the protocol's package than the front."""
    folder = tmp_path_factory.mktemp("satellite")
    packages = ["wyoming-satellite==1.0.0", "wyoming==1.4.1", "pyring-buffer==1.0.0"]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", *packages], capture_output=True, text=True
    )
    if done.returncode or subprocess.run([python, "-m", "wyoming_satellite", "--help"], capture_output=True).returncode:
        pytest.skip(f"wyoming-satellite cannot be installed or started: {done.stderr[-300:]}")
    return python


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def steps():
    """The commands of the page, by their program's name."""
    page = (ROOT / "docs" / "guide" / "wyoming.md").read_text(encoding="utf-8").split("## The other services")[0]
    lines = [line.strip() for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.strip()]
    return {command[2] if command[0] == "python" else command[1]: command for command in commands}


def changed(command, **options):
    """The command with other values of its options."""
    for option, value in options.items():
        command[command.index("--" + option.replace("_", "-")) + 1] = value
    return command


@contextlib.contextmanager
def running(command, environment, says, python=sys.executable):
    """A program, once its standard error says so; its place to read more."""
    program = [python, *(command[1:] if command[0] == "python" else ["-m", *command])]
    process = subprocess.Popen(program, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        while not lines or not re.search(says, lines[-1]):
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        yield lines[-1]
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20)
        process.kill()


async def hear(port, word_file):
    """Home Assistant's part: let the satellite run, and take what it sends after its wake word."""
    for _ in range(600):  # a satellite is ready before it listens
        try:
            client = AsyncTcpClient("127.0.0.1", port)
            await client.connect()
            break
        except OSError:
            await asyncio.sleep(0.05)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.disconnect)
        await client.write_event(Describe().event())
        assert Info.from_event(await client.read_event()).satellite is not None
        await client.write_event(RunSatellite().event())
        kinds, samples = [], 0
        while samples < RATE // 2:
            event = await asyncio.wait_for(client.read_event(), 120)
            kinds.append(event.type)
            if AudioChunk.is_type(event.type):
                samples += AudioChunk.from_event(event).samples
        assert RunPipeline.is_type(kinds[0]), kinds
        return word_file.read_text().strip()


def test_a_wake_word_is_heard_by_each_of_two_satellites(satellite_python):
    commands = steps()
    try:
        assets.fetch(assets.read_assets(str(ROOT / commands["edgeserve.commands.assets"][3])), assets.cache_directory())
    except assets.AssetError as error:
        pytest.skip(f"the networks are not in the cache and cannot be fetched: {error}")
    with tempfile.TemporaryDirectory(prefix="es") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": str(ROOT)}
        (place / "speak.py").write_text(SPEAK)
        stack.enter_context(running(commands["serve"], environment, "ready on"))
        front = [word for word in changed(commands["wyoming"], listen="127.0.0.1:0") if word != "--zeroconf"]
        port = re.search(r"127.0.0.1:(\d+)", stack.enter_context(running(front, environment, "ready on"))).group(1)
        satellites = {}
        for name, word, said in (("kitchen", "alexa", "alexa"), ("hall", "hey_jarvis", "hey jarvis")):
            silence = np.zeros(RATE, np.int16)
            (place / f"{name}.raw").write_bytes(np.concatenate([silence, speech(said), silence, silence]).tobytes())
            own = free_port()
            satellite = changed(
                list(commands["wyoming_satellite"]),
                name=name,
                uri=f"tcp://127.0.0.1:{own}",
                mic_command=f"{sys.executable} {place}/speak.py {place}/{name}.raw",
                wake_uri=f"tcp://127.0.0.1:{port}",
                wake_word_name=word,
            )
            satellite += ["--no-zeroconf", "--detection-command", f"tee {place}/{name}.word"]
            stack.enter_context(running(satellite, environment, "Ready", satellite_python))
            satellites[word] = hear(own, place / f"{name}.word")

        async def both():
            return await asyncio.gather(*satellites.values())

        assert asyncio.run(both()) == list(satellites)


def test_speech_is_heard_by_the_voice_detector_of_the_hub():
    folder = ROOT / "examples" / "chat"
    try:
        assets.fetch(assets.read_assets(str(ROOT / "examples" / "reader" / "assets.toml")), assets.cache_directory())
    except assets.AssetError as error:
        pytest.skip(f"the network is not in the cache and cannot be fetched: {error}")
    whole = read_toml(str(folder / "edge.toml"))
    tables = {
        "lane": {"cpu1": {}},
        "policy": {"voices": whole["policy"]["voices"]},
        "app": {"ears": {**whole["app"]["ears"], "slo": "2s"}},
        "model": {"voice": whole["model"]["voice"]},
    }
    silence = np.zeros(RATE, np.int16)
    sound = np.concatenate([silence, speech("turn the light on in the kitchen"), silence, silence])

    async def run(endpoint):
        place, stopped = asyncio.get_running_loop().create_future(), asyncio.Event()
        async with Bus(endpoint) as bus:
            front = WyomingFront(bus, Voice(apps={"vad": "ears"}, listen="127.0.0.1:0"))
            await front.look()
            serving = asyncio.ensure_future(front.serve(stopped, place.set_result))
            async with AsyncTcpClient("127.0.0.1", int((await place).rpartition(":")[2])) as client:
                for at in range(0, len(sound), 1024):
                    await client.write_event(AudioChunk(RATE, 2, 1, sound[at : at + 1024].tobytes()).event())
                started = VoiceStarted.from_event(await asyncio.wait_for(client.read_event(), 60))
                ended = VoiceStopped.from_event(await asyncio.wait_for(client.read_event(), 60))
            stopped.set()
            await serving
        return started.timestamp, ended.timestamp

    with served(tables, str(folder)) as (runtime, _):
        started, ended = asyncio.run(run(runtime.endpoints[0]))
    speech_ms = (len(sound) - 3 * RATE) / RATE * 1000
    assert 900 < started < 1500 and 1000 + speech_ms < ended < 2500 + speech_ms
