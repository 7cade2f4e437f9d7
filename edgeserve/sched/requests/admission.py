"""Admission: the bounds on pending requests, of an app and of the server, shared among clients by weight,
and the lane time of a class, shared on each set of lanes among the clients that want it.

While there is room every request comes in. When an app is full, a client below its share takes the place of the newest
waiting request of the client that is furthest above its own; a client at or above its share is refused. A full server
does the same over all apps. Clients that the server tells apart are one where their connections belong to one owner
(``RequestRecord.share``).

Places alone do not share a lane: of a queue in order of deadlines, the client that sends most gets most. So while
several clients of a class want the same lanes and more is pending than is over in time, each has its part
(:class:`LaneShare`). What a client had beyond its part counts as if it were pending still: a client whose requests wait
less would get more lane time from the same number of them. This holds for clients whose connections the server knows.

The class and value of such a client's requests rank them among its own alone (:func:`rank_within`),
unless the configuration or its right to control the server lets it say more.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence, Set, Tuple

from edgeserve.owners import NAME_MARK, by_user, user_of, who_makes_room
from edgeserve.priority_class import CLASSES, RANKS
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.units import FOREVER_NS

QUEUE_FULL = "queue_full"
OVER_SHARE = "over_share"
SERVER_FULL = "server_full"

ACTIVE_NS = 1_000_000_000
"""A client wants lane time if it has a request pending, or one came so lately."""

ROOM_PERCENT = 66
"""The percentage of the time until a deadline that may be pending on its lanes where a client wants more than its part:
running batches, batches that are not full and requests that come meanwhile take the rest."""

REFRESH_NS = 10_000_000
"""The time for which the set of competing clients is reused."""

CLASS_STEP = 1000.0
"""A class above the app's own ranks a request so far above others of its owner: more than values differ by."""

LEAST_WORTH = 1 / 32
"""The least worth of an owner's request, as a share of its own value: one number that is far too large must not
make the owner's other requests worthless. Policies tell values apart by a factor of about 30."""


def rank_within(request: RequestRecord) -> None:
    """Let what a request says of itself count within its owner alone: its class is its app's own where it claims a more
    urgent one, and ``claim`` ranks it. A lesser class counts where the policy has it wait for others."""
    app = request.app
    claim = request.value / app.value if app.value else 1.0
    raised = RANKS[app.priority_class] - RANKS[request.priority_class]
    if raised > 0 or not request.policy.lets_urgent_first:
        request.priority_class = app.priority_class
        claim *= CLASS_STEP**raised
    request.claim = claim


def weight_of(share: str, weights: Mapping[str, float]) -> float:
    """The weight of an owner: its own, that of what it calls itself, or its user's."""
    own = weights.get(share)
    if own is None:
        own = weights.get(share.partition(NAME_MARK)[0])
    return own if own is not None else weights.get(user_of(share), 1.0)


class Admission:
    """Accepted requests that have not ended, of one app, by client; ``last_ns`` is when the last came in. Changed by
    the scheduler alone."""

    __slots__ = ("app", "pending", "clients", "last_ns")

    def __init__(self, app: App) -> None:
        self.app = app
        self.pending = 0
        self.last_ns = -FOREVER_NS
        self.clients: Dict[str, Dict[int, RequestRecord]] = {}

    def enter(self, request: RequestRecord) -> None:
        """The request was accepted."""
        self.pending += 1
        for use, lane_ns in request.uses:
            use.pending += 1
            use.pending_ns += lane_ns
            use.shared.total_ns += lane_ns
        theirs = self.clients.get(request.share)
        if theirs is None:
            theirs = self.clients[request.share] = {}
        theirs[request.id] = request

    def leave(self, request: RequestRecord) -> None:
        """The request ended."""
        self.pending -= 1
        for use, lane_ns in request.uses:
            use.pending -= 1
            use.pending_ns -= lane_ns
            use.shared.total_ns -= lane_ns
        theirs = self.clients[request.share]
        del theirs[request.id]
        if not theirs:
            del self.clients[request.share]

    def to_displace(self, client: str) -> RequestRecord | None:
        """When full: the request that must go so that one of ``client`` can come in, or None if ``client`` itself is
        at or above its share. O(clients + pending of the greediest)."""
        counts = {owner: len(theirs) for owner, theirs in self.clients.items()}
        greediest = who_makes_room(counts, client, lambda owner: weight_of(owner, self.app.weights))
        if greediest is None:
            return None
        waiting = [request for request in self.clients[greediest].values() if request.running == 0]
        return waiting[-1] if waiting else None


