"""Kinds of GGUF files: each kind is served as what it is, or refused with the file to take in its place. The files are
made here, header by header, as the tools of llama.cpp write them."""

from __future__ import annotations

import os
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import llama_double
import pytest

from edgeserve.commands.init import model_files
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.describe import describe
from edgeserve.engines.gguf import BLOCKS, kind_of, read
from edgeserve.errors import EngineError

TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
LLAMA: Dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 2048,
    "llama.block_count": 1,
    "llama.embedding_length": 8,
    **TOKENIZER,
}


def of(architecture: str, **below: Any) -> Dict[str, Any]:
    """A model's entries; ``below`` stand below its architecture's name, a dot for each ``__``."""
    facts = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA.items()}
    more = {f"{architecture}.{key.replace('__', '.')}": value for key, value in below.items()}
    return {**facts, "general.architecture": architecture, **more}


def packed(value: Any, order: str) -> bytes:
    """A value with its type in front."""
    if isinstance(value, bool):
        return struct.pack(f"{order}I?", 7, value)
    if isinstance(value, int):
        return struct.pack(f"{order}II", 4, value)
    if isinstance(value, str):
        return struct.pack(f"{order}I", 8) + text(value, order)
    return struct.pack(f"{order}IIQ", 9, 8, len(value)) + b"".join(text(item, order) for item in value)


def text(value: str, order: str) -> bytes:
    return struct.pack(f"{order}Q", len(value.encode())) + value.encode()


Tensor = Tuple[Tuple[int, ...], int]
"""Shape, type."""


