"""Language models of ``transformers``, on torch: what has no graph and no GGUF file, on the CPU or on CUDA. Causal
ones, and ones with an encoder.

Keys and values of the sequences of a batch lie side by side, filled up at their left to the longest, as the library's
models expect (``transformers_rows.py``).
"""

from __future__ import annotations

import inspect
import os
from typing import Any, List, Optional, Sequence

import torch
import transformers

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import BackendSession, EncoderPrompt, ModelFacts, TokenRow
from edgeserve.engines.lm.sampling import Scores
from edgeserve.engines.lm.tokenizers import FileTokenizer, around
from edgeserve.engines.lm.transformers_encdec import (
    EncoderDecoderSession,
    decoder_bytes,
    encoder_facts,
    with_own_positions,
)
from edgeserve.engines.lm.transformers_rows import TorchRows, TorchSession
from edgeserve.engines.options import Options
from edgeserve.engines.torch.failures import failed_by_device
from edgeserve.engines.torch.programs import take_out
from edgeserve.errors import ConfigError, EngineError

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def make(model: ModelConfig, path: str, options: Options, lanes: Sequence[LaneInfo]) -> TransformersBackend:
    """The table's entry; ``path`` is the ``config.json`` of a saved model."""
    precision = options.text("precision", "float32")
    if precision not in PRECISIONS:
        raise ConfigError(f"{options.where('precision')} = {precision!r}: expected one of {', '.join(PRECISIONS)}")
    lane = lanes[0] if lanes else LaneInfo()
    device = torch.device("cuda", lane.device_index) if lane.device_kind == "cuda" else torch.device("cpu")
    return TransformersBackend(
        model.name,
        os.path.dirname(path),
        options.integer("context", 0, 0),
        options.integer("threads", 0, 0, 1024),
        precision,
        device,
        lane.device_kind == "cuda",
    )


class TransformersBackend:
    """One model; the lanes share its weights. Only local files are read."""

    continues = True

    def __init__(
        self, model: str, folder: str, context: int, threads: int, precision: str, device: torch.device, on_cuda: bool
    ) -> None:
        self._model = model
        self._folder = folder
        self._context = context
        self._threads = threads
        self._dtype = PRECISIONS[precision]
        self._device = device
        self._on_cuda = on_cuda
        self._network: Any = None
        self._config: Any = None
        self._vocabulary: Optional[FileTokenizer] = None

    def load(self) -> ModelFacts:
        if self._network is None:
            try:
                has_encoder = self._has_encoder()
                kind = transformers.AutoModelForSeq2SeqLM if has_encoder else transformers.AutoModelForCausalLM
                network = kind.from_pretrained(self._folder, local_files_only=True)
                network = network.to(device=self._device, dtype=self._dtype).eval()
                if self._on_cuda:
                    with torch.cuda.device(self._device):
                        torch.cuda.synchronize()  # lanes compute on streams of their own
                self._network = with_own_positions(network) if has_encoder else network
            except Exception as error:
                of_device = failed_by_device(self._model, error, self._device)
                if of_device is not None:
                    raise of_device from error
                raise EngineError(
                    f"model {self._model!r}: transformers {transformers.__version__} cannot load "
                    f"{self._folder}: {error}"
                ) from error
        config = self._network.config
        why = _why_not_served(self._network)
        if why:
            self.unload()
            raise EngineError(
                f"model {self._model!r}: {why}, which this back end needs; serve it by llama.cpp (options.backend = "
                "'llama.cpp', a GGUF file) or by a server (options.backend = 'openai')"
            )
        weights = int(sum([item.numel() * item.element_size() for item in self._network.parameters()]))
        context = int(
            getattr(config, "max_position_embeddings", 0) or self._context or getattr(config, "n_positions", 0)
        )
        if not context:
            raise EngineError(
                f"model {self._model!r}: its config.json does not say for how many tokens it is; set "
                f"[model.{self._model}] options.context"
            )
        if self._context > context:
            raise EngineError(
                f"model {self._model!r}: [model.{self._model}] options.context = {self._context}; the "
                f"model has positions for {context} tokens, choose at most that"
            )
        if config.is_encoder_decoder:
            context = self._context or context
            per_token = decoder_bytes(config, self._dtype.itemsize)
            encoder = encoder_facts(self._network, context, self._model)
            return self._tried(ModelFacts(context, int(config.vocab_size), per_token, weights, encoder=encoder))
        heads = int(getattr(config, "num_key_value_heads", 0) or config.num_attention_heads)
        size = int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)
        per_token = 2 * int(config.num_hidden_layers) * heads * size * self._dtype.itemsize
        return self._tried(ModelFacts(self._context or context, int(config.vocab_size), per_token, weights))

    def _tried(self, facts: ModelFacts) -> ModelFacts:
        """The facts, after two steps of one sequence: some networks load, and fail in each step."""
        begin: Sequence[int] = (0,) if facts.encoder is None else facts.encoder.begin
        session = self.open(LaneInfo(), 1)  # on torch's own stream: no lane runs yet
        try:
            if facts.encoder is not None:
                session.encode([EncoderPrompt(0, [0])])
            session.prefill([TokenRow(0, begin, 0)])
            session.decode([TokenRow(0, [0], len(begin))])
        except EngineError as error:
            name = type(self._network).__name__
            if type(error) is EngineError:  # not a device's own
                self.unload()
                raise EngineError(
                    f"model {self._model!r}: {name} cannot be served: {error}. Expected a network without an encoder, "
                    f"or one such as T5, BART or Marian (BART's kind with transformers 4.52 or later; this is "
                    f"{transformers.__version__}); serve it by llama.cpp (options.backend = 'llama.cpp', a GGUF file) "
                    "or by a server (options.backend = 'openai')"
                ) from error
            raise
        finally:
            session.close()
        return facts

    def unload(self) -> None:
        network, self._network = self._network, None
        if network is not None and self._on_cuda:
            take_out(network)  # its parts refer to each other, and a collection of garbage stops every thread
            del network
            torch.cuda.empty_cache()  # else the memory stays torch's

    def open(self, lane: LaneInfo, slots: int) -> BackendSession:
        kind = EncoderDecoderSession if self._network.config.is_encoder_decoder else TransformersSession
        return kind(self._model, self._network, lane, self._device, self._threads or lane.threads, slots)

    def _has_encoder(self) -> bool:
        if self._config is None:
            self._config = transformers.AutoConfig.from_pretrained(self._folder, local_files_only=True)
        return bool(self._config.is_encoder_decoder)

    def tokenizer(self) -> FileTokenizer:
        if self._vocabulary is None:
            try:
                has_encoder = self._has_encoder()
                opened = transformers.AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            except Exception as error:
                raise EngineError(
                    f"model {self._model!r}: transformers {transformers.__version__} cannot read the "
                    f"tokenizer in {self._folder}: {error}"
                ) from error
            self._vocabulary = tokenizer_of(self._model, opened, has_encoder, self._ends())
        return self._vocabulary

    def _ends(self) -> List[int]:
        """The tokens that end an answer of ``model.generate``, as the folder says."""
        try:
            settings = transformers.GenerationConfig.from_pretrained(self._folder, local_files_only=True)
        except OSError:  # there is no generation_config.json
            settings = transformers.GenerationConfig.from_model_config(self._config)
        return _listed(settings.eos_token_id)


