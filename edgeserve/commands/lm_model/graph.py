"""Writes a Llama-like network as an ONNX graph that appends to keys and values in place.

Inputs: ``tokens`` int64[B, T] (rows filled up behind their end), ``lengths`` int32[B] (tokens of each sequence after
this step, less one), ``total`` int32[] (the longest of them, not less one), ``past_keys_i`` and ``past_values_i``
float32[B, kv_heads, context, head_size] per layer. Outputs: ``scores`` float32[B, vocabulary] of the token behind each
row's last one, ``keys_i`` and ``values_i`` in the same form; the program that runs the graph binds both to one buffer.

Attention with rotary positions, grouped heads and the cache is one operator, ``com.microsoft.GroupQueryAttention``
(ONNX Runtime 1.18 and later). The rest are standard operators, in the patterns that ONNX Runtime fuses. Positions are
rotated in interleaved pairs, as GGUF files order the rows of the query and key matrices of this architecture.
Architecture: Touvron et al., 2023 (RMSNorm, SwiGLU, rotary embeddings); Ainslie et al., 2023 (grouped heads).
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgeserve.commands.lm_model.weights import BITS, BLOCK, quantise
from edgeserve.errors import ConfigError

OPSET = 14
IR_VERSION = 8
MICROSOFT_OPSET = 1
ALIGN_BYTES = 4096
"""The multiple of bytes at which a tensor may begin in the file of weights, so that it can be mapped into memory."""

INLINE_BYTES_MAX = 1024
"""Smaller tensors stay in the graph, where shape inference can see them."""

HEAD_SIZE_STEP = 16
"""ONNX Runtime's attention takes heads of a multiple of so many numbers."""

ACCURACY_INT8 = 4
"""``MatMulNBits`` may round the other side to 8 bits too: its fast kernels do."""

FORMAT = "edgeserve-lm-1"

Tensors = Callable[[str], NDArray[Any]]
"""The weights by GGUF's names (``blk.0.attn_q.weight``, ...), float32, matrices as [out, in]."""


