"""Switches that turn off each mechanism of the scheduler, for ``research/bench/ablation.py``.

A mechanism is off when its methods answer what a scheduler without it would: no request is waited for, nothing is
learnt, no probe fits; or when a constant has the value at which it does nothing. A new mechanism gets its row here.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable, List, Mapping, NamedTuple, Sequence, Set, Tuple
from unittest import mock

from edgeserve.config.schema import DEFAULT_POLICY
from edgeserve.loop.coalescing import ReceiveCoalescing
from edgeserve.loop.response_overhead import ResponseOverhead
from edgeserve.sched.core.cuts import Cuts
from edgeserve.sched.core.experiments import Trials
from edgeserve.sched.core.holds import Holds
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.declared import DeclaredShare
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.latency.window import Window
from edgeserve.sched.plan import (
    answers,
    candidate,
    choose,
    companies,
    lane_plan,
    lane_price,
    law,
    members,
    plain,
    side_lanes,
    steps,
    unequal,
)
from edgeserve.sched.plan.answers import AnswerProgress
from edgeserve.sched.plan.candidate import Candidate
from edgeserve.sched.plan.companies import Companies
from edgeserve.sched.plan.lane_price import LanePrices
from edgeserve.sched.plan.members import Members
from edgeserve.sched.plan.paths import LaneSchedule, StageRoute
from edgeserve.sched.plan.plain import PlainModels
from edgeserve.sched.plan.steps import Steps
from edgeserve.sched.plan.unequal import Unequal
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policies.common import batches
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.policies.common.lengths import LearnedLengths
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.arrivals import AppArrivals, Sources
from edgeserve.sched.requests.critical import CriticalArrivals, CriticalSource
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.promises import Promises
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.model_worth import ModelWorth


class Part(NamedTuple):
    """A method or function of ``owner`` and what it answers when its mechanism is off. ``learns``: it changes what is
    known, so that each call counts as something that the mechanism did; else only another answer does."""

    owner: Any
    attribute: str
    off: Callable[..., Any]
    learns: bool = False


class Setting(NamedTuple):
    """A constant of a module, and its value when its mechanism is off."""

    owner: Any
    attribute: str
    off: float


class Mechanism(NamedTuple):
    """One mechanism: the module that it lies in, below ``edgeserve/sched``; what switches it off. A whole policy is off
    where the policy ``instead`` serves its apps. Constants (``settings``) are those of ``plan``, which counts as acting
    wherever it serves."""

    name: str
    where: str
    parts: Tuple[Part, ...] = ()
    settings: Tuple[Setting, ...] = ()
    instead: Mapping[str, str] = {}  # kind of policy -> the one that serves its apps without it

    def switch_off(self, stack: ExitStack) -> None:
        """Until the stack closes."""
        stack.enter_context(mock.patch.dict(POLICIES, {kind: POLICIES[other] for kind, other in self.instead.items()}))
        for part in self.parts:
            stack.enter_context(mock.patch.object(part.owner, part.attribute, _as_found(part, part.off)))
        for setting in self.settings:
            stack.enter_context(mock.patch.object(setting.owner, setting.attribute, setting.off))

    def watch(self, stack: ExitStack, acted: Set[str], kinds: Set[str]) -> None:
        """Until the stack closes, add the mechanism's name to ``acted`` when it does something. ``kinds``: of the
        policies in use."""
        if (self.settings and DEFAULT_POLICY in kinds) or not kinds.isdisjoint(self.instead):
            acted.add(self.name)
        for part in self.parts:
            stack.enter_context(mock.patch.object(part.owner, part.attribute, self._watched(part, acted)))

    def _watched(self, part: Part, acted: Set[str]) -> Any:
        found = part.owner.__dict__[part.attribute]
        real = found.fget if isinstance(found, property) else found

        def watched(*args: Any, **keys: Any) -> Any:
            result = real(*args, **keys)
            if self.name not in acted and (part.learns or result != part.off(*args, **keys)):
                acted.add(self.name)
            return result

        return _as_found(part, watched)


def _as_found(part: Part, function: Callable[..., Any]) -> Any:
    return property(function) if isinstance(part.owner.__dict__[part.attribute], property) else function


def says(answer: Any) -> Callable[..., Any]:
    """Always this answer."""
    return lambda *args, **keys: answer


def most_urgent(queues: Sequence[JobQueue], room: int, size: int, ends_ns: int, step_ns: int, lane: str) -> List[Job]:
    """The first jobs of a model that are in time, of any worth."""
    rows = sorted([row for queue in queues for row in queue.rows if row[0] >= ends_ns])
    return [row[2] for row in rows if row[2].lane in ("", lane)][:room]


def largest_index(candidates: Sequence[Candidate], *rest: Any) -> Candidate:
    """The candidate of the largest index, also if it makes others late."""
    return max(candidates, key=choose._index)


_new_times, _set_slowdown = BatchTime.__init__, BatchTime._set_slowdown


def as_profiled(times: BatchTime, is_new: bool) -> None:
    """The tables of a model that no batch has slowed down."""
    ratios, times._ratios = times._ratios, Window(1)
    _set_slowdown(times, is_new)
    times._ratios = ratios


def without_standard_work(times: BatchTime, *args: Any, **keys: Any) -> None:
    """A model whose batches take no longer for the work of a job."""
    _new_times(times, *args, **keys)
    times._each_ns = 0


_accepted = CriticalSource.accepted


def without_period(source: CriticalSource, *args: Any) -> None:
    """A critical request came, and the next one may come at any time."""
    _accepted(source, *args)
    source.next_ns = source.last_ns


_kind_of = lane_plan.kind_of


def without_companies(app: App, board: Board) -> str:
    """The kind of work of an app, where stages that share a lane are plain work."""
    kind = _kind_of(app, board)
    return "plain" if kind == "companies" else kind


def by_arrival(answers: List[AnswerProgress]) -> List[AnswerProgress]:
    """By class, then by arrival."""
    return sorted(answers, key=lambda answer: (answer.rank, answer.job.seq))


MECHANISMS: Tuple[Mechanism, ...] = (
    # --- the whole policy
    Mechanism("plan as a whole", "policies/__init__.py", instead={DEFAULT_POLICY: "edf"}),
    # --- core
    Mechanism("wait for returning clients", "core/holds.py", (Part(Holds, "_for_clients_ns", says(0)),)),
    Mechanism(
        "fuller batches near a limit of heat or power",
        "core/holds.py",
        (Part(Holds, "_under_pressure_ns", says(0)),),
    ),
    Mechanism("trials of refused requests", "core/experiments.py", (Part(Trials, "takes", says(False)),)),
    Mechanism("rank of promised deadlines", "requests/promises.py", (Part(Promises, "take", says(False)),)),
    Mechanism("time to promised deadlines", "requests/promises.py", (Part(Promises, "ended", says(None), True),)),
    Mechanism(
        "room of critical requests is learnt",
        "requests/critical.py",
        (Part(CriticalArrivals, "ended", says(None), True),),
    ),
    Mechanism("batches cut for others", "core/cuts.py", (Part(Cuts, "_kept_waiting", says(None)),)),
    Mechanism(
        "background yields to critical",
        "core/auction.py",
        (Part(Board, "spares_critical", says(True)),),
    ),
    Mechanism(
        "no app is passed over for ever",
        "policy_api/arbiter.py",
        (Part(arbiter, "overdue", lambda bids, passed_ns, first, *rest: first),),
    ),
    Mechanism(
        "messages read together",
        "loop/coalescing.py",
        (
            Part(ReceiveCoalescing, "receive_at_ns", says(None)),
            Part(ReceiveCoalescing, "expects_more", says(False)),
        ),
    ),
    # --- latency
    Mechanism("slowdown of batches", "latency/batch_time.py", (Part(BatchTime, "_set_slowdown", as_profiled, True),)),
    Mechanism("standard times by size", "latency/batch_time.py", (Part(BatchTime, "_compare", says(None), True),)),
    Mechanism(
        "declared work as batches show it", "latency/declared.py", (Part(DeclaredShare, "observe", says(None), True),)
    ),
    Mechanism("standard work", "latency/batch_time.py", (Part(BatchTime, "__init__", without_standard_work, True),)),
    Mechanism("measured durations expire", "latency/batch_time.py", (Part(BatchTime, "forget", says(None), True),)),
    Mechanism("dispatch gap", "latency/lane_gaps.py", (Part(DispatchGap, "took", says(None), True),)),
    Mechanism("response overhead", "loop/response_overhead.py", (Part(ResponseOverhead, "took", says(None), True),)),
    Mechanism("mean parts of a fan-out", "latency/path_cost.py", (Part(AppCosts, "observe_parts", says(None), True),)),
    # --- requests and resources
    Mechanism(
        "period of a critical source",
        "requests/critical.py",
        (Part(CriticalSource, "accepted", without_period, True),),
    ),
    Mechanism("period of a stream's frames", "requests/arrivals.py", (Part(Sources, "came", says(None)),)),
    Mechanism("rates of other apps", "requests/arrivals.py", (Part(AppArrivals, "per_ns", says(0.0)),)),
    Mechanism(
        "memory by what is asked for", "resources/model_worth.py", (Part(ModelWorth, "refresh", says(None), True),)
    ),
    Mechanism("eviction spares bound models", "resources/model_cache.py", (Part(Device, "_could_return", says(True)),)),
    # --- edf, whose batches are those of plain work
    Mechanism(
        "edf: values of a model's jobs", "policies/common/model_queues.py", (Part(batches, "worthiest", most_urgent),)
    ),
    Mechanism(
        "edf: batches that give no job up",
        "policies/common/batches.py",
        (Part(batches, "_rate_of_all", says(0.0)),),
    ),
    Mechanism("edf: steps to come", "policies/common/batches.py", (Part(batches, "steps_more_ns", says(0)),)),
    Mechanism(
        "edf: sizes that lose critical jobs", "policies/common/batches.py", (Part(batches, "_critical_lost", says(0)),)
    ),
    # --- plan: the choice
    Mechanism(
        "plan: price of a lane's time",
        "plan/lane_price.py",
        (Part(LanePrices, "of", says(0.0)),),
    ),
    Mechanism(
        "plan: frames that gave way in the price", "plan/lane_price.py", (Part(lane_price, "_gives_way", says(False)),)
    ),
    Mechanism("plan: batches wait to be fuller", "plan/lane_plan.py", (Part(lane_plan, "_saves_ns", says(0)),)),
    Mechanism(
        "plan: critical requests guarded by count",
        "plan/choose.py",
        settings=(Setting(choose, "GUARD_MIN", 0.0), Setting(choose, "GUARD_MAX", 0.0)),
    ),
    Mechanism(
        "plan: smaller batches beside critical requests",
        "plan/plain.py",
        (
            Part(PlainModels, "smaller", says([])),
            Part(Unequal, "smaller", says([])),
            Part(Members, "smaller", says([])),
            Part(Steps, "smaller", says([])),
        ),
    ),
    Mechanism(
        "plan: critical batches wait less after a late one",
        "plan/choose.py",
        settings=(Setting(choose, "CRITICAL_WAIT", 1.0),),
    ),
    Mechanism(
        "plan: slack shared by the stages that are left",
        "plan/candidate.py",
        (Part(candidate, "stages_left", says(1)),),
    ),
    Mechanism("plan: tentative schedule", "plan/choose.py", (Part(choose, "_first", largest_index),)),
    Mechanism("plan: cheap work waits for others", "plan/choose.py", settings=(Setting(choose, "CHEAP", 0.0),)),
    Mechanism("plan: what is not full waits while it can", "plan/choose.py", settings=(Setting(choose, "FULL", 0.0),)),
    Mechanism("plan: urgency", "plan/choose.py", (Part(choose, "_index", lambda item: item.value),)),
    Mechanism("plan: urgent before patient", "plan/choose.py", settings=(Setting(choose, "PATIENT", 10**9),)),
    # --- plan: plain and unequal work
    Mechanism("plan: what waits behind a batch", "plan/lane_plan.py", (Part(lane_plan, "behind", says(())),)),
    Mechanism("plan: companies are split", "plan/companies.py", (Part(Companies, "_splits", says(False)),)),
    Mechanism(
        "plan: companies in flight that can wait or bring less",
        "plan/companies.py",
        (Part(companies, "_goes_before", says(True)),),
    ),
    Mechanism(
        "plan: who is given up rises",
        "plan/plain.py",
        settings=(Setting(plain, "RISE_MAX", 0.0), Setting(unequal, "RISE_MAX", 0.0)),
    ),
    Mechanism("plan: laws of unequal inputs", "plan/law.py", (Part(Unequal, "_is_wide", says(False)),)),
    Mechanism("plan: apps whose inputs differ", "plan/input_spread.py", (Part(law, "apps_differ", says(False)),)),
    Mechanism(
        "plan: declared lengths",
        "plan/law.py",
        (Part(law, "declared", says(None)), Part(unequal, "declared", says(None))),
    ),
    # --- plan: companies
    Mechanism(
        "plan: the tightest critical requests first",
        "plan/companies.py",
        (Part(companies, "_tightest_first", says([])),),
    ),
    Mechanism("plan: companies", "plan/companies.py", (Part(lane_plan, "kind_of", without_companies),)),
    Mechanism(
        "plan: answers of a company's early batches",
        "plan/paths.py",
        (
            Part(LaneSchedule, "answers", says([])),
            Part(StageRoute, "answers", lambda self, left, count, end: [end] * count),
        ),
    ),
    Mechanism("plan: host functions ahead", "plan/companies.py", (Part(Companies, "_ahead", says(None)),)),
    Mechanism(
        "plan: companies are joined",
        "plan/companies.py",
        (Part(Companies, "_gathered", lambda self, candidate, *rest: candidate),),
    ),
    # --- plan: members of ensembles
    Mechanism("plan: price of members", "plan/price.py", (Part(members, "likely_price", says(0.0)),)),
    Mechanism(
        "plan: mean times in the price",
        "latency/batch_time.py",
        (Part(BatchTime, "mean_ns", lambda self, size: self.typical_ns[size]),),
    ),
    Mechanism("plan: wait of the join", "plan/members.py", (Part(Members, "_join_waited", says(None), True),)),
    Mechanism("plan: stop when enough", "plan/members.py", (Part(Members, "_is_enough", says(False)),)),
    # --- plan: answers of language models
    Mechanism("plan: order of answers", "plan/steps.py", (Part(steps, "_in_order", by_arrival),)),
    Mechanism("plan: pace of answers", "plan/answers.py", settings=(Setting(answers, "PACE_MAX", 1.0),)),
    Mechanism("plan: turns of clients", "plan/steps.py", (Part(steps, "_in_turns", lambda table, fresh: fresh),)),
    Mechanism(
        "plan: how many join",
        "plan/steps.py",
        (Part(Steps, "_in_time", lambda self, table, bound, following, *rest: len(following)),),
    ),
    Mechanism("plan: cut for its own", "plan/steps.py", (Part(Steps, "cut", says(False)),)),
    Mechanism(
        "plan: side lanes",
        "plan/side_lanes.py",
        (Part(steps, "is_side", says(False)), Part(side_lanes, "is_side", says(False))),
    ),
    Mechanism(
        "plan: corrected lengths", "policies/common/lengths.py", (Part(LearnedLengths, "_fit", says(None), True),)
    ),
    Mechanism(
        "plan: hopeless answers", "policies/common/lengths.py", (Part(LearnedLengths, "may_give_up", says(False)),)
    ),
)
