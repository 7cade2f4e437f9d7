"""What can be had on the arrivals of ``scripts/bench/arbiter.py``: by the auction's rule with all times known, and at
most.

:func:`by_rule` is the smallest scheduler that follows the rule: apps know exactly how long each batch takes, nothing
costs time but the lane, and the bids are compared in all their orders. What our scheduler delivers less than this is
its own loss; what this delivers less than a bound is out of the rule's reach on these arrivals.

:func:`at_most` is an upper bound for any scheduler, also one that knows every arrival beforehand. It is a relaxation:
work is divisible and may be interrupted at any time, and a request costs the least share of a batch that the arrivals
around it allow, whoever else wants to be in that batch.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from heapq import heappop, heappush
from itertools import permutations
from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

EPSILON = 1e-9


class App(NamedTuple):
    """One app: what a batch takes (ms by size), how long a request may take, what it is worth; ``steps`` of a turn,
    each of which takes the time of size 1, one turn at a time."""

    times: Mapping[int, float]
    slo_ms: float
    worth: float
    steps: int = 1


class Bid(NamedTuple):
    """Requests of one app that could start now: when they are due, the lane time now and until they are answered."""

    app: str
    members: Sequence[int]
    dues: Sequence[float]
    worth: float
    time_ms: float
    left_ms: float

    def value(self, at_ms: float) -> float:
        """What it is worth if it starts then."""
        ends_ms = at_ms + self.left_ms - EPSILON
        return self.worth * sum([due_ms >= ends_ms for due_ms in self.dues])


def chosen(bids: Sequence[Bid], at_ms: float) -> Bid:
    """The first bid of the order that loses least; of equal ones that of most value per remaining lane time."""
    ranked = []
    for order in permutations(range(len(bids))):
        loss, starts_ms = 0.0, at_ms
        for index in order:
            loss += bids[index].value(at_ms) - bids[index].value(starts_ms)
            starts_ms += bids[index].time_ms
        first = bids[order[0]]
        ranked.append((loss, -first.value(at_ms) / first.left_ms, order))
    return bids[min(ranked)[2][0]]


def by_rule(
    apps: Mapping[str, App], arrivals: Mapping[str, Sequence[float]], noise: float = 0.0, seed: int = 0
) -> Dict[str, int]:
    """Requests of each app in time (arrivals in ms, rising) under the rule. With ``noise``, the deviation of the times
    as a share of them, what the apps know are the means."""
    draw = random.Random(f"three apps/{seed}")
    coming = sorted([(at_ms, name, index) for name, every in arrivals.items() for index, at_ms in enumerate(every)])
    waiting: Dict[str, List[Tuple[float, int]]] = {name: [] for name in apps}  # (due, index)
    begun: Dict[str, Tuple[float, int, int]] = {}  # app -> (due, index, steps that are left) of its turn
    in_time = dict.fromkeys(apps, 0)
    now_ms, place = 0.0, 0
    while True:
        while place < len(coming) and coming[place][0] <= now_ms:
            at_ms, name, index = coming[place]
            waiting[name].append((at_ms + apps[name].slo_ms, index))
            place += 1
        bids = [bid for name in sorted(apps) for bid in _bids(name, apps[name], waiting[name], begun, now_ms)]
        if not bids:
            if place == len(coming):
                return in_time
            now_ms = coming[place][0]
            continue
        best = chosen(bids, now_ms)
        now_ms += best.time_ms * max(0.0, draw.gauss(1.0, noise))
        is_over = apps[best.app].steps == 1 or _step(best.app, apps[best.app], waiting[best.app], begun)
        if is_over:
            members = set(best.members)
            waiting[best.app] = [row for row in waiting[best.app] if row[1] not in members]
            in_time[best.app] += sum([due_ms >= now_ms - EPSILON for due_ms in best.dues])


def _bids(
    name: str, app: App, waiting: List[Tuple[float, int]], begun: Dict[str, Tuple[float, int, int]], now_ms: float
) -> List[Bid]:
    """What an app offers, if anything; who can no longer be in time is dropped."""
    alone_ms = app.times[1] * app.steps
    del waiting[: bisect_left(waiting, (now_ms + alone_ms - EPSILON,))]
    if app.steps > 1:
        turn = begun.get(name)
        if turn is not None and turn[0] < now_ms + turn[2] * app.times[1] - EPSILON:
            del begun[name]
            turn = None
        if turn is None and waiting:
            turn = (*waiting[0], app.steps)
        return (
            [] if turn is None else [Bid(name, (turn[1],), (turn[0],), app.worth, app.times[1], turn[2] * app.times[1])]
        )
    best: Bid | None = None
    for count, time_ms in sorted(app.times.items()):
        first = bisect_left(waiting, (now_ms + time_ms - EPSILON,))
        rows = waiting[first : first + count]
        if len(rows) == count and (best is None or count * best.time_ms >= len(best.members) * time_ms):
            best = Bid(name, [index for _, index in rows], [due_ms for due_ms, _ in rows], app.worth, time_ms, time_ms)
    return [] if best is None else [best]


def _step(name: str, app: App, waiting: List[Tuple[float, int]], begun: Dict[str, Tuple[float, int, int]]) -> bool:
    """A step of the app's turn has run; whether it was the last."""
    due_ms, index, left = begun.pop(name) if name in begun else (*waiting.pop(0), app.steps)
    if left > 1:
        begun[name] = (due_ms, index, left - 1)
    return left == 1


