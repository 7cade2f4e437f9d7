"""GGUF files on llama.cpp, through the low-level calls of ``llama-cpp-python``: quantised models, on the CPU or a GPU.

Each lane has a context of llama.cpp with a sequence number per slot (``llama_numbers.py``). A step is one
``llama_decode`` with a batch in which each token says its position and its sequence. llama.cpp reserves the memory of
all slots when a context is made; freeing a slot empties its cells.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.gguf import CAUSAL, WRITES, check_kind, kept_per_token, not_a_decoder_alone, read_header
from edgeserve.engines.lm.backend import BackendSession, ModelFacts, TokenRow
from edgeserve.engines.lm.llama_library import NO_GPU, LlamaTokenizer, fact, failure_text, load_file, model_settings
from edgeserve.engines.lm.llama_numbers import Numbers
from edgeserve.engines.lm.prefixes import PREFIX_CACHE_BYTES
from edgeserve.engines.lm.sampling import Scores, best_of
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, OutOfMemory, nearest

BATCH_TOKENS, BATCH_TOKENS_MIN = 512, 32
"""Tokens of one ``llama_decode``, and the fewest that ``options.ubatch`` may make of them; more are given in several
calls. No turn has more."""

KV_TYPES = {
    "f32": (0, 128),
    "f16": (1, 64),
    "bf16": (30, 64),
    "q8_0": (8, 34),
    "q5_1": (7, 24),
    "q5_0": (6, 22),
    "q4_1": (3, 20),
    "q4_0": (2, 18),
}
"""The types in which keys and values are kept: ggml's number of the type, and the bytes of :data:`BLOCK` numbers
(``ggml.h``)."""

BLOCK = 32
FLOATS = ("f32", "f16", "bf16")
FLASH_AUTO = -1
"""llama.cpp's ``llama_flash_attn_type``: it takes flash attention where it can. 0 is never, 1 is always."""

ALL_LAYERS = 10_000
"""More layers than any model has: all of them lie on the GPU."""

LOGIT_BYTES = 4
"""A score is a float32; llama.cpp reserves one per token of a batch and word of the vocabulary."""


def make(model: ModelConfig, path: str, options: Options, lanes: Sequence[LaneInfo]) -> LlamaBackend:
    """The table's entry."""
    gpu = lanes[0] if lanes and lanes[0].device_kind == "cuda" else None
    slots = max(model.slots, *model.batch)
    layers = options.integer("gpu_layers", ALL_LAYERS if gpu else 0, 0, ALL_LAYERS)
    flash = int(options.boolean("flash_attn", False)) if "flash_attn" in options else FLASH_AUTO
    kept = KvKind(_kv_type(options, "type_k"), _kv_type(options, "type_v"), flash)
    if kept.values not in FLOATS and not flash:
        raise ConfigError(
            f"{options.where('type_v')} = {kept.values!r} needs flash attention, and flash_attn = false forbids it; "
            "leave one of them out"
        )
    return LlamaBackend(
        model.name,
        path,
        options.integer("context", 0, 0),
        options.integer("threads", 0, 0, 1024),
        layers,
        gpu.device_index if gpu else NO_GPU,
        slots,
        options.size_bytes("prefix_cache", PREFIX_CACHE_BYTES) > 0,
        kept,
        options.integer("ubatch", BATCH_TOKENS, BATCH_TOKENS_MIN, BATCH_TOKENS),
    )


