"""The planner: the best subset of models for each request that waits, exactly, within a bound on its own time.

What Schemble's Algorithm 1 finds for a delta near 0 (``published/schemble/algorithm1.py`` has it as printed), on whole
numbers: with equal times the state is how many requests each lane was given, or the time where models share a lane.
``F_i(c)`` is the most that the first i requests can bring with load c:

    F_i(c) = max(F_{i-1}(c), max over subsets s that fit { F_{i-1}(c - s) + U(i, s) })

Exact unless its bound on cells is met; then the better of two greedy plans stands, and the plan says so. A plan is
built on from one that shares its first requests. ``tests/unit/sched/published/schemble/test_planner.py`` holds it
against all assignments there are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Dict, Final, List, Sequence, Tuple

from edgeserve.sched.published.schemble.problem import AskedRequest, Lanes, Packed, Plan, Row, pack

LOOK_AHEAD: Final = 24
"""Requests that are planned exactly, in order of their deadlines: only the first few decisions are ever used."""

PRUNED_FROM: Final = 200
"""Loads from which on bounds pay: below it, the greedy plans that they need cost more than they save."""

CELLS_MAX: Final = 20_000
"""Cells of one plan by default: 4 ms of an interpreted core."""

EXACT, BOUNDED, GREEDY = "exact", "bounded", "greedy"
"""The way in which a plan was found: exactly; by the greedy plans, since the bound on cells was met; or greedily on
purpose."""

Layer = Dict[int, int]

Offer = Tuple[float, int, int, int]
"""A larger subset that a request could have: less its gain per model, the request, its version, the option's place."""


class ProblemPlanner:
    """Plans one local problem after the other. ``cells_max`` bounds what one plan may cost."""

    __slots__ = ("_cells_max", "_lanes", "_asked", "_layers")

    def __init__(self, cells_max: int = CELLS_MAX) -> None:
        self._cells_max = cells_max
        self._lanes: Lanes | None = None
        self._asked: List[AskedRequest] = []
        self._layers: List[Layer] = []

    def plan(self, lanes: Lanes, asked: Sequence[AskedRequest]) -> Plan:
        """The best plan for requests in order of their deadlines. Those behind the look-ahead get no subset."""
        head = list(asked[:LOOK_AHEAD])
        rest = (0,) * (len(asked) - len(head))
        if not head:
            return Plan(rest, 0, EXACT, 0)
        packed = pack(lanes, head)
        if packed.shape <= PRUNED_FROM:
            plan = self._in_layers(lanes, head, packed)
        else:
            self.forget()
            plan = _within_bounds(packed, self._cells_max)
        return Plan(plan.subsets + rest, plan.value, plan.method, plan.cells)

    def forget(self) -> None:
        """Keep nothing of the last plan."""
        self._lanes = None
        self._asked, self._layers = [], []

    def _in_layers(self, lanes: Lanes, asked: List[AskedRequest], packed: Packed) -> Plan:
        """All loads, layer by layer; the layers of the requests that the last problem began with are still good."""
        same = 0
        if self._lanes == lanes:
            for mine, theirs in zip(self._asked, asked):
                if mine.due_ns != theirs.due_ns or mine.options != theirs.options:
                    break
                same += 1
        layers = self._layers[: same + 1] if same else [{0: 0}]
        cells = 0
        for row in packed.rows[same:]:
            cells += len(layers[-1]) * len(row)
            if cells > self._cells_max:
                self.forget()
                plan = best_greedy(packed)
                return Plan(plan.subsets, plan.value, BOUNDED, cells + plan.cells)
            layers.append(_next_layer(layers[-1], row, packed.guard, -1))
        self._lanes, self._asked, self._layers = lanes, asked, layers
        return Plan(_traced(packed, layers), max(layers[-1].values()), EXACT, cells)


def _next_layer(before: Layer, row: Row, guard: int, least: int) -> Layer:
    """The loads after one more request. Loads worth no more than ``least`` are left out."""
    layer: Layer = dict(before) if least < 0 else {load: value for load, value in before.items() if value > least}
    for _, add, bound, reward in row:
        floor = least - reward
        for load, value in before.items():
            if value > floor and (bound - load) & guard == guard:
                total = value + reward
                if layer.get(load + add, -1) < total:
                    layer[load + add] = total
    return layer


def _traced(packed: Packed, layers: Sequence[Layer]) -> Tuple[int, ...]:
    """The subsets of the best plan, from the last layer to the first. Among equals the one of the least lane time: it
    leaves most to later requests."""
    rows, last = packed.rows, layers[-1]
    value = max(last.values())
    _, load = min([(packed.time_ns(at), at) for at, worth in last.items() if worth == value])
    subsets: List[int] = []
    for index in range(len(rows) - 1, -1, -1):
        before = layers[index]
        if before.get(load, -1) == value:
            subsets.append(0)
            continue
        for subset, add, _, reward in rows[index]:
            if load >= add and before.get(load - add, -1) == value - reward:
                load, value = load - add, value - reward
                subsets.append(subset)
                break
    return tuple(reversed(subsets))


