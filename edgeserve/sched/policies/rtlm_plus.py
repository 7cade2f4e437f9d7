"""``rtlm+``: continuous batching. A sequence that ends frees its slot; others are admitted in groups between two steps.

The admitted are chosen by priority, one of each client at a time, and as many as bring most answers in time. How long a
sequence will still be is estimated anew as it grows. A side lane takes a long task if it ends there earlier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heapreplace, nsmallest
from typing import Any, ClassVar, Dict, Final, List, Mapping, Sequence, Set, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policies.edf import Edf
from edgeserve.sched.policies.language.consolidation import seed, window_len
from edgeserve.sched.policies.language.language_policy import KEEP, LanguageOptions, LanguagePolicy
from edgeserve.sched.policies.language.offload import Crowd, Main, Side
from edgeserve.sched.policies.language.priority import Key, PriorityParameters, fifo, linear
from edgeserve.sched.policies.language.queues import RANKS, ModelTasks, Waiting
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work

ALPHA: Final = 3.0
"""Weight of the length in the order: an answer's own time counts so many times, beside the time to its deadline."""

WINDOW: Final = 1.8
"""Of so many times the free places those of about equal length are admitted together (RT-LM, Section IV)."""

FREE_SHARE: Final = 0.5
"""Of the places that are free before others are admitted, where prompts are read whole: each admission interrupts all
answers for a prefill, and one of many costs little more than one of one. With any free place, the mean response at load
1.1 was 30 % longer (``scripts/replicate/rtlm``)."""

COUNTS_MAX: Final = 8
"""So many sizes of a batch are compared."""

SLIGHT: Final = 0.25
"""Of an expected number of steps such a part is no step: known lengths have a mean a little above them."""

PREFILL_MAX: Final = 16.0
"""Steps that reading prompts is believed to take at most: an outlier teaches no more."""

CRITICAL: Final = RANKS["critical"]

