"""Messages of ROS 2 to arrays, and answers to messages: what ``edgeserve front bag`` and the node in ``examples/ros2``
share.

Knows the fields of the messages (ROS Foxy to Jazzy) and numpy; imports nothing of ROS. ``types`` is what makes a
message of a name such as ``"std_msgs/msg/Header"`` from its fields: the classes of rclpy, or those of the package
``rosbags``.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.image import ImageForm, to_rgb
from edgeserve.errors import BadInput
from edgeserve.front.images import check_pixels, converted, opened, upright
from edgeserve.fronts.detections import Box
from edgeserve.units import NS_PER_S, ns_to_ms

IMAGE, COMPRESSED, CLOUD = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/PointCloud2"
DETECTIONS = "vision_msgs/msg/Detection2DArray"

CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "8UC1": 1, "8UC3": 3}
"""Encodings of a byte per channel -> channels."""

WIDE = {"mono16": "u2", "16UC1": "u2", "32FC1": "f4"}
"""Encodings of one wider channel -> numpy's kind. ``16UC1`` and ``32FC1`` are depths, in mm and m (REP 118)."""

PACKED = {"yuv422": 1, "uyvy": 1, "yuv422_yuy2": 0, "yuyv": 0}
"""Encodings of two bytes a pixel -> where the brightness stands."""

PLANAR = {"nv12": 0, "nv21": 1}
"""Brightness, then colour differences of every second row and column -> where the blue one stands."""

BAYER = {"bayer_rggb8": (0, 3), "bayer_bggr8": (3, 0), "bayer_gbrg8": (2, 1), "bayer_grbg8": (1, 2)}
"""Encodings of a colour a pixel -> where red and blue stand among the four of a block."""

ENCODINGS = (*CHANNELS, *WIDE, *PACKED, *PLANAR, *BAYER)

POINT_KINDS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
"""``sensor_msgs/PointField``'s datatypes -> numpy's."""

AXES = ("x", "y", "z")

FIELDS_MAX = 64
"""The most fields of a cloud's point: lidars have about ten."""

COMPRESSED_FORMATS = ("JPEG", "PNG")

CLOCKS_APART_NS = 10 * NS_PER_S
"""A stamp that is further back is of another clock (a simulation's, or one since boot)."""

VISION_MSGS = {
    "Point2D": "float64 x\nfloat64 y\n",
    "Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
    "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
    "ObjectHypothesis": "string class_id\nfloat64 score\n",
    "ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n",
    "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox2D bbox\nstring id\n",
    "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
}
"""Fields of ``vision_msgs`` (Humble and later), which ``rosbags`` does not bring."""

Types = Callable[[str], Any]


# --- messages in ------------------------------------------------------------------------------------------------------


def array_of(message: Any, kind: str, columns: int = -1) -> NDArray[Any]:
    """A message of type ``kind`` as :func:`pixels`, :func:`decompressed` or :func:`points` read it."""
    if kind == CLOUD:
        return points(message, columns)
    return decompressed(message) if kind == COMPRESSED else pixels(message)


