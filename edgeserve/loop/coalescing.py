"""When messages are read together: while every lane is busy, and right after answers.

Waking up to read has a price of its own: what the lane's work has thrown out of the caches comes back from memory.
Measured on x86-64 beside a 128 MB network (512 KiB of cache per core), one message alone costs 140 us to read, each of
sixteen read together 29. Pure arithmetic on nanoseconds: a world sleeps, live or simulated; this says until when.
"""

from __future__ import annotations

from edgeserve.config.schema import Config

HOLD_NS_MIN = 200_000
"""A shorter wait costs more than it saves: going to sleep and waking up takes about a quarter of it."""

HOLD_NS_MAX = 10_000_000
"""A refusal, a cancel or a question may wait for so long while every lane is busy."""

HOLD_SHARED_NS_MAX = 20_000_000
"""The same where the loop and the lanes share cores, so that a typical batch is not interrupted."""

HOLD_SHARE = 2
"""While every lane is busy nothing that comes can start: it is read after this part of the batch's time, and when a
lane is back. Earlier than at the end, since a loop with a core of its own then reads while the lane runs."""

AGAIN_SHARE = 16
AGAIN_NS_MAX = 2_000_000
"""The longest time for which new requests of clients just answered are read together although a lane is idle: a part of
the last batch's expected time, at most this. For clients that the scheduler knows, it decides how long the lane waits
(``sched/core/holds.py``); this saves it a step per message, and helps clients that it does not know yet."""

EARLY_SHARE = 3
"""While every lane is busy, messages are also read within this part of a batch's time after answers, as many as there
were answers: so the scheduler learns which clients ask again at once (``sched/core/holds.py``)."""

LOOK_SHARE = 8
"""The first such look is after this part of the batch's time, the next ones half as long after something came."""

MISSES_MAX = 4
"""The most misses in a row that lengthen the pause: where less than half of the answered clients came early, the next
1, 3, 7, 15 answers are not followed by early looks: they take time from the lanes where these share cores with the
loop."""

AGAIN_PAUSE_NS = 200_000
"""One look after the other while they do: four to eight requests of one busy client; none in that time is the end."""


def lane_threads(config: Config) -> int:
    """Threads that the lanes compute with on the machine's cores; a GPU's lane waits."""
    return sum(lane.threads for lane in config.lanes.values() if config.devices[lane.device].kind == "cpu")


class ReceiveCoalescing:
    """The last launch and the last answers, and the time for which reading may wait after them. Belongs to the loop's
    thread.

    ``shares_cores``: the lanes' threads leave the loop no core of its own, so reading early takes the lanes' time and
    saves nothing. ``hold_ns`` is how long reading waits after a batch was launched, ``look_at_ns`` until when it
    waits while every lane is busy, ``answers`` how many were sent together last.
    """

    def __init__(self, shares_cores: bool) -> None:
        self.hold_ns = 0
        self._shares_cores = shares_cores
        self.look_at_ns = 0
        self._expected_ns = 0
        self.answers = 0
        self._again_until_ns = 0
        self._early_until_ns = 0
        self._early_count = 0  # answers that were followed by early looks
        self._early_left = 0  # of these, messages that have not come yet
        self._misses = 0
        self._skipped = 0  # answers still to be left without early looks

    def launched(self, now_ns: int, expected_ns: int) -> None:
        """A lane was given a batch that is expected to take so long."""
        self._expected_ns = expected_ns
        hold_ns = (
            min(HOLD_SHARED_NS_MAX, expected_ns + expected_ns // 4)
            if self._shares_cores
            else min(HOLD_NS_MAX, expected_ns // HOLD_SHARE)
        )
        self.hold_ns = hold_ns if hold_ns >= HOLD_NS_MIN else 0
        self.look_at_ns = now_ns + self.hold_ns

    def hold_from(self, now_ns: int) -> None:
        """A message has come, or some were read: let more come before the next look."""
        nap_ns = self.hold_ns
        if self._early_left and now_ns < self._early_until_ns:
            nap_ns = min(nap_ns, self._expected_ns // (2 * LOOK_SHARE))
        self.look_at_ns = now_ns + nap_ns

    def receive_at_ns(self, now_ns: int) -> int | None:
        """The time until which the gateway need not be looked at while every lane is busy; ``None``: it may be at
        once."""
        return self.look_at_ns if now_ns < self.look_at_ns else None

    def received(self, now_ns: int, count: int) -> None:
        """So many messages were read while every lane was busy."""
        self._early_left = max(0, self._early_left - count) if now_ns <= self._early_until_ns else self._early_left
        self.hold_from(now_ns)

    def answered(self, now_ns: int, count: int, is_busy: bool) -> None:
        """So many answers were just sent together, while every lane was busy or not."""
        self.answers = count
        self._again_until_ns = now_ns + min(AGAIN_NS_MAX, self._expected_ns // AGAIN_SHARE)
        if not is_busy or not self.hold_ns:
            return
        if self._early_count:
            missed = self._early_left * 2 > self._early_count
            self._misses = min(MISSES_MAX, self._misses + 1) if missed else 0
            self._skipped = (1 << self._misses) - 1
            self._early_count = self._early_left = 0
        if self._skipped:
            self._skipped -= 1
            return
        self._early_count = self._early_left = count
        self._early_until_ns = now_ns + self._expected_ns // EARLY_SHARE
        self.look_at_ns = min(self.look_at_ns, now_ns + self._expected_ns // LOOK_SHARE)

    def expects_more(self, now_ns: int, count: int) -> bool:
        """True if an idle lane should wait another :data:`AGAIN_PAUSE_NS`, ``count`` events having come so far. A
        request that comes alone is never kept waiting."""
        return 0 < count < self.answers and now_ns + AGAIN_PAUSE_NS <= self._again_until_ns
