"""Messages of ROS that were serialised as ROS does (CDR, by the package rosbags), in the types of its distributions."""

from __future__ import annotations

import io

import numpy as np
import pytest

from edgeserve.errors import BadInput
from edgeserve.fronts import ros_messages
from edgeserve.fronts.detections import Box

typesys = pytest.importorskip("rosbags.typesys", reason="rosbags is not installed")

DISTRIBUTIONS = [name for name in ("FOXY", "HUMBLE", "IRON", "JAZZY") if hasattr(typesys.Stores, f"ROS2_{name}")]
NOW_NS = 1_700_000_000 * 10**9


class Ros:
    """Makes messages, and gives them back as another process would read them."""

    def __init__(self, distribution):
        self.store = typesys.get_typestore(getattr(typesys.Stores, f"ROS2_{distribution}"))

    def make(self, kind, **fields):
        return self.store.types[kind](**fields)

    def sent(self, message, kind):
        return self.store.deserialize_cdr(bytes(self.store.serialize_cdr(message, kind)), kind)

    def header(self, at_ns=NOW_NS):
        stamp = self.make("builtin_interfaces/msg/Time", sec=at_ns // 10**9, nanosec=at_ns % 10**9)
        return self.make("std_msgs/msg/Header", stamp=stamp, frame_id="front")

    def image(self, encoding, data, size, step=0, big=0, at_ns=NOW_NS):
        data = np.frombuffer(data.tobytes() if isinstance(data, np.ndarray) else data, np.uint8)
        message = self.make(
            ros_messages.IMAGE, header=self.header(at_ns), height=size[0], width=size[1], encoding=encoding,
            is_bigendian=big, step=step or len(data) // size[0], data=data,
        )  # fmt: skip
        return self.sent(message, ros_messages.IMAGE)


@pytest.fixture(params=DISTRIBUTIONS)
def ros(request):
    return Ros(request.param)


RGB = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("rgb8", RGB),
        ("bgr8", RGB[:, :, ::-1]),
        ("rgba8", np.dstack([RGB, np.full((2, 4), 9, np.uint8)])),
        ("bgra8", np.dstack([RGB[:, :, ::-1], np.full((2, 4), 9, np.uint8)])),
    ],
)
def test_colours_in_any_order_become_red_green_blue(ros, encoding, data):
    np.testing.assert_array_equal(ros_messages.pixels(ros.image(encoding, data, (2, 4))), RGB)


def test_rows_may_be_padded(ros):
    padded = np.zeros((2, 16), np.uint8)
    padded[:, :12] = RGB.reshape(2, 12)
    np.testing.assert_array_equal(ros_messages.pixels(ros.image("rgb8", padded, (2, 4), step=16)), RGB)


@pytest.mark.parametrize("big", [0, 1])
def test_grey_and_depth(ros, big):
    wide = np.array([[256, 65535], [1, 512]], ">u2" if big else "<u2")
    assert ros_messages.pixels(ros.image("mono16", wide, (2, 2), big=big))[..., 1].tolist() == [[1, 255], [0, 2]]
    depth = ros_messages.pixels(ros.image("16UC1", wide, (2, 2), big=big))
    assert depth.dtype == np.uint16 and depth.tolist() == [[256, 65535], [1, 512]]
    metres = ros_messages.pixels(
        ros.image("32FC1", np.array([[0.5, np.nan]], ">f4" if big else "<f4"), (1, 2), big=big)
    )
    assert metres[0, 0] == 0.5 and np.isnan(metres[0, 1])
    assert ros_messages.pixels(ros.image("mono8", b"\x05\x06", (1, 2))).tolist() == [[[5] * 3, [6] * 3]]


RED = {"y": 81, "u": 90, "v": 240}  # (255, 0, 0) in BT.601, limited range


