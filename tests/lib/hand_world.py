"""A world driven by hand: the real scheduler, and lanes that do what the test says, when it says so.

Times are milliseconds from the start of the test. After a step the scheduler's invariants and its alarm are checked, so
each test holds those too. :func:`like` makes partial matchers: a test states only the fields it is about.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from edgeserve.config.loading import parse_config
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.protocol.actions import Action, EvictModel, FinishRequest, LatencyBreakdown, LoadModel, RunBatch
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    Event,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.testing.invariants import check_invariants, check_now_and_then

MS = 1_000_000

Work = Union[RunBatch, LoadModel, EvictModel]


class Like:
    """Equal to anything of a kind whose named fields have these values."""

    def __init__(self, kind: type, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.kind) and all(
            getattr(other, name) == value for name, value in self.fields.items()
        )

    __hash__ = None  # type: ignore[assignment]  # equal to things of other kinds, so never a key

    def __repr__(self) -> str:
        return f"like {self.kind.__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


def like(kind: type, **fields: Any) -> Like:
    """A partial matcher."""
    return Like(kind, **fields)


def ran(model: str, *request_ids: int, **fields: Any) -> Like:
    """A batch of these requests, in this order."""
    if request_ids:
        fields["request_ids"] = list(request_ids)
    return _Ran(RunBatch, model=model, **fields)


class _Ran(Like):
    def __eq__(self, other: object) -> bool:
        fields = dict(self.fields)
        ids = fields.pop("request_ids", None)
        return Like(RunBatch, **fields) == other and (ids is None or ids == [job.request_id for job in other.jobs])

    __hash__ = None  # type: ignore[assignment]


def ended(request_id: int, outcome: str, reason: str | None = None) -> Like:
    """The end of a request."""
    fields = {} if reason is None else {"reason": reason}
    return Like(FinishRequest, request_id=request_id, outcome=outcome, **fields)


def table(models: Mapping[str, Mapping[Any, Any]], apps: Mapping[str, Any], **sections: Any) -> Dict[str, Any]:
    """A configuration. ``models``: name -> {batch size: milliseconds, key: value}; ``apps``: name -> a model's name,
    a list of nodes, or the app's table. Models run on every lane and the deadline is 100 ms, unless said."""
    made: Dict[str, Any] = {"model": {}, "app": {}}
    for name, given in models.items():
        times = {size: ms for size, ms in given.items() if isinstance(size, int)}
        made["model"][name] = {
            "engine": "synthetic",
            "batch": sorted(times),
            "expected": {str(size): f"{ms}ms" for size, ms in times.items()},
            **{key: value for key, value in given.items() if not isinstance(key, int)},
        }
    for name, app in apps.items():
        given = {"model": app} if isinstance(app, str) else {"node": app} if isinstance(app, list) else app
        made["app"][name] = {"slo": "100ms", **given}
    made.update(sections)
    return made


def rested_profile(model: str, times_ms: Mapping[int, float], rested_ms: float, lane: str = "cpu0") -> Profile:
    """Exact times, and that of the smallest batch after a rest."""
    rows = {size: Timing(100, *[round(ms * MS)] * 3, 0, (round(ms * MS),) * 15) for size, ms in times_ms.items()}
    return Profile(model, "here", {lane: LaneProfile(rows, rested_ns=round(rested_ms * MS))})


