"""The priority score of Orloj as a function of the slack, and the best jobs by it out of queues in deadline order.

A request that is not chosen now is chosen after a delay drawn from Exp(b). Its score is what that delay is expected to
cost, per expected batch time (Orloj, Eq. 1 and 2, section 4.2). The paper writes the score as ``alpha e^(bt) + beta``
with a new pair at each *milestone* and a *base time* that is reset before the exponentials overflow. Written as a
function of the slack ``x = D - t`` none of that is needed: there are no large exponentials, nothing changes at a
milestone but the bin that x lies in, and requests of one class share one function.

That also replaces the paper's convex hull. Within a bin the score approaches a constant, so it only rises or only
falls; bins that go the same way make a *piece* (a bimodal class has about four). In deadline order the best jobs of a
piece stand at one of its ends, so the best k of n are found in O(pieces * log n + k log pieces), exactly.
``scripts/bench/queues.py`` measures it beside the hull.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from math import exp, expm1
from typing import List, Sequence, Tuple

from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.requests.states import Job

FOREVER_NS = 2**62
CLOSED = -FOREVER_NS  # in queue_key of a deadline: a piece that nobody has looked into yet


class SlackScore:
    """The score of one class of requests in a batch of one size. Immutable.

    ``edges_ns`` (rising) and ``masses`` (one less, summing to 1) are the histogram of the *batch* latency, uniform
    within a bin; ``mean_ns`` its expectation; ``rate_per_ns`` the b of the exponential delay; ``cost`` what a miss
    costs. The score has the unit cost per nanosecond.

    ``pieces`` are ``(from_ns, to_ns, rising)`` in slack, the last one up to :data:`FOREVER_NS`; below the first the
    score is 0: the batch cannot be in time. ``by_peak`` are the same as ``(-peak, from_ns, to_ns, rising)``, the piece
    that reaches the highest score first.
    """

    __slots__ = ("pieces", "by_peak", "cost", "_peaks", "_edges", "_at_edge", "_targets", "_rate")

    def __init__(self, edges_ns: Sequence[float], masses: Sequence[float], mean_ns: float, rate_per_ns: float,
                 cost: float = 1.0) -> None:
        if len(edges_ns) != len(masses) + 1 or not masses:
            raise ValueError(f"a histogram of {len(masses)} bins has {len(masses) + 1} edges, not {len(edges_ns)}")
        self.cost = cost
        self._rate = rate_per_ns
        self._edges = [float(edge) for edge in edges_ns]
        self._at_edge = [0.0]
        self._targets: List[float] = []  # what the score would approach if the bin went on for ever
        self.pieces: List[Tuple[int, int, bool]] = []
        self._peaks: List[float] = []
        score = 0.0
        for left, right, mass in zip(self._edges, self._edges[1:], masses):
            # A density, mass over width: with the mass itself, wide bins would count too little.
            target = mass / (right - left) * cost / (rate_per_ns * mean_ns)
            before = score
            score += (score - target) * expm1(-rate_per_ns * (right - left))
            self._extend(left, right, target > before, max(before, score))
            self._targets.append(target)
            self._at_edge.append(score)
        self._extend(self._edges[-1], FOREVER_NS, False, score)
        self._targets.append(0.0)
        self.by_peak = sorted([(-peak, *piece) for peak, piece in zip(self._peaks, self.pieces)])

    def p(self, slack_ns: float) -> float:
        """The score at a slack: 0 where the batch is surely late. O(log bins)."""
        edges = self._edges
        index = bisect_right(edges, slack_ns) - 1
        if index < 0:
            return 0.0
        target = self._targets[index]
        return target + (self._at_edge[index] - target) * exp(-self._rate * (slack_ns - edges[index]))

    def _extend(self, left: float, right: float, rising: bool, peak: float) -> None:
        if self.pieces and self.pieces[-1][2] == rising:
            self.pieces[-1] = (self.pieces[-1][0], int(right), rising)
            self._peaks[-1] = max(self._peaks[-1], peak)
        else:
            self.pieces.append((int(left), int(right), rising))
            self._peaks.append(peak)


def top(queues: Sequence[Tuple[JobQueue, SlackScore, int]], at_ns: int, count: int, lane: str = "") -> List[Job]:
    """The ``count`` jobs of highest score at ``at_ns``, of those that stand in each queue from the given position on;
    ties by deadline; jobs of one class and deadline are alike. The queues' keys are deadlines. Jobs whose state another
    lane holds are left out.

    A piece is looked into only when nothing found so far is better than its peak: of the twenty pieces of four classes
    that saves most. O(queues * pieces * log n + count * log queues) at worst.
    """
    available = sum([len(queue.rows) - start for queue, _, start in queues])
    if available <= count:
        return [row[2] for queue, _, start in queues for row in queue.rows[start:] if row[2].lane in ("", lane)]
    # Either a job, (-score, key, seq, index, step, jobs left in its piece, queue's number), or a queue's next piece,
    # (-peak, CLOSED, number, queue_key in by_peak, 0, 0, number), which goes before a job of the same score.
    heap = [(score.by_peak[0][0], CLOSED, number, 0, 0, 0, number) for number, (_, score, _) in enumerate(queues)]
    heapify(heap)
    jobs: List[Job] = []
    while heap and len(jobs) < count:
        _, key, seq, index, step, left, number = heap[0]
        queue, score, start = queues[number]
        rows = queue.rows
        if key == CLOSED:
            _, from_ns, to_ns, rising = score.by_peak[index]
            if index + 1 < len(score.by_peak):
                heapreplace(heap, (score.by_peak[index + 1][0], CLOSED, number, index + 1, 0, 0, number))
            else:
                heappop(heap)
            low = bisect_left(rows, (at_ns + from_ns,), start) if from_ns > 0 else start
            high = bisect_left(rows, (at_ns + to_ns,), low)
            if low < high:
                index, step = (high - 1, -1) if rising else (low, 1)
                key, seq, _ = rows[index]
                heappush(heap, (-score.p(key - at_ns), key, seq, index, step, high - low, number))
            continue
        job = rows[index][2]
        if job.lane in ("", lane):
            jobs.append(job)
        if left == 1:
            heappop(heap)
        else:
            key, seq, _ = rows[index + step]
            heapreplace(heap, (-score.p(key - at_ns), key, seq, index + step, step, left - 1, number))
    return jobs
