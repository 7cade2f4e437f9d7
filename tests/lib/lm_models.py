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


def gguf(directory: str, name: str = "tiny", seed: int = 1) -> str:
    """Write the model as a GGUF file (needs the gguf package), with a byte-level vocabulary that merges ``th``, ``he``
    and ``the``; the name of its file in the directory."""
    import gguf as package
    import numpy as np

    from edgeserve.engines.lm.tokenizers import byte_characters
    letters = sorted(byte_characters(), key=lambda character: byte_characters()[character])
    merged = ["th", "he", "the"]
    shape = SHAPE._replace(vocabulary=256 + len(merged) + len(SPECIALS))
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
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, *merged, *SPECIALS])
    writer.add_token_types([1] * (256 + len(merged)) + [3] * len(SPECIALS))
    writer.add_token_merges(["t h", "h e", "th e"])
    writer.add_bos_token_id(shape.vocabulary - 2)
    writer.add_eos_token_id(shape.vocabulary - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    tensor = random_tensors(shape._replace(hidden=shape.heads * shape.head_size), seed)
    names = ["token_embd", "output_norm", "output"] + [
        f"blk.{layer}.{part}" for layer in range(shape.layers) for part in (
            "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")]
    for item in names:
        writer.add_tensor(f"{item}.weight", np.ascontiguousarray(tensor(f"{item}.weight")))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"{name}.gguf"


TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>' + '\\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
"""ChatML as a Jinja template."""
