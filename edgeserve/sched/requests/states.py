"""The life of a request and of its jobs: one table each, and the records that carry the states.

A *request* arrives ``new``. The policy may refuse it (``rejected``). A request of a stream whose predecessor is still
in flight is ``held``; when its turn comes it opens. While ``open``, its jobs come and go; the request ends exactly
once: ``completed``, ``dropped``, ``cancelled`` or ``failed``. A request can end while some of its jobs still run: the
answer goes out at once, and the jobs stay on their lanes as orphans until the lanes return them.

A *job* is made when the tokens of its node are complete (``sched/requests/graph.py``); it is ``ready`` until a policy's
bid wins, then ``running`` (launched: on the lane or in its inbox). The lane returns it ``done``, ``failed``, or back to
``ready``: *unfinished* (iterative models) or *refused* (the start window had passed). A ready job whose request ends is
``gone``; a running one is an ``orphan``, and its lane's later answer makes it ``gone``.

Nothing else changes a state: :func:`move_request` and :func:`move_job` are the only ways, and a pair that the tables
do not hold raises :class:`~edgeserve.errors.PolicyError` with the request's story. The records know no clock, no
policy and no lane beyond its name.
"""

from __future__ import annotations

from typing import Any, Dict, Final, List, Mapping, Tuple

from edgeserve.errors import PolicyError
from edgeserve.owners import CONNECTION_MARK
from edgeserve.sched.protocol.actions import LatencyBreakdown
from edgeserve.sched.protocol.events import JobId, Part, Request
from edgeserve.sched.requests.arrivals import Expectation
from edgeserve.sched.requests.graph import App, Node
from edgeserve.units import format_duration

NEW, HELD, OPEN = "new", "held", "open"
COMPLETED, REJECTED, DROPPED, CANCELLED, FAILED = "completed", "rejected", "dropped", "cancelled", "failed"
ENDS = frozenset((COMPLETED, REJECTED, DROPPED, CANCELLED, FAILED))

REQUEST_TABLE: Mapping[Tuple[str, str], str] = {
    (NEW, "reject"): REJECTED,
    (NEW, "open"): OPEN,
    (NEW, "hold"): HELD,
    (HELD, "open"): OPEN,
    (HELD, "drop"): DROPPED,
    (HELD, "cancel"): CANCELLED,
    (HELD, "fail"): FAILED,
    (OPEN, "complete"): COMPLETED,
    (OPEN, "drop"): DROPPED,
    (OPEN, "cancel"): CANCELLED,
    (OPEN, "fail"): FAILED,
}
"""(state, what happens) -> next state of a request."""

READY, RUNNING, DONE, GONE, ORPHAN = "ready", "running", "done", "gone", "orphan"
JOB_FAILED = "failed"

JOB_TABLE: Mapping[Tuple[str, str], str] = {
    (READY, "launch"): RUNNING,
    (READY, "leave"): GONE,
    (RUNNING, "finish"): DONE,
    (RUNNING, "fail"): JOB_FAILED,
    (RUNNING, "unfinished"): READY,
    (RUNNING, "refuse"): READY,
    (RUNNING, "leave"): ORPHAN,
    (ORPHAN, "finish"): GONE,
    (ORPHAN, "fail"): GONE,
    (ORPHAN, "unfinished"): GONE,
    (ORPHAN, "refuse"): GONE,
}
"""(state, what happens) -> next state of a job."""

STORY_LEN_MAX = 256
"""Lines kept of one request's story; a fan-out into hundreds of parts must not grow without bound."""

ANSWERED, WAITING, LEFT_OUT, LOST = "answered", "waiting", "left out", "lost"
"""The outcomes of a branch, besides ``running`` and ``failed`` (:func:`edgeserve.sched.requests.joins.branches`)."""

LEFT_OUT_LEN_MAX = 200
"""Length from which on no more reasons of an answer in part are added."""


