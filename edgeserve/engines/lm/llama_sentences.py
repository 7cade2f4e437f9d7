"""Vectors of texts by llama.cpp, through the low-level calls of ``llama-cpp-python``: GGUF files of sentence models."""

from __future__ import annotations

import threading
from typing import Any, List, Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.lm.llama_library import LlamaTokenizer, load_file, model_settings
from edgeserve.errors import EngineError

POOLING_NONE = 0


class LlamaEncoder:
    """One context for at most ``texts`` texts of ``tokens`` tokens together: llama.cpp computes a text whole, in one
    run. Lanes take turns."""

    def __init__(self, model: str, path: str, tokens: int, texts: int, pooling: int, threads: int) -> None:
        self._model = model
        self._loaded = load_file(model, path, model_settings())
        self._tokenizer = LlamaTokenizer(self._loaded)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = tokens
        settings.n_seq_max = texts
        settings.n_threads = settings.n_threads_batch = threads
        settings.offload_kqv = settings.op_offload = False
        settings.embeddings = True
        settings.pooling_type = pooling
        settings.kv_unified = True
        settings.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._loaded, settings)
        if not self._context or llama_cpp.llama_pooling_type(self._context) == POOLING_NONE:
            self.close()
            raise EngineError(
                f"model {model!r}: llama.cpp makes no vector of a text with {path}; set [model.{model}] "
                "options.pooling to mean, cls or last, or choose a sentence model"
            )
        self._size = int(llama_cpp.llama_model_n_embd(self._loaded))
        self._batch = llama_cpp.llama_batch_init(tokens, 0, 1)
        self._lock = threading.Lock()

    def tokens_of(self, text: str) -> List[int]:
        return self._tokenizer.encode(text, whole=True)

    def vectors(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        with self._lock:
            batch, count = self._batch, 0
            for number, row in enumerate(rows):
                for position, token in enumerate(row):
                    batch.token[count], batch.pos[count], batch.n_seq_id[count] = token, position, 1
                    batch.seq_id[count][0], batch.logits[count] = number, True
                    count += 1
            batch.n_tokens = count
            memory = llama_cpp.llama_get_memory(self._context)
            if memory:
                llama_cpp.llama_memory_clear(memory, True)
            status = llama_cpp.llama_decode(self._context, batch)
            if status != 0:
                raise EngineError(f"model {self._model!r}: llama.cpp failed with {count} tokens: status {status}")
            found = [llama_cpp.llama_get_embeddings_seq(self._context, number) for number in range(len(rows))]
            return np.stack([np.array(np.ctypeslib.as_array(each, shape=(self._size,))) for each in found])

    def close(self) -> None:
        """Give the memory back."""
        if self._context:
            llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._loaded)