def to_displace_anywhere(admissions: Sequence[Admission], client: str) -> RequestRecord | None:
    """When the server is full: the request that must go so that one of ``client`` can come in, of any app; or None if
    ``client`` itself has as many as any other. O(clients + pending of the greediest)."""
    counts: Dict[str, int] = {}
    for admission in admissions:
        for owner, theirs in admission.clients.items():
            counts[owner] = counts.get(owner, 0) + len(theirs)
    greediest = who_makes_room(counts, client)
    if greediest is None:
        return None
    waiting = [
        request.id
        for admission in admissions
        for request in admission.clients.get(greediest, {}).values()
        if request.running == 0
    ]
    newest = max(waiting, default=-1)
    return next(
        (
            admission.clients[greediest][newest]
            for admission in admissions
            if newest in admission.clients.get(greediest, {})
        ),
        None,
    )


class Wants:
    """The demand of one client or user for a set of lanes in one class: ``recent_ns`` is the lane time that it asked
    for since ``since_ns``, faded linearly over :data:`ACTIVE_NS`, as of ``last_ns``. As of the last refresh, ``part``
    of the lanes' time is its own, and ``greedy`` says that it wants more. What it had beyond its part it is ahead."""

    __slots__ = ("since_ns", "last_ns", "recent_ns", "part", "greedy", "_ns", "_at_ns")

    def __init__(self) -> None:
        self.since_ns = -1
        self.last_ns = -FOREVER_NS
        self.recent_ns = 0
        self.part = 1.0
        self.greedy = False
        self._ns = 0
        self._at_ns = 0

    def asks(self, lane_ns: int, now_ns: int) -> None:
        """A request of it came."""
        if self.since_ns < 0:
            self.since_ns = now_ns
        self.recent_ns = self.recent_by(now_ns) + lane_ns
        self.last_ns = now_ns

    def recent_by(self, now_ns: int) -> int:
        """``recent_ns`` as of now."""
        return self.recent_ns * max(0, ACTIVE_NS - (now_ns - self.last_ns)) // ACTIVE_NS

    def want(self, now_ns: int, room_ns: int) -> float:
        """The share of the lanes' time that it wants. A newcomer's counts since it came, but for ``room_ns`` at least:
        else one that floods would be taken for modest for half a second."""
        return self.recent_by(now_ns) / min(ACTIVE_NS, max(room_ns, now_ns - self.since_ns))

    def by(self, now_ns: int, most_ns: int) -> int:
        """As of now: less what the part of the time was since, and one whole part at most (``most_ns``), of any
        size that a part had while no request was urgent."""
        if self._ns:
            self._ns = min(int(max(0.0, self._ns - (now_ns - self._at_ns) * self.part)), most_ns)
        self._at_ns = now_ns
        return self._ns

    def had(self, lane_ns: int, now_ns: int, most_ns: int) -> None:
        """It had lane time while others wanted some."""
        self._ns = min(self.by(now_ns, most_ns) + lane_ns, most_ns)


class Use(Wants):
    """The demand of one client: its pending requests and their lane time, and how much time the last one had until its
    deadline (:data:`FOREVER_NS` where it is answered late, too). ``grace_ns`` is the same as it counts beside others:
    where the policy lets nothing more urgent go first, no more than its app's, also where the client asks for more,
    since a long deadline would have others wait. ``of_user``: the demand of all processes of its user together, each of
    which may be gone before the next one asks.
    """

    __slots__ = ("shared", "user", "of_user", "pending", "pending_ns", "slack_ns", "grace_ns", "_most", "_most_at_ns")

    def __init__(self, shared: LaneShare, share: str) -> None:
        super().__init__()
        self.shared = shared
        self.user = user_of(share)
        self.of_user = shared.users.setdefault(self.user, Wants())
        self.pending = 0
        self.pending_ns = 0
        self.slack_ns = FOREVER_NS
        self.grace_ns = FOREVER_NS
        self._most = 1.0
        self._most_at_ns = 0

    def worth(self, claim: float, now_ns: int) -> float:
        """The worth of a request with this claim, as a share of its app's own value: the whole where none of its
        owner's claimed more in the last :data:`ACTIVE_NS`, else less. Never more: a client that claims much for all has
        raised none."""
        if claim >= self._most or now_ns - self._most_at_ns > ACTIVE_NS:
            self._most, self._most_at_ns = max(1.0, claim), now_ns
        return max(claim / self._most, min(1.0, claim) * LEAST_WORTH)


