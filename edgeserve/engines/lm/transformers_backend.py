"""Causal language models of ``transformers``, on torch: what has no graph and no GGUF file, on the CPU or on CUDA.

Keys and values of the sequences of a batch lie side by side, filled up at their left to the longest, as the library's
models expect. As long as the same sequences make steps they stay so; where the company changes they are laid anew.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import transformers
from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import ModelFacts, Row
from edgeserve.engines.lm.tokenizers import FileTokenizer
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, EngineError, OutOfMemory

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def make(model: ModelConfig, path: str, options: Options, lanes: Sequence[LaneInfo]) -> TransformersBackend:
    """The table's entry; ``path`` is the ``config.json`` of a saved model."""
    precision = options.text("precision", "float32")
    if precision not in PRECISIONS:
        raise ConfigError(f"{options.where('precision')} = {precision!r}: expected one of {', '.join(PRECISIONS)}")
    lane = lanes[0] if lanes else LaneInfo()
    device = f"cuda:{lane.device_index}" if lane.device_kind == "cuda" else "cpu"
    return TransformersBackend(
        model.name,
        os.path.dirname(path),
        options.integer("context", 0, 0),
        options.integer("threads", 0, 0, 1024),
        precision,
        device,
    )


class TransformersBackend:
    """One model; the lanes share its weights. Only local files are read."""

    continues = True

    def __init__(self, model: str, folder: str, context: int, threads: int, precision: str, device: str) -> None:
        self._model = model
        self._folder = folder
        self._context = context
        self._threads = threads
        self._dtype = PRECISIONS[precision]
        self._device = device
        self._network: Any = None
        self._vocabulary: Optional[FileTokenizer] = None

    def load(self) -> ModelFacts:
        if self._network is None:
            try:
                network = transformers.AutoModelForCausalLM.from_pretrained(self._folder, local_files_only=True)
                self._network = network.to(device=self._device, dtype=self._dtype).eval()
            except torch.cuda.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"model {self._model!r}: no room for its weights on {self._device}: {error}"
                ) from error
            except Exception as error:
                raise EngineError(
                    f"model {self._model!r}: transformers {transformers.__version__} cannot load "
                    f"{self._folder}: {error}"
                ) from error
        config = self._network.config
        context = int(getattr(config, "max_position_embeddings", 0) or self._context)
        if self._context > context or not context:
            raise EngineError(
                f"model {self._model!r}: [model.{self._model}] options.context = {self._context}; the "
                f"model has positions for {context} tokens, choose at most that"
            )
        heads = int(getattr(config, "num_key_value_heads", 0) or config.num_attention_heads)
        size = int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)
        per_token = 2 * int(config.num_hidden_layers) * heads * size * self._dtype.itemsize
        weights = sum([item.numel() * item.element_size() for item in self._network.parameters()])
        return ModelFacts(self._context or context, int(config.vocab_size), per_token, int(weights))

    def unload(self) -> None:
        self._network = None

    def open(self, lane: LaneInfo, slots: int) -> TransformersSession:
        return TransformersSession(self._model, self._network, self._device, self._threads or lane.threads, slots)

    def tokenizer(self) -> FileTokenizer:
        if self._vocabulary is None:
            try:
                opened = transformers.AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            except Exception as error:
                raise EngineError(
                    f"model {self._model!r}: transformers {transformers.__version__} cannot read the "
                    f"tokenizer in {self._folder}: {error}"
                ) from error
            self._vocabulary = tokenizer_of(self._model, opened)
        return self._vocabulary


Layers = List[Tuple[Any, Any]]
"""Keys and values per layer: ``[sequences, heads, tokens, head size]``."""


