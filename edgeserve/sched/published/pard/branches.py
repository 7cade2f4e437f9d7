"""Which branch a request will take in a conditional graph (``route = "one"``): declared by its hints, or learnt.

A request that declares the hint ``NODE.route`` (the successor's number, from 0) names the branch that the node is
expected to choose; any other number names none of them. What was chosen lately says how likely each branch is (section
9.4 of the specification). Behind the fork there is no prediction any more: the job stands in the branch that was taken.
Knows no time.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Mapping, Sequence, Tuple

from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import COMPLETED, DONE, Job
from edgeserve.units import PPM

SEEN_LEN = 64
"""Choices remembered per fork: a few seconds of a busy pipeline, so that a change of scene is noticed."""

NO_BRANCH = -1
"""Stands for a fork of which a request says that it will take none of its branches."""

Routes = Tuple[Tuple[Node, int], ...]
"""The forks of which a request says something, in the order of the graph, and which successor they will choose."""


class Branches:
    """The forks with ``route = "one"`` of some apps. :meth:`saw` is the only method that changes it."""

    __slots__ = ("_forks", "_seen")

    def __init__(self, apps: Sequence[App]) -> None:
        self._forks: Dict[Node, Tuple[Tuple[str, Node], ...]] = {}  # node -> the forks from it on, each with its hint
        self._seen: Dict[Node, Deque[int]] = {}
        for app in apps:
            for node in reversed(app.nodes):  # successors first
                forks: List[Tuple[str, Node]] = [(f"{node.name}.route", node)] if node.route_one else []
                for succ in node.succs:
                    forks += [fork for fork in self._forks[succ] if fork not in forks]
                self._forks[node] = tuple(sorted(forks, key=lambda fork: fork[1].index))
                if node.route_one:
                    self._seen[node] = deque(maxlen=SEEN_LEN)

    def declared(self, node: Node, hints: Mapping[str, float]) -> Routes:
        """The hints of a request on the forks from a node on. O(those forks)."""
        return tuple([(fork, _place(hints[hint], fork)) for hint, fork in self._forks[node] if hint in hints])

    def observe(self, job: Job) -> None:
        """A job of a fork came back: the job that follows it stands in the branch that was taken. Where a branch leads
        straight to a join, which may still be waiting, no job says nothing."""
        fork, request = job.node, job.request
        if job.state != DONE or (request.ended and request.state != COMPLETED):
            return
        taken = next(
            (
                fork.succs.index(other.node)
                for other in request.jobs.values()
                if other.part == job.part and other.node in fork.succs
            ),
            NO_BRANCH,
        )
        if taken != NO_BRANCH or not any(len(succ.preds) > 1 for succ in fork.succs):
            self._seen[fork].append(taken)

    def shares_ppm(self, fork: Node) -> List[int]:
        """The chance of each branch, in millionths, and last, none of them. Before anything was seen all branches are
        alike."""
        seen, count = self._seen[fork], len(fork.succs)
        shares = [(seen.count(place) * count + 1) * PPM // ((len(seen) + 1) * count) for place in range(count)]
        return [*shares, PPM - sum(shares)]


def _place(named: float, fork: Node) -> int:
    return int(named) if 0 <= named < len(fork.succs) else NO_BRANCH
