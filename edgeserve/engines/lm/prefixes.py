"""Ended sequences whose memory is kept: the part that a new sequence can reuse, and the choice of which to drop.

Pure: knows tokens, slots and owners. The caller keeps, copies and frees the memory.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple
from typing import Sequence as Several

PREFIX_CACHE_BYTES = 128 * 1024 * 1024
"""The default bytes for kept sequences: 2,900 tokens of SmolLM2 on ONNX Runtime."""

PREFIX_TOKENS_MIN = 16
"""A shorter common prefix is not reused: on ONNX Runtime what follows a prefix is read in a run of its own, and reading
all weights once more takes as long as about so many tokens (SmolLM2, float32, one core)."""


class HeldTokens(NamedTuple):
    """The content of a slot: these tokens of a sequence, and their owner."""

    slot: int
    tokens: Several[int]
    owner: str


class Match(NamedTuple):
    """The first ``tokens`` tokens of a sequence are in memory at ``slot``. ``whole``: the slot holds no others, and its
    sequence has ended."""

    slot: int
    tokens: int
    whole: bool


class Prefixes:
    """The ended sequences of one session, at most ``tokens_max`` tokens in all.

    Another owner's tokens are reused as far as one of the ``public`` beginnings goes, which the configuration declares:
    the time of an answer would reveal other owners' prompts. Which sequence is dropped first is GreedyDual's rule
    (Young 1994): the worth of one is the tokens that it saves beyond the worth of the sequence dropped last before its
    last use.
    """

    def __init__(self, tokens_max: int, public: Several[Several[int]] = ()) -> None:
        self._tokens_max = tokens_max
        self._public = public
        self._held: Dict[int, HeldTokens] = {}  # by slot
        self._worth: Dict[int, int] = {}
        self._dropped = 0  # the worth of what was dropped last
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, held: HeldTokens) -> List[int]:
        """Keep an ended sequence. Returns the slots to free, so that the kept tokens stay within their bound: its own
        among them where it alone is too long."""
        if not PREFIX_TOKENS_MIN <= len(held.tokens) <= self._tokens_max:
            return [held.slot]
        self._held[held.slot] = held
        self._worth[held.slot] = self._dropped + len(held.tokens)
        self._tokens += len(held.tokens)
        freed = []
        while self._tokens > self._tokens_max:
            freed.append(self.drop())
        return freed

    def drop(self) -> int:
        """Give up the sequence that is worth least; its slot."""
        slot = min(self._held, key=self._order)
        self._dropped = self._worth[slot]
        self.leave(slot)
        return slot

    def leave(self, slot: int) -> None:
        """Forget the kept sequence of a slot: another goes on with it, or it is gone."""
        self._tokens -= len(self._held.pop(slot).tokens)
        del self._worth[slot]

    def clear(self) -> List[int]:
        """Nothing is in memory any more; the slots that are free."""
        slots = list(self._held)
        for slot in slots:
            self.leave(slot)
        return slots

    def match(self, tokens: Several[int], owner: str, running: Iterable[HeldTokens]) -> Optional[Match]:
        """The longest prefix of a new sequence in memory, among the kept and the ``running`` sequences;
        ``None`` where none is long enough. Its last token is never counted: it brings the first scores. Of equal
        matches the one that is worth least, which a new sequence may take for itself."""
        best: Optional[Match] = None
        if not self._tokens_max:
            return None
        public = max([_common(tokens, begin) for begin in self._public], default=0)
        kept = [self._held[slot] for slot in sorted(self._held, key=self._order)]
        for place, held in enumerate([*kept, *running]):
            count = min(_common(tokens, held.tokens), len(tokens) - 1)
            count = count if held.owner == owner else min(count, public)
            if count >= PREFIX_TOKENS_MIN and (best is None or count > best.tokens):
                best = Match(held.slot, count, place < len(kept) and count == len(held.tokens))
        return best

    def used(self, match: Match) -> None:
        """Note that the content of a slot was copied."""
        if match.slot in self._worth:
            self._worth[match.slot] = max(self._worth[match.slot], self._dropped + match.tokens)

    def _order(self, slot: int) -> Tuple[int, int]:
        return self._worth[slot], slot


def _common(one: Several[int], other: Several[int]) -> int:
    """The number of equal first tokens. Compares in slices: a prompt has thousands of them."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
