"""arrivals = in time + late + rejected + dropped + cancelled + failed: per app, per policy kind, in every soak run."""

from __future__ import annotations

from scenarios import scenario_of

from edgeserve.sched.published.pard.pard import PROACTIVE
from edgeserve.sim.run import simulate
from edgeserve.testing.soak.accounts import Accounts


def scenario_under(policy, **app):
    """Overload of one model."""
    return scenario_of(
        {"m": {1: 2}},
        {"a": {"model": "m", "slo": "20ms", **app}},
        {"w": {"app": "a", "rate": 700.0}},
        policy,
        seconds=0.2,
        lane={"l": {}},
    )


def played(policy=None, **app):
    """An overloaded run, its ledger, its world and its scheduler."""
    scenario = scenario_under(policy or {"pard": {"kind": "pard", "rule": "back"}}, **app)
    accounts = Accounts(scenario.config)
    run = simulate(scenario, 1, on_step=lambda now_ns, events, actions: accounts.step(events, actions))
    return accounts, run.world, run.scheduler


def test_who_came_has_one_end_and_the_report_and_the_policy_say_the_same():
    accounts, world, scheduler = played()
    accounts.check(world, scheduler)
    account = accounts.by_app()["a"]
    assert account == accounts.by_kind()["pard"]
    assert account.arrived == sum(account.ends.values()) > 100
    assert account.ends["in time"] > 50 and account.ends[f"dropped: {PROACTIVE}"] > 20


def test_who_was_answered_too_late_is_told_apart():
    accounts, world, scheduler = played("fifo", on_late="answer")
    late = sum(item.end_ns > item.request.deadline_ns for item in world.ended)
    accounts.check(world, scheduler)
    account = accounts.by_kind()["fifo"]
    assert account.ends == {"in time": account.arrived - late, "late": late} and late > 10
