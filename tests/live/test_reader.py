"""The reader demo with its real networks. Skips, saying why, when its models are neither cached nor to be fetched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import psutil
import pytest
from for_each import each_time

import edgeserve
from edgeserve.commands import assets
from edgeserve.config.files import resolve_path
from edgeserve.engines.functions import import_function
from edgeserve.errors import Failed

cv2 = pytest.importorskip("cv2", reason="the reader demo needs opencv: pip install -r examples/reader/requirements.txt")
onnxruntime = pytest.importorskip("onnxruntime", reason="the reader demo needs onnxruntime: pip install '.[onnx]'")

READER = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "examples", "reader")
DEMO = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "scripts", "demo.py")
LINES = [
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
]
"""The lines on page.png; a seventh line below them fades into the shadow."""


@pytest.fixture(scope="module")
def reader() -> Any:
    """The demo's module, once its assets are there. Its clients' module can be imported from then on too."""
    try:
        packages = assets.read_assets(os.path.join(READER, "assets.toml"))
        assets.fetch(packages, assets.cache_directory())
    except assets.AssetError as error:
        pytest.skip(f"the demo's models are not in the cache and cannot be fetched: {error}")
    import_function("load:main", READER, "test_reader")
    return sys.modules[import_function("reader:decode", READER, "test_reader").__module__]


@pytest.fixture(scope="module")
def networks(reader) -> Dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return {
        name: onnxruntime.InferenceSession(
            resolve_path(f"cache:rapidocr-onnxruntime-1.4.4/{name}.onnx", ""),
            options,
            providers=["CPUExecutionProvider"],
        )
        for name in ("detect", "orient", "recognise")
    }


def read(reader: Any, networks: Dict[str, Any], image: np.ndarray) -> Tuple[List[str], Dict[str, np.ndarray]]:
    """The pipeline of edge.toml by hand: no server, no scheduler."""

    def run(name: str, x: np.ndarray) -> np.ndarray:
        return networks[name].run(None, {"x": x[np.newaxis]})[0][0]

    page = reader.decode({"image": image}).outputs
    parts = reader.find_lines({"page": page["page"], "map": run("detect", page["x"])}).items
    turned = [reader.turn({**part, "turned": run("orient", part["x"])}) for part in parts]
    answer = reader.join(
        {
            "probabilities": [run("recognise", item["x"]) for item in turned],
            "box": [part["box"] for part in parts],
            "heading": [item["heading"] for item in turned],
        }
    )
    return answer["text"].split("\n"), answer


def letters(text: str) -> str:
    """The compared characters: the network often loses a space, and takes a full stop at the edge for a comma."""
    return "".join(character for character in text.lower() if character.isalnum())


def page_bytes() -> np.ndarray:
    return np.fromfile(resolve_path("cache:scikit-image-0.26.0/page.png", ""), np.uint8)


def test_the_printed_page_is_read_line_by_line(reader, networks):
    lines, answer = read(reader, networks, page_bytes())
    assert [letters(line) for line in lines[:6]] == [letters(line) for line in LINES]
    assert answer["boxes"].shape == (len(lines), 4, 2)
    assert (answer["sure"] > 0.9).all()
    tops = answer["boxes"][:, 0, 1]
    assert (np.diff(tops) > 0).all()


@pytest.mark.parametrize("quarters", each_time([1, 2, 3], 1))
def test_a_turned_page_is_read_from_its_own_top(reader, networks, quarters):
    page = cv2.imdecode(page_bytes(), cv2.IMREAD_COLOR)
    lines, _ = read(reader, networks, np.ascontiguousarray(np.rot90(page, quarters)))
    found, wanted = [letters(line) for line in lines], [letters(line) for line in LINES]
    known = [line for line in found if line in wanted]
    assert len(known) >= 4
    assert known == [line for line in wanted if line in known]


@pytest.mark.parametrize("size", [(10, 10), (10, 4000), (4000, 10), (191, 384), (3000, 2000)])
def test_the_detectors_input_stays_within_its_bounds(reader, size):
    width, height = reader.detector_size(*size)
    assert width % 32 == height % 32 == 0
    assert 32 <= min(width, height) <= max(width, height) <= reader.SIDE_MAX


@pytest.mark.parametrize("degrees", range(-175, 181, 5))
def test_the_lines_of_a_page_at_any_angle_are_read_row_by_row(reader, degrees):
    def box(left: float, top: float) -> np.ndarray:
        corners = np.array([[left, top], [left + 50, top], [left + 50, top + 20], [left, top + 20]], np.float32)
        return reader.clockwise(corners @ np.stack([heading, [-heading[1], heading[0]]]).astype(np.float32))

    heading = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], np.float32)
    boxes = [box(200, 3), box(10, 40), box(10, 0), box(200, 38)]
    assert reader.in_reading_order(boxes, heading) == [2, 0, 1, 3]


def test_one_line_that_was_turned_wrongly_does_not_turn_the_page(reader):
    headings = [np.array([x, y], np.float32) for x, y in [(1, 0), (-1, 0.01), (-1, 0), (-1, 0.02), (0, 1)]]
    assert reader.page_heading(headings, [30, 20, 25, 10, 8])[0] == -1
    assert reader.page_heading(headings[:2], [20, 20])[0] in (1, -1)
    assert reader.in_reading_order([], reader.page_heading([], [])) == []


def test_ctc_drops_repeats_and_blanks(reader):
    steps = np.zeros((7, 3), np.float32)
    for step, which in enumerate([1, 1, 0, 1, 2, 2, 0]):
        steps[step, which] = 0.8
    assert reader.greedy_ctc(steps, ("", "a", "b")) == ("aab", pytest.approx(0.8))
    assert reader.greedy_ctc(np.eye(3, dtype=np.float32)[[0, 0]], ("", "a", "b")) == ("", 0.0)


# --- served, in this process ---


@pytest.fixture(scope="module")
def runtime(reader) -> Iterator[edgeserve.Runtime]:
    with edgeserve.Runtime(os.path.join(READER, "edge.toml")) as started:
        yield started


@pytest.mark.nightly
def test_served_pages_are_read_as_by_hand_while_voices_are_heard(reader, networks, runtime):
    """Both apps at once: pages through seven nodes with a branch per line, two streams of sound with their memory."""
    load = sys.modules["load"]
    samples, _ = load.sound()
    padded = np.concatenate([np.zeros(load.CONTEXT, np.float32), samples])
    starts = {"one": 210, "two": 700}  # two different pieces of the recording
    pages = load.pages()
    asked = [runtime.submit("reader", {"image": page.image}, slo_ms=60_000) for page in pages]
    heard: Dict[str, List[float]] = {stream: [] for stream in starts}
    for count in range(40):
        for stream, first in starts.items():
            at = (first + count) * load.FRAME
            window = padded[at : at + load.FRAME + load.CONTEXT]
            answer = runtime.infer("ears", {"input": window}, stream=stream, slo_ms=60_000)
            heard[stream].append(float(answer["output"][0]))
    for stream, first in starts.items():
        assert heard[stream] == pytest.approx(voice_by_hand(padded, first, 40), abs=1e-4)
    for page, future in zip(pages, asked):
        text = letters(future.result()["text"])
        assert [words for words in page.words if letters(words) not in text] == []


def test_a_served_page_without_lines_is_answered(runtime):
    load = sys.modules["load"]
    answer = runtime.infer("reader", {"image": load.encoded(np.full((200, 300, 3), 255, np.uint8))}, slo_ms=60_000)
    assert answer["text"] == ""
    assert answer["boxes"].shape == (0, 4, 2)


def test_what_is_no_image_fails_its_own_request_only(runtime):
    with pytest.raises(Failed, match="send the bytes of a PNG or JPEG file"):
        runtime.infer("reader", {"image": np.arange(50, dtype=np.uint8)}, slo_ms=60_000)
    assert runtime.infer("reader", {"image": sys.modules["load"].pages()[3].image}, slo_ms=60_000)["text"]


# --- the voice network ------------------------------------------------------------------------------------------------


def voice_by_hand(padded: np.ndarray, first: int, count: int) -> List[float]:
    """Probabilities of a voice in ``count`` frames, carrying the state from frame to frame."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        resolve_path("cache:silero-vad-6.2.3/silero_vad.onnx", ""), options, providers=["CPUExecutionProvider"]
    )
    state = np.zeros((2, 1, 128), np.float32)
    heard = []
    for start in range(first * 512, (first + count) * 512, 512):
        probability, state = session.run(
            None, {"input": padded[np.newaxis, start : start + 576], "state": state, "sr": np.array(16000, np.int64)}
        )
        heard.append(float(probability[0, 0]))
    return heard


