"""``rtlm``: static batches, in the order of priority, of answers about equally long (RT-LM, Sections IV and V).

A batch goes on until all its answers are whole; the next one begins then. Where the engine answers each sequence when
it ends, so does this policy's batch (early exit), but nobody is admitted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Final, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options
from edgeserve.sched.published.rtlm.consolidation import RULES, consolidate, window_len
from edgeserve.sched.published.rtlm.language_policy import (
    KEEP,
    PREFILL_STEPS,
    STEPS,
    TAU_SHARE,
    LanguageOptions,
    LanguagePolicy,
)
from edgeserve.sched.published.rtlm.offload import Crowd, Main
from edgeserve.sched.published.rtlm.priority import BY_ORDER, METHODS, ORDERS, Key, PriorityParameters
from edgeserve.sched.published.rtlm.queues import Learnt, ModelTasks, Waiting, declared
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS, ns_to_ms

OFFLOAD: Final[Tuple[str, ...]] = ("conditional", "static", "none")


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class RtlmOptions(LanguageOptions):
    """Options of ``rtlm``, under the names of the paper (RT-LM, sections IV and V)."""

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
    correct: bool = option(False, "correct declared lengths by those of finished answers")


@mypyc_attr(allow_interpreted_subclasses=True)
class Rtlm(LanguagePolicy):
    """As published."""

    options_type: ClassVar[Type[PolicyOptions]] = RtlmOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, RtlmOptions)
        method = METHODS[own.method]
        self._own_options = own
        self._order = own.order or method[0]
        self._rule = own.consolidation or method[1]
        self._offload = own.offload or method[2]
        self._learnt = Learnt(own.correct, own.steps)
        self._prefill_milli = round(1000 * own.prefill_steps)
        self._xi_ns = round(own.xi_ms * NS_PER_MS)
        self._gathered: Dict[int, Tuple[int, Job]] = {}  # job's number -> when it becomes visible
        self._took_ns: Dict[str, float] = {}  # mean duration of a model's batches on main lanes

    # --- requests are gathered ----------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        visible_ns = -(-board.now_ns // self._xi_ns) * self._xi_ns if self._xi_ns else 0
        if visible_ns > board.now_ns and not job.steps and not job.lane:
            self._gathered[job.seq] = (visible_ns, job)
        else:
            super().on_ready(job, board)

    def on_gone(self, job: Job, board: Board) -> None:
        if self._gathered.pop(job.seq, None) is None:
            super().on_gone(job, board)

    def plan(self, board: Board) -> None:
        for seq in [seq for seq, (at_ns, _) in self._gathered.items() if at_ns <= board.now_ns]:
            super().on_ready(self._gathered.pop(seq)[1], board)
        super().plan(board)

    def next_wakeup_ns(self, board: Board) -> int | None:
        return min([at_ns for at_ns, _ in self._gathered.values()], default=None)

    def queued(self) -> List[Job]:
        return super().queued() + [job for _, job in self._gathered.values()]

    # --- the order ----------------------------------------------------------------------------------------------------

    def _due_ns(self, job: Job) -> int:
        tokens = declared(job, "tokens") if self._own_options.phi_ms else None
        if tokens is None:
            return super()._due_ns(job)
        return job.request.arrival_ns + round(self._own_options.phi_ms * NS_PER_MS * max(0.0, tokens))

    def _tau_of(self, tasks: ModelTasks) -> float:
        return self._own_options.tau or max(1.0, tasks.predicted.quantile(self._own_options.k))

    def _keys(self, found: List[Waiting], tasks: ModelTasks, step_ns: float, board: Board) -> List[Key]:
        own = self._own_options
        parameters = PriorityParameters(board.now_ns, own.eta_ms * NS_PER_MS or step_ns, self._tau_of(tasks), own.alpha)
        key_of = BY_ORDER[self._order]
        return [key_of(waiting.task, parameters) for waiting in found]

    # --- batches ------------------------------------------------------------------------------------------------------

    def _batch_of(self, latency: BatchTime) -> int:
        if self._own_options.batch:
            return min(self._own_options.batch, latency.size_max)
        return super()._batch_of(latency)

    def _batch(self, tasks: ModelTasks, lane: Lane, board: Board) -> Bid | None:
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

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        super().on_finished(work, started_ns, finished_ns, board)
        if not work.failed and not self._is_side(work.model, work.lane, board):
            took_ns = float(finished_ns - started_ns)
            self._took_ns[work.model] = KEEP * self._took_ns.get(work.model, took_ns) + (1.0 - KEEP) * took_ns

    # --- offloading ---------------------------------------------------------------------------------------------------

    def _fresh_for(self, tasks: ModelTasks, lane: Lane, board: Board, count: int = 0) -> List[Waiting]:
        is_side = self._is_side(tasks.model, lane, board)
        if self._offload == "conditional" or (is_side and not self._main_lanes(tasks.model, board)):
            return super()._fresh_for(tasks, lane, board, count)
        fresh = list(tasks.fresh.values())
        if self._offload == "none":
            return [] if is_side else self._sorted(tasks, fresh, lane, board, count)
        tau = self._tau_of(tasks)
        if is_side or self._side_is_up(tasks.model, board):
            fresh = [waiting for waiting in fresh if (waiting.steps > tau) == is_side]
        return self._sorted(tasks, fresh, lane, board, count)

    def _side_is_up(self, model: str, board: Board) -> bool:
        return any(
            lane.up and not lane.hung and self._is_side(model, lane, board) and board.is_resident(model, lane)
            for lane in board.lanes_of(model)
        )

    def _crowd(self, tasks: ModelTasks, fresh: List[Waiting], mains: Sequence[Lane], board: Board) -> Crowd:
        lane = min(mains, key=lambda item: item.available_ns(board.now_ns))
        latency = board.latency(tasks.model, lane.name)
        batch, mean_steps = self._batch_of(latency), tasks.predicted.mean()
        step_ns, prefill_ns = self._step_ns(latency, batch), self._prefill_ns(latency, batch)
        main = Main(float(lane.available_ns(board.now_ns)), step_ns, prefill_ns, len(fresh), batch, mean_steps)
        took_ns = self._took_ns.get(tasks.model, prefill_ns + 1.5 * mean_steps * step_ns)
        return Crowd(main, batch * len(mains), took_ns)

    def _main(self, crowd: Crowd, place: int, ahead_steps: float) -> Main:
        return crowd.main_from(crowd.main.begins_ns + place // crowd.slots * crowd.took_ns)

    def figures(self) -> Mapping[str, Any]:
        took = {model: ns_to_ms(round(took_ns)) for model, took_ns in self._took_ns.items()}
        return {**super().figures(), "batch_ms": took}
