"""A double of ``llama_cpp``'s low-level calls for the tests: as strict as llama.cpp about positions and sequences, and
with scores that depend on everything before a token.

It has a GPU where ``LLAMA_DOUBLE_GPU=1`` is in the environment. ``module()`` makes one; what it was asked to do is in
its ``calls``, what each context holds in its ``contexts``, and ``log(level, line, data)`` tells a line to who listens.
:func:`write_file` writes a file that it loads.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
import sys
import types
from typing import Any, Dict, Iterator, List

import numpy as np

VOCABULARY = 258  # bytes, <|im_start|>, <|im_end|>
SPECIALS = ("<|im_start|>", "<|im_end|>")
CONTEXT = 128
MODEL_BYTES = 10**6


HEADER: Dict[str, Any] = {
    "block_count": 3,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
"""Keys of the model's file below its architecture's name: whole numbers, or a list of them."""


def write_file(path: Any, **facts: Any) -> str:
    """Write a GGUF file that has a header and a small tensor alone; ``facts`` come to :data:`HEADER` and ``None`` takes
    one away. Its name in its directory."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    words = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}
    entries = [text(key) + struct.pack("<I", 8) + text(value) for key, value in words.items()]
    for key, value in {**HEADER, **facts}.items():
        numbers = value if isinstance(value, list) else [value]
        kind = struct.pack("<IIQ", 9, 4, len(numbers)) if isinstance(value, list) else struct.pack("<I", 4)
        if value is not None:
            entries.append(text(f"llama.{key}") + kind + struct.pack(f"<{len(numbers)}I", *numbers))
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 8, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    path.write_bytes(header + b"\0" * (-len(header) % 32 + 32))
    return str(path.name)


class Batch:
    """As the C structure: arrays with room for so many tokens."""

    def __init__(self, room: int) -> None:
        self.n_tokens = 0
        self.token = (ctypes.c_int32 * room)()
        self.pos = (ctypes.c_int32 * room)()
        self.n_seq_id = (ctypes.c_int32 * room)()
        self.seq_id = [(ctypes.c_int32 * 1)() for _ in range(room)]
        self.logits = (ctypes.c_int8 * room)()


class Context:
    """A context holds the tokens of each sequence."""

    def __init__(self, settings: Any) -> None:
        self.sequences: Dict[int, List[int]] = {number: [] for number in range(settings.n_seq_max)}
        self.settings = settings
        self.room = settings.n_ctx // settings.n_seq_max
        self.scores: Dict[int, np.ndarray] = {}
        self.open = True


def scores_of(tokens: List[int]) -> np.ndarray:
    scores: np.ndarray = np.random.default_rng(tokens).standard_normal(VOCABULARY).astype(np.float32)
    scores[257] -= 2.0  # few answers end by themselves
    return scores


def tokenize(vocabulary: Any, text: bytes, length: int, tokens: Any, room: int, add: bool, special: bool) -> int:
    found: List[int] = []
    while text:
        name = next((name for name in SPECIALS if special and text.startswith(name.encode())), "")
        found.append(256 + SPECIALS.index(name) if name else text[0])
        text = text[len(name) or 1 :]
    if add:  # of a model that has both
        found = [256, *found, 257]
    if len(found) > room:
        return -len(found)
    tokens[: len(found)] = found
    return len(found)


def piece(vocabulary: Any, token: int, found: Any, room: int, strip: int, special: bool) -> int:
    text = bytes([token]) if token < 256 else SPECIALS[token - 256].encode() if special else b""
    found[: len(text)] = text
    return len(text)


def remove(context: Context, slot: int, begin: int, end: int) -> bool:
    assert end == -1
    del context.sequences[slot][max(0, begin) :]
    return True


def copy(context: Context, source: int, target: int, begin: int, end: int) -> None:
    assert (begin, end) == (-1, -1) and not context.sequences[target]
    context.sequences[target] = list(context.sequences[source])


def load(path: bytes, settings: Any) -> Any:
    with open(path, "rb") as file:
        return types.SimpleNamespace(vocabulary_only=settings.vocab_only) if file.read(4) == b"GGUF" else None


def decode(context: Context, batch: Batch) -> int:
    context.scores = {}
    for place in range(batch.n_tokens):
        tokens = context.sequences.get(batch.seq_id[place][0])
        if tokens is None or batch.n_seq_id[place] != 1 or batch.pos[place] != len(tokens):
            return -1
        if len(tokens) == context.room:
            return 1
        tokens.append(batch.token[place])
        if batch.logits[place]:
            context.scores[place] = scores_of(tokens)
    return 0


