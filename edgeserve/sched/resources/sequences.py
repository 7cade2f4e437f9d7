"""Sequences: the jobs that hold a slot on a lane and bytes of a device, for models whose items grow step by step.

A job reserves the bytes of its whole expected sequence before it first runs, and keeps them, with a slot of its lane,
until it is over or its state is released. A batch besides books what its jobs could grow beyond that while it runs, so
that the bound holds for any lengths. Knows no policy, and moves no job.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.sched.requests.states import READY, Job, new_tuple
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.model_cache import Device

STEPS_FIRST = 64
"""Steps that a sequence is expected to need where nothing declares them and none of its model has ended yet."""

STEPS_MORE = 16
"""Steps that a sequence which has made all it was expected to is expected to need still: then it is asked again."""

STEPS_MIN = 8
"""A batch that could make fewer steps for lack of memory has its youngest sequence released first."""

LEARN_SHARE = 16
"""The usual length, and the usual share of an input that is in memory already, move by this part of their difference
from each sequence that ends."""

SEQUENCE_TOO_LONG = "sequence_too_long"
"""Begins the reason of a request whose input cannot fit into its model's context or memory."""

STATE_MEMORY = "state_memory_exhausted"
"""Begins the reason of a request whose sequence outgrew the memory for sequences, though it had all of it."""

UNBOUNDED = 2**62
"""Bytes or steps where nothing bounds them."""


class SequenceModel(NamedTuple):
    """A model of sequences: the most tokens one may have (``context_tokens``), the bytes that each token of its state
    occupies, how many sequences one lane holds at once (``slots``), the bytes that all of them may occupy on one device
    (``memory_bytes``; 0: what the device's memory leaves), and how many tokens of prompts one turn reads at most
    (``prefill_tokens``; 0: prompts are read whole). Where that is bounded, the latency tables are of turns."""

    context_tokens: int
    bytes_per_token: int
    slots: int
    memory_bytes: int = 0
    prefill_tokens: int = 0


class Room(NamedTuple):
    """The room of a lane for new sequences of a model: slots, and bytes of its device (:data:`UNBOUNDED`: no
    bound)."""

    slots: int
    bytes: int


class Fit(NamedTuple):
    """The part of a batch that may run: these jobs, so many steps, booking so many bytes beyond their reservations.
    Without jobs nothing may, until ``release`` (a ready job that holds a place) gave up its own, or a batch has
    ended."""

    jobs: List[Job]
    steps: int
    extra_bytes: int
    release: Job | None