class KvKind(NamedTuple):
    """The types of kept keys and values, names of :data:`KV_TYPES`, and whether attention is computed in one pass."""

    keys: str = "f16"
    values: str = "f16"
    flash: int = FLASH_AUTO

    def bytes_of(self, keys: int, values: int) -> int:
        """So many numbers of each."""
        return sum([count * KV_TYPES[name][1] // BLOCK for name, count in ((self.keys, keys), (self.values, values))])


def _kv_type(options: Options, key: str) -> str:
    name = options.text(key, "f16")
    if name not in KV_TYPES:
        raise ConfigError(f"{options.where(key)} = {name!r}{nearest(name, KV_TYPES)}")
    return name


class LlamaBackend:
    """One GGUF file, whose weights the lanes of a device share: on the device ``gpu``, or on :data:`NO_GPU`."""

    continues = True

    def __init__(
        self,
        model: str,
        path: str,
        context: int,
        threads: int,
        gpu_layers: int,
        gpu: int,
        slots: int,
        keeps: bool,
        kept: KvKind,
        batch_tokens: int,
    ) -> None:
        self._model = model
        self._path = path
        self._context = context
        self._threads = threads
        self._gpu_layers = gpu_layers
        self._gpu = gpu
        self._slots = slots
        self._keeps = keeps
        self._kept = kept
        self._batch_tokens = batch_tokens
        self._loaded: Any = None
        self._vocabulary: Optional[LlamaTokenizer] = None

    def load(self) -> ModelFacts:
        if self._loaded is None:
            if self._gpu_layers and not llama_cpp.llama_supports_gpu_offload():
                raise EngineError(
                    f"model {self._model!r}: {self._gpu_layers} layers are to lie on a GPU, but this "
                    "build of llama-cpp-python has none; build it with CMAKE_ARGS=-DGGML_CUDA=on, or set "
                    f"[model.{self._model}] options.gpu_layers = 0"
                )
            self.tokenizer()  # a model that cannot be run is refused before its weights are read
            self._loaded = self._opened(vocabulary_only=False)
        model = self._loaded
        trained = int(llama_cpp.llama_model_n_ctx_train(model))
        if self._context > trained:
            raise EngineError(
                f"model {self._model!r}: [model.{self._model}] options.context = {self._context}, but "
                f"the model was trained with {trained} tokens; choose at most that"
            )
        context, vocabulary, per_token = self._context or trained, self.vocabulary_size(), self._bytes_per_token()
        kept_bytes = context * per_token * self._numbers(self._slots)
        return ModelFacts(
            context,
            vocabulary,
            per_token,
            int(llama_cpp.llama_model_size(model)),
            self._moves() and self._holds_each_token(),
            reserved_bytes=kept_bytes + self._batch_tokens * vocabulary * LOGIT_BYTES,
        )

    def _numbers(self, slots: int) -> int:
        """Sequences of a context: one more than slots where some are kept between others."""
        return slots + (self._moves() and self._keeps and slots > 1)

    def _moves(self) -> bool:
        """True if a sequence may move to another number, or be copied. llama.cpp copies all that is reserved for it,
        which pays within a step or two where that is no more than the weights, which a step with a gap reads again."""
        context = self._context or int(llama_cpp.llama_model_n_ctx_train(self._loaded))
        return context * self._bytes_per_token() <= int(llama_cpp.llama_model_size(self._loaded))

    def _holds_each_token(self) -> bool:
        """True if a sequence can go on from any of its tokens: not with recurrent layers, or a sliding window."""
        model = self._loaded
        return not (
            llama_cpp.llama_model_is_recurrent(model)
            or llama_cpp.llama_model_is_hybrid(model)
            or llama_cpp.llama_model_n_swa(model) > 0
        )

    def _bytes_per_token(self) -> int:
        return self._kept.bytes_of(*kept_per_token(read_header(self._path)))

    def unload(self) -> None:
        model, self._loaded = self._loaded, None
        if model is not None:
            llama_cpp.llama_model_free(model)

    def open(self, lane: LaneInfo, slots: int) -> LlamaSession:
        context = self._context or int(llama_cpp.llama_model_n_ctx_train(self._loaded))
        settings = llama_cpp.llama_context_default_params()
        moves, numbers = self._moves(), self._numbers(slots)
        settings.n_ctx = context * numbers  # of all sequences together, each has its share
        settings.n_batch = settings.n_ubatch = self._batch_tokens
        settings.n_seq_max = numbers
        settings.n_threads = settings.n_threads_batch = self._threads or lane.threads
        settings.kv_unified = False
        settings.type_k, settings.type_v = KV_TYPES[self._kept.keys][0], KV_TYPES[self._kept.values][0]
        settings.flash_attn_type = self._kept.flash
        settings.offload_kqv = settings.op_offload = self._gpu != NO_GPU
        settings.no_perf = True
        made = llama_cpp.llama_init_from_model(self._loaded, settings)
        if not made:
            raise OutOfMemory(
                f"model {self._model!r}: llama.cpp could not make a context of {numbers} sequences of "
                f"{context} tokens, keys as {self._kept.keys} and values as {self._kept.values}; lower "
                f"[model.{self._model}] slots or options.context, or keep them as f16{failure_text()}"
            )
        return LlamaSession(self._model, made, slots, self.vocabulary_size(), numbers, moves, self._batch_tokens)

    def vocabulary_size(self) -> int:
        """The number of different tokens of the loaded model."""
        return int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._loaded)))

    def tokenizer(self) -> LlamaTokenizer:
        """Reads the vocabulary alone, and keeps it when the model is unloaded."""
        if self._vocabulary is None:
            self._vocabulary = LlamaTokenizer(self._opened(vocabulary_only=True))
        return self._vocabulary

    def _opened(self, vocabulary_only: bool) -> Any:
        has_gpu = llama_cpp.llama_supports_gpu_offload() and not vocabulary_only
        settings = model_settings(self._gpu if has_gpu else NO_GPU)
        settings.n_gpu_layers = 0 if vocabulary_only else self._gpu_layers
        # What lies on the GPU alone is read, not mapped: a file's pages would fill the memory that a board shares.
        settings.use_mmap = not (has_gpu and self._gpu_layers == ALL_LAYERS)
        settings.vocab_only = vocabulary_only
        check_kind(self._path, WRITES, self._model)
        model = load_file(self._model, self._path, settings)
        architecture = fact(model, "general.architecture")
        if (
            llama_cpp.llama_model_has_encoder(model)
            or not llama_cpp.llama_model_has_decoder(model)
            or fact(model, f"{architecture}.{CAUSAL}") == "false"
        ):
            llama_cpp.llama_model_free(model)
            raise EngineError(f"model {self._model!r}: {self._path} {not_a_decoder_alone(architecture)}")
        return model


