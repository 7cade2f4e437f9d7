"""Worlds that policy conformance draws besides the soak's: joins left to the policy, lost lanes, batch lists without 1,
deep lanes, iterative jobs bound to their lane, answers in part.

:func:`run_world` holds one run to the rules of the soak and, through a watch on every hook, to those of a policy's
records: each batch that started has exactly one end, a bid changes nothing, and a drained policy remembers no request.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Set, Type

from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.states import OPEN, Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sim.scenario import Scenario, parse_scenario
from edgeserve.testing.soak.language import LANGUAGE_MARKS
from edgeserve.testing.soak.run import hold

MARKS = (
    "on_finished",
    "on_refused",
    "on_lost",
    "settled",
    "in part",
    "bound",
    "deep",
    "without 1",
    "settled alone",
    "not wanted",
    "branch failed",
    "branch lost",
)
"""The events that must have occurred at least once over a few worlds: a trouble that never happens tests nothing."""

FIRST_ID = 10**15
"""Requests, jobs and works are numbered from here, so that no other number can be taken for one of theirs."""

WALK_MAX = 1_000_000
"""Objects looked at below one policy."""

SHARED_ROOMS = tuple(
    f"edgeserve.sched.{room}" for room in ("core", "latency", "policy_api.board", "requests.graph", "resources")
)
"""A policy may hold what is defined here: what lies below such an object is the scheduler's."""

ELSEWHERE_S_MAX = 120.0
"""The time that the run of one world in another process may take."""


class WorldResult(NamedTuple):
    """One world that broke no rule: what its decisions were (sha256), and how often what occurred."""

    digest: str
    marks: Mapping[str, int]


def _draw_models(draw: random.Random) -> Dict[str, Any]:
    models: Dict[str, Any] = {}
    for name, lists in (
        ("pair", ([2, 4],)),
        ("left", ([2, 8], [1, 4])),
        ("right", ([2, 4], [4], [1])),
        ("tail", ([3, 6], [1, 2])),
        ("cut", ([1, 4], [2])),
        ("read", ([2, 4, 8], [1, 8])),
        ("step", ([2, 4], [1, 2])),
    ):
        sizes, fixed_us, item_us = draw.choice(lists), draw.randrange(300, 2500), draw.randrange(100, 700)
        models[name] = {
            "engine": "synthetic",
            "batch": sizes,
            "memory": "20MB",
            "load": "2ms",
            "expected": {str(size): f"{fixed_us + item_us * size}us" for size in sizes},
        }
    return models


def _draw_apps(draw: random.Random, votes: random.Random) -> Dict[str, Any]:
    late = draw.choice(("drop", "partial", "partial"))
    apps: Dict[str, Any] = {
        "lone": {"model": "pair", "on_late": draw.choice(("drop", "answer")), "slo": f"{draw.randrange(15, 80)}ms"},
        "fork": {
            "on_late": late,
            "slo": f"{draw.randrange(20, 90)}ms",
            "node": [
                {"name": "left", "model": "left", "after": []},
                {"name": "right", "model": "right", "after": []},
                {"name": "end", "model": "tail", "after": ["left", "right"], "join": "policy"},
            ],
        },
        "fan": {
            "on_late": draw.choice(("drop", "partial")),
            "slo": f"{draw.randrange(30, 90)}ms",
            "node": [
                {"name": "cut", "model": "cut", "fan_out": True},
                {"name": "read", "model": "read"},
                {"name": "all", "model": "tail", "gather": True, "join": "policy"},
            ],
        },
        "loop": {"model": "step", "on_late": draw.choice(("drop", "answer")), "slo": f"{draw.randrange(20, 90)}ms"},
    }
    apps["vote"] = {
        "on_late": votes.choice(("drop", "partial")),
        "slo": f"{votes.randrange(25, 90)}ms",
        "node": [
            {"name": "score", "model": "read", "after": []},
            *[
                {"name": name, "model": model, "after": ["score"]}
                for name, model in (("v0", "left"), ("v1", "right"), ("v2", "pair"))
            ],
            {"name": "sum", "model": "tail", "after": ["v0", "v1", "v2"], "join": "policy"},
        ],
    }
    return apps