FUNCTIONS: Dict[str, Any] = {
    "backend_init": lambda: None,
    "model_default_params": lambda: types.SimpleNamespace(vocab_only=False),
    "context_default_params": types.SimpleNamespace,
    "supports_gpu_offload": lambda: os.environ.get("LLAMA_DOUBLE_GPU") == "1",
    "model_load_from_file": load,
    "model_free": lambda model: None,
    "model_n_ctx_train": lambda model: CONTEXT,
    "model_get_vocab": lambda model: model,
    "vocab_n_tokens": lambda vocabulary: VOCABULARY,
    "model_size": lambda model: MODEL_BYTES,
    "get_memory": lambda context: context,
    "batch_init": lambda room, embeddings, sequences: Batch(room),
    "batch_free": lambda batch: None,
    "free": lambda context: setattr(context, "open", False),
    "memory_seq_rm": remove,
    "memory_seq_cp": copy,
    "get_logits_ith": lambda context, place: context.scores[place].ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
    "model_has_encoder": lambda model: False,
    "model_has_decoder": lambda model: True,
    "model_is_recurrent": lambda model: False,
    "model_is_hybrid": lambda model: False,
    "model_n_swa": lambda model: 0,
    "model_meta_val_str": lambda model, key, found, room: -1,
    "vocab_bos": lambda vocabulary: 256,
    "vocab_eos": lambda vocabulary: 257,
    "vocab_get_add_bos": lambda vocabulary: False,
    "vocab_is_eog": lambda vocabulary, token: token == 257,
    "vocab_is_control": lambda vocabulary, token: token >= 256,
    "vocab_get_text": lambda vocabulary, token: SPECIALS[token - 256].encode(),
    "model_chat_template": lambda model, name: b"chatml",
    "tokenize": tokenize,
    "token_to_piece": piece,
}
"""Name without ``llama_`` -> what it does."""


def module(**overrides: Any) -> Any:
    """A new module; ``overrides`` replace its functions."""
    double: Any = types.ModuleType("llama_cpp")
    double.calls, double.contexts, double.log = [], [], None
    double.llama_token = ctypes.c_int32
    double.llama_log_callback = lambda function: function

    def recorded(context: Context, batch: Batch) -> int:
        double.calls.append([(batch.seq_id[place][0], batch.pos[place]) for place in range(batch.n_tokens)])
        return decode(context, batch)

    def opened(model: Any, settings: Any) -> Context:
        double.contexts.append(Context(settings))
        return double.contexts[-1]

    def listened(function: Any, data: Any) -> None:
        double.log = function

    for name, function in {
        **FUNCTIONS,
        "log_set": listened,
        "decode": recorded,
        "init_from_model": opened,
        **overrides,
    }.items():
        setattr(double, f"llama_{name}", function)
    return double


MODULE = """
import sys, llama_double
sys.modules[__name__] = llama_double.module(
    decode=llama_double.decode_or_end, model_load_from_file=llama_double.load_or_end
)
"""
BACKEND = "edgeserve.engines.lm.llama_backend"
LIBRARY = "edgeserve.engines.lm.llama_library"
SENTENCES = "edgeserve.engines.lm.llama_sentences"


def forget(monkeypatch: Any) -> None:
    """Have the modules on llama.cpp imported anew now, and again after the test."""
    for name in (LIBRARY, BACKEND, SENTENCES):
        monkeypatch.setitem(sys.modules, name, sys)
        del sys.modules[name]


def installed(directory: Any, monkeypatch: Any) -> Iterator[None]:
    """The double as a module in ``directory`` that this process and its children import. As llama.cpp, it ends its
    process where something is wrong: at the token ``!``, and at files whose names have ``abort`` (with ``weights``, not
    at their vocabulary)."""
    (directory / "llama_cpp.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    forget(monkeypatch)
    package = importlib.import_module("edgeserve.engines.lm")
    monkeypatch.setattr(package, "llama_backend", importlib.import_module(BACKEND), raising=False)
    yield
    sys.modules.pop("llama_cpp", None)


def decode_or_end(context: Context, batch: Batch) -> int:
    if ord("!") in list(batch.token[: batch.n_tokens]):
        _end(b"llama.cpp:1: GGML_ASSERT(all is well) failed")
    return decode(context, batch)


def load_or_end(path: bytes, settings: Any) -> Any:
    if b"abort" in os.path.basename(path) and not (settings.vocab_only and b"weights" in path):
        _end(b"llama.cpp:2: GGML_ASSERT(known) failed")
    return load(path, settings)


def _end(line: bytes) -> None:
    os.write(2, line + b"\n")
    os.abort()