def at_most(apps: Mapping[str, App], arrivals: Mapping[str, Sequence[float]]) -> float:
    """An upper bound of the value delivered in time.

    Divisible work with windows: what of any set of requests can be done is most if the earliest deadline goes first
    (Horn), and these amounts are a polymatroid, so that taking the requests of most value per work first is best
    (Edmonds). With the levels of value per work falling, the bound is the sum of each level's drop times what can be
    done of all requests at or above it.
    """
    rows: List[Tuple[float, float, float, float]] = []  # (value per work, from, due, work)
    for name, app in apps.items():
        for at_ms, work_ms in zip(arrivals[name], least_ms(app, arrivals[name])):
            rows.append((app.worth / work_ms, at_ms, at_ms + app.slo_ms, work_ms))
    levels = sorted({row[0] for row in rows}, reverse=True)
    total = 0.0
    for level, below in zip(levels, [*levels[1:], 0.0]):
        total += (level - below) * most_work([row[1:] for row in rows if row[0] >= level])
    return total


def least_ms(app: App, arrivals: Sequence[float]) -> List[float]:
    """For each request the least share of a batch's time: a batch of k that is in time for all of its members begins
    after the last of them came and ends before the first of them is due."""
    found = [app.times[1] * app.steps] * len(arrivals)
    if app.steps > 1:
        return found
    for count, time_ms in app.times.items():
        for first in range(len(arrivals) - count + 1):
            if arrivals[first + count - 1] - arrivals[first] <= app.slo_ms - time_ms + EPSILON:
                for index in range(first, first + count):
                    found[index] = min(found[index], time_ms / count)
    return found


def most_work(rows: Sequence[Tuple[float, float, float]]) -> float:
    """How much of divisible work, (from, due, amount) each, one lane can do in time: the earliest deadline first."""
    coming = sorted(rows)
    waiting: List[Tuple[float, float]] = []
    done = now = 0.0
    place = 0
    while place < len(coming) or waiting:
        if not waiting:
            now = max(now, coming[place][0])
        while place < len(coming) and coming[place][0] <= now:
            heappush(waiting, (coming[place][1], coming[place][2]))
            place += 1
        due, amount = heappop(waiting)
        until = min(due, now + amount, coming[place][0] if place < len(coming) else due)
        if until > now:
            done += until - now
            amount -= until - now
            now = until
        if amount > EPSILON and due > now:
            heappush(waiting, (due, amount))
    return done
