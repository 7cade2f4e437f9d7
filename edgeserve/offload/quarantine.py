"""Inputs that ended the process that ran them: remembered by a digest, run alone once more, then refused.

A batch whose process ended tells nothing of which item did it, or whether an item did it at all: the system's memory
killer ends processes, too. So every item of such a batch is a suspect. A suspect that comes again runs alone, behind
the others: where it returns it was innocent and is forgotten; where the process ends a second time it is refused from
then on, before it runs. Nothing is hashed as long as there is no suspect, and then only what has a suspect's length.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections import Counter, OrderedDict
from typing import Any, List, Tuple

from edgeserve.errors import EngineError

STRIKES_MAX = 2
"""The number of ends of a process with an input from which the input is refused."""

SUSPECTS_MAX = 1024
"""Inputs that are remembered; beyond it the one that was seen longest ago is forgotten."""

Key = Tuple[int, bytes]
"""(length, sha256) of an input."""


class PoisonInput(EngineError):
    """An input that ended its process :data:`STRIKES_MAX` times: it is not run again."""

    code = "poison_input"


class Quarantine:
    """The suspects of one model, shared by the processes of all its lanes. May be asked from any thread."""

    def __init__(self) -> None:
        self._strikes: OrderedDict[Key, int] = OrderedDict()
        self._lengths: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """True if no input is suspected: then none need be looked up."""
        return not self._strikes

    def strikes(self, item: Any) -> int:
        """The number of times that a process ended with this input."""
        blocks = _blocks(item)
        length = _length(blocks)
        with self._lock:
            if not self._lengths[length]:
                return 0
        key = (length, _digest(blocks))
        with self._lock:
            count = self._strikes.get(key, 0)
            if count:
                self._strikes.move_to_end(key)
            return count

    def blame(self, items: List[Any]) -> None:
        """The process ended with these inputs."""
        for item in items:
            blocks = _blocks(item)
            if not blocks:
                continue
            key = (_length(blocks), _digest(blocks))
            with self._lock:
                if key not in self._strikes:
                    self._lengths[key[0]] += 1
                self._strikes[key] = self._strikes.pop(key, 0) + 1
                if len(self._strikes) > SUSPECTS_MAX:
                    self._drop(next(iter(self._strikes)))

    def absolve(self, item: Any) -> None:
        """An input ran to its end."""
        blocks = _blocks(item)
        key = (_length(blocks), _digest(blocks))
        with self._lock:
            if key in self._strikes:
                self._drop(key)

    def clear(self) -> None:
        """Forget all strikes: the model was loaded anew."""
        with self._lock:
            self._strikes.clear()
            self._lengths.clear()

    def refusal(self, model: str, item: Any) -> PoisonInput:
        """The error of a request whose input is refused."""
        digest = _digest(_blocks(item)).hex()[:16]
        return PoisonInput(
            f"quarantined: model {model!r} does not run this input again (sha256 {digest}...), its "
            f"process ended with it {STRIKES_MAX} times; mend the function or the input, then reload "
            "the model"
        )

    def _drop(self, key: Key) -> None:
        del self._strikes[key]
        self._lengths[key[0]] -= 1
        if not self._lengths[key[0]]:
            del self._lengths[key[0]]


def _blocks(item: Any) -> List[Any]:
    """An input as it travels, arrays uncopied; nothing for what cannot travel."""
    raw: List[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(item, protocol=5, buffer_callback=raw.append)
    except Exception:  # noqa: BLE001 pickle raises many kinds; such an item never reaches the process
        return []
    return [head, *(block.raw() for block in raw)]


def _length(blocks: List[Any]) -> int:
    return sum([len(block) for block in blocks])


def _digest(blocks: List[Any]) -> bytes:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.digest()
