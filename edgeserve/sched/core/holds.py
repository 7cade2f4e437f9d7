"""Batching delay: the short wait of a lane for a fuller batch, where that pays and nothing else waits for the lane.

There are two reasons to wait. *Returning clients*: sixteen clients that ask again as soon as they are answered can run
as 8 + 8 + 8 ... for ever, since the other 8 start a moment before those just answered are back. One wait makes batches
of 16 from then on. Of each (app, client) it is learnt how many answers are followed by another request within a short
window, and how soon; arrivals that follow no answer count against it, so that no lane waits for an open loop.
*Pressure*: near a limit of heat or power a fuller batch takes less energy per answer. Integers only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Sequence, Tuple

from edgeserve.priority_class import ORDINARY, RESERVED
from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.states import COMPLETED, DONE, Job
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS, NS_PER_US

WINDOW_SHARE = (2, 5)
"""A request counts as a return within this part of the time of the batch that its client was answered with. At most two
fifths of the arrivals of an open loop fall into these windows by chance, at any load: see :data:`TRUSTED`."""

WINDOW_NS_MAX = 20 * NS_PER_MS
"""The longest window: no lane waits longer."""

TRUSTED = (3, 4)
"""The least share of returns among a client's counted answers, and arrivals that follow none, for which a lane
waits."""

COUNTED = (16, 64)
"""Answers and arrivals that must have been counted before; and when all counts are halved: the last ones decide."""

DELAYS_LEN = 8
"""Answers together whose last return is remembered: the longest of these delays is what a lane waits for."""

JITTER_NS = 100 * NS_PER_US
"""The time that a return may take beyond the longest remembered delay and a quarter of it."""

CLIENTS_MAX = 64
"""Clients remembered per app, those last answered. More than some batches hold have full batches without waiting."""

GAIN_MIN = 8
"""A fuller batch must save this part of the time per request, beyond the wait for clients itself."""

STRIKES_MAX = 6
"""The most doublings of the pause after waits that did not pay: the next 2, 4, 8 ... chances are passed over, 64 at
most."""

PRESSURE_SHARES = (0.0, 0.5, 0.7)
"""The share of the time that a job could still wait for which it may, by the device's pressure (0, 1 soft, 2 hard)."""


