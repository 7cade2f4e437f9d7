"""The events that the world sends the scheduler: facts only (ids, sizes, lengths, deadlines), never a tensor.

The live world and the simulator produce exactly these; a recorded run is a list of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Mapping, NamedTuple, Optional, Tuple, Union, get_args

from edgeserve.priority_class import USUAL

LEVELS = ("none", "soft", "hard")
"""The levels of a device's nearness to a limit of heat or power: below it, above the limit at which the scheduler
saves, or above the one at which the hardware slows down."""

ON_LATE = ("drop", "answer", "partial")
"""The choices for a request that cannot be on time: give up, answer late, or answer in part."""

Part = Tuple[int, ...]
"""The number of a fanned-out part: ``()`` for the whole request, ``(3,)`` for its fourth part, and so on inwards."""


class JobId(NamedTuple):
    """A job: one request, or one part of it, at one node."""

    request_id: int
    node: str
    part: Part


class Request:
    """A client's request. A plain record that does not change after it was made.

    ``deadline_ns`` and ``arrival_ns`` are on the world's monotonic clock. ``hints`` are declared numbers that later
    decisions may need (``{"length": 37}``); a policy names the ones that it reads. ``quality_min`` is the least quality
    of an answer that is of use to the client (0..1): an answer below it is not given. ``margin_ns``: the client's own
    deadline is so much later, which is kept for the answer's way back; only stories and timelines tell it.
    ``charged_ns`` is processor time that was spent on it before it came, which counts as lane time that its owner had.
    ``trusted``: its class and value count beside those of other owners, too (``sched/requests/admission.py``). One that
    has no owner is the application's own and always is.
    """

    fields: ClassVar[Tuple[str, ...]] = (
        "id",
        "app",
        "arrival_ns",
        "deadline_ns",
        "client",
        "priority_class",
        "value",
        "stream",
        "on_late",
        "hints",
        "quality_min",
        "margin_ns",
        "charged_ns",
        "trusted",
    )
    __slots__ = fields

    def __init__(
        self,
        id: int,
        app: str,
        arrival_ns: int,
        deadline_ns: int,
        client: str = "",
        priority_class: str = USUAL,
        value: float = 1.0,
        stream: str | None = None,
        on_late: str = "drop",
        hints: Mapping[str, float] | None = None,
        quality_min: float = 0.0,
        margin_ns: int = 0,
        charged_ns: int = 0,
        trusted: bool = False,
    ) -> None:
        self.id = id
        self.app = app
        self.arrival_ns = arrival_ns
        self.deadline_ns = deadline_ns
        self.client = client
        self.priority_class = priority_class
        self.value = value
        self.stream = stream
        self.on_late = on_late
        self.hints: Mapping[str, float] = hints if hints is not None else _NO_HINTS
        self.quality_min = quality_min
        self.margin_ns = margin_ns
        self.charged_ns = charged_ns
        self.trusted = trusted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and all(
            getattr(self, name) == getattr(other, name) for name in Request.fields
        )

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return "Request(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in Request.fields) + ")"


_NO_HINTS: Mapping[str, float] = {}


class JobResult:
    """The end of one job of a batch: ``done``, ``unfinished`` (it goes back to ready on the lane that holds its
    state) or ``failed``.

    ``parts`` is the number of parts it fans out into (only for a fan-out node), ``route`` the successor that was
    taken (only for a node with ``route = "one"``), ``hints`` its hints for the request, or for its part: when
    ``done``, for the nodes behind it; when ``unfinished``, for the rest of itself (``NODE.steps``: the steps that it
    still needs). ``state_bytes`` are the bytes of its state on the device from now on. ``steps`` are the steps of an
    iterative model that the call made: 1 where ``steps_max`` did not bound it, 0 where it only read a part of a prompt.
    ``turns`` counts the whole call's until this result, where its model bounds them (0: as many as steps).
    ``cached`` are the tokens of its input that were in memory before it began, of a sequence that is ``done``.
    """

    fields: ClassVar[Tuple[str, ...]] = (
        "job",
        "status",
        "parts",
        "route",
        "hints",
        "reason",
        "state_bytes",
        "steps",
        "turns",
        "cached",
    )
    __slots__ = fields

    def __init__(
        self,
        job: JobId,
        status: str = "done",
        parts: int | None = None,
        route: str | None = None,
        hints: Mapping[str, float] | None = None,
        reason: str = "",
        state_bytes: int = 0,
        steps: int = 1,
        turns: int = 0,
        cached: int = 0,
    ) -> None:
        self.job = job
        self.status = status
        self.parts = parts
        self.route = route
        self.hints: Mapping[str, float] = hints if hints is not None else _NO_HINTS
        self.reason = reason
        self.state_bytes = state_bytes
        self.steps = steps
        self.turns = turns
        self.cached = cached

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobResult) and all(
            getattr(self, name) == getattr(other, name) for name in JobResult.fields
        )

    def __hash__(self) -> int:
        return hash(self.job)

    def __repr__(self) -> str:
        return "JobResult(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in JobResult.fields) + ")"


@dataclass(frozen=True)
class RequestArrived:
    """A request passed the checks of the bus and wants an answer."""

    request: Request


@dataclass(frozen=True)
class RequestCancelled:
    """The client no longer wants the answer, or is gone (``reason``). Unknown and ended ids are ignored.

    ``keeps``: the world ends the request, and its client still waits: what a sequence has written is the answer.
    """

    request_id: int
    reason: str = "cancelled by its client"
    keeps: bool = field(default=False, metadata={"sparse": True})


@dataclass(frozen=True)
class BatchProgress:
    """News of a batch that goes on. ``results``: these jobs are over, ``done`` or ``failed``. Each is answered now,
    once: it is not among the results of the :class:`WorkFinished` to come. ``begun``: these sequences have written
    something, which would be their answer if they ended now
    (:class:`~edgeserve.sched.protocol.actions.KeepWritten`). It is said once per job, and only of requests that may be
    answered so (``on_late`` is not ``drop``)."""

    work_id: int
    at_ns: int
    results: Tuple[JobResult, ...]
    begun: Tuple[JobId, ...] = field(default=(), metadata={"sparse": True})


@dataclass(frozen=True)
class WorkFinished:
    """A lane finished a work. ``results`` holds one :class:`JobResult` per job of a batch that no
    :class:`BatchProgress` told of, in the order of the batch; for loads and evictions it is empty. ``failed`` is the
    reason when a load failed, else ``""``."""

    work_id: int
    started_ns: int
    finished_ns: int
    results: Tuple[JobResult, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class WorkRefused:
    """A lane did not start a work: its ``start_before_ns`` had passed, or the lane is shutting down."""

    work_id: int
    reason: str


@dataclass(frozen=True)
class LaneChanged:
    """A lane went down or came back (``up``), or runs at another ``speed`` (1.0 = as profiled, 0.5 = half as fast); a
    field of None stayed as it was. ``since_ns``: the speed changed at some time after that, and batches measured since
    then may have run at either speed (None: it changes now). ``clock_mhz`` and ``memory_clock_mhz`` are its clocks,
    where profiles say at which ones they were measured: the speed of those models follows from them.

    A lane that goes down forgets its inbox and what it was running: the scheduler fails the running jobs, makes the
    ones in the inbox ready again, and ignores any answer for these works that still comes. ``lost``: it never comes
    back, so that no request waits for it.
    """

    lane: str
    up: Optional[bool] = None
    speed: Optional[float] = None
    reason: str = ""
    since_ns: Optional[int] = field(default=None, metadata={"sparse": True})
    lost: bool = field(default=False, metadata={"sparse": True})
    clock_mhz: Optional[float] = field(default=None, metadata={"sparse": True})
    memory_clock_mhz: Optional[float] = field(default=None, metadata={"sparse": True})


@dataclass(frozen=True)
class DeviceChanged:
    """News of a device; a field of None stayed as it was.

    ``memory_free_bytes``: what all programs together may still take; ``memory_block_bytes``: the largest block of it
    that lies together. ``heat`` is 0..1 of its limit, ``power_w`` watts. ``thermal`` and ``power`` are
    :data:`LEVELS`. ``cpu_load`` is the share of ``cpu_cores`` cores that all threads together, ours too, kept busy
    since it was told last.
    """

    device: str
    memory_free_bytes: Optional[int] = None
    heat: Optional[float] = None
    power_w: Optional[float] = None
    memory_block_bytes: Optional[int] = field(default=None, metadata={"sparse": True})
    thermal: Optional[str] = field(default=None, metadata={"sparse": True})
    power: Optional[str] = field(default=None, metadata={"sparse": True})
    cpu_load: Optional[float] = field(default=None, metadata={"sparse": True})
    cpu_cores: Optional[int] = field(default=None, metadata={"sparse": True})


@dataclass(frozen=True)
class DrainRequested:
    """Accept nothing more; finish what was accepted."""


Event = Union[
    RequestArrived,
    RequestCancelled,
    BatchProgress,
    WorkFinished,
    WorkRefused,
    LaneChanged,
    DeviceChanged,
    DrainRequested,
]
"""Everything :meth:`edgeserve.sched.core.scheduler.Scheduler.step` accepts."""

EVENT_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
