"""Keys and values of the sequences of one session, as rows of arrays that ONNX Runtime reads and writes in place.

Per layer there is one array of keys and one of values, ``[rows, heads, context, head size]``. A batch works on rows
that lie side by side, so sequences are moved where they do not; the sequences keep their slots, a table says in which
row each lies. The arrays are address space: the system gives memory when a row is written, and takes it back when its
sequence ends.
"""

from __future__ import annotations

import mmap
from typing import Any, List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = mmap.PAGESIZE


class KvRows:
    """The memory of ``rows`` sequences. One thread at a time."""

    def __init__(self, layers: int, rows: int, heads: int, context: int, head_size: int) -> None:
        shape = (rows, heads, context, head_size)
        self.layers: List[Tuple[NDArray[Any], NDArray[Any]]] = []
        self._maps: List[mmap.mmap] = []
        self._row_bytes = heads * context * head_size * 4
        for _ in range(layers):
            self.layers.append((self._array(shape), self._array(shape)))
        self._row_of = list(range(rows))  # slot -> row
        self._lengths = [0] * rows  # slot -> tokens that were written

    def row_of(self, slot: int) -> int:
        return self._row_of[slot]

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def grown(self, slot: int, length: int) -> None:
        """The slot's sequence has so many tokens now."""
        self._lengths[slot] = length

    def arrange(self, slots: Sequence[int]) -> int:
        """Bring the sequences of these slots side by side, in any order, with as little copying as possible; the first
        row of theirs."""
        rows = sorted(self._row_of[slot] for slot in slots)
        if rows[-1] - rows[0] + 1 == len(rows):
            return rows[0]
        slot_of = {row: slot for slot, row in enumerate(self._row_of)}
        wanted, count = set(slots), len(slots)

        def cost(first: int) -> int:
            inside = [slot_of[row] for row in range(first, first + count)]
            return sum([self._lengths[slot] for slot in inside if slot not in wanted]) + sum(
                [self._lengths[slot] for slot in wanted - set(inside)]
            )

        first = min(range(len(self._row_of) - count + 1), key=lambda row: (cost(row), row))
        outside = sorted(slot for slot in wanted if not first <= self._row_of[slot] < first + count)
        places = [row for row in range(first, first + count) if slot_of[row] not in wanted]
        for slot, row in zip(outside, places):
            self._swap(slot, slot_of[row])
        return first

    def copy(self, source: int, target: int, length: int) -> None:
        """The first tokens of one slot's sequence become another one's, which has none."""
        a, b = self._row_of[source], self._row_of[target]
        for pair in self.layers:
            for array in pair:
                array[b, :, :length] = array[a, :, :length]
        self._lengths[target] = length

    def free(self, slot: int) -> None:
        """The slot's sequence is over."""
        row = self._row_of[slot]
        if self._lengths[slot]:
            self._discard(row)
        self._lengths[slot] = 0

    def close(self) -> None:
        """Give everything back. Arrays that are still in use stay until then."""
        self.layers = []
        self._maps = []

    def _swap(self, one: int, other: int) -> None:
        """Exchange the rows of two slots."""
        a, b = self._row_of[one], self._row_of[other]
        length_a, length_b = self._lengths[one], self._lengths[other]
        for pair in self.layers:
            for array in pair:
                kept = array[b, :, :length_b].copy()
                array[b, :, :length_a] = array[a, :, :length_a]
                array[a, :, :length_b] = kept
        self._row_of[one], self._row_of[other] = b, a
        for length, row in ((length_a, a), (length_b, b)):
            if length and not (length_b if row == a else length_a):
                self._discard(row)

    def _array(self, shape: Tuple[int, ...]) -> NDArray[Any]:
        memory = mmap.mmap(-1, max(1, self._row_bytes * shape[0]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._maps.append(memory)
        return np.frombuffer(memory, np.float32, int(np.prod(shape))).reshape(shape)

    def _discard(self, row: int) -> None:
        """Give the pages that lie wholly in a row back to the system; they read as zeros afterwards."""
        begin = -(-row * self._row_bytes // PAGE_BYTES) * PAGE_BYTES
        end = (row + 1) * self._row_bytes // PAGE_BYTES * PAGE_BYTES
        if end > begin:
            for memory in self._maps:
                memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