@dataclass(eq=False)
class ReturningClient:
    """The record of one client of one app. ``returned`` of ``counted`` answers and arrivals were returns."""

    answered_ns: int = 0
    until_ns: int = -1  # requests that follow by then are returns
    due_ns: int = -1  # when all that is owed should be here
    owed: int = 0  # requests answered at ``answered_ns`` for which none has followed yet
    returned: int = 0
    counted: int = 0
    trusted: bool = False  # a lane may wait for this client
    last_ns: int = -1  # how long after answered_ns the last return came so far
    delays_ns: Deque[int] = field(default_factory=lambda: deque(maxlen=DELAYS_LEN))

    def open(self, now_ns: int, window_ns: int) -> None:
        """Requests are answered now; the window before is over unless some of its returns may still come."""
        if self.until_ns < now_ns or not self.owed:  # the expected returns will not come
            self.counted += self.owed
            self.owed = 0
            if self.last_ns >= 0:
                self.delays_ns.append(self.last_ns)
                self.last_ns = -1
            while self.counted > COUNTED[1]:
                self.counted //= 2
                self.returned //= 2
            self.trusted = self.counted >= COUNTED[0] and self.returned * TRUSTED[1] >= self.counted * TRUSTED[0]
        longest_ns = max(self.delays_ns, default=0)
        self.answered_ns = now_ns
        self.until_ns = now_ns + window_ns
        self.due_ns = now_ns + min(window_ns, longest_ns + longest_ns // 4 + JITTER_NS)


@dataclass(eq=False)
class Wait:
    """A lane that waits for clients: for which model, since when, until when at most, and how many jobs it could have
    started."""

    model: str
    since_ns: int
    until_ns: int
    count: int


class Holds:
    """Decides which lanes wait. :meth:`answered` and :meth:`came` teach it, :meth:`holds` decides.

    ``learns``: some lane may wait for clients. ``awaited_until_ns``: no trusted client is expected later. ``waits`` are
    those of lanes for clients. After that time, with no wait and no pressure, :meth:`holds` need not be asked.
    ``wake_ns`` is when the first of the present step's waits ends, or None.
    """

    def __init__(self, state: State, slack: Slack) -> None:
        self.awaited_until_ns = 0
        self.wake_ns: int | None = None
        self.waits: Dict[str, Wait] = {}  # by lane
        self._slack = slack
        self._state = state
        self._known: Dict[str, OrderedDict[str, ReturningClient]] = {}  # app -> client
        self._clients_of: Dict[str, List[OrderedDict[str, ReturningClient]]] = {}  # model -> of each app that begins so
        for app in state.apps.values():
            models = [
                node.model
                for node in app.entries
                if any(state.latency[node.model, lane.name].size_max > 1 for lane in state.lanes_of[node.model])
            ]
            if models:
                self._known[app.name] = OrderedDict()
                for model in dict.fromkeys(models):
                    self._clients_of.setdefault(model, []).append(self._known[app.name])
        self.learns = bool(self._known)
        self._strikes: Dict[str, int] = {}  # by lane: waits in vain, less the ones that paid since
        self._skip: Dict[str, int] = {}  # by lane: waits still to be let pass

    # --- learning -----------------------------------------------------------------------------------------------------

    def answered(self, jobs: Sequence[Job], work: Work, took_ns: int) -> None:
        """A batch is back after ``took_ns`` with these jobs; the requests that completed with it are answered now."""
        now = self._state.board.now_ns
        part, whole = WINDOW_SHARE
        window_ns = min(took_ns * part // (whole * len(self._state.lanes_of[work.model])), WINDOW_NS_MAX)
        seen = set()
        for job in jobs:
            request = job.request
            clients = self._known.get(request.app.name)
            if clients is None or job.state != DONE or request.state != COMPLETED or request.id in seen:
                continue
            if not request.app.simple:
                seen.add(request.id)
            client = clients.get(request.client)
            if client is None:
                client = clients[request.client] = ReturningClient()
                if len(clients) > CLIENTS_MAX:
                    clients.popitem(last=False)
            if client.answered_ns != now or not client.owed:
                clients.move_to_end(request.client)
                client.open(now, window_ns)
                if client.trusted and client.due_ns > self.awaited_until_ns:
                    self.awaited_until_ns = client.due_ns
            client.owed += 1

    def came(self, request: Request) -> None:
        """A request arrived, maybe of a client that was answered before."""
        clients = self._known.get(request.app)
        client = clients.get(request.client) if clients else None
        if client is None:
            return
        now = self._state.board.now_ns
        client.counted += 1
        if client.owed and now <= client.until_ns:
            client.owed -= 1
            client.returned += 1
            client.last_ns = now - client.answered_ns

    # --- deciding -----------------------------------------------------------------------------------------------------

    def holds(self, lane: Lane, bid: Bid, bids: Sequence[Bid]) -> bool:
        """True if ``lane`` waits for a fuller batch instead of starting ``bid``, the best of ``bids``, now."""
        now = self._state.board.now_ns
        until_ns = now
        if (
            bid.priority_class in ORDINARY
            and not bid.probe
            and not bid.drops
            and bid.steps_max is None
            and not self._state.draining
        ):
            pressure = self._state.devices[lane.device].pressure
            if pressure:
                until_ns = self._under_pressure_ns(lane, bid, PRESSURE_SHARES[pressure])
            until_ns = max(until_ns, self._for_clients_ns(lane, bid, bids))
        elif lane.name in self.waits:
            self._grade(lane, bid, now)
        if until_ns <= now:
            return False
        if self.wake_ns is None or until_ns < self.wake_ns:
            self.wake_ns = until_ns
        return True

    # --- pressure -----------------------------------------------------------------------------------------------------

    def _under_pressure_ns(self, lane: Lane, bid: Bid, share: float) -> int:
        """The time until which the lane waits for the cheapest batch per job: for a ``share`` of the time for which all
        jobs that wait for it could wait, model after model, as slow as the slowest lately. ``now`` where something
        cannot wait, or a fuller batch saves too little."""
        now, takes_ns = self._state.board.now_ns, 0
        soonest: Tuple[int, int] = (2**62, now)  # the deadline that is due first, and since when its job waits
        if next(self._slack.waiting(lane, RESERVED), None) is not None:
            return now
        ready = self._state.ready.of
        for model in lane.models:
            rows = sorted([row for name in ORDINARY for row in ready[name][model]])
            if not rows:
                continue
            latency = self._state.latency[model, lane.name]
            best = _cheapest_size(latency)
            if len(rows) >= best or any(job.steps for _, _, job in rows):
                return now
            if model == bid.model:
                count = len(bid.jobs)
                together_ns, now_ns = (
                    latency.typical_ns[best] * count,
                    latency.typical_ns[latency.size_for[count]] * best,
                )
                if together_ns > now_ns - now_ns // GAIN_MIN:
                    return now
            takes_ns += latency.slowest_ns[best]
            soonest = min(soonest, (rows[0][0], rows[0][2].ready_ns))
        due_ns, ready_ns = soonest
        spare_ns = due_ns - takes_ns - ready_ns
        return ready_ns + int(spare_ns * share) - (lane.available_ns(now) - now) if spare_ns > 0 else now

    # --- returning clients --------------------------------------------------------------------------------------------

    def _for_clients_ns(self, lane: Lane, bid: Bid, bids: Sequence[Bid]) -> int:
        """The time until which the lane waits for clients to return; ``now`` where it does not."""
        now, wait = self._state.board.now_ns, self.waits.get(lane.name)
        latency = self._state.latency[bid.model, lane.name]
        until_ns = now
        if (wait is None or wait.model == bid.model) and self._may_wait(lane, bid, bids, now):
            until_ns = self._pays_until_ns(latency, bid, lane, now + WINDOW_NS_MAX if wait is None else wait.until_ns)
        if wait is not None:
            wait.until_ns = until_ns
            if until_ns <= now:
                self._grade(lane, bid, now)
            return until_ns
        if until_ns > now:
            skip = self._skip.get(lane.name, 0)
            if skip:
                self._skip[lane.name] = skip - 1
                return now
            self.waits[lane.name] = Wait(bid.model, now, until_ns, len(bid.jobs))
            for job in bid.jobs:
                job.request.note(now, "waits for clients that were just answered, at most", until_ns - now, "ns")
        return until_ns

    def _may_wait(self, lane: Lane, bid: Bid, bids: Sequence[Bid], now: int) -> bool:
        """True if a wait of the lane would delay the bid's own requests alone."""
        if lane.works or bid.model not in self._clients_of:
            return False
        for competing in bids:
            if competing is not bid and not competing.is_background:
                return False
        for other in self._state.lanes_of[bid.model]:
            if other is not lane and not other.works and other.accepts(now):
                return False
        slack = self._slack
        return (
            next(slack.waiting(lane, RESERVED), None) is None
            and next(slack.waiting(lane, ORDINARY, bid.model), None) is None
        )

    def _pays_until_ns(self, latency: BatchTime, bid: Bid, lane: Lane, latest_ns: int) -> int:
        """The time until which a wait pays, at most ``latest_ns``; ``now`` where none does.

        What counts is the lane time per request: of the batch and the returns after it, against the two in one batch
        and the wait. If the wait lasts, every request of the batch must be in time by the careful estimate, and the
        next critical request that is expected behind it.
        """
        board = self._state.board
        now, count, most = board.now_ns, len(bid.jobs), latency.size_max
        rows = [
            (min(client.due_ns, latest_ns), client.owed)
            for clients in self._clients_of[bid.model]
            for client in clients.values()
            if client.owed and client.trusted and client.due_ns > now
        ]
        if count >= most or not rows or latest_ns <= now:
            return now
        rows.sort()
        deadline_ns = min([job.deadline_ns for job in bid.jobs])
        times_ns, size_for = latency.typical_ns, latency.size_for
        after = min(most, sum([owed for _, owed in rows]))
        limit = (times_ns[size_for[count]] + times_ns[size_for[after]]) * most // (count + after)
        best_ns, together = now, count
        for due_ns, owed in rows:
            together = min(most, together + owed)
            size = size_for[together]
            cost = (due_ns - now + times_ns[size]) * most // together
            ends_ns = due_ns + latency.estimate_ns[size]
            if (
                cost + cost // GAIN_MIN < limit
                and ends_ns <= deadline_ns
                and board.spares_critical(lane, ends_ns - now)
            ):
                best_ns, limit = due_ns, cost + cost // GAIN_MIN
            if together == most:
                break
        return best_ns

    def _grade(self, lane: Lane, bid: Bid, now: int) -> None:
        """The wait is over: the batch starts. Waits that did not pay make the next ones rarer."""
        wait = self.waits.pop(lane.name)
        if bid.model != wait.model or bid.priority_class not in ORDINARY:
            return  # something else has come
        latency = self._state.latency[bid.model, lane.name]
        times_ns, size_for = latency.typical_ns, latency.size_for
        grown = len(bid.jobs) - wait.count
        strikes = self._strikes.get(lane.name, 0)
        if (
            grown > 0
            and times_ns[size_for[wait.count]] + times_ns[size_for[grown]]
            > times_ns[size_for[len(bid.jobs)]] + now - wait.since_ns
        ):
            self._strikes[lane.name] = strikes // 2
            return
        strikes = self._strikes[lane.name] = min(STRIKES_MAX, strikes + 1)
        self._skip[lane.name] = 1 << strikes


def _cheapest_size(latency: BatchTime) -> int:
    """The batch size that takes the least time per job; the smaller of two that are equal."""
    best, best_ns = latency.sizes[0], latency.typical_ns[latency.sizes[0]]
    for size in latency.sizes[1:]:
        if latency.typical_ns[size] * best < best_ns * size:
            best, best_ns = size, latency.typical_ns[size]
    return best
