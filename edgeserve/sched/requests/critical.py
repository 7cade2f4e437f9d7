"""When the next critical request may come, and how long other work may therefore take: learnt from when they came.

A control loop asks every 100 ms, to the millisecond. Between two of its requests a lane may do something longer than
the loop could wait for, if it is over in time; how much longer says the loop's period. Requests that follow no period
may come at any time. Pure arithmetic on nanoseconds; the scheduler says who came when.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from typing import Deque, Dict, Final, Iterable, List, Mapping, Sequence, Tuple

from edgeserve.sched.requests.arrivals import Arrivals
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.units import FOREVER_NS, NS_PER_MS

MEMORY_NS = 1000 * NS_PER_MS
"""The time after its last request for which a critical source is expected to come back at least; one with a longer
period for two of its periods."""

SOURCES_MAX = 64
"""Sources (client and stream) of one app that are told apart; of more, the least recent are forgotten."""


FORGETS: Final = 0.004
"""The share of a late critical request that is forgotten with each one in time: all after 250. (``heldout.py --world``,
seeds to develop on: what is learnt takes the worst runs of ``long_beside_short`` and ``mixed_slo_critical`` from 95.3
and
98.4 % to 99 at least.)"""

OVER_MAX: Final = 5.0
"""Late requests of an app that are remembered at most."""

MARGIN: Final = 0.1
"""A row for each that is remembered: what goes before critical requests must end so much of their slack earlier."""


class CriticalSource(Arrivals):
    """Critical requests of one client and stream of one app. ``slack_ns`` is how long its last one could wait,
    ``alone_ns`` what it takes alone, ``until_ns`` when it is no longer expected to come back, ``open`` are the ones
    that have not ended. ``next_ns`` is the earliest time at which its next request is expected, or when its last one
    came where it follows no period; ``period_ns`` the time between the last two."""

    __slots__ = ("slack_ns", "alone_ns", "until_ns", "open", "next_ns", "period_ns")

    def __init__(self) -> None:
        super().__init__()
        self.slack_ns = 0
        self.alone_ns = 0
        self.until_ns = 0
        self.open: Deque[RequestRecord] = deque()
        self.next_ns = 0
        self.period_ns = MEMORY_NS

    def accepted(self, request: RequestRecord, now_ns: int, alone_ns: int) -> None:
        """A request came."""
        self.came(now_ns)
        self.alone_ns = alone_ns
        self.slack_ns = max(0, request.deadline_ns - request.arrival_ns - alone_ns)
        self.until_ns = now_ns + MEMORY_NS
        if self.gaps_ns:
            self.until_ns = now_ns + max(MEMORY_NS, 2 * max(self.gaps_ns))
            self.period_ns = max(1, self.gaps_ns[-1])
        expected = self.expected(exceptions=False)
        self.next_ns = now_ns if expected is None else expected[0]
        while self.open and self.open[0].ended:
            self.open.popleft()
        self.open.append(request)

    def per_ns(self, now_ns: int) -> float:
        """Requests per nanosecond; one in :data:`MEMORY_NS` while only one came."""
        if not self.gaps_ns:
            return 1.0 / MEMORY_NS
        return len(self.gaps_ns) / max(1, sum(self.gaps_ns) + max(0, now_ns - self.last_ns))

    def room_ns(self, now_ns: int) -> int:
        """The time that a work that starts now may take, so that the next request and the open ones are in time behind
        it."""
        room_ns = max(0, self.next_ns - now_ns) + self.slack_ns
        for request in self.open:
            if not request.ended:
                room_ns = min(room_ns, request.deadline_ns - now_ns - self.alone_ns)
        return room_ns


class Rooms:
    """The time for which a lane may be kept, from now on, without making critical requests late.

    In nanoseconds: ``opened`` has the room of each open request that the lane could still serve in time, in rising
    order; ``expected`` that of the next request of each source with a period, and the period; ``irregular`` the slack
    of the requests of each other source, and how many of them come per nanosecond. ``over``: late ones that are
    remembered; each counts as one more of every request that would be late. ``most_ns``: the longest that a lane may
    ever be kept, right after a request of each source.
    """

    __slots__ = ("opened", "expected", "irregular", "over", "most_ns")

    def __init__(
        self,
        opened: List[int],
        expected: List[Tuple[int, int]],
        irregular: List[Tuple[int, float]],
        over: float = 0.0,
        most_ns: int = FOREVER_NS,
    ) -> None:
        self.opened = opened
        self.expected = expected
        self.irregular = irregular
        self.over = over
        self.most_ns = most_ns

    def of_those_to_come(self) -> Rooms:
        """The same without the requests that are open."""
        return Rooms([], self.expected, self.irregular, self.over, self.most_ns)

    def late_behind(self, keeps_ns: int) -> float:
        """The number of critical requests, open or expected, that are late behind work that keeps the lane for so long,
        as they count."""
        late = float(bisect_left(self.opened, keeps_ns))
        for room_ns, period_ns in self.expected:
            if room_ns < keeps_ns:
                late += 1 + (keeps_ns - room_ns) // period_ns
        for slack_ns, rate in self.irregular:
            if slack_ns < keeps_ns:
                late += rate * (keeps_ns - slack_ns)
        return late * (1.0 + self.over)


NO_ROOMS: Final = Rooms([], [], [])
"""The rooms of a lane without critical requests."""


class CriticalArrivals:
    """The sources of critical requests by app. ``any`` is whether there were any at all."""

    __slots__ = ("any", "_sources", "_leaves_ns", "_over")

    def __init__(self) -> None:
        self.any = False
        self._over: Dict[str, float] = {}
        self._sources: Dict[str, OrderedDict[Tuple[str, str], CriticalSource]] = {}
        self._leaves_ns: Dict[str, int] = {}  # by app: no source is forgotten before

    def came(self, request: RequestRecord, now_ns: int, alone_ns: int) -> None:
        """A critical request was accepted; alone it takes ``alone_ns``."""
        self.any = True
        sources = self._sources.setdefault(request.app.name, OrderedDict())
        key = (request.client, request.stream or "")
        source = sources.get(key)
        if source is None:
            source = sources[key] = CriticalSource()
            if len(sources) > SOURCES_MAX:
                sources.popitem(last=False)
        source.accepted(request, now_ns, alone_ns)
        sources.move_to_end(key)
        leaves_ns = self._leaves_ns.get(request.app.name, source.until_ns)
        self._leaves_ns[request.app.name] = min(leaves_ns, source.until_ns)

    def ended(self, app: str, in_time: bool) -> None:
        """A critical request of an app was answered, or given up for its deadline. What is expected of batches errs,
        and what comes while the lane is kept queues: how much room that takes is learnt from late ones."""
        over = self._over.get(app, 0.0) + (-FORGETS if in_time else 1.0)
        self._over[app] = max(0.0, min(OVER_MAX, over))

    def rooms(self, apps: Sequence[App], now_ns: int) -> Rooms:
        """The time for which a lane that serves these apps may be kept without making critical requests late. Half of
        the lane time of the open ones passes before the next one is served."""
        opened: List[int] = []
        expected: List[Tuple[int, int]] = []
        irregular: List[Tuple[int, float]] = []
        busy_ns, most_ns = 0, FOREVER_NS
        for app in apps:
            margin = MARGIN * self._over.get(app.name, 0.0)
            for source in self._sources_of(app, now_ns):
                slack_ns, alone_ns, next_ns = source.slack_ns, source.alone_ns, source.next_ns
                margin_ns = round(margin * slack_ns) if margin else 0
                for request in source.open:
                    if not request.running and not request.ended:
                        room_ns = request.deadline_ns - now_ns - alone_ns
                        if room_ns >= 0:
                            opened.append(max(0, room_ns - margin_ns))
                            busy_ns += alone_ns
                if next_ns > source.last_ns:
                    expected.append((max(0, next_ns - now_ns) + slack_ns - margin_ns, source.period_ns))
                    most_ns = min(most_ns, slack_ns - margin_ns + source.period_ns)
                else:
                    most_ns = min(most_ns, slack_ns - margin_ns)
                    irregular.append((slack_ns - margin_ns, source.per_ns(now_ns)))
        if not (opened or expected or irregular):
            return NO_ROOMS
        opened.sort()
        expected = [(max(0, room_ns - busy_ns // 2), period_ns) for room_ns, period_ns in expected]
        over = max([self._over[app.name] for app in apps if app.name in self._over], default=0.0)
        return Rooms(opened, expected, irregular, over, most_ns)

    def room_ns(self, apps: Sequence[App], now_ns: int) -> Tuple[int, int | None]:
        """The time that a work that starts now may take, so that no critical request of these apps is late behind it,
        and when that grows although none comes (None: never, no source is expected). Forgets sources that do not come
        any more."""
        room_ns, grows_ns = FOREVER_NS, FOREVER_NS
        for app in apps:
            for source in self._sources_of(app, now_ns):
                room_ns = min(room_ns, source.room_ns(now_ns))
                grows_ns = min(grows_ns, source.until_ns)
        return room_ns, None if room_ns == FOREVER_NS else grows_ns

    def _sources_of(self, app: App, now_ns: int) -> Iterable[CriticalSource]:
        """The sources of an app that are still expected to come back; the others are forgotten."""
        sources = self._sources.get(app.name)
        if sources is None:
            return ()
        if self._leaves_ns[app.name] <= now_ns:
            for key in [key for key, source in sources.items() if source.until_ns <= now_ns]:
                del sources[key]
            if not sources:
                del self._sources[app.name]
                self.any = bool(self._sources)
                return ()
            self._leaves_ns[app.name] = min([source.until_ns for source in sources.values()])
        return sources.values()


def apps_on(apps: Mapping[str, App], models: Mapping[str, object]) -> Tuple[App, ...]:
    """The apps that use one of these models."""
    return tuple([app for app in apps.values() if any(model in models for node in app.nodes for model in node.models)])