def draw_world(seed: int, kind: str, options: Mapping[str, Any], language: bool = False) -> Scenario:
    """The world of a seed under one policy; with ``language``, the same and an app of a language model."""
    draw = random.Random(f"{seed}/policy world")
    depths = draw.choice(((2, 1), (2, 2), (1, 3)))
    devices = draw.choice((("d0", "d0"), ("d0", "d1")))
    models = _draw_models(draw)
    apps = _draw_apps(draw, random.Random(f"{seed}/votes"))
    rates = {"lone": (60, 200), "fork": (60, 160), "fan": (30, 80), "loop": (30, 90), "vote": (20, 60)}
    table = {
        "device": {name: {} for name in sorted(set(devices))},
        "lane": {
            f"l{index}": {"device": device, "depth": depth, "ahead": draw.choice(("0ms", "0ms", "4ms")), "hang": "40ms"}
            for index, (device, depth) in enumerate(zip(devices, depths))
        },
        "model": models,
        "app": apps,
        "policy": {"p": {"kind": kind, **options}},
        "truth": {
            "cut": {"parts": [1, 4], "state": "0B"},
            "step": {"steps": [2, 5], "steps_per_run": 1, "state": f"{draw.randrange(10, 900)}kB"},
            **{name: {"pack": "100us"} for name in ("pair", "left")},
        },
        "workload": {name: {"app": name, "rate": float(draw.randrange(*rates[name]))} for name in apps},
        "faults": {
            "lane_loss_every": f"{draw.randrange(40, 90)}ms",
            "lane_loss": "15ms",
            "hang": draw.choice((0.0, 0.3)),
            "refuse": 0.04,
            "fail_job": 0.02,
            "unfinished": 0.05,
            "cancel": 0.05,
            "slow": 0.05,
            "speed_every": "100ms",
        },
        "run": {
            "duration": "300ms",
            "noise": 0.03,
            "step_cost": "20us",
            "event_cost": "15us",
            "contention": dict.fromkeys(devices, 1.2),
        },
    }
    if language:
        _draw_language(random.Random(f"{seed}/language"), table)
    return parse_scenario(table, source=f"(policy world of seed {seed})")


def _draw_language(draw: random.Random, table: Dict[str, Any]) -> None:
    """An app whose answers end one by one, with memory for some of them only, lengths that are predicted well, wrongly
    or not at all, and prompts of which some are too long."""
    step_us, most = draw.randrange(300, 1500), draw.choice((6, 20))
    table["model"]["talk"] = {
        "engine": "synthetic",
        "batch": draw.choice(([1, 2, 4], [2, 4])),
        "memory": "20MB",
        "load": "2ms",
        "expected": {str(size): f"{step_us}us" for size in (1, 2, 4)},
        "slots": draw.choice((4, 6)),
        "state_memory": f"{(most + 30) * draw.choice((10, 25))}kB",
    }
    table["truth"]["talk"] = {
        "batching": "continuous",
        "steps_hint": "words",
        "steps_max": most,
        "context": 45,
        "state_token": "10kB",
        "step": {"full": f"{step_us}us", "saturates": 4, "alone": 0.6},
        "prefill": "200us",
        "prefill_token": "20us",
    }
    if draw.random() < 0.7:
        table["truth"]["talk"]["predict"] = {"rho": draw.choice((0.3, 1.0)), "scale": draw.choice((1.0, 3.0, 0.33))}
    table["app"]["talk"] = {
        "model": "talk",
        "on_late": draw.choice(("drop", "answer")),
        "slo": f"{draw.randrange(20, 90)}ms",
    }
    table["workload"]["talk"] = {
        "app": "talk",
        "rate": float(draw.randrange(60, 200)),
        "hints": {"words": {"lognormal": [5.0, 0.7]}, "tokens": {"3": 0.5, "20": 0.48, "44": 0.02}},
    }


