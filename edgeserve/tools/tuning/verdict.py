"""How much better one configuration is than another, by how much that may be off, and whether to change at all."""

from __future__ import annotations

from math import sqrt
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.tools.tuning.subjects import Sums, Tally, apps_of

GOALS = ("finish", "value")
"""What is to be as large as possible: the share in time, each request weighed with its ``value``, or the share of the
value delivered, where each also counts its expected lane time."""

GAIN_MIN = 0.005
"""A smaller gain is not worth a change, however certain: half a point."""

T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
T_975_FEW = 2.13  # for more degrees of freedom it falls to 1.96: this is a little wider
"""Student's t at 97.5 %, by degrees of freedom from 1."""


class Gain(NamedTuple):
    """A difference of shares, and half the width of its 95 % interval."""

    share: float
    spread: float

    @property
    def is_clear(self) -> bool:
        """Better, beyond the spread."""
        return self.share > self.spread

    @property
    def is_clear_loss(self) -> bool:
        """Worse, beyond the spread."""
        return self.share < -self.spread

    def __str__(self) -> str:
        return f"{100 * self.share:+.1f} ± {100 * self.spread:.1f}"


class Verdict(NamedTuple):
    """Whether to change: ``take`` and, if not, why."""

    take: bool
    why: str
    total: Gain  # the mean over the loads


def score(tally: Tally, goal: str) -> float:
    """The share that the goal wants to be large."""
    weight, good = 0.0, 0.0
    for sums in tally.values():
        whole, done = _goal(sums, goal)
        weight, good = weight + whole, good + done
    return good / weight if weight else 1.0


def gain(today: Tally, other: Tally, goal: str, app: str = "") -> Gain:
    """How much better the other is on the same requests, block by block; of one app, or of all."""
    return _gain_of([_differences(today, other, goal, app)])


def judge(config: Config, today: Mapping[float, Tally], other: Mapping[float, Tally], goal: str) -> Verdict:
    """Whether the other configuration is to be taken, by its reported tallies at each load: it has to gain more than
    the spread and :data:`GAIN_MIN` in the mean over the loads, and may clearly lose at no load, nor for a critical app.
    """
    total = _gain_of([_differences(today[load], other[load], goal, "") for load in today])
    for load in today:
        here = gain(today[load], other[load], goal)
        if here.is_clear_loss:
            return Verdict(False, f"it loses {_points(here)} points at load {load:g}", total)
        for app in apps_of(config, today[load]):
            if config.apps[app].klass == "critical":
                lost = gain(today[load], other[load], "finish", app)
                if lost.is_clear_loss:
                    return Verdict(False, f"critical app {app} loses {_points(lost)} points at load {load:g}", total)
    if not total.is_clear:
        return Verdict(False, "its gain is within the spread", total)
    if total.share < GAIN_MIN:
        return Verdict(False, f"its gain is below {100 * GAIN_MIN:g} points", total)
    return Verdict(True, "", total)


def _points(lost: Gain) -> str:
    return f"{-100 * lost.share:.1f} ± {100 * lost.spread:.1f}"


def _goal(sums: Sums, goal: str) -> Tuple[float, float]:
    return (sums.weight, sums.weight_in_time) if goal == "finish" else (sums.worth, sums.worth_in_time)


_NOTHING = Sums()


class _Differences(NamedTuple):
    """Per block, what the other did more; and the weight of all blocks."""

    blocks: Dict[int, float]
    weight: float


def _differences(today: Tally, other: Tally, goal: str, app: str) -> _Differences:
    blocks: Dict[int, float] = {}
    weight = 0.0
    for (block, name), sums in today.items():
        if app not in ("", name):
            continue
        whole, done = _goal(sums, goal)
        _, others = _goal(other.get((block, name), _NOTHING), goal)
        blocks[block] = blocks.get(block, 0.0) + others - done
        weight += whole
    return _Differences(blocks, weight)


def _gain_of(items: Sequence[_Differences]) -> Gain:
    """The mean of the gains of several loads; they hold the same requests block by block, so a block adds them up."""
    blocks: Dict[int, float] = {}
    for item in items:
        for block, difference in item.blocks.items():
            blocks[block] = blocks.get(block, 0.0) + (difference / item.weight if item.weight else 0.0) / len(items)
    values: List[float] = list(blocks.values())
    count = len(values)
    total = sum(values)
    if count < 2:
        return Gain(total, float("inf"))
    mean = total / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = T_975[count - 2] if count - 2 < len(T_975) else T_975_FEW
    return Gain(total, quantile * deviation * sqrt(count))