def _within_bounds(packed: Packed, cells_max: int) -> Plan:
    """The same without the loads that cannot become better than a greedy plan: what they have and the best that each
    request behind could bring is too little."""
    plan = best_greedy(packed)
    rows = packed.rows
    ahead = [0] * (len(rows) + 1)
    for index in range(len(rows) - 1, -1, -1):
        ahead[index] = ahead[index + 1] + max([reward for _, _, _, reward in rows[index]], default=0)
    layers: List[Layer] = [{0: 0}]
    cells = plan.cells
    for index, row in enumerate(rows):
        cells += len(layers[-1]) * len(row)
        if cells > cells_max:
            return Plan(plan.subsets, plan.value, BOUNDED, cells)
        layer = _next_layer(layers[-1], row, packed.guard, plan.value - ahead[index + 1] - 1)
        layers.append(layer)
    return Plan(_traced(packed, layers), max(layers[-1].values()), EXACT, cells)


# --- greedy plans -----------------------------------------------------------------------------------------------------


def best_greedy(packed: Packed) -> Plan:
    """The better of the two greedy plans: the lower bound, and what stands when there is no time for more."""
    first, second = greedy(packed), marginal_greedy(packed)
    best = first if first.value >= second.value else second
    return Plan(best.subsets, best.value, GREEDY, first.cells + second.cells)


def greedy(packed: Packed, order: Sequence[int] = ()) -> Plan:
    """Each request in turn takes the subset of the highest reward that still fits behind the requests before it.
    ``order``: the order in which they take, by their places; they run in that order too."""
    guard, load, value, cells = packed.guard, 0, 0, 0
    subsets = [0] * len(packed.rows)
    for index in order or range(len(packed.rows)):
        best = 0
        added = 0
        for subset, add, bound, reward in packed.rows[index]:
            cells += 1
            if reward > best and (bound - load) & guard == guard:
                best, added, subsets[index] = reward, add, subset
        load += added
        value += best
    return Plan(tuple(subsets), value, GREEDY, cells)


def marginal_greedy(packed: Packed) -> Plan:
    """Again and again the request and larger subset with the best gain for what it adds to the load, as long as all
    requests before and behind still fit."""
    rows, guard, count = packed.rows, packed.guard, len(packed.rows)
    none = (0, 0, 0, 0)
    chosen: List[Tuple[int, int, int, int]] = [none] * count
    ahead = [0] * count  # the load of the requests before each
    sizes: Dict[int, int] = {}  # models of a set, as far as asked for
    heap: List[Offer] = []
    for index, row in enumerate(rows):
        heap += _offers(index, 0, none, row, sizes)
    heapify(heap)
    versions = [0] * count
    value = 0
    cells = len(heap)
    while heap:
        _, index, version, place = heappop(heap)
        if version != versions[index]:
            continue
        option, has = rows[index][place], chosen[index]
        cells += count - index
        added = option[1] - has[1]
        if (option[2] - ahead[index]) & guard != guard or not _fit_behind(chosen, ahead, index, added, guard):
            continue
        value += option[3] - has[3]
        chosen[index] = option
        for behind in range(index + 1, count):
            ahead[behind] += added
        versions[index] += 1
        for offer in _offers(index, versions[index], option, rows[index], sizes):
            heappush(heap, offer)
    return Plan(tuple([option[0] for option in chosen]), value, GREEDY, cells)


def _offers(index: int, version: int, has: Tuple[int, int, int, int], row: Row, sizes: Dict[int, int]) -> List[Offer]:
    """The alternatives of a request: larger subsets, by gain per model that is added."""
    own, least = has[0], has[3]
    found: List[Offer] = []
    for place, option in enumerate(row):
        subset = option[0]
        if subset & own == own and subset != own and option[3] > least:
            more = subset ^ own
            if more not in sizes:
                sizes[more] = bin(more).count("1")
            found.append((-(option[3] - least) / sizes[more], index, version, place))
    return found


def _fit_behind(
    chosen: Sequence[Tuple[int, int, int, int]], ahead: Sequence[int], index: int, added: int, guard: int
) -> bool:
    """True if those behind a request still fit when it adds so much more to the load."""
    for place in range(index + 1, len(chosen)):
        later = chosen[place]
        if later[0] and (later[2] - ahead[place] - added) & guard != guard:
            return False
    return True
