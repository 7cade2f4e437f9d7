"""The ROS 2 example against doubles of rclpy and its messages: by hand, and with a real server behind it."""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import Future
from typing import Any, List

import numpy as np
import pytest
import ros_double

from edgeserve.answers import Answer
from edgeserve.client import Client
from edgeserve.config.loading import load_config
from edgeserve.errors import Rejected
from edgeserve.runtime import Runtime

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PLACE = os.path.join(ROOT, "examples", "ros2")
FOUND = {"boxes": np.float32([[10, 20, 30, 60], [0, 0, 1, 1]]), "scores": np.float32([0.9, 0.1]), "classes": [3, 4]}


class FakeClient:
    endpoint = "ipc:///fake"

    def __init__(self) -> None:
        self.asked: List[Any] = []

    def submit(self, app: str, inputs: Any, **options: Any) -> Any:
        future: Any = Future()
        self.asked.append((app, inputs, options, future))
        return future

    def close(self) -> None:
        self.endpoint = ""


@pytest.fixture
def ros(monkeypatch):
    """The example's node module, among doubles."""
    ros_double.install(monkeypatch)
    monkeypatch.syspath_prepend(PLACE)
    for name in ("edgeserve_ros2", "edgeserve_ros2.node"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(ros_double.Node, "parameters", {})
    module = importlib.import_module("edgeserve_ros2.node")
    yield module
    for name in ("edgeserve_ros2", "edgeserve_ros2.node"):
        sys.modules.pop(name, None)


def image(age_ms: float = 0.0, encoding: str = "rgb8", shape: Any = (2, 4, 3), step: int = 0) -> Any:
    taken_ns = ros_double.Node.now_ns - int(age_ms * 1e6)
    header = ros_double.Header(stamp=ros_double.Time(sec=taken_ns // 10**9, nanosec=taken_ns % 10**9), frame_id="front")
    return ros_double.Image(
        header=header,
        height=shape[0],
        width=shape[1],
        encoding=encoding,
        step=step,
        data=bytes(range(int(np.prod(shape)))),
    )


def answer(outputs: Any) -> Answer:
    return Answer(outputs, "completed", False, {}, 1.0, "", 1, 1.0, ())


def test_an_image_becomes_detections_with_its_header(ros):
    client = FakeClient()
    node = ros.DetectNode(client)
    seen = image(age_ms=10.0)
    node.callbacks["image"](seen)
    app, inputs, options, future = client.asked[0]
    assert app == "detect" and inputs["image"].shape == (2, 4, 3) and inputs["image"][0, 1].tolist() == [3, 4, 5]
    assert options["slo_ms"] == pytest.approx(23.0) and options["stream"] is None  # of 33, the image is 10 ms old
    assert node.published["detections"] == [] and node.spin_some() == 0
    future.set_result(answer(FOUND))
    assert node.spin_some() == 1
    (sent,) = node.published["detections"]
    (detection,) = sent.detections  # the other's score is too low
    assert sent.header is seen.header
    box, guess = detection.bbox, detection.results[0].hypothesis
    assert (box.center.position.x, box.center.position.y, box.size_x, box.size_y) == (20, 40, 20, 40)
    assert (guess.class_id, round(guess.score, 3)) == ("3", 0.9)


def test_the_newest_image_waits_and_the_others_are_counted(ros):
    client = FakeClient()
    node = ros.DetectNode(client)
    images = [image() for _ in range(5)]
    for one in images:
        node.callbacks["image"](one)
    assert len(client.asked) == 2
    client.asked[0][3].set_result(answer(FOUND))
    node.spin_some()
    assert len(client.asked) == 3 and node.counts["superseded"] == 2
    for asked in client.asked[1:]:
        asked[3].set_result(answer(FOUND))
    node.spin_some()
    assert [one.header for one in node.published["detections"]] == [images[at].header for at in (0, 1, 4)]
    node.callbacks["image"](image())
    assert len(client.asked) == 4  # every place was given back


def test_what_has_no_answer_is_told_as_diagnostics(ros):
    client = FakeClient()
    node = ros.DetectNode(client)
    node.callbacks["image"](image(age_ms=50.0))  # too old: not sent
    node.callbacks["image"](image(encoding="jpeg"))
    node.spin_some()
    for _ in range(2):
        node.callbacks["image"](image())
    client.asked[0][3].set_exception(Rejected("no", "cannot_make_deadline"))
    client.asked[1][3].set_result(answer({"mask": 1}))
    node.spin_some()
    node.callbacks["timer"]()
    (status,) = node.published["/diagnostics"][-1].status
    assert {item.key: item.value for item in status.values} == {
        "seen": "4",
        "too old": "1",
        "bad_input": "2",
        "rejected: cannot_make_deadline": "1",
    }
    assert status.level == ros_double.DiagnosticStatus.ERROR and len(node.warnings) == 3
    for _ in range(50):
        node.callbacks["image"](image())
        client.asked[-1][3].set_result(answer(FOUND))
        node.spin_some()
    node.callbacks["timer"]()
    assert node.published["/diagnostics"][-1].status[0].level == ros_double.DiagnosticStatus.OK
    node.destroy_node()
    assert node.destroyed and client.endpoint == ""


def test_foxys_messages_have_other_fields(ros, monkeypatch):
    messages = sys.modules["vision_msgs.msg"]
    monkeypatch.setattr(messages, "Detection2D", ros_double.FoxyDetection2D)
    monkeypatch.setattr(messages, "ObjectHypothesisWithPose", ros_double.FoxyHypothesis)
    client = FakeClient()
    node = ros.DetectNode(client)
    node.callbacks["image"](image())
    client.asked[0][3].set_result(answer(FOUND))
    node.spin_some()
    (detection,) = node.published["detections"][0].detections
    assert (detection.bbox.center.x, detection.results[0].id) == (20, "3")


def test_a_server_finds_what_is_bright(ros, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ros_double.Node, "parameters", {"slo_ms": 60_000.0})
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[10:20, 30:50] = 255
    with Runtime(load_config(os.path.join(PLACE, "edge.toml")), serve=True) as runtime, Client(
        runtime.endpoints[0]
    ) as client:
        node = ros.DetectNode(client)
        node.callbacks["image"](ros_double.Image(height=48, width=64, encoding="rgb8", data=picture.tobytes()))
        due = time.monotonic() + 60
        while not node.spin_some():
            assert time.monotonic() < due, "no answer"
            time.sleep(0.005)
    assert node.warnings == []
    box = node.published["detections"][0].detections[0].bbox
    assert (box.center.position.x, box.center.position.y, box.size_x, box.size_y) == (40, 15, 20, 10)


def test_the_package_has_the_form_that_ament_builds():
    package = ET.parse(os.path.join(PLACE, "package.xml")).getroot()
    assert package.findtext("name") == "edgeserve_ros2" and package.findtext("export/build_type") == "ament_python"
    assert os.path.exists(os.path.join(PLACE, "resource", "edgeserve_ros2"))
    settings = configparser.ConfigParser()
    settings.read(os.path.join(PLACE, "setup.cfg"))
    assert settings["install"]["install_scripts"] == "$base/lib/edgeserve_ros2"
    for name in ("setup.py", os.path.join("launch", "detect.launch.py")):
        with open(os.path.join(PLACE, name), encoding="utf-8") as file:
            source = file.read()
        ast.parse(source)
        if name == "setup.py":
            for path in ("package.xml", "launch/detect.launch.py", "config/detect.yaml"):
                assert path in source and os.path.exists(os.path.join(PLACE, path))
    with open(os.path.join(PLACE, "edgeserve_ros2", "node.py"), encoding="utf-8") as file:
        node = file.read()
    with open(os.path.join(PLACE, "config", "detect.yaml"), encoding="utf-8") as file:
        parameters = [line.split(":")[0].strip() for line in file.readlines()[2:]]
    assert parameters and all(f'declare_parameter("{name}"' in node for name in parameters)
    assert node.count("declare_parameter(") == len(parameters)
