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
from typing import Any, ClassVar, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.errors import ConfigError
from edgeserve.sched.policies.common.bidding import likely_bid
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import Number, PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options
from edgeserve.sched.published.orloj.dynamic_policy import DynamicOptions, DynamicPolicy
from edgeserve.sched.published.orloj.lengths import Lengths
from edgeserve.sched.published.orloj.model import DynamicModel, QueueKey
from edgeserve.sched.published.orloj.slack import SlackScore, score_of, top
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane
from edgeserve.units import NS_PER_MS, ms_to_ns

READINGS = ("largest", "urgent", "single")
ESTIMATES = ("own", "common")


class Table:
    """What the scheduler looks up, per size: expected batch time and score of each class. Made off the critical path,
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
class OrlojOptions(DynamicOptions):
    """Options of ``orloj``; what the paper leaves open has the reading that reproduces its tables."""

    reading: str = option("largest", "line 16 of Algorithm 1: which size is chosen", one_of=READINGS)
    estimate: str = option(
        "own",
        "batch times with the request's own class in them, or one distribution for all (section 4.3)",
        one_of=ESTIMATES,
    )
    delay_ms: Number = option(10_000.0, "mean 1/b of the delay of what is not chosen, ms; insensitive")
    cost_steps: Tuple[Any, ...] = option(
        (), "[[50, 0.3]]: an answer later than 50 ms after arrival costs 0.3 of a missed deadline (Appendix B)"
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class Orloj(DynamicPolicy):
    """Algorithm 1 as published."""

    options_type: ClassVar[Type[PolicyOptions]] = OrlojOptions

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        own = self.options
        assert isinstance(own, OrlojOptions)
        self._reading = own.reading
        self._own = own.estimate == "own"
        self._rate = 1.0 / (own.delay_ms * NS_PER_MS)
        self._steps = _cost_steps(name, own.cost_steps)
        self._tables: Dict[Tuple[str, str], Table] = {}

    def _hopeless_ns(self, model: DynamicModel, queue_key: QueueKey, lane: Lane, board: Board) -> int:
        """A request in no feasible set is timed out. The sets are nested, so that of the smallest size decides."""
        smallest = board.latency(model.model, lane.name).sizes[0]
        return self._table(model, lane, board).expected_ns(queue_key.name, smallest)

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
                first = queue.position(starts_ns + table.expected_ns(queue_key.name, size))
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
        known = table.lengths.batch(runs_as, tuple(sorted([model.class_name(job) for job in jobs])))
        return likely_bid(jobs, runs_as, known, board)

    def _choose(self, candidates: List[Tuple[int, int]]) -> int:
        if self._reading == "largest":
            return max(candidates)[1]
        if self._reading == "urgent":
            return min(candidates, key=lambda item: (item[0], -item[1]))[1]
        return min(candidates)[1]

    def _top(
        self, table: Table, rows: Sequence[Tuple[QueueKey, JobQueue, int]], starts_ns: int, size: int, lane: str
    ) -> List[Job]:
        """The jobs of highest score, critical ones before normal ones before background."""
        jobs: List[Job] = []
        for rank in sorted({queue_key.rank for queue_key, _, _ in rows}):
            of_rank = [
                (queue, table.score(queue_key.name, size, queue_key.value), first)
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
        """With several deadlines the score is the sum of one per step (Appendix B), which depends on the arrival too:
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

    def _table(self, model: DynamicModel, lane: Lane, board: Board) -> Table:
        lengths = model.lengths(lane.name, board)
        found = self._tables.get((model.model, lane.name))
        if found is None or found.lengths is not lengths:
            sizes = board.latency(model.model, lane.name).sizes
            found = self._tables[model.model, lane.name] = Table(lengths, sizes, self._own, self._rate)
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