class TransformersSession:
    """One lane's sequences: those that made the last step together as one block, the others each by itself."""

    mixes = False

    def __init__(self, model: str, network: Any, device: str, threads: int, slots: int) -> None:
        self.slots = slots
        self._model = model
        self._network = network
        self._device = device
        self._threads = threads
        self._lengths: Dict[int, int] = {}  # slot -> tokens in memory
        self._alone: Dict[int, Layers] = {}  # slot -> its part, where it is in no block
        self._members: List[int] = []  # slots of the block, in order
        self._block: Layers = []

    def prefill(self, rows: Sequence[Row]) -> List[NDArray[Any]]:
        """Rows of one length and without memory run together, the others each alone."""
        scores: Dict[int, NDArray[Any]] = {}
        fresh: Dict[int, List[Row]] = {}
        for row in rows:
            if row.start == 0:
                fresh.setdefault(len(row.tokens), []).append(row)
        for group in [*fresh.values(), *([row] for row in rows if row.start > 0)]:
            scores.update(self._run(group))
        return [scores[row.slot] for row in rows]

    def decode(self, rows: Sequence[Row]) -> List[NDArray[Any]]:
        scores = self._run(rows)
        return [scores[row.slot] for row in rows]

    def free(self, slot: int) -> None:
        if slot in self._members:
            self._part()
        self._alone.pop(slot, None)
        self._lengths.pop(slot, None)

    def keep(self, slot: int) -> None:
        raise NotImplementedError("ModelFacts.reuses is False")

    def copy(self, source: int, target: int, count: int) -> None:
        raise NotImplementedError("ModelFacts.reuses is False")

    def lost(self) -> bool:
        return False

    def close(self) -> None:
        self._members, self._block, self._alone, self._lengths = [], [], {}, {}

    def _run(self, rows: Sequence[Row]) -> Dict[int, NDArray[Any]]:
        """Append as many tokens to each row, and the scores by slot."""
        slots, count = [row.slot for row in rows], len(rows[0].tokens)
        starts = torch.tensor([row.start for row in rows], device=self._device)
        self._gather(slots, rows)
        longest = int(starts.max())
        places = torch.arange(longest + count, device=self._device)
        mask = (places[None, :] >= (longest - starts)[:, None]).long()  # filled up at the left
        positions = starts[:, None] + torch.arange(count, device=self._device)[None, :]
        tokens = torch.tensor([list(row.tokens) for row in rows], device=self._device)
        if self._device == "cpu" and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                said = self._network(
                    input_ids=tokens,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache_of(self._block),
                    use_cache=True,
                )
                scores = said.logits[:, -1].float().cpu().numpy()
        except torch.cuda.OutOfMemoryError as error:
            raise OutOfMemory(
                f"model {self._model!r}: no memory for a step of {len(rows)} sequences: {error}"
            ) from error
        except Exception as error:
            raise EngineError(
                f"model {self._model!r}: torch {torch.__version__} failed in a step of {len(rows)} sequences: {error}"
            ) from error
        self._block, self._members = layers_of(said.past_key_values), slots
        self._lengths.update({row.slot: row.start + count for row in rows})
        return dict(zip(slots, scores))

    def _gather(self, slots: List[int], rows: Sequence[Row]) -> None:
        """Make these sequences the block."""
        if slots == self._members:
            return
        self._part()
        if all(row.start == 0 for row in rows):
            self._block = []
            return
        longest = max([row.start for row in rows])
        parts = [self._alone.pop(slot) for slot in slots]
        self._block = [
            tuple(torch.cat([_filled(part[layer][kind], longest) for part in parts]) for kind in (0, 1))
            for layer in range(len(parts[0]))
        ]

    def _part(self) -> None:
        """Let the sequences of the block lie each by itself."""
        for place, slot in enumerate(self._members):
            length = self._lengths[slot]
            self._alone[slot] = [
                (
                    keys[place : place + 1, :, keys.shape[2] - length :].clone(),
                    values[place : place + 1, :, values.shape[2] - length :].clone(),
                )
                for keys, values in self._block
            ]
        self._members, self._block = [], []


def _filled(array: Any, length: int) -> Any:
    """Zeros before the tokens of one sequence, up to ``length`` in all."""
    return torch.nn.functional.pad(array, (0, 0, length - array.shape[2], 0))


def cache_of(layers: Layers) -> Any:
    """The library's cache with these keys and values."""
    cache = transformers.DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache


def layers_of(cache: Any) -> Layers:
    """Keys and values of the library's cache, whose form has changed over its versions."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache))


def tokenizer_of(model: str, opened: Any) -> FileTokenizer:
    """The tokenizer of a saved model, which must be one of the tokenizers library."""
    backend = getattr(opened, "backend_tokenizer", None)
    if backend is None:
        raise EngineError(
            f"model {model!r}: its tokenizer is not of the tokenizers library (tokenizer.json), and "
            "others are not supported; save it with transformers as a fast tokenizer"
        )
    ends = opened.eos_token_id
    stops = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]
    begin = opened.encode("a")[:1]  # what it puts before any text; not every class says so (add_bos_token)
    texts = opened.special_tokens_map
    return FileTokenizer(
        backend.to_str(),
        begin if begin == [opened.bos_token_id] else [],
        stops,
        str(opened.chat_template or ""),
        model,
        texts.get("bos_token", ""),
        texts.get("eos_token", ""),
    )
