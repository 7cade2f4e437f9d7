"""What other apps lose by lane time that an ensemble takes: the charge for the models that a request could do without.

The auction compares what bids now. A model that takes 200 ms makes frames late that come while it runs, and on a lane
that has no time left every model takes the place of somebody's request. A first model is the auction's matter; whether
a request gets a second one is decided by this charge. How much time is left is measured: what the others' batches took
lately. Steps of language models count as in full batches: where a lane has less time for steps, more answers share
each. Pure: reads the board and changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Final, FrozenSet, List, NamedTuple, Sequence, Set, Tuple

from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.graph import App
from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import NS_PER_MS

LOWEST: Final = 0.05
"""The part of the others' worth that lane time costs where they ask for hardly any of it; it rises to all of it."""

WINDOW_NS: Final = 2000 * NS_PER_MS
"""The time over which the others' batches are measured; as soon as an eighth of it has passed, they are known."""

SAMPLES: Final = 64
"""So many times in that the lanes are looked at."""


class OtherApp(NamedTuple):
    """Another app on some lanes: requests per nanosecond, the lane time that one needs there, what it counts in the
    auction, how long it can wait, and whether a language model serves it there."""

    per_ns: float
    lane_ns: float
    worth: float
    slack_ns: float
    in_steps: bool = False


class Taken:
    """Which part of the time of some lanes the others' batches took lately, steps of language models not counted."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: Deque[Tuple[int, int]] = deque()

    def part(self, lanes: Sequence[Lane], own: FrozenSet[str], board: Board) -> float | None:
        """None while it is not known."""
        models = {
            node.model
            for lane in lanes
            for app in board.apps_on[lane.name]
            if app.name not in own and app.klass != "background"
            for node in app.nodes
            if not _is_language(node.model, board)
        }
        now, samples = board.now_ns, self._samples
        served_ns = sum([lane.served_ns.get(model, 0) for lane in lanes for model in models])
        if not samples or now - samples[-1][0] >= WINDOW_NS // SAMPLES:
            samples.append((now, served_ns))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_NS:
            samples.popleft()
        since_ns, before_ns = samples[0]
        if now - since_ns < WINDOW_NS // 8:
            return None
        return (served_ns - before_ns) / (now - since_ns) / len(lanes)


def _is_language(model: str, board: Board) -> bool:
    return board.sequence_room(model, board.lanes_of(model)[0]) is not None


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
                slack_ns = max(0.0, recent.allowed_ns - alone_ns)
                in_steps = any(_is_language(node.model, board) for node in app.nodes if node.model in models)
                found.append(OtherApp(per_ns, recent.lane_ns * part, recent.worth, slack_ns, in_steps))
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


def crowding(taken: float | None, lanes: int, least: float, whole: float, others: Sequence[OtherApp]) -> float:
    """Which part of what an ensemble asks for beyond the ``least`` that answers it finds no time on ``lanes`` replicas
    beside the others, who took this part of them; while that is not known, which part of them all ask for. ``least``
    and ``whole`` are parts of their time too."""
    if taken is None:
        return sum([other.per_ns * other.lane_ns for other in others]) / lanes + least
    in_steps = sum([other.per_ns * other.lane_ns for other in others if other.in_steps]) / lanes
    room = 1.0 - taken - in_steps - least
    return 1.0 - max(0.0, min(1.0, room / (whole - least))) if whole > least else float(room <= 0.0)


def charges(
    shares_ns: Sequence[int], blocks: Sequence[Tuple[int, int]], lanes: int, crowded: float, others: Sequence[OtherApp]
) -> List[float]:
    """What the others on ``lanes`` replicas lose by models that take so long a request (``shares_ns``) in batches of so
    long (``blocks``: time, requests): its time at the price of theirs, where it is :func:`crowding`, or the requests
    that come while it runs."""
    asked = sum([other.per_ns * other.lane_ns for other in others], 0.0)
    if asked <= 0.0:  # nobody, or nobody who needs these lanes
        return [0.0] * len(shares_ns)
    per_ns = sum([other.per_ns * other.worth for other in others]) / asked * dearness(crowded)
    found = []
    for share_ns, (block_ns, count) in zip(shares_ns, blocks):
        late = sum([other.per_ns * other.worth * max(0.0, block_ns - other.slack_ns) for other in others])
        found.append(max(share_ns * per_ns, late / lanes / count))
    return found
