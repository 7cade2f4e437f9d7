"""Admission: a request is accepted, refused, or takes the place of another one.

Room is ``requests/admission.py``; whether a request can be in time is asked of its app's policy. What happens to an
accepted request is ``request_manager.py``. Knows no clock (the time is ``board.now_ns``) and no lane.
"""

from __future__ import annotations

from edgeserve.errors import PolicyError
from edgeserve.sched.core.ends import EXPIRED
from edgeserve.sched.core.holds import Holds
from edgeserve.sched.core.refusals import shortfall_of
from edgeserve.sched.core.request_manager import RequestManager
from edgeserve.sched.core.state import State
from edgeserve.sched.protocol.events import RequestArrived
from edgeserve.sched.requests.admission import (
    OVER_SHARE,
    QUEUE_FULL,
    SERVER_FULL,
    Use,
    rank_within,
    to_displace_anywhere,
)
from edgeserve.sched.requests.arrivals import UNREAD_MAX
from edgeserve.sched.requests.promises import RANK
from edgeserve.sched.requests.states import RequestRecord, has_written
from edgeserve.sched.requests.worth import WORK

NEWEST_MAX = 256
"""Requests of a client that are looked at for one that a more important one may replace: a flood of claims must not
make each refusal expensive."""

DRAINING = "draining"
"""Reason of a request that comes while the scheduler drains."""


class Entry:
    """The way in. Changes requests through ``manager`` and ``ends`` alone."""

    def __init__(self, state: State, manager: RequestManager, holds: Holds) -> None:
        self._state = state
        self._manager = manager
        self._ends = manager.ends
        self._holds = holds
        self._board = state.board
        self._streams = state.streams
        self._requests = state.requests

    def arrived(self, event: RequestArrived) -> None:
        """Accept or reject a request."""
        arrived, state, now = event.request, self._state, self._board.now_ns
        if self._holds.learns:
            self._holds.came(arrived)
        if arrived.id in self._requests:
            raise PolicyError(f"request id {arrived.id} arrived twice")
        app = state.apps[arrived.app]
        request = RequestRecord(arrived, app, state.policy_of[app.name])
        request.log.append((now, ("arrived",)))
        costs = state.costs[app.name]
        if now >= costs.fresh_until_ns:
            costs.refresh(now)
        steps = max(1, int(request.hints.get("steps", 1))) if request.hints and app.simple else 1
        own_ns = costs.cost_share_ns * steps
        request.cost_share_ns = costs.own_share_ns(request.hints) if app.worth == WORK and request.hints else own_ns
        if request.has_owner and not arrived.trusted:
            rank_within(request)
            if request.claim is not None and request.claim > 1.0:
                request.note(
                    now,
                    f"class {arrived.priority_class} and value {arrived.value:g} rank it among its client's own alone",
                )
        if state.draining:
            self._ends.reject(request, DRAINING)
            return
        if arrived.deadline_ns <= now and arrived.on_late != "answer":
            self._ends.reject(request, EXPIRED)
            return
        displaced = None
        admission = state.admission[app.name]
        if admission.pending >= app.pending_max:
            displaced = admission.to_displace(request.share) or self._gives_way(request)
            if displaced is None:
                clients = len(admission.clients)
                self._ends.reject(
                    request, OVER_SHARE if clients > 1 and request.share in admission.clients else QUEUE_FULL
                )
                return
        elif len(self._requests) >= state.pending_max:
            displaced = to_displace_anywhere(tuple(state.admission.values()), request.share)
            displaced = displaced or self._gives_way(request)
            if displaced is None:
                self._ends.reject(request, SERVER_FULL)
                return
        if (
            request.has_owner
            and not self._is_within(request, steps, arrived.charged_ns)
            and not self._replaces(request)
        ):
            displaced = self._gives_way(request)
            if displaced is None:
                self._ends.reject(request, OVER_SHARE)
                return
        recent = app.recent
        recent.unread.append(
            (now, float(request.cost_share_ns), request.value, float(arrived.deadline_ns - arrived.arrival_ns))
        )
        if len(recent.unread) >= UNREAD_MAX:
            recent.count()
        if state.promises.notes and state.promises.take(
            (request.share, app.name, request.priority_class), arrived.deadline_ns - arrived.arrival_ns, now
        ):
            request.rank = RANK
            request.value *= RANK
            request.note(now, "comes back with a deadline that it was promised: it goes before its equals")
        refused = request.policy.on_request(request, self._board)
        if refused is not None and (displaced is not None or not self._ends.trials.takes(request, refused)):
            self._ends.reject(request, refused, shortfall_of(state, request, None))
            return
        if displaced is not None and not displaced.ended:
            self._manager.give_up(displaced, OVER_SHARE)
        for use, lane_ns in request.uses:
            if len(use.shared.uses) > 1:
                self._make_room(use, lane_ns)
        admission.enter(request)
        admission.last_ns = now
        self._manager.accept(request, arrived)

    def _is_within(self, request: RequestRecord, steps: int, charged_ns: int) -> bool:
        """Note what a client's request wants of its lanes and, where it ranks within its owner, what it counts. Whether
        the client may have so much more pending."""
        app, now, claim = request.app, self._board.now_ns, request.claim
        within, worth = True, 1.0
        for shared, kept_ns in zip(
            self._state.lane_shares[app.name][request.priority_class], self._state.costs[app.name].kept_ns
        ):
            lane_ns = kept_ns * steps + charged_ns // len(app.nodes)
            use = shared.asks(request, lane_ns, now, request.policy.lets_urgent_first)
            request.uses.append((use, lane_ns))
            if len(shared.uses) > 1:
                within = shared.is_within(use, lane_ns, now) and within
            if claim is not None:
                worth = min(worth, use.worth(claim, now))
        if claim is not None:
            request.value = app.value * min(worth, claim)
        return within

    def _replaces(self, request: RequestRecord) -> bool:
        """True if a request takes the place of another of its stream."""
        return (
            request.stream is not None
            and request.app.stream == "newest_wins"
            and bool(self._streams.superseded(request))
        )

    def _gives_way(self, request: RequestRecord) -> RequestRecord | None:
        """The request of the same owner and app that goes so that a more important one can come in: the newest of those
        of the last :data:`NEWEST_MAX` that wait and claim least, if it keeps the lanes as long."""
        found: RequestRecord | None = None
        least = request.claim
        if least is None:
            return None
        theirs = self._state.admission[request.app.name].clients.get(request.share, {})
        for other in list(theirs.values())[: -NEWEST_MAX - 1 : -1]:
            claim = other.claim
            if (
                claim is not None
                and claim < least
                and other.running == 0
                and not has_written(other)
                and all(mine[0] is its[0] and mine[1] <= its[1] for mine, its in zip(request.uses, other.uses))
            ):
                found, least = other, claim
        return found

    def _make_room(self, use: Use, lane_ns: int) -> None:
        """Drop the newest waiting requests of clients above their part until one of ``use`` is in time."""
        shared = use.shared
        while True:
            share = shared.in_the_way(use, lane_ns, self._board.now_ns)
            if not share:
                return
            waiting = [
                theirs.id
                for admission in self._state.admission.values()
                for theirs in admission.clients.get(share, {}).values()
                if theirs.running == 0
                and not has_written(theirs)
                and any(other.shared is shared for other, _ in theirs.uses)
            ]
            if not waiting:
                return
            self._ends.end(self._requests[max(waiting)], "drop", OVER_SHARE)
