"""What the scheduler asks the world to do. The world performs actions in the order given.

A work (batch, load, eviction) has an id; the world answers each with exactly one ``WorkFinished`` or ``WorkRefused``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Mapping, NamedTuple, Optional, Tuple, Union

from edgeserve.sched.protocol.events import JobId


class Outcome:
    """The one end of a request. Late or on time is computed from the finish time; it is no outcome."""

    COMPLETED: Final = "completed"
    REJECTED: Final = "rejected"
    DROPPED: Final = "dropped"
    CANCELLED: Final = "cancelled"
    FAILED: Final = "failed"


OUTCOMES = (Outcome.COMPLETED, Outcome.REJECTED, Outcome.DROPPED, Outcome.CANCELLED, Outcome.FAILED)


class LatencyBreakdown(NamedTuple):
    """Where a request's time went, in nanoseconds, along the chain of jobs that ended last.

    ``queue_ns`` ready but not launched (without the loading below); ``load_ns`` of that, waiting for the model to be
    resident; ``batch_ns`` launched but not yet started (behind the work ahead on its lane); ``execute_ns`` running.
    """

    queue_ns: int = 0
    load_ns: int = 0
    batch_ns: int = 0
    execute_ns: int = 0


@dataclass(frozen=True)
class RunBatch:
    """Run ``jobs`` of one model together on ``lane``.

    ``size`` is the batch size that was profiled and that the engine pads to (``len(jobs) <= size``). The lane waits
    until ``start_after_ns`` and refuses to start after ``start_before_ns``. ``expected_ns`` is the predicted
    execution time. ``steps_max`` bounds the steps of an iterative model before it returns ``unfinished`` jobs.
    ``probe`` marks work that nobody waits for (the online profiler): its one job's inputs were kept
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
class RetainInputs:
    """Keep the inputs of a ready job, whatever becomes of its request, until a probe takes them or
    :class:`ReleaseInputs` says that none will."""

    job: JobId


@dataclass(frozen=True)
class ReleaseInputs:
    """Let go of inputs that were kept."""

    job: JobId


@dataclass(frozen=True)
class FinishRequest:
    """The one end of a request. Its jobs that still run are ignored from now on."""

    request_id: int
    outcome: str
    reason: str = ""
    breakdown: LatencyBreakdown = LatencyBreakdown()


Action = Union[RunBatch, LoadModel, EvictModel, DropState, RetainInputs, ReleaseInputs, FinishRequest]

ACTION_KINDS: Mapping[str, type] = {kind.__name__: kind for kind in (
    RunBatch, LoadModel, EvictModel, DropState, RetainInputs, ReleaseInputs, FinishRequest)}

START_ANY_TIME_NS = 2**62
"""A ``start_before_ns`` that never passes."""
