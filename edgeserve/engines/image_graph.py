"""The preparation of ``options.image`` as nodes in front of an ONNX network: one function for every engine that reads
ONNX files. What the nodes compute is :func:`edgeserve.engines.image.in_numpy`'s."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Optional, Tuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeserve.engines.image import ImageForm, fitted, frame_shape, inside, to_rgb
from edgeserve.errors import EngineError

PREFIX = "edgeserve.image/"
"""The prefix of the names of nodes and values, which no exporter's network has."""

OPSET_MIN = 11
"""The first whose Resize says where a pixel's centre is."""

SHRINKS_MIN = 5
"""Pixels of a frame for one that is left, from which frames are widened last: 1080p to 224x224 took 0.8 ms of processor
time, 6.3 ms widened first; 720p to 640x640 6.7 and 4.3 ms (ONNX Runtime 1.32 on x86-64, one thread)."""

IR_VERSION = 8
"""The IR version of the preparation alone: the oldest supported ONNX Runtime reads it."""

BYTES_MAX = (1 << 31) - 1
"""The most bytes of a protobuf message. A network for images is far smaller."""


def with_image(path: str, form: ImageForm, where: str, on_cpu: bool = False) -> Tuple[bytes, ImageForm]:
    """The network of ``path`` with its preparation in front, and the form completed by what the network says. The image
    input has the same name and takes uint8 frames.

    ``on_cpu``: frames of one known size may stay uint8 until the end where that takes less time on ONNX Runtime's CPU
    provider; no other need have such operators. Raises :class:`EngineError`
    where the network cannot take the preparation."""
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf raises a type of its own, a missing weights file OSError
        raise EngineError(f"{where}: {path} cannot be read as an ONNX model: {error}") from error
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    if opset < OPSET_MIN:
        raise EngineError(
            f"{where}: options.image needs a network of opset {OPSET_MIN} or later, and {os.path.basename(path)} has "
            f"{opset}; export it again, or convert it with onnx.version_converter"
        )
    form = fitted(form, _inputs_of(model.graph), where)
    port = next(item for item in model.graph.input if item.name == form.input)
    batch = port.type.tensor_type.shape.dim[0]
    kind = port.type.tensor_type.elem_type
    prepared = f"{PREFIX}{form.input}"
    _rename(model.graph, form.input, prepared)
    graph = _ImageNodes(opset)
    _prepare(graph, form, on_cpu, prepared, kind)
    for node in reversed(graph.nodes):
        model.graph.node.insert(0, node)
    model.graph.initializer.extend(graph.weights)
    port.CopyFrom(_frames(form, batch))
    if model.ByteSize() > BYTES_MAX:
        raise EngineError(
            f"{where}: options.image: {path} is larger than 2 GB; prepare its frames in a node of its own"
        )
    return model.SerializeToString(), form


