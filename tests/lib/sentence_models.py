"""A small sentence model: a graph as exporters write it, and its tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

WORDS = ("[PAD]", "[CLS]", "[SEP]", "a", "b", "c", "[UNK]")
SIZE = 4


def write(folder: Any, pools: bool = False, form: str = "[CLS] $A [SEP]") -> Any:
    """A graph that looks each token up (``pools``: and sums them), and the tokenizer of :data:`WORDS`, which gives
    texts this ``form``."""
    onnx = pytest.importorskip("onnx", reason="pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(1).standard_normal((len(WORDS), SIZE)).astype(np.float32)
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "t"]) for n in ("input_ids", "attention_mask")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    outs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "t", SIZE])]
    tensors = [numpy_helper.from_array(table, "table")]
    if pools:
        nodes.append(helper.make_node("ReduceMax", ["last_hidden_state"], ["sentence_embedding"], axes=[1], keepdims=0))
        outs.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", SIZE]))
    graph = helper.make_graph(nodes, "g", ids, outs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, str(folder / "model.onnx"))
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(dict(zip(WORDS, range(len(WORDS)))), unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(form, None, [("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return table