def run_world(
    seed: int,
    kind: str,
    options: Mapping[str, Any],
    twice: bool = False,
    remembered_max: int = 0,
    language: bool = False,
) -> WorldResult:
    """Run one world. AssertionError, PolicyError or the policy's own exception says which rule was broken. ``twice``:
    the policy is asked for each bid twice, which must change neither the bid nor anything that is decided later.
    ``remembered_max``: how many records of what has ended the policy may hold at the end. ``language``: with an app of
    a language model."""
    watch = HookWatch(seed, twice)
    plain = POLICIES[kind]
    POLICIES[kind] = _watched(plain, watch)
    try:
        scenario = draw_world(seed, kind, options, language)
        result = hold(scenario, seed, drain=True, prepare=watch.prepare)
    finally:
        POLICIES[kind] = plain
    watch.close(remembered_max)
    watch.marks.update({name: result.marks.get(name, 0) for name in LANGUAGE_MARKS})
    watch.marks["in part"] += sum(1 for end in watch.world.ended if end.outcome == "completed" and end.reason)
    return WorldResult(result.digest, dict(watch.marks))


def run_elsewhere(seed: int, kind: str, options: Mapping[str, Any], remembered_max: int = 0) -> str:
    """The digest of one world in another process with another order of sets."""
    policy = POLICIES[kind]
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    job = {
        "path": sys.path,
        "module": policy.__module__,
        "name": policy.__qualname__,
        "seed": seed,
        "kind": kind,
        "options": dict(options),
        "remembered_max": remembered_max,
    }
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import _elsewhere; _elsewhere()"],
        input=json.dumps(job),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=ELSEWHERE_S_MAX,
    )
    assert done.returncode == 0, f"world {seed} of policy {kind!r} failed in another process:\n{done.stderr}"
    return done.stdout.split()[-1]


def _elsewhere() -> None:
    job = json.load(sys.stdin)
    POLICIES[job["kind"]] = getattr(importlib.import_module(job["module"]), job["name"])
    print(run_world(job["seed"], job["kind"], job["options"], remembered_max=job["remembered_max"]).digest)


# --- the watch --------------------------------------------------------------------------------------------------------


class HookWatch:
    """The calls of one policy's hooks in one run. Lies outside the policy, whose own memory is looked at."""

    def __init__(self, seed: int, twice: bool) -> None:
        self.marks: Counter[str] = Counter()
        self.seed = seed
        self.twice = twice
        self.world: Any = None
        self._scheduler: Any = None
        self._on_lanes: Dict[int, Work] = {}
        self._joining: Dict[int, RequestRecord] = {}
        self._ids: Set[int] = set()

    def prepare(self, scheduler: Any, world: Any) -> None:
        """Before the first step: number everything from :data:`FIRST_ID`."""
        self._scheduler, self.world = scheduler, world
        scheduler.state.works._last_id = scheduler._request_manager._job_seq = world._request_id = FIRST_ID
        self.marks["deep"] += any(lane.depth > 1 for lane in scheduler.state.run_lanes)
        self.marks["without 1"] += any(latency.sizes[0] > 1 for latency in scheduler.state.latency.values())

    def asked(self, request: RequestRecord) -> None:
        """A request arrived."""
        self._ids.add(request.id)
        if any(node.join == "policy" for node in request.app.nodes):
            self._joining[request.id] = request

    def ready(self, job: Job) -> None:
        """A job became ready."""
        self._ids.add(job.seq)
        self.marks["bound"] += bool(job.lane)

    def started(self, work: Work) -> None:
        """A batch was launched."""
        assert work.id not in self._on_lanes, f"on_started was called twice for work {work.id}"
        self._ids.add(work.id)
        self._on_lanes[work.id] = work

    def over(self, work: Work, hook: str) -> None:
        """A batch ended, by one hook of three."""
        if work.probe is not None:
            return
        assert self._on_lanes.pop(work.id, None) is work, (
            f"{hook} was called for work {work.id}, which had not "
            "started or had ended: exactly one of on_finished, on_refused and on_lost ends a batch"
        )
        assert work.lost == (hook == "on_lost"), f"{hook} was called for work {work.id} with lost = {work.lost}"
        self.marks[hook] += 1

    def settle_some(self, board: Board) -> None:
        """Settle joins that are left to the policy, drawn by request and by time. A third of them is never settled."""
        for request in list(self._joining.values()):
            if request.ended:
                del self._joining[request.id]
            elif request.app.name == "vote":
                self._decide(request, board)
            elif (
                request.state == OPEN
                and any(row[1] and not row[2] for row in (request.joins or {}).values())
                and request.id % 3
                and random.Random(f"{self.seed}/{board.now_ns}/{request.id}").random() < 0.4
            ):
                board.settle(request)
                self.marks["settled"] += 1

    def _decide(self, request: RequestRecord, board: Board) -> None:
        """Decide about one branch of an ensemble, drawn by request and by time: let its join go on without it, or have
        it wait for its model."""
        draw = random.Random(f"{self.seed}/{board.now_ns}/{request.id}/branch")
        if request.state != OPEN or draw.random() > 0.25:
            return
        found = board.branches(request, "sum")
        states = [branch.state for branch in found]
        self.marks["branch failed"] += "failed" in states
        self.marks["branch lost"] += "lost" in states
        branch = draw.choice(found)
        if branch.job is None or branch.job.request.policy is not request.policy:
            return
        if branch.state == "waiting" and branch.job.queued and draw.random() < 0.5:
            self.marks["not wanted"] += 1
            board.want(branch.job, draw.random() < 0.5)
        elif "answered" in states:
            self.marks["settled alone"] += 1
            board.rate(request, 0.5)
            board.settle(request, "sum", wait_running=draw.random() < 0.5)

    def close(self, remembered_max: int) -> None:
        """After the run: every batch has ended and the policy remembers no request, or no more than it may."""
        assert not self._on_lanes, f"works {sorted(self._on_lanes)} started and never ended"
        for policy in self._scheduler.policies:
            left = leftovers(policy, self._ids)
            assert len(left) <= remembered_max, (
                f"policy {policy.name!r} still holds {len(left)} records of requests, jobs or works after all have "
                f"ended, such as {left[:3]}: on_gone, on_started, on_finished, on_refused or on_lost has to forget "
                f"each (at most {remembered_max} may stay: remembered_max of the suite)"
            )


