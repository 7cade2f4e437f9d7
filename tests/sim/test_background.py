"""Background work neither delays critical requests nor starves: a control loop (4 ms every 100 ms, due in 20) beside
background work whose batches are short, long, or both."""

from __future__ import annotations

import pytest
from scenarios import product_first, scenario_of

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate

POLICIES = [
    *("fifo", "edf", "clockwork", "nexus", "clipper", "orloj", "plan", "pard", "pard+"),
    "rtlm",
]


def run(policy, times_ms, rate, *, jitter="0ms", slo="2s", noise=0.02, seconds=40, control=None, seeds=(1, 2), **app):
    setting = scenario_of(
        {"control": {1: 4}, "slow": times_ms},
        {
            "control": {"model": "control", "slo": "20ms", "class": "critical"},
            "slow": {"model": "slow", "slo": slo, "class": "background", **app},
        },
        {"control": control or {"kind": "periodic", "rate": 10, "jitter": jitter}, "slow": {"rate": rate}},
        policy,
        seconds=seconds,
        run={"noise": noise},
        lane={"gpu0": {}},
    )
    report = report_of([simulate(setting, seed, ()).world for seed in seeds], 0, setting.run.duration_ns)
    return report.apps["control"].finish_rate, report.apps["slow"].finish_rate


@pytest.mark.worlds
@pytest.mark.parametrize("policy", product_first(POLICIES))
@pytest.mark.parametrize(
    ("times_ms", "rate"),
    [
        ({size: 4 + 2 * size for size in range(1, 17)}, 20),  # only small batches fit beside the loop at any time
        ({1: 28}, 8),  # fits only between two requests of the loop
        ({1: 12}, 1),
    ],
)  # the lane is used for 5 % of the time
def test_control_is_in_time_and_background_work_is_answered(policy, times_ms, rate):
    control, background = run(policy, times_ms, rate)
    assert control >= 0.999
    assert background >= 0.9


@pytest.mark.worlds
@pytest.mark.parametrize("policy", ["fifo", "edf", "plan"])
def test_a_period_with_jitter_is_still_one(policy):
    control, background = run(policy, {1: 28}, 8, jitter="4ms")
    assert control >= 0.999
    assert background >= 0.9


@pytest.mark.worlds
@pytest.mark.parametrize("policy", ["fifo", "edf"])
def test_requests_that_follow_no_period_may_come_at_any_time(policy):
    poisson = {"app": "control", "kind": "poisson", "rate": 10}
    control, background = run(policy, {1: 28}, 8, control=poisson)
    alone, _ = run(policy, {1: 28}, 0.001, control=poisson)
    assert control >= alone - 0.001
    assert background < 0.1  # nothing tells when it may run


def test_background_work_that_waits_too_long_may_delay_critical_requests_if_its_app_says_so():
    poisson = {"app": "control", "kind": "poisson", "rate": 10}
    control, background = run("edf", {1: 28}, 0.4, control=poisson, slo="5s", background_wait="1s")
    assert background >= 0.9
    assert control >= 0.9
