"""The numbers that slots have as sequences of a llama.cpp context.

llama.cpp computes sequences together whose numbers follow each other; others run one after the other within a step, and
each such run reads all weights. So a new sequence gets a number beside the used ones, and where one that ended leaves a
gap, one from the end of the row moves there; one that ended and is kept makes room first. Pure: the caller copies the
memory.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Set


class Move(NamedTuple):
    """A move in memory: the sequence ``source`` is ``target`` from now on."""

    source: int
    target: int


class Numbers:
    """The numbers 0 to ``count - 1``; a slot holds one from its first token until it is freed. Where slots keep what
    ended, there is one more than slots, so that others can move."""

    def __init__(self, count: int) -> None:
        self._of: Dict[int, int] = {}
        self._kept: Set[int] = set()  # slots
        self._free = set(range(count))

    def of(self, slot: int) -> int:
        """The slot's number; a slot without one gets one, beside others in use if any is free there."""
        if slot not in self._of:
            used = self._of.values()
            beside = [number for number in self._free if number - 1 in used or number + 1 in used]
            number = self._of[slot] = min(beside or self._free)
            self._free.discard(number)
        return self._of[slot]

    def leave(self, slot: int) -> int:
        """The slot is freed: the number that it had, -1 where it had none."""
        self._kept.discard(slot)
        number = self._of.pop(slot, -1)
        if number >= 0:
            self._free.add(number)
        return number

    def keep(self, slot: int) -> None:
        """The slot makes no step until it is in one again."""
        self._kept.add(slot)

    def close_gaps(self, slots: Sequence[int]) -> List[Move]:
        """Move slots of a step, which have numbers, until neither a free one nor one that is kept lies between them: as
        few as are needed, from the shorter end."""
        self._kept.difference_update(slots)
        moves = self._close_free(slots)
        numbers = [self._of[slot] for slot in slots]
        for slot in sorted(self._kept, key=self._of.__getitem__) if numbers and self._free else ():
            if min(numbers) < self._of[slot] < max(numbers):
                moves.append(self._move(slot, max(self._free)))  # outside: no free one is left between them
                moves += self._close_free(slots)
                numbers = [self._of[slot] for slot in slots]
        return moves

    def _move(self, slot: int, target: int) -> Move:
        source = self._of[slot]
        self._free.add(source)
        self._free.discard(target)
        self._of[slot] = target
        return Move(source, target)

    def _close_free(self, slots: Sequence[int]) -> List[Move]:
        moves: List[Move] = []
        order = sorted(slots, key=self._of.__getitem__)
        while order:
            first, last = self._of[order[0]], self._of[order[-1]]
            gaps = sorted(number for number in self._free if first < number < last)
            if not gaps:
                break
            below = sum(self._of[slot] < gaps[0] for slot in order)
            above = sum(self._of[slot] > gaps[-1] for slot in order)
            moved, target = (order[-1], gaps[0]) if above <= below else (order[0], gaps[-1])
            moves.append(self._move(moved, target))
            order.sort(key=self._of.__getitem__)
        return moves