class Driver:
    """The real scheduler in a world where nothing happens by itself. ``trials``: what its policies refuse because of an
    estimate may be run as a trial; most tests are about the refusal."""

    def __init__(
        self,
        models: Mapping[str, Mapping[Any, Any]],
        apps: Mapping[str, Any],
        policy: Union[str, Mapping[str, Any]] = "edf",
        resident: Mapping[str, Sequence[str]] | None = None,
        trials: bool = False,
        sequences: Mapping[str, Tuple[int, int, int]] | None = None,
        profiles: Sequence[Profile] = (),
        **sections: Any,
    ) -> None:
        kinds = {policy: {}} if isinstance(policy, str) else policy
        sections["policy"] = {name: {"trials": trials, **options} for name, options in kinds.items()}
        self.config = parse_config(table(models, apps, **sections))
        self.scheduler = build_scheduler(self.config, profiles, resident=resident, sequences=sequences)
        self.now_ms: float = 0
        self.on_lane: Dict[int, Work] = {}  # works that wait for their answer
        self.given_ms: Dict[int, float] = {}
        self.ends: Dict[int, FinishRequest] = {}
        self.actions: List[Action] = []  # of the last step
        self.seen: List[Action] = []  # of all steps
        self.steps = 0
        self._last_id = 0
        self._over: Dict[int, List[JobId]] = {}  # by work: jobs that were over before it

    # --- time -----------------------------------------------------------------------------------------------------

    def step(self, *events: Event, at: float | None = None) -> List[Action]:
        """One step of the scheduler; its invariants (now and then in a long run) and its wake time are checked after
        it."""
        if at is not None:
            self.now_ms = at
        now_ns = round(self.now_ms * MS)
        self.actions = self.scheduler.step(now_ns, list(events))
        for action in self.actions:
            if isinstance(action, FinishRequest):
                assert action.request_id not in self.ends, f"request {action.request_id} ended twice"
                self.ends[action.request_id] = action
            elif isinstance(action, (RunBatch, LoadModel, EvictModel)):
                self.on_lane[action.work_id] = action
                self.given_ms[action.work_id] = self.now_ms
        self.seen += self.actions
        self.steps += 1
        check_now_and_then(self.scheduler.state, self.steps)
        wake = self.scheduler.wake_ns
        assert wake is None or wake > now_ns, f"alarm at {wake}, now is {now_ns}"
        return self.actions

    @property
    def wake_ms(self) -> float | None:
        """The time at which the scheduler wants to be called."""
        wake = self.scheduler.wake_ns
        return None if wake is None else wake / MS

    def pass_time(self, until_ms: float) -> List[Action]:
        """Let time pass with no event: call the scheduler at its wake times. Returns what it did."""
        done: List[Action] = []
        while self.wake_ms is not None and self.wake_ms <= until_ms:
            done += self.step(at=self.wake_ms)
        self.now_ms = until_ms
        return done

    # --- events ---------------------------------------------------------------------------------------------------

    def request(self, app: str, slo: float | None = None, **fields: Any) -> Request:
        """A request that arrives now; ``slo`` in ms, otherwise the app's."""
        self._last_id += 1
        config = self.config.apps[app]
        now_ns = round(self.now_ms * MS)
        fields = {"priority_class": config.priority_class, "value": config.value, "on_late": config.on_late, **fields}
        slo_ns = config.slo_ns if slo is None else round(slo * MS)
        return Request(self._last_id, app, now_ns, now_ns + slo_ns, **fields)

    def arrive(
        self, app: str, *, at: float | None = None, count: int = 1, slo: float | None = None, **fields: Any
    ) -> List[Action]:
        """Requests arrive in one step; their ids count up from 1."""
        self.now_ms = self.now_ms if at is None else at
        return self.step(*[RequestArrived(self.request(app, slo, **fields)) for _ in range(count)])

    def work(self, lane: str | None = None) -> Any:
        """The work at the head of a lane, or the only one there is."""
        works = [work for work in self.on_lane.values() if lane is None or work.lane == lane]
        assert works, f"nothing is on {lane or 'any lane'}"
        assert lane is not None or len({work.lane for work in works}) == 1, f"say which lane: {works}"
        return works[0]

    def finish(
        self,
        lane: str | None = None,
        *,
        at: float | None = None,
        took: float | None = None,
        failed: str = "",
        **result: Any,
    ) -> List[Action]:
        """The work at the head of a lane ends. ``result`` goes to every job of it."""
        return self.step(self.finished(lane, took=took, failed=failed, at=at, **result), at=at)

    def finished(
        self,
        lane: str | None = None,
        *,
        at: float | None = None,
        took: float | None = None,
        failed: str = "",
        each: Mapping[int, Mapping[str, Any]] | None = None,
        **result: Any,
    ) -> WorkFinished:
        """The event alone. ``each``: position in the batch -> that job's result."""
        if at is not None:
            self.now_ms = at
        work = self.work(lane)
        del self.on_lane[work.work_id]
        now_ns = round(self.now_ms * MS)
        started_ns = now_ns - round(took * MS) if took is not None else round(self.given_ms[work.work_id] * MS)
        results = ()
        if isinstance(work, RunBatch):
            results = tuple(
                JobResult(job, **{**result, **((each or {}).get(index, {}))})
                for index, job in enumerate(work.jobs)
                if job not in self._over.get(work.work_id, ())
            )
        return WorkFinished(work.work_id, started_ns, now_ns, results, failed)

    def progress(
        self, *request_ids: int, lane: str | None = None, at: float | None = None, **result: Any
    ) -> List[Action]:
        """Jobs of these requests are over before the work at the head of a lane is."""
        self.now_ms = self.now_ms if at is None else at
        work = self.work(lane)
        jobs = [job for job in work.jobs if job.request_id in request_ids]
        self._over.setdefault(work.work_id, []).extend(jobs)
        return self.step(
            BatchProgress(work.work_id, round(self.now_ms * MS), tuple(JobResult(job, **result) for job in jobs))
        )

    def begin(self, *request_ids: int, lane: str | None = None, at: float | None = None) -> List[Action]:
        """Sequences of these requests, in the work at the head of a lane, have written something."""
        self.now_ms = self.now_ms if at is None else at
        work = self.work(lane)
        begun = tuple(job for job in work.jobs if job.request_id in request_ids)
        return self.step(BatchProgress(work.work_id, round(self.now_ms * MS), (), begun))

    def refuse(
        self, lane: str | None = None, reason: str = "the start window has passed", at: float | None = None
    ) -> List[Action]:
        """A lane does not start the work at its head."""
        work = self.work(lane)
        del self.on_lane[work.work_id]
        return self.step(WorkRefused(work.work_id, reason), at=at)

    def cancel(self, request_id: int, at: float | None = None) -> List[Action]:
        """A client cancels."""
        return self.step(RequestCancelled(request_id), at=at)

    def lane(self, name: str, up: bool = True, speed: float = 1.0, at: float | None = None) -> List[Action]:
        """A lane changes. One that goes down forgets what it has."""
        if not up:
            self.on_lane = {id: work for id, work in self.on_lane.items() if work.lane != name}
        return self.step(LaneChanged(name, up, speed, "" if up else "pulled out"), at=at)

    def device(
        self, name: str, free: int | None = None, at: float | None = None, load: float | None = None, cores: int = 4
    ) -> List[Action]:
        """A device reports its free memory, or the load of its processor."""
        return self.step(DeviceChanged(name, free, cpu_load=load, cpu_cores=None if load is None else cores), at=at)

    def drain(self) -> List[Action]:
        """Make the server drain."""
        return self.step(DrainRequested())

    # --- what came of it ------------------------------------------------------------------------------------------

    def outcome(self, request_id: int) -> str:
        """The outcome of a request, "" while it is open."""
        end = self.ends.get(request_id)
        return "" if end is None else end.outcome

    def reason(self, request_id: int) -> str:
        """The reason of a request's end."""
        return self.ends[request_id].reason

    def of(self, kind: type) -> List[Any]:
        """The last step's actions of one kind."""
        return [action for action in self.actions if isinstance(action, kind)]

    def check(self) -> None:
        """Every invariant of the scheduler holds."""
        check_invariants(self.scheduler.state)

    def over(self) -> None:
        """Nothing is open and no lane has a work."""
        self.check()
        assert self.scheduler.open_count == 0
        assert not self.scheduler.busy


def job(
    seq: int,
    app: App,
    *,
    node: str = "",
    deadline: float = 100,
    arrival: float = 0,
    part: Sequence[int] = (),
    **fields: Any,
) -> Job:
    """A ready job outside any scheduler, for tests of single parts; ``worth`` in ms of lane time."""
    worth = fields.pop("worth", 10)
    request = RequestRecord(
        Request(fields.pop("id", seq), app.name, round(arrival * MS), round(deadline * MS), **fields), app
    )
    request.cost_share_ns = round(worth * MS)
    place = app.by_name[node] if node else app.nodes[0]
    return Job(seq, request, place, tuple(part), round(arrival * MS), LatencyBreakdown())


def app_of(apps: Any, name: str = "a", **keys: Any) -> App:
    """An app alone: a list of nodes, or a model's name; the models exist."""
    nodes = apps if isinstance(apps, list) else [{"name": apps}]
    models = {node.get("model", node["name"]): {1: 1} for node in nodes}
    return App(parse_config(table(models, {name: {"node": nodes, **keys}})).apps[name], "edf")


def ids(jobs: Sequence[JobId]) -> List[int]:
    """The requests of some jobs."""
    return [item.request_id for item in jobs]
