"""The time of an answer beside its lane's, learnt so that deadlines can allow for it.

The scheduler plans from giving a work to a lane until the lane is done with it; the client counts until the answer is
there. The time on top (waking the lane's thread, then the loop; encoding; the other answers of the batch that go
first) is taken off the deadline that the scheduler gets.
"""

from __future__ import annotations

from edgeserve.sched.latency.window import Window

WINDOW_LEN = 32
REFRESH_EVERY = 8
SHARE_MAX = 8
"""The divisor of the most that is taken off a deadline: an eighth of its time, so that a stall does not make every
request look late."""


class ResponseOverhead:
    """The last answers. ``margin_ns`` is the 75th percentile of what they took; belongs to one loop. The live world and
    the simulated one have one each."""

    def __init__(self) -> None:
        self.margin_ns = 0
        self._window = Window(WINDOW_LEN, REFRESH_EVERY)

    def took(self, overhead_ns: int) -> None:
        """The last answer of a step went out this much later than if handing over, there and back, took no time."""
        if self._window.add(overhead_ns):
            self.margin_ns = self._window.quantile(3 / 4)

    def planned_ns(self, now_ns: int, deadline_ns: int) -> int:
        """The deadline to plan for."""
        return deadline_ns - max(0, min(self.margin_ns, (deadline_ns - now_ns) // SHARE_MAX))

    def slo_ns(self, planned_ns: int) -> int:
        """The smallest time until a deadline of which ``planned_ns`` (above 0) are left to plan with."""
        full, rest = divmod(planned_ns, SHARE_MAX - 1)  # of a time t, t - t // 8 is left at least
        return min(planned_ns + max(0, self.margin_ns), SHARE_MAX * full + (rest if rest else -1))