class LlamaSession(BackendSession):
    """One lane's context, of so many ``numbers`` of sequences. ``moves``: a sequence may move to another one."""

    mixes = True

    def __init__(
        self, model: str, context: Any, slots: int, vocabulary: int, numbers: int, moves: bool, batch_tokens: int
    ) -> None:
        self.slots = slots
        self._model = model
        self._context: Any = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._batch = llama_cpp.llama_batch_init(batch_tokens, 0, 1)
        self._vocabulary = vocabulary
        self._numbers = Numbers(numbers)
        self._lengths: Dict[int, int] = {}  # slot -> tokens in memory
        self._moves = moves
        self._batch_tokens = batch_tokens

    def prefill(self, rows: Sequence[TokenRow]) -> List[Scores]:
        number_of = self._numbered([row.slot for row in rows])
        for row in rows:
            if row.start < self._lengths.get(row.slot, 0):
                llama_cpp.llama_memory_seq_rm(self._memory, number_of[row.slot], row.start, -1)
            self._lengths[row.slot] = row.start + len(row.tokens)
        best = {number_of[row.slot]: row.best for row in rows}
        given = [
            (token, row.start + place, number_of[row.slot], place + 1 == len(row.tokens))
            for row in sorted(rows, key=lambda row: number_of[row.slot])
            for place, token in enumerate(row.tokens)
        ]
        scores: Dict[int, Scores] = {}
        for begin in range(0, len(given), self._batch_tokens):
            scores.update(self._decode(given[begin : begin + self._batch_tokens], best))
        return [scores[number_of[row.slot]] for row in rows]

    def _numbered(self, slots: Sequence[int]) -> Dict[int, int]:
        """The sequences' numbers in this step: neighbours, as far as that can be."""
        for slot in slots:
            self._numbers.of(slot)
        for move in self._numbers.close_gaps(slots) if self._moves else ():
            llama_cpp.llama_memory_seq_cp(self._memory, move.source, move.target, -1, -1)
            llama_cpp.llama_memory_seq_rm(self._memory, move.source, -1, -1)
        return {slot: self._numbers.of(slot) for slot in slots}

    def decode(self, rows: Sequence[TokenRow]) -> List[Scores]:
        return self.prefill(rows)

    def keep(self, slot: int) -> None:
        self._numbers.keep(slot)

    def copy(self, source: int, target: int, count: int) -> None:
        number_of = {slot: self._numbers.of(slot) for slot in (source, target)}
        llama_cpp.llama_memory_seq_cp(self._memory, number_of[source], number_of[target], -1, -1)
        self._lengths[target] = self._lengths[source]  # the next row drops the tokens behind the first ``count``

    def free(self, slot: int) -> None:
        self._lengths.pop(slot, None)
        number = self._numbers.leave(slot)
        if number >= 0:
            llama_cpp.llama_memory_seq_rm(self._memory, number, -1, -1)

    def lost(self) -> bool:
        return False

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(context)

    def _decode(self, given: Sequence[Tuple[int, int, int, bool]], best: Mapping[int, int]) -> Dict[int, Scores]:
        """Run tokens with their positions and sequences; by sequence the scores behind the tokens that ask for them, of
        each as many of the ``best`` as are read."""
        batch = self._batch
        batch.n_tokens = len(given)
        for place, (token, position, number, last) in enumerate(given):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = number
            batch.logits[place] = last
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            why = "no room in its memory" if status == 1 else f"status {status}"
            raise EngineError(
                f"model {self._model!r}: llama.cpp failed in a step of {len(given)} tokens: {why}{failure_text()}"
            )
        found: Dict[int, Scores] = {}
        for place, (_, _, number, last) in enumerate(given):
            if last:
                logits = llama_cpp.llama_get_logits_ith(self._context, place)
                scores: NDArray[Any] = np.ctypeslib.as_array(logits, shape=(self._vocabulary,))  # it reuses them
                some = 0 < best[number] < self._vocabulary
                found[number] = best_of(scores, best[number]) if some else np.array(scores)
        return found
