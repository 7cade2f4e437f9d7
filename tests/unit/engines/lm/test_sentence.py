"""Sentence models: a graph as exporters write it, with a tokenizer beside it, and a GGUF file on llama.cpp."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import llama_double
import numpy as np
import pytest
from sentence_models import SIZE, WORDS, write

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import ConfigError, EngineError, WrongInput
from edgeserve.testing.engine_conformance import EngineConformance


def engine_of(folder, file="model.onnx", **options):
    model = ModelConfig(name="m", engine="sentence", file=file, batch=(1, 2, 4), options=options)
    return make_engine(model, [LaneInfo()], str(folder))


def vectors(engine, *texts):
    return [result.outputs["embedding"] for result in engine.run(Batch([{"text": text} for text in texts], 4))]


class TestConformance(EngineConformance):
    def make(self, directory):
        write(Path(directory))
        return engine_of(directory)

    def make_echo(self, directory, rank, dtype):
        return None

    def items(self, count):
        return [{"text": text} for text in ("a", "b c", "a a c", "c b a a", "b")[:count]]

    def wrong_items(self):
        return {"a number": {"text": np.float32([1.0])}, "two texts": {"text": "a", "more": "b"}, "none": {}}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_text_has_the_vector_of_its_own_tokens_whatever_is_in_the_batch(tmp_path, pooling):
    table = write(tmp_path)
    engine = engine_of(tmp_path, pooling=pooling, normalize=False)
    engine.load()
    rows = {"mean": table[[1, 3, 4, 2]].mean(0), "cls": table[1], "last": table[2]}
    alone = vectors(engine, "a b")[0]
    assert np.allclose(alone, rows[pooling], atol=1e-6)
    assert np.allclose(vectors(engine, "c", "a b", "c c c c c")[1], alone, atol=1e-6)


def test_a_vector_has_length_one_and_the_graphs_own_is_taken(tmp_path):
    table = write(tmp_path, pools=True)
    engine = engine_of(tmp_path)
    engine.load()
    (found,) = vectors(engine, "a")
    wanted = table[[1, 3, 2]].max(0)
    assert np.allclose(found, wanted / np.linalg.norm(wanted), atol=1e-6) and found.dtype == np.float32
    assert engine.outputs()["embedding"].shape == (SIZE,)


def test_one_text_that_is_too_long_fails_alone_or_is_cut(tmp_path):
    write(tmp_path)
    engine = engine_of(tmp_path, tokens_max=4)
    engine.load()
    items = [{"text": "a b"}, {"text": "a b c"}, {"text": "a", "other": "b"}, {"text": "\ud800"}]
    results = engine.run(Batch(items, 4))
    assert [type(result.error) for result in results] == [type(None), WrongInput, WrongInput, WrongInput]
    assert isinstance(results[1].error, WrongInput) and "5 tokens, at most 4 fit" in str(results[1].error)
    assert "expected one input" in str(results[2].error) and "half of a character" in str(results[3].error)
    (long,) = engine.run(Batch([{"text": "a " * 500}], 1))
    assert "1000 characters, at most 256 are read" in str(long.error)
    cut = engine_of(tmp_path, tokens_max=4, truncate=True)
    cut.load()
    assert np.array_equal(vectors(cut, "a " * 500)[0], vectors(engine, "a a")[0])
    assert np.array_equal(vectors(cut, "a b c")[0], vectors(engine, "a b")[0])


@pytest.mark.parametrize("form", ["$A", "[CLS] $A", "$A [SEP]", "[CLS] $A [SEP]", "$A [SEP] [SEP]"])
def test_a_text_that_is_cut_has_its_first_words_in_the_form_of_any_text(tmp_path, form):
    table = write(tmp_path, form=form)
    engine = engine_of(tmp_path, tokens_max=4, truncate=True, normalize=False)
    engine.load()
    room = 4 - (len(form.split()) - 1)
    words = form.replace("$A", " ".join(["a"] * room)).split()
    wanted = table[[WORDS.index(word) for word in words]].mean(0)
    assert np.allclose(vectors(engine, "a a a a a b")[0], wanted, atol=1e-6)


def test_what_is_no_sentence_model_is_said_with_the_mend(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(EngineError, match="options.tokenizer"):
        engine_of(tmp_path).load()
    for wrong, says in [({"pooling": "max"}, "pooling"), ({"file": "m.bin"}, "expected a name")]:
        with pytest.raises(ConfigError, match=says):
            engine_of(tmp_path, **wrong)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("options", [{}, {"tokenizer": "tokenizer.json"}])
def test_a_pipe_in_the_place_of_the_tokenizer_is_refused(tmp_path, options):
    write(tmp_path)
    engine = engine_of(tmp_path, **options)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(EngineError, match="no regular file"):
        engine.load()


def test_a_text_has_all_tokens_that_its_gguf_file_puts_around_it(tmp_path, monkeypatch):
    """The vector of a model that pools the last token is that of the token that ends a text."""
    double = llama_double.module(pooling_type=lambda context: 3, model_n_embd=lambda model: 4)
    monkeypatch.setitem(sys.modules, "llama_cpp", double)
    llama_double.forget(monkeypatch)
    path = str(tmp_path / llama_double.write_file(tmp_path / "model.gguf"))
    opened, contexts = [], []
    load, begin = double.llama_model_load_from_file, double.llama_init_from_model
    double.llama_model_load_from_file = lambda path, settings: opened.append(settings) or load(path, settings)
    double.llama_init_from_model = lambda model, settings: contexts.append(settings) or begin(model, settings)
    encoder = importlib.import_module(llama_double.SENTENCES).LlamaEncoder("s", path, 64, 2, 3, 1)
    assert (opened[0].n_gpu_layers, opened[0].main_gpu) == (0, -1), "a lane of a CPU leaves the GPU alone"
    assert contexts[0].offload_kqv is contexts[0].op_offload is False
    assert encoder.tokens_of("ab") == [256, *b"ab", 257] and encoder.tokens_of("") == [256, 257]


def test_llama_cpp_gives_a_text_the_same_vector_in_any_company(tmp_path):
    pytest.importorskip("llama_cpp", reason="pip install -e '.[lm-llama]' (builds llama.cpp, about ten minutes)")
    pytest.importorskip("gguf", reason="pip install -e '.[lm-convert]'")
    import lm_models

    file = lm_models.gguf(str(tmp_path))
    with pytest.raises(EngineError, match=r"options.pooling to mean"):
        engine_of(tmp_path, file).load()  # a model that writes
    engine = engine_of(tmp_path, file, pooling="mean")
    engine.load()
    (alone,) = vectors(engine, "the cat")
    assert alone.shape == (64,) and np.isclose(np.linalg.norm(alone), 1.0, atol=1e-4)
    together = vectors(engine, "another text", "the cat", "x")
    assert np.allclose(together[1], alone, atol=1e-3) and not np.allclose(together[0], alone, atol=1e-2)
    engine.unload()
