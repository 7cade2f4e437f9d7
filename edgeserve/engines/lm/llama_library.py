"""llama.cpp as a library: what it says of a failure, how a file is loaded, and a file's vocabulary."""

from __future__ import annotations

import collections
import ctypes
import os
from typing import Any, Deque, List, Tuple

import llama_cpp

from edgeserve.engines.cuda.status import OUT_OF_MEMORY, status_in
from edgeserve.engines.lm.tokenizers import longest_first
from edgeserve.errors import EngineError, OutOfMemory

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # where llama.cpp ends its process it would first wait for a debugger

PIECE_BYTES = 256
"""Room for the bytes of one token, at first."""

FACT_BYTES = 256
"""Room for a short entry of the file's header: the name of an architecture, a number."""

ERROR = 4
"""ggml's level of lines that say why something failed."""

LINES_KEPT = 4

_last_errors: Deque[str] = collections.deque(maxlen=LINES_KEPT)
"""The lines of llama.cpp on failures, oldest first, of any thread."""


def _listen(level: int, text: bytes, user_data: Any) -> None:
    """Keep the lines of llama.cpp that give the reason of a failure; the others are for its developers."""
    if level == ERROR and text.strip():
        _last_errors.append(text.decode("utf-8", "replace").strip())


_LOG = llama_cpp.llama_log_callback(_listen)
"""Kept here: llama.cpp calls it for as long as the process lives."""


def failure_text() -> str:
    """The lines of llama.cpp on its last failure, for the end of a message; each is returned once."""
    lines = list(_last_errors)
    _last_errors.clear()
    return ". llama.cpp said: " + "; ".join(lines) if lines else ""


ONE_GPU, NO_GPU = 0, -1
"""``LLAMA_SPLIT_MODE_NONE``: the whole model lies on ``main_gpu``; with -1 there, llama.cpp uses none (``llama.h``)."""


def model_settings(gpu: int = NO_GPU) -> Any:
    """llama.cpp's settings of a model on the device ``gpu``, or on none: by itself it takes all that it finds."""
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers, settings.split_mode, settings.main_gpu = 0, ONE_GPU, gpu
    return settings


def load_file(model: str, path: str, settings: Any) -> Any:
    """llama.cpp's model of a file. Raises :class:`EngineError` with what llama.cpp said, of its kind."""
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_LOG, ctypes.c_void_p(0))
    loaded = llama_cpp.llama_model_load_from_file(path.encode(), settings)
    if not loaded:
        said = failure_text()
        kind = OutOfMemory if status_in(said) == OUT_OF_MEMORY else EngineError
        raise kind(
            f"model {model!r}: llama.cpp cannot load {path}; expected a GGUF file of a "
            f"model that this version knows, and memory for it{said}"
        )
    return loaded


def fact(model: Any, key: str) -> str:
    """A short entry of the file's header as text; empty where there is none."""
    found = ctypes.create_string_buffer(FACT_BYTES)
    count = llama_cpp.llama_model_meta_val_str(model, key.encode(), found, FACT_BYTES)
    return found.value.decode() if count >= 0 else ""


class LlamaTokenizer:
    """The vocabulary of a GGUF file. llama.cpp's calls for it change nothing, so threads share it."""

    def __init__(self, model: Any) -> None:
        self._opened = model  # the vocabulary lives in it
        vocabulary = self._vocabulary = llama_cpp.llama_model_get_vocab(model)
        tokens = range(llama_cpp.llama_vocab_n_tokens(vocabulary))
        begin, end = int(llama_cpp.llama_vocab_bos(vocabulary)), int(llama_cpp.llama_vocab_eos(vocabulary))
        self.first = [begin] if begin >= 0 and llama_cpp.llama_vocab_get_add_bos(vocabulary) else []
        self.last: Tuple[int, ...] = ()
        self.bos_token, self.eos_token = [
            self._piece(token, special=True).decode("utf-8", "replace") if token >= 0 else "" for token in (begin, end)
        ]
        self.stops = [token for token in tokens if llama_cpp.llama_vocab_is_eog(vocabulary, token)]
        self.chat_template = (llama_cpp.llama_model_chat_template(model, None) or b"").decode()
        self.special_texts = longest_first(
            [
                llama_cpp.llama_vocab_get_text(vocabulary, token).decode()
                for token in tokens
                if llama_cpp.llama_vocab_is_control(vocabulary, token)
            ]
        )

    def encode(self, text: str, special: bool = False, whole: bool = False) -> List[int]:
        """``whole``: with the tokens that the file has begin and end a text."""
        data = text.encode()
        room = len(data) + 2
        while True:
            tokens = (llama_cpp.llama_token * room)()
            count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), tokens, room, whole, special)
            if count >= 0:
                return list(tokens[:count])
            room = -count

    def piece(self, token: int, begins: bool = False) -> bytes:
        return self._piece(token, special=False)

    def _piece(self, token: int, special: bool) -> bytes:
        """``special``: a control token has its name."""
        room = PIECE_BYTES
        while True:
            found = ctypes.create_string_buffer(room)
            count = llama_cpp.llama_token_to_piece(self._vocabulary, token, found, room, 0, special)
            if count >= 0:
                return found.raw[:count]
            room = -count
