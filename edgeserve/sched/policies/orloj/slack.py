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
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.requests.states import Job

FOREVER_NS = 2**62
CLOSED = -FOREVER_NS  # in queue_key of a deadline: a piece that nobody has looked into yet

_Walk = Tuple[Iterator[Tuple[int, int, Job]], List[float], List[float], List[float], float]
"""A piece: its rows behind the best one, from the best down, and ``SlackScore.bins``."""


class SlackScore:
    """The score of one class of requests in a batch of one size. Immutable.

    ``edges_ns`` (rising) and ``masses`` (one less, summing to 1) are the histogram of the *batch* latency, uniform
    within a bin; ``mean_ns`` its expectation; ``rate_per_ns`` the b of the exponential delay; ``cost`` what a miss
    costs. The score has the unit cost per nanosecond.

    ``pieces`` are ``(from_ns, to_ns, rising)`` in slack, the last one up to :data:`FOREVER_NS`; below the first the
    score is 0: the batch cannot be in time. ``by_peak`` are the same as ``(-peak, from_ns, to_ns, rising)``, the piece
    that reaches the highest score first. ``bins`` is what :meth:`p` reads: edges, targets, scores at the edges, rate.
    """

    __slots__ = ("pieces", "by_peak", "bins", "cost", "_peaks", "_edges", "_at_edge", "_targets", "_rate")

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
        self.bins = (self._edges, self._targets, self._at_edge, rate_per_ns)
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
    available = 0
    for queue, _, start in queues:
        available += len(queue.rows) - start
    if available <= count:
        return [row[2] for queue, _, start in queues for row in queue.rows[start:] if row[2].lane in ("", lane)]
    # Either the best job left of a piece, (-score, key, seq, job, its piece), or a queue's next piece, (-peak, CLOSED,
    # number, place in by_peak, None), which goes before a job of the same score.
    heap: List[Tuple[float, int, int, Any, Optional[_Walk]]] = [
        (score.by_peak[0][0], CLOSED, number, 0, None) for number, (_, score, _) in enumerate(queues)]
    heapify(heap)
    jobs: List[Job] = []
    while heap:
        _, _, number, entry, walk = heap[0]
        if walk is None:
            _open_piece(heap, queues[number], number, entry, at_ns)
            continue
        job: Job = entry
        if not job.lane or job.lane == lane:
            jobs.append(job)
            if len(jobs) == count:
                break
        rest, edges, targets, at_edge, rate = walk
        for key, seq, job in rest:  # the next one, its score as SlackScore.p says: a call costs a third of all of it
            slack_ns = key - at_ns
            index = bisect_right(edges, slack_ns) - 1
            target = targets[index]
            heapreplace(heap, (-(target + (at_edge[index] - target) * exp(-rate * (slack_ns - edges[index]))), key, seq,
                               job, walk))
            break
        else:
            heappop(heap)
    return jobs


def _open_piece(heap: List[Tuple[float, int, int, Any, Optional[_Walk]]], place: Tuple[JobQueue, SlackScore, int],
                number: int, index: int, at_ns: int) -> None:
    """Put the best job of the piece at the top of the heap into the heap, and its queue's next piece in its place."""
    queue, score, start = place
    rows, pieces = queue.rows, score.by_peak
    _, from_ns, to_ns, rising = pieces[index]
    index += 1
    if index < len(pieces):
        heapreplace(heap, (pieces[index][0], CLOSED, number, index, None))
    else:
        heappop(heap)
    low = bisect_left(rows, (at_ns + from_ns,), start) if from_ns > 0 else start
    high = bisect_left(rows, (at_ns + to_ns,), low) if to_ns < FOREVER_NS else len(rows)
    if low < high:
        some = rows[low:high]
        rest = reversed(some) if rising else iter(some)
        key, seq, job = next(rest)
        heappush(heap, (-score.p(key - at_ns), key, seq, job, (rest, *score.bins)))
