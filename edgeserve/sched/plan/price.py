"""The likely price of lane time: the worth of its next nanosecond to the apps that ask for it.

A lane with room for some of what is asked of it serves the densest steps first (a fractional knapsack); its price is
the density of the step that finds no room, its dual. Demand is a Poisson number, so each step's density counts with the
chance that it is the one (``one_plan`` 2: the density of one step jumps with the rate of the last arrivals, and is no
price where worth is linear in models). Steps of one request are alternatives of it (models of an ensemble, variants of
a model): the concave hull of what more time brings. Pure.
"""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.priority_class import RESERVED, YIELDING
from edgeserve.sched.plan.candidate import CRITICAL_FACTOR
from edgeserve.sched.policies.common.ensembles import Ensemble
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.graph import App
from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import FOREVER_NS

Step = Tuple[float, float, float]
"""A use of lane time: worth per nanosecond, how much is asked within the horizon, how much each request asks."""

Option = Tuple[float, float]
"""A way to serve a request: the lane time that it takes, and the worth that it brings."""


def likely_price(steps: Sequence[Step], room_ns: float) -> float:
    """The price of a nanosecond where these steps ask for ``room_ns`` of lane time."""
    asked = variance = before = price = 0.0
    for density, asked_ns, each_ns in sorted(steps, reverse=True):
        asked += asked_ns
        variance += asked_ns * each_ns
        over = 0.5 * (1.0 + math.erf((asked - room_ns) / math.sqrt(2.0 * variance))) if variance > 0.0 else 0.0
        if over > before:
            price += density * (over - before)
            before = over
    return price


def hull(options: Sequence[Option], count: float) -> List[Step]:
    """The steps of ``count`` requests that may each be served in one of these ways: from nothing the one of most worth
    per time, from there the one that adds most per further time, and so on."""
    steps: List[Step] = []
    at_ns = at_worth = 0.0
    while True:
        best, best_ns, best_worth = 0.0, 0.0, 0.0
        for takes_ns, worth in options:
            density = (worth - at_worth) / (takes_ns - at_ns) if takes_ns > at_ns else 0.0
            if density > best or (density == best and takes_ns > best_ns):
                best, best_ns, best_worth = density, takes_ns, worth
        if best <= 0.0:
            return steps
        steps.append((best, count * (best_ns - at_ns), best_ns - at_ns))
        at_ns, at_worth = best_ns, best_worth


def steps_on(
    lanes: Sequence[Lane],
    ensembles: Mapping[str, Ensemble],
    waiting: Mapping[str, int],
    horizon_ns: int,
    board: Board,
) -> List[Step]:
    """The steps that the apps on some lanes will ask of them within the horizon, but for background work, which yields
    to all. ``waiting``: requests that wait there already."""
    models = {model for lane in lanes for model in lane.models}
    apps: Dict[str, App] = {app.name: app for lane in lanes for app in board.apps_on[lane.name]}
    steps: List[Step] = []
    for name, app in apps.items():
        recent = board.recent_arrivals(name)
        count = recent.per_ns(board.now_ns) * horizon_ns + waiting.get(name, 0)
        if app.priority_class in YIELDING or count <= 0.0:
            continue
        worth = recent.worth * (CRITICAL_FACTOR if app.priority_class in RESERVED else 1.0)
        ensemble = ensembles.get(name)
        if ensemble is None:
            shares = [min([times.share_ns for _, times, _ in board.places_of(node.model)]) for node in app.nodes]
            here = sum([each for node, each in zip(app.nodes, shares) if node.model in models])
            part = here / max(1, sum(shares))
            steps += hull([(recent.lane_ns * part, worth * part)], count)
        else:
            steps += hull(_options(ensemble, models, worth, board), count)
    return steps


def _options(ensemble: Ensemble, models: Set[str], worth: float, board: Board) -> List[Option]:
    """The worth of subsets of an ensemble's models here, beside all of its models that run elsewhere."""
    nodes = ensemble.nodes
    elsewhere = sum([1 << bit for bit, node in enumerate(nodes) if node.model not in models])
    shares = [share_ns(node.model, board, ensemble.batch_ns) for node in nodes]
    found: List[Option] = []
    for subset in [1 << bit for bit in range(len(nodes))] if ensemble.one_of else range(1, 1 << len(nodes)):
        if not subset & elsewhere:
            takes_ns = sum([share for bit, share in enumerate(shares) if subset >> bit & 1])
            found.append((float(takes_ns), worth * (ensemble.mean[elsewhere | subset] - ensemble.mean[elsewhere])))
    return found


def share_ns(model: str, board: Board, batch_ns: int = FOREVER_NS) -> int:
    """The lane time of one request among many in the mean, in full batches of a model; of batches that take longer than
    ``batch_ns``, in the largest that do not."""
    least_ns = FOREVER_NS
    for _, latency, _ in board.places_of(model):
        size, times_ns = latency.size_max, latency.typical_ns
        if times_ns[size] > batch_ns:
            size = max([size for size in latency.sizes if times_ns[size] <= batch_ns], default=latency.sizes[0])
        least_ns = min(least_ns, max(1, latency.mean_ns(size) // size))
    return least_ns