def test_the_voice_network_agrees_with_the_publishers_notes(reader):
    samples, spoken = sys.modules["load"].sound()
    padded = np.concatenate([np.zeros(64, np.float32), samples])
    heard = np.array(voice_by_hand(padded, 0, 500)) > 0.5
    assert 0.4 < spoken[:500].mean() < 0.7
    assert (heard == spoken[:500]).mean() > 0.95


# --- what the clients print -------------------------------------------------------------------------------------------


def rows_of(table: str) -> Dict[str, List[str]]:
    """First cell -> the others, of each row of a drawn table."""
    cells = [
        [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        for line in table.splitlines()
        if line.startswith(("│", "┃"))
    ]
    return {first: others for first, *others in cells if first or others}


# --- make demo --------------------------------------------------------------------------------------------------------


def start_demo(directory: str, *arguments: str) -> subprocess.Popen[str]:
    """``scripts/demo.py`` in a process group of its own, as a terminal would start it."""
    environment = {**os.environ, "TMPDIR": directory}
    environment.pop("COLUMNS", None)
    return subprocess.Popen(
        [sys.executable, DEMO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def left_behind(directory: str) -> List[str]:
    """Files in the demo's temporary directory, and processes whose command names it."""
    found = os.listdir(directory)
    for process in psutil.process_iter(["cmdline"]):
        if directory in " ".join(process.info["cmdline"] or ()):
            found.append(f"process {process.pid}")
    return found


def test_the_demo_reads_hears_and_leaves_nothing_behind(reader, tmp_path):
    demo = start_demo(str(tmp_path), "--seconds", "3", "--streams", "2", "--no-overload")
    out, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, out
    assert "Gate 4 is closed today." in out
    assert letters("Let us first determine markers of the coins and the") in letters(out)
    rows = rows_of(out)
    assert int(rows["reader"][1]) >= 4  # finished
    assert rows["ears"][0] == "186"  # sent: 3 s of two streams
    assert int(rows["ears"][1]) > 30  # in time: nearly all, but for a busy machine
    assert sum(int(rows["ears"][place]) for place in (1, 3, 4)) == 186  # answered, refused or failed, each once
    assert left_behind(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting the server", signal.SIGINT),
        pytest.param("ready after", signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("ready after", signal.SIGTERM, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_the_demo_and_leaves_nothing_behind(reader, tmp_path, moment, number):
    demo = start_demo(str(tmp_path), "--seconds", "60")
    assert demo.stdout is not None
    out = ""
    while moment not in out:
        line = demo.stdout.readline()
        assert line, f"the demo ended early: {out}"
        out += line
    os.killpg(demo.pid, number)
    out += demo.stdout.read()  # until its end; the test's time limit bounds it
    assert demo.wait(10) == 130, out
    assert "Traceback" not in out
    assert left_behind(str(tmp_path)) == []
