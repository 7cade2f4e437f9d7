"""``rtlm``: static batches, in the order of priority, of answers about equally long (RT-LM, Sections IV and V).

A batch goes on until all its answers are whole; the next one begins then. Where the engine answers each sequence when
it ends, so does this policy's batch (early exit), but no task is admitted meanwhile.

A model's *side lanes* are slower ones (CPU threads beside a GPU) that take a task only by the rule of offloading; every
other lane is a *main lane*. While no main lane is up, side lanes take everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, ClassVar, Dict, Final, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.lognormal import Lognormal
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.saturation import saturating
from edgeserve.sched.policies.common.bidding import best_class, refusal
from edgeserve.sched.policies.common.lengths import HOPELESS
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.published.common.orders import choose
from edgeserve.sched.published.rtlm.consolidation import RULES, consolidate, window_len
from edgeserve.sched.published.rtlm.offload import Crowd, MainLane, Side, goes_off, slowed_ns
from edgeserve.sched.published.rtlm.priority import BY_ORDER, METHODS, ORDERS, Key, PriorityParameters
from edgeserve.sched.published.rtlm.queues import Learnt, ModelTasks, Waiting, declared
from edgeserve.sched.published.rtlm.utility import EachUtility
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DONE, Job, RequestRecord, keeps_written
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS
from edgeserve.units import NS_PER_MS, ns_to_ms

OFFLOAD: Final[Tuple[str, ...]] = ("conditional", "static", "none")

SIDE_FACTOR: Final = 1.25
"""A lane whose step takes so many times as long as that of the fastest is a side lane, where no option names any."""

STEPS_MIN: Final = 8
"""A batch is given at least so many steps: fewer are not worth another launch."""

PATIENCE: Final = 4.0
"""A static batch that takes so many times as many steps as predicted comes back, lest its lane count as hung."""

STEPS: Final = 64.0
"""Assumed length while nothing is known, in steps."""

PREFILL_STEPS: Final = 2.0
"""The cost of reading a question where nothing was measured, in steps (RT-LM's models)."""

TAU_SHARE: Final = 0.9
"""An answer is long that is longer than this quantile of the predicted ones (RT-LM, Section IV)."""

KEEP: Final = 0.8
"""The weight of each new number in a mean."""

PROMISED: Final = 0.9
"""A deadline that would do is one by which an answer has ended with this chance, by how long such answers are."""

FEW: Final = 8
"""The first of a queue are found without sorting all of it where it is so many times as long."""

ONE_STEP: Final = Lognormal(0.0, 0.0)
"""The known work of a job whose model makes no steps."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class RtlmOptions(PolicyOptions):
    """Options of ``rtlm``, under the names of the paper (RT-LM, sections IV and V)."""

    side_lanes: Tuple[str, ...] = option((), "names of the side lanes; empty: the slower ones")
    admit: bool = option(True, "refuse at arrival what no lane can make")
    method: str = option(
        "rt-lm", "a system of the paper: order, consolidation and offloading at once", one_of=[*METHODS]
    )
    order: str = option("", "which answer goes first; empty: as the method says", one_of=["", *ORDERS])
    consolidation: str = option("", "which answers share a batch; empty: as the method says", one_of=["", *RULES])
    offload: str = option("", "which go to a side lane; empty: as the method says", one_of=["", *OFFLOAD])
    alpha: Number = option(1.0, "weight of the length in the order", low=0)
    b: Number = option(1.8, "how many batches the window of consolidation has", low=1)
    lambda_: Number = option(1.5, "ratio of neighbours in a batch of the rules and, or", low=1)
    k: Number = option(TAU_SHARE, "tau is this quantile of the last 512 predicted lengths", low=0)
    tau: Number = option(0.0, "tokens above which an answer is long; 0: by k", low=0)
    eta_ms: Number = option(0.0, "time of a token in the order, ms; 0: as measured", low=0)
    phi_ms: Number = option(
        0.0, "the deadline in the order is so many ms per token of the question; 0: the real one", low=0
    )
    xi_ms: Number = option(0.0, "gathering window, ms", low=0)
    batch: int = option(0, "C, the batch; 0: the smallest size with 98 % of the best throughput", low=0)
    steps: Number = option(STEPS, "assumed length while nothing is known, in steps", low=1)
    prefill_steps: Number = option(
        PREFILL_STEPS, "what reading a question costs where nothing was measured, in steps", low=0
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class Rtlm(Policy):
    """As published."""

    options_type: ClassVar[Type[PolicyOptions]] = RtlmOptions
    lets_urgent_first: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, RtlmOptions)
        method = METHODS[own.method]
        self._own_options = own
        self._order = own.order or method[0]
        self._rule = own.consolidation or method[1]
        self._offload = own.offload or method[2]
        self._learnt = Learnt(own.steps)
        self._prefill_milli = round(1000 * own.prefill_steps)
        self._xi_ns = round(own.xi_ms * NS_PER_MS)
        self._gathered: Dict[int, Tuple[int, Job]] = {}  # job's number -> when it becomes visible
        self._models: Dict[str, ModelTasks] = {
            node.model: ModelTasks(node.model) for app in self.apps for node in app.nodes
        }
        self._took_ns: Dict[str, float] = {}  # mean duration of a model's batches on main lanes
        self._sent_off = 0
        self._shares: Dict[Tuple[str, str], Tuple[int, float]] = {}  # of the processor, when a side lane was measured
        self._left: Dict[str, float] = {}  # side lane -> of the processor now, for people

    # --- requests -----------------------------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        return refusal(request, board) if self._own_options.admit else None

    def on_ready(self, job: Job, board: Board) -> None:
        """A job is queued, or gathered first."""
        visible_ns = -(-board.now_ns // self._xi_ns) * self._xi_ns if self._xi_ns else 0
        if visible_ns > board.now_ns and not job.steps and not job.lane:
            self._gathered[job.seq] = (visible_ns, job)
        else:
            self._enqueue(job, board)

    def _enqueue(self, job: Job, board: Board) -> None:
        tasks = self._models[job.node.model]
        waiting = tasks.running.pop(job.seq, None)
        if waiting is None:
            waiting = self._new(tasks, job, board)
            if not job.steps:
                tasks.predicted.add(waiting.steps)
        least = waiting.length.quantile(HOPELESS)  # steps that all but so many of such answers have
        hopeless_ns = self._latest_ns(job, board) - round((least - 1.0) * self._alone_ns(tasks, board))
        tasks.add(waiting, hopeless_ns)

    def _new(self, tasks: ModelTasks, job: Job, board: Board) -> Waiting:
        """A job with its predicted length."""
        told = declared(job, "steps")
        if not tasks.stepwise:
            tasks.stepwise = job.steps > 0 or told is not None or board.makes_sequences(tasks.model)
        length = self._learnt.of(job).predict(told, declared(job, "steps_sd")) if tasks.stepwise else ONE_STEP
        return Waiting(job, length, told, self._due_ns(job))

    def _due_ns(self, job: Job) -> int:
        """The deadline that orders go by."""
        tokens = declared(job, "tokens") if self._own_options.phi_ms else None
        if tokens is None:
            return job.request.deadline_ns
        return job.request.arrival_ns + round(self._own_options.phi_ms * NS_PER_MS * max(0.0, tokens))

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """The end of an app of one node, by how long the answer is at most with the chance :data:`PROMISED`, in steps
        that it shares with as many others as run at once. While nothing is known of a model of sequences, by the length
        that is assumed then."""
        found = super().expected_end(request, job, board)
        if found is None or not request.app.simple:
            return found
        node = request.app.entries[0]
        tasks = self._models[node.model]
        latency = board.latency(node.model, found.lane)
        steps = self._promised_steps(tasks, request, job, board)
        if not steps:
            return found
        batch = self._batch_of(latency)
        alone_ns = self._prefill_ns(latency, batch) + math.ceil(steps * self._step_ns(latency, batch))
        begins_ns = board.now_ns + found.wait_ns
        mains = self._main_lanes(node.model, board)
        if mains:
            ahead = sum([waiting.job.request is not request for waiting in tasks.fresh.values()])
            begins_ns = max(begins_ns, round(self._crowd(tasks, ahead, mains, board).main_of(ahead).begins_ns))
        return found._replace(wait_ns=begins_ns - board.now_ns, alone_ns=alone_ns, deadline_ns_min=begins_ns + alone_ns)

    def _promised_steps(self, tasks: ModelTasks, request: RequestRecord, job: Job | None, board: Board) -> float:
        """0 where the model makes no steps, or nothing says that it does."""
        node = request.app.entries[0]
        told = request.hints.get(node.steps_key)
        lengths = self._learnt.of_node(request.app.name, node.name)
        if not lengths.knows(told) and not board.makes_sequences(node.model):
            return 0.0
        if job is None:
            job = next(iter(request.jobs.values()), None)
        if job is not None:
            for table in (tasks.fresh, tasks.begun, tasks.running):
                if job.seq in table:
                    return table[job.seq].likely_steps(PROMISED) if tasks.stepwise else 0.0
        if told is None and not tasks.stepwise and not board.makes_sequences(tasks.model):
            return 0.0
        return lengths.predict(told, request.hints.get("steps_sd")).rest(0, PROMISED)

    def on_gone(self, job: Job, board: Board) -> None:
        if self._gathered.pop(job.seq, None) is None:
            self._models[job.node.model].remove(job)

    def queued(self) -> List[Job]:
        waiting = [job for tasks in self._models.values() for job in tasks.jobs()]
        return waiting + [job for _, job in self._gathered.values()]

    # --- batches that run ---------------------------------------------------------------------------------------------

    def on_started(self, work: Work, board: Board) -> None:
        tasks = self._models[work.model]
        side = self._is_side(work.model, work.lane, board)
        for job in work.jobs:
            tasks.running[job.seq] = tasks.remove(job)
            self._sent_off += side and not job.steps

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        tasks = self._models[work.model]
        for job in work.jobs:
            waiting = tasks.running.pop(job.seq, None)
            if waiting is not None and job.state == DONE and (tasks.stepwise or job.steps > 1):
                tasks.stepwise = True
                self._learnt.finished(waiting)
        if work.failed:
            return
        if self._is_side(work.model, work.lane, board):
            now, before = board.cpu_share(work.lane), self._measured_share(work.model, work.lane, board)
            self._shares[work.model, work.lane.name] = (
                board.now_ns,
                now if before is None else KEEP * before + (1.0 - KEEP) * now,
            )
        else:
            took_ns = float(finished_ns - started_ns)
            self._took_ns[work.model] = KEEP * self._took_ns.get(work.model, took_ns) + (1.0 - KEEP) * took_ns

    def on_refused(self, work: Work, board: Board) -> None:
        self._forget(work)

    def on_lost(self, work: Work, board: Board) -> None:
        self._forget(work)

    def _forget(self, work: Work) -> None:
        for job in work.jobs:
            self._models[work.model].running.pop(job.seq, None)

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        """Make visible what was gathered, and give up what cannot be in time."""
        for seq in [seq for seq, (at_ns, _) in self._gathered.items() if at_ns <= board.now_ns]:
            self._enqueue(self._gathered.pop(seq)[1], board)
        for tasks in self._models.values():
            if tasks.due.rows or tasks.begun:
                ends_ns = board.earliest_end_ns(tasks.model)
                if ends_ns is not None:
                    self._give_up(tasks, ends_ns, board)

    def next_wakeup_ns(self, board: Board) -> int | None:
        return min([at_ns for at_ns, _ in self._gathered.values()], default=None)

    def _give_up(self, tasks: ModelTasks, ends_ns: int, board: Board) -> None:
        """Give up tasks that not even the next step could be in time for, and tasks that will hardly be in time by how
        long their answers are believed to be, as long as finished answers confirm that. An answer that has begun goes
        on to its deadline where what is written by then counts."""
        rows, skipped = tasks.due.rows, 0
        while skipped < len(rows) and rows[skipped][0] < ends_ns:
            job = rows[skipped][2]
            skipped += not self._gives_up(job, self._latest_ns(job, board) < ends_ns, board)
        alone_ns = self._alone_ns(tasks, board)
        for waiting in list(tasks.begun.values()):
            job = waiting.job
            if job.request.on_late != "answer" and not keeps_written(job) and job.seq in tasks.begun:
                steps = 1.0 + (self._latest_ns(job, board) - ends_ns) / alone_ns
                if waiting.chance(steps) < HOPELESS:
                    self._gives_up(job, steps < 1.0, board)

    def _gives_up(self, job: Job, is_certain: bool, board: Board) -> bool:
        """Give a job up that is late for certain, or hardly in time as far as is known. False: it may stay."""
        lengths = self._learnt.of(job)
        if not is_certain:
            if not lengths.may_give_up():
                return False
            lengths.given_up += 1
        board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
        return True

    def _latest_ns(self, job: Job, board: Board) -> int:
        """When a job must have ended for its request to be in time."""
        request = job.request
        return request.deadline_ns - (board.rest_ns(request.app, job.node) if job.node.succs else 0)

    def _alone_ns(self, tasks: ModelTasks, board: Board) -> int:
        """One step of one task alone, on the fastest lane."""
        return max(
            1,
            min(
                [board.latency(tasks.model, lane.name).alone_likely_ns for lane in board.lanes_of(tasks.model)],
                default=1,
            ),
        )

    # --- the order ----------------------------------------------------------------------------------------------------

    def _tau_of(self, tasks: ModelTasks) -> float:
        """An answer that is longer is long."""
        return self._own_options.tau or max(1.0, tasks.predicted.quantile(self._own_options.k))

    def _sorted(
        self, tasks: ModelTasks, found: List[Waiting], lane: Lane, board: Board, count: int = 0
    ) -> List[Waiting]:
        """Fresh tasks in the order of priority, those of critical requests first; the first ``count`` (0: all)."""
        latency = board.latency(tasks.model, lane.name)
        step_ns = float(self._step_ns(latency, self._batch_of(latency)))
        order: List[Waiting] = []
        for tier in sorted({waiting.tier for waiting in found}):
            keys = self._keys([waiting for waiting in found if waiting.tier == tier], tasks, step_ns, board)
            wanted = count - len(order) if count else len(keys)
            keys = nsmallest(wanted, keys) if wanted * FEW < len(keys) else sorted(keys)[:wanted]
            order += [tasks.fresh[key[2]] for key in keys]  # each key ends with the number of its job
        return order

    def _keys(self, found: List[Waiting], tasks: ModelTasks, step_ns: float, board: Board) -> List[Key]:
        """By what tasks are sorted. ``step_ns``: one output token."""
        own = self._own_options
        parameters = PriorityParameters(board.now_ns, own.eta_ms * NS_PER_MS or step_ns, self._tau_of(tasks), own.alpha)
        key_of = BY_ORDER[self._order]
        return [key_of(waiting.task, parameters) for waiting in found]

    # --- batches ------------------------------------------------------------------------------------------------------

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids: List[Bid] = []
        for tasks in self._models.values():
            if len(tasks) and tasks.model in lane.models and board.is_resident(tasks.model, lane):
                bid = self._batch(tasks, lane, board)
                if bid is not None:
                    bids.append(bid)
        if len(bids) < 2:
            return bids[0] if bids else None
        return choose(bids, lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)

    def _batch(self, tasks: ModelTasks, lane: Lane, board: Board) -> Bid | None:
        """The best batch of one model on a lane, or None. Changes nothing."""
        latency = board.latency(tasks.model, lane.name)
        begun = tasks.bound_to(lane.name) or [
            waiting for waiting in self._loose_for(tasks, lane, board) if waiting.job.steps
        ]
        if begun:
            return self._bid_of(tasks, begun[: latency.size_max], lane, board)
        batch = self._batch_of(latency)
        count = window_len(self._own_options.b, batch)
        fresh = self._fresh_for(tasks, lane, board, count)
        if not fresh:
            return None
        if self._is_side(tasks.model, lane, board):
            return self._bid_of(tasks, fresh[:batch], lane, board)
        window = fresh[:count]
        places = consolidate(self._rule, [waiting.steps for waiting in window], batch, self._own_options.lambda_)
        return self._bid_of(tasks, [window[place] for place in places[: latency.size_max]], lane, board)

    def _batch_of(self, latency: BatchTime) -> int:
        """C on this lane: how many tasks a batch is to have."""
        own = self._own_options.batch
        return min(own, latency.size_max) if own else saturating(latency.typical_ns)

    def _step_ns(self, latency: BatchTime, count: int) -> int:
        """One step of so many tasks."""
        return latency.typical_ns[latency.size_for[min(count, latency.size_max)]]

    def _prefill_ns(self, latency: BatchTime, count: int) -> int:
        """The prefill of so many tasks at once."""
        return round(self._prefill_milli * self._step_ns(latency, count) / 1000)

    def _loose_for(self, tasks: ModelTasks, lane: Lane, board: Board) -> List[Waiting]:
        """The tasks that may go on on a lane although no lane holds their state any more."""
        loose = tasks.loose()
        if loose and self._is_side(tasks.model, lane, board) and self._main_lanes(tasks.model, board):
            return []
        return loose

    def _bid_of(self, tasks: ModelTasks, chosen: Sequence[Waiting], lane: Lane, board: Board) -> Bid:
        """The bid for a batch that goes on until its answers are whole, or for as many steps as are expected: a batch
        that turns out longer comes back to be predicted again. One that cannot be interrupted between two steps gets
        :data:`PATIENCE` times as many, and one that comes back after a turn bids the time of all its steps."""
        latency = board.latency(tasks.model, lane.name)
        size = latency.size_for[len(chosen)]
        step_ns = self._step_ns(latency, size)
        steps = math.ceil(max([waiting.remaining() for waiting in chosen]) - 1e-6)
        begins = sum([not waiting.job.steps for waiting in chosen])
        before_ns = self._prefill_ns(latency, begins) if begins and tasks.stepwise else 0
        if before_ns:
            turns = sum([board.prefill_turns(waiting.job) for waiting in chosen])
            before_ns = turns * step_ns if turns else before_ns
        bound: int | None = None
        if tasks.stepwise:
            bound = steps = max(STEPS_MIN, steps)
            if board.reads_in_turns(tasks.model):  # what a turn takes, others wait for, and is learnt when a batch ends
                bound = STEPS_MIN
            elif not board.makes_sequences(tasks.model):
                patient = (lane.hang_ns // 2) // max(1, step_ns) + steps
                bound = min(math.ceil(PATIENCE * steps), patient)
        expected_ns = max(1, before_ns + (steps if bound is None else min(steps, bound)) * step_ns)
        whole_ns = max(1, before_ns + steps * step_ns)
        jobs = [waiting.job for waiting in chosen]
        rest_ns = max([board.rest_ns(job.request.app, job.node) for job in jobs])
        rest_lane_ns = max([board.rest_lane_ns(job.request.app, job.node) for job in jobs])
        utility = EachUtility(chosen, before_ns + rest_ns, step_ns, board.now_ns)
        return Bid(
            tasks.model,
            jobs,
            size,
            expected_ns,
            utility,
            whole_ns + rest_lane_ns,
            steps_max=bound,
            priority_class=best_class(jobs),
            whole_ns=whole_ns,
        )

    # --- offloading ---------------------------------------------------------------------------------------------------

    def _is_side(self, model: str, lane: Lane, board: Board) -> bool:
        """True if a lane takes tasks of a model only by the rule of offloading."""
        if self._own_options.side_lanes:
            return lane.name in self._own_options.side_lanes
        lanes = board.lanes_of(model)
        if len(lanes) < 2:
            return False
        fastest_ns = min([board.latency(model, other.name).alone_likely_ns for other in lanes])
        return board.latency(model, lane.name).alone_likely_ns > SIDE_FACTOR * fastest_ns

    def _main_lanes(self, model: str, board: Board) -> List[Lane]:
        """The main lanes that are up and have the model, or will have."""
        return [
            lane
            for lane in board.lanes_of(model)
            if lane.up
            and not lane.hung
            and not self._is_side(model, lane, board)
            and board.resident_at_ns(model, lane) < NEVER_NS
        ]

    def _side_is_up(self, model: str, board: Board) -> bool:
        return any(
            lane.up and not lane.hung and self._is_side(model, lane, board) and board.is_resident(model, lane)
            for lane in board.lanes_of(model)
        )

    def _fresh_for(self, tasks: ModelTasks, lane: Lane, board: Board, count: int) -> List[Waiting]:
        """The fresh tasks that may begin on a lane, in order; at least the first ``count``."""
        fresh = list(tasks.fresh.values())
        is_side = self._is_side(tasks.model, lane, board)
        mains = self._main_lanes(tasks.model, board) if is_side else []
        tau = self._tau_of(tasks)
        if mains and self._offload == "none":
            return []
        if mains and self._offload == "conditional":
            if not any(waiting.steps > tau for waiting in fresh):
                return []
            return self._worth_sending(tasks, self._sorted(tasks, fresh, mains[0], board), lane, mains, board)
        if self._offload == "static" and (mains or (not is_side and self._side_is_up(tasks.model, board))):
            fresh = [waiting for waiting in fresh if (waiting.steps > tau) == is_side]
        return self._sorted(tasks, fresh, lane, board, count)

    def _worth_sending(
        self, tasks: ModelTasks, fresh: List[Waiting], lane: Lane, mains: Sequence[Lane], board: Board
    ) -> List[Waiting]:
        """The fresh tasks, in the order of the main lanes, that belong on this side lane. A lane whose
        processor is busy ends later by as much, and one whose device has little memory left takes none. O(tasks)."""
        latency = board.latency(tasks.model, lane.name)
        share, measured_share = self._share_of(tasks.model, lane, board)
        bytes = 0
        held = len(tasks.bound_to(lane.name))
        room = self._batch_of(latency) - held
        tau = self._tau_of(tasks)
        starts_ns = float(lane.available_ns(board.now_ns))
        crowd = self._crowd(tasks, len(fresh), mains, board)
        chosen: List[Waiting] = []
        for place, waiting in enumerate(fresh):
            if waiting.steps <= tau:
                continue
            if len(chosen) >= room:
                break
            more = board.sequence_bytes(waiting.job) if board.makes_sequences(tasks.model) else 0
            if not board.has_memory(lane, bytes + more):
                continue
            count = len(chosen) + 1
            prefill_ns, step_ns = self._prefill_ns(latency, count), self._step_ns(latency, count + held)
            side = Side(
                starts_ns, slowed_ns(prefill_ns, share, measured_share), slowed_ns(step_ns, share, measured_share)
            )
            if goes_off(waiting.steps, tau, side.ends_ns(waiting.steps), crowd.main_of(place)):
                chosen.append(waiting)
                bytes += more
        return chosen

    def _share_of(self, model: str, lane: Lane, board: Board) -> Tuple[float, float]:
        """The share of the processor that a side lane's threads would get now, and the one that they got when its
        times were measured: the times hold that already. The first times hold no load."""
        share = self._left[lane.name] = board.cpu_share(lane)
        measured = self._measured_share(model, lane, board)
        return share, 1.0 if measured is None else measured

    def _measured_share(self, model: str, lane: Lane, board: Board) -> float | None:
        """None where nothing was measured for so long that the times are the first ones."""
        at_ns, share = self._shares.get((model, lane.name), (0, 0.0))
        return share if share and board.now_ns - at_ns <= board.latency(model, lane.name).age_ns else None

    def _crowd(self, tasks: ModelTasks, count: int, mains: Sequence[Lane], board: Board) -> Crowd:
        """The main lanes, for which ``count`` tasks wait."""
        lane = min(mains, key=lambda item: item.available_ns(board.now_ns))
        latency = board.latency(tasks.model, lane.name)
        batch, mean_steps = self._batch_of(latency), tasks.predicted.mean()
        step_ns, prefill_ns = self._step_ns(latency, batch), self._prefill_ns(latency, batch)
        main = MainLane(float(lane.available_ns(board.now_ns)), step_ns, prefill_ns, count, batch, mean_steps)
        took_ns = self._took_ns.get(tasks.model, prefill_ns + 1.5 * mean_steps * step_ns)
        return Crowd(main, batch * len(mains), took_ns)

    # --- for people ---------------------------------------------------------------------------------------------------

    def figures(self) -> Mapping[str, Any]:
        return {
            "lengths": self._learnt.figures(),
            "sent to side lanes": self._sent_off,
            "tau": {model: self._tau_of(tasks) for model, tasks in self._models.items() if len(tasks.predicted)},
            "processor left to side lanes": dict(self._left),
            "batch_ms": {model: ns_to_ms(round(took_ns)) for model, took_ns in self._took_ns.items()},
        }
