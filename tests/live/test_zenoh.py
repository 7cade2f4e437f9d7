"""Images of ROS 2 over Zenoh: a session of its own sends them as ``rmw_zenoh`` does, another reads the detections."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from image_server import image_server

from edgeserve import cli
from edgeserve.fronts import ros_messages
from edgeserve.fronts.zenoh import NO_HASH, topic_key

zenoh = pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed", exc_type=ImportError)
pytest.importorskip("rosbags", reason="rosbags is not installed")

# What ROS 2 itself says (Jazzy): a wrong definition of the messages here would give another hash.
IMAGE_HASH = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47"


@pytest.fixture(scope="module")
def server():
    with image_server() as made:
        yield made


def session(**settings):
    scouting = {"scouting": {"multicast": {"enabled": False}}}
    return zenoh.open(zenoh.Config.from_json5(json.dumps({"mode": "peer", **scouting, **settings})))


@pytest.fixture
def nodes(server):
    """A camera's node, which listens, and another one that hears detections and liveliness; the front between."""
    listener = socket.create_server(("127.0.0.1", 0))
    place = f"tcp/127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    with session(mode="router", listen={"endpoints": [place]}) as camera, session(
        connect={"endpoints": [place]}
    ) as viewer:
        heard, seen = queue.Queue(), queue.Queue()
        viewer.declare_subscriber("7/detections/**", heard.put)
        viewer.liveliness().declare_subscriber("@ros2_lv/7/**", seen.put, history=True)
        words = ["zenoh", server[1], "--app", "detect", "--topic", "/camera/image_raw", "--domain", "7"]
        process = subprocess.Popen(
            [sys.executable, "-m", "edgeserve", *words, "--connect", place],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        while "subscribed to" not in process.stderr.readline():
            assert process.poll() is None
        yield camera, heard, seen
        process.send_signal(signal.SIGINT)
        assert "in time" in process.communicate(timeout=20)[1] and process.returncode == 0


def image_bytes(store, number):
    types = store.types
    at_ns = time.time_ns()
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[10:20, number : number + 20] = 255
    stamp = types["builtin_interfaces/msg/Time"](sec=at_ns // 10**9, nanosec=at_ns % 10**9)
    message = types[ros_messages.IMAGE](
        header=types["std_msgs/msg/Header"](stamp=stamp, frame_id=str(number)), height=48, width=64, encoding="rgb8",
        is_bigendian=0, step=192, data=pixels.reshape(-1),
    )  # fmt: skip
    return bytes(store.serialize_cdr(message, ros_messages.IMAGE)), at_ns


@pytest.mark.parametrize("humble", [False, True])
def test_images_become_detections_that_ros_reads(nodes, humble):
    camera, heard, seen = nodes
    store, _ = ros_messages.bag_types()
    assert store.hash_rihs01(ros_messages.IMAGE) == IMAGE_HASH
    publisher = camera.declare_publisher(
        topic_key(7, "/camera/image_raw", ros_messages.IMAGE, NO_HASH if humble else IMAGE_HASH)
    )
    publisher.put(b"this is no image")
    stamps, sample = {}, None
    for number in range(40):  # the first ones may come before the two have found each other
        data, stamps[str(number)] = image_bytes(store, number)
        publisher.put(data)
        try:
            sample = heard.get(timeout=0.5)
            break
        except queue.Empty:
            continue
    assert sample is not None
    array = store.deserialize_cdr(sample.payload.to_bytes(), ros_messages.DETECTIONS)
    number = array.header.frame_id
    assert array.header.stamp.sec * 10**9 + array.header.stamp.nanosec == stamps[number]
    (found,) = array.detections
    assert (found.bbox.center.position.x, found.bbox.size_x) == (int(number) + 10, 20)
    type_hash = NO_HASH if humble else store.hash_rihs01(ros_messages.DETECTIONS)
    assert str(sample.key_expr) == f"7/detections/vision_msgs::msg::dds_::Detection2DArray_/{type_hash}"
    told = sample.attachment.to_bytes()
    assert told.startswith(b"\x0fsequence_number" + (1).to_bytes(8, "little") + b"\x10source_timestamp")
    assert told[-28:-16] == b"\x0asource_gid\x10"
    kinds = {str(seen.get(timeout=5).key_expr).split("/")[5] for _ in range(3)}
    assert kinds == {"NN", "MS", "MP"}


def test_a_router_that_is_not_there_or_a_domain_that_is_none(server, capsys):
    words = ["zenoh", server[1], "--app", "detect", "--topic", "/camera"]
    assert cli.main([*words, "--domain", "300"]) == 2
    assert "from 0 to 232" in capsys.readouterr().err
    assert cli.main([*words, "--connect", "no place"]) == 2
    assert "ros2 run rmw_zenoh_cpp rmw_zenohd" in capsys.readouterr().err