def _why_not_served(network: Any) -> str:
    """What a network lacks for :class:`TransformersSession`, ``""`` for nothing."""
    config = network.config
    kinds = {str(kind) for kind in getattr(config, "layer_types", None) or ()}
    others = sorted(kind for kind in kinds if kind == "linear_attention" or not kind.endswith("_attention"))
    if others or getattr(network, "_is_stateful", False):
        return f"its layers ({', '.join(others) or 'recurrent ones'}) keep no keys and values of each token"
    takes_positions = "position_ids" in inspect.signature(type(network).forward).parameters
    return "" if config.is_encoder_decoder or takes_positions else "its network takes no position_ids"


class TransformersSession(TorchSession):
    """One lane's sequences."""

    def __init__(
        self, model: str, network: Any, lane: LaneInfo, device: torch.device, threads: int, slots: int
    ) -> None:
        super().__init__(model, network, lane, device, threads, slots)
        self._rows = TorchRows(left=True)

    def close(self) -> None:
        self._rows.clear()

    def _forget(self, slot: int) -> None:
        self._rows.free(slot)

    def _run(self, rows: List[TokenRow]) -> List[Scores]:
        slots, count = [row.slot for row in rows], len(rows[0].tokens)
        try:
            with self._step(len(rows)):
                starts = torch.tensor([row.start for row in rows], device=self._device)
                self._rows.gather(slots)
                said = self._network(
                    input_ids=torch.tensor([list(row.tokens) for row in rows], device=self._device),
                    attention_mask=self._rows.mask(slots, count, self._device),
                    position_ids=starts[:, None] + torch.arange(count, device=self._device)[None, :],
                    use_cache=True,
                    **{self._cache_name: self._rows.cache},
                )
                scores = self._read(said.logits, rows)
        except EngineError:
            self._rows.lose()
            raise
        self._rows.grown([row.start + count for row in rows])
        return scores


def _listed(tokens: Any) -> List[int]:
    return [] if tokens is None else list(tokens) if isinstance(tokens, (list, tuple)) else [tokens]


def tokenizer_of(model: str, opened: Any, has_encoder: bool, ends: Sequence[int] = ()) -> FileTokenizer:
    """The tokenizer of a saved model, which must be one of the tokenizers library. Prompts of a model that
    ``has_encoder`` have all the tokens that it puts around a text. ``ends``: further tokens that end an answer."""
    backend = getattr(opened, "backend_tokenizer", None)
    if backend is None:
        raise EngineError(
            f"model {model!r}: its tokenizer is not of the tokenizers library (tokenizer.json), and "
            "others are not supported; save it with transformers as a fast tokenizer"
        )
    template = opened.chat_template
    if isinstance(template, dict):  # several, by name
        template = template.get("default")
    whole, inner = opened.encode("a"), opened.encode("a", add_special_tokens=False)  # not every class says what it adds
    begin, end = around(whole, inner)
    texts = opened.special_tokens_map
    return FileTokenizer(
        backend.to_str(),
        begin if has_encoder or begin == [opened.bos_token_id] else [],
        list(dict.fromkeys([*_listed(opened.eos_token_id), *ends])),
        str(template or ""),
        model,
        texts.get("bos_token", ""),
        texts.get("eos_token", ""),
        end if has_encoder else [],
    )
