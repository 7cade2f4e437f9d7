"""The baselines of ``research/bench/mix.py``: one order of all apps, fair slices of the lane, and a lane that is
divided for good; and the plan of one who knows which requests will fail. Nothing serves by them. Importing this module
adds their kinds, ``mix_priority``, ``mix_fair`` and ``mix_foreseen``."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Dict, FrozenSet, List, Mapping, Sequence, Tuple

from edgeserve.config.loading import parse_config
from edgeserve.priority_class import CLASSES
from edgeserve.sched.plan.lane_plan import LanePlan
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common.bidding import bid_for
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Options, Policy
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import Job, RequestRecord
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sim.scenario import Scenario
from edgeserve.units import format_duration

PRIORITY, FAIR, FORESEEN = "mix_priority", "mix_fair", "mix_foreseen"


class FixedPriority(Policy):
    """The class first, then the app of the shortest deadline, then order of arrival; others of the model go with it."""

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._waiting: Dict[int, Job] = {}

    def rank(self, job: Job) -> Tuple[float, ...]:
        """The order of jobs: the lowest rank goes first."""
        app = job.request.app
        return CLASSES.index(app.priority_class), app.slo_ns, job.ready_ns, job.seq

    def on_ready(self, job: Job, board: Board) -> None:
        self._waiting[job.seq] = job

    def on_gone(self, job: Job, board: Board) -> None:
        del self._waiting[job.seq]

    def on_started(self, work: Work, board: Board) -> None:
        for job in work.jobs:
            del self._waiting[job.seq]

    def bid(self, lane: Lane, board: Board) -> Bid | None:
        able = [
            job
            for job in self._waiting.values()
            if job.node.model in lane.models and job.lane in ("", lane.name) and board.is_resident(job.node.model, lane)
        ]
        if not able:
            return None
        model = min(able, key=self.rank).node.model
        latency = board.latency(model, lane.name)
        jobs = sorted([job for job in able if job.node.model == model], key=self.rank)[: latency.size_max]
        size = latency.size_for[len(jobs)]
        return bid_for(jobs, size, latency.estimate_ns[size], board)

    def queued(self) -> List[Job]:
        return list(self._waiting.values())


class Foreseen(LanePlan):
    """The plan where requests that an earlier run failed, the ``refused``, take no time of the lane."""

    refused: FrozenSet[int] = frozenset()

    def on_request(self, request: RequestRecord, board: Board) -> str | None:
        reason = super().on_request(request, board)
        return CANNOT_MAKE_DEADLINE if request.id in self.refused else reason


class FairSlices(FixedPriority):
    """The app that had least of the lane's time; one that comes back begins where the least of the others is."""

    def __init__(self, name: str, apps: Sequence[App], options: Options) -> None:
        super().__init__(name, apps, options)
        self._had_ns = {app.name: 0.0 for app in apps}

    def rank(self, job: Job) -> Tuple[float, ...]:
        return self._had_ns[job.request.app.name], job.ready_ns, job.seq

    def on_ready(self, job: Job, board: Board) -> None:
        name = job.request.app.name
        active = {other.request.app.name for other in self._waiting.values()}
        if active and name not in active:
            self._had_ns[name] = max(self._had_ns[name], min([self._had_ns[other] for other in active]))
        super().on_ready(job, board)

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        for job in work.jobs:
            self._had_ns[job.request.app.name] += (finished_ns - started_ns) / len(work.jobs)


POLICIES[PRIORITY] = FixedPriority
POLICIES[FAIR] = FairSlices
POLICIES[FORESEEN] = Foreseen


def partitioned(scenario: Scenario, lane: str, needs_ms: Mapping[str, float], rates: Mapping[str, float]) -> Scenario:
    """The scenario with a lane divided for good: each app has a lane of its own that is as much slower as its share of
    the load is smaller. Apps that share a model share theirs."""
    edge: Dict[str, Any] = deepcopy(dict(scenario.edge))
    groups = _groups(edge, lane)
    load = {app: needs_ms[app] * rates[app] for app in edge["app"]}
    whole = sum(load.values())
    truths = dict(scenario.truths)
    device = edge["lane"].pop(lane)
    for number, (apps, models) in enumerate(groups):
        slower = whole / sum([load[app] for app in apps])
        edge["lane"][f"{lane}.{number}"] = dict(device)
        for name in models:
            model, config = edge["model"][name], scenario.config.models[name]
            model["lanes"] = [f"{lane}.{number}"]
            model["expected"] = {
                str(size): format_duration(round(time_ns * slower)) for size, time_ns in config.expected.items()
            }
            truth = truths.get(name)
            if truth is not None:
                scaled = {
                    key: round(getattr(truth, key) * slower)
                    for key in ("fixed_ns", "per_unit_ns", "prefill_ns", "prefill_token_ns")
                }
                truths[name] = replace(truth, **scaled)
    config = parse_config(edge, scenario.config.directory, scenario.config.source)
    return replace(scenario, config=config, edge=edge, truths=truths)


def _groups(edge: Mapping[str, Any], lane: str) -> List[Tuple[List[str], List[str]]]:
    """Apps and the models of theirs that run on the lane; apps with a model in common stand together."""
    found: List[Tuple[List[str], List[str]]] = []
    for app, table in edge["app"].items():
        nodes = table.get("node") or [{"name": table["model"]}]
        used = [node.get("model", node["name"]) for node in nodes]
        models = [model for model in used if lane in edge["model"][model]["lanes"]]
        for apps, others in [group for group in found if set(group[1]) & set(models)]:
            found.remove((apps, others))
            models = list(dict.fromkeys([*others, *models]))
            found.append(([*apps, app], models))
            break
        else:
            found.append(([app], models))
    return found
