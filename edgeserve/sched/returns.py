"""Whether clients come back: how many of those who were just answered ask again at once.

Clients that keep a number of requests in flight (closed loops) come back within a millisecond or two of an answer. A
lane that starts at once with what is queued then leaves them behind: sixteen in flight run as 1 + 15 or as 8 + 8 for
ever, since each part returns while the other runs. Whoever would wait for them must know that they come; an open load
never does. So after each batch the arrivals of a short window are counted, whether or not the lane has started
something by then, and compared with what the ordinary rate would bring in that time.

Integer arithmetic on times that are handed in: no clock, no queue, no lane.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Tuple

from edgeserve.units import NS_PER_MS

PPM = 1_000_000

WINDOW_SHARE = 8
WINDOW_NS_MAX = 3 * NS_PER_MS
"""How long arrivals count as returns: this part of what the batch was expected to take, at most that. Long enough for
sixteen answers to go out and sixteen requests to be read; and the most that waiting for them can ever cost."""

WINDOW_NS_MIN = NS_PER_MS // 5
"""Where the window would be shorter (batches below 1.6 ms) nothing is counted: waking up takes a quarter of it."""

WATCHES = 8
"""Batches that the share looks back on; before as many have been watched nobody is expected. Of a Poisson load that
keeps the lane busy an eighth of a batch's jobs come in its window, give or take a quarter for batches of two: the half
that is asked for is far outside what eight batches can show by chance."""

QUIET_SHARE = 2
"""No arrival for this part of the window: those who have not come by then are not coming. A third would do in virtual
time; over a socket the first has been seen after 1 ms of 3, since sixteen answers go out before the first is read."""


class Returns:
    """Of one model: the batches watched lately, and the window that is open after the last one.

    :meth:`answered` and :meth:`arrived` change it. O(1) each.
    """

    __slots__ = ("window_ns", "until_ns", "_began_ns", "_last_ns", "_answered", "_came", "_arrivals", "_rows",
                 "_sum_answered", "_sum_came", "_sum_ordinary")

    def __init__(self) -> None:
        self.window_ns = 0
        self.until_ns = -1  # the end of the window of the last batch
        self._began_ns = 0
        self._last_ns = 0  # the last arrival in the window, its begin before there was one
        self._answered = 0
        self._came = 0
        self._arrivals = 0  # since the window began, also after its end
        self._rows: Deque[Tuple[int, int, int]] = deque()  # answered, came, 1e6 times what the ordinary rate brings
        self._sum_answered = self._sum_came = self._sum_ordinary = 0

    def answered(self, now_ns: int, count: int, expected_ns: int) -> None:
        """A batch of so many requests has ended that was expected to take so long. While a window is open it only adds
        to those who may come back: with several lanes windows would otherwise never end."""
        window_ns = min(WINDOW_NS_MAX, expected_ns // WINDOW_SHARE)
        if count <= 0 or window_ns < WINDOW_NS_MIN:
            return
        if now_ns <= self.until_ns:
            self._answered += count
            return
        self._judge(now_ns)
        self.window_ns = window_ns
        self.until_ns = now_ns + window_ns
        self._began_ns = self._last_ns = now_ns
        self._answered = count
        self._came = self._arrivals = 0

    def arrived(self, now_ns: int) -> None:
        """A request has come."""
        self._arrivals += 1
        if now_ns <= self.until_ns:
            self._came += 1
            self._last_ns = now_ns

    @property
    def share_ppm(self) -> int:
        """The share of the answered who came back, beyond the ordinary rate, in parts per million; 0 until enough
        batches were watched."""
        if len(self._rows) < WATCHES:
            return 0
        return max(0, (self._sum_came * PPM - self._sum_ordinary) // self._sum_answered)

    def missing(self, now_ns: int) -> int:
        """How many more are likely to come in the window that is open: as many as usual, less those who have. None
        where fewer than half come back, and none after a single answer: a lone client waits for nobody."""
        if now_ns >= self.until_ns or self._answered < 2 or 2 * self.share_ppm < PPM:
            return 0
        usual = (2 * self._answered * self._sum_came + self._sum_answered) // (2 * self._sum_answered)  # to the nearest
        return max(0, usual - self._came)

    @property
    def waits_until_ns(self) -> int:
        """By when whoever waits for the missing gives up, unless another comes before."""
        return min(self.until_ns, self._last_ns + self.window_ns // QUIET_SHARE)

    def _judge(self, now_ns: int) -> None:
        """The last window is history: into the sums with it. The ordinary rate is that of all arrivals since it began,
        the returned included, so that no load seems to return which merely is fast."""
        if not self._answered:
            return
        came = min(self._came, self._answered)
        ordinary = self._arrivals * self.window_ns * PPM // (now_ns - self._began_ns)
        self._rows.append((self._answered, came, ordinary))
        self._sum_answered += self._answered
        self._sum_came += came
        self._sum_ordinary += ordinary
        if len(self._rows) > WATCHES:
            answered, came, ordinary = self._rows.popleft()
            self._sum_answered -= answered
            self._sum_came -= came
            self._sum_ordinary -= ordinary
