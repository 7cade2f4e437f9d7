"""What a lane does when its device is near a limit of heat or power: background work waits, and batches become fuller.

What counts against a cap, and what heats, is the energy per answer times the answers per second. A fuller batch takes
less device time per answer, since what a batch costs however full it is (weights read, kernels launched) is shared: so
the device is busy for a smaller part of the time, and the rest it idles. A smaller batch draws less at its peak, but it
runs for longer per answer. So a lane that could start a batch that is not full waits for more jobs, as long as all that
waits for the lane stays in time: never longer than a share of the time that the oldest job has to spare. Critical
requests never wait, and without pressure nothing here has any effect. Knows no policy by name.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.arbiter import is_background
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.requests.states import READY, Job
from edgeserve.sched.resources.lanes import Lane

WAIT_SHARES = (0.0, 0.5, 0.7)
"""Of the time that a job could still wait, the part that it may, by the device's pressure (0, 1 soft, 2 hard)."""

GAIN_MIN = 0.1
"""A fuller batch must take this part less time per job than the present one."""

OPEN_MAX = 256
"""With more open requests than this no lane waits: batches are full anyway, and all of them are looked at."""


class Saving:
    """Decides; changes nothing. ``wake_ns`` is when a lane that waits starts after all, None where none waits."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.wake_ns: int | None = None

    def pauses(self, bid: Bid, lane: Lane) -> bool:
        """Whether background work or a probe waits until the pressure ends (or until it has waited for its app's
        ``background_wait``)."""
        state = self._state
        if not is_background(bid) or not state.devices[lane.device].pressure or state.draining:
            return False
        return bid.probe or not any(state.board.has_waited(job) for job in bid.jobs)

    def holds(self, lane: Lane, bid: Bid) -> bool:
        """Whether the lane waits for a fuller batch than ``bid``."""
        state = self._state
        pressure = state.devices[lane.device].pressure
        if (
            not pressure
            or bid.klass != "normal"
            or bid.drops
            or bid.probe
            or bid.latest_start_ns is not None
            or bid.steps_max is not None
            or state.draining
            or len(state.requests) > OPEN_MAX
        ):
            return False
        latency = state.latency[bid.model, lane.name]
        best = _cheapest_size(latency)
        count = len(bid.jobs)
        if count >= best or not _pays(latency, count, best):
            return False
        until_ns = self._until_ns(lane, bid, WAIT_SHARES[pressure])
        if until_ns <= state.board.now_ns:
            return False
        if self.wake_ns is None or until_ns < self.wake_ns:
            self.wake_ns = until_ns
        return True

    def _until_ns(self, lane: Lane, bid: Bid, share: float) -> int:
        """Until when everything that waits for the lane can wait, and is in time all the same: model after model, each
        as its cheapest batches, as slow as the slowest lately. In the past where something cannot wait."""
        state, now = self._state, self._state.board.now_ns
        waiting: Dict[str, List[Job]] = {}
        for request in state.requests.values():
            for job in request.jobs.values():
                if job.state == READY and job.node.model in lane.models and job.lane in ("", lane.name):
                    if request.klass == "critical" or job.steps:
                        return now
                    if request.klass == "normal":
                        waiting.setdefault(job.node.model, []).append(job)
        takes_ns = 0
        soonest: Tuple[int, int] = (2**62, now)  # the deadline that is due first, and since when its job waits
        for model, jobs in waiting.items():
            latency = state.latency[model, lane.name]
            best = _cheapest_size(latency)
            if model != bid.model and len(jobs) >= best:
                return now
            takes_ns += latency.slowest_ns[best] * -(-len(jobs) // best)
            soonest = min(soonest, min([(job.deadline_ns, job.ready_ns) for job in jobs]))
        due_ns, ready_ns = soonest
        spare_ns = due_ns - takes_ns - ready_ns
        busy_ns = lane.available_ns(now) - now
        return ready_ns + int(spare_ns * share) - busy_ns if spare_ns > 0 else now


def _cheapest_size(latency: BatchTime) -> int:
    """The batch size that takes the least time per job; the smaller of two that are equal."""
    best, best_ns = latency.sizes[0], latency.typical_ns[latency.sizes[0]]
    for size in latency.sizes[1:]:
        if latency.typical_ns[size] * best < best_ns * size:
            best, best_ns = size, latency.typical_ns[size]
    return best


def _pays(latency: BatchTime, count: int, best: int) -> bool:
    """Whether a job in a batch of the cheapest size takes enough less time than one of ``count`` jobs."""
    now_ns = latency.typical_ns[latency.size_for[count]] / count
    return latency.typical_ns[best] / best <= (1.0 - GAIN_MIN) * now_ns
