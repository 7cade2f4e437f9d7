"""Clients that ask again as soon as they are answered, and the short wait of a lane for them where that surely pays.

Sixteen requests in flight of such clients can run as 8 + 8 + 8 ... for ever: when a batch of 8 ends, the other 8 start,
and those just answered come back a moment later. One wait for them makes batches of 16 from then on.

:class:`Returns` learns for each (app, client) how many of the requests that were answered are followed by another one
within a short window, and how soon. Arrivals that follow no answer count against it, so a client that asks whatever is
answered (an open loop) is never waited for. Integers only; knows no policy by name.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Sequence, Tuple

from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.arbiter import is_background
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.events import Event, RequestArrived
from edgeserve.sched.requests.states import COMPLETED, DONE, READY
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS, NS_PER_US

WINDOW_SHARE = (2, 5)
"""A request counts as a return within this part of the time of the batch that its client was answered with. At most two
fifths of the arrivals of an open loop fall into these windows by chance, at any load: see :data:`TRUSTED`."""

WINDOW_NS_MAX = 20 * NS_PER_MS
"""The longest window: no lane waits longer."""

TRUSTED = (3, 4)
"""Returns among what is counted of a client (answers, and arrivals that follow none), at least, before a lane waits."""

COUNTED_MIN = 16
"""Answers and arrivals that must have been counted before."""

COUNTED_MAX = 64
"""When so many are counted, all counts are halved: the last ones decide."""

DELAYS_LEN = 8
"""Answers together whose last return is remembered: the longest of these delays is what a lane waits for."""

SLACK_NS = 100 * NS_PER_US
"""What a return may take longer than a quarter over the longest remembered delay."""

CLIENTS_MAX = 64
"""Clients remembered per app. More than some batches hold have full batches without waiting."""

SILENT_NS = 10_000 * NS_PER_MS
"""A client that was answered last so long ago makes room for another one."""

MARGIN = 8
"""A wait must save this part of the time per request, beyond the wait itself."""

STRIKES_MAX = 6
"""After a wait that did not pay, the next 2, 4, 8 ... times that one would are let pass: 64 at most."""

OPEN_MAX = 256
"""With more open requests than this no lane waits: it bounds what is looked at before a wait."""


class ReturningClient:
    """What is known of one client of one app.

    ``owed`` are the requests answered at ``answered_ns`` for which none has followed yet; those that follow by
    ``until_ns`` are returns. ``returned`` of ``counted`` answers and arrivals were returns. ``trusted``: a lane may
    wait for this client; ``due_ns`` is when all that is owed should be here then.
    """

    __slots__ = (
        "answered_ns",
        "until_ns",
        "due_ns",
        "owed",
        "returned",
        "counted",
        "trusted",
        "last_ns",
        "_delays_ns",
        "_window_max_ns",
    )

    def __init__(self) -> None:
        self.answered_ns = 0
        self.until_ns = -1
        self.due_ns = -1
        self.owed = 0
        self.returned = 0
        self.counted = 0
        self.trusted = False
        self.last_ns = -1  # how long after answered_ns the last return came so far
        self._delays_ns: Deque[int] = deque(maxlen=DELAYS_LEN)
        self._window_max_ns = SLACK_NS

    def open(self, now_ns: int, window_ns: int) -> None:
        """Requests are answered now; the window before is over unless some of its returns may still come."""
        if self.until_ns < now_ns or not self.owed:
            self.close()
        self.answered_ns = now_ns
        self.until_ns = now_ns + window_ns
        self.due_ns = now_ns + min(window_ns, self._window_max_ns)

    def close(self) -> None:
        """The window is over: what is owed will not come."""
        self.counted += self.owed
        self.owed = 0
        if self.last_ns >= 0:
            self._delays_ns.append(self.last_ns)
            self.last_ns = -1
            longest_ns = max(self._delays_ns)
            self._window_max_ns = longest_ns + longest_ns // 4 + SLACK_NS
        while self.counted > COUNTED_MAX:
            self.counted //= 2
            self.returned //= 2
        self.trusted = self.counted >= COUNTED_MIN and self.returned * TRUSTED[1] >= self.counted * TRUSTED[0]


class Wait:
    """A lane that waits: for which model, since when, until when at most, and how many jobs it could have started."""

    __slots__ = ("model", "since_ns", "until_ns", "count")

    def __init__(self, model: str, since_ns: int, until_ns: int, count: int) -> None:
        self.model = model
        self.since_ns = since_ns
        self.until_ns = until_ns
        self.count = count


class Returns:
    """Who returns, and which lanes wait. :meth:`answered` and :meth:`arrived` teach it, :meth:`holds` decides.

    ``learns``: some lane may wait. ``awaited_until_ns``: nobody who is trusted is expected later. ``wake_ns`` is when
    the first of the present step's waits ends, or None.
    """

    __slots__ = (
        "learns",
        "awaited_until_ns",
        "wake_ns",
        "waits",
        "_state",
        "_known",
        "_clients_of",
        "_tidied_ns",
        "_strikes",
        "_skip",
    )

    def __init__(self, state: State) -> None:
        self.awaited_until_ns = 0
        self.wake_ns: int | None = None
        self.waits: Dict[str, Wait] = {}  # by lane
        self._state = state
        self._known: Dict[str, Dict[str, ReturningClient]] = {}  # app -> client
        self._clients_of: Dict[str, List[Dict[str, ReturningClient]]] = {}  # model -> those of each app that begins so
        for app in state.apps.values():
            models = [
                node.model
                for node in app.entries
                if any(
                    lane.waits and state.latency[node.model, lane.name].size_max > 1
                    for lane in state.lanes_of[node.model]
                )
            ]
            if models:
                self._known[app.name] = {}
                for model in dict.fromkeys(models):
                    self._clients_of.setdefault(model, []).append(self._known[app.name])
        self.learns = bool(self._known)
        self._tidied_ns = 0
        self._strikes: Dict[str, int] = {}  # by lane: waits in vain, less those that paid since
        self._skip: Dict[str, int] = {}  # by lane: waits still to be let pass

    # --- learning -----------------------------------------------------------------------------------------------------

    def answered(self, work: Work, took_ns: int) -> None:
        """A batch is back after ``took_ns``; the requests that completed with it are answered now."""
        now = self._state.board.now_ns
        part, whole = WINDOW_SHARE
        window_ns = min(took_ns * part // (whole * len(self._state.lanes_of[work.model])), WINDOW_NS_MAX)
        seen = set()
        for job in work.left():
            request = job.request
            clients = self._known.get(request.app.name)
            if clients is None or job.state != DONE or request.state != COMPLETED or request.id in seen:
                continue
            if not request.app.simple:
                seen.add(request.id)
            client = clients.get(request.client)
            if client is None:
                if len(clients) >= CLIENTS_MAX and not self._tidy(clients, now):
                    continue
                client = clients[request.client] = ReturningClient()
            if client.answered_ns != now or not client.owed:
                client.open(now, window_ns)
                if client.trusted and client.due_ns > self.awaited_until_ns:
                    self.awaited_until_ns = client.due_ns
            client.owed += 1

    def arrived(self, events: Sequence[Event]) -> None:
        """Some of ``events`` may be requests of clients that were answered before."""
        now = self._state.board.now_ns
        for event in events:
            if type(event) is RequestArrived:
                clients = self._known.get(event.request.app)
                client = clients.get(event.request.client) if clients else None
                if client is None:
                    continue
                client.counted += 1
                if client.owed and now <= client.until_ns:
                    client.owed -= 1
                    client.returned += 1
                    client.last_ns = now - client.answered_ns

    def _tidy(self, clients: Dict[str, ReturningClient], now: int) -> bool:
        """Forget the clients of an app that have been silent; whether there is room now."""
        if now - self._tidied_ns >= SILENT_NS // 10:
            self._tidied_ns = now
            for name in [name for name, client in clients.items() if now - client.answered_ns > SILENT_NS]:
                del clients[name]
        return len(clients) < CLIENTS_MAX

    # --- deciding -----------------------------------------------------------------------------------------------------

    def holds(self, lane: Lane, bid: Bid, bids: Sequence[Bid]) -> bool:
        """Whether ``lane`` waits for clients to return instead of starting ``bid``, the best of ``bids``, now."""
        now = self._state.board.now_ns
        wait = self.waits.get(lane.name)
        latency = self._state.latency[bid.model, lane.name]
        if wait is None and len(bid.jobs) >= latency.size_max:
            return False
        until_ns = now
        if self._may_wait(lane, bid, bids, now) and (wait is None or wait.model == bid.model):
            until_ns = self._pays_until_ns(latency, bid, lane, now + WINDOW_NS_MAX if wait is None else wait.until_ns)
        if until_ns <= now:
            if wait is not None:
                self._grade(lane, bid, wait, now)
            return False
        if wait is None:
            skip = self._skip.get(lane.name, 0)
            if skip:
                self._skip[lane.name] = skip - 1
                return False
            wait = self.waits[lane.name] = Wait(bid.model, now, until_ns, len(bid.jobs))
            for job in bid.jobs:
                job.request.note(now, "waits for clients that were just answered, at most", until_ns - now, "ns")
        wait.until_ns = until_ns
        if self.wake_ns is None or until_ns < self.wake_ns:
            self.wake_ns = until_ns
        return True

    def _may_wait(self, lane: Lane, bid: Bid, bids: Sequence[Bid], now: int) -> bool:
        """Whether a wait of the lane would keep nobody waiting but the bid's own requests."""
        state = self._state
        if (
            not lane.waits
            or lane.works
            or bid.klass != "normal"
            or bid.probe
            or bid.drops
            or state.draining
            or bid.latest_start_ns is not None
            or bid.steps_max is not None
            or bid.model not in self._clients_of
            or len(state.requests) > OPEN_MAX
        ):
            return False
        for competing in bids:
            if competing is not bid and not is_background(competing):
                return False
        for other in state.lanes_of[bid.model]:
            if other is not lane and not other.works and other.accepts(now):
                return False
        for request in state.requests.values():
            for job in request.jobs.values():
                if (
                    job.state == READY
                    and job.node.model in lane.models
                    and request.klass != "background"
                    and (job.node.model != bid.model or request.klass == "critical")
                ):
                    return False
        return True

    def _pays_until_ns(self, latency: BatchTime, bid: Bid, lane: Lane, latest_ns: int) -> int:
        """Until when a wait pays, at most ``latest_ns``; ``now`` where none does.

        What counts is the lane time per request: of the batch and the returns after it, against the two in one batch
        and the wait. If the wait lasts, every request of the batch must be in time by the careful estimate, and the
        next critical request that is expected behind it.
        """
        now, critical = self._state.board.now_ns, self._state.critical
        count, most = len(bid.jobs), latency.size_max
        rows: List[Tuple[int, int]] = []
        returns = 0
        for clients in self._clients_of[bid.model]:
            for client in clients.values():
                if client.owed and client.trusted:
                    due_ns = min(client.due_ns, latest_ns)
                    if due_ns > now:
                        rows.append((due_ns, client.owed))
                        returns += client.owed
        if count >= most or not rows:
            return now
        rows.sort()
        deadline_ns = min([job.deadline_ns for job in bid.jobs])
        if critical.any:
            deadline_ns = min(deadline_ns, now + critical.room_ns(self._state.board.apps_on[lane.name], now)[0])
        times_ns, size_for = latency.typical_ns, latency.size_for
        after = min(most, returns)
        limit = (times_ns[size_for[count]] + times_ns[size_for[after]]) * most // (count + after)
        best_ns, together = now, count
        for due_ns, owed in rows:
            together = min(most, together + owed)
            size = size_for[together]
            cost = (due_ns - now + times_ns[size]) * most // together
            if cost + cost // MARGIN < limit and due_ns + latency.estimate_ns[size] <= deadline_ns:
                best_ns, limit = due_ns, cost + cost // MARGIN
            if together == most:
                break
        return best_ns

    def _grade(self, lane: Lane, bid: Bid, wait: Wait, now: int) -> None:
        """The wait is over: the batch starts. Waits that did not pay make the next ones rarer."""
        del self.waits[lane.name]
        if bid.model != wait.model or bid.klass != "normal":
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
