"""The work of a job beside a usual one, by hints: ``NODE.work``, or ``work`` for every node.

The usual is 1.0; a hint that is no number of work above 0 counts as none at all. Integers, so that sums are exact on
every Python.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from edgeserve.sched.requests.states import Job
from edgeserve.units import PPM

MILLI = 1000
"""Jobs and work are counted in thousandths of a usual job."""

WORK_MAX = 1_000_000
"""Times the usual: a declared number beyond is taken for this, so that sums stay small."""


def relative_ppm(hints: Mapping[str, float], node: str) -> int | None:
    """The work at a node beside the usual, in millionths of it; None where the hints do not tell."""
    declared = hints.get(node + ".work")
    if declared is None:
        declared = hints.get("work")
    return None if declared is None else round(max(0.0, min(declared, WORK_MAX)) * PPM)


def relative_milli(hints: Mapping[str, float], node: str) -> int | None:
    """The same in thousandths, rounded up: the least work is not none."""
    ppm = relative_ppm(hints, node)
    return None if ppm is None else -(-ppm * MILLI // PPM)


def over_usual_milli(jobs: Sequence[Job]) -> int | None:
    """The work of jobs beyond as many usual ones, in thousandths of a usual job; None where none declares any. Jobs
    without a hint count as the mean of the others."""
    told: List[int] = []
    for job in jobs:
        if job.hints:
            milli = relative_milli(job.hints, job.node.name)
            if milli is not None:
                told.append(milli - MILLI)
    return sum(told) * len(jobs) // len(told) if told else None