class Sequences:
    """All that sequences hold. ``models`` are the models of sequences by name; ``working`` are the batches of such
    models on lanes, by work id, with what they booked.

    ``holders``: lane -> jobs by ``seq`` that hold a slot there, the longest holders first. Their bytes are
    ``job.state_bytes`` on ``job.state_device``, which the device counts.
    """

    def __init__(
        self, models: Mapping[str, SequenceModel], devices: Mapping[str, Device], lanes: Sequence[Lane]
    ) -> None:
        self.models = models
        self.working: Dict[int, Tuple[Work, int]] = {}
        self.holders: Dict[str, Dict[int, Job]] = {lane.name: {} for lane in lanes}
        self._devices = devices
        self._reserved: Dict[Tuple[str, str], int] = {}  # (model, device) -> bytes, those booked by batches included
        self._cached_milli: Dict[Tuple[str, str], int] = {}  # (app, node) -> share of the input's tokens
        self._usual_milli = {name: min(STEPS_FIRST, model.context_tokens) * 1000 for name, model in models.items()}

    # --- facts --------------------------------------------------------------------------------------------------------

    def tokens_in(self, job: Job) -> int:
        """Input tokens, as far as they were declared or predicted, or as the size of the job's state shows; 0 where
        nothing says them."""
        return max(job.tokens_in, int(job.hints.get(job.node.tokens_key, 0))) if job.hints else job.tokens_in

    def steps_left(self, job: Job) -> int:
        """Steps that a job is expected to need still: by what its model said last, else by its hint, else as its model
        usually does. At least 1; :data:`STEPS_MORE` for one that has made all of them."""
        return self._needs(job)[1]

    def usual_steps(self, model: str) -> int:
        """Steps that a sequence of a model usually has, by the ended ones."""
        return max(1, self._usual_milli[model] // 1000)

    def prefill_turns(self, job: Job) -> int:
        """Turns that reading the prompt of a job takes which has made no step, as far as prompts of its node are not in
        memory already; 0 where prompts are read whole, or where nothing tells the prompt's length."""
        part = self.models[job.node.model].prefill_tokens
        tokens = self.tokens_in(job) if part and not job.steps else 0
        if not tokens:
            return 0
        left_milli = 1000 - self._cached_milli.get((job.request.app.name, job.node.name), 0)
        return -(-max(1, tokens * left_milli) // (1000 * part))

    def cached_milli(self, app: str, node: str) -> int:
        """The part of a prompt of a node that was usually in memory before it was read, in thousandths."""
        return self._cached_milli.get((app, node), 0)

    def needs_bytes(self, job: Job) -> int:
        """The bytes of a job's state at the job's end, as far as is known."""
        return self._needs(job)[2]

    def _needs(self, job: Job) -> Tuple[int, int, int]:
        """A job's tokens now, :meth:`steps_left`, and :meth:`needs_bytes`."""
        name, hints = job.node.model, job.hints
        model = self.models[name]
        tokens = job.tokens_in
        if hints:
            tokens = max(tokens, int(hints.get(job.node.tokens_key, 0)))
        tokens += job.steps
        told = int(hints.get(job.node.steps_key, 0)) if hints and not job.steps_total else job.steps_total
        total = told or max(1, self._usual_milli[name] // 1000)
        left = total - job.steps if total > job.steps else STEPS_MORE
        return tokens, left, min(tokens + left, model.context_tokens) * model.bytes_per_token

    def why_never(self, job: Job) -> str:
        """The reason why a job could not even make its first step on an empty device, or ``""``."""
        model = self.models[job.node.model]
        tokens = self.tokens_in(job) + 1
        if tokens > model.context_tokens:
            return f"its {tokens - 1} input tokens leave no room in the context of {model.context_tokens}"
        bound = model.memory_bytes
        if bound and tokens * model.bytes_per_token > bound:
            return (
                f"its {tokens - 1} input tokens need {tokens * model.bytes_per_token} bytes of state, more than "
                f"[model.{job.node.model}] state_memory = {bound} bytes"
            )
        return ""

    def room(self, model: str, lane: Lane) -> Room:
        """The room of a lane for new sequences."""
        taken = len([job for job in self.holders[lane.name].values() if job.node.model == model])
        slots = max(0, self.models[model].slots - taken)
        return new_tuple(Room, (slots, self._free_bytes(model, lane.device)))

    def booked_bytes(self, device: str) -> int:
        """The bytes that batches booked on a device beyond the reservations of their jobs."""
        return sum([extra for work, extra in self.working.values() if work.lane.device == device])

    def is_alone(self, job: Job, lane: Lane) -> bool:
        """True if no other sequence on a lane's device will make room for this one's next step: none of its model holds
        anything, and none of another model runs, or the bound of its own model is too low."""
        others = [
            other
            for jobs in self.holders.values()
            for other in jobs.values()
            if other is not job and other.state_device == lane.device
        ]
        if any(other.node.model == job.node.model for other in others):
            return False
        model = self.models[job.node.model]
        needs_bytes = (self.tokens_in(job) + job.steps + 1) * model.bytes_per_token
        return 0 < model.memory_bytes < needs_bytes or all(other.state == READY for other in others)

    def reserved_bytes(self, model: str, device: str) -> int:
        """The bytes that the sequences of a model hold on a device, the bookings of batches included."""
        return self._reserved.get((model, device), 0)

    def _free_bytes(self, model: str, device_name: str) -> int:
        device, bound = self._devices[device_name], self.models[model].memory_bytes
        free = UNBOUNDED
        if bound:
            free = bound - self._reserved.get((model, device_name), 0)
        if device.budget_bytes:
            free = min(free, device.budget_bytes - device.used_bytes - device.state_bytes)
        return max(0, free)

    # --- before a batch -----------------------------------------------------------------------------------------------

    def fit(self, jobs: Sequence[Job], steps_max: int | None, lane: Lane) -> Fit:
        """The part of a batch of one model that may run on a lane now. Changes nothing."""
        name = jobs[0].node.model
        model, mine = self.models[name], self.holders[lane.name]
        slots, free = self.room(name, lane)
        alone = not self._reserved.get((name, lane.device), 0)
        longest = 0  # steps that one of them still needs
        kept: List[Job] = []
        rows: List[Tuple[int, int]] = []  # of each: tokens now, tokens reserved
        for job in jobs:
            holds = job.seq in mine
            tokens, left, bytes = self._needs(job)
            grows = max(0, bytes - job.state_bytes)
            if not holds and (slots < 1 or (grows > free and not (alone and not kept))):
                continue
            slots -= not holds
            kept.append(job)
            longest = max(longest, left)
            if model.bytes_per_token:
                grows = min(grows, free)
                free -= grows
                rows.append((tokens, (job.state_bytes + grows) // model.bytes_per_token))
        if not kept:
            return Fit([], 0, 0, self._youngest(name, lane))
        wanted = longest if steps_max is None else steps_max
        steps, extra = _steps_within(rows, wanted, model, free)
        if steps < min(wanted, STEPS_MIN):
            youngest = self._youngest(name, lane, kept[0] if len(kept) == 1 and not steps else None)
            if youngest is not None and not (len(kept) == 1 and kept[0] is youngest):
                return Fit([], 0, 0, youngest)
        return Fit(kept if steps else [], steps, extra, None)

    def _youngest(self, model: str, lane: Lane, but: Job | None = None) -> Job | None:
        """The ready job of a model that took its place last: on the lane, else on another one of its device."""
        for name in (lane.name, *[other for other in self.holders if other != lane.name]):
            for job in reversed(list(self.holders[name].values())):
                if (
                    job.state == READY
                    and job.node.model == model
                    and job.state_device == lane.device
                    and job is not but
                ):
                    return job
        return None

    # --- changes ------------------------------------------------------------------------------------------------------

    def started(self, work: Work, extra_bytes: int) -> None:
        """A batch is put on its lane: its jobs hold places there, and reserve what they need as far as that is free."""
        device, mine = self._devices[work.lane.device], self.holders[work.lane.name]
        for job in work.jobs:
            if job.seq not in mine:
                mine[job.seq] = job
                job.lane, job.state_device = work.lane.name, device.name
            grows = min(self._needs(job)[2] - job.state_bytes, self._free_bytes(work.model, device.name))
            if grows > 0:
                self._book(job, grows)
        self.working[work.id] = (work, extra_bytes)
        device.state_bytes += extra_bytes
        key = (work.model, device.name)
        self._reserved[key] = self._reserved.get(key, 0) + extra_bytes

    def hangs(self, work: Work) -> None:
        """The lane of a batch hangs: its jobs will be given up, and what they hold stays occupied until the batch
        ends."""
        found = self.working.get(work.id)
        if found is not None:
            mine = self.holders[work.lane.name]
            held = sum([job.state_bytes for job in work.left() if job.seq in mine])
            self.working[work.id] = (work, found[1] + held)
            self._devices[work.lane.device].state_bytes += held
            self._reserved[work.model, work.lane.device] += held

    def ended(self, work: Work) -> None:
        """A batch is off its lane."""
        found = self.working.pop(work.id, None)
        if found is not None:
            self._devices[work.lane.device].state_bytes -= found[1]
            self._reserved[work.model, work.lane.device] -= found[1]

    def kept(self, job: Job, bytes: int) -> None:
        """A job came back unfinished with a state of so many bytes: more than it reserved is reserved now, and more
        than its tokens had undeclared input."""
        per_token = self.models[job.node.model].bytes_per_token
        if per_token:
            job.tokens_in = max(job.tokens_in, bytes // per_token - job.steps)
        if bytes > job.state_bytes:
            self._book(job, bytes - job.state_bytes)

    def free(self, job: Job) -> bool:
        """A job gives up its place; whether it had one."""
        if self.holders.get(job.lane, {}).pop(job.seq, None) is None:
            return False
        self._book(job, -job.state_bytes)
        job.state_device = ""
        return True

    def learn(self, job: Job, steps: int, cached: int) -> None:
        """A sequence ended after so many steps of its last batch, and had so many tokens of its input in memory before
        it began. The share is counted of inputs whose length was told."""
        usual = self._usual_milli[job.node.model]
        self._usual_milli[job.node.model] = max(1000, usual + ((job.steps + steps) * 1000 - usual) // LEARN_SHARE)
        told = int(job.hints.get(job.node.tokens_key, 0)) if job.hints else 0
        if told > 0:
            key = (job.request.app.name, job.node.name)
            before, now = self._cached_milli.get(key, 0), 1000 * max(0, min(cached, told)) // told
            if before or now:
                self._cached_milli[key] = before + (now - before) // LEARN_SHARE

    def _book(self, job: Job, bytes: int) -> None:
        key = (job.node.model, job.state_device)
        self._reserved[key] = self._reserved.get(key, 0) + bytes
        self._devices[job.state_device].state_bytes += bytes
        job.state_bytes += bytes


def _steps_within(rows: Sequence[Tuple[int, int]], wanted: int, model: SequenceModel, free: int) -> Tuple[int, int]:
    """The number of the ``wanted`` steps that fit into the ``free`` bytes if no job ends before, and the bytes that
    this takes beyond what the jobs reserved. ``rows``: per job, its tokens now and those reserved. O(jobs *
    log(wanted))."""

    def extra_bytes(steps: int) -> int:
        tokens = sum([max(0, min(now + steps, model.context_tokens) - reserved) for now, reserved in rows])
        return tokens * model.bytes_per_token

    low, high = 0, wanted
    whole = extra_bytes(wanted)
    if whole <= free:  # most often
        return wanted, whole
    while low < high:
        middle = (low + high + 1) // 2
        if extra_bytes(middle) <= free:
            low = middle
        else:
            high = middle - 1
    return low, extra_bytes(low)
