"""Pages walked as a new user would: each section's commands from top to bottom, in one folder, with its servers beside.

Blocks of another project's programs are not run, and what ``NOT_RUN`` and ``LARGE`` say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "start/install.md": (),
    "start/model-file.md": (),
    "guide/frigate.md": ("zmq",),
    "guide/page.md": ("starlette", "uvicorn"),
    "guide/ros2.md": ("rosbags",),
    "guide/compare.md": ("starlette", "uvicorn", "zmq"),
}
"""Page -> the packages that its commands need."""

NOT_RUN = {
    "python -m venv": "the test's environment stands for it",
    "pip install": "the test's environment has what the page installs",
    "edgeserve top": "it shows until a person ends it; test_top_and_trace has it",
}
"""The beginning of a command -> why it is not run."""

LARGE = "Qwen3"
"""A file of 600 MB: test_language_model and test_talk have small ones in the place of it."""

READY_S = 60.0


def blocks(text):
    """The lines of each block of commands."""
    found, inside = [], None
    for line in text.splitlines():
        fence = re.match(r" *```(\w*)$", line)
        if fence and inside is None:
            inside = []
            found += [inside] if fence[1] in ("", "sh") else []
        elif fence:
            inside = None
        elif inside is not None:
            inside.append(re.split(r"\s+# ", line.strip())[0])
    return found


def sections(page):
    """Title -> the commands of each section that is walked."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"(?m)^## ", text):
        ours = [block for block in blocks(section) if any(line.startswith("edgeserve") for line in block)]
        lines = [line for block in ours for line in block if not any(map(line.startswith, NOT_RUN))]
        if lines and LARGE not in section:
            found[section.splitlines()[0].strip("# ")] = lines
    return found


def is_short(page, title):
    """True if a section is walked each time: the first pages, but for what measures. The guide's are nightly."""
    return page.startswith("start/") and title != "Try it before you change anything"


WALKS = [
    pytest.param(page, title, id=f"{page}: {title}", marks=() if is_short(page, title) else pytest.mark.nightly)
    for page in PAGES
    for title in sections(page)
]


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def detector(folder, name):
    """A network in the form of YOLO: a colour's mean decides about boxes."""
    from onnx import helper
    from onnx_models import FLOAT, save

    weights = np.zeros((3, 84 * 21), np.float32)
    weights[:, : 21 * 4] = 100.0
    weights[:, 21 * 4 : 21 * 5] = 0.3
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "w"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["output0"]),
    ]
    shape = np.array([0, 84, 21], np.int64)
    inputs, outputs = [("images", FLOAT, ["B", 3, 320, 320])], [("output0", FLOAT, ["B", 84, 21])]
    save(str(folder), name, nodes, inputs, outputs, [("w", weights), ("shape", shape)])


