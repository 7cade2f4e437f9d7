"""The local problem of an ensemble: requests in order of deadline, subsets of models for each, lanes with their times.

Schemble, section VI: at each decision everything that waits is planned as if nothing else would arrive. Some optimal
plan has the same order of requests on every lane, and for fixed subsets that fit at all the order of deadlines fits; so
a plan is a subset per request, and a request's models run behind those of all requests before it. Pure: knows no
request, no board and no clock.
"""

from __future__ import annotations

from typing import Final, List, NamedTuple, Sequence, Tuple

REWARD_UNIT: Final = 1 << 30
"""Rewards are whole numbers of this unit: sums and comparisons are exact, and equal on every machine."""

COUNT_BITS: Final = 8
"""Bits of the count of a lane that has one model; counts beyond 127 are as good as 127."""

LOAD_BITS: Final = 52
"""Bits of the load of a lane that several models share, in nanoseconds: 26 days."""


class Lanes(NamedTuple):
    """Where the models run. ``lane_of[k]`` is the place of model k, ``times_ns[k]`` how long one batch of it takes,
    ``sizes[k]`` how many requests are in it (1 without batching). ``free_ns[p]`` are the times at which the lanes of
    place p are free, committed work included: several lanes are replicas of each other. A place with one model counts
    its batches; models that share a place add up their times."""

    lane_of: Tuple[int, ...]
    times_ns: Tuple[int, ...]
    free_ns: Tuple[Tuple[int, ...], ...]
    sizes: Tuple[int, ...]


class Option(NamedTuple):
    """One subset that a request may be given, as a bit mask over the models, and its reward in :data:`REWARD_UNIT`."""

    subset: int
    reward: int


class Asked:
    """One request of the local problem: when its models must have ended, and its options."""

    __slots__ = ("due_ns", "options")

    def __init__(self, due_ns: int, options: Sequence[Option]) -> None:
        self.due_ns = due_ns
        self.options = tuple(options)


class Plan(NamedTuple):
    """A subset per request (0: none), the sum of the rewards, how the plan was found, and the table cells that were
    written for it: what planning costs."""

    subsets: Tuple[int, ...]
    value: int
    method: str
    cells: int


class Packed(NamedTuple):
    """A problem in whole numbers: the load of all places is one number with a field and a guard bit for each.

    ``rows[i]`` are the options of request i that fit alone: (subset, what it adds to the load, its bound, its reward).
    An option fits load c when ``(bound - c) & guard == guard``. ``shape`` bounds the number of loads. ``weights`` are
    (shift, mask, nanoseconds of one unit) of each field.
    """

    guard: int
    rows: List[List[Tuple[int, int, int, int]]]
    shape: int
    weights: Tuple[Tuple[int, int, int], ...]

    def time_ns(self, load: int) -> int:
        """The lane time of a load, over all places."""
        return sum([(load >> shift & mask) * unit_ns for shift, mask, unit_ns in self.weights])


def fits(lanes: Lanes, asked: Sequence[Asked], subsets: Sequence[int]) -> bool:
    """Whether every request's models end by its deadline, in the order given."""
    packed = pack(lanes, asked)
    load = 0
    for row, subset in zip(packed.rows, subsets):
        if not subset:
            continue
        found = [option for option in row if option[0] == subset]
        if not found or (found[0][2] - load) & packed.guard != packed.guard:
            return False
        load += found[0][1]
    return True


def pack(lanes: Lanes, asked: Sequence[Asked]) -> Packed:
    """A problem in whole numbers; options that could not end in time even alone, or that a smaller subset is as good
    as, are left out (both exact)."""
    places = len(lanes.free_ns)
    counts = [lanes.lane_of.count(place) == 1 for place in range(places)]
    shifts, shift = [], 0
    for place in range(places):
        shifts.append(shift)
        shift += COUNT_BITS if counts[place] else LOAD_BITS
    guard, largest = 0, []
    for place in range(places):
        bits = (COUNT_BITS if counts[place] else LOAD_BITS) - 1
        guard |= 1 << shifts[place] + bits
        largest.append((1 << bits) - 1)
    adds = [1 if counts[place] else -(-lanes.times_ns[model] // lanes.sizes[model])
            for model, place in enumerate(lanes.lane_of)]
    rows: List[List[Tuple[int, int, int, int]]] = []
    most = [0] * places
    for item in asked:
        caps = [_cap(lanes, place, item.due_ns, counts[place], largest[place]) for place in range(places)]
        most = [max(before, cap) for before, cap in zip(most, caps)]
        rows.append(_row(item, lanes.lane_of, adds, caps, shifts, guard, largest))
    shape = 1
    for model, place in enumerate(lanes.lane_of):
        shape *= 1 + min(most[place] // adds[model], len(asked))
    units = [lanes.times_ns[lanes.lane_of.index(place)] if counts[place] else 1 for place in range(places)]
    return Packed(guard, rows, shape, tuple(zip(shifts, largest, units)))


def _cap(lanes: Lanes, place: int, due_ns: int, counts: bool, largest: int) -> int:
    """What a place can do by a deadline: requests, or nanoseconds where models share the place."""
    if counts:
        model = lanes.lane_of.index(place)
        whole = sum([max(0, due_ns - free_ns) // lanes.times_ns[model] for free_ns in lanes.free_ns[place]])
        return min(largest, whole * lanes.sizes[model])
    left_ns = sum([max(0, due_ns - free_ns) for free_ns in lanes.free_ns[place]])
    # A batch ends as a whole, and of several lanes the last ones idle while one still works.
    late_ns = max([lanes.times_ns[model] - lanes.times_ns[model] // lanes.sizes[model]
                   for model, at in enumerate(lanes.lane_of) if at == place])
    if len(lanes.free_ns[place]) > 1:
        late_ns += max([lanes.times_ns[model] for model, at in enumerate(lanes.lane_of) if at == place]) * (
            len(lanes.free_ns[place]) - 1) // 2
    return min(largest, max(0, left_ns - late_ns))


def _row(item: Asked, lane_of: Tuple[int, ...], adds: List[int], caps: List[int], shifts: List[int], guard: int,
         largest: List[int]) -> List[Tuple[int, int, int, int]]:
    kept: List[Tuple[int, int, int, int]] = []
    for option in sorted(item.options, key=_by_size):
        if option.reward <= 0 or _is_dominated(option, kept):
            continue
        load = [0] * len(caps)
        for model, place in enumerate(lane_of):
            if option.subset >> model & 1:
                load[place] += adds[model]
        if all(amount <= cap for amount, cap in zip(load, caps)):
            packed = sum([amount << shift for amount, shift in zip(load, shifts)])
            bound = guard - packed
            for amount, cap, shift, most in zip(load, caps, shifts, largest):
                bound += (cap if amount else most) << shift
            kept.append((option.subset, packed, bound, option.reward))
    return kept


def _by_size(option: Option) -> Tuple[int, int]:
    return bin(option.subset).count("1"), option.subset


def _is_dominated(option: Option, kept: Sequence[Tuple[int, int, int, int]]) -> bool:
    """Whether a smaller part of a subset brings as much. (Parts stand before it, and one that did not fit says that it
    does not either.)"""
    return any(part & option.subset == part and reward >= option.reward for part, _, _, reward in kept)
