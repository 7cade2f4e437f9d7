"""The actions that the scheduler asks of the world. The world performs actions in the order given.

A work (batch, load, eviction) has an id; the world answers each with exactly one ``WorkFinished`` or ``WorkRefused``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Mapping, NamedTuple, Optional, Tuple, Union, get_args

from edgeserve.sched.protocol.events import JobId
from edgeserve.units import format_duration


class Outcome:
    """The one end of a request. Late or on time is computed from the finish time; it is no outcome."""

    COMPLETED: Final = "completed"
    REJECTED: Final = "rejected"
    DROPPED: Final = "dropped"
    CANCELLED: Final = "cancelled"
    FAILED: Final = "failed"


OUTCOMES = (Outcome.COMPLETED, Outcome.REJECTED, Outcome.DROPPED, Outcome.CANCELLED, Outcome.FAILED)


class LatencyBreakdown(NamedTuple):
    """The breakdown of a request's time, in nanoseconds, along the chain of jobs that ended last.

    ``queue_ns`` ready but not launched (without the loading below); ``load_ns`` of that, waiting for the model to be
    resident; ``batch_ns`` launched but not yet started (behind the work ahead on its lane); ``execute_ns`` running.
    """

    queue_ns: int = 0
    load_ns: int = 0
    batch_ns: int = 0
    execute_ns: int = 0


class Shortfall(NamedTuple):
    """The shortfall of a request that was refused or given up since it cannot make its deadline, in nanoseconds.

    On ``lane`` it was expected to end first: ``wait_ns`` until that could start its next job (the lane is free, the
    model in memory) and then ``expected_ns`` alone, to the end of the request. ``left_ns`` were left until its deadline
    (below 0: it had passed). ``slo_ns_min`` is the smallest deadline, counted from its arrival, with which its policy
    would not have refused it for its deadline at that moment; None where the policy knows none.
    """

    lane: str
    expected_ns: int
    wait_ns: int
    left_ns: int
    slo_ns_min: Optional[int] = None

    def __str__(self) -> str:
        wait = f" and {format_duration(self.wait_ns)} of waiting" if self.wait_ns > 0 else ""
        left = format_duration(self.left_ns) if self.left_ns > 0 else "nothing"
        would_do = "" if self.slo_ns_min is None else f": {format_duration(self.slo_ns_min, round_up=True)} would do"
        return f"expected {format_duration(self.expected_ns)} on {self.lane}{wait}, {left} left{would_do}"


@dataclass(frozen=True)
class RunBatch:
    """Run ``jobs`` of one model together on ``lane``.

    ``size`` is the batch size that was profiled and that the engine pads to (``len(jobs) <= size``). The lane waits
    until ``start_after_ns`` and refuses to start after ``start_before_ns``. ``expected_ns`` is the predicted
    execution time. ``steps_max`` bounds the steps of an iterative model before it returns ``unfinished`` jobs.
    ``variant`` names the engine's way to run the model, ``""`` for its own choice.
    ``probe`` marks a batch that no request waits for (the online profiler): its one job's inputs were kept
    (:class:`RetainInputs`), this batch takes them, and its result is thrown away.
    """

    work_id: int
    lane: str
    model: str
    jobs: Tuple[JobId, ...]
    size: int
    start_after_ns: int
    start_before_ns: int
    expected_ns: int
    steps_max: Optional[int] = None
    probe: bool = False
    variant: str = field(default="", metadata={"sparse": True})


@dataclass(frozen=True)
class CutBatch:
    """End a batch that runs on ``lane`` after its present step: it is answered as ever, with the jobs that are not over
    ``unfinished``. Nothing happens where it is over, or has been cut."""

    work_id: int
    lane: str


@dataclass(frozen=True)
class LoadModel:
    """Make ``model`` resident on the device of ``lane`` (a copy lane); refuse to start after ``start_before_ns``."""

    work_id: int
    lane: str
    model: str
    start_before_ns: int
    expected_ns: int


@dataclass(frozen=True)
class EvictModel:
    """Free ``model``'s memory on the device of ``lane`` (a copy lane). It has no work in flight there."""

    work_id: int
    lane: str
    model: str


@dataclass(frozen=True)
class DropState:
    """Forget the state of a job (``job``) or of a stream of an app (``app``, ``stream``)."""

    job: Optional[JobId] = None
    app: str = ""
    stream: str = ""


@dataclass(frozen=True)
class ReleaseState:
    """Give back what the state of a job occupies on its device. The job is ready, and computes that part again when it
    goes on, on any lane."""

    job: JobId


@dataclass(frozen=True)
class LeaveOut:
    """A request goes on without this branch: ``job`` does not run, or its result on a lane is not used. The result must
    not reach the nodes behind it."""

    job: JobId


@dataclass(frozen=True)
class KeepWritten:
    """A sequence ends here: what it has written is its result, as if ``job`` were done. The job waits, runs on its lane
    (what the lane returns of it later is ignored), or has just failed there. The world has said before that it has
    written something (:class:`~edgeserve.sched.protocol.events.BatchProgress`)."""

    job: JobId


@dataclass(frozen=True)
class RetainInputs:
    """Keep the inputs of a ready job, however its request ends, until a probe takes them or
    :class:`ReleaseInputs` says that none will."""

    job: JobId


@dataclass(frozen=True)
class ReleaseInputs:
    """Let go of inputs that were kept."""

    job: JobId


@dataclass(frozen=True)
class FinishRequest:
    """The one end of a request. Its jobs that still run are ignored from now on.

    ``shortfall`` is there where its deadline was the reason. It explains the decision and is no part of it: recordings
    leave it out, and two ends that differ in nothing else are equal. ``quality`` is what the policy says the answer is
    worth beside a whole one (0..1), and ``branches`` names the branches that took part in it; both keep their defaults
    where the policy said nothing. ``variant`` is the model that answered in place of one that has variants, or that one
    itself. ``cut`` says why a sequence of a completed request ended before its answer was whole (:class:`KeepWritten`):
    such an answer is not in time.
    """

    request_id: int
    outcome: str
    reason: str = ""
    breakdown: LatencyBreakdown = LatencyBreakdown()
    shortfall: Optional[Shortfall] = field(default=None, compare=False)
    quality: float = field(default=1.0, metadata={"sparse": True})
    branches: Tuple[str, ...] = field(default=(), metadata={"sparse": True})
    cut: str = field(default="", metadata={"sparse": True})
    variant: str = field(default="", metadata={"sparse": True})


Action = Union[
    RunBatch,
    CutBatch,
    LoadModel,
    EvictModel,
    DropState,
    ReleaseState,
    LeaveOut,
    KeepWritten,
    RetainInputs,
    ReleaseInputs,
    FinishRequest,
]

ACTION_KINDS: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Action)}

START_ANY_TIME_NS = 2**62
"""A ``start_before_ns`` that never passes."""
