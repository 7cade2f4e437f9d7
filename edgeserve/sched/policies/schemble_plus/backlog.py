"""What lane time costs: a price for the requests to come, and a surcharge that rises while requests wait.

A local problem is planned as if nothing else would come, so that its plan fills all time up to the last deadline: under
lasting load every request then runs just before its deadline, and a batch that takes longer than usual makes it late.
So time beyond the fastest model of each request is charged by a rule of online knapsacks (Zhou, Chakrabarty and Lukose,
"Budget constrained bidding in keyword auctions and online knapsack problems", WINE 2008): the price rises exponentially
from the least to the most that lane time could bring, with the part of the capacity that is taken.

Where several ensembles use a lane, its time costs what it would bring to all of them, weighted by how many requests
each has: a cheap ensemble pays for what a dear one loses, and is charged nothing for lanes that it does not use. Pure.
"""

from __future__ import annotations

from typing import Dict, Final, List, NamedTuple, Sequence, Tuple

from edgeserve.sched.policies.ensemble.problem import Lanes

FULL: Final = 0.5
"""The part of the time left that the fastest models of all that wait may need before nobody gets more than one."""

PRICE: Final = 0.05
"""What the time of all models costs a request, in agreement: room for requests to come. The surcharges rise from it."""


class Demand(NamedTuple):
    """One ensemble on the lanes: the numbers of its models, what an answer of all models is worth, and how many
    requests ask for one."""

    models: Tuple[int, ...]
    worth: float
    asking: float


def fastest_ns(lanes: Lanes, models: Sequence[int]) -> Dict[int, int]:
    """What a request takes at each place with the fastest of some models there."""
    found: Dict[int, int] = {}
    for model in models:
        place, own_ns = lanes.lane_of[model], _own_ns(lanes, model)
        found[place] = min(found.get(place, own_ns), own_ns)
    return found


def _own_ns(lanes: Lanes, model: int) -> int:
    """What one request in a full batch takes."""
    return max(1, -(-lanes.times_ns[model] // lanes.sizes[model]))


def prices(lanes: Lanes, demands: Sequence[Demand]) -> List[float]:
    """What a nanosecond of each place costs: :data:`PRICE` of what it brings on average to those who use the place."""
    found = []
    for place in range(len(lanes.free_ns)):
        worth = time_ns = 0.0
        for models, each, count in demands:
            if any(lanes.lane_of[model] == place for model in models):
                worth += count * each
                time_ns += count * sum([lanes.times_ns[model] for model in models])
        found.append(PRICE * worth / time_ns if time_ns else 0.0)
    return found


def taken(lanes: Lanes, demands: Sequence[Demand], last_ns: int) -> List[float]:
    """The part of the time of each place until ``last_ns`` that the demands need, with one model for each request."""
    found = [0.0] * len(lanes.free_ns)
    for models, _, count in demands:
        fastest, room = fastest_ns(lanes, models), 0.0
        for place, own_ns in fastest.items():
            room += sum([max(0, last_ns - at_ns) for at_ns in lanes.free_ns[place]]) / own_ns
        for place in fastest:
            found[place] += (count / room if room > 0 else 1.0) if count else 0.0
    return found


def surcharges(lanes: Lanes, models: Sequence[int], demands: Sequence[Demand], last_ns: int) -> List[float]:
    """What each of an ensemble's ``models`` costs while the demands wait, beyond the :func:`prices`: from nothing to
    the worth of the answers that the others who wait could get in its time."""
    fastest, parts = fastest_ns(lanes, models), taken(lanes, demands, last_ns)
    lowest = PRICE * sum(fastest.values()) / len(fastest) / sum([lanes.times_ns[at] for at in models])
    found = []
    for model in models:
        place = lanes.lane_of[model]
        share = float(lowest ** (1.0 - min(1.0, parts[place] / FULL))) - lowest
        found.append(_own_ns(lanes, model) * share * _worth_per_ns(lanes, demands, place))
    return found


def _worth_per_ns(lanes: Lanes, demands: Sequence[Demand], place: int) -> float:
    """What a place brings to those who wait, on average, with the fastest model of each."""
    worth = time_ns = 0.0
    for models, each, count in demands:
        own_ns = fastest_ns(lanes, models).get(place)
        if own_ns is not None:
            worth += count * each
            time_ns += count * own_ns
    return worth / time_ns if time_ns else 0.0
