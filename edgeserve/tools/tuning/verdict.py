"""Requests counted, how much better one configuration is than another, by how much that may be off, and whether to
change at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import stdev
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.schema import Config

GOALS = ("finish", "value")
"""What is to be as large as possible: the share in time, each request weighed with its ``value``, or the share of the
value delivered, where each also counts its expected lane time."""

GAIN_MIN = 0.005
"""A smaller gain is not worth a change, however certain: half a point."""

T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5 %, by degrees of freedom from 1; for more it falls to 1.96, and the last is taken."""


@dataclass
class Sums:
    """Requests of one app and client in one block: how many, the lane time that they had, how many ended since their
    client had its share; all and those in time, weighed by goal."""

    offered: int = 0
    lane_ns: float = 0.0
    over_share: int = 0
    finish: Tuple[float, float] = (0.0, 0.0)
    value: Tuple[float, float] = (0.0, 0.0)

    def add(self, value: float, worth: float, in_time: bool, lane_ns: float = 0.0, over_share: bool = False) -> None:
        """One request: its ``value``, and that times its expected lane time (``worth``)."""
        self.offered += 1
        self.lane_ns += lane_ns
        self.over_share += over_share
        self.finish = (self.finish[0] + value, self.finish[1] + value * in_time)
        self.value = (self.value[0] + worth, self.value[1] + worth * in_time)

    def of(self, goal: str) -> Tuple[float, float]:
        """All and those in time, weighed as the goal says."""
        return self.finish if goal == "finish" else self.value


Tally = Dict[Tuple[int, str, str], Sums]
"""(block, app, client) -> their requests; no client is ``""``. Two tallies of one subject and load have the same
requests in the same blocks."""


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

    @property
    def lost(self) -> str:
        """A loss in points, for people."""
        return f"{-100 * self.share:.1f} ± {100 * self.spread:.1f}"

    def __str__(self) -> str:
        return f"{100 * self.share:+.1f} ± {100 * self.spread:.1f}"


class Verdict(NamedTuple):
    """Whether to change: ``take`` and, if not, why."""

    take: bool
    why: str
    total: Gain  # the mean over the loads


def apps_of(config: Config, tally: Tally) -> List[str]:
    """The apps that were asked, in the order of the configuration."""
    asked = {app for _, app, _ in tally}
    return [name for name in config.apps if name in asked]


def clients_of(tally: Tally) -> List[str]:
    """The clients that are known, by name."""
    return sorted({client for _, _, client in tally} - {""})


def sums_of(tally: Tally, app: str = "", client: str = "") -> List[Sums]:
    """The requests of an app, of a client, of both; all of them where none is named."""
    return [sums for (_, name, owner), sums in tally.items() if app in ("", name) and client in ("", owner)]


def offered(tally: Tally, app: str = "", client: str = "") -> int:
    """How many requests there were, of an app or of all."""
    return sum(sums.offered for sums in sums_of(tally, app, client))


def score(tally: Tally, goal: str, app: str = "", client: str = "") -> float:
    """The share that the goal wants to be large, of an app or of all."""
    parts = [sums.of(goal) for sums in sums_of(tally, app, client)]
    whole = sum(all_of_it for all_of_it, _ in parts)
    return sum(done for _, done in parts) / whole if whole else 1.0


def gain(today: Tally, other: Tally, goal: str, app: str = "") -> Gain:
    """How much better the other is on the same requests, block by block; of one app, or of all."""
    return mean_gain([(today, other)], goal, app)


def mean_gain(pairs: Sequence[Tuple[Tally, Tally]], goal: str, app: str = "") -> Gain:
    """The mean of the gains of several loads; they hold the same requests block by block, so a block adds them up."""
    blocks: Dict[int, float] = {}
    for today, other in pairs:
        mine = {key: sums.of(goal) for key, sums in today.items() if app in ("", key[1])}
        weight = sum(whole for whole, _ in mine.values()) * len(pairs)
        for key, (_, done) in mine.items():
            more = other.get(key, Sums()).of(goal)[1] - done
            blocks[key[0]] = blocks.get(key[0], 0.0) + (more / weight if weight else 0.0)
    count, total = len(blocks), sum(blocks.values())
    if count < 2:
        return Gain(total, float("inf"))
    return Gain(total, T_975[min(count - 1, len(T_975)) - 1] * stdev(blocks.values()) * sqrt(count))


def judge(config: Config, today: Mapping[float, Tally], other: Mapping[float, Tally], goal: str) -> Verdict:
    """Whether the other configuration is to be taken, by its reported tallies at each load: it has to gain more than
    the spread and :data:`GAIN_MIN` in the mean over the loads, and may clearly lose at no load, nor for a critical app.
    """
    total = mean_gain([(today[load], other[load]) for load in today], goal)
    for load in today:
        here = gain(today[load], other[load], goal)
        if here.is_clear_loss:
            return Verdict(False, f"it loses {here.lost} points at load {load:g}", total)
        for app in apps_of(config, today[load]):
            lost = gain(today[load], other[load], "finish", app)
            if config.apps[app].klass == "critical" and lost.is_clear_loss:
                return Verdict(False, f"critical app {app} loses {lost.lost} points at load {load:g}", total)
    if not total.is_clear:
        return Verdict(False, "its gain is within the spread", total)
    if total.share < GAIN_MIN:
        return Verdict(False, f"its gain is below {100 * GAIN_MIN:g} points", total)
    return Verdict(True, "", total)