def leftovers(policy: Policy, ids: Set[int]) -> List[str]:
    """Records below a policy: requests, jobs, works and bids as such, and numbers (``ids``) of the first three."""
    seen, found, todo = {id(policy)}, [], [item for item in gc.get_referents(policy) if not isinstance(item, type)]
    while todo and len(seen) < WALK_MAX:
        item = todo.pop()
        if isinstance(item, int):
            if item in ids:
                found.append(f"number {item - FIRST_ID} + FIRST_ID")
            continue
        if id(item) in seen or isinstance(item, type) or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, (Job, RequestRecord, Request, Work, Bid)):
            found.append(repr(item))
        elif not type(item).__module__.startswith(SHARED_ROOMS):
            todo += gc.get_referents(item)
    return found


def _watched(kind: Type[Policy], watch: HookWatch) -> Type[Policy]:
    """The policy with a watch on its hooks."""

    class Watched(kind):  # type: ignore[valid-type,misc]
        def on_request(self, request: RequestRecord, board: Board) -> str | None:
            watch.asked(request)
            return super().on_request(request, board)  # type: ignore[no-any-return]

        def on_ready(self, job: Job, board: Board) -> None:
            watch.ready(job)
            super().on_ready(job, board)

        def on_started(self, work: Work, board: Board) -> None:
            watch.started(work)
            super().on_started(work, board)

        def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
            watch.over(work, "on_finished")
            super().on_finished(work, started_ns, finished_ns, board)

        def on_refused(self, work: Work, board: Board) -> None:
            watch.over(work, "on_refused")
            super().on_refused(work, board)

        def on_lost(self, work: Work, board: Board) -> None:
            watch.over(work, "on_lost")
            super().on_lost(work, board)

        def plan(self, board: Board) -> None:
            watch.settle_some(board)
            super().plan(board)

        def bid(self, lane: Lane, board: Board) -> Bid | None:
            bid = super().bid(lane, board)
            if watch.twice:
                super().bid(lane, board)
            return bid  # type: ignore[no-any-return]

    return Watched
