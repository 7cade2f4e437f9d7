"""Messages to arrays, and answers to boxes. Knows numpy and the fields of the messages; imports nothing of ROS."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Tuple

import numpy as np

CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "8UC1": 1, "8UC3": 3}
"""Encodings of ``sensor_msgs/Image`` with a byte per channel -> channels."""


class Box(NamedTuple):
    """A detection: centre and size in pixels, class and score."""

    x: float
    y: float
    width: float
    height: float
    label: str
    score: float


def pixels(message: Any) -> np.ndarray:
    """The image as uint8 [height, width, 3], red first. Raises :class:`ValueError` for another encoding, or for data
    that does not belong to its size."""
    channels = CHANNELS.get(message.encoding)
    if channels is None:
        raise ValueError(f"encoding {message.encoding!r} is not read; expected one of {', '.join(CHANNELS)}")
    height, width, step = message.height, message.width, message.step or message.width * channels
    data = np.frombuffer(message.data, np.uint8)
    if step < width * channels or len(data) < height * step:
        raise ValueError(
            f"an image of {width} x {height} {message.encoding} with rows of {step} bytes cannot have {len(data)} bytes"
        )
    rows = data[: height * step].reshape(height, step)[:, : width * channels].reshape(height, width, channels)
    if channels == 1:
        return np.repeat(rows, 3, axis=2)
    colours = rows[:, :, :3]
    return np.ascontiguousarray(colours[:, :, ::-1] if message.encoding.startswith("bgr") else colours)


def stamp_ns(message: Any) -> int:
    """When the image was taken, in nanoseconds of the ROS clock; 0 where the driver says nothing."""
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def left_ms(message: Any, now_ns: int, slo_ms: float) -> Tuple[float, bool]:
    """How long the answer may still take, and whether the image's stamp said so. A stamp that is missing, or lies in
    the future (another clock), counts as now."""
    taken_ns = stamp_ns(message)
    if not 0 < taken_ns <= now_ns:
        return slo_ms, False
    return slo_ms - (now_ns - taken_ns) / 1e6, True


def boxes(outputs: Mapping[str, Any], score_min: float) -> List[Box]:
    """The boxes in an answer: ``boxes`` [n, 4] as x1, y1, x2, y2 in pixels, ``scores`` [n], ``classes`` [n] (numbers)
    or ``labels`` (texts). Raises :class:`ValueError` where the answer holds something else."""
    corners = np.asarray(outputs.get("boxes"), np.float64)
    scores = np.asarray(outputs.get("scores"), np.float64).reshape(-1)
    if corners.ndim != 2 or corners.shape[1:] != (4,) or len(scores) != len(corners):
        raise ValueError(
            f"the answer has {', '.join(outputs) or 'no outputs'}; expected boxes [n, 4] and scores [n]: "
            "let the app's last node return them"
        )
    classes = outputs.get("labels", outputs.get("classes", [""] * len(scores)))
    labels = [classes] if isinstance(classes, str) else [str(item) for item in np.asarray(classes).reshape(-1)]
    if len(labels) != len(scores):
        raise ValueError(f"the answer has {len(labels)} labels and {len(scores)} scores; expected one for each box")
    return [
        Box((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, label, score)
        for (x1, y1, x2, y2), score, label in zip(corners.tolist(), scores.tolist(), labels)
        if score >= score_min
    ]
