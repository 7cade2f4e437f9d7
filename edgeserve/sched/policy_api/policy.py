"""The hooks of a policy and the bid it offers: what a new policy implements.

A policy serves the apps that name it. It reads facts from the board and makes moves through it; it has no clock, no
thread and no I/O, and never changes a request or a job itself. ``docs/guide/write-a-policy.md`` is the tutorial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, FrozenSet, List, Mapping, Protocol, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import USUAL, YIELDING
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.options import PolicyOptions, read_options
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord

if TYPE_CHECKING:
    from edgeserve.sched.policy_api.board import Board
    from edgeserve.sched.resources.lanes import Lane, Work

Options = Mapping[str, object]
"""The keys of ``[policy.NAME]`` except ``kind``, with their values."""

QUALITY_TOO_LOW = "quality_too_low"
"""Reason of a request whose answer would be worth less than its client wants."""

NO_LANE = "no_lane"
"""Reason of a request that is refused since no lane is up that could run it."""

CANNOT_MAKE_DEADLINE = "cannot_make_deadline"
"""Reason of a request that no lane could finish in time: refused at arrival, or dropped later (predicted miss)."""


class UtilityOfStart(Protocol):
    """The value that a bid delivers, as a function of its start (``sched/policies/common/bidding.py`` makes it)."""

    def value(self, start_ns: int) -> float:
        """The value delivered if the work starts at ``start_ns``, in nanoseconds of lane time."""


class Bid:
    """The best batch a policy would run on a lane now, and what it is worth.

    ``jobs`` of one ``model`` run as a batch of ``size`` in ``expected_ns``; the lane refuses to start after
    ``start_before_ns``. ``utility`` gives the value delivered as a function of the start time; ``remaining_ns`` is the
    lane time that still has to be spent until that value is delivered. ``drops`` end, with that reason, if and only if
    the bid wins. ``steps_max`` bounds the steps of an iterative model: ``expected_ns`` is then
    the time of all of them, while estimates are of one step. ``whole_ns`` is the time until what ``utility`` counts is
    done, where the batch comes back before; 0: ``expected_ns``. ``variant`` names the engine's way to run the model.
    """

    __slots__ = (
        "model",
        "jobs",
        "size",
        "expected_ns",
        "utility",
        "remaining_ns",
        "start_before_ns",
        "drops",
        "steps_max",
        "probe",
        "priority_class",
        "is_background",
        "policy",
        "variant",
        "whole_ns",
        "open_steps",
    )

    def __init__(
        self,
        model: str,
        jobs: Sequence[Job],
        size: int,
        expected_ns: int,
        utility: UtilityOfStart,
        remaining_ns: int,
        start_before_ns: int = START_ANY_TIME_NS,
        drops: Sequence[Tuple[RequestRecord, str]] = (),
        steps_max: int | None = None,
        probe: bool = False,
        priority_class: str = USUAL,
        variant: str = "",
        whole_ns: int = 0,
    ) -> None:
        self.model = model
        self.jobs = jobs
        self.size = size
        self.expected_ns = expected_ns
        self.utility = utility
        self.remaining_ns = remaining_ns
        self.start_before_ns = start_before_ns
        self.drops = drops
        self.steps_max = steps_max
        self.probe = probe
        self.priority_class = priority_class
        self.is_background = probe or priority_class in YIELDING  # it yields to everything else
        self.variant = variant
        self.whole_ns = whole_ns
        self.policy: Policy | None = None  # filled in by the scheduler
        self.open_steps = False  # the scheduler filled in steps_max

    def resized(self, jobs: Sequence[Job], size: int, expected_ns: int, steps_max: int | None) -> Bid:
        """The same bid for fewer jobs or steps."""
        found = Bid(
            self.model,
            jobs,
            size,
            expected_ns,
            self.utility,
            self.remaining_ns,
            self.start_before_ns,
            self.drops,
            steps_max,
            priority_class=self.priority_class,
            variant=self.variant,
        )
        found.policy = self.policy
        return found

    def __repr__(self) -> str:
        return f"Bid({self.model} x{len(self.jobs)} in {self.size}, {self.expected_ns} ns)"


@dataclass(eq=False)
class Change:
    """A change of a lane (``lane``) or of a device (``device``); a field of None stayed as it was."""

    lane: str = ""
    device: str = ""
    up: bool | None = None  # the lane came back (True), or went down or hangs (False)
    speed: float | None = None  # of the lane, 1.0 as profiled
    memory_free_bytes: int | None = None
    heat: float | None = None  # 0..1 of the device's limit
    power_w: float | None = None
    pressure: int | None = None  # 0, 1 (soft) or 2 (hard)


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """Base of all policies: empty hooks. ``options`` are the keys of ``[policy.NAME]`` except ``kind``, read into
    ``options_type``. While no request of its apps is open and a policy ``is_idle``, having planned since it last heard
    of anything, the scheduler asks it for no plan, bid or wake-up (unless inputs are retained for probes). A policy
    that wants to plan all the same says in its plan that it is not idle.
    """

    options_type: ClassVar[Type[PolicyOptions]] = PolicyOptions
    """The options that it has: a frozen dataclass that builds on :class:`PolicyOptions`."""

    by_estimate: ClassVar[FrozenSet[str]] = frozenset((CANNOT_MAKE_DEADLINE,))
    """Reasons for which it refuses and drops because of how long something is believed to take: such a request may be
    run as a trial instead (``sched/core/experiments.py``)."""

    lets_urgent_first: ClassVar[bool] = False
    """True if a request lets those go first that are due before it, or are of a more urgent class. Where it does not,
    what waits with a long deadline or in a lesser class counts in the shares of clients as if it were as urgent."""

    records_history: ClassVar[bool] = False
    """True if it has all models of an ensemble run where ``[app.NAME] history`` wants their outputs recorded."""

    def __init__(self, name: str, apps: Sequence[App], options: Mapping[str, object]) -> None:
        self.name = name
        self.apps = tuple(apps)
        self.owner: Policy = self  # whose the requests are, where another policy asks this one
        self.options = read_options(self.options_type, name, options)
        self.is_idle = False
        self.hears_ends = type(self).on_finished is not Policy.on_finished  # else the scheduler spares the call

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        """Admit (None) or refuse (the reason)."""
        return None

    def on_ready(self, job: Job, board: Board) -> None:
        """The job may run now: queue it."""

    def on_gone(self, job: Job, board: Board) -> None:
        """A ready job left without you (cancelled, expired, dropped): unqueue it."""

    def on_started(self, work: Work, board: Board) -> None:
        """Your bid won; its jobs are running: unqueue them."""

    def cut(self, work: Work, board: Board) -> bool:
        """True if your batch that runs is to end after its present step, since another one would be better by now (jobs
        of it are over, or others wait). Asked in steps that bring news, for batches of sequence models (``work.left()``
        are its jobs that are not over). The jobs come back unfinished. Changes nothing."""
        return False

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        """A work of yours ended: learn from it. (The shared latency model has learnt already.) ``work.failed`` says
        that nothing of it was done; with ``work.probe`` it was a probe of yours and has no jobs."""

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        """A request that you gave up was run as a trial, and ``job`` of it took so long alone on the lane of ``work``:
        learn from it. (The shared latency model has learnt already.) The request is not yours any more."""

    def on_refused(self, work: Work, board: Board) -> None:
        """The lane would not start it. Jobs whose request you leave open become ready again after this."""

    def on_lost(self, work: Work, board: Board) -> None:
        """The lane went down or hangs: neither :meth:`on_finished` nor :meth:`on_refused` comes for this work. After
        this its jobs have failed if they were running, or become ready again; a probe's inputs are gone."""

    def on_device(self, change: Change, board: Board) -> None:
        """A lane or a device changed. The latency model knows a lane's new speed already."""

    def plan(self, board: Board) -> None:
        """Once per step, before the bids, unless ``is_idle``: give up what cannot be in time, settle joins, prepare."""

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        """The best work you would run on this lane now, or None. Changes nothing."""
        raise NotImplementedError(f"policy {self.name!r} does not bid")

    def next_wakeup_ns(self, board: Board) -> int | None:
        """When you want to be asked although nothing happens (later than now), or None."""
        return None

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """When a request would end that you are refusing or giving up (because of ``job``, where one is named): the
        numbers in the error that its client reads. By default those of the shared estimate; a policy that judges
        otherwise says here by what. Also asked once per app at start, for a new request. Changes nothing."""
        return expected_end(request, job, board)

    def figures(self) -> Mapping[str, Any]:
        """The learnt facts of the policy, as numbers, texts and tables, for people. ``stats`` shows the figures with
        text keys and within bounds. Not for the hot path."""
        return {}

    def thought_ns(self) -> int:
        """The time of the plans since the last call, as far as it exceeds a usual step's: simulations charge it.
        Nothing else reads it."""
        return 0

    def queued(self) -> List[Job]:
        """The jobs you hold, for the invariant that every ready job stands in exactly one policy's queue."""
        raise NotImplementedError(f"policy {self.name!r} does not list its jobs")