@pytest.mark.parametrize(
    ("encoding", "order"), [("yuv422", "uyvy"), ("uyvy", "uyvy"), ("yuv422_yuy2", "yuyv"), ("yuyv", "yuyv")]
)
def test_packed_yuv(ros, encoding, order):
    first_v = order.index("v")
    data = bytes(RED[name] for name in order) * 4
    found = ros_messages.pixels(ros.image(encoding, data, (2, 4)))
    assert found.shape == (2, 4, 3) and np.abs(found.astype(int) - [255, 0, 0]).max() <= 2
    white = bytearray(data)
    white[order.index("y")] = 235
    white[order.index("u")] = white[first_v] = 128
    assert np.abs(ros_messages.pixels(ros.image(encoding, bytes(white), (2, 4)))[0, 0].astype(int) - 255).max() <= 2


@pytest.mark.parametrize(("encoding", "pair"), [("nv12", "uv"), ("nv21", "vu")])
def test_planar_yuv(ros, encoding, pair):
    data = bytes([RED["y"]] * 8) + bytes(RED[name] for name in pair) * 2
    message = ros.image(encoding, data, (2, 4), step=4)
    assert np.abs(ros_messages.pixels(message).astype(int) - [255, 0, 0]).max() <= 2


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer(ros, order):
    levels = {"r": 200, "g": 100, "b": 50}
    block = np.array([levels[colour] for colour in order], np.uint8).reshape(2, 2)
    found = ros_messages.pixels(ros.image(f"bayer_{order}8", np.tile(block, (2, 3)), (4, 6)))
    assert found.shape == (4, 6, 3) and (found == [200, 100, 50]).all()


