"""The code that sessions on torch share: the call of the network, and keys and values of their sequences: one block for
the sequences that run together, the others each by itself.

As long as the same sequences run, the block stays as it is; where the company changes it is laid anew.
"""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Sequence, Tuple

import torch
import transformers

from edgeserve.engines.lm.backend import BackendSession
from edgeserve.errors import EngineError, OutOfMemory

CACHE_NAMES = ("cache", "past_key_values")
"""The library's names for a model's keys and values; the newest name first."""

Layers = List[Tuple[Any, Any]]
"""Keys and values per layer: ``[sequences, heads, tokens, head size]``."""


class TorchRows:
    """Sequences by slot, filled up to the longest at their left (``left``) or right. ``lengths``: tokens in memory by
    slot."""

    def __init__(self, left: bool) -> None:
        self.lengths: Dict[int, int] = {}
        self.block: Layers = []
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
        self.block = [
            (
                torch.cat([self._filled(part[layer][0], longest) for part in parts]),
                torch.cat([self._filled(part[layer][1], longest) for part in parts]),
            )
            for layer in range(len(parts[0]))
        ]

    def grown(self, block: Layers, lengths: Sequence[int]) -> None:
        """The block is this one now; its sequences have so many tokens."""
        self.block = block
        self.lengths.update(zip(self._members, lengths))

    def free(self, slot: int) -> None:
        if slot in self._members:
            self._part()
        self._alone.pop(slot, None)
        self.lengths.pop(slot, None)

    def clear(self) -> None:
        self._members, self.block, self._alone, self.lengths = [], [], {}, {}

    def mask(self, slots: Sequence[int], more: int, device: str) -> Any:
        """The mask of the places of the block that belong to its sequences, and ``more`` behind them: ``[sequences,
        places]``."""
        lengths = torch.tensor([self.lengths.get(slot, 0) for slot in slots], device=device)
        longest = int(lengths.max())
        places = torch.arange(longest + more, device=device)
        if self._left:
            return (places[None, :] >= (longest - lengths)[:, None]).long()
        return (places[None, :] < (lengths + more)[:, None]).long()

    def _part(self) -> None:
        """Let the sequences of the block lie each by itself."""
        members, self._members = self._members, []
        block, self.block = self.block, []
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


class TorchSession(BackendSession):
    """A lane's sequences on torch."""

    mixes = False

    def __init__(self, model: str, network: Any, device: str, threads: int, slots: int) -> None:
        self.slots = slots
        self._model = model
        self._network = network
        self._device = device
        self._threads = threads
        self._cache_name = cache_name(network)

    def _call(self, count: int, network: Any, **inputs: Any) -> Any:
        if self._device == "cpu" and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                return network(**inputs)
        except torch.cuda.OutOfMemoryError as error:
            raise OutOfMemory(f"model {self._model!r}: no memory for a step of {count} sequences: {error}") from error
        except Exception as error:
            raise EngineError(
                f"model {self._model!r}: torch {torch.__version__} failed in a step of {count} sequences: {error}"
            ) from error
