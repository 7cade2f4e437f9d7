"""The priority score of Orloj as a function of the slack, and the best jobs by it out of queues in deadline order.

A request that is not chosen now is chosen after a delay drawn from Exp(b). Its score is what that delay is expected to
cost, per expected batch time (Orloj, Eq. 1 and 2, section 4.2). The paper writes the score as ``alpha e^(bt) + beta``
with a new pair at each *milestone* and a *base time* that is reset before the exponentials overflow. Written as a
function of the slack ``x = D - t`` none of that is needed: there are no large exponentials, nothing changes at a
milestone but the bin that x lies in, and requests of one class share one function.

That also replaces the paper's convex hull. Within a bin the score approaches a constant, so it only rises or only
falls; bins that go the same way make a *piece* (a bimodal class has about four). In deadline order the best jobs of a
piece stand at one of its ends, so the best k of n are found in O(pieces * log n + k log pieces), exactly.
``research/bench/price.py`` measures decisions by queue length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heapreplace
from math import ceil, exp, expm1
from typing import List, Optional, Sequence, Tuple

from edgeserve.sched.policies.common.job_queue import JobQueue, Row
from edgeserve.sched.published.orloj.lengths import Lengths
from edgeserve.sched.requests.states import Job
from edgeserve.units import FOREVER_NS

NOTHING = -1.0  # less than any score

_Piece = Tuple[List[Row], int, int, List[float], List[float], List[float], float]
"""The rows of a queue, the worst one of the piece, the step from a better one to a worse one, ``SlackScore.bins``."""


class SlackScore:
    """The score of one class of requests in a batch of one size. Immutable.

    ``edges_ns`` (rising) and ``masses`` (one less, summing to 1) are the histogram of the *batch* latency, uniform
    within a bin; ``mean_ns`` its expectation; ``rate_per_ns`` the b of the exponential delay; ``cost`` what a miss
    costs. The score has the unit cost per nanosecond.

    ``pieces`` are ``(from_ns, to_ns, rising)`` in slack, the last one up to :data:`FOREVER_NS`; below the first the
    score is 0: the batch cannot be in time. ``by_peak`` are the same as ``(-peak, from_ns, to_ns, rising)``, the piece
    that reaches the highest score first. ``bins`` is what :meth:`p` reads: edges (the last one at :data:`FOREVER_NS`),
    targets, scores at the edges, rate.
    """

    __slots__ = ("pieces", "by_peak", "bins", "cost", "_peaks", "_edges", "_at_edge", "_targets", "_rate")

    def __init__(
        self, edges_ns: Sequence[float], masses: Sequence[float], mean_ns: float, rate_per_ns: float, cost: float = 1.0
    ) -> None:
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
        self._edges.append(float(FOREVER_NS))
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
            self.pieces[-1] = (self.pieces[-1][0], ceil(right), rising)
            self._peaks[-1] = max(self._peaks[-1], peak)
        else:
            self.pieces.append((ceil(left), ceil(right), rising))
            self._peaks.append(peak)


def score_of(lengths: Lengths, name: str | None, count: int, size: int, rate_per_ns: float, cost: float) -> SlackScore:
    """The priority score of a class (``name`` None: of any) in a batch of ``count``."""
    known = lengths.expected(name, count, size)
    shares = known.shares
    masses = [high - low for low, high in zip(shares, shares[1:])]
    return SlackScore(known.times_ns, masses, known.mean_ns(), rate_per_ns, cost)


class _Walk:
    """A piece of a queue on the way from its best job down: the row of the best one left, its bin and its score."""

    __slots__ = ("piece", "index", "bin", "score")

    def __init__(self, piece: _Piece, index: int, in_bin: int, score: float) -> None:
        self.piece = piece
        self.index = index
        self.bin = in_bin
        self.score = score

    def order(self) -> Tuple[int, int]:
        """The order of equal scores: the lowest goes first."""
        key, seq, _ = self.piece[0][self.index]
        return key, seq


def top(queues: Sequence[Tuple[JobQueue, SlackScore, int]], at_ns: int, count: int, lane: str = "") -> List[Job]:
    """The ``count`` jobs of highest score at ``at_ns``, in each queue from the given position on;
    ties by deadline; jobs of one class and deadline are alike. The queues' keys are deadlines. Jobs whose state another
    lane holds are left out.

    A piece is looked into only when nothing found so far is better than its peak: of the twenty pieces of four classes
    that saves most. Jobs of one piece are taken while they are better than the best of all others. O(queues * pieces *
    log n + count * pieces + bins) at worst.
    """
    available = 0
    for queue, _, start in queues:
        available += len(queue.rows) - start
    if available <= count:
        return [row[2] for queue, _, start in queues for row in queue.rows[start:] if row[2].lane in ("", lane)]
    closed = [
        (score.by_peak[0][0], number, 0)
        for number, (queue, score, start) in enumerate(queues)
        if start < len(queue.rows)
    ]
    heapify(closed)
    peak = -closed[0][0]  # no job of a piece that is still closed has a higher score
    walks: List[_Walk] = []
    jobs: List[Job] = []
    while walks or closed:
        best: Optional[_Walk] = None
        score, rival = NOTHING, peak  # rival: the highest score of any job outside the best walk
        for walk in walks:
            if walk.score > score or (best is not None and walk.score == score and walk.order() < best.order()):
                if score > rival:
                    rival = score
                best, score = walk, walk.score
            elif walk.score > rival:
                rival = walk.score
        if best is None or score <= peak:
            peak = _open_piece(walks, closed, queues, at_ns, score)
            continue
        rows, last, step, edges, targets, at_edge, rate = best.piece
        index, in_bin = best.index, best.bin
        while True:
            job = rows[index][2]
            if not job.lane or job.lane == lane:
                jobs.append(job)
                if len(jobs) == count:
                    return jobs
            if index == last:
                walks.remove(best)
                break
            index += step
            slack_ns = float(rows[index][0] - at_ns)
            while slack_ns < edges[in_bin] or slack_ns >= edges[in_bin + 1]:
                in_bin += step
            # What SlackScore.p returns: the calls would cost more than all the rest.
            score = targets[in_bin] + (at_edge[in_bin] - targets[in_bin]) * exp(-rate * (slack_ns - edges[in_bin]))
            if score <= rival:
                best.index, best.bin, best.score = index, in_bin, score
                break
    return jobs


def _open_piece(
    walks: List[_Walk],
    closed: List[Tuple[float, int, int]],
    queues: Sequence[Tuple[JobQueue, SlackScore, int]],
    at_ns: int,
    least: float,
) -> float:
    """Look into closed pieces, the highest peak first, until one has a job or none can reach the score ``least``.
    Returns the highest peak of the pieces that stay closed."""
    while closed and -closed[0][0] >= least:
        _, number, place = closed[0]
        queue, of, start = queues[number]
        _, from_ns, to_ns, rising = of.by_peak[place]
        if place + 1 < len(of.by_peak):
            heapreplace(closed, (of.by_peak[place + 1][0], number, place + 1))
        else:
            heappop(closed)
        rows = queue.rows
        from_ns += at_ns
        to_ns += at_ns
        soonest_ns, latest_ns = rows[start][0], rows[-1][0]
        if latest_ns < from_ns or soonest_ns >= to_ns:
            continue
        low = start if soonest_ns >= from_ns else bisect_left(rows, (from_ns,), start)
        high = len(rows) if latest_ns < to_ns else bisect_left(rows, (to_ns,), low)
        if low < high:
            first, last, step = (high - 1, low, -1) if rising else (low, high - 1, 1)
            slack_ns = float(rows[first][0] - at_ns)
            edges, targets, at_edge, rate = of.bins
            in_bin = bisect_right(edges, slack_ns) - 1
            score = targets[in_bin] + (at_edge[in_bin] - targets[in_bin]) * exp(-rate * (slack_ns - edges[in_bin]))
            walks.append(_Walk((rows, last, step, edges, targets, at_edge, rate), first, in_bin, score))
            break
    return -closed[0][0] if closed else NOTHING
