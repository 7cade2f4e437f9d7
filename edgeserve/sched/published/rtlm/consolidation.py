"""Which tasks share a batch (RT-LM, Algorithm 1, lines 19 to 26): those whose answers will be about equally long.

A batch of a model without early exit lasts as long as its longest answer. Each rule takes predicted lengths in order of
priority (the window) and gives the places of the answers that go now; the others stay queued. Pure.
"""

from __future__ import annotations

import math
from typing import Final, List, Sequence, Tuple

RULES: Final[Tuple[str, ...]] = ("seed", "and", "or", "none")


def window_len(b: float, batch: int) -> int:
    """The number of tasks that are looked at for a batch: floor(b * C), at least a batch."""
    return max(batch, math.floor(b * batch))


def seed(lengths: Sequence[float], batch: int) -> List[int]:
    """The first task, and those nearest to it in the logarithm of the length. The first task always goes, so that
    no task starves. O(n log n) for a window of n."""
    if len(lengths) <= batch:
        return list(range(len(lengths)))
    centre = math.log(max(1.0, lengths[0]))
    rows = sorted([(abs(math.log(max(1.0, length)) - centre), place) for place, length in enumerate(lengths) if place])
    return [0] + sorted([place for _, place in rows[: batch - 1]])


def grown(lengths: Sequence[float], batch: int, ratio: float, literal: bool) -> List[int]:
    """From the shortest on, while the next is at most ``ratio`` times as long as the last and the batch has room.

    ``literal``: as printed, with "or": the batch grows while either holds, up to the whole window.
    """
    order = sorted([(max(1.0, length), place) for place, length in enumerate(lengths)])
    taken: List[int] = []
    last = order[0][0] if order else 1.0
    for length, place in order:
        alike, room = length <= ratio * last, len(taken) < batch
        if taken and not (alike or room if literal else alike and room):
            break
        taken.append(place)
        last = length
    return sorted(taken)


def consolidate(rule: str, lengths: Sequence[float], batch: int, ratio: float) -> List[int]:
    """The places, in order of priority, of the tasks that form the next batch by the rule of this name."""
    if rule == "seed":
        return seed(lengths, batch)
    if rule == "none":
        return list(range(min(batch, len(lengths))))
    return grown(lengths, batch, ratio, rule == "or")
