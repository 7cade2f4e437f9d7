"""Cohorts in flight: where they are, whether another one may begin behind them, and who waits beside them."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, chain, model, with_host_function

from edgeserve.sched.policies.pard_local.in_flight import Cohort, CohortTimes, Forecast, InFlight
from edgeserve.sched.policies.pard_local.remaining_work import NO_STEPS
from edgeserve.sched.policies.pard_local.stages import StageCosts
from edgeserve.sched.protocol.events import LaneChanged


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
        True,
        False,
        True,
    )
    assert not flights.may_start("gpu", gpu, board)
    assert flights.may_start("another", gpu, board)  # no cohort of that home is in flight
    device.advance(10)
    assert (cohort.runs_on(gpu), cohort.runs_on(host), cohort.needs(gpu, flights._stage_costs, board)) == (
        False,
        True,
        True,
    )
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
    times = CohortTimes(forecast, pipeline, pipeline.template, surely=False, has_margin=False)
    trials = (lambda: forecast.paced(left), lambda: forecast.ends_ns(left, NO_STEPS), lambda: times.later(1))
    for trial in trials:
        board.budget.left = 1
        assert trial() is not None
        board.budget.left = 0
        assert trial() is None


# --- what a cohort has still to run, and when its members are answered ------------------------------------------------


def line(*stages):
    """A chain of models: (name, lane, fixed, each, limit)."""
    return {
        "lane": {"gpu": {}, "host": {}},
        "model": {name: model(fixed, each, limit, lanes=[lane]) for name, lane, fixed, each, limit in stages},
        "policy": {"p": {"kind": "pard_local", "margin": 0.0}},
        "app": {"app": {"slo": "200ms", "node": [{"name": stage[0]} for stage in stages]}},
    }


def mixed(functions):
    """Five requests in reverse order of their deadlines, one answered late anyway: a for 25 ms, b in pairs, perhaps
    functions of 1 ms behind it."""
    stages = [("a", "gpu", 20, 1, 8), ("b", "gpu", 10, 2, 2), ("f", "host", 0, 1, 1)]
    device = Device(line(*stages[: 2 + functions]))
    device.ask(ask(1, 160), ask(2, 150), ask(3, 140), ask(4, 130, on_late="answer"), ask(5, 120))
    return device


@pytest.mark.parametrize(
    ("functions", "at_ms", "early", "due_ms"),
    [
        (True, 0, {5: 26, 4: 25, 3: 12, 2: 11, 1: 0}, 146),  # b is over after 14, 28 and 40 ms
        (True, 25, {5: 26, 4: 25, 3: 12, 2: 11, 1: 0}, 146),
        (True, 39, {5: 12, 4: 11, 3: 10, 2: 9, 1: 0}, 132),  # two wait for functions, two run, and one takes 12
        (True, 40, {4: 12, 3: 11, 2: 10, 1: 0}, 151),
        (True, 53, {3: 2, 2: 1, 1: 0}, 142),
        (False, 0, {5: 26, 4: 26, 3: 12, 2: 12, 1: 0}, 146),
        (False, 25, {5: 26, 4: 26, 3: 12, 2: 12, 1: 0}, 146),
        (False, 39, {3: 12, 2: 12, 1: 0}, 152),
        (False, 53, {}, 160),
    ],
)
def test_members_are_answered_early_and_the_cohort_is_due_when_the_first_of_them_would_be_late(
    functions, at_ms, early, due_ms
):
    device = mixed(functions)
    device.advance(at_ms)
    flights, _, board = in_flight(device)
    found = flights.early_ns(flights.cohorts[0], board)
    assert found == {request: ms * MS for request, ms in early.items()}
    assert flights.cohorts[0].due_ns(found) == due_ms * MS


@pytest.mark.parametrize(
    ("at_ms", "stages", "running_ms"),
    [
        (
            0,
            [
                ("gpu", [], []),
                ("gpu", [14, 14, 12], [[(-1, 0)]] * 3),
                ("host", [2, 2, 1], [[(1, 1)], [(1, 2)], [(1, 3)]]),
            ],
            [25],
        ),
        (25, [("gpu", [14, 12], [[], []]), ("host", [2, 2, 1], [[(-1, 0)], [(0, 1)], [(0, 2)]])], [39]),
        (39, [("gpu", [12], [[]]), ("host", [1, 2, 1], [[], [(-1, 0)], [(0, 1)]])], [53, 40]),
        (40, [("gpu", [12], [[]]), ("host", [2, 1], [[(-1, 0)], [(0, 1)]])], [53, 41]),
        (54, [("gpu", [], []), ("host", [1], [[(-1, 0)]])], [65, 55]),
    ],
)
def test_a_schedule_is_what_has_not_begun_behind_what_runs(at_ms, stages, running_ms):
    device = mixed(functions=True)
    device.advance(at_ms)
    flights, _, board = in_flight(device)
    (found,) = flights.schedules(board)
    assert [
        (stage.lane, [time_ns / MS for time_ns in stage.batches], list(stage.needs)) for stage in found.stages
    ] == stages
    assert (found.ready_ns, found.running_ns) == (at_ms * MS, [ms * MS for ms in running_ms])
    assert (found.after, found.home) == (-1, "gpu")
    assert flights.ends_ns(flights.cohorts[0], board) == 66 * MS


def test_work_that_runs_is_not_left_and_steps_repeat_a_stage():
    device = Device(line(("a", "gpu", 4, 4, 2), ("b", "gpu", 10, 10, 4)))
    device.ask(
        ask(1, 900, hints={"a.work": 3.0, "b.work": 0.5}),
        ask(2, 901, hints={"a.work": 2.0}),
        ask(3, 902, hints={"a.work": 1.5, "b.steps": 3.0}),
    )
    flights, _, board = in_flight(device)
    (cohort,) = flights.cohorts

    def scheduled():
        (found,) = flights.schedules(board)
        return [[time_ns / MS for time_ns in stage.batches] for stage in found.stages], found.running_ns

    assert (cohort.left(), cohort.steps()) == ([3000, 3000, 3500, -500], {0: 1, 1: 3})
    assert scheduled() == ([[10], [35, 35, 35]], [24 * MS])  # the first two are at a, which takes 12, and 12 more
    device.advance(24)
    assert cohort.left() == [1000, 3000, 500, -1500]  # that b takes half of the usual work is believed of all
    assert scheduled() == ([[], [25, 25, 25]], [34 * MS])
    assert flights.early_ns(cohort, board) == {}


# --- a new cohort beside one in flight --------------------------------------------------------------------------------

TWO = [2000, 2000, 2000, 0, 0, 0]
"""Two requests that have not begun: a takes 14 ms, f takes 5 on the host, b takes 6."""


def beside(due_ms=60, at_ms=2, from_ms=10, margin_ppm=0, cohorts_max=2, goes_first=False):
    """The forecast of a cohort that begins beside one of a single request (until 10, f until 15, b until 19)."""
    device = Device(with_host_function())
    device.ask(ask(1, due_ms))
    device.advance(at_ms)
    device.now_ns = at_ms * MS
    device.step()
    policy, board = device.scheduler.policies[0], device.scheduler.state.board
    policy._in_flight.cohorts_max = cohorts_max
    policy._stage_costs.usual("b", "gpu", board)._surprise_ppm = 10_000  # a tenth more or less
    return Forecast(
        policy._in_flight,
        policy._stage_costs,
        board,
        policy._pipeline_of["app"],
        "gpu",
        from_ms * MS,
        goes_first,
        margin_ppm,
    )


def test_what_a_new_cohort_takes_of_its_lanes():
    forecast = beside()
    assert (forecast.ends, forecast.later_ns) == ([19 * MS], 19 * MS)
    assert forecast.busy_ns(TWO, NO_STEPS) == 20 * MS  # on the lane that it needs longest
    assert forecast.busy_ns(TWO, {1: 5}) == 25 * MS
    assert forecast.busy_ns([0] * 6, NO_STEPS) == 1
    assert forecast.home_ns(TWO) == 25 * MS  # and what it waits there
    assert [forecast.has_gaps(left + [0] * 3) for left in ([1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1])] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("left", "steps", "limit_ms", "takes_ms"),
    [
        (TWO, NO_STEPS, 999, 25),
        (TWO, {1: 3}, 999, 35),
        ([2000, 0, 0, 0, 0, 0], NO_STEPS, 999, 14),
        ([2000, 0, 2000, 0, 0, 0], NO_STEPS, 999, 20),
        ([2000, 0, 2000, 0, 0, 0], {0: 2}, 999, 34),
        (TWO, NO_STEPS, 24, 25),
        (TWO, NO_STEPS, 23, 14),  # it could not end by then: any time that is too long
        ([0, 2000, 0, 0, 0, 0], NO_STEPS, 999, 5),
    ],
)
def test_how_long_a_new_cohort_takes_alone(left, steps, limit_ms, takes_ms):
    assert beside().alone_ns(left, steps, limit_ms * MS) == takes_ms * MS


@pytest.mark.parametrize(("due_ms", "ends"), [(28, (35, (35, 16), (48, 15.5))), (27, (None, None, None))])
def test_a_new_cohort_may_delay_the_one_in_flight_until_it_is_due(due_ms, ends):
    forecast = beside(due_ms)
    found = forecast.ends_ns(TWO, NO_STEPS), forecast.paced(TWO, 0), forecast.paced(TWO)
    assert [
        ms if ms is None else ms / MS if isinstance(ms, int) else tuple(item / MS for item in ms) for ms in found
    ] == list(ends)
    assert forecast.ends_ns(TWO, NO_STEPS, 34 * MS) == 35 * MS  # too late even alone: the others are not looked at


@pytest.mark.parametrize(
    ("cohorts_max", "followers", "paced_ms"),
    [
        (2, 1, (48, 6)),
        (2, 2, (48, 15.5)),  # the next begins when the first in flight leaves, and then one after another
        (1, 1, (35, 25)),
        (1, 3, (35, 25)),
        (3, 2, (48, 15.5)),
        (3, 0, (35, 16)),
    ],
)
def test_cohorts_that_follow_each_other_take_turns_at_home(cohorts_max, followers, paced_ms):
    found = beside(cohorts_max=cohorts_max).paced(TWO, followers)
    assert tuple(ns / MS for ns in found) == paced_ms


def test_one_that_goes_first_has_the_lane_before_those_in_flight():
    last, first = (beside(33, at_ms=12, from_ms=15, goes_first=goes_first) for goes_first in (False, True))
    assert (last.is_shared(), first.is_shared()) == (True, False)
    assert (last.ends_ns(TWO, NO_STEPS), first.ends_ns(TWO, NO_STEPS)) == (44 * MS, 40 * MS)  # b at 19 or at 33
    assert beside(32, at_ms=12, from_ms=15, goes_first=True).ends_ns(TWO, NO_STEPS) is None
    last.later_ns = 1
    assert last.is_shared()
    last.later_ns = 0
    assert not last.is_shared()


def test_a_margin_grows_with_the_time_and_leaves_room_for_noise():
    forecast = beside(margin_ppm=200_000)
    assert forecast.noise_ns(TWO, NO_STEPS) == 600_000 and forecast.noise_ns(TWO, {2: 4}) == 1_200_000
    assert forecast.with_margin_ns(35 * MS, TWO, NO_STEPS) == 40_600_000  # 25 ms and a fifth
    assert forecast.with_margin_ns(35 * MS, TWO, NO_STEPS, 40 * MS) == 40_600_000
    assert forecast.with_margin_ns(35 * MS, TWO, NO_STEPS, 40 * MS - 1) == 40 * MS  # beyond the limit anyway
    assert forecast.with_margin_ns(9 * MS, TWO, NO_STEPS) == 9_600_000
    assert forecast._limits == [2 * MS + 48 * MS]  # (60 - 0.4 - 2) / 1.2 from now on
    assert beside(margin_ppm=1_000_000).with_margin_ns(9 * MS, TWO, NO_STEPS) == 9_600_000
    assert beside()._limits == [60 * MS]
    assert beside(19, margin_ppm=200_000)._limits == [19 * MS]  # as it is: no later than without another


def test_a_stage_without_a_lane_takes_no_time_and_lets_nobody_begin():
    device = Device(with_host_function())
    device.ask(ask(1, 900))
    device.step(LaneChanged("host", up=False))
    policy, board = device.scheduler.policies[0], device.scheduler.state.board
    for name, lane in (("a", "gpu"), ("b", "gpu"), ("f", "host")):
        policy._stage_costs.usual(name, lane, board)._surprise_ppm = 10_000
    forecast = Forecast(policy._in_flight, policy._stage_costs, board, policy._pipeline_of["app"], "gpu", 0, False)
    assert forecast.alone_ns(TWO, NO_STEPS) is None and forecast.ends_ns(TWO, NO_STEPS) is None
    assert forecast.paced(TWO) is None
    assert forecast.busy_ns(TWO, NO_STEPS) == 20 * MS and not forecast.has_gaps(TWO)
    assert forecast.noise_ns([0, 2000, 2000, 0, 0, 0], NO_STEPS) == 600_000


def test_one_that_cuts_in_stands_before_all_others_and_two_may():
    flights, pipeline = InFlight(StageCosts(), 2), Device(chain()).scheduler.policies[0]._pipeline_of["app"]
    began = [Cohort(pipeline, "l", [], cuts_in=cuts_in) for cuts_in in (False, False, True, True)]
    for number, cohort in enumerate(began):
        assert flights.may_cut_in() == (number < 4)
        flights.start(cohort)
    assert flights.cohorts == [began[3], began[2], began[0], began[1]] and not flights.may_cut_in()


def test_a_cohort_of_one_model_is_answered_batch_by_batch():
    device = Device(line(("b", "gpu", 10, 2, 2)))
    device.ask(ask(9, 900))
    device.now_ns = 1 * MS
    device.ask(ask(1, 60), ask(2, 50), ask(3, 40))  # in two batches: 14 and 12 ms
    flights, _, board = in_flight(device)
    members = [device.scheduler.policies[0]._members[number] for number in (1, 2, 3)]
    pipeline = members[0].pipeline
    assert flights.early_ns(Cohort(pipeline, "gpu", members), board) == {2: 12 * MS, 3: 12 * MS, 1: 0}
    assert flights.early_ns(Cohort(pipeline, "gpu", members[:2]), board) == {}


def test_what_was_lost_with_its_lane_is_not_left():
    table = line(("a", "gpu", 5, 5, 1), ("b", "gpu", 10, 10, 1), ("c", "host", 40, 10, 1), ("d", "gpu", 5, 5, 1))
    table["app"]["app"]["node"] = [
        {"name": "a", "after": []},
        {"name": "b", "after": ["a"]},
        {"name": "c", "after": ["a"]},
        {"name": "d", "after": ["b", "c"], "join": 1},
    ]
    device = Device(table)
    device.ask(ask(1, 190))
    device.advance(10)
    member = device.scheduler.policies[0]._members[1]
    assert member.left()[:4] == [0, 1000, 1000, 1000]
    device.now_ns = 12 * MS
    device.running = [row for row in device.running if row[1].lane != "host"]
    device.step(LaneChanged("host", up=False))
    assert member.left()[:4] == [0, 1000, 0, 1000]
    device.advance()
    assert device.ends == {1: ("completed", 40.0)}
