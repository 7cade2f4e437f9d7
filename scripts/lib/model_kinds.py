"""Small model files of many kinds: the names, types and axes of files that people have, with graphs of a few nodes.

Only what ``edgeserve init`` looks at is true to the original: inputs, outputs, their axes, and what of an output
depends on what. Nothing is downloaded.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 13, 8  # what onnxruntime 1.19 loads, the last for Python 3.8
F32, F16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
I64, I32, U8, BOOL, TEXT = TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL, TensorProto.STRING

Axes = Sequence[Any]
Value = Tuple[str, int, Axes]


class Kind(NamedTuple):
    """A kind of model file: what it is, of which file of the world its axes are, and how to write one. ``arguments``:
    further arguments of ``edgeserve init``. ``about``: the heading that it stands under."""

    about: str
    name: str
    of: str
    write: Callable[[str], None]
    ending: str = ".onnx"
    arguments: Tuple[str, ...] = ()


class Graph:
    """A graph while it is built: each method adds a node and returns the name of its result."""

    def __init__(self, *inputs: Value) -> None:
        self.nodes: List[Any] = []
        self.weights: List[Any] = []
        self._inputs = list(inputs)
        self.metadata: Dict[str, str] = {}
        self.opsets = {"": OPSET}

    def node(self, operator: str, *inputs: str, domain: str = "", outputs: Sequence[str] = (), **settings: Any) -> str:
        made = list(outputs) or [f"_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(operator, list(inputs), made, domain=domain, **settings))
        if domain:
            self.opsets[domain] = 2
        return made[0]

    def weight(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def axes(self, *numbers: int) -> str:
        return self.weight(numbers, np.int64)

    def dense(self, value: str, size: int, into: int) -> str:
        rows = np.linspace(-1, 1, size * into, dtype=np.float32).reshape(size, into)
        return self.node("MatMul", value, self.weight(rows))

    def cast(self, value: str, to: int = F32) -> str:
        return self.node("Cast", value, to=to)

    def mean(self, value: str, *axes: int, keep: int = 0) -> str:
        return self.node("ReduceMean", value, axes=list(axes), keepdims=keep)

    def total(self, value: str, *axes: int, keep: int = 0) -> str:
        return self.node("ReduceSum", value, *([self.axes(*axes)] if axes else []), keepdims=keep)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.node("Unsqueeze", value, self.axes(*axes))

    def reshape(self, value: str, *shape: int) -> str:
        return self.node("Reshape", value, self.axes(*shape))

    def add(self, one: str, other: str) -> str:
        return self.node("Add", one, other)

    def mul(self, one: str, other: str) -> str:
        return self.node("Mul", one, other)

    def save(self, path: str, *outputs: Tuple[str, str, int, Optional[Axes]]) -> None:
        """``outputs``: (name, the result that it is, type, axes)."""
        for name, result, _, _ in outputs:
            self.nodes.append(helper.make_node("Identity", [result], [name]))
        told = [helper.make_tensor_value_info(name, dtype, axes) for name, _, dtype, axes in outputs]
        self.write(path, told)

    def write(self, path: str, outputs: Sequence[Any]) -> None:
        inputs = [helper.make_tensor_value_info(name, dtype, list(axes)) for name, dtype, axes in self._inputs]
        graph = helper.make_graph(self.nodes, "g", inputs, list(outputs), self.weights)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        if self.metadata:
            helper.set_model_props(model, self.metadata)
        onnx.save(model, path)


KINDS: List[Kind] = []


def kind(about: str, name: str, of: str = "", ending: str = ".onnx", arguments: Sequence[str] = ()) -> Any:
    """Have a function write one of these files."""

    def add(write: Callable[[str], None]) -> Callable[[str], None]:
        KINDS.append(Kind(about, name, of, write, ending, tuple(arguments)))
        return write

    return add


# --- images -----------------------------------------------------------------------------------------------------------

IMAGES = "Images"


def classifier(
    path: str, name: str, axes: Axes, answer: Axes, output: str = "logits", channel_last: bool = False
) -> None:
    graph = Graph((name, F32, axes))
    pooled = graph.mean(name, *((1, 2) if channel_last else (2, 3)))
    graph.save(path, (output, graph.dense(pooled, 3, int(answer[1])), F32, answer))


@kind(IMAGES, "classifier, batch open", "torchvision ResNet")
def _resnet(path: str) -> None:
    classifier(path, "data", ["N", 3, 32, 32], ["N", 10])


@kind(IMAGES, "classifier, batch fixed at 1", "ONNX model zoo")
def _zoo(path: str) -> None:
    classifier(path, "data", [1, 3, 32, 32], [1, 10])


@kind(IMAGES, "classifier, batch fixed at 4", "an export for one board")
def _four(path: str) -> None:
    classifier(path, "data", [4, 3, 32, 32], [4, 10])


@kind(IMAGES, "classifier, channels last, axes named by a converter", "tf2onnx MobileNet")
def _mobilenet(path: str) -> None:
    classifier(path, "input_1:0", ["unk__617", 32, 32, 3], ["unk__618", 10], "predictions", channel_last=True)


@kind(IMAGES, "detector with its image's size in the metadata", "YOLOv8")
def _yolo(path: str) -> None:
    graph = Graph(("images", F32, ["batch", 3, "height", "width"]))
    graph.metadata["imgsz"] = "[64, 96]"
    pooled = graph.node("AveragePool", "images", kernel_shape=[8, 8], strides=[8, 8])
    graph.save(path, ("output0", graph.reshape(pooled, 0, 3, -1), F32, ["batch", 3, "anchors"]))


@kind(IMAGES, "detector, fixed", "YOLOv5 export")
def _yolo_fixed(path: str) -> None:
    graph = Graph(("images", F32, [1, 3, 64, 64]))
    pooled = graph.node("AveragePool", "images", kernel_shape=[8, 8], strides=[8, 8])
    graph.save(path, ("output0", graph.reshape(pooled, 1, 3, 64), F32, [1, 3, 64]))


@kind(IMAGES, "detector with NMS, a table for each image", "YOLOv7 end2end, TensorRT's plugin")
def _nms_padded(path: str) -> None:
    graph = Graph(("images", F32, ["batch", 3, 64, 64]))
    rows = graph.reshape(graph.node("AveragePool", "images", kernel_shape=[8, 8], strides=[8, 8]), 0, 48, 4)
    scores = graph.mean(rows, 2)
    count = graph.cast(graph.total(graph.cast(graph.node("Greater", scores, graph.weight(0.5))), 1, keep=1), I32)
    graph.save(
        path,
        ("num_dets", count, I32, ["batch", 1]),
        ("det_boxes", rows, F32, ["batch", 48, 4]),
        ("det_scores", scores, F32, ["batch", 48]),
    )


@kind(IMAGES, "detector with NMS, one list for the whole batch", "YOLO with NMS in the graph")
def _nms_list(path: str) -> None:
    graph = Graph(("images", F32, ["batch", 3, 64, 64]))
    rows = graph.reshape(graph.node("AveragePool", "images", kernel_shape=[8, 8], strides=[8, 8]), -1, 6)
    kept = graph.node("NonZero", graph.node("Greater", graph.mean(rows, 1), graph.weight(0.5)))
    graph.save(path, ("output", graph.node("Gather", rows, graph.reshape(kept, -1), axis=0), F32, ["num_dets", 6]))


@kind(IMAGES, "detector of bytes, channels last", "TensorFlow SSD")
def _ssd(path: str) -> None:
    graph = Graph(("input_tensor:0", U8, [1, "height", "width", 3]))
    pooled = graph.mean(graph.cast("input_tensor:0"), 1, 2)
    boxes = graph.reshape(graph.dense(pooled, 3, 40), 1, 10, 4)
    graph.save(
        path,
        ("detection_boxes", boxes, F32, [1, 10, 4]),
        ("num_detections", graph.total(graph.mean(boxes, 2), 1), F32, [1]),
    )


@kind(IMAGES, "detector with the size of each image beside it", "RT-DETR")
def _rtdetr(path: str) -> None:
    graph = Graph(("images", F32, ["N", 3, 64, 64]), ("orig_target_sizes", I64, ["N", 2]))
    boxes = graph.reshape(graph.dense(graph.mean("images", 2, 3), 3, 40), -1, 20, 2)
    boxes = graph.mul(boxes, graph.unsqueeze(graph.cast("orig_target_sizes"), 1))
    graph.save(path, ("boxes", boxes, F32, ["N", 20, 2]), ("scores", graph.mean(boxes, 2), F32, ["N", 20]))


@kind(IMAGES, "detector with a scale for each image, one list", "PaddleDetection")
def _paddle(path: str) -> None:
    graph = Graph(("image", F32, [1, 3, 64, 64]), ("scale_factor", F32, [1, 2]), ("im_shape", F32, [1, 2]))
    boxes = graph.reshape(graph.dense(graph.mean("image", 2, 3), 3, 40), 20, 2)
    boxes = graph.add(graph.mul(boxes, "scale_factor"), "im_shape")
    graph.save(path, ("multiclass_nms3_0.tmp_0", boxes, F32, ["num_boxes", 2]))


@kind(IMAGES, "segmentation, any size", "DeepLab, U-Net")
def _segmentation(path: str) -> None:
    graph = Graph(("x", F32, ["batch", 3, "height", "width"]))
    graph.save(path, ("mask", graph.mean("x", 1, keep=1), F32, ["batch", 1, "height", "width"]))


@kind(IMAGES, "several maps of one image", "U-2-Net")
def _u2net(path: str) -> None:
    graph = Graph(("input.1", F32, ["batch", 3, 32, 32]))
    mean = graph.mean("input.1", 1, keep=1)
    maps = [
        (str(1959 + place), graph.mul(mean, graph.weight(place + 1.0)), F32, ["batch", 1, 32, 32]) for place in range(3)
    ]
    graph.save(path, *maps)


@kind(IMAGES, "depth, without the channel", "MiDaS")
def _depth(path: str) -> None:
    graph = Graph(("0", F32, [1, 3, 32, 32]))
    graph.save(path, ("797", graph.mean("0", 1), F32, [1, 32, 32]))


@kind(IMAGES, "super resolution, one channel", "ESPCN")
def _super(path: str) -> None:
    graph = Graph(("input", F32, ["batch_size", 1, "h", "w"]))
    four = graph.node("Concat", *["input"] * 4, axis=1)
    graph.save(path, ("output", graph.node("DepthToSpace", four, blocksize=2), F32, ["batch_size", 1, "2h", "2w"]))


@kind(IMAGES, "text in images, any width", "PaddleOCR CRNN")
def _ocr(path: str) -> None:
    graph = Graph(("x", F32, ["batch", 3, 48, "width"]))
    steps = graph.node("Transpose", graph.mean("x", 2), perm=[0, 2, 1])
    graph.save(path, ("softmax", graph.node("Softmax", graph.dense(steps, 3, 16), axis=2), F32, ["batch", "width", 16]))


@kind(IMAGES, "face embedding, the answer's batch fixed by mistake", "ArcFace")
def _arcface(path: str) -> None:
    classifier(path, "input.1", ["None", 3, 112, 112], [1, 16], "683")


@kind(IMAGES, "a camera's frame as it is, without a batch", "an export of one's own")
def _frame(path: str) -> None:
    graph = Graph(("image", U8, [48, 64, 3]))
    graph.save(path, ("heat", graph.mean(graph.cast("image"), 2), F32, [48, 64]))


@kind(IMAGES, "prompted segmentation: points, a mask, the size of the image", "SAM's decoder")
def _sam(path: str) -> None:
    graph = Graph(
        ("image_embeddings", F32, [1, 4, 8, 8]),
        ("point_coords", F32, [1, "num_points", 2]),
        ("point_labels", F32, [1, "num_points"]),
        ("mask_input", F32, [1, 1, 8, 8]),
        ("has_mask_input", F32, [1]),
        ("orig_im_size", F32, [2]),
    )
    points = graph.total(graph.mul("point_coords", graph.unsqueeze("point_labels", 2)), 1, 2, keep=1)
    masks = graph.add("image_embeddings", graph.mul("mask_input", "has_mask_input"))
    masks = graph.add(masks, graph.unsqueeze(points, 3))
    masks = graph.mul(masks, graph.total("orig_im_size"))
    graph.save(path, ("masks", masks, F32, [1, 4, 8, 8]), ("iou_predictions", graph.mean(masks, 2, 3), F32, [1, 4]))


@kind(IMAGES, "images and texts beside each other", "CLIP")
def _clip(path: str) -> None:
    graph = Graph(("input_ids", I64, ["text_batch", 16]), ("pixel_values", F32, ["image_batch", 3, 32, 32]))
    texts = graph.dense(graph.cast("input_ids"), 16, 8)
    images = graph.dense(graph.mean("pixel_values", 2, 3), 3, 8)
    scores = graph.node("MatMul", images, graph.node("Transpose", texts, perm=[1, 0]))
    graph.save(path, ("logits_per_image", scores, F32, ["image_batch", "text_batch"]))


@kind(IMAGES, "half precision", "an export for GPUs")
def _half(path: str) -> None:
    graph = Graph(("x", F16, ["batch", 3, 32, 32]))
    graph.save(path, ("y", graph.mean("x", 2, 3), F16, ["batch", 3]))


# --- texts ------------------------------------------------------------------------------------------------------------

TEXTS = "Texts and tables"


@kind(TEXTS, "encoder of tokens, three inputs", "BERT")
def _bert(path: str) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = Graph(*[(name, I64, ["batch_size", "sequence_length"]) for name in names])
    table = graph.weight(np.linspace(0, 1, 64).reshape(8, 8))
    hidden = graph.node("Gather", table, graph.node("Mod", "input_ids", graph.weight(8, np.int64)), axis=0)
    hidden = graph.mul(hidden, graph.unsqueeze(graph.cast("attention_mask"), 2))
    hidden = graph.add(hidden, graph.unsqueeze(graph.cast("token_type_ids"), 2))
    graph.save(path, ("last_hidden_state", hidden, F32, ["batch_size", "sequence_length", 8]))


@kind(TEXTS, "a step of a language model with its cache", "Optimum's decoder_with_past")
def _decoder(path: str) -> None:
    cache = ["batch_size", 2, "past_sequence_length", 4]
    graph = Graph(("input_ids", I64, ["batch_size", 1]), ("past_key_values.0.key", F32, cache))
    row = graph.reshape(graph.dense(graph.cast("input_ids"), 1, 8), -1, 2, 1, 4)
    present = graph.node("Concat", "past_key_values.0.key", row, axis=2)
    graph.save(
        path,
        ("logits", graph.mean(present, 1, 2), F32, ["batch_size", 4]),
        ("present.0.key", present, F32, ["batch_size", 2, "past_sequence_length + 1", 4]),
    )


@kind(TEXTS, "a memory that grows with each request", "a recurrent transformer")
def _growing(path: str) -> None:
    graph = Graph(("x", F32, ["batch", 1, 4]), ("memory", F32, ["batch", "length", 4]))
    memory = graph.node("Concat", "memory", "x", axis=1)
    graph.save(
        path, ("y", graph.mean(memory, 1), F32, ["batch", 4]), ("new_memory", memory, F32, ["batch", "length + 1", 4])
    )


@kind(TEXTS, "texts in, a column", "scikit-learn's text pipelines")
def _column(path: str) -> None:
    graph = Graph(("text", TEXT, ["N", 1]))
    number = graph.node(
        "LabelEncoder",
        "text",
        domain="ai.onnx.ml",
        keys_strings=["yes", "no"],
        values_floats=[1.0, 0.0],
        default_float=0.5,
    )
    graph.save(path, ("score", number, F32, ["N", 1]))


@kind(TEXTS, "texts in and out", "a normaliser")
def _texts(path: str) -> None:
    graph = Graph(("words", TEXT, ["N"]))
    graph.save(path, ("plain", graph.node("Identity", "words"), TEXT, ["N"]))


@kind(TEXTS, "classes by their names", "scikit-learn, zipmap off")
def _classes(path: str) -> None:
    graph = Graph(("float_input", F32, ["None", 3]))
    place = graph.node("ArgMax", "float_input", axis=1, keepdims=0)
    label = graph.node(
        "LabelEncoder", place, domain="ai.onnx.ml", keys_int64s=[0, 1, 2], values_strings=["a", "b", "c"]
    )
    graph.save(
        path,
        ("label", label, TEXT, ["None"]),
        ("probabilities", graph.node("Softmax", "float_input", axis=1), F32, ["None", 3]),
    )


@kind(TEXTS, "probabilities as a list of tables", "scikit-learn's default")
def _zipmap(path: str) -> None:
    graph = Graph(("float_input", F32, ["N", 3]))
    graph.node("ArgMax", "float_input", axis=1, keepdims=0, outputs=["label"])
    graph.node("ZipMap", "float_input", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2], outputs=["probability"])
    table = helper.make_map_type_proto(I64, helper.make_tensor_type_proto(F32, []))
    listed = helper.make_value_info("probability", helper.make_sequence_type_proto(table))
    graph.opsets["ai.onnx.ml"] = 1
    graph.write(path, [helper.make_tensor_value_info("label", I64, ["N"]), listed])


@kind(TEXTS, "regression on a row of numbers", "XGBoost, LightGBM")
def _regressor(path: str) -> None:
    graph = Graph(("input", F32, ["N", 10]))
    graph.save(path, ("variable", graph.dense("input", 10, 1), F32, ["N", 1]))


@kind(TEXTS, "doubles", "scikit-learn")
def _doubles(path: str) -> None:
    graph = Graph(("X", F64, ["N", 4]))
    graph.save(path, ("variable", graph.mean("X", 1, keep=1), F64, ["N", 1]))


# --- sound ------------------------------------------------------------------------------------------------------------

SOUND = "Sound"


@kind(SOUND, "voice activity: a state, a sample rate", "silero-vad 5")
def _silero(path: str) -> None:
    graph = Graph(("input", F32, [None, None]), ("state", F32, [2, None, 4]), ("sr", I64, []))
    level = graph.mul(graph.mean("input", 1, keep=1), graph.cast("sr"))
    state = graph.add("state", level)
    graph.save(
        path, ("output", graph.mean(state, 0, 2, keep=0), F32, [None]), ("stateN", state, F32, [None, None, None])
    )


@kind(SOUND, "voice activity: two states", "silero-vad 4")
def _silero4(path: str) -> None:
    states = [(name, F32, [2, "batch", 4]) for name in ("h", "c")]
    graph = Graph(("input", F32, ["batch", "sequence"]), ("sr", I64, []), *states)
    level = graph.mul(graph.mean("input", 1, keep=1), graph.cast("sr"))
    h, c = graph.add("h", level), graph.add("c", level)
    output = graph.reshape(graph.mean(graph.add(h, c), 0, 2), -1, 1)
    axes = [2, "batch", 4]
    graph.save(path, ("output", output, F32, ["batch", 1]), ("hn", h, F32, axes), ("cn", c, F32, axes))


@kind(SOUND, "speech encoder", "Whisper")
def _whisper(path: str) -> None:
    graph = Graph(("input_features", F32, ["batch_size", 8, 300]))
    hidden = graph.node("Transpose", "input_features", perm=[0, 2, 1])
    graph.save(path, ("last_hidden_state", graph.dense(hidden, 8, 4), F32, ["batch_size", 300, 4]))


@kind(SOUND, "speech to letters, any length", "wav2vec 2.0")
def _wav2vec(path: str) -> None:
    graph = Graph(("input_values", F32, ["batch_size", "sequence_length"]))
    frames = graph.node("AveragePool", graph.unsqueeze("input_values", 1), kernel_shape=[4], strides=[4])
    logits = graph.dense(graph.node("Transpose", frames, perm=[0, 2, 1]), 1, 8)
    graph.save(path, ("logits", logits, F32, ["batch_size", "frames", 8]))


@kind(SOUND, "speech from phonemes: lengths, scales, a speaker", "Piper (VITS)")
def _piper(path: str) -> None:
    graph = Graph(
        ("input", I64, ["batch_size", "phonemes"]),
        ("input_lengths", I64, ["batch_size"]),
        ("scales", F32, [3]),
        ("sid", I64, ["batch_size"]),
    )
    sound = graph.mul(graph.cast("input"), graph.total("scales"))
    sound = graph.add(sound, graph.unsqueeze(graph.cast(graph.node("Add", "input_lengths", "sid")), 1))
    graph.save(path, ("output", graph.unsqueeze(sound, 1, 2), F32, ["batch_size", 1, 1, "time"]))


@kind(SOUND, "speech from tokens: a style, a speed", "Kokoro")
def _kokoro(path: str) -> None:
    graph = Graph(("tokens", I64, [1, "sequence_length"]), ("style", F32, [1, 256]), ("speed", F32, [1]))
    sound = graph.mul(graph.add(graph.cast("tokens"), graph.mean("style", 1, keep=1)), "speed")
    graph.save(path, ("audio", graph.reshape(graph.node("Concat", sound, sound, axis=1), -1), F32, ["samples"]))


@kind(SOUND, "streaming speech encoder: caches with axes of their own", "Zipformer")
def _zipformer(path: str) -> None:
    graph = Graph(
        ("x", F32, ["N", 5, 8]),
        ("cached_len_0", I64, [2, "N"]),
        ("cached_avg_0", F32, [2, "N", 4]),
        ("cached_key_0", F32, [2, 3, "N", 4]),
    )
    level = graph.mean("x", 1, 2)
    lengths = graph.node("Add", "cached_len_0", graph.weight(5, np.int64))
    row = graph.unsqueeze(level, 1)
    avg, key = graph.add("cached_avg_0", row), graph.add("cached_key_0", row)
    seen = graph.reshape(graph.mean(graph.cast(lengths), 0), -1, 1)
    out = graph.add(graph.mean(graph.add("x", graph.unsqueeze(graph.mean(key, 0, 1, 3), 1, 2)), 1), seen)
    graph.save(
        path,
        ("encoder_out", graph.add(out, graph.unsqueeze(graph.mean(avg, 0, 2), 1)), F32, ["N", 8]),
        ("new_cached_len_0", lengths, I64, [2, "N"]),
        ("new_cached_avg_0", avg, F32, [2, "N", 4]),
        ("new_cached_key_0", key, F32, [2, 3, "N", 4]),
    )


@kind(SOUND, "transducer's decoder: two tokens", "Zipformer")
def _transducer(path: str) -> None:
    graph = Graph(("y", I64, ["N", 2]))
    graph.save(path, ("decoder_out", graph.dense(graph.cast("y"), 2, 8), F32, ["N", 8]))


@kind(SOUND, "transducer's joiner", "Zipformer")
def _joiner(path: str) -> None:
    graph = Graph(("encoder_out", F32, ["N", 8]), ("decoder_out", F32, ["N", 8]))
    graph.save(path, ("logit", graph.node("Tanh", graph.add("encoder_out", "decoder_out")), F32, ["N", 8]))


@kind(SOUND, "prediction network: two states, layers first", "NeMo RNN-T")
def _rnnt(path: str) -> None:
    states = [(f"states.{place}", F32, [1, "batch", 4]) for place in (0, 1)]
    graph = Graph(("targets", I32, ["batch", 1]), *states)
    step = graph.cast("targets")
    h, c = graph.add("states.0", step), graph.mul(graph.add("states.1", step), graph.weight(0.5))
    outputs = graph.add(graph.mean(h, 0), graph.mean(c, 0))
    axes = [1, "batch", 4]
    graph.save(
        path,
        ("outputs", outputs, F32, ["batch", 4]),
        ("out_states.0", h, F32, axes),
        ("out_states.1", c, F32, axes),
    )


@kind(SOUND, "noise suppression: states fixed at a batch of 1", "DTLN")
def _dtln(path: str) -> None:
    graph = Graph(("input_2", F32, [1, 1, 16]), ("input_3_state", F32, [1, 2, 8]))
    state = graph.add("input_3_state", graph.reshape(graph.mean("input_2", 2), 1, 1, 1))
    out = graph.mul("input_2", graph.reshape(graph.mean(state, 1, 2), 1, 1, 1))
    graph.save(path, ("activation_2", out, F32, [1, 1, 16]), ("output_3_state", state, F32, [1, 2, 8]))


@kind(SOUND, "wake word, a window of features", "openWakeWord")
def _wake(path: str) -> None:
    graph = Graph(("x.1", F32, [1, 16, 8]))
    graph.save(path, ("53", graph.node("Sigmoid", graph.dense(graph.mean("x.1", 1), 8, 1)), F32, [1, 1]))


# --- control, science -------------------------------------------------------------------------------------------------

OTHERS = "Control, time series, others"


@kind(OTHERS, "policy of a robot, a batch of observations", "RL exports")
def _policy(path: str) -> None:
    graph = Graph(("obs", F32, ["batch", 24]))
    graph.save(path, ("actions", graph.node("Tanh", graph.dense("obs", 24, 6)), F32, ["batch", 6]))


@kind(OTHERS, "policy of a robot, one observation", "Isaac Lab")
def _observation(path: str) -> None:
    graph = Graph(("obs", F32, [24]))
    graph.save(path, ("actions", graph.node("Tanh", graph.dense("obs", 24, 6)), F32, [6]))


@kind(OTHERS, "policy with a state that is no memory", "goal-conditioned policies")
def _goal(path: str) -> None:
    graph = Graph(("state", F32, ["batch", 4]), ("goal", F32, ["batch", 4]))
    graph.save(path, ("action", graph.node("Sub", "goal", "state"), F32, ["batch", 4]))


@kind(OTHERS, "controller: inputs of different lengths", "a filter of one's own")
def _controller(path: str) -> None:
    graph = Graph(("x", F32, [4]), ("reference", F32, [5, 4]))
    graph.save(path, ("u", graph.mean(graph.node("Sub", "reference", "x"), 0), F32, [4]))


@kind(OTHERS, "single numbers alone", "a formula")
def _numbers(path: str) -> None:
    graph = Graph(("a", F32, []), ("b", F32, []))
    graph.save(path, ("y", graph.add("a", "b"), F32, []))


@kind(OTHERS, "diffusion: a step of time beside a batch", "Stable Diffusion's U-Net")
def _unet(path: str) -> None:
    graph = Graph(
        ("sample", F32, ["batch", 4, 8, 8]), ("timestep", I64, []), ("encoder_hidden_states", F32, ["batch", 7, 4])
    )
    words = graph.unsqueeze(graph.mean("encoder_hidden_states", 1), 2, 3)
    noise = graph.mul(graph.add("sample", words), graph.cast("timestep"))
    graph.save(path, ("out_sample", noise, F32, ["batch", 4, 8, 8]))


@kind(OTHERS, "window of a time series", "an anomaly detector")
def _window(path: str) -> None:
    graph = Graph(("window", F32, ["batch", 32, 6]))
    graph.save(path, ("reconstruction", graph.node("Tanh", "window"), F32, ["batch", 32, 6]))


@kind(OTHERS, "time before the batch", "PyTorch's LSTM by default")
def _time_first(path: str) -> None:
    graph = Graph(("x", F32, ["time", "batch", 4]))
    graph.save(path, ("y", graph.node("CumSum", "x", graph.weight(0, np.int64)), F32, ["time", "batch", 4]))


@kind(OTHERS, "numbers that depend on the whole batch", "BatchNorm exported in training mode")
def _training(path: str) -> None:
    graph = Graph(("x", F32, ["batch", 8]))
    graph.save(path, ("y", graph.node("Sub", "x", graph.mean("x", 0, keep=1)), F32, ["batch", 8]))


@kind(OTHERS, "points of a cloud, one list of boxes", "PointPillars")
def _points(path: str) -> None:
    graph = Graph(("points", F32, ["num_points", 4]))
    box = graph.dense(graph.mean("points", 0, keep=1), 4, 7)
    graph.save(path, ("boxes", graph.node("Concat", box, box, axis=0), F32, ["num_boxes", 7]))


@kind(OTHERS, "a switch beside a batch", "Optimum's merged decoder")
def _switch(path: str) -> None:
    graph = Graph(("x", F32, ["batch", 4]), ("use_cache_branch", BOOL, [1]))
    graph.save(path, ("y", graph.mul("x", graph.cast("use_cache_branch")), F32, ["batch", 4]))


@kind(OTHERS, "no input at all", "a constant")
def _nothing(path: str) -> None:
    graph = Graph()
    graph.save(path, ("y", graph.node("Identity", graph.weight([1.0, 2.0])), F32, [2]))


@kind(OTHERS, "a list of tensors as its input", "SequenceAt")
def _sequence(path: str) -> None:
    listed = helper.make_tensor_sequence_value_info("boxes", F32, ["N", 4])
    node = helper.make_node("SequenceAt", ["boxes", "place"], ["y"])
    place = numpy_helper.from_array(np.array(0, np.int64), "place")
    told = helper.make_tensor_value_info("y", F32, ["N", 4])
    graph = helper.make_graph([node], "g", [listed], [told], [place])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION), path)


@kind(OTHERS, "a name of more than 128 characters", "names of a tracer")
def _long_name(path: str) -> None:
    name = "/model/" + "/".join(["layers.0"] * 20)
    graph = Graph(("x", F32, ["batch", 4]))
    graph.save(path, (name, graph.node("Tanh", "x"), F32, ["batch", 4]))


# --- what is no model -------------------------------------------------------------------------------------------------

NO_MODELS = "What is no model, or not the whole of one"


def content(data: bytes) -> Callable[[str], None]:
    """A function that writes a file of these bytes."""

    def write(path: str) -> None:
        with open(path, "wb") as file:
            file.write(data)

    return write


def gguf(architecture: str) -> bytes:
    """The header of a GGUF file that says its architecture and nothing else."""
    key, value = b"general.architecture", architecture.encode()
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8) + struct.pack("<Q", len(value)) + value
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
kind(NO_MODELS, "a pointer of git-lfs", "a clone without git-lfs")(content(LFS))
kind(NO_MODELS, "a web page", "a link to the page of a file")(content(b"\n<!DOCTYPE html><html></html>"))
kind(NO_MODELS, "an empty file", "an interrupted download")(content(b""))
kind(NO_MODELS, "an ending that is none", "weights of a trainer", ".safetensors")(content(b"weights"))
kind(NO_MODELS, "a model with an encoder", "T5 as GGUF", ".gguf")(content(gguf("t5")))


def write(one: Kind, folder: str, number: int) -> str:
    """Write a file of a kind; its path."""
    path = os.path.join(folder, f"model-{number}{one.ending}")
    one.write(path)
    return path
