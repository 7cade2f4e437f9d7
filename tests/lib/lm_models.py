"""A small language model for tests, made on the spot: never trained, bytes as tokens, a chat template."""

from __future__ import annotations

import os
from typing import Any

from edgeserve.tools.lm_model.graph import Shape, random_tensors, write_model

SPECIALS = ("<|im_start|>", "<|im_end|>")
END = 257  # <|im_end|>
SHAPE = Shape(layers=2, hidden=32, heads=4, kv_heads=2, head_size=16, feed_forward=64, vocabulary=258, context=256,
              tied=False)
ABOUT = {"tokenizer": "bytes", "specials": list(SPECIALS), "first": [], "stops": [END], "chat_template": "chatml"}


def tiny(directory: str, name: str = "tiny", seed: int = 1, weights: str = "float32", **about: Any) -> str:
    """Write the model; the name of its file in the directory."""
    path = os.path.join(directory, f"{name}.onnx")
    write_model(path, SHAPE, random_tensors(SHAPE, seed), {**ABOUT, **about}, weights)
    return f"{name}.onnx"
