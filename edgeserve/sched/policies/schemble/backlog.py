"""What lane time costs while requests wait: a surcharge that rises with the part of the time left that they need.

A local problem is planned as if nothing else would come, so that its plan fills all time up to the last deadline: under
lasting load every request then runs just before its deadline, and a batch that takes longer than usual makes it late.
So time beyond the fastest model of each request is charged by a rule of online knapsacks (Zhou, Chakrabarty and Lukose,
"Budget constrained bidding in keyword auctions and online knapsack problems", WINE 2008): the price rises exponentially
from the least to the most that lane time could bring, with the part of the capacity that is taken. Pure.
"""

from __future__ import annotations

from typing import Final, List

from edgeserve.sched.policies.schemble.problem import Lanes

FULL: Final = 0.5
"""The part of the time left that the fastest models of all that wait may need before nobody gets more than one."""

LOWEST: Final = 0.05
"""The least price of all models' time that a surcharge rises from, in agreement."""


def fastest_ns(lanes: Lanes) -> List[int]:
    """What a request takes at each place with the fastest of the models there."""
    found = [0] * len(lanes.free_ns)
    for place, time_ns, size in zip(lanes.lane_of, lanes.times_ns, lanes.sizes):
        own_ns = max(1, -(-time_ns // size))
        found[place] = min(found[place], own_ns) if found[place] else own_ns
    return found


def units(lanes: Lanes) -> List[float]:
    """The work of each model, in units: what a request takes with the fastest model of the same place."""
    fastest = fastest_ns(lanes)
    return [-(-time_ns // size) / fastest[place]
            for place, time_ns, size in zip(lanes.lane_of, lanes.times_ns, lanes.sizes)]


def taken(lanes: Lanes, waiting: int, last_ns: int) -> float:
    """The part of the units that the lanes could do until ``last_ns`` which ``waiting`` requests need, one each."""
    room = 0.0
    for free_ns, own_ns in zip(lanes.free_ns, fastest_ns(lanes)):
        room += sum([max(0, last_ns - at_ns) for at_ns in free_ns]) / own_ns
    return waiting / room if room > 0 else 1.0


def surcharge(lanes: Lanes, price: float, part: float) -> float:
    """What a unit of work costs while a ``part`` of the time left is taken, beyond the ``price`` of all models' time,
    in agreement: from nothing to a whole answer, which it would bring to a request that gets none."""
    fastest = fastest_ns(lanes)
    lowest = max(LOWEST, price) * sum(fastest) / len(fastest) / sum(lanes.times_ns)
    return float(lowest ** (1.0 - min(1.0, part / FULL))) - lowest
