"""A small model with an encoder for tests, as graphs and a description: never trained, letters as tokens."""

from __future__ import annotations

import json
import os
import string
from typing import Any, Dict, List, Tuple

import numpy as np

NAMES = ["<pad>", "<begin>", "<end>", "<unknown>", *string.ascii_lowercase, " "]
END, SIZE = 2, 8


def _weights(seed: int) -> Dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes = {"read": (len(NAMES), SIZE), "wrote": (len(NAMES), SIZE), "turn": (SIZE, SIZE), "say": (SIZE, len(NAMES))}
    return {name: draw.normal(0, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def _save(
    path: str, nodes: List[Any], given: List[Tuple[Any, ...]], told: List[Tuple[Any, ...]], kept: Dict[str, Any]
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kinds = {"int": TensorProto.INT64, "bool": TensorProto.BOOL, "float": TensorProto.FLOAT}
    values = [
        [helper.make_tensor_value_info(name, kinds[kind], shape) for name, kind, *shape in all_]
        for all_ in (given, told)
    ]
    graph = helper.make_graph(
        [helper.make_node(name, inputs.split(), outputs.split(), **more) for name, inputs, outputs, more in nodes],
        "g",
        *values,
        [numpy_helper.from_array(np.asarray(array), name) for name, array in kept.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path)


def write(directory: str, seed: int = 1) -> str:
    """Write encoder, decoder and description; the name of the description."""
    weights = _weights(seed)
    axis = np.array([2], np.int64)
    _save(
        os.path.join(directory, "read.onnx"),
        [("Gather", "read src", "memory", {}), ("ReduceMean", "memory", "mean", {"axes": [1], "keepdims": 0})],
        [("src", "int", "rows", "source"), ("pads", "bool", "rows", "source")],
        [("memory", "float", "rows", "source", SIZE), ("mean", "float", "rows", SIZE)],
        {"read": weights["read"]},
    )
    _save(
        os.path.join(directory, "write.onnx"),
        [
            ("Gather", "wrote newest", "all", {}),
            ("Gather", "all first", "x", {"axis": 1}),
            ("MatMul", "state turn", "turned", {}),
            ("Add", "turned x", "sum", {}),
            ("Tanh", "sum", "next", {}),
            ("Unsqueeze", "next axis", "column", {}),
            ("MatMul", "memory column", "match", {}),
            ("Cast", "pads", "out", {"to": 1}),
            ("Mul", "out far", "away", {}),
            ("Unsqueeze", "away axis", "aways", {}),
            ("Add", "match aways", "matches", {}),
            ("Softmax", "matches", "share", {"axis": 1}),
            ("Mul", "share memory", "parts", {}),
            ("ReduceSum", "parts one", "seen", {"keepdims": 0}),
            ("Add", "seen next", "both", {}),
            ("MatMul", "both say", "scores", {}),
        ],
        [
            ("newest", "int", "rows", "one"),
            ("memory", "float", "rows", "source", SIZE),
            ("pads", "bool", "rows", "source"),
            ("state", "float", "rows", SIZE),
        ],
        [("scores", "float", "rows", len(NAMES)), ("next", "float", "rows", SIZE)],
        {
            **{name: weights[name] for name in ("wrote", "turn", "say")},
            "first": np.array(0, np.int64),
            "axis": axis,
            "one": np.array([1], np.int64),
            "far": np.array(-1e9, np.float32),
        },
    )
    about = {
        "format": "edgeserve-encdec-1",
        "encoder": "read.onnx",
        "decoder": "write.onnx",
        "encoder_tokens": "src",
        "decoder_tokens": "newest",
        "mask": "pads",
        "mask_is_padding": True,
        "from_encoder": {"memory": "memory", "state": "mean"},
        "states": {"state": "next"},
        "scores": "scores",
        "source_tokens": 24,
        "answer_tokens": 32,
        "characters": NAMES,
        "unknown": 3,
        "first": [],
        "last": [END],
        "begin": [1],
        "stops": [END],
    }
    with open(os.path.join(directory, "pair.json"), "w", encoding="utf-8") as file:
        json.dump(about, file)
    return "pair.json"


def answer(prompt: str, count: int, seed: int = 1) -> List[int]:
    """The greedy answer of so many tokens, by numpy alone; the end is passed over."""
    weights = _weights(seed)
    memory = weights["read"][[*[NAMES.index(letter) for letter in prompt], END]]
    state, token, tokens = memory.mean(axis=0), 1, []
    for _ in range(count):
        state = np.tanh(state @ weights["turn"] + weights["wrote"][token])
        match = memory @ state
        share = np.exp(match - match.max())
        token = int(np.argmax((state + share / share.sum() @ memory) @ weights["say"]))
        tokens.append(token)
    return tokens