def alone(form: ImageForm, on_cpu: bool = False) -> bytes:
    """The preparation without a network, for a form that :func:`fitted` completed: frames in, images out."""
    graph, prepared = _ImageNodes(13), f"{PREFIX}{form.input}"
    _prepare(graph, form, on_cpu, prepared, TensorProto.FLOAT)
    made = helper.make_graph(
        graph.nodes,
        "image",
        [_frames(form, None)],
        [helper.make_tensor_value_info(prepared, TensorProto.FLOAT, ["N", None, None, None])],
        graph.weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = IR_VERSION
    data: bytes = model.SerializeToString()
    return data


class _ImageNodes:
    """Nodes and constants, as they are added."""

    def __init__(self, opset: int) -> None:
        self.nodes: List[Any] = []
        self.weights: List[Any] = []
        self._opset = opset

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of its output."""
        name = f"{PREFIX}{len(self.nodes)}.{operator}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def ints(self, *values: int) -> str:
        """A constant list of whole numbers."""
        return self.array(np.array(values, np.int64))

    def array(self, value: Any) -> str:
        """A constant."""
        name = f"{PREFIX}constant.{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def resize(self, image: str, scales: str = "", sizes: str = "") -> str:
        """Bilinear, as :func:`edgeserve.engines.image.resized`, by constant scales or by the sizes of all axes."""
        none = "" if self._opset >= 13 else self.array(np.zeros(0, np.float32))  # must be there before
        inputs = [image, none, scales or none, *([sizes] if sizes else [])]
        return self.add("Resize", *inputs, mode="linear", coordinate_transformation_mode="half_pixel")


def _prepare(graph: _ImageNodes, form: ImageForm, on_cpu: bool, to: str, kind: int) -> None:
    """Add the nodes that turn frames into the network's input."""
    late = on_cpu and _widens_late(form)
    frames = form.input if late else graph.add("Cast", form.input, to=TensorProto.FLOAT)
    value, pads = _resized_from(graph, form, frames) if form.frame_size else _resized_any(graph, form, frames)
    # ONNX Runtime cuts the fraction of uint8: half a grey level on average where pixels lie between others.
    short = 0.5 if late and not _is_exact(form) else 0.0
    shift = (np.array(form.mean) - short) / form.std
    if form.is_yuv:
        matrix, offset = to_rgb(form)
        weights = graph.array(matrix.astype(np.float32).reshape(3, 3, 1, 1))
        value = graph.add("Conv", value, weights, graph.array(offset.astype(np.float32)))
        value = graph.add("Clip", value, graph.array(np.float32(0)), graph.array(np.float32(255)))
    elif form.format != form.color:
        value = graph.add("Gather", value, graph.ints(2, 1, 0), axis=1)
    if pads and late and not short:
        value = graph.add("Pad", value, pads, graph.array(np.uint8(form.border)))
    if late and not shift.any() and len(set(form.std)) == 1:  # widened and scaled in one pass
        value = graph.add("DequantizeLinear", value, graph.array(np.float32(1 / form.std[0])))
    else:
        if late:
            value = graph.add("Cast", value, to=TensorProto.FLOAT)
        if pads and not (late and not short):
            value = graph.add("Pad", value, pads, graph.array(np.float32(form.border - short)))
        value = graph.add("Mul", value, graph.array(_per_colour(1 / np.array(form.std))))
        if shift.any():
            value = graph.add("Sub", value, graph.array(_per_colour(shift)))
    if form.layout == "nhwc":
        value = graph.add("Transpose", value, perm=[0, 2, 3, 1])
    if kind != TensorProto.FLOAT:
        graph.add("Cast", value, to=kind)
    graph.nodes[-1].output[0] = to


def _widens_late(form: ImageForm) -> bool:
    """True if frames are widened to floats last: frames of the network's size, where it always pays, and frames that
    become so much smaller that this saves more than uint8's slower Resize costs."""
    if form.is_yuv or not form.frame_size:
        return False
    height, width = form.frame_size
    rows, columns, _, _ = inside(form, (height, width))
    return (height, width) == (rows, columns) or height * width >= SHRINKS_MIN * rows * columns


def _is_exact(form: ImageForm) -> bool:
    """True if each pixel's centre falls on that of one of the frame's: lengths an odd number of times as large."""
    lengths = zip(form.frame_size, inside(form, (form.frame_size[0], form.frame_size[1])))
    return all(length % wanted == 0 and length // wanted % 2 == 1 for length, wanted in lengths)


def _per_colour(values: Any) -> Any:
    """The values per colour; one value for all colours as a number, which costs less."""
    wide = values.astype(np.float32)
    return wide[0] if (wide == wide[0]).all() else wide.reshape(1, 3, 1, 1)


def _planes(graph: _ImageNodes, form: ImageForm, frames: str) -> List[str]:
    """Colours, or Y and the smaller U and V, channels first."""
    if not form.is_yuv:
        return [graph.add("Transpose", frames, perm=[0, 3, 1, 2])]
    height, width = form.frame_size
    if form.format == "nv12":
        axis = graph.ints(1)
        luma = graph.add("Slice", frames, graph.ints(0), graph.ints(height), axis)
        chroma = graph.add("Slice", frames, graph.ints(height), graph.ints(height * 3 // 2), axis)
    else:
        first = 0 if form.format == "yuyv" else 1
        luma = graph.add("Gather", frames, graph.array(np.int64(first)), axis=3)
        chroma = graph.add("Gather", frames, graph.array(np.int64(1 - first)), axis=3)
    rows = height // 2 if form.format == "nv12" else height
    luma = graph.add("Reshape", luma, graph.ints(-1, 1, height, width))
    chroma = graph.add("Reshape", chroma, graph.ints(-1, rows, width // 2, 2))
    return [luma, graph.add("Transpose", chroma, perm=[0, 3, 1, 2])]


def _resized_from(graph: _ImageNodes, form: ImageForm, frames: str) -> Tuple[str, str]:
    """Frames of one known size at the size that they have in the network's image, and how they are padded."""
    height, width = form.frame_size
    rows, columns, top, left = inside(form, (height, width))
    sizes = [(height, width), (height // 2 if form.format == "nv12" else height, width // 2)]
    if _is_exact(form) and not form.is_yuv:  # every third pixel costs half as much as to resize (1080p to 640x360)
        steps = height // rows, width // columns
        starts = graph.ints(*(step // 2 for step in steps))
        frames = graph.add("Slice", frames, starts, graph.ints(height, width), graph.ints(1, 2), graph.ints(*steps))
        sizes = [(rows, columns)]
    found = []
    for plane, size in zip(_planes(graph, form, frames), sizes):
        scales = np.array([1, 1, _scale(size[0], rows), _scale(size[1], columns)], np.float32)
        found.append(plane if size == (rows, columns) else graph.resize(plane, scales=graph.array(scales)))
    value = graph.add("Concat", *found, axis=1) if len(found) > 1 else found[0]
    below, right = form.size[0] - rows - top, form.size[1] - columns - left
    return value, graph.ints(0, 0, top, left, 0, 0, below, right) if top + left + below + right else ""


def _scale(length: int, wanted: int) -> np.float32:
    """The scale that makes ``wanted`` of ``length``, where the length is cut to a whole number."""
    scale = np.float32(wanted / length)
    return scale if float(scale) * length >= wanted else np.nextafter(scale, np.float32(1 << 16))


def _resized_any(graph: _ImageNodes, form: ImageForm, frames: str) -> Tuple[str, str]:
    """Frames of any size at the size that they have in the network's image, and how they are padded."""
    (image,) = _planes(graph, form, frames)
    shape = graph.add("Shape", image)
    outer, wanted = graph.add("Gather", shape, graph.ints(0, 1)), graph.ints(*form.size)
    if form.border < 0:
        return graph.resize(image, sizes=graph.add("Concat", outer, wanted, axis=0)), ""
    frame = graph.add("Cast", graph.add("Gather", shape, graph.ints(2, 3)), to=TensorProto.FLOAT)
    share = graph.add("ReduceMin", graph.add("Div", graph.array(np.array(form.size, np.float32)), frame))
    lengths = graph.add("Max", graph.add("Round", graph.add("Mul", frame, share)), graph.array(np.float32(1)))
    inner = graph.add("Cast", lengths, to=TensorProto.INT64)
    value = graph.resize(image, sizes=graph.add("Concat", outer, inner, axis=0))
    rest = graph.add("Sub", wanted, inner)
    first, none = graph.add("Div", rest, graph.ints(2)), graph.ints(0, 0)
    return value, graph.add("Concat", none, first, none, graph.add("Sub", rest, first), axis=0)


def _frames(form: ImageForm, batch: Any) -> Any:
    """The input that takes frames; ``batch`` is the network's own axis."""
    axes: Tuple[Any, ...] = frame_shape(form) if form.frame_size else ("frame_height", "frame_width", 3)
    info = helper.make_tensor_value_info(form.input, TensorProto.UINT8, ["N", *axes])
    if batch is not None:
        info.type.tensor_type.shape.dim[0].CopyFrom(batch)
    return info


def _inputs_of(graph: Any) -> List[Tuple[str, Any, Tuple[Optional[int], ...]]]:
    """Name, dtype and lengths of what the network must be given. Weights may stand among the inputs."""
    weights = {item.name for item in graph.initializer}
    found = []
    for port in graph.input:
        kind = port.type.tensor_type
        if port.name in weights or not port.type.HasField("tensor_type"):
            continue
        dims = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
        found.append((port.name, helper.tensor_dtype_to_np_dtype(kind.elem_type), dims))
    return found


def _rename(graph: Any, old: str, new: str) -> None:
    """Have every node that reads ``old`` read ``new``, in inner graphs too where no value of that name hides it."""
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new
        for inner in _inner(node):
            if old not in {item.name for item in (*inner.input, *inner.initializer)}:
                _rename(inner, old, new)


def _inner(node: Any) -> Iterable[Any]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs
