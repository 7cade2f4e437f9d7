"""Orloj: execution time as a distribution ("Predictably Serving Unpredictable DNNs"; the sections are its own).

Algorithm 1 as published. For each supported batch size, those requests that would be in time by the expected time of a
batch of that size form its feasible set; a request in none is dropped. One size is chosen, and the requests of highest
priority score (``sched/published/orloj/slack.py``) go. Work-conserving: it never waits for a fuller batch.

What the paper leaves open is an option, with the reading that reproduces its tables as the default:

* ``reading``: Algorithm 1, line 16. ``"largest"``: the largest size that can be filled (sizes in descending order of
  earliest deadline and size); ``"urgent"``: the largest size that the most urgent request can still be in (the text);
  ``"single"``: ascending order, which always ends at one request.
* ``estimate``: whose batch latency. ``"own"``: a request's own class once and any classes for the others; ``"common"``:
  any classes for all (section 4.3).

Milestones and the base time of section 4.4 are not needed, since scores are functions of the slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError
from edgeserve.sched.policies.common.bidding import give_up_late, look_at_bound
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Change, Options, Policy
from edgeserve.sched.published.common.orders import choose
from edgeserve.sched.published.orloj.lengths import Lengths
from edgeserve.sched.published.orloj.likely import likely_bid
from edgeserve.sched.published.orloj.model import DynamicModel, QueueKey
from edgeserve.sched.published.orloj.sampler import Sampler
from edgeserve.sched.published.orloj.slack import SlackScore, score_of, top
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.placement import NEVER_NS
from edgeserve.units import NS_PER_MS, ms_to_ns

READINGS = ("largest", "urgent", "single")
ESTIMATES = ("own", "common")

DELAY_NS = 10_000 * NS_PER_MS
"""Mean 1/b of the delay of what is not chosen: insensitive over five orders of magnitude."""


class ModelJobs:
    """A table for the scheduler, per size: expected batch time and score of each class. Made off the critical path,
    class by class when one is first met."""

    __slots__ = ("lengths", "sizes", "_own", "_rate", "_expected", "_scores")

    def __init__(self, lengths: Lengths, sizes: Sequence[int], own: bool, rate_per_ns: float) -> None:
        self.lengths = lengths
        self.sizes = tuple(sizes)
        self._own = own
        self._rate = rate_per_ns
        self._expected: Dict[Tuple[str, int], int] = {}
        self._scores: Dict[Tuple[str, int, float], SlackScore] = {}
        for name in lengths.known:
            for size in self.sizes:
                self.expected_ns(name, size)
                self.score(name, size, 1.0)

    def expected_ns(self, name: str, size: int) -> int:
        """E[L_B] of a class in a batch of ``size``, rounded up."""
        found = self._expected.get((name, size))
        if found is None:
            known = self.lengths.expected(name if self._own else None, size, size)
            found = self._expected[name, size] = int(-(-known.mean_ns() // 1))
        return found

    def score(self, name: str, size: int, cost: float) -> SlackScore:
        """The priority score of a class in a batch of ``size``."""
        found = self._scores.get((name, size, cost))
        if found is None:
            found = self._scores[name, size, cost] = score_of(
                self.lengths, name if self._own else None, size, size, self._rate, cost
            )
        return found


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class OrlojOptions(PolicyOptions):
    """Options of ``orloj``; what the paper leaves open has the reading that reproduces its tables."""

    window: int = option(512, "times alone that are remembered per class; fewer forget sooner, more know tails better")
    learn: bool = option(True, "correct the profile's law per batch size by what batches take")
    sample: Number = option(0.1, "share of the jobs that is run again alone where lanes idle")
    budget: Number = option(0.02, "share of each lane's time for that; 0: only requests that ran alone anyway teach")
    reading: str = option("largest", "line 16 of Algorithm 1: which size is chosen", one_of=READINGS)
    estimate: str = option(
        "own",
        "batch times with the request's own class in them, or one distribution for all (section 4.3)",
        one_of=ESTIMATES,
    )
    cost_steps: Tuple[Any, ...] = option(
        (), "[[50, 0.3]]: an answer later than 50 ms after arrival costs 0.3 of a missed deadline (Appendix B)"
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class Orloj(Policy):
    """Algorithm 1 as published."""

    options_type: ClassVar[Type[PolicyOptions]] = OrlojOptions
    lets_urgent_first: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, OrlojOptions)
        self._reading = own.reading
        self._own = own.estimate == "own"
        self._rate = 1.0 / DELAY_NS
        self._steps = _cost_steps(name, own.cost_steps)
        self._tables: Dict[Tuple[str, str], ModelJobs] = {}
        asked_by: Dict[str, List[str]] = {}
        for app in self.apps:
            for model in dict.fromkeys(node.model for node in app.nodes):
                asked_by.setdefault(model, []).append(app.name)
        self._models = {
            model: DynamicModel(model, names, window_len=own.window, learn=own.learn)
            for model, names in asked_by.items()
        }
        self._sampler = Sampler(name, self.apps, share=own.sample, budget=own.budget)

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
        if sample is not None and not work.rested:
            model.observe(sample.lane, sample.app, sample.alone_ns, board)
        if work.rested:
            model.lost(work)
        elif work.probe is None:
            model.ended(work, finished_ns - started_ns, board)

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        """A job that was given up ran alone after all: as a probe of it would."""
        if work.size == board.latency(work.model, work.lane.name).sizes[0] and not job.steps and not work.rested:
            self._models[work.model].observe(work.lane.name, job.request.app.name, took_ns, board)

    def on_refused(self, work: Work, board: Board) -> None:
        self._models[work.model].lost(work)

    def on_lost(self, work: Work, board: Board) -> None:
        self._models[work.model].lost(work)

    def on_device(self, change: Change, board: Board) -> None:
        if change.lane:
            for model in self._models.values():
                model.lanes_changed()

    def plan(self, board: Board) -> None:
        """Drop jobs that are not worth running on any lane, when a lane asks; make new tables when none does, also
        while no request is open."""
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
            return choose(bids, lane.available_ns(board.now_ns), lane.dispatch_gap.careful_ns)
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
        ``uncorrected`` by the model alone, ``recent`` the share of the last 200); samples that were measured; how long
        each class takes alone. Per lane, the ``probes`` and their share of its time."""
        models = {name: model.figures() for name, model in self._models.items()}
        sums = {
            key: sum([table["calibration"][key] for table in models.values()])
            for key in ("stated", "covered", "uncorrected")
        }
        return {"calibration": sums, "models": models, "probes": self._sampler.figures()}

    def queued(self) -> List[Job]:
        return [job for model in self._models.values() for job in model.jobs()]

    # --- Algorithm 1 --------------------------------------------------------------------------------------------------

    def _hopeless_ns(self, model: DynamicModel, queue_key: QueueKey, lane: Lane, board: Board) -> int:
        """A request of this queue that is due sooner than this after the lane is free is in no feasible set, and is
        timed out. The sets are nested, so that of the smallest size decides."""
        smallest = board.latency(model.model, lane.name).sizes[0]
        return self._table(model, lane, board).expected_ns(queue_key.app, smallest)

    def _best_batch(self, model: DynamicModel, lane: Lane, board: Board) -> Bid | None:
        """Algorithm 1, lines 15 to 19. O(sizes * classes * log n), and the top of one size."""
        starts_ns = lane.available_ns(board.now_ns)
        table = self._table(model, lane, board)
        candidates: List[Tuple[int, int]] = []  # (earliest deadline in the set, size)
        positions: Dict[int, List[Tuple[QueueKey, JobQueue, int]]] = {}
        for size in table.sizes:
            count, earliest = 0, 0
            rows = []
            for queue_key, queue in model.queues.items():
                first = queue.position(starts_ns + table.expected_ns(queue_key.app, size))
                if first < len(queue.rows):
                    count += len(queue.rows) - first
                    earliest = min(earliest, queue.rows[first][0]) if earliest else queue.rows[first][0]
                    rows.append((queue_key, queue, first))
            if count < size and size > table.sizes[0]:
                break  # larger sizes hold fewer still
            if rows:
                positions[size] = rows
                candidates.append((earliest, size))
        if not candidates:
            return None
        size = self._choose(candidates)
        jobs = self._top(table, positions[size], starts_ns, size, lane.name)
        if not jobs:
            return None
        runs_as = board.latency(model.model, lane.name).size_for[len(jobs)]
        known = table.lengths.batch(runs_as, tuple(sorted([job.request.app.name for job in jobs])))
        return likely_bid(jobs, runs_as, known, board)

    def _choose(self, candidates: List[Tuple[int, int]]) -> int:
        if self._reading == "largest":
            return max(candidates)[1]
        if self._reading == "urgent":
            return min(candidates, key=lambda item: (item[0], -item[1]))[1]
        return min(candidates)[1]

    def _top(
        self, table: ModelJobs, rows: Sequence[Tuple[QueueKey, JobQueue, int]], starts_ns: int, size: int, lane: str
    ) -> List[Job]:
        """The jobs of highest score, critical ones before normal ones before background."""
        jobs: List[Job] = []
        for rank in sorted({queue_key.rank for queue_key, _, _ in rows}):
            of_rank = [
                (queue, table.score(queue_key.app, size, queue_key.value), first)
                for queue_key, queue, first in rows
                if queue_key.rank == rank
            ]
            best = self._top_by_steps if self._steps else top
            jobs += best(of_rank, starts_ns, size - len(jobs), lane)
            if len(jobs) == size:
                break
        return jobs

    def _top_by_steps(
        self, queues: Sequence[Tuple[JobQueue, SlackScore, int]], starts_ns: int, count: int, lane: str
    ) -> List[Job]:
        """The score with several deadlines is the sum of one per step (Appendix B), which depends on the arrival too:
        every job is looked at."""
        scored = []
        for queue, score, first in queues:
            for key, seq, job in queue.rows[first:]:
                if job.lane in ("", lane):
                    total, rest = 0.0, 1.0
                    for after_ns, cost in self._steps:
                        due_ns = job.request.arrival_ns + after_ns
                        if due_ns < key:
                            total += cost * score.p(due_ns - starts_ns)
                            rest -= cost
                    scored.append((-(total + rest * score.p(key - starts_ns)), key, seq, job))
        return [row[3] for row in nsmallest(count, scored)]

    def _table(self, model: DynamicModel, lane: Lane, board: Board) -> ModelJobs:
        lengths = model.lengths(lane.name, board)
        found = self._tables.get((model.model, lane.name))
        if found is None or found.lengths is not lengths:
            sizes = board.latency(model.model, lane.name).sizes
            found = self._tables[model.model, lane.name] = ModelJobs(lengths, sizes, self._own, self._rate)
        return found


def _cost_steps(policy: str, rows: Sequence[Any]) -> Tuple[Tuple[int, float], ...]:
    """``[[ms, cost], ...]``, each cost the share of a missed deadline that being later than this adds."""
    steps = []
    for row in rows:
        if not (
            isinstance(row, (list, tuple))
            and len(row) == 2
            and all(isinstance(item, (int, float)) for item in row)
            and row[0] > 0
            and row[1] > 0
        ):
            raise ConfigError(
                f"[policy.{policy}] cost_steps has {row!r}: expected [milliseconds after arrival, cost], both above 0"
            )
        steps.append((ms_to_ns(float(row[0])), float(row[1])))
    total = sum([cost for _, cost in steps])
    if total > 1.0:
        raise ConfigError(f"[policy.{policy}] cost_steps add up to {total}: at most 1, the cost of a missed deadline")
    return tuple(sorted(steps))
