"""PARD: drop a request at the first module from which it can no longer be in time end to end (EuroSys '26).

Every model of the policy's apps is a module, every lane that may run it one of the module's workers. A worker has a
queue with two ends and a *forming batch*: the one that runs next. Before a job joins it, the request is judged
(``judge.py``) by when that batch starts, how long it takes, and what the state planner says of the modules behind
(``state_planner.py``). Which end of the queue goes first follows the load. As published (``pard``) the forming batch
opens when the one before it starts; ``pard+`` opens it shortly before that one ends, when nearly all is known.

A lane that serves several modules of this policy (a single device) has one worker for each; ``across`` says which of
them forms a batch, and it does so when the lane asks. Dropping in one branch of a graph drops the request, and its
other jobs leave their queues (``sched/core/request_manager.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, Dict, FrozenSet, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import bid_for, droppable
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option, other_default
from edgeserve.sched.policy_api.policy import Bid, Change, Options, Policy
from edgeserve.sched.published.common.background import must_yield
from edgeserve.sched.published.pard import rules
from edgeserve.sched.published.pard.judge import Judge
from edgeserve.sched.published.pard.plan import plan_sizes
from edgeserve.sched.published.pard.rules import NEVER, RULES
from edgeserve.sched.published.pard.siblings import Siblings
from edgeserve.sched.published.pard.state_planner import LoadFactor, Planner, models_of
from edgeserve.sched.published.pard.waits import Waits
from edgeserve.sched.published.pard.work import DeclaredWork
from edgeserve.sched.published.pard.worker import Worker, choose_worker, hindrance, is_usable, window_start
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DROPPED, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import PPM, ms_to_ns

PROACTIVE = "proactive"
"""Reason of a request that was given up before the module at which it could no longer be in time."""

OPTION_MAX = 2**31
"""The bound on numbers among the options, where nothing smaller is said."""

WAKES_MAX = 4096
"""Alarms kept for batches that form later; a bound for lanes whose plans change all the time."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class PardOptions(PolicyOptions):
    """Options of ``pard``."""

    rule: str = option("pard", "when to drop", one_of=[*RULES])
    order: str = option(
        "published", "which end of the queue goes first; published: as the rule was", one_of=rules.ORDERS
    )
    collect: str = option(
        "ahead", "when a batch forms: as the one before starts, or lead_ms before it ends", one_of=rules.COLLECTS
    )
    lead_ms: Number = option(5.0, "time to prepare a batch, ms", low=0, high=OPTION_MAX)
    across: str = option("round_robin", "which module goes next on a lane of several", one_of=rules.ACROSS)
    paths: str = option(
        "longest",
        "what counts of a fork with one successor of several, where the request does not say",
        one_of=rules.PATHS,
    )
    siblings: bool = option(False, "judge a branch by the latest of its request's branches")
    work: bool = option(False, "the work that requests declare counts: the hints NODE.work (or work) and NODE.steps")
    batch_times: str = option(
        "auto",
        "how long batches count as; auto: measured where a lane serves several modules, else full",
        one_of=rules.BATCH_TIMES,
    )
    lam: Number = option(0.1, "lambda, the quantile of the waits; larger drops more in good time", low=0, high=1)
    estimator: str = option(
        "uniform", "where the waits come from: 0 to a batch time, observed, or observed sums", one_of=rules.ESTIMATORS
    )
    samples: int = option(10_000, "draws behind the quantile", low=1, high=1_000_000)
    sync_ms: Number = option(1000.0, "how often the modules tell each other, ms", low=1, high=OPTION_MAX)
    window_ms: Number = option(5000.0, "how far the waiting times look back, ms", low=1, high=OPTION_MAX)
    hbf_from: Number = option(1.0, "load factor from which the most time left goes first", low=0, high=OPTION_MAX)
    lbf_from: Number = option(1.0, "load factor below which the least time left goes first", low=0, high=OPTION_MAX)
    recheck: bool = option(False, "judge the members of a batch once more when it starts")
    threshold_ms: Number = option(20.0, "rule oc: mean queueing that counts as overload, ms", low=0, high=OPTION_MAX)
    plan: Number = option(
        0.53,
        "share of the SLO that the batches of the longest path may take together; 0: no plan",
        low=0,
        high=OPTION_MAX,
    )
    batch_max: int = option(0, "the largest batch; 0: the largest profiled size", low=0, high=OPTION_MAX)
    seed: int = option(1, "of the draws", low=0, high=OPTION_MAX)


