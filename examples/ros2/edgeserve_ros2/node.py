"""``edgeserve_detect``: images of a topic go to an app of an EdgeServe server, its detections to another topic.

Nothing waits: the callback of an image hands it to the client and returns, and an answer is published from the
executor's thread. While ``in_flight_max`` images have no answer only the newest of the others is kept. An image's
deadline counts from its stamp, so what the driver and the queue took is not spent twice; an image whose time is over is
not sent. What had no answer is counted by reason and told on ``/diagnostics`` once a second.
"""

from __future__ import annotations

import importlib
import threading
from collections import Counter, deque
from typing import Any, Deque, Optional, Sequence, Tuple

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

import edgeserve
from edgeserve.errors import RequestError
from edgeserve.fronts.detections import named_boxes
from edgeserve.fronts.image_apps import reason_of
from edgeserve.fronts.ros_messages import detection_array, left_ms, pixels

TELL_S = 1.0
LOSS_WARN = 0.1
"""Diagnostics say WARN from this share of images without an answer on, and ERROR where none had one."""

TOO_OLD = RequestError("the time from the image's stamp on was over before it could be sent")
"""The end of an image that was not sent."""

Ended = Tuple[Image, Any]


class DetectNode(Node):  # type: ignore[misc]  # rclpy has no types
    """One camera in, its detections out. Runs on any executor; the client's thread only queues what has ended."""

    def __init__(self, client: Any = None) -> None:
        super().__init__("edgeserve_detect")
        self._app = self.declare_parameter("app", "detect").value
        self._input = self.declare_parameter("input", "image").value
        self._slo_ms = float(self.declare_parameter("slo_ms", 33.0).value)
        self._score_min = float(self.declare_parameter("score_min", 0.5).value)
        self._in_flight_max = int(self.declare_parameter("in_flight_max", 2).value)
        self._stream = self.declare_parameter("stream", "").value
        endpoint = self.declare_parameter("endpoint", "").value
        self.counts: Counter[str] = Counter()
        self._client = client or edgeserve.Client(endpoint or None, name=self.get_name())
        self._in_flight = 0
        self._waiting: Optional[Image] = None
        self._ended: Deque[Ended] = deque()
        self._lock = threading.Lock()
        self._wake = self.create_guard_condition(self._publish_ended)
        self._publisher = self.create_publisher(Detection2DArray, "detections", qos_profile_sensor_data)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 1)
        self.create_subscription(Image, "image", self._seen, qos_profile_sensor_data)
        self.create_timer(TELL_S, self._tell)

    # --- images in ----------------------------------------------------------------------------------------------------

    def _seen(self, image: Image) -> None:
        with self._lock:
            self.counts["seen"] += 1
            if self._in_flight >= self._in_flight_max:
                if self._waiting is not None:
                    self.counts["superseded"] += 1
                self._waiting = image
                return
            self._in_flight += 1
        self._ask(image)

    def _ask(self, image: Image) -> None:
        """Send one image, whose place in flight is taken."""
        left, _ = left_ms(image, self.get_clock().now().nanoseconds, self._slo_ms)
        if left <= 0:
            return self._end(image, TOO_OLD)
        try:
            future = self._client.submit(
                self._app, {self._input: pixels(image)}, slo_ms=left, stream=self._stream or None, on_late="drop"
            )
        except RequestError as error:
            return self._end(image, error)
        future.add_done_callback(lambda done: self._end(image, done))

    # --- answers out --------------------------------------------------------------------------------------------------

    def _end(self, image: Image, ended: Any) -> None:
        """An image has its end: the place is free, and the executor's thread is woken. From any thread."""
        self._ended.append((image, ended))
        self._wake.trigger()

    def _publish_ended(self) -> None:
        while self._ended:
            image, ended = self._ended.popleft()
            try:
                found = named_boxes(answer_of(ended), self._score_min)
            except Exception as error:  # noqa: BLE001 any failure is counted, and the next image is served
                reason = "too old" if error is TOO_OLD else reason_of(error)
                if not self.counts[reason]:
                    self.get_logger().warning(f"no detections ({reason}): {error}")
                self.counts[reason] += 1
            else:
                self.counts["published"] += 1
                self._publisher.publish(detection_array(message_type, image.header, found))
            self._next()

    def _next(self) -> None:
        with self._lock:
            image, self._waiting = self._waiting, None
            if image is None:
                self._in_flight -= 1
        if image is not None:
            self._ask(image)

    # --- what is told -------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        with self._lock:
            counts = dict(self.counts)
        seen, published = counts.get("seen", 0), counts.get("published", 0)
        lost = sum(counts.values()) - seen - published
        status = DiagnosticStatus(name=f"{self.get_name()}: {self._app}", hardware_id=self._client.endpoint)
        level = status.OK if lost <= LOSS_WARN * seen else status.WARN if published else status.ERROR
        status.level = level
        status.message = f"{published} of {seen} images answered in time"
        status.values = [KeyValue(key=key, value=str(count)) for key, count in sorted(counts.items())]
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)

    def destroy_node(self) -> Any:
        """Requests in flight are cancelled."""
        self._client.close()
        return super().destroy_node()


def answer_of(ended: Any) -> Any:
    """The outputs of what has ended: a future, or an error. Raises what it raised."""
    if isinstance(ended, BaseException):
        raise ended
    answer = ended.result()
    return answer.outputs


def message_type(name: str) -> Any:
    """``"std_msgs/msg/Header"`` -> its class."""
    package, _, kind = name.partition("/msg/")
    return getattr(importlib.import_module(package + ".msg"), kind)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Spin until Ctrl-C."""
    rclpy.init(args=argv)
    node = DetectNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
