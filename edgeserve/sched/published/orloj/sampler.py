"""Which jobs a policy has run again alone, so that it learns how long each app's inputs take: the online profiler.

Orloj (section 5 of the paper) samples finished requests and runs them again off the critical path. Here jobs are drawn
when they become ready, before anything about them is known: among finished jobs, or jobs in time, the long ones are
missing, since they are the ones that are dropped while they wait. Their inputs are retained however they end
(``sched/core/experiments.py``, which also sees to it that a probe delays no request).

A policy owns one :class:`Sampler` and calls ``on_ready``, ``finished`` and ``next_wakeup_ns`` from its hooks
``on_ready``, ``on_finished`` and ``next_wakeup_ns``, and ``offer`` when it has nothing else to bid. Of a probe a policy
hears only through ``on_finished``, with ``work.probe`` set and no jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple
from zlib import crc32

from edgeserve.sched.policies.common.bidding import bid_to_measure
from edgeserve.sched.policies.common.draws import mixed
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import DONE, GONE, JOB_FAILED, Job, steps_left
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_S, PPM, ns_to_ms

if TYPE_CHECKING:
    from edgeserve.sched.policy_api.board import Board

BUDGET_DEPTH_NS = NS_PER_S
"""The time for which a lane's unused budget adds up: lanes that idle rarely may probe a few times in a row when they
do."""


class Sample(NamedTuple):
    """The time that one job took alone, in the smallest batch size of its model, on ``lane`` at its present speed.
    ``hints`` are what was known of the job when it was made. ``probed`` is False where it ran alone by itself."""

    app: str
    node: str
    hints: Mapping[str, float]
    alone_ns: int
    lane: str
    probed: bool


class Sampler:
    """Draws jobs, keeps their inputs, offers probes and says what came of them.

    ``share`` of the ready jobs is drawn, all alike, also jobs that will be dropped; no job with a stream's state
    or with steps, whose time alone is not one number. ``budget`` is the share of each lane's time that probes may
    take. At most ``retained_max`` inputs of a model are retained at a time; while so many are, no others: dropping
    the oldest instead would favour jobs that happen to run alone before they are dropped, whereas now each job that
    is retained gives its sample, if its lane lives. Integers only, so that decisions are the same on every Python.

    A drawn job that ran alone by itself gives its sample at once, and its inputs are let go of. Where a probe could
    never start (``Board.can_probe``: its app's deadline is too tight), those are the only samples there are.
    """

    def __init__(
        self,
        name: str,
        apps: Sequence[App],
        *,
        share: float = 0.05,
        budget: float = 0.02,
        retained_max: int = 8,
        seed: int = 0,
    ) -> None:
        if not 0 <= share <= 1 or not 0 <= budget <= 1:
            raise ValueError(f"policy {name!r}: sample share {share} and budget {budget} must be between 0 and 1")
        self._draw_below = round(share * 2**32)
        self._salt = crc32(f"{seed}/sampler/{name}".encode())
        self._budget_ppm = round(budget * PPM)
        self._retained_max = retained_max if self._budget_ppm else 0
        self._retained: Dict[str, List[Job]] = {node.model: [] for app in apps for node in app.nodes}
        self._stepwise: Set[str] = set()  # models that returned unfinished jobs
        self._unused: Dict[str, Tuple[int, int]] = {}  # lane -> (lane time left in ns * PPM, as of)
        self._spent: Dict[str, Tuple[int, int]] = {}  # lane -> (probes, their lane time in ns)
        self._first_ns = -1
        self._seen_ns = 0

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        """A job is ready: draw whether it is sampled, and if so have its inputs retained."""
        if not self._is_drawn(job) or job.launched_ns or board.is_retained(job):
            return
        model = job.node.model
        retained = self._retained[model] = [other for other in self._retained[model] if board.is_retained(other)]
        if not self._can_probe(model, board):
            while retained:
                board.release(retained.pop())
        elif len(retained) < self._retained_max and board.retain(job):
            retained.append(job)

    def offer(self, lane: Lane, board: Board) -> Bid | None:
        """The probe to run on a lane that nothing runs on: of the oldest retained job whose own way is over, if the
        budget allows one. Changes nothing."""
        if lane.works or self._unused_ns_ppm(lane, board.now_ns) <= 0:
            return None
        job = self._oldest(lane, board)
        return None if job is None else bid_to_measure(job, lane, board, probe=True)

    def finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> Sample | None:
        """A work of the policy is over: the sample that it gives, if any."""
        self._seen_ns = finished_ns
        if self._first_ns < 0:
            self._first_ns = started_ns
        if work.probe is not None:
            unused = self._unused_ns_ppm(work.lane, board.now_ns)
            self._unused[work.lane.name] = (unused - (finished_ns - started_ns) * PPM, board.now_ns)
            count, spent_ns = self._spent.get(work.lane.name, (0, 0))
            self._spent[work.lane.name] = (count + 1, spent_ns + finished_ns - started_ns)
            return None if work.failed else _sample(work.probe, work.lane, finished_ns - started_ns, True)
        if not self._draw_below or (len(work.jobs) > 1 and not self._retained[work.model]):
            return None
        sample = None
        for job in work.jobs:
            retained = board.is_retained(job)
            if job.steps:
                self._stepwise.add(work.model)
            elif (
                job.state == DONE
                and len(work.jobs) == 1
                and work.size == board.latency(work.model, work.lane.name).sizes[0]
                and (retained or (self._is_drawn(job) and not self._can_probe(work.model, board)))
            ):
                sample = _sample(job, work.lane, finished_ns - started_ns, False)
            elif job.state != JOB_FAILED:
                continue  # a probe will tell
            if retained:
                board.release(job)
        return sample

    def next_wakeup_ns(self, board: Board) -> int | None:
        """When an idle lane's budget allows the next probe, or None."""
        times = []
        if any(self._retained.values()):
            for lane in board.lanes:
                unused = self._unused_ns_ppm(lane, board.now_ns)
                if not lane.works and unused <= 0 and self._oldest(lane, board) is not None:
                    times.append(board.now_ns + -unused // self._budget_ppm + 1)
        return min(times, default=None)

    def figures(self) -> Dict[str, Any]:
        """Per lane that had any: how many probes there were, the lane time in ms that they took, and which share of the
        time since the first work that is: ``budget`` at most, and what adds up unused, and one probe."""
        since_ns = max(1, self._seen_ns - max(0, self._first_ns))
        return {
            lane: {"probes": count, "probes_ms": ns_to_ms(spent_ns), "share": spent_ns / since_ns}
            for lane, (count, spent_ns) in self._spent.items()
        }

    # --- the draw, the budget -----------------------------------------------------------------------------------------

    def _is_drawn(self, job: Job) -> bool:
        """The draw is a function of the job's number and the seed: asked twice, it says the same."""
        if mixed(job.seq + (self._salt << 32)) >= self._draw_below:
            return False
        request = job.request
        if job.steps or steps_left(job) > 1 or job.node.model in self._stepwise:
            return False
        return request.stream is None or request.app.stream == "none"

    def _can_probe(self, model: str, board: Board) -> bool:
        return self._retained_max > 0 and any(board.can_probe(model, lane) for lane in board.lanes_of(model))

    def _oldest(self, lane: Lane, board: Board) -> Job | None:
        """The oldest retained job that this lane could run and that neither waits nor runs: one that does may yet run
        alone by itself."""
        oldest: Job | None = None
        for model, jobs in self._retained.items():
            if not jobs or model not in lane.models or not board.is_resident(model, lane):
                continue
            for job in jobs:
                if job.state in (DONE, GONE, JOB_FAILED) and board.is_retained(job):
                    if oldest is None or job.seq < oldest.seq:
                        oldest = job
                    break
        return oldest

    def _unused_ns_ppm(self, lane: Lane, now_ns: int) -> int:
        """Lane time that probes may still take, in ns * PPM; negative where the last one took more than there was."""
        unused, since_ns = self._unused.get(lane.name, (0, 0))
        return min(unused + (now_ns - since_ns) * self._budget_ppm, BUDGET_DEPTH_NS * self._budget_ppm)


def _sample(job: Job, lane: Lane, took_ns: int, probed: bool) -> Sample:
    return Sample(job.request.app.name, job.node.name, job.hints, took_ns, lane.name, probed)