class RequestRecord:
    """One request inside the scheduler. Policies read it; only the scheduler writes it.

    ``deadline_ns`` is absolute, ``margin_ns`` before the client's own; ``jobs`` are its jobs that are ready, running or
    orphaned, by ``seq``.
    ``value`` is ``rank`` times what it counts: more than once for one that was promised its deadline. ``claim`` is what
    it says of itself beside others of its owner (``admission.py: rank_within``), None where that counts everywhere.
    ``cost_share_ns`` is the lane time that the request takes in full batches; what it counts is told by ``worth.py``.
    ``hints`` are what it declared and what its nodes said since; ``part_hints``
    what nodes inside a fan-out said of one part. ``ended``: the one outcome has been given.
    ``stream`` is None where the app has none; ``successor_ns`` is when the next request of the stream is expected,
    which will end this one if it has not begun (None: it will not, or nothing is known). ``left_out`` says what an
    answer in part does without, and why. ``fates`` is what became of jobs and nodes that joins wait for. ``quality`` is
    what its policy says an answer would be worth now (None: it said nothing); below ``quality_min`` the client wants
    none. ``variant`` is the model that answered it, where its app's model has variants.
    ``spent``: the breakdown of one that has ended, for stories: where it did not complete, with the steps of its jobs.
    ``wrote``: a sequence of it has written something that counts as its answer; ``cut``: why one of them ended before
    it was whole. ``on_late`` of ``partial`` becomes ``answer`` where what was written would be lost otherwise.
    ``share`` is whose share of places and of lane time it uses; ``has_owner``: the server knows whose connection it
    came from. ``uses``: for each set of lanes what its owner wants of it (``admission.py: Use``), and its own lane
    time. ``policy`` is who decides about it: its app's, or the core's own where it became a trial.
    """

    __slots__ = (
        "id",
        "app",
        "hints",
        "arrival_ns",
        "deadline_ns",
        "margin_ns",
        "client",
        "share",
        "has_owner",
        "uses",
        "priority_class",
        "value",
        "rank",
        "claim",
        "on_late",
        "stream",
        "state",
        "ended",
        "jobs",
        "running",
        "joins",
        "scopes",
        "cost_share_ns",
        "breakdown",
        "log",
        "done_exits",
        "failure",
        "left_out",
        "part_hints",
        "policy",
        "successor_ns",
        "fates",
        "quality",
        "quality_min",
        "variant",
        "wrote",
        "cut",
        "spent",
    )

    def __init__(self, request: Request, app: App, policy: Any = None) -> None:
        self.id = request.id
        self.policy = policy
        self.app = app
        self.hints: Mapping[str, float] = app.bounded(request.hints) if request.hints else request.hints
        self.part_hints: Dict[Part, Mapping[str, float]] | None = None
        self.arrival_ns = request.arrival_ns
        self.deadline_ns = request.deadline_ns
        self.margin_ns = request.margin_ns
        self.client = request.client
        self.share = request.client.partition(CONNECTION_MARK)[0]
        self.has_owner = len(self.share) < len(self.client)
        self.uses: List[Tuple[Any, int]] = []
        self.priority_class = request.priority_class
        self.value = request.value
        self.rank = 1.0
        self.claim: float | None = None
        self.on_late = request.on_late
        self.stream = request.stream if app.stream != "none" else None
        self.successor_ns: Expectation | None = None
        self.state = NEW
        self.ended = False
        self.jobs: Dict[int, Job] = {}
        self.running = 0
        self.joins: Dict[Tuple[int, Part], List[int]] | None = None  # (node, part) -> [tokens, of them done, fired]
        self.scopes: Dict[Tuple[int, Part], int] | None = None  # (fan-out node, part) -> number of parts
        self.cost_share_ns = 0
        self.breakdown = NO_BREAKDOWN
        self.done_exits = 0  # jobs of last nodes that were done
        self.failure = ""  # why a job failed that the joins behind it could do without
        self.left_out = ""
        self.fates: Dict[Tuple[int, Part], str] | None = None
        self.quality: float | None = None
        self.quality_min = request.quality_min
        self.variant = ""
        self.wrote = False
        self.cut = ""
        self.spent = NO_BREAKDOWN
        self.log: List[Tuple[Any, ...]] = []

    def learn(self, part: Part, hints: Mapping[str, float]) -> None:
        """A node said ``hints`` of the request, or of one part. They replace what was known: it saw more. Jobs that are
        made from now on know them."""
        hints = self.app.bounded(hints)
        if not part:
            self.hints = {**self.hints, **hints}
            return
        if self.part_hints is None:
            self.part_hints = {}
        self.part_hints[part] = {**self.part_hints.get(part, {}), **hints}

    def begin_by_ns(self, now_ns: int) -> int | None:
        """The time by which the request must begin, lest the next of its stream end it; None when it has begun, or when
        nothing is expected any more: the next one should have come already."""
        if self.successor_ns is None or self.running or self.breakdown.execute_ns:
            return None
        earliest_ns, latest_ns = self.successor_ns
        return earliest_ns if now_ns <= earliest_ns else latest_ns if now_ns <= latest_ns else None

    def fate(self, node: Node, part: Part, what: str) -> None:
        """Note what became of a branch. What was noted first stands."""
        if self.fates is None:
            self.fates = {}
        self.fates.setdefault((node.index, part), what)

    def leave_out(self, what: str) -> None:
        """The answer will be one in part. Of many reasons the first are told."""
        if len(self.left_out) < LEFT_OUT_LEN_MAX:
            self.left_out += ("; " if self.left_out else "") + what

    def hints_at(self, part: Part) -> Mapping[str, float]:
        """The hints of a part: the request's, the ones of the parts that it lies in, and its own."""
        if not part or not self.part_hints:
            return self.hints
        known = dict(self.hints)
        for depth in range(1, len(part) + 1):
            known.update(self.part_hints.get(part[:depth], {}))
        return known

    def note(self, now_ns: int, *what: Any) -> None:
        """Add a line to the story (formatted only on request)."""
        if len(self.log) < STORY_LEN_MAX:
            self.log.append((now_ns, what))

    def story(self) -> List[str]:
        """The story of the request, line by line, times relative to its ``arrival_ns``: its sending, where a client
        tells it."""
        head = (
            f"request {self.id} of app {self.app.name}: {self.state}, class {self.priority_class}, "
            f"deadline {format_duration(self.deadline_ns + self.margin_ns - self.arrival_ns)} after it was asked"
            + (f", of which {format_duration(self.margin_ns)} are kept for the answer" if self.margin_ns else "")
        )
        lines = [head]
        for now_ns, what in self.log:
            words = " ".join([word for word in map(str, what) if word])  # a job that is no part names none
            lines.append(f"  +{format_duration(now_ns - self.arrival_ns)}: {words}")
        if len(self.log) == STORY_LEN_MAX:
            lines.append(f"  (the story is cut after {STORY_LEN_MAX} lines)")
        return lines