def content(
    entries: Dict[str, Any], tensors: Tuple[Tensor, ...] = (((8, 4), 0),), version: int = 3, order: str = "<"
) -> bytes:
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(entries))
    head += b"".join(text(key, order) + packed(value, order) for key, value in entries.items())
    at, sizes = 0, []
    for index, (shape, kind) in enumerate(tensors):
        head += text(f"blk.{index}.weight", order) + struct.pack(f"{order}I{len(shape)}Q", len(shape), *shape)
        head += struct.pack(f"{order}IQ", kind, at)
        numbers, size = BLOCKS.get(kind, (1, 1))
        count = 1
        for length in shape:
            count *= length
        sizes.append(count // numbers * size)
        at += -(-sizes[-1] // 32) * 32
    return head + b"\0" * (-len(head) % 32) + b"\0" * (at - (-(sizes[-1] if sizes else 0) % 32))


class Case(NamedTuple):
    """A file, others beside it, and the engine that serves it or what is said."""

    content: bytes
    engine: str = ""
    said: Tuple[str, ...] = ()
    name: str = "model.gguf"
    beside: Tuple[str, ...] = ()


FIRST = "model-00001-of-00003.gguf"
ALL = tuple(f"model-{part:05d}-of-00003.gguf" for part in (1, 2, 3))
SPLIT = {"split.no": 0, "split.count": 3, "split.tensors.count": 9}

CASES: Dict[str, Case] = {
    # --- served ---
    "a model that continues texts": Case(content(LLAMA), "lm"),
    "a model that talks": Case(content({**LLAMA, "tokenizer.chat_template": "{{ messages }}"}), "lm"),
    "a model whose type is said": Case(content({**LLAMA, "general.type": "model"}), "lm"),
    "a model of an architecture of tomorrow": Case(content(of("llama9")), "lm"),
    "a quantised model": Case(content(LLAMA, (((256, 4), 12), ((256, 3), 14))), "lm"),
    "a model with a type of tomorrow": Case(content(LLAMA, (((256, 4), 99),)), "lm"),
    "a recurrent model": Case(content(of("rwkv7")), "lm"),
    "the first of three parts": Case(content({**LLAMA, **SPLIT}), "lm", name=FIRST, beside=ALL[1:]),
    "a model with one that sees beside it": Case(content(LLAMA), "lm", beside=("mmproj-model.gguf",)),
    "a model of version 2": Case(content(LLAMA, version=2), "lm"),
    "vectors of texts, by their mean": Case(content(of("bert", attention__causal=False, pooling_type=1)), "sentence"),
    "vectors of texts, by the first token": Case(content(of("nomic-bert", pooling_type=2)), "sentence"),
    "vectors of texts, by the last token": Case(content(of("qwen3", pooling_type=3)), "sentence"),
    "vectors of texts, by an encoder of tomorrow": Case(
        content(of("gemma-embedding", attention__causal=False, pooling_type=1)), "sentence"
    ),
    "an encoder that does not say how": Case(content(of("bert", attention__causal=False)), "sentence"),
    "a model that writes and says so": Case(content(of("llama", pooling_type=0)), "lm"),
    # --- refused, with the file to take ---
    "the second of three parts": Case(
        content({"split.no": 1, "split.count": 3, "split.tensors.count": 9}),
        said=("is part 2 of 3 of a model", f"name its first part, {FIRST}"),
        name=ALL[1],
        beside=(ALL[0], ALL[2]),
    ),
    "a part under a name of its own": Case(
        content({"split.no": 2, "split.count": 3}), said=("is part 3 of 3", "the one that ends in -00001-of-")
    ),
    "the first part under a name of its own": Case(
        content({**LLAMA, **SPLIT}), said=("is part 1 of 3", "call it and them NAME-00001-of-00003.gguf")
    ),
    "the first part alone": Case(
        content({**LLAMA, **SPLIT}),
        said=("names the file 'model-00002-of-00003.gguf', which is not there",),
        name=FIRST,
    ),
    "an adapter": Case(
        content({"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}),
        said=("is an adapter (LoRA) for a model of architecture llama", "llama-export-lora", "beside it: 'base.gguf'"),
        beside=("base.gguf",),
    ),
    "an adapter of old": Case(
        content({"adapter.type": "lora"}), said=("is an adapter (LoRA) for a model, and no model",)
    ),
    "a projector": Case(
        content({"general.type": "mmproj", "general.architecture": "clip", "clip.has_vision_encoder": True}),
        said=("is the projector of a model that sees or hears", "name the model's file (beside it: 'q4.gguf')"),
        name="mmproj.gguf",
        beside=("q4.gguf",),
    ),
    "a projector of old": Case(content({"general.architecture": "clip"}), said=("is the projector",)),
    "an importance matrix": Case(
        content({"general.type": "imatrix", "imatrix.chunk_count": 9}), said=("is an importance matrix",)
    ),
    "a vocabulary": Case(
        content({**LLAMA, "tokenizer.chat_template": "x"}, ()), said=("has a vocabulary and no weights",)
    ),
    "a model that compares texts": Case(
        content(of("qwen3", pooling_type=4)), said=("compares texts (a reranker), which no engine serves",)
    ),
    "a model that compares texts, by its labels": Case(
        content({**of("bert", attention__causal=False), "bert.classifier.output_labels": ["yes", "no"]}),
        said=("(a reranker)",),
    ),
    "an encoder and a decoder": Case(content(of("t5")), said=("of architecture 't5'", "a decoder alone")),
    "an encoder of that kind": Case(content(of("t5encoder", pooling_type=1)), said=("a decoder alone",)),
    "a model that writes from all sides": Case(
        content(of("dream", attention__causal=False)), said=("attention that is not causal",)
    ),
    "a model that makes images": Case(
        content({"general.architecture": "flux", "general.file_type": 1}),
        said=("is of architecture 'flux' and says nothing that a language model's file says",),
    ),
    "a model that makes sound": Case(
        content({**of("wavtokenizer-dec"), "tokenizer.ggml.model": "none"}), said=("has no tokenizer",)
    ),
    "a model without its tokenizer": Case(
        content({key: value for key, value in LLAMA.items() if not key.startswith("tokenizer")}),
        said=("has no tokenizer", "Convert the model again"),
    ),
    "nothing that is said": Case(content({"a.b": 1}), said=("has no general.architecture",)),
    "the other byte order": Case(content(LLAMA, order=">"), said=("in the other byte order", "gguf-convert-endian")),
    "a version of old": Case(content(LLAMA, version=1), said=("GGUF version 1", "newer llama.cpp")),
    "a version of tomorrow": Case(content(LLAMA, version=9), said=("GGUF version 9", "newer than EdgeServe")),
    "cut off in the header": Case(content(LLAMA)[:100], said=("ends within its header",)),
    "cut off in the tensors' names": Case(
        content(LLAMA)[: content(LLAMA).index(b"blk.0") + 3], said=("ends within its header",)
    ),
    "cut off in the weights": Case(
        content(LLAMA, (((256, 400), 12), ((8, 8), 0)))[:-1], said=("its transfer was broken off",)
    ),
    "cut off in quantised weights": Case(
        content(LLAMA, (((256, 400), 12),))[:-100], said=("its transfer was broken off",)
    ),
    "more tensors than there can be": Case(
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), said=("names 1152921504606846976 tensors",)
    ),
    "something else": Case(b"\0" * 100, said=("does not begin with GGUF",)),
}


@pytest.fixture
def file(request: Any, tmp_path: Any) -> str:
    case = CASES[request.param]
    for name in case.beside:
        (tmp_path / name).write_bytes(content({}, ()))
    path = tmp_path / case.name
    path.write_bytes(case.content)
    return str(path)


def names(served: bool) -> List[str]:
    return [name for name, case in CASES.items() if bool(case.engine) is served]


@pytest.mark.parametrize(("file", "case"), [(name, name) for name in names(True)], indirect=["file"])
def test_a_file_is_served_as_what_it_is(file: str, case: str) -> None:
    found = describe(file)
    assert found.engine == CASES[case].engine
    assert bool(found.facts.get("chat")) == (case == "a model that talks")
    assert [port.name for port in found.inputs] == (["text"] if found.engine == "sentence" else [])


@pytest.fixture
def llama(tmp_path_factory: Any, monkeypatch: Any) -> Iterator[None]:
    """A double of llama.cpp, which would load anything."""
    yield from llama_double.installed(tmp_path_factory.mktemp("llama"), monkeypatch)


@pytest.mark.parametrize(("file", "case"), [(name, name) for name in names(False)], indirect=["file"])
def test_a_file_of_another_kind_is_refused_with_what_to_take(file: str, case: str, llama: None) -> None:
    """``init``, ``doctor`` and a server say the same, before a library reads the file."""
    with pytest.raises(EngineError) as by_init:
        describe(file)
    told = str(by_init.value)
    assert file in told and [part for part in CASES[case].said if part not in told] == []
    for kind in ("lm", "sentence"):
        engine = make_engine(ModelConfig("m", engine=kind, file=file), [LaneInfo()], ".")
        for verb in (engine.check, engine.load):
            with pytest.raises(EngineError) as by_server:
                verb()
            assert "model 'm': " in str(by_server.value)
            assert [part for part in CASES[case].said if part not in str(by_server.value)] == []


def test_a_model_that_makes_vectors_does_not_write(tmp_path: Any, llama: None) -> None:
    (tmp_path / "m.gguf").write_bytes(CASES["vectors of texts, by their mean"].content)
    engine = make_engine(ModelConfig("m", engine="lm", file="m.gguf"), [LaneInfo()], str(tmp_path))
    with pytest.raises(EngineError, match=r"makes vectors of texts \(bert\).*set engine = 'sentence'"):
        engine.check()
    make_engine(ModelConfig("m", engine="sentence", file="m.gguf"), [LaneInfo()], str(tmp_path)).check()


def test_the_size_of_a_model_is_that_of_all_its_parts(tmp_path: Any) -> None:
    for name in ALL:
        (tmp_path / name).write_bytes(content({**LLAMA, **SPLIT}))
    assert describe(str(tmp_path / FIRST)).facts["size_bytes"] == 3 * os.path.getsize(tmp_path / FIRST)


def test_a_folder_of_parts_is_one_model(tmp_path: Any) -> None:
    for name in (*ALL, "other.gguf"):
        (tmp_path / name).write_bytes(content({**LLAMA, **SPLIT}))
    assert [os.path.basename(path) for path in model_files([str(tmp_path)])] == [FIRST, "other.gguf"]


def test_a_whole_file_is_never_thought_cut_off(tmp_path: Any) -> None:
    """With any last tensor: each type, with and without room behind it."""
    for kind, (numbers, _) in BLOCKS.items():
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(content(LLAMA, (((numbers, 3), kind), ((numbers, 1), kind))))
        assert kind_of(str(path)) == "lm"
        assert read(str(path)).bytes_min == os.path.getsize(path)


def test_the_sizes_of_types_are_those_of_the_gguf_package() -> None:
    package = pytest.importorskip("gguf", reason="pip install -e '.[lm-convert]'")
    sizes = {int(kind): tuple(size) for kind, size in package.GGML_QUANT_SIZES.items()}
    assert {kind: size for kind, size in sizes.items() if kind in BLOCKS} == {
        kind: size for kind, size in BLOCKS.items() if kind in sizes
    }