class Shape(NamedTuple):
    """The sizes of a Llama-like network. ``context`` is the most tokens that a sequence may have."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float = 10_000.0
    epsilon: float = 1e-5
    tied: bool = True  # scores come from the table of embeddings


def write_model(path: str, shape: Shape, tensors: Tensors, about: Mapping[str, Any], weights: str = "float32") -> str:
    """Write ``path`` (``NAME.onnx``), its weights (``NAME.onnx.data``) and its description (``NAME.json``); the path.
    ``about`` says ``tokenizer``, ``specials``, ``first``, ``stops`` and ``chat_template``, and ``bos_token`` and
    ``eos_token`` where the template writes them."""
    if weights not in BITS:
        raise ConfigError(f"weights = {weights!r}: expected one of {', '.join(BITS)}")
    if shape.head_size % HEAD_SIZE_STEP:
        raise ConfigError(
            f"head_size = {shape.head_size}: expected a multiple of {HEAD_SIZE_STEP}, which ONNX "
            "Runtime's attention needs"
        )
    bits = BITS[weights]
    if bits and (shape.hidden % BLOCK or shape.feed_forward % BLOCK or (shape.heads * shape.head_size) % BLOCK):
        raise ConfigError(
            f"weights = {weights!r} stores blocks of {BLOCK} numbers, which rows of {shape.hidden}, "
            f"{shape.feed_forward} and {shape.heads * shape.head_size} do not all consist of; take "
            "float32"
        )
    with open(path + ".data", "wb") as data:
        graph = _GraphWriter(shape, tensors, bits, data, os.path.basename(path) + ".data")
        model = helper.make_model(
            graph.build(),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", MICROSOFT_OPSET)],
        )
    model.ir_version = IR_VERSION
    onnx.save(model, path)
    facts = {
        "format": FORMAT,
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_size": shape.head_size,
        "hidden": shape.hidden,
        "vocabulary": shape.vocabulary,
        "context": shape.context,
        "weights": weights,
        **about,
    }
    with open(os.path.splitext(path)[0] + ".json", "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1, sort_keys=True)
        file.write("\n")
    return path


class _GraphWriter:
    """The graph while it is written; large tensors go to the file of weights at once."""

    def __init__(self, shape: Shape, tensors: Tensors, bits: int, data: Any, data_name: str) -> None:
        self._shape = shape
        self._tensors = tensors
        self._bits = bits
        self._data = data
        self._data_name = data_name
        self._nodes: List[Any] = []
        self._weights: List[Any] = []
        self._known: Dict[str, str] = {}
        self._count = 0

    def build(self) -> Any:
        shape = self._shape
        self._store("cosines", _rotations(shape, np.cos))
        self._store("sines", _rotations(shape, np.sin))
        self._store("one", np.array([1], np.int64))
        self._store("epsilon", np.array([shape.epsilon], np.float32))
        stream = self._node("Gather", [self._store("embeddings", self._tensors("token_embd.weight")), "tokens"])
        for number in range(shape.layers):
            stream = self._layer(number, stream)
        last = self._norm(self._last(stream), "output_norm.weight")
        self._scores(last)
        inputs = [
            _port("tokens", TensorProto.INT64, ["B", "T"]),
            _port("lengths", TensorProto.INT32, ["B"]),
            _port("total", TensorProto.INT32, []),
        ]
        outputs = [_port("scores", TensorProto.FLOAT, ["B", shape.vocabulary])]
        for number in range(shape.layers):
            dims = ["B", shape.kv_heads, "S", shape.head_size]
            inputs += [_port(f"past_{kind}_{number}", TensorProto.FLOAT, dims) for kind in ("keys", "values")]
            outputs += [_port(f"{kind}_{number}", TensorProto.FLOAT, dims) for kind in ("keys", "values")]
        return helper.make_graph(self._nodes, "language_model", inputs, outputs, self._weights)

    def _layer(self, number: int, stream: str) -> str:
        """Attention and the feed-forward network, each added to the stream."""
        shape, block = self._shape, f"blk.{number}"
        normed = self._norm(stream, f"{block}.attn_norm.weight")
        mixed = np.concatenate([self._tensors(f"{block}.attn_{part}.weight") for part in "qkv"])
        query = self._matmul(normed, f"{block}.qkv", mixed)
        attended = self._name()
        self._nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [query, "", "", f"past_keys_{number}", f"past_values_{number}", "lengths", "total", "cosines", "sines"],
                [attended, f"keys_{number}", f"values_{number}"],
                domain="com.microsoft",
                num_heads=shape.heads,
                kv_num_heads=shape.kv_heads,
                do_rotary=1,
                rotary_interleaved=1,
            )
        )
        stream = self._node(
            "Add", [stream, self._matmul(attended, f"{block}.out", self._tensors(f"{block}.attn_output.weight"))]
        )
        normed = self._norm(stream, f"{block}.ffn_norm.weight")
        gate = self._matmul(normed, f"{block}.gate", self._tensors(f"{block}.ffn_gate.weight"))
        up = self._matmul(normed, f"{block}.up", self._tensors(f"{block}.ffn_up.weight"))
        inner = self._node("Mul", [self._node("Mul", [gate, self._node("Sigmoid", [gate])]), up])
        return self._node(
            "Add", [stream, self._matmul(inner, f"{block}.down", self._tensors(f"{block}.ffn_down.weight"))]
        )

    def _norm(self, stream: str, weight: str) -> str:
        """RMSNorm (Zhang and Sennrich, 2019)."""
        square = self._node("Pow", [stream, self._store("two", np.array([2], np.float32))])
        mean = self._node("ReduceMean", [square], axes=[-1], keepdims=1)
        root = self._node("Sqrt", [self._node("Add", [mean, "epsilon"])])
        return self._node("Mul", [self._node("Div", [stream, root]), self._store(weight, self._tensors(weight))])

    def _last(self, stream: str) -> str:
        """[B, T, hidden] -> [B, hidden]: each row's last token, at the place ``lengths`` while a sequence begins, else
        at the end of its row."""
        width = self._node("Gather", [self._node("Shape", ["tokens"]), "one"], axis=0)
        place = self._node(
            "Min", [self._node("Cast", ["lengths"], to=TensorProto.INT64), self._node("Sub", [width, "one"])]
        )
        return self._node("GatherND", [stream, self._node("Unsqueeze", [place, "one"])], batch_dims=1)

    def _scores(self, last: str) -> None:
        shape = self._shape
        head = self._tensors("token_embd.weight" if shape.tied else "output.weight")
        if self._bits:
            self._quantised(last, "head", head, 8, output="scores")  # few bits cost most here
            return
        name = "embeddings" if shape.tied else self._store("head", head)
        self._nodes.append(helper.make_node("Gemm", [last, name], ["scores"], transB=1))  # the table is not copied

    def _matmul(self, stream: str, name: str, matrix: NDArray[Any]) -> str:
        """``stream @ matrix.T``"""
        if self._bits:
            return self._quantised(stream, name, matrix, self._bits)
        return self._node("MatMul", [stream, self._store(name, np.ascontiguousarray(matrix.T))])

    def _quantised(self, stream: str, name: str, matrix: NDArray[Any], bits: int, output: str = "") -> str:
        rows, columns = matrix.shape
        stored, scales, zeros = quantise(matrix, bits)
        found = output or self._name()
        self._nodes.append(
            helper.make_node(
                "MatMulNBits",
                [
                    stream,
                    self._store(f"{name}.stored", stored),
                    self._store(f"{name}.scales", scales),
                    self._store(f"{name}.zeros", zeros),
                ],
                [found],
                domain="com.microsoft",
                K=columns,
                N=rows,
                bits=bits,
                block_size=BLOCK,
                accuracy_level=ACCURACY_INT8,
            )
        )
        return found

    def _node(self, kind: str, inputs: Sequence[str], **settings: Any) -> str:
        name = self._name()
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _store(self, name: str, array: NDArray[Any]) -> str:
        """Add a weight, once; its name."""
        if name in self._known:
            return name
        self._known[name] = name
        if array.nbytes <= INLINE_BYTES_MAX:
            self._weights.append(numpy_helper.from_array(array, name))
            return name
        self._data.write(b"\0" * (-self._data.tell() % ALIGN_BYTES))
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", self._data_name), ("offset", self._data.tell()), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._data.write(np.ascontiguousarray(array).tobytes())
        self._weights.append(tensor)
        return name


def _rotations(shape: Shape, function: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """float32[context, head_size / 2]: the angles of rotary positions (Su et al., 2021)."""
    rates = shape.rope_base ** (-np.arange(0, shape.head_size, 2) / shape.head_size)
    turned: NDArray[Any] = function(np.outer(np.arange(shape.context), rates)).astype(np.float32)
    return turned


def _port(name: str, kind: int, dims: Sequence[Any]) -> Any:
    return helper.make_tensor_value_info(name, kind, list(dims))


def random_tensors(shape: Shape, seed: int) -> Tensors:
    """Weights of a network that was never trained, for tests and measurements: each tensor by its name and the seed."""
    width, grouped = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {
        "attn_q": (width, shape.hidden),
        "attn_k": (grouped, shape.hidden),
        "attn_v": (grouped, shape.hidden),
        "attn_output": (shape.hidden, width),
        "ffn_gate": (shape.feed_forward, shape.hidden),
        "ffn_up": (shape.feed_forward, shape.hidden),
        "ffn_down": (shape.hidden, shape.feed_forward),
        "token_embd": (shape.vocabulary, shape.hidden),
        "output": (shape.vocabulary, shape.hidden),
    }

    def tensor(name: str) -> NDArray[Any]:
        kind = name.split(".")[-2]
        if kind.endswith("norm"):
            return np.ones(shape.hidden, np.float32)
        rows, columns = sizes[kind]
        draw = np.random.default_rng([seed, *name.encode()])
        spread = 1.0 if kind == "token_embd" else columns**-0.5
        found: NDArray[Any] = (draw.standard_normal((rows, columns)) * spread).astype(np.float32)
        return found

    return tensor
