"""The work of a request beside a usual one, as its hints say (section 9.2 of the specification): what
it declared, and what its earlier nodes said of it or of one part.

``NODE.work``, or ``work`` for every node, is relative to the usual 1.0 and scales the part of a batch's time that grows
with its members; ``NODE.steps`` are the runs of an iterative model. An expensive request is seen to be late before
lane time is spent on it, and a cheap one is not dropped for what others take. Knows no time but what it is given.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

from edgeserve.sched.published.pard.state_planner import Module
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import Job
from edgeserve.sched.requests.work import WORK_MAX, relative_ppm
from edgeserve.units import PPM


class DeclaredWork:
    """The hints that requests to some apps declare. Immutable."""

    __slots__ = ("_behind",)

    def __init__(self, apps: Sequence[App]) -> None:
        self._behind: Dict[Node, Tuple[Node, ...]] = {}
        for app in apps:
            for node in reversed(app.nodes):  # successors first
                behind: List[Node] = list(node.succs)
                for succ in node.succs:
                    behind += [further for further in self._behind[succ] if further not in behind]
                self._behind[node] = tuple(behind)

    def over_usual_ppm(self, job: Job) -> int:
        """The work of a job beyond the usual, in millionths of the usual: -1,000,000 is none at all."""
        hints = job.hints
        return _over_usual_ppm(hints, job.node.name) if hints else 0

    def of_batch_ns(self, jobs: Iterable[Job], each_ns: int) -> int:
        """The time by which these jobs make their batch longer (shorter: below 0); ``each_ns`` is what a usual one
        adds."""
        return sum([self.over_usual_ppm(job) for job in jobs]) * each_ns // PPM

    def behind_ns(self, job: Job, modules: Mapping[str, Module]) -> Dict[Node, int]:
        """The time by which the modules behind a job's own take longer than usual for its request. O(nodes behind)."""
        hints = job.hints
        found: Dict[Node, int] = {}
        if hints:
            for node in self._behind[job.node]:
                module, steps = modules[node.model], node.steps_key
                extra_ns = _over_usual_ppm(hints, node.name) * module.each_ns // PPM
                if steps in hints:
                    extra_ns += (max(1, int(min(hints[steps], WORK_MAX))) - 1) * module.time_ns
                if extra_ns:
                    found[node] = extra_ns
        return found


def _over_usual_ppm(hints: Mapping[str, float], node: str) -> int:
    relative = relative_ppm(hints, node)
    return 0 if relative is None else relative - PPM
