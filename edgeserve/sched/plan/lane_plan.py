"""``plan``: one rule for a frame, a turn of a language model, a model of an ensemble and a stage of a pipeline.

Each kind of work is a source (``plain``, ...), which queues its jobs, drops late ones and offers candidates; the
choice among them (``choose.py``) knows no kind. Requests go to the source of their app. A source is imported when an
app is of its kind.
"""

from __future__ import annotations

from typing import Any, ClassVar, Dict, Final, List, Mapping, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import ORDINARY, YIELDING
from edgeserve.sched.plan.candidate import Behind, Candidate
from edgeserve.sched.plan.choose import choose, weigh
from edgeserve.sched.plan.lane_price import LanePrices
from edgeserve.sched.plan.source import Source
from edgeserve.sched.plan.unequal import Unequal
from edgeserve.sched.policy_api.arbiter import PASSED_SLOS
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.policy import Bid, Change, Options, Policy
from edgeserve.sched.requests.critical import NO_ROOMS, Rooms
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import DROPPED, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.units import NS_PER_MS

PASSED_FACTOR: Final = 1000.0
"""Worth of a batch whose app was given up for long: it goes before others of its class, and spares critical ones."""

LOOK_AGAIN_NS: Final = NS_PER_MS
"""The time after which a lane is looked at again where all work would make critical requests late."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LanePlan(Policy):
    """One plan per lane for every kind of work."""

    lets_urgent_first: ClassVar[bool] = True
    records_history: ClassVar[bool] = True

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        if any(app.history_share > 0.0 for app in apps):
            from edgeserve.sched.plan.members import check_history

            check_history(apps)
        self._sources: List[Source] = []
        self._wakers: List[Source] = []  # sources that ask for another look
        self._source_of: Dict[str, Source] = {}  # by app: admits its requests, and says when they would end
        self._source_at: Dict[Node, Source] = {}  # decides about the jobs
        self._chosen: Dict[str, Tuple[str, float | None]] = {}  # by lane: the model of its last bid, what that brings
        self._runs: Dict[int, Source] = {}  # by work
        self._look_again_ns: int | None = None
        self._prices = LanePrices()

    # --- which source -------------------------------------------------------------------------------------------------

    def _begin(self, board: Board) -> None:
        """Give each app to the source of its kind. Beside a language model an app's other nodes are plain."""
        kinds: Dict[str, List[App]] = {}
        for app in self.apps:
            kind = kind_of(app, board)
            kinds.setdefault(kind, []).append(app)
            if kind == "steps" and not all(board.makes_sequences(node.model) for node in app.nodes):
                kinds.setdefault("plain", [])
        sources = {kind: self._make(kind, apps) for kind, apps in kinds.items()}
        self._sources = list(sources.values())
        self._wakers = [source for source in self._sources if type(source).next_wakeup_ns is not Source.next_wakeup_ns]
        for kind, apps in kinds.items():
            for app in apps:
                self._source_of[app.name] = sources[kind]
                for node in app.nodes:
                    is_plain = kind == "steps" and not board.makes_sequences(node.model)
                    source = self._source_at[node] = sources["plain"] if is_plain else sources[kind]
                    source.lanes.update([lane.name for model in node.models for lane in board.lanes_of(model)])

    def _make(self, kind: str, apps: Sequence[App]) -> Source:
        if kind == "steps":
            from edgeserve.sched.plan.steps import Steps

            return Steps(self)
        if kind == "members":
            from edgeserve.sched.plan.members import Members

            return Members(self, apps)
        if kind == "companies":
            from edgeserve.sched.plan.companies import Companies

            return Companies(self, apps)
        return Unequal(self)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        if not self._sources:
            self._begin(board)
        return self._source_of[request.app.name].on_request(request, board)

    def on_ready(self, job: Job, board: Board) -> None:
        source = self._source_at[job.node]
        source.on_ready(job, board)
        source.is_idle = False

    def on_gone(self, job: Job, board: Board) -> None:
        source = self._source_at[job.node]
        if job.request.state == DROPPED and job.request.priority_class in ORDINARY:
            self._prices.gone(job, source.lacks_ns(job), board)
        source.on_gone(job, board)

    def on_started(self, work: Work, board: Board) -> None:
        source = self._source_at[work.jobs[0].node]
        self._runs[work.id] = source
        model, brings = self._chosen.get(work.lane.name, ("", None))
        if model == work.model and (brings is not None or self._prices.any):
            self._prices.serves(work, brings)
        source.on_started(work, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        if work.probe is not None:
            self._source_at[work.probe.node].on_finished(work, started_ns, finished_ns, board)
            return
        self._runs.pop(work.id).on_finished(work, started_ns, finished_ns, board)

    def on_trial(self, job: Job, work: Work, took_ns: int, board: Board) -> None:
        self._source_at[job.node].on_trial(job, work, took_ns, board)

    def on_refused(self, work: Work, board: Board) -> None:
        self._back(work, board).on_refused(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        self._back(work, board).on_lost(work, board)

    def _back(self, work: Work, board: Board) -> Source:
        source = self._runs.pop(work.id, None)
        if source is not None:
            return source
        assert work.probe is not None
        return self._source_at[work.probe.node]

    def on_device(self, change: Change, board: Board) -> None:
        self.forget()

    def forget(self) -> None:
        """Let go of all that is kept until something changes."""
        for source in self._sources:
            source.forget()

    def plan(self, board: Board) -> None:
        self._look_again_ns = None
        for source in self._sources:
            if not source.is_idle:
                source.plan(board)

    def cut(self, work: Work, board: Board) -> bool:
        """A step is followed by another choice as soon as anything else could go first."""
        if self._runs[work.id].cut(work, board):
            return True
        at_ns = work.lane.available_ns(board.now_ns)
        is_last = not [job for job in work.left() if job.request.priority_class not in YIELDING]
        for source in self._sources:
            if source.is_idle or work.lane.name not in source.lanes:
                continue
            for item in source.offers(work.lane, at_ns, board):
                if item.model != work.model and (is_last or item.priority_class not in YIELDING):
                    return True
        return False

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        awake = [source for source in self._sources if not source.is_idle and lane.name in source.lanes]
        if len(awake) == 1:
            lone = awake[0].lone(lane, board)
            if lone is not None:
                self._chosen[lane.name] = (lone.model, None)
                return lone
        if not awake:
            return None
        at_ns = lane.available_ns(board.now_ns) if lane.works else board.now_ns
        offers: List[Candidate] = []
        for source in awake:
            offers += source.offers(lane, at_ns, board)
        if not offers:
            return None
        first = offers[0]
        is_choice = len(offers) > 1
        rooms = board.critical_rooms(lane) if is_choice or first.priority_class in ORDINARY else NO_ROOMS
        if is_choice or rooms is not NO_ROOMS:
            found = self._first(offers, lane, rooms, at_ns, board)
            if found is None:
                again_ns = board.now_ns + LOOK_AGAIN_NS
                if self._look_again_ns is None or again_ns < self._look_again_ns:
                    self._look_again_ns = again_ns
                return None
            first = found
        self._chosen[lane.name] = (first.model, first.gain / first.takes_ns if is_choice else None)
        chosen = first.source
        assert isinstance(chosen, Source)
        return chosen.bid(first, offers, lane, board)

    def _first(self, offers: List[Candidate], lane: Lane, rooms: Rooms, at_ns: int, board: Board) -> Candidate | None:
        gap_ns = lane.dispatch_gap.careful_ns
        if rooms.opened and any(item.is_critical for item in offers):
            rooms = rooms.of_those_to_come()  # the waiting ones are in the schedule
        price = self._prices.of(lane) if self._prices.any else 0.0
        most: Dict[str, int] = {}  # by model: jobs that wait
        for item in offers:
            most[item.model] = max(len(item.jobs), most.get(item.model, 0))
        more: List[Candidate] = []
        for item in offers:
            _see_fuller(item, most[item.model], rooms.most_ns, lane, board)
            weigh(item, rooms, gap_ns, price)
            if item.guarded and item.priority_class in ORDINARY:
                source = item.source
                assert isinstance(source, Source)
                more += source.smaller(item, lane, at_ns, board)
        for item in more:
            _see_fuller(item, most[item.model], rooms.most_ns, lane, board)
            weigh(item, rooms, gap_ns, price)
        offers += more
        if board.passed_ns:
            for item in offers:
                if item.priority_class in ORDINARY and _passed_over(item, board):
                    item.value *= PASSED_FACTOR
                    item.is_early = item.is_cheap = item.is_sparse = False
        return choose(offers, gap_ns, lambda item: behind(item, lane, at_ns, board))

    def next_wakeup_ns(self, board: Board) -> int | None:
        earliest_ns = self._look_again_ns
        for source in self._wakers:
            at_ns = None if source.is_idle else source.next_wakeup_ns(board)
            if at_ns is not None and (earliest_ns is None or at_ns < earliest_ns):
                earliest_ns = at_ns
        return earliest_ns

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        if not self._sources:
            self._begin(board)
        return self._source_of[request.app.name].expected_end(request, job, board)

    def figures(self) -> Mapping[str, Any]:
        figures: Dict[str, Any] = {}
        for source in self._sources:
            figures.update(source.figures())
        return figures

    def queued(self) -> List[Job]:
        return [job for source in self._sources for job in source.queued()]


def behind(candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Behind]:
    """What waits behind a candidate of its own kind."""
    source = candidate.source
    assert isinstance(source, Source)
    return source.behind(candidate, lane, at_ns, board)


def _see_fuller(candidate: Candidate, waiting: int, most_ns: int, lane: Lane, board: Board) -> None:
    """Set what a candidate would gain by being fuller."""
    candidate.saves_ns = _saves_ns(candidate, waiting, most_ns, lane, board)
    if candidate.saves_ns:
        candidate.full_ns = len(candidate.jobs) * board.latency(candidate.model, lane.name).share_ns


def _saves_ns(candidate: Candidate, waiting: int, most_ns: int, lane: Lane, board: Board) -> int:
    """The lane time that one batch with what is expected while a candidate can wait, and what is ``waiting`` already,
    would save beside two. Critical requests leave the lane ``most_ns`` at most, so that no larger batch will run."""
    latency, count, source = board.latency(candidate.model, lane.name), len(candidate.jobs), candidate.source
    assert isinstance(source, Source)
    if count >= latency.size_max or candidate.priority_class in YIELDING or not source.may_grow(candidate.model):
        return 0
    wait_ns, largest = candidate.slack_ns // candidate.stages, latency.size_max
    if not candidate.is_critical:
        wait_ns = source.wait_ns(candidate)
        largest = max([size for size in latency.sizes if latency.slowest_ns[size] <= most_ns], default=0)
    more = min(float(largest - count), waiting - count + _expected(candidate.jobs, wait_ns, board))
    if more <= 0.0:
        return 0
    then, times_ns, size_for = max(1, int(more)), latency.likely_ns, latency.size_for
    saved_ns = times_ns[size_for[count]] + times_ns[size_for[then]] - times_ns[size_for[count + then]]
    return max(0, round(min(1.0, more) * saved_ns))


def _expected(jobs: Sequence[Job], wait_ns: int, board: Board) -> float:
    """The number of requests that are expected within some time and could join these: of frames that end the one
    before, one of each other stream."""
    requests: Dict[str, List[RequestRecord]] = {}  # of each app
    for job in jobs:
        requests.setdefault(job.request.app.name, []).append(job.request)
    total = 0.0
    for found in requests.values():
        last = found[-1]
        rate = last.app.recent.per_ns(board.now_ns)
        come = rate * max(0, wait_ns)
        if last.successor_ns is not None:
            streams = round(rate * (last.successor_ns[1] - last.arrival_ns))
            come = min(come, max(0.0, streams - len(found)))
        total += come
    return total


def _passed_over(candidate: Candidate, board: Board) -> bool:
    """True if an app of the batch was given up for :data:`PASSED_SLOS` of its deadlines in a row."""
    for job in candidate.jobs:
        request = job.request
        slo_ns = max(1, request.deadline_ns - request.arrival_ns)
        since_ns = board.passed_ns.get(request.app.name)
        if since_ns is not None and board.now_ns - since_ns >= PASSED_SLOS * slo_ns:
            return True
    return False


def kind_of(app: App, board: Board) -> str:
    """The kind of an app's work, by its models and by the lanes that they share."""
    models = list(dict.fromkeys([node.model for node in app.nodes]))
    if any(board.makes_sequences(model) for model in models):
        return "steps"
    if _may_choose(app):
        from edgeserve.sched.plan.members import members_of

        if members_of(app) is not None:
            return "members"
    for index, model in enumerate(models):
        for other in models[:index]:
            if any(lane in board.lanes_of(other) for lane in board.lanes_of(model)):
                return "companies"
    return "plain"


def _may_choose(app: App) -> bool:
    """True if an app has what models to choose among are made of: an ensemble's profile or join, or variants."""
    joins = [node for node in app.nodes if node.join == "policy"]
    return app.ensemble is not None or len(app.nodes[0].models) > 1 or len(joins) > 0