@mypyc_attr(allow_interpreted_subclasses=True)
class Pard(Policy):
    """``dropped`` counts the requests it gave up, ``expired`` those whose deadline passed in a queue, by model."""

    options_type: ClassVar[Type[PolicyOptions]] = PardOptions
    by_estimate: ClassVar[FrozenSet[str]] = frozenset((PROACTIVE,))

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, PardOptions)
        self._rule = RULES[own.rule]
        order = self._rule.order if own.order == "published" else own.order
        self._fifo = order == "fcfs"
        self._high = {"hbf": True, "lbf": False, "fcfs": False}.get(order)  # None = by the load
        self._ahead = own.collect == "ahead"
        self._across = own.across
        self._learns = own.paths == "expected"
        self._lead_ns = ms_to_ns(own.lead_ms)
        self._batch_max = own.batch_max or 2**31
        self._plan_ppm = round(own.plan * PPM)
        self._planned: Dict[str, int] = {}
        self._measured, self._measures_shared = own.batch_times == "measured", own.batch_times == "auto"
        self._recheck = own.recheck and self._rule.test != NEVER
        load = {model: LoadFactor(own.hbf_from, own.lbf_from, order == "instant") for model in models_of(self.apps)}
        columns = max([len(app.nodes) for app in self.apps] or [1])
        waits = Waits(
            own.estimator,
            own.lam,
            own.samples,
            columns,
            own.seed,
        )
        self._planner = Planner(
            self.apps,
            load,
            waits,
            self._rule.rest,
            period_ns=ms_to_ns(own.sync_ms),
            window_ns=ms_to_ns(own.window_ms),
            threshold_ns=ms_to_ns(own.threshold_ms),
            worst=self._rule.worst,
            expected=self._learns,
        )
        self._workers: Dict[str, List[Worker]] = {}  # by model, in the order of the lanes
        self._at_lane: Dict[str, List[Worker]] = {}  # in the order of the modules
        self._shared: List[Tuple[Lane, List[Worker]]] = []
        self._turn: Dict[str, int] = {}  # model -> the worker whose turn it is
        self._served: Dict[str, int] = {}  # lane of several modules -> the one served last
        self._home: Dict[int, Worker] = {}  # job.seq -> the worker that holds it
        self._counts_work = own.work
        siblings = Siblings(self.apps, self._planner, self._home) if own.siblings else None
        self._judge = Judge(
            self._rule,
            self.apps,
            self._planner,
            siblings=siblings,
            measured=self._measured,
            work=DeclaredWork(self.apps) if own.work else None,
            seed=own.seed + 1,
        )
        self._touched: Dict[int, Worker] = {}  # workers to look at in this step, and the ones that need it in each
        self._wakes: List[Tuple[int, int]] = []  # (when a batch begins to form, worker)
        self._by_number: List[Worker] = []
        self._apart: List[Worker] = []  # those of modules with lanes on several devices
        self._begun = False
        self._dropping = False
        self._expired_id = -1
        self.dropped: Dict[str, int] = dict.fromkeys(load, 0)
        self.expired: Dict[str, int] = dict.fromkeys(load, 0)

    # --- who comes, who goes ------------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        if not self._begun:
            self._begin(board)
        self._planner.modules[job.node.model].arrived += 1
        self._put(job, board)

    def on_gone(self, job: Job, board: Board) -> None:
        worker = self._home.pop(job.seq)
        worker.remove(job)
        self._touch(worker)
        request = job.request
        if (
            request.state == DROPPED
            and not self._dropping
            and request.deadline_ns <= board.now_ns
            and request.id != self._expired_id
        ):  # its other branches are not counted again
            self._expired_id = request.id
            self.expired[worker.module.model] += 1

    def on_started(self, work: Work, board: Board) -> None:
        worker = self._home[work.jobs[0].seq]
        for job in work.jobs:
            del self._home[job.seq]
            worker.remove(job)
        if worker.shared:
            self._served[work.lane.name] = worker.module.place
            if work.lane.accepts(board.now_ns):
                self._form_shared(work.lane, self._at_lane[work.lane.name], board)
        else:
            self._look_at(worker, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        if self._measured:
            self._planner.modules[work.model].ran(finished_ns, finished_ns - started_ns)
        self._touch_lane(work.lane)
        if self._learns:
            for job in work.jobs:
                if job.node.route_one:
                    self._planner.branches.observe(job)

    def on_refused(self, work: Work, board: Board) -> None:
        self._touch_lane(work.lane)

    def on_device(self, change: Change, board: Board) -> None:
        """Lanes came, went or changed speed: new times, and what waited for a lane that is gone goes elsewhere."""
        if not change.lane:
            return
        if not self._begun:
            self._begin(board)
        self._plan_sizes(board)
        self._renew_times(board)
        self._planner.renew()
        for worker in self._by_number:
            self._move_on(worker, board)
            self._touch(worker)

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        worker = self._home.get(job.seq) if job is not None else None
        if worker is None or job is None:
            return super().expected_end(request, job, board)
        return self._judge.expected_end(job, worker, worker.lane.available_ns(board.now_ns), board)

    def queued(self) -> List[Job]:
        return [job for worker in self._by_number for job in worker.jobs()]

    def _put(self, job: Job, board: Board) -> None:
        worker = self._dispatch(job, board)
        worker.queue.add(job.ready_ns if self._fifo else job.request.deadline_ns, job)
        self._home[job.seq] = worker
        self._touch(worker)

    def _dispatch(self, job: Job, board: Board) -> Worker:
        """The worker whose turn it is among the ones that could run a job soonest: lane up, model in memory."""
        workers = self._workers[job.node.model]
        if len(workers) == 1:
            return workers[0]
        if job.lane:
            return next(worker for worker in workers if worker.lane.name == job.lane)
        start = self._turn.get(job.node.model, 0)
        best, best_rank = workers[start % len(workers)], 3
        for step in range(len(workers)):
            worker = workers[(start + step) % len(workers)]
            rank = hindrance(worker, board)
            if rank < best_rank:
                best, best_rank = worker, rank
                if rank == 0:
                    break
        self._turn[job.node.model] = (best.turn + 1) % len(workers)
        return best

    def _move_on(self, worker: Worker, board: Board) -> None:
        """The requests that wait for a lane that is gone, or for a model that is in memory elsewhere (it may never be
        loaded here again: that one serves), goes to a worker that can run it sooner."""
        rank = hindrance(worker, board)
        if rank and any(hindrance(other, board) < rank for other in self._workers[worker.module.model]):
            for job in sorted([job for job in worker.jobs() if not job.lane], key=lambda job: job.seq):
                worker.remove(job)
                self._put(job, board)

    # --- once per step ------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        """Let every batch form that should, judging who joins it."""
        if not self._begun:
            self._begin(board)
        now = board.now_ns
        if now >= self._planner.due_ns:
            self._renew_times(board)
            self._planner.sync(now)
        while self._wakes and self._wakes[0][0] <= now:
            worker = self._by_number[heappop(self._wakes)[1]]
            worker.wakes_ns = 0
            self._touch(worker)
        for worker in self._apart:
            if worker.count():
                self._move_on(worker, board)
        waiting: List[Worker] = []
        while self._touched:
            worker = self._touched.pop(next(iter(self._touched)))
            if worker.shared or not worker.count():
                continue
            self._look_at(worker, board)
            if worker.count() and (
                not is_usable(worker.lane) or not worker.lane.works or worker.lane.works[0].policy is not self
            ):
                waiting.append(worker)  # no event will tell when it can go on
        for worker in waiting:
            self._touched[worker.number] = worker
        for lane, workers in self._shared:
            if lane.accepts(now):
                self._form_shared(lane, workers, board)

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        for worker in self._at_lane.get(lane.name, ()):
            if worker.forming and board.is_resident(worker.module.model, lane):
                jobs = list(worker.forming.values())
                latency = board.latency(worker.module.model, lane.name)
                size = latency.size_for[len(jobs)]
                return bid_for(jobs, size, latency.likely_ns[size], board)
        return None

    def next_wakeup_ns(self, board: Board) -> int | None:
        return self._wakes[0][0] if self._wakes else None

    def _look_at(self, worker: Worker, board: Board) -> None:
        """Let a worker's next batch form, if it is time."""
        lane, now = worker.lane, board.now_ns
        if not worker.count() or not is_usable(lane) or not board.is_resident(worker.module.model, lane):
            return
        starts_ns = lane.available_ns(now)
        if lane.works and not self._ahead:
            opens_ns = starts_ns - max(self._lead_ns, lane.ahead_ns)
            if now < opens_ns:
                if (not worker.wakes_ns or opens_ns < worker.wakes_ns) and len(self._wakes) < WAKES_MAX:
                    worker.wakes_ns = opens_ns
                    heappush(self._wakes, (opens_ns, worker.number))
                return
        if self._recheck and worker.forming and lane.accepts(now):
            for job in list(worker.forming.values()):
                if job.seq in worker.forming and droppable(job) and self._judge.is_late(job, worker, starts_ns, board):
                    self._drop(job, worker, starts_ns, board)
        self._fill(worker, starts_ns, board)

    def _form_shared(self, lane: Lane, workers: Sequence[Worker], board: Board) -> None:
        """A lane of several modules asks: the one whose turn it is by ``across`` forms a batch, the others' jobs stay
        in their queues."""
        if not is_usable(lane):
            return
        for worker in workers:
            for job in list(worker.forming.values()):
                worker.remove(job)
                worker.queue.add(job.ready_ns if self._fifo else job.request.deadline_ns, job)
        starts_ns = lane.available_ns(board.now_ns)
        while True:
            ready = [
                worker
                for worker in workers
                if worker.count()
                and board.is_resident(worker.module.model, lane)
                and not must_yield(worker.jobs(), lane, board)
            ]
            if not ready:
                return
            worker = choose_worker(self._across, ready, self._served.get(lane.name, -1), self._planner)
            self._fill(worker, starts_ns, board)
            if worker.forming:
                return

    # --- forming a batch ----------------------------------------------------------------------------------------------

    def _fill(self, worker: Worker, starts_ns: int, board: Board) -> None:
        """Take jobs from the queue into the forming batch, until it is full or the queue empty. Each is judged first;
        who cannot be in time is dropped, or, if answered late anyway, takes what place is left."""
        module, queue, forming = worker.module, worker.queue, worker.forming
        size = module.sizes[worker.lane.name]
        high = module.load.high if self._high is None else self._high
        if self._rule.scan:
            self._scan(worker, starts_ns, size - len(forming), board)
        while len(forming) < size:
            job = _oldest_of_largest(queue) if high else queue.head()
            if job is None:
                break
            if self._rule.test != NEVER and not self._rule.scan and self._judge.refuses(job, worker, starts_ns, board):
                self._give_way(job, worker, starts_ns, board)
            else:
                self._admit(job, worker, starts_ns, board)
        if high and self._rule.test != NEVER:  # else the hopeless fill the low end until their deadline
            job = queue.head()
            while job is not None and self._judge.is_late(job, worker, starts_ns, board):
                self._give_way(job, worker, starts_ns, board)
                job = queue.head()
        while worker.late and len(forming) < size:
            self._admit(next(iter(worker.late.values())), worker, starts_ns, board)

    def _scan(self, worker: Worker, starts_ns: int, places: int, board: Board) -> None:
        """Nexus: drop everything before the first window of a full batch in which no request is late."""
        waiting = sorted(worker.queue, key=lambda job: (job.ready_ns, job.seq)) if places > 0 else []
        late = [self._judge.is_late(job, worker, starts_ns, board) for job in waiting]
        for job in waiting[: window_start(late, places)]:
            if job.seq in self._home:
                self._give_way(job, worker, starts_ns, board)

    def _admit(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> None:
        worker.join(job)
        now = board.now_ns
        worker.module.admitted(now, now - job.ready_ns)
        self._planner.waits.observe(job.request.id, worker.module.model, starts_ns - now)

    def _give_way(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> None:
        """Drop a job that cannot be in time, or let it wait for a place that no other needs."""
        if droppable(job):
            self._drop(job, worker, starts_ns, board)
        else:
            worker.postpone(job)

    def _drop(self, job: Job, worker: Worker, starts_ns: int, board: Board) -> None:
        board.note(job.request, "before", job.node.name, "-", self._judge.why(job, worker, starts_ns, board))
        self._dropping = True
        board.abandon_branch(job, PROACTIVE)
        self._dropping = False
        if job.request.state == DROPPED:  # one that is answered in part may go on without this job
            self.dropped[worker.module.model] += 1

    # --- modules and workers ------------------------------------------------------------------------------------------

    def _begin(self, board: Board) -> None:
        """The first step: which lanes serve which modules, and how long their batches take."""
        self._begun = True
        for model, module in self._planner.modules.items():
            workers = self._workers[model] = []
            for lane in board.lanes_of(model):
                worker = Worker(len(self._by_number), len(workers), module, lane)
                workers.append(worker)
                self._by_number.append(worker)
                self._at_lane.setdefault(lane.name, []).append(worker)
                if self._counts_work:
                    board.latency(model, lane.name).learns_work = True
            if len({worker.lane.device for worker in workers}) > 1:
                self._apart += workers
        for lane in board.lanes:
            here = self._at_lane.get(lane.name, [])
            if len(here) > 1:
                self._shared.append((lane, here))
                for worker in here:
                    worker.shared = True
        if self._measures_shared and self._shared:
            self._measured = self._judge.measured = True
        self._plan_sizes(board)
        self._renew_times(board)
        self._planner.begin(board.now_ns)

    def _plan_sizes(self, board: Board) -> None:
        """The largest batches that leave room for waiting, by what batches take at the lanes' present speeds."""
        if self._plan_ppm:
            times: Dict[str, Dict[int, int]] = {}
            for model, workers in self._workers.items():
                known = [board.latency(model, worker.lane.name) for worker in workers]
                times[model] = (
                    {size: max([latency.likely_ns[size] for latency in known]) for size in known[0].sizes}
                    if known
                    else {1: 0}
                )
            self._planned = plan_sizes(self.apps, times, self._plan_ppm)

    def _renew_times(self, board: Board) -> None:
        for model, module in self._planner.modules.items():
            times_ns, fixed_ns, alone_ns, counted_ppm = {}, {}, {}, {}
            for worker in self._workers[model]:
                latency = board.latency(model, worker.lane.name)
                module.sizes[worker.lane.name] = min(
                    latency.size_max, self._batch_max, self._planned.get(model, latency.size_max)
                )
                times_ns[worker.lane.name] = latency.likely_ns[latency.size_for[module.sizes[worker.lane.name]]]
                fixed_ns[worker.lane.name] = latency.fixed_now_ns
                counted_ppm[worker.lane.name] = latency.declared_ppm
                alone_ns[worker.lane.name] = latency.alone_likely_ns
            up = [worker.lane.name for worker in self._workers[model] if is_usable(worker.lane)]
            module.set_times(times_ns, up, alone_ns if self._measured else None, fixed_ns, counted_ppm)

    def _touch(self, worker: Worker) -> None:
        self._touched[worker.number] = worker

    def _touch_lane(self, lane: Lane) -> None:
        for worker in self._at_lane.get(lane.name, ()):
            self._touched[worker.number] = worker


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class PardPlusOptions(PardOptions):
    """Options of ``pard+``."""

    collect: str = other_default(PardOptions, "collect", "just_in_time")
    hbf_from: Number = other_default(PardOptions, "hbf_from", 1.05)
    lbf_from: Number = other_default(PardOptions, "lbf_from", 1.05)
    recheck: bool = other_default(PardOptions, "recheck", True)
    samples: int = other_default(PardOptions, "samples", 1000)
    siblings: bool = other_default(PardOptions, "siblings", True)
    work: bool = other_default(PardOptions, "work", True)


@mypyc_attr(allow_interpreted_subclasses=True)
class PardPlus(Pard):
    """PARD with its batches collected just in time (section 9.1 of the specification), an order that turns to the most
    time left only when the load clearly exceeds the lanes, a second look at a batch when it starts, branches judged by
    the latest of their request, and the work that requests declare (section 9.2)."""

    options_type: ClassVar[Type[PolicyOptions]] = PardPlusOptions


def _oldest_of_largest(queue: JobQueue) -> Job | None:
    """The job of the largest key, the oldest of several with that key, or None. O(log n)."""
    rows = queue.rows
    return rows[queue.position(rows[-1][0])][2] if rows else None
