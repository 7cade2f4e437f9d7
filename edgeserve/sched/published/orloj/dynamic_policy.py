"""The hooks of ``orloj`` that keep each model's queues and lengths up to date.

The two differ in which requests they give up and which batch they choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import give_up_late, look_at_bound
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Change, Options, Policy
from edgeserve.sched.published.orloj.model import DynamicModel, QueueKey
from edgeserve.sched.published.orloj.sampler import Sampler
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.model_cache import NEVER_NS
from edgeserve.units import ms_to_ns


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class DynamicOptions(PolicyOptions):
    """Options of ``orloj``."""

    window: int = option(512, "times alone that are remembered per class; fewer forget sooner, more know tails better")
    reset_ms: Number = option(0.0, "forget times alone after so many ms; 0: only by newer ones")
    learn: bool = option(True, "correct the profile's law per batch size by what batches take")
    sample: Number = option(0.1, "share of the jobs that is run again alone where lanes idle")
    budget: Number = option(0.02, "share of each lane's time for that; 0: only requests that ran alone anyway teach")


@mypyc_attr(allow_interpreted_subclasses=True)
class DynamicPolicy(Policy):
    """A policy that schedules by distributions of lengths; what differs is asked of :meth:`_hopeless_ns` and
    :meth:`_best_batch`.
    """

    options_type: ClassVar[Type[PolicyOptions]] = DynamicOptions
    lets_urgent_first: ClassVar[bool] = True

    from_batches: ClassVar[bool] = False
    """Whether batches teach lengths while few times alone are known."""

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, DynamicOptions)
        self._hint = self._length_hint()
        asked_by: Dict[str, List[str]] = {}
        for app in self.apps:
            for model in dict.fromkeys(node.model for node in app.nodes):
                asked_by.setdefault(model, []).append(app.name)
        self._models = {
            model: DynamicModel(
                model,
                names,
                window_len=own.window,
                reset_ns=ms_to_ns(own.reset_ms),
                hint=self._hint,
                learn=own.learn,
                from_batches=self.from_batches,
            )
            for model, names in asked_by.items()
        }
        self._sampler = Sampler(name, self.apps, share=own.sample, budget=own.budget)

    # --- what differs -------------------------------------------------------------------------------------------------

    def _length_hint(self) -> str:
        """The declared number that predicts a request's length, or ``""``."""
        return ""

    def _hopeless_ns(self, model: DynamicModel, queue_key: QueueKey, lane: Lane, board: Board) -> int:
        """A job of this queue that is due sooner than this after a lane is free is not worth running on it."""
        raise NotImplementedError

    def _best_batch(self, model: DynamicModel, lane: Lane, board: Board) -> Bid | None:
        """The batch of one model to run on a lane now."""
        raise NotImplementedError

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        self._models[job.node.model].add(job)
        self._sampler.on_ready(job, board)

    def on_gone(self, job: Job, board: Board) -> None:
        self._models[job.node.model].remove(job)

    def on_started(self, work: Work, board: Board) -> None:
        if work.probe is None:
            self._models[work.model].started(work, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        model = self._models[work.model]
        sample = self._sampler.finished(work, started_ns, finished_ns, board)
        if sample is not None:
            hint = sample.hints.get(self._hint) if self._hint else None
            model.observe(sample.lane, sample.app, hint, sample.alone_ns, board)
        if work.probe is None:
            model.ended(work, finished_ns - started_ns, board)

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        """A job that was given up ran alone after all: as a probe of it would."""
        if work.size == board.latency(work.model, work.lane.name).sizes[0] and not job.steps:
            hint = job.hints.get(self._hint) if self._hint else None
            self._models[work.model].observe(work.lane.name, job.request.app.name, hint, took_ns, board)

    def on_refused(self, work: Work, board: Board) -> None:
        self._models[work.model].lost(work)

    def on_lost(self, work: Work, board: Board) -> None:
        self._models[work.model].lost(work)

    def on_device(self, change: Change, board: Board) -> None:
        if change.lane:
            for model in self._models.values():
                model.lanes_changed()

    def plan(self, board: Board) -> None:
        """Drop what is not worth running on any lane, when a lane asks; make new tables when none does, also while no
        request is open."""
        self.is_idle = False
        for model in self._models.values():
            starts = board.starts(model.model) if model.queues else []
            if any(lane.accepts(board.now_ns) for lane, _, _, _ in starts):
                for queue_key in list(model.queues):
                    ends_ns = {
                        lane.name: starts_ns + self._hopeless_ns(model, queue_key, lane, board)
                        for lane, _, starts_ns, _ in starts
                    }
                    if queue_key in model.queues:
                        give_up_late(model.queues[queue_key], min(ends_ns.values()), board)
                    if model.has_steps and queue_key in model.queues:
                        look_at_bound(model.queues[queue_key], ends_ns, board)
            else:
                model.refresh(board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        bids = []
        for model in self._models.values():
            if model.queues and model.model in lane.models and board.is_resident(model.model, lane):
                bid = self._best_batch(model, lane, board)
                if bid is not None:
                    bids.append(bid)
        if len(bids) > 1:
            return arbiter.choose(bids, lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)
        return bids[0] if bids else self._sampler.offer(lane, board)

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """By the times of the job's own class of length: what :meth:`plan` judges by."""
        model = self._models[job.node.model] if job is not None else None
        queue_key = model.queue_key(job) if model is not None and job is not None else None
        if model is None or job is None or queue_key is None:
            return super().expected_end(request, job, board)
        best: ExpectedEnd | None = None
        behind_ns = request.deadline_ns - job.deadline_ns
        for lane, _, starts_ns, _ in board.starts(model.model):
            if starts_ns >= NEVER_NS or (job.lane and job.lane != lane.name):
                continue
            alone_ns = self._hopeless_ns(model, queue_key, lane, board) + behind_ns
            if best is None or starts_ns + alone_ns < board.now_ns + best.wait_ns + best.alone_ns:
                best = ExpectedEnd(lane.name, starts_ns - board.now_ns, alone_ns, starts_ns + alone_ns)
        return best

    def next_wakeup_ns(self, board: Board) -> int | None:
        return self._sampler.next_wakeup_ns(board)

    def figures(self) -> Mapping[str, Any]:
        """Per model: of the batches that were said to end by a time with 90 %, how many did (``covered`` of ``stated``,
        ``uncorrected`` by the model alone, ``recent`` the share of the last 200); samples that were measured; how each
        class takes alone; how many ``batches`` teach that where few are measured alone (0: enough are). Per lane, the
        ``probes`` and their share of its time."""
        models = {name: model.figures() for name, model in self._models.items()}
        sums = {
            key: sum([table["calibration"][key] for table in models.values()])
            for key in ("stated", "covered", "uncorrected")
        }
        return {"calibration": sums, "models": models, "probes": self._sampler.figures()}

    def queued(self) -> List[Job]:
        return [job for model in self._models.values() for job in model.jobs()]
