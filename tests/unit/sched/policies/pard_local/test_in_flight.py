"""Cohorts in flight: where they are, whether another one may begin behind them, and who waits beside them."""

from __future__ import annotations

from exact_device import MS, Device, ask, chain, model, with_host_function

from edgeserve.sched.policies.pard_local.in_flight import Forecast
from edgeserve.sched.policies.pard_local.remaining_work import NO_STEPS


def in_flight(device):
    """The policy's cohorts, the lanes by name, and the board."""
    state = device.scheduler.state
    return device.scheduler.policies[0]._in_flight, state.lanes, state.board


def test_another_cohort_may_begin_while_the_one_before_is_elsewhere_or_about_to_leave():
    device = Device(with_host_function())  # a: 10 ms on the gpu, f: 5 ms on the host, b: 4 ms on the gpu
    device.ask(ask(1, 200))
    flights, lanes, board = in_flight(device)
    gpu, host = lanes["gpu"], lanes["host"]
    (cohort,) = flights.cohorts
    assert (cohort.runs_on(gpu), cohort.runs_on(host), cohort.needs(gpu, flights._stage_costs, board)) == (
        True, False, True)
    assert not flights.may_start("gpu", gpu, board)
    assert flights.may_start("another", gpu, board)  # no cohort of that home is in flight
    device.advance(10)
    assert (cohort.runs_on(gpu), cohort.runs_on(host), cohort.needs(gpu, flights._stage_costs, board)) == (
        False, True, True)
    assert flights.may_start("gpu", gpu, board)
    device.advance(15)
    assert (cohort.runs_on(gpu), cohort.needs(gpu, flights._stage_costs, board)) == (True, False)
    assert flights.may_start("gpu", gpu, board)
    device.advance(19)
    assert flights.cohorts == [] and flights.may_start("gpu", gpu, board)


def test_no_more_cohorts_stay_at_a_home_than_may():
    def begun(count):
        device = Device(with_host_function())
        device.scheduler.policies[0]._in_flight.cohorts_max = count
        device.ask(ask(1, 500))
        device.now_ns = 1 * MS
        device.ask(ask(2, 500))
        device.advance(10)
        return device
    assert sorted(begun(2).batches[1:]) == [(10.0, "a", [2]), (10.0, "f", [1])]
    assert begun(1).batches[1:] == [(10.0, "f", [1])]
    device = begun(2)
    flights, lanes, board = in_flight(device)
    assert len(flights.cohorts) == 2 and not flights.may_start("gpu", lanes["gpu"], board)


def test_who_is_answered_late_waits_with_as_much_more_of_its_own_time_as_it_needs():
    device = Device(chain(admit=False))
    device.ask(ask(1, 1000))  # a until 6
    device.now_ns = 1 * MS
    device.ask(ask(2, 4, 1, on_late="answer"), ask(3, 16, 1), ask(4, 15, 1))
    members = device.scheduler.policies[0]._members
    assert members[2].due_ns == 16 * MS  # alone it ends at 6 + 10, 12 ms late, and it has 3 ms at a time
    assert members[3].due_ns == 16 * MS
    assert device.ends == {4: ("dropped", 1.0)}
    device.ask(ask(5, 12, 1, on_late="answer"))
    assert members[5].due_ns == 23 * MS  # 4 ms late, 11 at a time


def test_those_of_one_kind_are_tested_by_their_own_pipelines_time():
    table = chain(admit=False)
    table["model"]["c"] = model(28, 2)
    table["app"]["slow"] = {"slo": "100ms", "node": [{"name": "a"}, {"name": "c"}]}
    device = Device(table)
    device.ask(ask(1, 1000))
    device.now_ns = 1 * MS
    device.ask(ask(2, 16, 1), ask(3, 41, 1, app="slow"), ask(4, 42, 1, app="slow"), ask(5, 15, 1))
    assert device.ends == {3: ("dropped", 1.0), 5: ("dropped", 1.0)}  # a is free at 6; then 10 ms, or 36


def test_with_the_last_operation_of_a_step_a_trial_is_worked_out_and_with_none_left_no_more():
    device = Device(with_host_function())
    policy, board = device.scheduler.policies[0], device.scheduler.state.board
    board.now_ns = 0
    pipeline = policy._pipeline_of["app"]
    forecast = Forecast(policy._in_flight, policy._stage_costs, board, pipeline, "gpu", 0, False)
    left = pipeline.left_of(1, surely=False)
    trials = (lambda: forecast.paced(left), lambda: forecast.ends_ns(left, NO_STEPS))
    for trial in trials:
        board.budget.left = 1
        assert trial() is not None
        board.budget.left = 0
        assert trial() is None