NO_BREAKDOWN = LatencyBreakdown()

new_tuple: Final = tuple.__new__
"""Makes a named tuple of a tuple without the call of a Python function: there is one per job, and one per batch."""


class Job:
    """One request, or one fanned-out part of it, at one node. Policies read it; only the scheduler writes it,
    except ``key``, which belongs to the :class:`~edgeserve.sched.policies.common.job_queue.JobQueue` that holds the
    job.

    ``seq`` rises with every job made and breaks every tie. ``lane`` names the lane that holds the job's state, to which
    it is bound, or is ``""``. ``hints`` are the hints known when it was made. ``model``: the one that it waits for,
    among the models that may run it.
    """

    __slots__ = (
        "id",
        "seq",
        "request",
        "node",
        "model",
        "part",
        "hints",
        "state",
        "ready_ns",
        "launched_ns",
        "key",
        "demand_ns",
        "demand_worth",
        "lane",
        "steps",
        "breakdown",
        "deadline_ns",
        "queued",
        "state_bytes",
        "state_device",
        "steps_total",
        "tokens_in",
        "cuts",
        "has_state",
        "wrote",
    )

    def __init__(
        self, seq: int, request: RequestRecord, node: Node, part: Part, ready_ns: int, breakdown: LatencyBreakdown
    ) -> None:
        self.id: JobId = new_tuple(JobId, (request.id, node.name, part))
        self.seq = seq
        self.request = request
        self.node = node
        self.model = node.model
        self.part = part
        self.hints = request.hints if not request.part_hints else request.hints_at(part)
        self.state = READY
        self.ready_ns = ready_ns
        self.launched_ns = 0
        self.key: int | None = None
        self.demand_ns = 0
        self.demand_worth = 0
        self.lane = ""
        self.steps = 0
        self.breakdown = breakdown
        self.queued = False  # a policy holds it
        self.steps_total = 0  # that it needs, as its model said last; 0: it said nothing
        self.tokens_in = 0  # of its input, at least
        self.has_state = False  # a lane holds what it left behind when it came back unfinished
        self.wrote = False  # its sequence has written something, which would be its answer if it ended now
        self.cuts = 0  # batches that were cut for its sake
        self.state_bytes = 0  # of an unfinished job outside a stream, or reserved for its sequence
        self.state_device = ""  # that holds them
        self.deadline_ns = request.deadline_ns  # when this job must be done so that the rest still fits

    def may_run(self, model: str) -> bool:
        """True if a model may run it: of variants any, until one has begun."""
        return model in self.node.models and (not self.lane or model == self.model)

    def __repr__(self) -> str:
        return f"Job({self.id.request_id}/{self.id.node}{list(self.part) or ''} {self.state})"


def steps_left(job: Job) -> int:
    """Steps an iterative job still needs, as far as they were declared or said: the hint ``steps`` of an app with one
    node, ``NODE.steps`` otherwise. At least 1: a job that was expected to be over needs one more."""
    if job.steps_total:
        return max(1, job.steps_total - job.steps)
    return max(1, int(job.hints.get(job.node.steps_key, 1)) - job.steps) if job.hints else 1


def keeps_written(job: Job) -> bool:
    """True if a sequence that is to write no more ends with what it has written, as if it were done. (Parts and routes
    are only known of a whole result.)"""
    return job.wrote and job.request.on_late != "drop" and not job.node.fan_out and not job.node.route_one


def has_written(request: RequestRecord) -> bool:
    """True if a sequence of a request has written something that counts as its answer, now or before."""
    return request.wrote or any(keeps_written(job) for job in request.jobs.values())


def move_request(request: RequestRecord, what: str) -> None:
    """Change a request's state by the table, or raise :class:`PolicyError` with its story and change nothing."""
    state = REQUEST_TABLE.get((request.state, what))
    if state is None:
        raise PolicyError(f"request {request.id} is {request.state}: it cannot {what}\n" + "\n".join(request.story()))
    request.state = state
    request.ended = state in ENDS


def move_job(job: Job, what: str) -> None:
    """Change a job's state by the table, and count how many of its request's run; or raise :class:`PolicyError` with
    its request's story."""
    state = JOB_TABLE.get((job.state, what))
    if state is None:
        raise PolicyError(f"{job!r} cannot {what}\n" + "\n".join(job.request.story()))
    job.state = state
    if what == "launch":
        job.request.running += 1
    elif what != "leave":  # a lane has returned it
        job.request.running -= 1
