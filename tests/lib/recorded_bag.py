"""A recorded bag of images, for tests that have rosbags."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
from rosbags import rosbag2, typesys

BEGIN_NS = 1_700_000_000 * 10**9
GAP_NS = 40 * 10**6
FRAMES = 12
HAS_MCAP = "storage_plugin" in inspect.signature(rosbag2.Writer).parameters


def write_bag(path, storage, topics=("/camera/image_raw",)):
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    types = store.types
    options = {"version": 9, "storage_plugin": rosbag2.StoragePlugin[storage]} if HAS_MCAP else {}
    with rosbag2.Writer(Path(path), **options) as writer:
        connections = [writer.add_connection(topic, "sensor_msgs/msg/Image", typestore=store) for topic in topics]
        text = writer.add_connection("/rosout", "std_msgs/msg/String", typestore=store)
        for number in range(FRAMES):
            at_ns = BEGIN_NS + number * GAP_NS
            writer.write(
                text,
                at_ns,
                bytes(store.serialize_cdr(types["std_msgs/msg/String"](data="x"), "std_msgs/msg/String")),
            )
            taken_ns = at_ns - 3 * 10**6
            pixels = np.zeros((48, 64, 3), np.uint8)
            pixels[10:20, number : number + 20] = 255
            stamp = types["builtin_interfaces/msg/Time"](sec=taken_ns // 10**9, nanosec=taken_ns % 10**9)
            image = types["sensor_msgs/msg/Image"](
                header=types["std_msgs/msg/Header"](stamp=stamp, frame_id="front"), height=48, width=64,
                encoding="bgr8", is_bigendian=0, step=192, data=pixels.reshape(-1),
            )  # fmt: skip
            for connection in connections:
                writer.write(connection, at_ns, bytes(store.serialize_cdr(image, "sensor_msgs/msg/Image")))
    return str(path)
