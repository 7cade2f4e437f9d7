"""The ends of all requests of a run: arrivals = in time + late + rejected + dropped + cancelled + failed.

Counted from what passed between the loop and the scheduler alone, one request at a time, so it agrees with the
report (made by the world) and with a policy's own counts only if all three counted every request once: also one whose
branches ran apart, two of which were given up, or whose join never fired. ``scripts/dev/soak.py`` checks it after every
run, per app and per policy kind."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Mapping, NamedTuple, NoReturn, Sequence

from edgeserve.config.schema import Config
from edgeserve.sched.core.ends import EXPIRED
from edgeserve.sched.core.request_manager import SUPERSEDED
from edgeserve.sched.protocol.actions import Action, FinishRequest, Outcome
from edgeserve.sched.protocol.events import Event, Request, RequestArrived
from edgeserve.sched.requests.admission import OVER_SHARE
from edgeserve.sim.report import AppReport, report_of
from edgeserve.sim.world import SimWorld
from edgeserve.units import counted

IN_TIME, LATE = "in time", "late"

COUNTING, PROACTIVE = ("pard", "pard+"), "proactive"
"""Kinds that count their ends themselves, and the reason of what they give up."""

UNSAID = (Outcome.COMPLETED, Outcome.CANCELLED)
"""Outcomes that need no reason: the answer, and what the client asked for."""


class AccountsError(AssertionError):
    """A request was lost, counted twice, or ended without a reason."""


class EndCounts(NamedTuple):
    """The requests of one app, or of one policy kind: how many came, and how they ended (``"in time"``, ``"late"``,
    ``"dropped: expired"``, ...)."""

    arrived: int
    ends: Mapping[str, int]


class Accounts:
    """The ledger of one run: :meth:`step` sees every step, :meth:`check` closes it."""

    def __init__(self, config: Config) -> None:
        policies = config.policies
        self._kind_of = {app.name: policies[app.policy or next(iter(policies))].kind for app in config.apps.values()}
        self._counting = {name for name, policy in policies.items() if policy.kind in COUNTING}
        self._open: Dict[int, Request] = {}
        self._arrived: Counter[str] = Counter()
        self._ends: Dict[str, Counter[str]] = {name: Counter() for name in config.apps}

    def step(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """The events of one step of the scheduler, and its actions."""
        for event in events:
            if isinstance(event, RequestArrived):
                if event.request.id in self._open:
                    self._broken(f"{event.request} arrived twice")
                self._open[event.request.id] = event.request
                self._arrived[event.request.app] += 1
        for action in actions:
            if isinstance(action, FinishRequest):
                request = self._open.pop(action.request_id, None)
                if request is None:
                    self._broken(f"{action} ends a request that never came, or once more")
                if not action.reason and action.outcome not in UNSAID:
                    self._broken(f"{action} of {request} says no reason")
                self._ends[request.app][_named(action.outcome, action.reason)] += 1

    def by_app(self) -> Dict[str, EndCounts]:
        """The account of each app. Until :meth:`check` has asked the report, who was late is not told apart."""
        return {name: EndCounts(self._arrived[name], dict(ends)) for name, ends in self._ends.items()}

    def by_kind(self) -> Dict[str, EndCounts]:
        """The account of each policy kind that an app names, summed over its apps."""
        found: Dict[str, EndCounts] = {}
        for name, account in self.by_app().items():
            before = found.get(self._kind_of[name], EndCounts(0, {}))
            found[self._kind_of[name]] = EndCounts(
                before.arrived + account.arrived, dict(Counter(before.ends) + Counter(account.ends))
            )
        return found

    def check(self, world: SimWorld, scheduler: Any) -> None:
        """Every request has one end; the report says the same, and which completed ones were late; the policies
        that count for themselves agree."""
        report = report_of([world], 0, max(1, world.now_ns))
        if self._open:
            self._broken(
                f"{counted(len(self._open), 'request')} without an end, such as {list(self._open.values())[:1]}"
            )
        for name, account in self.by_app().items():
            if account.arrived != sum(account.ends.values()):
                self._broken(
                    f"app {name!r}: {account.arrived} came, {sum(account.ends.values())} ended: {account.ends}"
                )
            self._reported(name, account, report.apps[name])
        if report.total.offered != sum(self._arrived.values()):
            self._broken(f"the report has {report.total.offered} requests in all, {sum(self._arrived.values())} came")
        for policy in scheduler.policies:
            if policy.name in self._counting:
                self._counted(policy)

    def _reported(self, name: str, account: EndCounts, said: AppReport) -> None:
        ends = +Counter({"completed": said.in_time + said.late, **said.ended})  # without zeros
        if said.offered != account.arrived or ends != account.ends:
            self._broken(
                f"app {name!r}: {account.arrived} came and ended so: {account.ends}; the report has "
                f"{said.offered} of which {said.in_time} in time, {said.late} late, otherwise {said.ended}"
            )
        self._ends[name] = +Counter({IN_TIME: said.in_time, LATE: said.late, **said.ended})

    def _counted(self, policy: Any) -> None:
        """PARD's own counts, by module: who was given up counts once, at the module that decided it."""
        ends: Counter[str] = Counter()
        for app in policy.apps:
            ends.update(self._ends[app.name])
        dropped, expired = sum(policy.dropped.values()), sum(policy.expired.values())
        if dropped != ends[_named(Outcome.DROPPED, PROACTIVE)]:
            self._broken(f"policy {policy.name!r} counts {policy.dropped} dropped; the outcomes are {dict(ends)}")
        # Not all who expire stand in its queues: some wait for their stream, or have just come back from a lane.
        passed = sum(ends[_named(Outcome.DROPPED, reason)] for reason in (EXPIRED, SUPERSEDED, OVER_SHARE))
        if expired > passed:
            self._broken(f"policy {policy.name!r} counts {policy.expired} expired; the outcomes are {dict(ends)}")

    def _broken(self, rule: str) -> NoReturn:
        """Called where a rule does not hold, so that it is put into words only then: that takes longer than to look."""
        raise AccountsError(rule)


def _named(outcome: str, reason: str) -> str:
    """The name of an end, as in the report."""
    return f"{outcome}: {reason}" if reason and outcome != Outcome.COMPLETED else outcome
