"""A candidate: one batch that a lane could start now, with what it brings, how long it takes and how long it can wait.

All kinds of work are compared by an index of apparent tardiness cost (Vepsalainen and Morton 1987; for batches Mason,
Fowler and Carlyle 2002): worth in time per lane time, times ``exp(-slack / K)``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Sequence

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import RESERVED
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.requests.worth import each_ns

K_SHARE: Final = 0.4
"""K, as a share of the SLO (``one_index``: .3 to .5 are level in held-out mixes)."""

CRITICAL_FACTOR: Final = 2.0
"""A critical request counts so many times what another one of its app and value would."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Kind:
    """The maker of a candidate: the source of one ``kind`` of work."""

    kind = ""

    def wait_ns(self, candidate: Candidate) -> int:
        """The time by which the start may be put off in a schedule, as if the batch were as slow as the slowest lately:
        below 0 where it would be late so, and enters no schedule behind a denser one. Sources whose batches lose their
        worth little by little answer otherwise."""
        return round((candidate.slack_ns - (candidate.careful_ns - candidate.takes_ns)) * candidate.trust)


class Behind(NamedTuple):
    """Work that comes behind a batch of its model or pipeline, of about the same worth per time: how long it keeps the
    lane, and by when it must start to be in time."""

    takes_ns: int
    wait_ns: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Candidate:
    """A batch of ``jobs`` of one ``model`` in a batch of ``size``.

    ``takes_ns`` is how long it keeps the lane from others (of sequences the next step), ``careful_ns`` the same if it
    is as slow as the slowest lately. ``gain`` is the worth that is expected in time, of its share of the path that is
    left, in nanoseconds of lane time; ``slack_ns`` how long the start can wait until the first of that is lost;
    ``k_ns`` the time in which urgency rises by the factor e. ``press`` is how far from urgent it is, in units of K.
    ``value`` is set by the choice: worth per time less what critical requests lose by it (``guarded``: they lose some)
    and less the lane's price. ``trust`` is the share of its slack for which it may wait in a schedule. A critical
    batch has that many ``stages`` left, this one included: the most of any of its jobs. ``saves_ns`` is the lane time
    that a fuller batch would save if this one waited for what is expected; ``is_early``: it had better wait;
    ``is_cheap``: it brings far less than the lane's price. ``full_ns``: the lane time of its jobs in full batches,
    where a fuller one would save time; ``is_sparse``: that is far less than it takes.
    """

    __slots__ = (
        "source",
        "model",
        "jobs",
        "size",
        "takes_ns",
        "careful_ns",
        "gain",
        "slack_ns",
        "k_ns",
        "priority_class",
        "is_critical",
        "press",
        "value",
        "guarded",
        "detail",
        "trust",
        "stages",
        "saves_ns",
        "full_ns",
        "is_early",
        "is_cheap",
        "is_sparse",
    )

    def __init__(
        self,
        source: Kind,
        model: str,
        jobs: Sequence[Job],
        size: int,
        takes_ns: int,
        careful_ns: int,
        gain: float,
        slack_ns: int,
        k_ns: int,
        priority_class: str,
        detail: object = None,
    ) -> None:
        self.source = source
        self.model = model
        self.jobs = jobs
        self.size = size
        self.takes_ns = max(1, takes_ns)
        self.careful_ns = max(self.takes_ns, careful_ns)
        self.gain = gain
        self.slack_ns = slack_ns
        self.k_ns = max(1, k_ns)
        self.priority_class = priority_class
        self.is_critical = priority_class in RESERVED  # some job of the batch is
        self.press = max(0, slack_ns) / self.k_ns
        self.value = 0.0
        self.guarded = False
        self.trust = 1.0
        self.stages = stages_left(jobs) if self.is_critical else 1
        self.saves_ns = self.full_ns = 0
        self.is_early = self.is_cheap = self.is_sparse = False
        self.detail = detail  # what the source needs to make the bid

    def wait(self, more_ns: int) -> None:
        """The start is later by so much."""
        self.slack_ns -= more_ns
        self.press = max(0, self.slack_ns) / self.k_ns

    def __repr__(self) -> str:
        return f"Candidate({self.model} x{len(self.jobs)} in {self.takes_ns} ns, slack {self.slack_ns} ns)"


def stages_left(jobs: Sequence[Job]) -> int:
    """The stages that share the slack of a batch: the most of any job's path, this one included."""
    return max([job.node.stages for job in jobs])


def weight_of(request: RequestRecord) -> float:
    """The worth of a request as a multiple of its app's usual one."""
    return request.value * (CRITICAL_FACTOR if request.priority_class in RESERVED else 1.0)


def worth_of(request: RequestRecord) -> float:
    """The worth of a request if it is in time, in nanoseconds of lane time."""
    factor = CRITICAL_FACTOR if request.priority_class in RESERVED else 1.0
    return each_ns(request.app, request.cost_share_ns) * (request.value * factor)
