"""``edgeserve init`` on files that were made to hang it, to fill the memory, or to end it: one sentence, in bounds."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zipfile

import pytest
from for_each import each_time

from edgeserve import cli
from edgeserve.commands.init.bounded import run_bounded
from edgeserve.errors import EngineError

MIB = 1024**2

PROGRAMS = {
    "takes more": "held = [bytearray(b'x' * 2**20) for _ in range(100_000)]",
    "takes more at once": "held = b'x' * 2**33",
    "takes longer": "while True: pass",
    "waits": "import time; time.sleep(60)",
    "does not heed signals": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
}


@pytest.mark.parametrize("program", each_time(PROGRAMS, "takes more at once", "takes longer"))
def test_a_child_is_ended_at_its_bounds(program):
    begun_s = time.monotonic()
    why = "memory" if "more" in program else "longer than 3 s"
    with pytest.raises(EngineError, match=f"was ended: it took .*{why}.*No configuration was written"):
        run_bounded(["-c", PROGRAMS[program]], 3.0, 200 * MIB)
    assert time.monotonic() - begun_s < 15


def test_a_child_that_crashes_is_told_and_a_status_is_passed_on():
    with pytest.raises(EngineError, match="was ended: killed by SIGSEGV"):
        run_bounded(["-c", "import os; os.kill(os.getpid(), 11)"])
    assert run_bounded(["-c", "raise SystemExit(2)"]) == 2


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def nested(depth):
    """A graph in a graph in a graph: attributes may hold graphs."""
    data = b""
    for _ in range(depth):
        data = field(1, field(5, field(6, data)))
    return field(7, data)


def tensor(dims, data=b""):
    """A model with one weight of these dimensions."""
    weight = b"".join(varint(1 << 3) + varint(length) for length in dims) + varint(2 << 3) + varint(1) + field(8, b"w")
    return varint(1 << 3) + varint(8) + field(7, field(2, b"g") + field(5, weight + field(9, data)))


def zipped(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.pkl", b"\0" * 64 * MIB)
        file.writestr("version", b"3")


HOSTILE = {
    "deep.onnx": lambda path: path.write_bytes(nested(20_000)),
    "huge.onnx": lambda path: path.write_bytes(tensor([2**40, 2**20])),
    "negative.onnx": lambda path: path.write_bytes(tensor([2**64 - 1])),
    "many.onnx": lambda path: path.write_bytes(tensor([1] * 100_000)),
    "cut.onnx": lambda path: path.write_bytes(tensor([4], b"\0" * 16)[:-7]),
    "long.onnx": lambda path: path.write_bytes(varint(7 << 3 | 2) + varint(2**62) + b"x"),
    "text.onnx": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
    "empty.onnx": lambda path: path.write_bytes(b""),
    "holes.onnx": lambda path: (path.write_bytes(b"\0"), os.truncate(path, 3 * 1024**3)),
    "bomb.pt": zipped,
    "cut.gguf": lambda path: path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)),
    "name.gguf": lambda path: path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**62) + b"x"),
    "fifo.onnx": lambda path: os.mkfifo(path),
    "fifo.gguf": lambda path: os.mkfifo(path),
    "endless.onnx": lambda path: path.symlink_to("/dev/zero"),
    "endless.pt": lambda path: path.symlink_to("/dev/urandom"),
    "itself.onnx": lambda path: path.symlink_to(path),
    "folder.onnx": lambda path: path.mkdir(),
}


@pytest.mark.parametrize(
    "name", each_time(HOSTILE, "deep.onnx", "holes.onnx", "bomb.pt", "cut.gguf", "fifo.onnx", "itself.onnx")
)
def test_a_hostile_file_gets_one_sentence(name, tmp_path, capfd):
    path = tmp_path / name
    HOSTILE[name](path)
    out = tmp_path / "edge.toml"
    assert cli.main(["init", str(path), "--out", str(out), "--cpu"]) == 2 and not out.exists()
    (told,) = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("reading ")]
    assert told.startswith("edgeserve: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_child_ends_with_the_command(number, tmp_path):
    """Else the configuration would be written after the shell has its prompt again."""
    import onnx_models

    out, command = tmp_path / "edge.toml", [sys.executable, "-m", "edgeserve", "init"]
    model = str(tmp_path / onnx_models.linear(str(tmp_path)))
    with subprocess.Popen([*command, model, "--out", str(out), "--cpu"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stderr.readline().startswith(b"reading ")
        process.send_signal(number)
        assert process.stderr.read() == b""  # until the child has ended
    assert process.returncode == -number and not out.exists()
