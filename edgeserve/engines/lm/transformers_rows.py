"""The code that sessions on torch share: the call of the network, and keys and values of their sequences: one block for
the sequences that run together, the others each by itself.

As long as the same sequences run, the block stays as it is, in the library's cache, which the network makes longer in
place; where the company changes it is laid anew. On CUDA all of this is work of the lane's stream. Each step ends when
its scores are on the host, so the lane's clock has its times.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, ContextManager, Dict, Iterator, List, Sequence, Tuple

import torch
import transformers

from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import BackendSession, TokenRow, begun_alone, in_groups
from edgeserve.engines.lm.sampling import Scores, best_found
from edgeserve.engines.torch.failures import failed_by_device
from edgeserve.engines.torch.streams import stream_of
from edgeserve.errors import EngineError

CACHE_NAMES = ("cache", "past_key_values")
"""The library's names for a model's keys and values; the newest name first."""

Layers = List[Tuple[Any, Any]]
"""Keys and values per layer: ``[sequences, heads, tokens, head size]``."""


class TorchRows:
    """Sequences by slot, filled up to the longest at their left (``left``) or right. ``lengths``: tokens in memory by
    slot. ``cache``: the block, as the library has it."""

    def __init__(self, left: bool) -> None:
        self.lengths: Dict[int, int] = {}
        self.cache: Any = transformers.DynamicCache()
        self._left = left
        self._members: List[int] = []  # slots of the block, in order
        self._alone: Dict[int, Layers] = {}  # slot -> its part, where it is in no block

    def gather(self, slots: Sequence[int]) -> None:
        """Make these sequences the block. Either all of them have tokens, or none has."""
        if slots == self._members:
            return
        self._part()
        self._members = list(slots)
        if not any(slot in self._alone for slot in slots):
            return
        longest = max([self.lengths[slot] for slot in slots])
        parts = [self._alone.pop(slot) for slot in slots]
        for layer in range(len(parts[0])):
            keys, values = [torch.cat([self._filled(part[layer][of], longest) for part in parts]) for of in (0, 1)]
            self.cache.update(keys, values, layer)

    def grown(self, lengths: Sequence[int]) -> None:
        """A run has made the block longer: its sequences have so many tokens."""
        self.lengths.update(zip(self._members, lengths))

    def lose(self) -> None:
        """A run failed: the sequences of the block are gone."""
        self._members, self.cache = [], transformers.DynamicCache()

    def free(self, slot: int) -> None:
        if slot in self._members:
            self._part()
        self._alone.pop(slot, None)
        self.lengths.pop(slot, None)

    def clear(self) -> None:
        self.lose()
        self._alone, self.lengths = {}, {}

    def mask(self, slots: Sequence[int], more: int, device: torch.device) -> Any:
        """The mask of the places of the block that belong to its sequences, and ``more`` behind them: ``[sequences,
        places]``."""
        known = [self.lengths.get(slot, 0) for slot in slots]
        lengths, longest = torch.tensor(known, device=device), max(known)
        places = torch.arange(longest + more, device=device)
        if self._left:
            return (places[None, :] >= (longest - lengths)[:, None]).long()
        return (places[None, :] < (lengths + more)[:, None]).long()

    def _part(self) -> None:
        """Let the sequences of the block lie each by itself."""
        members, self._members = self._members, []
        block, self.cache = layers_of(self.cache), transformers.DynamicCache()
        for place, slot in enumerate(members if block else []):
            self._alone[slot] = [
                (self._own(keys, place, slot), self._own(values, place, slot)) for keys, values in block
            ]

    def _own(self, array: Any, place: int, slot: int) -> Any:
        length, width = self.lengths[slot], array.shape[2]
        first = width - length if self._left else 0
        return array[place : place + 1, :, first : first + length].clone()

    def _filled(self, array: Any, length: int) -> Any:
        """Zeros beside the tokens of one sequence, up to ``length`` in all."""
        more = length - array.shape[2]
        return torch.nn.functional.pad(array, (0, 0, more, 0) if self._left else (0, 0, 0, more))


def cache_name(network: Any) -> str:
    """The one of :data:`CACHE_NAMES` that a model takes."""
    known = inspect.signature(type(network).forward).parameters
    return next(name for name in CACHE_NAMES if name in known)


def layers_of(cache: Any) -> Layers:
    """Keys and values of the library's cache, whose form has changed over its versions."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache))


class TorchSession(BackendSession):
    """A lane's sequences on torch. Subclasses run rows of one length."""

    mixes = False

    def __init__(
        self, model: str, network: Any, lane: LaneInfo, device: torch.device, threads: int, slots: int
    ) -> None:
        self.slots = slots
        self._model = model
        self._network = network
        self._device = device
        self._threads = 0 if lane.device_kind == "cuda" else threads
        self._stream: Any = None
        if lane.device_kind == "cuda":
            self._stream = torch.cuda.ExternalStream(stream_of(lane, "auto").handle, device)
        self._cache_name = cache_name(network)

    def prefill(self, rows: Sequence[TokenRow]) -> List[Scores]:
        with self._on_stream():
            return in_groups(rows, begun_alone, self._run)

    def decode(self, rows: Sequence[TokenRow]) -> List[Scores]:
        with self._on_stream():
            return in_groups(rows, self._group_of, self._run)

    def free(self, slot: int) -> None:
        with self._on_stream():
            self._forget(slot)

    def _group_of(self, row: TokenRow) -> Any:
        """The rows of one group make a step in one run."""
        return 0

    def _run(self, rows: List[TokenRow]) -> List[Scores]:
        """Append as many tokens to each row: the scores behind the last of each."""
        raise NotImplementedError

    def _read(self, logits: Any, rows: Sequence[TokenRow]) -> List[Scores]:
        """The scores behind the last tokens, as the rows read them: the best are chosen on the device, where no row
        reads others."""
        last = logits[:, -1].float()
        count = max([row.best or last.shape[-1] for row in rows])
        if count >= last.shape[-1]:
            return list(last.cpu().numpy())
        found = torch.topk(last, count + 1)  # of equal scores in any order: one more shows whether some were cut off
        best = zip(rows, found.indices.cpu().numpy(), found.values.cpu().numpy(), last)
        return [best_found(tokens, scores, row.best) or all_.cpu().numpy() for row, tokens, scores, all_ in best]

    def _forget(self, slot: int) -> None:
        raise NotImplementedError

    def _on_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextlib.contextmanager
    def _step(self, count: int) -> Iterator[None]:
        """Within it torch computes a step of ``count`` sequences, and what it raises becomes the model's error."""
        if self._threads and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                yield
        except Exception as error:
            of_device = failed_by_device(self._model, error, self._device)
            if of_device is not None:
                raise of_device from error
            raise EngineError(
                f"model {self._model!r}: torch {torch.__version__} failed in a step of {count} sequences: {error}"
            ) from error