def pixels(message: Any) -> NDArray[Any]:
    """``sensor_msgs/Image`` as uint8 [height, width, 3], red first; a depth image as it is, [height, width] uint16 (mm)
    or float32 (m). Raises :class:`BadInput` for another encoding, or for data that does not belong to the size."""
    encoding, height, width = message.encoding, message.height, message.width
    if encoding not in ENCODINGS:
        raise BadInput(f"encoding {encoding!r} is not read; expected one of {', '.join(ENCODINGS)}")
    kind = np.dtype(WIDE.get(encoding, "u1")).newbyteorder(">" if message.is_bigendian else "<")
    channels = CHANNELS.get(encoding, 2 if encoding in PACKED else 1)
    rows = height * 3 // 2 if encoding in PLANAR else height
    least = width * channels * kind.itemsize
    step, data = message.step or least, np.frombuffer(message.data, np.uint8)
    if width < 1 or height < 1:  # no pixel, yet as many rows or columns as it likes
        raise BadInput(f"an image of {width} x {height}: expected a pixel at least")
    odd = (encoding in PLANAR or encoding in BAYER) and (height % 2 or width % 2) or encoding in PACKED and width % 2
    if step < least or len(data) < rows * step or odd:
        raise BadInput(
            f"an image of {width} x {height} {encoding} with rows of {step} bytes cannot have {len(data)} bytes"
        )
    lines = np.ascontiguousarray(data[: rows * step].reshape(rows, step)[:, :least])
    if encoding in WIDE:
        values = lines.view(kind).astype(kind.newbyteorder("="))
        if encoding == "mono16":
            return _grey((values >> 8).astype(np.uint8))
        return values
    if encoding in PACKED:
        return _packed(lines.reshape(height, width // 2, 4), PACKED[encoding])
    if encoding in PLANAR:
        return _planar(lines, height, width, PLANAR[encoding])
    if encoding in BAYER:
        return _mosaic(lines, *BAYER[encoding])
    if channels == 1:
        return _grey(lines)
    colours = lines.reshape(height, width, channels)[:, :, :3]
    return np.ascontiguousarray(colours[:, :, ::-1] if encoding.startswith("bgr") else colours)


def _grey(values: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(values[:, :, None], 3, axis=2)


def _coloured(y: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> NDArray[Any]:
    """Planes of one size, limited range of BT.601: what cameras' drivers and OpenCV mean."""
    matrix, offset = to_rgb(ImageForm())
    planes = np.stack([y, u, v], axis=2).astype(np.float32)
    rgb = planes @ matrix.T.astype(np.float32) + offset.astype(np.float32)
    found: NDArray[Any] = np.clip(np.rint(rgb), 0, 255).astype(np.uint8)
    return found


def _packed(pairs: NDArray[np.uint8], bright: int) -> NDArray[np.uint8]:
    height, half, _ = pairs.shape
    y = pairs[:, :, bright::2].reshape(height, 2 * half)
    u, v = (np.repeat(pairs[:, :, 1 - bright + 2 * at], 2, axis=1) for at in (0, 1))
    return _coloured(y, u, v)


def _planar(lines: NDArray[np.uint8], height: int, width: int, blue: int) -> NDArray[np.uint8]:
    both = lines[height:].reshape(height // 2, width // 2, 2)
    u, v = (both[:, :, at].repeat(2, axis=0).repeat(2, axis=1) for at in (blue, 1 - blue))
    return _coloured(lines[:height], u, v)


def _mosaic(lines: NDArray[np.uint8], red: int, blue: int) -> NDArray[np.uint8]:
    """Each block of 2 x 2 as one colour: half the sharpness, and no made-up edges."""
    four = [lines[at // 2 :: 2, at % 2 :: 2] for at in range(4)]
    greens = [four[at].astype(np.uint16) for at in range(4) if at not in (red, blue)]
    green = ((greens[0] + greens[1]) // 2).astype(np.uint8)
    found: NDArray[np.uint8] = np.stack([four[red], green, four[blue]], axis=2).repeat(2, axis=0).repeat(2, axis=1)
    return found


def decompressed(message: Any) -> NDArray[np.uint8]:
    """``sensor_msgs/CompressedImage`` (JPEG or PNG) as uint8 [height, width, 3]. Raises :class:`BadInput`."""
    if "compressedDepth" in message.format:
        raise BadInput(
            f"format {message.format[:80]!r} is not read; expected jpeg or png, or a topic of plain depth images"
        )
    failed = f"a compressed image of format {message.format[:80]!r} cannot be read"
    with opened(bytes(message.data), COMPRESSED_FORMATS, failed) as image:
        check_pixels(*image.size)
        return np.ascontiguousarray(upright(np.asarray(converted(image, "RGB", failed)), image))


def points(message: Any, columns: int = -1) -> NDArray[np.float32]:
    """``sensor_msgs/PointCloud2`` as float32 [points, columns]: x, y, z, then the other fields in their order (-1:
    all); points without a place (not a number) are left out. Raises :class:`BadInput`."""
    fields = {field.name: field for field in message.fields}
    names = [*AXES, *(name for name in fields if name not in AXES)]
    names = names[:columns] if columns > 0 else names
    if len(names) > FIELDS_MAX:  # each may lie at the same bytes of a point
        raise BadInput(f"a cloud of {len(names)} fields, at most {FIELDS_MAX} are read")
    lacking = [name for name in AXES if name not in fields]
    if lacking or len(names) < columns:
        raise BadInput(
            f"a cloud of the fields {', '.join(fields)}; expected x, y, z" + (f" and {columns} in all" * (columns > 0))
        )
    for name in names:
        if fields[name].count > 1:  # one of them would be read
            raise BadInput(f"a cloud whose field {name!r} has {fields[name].count} numbers a point; expected one")
    order = ">" if message.is_bigendian else "<"
    try:
        point = np.dtype(
            {
                "names": names,
                "formats": [order + POINT_KINDS[fields[name].datatype] for name in names],
                "offsets": [fields[name].offset for name in names],
                "itemsize": message.point_step,
            }
        )
        line = message.row_step or message.width * message.point_step
        if line < message.width * message.point_step:
            raise ValueError(f"rows of {line} bytes, a point has {message.point_step}")
        data = np.frombuffer(message.data, np.uint8)[: message.height * line].reshape(message.height, line)
        whole = np.ascontiguousarray(data[:, : message.width * message.point_step]).view(point).reshape(-1)
    except (ValueError, KeyError) as error:
        size = f"{message.width} x {message.height}"
        raise BadInput(f"a cloud of {size} points does not hold together: {error}") from None
    table = np.stack([whole[name].astype(np.float32) for name in names], axis=1)
    found: NDArray[np.float32] = table[np.isfinite(table[:, :3]).all(axis=1)]
    return found


def stamp_ns(message: Any) -> int:
    """When it was taken, in nanoseconds of the ROS clock; 0 where the driver says nothing."""
    stamp = message.header.stamp
    return int(stamp.sec) * NS_PER_S + int(getattr(stamp, "nanosec", 0))


def left_ms(message: Any, now_ns: int, slo_ms: float) -> Tuple[float, bool]:
    """The milliseconds left for the answer, and whether the message's stamp set them. A stamp that is missing, lies in
    the future or more than :data:`CLOCKS_APART_NS` back (another clock) counts as now."""
    taken_ns = stamp_ns(message)
    if not 0 < taken_ns <= now_ns <= taken_ns + CLOCKS_APART_NS:
        return slo_ms, False
    return slo_ms - ns_to_ms(now_ns - taken_ns), True


# --- messages out -----------------------------------------------------------------------------------------------------


def detection_array(types: Types, header: Any, boxes: Sequence[Box]) -> Any:
    """``vision_msgs/Detection2DArray`` with the image's header, so that others can match the two."""
    return types(DETECTIONS)(header=header, detections=[_detection(types, header, box) for box in boxes])


def _detection(types: Types, header: Any, box: Box) -> Any:
    point, pose, rotation = (types(f"geometry_msgs/msg/{name}") for name in ("Point", "Pose", "Quaternion"))
    place = types("geometry_msgs/msg/PoseWithCovariance")(
        pose=pose(position=point(x=0.0, y=0.0, z=0.0), orientation=rotation(x=0.0, y=0.0, z=0.0, w=1.0)),
        covariance=np.zeros(36),
    )
    bounds, guess = types("vision_msgs/msg/BoundingBox2D"), types("vision_msgs/msg/ObjectHypothesisWithPose")
    whole: Dict[str, Any] = {"header": header}
    if "hypothesis" in fields_of(guess):
        hypothesis = types("vision_msgs/msg/ObjectHypothesis")(class_id=box.label, score=box.score)
        results = [guess(hypothesis=hypothesis, pose=place)]
        centre = types("vision_msgs/msg/Pose2D")(position=types("vision_msgs/msg/Point2D")(x=box.x, y=box.y), theta=0.0)
        whole["id"] = ""
    else:  # Foxy
        results = [guess(id=box.label, score=box.score, pose=place)]
        centre = types("geometry_msgs/msg/Pose2D")(x=box.x, y=box.y, theta=0.0)
    where = bounds(center=centre, size_x=box.width, size_y=box.height)
    return types("vision_msgs/msg/Detection2D")(results=results, bbox=where, **whole)


def fields_of(kind: Any) -> Sequence[str]:
    """The fields of a message's class: of rclpy, or a dataclass of ``rosbags``."""
    asked = getattr(kind, "get_fields_and_field_types", None)
    return list(asked() if asked is not None else kind.__dataclass_fields__)


def output_message(types: Types, value: Any) -> Tuple[str, Any]:
    """An output that is no detections, as a message's type and the message: ``std_msgs/String`` of a text, or of a JSON
    list of texts, else ``std_msgs/Float32MultiArray`` or one of its kind."""
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        text = value if isinstance(value, str) else json.dumps(array.tolist(), ensure_ascii=False)
        return "std_msgs/msg/String", types("std_msgs/msg/String")(data=text)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    name = "UInt" if array.dtype.kind == "u" else "Int" if array.dtype.kind == "i" else "Float"
    bits = 8 * array.dtype.itemsize
    if name == "Float" and bits not in (32, 64):
        array, bits = array.astype(np.float32), 32
    kind = f"std_msgs/msg/{name}{bits}MultiArray"
    dimension = types("std_msgs/msg/MultiArrayDimension")
    strides = [int(np.prod(array.shape[at:], dtype=np.int64)) for at in range(array.ndim)]
    axes = [dimension(label="", size=size, stride=stride) for size, stride in zip(array.shape, strides)]
    layout = types("std_msgs/msg/MultiArrayLayout")(dim=axes, data_offset=0)
    return kind, types(kind)(layout=layout, data=np.ascontiguousarray(array).reshape(-1))


def header_of(types: Types, message: Any) -> Any:
    """The header of a message as one of ``types``: bags of other distributions have other classes."""
    nanoseconds = stamp_ns(message)
    stamp = types("builtin_interfaces/msg/Time")(sec=nanoseconds // NS_PER_S, nanosec=nanoseconds % NS_PER_S)
    return types("std_msgs/msg/Header")(stamp=stamp, frame_id=message.header.frame_id)


def bag_types() -> Tuple[Any, Types]:
    """The store of ``rosbags`` with ``vision_msgs``, which serialises, and what makes its messages. Raises
    :class:`ImportError` where the package is missing."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    found: Dict[str, Any] = {}
    for name, fields in VISION_MSGS.items():
        found.update(get_types_from_msg(fields, f"vision_msgs/msg/{name}"))
    store.register(found)
    return store, store.types.__getitem__