class LaneShare:
    """The lane time of one class on a set of lanes, by client. A request counts as long as it keeps the lanes of its
    models there, its work spread evenly over them: a model that runs on one lane of four keeps that one.

    Parts are max-min fair among users, and of each user's part among its processes: each has its share of the time by
    weight (a user that of its weightiest process), and what the others leave of theirs, by what came lately. There is
    room for every client while the pending work would be over in :data:`ROOM_PERCENT` of the shortest time that a
    client has. Beyond that a client may have pending what is over in its own time; a greedy one, which wants more than
    its part, has its part of that room. What it asks beyond is refused. A request that would be late takes the place of
    the newest waiting requests of the client that is furthest above its part, among clients with work due before. One
    client alone is never refused. To what a greedy client has pending counts the lane time that it had, less what its
    part of the time was since (a leaky bucket). Changed by the scheduler alone.
    """

    __slots__ = ("uses", "users", "total_ns", "room_ns", "_fresh_until_ns")

    def __init__(self) -> None:
        self.uses: Dict[str, Use] = {}
        self.users: Dict[str, Wants] = {}
        self.total_ns = 0
        self.room_ns = FOREVER_NS
        self._fresh_until_ns = -1

    def asks(self, request: RequestRecord, lane_ns: int, now_ns: int, lets_urgent_first: bool = True) -> Use:
        """A request came that keeps these lanes for so long: what its client wants, with it. ``lets_urgent_first``: see
        :class:`~edgeserve.sched.policy_api.policy.Policy`."""
        use = self.uses.get(request.share)
        if use is None:
            use = self.uses[request.share] = Use(self, request.share)
            self._fresh_until_ns = -1
        use.asks(lane_ns, now_ns)
        use.of_user.asks(lane_ns, now_ns)
        if request.on_late != "answer":
            use.slack_ns = request.deadline_ns - now_ns
        use.grace_ns = use.slack_ns
        if not lets_urgent_first and request.app.on_late != "answer":
            use.grace_ns = min(use.slack_ns, request.app.slo_ns)
        if len(self.uses) > 1 and now_ns >= self._fresh_until_ns:
            self._refresh(now_ns, request.app.weights)
        return use

    def _refresh(self, now_ns: int, weights: Mapping[str, float]) -> None:
        """Refresh the set of competing clients, the time of the most urgent of them, and the part of each. O(clients *
        log)."""
        self._fresh_until_ns = now_ns + REFRESH_NS
        slack_ns = FOREVER_NS
        for share, use in list(self.uses.items()):
            if not use.pending and now_ns - use.last_ns > ACTIVE_NS:
                del self.uses[share]
            else:
                slack_ns = min(slack_ns, use.slack_ns)
        self.room_ns = max(1, slack_ns) * ROOM_PERCENT // 100 if slack_ns < FOREVER_NS else FOREVER_NS
        wants = {  # of all time for each unit of weight, by whom, its weight
            share: (use.recent_by(now_ns) / (ACTIVE_NS * weight), share, weight)
            for share, use in self.uses.items()
            for weight in (weight_of(share, weights),)
        }
        users = by_user(self.uses)
        of_users = []
        for user, shares in users.items():
            weight = max([wants[share][2] for share in shares])
            of_users.append((self.users[user].want(now_ns, self.room_ns) / weight, user, weight))
        self.users = {user: self.users[user] for user in users}
        for user, (part, greedy) in _share_out(of_users, 1.0).items():
            shares = users[user]
            self.users[user].part, self.users[user].greedy = part, greedy
            parts = {shares[0]: (part, greedy)}
            if len(shares) > 1:
                parts = _share_out([wants[share] for share in shares], part)
            for share in shares:
                self.uses[share].part, self.uses[share].greedy = parts[share][0], greedy and parts[share][1]

    def part_ns(self, whose: Wants) -> int:
        """The lane time that a client, or a user, may have pending where shares count."""
        return int(self.room_ns * min(1.0, whose.part))

    def had(self, use: Use, lane_ns: int, weights: Mapping[str, float], now_ns: int) -> None:
        """A client had lane time while others wanted some. It is at most one whole part ahead, and so is its user."""
        if now_ns >= self._fresh_until_ns:
            self._refresh(now_ns, weights)
        for one in (use, use.of_user):
            one.had(lane_ns, now_ns, self.part_ns(one))

    def is_within(self, use: Use, lane_ns: int, now_ns: int) -> bool:
        """True if a client, one of several, may have so much more lane time pending. (Its user's first request always
        may: it may be dear; that of another process where its user has room.)"""
        if self.total_ns + lane_ns <= self.room_ns:
            return True
        if not use.greedy and use.of_user.greedy:  # modest as each of its processes is, they may be many
            modest = [other.pending_ns for other in self.uses.values() if other.user == use.user and not other.greedy]
            return not any(modest) or sum(modest) + lane_ns <= self.part_ns(use.of_user)
        if not use.greedy:
            return not use.pending or use.pending_ns + lane_ns <= use.grace_ns
        has_ns = use.pending_ns + use.by(now_ns, self.part_ns(use))
        if has_ns:
            return has_ns + lane_ns <= self.part_ns(use)
        have_ns = sum([other.pending_ns for other in self.uses.values() if other.user == use.user])
        most_ns = self.part_ns(use.of_user)
        have_ns += use.of_user.by(now_ns, most_ns)
        return not have_ns or have_ns + lane_ns <= most_ns

    def in_the_way(self, use: Use, lane_ns: int, now_ns: int) -> str:
        """The client that must make room for a request of ``use``: the one furthest above its part, among clients with
        work due before; ``""`` where the request would be in time, or none is above its part. Of a client that has
        longer, what can wait until after the request's deadline is not due before. O(clients)."""
        within_ns = use.slack_ns - lane_ns
        if self.total_ns <= within_ns:
            return ""
        before_ns, over_ns, found = 0, 0, ""
        for share, other in self.uses.items():
            later_ns = max(0, other.grace_ns - use.slack_ns) if other.grace_ns < FOREVER_NS else 0
            if other.pending_ns > later_ns:
                before_ns += other.pending_ns - later_ns
                above_ns = other.pending_ns + other.by(now_ns, self.part_ns(other)) - self.part_ns(other)
                if above_ns > over_ns and other is not use:
                    over_ns, found = above_ns, share
        return found if before_ns > within_ns else ""