def files(folder):
    """Files and requests that the pages presuppose."""
    from onnx_models import linear

    linear(str(folder), name="mine")
    detector(folder, "yolo11n")
    item = {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    (folder / "request.json").write_text(json.dumps({"inputs": [item]}))


def bag(folder):
    from image_server import CONFIG, PLACE
    from recorded_bag import HAS_MCAP, write_bag

    if not HAS_MCAP:
        pytest.skip("this rosbags writes sqlite3 alone")
    write_bag(folder / "recording", "MCAP")
    shutil.copy(folder / "recording" / "recording.mcap", folder / "recording.mcap")
    shutil.copy(os.path.join(PLACE, "detector.py"), folder)
    (folder / "edge.toml").write_text(re.sub(r"(?s)\[server\].*?\n\n", "", CONFIG).format())


class Walk:
    """One folder, one user's runtime directory, and the programs that run beside the next command."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.http, self.frigate = free_port(), free_port()
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        for name, words in (("edgeserve", "-m edgeserve.cli"), ("python", "")):
            (bin_folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (bin_folder / name).chmod(0o700)
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(ROOT), "PATH": path}

    def here(self, line):
        """The command with addresses that are free on this machine."""
        line = line.replace("localhost:8000", f"localhost:{self.http}").replace(
            "127.0.0.1:8000", f"127.0.0.1:{self.http}"
        )
        line = re.sub(r" --listen tcp://[\d.:]+", "", line)
        if line.startswith("edgeserve front http"):
            line += f" --listen 127.0.0.1:{self.http}"
        if line.startswith("edgeserve front frigate"):
            line += f" --listen tcp://127.0.0.1:{self.frigate}"
        return line.replace("curl ", "curl -sSf ")

    def step(self, line):
        """The output of the command; of a program that goes on, its first line."""
        line = self.here(line)
        if re.match(r"edgeserve (serve|front (?!bag))", line):
            return self.stack.enter_context(self.beside(line))
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def beside(self, line):
        command = ["sh", "-c", f"exec {line}"]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        timer = threading.Timer(READY_S, process.kill)
        timer.start()
        try:
            said = process.stderr.readline()
            while "ready on" not in said:
                assert said, f"{line} is not ready"
                said = process.stderr.readline()
            timer.cancel()
            threading.Thread(target=process.stderr.read, daemon=True).start()  # its log never fills the pipe
            yield said
        finally:
            timer.cancel()
            process.terminate()
            process.wait(timeout=30)


def frigate_sees(walk):
    """The answer of Frigate's detector to a bright image, with the model section of the page."""
    import zmq

    page = (ROOT / "docs" / "guide" / "frigate.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"(?m)^ +(width|height|input_tensor|input_dtype|model_type): (\S+)", page))
    assert (said["input_tensor"], said["input_dtype"]) == ("nchw", "float")
    image = np.ones((1, 3, int(said["height"]), int(said["width"])), np.float32)
    about = {"shape": image.shape, "dtype": "float32", "model_type": said["model_type"].replace("-", "")}
    asking = zmq.Context.instance().socket(zmq.REQ)
    asking.setsockopt(zmq.LINGER, 0)
    asking.setsockopt(zmq.RCVTIMEO, 20_000)
    asking.connect(f"tcp://127.0.0.1:{walk.frigate}")
    for _ in range(50):  # one that is late counts as empty
        asking.send_multipart([json.dumps(about).encode(), image.tobytes()])
        found = np.frombuffer(asking.recv(), np.float32).reshape(20, 6)
        if found.any():
            break
    asking.close()
    assert found[0, 1] > 0.4


def test_the_keys_of_the_page_let_a_robot_in():
    page = (ROOT / "docs" / "guide" / "security.md").read_text(encoding="utf-8").partition("## Keys")[2]
    server, robot, infer = [line for block in blocks(page) for line in block]
    (table,) = re.findall(r"(?s)```toml\n(.*?)```", page)
    place = f"tcp://127.0.0.1:{free_port()}"
    folder = Path(tempfile.mkdtemp(prefix="es"))
    try:
        with contextlib.ExitStack() as stack:
            walk = Walk(folder, stack)
            walk.step(server)
            walk.step(robot)
            (folder / "allowed").mkdir()
            shutil.copy(folder / "keys" / "robot.key", folder / "allowed")
            for name in ("robot.key_secret", "server.key"):
                shutil.copy(folder / "keys" / name, folder)
            (folder / "hello.py").write_text('def hello(inputs):\n    return {"said": "hello"}\n')
            model = '[model.hello]\nengine = "python"\nfunction = "hello:hello"\n'
            model += '[app.hello]\nmodel = "hello"\nslo = "10s"\n'
            (folder / "edge.toml").write_text(table.replace("tcp://0.0.0.0:5555", place) + model)
            walk.step("edgeserve serve edge.toml")
            asked = infer.replace("tcp://192.0.2.7:5555", place)
            assert "hello" in walk.step(asked)
            other = asked.replace("robot.key_secret", "keys/server.key_secret") + " 2>&1 || true"
            assert "said" not in walk.step(other), "a key that is not allowed is let in"
    finally:
        shutil.rmtree(folder)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("page", "title"), WALKS)
def test_a_new_user_gets_through_the_section(page, title):
    for package in PAGES[page]:
        pytest.importorskip(package, reason=f"{page} needs {package}")
    pytest.importorskip("onnxruntime")
    folder, said = Path(tempfile.mkdtemp(prefix="es")), {}
    try:
        with contextlib.ExitStack() as stack:
            walk = Walk(folder, stack)
            (bag if page == "guide/ros2.md" else files)(folder)
            if page == "guide/page.md" or title.startswith("Try it"):  # beside a running server, they say
                walk.step("edgeserve init mine.onnx")
                walk.step("edgeserve serve edge.toml")
            for line in sections(page)[title]:
                said[line] = walk.step(line)
            if any("front frigate" in line for line in said):
                frigate_sees(walk)
            if page == "guide/page.md":
                assert "<html" in walk.step(f"curl http://127.0.0.1:{walk.http}/")
            for line, answer in said.items():
                assert "@request" not in line or json.loads(answer)["outputs"]
    finally:
        shutil.rmtree(folder)
