"""The local problem of an ensemble: requests in order of deadline, subsets of models for each, lanes with their times.

Schemble, section VI: at each decision everything that waits is planned as if nothing else would arrive. Some optimal
plan has the same order of requests on every lane, and for fixed subsets that fit at all the order of deadlines fits; so
a plan is a subset per request, and a request's models run behind those of all requests before it. Pure: knows no
request, no board and no clock.
"""

from __future__ import annotations

from typing import Dict, Final, List, NamedTuple, Sequence, Tuple

REWARD_UNIT: Final = 1 << 30
"""Rewards are whole numbers of this unit: sums and comparisons are exact, and equal on every machine."""

COUNT_BITS: Final = 8
"""Bits of the count of a lane that has one model; counts beyond 127 are as good as 127."""

LOAD_BITS: Final = 52
"""Bits of the load of a lane that several models share, in nanoseconds: 26 days."""


Row = List[Tuple[int, int, int, int]]
"""The options of one request: a subset, what it adds to the load, its bound, its reward; see :class:`Packed`."""

Form = Tuple[int, int, int, int, Tuple[int, ...]]
"""The common part of the options of all requests that name the same subsets; see :func:`_forms`."""


class Lanes(NamedTuple):
    """The placement of models. ``lane_of[k]`` is the place of model k, ``times_ns[k]`` how long one batch of it takes,
    ``sizes[k]`` how many requests are in it (1 without batching). ``free_ns[p]`` are the times at which the lanes of
    place p are free, committed work included: several lanes are replicas of each other. A place with one model counts
    its batches; models that share a place add up their times."""

    lane_of: Tuple[int, ...]
    times_ns: Tuple[int, ...]
    free_ns: Tuple[Tuple[int, ...], ...]
    sizes: Tuple[int, ...]


class ModelChoice(NamedTuple):
    """One subset that a request may be given, as a bit mask over the models, and its reward in :data:`REWARD_UNIT`."""

    subset: int
    reward: int


class AskedRequest:
    """One request of the local problem: when its models must have ended, and its options."""

    __slots__ = ("due_ns", "options")

    def __init__(self, due_ns: int, options: Sequence[ModelChoice]) -> None:
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
    rows: List[Row]
    shape: int
    weights: Tuple[Tuple[int, int, int], ...]

    def time_ns(self, load: int) -> int:
        """The lane time of a load, over all places."""
        return sum([(load >> shift & mask) * unit_ns for shift, mask, unit_ns in self.weights])


def fits(lanes: Lanes, asked: Sequence[AskedRequest], subsets: Sequence[int]) -> bool:
    """True if every request's models end by its deadline, in the order given."""
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


def pack(lanes: Lanes, asked: Sequence[AskedRequest]) -> Packed:
    """A problem in whole numbers; options that could not end in time even alone, or that a smaller subset is as good
    as, are left out (both exact)."""
    fields = _fields(lanes)
    guard = sum([field.guard for field in fields])
    rows: List[Row] = []
    most = [0] * len(fields)
    forms: Dict[Tuple[int, ...], List[Form]] = {}
    for item in asked:
        caps = [field.cap(item.due_ns) for field in fields]
        most = [cap if cap > before else before for before, cap in zip(most, caps)]
        subsets = tuple([option.subset for option in item.options])
        if subsets not in forms:
            forms[subsets] = _forms(subsets, lanes, fields)
        lacks = [(field.largest - cap) << field.shift for field, cap in zip(fields, caps)]
        rows.append(_row(item.options, forms[subsets], lacks, guard))
    shape = 1
    for model, place in enumerate(lanes.lane_of):
        shape *= 1 + min(most[place] // fields[place].adds[model], len(asked))
    return Packed(guard, rows, shape, tuple([(field.shift, field.largest, field.unit_ns) for field in fields]))


class Field:
    """The part of a load that counts one place: its bits from ``shift`` on, up to ``largest`` and below the bit
    ``guard``; ``adds``: what each model of the place adds; ``unit_ns``: what one unit of it is."""

    __slots__ = ("shift", "largest", "guard", "adds", "unit_ns", "_free_ns", "_size", "_late_ns")

    def __init__(self, lanes: Lanes, place: int, shift: int) -> None:
        models = [model for model, at in enumerate(lanes.lane_of) if at == place]
        counts = len(models) == 1
        bits = (COUNT_BITS if counts else LOAD_BITS) - 1
        self.shift = shift
        self.largest = (1 << bits) - 1
        self.guard = 1 << shift + bits
        self.adds: Dict[int, int] = {
            model: 1 if counts else -(-lanes.times_ns[model] // lanes.sizes[model]) for model in models
        }
        self.unit_ns = lanes.times_ns[models[0]] if counts else 1
        self._free_ns = lanes.free_ns[place]
        self._size = lanes.sizes[models[0]] if counts else 0
        # A batch ends as a whole, and of several lanes the last ones idle while one still works.
        times = [lanes.times_ns[model] for model in models]
        self._late_ns = max([lanes.times_ns[model] - lanes.times_ns[model] // lanes.sizes[model] for model in models])
        if len(self._free_ns) > 1:
            self._late_ns += max(times) * (len(self._free_ns) - 1) // 2

    def cap(self, due_ns: int) -> int:
        """The capacity of the place until a deadline: requests, or nanoseconds where models share the place."""
        total = 0
        for free_ns in self._free_ns:
            if due_ns > free_ns:
                total += (due_ns - free_ns) // self.unit_ns
        total = total * self._size if self._size else max(0, total - self._late_ns)
        return total if total < self.largest else self.largest


def _fields(lanes: Lanes) -> List[Field]:
    found: List[Field] = []
    shift = 0
    for place in range(len(lanes.free_ns)):
        found.append(Field(lanes, place, shift))
        shift += COUNT_BITS if lanes.lane_of.count(place) == 1 else LOAD_BITS
    return found


def _forms(subsets: Sequence[int], lanes: Lanes, fields: Sequence[Field]) -> List[Form]:
    """The subsets from small to large: (its place among them, the subset, what it adds to the load, its bound where
    nothing else limits it, the places it uses). Subsets that no place could ever take are left out."""
    full = sum([field.guard + (field.largest << field.shift) for field in fields])
    found: List[Form] = []
    for _, subset, at in sorted([(bin(subset).count("1"), subset, at) for at, subset in enumerate(subsets)]):
        loads = [0] * len(fields)
        for model, place in enumerate(lanes.lane_of):
            if subset >> model & 1:
                loads[place] += fields[place].adds[model]
        if all(load <= field.largest for load, field in zip(loads, fields)):
            packed = sum([load << field.shift for load, field in zip(loads, fields)])
            found.append(
                (at, subset, packed, full - packed, tuple([place for place, load in enumerate(loads) if load]))
            )
    return found


def _row(options: Sequence[ModelChoice], forms: Sequence[Form], lacks: Sequence[int], guard: int) -> Row:
    """The subsets that a request may be given. ``lacks``: of each place, what its deadline leaves of the field, less
    than all."""
    kept: Row = []
    for at, subset, packed, bound, places in forms:
        reward = options[at].reward
        if reward <= 0:
            continue
        for place in places:
            bound -= lacks[place]
        if bound & guard != guard:
            continue  # not even alone
        for part, _, _, its_reward in kept:
            if its_reward >= reward and part & subset == part:
                break  # a smaller part brings as much; one that does not fit says that the whole does not either
        else:
            kept.append((subset, packed, bound, reward))
    return kept