def _share_out(wants: Sequence[Tuple[float, str, float]], whole: float) -> Dict[str, Tuple[float, bool]]:
    """Progressive filling of ``whole``: the one that wants least for its weight gets that, and the others share the
    rest. Name -> its part, and whether it wants more. ``wants``: for each unit of weight, the name, its weight."""
    wants = sorted(wants)
    total = 0.0
    for _, _, weight in wants:
        total += weight
    modest, rest, left = 0, whole, total
    for want, _, weight in wants:
        if want * left > rest:
            break
        modest += 1
        rest -= want * weight
        left -= weight
    parts: Dict[str, Tuple[float, bool]] = {}
    for place, (want, name, weight) in enumerate(wants):
        greedy = place >= modest
        parts[name] = weight * (max(whole / total, want) if modest == len(wants) else rest / left), greedy
    return parts


def lane_sets(lanes_of: Mapping[str, Sequence[str]]) -> Dict[str, int]:
    """Model -> the number of its set of lanes: models that may run on one lane, directly or through others, share
    one."""
    found: List[Tuple[List[str], Set[str]]] = []
    for model, lanes in lanes_of.items():
        models, merged = [model], set(lanes)
        for other in [item for item in found if not merged.isdisjoint(item[1])]:
            found.remove(other)
            models, merged = other[0] + models, merged | other[1]
        found.append((models, merged))
    return {model: number for number, (models, _) in enumerate(found) for model in models}


def lane_shares(sets_of: Mapping[str, Sequence[int]]) -> Dict[str, Dict[str, Tuple[LaneShare, ...]]]:
    """App -> class -> the shares of each set of lanes that the app uses, in their order."""
    shares = {
        (number, priority_class): LaneShare()
        for numbers in sets_of.values()
        for number in numbers
        for priority_class in CLASSES
    }
    return {
        app: {
            priority_class: tuple([shares[number, priority_class] for number in numbers]) for priority_class in CLASSES
        }
        for app, numbers in sets_of.items()
    }
