"""Schemble's Algorithm 1 as printed: rewards rounded down to multiples of delta, Pareto lists of finish times.

Kept to replicate the paper and to hold the planner's exact plan against; ``planner.py`` finds the same in a fraction
of the time. Two things that the printed loop leaves out are filled in: cell 0 and the empty subset are carried along
(they are the rejection), and of the best cell's entries the one with the least total load is taken.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from edgeserve.sched.published.schemble.problem import REWARD_UNIT, AskedRequest, Lanes, Plan

PUBLISHED = "published"

Entry = Tuple[Tuple[int, ...], Tuple[int, ...]]
"""Finish times by lane, and the subsets chosen so far."""


def plan_published(lanes: Lanes, asked: Sequence[AskedRequest], delta: float, cells_max: int) -> Plan:
    """The plan of Algorithm 1 for requests in order of their deadlines; one lane per place. When ``cells_max`` entries
    have been written, the requests that are left get no subset."""
    unit = max(1, round(delta * REWARD_UNIT))
    start = tuple([min(times) for times in lanes.free_ns])
    cells: Dict[int, List[Entry]] = {0: [(start, ())]}
    written = 0
    for done, item in enumerate(asked):
        if written > cells_max:
            cells = {
                cell: [(times, subsets + (0,) * (len(asked) - done)) for times, subsets in entries]
                for cell, entries in cells.items()
            }
            break
        grown: Dict[int, List[Entry]] = {}
        for cell, entries in cells.items():
            for times, subsets in entries:
                grown.setdefault(cell, []).append((times, (*subsets, 0)))
                for option in item.options:
                    after = _after(lanes, times, option.subset, item.due_ns)
                    written += 1
                    if after is not None:
                        grown.setdefault(cell + option.reward // unit, []).append((after, (*subsets, option.subset)))
        cells = {cell: _pareto(entries) for cell, entries in grown.items()}
    best = min(cells[max(cells)], key=_total_load)
    rewards = [{option.subset: option.reward for option in item.options} for item in asked]
    value = sum([table[subset] for table, subset in zip(rewards, best[1]) if subset])
    return Plan(best[1], value, PUBLISHED, written)


def _total_load(entry: Entry) -> Tuple[int, Tuple[int, ...]]:
    return sum(entry[0]), entry[1]


def _after(lanes: Lanes, times: Tuple[int, ...], subset: int, due_ns: int) -> Tuple[int, ...] | None:
    """The finish times with one more request, or None where one of its own models ends too late."""
    after = list(times)
    for model, place in enumerate(lanes.lane_of):
        if subset >> model & 1:
            after[place] += lanes.times_ns[model]
    for model, place in enumerate(lanes.lane_of):
        if subset >> model & 1 and after[place] > due_ns:
            return None
    return tuple(after)


def _pareto(entries: List[Entry]) -> List[Entry]:
    """The entries that no other one beats or equals on every lane; of equals the first stays."""
    kept: List[Entry] = []
    for entry in sorted(entries, key=_by_times):
        if not any(all(mine <= theirs for mine, theirs in zip(other[0], entry[0])) for other in kept):
            kept.append(entry)
    return kept


def _by_times(entry: Entry) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    return entry
