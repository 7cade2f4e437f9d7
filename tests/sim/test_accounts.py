"""arrivals = in time + late + rejected + dropped + cancelled + failed: per app, per policy kind, in every soak run."""

from __future__ import annotations

import pytest
from scenarios import scenario_of

from edgeserve.sched.protocol.actions import FinishRequest
from edgeserve.sched.protocol.events import Request, RequestArrived
from edgeserve.sched.published.pard.pard import PROACTIVE
from edgeserve.sim.run import simulate
from edgeserve.testing.soak.accounts import Accounts, AccountsError


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


def arrived(number):
    return RequestArrived(Request(number, "a", 0, 20))


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


def test_a_request_that_is_lost_is_noticed():
    accounts, world, scheduler = played()
    accounts.step([arrived(10**6)], [])
    with pytest.raises(AccountsError, match="1 request without an end"):
        accounts.check(world, scheduler)


def test_a_second_end_is_noticed():
    accounts, _, _ = played()
    accounts.step([arrived(10**6)], [FinishRequest(10**6, "dropped", "expired")])
    with pytest.raises(AccountsError, match="or once more"):
        accounts.step([], [FinishRequest(10**6, "dropped", "expired")])


def test_an_end_without_a_reason_is_noticed():
    accounts = Accounts(scenario_under("fifo").config)
    accounts.step([arrived(1), arrived(2)], [FinishRequest(1, "completed", ""), FinishRequest(2, "cancelled", "")])
    with pytest.raises(AccountsError, match="says no reason"):
        accounts.step([arrived(3)], [FinishRequest(3, "dropped", "")])


def test_an_end_that_the_report_has_not_or_has_otherwise_is_noticed():
    accounts, world, scheduler = played()
    last = world.ended.pop()
    with pytest.raises(AccountsError, match="the report has"):
        accounts.check(world, scheduler)
    world.ended.append(last._replace(outcome="failed", reason="otherwise"))
    with pytest.raises(AccountsError, match="the report has"):
        accounts.check(world, scheduler)


def test_a_policy_that_counts_a_drop_twice_or_not_at_all_is_noticed():
    for change in (1, -1):
        accounts, world, scheduler = played()
        scheduler.policies[0].dropped["m"] += change
        with pytest.raises(AccountsError, match="counts {'m': [0-9]+} dropped"):
            accounts.check(world, scheduler)
    accounts, world, scheduler = played()
    scheduler.policies[0].expired["m"] += 10**6
    with pytest.raises(AccountsError, match="expired"):
        accounts.check(world, scheduler)
