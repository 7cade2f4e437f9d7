"""A small language model for tests, made on the spot: never trained, bytes as tokens, a chat template."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

from edgeserve.commands.lm_model.graph import Shape, random_tensors, write_model

SPECIALS = ("<|im_start|>", "<|im_end|>")
END = 257  # <|im_end|>
SHAPE = Shape(
    layers=2, hidden=32, heads=4, kv_heads=2, head_size=16, feed_forward=64, vocabulary=258, context=256, tied=False
)
ABOUT = {"tokenizer": "bytes", "specials": list(SPECIALS), "first": [], "stops": [END], "chat_template": "chatml"}


def tiny(directory: str, name: str = "tiny", seed: int = 1, weights: str = "float32", **about: Any) -> str:
    """Write the model; the name of its file in the directory."""
    path = os.path.join(directory, f"{name}.onnx")
    write_model(path, SHAPE, random_tensors(SHAPE, seed), {**ABOUT, **about}, weights)
    return f"{name}.onnx"


def gguf(directory: str, name: str = "tiny", seed: int = 1, template: str = "", adds_first: bool = False) -> str:
    """Write the model as a GGUF file (needs the gguf package), with a byte-level vocabulary that merges ``th``, ``he``
    and ``the``; the name of its file in the directory. ``adds_first``: every text begins with ``<|im_start|>``."""
    import gguf as package
    import numpy as np

    shape = SHAPE._replace(vocabulary=256 + len(MERGED) + len(SPECIALS))
    writer = package.GGUFWriter(os.path.join(directory, f"{name}.gguf"), "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.heads * shape.head_size)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    _add_vocabulary(writer)
    writer.add_add_bos_token(adds_first)
    writer.add_chat_template(template or TEMPLATE)
    tensor = random_tensors(shape._replace(hidden=shape.heads * shape.head_size), seed)
    names = ["token_embd", "output_norm", "output"] + [
        f"blk.{layer}.{part}"
        for layer in range(shape.layers)
        for part in (
            "attn_norm",
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "ffn_norm",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
        )
    ]
    for item in names:
        writer.add_tensor(f"{item}.weight", np.ascontiguousarray(tensor(f"{item}.weight")))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"{name}.gguf"


def encoder_gguf(directory: str, architecture: str) -> str:
    """Write the header of a GGUF file of T5's or BERT's architecture (needs the gguf package), with one of its weights;
    the name of its file in the directory."""
    import gguf as package
    import numpy as np

    writer = package.GGUFWriter(os.path.join(directory, f"{architecture}.gguf"), architecture)
    _add_vocabulary(writer)
    if architecture == "bert":
        writer.add_causal_attention(False)
    writer.add_tensor("token_embd.weight", np.zeros((256 + len(MERGED) + len(SPECIALS), 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"{architecture}.gguf"


MERGED = ("th", "he", "the")


def _add_vocabulary(writer: Any) -> None:
    from edgeserve.engines.lm.tokenizers import byte_characters

    letters = sorted(byte_characters(), key=lambda character: byte_characters()[character])
    writer.add_vocab_size(256 + len(MERGED) + len(SPECIALS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, *MERGED, *SPECIALS])
    writer.add_token_types([1] * (256 + len(MERGED)) + [3] * len(SPECIALS))
    writer.add_token_merges(["t h", "h e", "th e"])
    writer.add_bos_token_id(256 + len(MERGED))
    writer.add_eos_token_id(257 + len(MERGED))


TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML as a Jinja template."""
