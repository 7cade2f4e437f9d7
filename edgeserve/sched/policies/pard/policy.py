"""PARD: drop a request at the first module from which it can no longer be in time end to end (EuroSys '26).

Every model of the policy's apps is a module, every lane that may run it one of the module's workers. A worker has a
queue with two ends and a *forming batch*: the one that runs next. Before a job joins it, the request is judged
(``judge.py``) by when that batch starts, how long it takes, and what the state planner says of the modules behind
(``state.py``). Which end of the queue goes first follows the load. As published (``pard``) the forming batch opens
when the one before it starts; ``pard+`` opens it shortly before that one ends, when nearly all is known.

A lane that serves several modules of this policy (a single device) has one worker for each; ``across`` says which of
them forms a batch, and it does so when the lane asks. Dropping in one branch of a graph drops the request, and its
other jobs leave their queues (``sched/core/request_manager.py``).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import ClassVar, Dict, FrozenSet, List, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError, nearest
from edgeserve.sched.policies.common.bidding import bid_for, droppable, must_yield
from edgeserve.sched.policies.pard import rules
from edgeserve.sched.policies.pard.judge import Judge
from edgeserve.sched.policies.pard.plan import plan_sizes
from edgeserve.sched.policies.pard.rules import NEVER, RULES
from edgeserve.sched.policies.pard.siblings import Siblings
from edgeserve.sched.policies.pard.state import LoadFactor, Planner, models_of
from edgeserve.sched.policies.pard.waits import PPM, Waits
from edgeserve.sched.policies.pard.work import DeclaredWork
from edgeserve.sched.policies.pard.worker import Worker, choose_worker, hindrance, is_usable, window_start
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.policy import Bid, Change, Options, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DROPPED, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import ms_to_ns

PROACTIVE = "proactive"
"""Reason of a request that was given up before the module at which it could no longer be in time."""

OPTION_MAX = 2.0**31
"""What no number among the options exceeds, where nothing smaller is said."""

WAKES_MAX = 4096
"""Alarms kept for batches that form later; a bound for lanes whose plans change all the time."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Pard(Policy):
    """Options: ``rule`` (when to drop), ``order`` (which end of the queue goes first),
    ``collect`` (when a batch forms), ``lead_ms`` (just in time: so long before the lane is free), ``across`` (which
    module goes next on a lane of several), ``paths`` (what counts of a fork that chooses one branch, where the request
    does not say which), ``siblings`` (judge a branch by the latest of the request's branches), ``work`` (what requests
    declare of their work counts), ``batch_times`` (batches count as full, or as those that run; auto: as
    those that run where modules share a lane), ``lam``,
    ``estimator``, ``samples`` (the quantile of the waits), ``sync_ms``, ``window_ms`` (the planner's period, its
    window), ``hbf_from``, ``lbf_from`` (load factors between which the order stays), ``recheck`` (judge a formed batch
    again when it starts), ``threshold_ms`` (rule oc: queueing that counts as overload), ``plan`` (the largest batches
    take this share of the SLO together; 0 = any), ``batch_max`` (0 = the largest profiled size), ``seed``.

    ``dropped`` counts the requests it gave up, ``expired`` those whose deadline passed in a queue, by model.
    """

    defaults: ClassVar[Options] = {
        "rule": "pard",
        "order": "published",
        "collect": "ahead",
        "lead_ms": 5.0,
        "across": "round_robin",
        "paths": "longest",
        "siblings": False,
        "work": False,
        "batch_times": "auto",
        "lam": 0.1,
        "estimator": "uniform",
        "samples": 10_000,
        "sync_ms": 1000.0,
        "window_ms": 5000.0,
        "hbf_from": 1.0,
        "lbf_from": 1.0,
        "recheck": False,
        "threshold_ms": 20.0,
        "plan": 0.53,
        "batch_max": 0,
        "seed": 1,
    }
    by_estimate: ClassVar[FrozenSet[str]] = frozenset((PROACTIVE,))

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._rule = RULES[self._one_of("rule", tuple(RULES))]
        order = self._one_of("order", rules.ORDERS)
        order = self._rule.order if order == "published" else order
        self._fifo = order == "fcfs"
        self._high = {"hbf": True, "lbf": False, "fcfs": False}.get(order)  # None = by the load
        self._ahead = self._one_of("collect", rules.COLLECTS) == "ahead"
        self._across = self._one_of("across", rules.ACROSS)
        self._learns = self._one_of("paths", rules.PATHS) == "expected"
        self._lead_ns = self._ns("lead_ms", 0.0)
        self._batch_max = self._whole("batch_max", 0) or 2**31
        self._plan_ppm = round(self._number("plan", 0.0, OPTION_MAX) * PPM)
        self._planned: Dict[str, int] = {}
        batch_times = self._one_of("batch_times", rules.BATCH_TIMES)
        self._measured, self._measures_shared = batch_times == "measured", batch_times == "auto"
        self._recheck = bool(self.options["recheck"]) and self._rule.test != NEVER
        seed = self._whole("seed", 0)
        rising_from, falling_from = self._number("hbf_from", 0.0, OPTION_MAX), self._number("lbf_from", 0.0, OPTION_MAX)
        load = {model: LoadFactor(rising_from, falling_from, order == "instant") for model in models_of(self.apps)}
        columns = max([len(app.nodes) for app in self.apps] or [1])
        waits = Waits(
            self._one_of("estimator", rules.ESTIMATORS),
            self._number("lam", 0.0, 1.0),
            self._whole("samples", 1, 1_000_000),
            columns,
            seed,
        )
        self._planner = Planner(
            self.apps,
            load,
            waits,
            self._rule.rest,
            period_ns=self._ns("sync_ms", 1.0),
            window_ns=self._ns("window_ms", 1.0),
            threshold_ns=self._ns("threshold_ms", 0.0),
            worst=self._rule.worst,
            expected=self._learns,
        )
        self._workers: Dict[str, List[Worker]] = {}  # by model, in the order of the lanes
        self._at_lane: Dict[str, List[Worker]] = {}  # in the order of the modules
        self._shared: List[Tuple[Lane, List[Worker]]] = []
        self._turn: Dict[str, int] = {}  # model -> the worker whose turn it is
        self._served: Dict[str, int] = {}  # lane of several modules -> the one served last
        self._home: Dict[int, Worker] = {}  # job.seq -> the worker that holds it
        siblings = Siblings(self.apps, self._planner, self._home) if self.options["siblings"] else None
        self._judge = Judge(
            self._rule,
            self.apps,
            self._planner,
            siblings=siblings,
            measured=self._measured,
            work=DeclaredWork(self.apps) if self.options["work"] else None,
            seed=seed + 1,
        )
        self._touched: Dict[int, Worker] = {}  # workers to look at in this step, and those that need it in each
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
        """The worker whose turn it is, of those that could run the job soonest: its lane up, its model in memory."""
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
        """What waits for a lane that is gone, or for a model that is in memory elsewhere (it may never be loaded here
        again: that one serves), goes to a worker that can run it sooner."""
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
                waiting.append(worker)  # nobody will say when it can go on
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
            job = queue.high() if high else queue.low()
            if job is None:
                break
            if self._rule.test != NEVER and not self._rule.scan and self._judge.refuses(job, worker, starts_ns, board):
                self._give_way(job, worker, starts_ns, board)
            else:
                self._admit(job, worker, starts_ns, board)
        if high and self._rule.test != NEVER:  # else the hopeless fill the low end until their deadline
            job = queue.low()
            while job is not None and self._judge.is_late(job, worker, starts_ns, board):
                self._give_way(job, worker, starts_ns, board)
                job = queue.low()
        while worker.late and len(forming) < size:
            self._admit(next(iter(worker.late.values())), worker, starts_ns, board)

    def _scan(self, worker: Worker, starts_ns: int, places: int, board: Board) -> None:
        """Nexus: drop everything before the first window of a full batch in which nobody is late."""
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
        """It cannot be in time: drop it, or let it wait for a place that nobody else needs."""
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
                if self.options["work"]:
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
            times_ns, fixed_ns, alone_ns = {}, {}, {}
            for worker in self._workers[model]:
                latency = board.latency(model, worker.lane.name)
                module.sizes[worker.lane.name] = min(
                    latency.size_max, self._batch_max, self._planned.get(model, latency.size_max)
                )
                times_ns[worker.lane.name] = latency.likely_ns[latency.size_for[module.sizes[worker.lane.name]]]
                fixed_ns[worker.lane.name] = latency.fixed_now_ns
                alone_ns[worker.lane.name] = latency.alone_likely_ns
            up = [worker.lane.name for worker in self._workers[model] if is_usable(worker.lane)]
            module.set_times(times_ns, up, alone_ns if self._measured else None, fixed_ns)

    def _touch(self, worker: Worker) -> None:
        self._touched[worker.number] = worker

    def _touch_lane(self, lane: Lane) -> None:
        for worker in self._at_lane.get(lane.name, ()):
            self._touched[worker.number] = worker

    # --- options ------------------------------------------------------------------------------------------------------

    def _one_of(self, option: str, known: Sequence[str]) -> str:
        value = str(self.options[option])
        if value not in known:
            names = ", ".join(repr(item) for item in known)
            raise ConfigError(
                f"[policy.{self.name}] {option} = {value!r} does not exist{nearest(value, known)}; take one of {names}"
            )
        return value

    def _number(self, option: str, low: float, high: float) -> float:
        value = float(str(self.options[option]))
        if not low <= value <= high:
            raise ConfigError(f"[policy.{self.name}] {option} = {value:g}: expected a number from {low:g} to {high:g}")
        return value

    def _whole(self, option: str, low: int, high: int = int(OPTION_MAX)) -> int:
        return int(self._number(option, low, high))

    def _ns(self, option: str, low_ms: float) -> int:
        return ms_to_ns(self._number(option, low_ms, OPTION_MAX))


@mypyc_attr(allow_interpreted_subclasses=True)
class PardPlus(Pard):
    """PARD with its batches collected just in time (section 9.1 of the specification), an order that turns to the most
    time left only when the load clearly exceeds the lanes, a second look at a batch when it starts, branches judged by
    the latest of their request, and the work that requests declare (section 9.2)."""

    defaults: ClassVar[Options] = {
        **Pard.defaults,
        "collect": "just_in_time",
        "hbf_from": 1.05,
        "lbf_from": 1.05,
        "recheck": True,
        "samples": 1000,
        "siblings": True,
        "work": True,
    }
