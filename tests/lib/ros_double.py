"""Doubles of ``rclpy`` and of the messages that ``examples/ros2`` uses: fields and defaults as their definitions have
them (Humble), callbacks called by hand. Nothing is sent anywhere."""

from __future__ import annotations

import sys
import types
from typing import Any, Dict, List


class Message:
    """Fields with defaults, and no others: what a generated message class allows."""

    defaults: Dict[str, Any] = {}

    def __init__(self, **fields: Any) -> None:
        unknown = set(fields) - set(self.defaults)
        assert not unknown, f"{type(self).__name__} has no fields {sorted(unknown)}"
        for name, default in self.defaults.items():
            value = default() if callable(default) else default
            object.__setattr__(self, name, fields.get(name, value))

    @classmethod
    def get_fields_and_field_types(cls) -> Dict[str, str]:
        return dict.fromkeys(cls.defaults, "")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.defaults:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        object.__setattr__(self, name, value)


def message(kind: str, **defaults: Any) -> Any:
    return type(kind, (Message,), {"defaults": defaults})


Time = message("Time", sec=0, nanosec=0)
Header = message("Header", stamp=Time, frame_id="")
Image = message("Image", header=Header, height=0, width=0, encoding="", is_bigendian=0, step=0, data=b"")
Point = message("Point", x=0.0, y=0.0, z=0.0)
Quaternion = message("Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
Pose = message("Pose", position=Point, orientation=Quaternion)
PoseWithCovariance = message("PoseWithCovariance", pose=Pose, covariance=list)
Point2D = message("Point2D", x=0.0, y=0.0)
Pose2D = message("Pose2D", position=Point2D, theta=0.0)
BoundingBox2D = message("BoundingBox2D", center=Pose2D, size_x=0.0, size_y=0.0)
ObjectHypothesis = message("ObjectHypothesis", class_id="", score=0.0)
ObjectHypothesisWithPose = message("ObjectHypothesisWithPose", hypothesis=ObjectHypothesis, pose=None)
Detection2D = message("Detection2D", header=Header, results=list, bbox=BoundingBox2D, id="")
Detection2DArray = message("Detection2DArray", header=Header, detections=list)
KeyValue = message("KeyValue", key="", value="")
DiagnosticArray = message("DiagnosticArray", header=Header, status=list)
DiagnosticStatus = message("DiagnosticStatus", level=b"\0", name="", message="", hardware_id="", values=list)
DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR = b"\0", b"\1", b"\2"

# Foxy's, where they differ.
FoxyPose2D = message("Pose2D", x=0.0, y=0.0, theta=0.0)  # of geometry_msgs
FoxyHypothesis = message("ObjectHypothesisWithPose", id="", score=0.0, pose=None)
FoxyDetection2D = message("Detection2D", header=Header, results=list, bbox=BoundingBox2D, source_img=None)


VISION = [
    Point2D,
    Pose2D,
    BoundingBox2D,
    ObjectHypothesis,
    ObjectHypothesisWithPose,
    Detection2D,
    Detection2DArray,
]


class Node:
    """The part of ``rclpy.node.Node`` that the node under test uses. ``parameters`` overrides defaults."""

    parameters: Dict[str, Any] = {}
    now_ns = 10**18

    def __init__(self, name: str) -> None:
        self.name = name
        self.published: Dict[str, List[Any]] = {}
        self.callbacks: Dict[str, Any] = {}
        self.warnings: List[str] = []
        self.guards: List[Any] = []
        self.destroyed = False

    def get_name(self) -> str:
        return self.name

    def declare_parameter(self, name: str, default: Any) -> Any:
        value = self.parameters.get(name, default)
        assert type(value) is type(default), f"parameter {name}: a {type(default).__name__} was declared"
        return types.SimpleNamespace(value=value)

    def create_publisher(self, kind: Any, topic: str, qos: Any) -> Any:
        sent = self.published.setdefault(topic, [])

        def publish(one: Any) -> None:
            assert type(one) is kind
            sent.append(one)

        return types.SimpleNamespace(publish=publish)

    def create_subscription(self, kind: Any, topic: str, callback: Any, qos: Any) -> None:
        self.callbacks[topic] = callback

    def create_timer(self, seconds: float, callback: Any) -> None:
        self.callbacks["timer"] = callback

    def create_guard_condition(self, callback: Any) -> Any:
        guard = types.SimpleNamespace(callback=callback, count=0)

        def trigger() -> None:
            guard.count += 1

        guard.trigger = trigger
        self.guards.append(guard)
        return guard

    def spin_some(self) -> int:
        """Run the triggered conditions as an executor does, and return their number."""
        triggered = [guard for guard in self.guards if guard.count]
        for guard in triggered:
            guard.count = 0
            guard.callback()
        return len(triggered)

    def get_clock(self) -> Any:
        return types.SimpleNamespace(
            now=lambda: types.SimpleNamespace(
                nanoseconds=self.now_ns, to_msg=lambda: Time(sec=self.now_ns // 10**9, nanosec=self.now_ns % 10**9)
            )
        )

    def get_logger(self) -> Any:
        return types.SimpleNamespace(warning=self.warnings.append)

    def destroy_node(self) -> bool:
        self.destroyed = True
        return True


def install(monkeypatch: Any) -> None:
    """Let ``import rclpy`` and the messages find these doubles, until the test ends."""

    def module(name: str, **content: Any) -> None:
        one = types.ModuleType(name)
        vars(one).update(content)
        monkeypatch.setitem(sys.modules, name, one)

    module("rclpy", init=None, spin=None, try_shutdown=None)
    module("rclpy.node", Node=Node)
    module("rclpy.qos", qos_profile_sensor_data=object())
    for package, kinds in (
        ("sensor_msgs", [Image]),
        ("diagnostic_msgs", [DiagnosticArray, DiagnosticStatus, KeyValue]),
        ("geometry_msgs", [Point, Quaternion, Pose, PoseWithCovariance, FoxyPose2D]),
        ("vision_msgs", VISION),
    ):
        module(package)
        module(package + ".msg", **{kind.__name__: kind for kind in kinds})
