"""Orloj, surpassed: the batch of most value per time, by the distributions of its actual members.

What differs from the published policy (``published/orloj``), in the order of its effect:

1. *Grouping.* For every ceiling of expected length and every batch size, the most urgent requests below the ceiling
   form two candidates: of those that are expected in time in such a batch, and of those that are so almost surely.
   Short requests need not be padded to long ones; and a batch that saves no time at all is none.
2. *Every size* that was profiled is considered, not powers of two only.
3. *Value per time.* A candidate counts the chance of each member to be in time, from the product of the members' own
   CDFs, over its expected time.
4. *Even odds.* A request is dropped when it would more likely than not be late even alone.
5. *Hints.* A predicted length (a declared number of the request) makes finer classes than the app does.

The policy never waits for a fuller batch: every rule for waiting that was tried lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Sequence, Tuple, Type

from edgeserve.compiled import mypyc_attr
from edgeserve.sched.policies.common.bidding import likely_bid
from edgeserve.sched.policies.dynamic.dynamic_policy import DynamicOptions, DynamicPolicy
from edgeserve.sched.policies.dynamic.lengths import Lengths
from edgeserve.sched.policies.dynamic.model import DynamicModel, QueueKey
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.options import PolicyOptions, option
from edgeserve.sched.policy_api.policy import Bid, Options
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.lanes import Lane

EVEN_ODDS = 0.5
"""Requests that are in time alone with no more chance than this are dropped (specification, 11.4)."""

SAFE = 0.95
"""Beside those that are just expected in time, a candidate is made of those that are so with this chance: of two
requests it may be the more urgent one that wastes the lane. Utility up to a point where deadlines are tight."""

TIME_EXPONENT = 0.7
"""Value is compared per expected time to this power (specification, 11.3): short batches are not quite as good as they
look, since what they leave needs a batch of its own."""

INFERRED_EXPONENT = 1.0
"""The same while lengths are inferred from batches: what large batches take is then the least certain."""

LOOKED_AT_MAX = 64
"""Most urgent jobs that a decision looks at: some four full batches; its cost must not grow with the queue."""

Row = Tuple[int, int, int, Job, str, float]  # (rank, deadline, seq, job, class, value)


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class OrlojPlusOptions(DynamicOptions):
    """Options of ``orloj+``."""

    hint: str = option(
        "length", "the declared number that predicts a request's length; empty: the app is all that is known"
    )


@mypyc_attr(allow_interpreted_subclasses=True)
class OrlojPlus(DynamicPolicy):
    """The batch of most value per time, by the distributions of its members."""

    options_type: ClassVar[Type[PolicyOptions]] = OrlojPlusOptions
    from_batches: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._medians: Dict[Tuple[str, str], Tuple[Lengths, Dict[str, int]]] = {}

    def _length_hint(self) -> str:
        own = self.options
        assert isinstance(own, OrlojPlusOptions)
        return own.hint

    def _hopeless_ns(self, model: DynamicModel, queue_key: QueueKey, lane: Lane, board: Board) -> int:
        """What a request of this class takes alone with :data:`EVEN_ODDS`."""
        lengths = model.lengths(lane.name, board)
        known = self._medians.get((model.model, lane.name))
        if known is None or known[0] is not lengths:
            known = self._medians[model.model, lane.name] = (lengths, {})
        median_ns = known[1].get(queue_key.name)
        if median_ns is None:
            median_ns = known[1][queue_key.name] = lengths.alone(queue_key.name).quantile_ns(EVEN_ODDS) + 1
        return median_ns

    def _best_batch(self, model: DynamicModel, lane: Lane, board: Board) -> Bid | None:
        """The candidate of most value per time. O(classes * sizes * jobs looked at), most of it cut short."""
        starts_ns = lane.available_ns(board.now_ns)
        lengths = model.lengths(lane.name, board)
        rows = self._urgent(model, lane, starts_ns, board)
        if not rows:
            return None
        latency = board.latency(model.model, lane.name)
        exponent = INFERRED_EXPONENT if lengths.is_inferred else TIME_EXPONENT
        best_score, best = -1.0, (rows[:1], latency.sizes[0])
        for ceiling in sorted({row[4] for row in rows}, key=lambda name: (lengths.mean_alone_ns(name), name)):
            mean_ns = lengths.mean_alone_ns(ceiling)
            shorter = [row for row in rows if lengths.mean_alone_ns(row[4]) <= mean_ns]
            for count in range(1, min(latency.size_max, len(shorter)) + 1):
                size = latency.size_for[count]
                longest = lengths.batch(size, (ceiling,) * count)
                looked_at: List[Row] = []
                for needs_ns in (longest.mean_ns(), longest.quantile_ns(SAFE)):
                    chosen = [row for row in shorter if row[1] >= starts_ns + needs_ns][:count]
                    if len(chosen) < count:
                        break
                    if chosen == looked_at or all(row[4] != ceiling for row in chosen):
                        continue  # with none of the ceiling's own, it is the candidate of a lower one
                    looked_at = chosen
                    known = lengths.batch(size, tuple(sorted([row[4] for row in chosen])))
                    if count > 1 and known.mean_ns() >= sum([lengths.mean_alone_ns(row[4]) for row in chosen]):
                        continue  # one by one they take no longer, and all but the last end sooner
                    per_time = known.mean_ns() ** -exponent
                    if sum([row[5] for row in chosen]) * per_time <= best_score:
                        continue  # even if all were surely in time
                    score = sum([row[5] * known.p_by(row[1] - starts_ns) for row in chosen]) * per_time
                    if score > best_score:
                        best_score, best = score, (chosen, size)
        chosen, size = best
        known = lengths.batch(size, tuple(sorted([row[4] for row in chosen])))
        return likely_bid([row[3] for row in chosen], size, known, board)

    def _urgent(self, model: DynamicModel, lane: Lane, starts_ns: int, board: Board) -> List[Row]:
        """The most urgent jobs that have better than even odds here: critical ones first, then by deadline."""
        rows: List[Row] = []
        for queue_key, queue in model.queues.items():
            first = queue.position(starts_ns + self._hopeless_ns(model, queue_key, lane, board))
            for deadline_ns, seq, job in queue.rows[first : first + LOOKED_AT_MAX]:
                if job.lane in ("", lane.name):
                    rows.append((queue_key.rank, deadline_ns, seq, job, queue_key.name, queue_key.value))
        rows.sort(key=_urgency)
        return rows[:LOOKED_AT_MAX]


def _urgency(row: Row) -> Tuple[int, int, int]:
    return row[0], row[1], row[2]
