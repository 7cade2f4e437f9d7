"""What other apps lose by lane time that an ensemble takes: the charge for the models that a request could do without.

The auction compares what bids now. A model that takes 200 ms makes frames late that come while it runs, and on a lane
that is asked for all of its time every model takes the place of somebody's request. A first model is the auction's
matter; whether a request gets a second one is decided by this charge. Pure: reads the board and changes nothing.
"""

from __future__ import annotations

from typing import Final, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.graph import App
from edgeserve.sched.resources.lanes import Lane

LOWEST: Final = 0.05
"""The part of the others' worth that lane time costs where they ask for hardly any of it; it rises to all of it."""


class OtherApp(NamedTuple):
    """Another app on some lanes: requests per nanosecond, the lane time that one needs there, what it counts in the
    auction, and how long it can wait."""

    per_ns: float
    lane_ns: float
    worth: float
    slack_ns: float


def others_on(lanes: Sequence[Lane], own: FrozenSet[str], board: Board) -> List[OtherApp]:
    """The apps that use some lanes beside one's ``own``, but for background work, which yields to all."""
    found: List[OtherApp] = []
    seen = set(own)
    models = {model for lane in lanes for model in lane.models}
    for lane in lanes:
        for app in board.apps_on[lane.name]:
            if app.name in seen:
                continue
            seen.add(app.name)
            recent = board.recent_arrivals(app.name)
            per_ns = recent.per_ns(board.now_ns)
            if app.klass != "background" and per_ns > 0.0:
                part, alone_ns = _part_on(app, models, board)
                found.append(
                    OtherApp(per_ns, recent.lane_ns * part, recent.worth, max(0.0, recent.allowed_ns - alone_ns))
                )
    return found


def _part_on(app: App, models: Set[str], board: Board) -> Tuple[float, int]:
    """Which part of an app's lane time its nodes need on some lanes, and what all of them take alone."""
    here_ns = all_ns = alone_ns = 0
    for node in app.nodes:
        latencies = [board.latency(node.model, lane.name) for lane in board.lanes_of(node.model)]
        share_ns = min([latency.share_ns for latency in latencies])
        all_ns += share_ns
        here_ns += share_ns if node.model in models else 0
        alone_ns += min([latency.alone_likely_ns for latency in latencies])
    return here_ns / all_ns, alone_ns


def dearness(asked: float) -> float:
    """Which part of its worth lane time costs where this part of the lanes' time is asked for: all of it from 1 on."""
    return float((LOWEST ** (1.0 - min(1.0, asked)) - LOWEST) / (1.0 - LOWEST))


def charges(
    shares_ns: Sequence[int], blocks: Sequence[Tuple[int, int]], lanes: int, own_part: float, others: Sequence[OtherApp]
) -> List[float]:
    """What the others on ``lanes`` replicas lose by models that take so long a request (``shares_ns``) in batches of so
    long (``blocks``: time, requests): its time at the price of theirs, or the requests that come while it runs."""
    asked = sum([other.per_ns * other.lane_ns for other in others], 0.0)
    if asked <= 0.0:  # nobody, or nobody who needs these lanes
        return [0.0] * len(shares_ns)
    per_ns = sum([other.per_ns * other.worth for other in others]) / asked * dearness(asked / lanes + own_part)
    found = []
    for share_ns, (block_ns, count) in zip(shares_ns, blocks):
        late = sum([other.per_ns * other.worth * max(0.0, block_ns - other.slack_ns) for other in others])
        found.append(max(share_ns * per_ns, late / lanes / count))
    return found
