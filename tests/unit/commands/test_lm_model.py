"""Language models as ONNX files: how matrices are stored, what the graph computes, what is refused."""

from __future__ import annotations

import os

import lm_models
import numpy as np
import pytest

from edgeserve.commands.lm_model import graph
from edgeserve.commands.lm_model.weights import BLOCK, quantise, restore
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import TokenRow
from edgeserve.errors import ConfigError, EngineError


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("blocks", [2, 3])
def test_a_stored_number_is_at_most_a_step_away(bits, blocks):
    matrix = np.random.default_rng(3).standard_normal((5, blocks * BLOCK)).astype(np.float32)
    matrix[0, :BLOCK] = 0.0
    matrix[1, :BLOCK] += 10.0  # far from zero, which a block always holds
    stored, scales, zeros = quantise(matrix, bits)
    assert stored.shape == (5, blocks, BLOCK * bits // 8)
    steps = np.repeat(scales.reshape(5, blocks), BLOCK, axis=1)
    assert (np.abs(restore(stored, scales, zeros, bits) - matrix) <= steps * 1.001).all()
    assert not restore(stored, scales, zeros, bits)[0, :BLOCK].any()


def scores_of(directory, file, tokens):
    engine = make_engine(ModelConfig(name="m", engine="lm", file=file), [LaneInfo()], directory)
    engine.load()
    session = engine._backend.open(LaneInfo(), 1)
    return np.array(session.prefill([TokenRow(0, tokens, 0)])[0])


def test_the_graph_computes_what_the_architecture_says(tmp_path):
    """Against the formulas of Llama in float64, with positions rotated in interleaved pairs."""
    tokens = [5, 200, 17, 17, 99, 3]
    got = scores_of(str(tmp_path), lm_models.tiny(str(tmp_path)), tokens)
    np.testing.assert_allclose(got, llama(lm_models.SHAPE, graph.random_tensors(lm_models.SHAPE, 1), tokens), atol=1e-4)


@pytest.mark.parametrize(("weights", "apart"), [("int8", 0.15), ("int4", 1.2)])
def test_fewer_bits_give_nearly_the_same_scores(tmp_path, weights, apart):
    tokens = [5, 200, 17, 17, 99, 3]
    exact = scores_of(str(tmp_path), lm_models.tiny(str(tmp_path)), tokens)
    try:
        got = scores_of(str(tmp_path), lm_models.tiny(str(tmp_path), weights, weights=weights), tokens)
    except EngineError as error:
        if "Only 4b quantization is supported" in str(error):
            pytest.skip("this ONNX Runtime has no products with 8-bit weights (1.19 has none, 1.32 has)")
        raise
    assert 0 < np.abs(got - exact).max() < apart
    assert np.corrcoef(got, exact)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("changes", "weights", "said"),
    [
        ({"head_size": 8}, "float32", "head_size = 8"),
        ({"feed_forward": 40}, "int4", "rows of 32, 40"),
        ({}, "int3", "'int3'"),
    ],
)
def test_what_the_graph_cannot_be_is_refused(tmp_path, changes, weights, said):
    shape = lm_models.SHAPE._replace(**changes)
    with pytest.raises(ConfigError, match=said):
        graph.write_model(
            os.path.join(str(tmp_path), "x.onnx"), shape, graph.random_tensors(shape, 1), lm_models.ABOUT, weights
        )


def llama(shape, tensor, tokens):
    """The scores behind the last token."""
    count, pairs = len(tokens), shape.head_size // 2
    angles = np.outer(np.arange(count), shape.rope_base ** (-np.arange(pairs) / pairs))[:, None]

    def norm(stream, name):
        return stream / np.sqrt((stream**2).mean(-1, keepdims=True) + shape.epsilon) * tensor(name)

    def heads(stream, name, number, rotate):
        split = (stream @ tensor(name).T).reshape(count, number, pairs, 2)
        if rotate:
            turned = split[..., 0] + 1j * split[..., 1]
            turned = turned * np.exp(1j * angles)
            split = np.stack([turned.real, turned.imag], axis=-1)
        return split.reshape(count, number, shape.head_size)

    stream = tensor("token_embd.weight")[tokens].astype(np.float64)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        normed = norm(stream, f"{block}.attn_norm.weight")
        shared = shape.heads // shape.kv_heads
        query = heads(normed, f"{block}.attn_q.weight", shape.heads, True)
        keys = heads(normed, f"{block}.attn_k.weight", shape.kv_heads, True).repeat(shared, axis=1)
        values = heads(normed, f"{block}.attn_v.weight", shape.kv_heads, False).repeat(shared, axis=1)
        weights = np.einsum("qhd,khd->hqk", query, keys) / np.sqrt(shape.head_size)
        weights = np.where(np.tril(np.ones((count, count), bool)), np.exp(weights), 0.0)
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(count, -1)
        stream = stream + mixed @ tensor(f"{block}.attn_output.weight").T
        normed = norm(stream, f"{block}.ffn_norm.weight")
        gate = normed @ tensor(f"{block}.ffn_gate.weight").T
        inner = gate / (1 + np.exp(-gate)) * (normed @ tensor(f"{block}.ffn_up.weight").T)
        stream = stream + inner @ tensor(f"{block}.ffn_down.weight").T
    return (norm(stream, "output_norm.weight") @ tensor("output.weight").T)[-1]
