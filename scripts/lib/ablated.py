"""How each mechanism of the scheduler is switched off, for ``scripts/bench/ablation.py``.

A mechanism is off when its methods answer what a scheduler without it would: nobody is waited for, nothing is learnt,
no probe fits. Where an option of a policy switches it off, that is used. A new mechanism gets its row here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Callable, List, Mapping, NamedTuple, Sequence, Set, Tuple
from unittest import mock

from edgeserve.loop.coalescing import ReceiveCoalescing
from edgeserve.loop.response_overhead import ResponseOverhead
from edgeserve.sched.core.auction import Auction
from edgeserve.sched.core.cuts import Cuts
from edgeserve.sched.core.experiments import Trials
from edgeserve.sched.core.holds import Holds
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.declared import DeclaredShare
from edgeserve.sched.latency.inputs import InputVariance
from edgeserve.sched.latency.lane_gaps import DispatchGap
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.policies import POLICIES, edf, rtlm_plus
from edgeserve.sched.policies.common import lane_schedule
from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.published.orloj.sampler import Sampler
from edgeserve.sched.policies.common.lengths import Lengths
from edgeserve.sched.policies.pard_local import pard_local
from edgeserve.sched.policies.pard_local.cost import LaneSchedule
from edgeserve.sched.policies.pard_local.pard_local import PardLocal
from edgeserve.sched.policies.pard_local.stages import Route
from edgeserve.sched.policies.rtlm_plus import RtlmPlus
from edgeserve.sched.policies.schemble_plus import schemble_plus
from edgeserve.sched.policies.schemble_plus.schemble_plus import SchemblePlus
from edgeserve.sched.policy_api import arbiter
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.requests.arrivals import AppArrivals, Sources
from edgeserve.sched.requests.critical import Source
from edgeserve.sched.requests.promises import Promises
from edgeserve.sched.requests.states import Job
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.model_worth import ModelWorth
from edgeserve.sim.scenario import Scenario
from edgeserve.units import FOREVER_NS


class Part(NamedTuple):
    """A method or function of ``owner`` and what it answers when its mechanism is off. ``learns``: it changes what is
    known, so that each call counts as something that the mechanism did; else only another answer does."""

    owner: Any
    attribute: str
    off: Callable[..., Any]
    learns: bool = False


class Mechanism(NamedTuple):
    """One mechanism: the module that it lies in, below ``edgeserve/sched``; what switches it off. A whole policy is off
    where the policy ``instead`` serves its apps."""

    name: str
    where: str
    parts: Tuple[Part, ...] = ()
    options: Mapping[str, Mapping[str, object]] = {}  # kind of policy -> its options without the mechanism
    instead: Mapping[str, str] = {}  # kind of policy -> the one that serves its apps without it

    def switch_off(self, stack: ExitStack) -> None:
        """Until the stack closes."""
        stack.enter_context(mock.patch.dict(POLICIES, {kind: POLICIES[other] for kind, other in self.instead.items()}))
        for part in self.parts:
            stack.enter_context(mock.patch.object(part.owner, part.attribute, _as_found(part, part.off)))

    def watch(self, stack: ExitStack, acted: Set[str], kinds: Set[str]) -> None:
        """Until the stack closes, add the mechanism's name to ``acted`` when it does something. ``kinds``: of the
        policies in use."""
        if not (kinds.isdisjoint(self.options) and kinds.isdisjoint(self.instead)):
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

    def with_options(self, scenario: Scenario) -> Scenario:
        """The scenario with the options that switch the mechanism off."""
        policies = {
            name: replace(policy, options={**policy.options, **self.options.get(policy.kind, {})})
            if policy.kind not in self.instead
            else replace(policy, kind=self.instead[policy.kind], options={})
            for name, policy in scenario.config.policies.items()
        }
        return replace(scenario, config=replace(scenario.config, policies=policies))


def _as_found(part: Part, function: Callable[..., Any]) -> Any:
    return property(function) if isinstance(part.owner.__dict__[part.attribute], property) else function


def says(answer: Any) -> Callable[..., Any]:
    """Always this answer."""
    return lambda *args, **keys: answer


def most_urgent(queues: Sequence[JobQueue], room: int, size: int, ends_ns: int, step_ns: int, lane: str) -> List[Job]:
    """The first jobs of a model that are in time, whatever they are worth."""
    rows = sorted([row for queue in queues for row in queue.rows if row[0] >= ends_ns])
    return [row[2] for row in rows if row[2].lane in ("", lane)][:room]


OWN = ("orloj+", "rtlm+", "schemble+", "pard_local")
"""The policies that an app gets by what it is, besides ``edf``."""

MECHANISMS: Tuple[Mechanism, ...] = (
    # --- whole policies
    *[Mechanism(f"{kind} as a whole", "policies/__init__.py", instead={kind: "edf"}) for kind in OWN],
    # --- core
    Mechanism("wait for returning clients", "core/holds.py", (Part(Holds, "_for_clients_ns", says(0)),)),
    Mechanism(
        "fuller batches near a limit of heat or power",
        "core/holds.py",
        (Part(Holds, "_under_pressure_ns", says(0)),),
    ),
    Mechanism("trials of refused requests", "core/experiments.py", (Part(Trials, "takes", says(False)),)),
    Mechanism("rank of promised deadlines", "requests/promises.py", (Part(Promises, "take", says(False)),)),
    Mechanism("batches cut for others", "core/cuts.py", (Part(Cuts, "_kept_waiting", says(None)),)),
    Mechanism(
        "background yields to critical",
        "core/auction.py",
        (Part(Board, "spares_critical", says(True)),),
    ),
    Mechanism(
        "others first: for critical requests, or while a batch fills",
        "core/auction.py",
        (Part(Auction, "_others_first", lambda self, bid, *rest: bid),),
    ),
    Mechanism(
        "critical requests of policies that bid for others",
        "core/auction.py",
        (Part(Auction, "_sparing", lambda self, first, *rest: first),),
    ),
    Mechanism("others first while a batch fills", "core/holds.py", (Part(Holds, "may_fill", says(False)),)),
    Mechanism(
        "no app is passed over for ever",
        "policy_api/arbiter.py",
        (Part(arbiter, "overdue", lambda bids, passed_ns, first, *rest: first),),
    ),
    Mechanism("auction plans for slow batches", "core/auction.py", (Part(Auction, "_say_spread", says(None), True),)),
    Mechanism(
        "auction counts what waiting loses",
        "policy_api/arbiter.py",
        (Part(arbiter, "_losses", lambda bids, *rest: [0.0] * len(bids)),),
    ),
    Mechanism(
        "auction's bounds of class and latest start", "policy_api/arbiter.py", (Part(arbiter, "_bars", says(False)),)
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
    Mechanism("slowdown of batches", "latency/batch_time.py", (Part(BatchTime, "_follow", says(None), True),)),
    Mechanism("standard times by size", "latency/batch_time.py", (Part(BatchTime, "_compare", says(False), True),)),
    Mechanism("input variance", "latency/inputs.py", (Part(InputVariance, "observe", says(False), True),)),
    Mechanism(
        "declared work as batches show it", "latency/declared.py", (Part(DeclaredShare, "observe", says(None), True),)
    ),
    Mechanism("standard work", "latency/batch_time.py", (Part(BatchTime, "_each_ns", says(0)),)),
    Mechanism("measured durations expire", "latency/batch_time.py", (Part(BatchTime, "forget", says(None), True),)),
    Mechanism("dispatch gap", "latency/lane_gaps.py", (Part(DispatchGap, "took", says(None), True),)),
    Mechanism("response overhead", "loop/response_overhead.py", (Part(ResponseOverhead, "took", says(None), True),)),
    Mechanism("mean parts of a fan-out", "latency/path_cost.py", (Part(AppCosts, "observe_parts", says(None), True),)),
    # --- requests and resources
    Mechanism(
        "period of a critical source", "requests/critical.py", (Part(Source, "next_ns", lambda self: self.last_ns),)
    ),
    Mechanism("period of a stream's frames", "requests/arrivals.py", (Part(Sources, "came", says(None)),)),
    Mechanism("rates of other apps", "requests/arrivals.py", (Part(AppArrivals, "per_ns", says(0.0)),)),
    Mechanism(
        "memory by what is asked for", "resources/model_worth.py", (Part(ModelWorth, "refresh", says(None), True),)
    ),
    Mechanism("eviction spares bound models", "resources/model_cache.py", (Part(Device, "_could_return", says(True)),)),
    # --- edf
    Mechanism(
        "edf: values of a model's jobs", "policies/common/model_queues.py", (Part(edf, "worthiest", most_urgent),)
    ),
    Mechanism(
        "edf: schedule of several models",
        "policies/common/lane_schedule.py",
        (Part(edf, "first_of", lambda bids, lost, *rest: arbiter.choose(bids, *rest)),),
    ),
    Mechanism(
        "edf: who is passed over rises",
        "policies/common/lane_schedule.py",
        (Part(lane_schedule, "_rise", says(1.0)),),
    ),
    Mechanism(
        "edf: urgent before patient",
        "policies/common/lane_schedule.py",
        (Part(lane_schedule, "_patient_from_ns", says(FOREVER_NS)),),
    ),
    Mechanism("edf: batches that give nobody up", "policies/edf.py", (Part(edf, "_rate_of_all", says(0.0)),)),
    Mechanism("edf: steps to come", "policies/edf.py", (Part(edf, "steps_more_ns", says(0)),)),
    Mechanism("edf: sizes that lose critical jobs", "policies/edf.py", (Part(edf, "_critical_lost", says(0)),)),
    Mechanism("edf: refusal at arrival", "policies/edf.py", (), {"edf": {"admit": False}}),
    # --- pard_local
    Mechanism("pard_local: a second cohort", "policies/pard_local/in_flight.py", (), {"pard_local": {"cohorts": 1}}),
    Mechanism(
        "pard_local: cohorts yield to a more urgent class",
        "policies/pard_local/pard_local.py",
        (Part(PardLocal, "_is_in_the_way", says(False)),),
    ),
    Mechanism(
        "pard_local: refusal at arrival", "policies/pard_local/pard_local.py", (), {"pard_local": {"admit": False}}
    ),
    Mechanism(
        "pard_local: filling of batches",
        "policies/pard_local/filling.py",
        (Part(pard_local, "may_be_filled", says(False)),),
    ),
    Mechanism(
        "pard_local: answers of early batches",
        "policies/pard_local/in_flight.py",
        (Part(LaneSchedule, "answers", says([])), Part(Route, "answers", lambda self, left, count, end: [end])),
    ),
    Mechanism(
        "pard_local: host functions ahead",
        "policies/pard_local/pard_local.py",
        (Part(pard_local.PardLocal, "_ahead_bids", lambda *args: []),),
    ),
    # --- orloj+, rtlm+, schemble+
    Mechanism("orloj+: probes and samples", "policies/dynamic/sampler.py", (Part(Sampler, "offer", says(None)),)),
    Mechanism("orloj+: lengths by hint", "policies/orloj_plus.py", (), {"orloj+": {"hint": ""}}),
    Mechanism("rtlm+: corrected lengths", "policies/language/lengths.py", (Part(Lengths, "_fit", says(None), True),)),
    Mechanism(
        "rtlm+: admission by chance",
        "policies/rtlm_plus.py",
        (Part(RtlmPlus, "_in_time", lambda self, tasks, running, following, *rest: len(following)),),
    ),
    Mechanism(
        "rtlm+: turns of clients", "policies/rtlm_plus.py", (Part(rtlm_plus, "_has_several_clients", says(False)),)
    ),
    Mechanism("rtlm+: offload", "policies/language/offload.py", (Part(RtlmPlus, "_is_sent", says(False)),)),
    Mechanism("rtlm+: cut for its own", "policies/rtlm_plus.py", (Part(RtlmPlus, "cut", says(False)),)),
    Mechanism(
        "schemble+: price of time",
        "policies/schemble_plus/backlog.py",
        (Part(schemble_plus, "prices", lambda lanes, *rest: [0.0] * len(lanes.free_ns)),),
    ),
    Mechanism(
        "schemble+: charges of those that wait",
        "policies/schemble_plus/backlog.py",
        (Part(schemble_plus, "surcharges", lambda lanes, models, *rest: [0.0] * len(models)),),
    ),
    Mechanism(
        "schemble+: charges of other apps",
        "policies/schemble_plus/others.py",
        (Part(schemble_plus, "charges", lambda shares_ns, *rest: [0.0] * len(shares_ns)),),
    ),
    Mechanism(
        "schemble+: models that could make a critical request late",
        "policies/schemble_plus/schemble_plus.py",
        (Part(SchemblePlus, "_that_may_go", lambda self, rows, *rest: rows),),
    ),
    Mechanism(
        "schemble+: wait of the join",
        "policies/schemble_plus/schemble_plus.py",
        (Part(SchemblePlus, "_join_wait_ns", says(0)),),
    ),
    Mechanism(
        "schemble+: stop when enough",
        "policies/schemble_plus/schemble_plus.py",
        (Part(SchemblePlus, "_is_enough", says(False)),),
    ),
)