@pytest.mark.parametrize(
    ("encoding", "size", "length", "says"),
    [
        ("rgb8", (2, 4), 23, "cannot have"),
        ("nv12", (3, 4), 18, "cannot have"),
        ("64FC3", (1, 1), 24, "encoding '64FC3' is not read"),
        ("yuyv", (1, 3), 6, "cannot have"),
    ],
)
def test_what_does_not_belong_together_is_refused(ros, encoding, size, length, says):
    with pytest.raises(BadInput, match=says):
        ros_messages.pixels(ros.image(encoding, bytes(length), size, step=length // size[0] + 1))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_compressed_images(ros, form):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.full((8, 16, 3), (200, 30, 30), np.uint8)).save(file, form)
    for data, name in ((file.getvalue(), form.lower()), (b"no image", "jpeg"), (b"", "16UC1; compressedDepth png")):
        message = ros.make(
            ros_messages.COMPRESSED, header=ros.header(), format=name, data=np.frombuffer(data, np.uint8)
        )
        message = ros.sent(message, ros_messages.COMPRESSED)
        if data != file.getvalue():
            with pytest.raises(BadInput, match="is not read|cannot be read"):
                ros_messages.decompressed(message)
        else:
            found = ros_messages.decompressed(message)
            assert found.shape == (8, 16, 3) and np.abs(found.astype(int) - [200, 30, 30]).max() <= 4


def test_a_compressed_image_is_turned_and_one_of_deep_colours_is_refused(ros):
    image = pytest.importorskip("PIL.Image")
    turned, deep, exif = io.BytesIO(), io.BytesIO(), image.Exif()
    exif[0x0112] = 6
    image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(turned, "JPEG", exif=exif)
    image.fromarray(np.full((8, 16), 40_000, np.uint16)).save(deep, "PNG")
    told = [
        ros.make(
            ros_messages.COMPRESSED, header=ros.header(), format=name, data=np.frombuffer(file.getvalue(), np.uint8)
        )
        for file, name in ((turned, "jpeg"), (deep, "png"))
    ]
    assert ros_messages.decompressed(told[0]).shape == (16, 8, 3)
    with pytest.raises(BadInput, match="8 bits"):
        ros_messages.decompressed(told[1])


def test_clouds_of_points(ros):
    kind = np.dtype({"names": ["x", "y", "z", "ring", "intensity"], "formats": ["f4", "f4", "f4", "u2", "f4"],
                     "offsets": [0, 4, 8, 12, 16], "itemsize": 24})  # fmt: skip
    points = np.zeros(3, kind)
    points["x"], points["y"], points["z"] = [1, np.nan, 3], [4, 5, 6], [7, 8, 9]
    points["ring"], points["intensity"] = [1, 2, 3], [0.5, 0.6, 0.7]
    types = {"f4": 7, "u2": 4}
    fields = [
        ros.make("sensor_msgs/msg/PointField", name=name, offset=kind.fields[name][1],
                 datatype=types[kind.fields[name][0].str[1:]], count=1)
        for name in kind.names
    ]  # fmt: skip

    def cloud_of(fields):
        cloud = ros.make(
            ros_messages.CLOUD, header=ros.header(), height=1, width=3, fields=fields, is_bigendian=False,
            point_step=24, row_step=72, data=np.frombuffer(points.tobytes(), np.uint8), is_dense=False,
        )  # fmt: skip
        return ros.sent(cloud, ros_messages.CLOUD)

    cloud = cloud_of(fields)
    assert ros_messages.points(cloud, 3).tolist() == [[1, 4, 7], [3, 6, 9]]
    np.testing.assert_allclose(ros_messages.points(cloud)[1], [3, 6, 9, 3, 0.7], rtol=1e-6)
    with pytest.raises(BadInput, match="and 6 in all"):
        ros_messages.points(cloud, 6)
    for row_step in (60, 48):  # no whole points, and fewer than the cloud says it has
        cloud.row_step = row_step
        with pytest.raises(BadInput, match="does not hold together"):
            ros_messages.points(cloud)
    fields[-1].count = 2
    assert ros_messages.points(cloud_of(fields), 3).shape == (2, 3)
    with pytest.raises(BadInput, match="'intensity' has 2 numbers"):
        ros_messages.points(cloud_of(fields))


def test_the_deadline_counts_from_the_stamp(ros):
    for age_ms, left in ((10, (23.0, True)), (50, (-17.0, True)), (-5, (33.0, False)), (60_000, (33.0, False))):
        message = ros.image("mono8", b"\0", (1, 1), at_ns=NOW_NS - age_ms * 10**6)
        assert ros_messages.left_ms(message, NOW_NS, 33.0) == left
    assert ros_messages.left_ms(ros.image("mono8", b"\0", (1, 1), at_ns=0), NOW_NS, 33.0) == (33.0, False)


def test_detections_and_outputs_are_messages_that_others_read():
    store, types = ros_messages.bag_types()
    header = ros_messages.header_of(types, Ros("HUMBLE").image("mono8", b"\0", (1, 1)))
    array = ros_messages.detection_array(types, header, [Box(20.0, 40.0, 10.0, 30.0, "person", 0.75)])
    read = store.deserialize_cdr(bytes(store.serialize_cdr(array, ros_messages.DETECTIONS)), ros_messages.DETECTIONS)
    (found,) = read.detections
    assert read.header == header and read.header.stamp.sec == NOW_NS // 10**9
    assert (found.bbox.center.position.x, found.bbox.center.position.y, found.bbox.size_x) == (20, 40, 10)
    assert (found.results[0].hypothesis.class_id, found.results[0].hypothesis.score) == ("person", 0.75)
    for value in (np.float32([[1, 2]]), np.int64([3]), np.uint8([4]), np.array([True]), np.float16([0.5])):
        kind, message = ros_messages.output_message(types, value)
        read = store.deserialize_cdr(bytes(store.serialize_cdr(message, kind)), kind)
        assert read.data.tolist() == value.reshape(-1).tolist()
        assert [axis.size for axis in read.layout.dim] == list(value.shape)
    for text, told in (("hello", "hello"), (np.array(["a", "é"], object), '["a", "é"]'), (np.array(["a"]), '["a"]')):
        kind, message = ros_messages.output_message(types, text)
        assert store.deserialize_cdr(bytes(store.serialize_cdr(message, kind)), kind).data == told
