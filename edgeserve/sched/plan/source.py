"""The interface of one kind of work to the plan: queue its jobs, drop late ones, offer candidates, make a bid of
one."""

from __future__ import annotations

from typing import Any, Final, List, Mapping, Sequence, Set

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.plan.candidate import Behind, Candidate, Kind
from edgeserve.sched.policies.common.bidding import bid_for, refusal
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.requests.worth import each_ns
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import RESIDENT
from edgeserve.units import FOREVER_NS

NONE: Final[Sequence[Candidate]] = ()

BEHIND: Final = 5
"""Entries of the schedule for what waits behind a batch."""

LOOK_BEHIND: Final = 256
"""Jobs that are looked at for them, those due first."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Source(Kind):
    """One kind of work. ``owner`` is the policy that the requests belong to. The hooks mean what they mean in
    :class:`~edgeserve.sched.policy_api.policy.Policy`, for the jobs of this kind alone.

    ``is_idle``: nothing waits here, so that the source is asked for no plan, offer or wake-up until a job is ready. Its
    own :meth:`plan` says so. ``lanes`` may run its work: others are not asked for.
    """

    def __init__(self, owner: Policy) -> None:
        self.owner = owner
        self.is_idle = True
        self.lanes: Set[str] = set()

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        """Admit (None) or refuse (the reason) a request of an app of this kind."""
        return refusal(request, board)

    def on_ready(self, job: Job, board: Board) -> None:
        """Queue a job."""
        raise NotImplementedError

    def on_gone(self, job: Job, board: Board) -> None:
        """Unqueue a job that has left."""
        raise NotImplementedError

    def lacks_ns(self, job: Job) -> float:
        """The lane time that a job that is given up lacked, of its request."""
        return each_ns(job.request.app, job.request.cost_share_ns)

    def on_started(self, work: Work, board: Board) -> None:
        """A batch of this source runs: unqueue its jobs."""
        raise NotImplementedError

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        """A batch of this source ended."""

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        """A request that was given up was run as a trial."""

    def on_refused(self, work: Work, board: Board) -> None:
        """The lane would not start a batch of this source."""

    def on_lost(self, work: Work, board: Board) -> None:
        """The lane of a batch of this source went down or hangs."""

    def forget(self) -> None:
        """Let go of all that is kept until something changes: it is made anew when it is asked for."""
        self.is_idle = False

    def plan(self, board: Board) -> None:
        """Drop what can no longer be in time, settle joins, prepare. Called once per step before :meth:`offers`."""

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        """The batches that this lane could start at ``at_ns``, of models that are resident. Changes nothing."""
        return NONE

    def lone(self, lane: Lane, board: Board) -> Bid | None:
        """The bid where nothing else waits for the lane, without a candidate; None where a choice is needed."""
        return None

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        """Smaller batches in place of one that would make critical requests late. Changes nothing."""
        return NONE

    def behind(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Behind]:
        """What waits behind a candidate that would start at ``at_ns``, batch by batch: :data:`BEHIND` at most. Changes
        nothing."""
        return ()

    def may_grow(self, model: str) -> bool:
        """True if jobs that come while a batch of a model waits join it, and each takes less time then. Changes
        nothing."""
        return False

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        """The bid that starts a candidate. ``others`` are the ones that it was chosen from."""
        return bid_for(candidate.jobs, candidate.size, candidate.takes_ns, board)

    def cut(self, work: Work, board: Board) -> bool:
        """True if a batch of sequences is to end after its present step. Changes nothing."""
        return False

    def next_wakeup_ns(self, board: Board) -> int | None:
        """When to look again although nothing happens, or None."""
        return None

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """When a request that is refused or given up would end (see :meth:`Policy.expected_end`)."""
        return expected_end(request, job, board)

    def figures(self) -> Mapping[str, Any]:
        """The learnt numbers, for people."""
        return {}

    def queued(self) -> List[Job]:
        """The jobs that wait here."""
        return []


def queue_behind(dues_ns: Sequence[int], candidate: Candidate, at_ns: int) -> List[Behind]:
    """The jobs due then (in rising order) behind a batch like theirs that would start at ``at_ns``: of jobs that can be
    in time the next batch, the two behind that, four, and so on."""
    takes_ns, place, batches = candidate.takes_ns, 0, 1
    after_ns = at_ns + takes_ns
    found: List[Behind] = []
    while place < len(dues_ns) and len(found) < BEHIND:
        count, wait_ns = 0, FOREVER_NS
        while place < len(dues_ns) and count < batches:
            if dues_ns[place] < after_ns + takes_ns:
                place += 1
                continue
            count += 1
            wait_ns = min(wait_ns, dues_ns[place] - at_ns - count * takes_ns)
            after_ns += takes_ns
            place += candidate.size
        if count:
            found.append(Behind(count * takes_ns, wait_ns))
        batches *= 2
    return found


def is_here(model: str, board: Board) -> bool:
    """True if any lane that is up has the model in memory."""
    for lane, _, placement in board.places_of(model):
        if lane.up and not lane.hung and placement.state == RESIDENT:
            return True
    return False


def alone_ns(model: str, board: Board) -> int:
    """The time of a lone job of a model, of one step where it makes sequences, where it is fastest."""
    return min([latency.alone_likely_ns for _, latency, _ in board.places_of(model)])


def path_part(job: Job, own_ns: int, board: Board) -> float:
    """The part of the lane time of a job's path from here on that ``own_ns`` of its node is."""
    return own_ns / max(1, own_ns + board.rest_lane_ns(job.request.app, job.node))