ALMOST: Final = 0.98
"""Of two sizes that bring about as much in time, the larger is the better one: more are served at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class RtlmPlusOptions(LanguageOptions):
    """Options of ``rtlm+``."""

    order: str = option(
        "linear",
        "which answer goes first: by deadline and length, or by arrival, which makes the longest waits shorter",
        one_of=("linear", "fifo"),
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class RtlmPlus(LanguagePolicy):
    """Continuous batching: what ends frees its place, and others are admitted between two steps."""

    options_type: ClassVar[Type[PolicyOptions]] = RtlmPlusOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, RtlmPlusOptions)
        self._by_arrival = own.order == "fifo"
        self._prefills: Dict[Tuple[str, str], float] = {}  # (model, lane) -> in steps, as measured
        self._reading: Set[int] = set()  # works that began with prompts

        # What makes no steps has nothing that this policy orders by: ``edf`` serves it.
        self._plain = Edf(name, apps, {"admit": self._admit})

    def on_ready(self, job: Job, board: Board) -> None:
        tasks = self._models[job.node.model]
        if tasks.stepwise or self._knows_steps(tasks, job, board):
            if self._plain.holds(tasks.model):  # those that came before it was known
                for other in [other for other in self._plain.queued() if other.node.model == tasks.model]:
                    self._plain.on_gone(other, board)
                    super().on_ready(other, board)
            super().on_ready(job, board)
        else:
            self._plain.on_ready(job, board)

    def on_gone(self, job: Job, board: Board) -> None:
        if self._plain.holds(job.node.model):
            self._plain.on_gone(job, board)
        else:
            super().on_gone(job, board)

    def on_started(self, work: Work, board: Board) -> None:
        if self._plain.holds(work.model):
            self._plain.on_started(work, board)
        else:
            if (
                board.makes_sequences(work.model)
                and not board.reads_in_turns(work.model)
                and not all(job.steps for job in work.jobs)
            ):
                self._reading.add(work.id)
            super().on_started(work, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        super().on_finished(work, started_ns, finished_ns, board)
        if work.id in self._reading:
            self._reading.discard(work.id)
            if not work.failed:
                self._learn_prefill(work, finished_ns - started_ns, board)

    def _forget(self, work: Work) -> None:
        super()._forget(work)
        self._reading.discard(work.id)

    def _learn_prefill(self, work: Work, took_ns: int, board: Board) -> None:
        """What a batch that read prompts took beyond its steps, by the tables, which were taught by such batches: of
        short answers reading is most of the work, and they have it as part of a step."""
        latency = board.latency(work.model, work.lane.name)
        more = took_ns / max(1, latency.typical_ns[work.size]) - work.steps
        key = (work.model, work.lane.name)
        before = self._prefills.get(key, self._prefill_milli / 1000)
        self._prefills[key] = KEEP * before + (1.0 - KEEP) * max(-PREFILL_MAX, min(PREFILL_MAX, more))

    def plan(self, board: Board) -> None:
        super().plan(board)
        self._plain.plan(board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        plain, bid = self._plain.bid(lane, board), super().bid(lane, board)
        if plain is None or bid is None:
            return plain or bid
        return arbiter.choose((bid, plain), lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)

    def figures(self) -> Mapping[str, Any]:
        learnt = {f"{model} on {lane}": max(0.0, steps) for (model, lane), steps in self._prefills.items()}
        return {**super().figures(), "prefill_steps": learnt}

    def queued(self) -> List[Job]:
        return super().queued() + self._plain.queued()

    def cut(self, work: Work, board: Board) -> bool:
        tasks = self._models[work.model]
        if not tasks.fresh and not tasks.begun:
            return False
        lane, count = work.lane, len(work.left())
        places = self._places(tasks, lane, count, board)
        if places - count < self._needed(tasks, places, board):
            return False
        running = [tasks.running[job.seq] for job in work.left() if job.seq in tasks.running]
        following = self._admitted(tasks, running, lane, places - count, board)
        room = board.sequence_room(work.model, lane)
        if room is None or not following:
            return bool(following)
        return room.slots > 0 and any(board.sequence_bytes(waiting.job) <= room.bytes for waiting in following)

    def _places(self, tasks: ModelTasks, lane: Lane, held: int, board: Board) -> int:
        """How many sequences run at once on a lane: C, or its slots, of which so many are ``held``."""
        batch = self._batch_of(board.latency(tasks.model, lane.name))
        room = board.sequence_room(tasks.model, lane)
        return batch if room is None else max(1, min(batch, room.slots + held))

    def _needed(self, tasks: ModelTasks, places: int, board: Board) -> int:
        """So many of the places must be free before others are admitted to a batch that runs. Rounded down: of 11
        places two groups of 5 and 6 are served in turns. One where prompts are read in turns: a group saves nothing
        then, and free places make steps that serve fewer."""
        return 1 if board.reads_in_turns(tasks.model) else max(1, math.floor(FREE_SHARE * places))

    def _steps_of(self, tasks: ModelTasks, chosen: Sequence[Waiting], lane: Lane, board: Board) -> int:
        """As many as the longest is expected to have: arrivals are refused by when the lane is free. Where a batch was
        expected to be over, at least :data:`STEPS_MIN`."""
        if not board.makes_sequences(tasks.model) or any(waiting.job.steps for waiting in chosen):
            return super()._steps_of(tasks, chosen, lane, board)
        return max(1, math.ceil(max([waiting.remaining() for waiting in chosen]) - SLIGHT))

    def _prefill_ns(self, latency: BatchTime, count: int) -> int:
        found = self._prefills.get((latency.model, latency.lane))
        if found is None or "prefill" in latency.phases:
            return super()._prefill_ns(latency, count)
        return round(max(0.0, found) * self._step_ns(latency, count))

    def _may_be_sent(self, waiting: Waiting, tau: float) -> bool:
        return super()._may_be_sent(waiting, tau) or waiting.job.request.on_late != "answer"

    def _is_sent(self, waiting: Waiting, tau: float, side: Side, main: Main, board: Board) -> bool:
        """As in general; and where late answers are worth nothing, a task of any length that is more likely to be in
        time there."""
        if super()._may_be_sent(waiting, tau) and super()._is_sent(waiting, tau, side, main, board):
            return True
        if waiting.job.request.on_late == "answer":
            return False
        due_ns = self._latest_ns(waiting.job, board)
        return waiting.chance((due_ns - side.begins_ns - side.prefill_ns) / max(1.0, side.step_ns)) > waiting.chance(
            (due_ns - main.begins_ns - main.prefill_ns) / max(1.0, main.step_ns)
        )

    def _batch(self, tasks: ModelTasks, lane: Lane, board: Board) -> Bid | None:
        latency = board.latency(tasks.model, lane.name)
        chosen = tasks.bound_to(lane.name)[: latency.size_max]
        places = self._places(tasks, lane, len(chosen), board)
        free = places - len(chosen)
        if not chosen or free >= self._needed(tasks, places, board):
            chosen += self._admitted(tasks, chosen, lane, free, board)
        if not chosen:
            return None
        return self._bid_of(tasks, chosen, lane, board)

    def _admitted(
        self, tasks: ModelTasks, running: Sequence[Waiting], lane: Lane, free: int, board: Board
    ) -> List[Waiting]:
        """The next tasks for ``free`` slots beside those that are ``running``."""
        following = self._following(tasks, lane, free, board)
        return following[: self._in_time(tasks, running, following, lane, board)]

    def _in_time(
        self, tasks: ModelTasks, running: Sequence[Waiting], following: Sequence[Waiting], lane: Lane, board: Board
    ) -> int:
        """How many of those that follow are to be admitted: every further sequence makes the steps of all others
        longer, so as many as bring most answers in time per time."""
        if not following or all(waiting.job.request.on_late == "answer" for waiting in (*running, *following)):
            return len(following)
        latency = board.latency(tasks.model, lane.name)
        most = len(running) + len(following)
        least = max(1, len(running) + sum([waiting.rank == CRITICAL for waiting in following]))
        counts = [most] + [size for size in reversed(latency.sizes) if least <= size < most]
        if len(counts) > COUNTS_MAX:
            counts = counts[:: math.ceil(len(counts) / COUNTS_MAX)]
        rates = []
        for count in counts:
            step_ns = max(1, self._step_ns(latency, count))
            rates.append(
                (
                    self._chances(running, following[: count - len(running)], step_ns, lane, latency, board) / step_ns,
                    count,
                )
            )
        best = max(rates)[0]
        return next(count for rate, count in rates if rate >= ALMOST * best) - len(running)

    def _chances(
        self,
        running: Sequence[Waiting],
        begins: Sequence[Waiting],
        step_ns: int,
        lane: Lane,
        latency: BatchTime,
        board: Board,
    ) -> float:
        """How many answers are expected in time if steps take so long from now on, each times its value."""
        starts_ns = lane.available_ns(board.now_ns)
        if begins:
            starts_ns += self._prefill_ns(latency, len(begins))
        total = 0.0
        for waiting in (*running, *begins):
            request = waiting.job.request
            left_ns = self._latest_ns(waiting.job, board) - starts_ns
            total += request.value * (1.0 if request.on_late == "answer" else waiting.chance(left_ns / step_ns))
        return total

    def _following(self, tasks: ModelTasks, lane: Lane, free: int, board: Board) -> List[Waiting]:
        """The next tasks for ``free`` slots."""
        in_turns = len(tasks) > free and _has_several_clients(tasks)
        count = window_len(WINDOW, free)
        fresh = self._next_for(tasks, lane, board, 0 if in_turns else count)
        if in_turns and len(fresh) > free:
            fresh = _in_turns(tasks, fresh)
        if self._by_arrival or len(fresh) <= free:
            return fresh[:free]
        window = fresh[:count]
        return [window[place] for place in seed([waiting.steps for waiting in window], free)]

    def _keys(self, found: List[Waiting], tasks: ModelTasks, step_ns: float, board: Board) -> List[Key]:
        parameters = PriorityParameters(board.now_ns, step_ns, self._tau_of(tasks), ALPHA)
        if self._by_arrival:
            return [fifo(waiting.task, parameters) for waiting in found]
        return [linear(waiting.task, parameters) for waiting in found]

    def _crowd(self, tasks: ModelTasks, fresh: List[Waiting], mains: Sequence[Lane], board: Board) -> Crowd:
        lane = mains[0]
        latency = board.latency(tasks.model, lane.name)
        batch = self._batch_of(latency)
        step_ns = self._step_ns(latency, batch)
        left = self._steps_left(tasks, mains, step_ns, board)
        main = Main(
            float(board.now_ns), step_ns, self._prefill_ns(latency, batch), len(fresh), batch, tasks.predicted.mean()
        )
        return Crowd(main, batch * len(mains), running=len(left), left_steps=sum(left, 0.0))

    def _steps_left(self, tasks: ModelTasks, mains: Sequence[Lane], step_ns: int, board: Board) -> List[float]:
        """The steps that each answer that has begun is still expected to have."""
        names = ["", *[item.name for item in mains]]
        return [
            waiting.remaining(self._made(waiting, step_ns, board))
            for waiting in [*tasks.running.values(), *tasks.begun.values()]
            if waiting.job.lane in names
        ]

    def _begins_ns(self, tasks: ModelTasks, fresh: List[Waiting], mains: Sequence[Lane], board: Board) -> float:
        """When so many places are free that others are admitted, if each takes the place that is free first."""
        crowd = self._crowd(tasks, fresh, mains, board)
        ends = self._steps_left(tasks, mains, round(crowd.main.step_ns), board)
        ends += [0.0] * (crowd.slots - len(ends))
        heapify(ends)
        for waiting in fresh:
            heapreplace(ends, ends[0] + waiting.steps)
        free = nsmallest(self._needed(tasks, crowd.slots, board), ends)[-1]
        return crowd.main.begins_ns + free * crowd.main.step_ns

    def _main(self, crowd: Crowd, place: int, ahead_steps: float) -> Main:
        """A task begins when as many sequences have ended as stand before it, beyond the slots."""
        count, slots = crowd.running + place, crowd.slots
        if count < slots:
            return crowd.main
        steps = crowd.left_steps + ahead_steps
        return crowd.main_from(crowd.main.begins_ns + steps * crowd.main.step_ns / slots * (count - slots + 1) / count)

    def _made(self, waiting: Waiting, step_ns: int, board: Board) -> int:
        """About how many steps a running task has made since it was launched."""
        since_ns = board.now_ns - waiting.job.launched_ns
        return max(0, since_ns // max(1, step_ns)) if waiting.job.launched_ns and since_ns > 0 else 0


def _has_several_clients(tasks: ModelTasks) -> bool:
    """Whether tasks of more than one client wait."""
    first: str | None = None
    for table in (tasks.fresh, tasks.begun):
        for waiting in table.values():
            client = waiting.job.request.client
            if first is not None and client != first:
                return True
            first = client
    return False


def _in_turns(tasks: ModelTasks, fresh: List[Waiting]) -> List[Waiting]:
    """In rounds of one task of each client, those that run counted: a flood of one client delays itself."""
    rounds: Dict[str, int] = {}
    for waiting in [*tasks.running.values(), *tasks.begun.values()]:
        rounds[waiting.job.request.client] = rounds.get(waiting.job.request.client, 0) + 1
    if len({waiting.job.request.client for waiting in fresh}) < 2:
        return fresh
    rows = []
    for place, waiting in enumerate(fresh):
        client = waiting.job.request.client
        turn = rounds.get(client, 0)
        rounds[client] = turn + 1
        rows.append((waiting.tier, turn, place))
    rows.sort()
    return [fresh[place] for _, _, place in rows]
