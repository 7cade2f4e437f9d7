"""Companies in the plan: which requests begin together, wait for each other and leave, and that each has one end."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, chain, fan, in_time, model, remembered, with_host_function

from edgeserve.sched.plan.paths import ENTRIES_MAX, LaneSchedule, Schedule, Stage, repeated
from edgeserve.sched.policy_api.budget import Budget
from edgeserve.sched.protocol.events import JobResult, LaneChanged, RequestCancelled, WorkFinished
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario


def planned(table):
    """The table of a device with all apps under the plan."""
    return {**table, "policy": {"p": {"kind": "plan"}}}


def pipeline(*stages, slo_ms=200):
    """A chain of models on ``gpu`` and functions on ``host``: (name, lane, fixed, each, limit)."""
    return planned(
        {
            "lane": {"gpu": {}, "host": {}},
            "model": {name: model(fixed, each, limit, lanes=[lane]) for name, lane, fixed, each, limit in stages},
            "app": {"app": {"slo": f"{slo_ms}ms", "node": [{"name": stage[0]} for stage in stages]}},
        }
    )


AT_ENTRY = (("f", "host", 0, 4, 1), ("a", "gpu", 6, 1, 8), ("b", "gpu", 4, 1, 8))


def busy(device):
    """Request 1 begins; the following ones wait."""
    device.ask(ask(1, 100))
    device.now_ns = 1 * MS


def finish_late(device, at_ms, began_ms=10):
    """The batch that runs comes back at another time than expected."""
    device.now_ns, work = at_ms * MS, device.running.pop(0)[1]
    device.step(WorkFinished(work.work_id, began_ms * MS, at_ms * MS, tuple(JobResult(job) for job in work.jobs)))


# --- what takes how long ----------------------------------------------------------------------------------------------


def test_a_free_lane_takes_the_first_schedule_that_has_something_for_it():
    stages = [Stage("gpu", [(1, 10)]), Stage("host", [(1, 5)], [0]), Stage("gpu", [(1, 10)], [1])]
    first = Schedule(stages, 0)
    second = Schedule([Stage("gpu", [(1, 4)]), Stage("gpu", [(1, 3)], [0])], 0)
    assert LaneSchedule([first], {"gpu": 2, "host": 0}, Budget()).run() == [27]
    assert LaneSchedule([first, second], {"gpu": 0, "host": 0}, Budget()).run() == [27, 17]


def test_away_from_home_the_last_stage_goes_first():
    stages = [Stage("host", [(1, 5), (1, 5)]), Stage("host", [(1, 3), (1, 3)], [0])]
    away = LaneSchedule([Schedule(stages, 0, "gpu")], {"host": 0}, Budget())
    assert away.run() == [16] and away.answers(0) == [8, 16]
    at_home = LaneSchedule([Schedule(stages, 0, "host")], {"host": 0}, Budget())
    assert at_home.run() == [16] and at_home.answers(0) == [13, 16]


def test_a_forecast_is_short_whatever_number_of_steps_is_declared():
    found = repeated([(2, 7)], 10**6)
    assert len(found) <= ENTRIES_MAX and sum(time for _, time in found) == 7 * 10**6
    budget = Budget()
    before = budget.left
    LaneSchedule([Schedule([Stage("gpu", found)], 0)], {"gpu": 0}, budget)
    assert budget.left == before - ENTRIES_MAX


# --- who goes ---------------------------------------------------------------------------------------------------------


def test_a_company_waits_for_its_own_at_every_stage():
    device = Device(planned(chain()))
    device.ask(ask(1, 11), ask(2, 100), ask(3, 100))  # the first needs 10 alone, and two bring more per time
    device.advance()
    assert device.batches == [(0.0, "a", [2, 3]), (8.0, "b", [2, 3])]
    assert device.ends == {1: ("dropped", 8.0), 2: ("completed", 14.0), 3: ("completed", 14.0)}


def test_a_fuller_company_leaves_out_no_tighter_critical_request_where_the_lane_keeps_up():
    device = Device(planned(chain()))
    for number in range(10, 20):  # one in 100 ms is known to come
        device.now_ns = 100 * (number - 10) * MS
        device.ask(ask(number, 9_000, priority_class="critical"))
        device.advance()
    start_ms = device.now_ns // MS
    device.ask(*[ask(number, start_ms + due, priority_class="critical") for number, due in ((1, 11), (2, 60), (3, 60))])
    device.advance()
    assert [device.ends[number][0] for number in (1, 2, 3)] == ["completed"] * 3


def test_where_the_lane_cannot_keep_up_the_fuller_company_of_critical_requests_goes():
    device = Device(planned(chain()))
    for number in range(10, 16):  # one a millisecond, and each takes ten alone
        device.now_ns = (number - 10) * MS
        device.ask(ask(number, 1_000, priority_class="critical"))
    device.ask(*[ask(number, due, priority_class="critical") for number, due in ((1, 22), (2, 60), (3, 60))])
    device.advance()
    assert [device.ends[number][0] for number in (1, 2, 3)] == ["dropped", "completed", "completed"]


def test_those_that_come_catch_up_where_that_saves_time_and_makes_none_late():
    device = Device(planned(chain()))
    busy(device)
    device.ask(ask(2, 101), ask(3, 101))
    device.advance()
    assert device.batches == [(0.0, "a", [1]), (6.0, "a", [2, 3]), (14.0, "b", [1, 2, 3])]
    tight = Device(planned(chain()))
    tight.ask(ask(1, 21))  # with the two it would be answered at 22
    tight.now_ns = 1 * MS
    tight.ask(ask(2, 101), ask(3, 101))
    tight.advance()
    assert tight.ends[1] == ("completed", 10.0)


def test_a_company_is_larger_than_the_batches_at_its_entry():
    device = Device(planned(chain(limit=2)))
    device.ask(*[ask(number, 100) for number in range(1, 5)])
    device.advance()
    assert [batch[1:] for batch in device.batches[-3:]] == [("a", [1, 2]), ("a", [3, 4]), ("b", [1, 2, 3, 4])] or (
        device.batches[-1][2] == [1, 2, 3, 4]
    )


def test_what_cannot_make_it_is_refused_or_dropped_and_none_is_late():
    device = Device(planned(chain()))
    device.ask(ask(1, 100), ask(2, 9))
    assert device.ends == {2: ("rejected", 0.0)}
    device.now_ns = 1 * MS
    device.ask(ask(3, 15))  # could begin at 6 at the earliest: too late
    device.ask(ask(4, 21))
    device.advance()
    assert device.ends[3] == ("rejected", 1.0) and device.ends[4][0] == "completed" and device.ends[4][1] <= 21.0


def test_members_that_would_be_late_after_a_slow_batch_leave():
    device = Device(planned(chain()))
    device.ask(ask(1, 24), ask(2, 60))  # together: 8 + 6 = 14
    finish_late(device, 21)
    device.advance()
    assert device.ends[1][0] == "dropped" and device.ends[2][0] == "completed"


def test_members_that_would_be_late_together_go_one_behind_the_other():
    device = Device(planned(chain()))
    device.ask(ask(1, 26), ask(2, 60))
    finish_late(device, 21)  # together until 27
    device.advance()
    assert device.ends == {1: ("completed", 25.0), 2: ("completed", 29.0)}


@pytest.mark.parametrize(("due_ms", "value", "in_time"), [(40, 0.2, [1]), (40, 20, [2]), (200, 0.2, [1, 2])])
def test_a_company_in_flight_goes_first_where_it_cannot_wait_and_brings_more(due_ms, value, in_time):
    """It needs the lane until 38; the pipeline that comes needs 10 ms, from 26 at the latest."""
    table = planned(chain(second=model(30, 2)))
    table["model"].update(c=model(4, 2), d=model(2, 2))
    table["app"]["other"] = {"slo": "100ms", "node": [{"name": "c"}, {"name": "d"}]}
    device = Device(table)
    device.ask(ask(1, due_ms))
    device.now_ns = 1 * MS
    device.ask(ask(2, 30, app="other", value=float(value)))
    device.advance()
    assert [number for number in (1, 2) if device.ends[number][0] == "completed"] == in_time


@pytest.mark.parametrize(("due_ms", "in_time"), [(24, [1, 2]), (31, [1, 2, 3])])
def test_what_brings_little_does_not_go_before_those_who_wait_for_a_company(due_ms, in_time):
    """At 6 the first needs 4 ms more and the second 10; the third needs 7 and brings a tenth."""
    table = planned(chain())
    table["model"]["c"] = model(7, 0)
    table["app"]["other"] = {"slo": "100ms", "model": "c"}
    device = Device(table)
    device.ask(ask(1, 23))
    device.now_ns = 1 * MS
    device.ask(ask(2, due_ms), ask(3, 14, app="other", value=0.1))
    device.advance()
    assert [number for number in (1, 2, 3) if device.ends[number][0] == "completed"] == in_time


def test_a_request_of_two_branches_that_is_given_up_runs_whole_as_a_trial():
    names = {"look": [], "left": ["look"], "right": ["look"], "end": ["left", "right"]}
    table = {
        "lane": {"l": {}},
        "model": {name: model(4, 1) for name in names},
        "policy": {"p": {"kind": "plan", "trials": True}},
        "app": {"app": {"slo": "100ms", "node": [{"name": name, "after": after} for name, after in names.items()]}},
    }
    device = Device(table)
    device.ask(ask(1, 32))
    finish_late(device, 20, began_ms=0)
    device.advance()
    assert device.ends[1] == ("completed", 35.0)


def test_a_late_request_that_is_answered_all_the_same_is_not_dropped():
    device = Device(planned(chain()))
    device.ask(ask(1, 5, on_late="answer"), ask(2, 100))
    device.advance()
    assert {end for end, _ in device.ends.values()} == {"completed"}


def test_a_critical_request_does_not_wait_for_a_company_in_flight():
    device = Device(planned(chain()))
    busy(device)
    device.ask(ask(2, 16, priority_class="critical"))
    device.advance()
    assert device.ends[2][0] == device.ends[1][0] == "completed" and device.ends[2][1] < device.ends[1][1]


def test_of_unequal_value_the_more_valuable_goes_when_not_all_fit():
    device = Device(planned(chain()))
    device.ask(ask(9, 100))
    device.now_ns = 1 * MS
    device.ask(*[ask(number, 21) for number in range(1, 4)], ask(4, 21, value=5.0))
    device.advance()
    assert device.ends[4][0] == "completed"


# --- other lanes ------------------------------------------------------------------------------------------------------


def test_functions_at_the_entry_run_ahead_while_a_company_has_the_device():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200))
    device.advance(4)
    device.now_ns = 5 * MS  # request 1 is on the device from 4 to 16
    device.ask(ask(2, 200), ask(3, 200))
    device.advance()
    assert device.batches[:4] == [(0.0, "f", [1]), (4.0, "a", [1]), (5.0, "f", [2]), (9.0, "f", [3])]
    assert [len(jobs) for _, name, jobs in device.batches if name == "b"][-1] > 1


def test_what_runs_ahead_is_as_urgent_as_its_whole_path():
    """5 ms of a function and 20 on the device until 38, beside a function of 10 ms that could wait until 40."""
    table = pipeline(("f", "host", 5, 0, 1), ("a", "gpu", 8, 2, 8), ("b", "gpu", 8, 2, 8))
    table["model"]["g"] = model(10, 0, 1, lanes=["host"])
    table["app"]["other"] = {"slo": "100ms", "model": "g"}
    device = Device(table)
    device.ask(ask(1, 100, app="other"))
    device.now_ns = 1 * MS
    device.ask(ask(2, 38, 1), ask(3, 50, 1, app="other", value=9.0))
    device.advance()
    assert {end for end, _ in device.ends.values()} == {"completed"}


def test_urgent_requests_run_ahead_before_tighter_ones():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200))
    device.now_ns = 1 * MS
    device.ask(ask(2, 100), ask(3, 190, priority_class="critical"))
    device.advance(12)
    assert [jobs for _, name, jobs in device.batches if name == "f"] == [[1], [3], [2]]


def test_a_function_counts_in_full_and_lets_a_second_company_begin():
    device = Device(planned(with_host_function()))
    device.ask(ask(1, 18))  # 10 + 5 + 4 = 19
    assert device.ends == {1: ("rejected", 0.0)}
    device.ask(ask(2, 40))
    device.now_ns = 1 * MS
    device.ask(ask(3, 80))
    device.advance()
    assert {end for end, _ in device.ends.values()} == {"rejected", "completed"}
    assert (10.0, "a", [3]) in device.batches  # while the function of 2 runs


def test_one_that_is_cancelled_while_it_runs_ahead_is_forgotten():
    device = Device(pipeline(*AT_ENTRY))
    device.ask(ask(1, 200))
    device.now_ns = 1 * MS
    device.step(RequestCancelled(1))
    device.advance()
    device.ask(ask(2, 400))
    device.advance()
    device.now_ns += 1
    device.step()
    assert device.ends[2][0] == "completed" and not remembered(device.scheduler.policies[0])


def test_a_company_whose_home_is_lost_waits_again():
    device = Device(planned(chain(limit=2)))
    device.ask(*[ask(number, 400) for number in range(1, 5)])  # all in one, the first two at once
    device.now_ns = 1 * MS
    lane = next(iter(device.scheduler.state.lanes))
    device.step(LaneChanged(lane, up=False))
    device.running.clear()
    device.now_ns = 2 * MS
    device.step(LaneChanged(lane, up=True))
    device.advance()
    assert {number: end for number, (end, _) in device.ends.items()} == {
        1: "failed",
        2: "failed",
        3: "completed",
        4: "completed",
    }


# --- many requests ----------------------------------------------------------------------------------------------------


def test_behind_functions_a_company_waits_for_its_own_where_a_batch_costs_hardly_more_than_one():
    """A function takes the members one by one between two models of 31 to 38 ms."""
    table = pipeline(("a", "gpu", 30, 1, 8), ("f", "host", 0, 6, 1), ("b", "gpu", 30, 1, 8))
    assert in_time(table, 0.15, lambda draw: (92, {})) > 15.0  # 16.6; 12.7 if the present ones go on


def test_a_second_company_waits_where_it_would_make_the_first_late():
    """Half of the requests have hardly more than the 19 ms that they take alone."""
    found = in_time(planned(with_host_function()), 0.05, lambda draw: (22 if draw.random() < 0.5 else 150, {}))
    assert found > 72.0  # 76.5; 66.7 if a company begins whenever the device is free


@pytest.mark.parametrize("hints", [{}, {"others.work": 3.0}])  # those of other models change nothing
def test_members_in_an_early_batch_are_answered_early_also_behind_functions(hints):
    """All four go through ``a`` until 24, in pairs through ``b`` until 38 and 52, and the function takes 1 ms each."""
    device = Device(pipeline(("a", "gpu", 20, 1, 8), ("b", "gpu", 10, 2, 2), ("f", "host", 0, 1, 1)))
    dues = {1: 39.0, 2: 40.0, 3: 53.0, 4: 54.0}
    device.ask(*[ask(number, due_ms, hints=hints) for number, due_ms in dues.items()])
    device.advance()
    assert device.ends == {number: ("completed", due_ms) for number, due_ms in dues.items()}


def test_work_that_runs_is_left_to_no_others():
    """The function of the first takes 20 ms, those of the other two and of the second company 5."""
    device = Device(pipeline(("a", "gpu", 16, 4, 8), ("f", "host", 0, 5, 1), ("b", "gpu", 2, 2, 8)))
    device.ask(*[ask(number, 190 + number, hints={"f.work": work}) for number, work in ((1, 4.0), (2, 1.0), (3, 1.0))])
    device.advance(29)
    device.now_ns = 29 * MS
    device.ask(ask(4, 72, 29, hints={"f.work": 1.0}))  # its function begins at 58, when those of the three are over
    device.advance()
    assert device.ends[4] == ("completed", 70.0)


def test_members_in_the_first_of_several_last_batches_are_answered_with_it():
    """All four go through ``a`` until 24, and in pairs through ``b`` until 38 and 52."""
    table = planned(chain())
    table["model"] = {"a": model(20, 1), "b": model(10, 2, 2)}
    device = Device(table)
    for at_ms in range(0, 1000, 100):
        device.advance(at_ms)
        device.now_ns = at_ms * MS
        device.ask(*[ask(at_ms + number, at_ms + due, at_ms) for number, due in enumerate((38, 38, 52, 52))])
    device.advance()
    assert [end for end, _ in device.ends.values()] == ["completed"] * 40
    assert in_time(table, 0.06, lambda draw: (80, {})) > 86.0  # 89; 82 if all are expected with the last


def test_companies_are_those_of_the_device_however_slow_a_function_before_it_is():
    """A function of 6 ms before two models of 2.25 ms each in full batches, 11 ms alone."""
    table = pipeline(("f", "host", 0, 6, 1), ("a", "gpu", 10, 1, 8), ("b", "gpu", 10, 1, 8))
    assert in_time(table, 0.7 / 6, lambda draw: (80, {})) > 80.0  # 94; 41 if they form where the function runs


def test_a_join_is_expected_once_however_many_branches_lead_to_it():
    names = ("look", "left", "right", "end")
    after = {"look": [], "left": ["look"], "right": ["look"], "end": ["left", "right"]}
    table = planned(
        {
            "lane": {"l": {}},
            "model": {name: model(4, 1) for name in names},
            "app": {"app": {"slo": "100ms", "node": [{"name": name, "after": after[name]} for name in names]}},
        }
    )
    device = Device(table)
    device.ask(ask(1, 20))  # four models of 5 ms
    device.advance()
    assert device.ends[1] == ("completed", 20.0)
    assert in_time(table, 0.15, lambda draw: (45, {}), seeds=(1, 2)) > 61.0  # 64; 58 if the join is expected twice


def test_how_many_parts_a_fan_out_makes_is_learnt():
    """Four parts of 4 ms each between 2 ms and 1."""
    found = in_time(planned(fan()), 0.06, lambda draw: (80, {}), parts={"look": 4})
    assert found > 76.0  # 86; 64 if one is expected for ever


def test_told_work_counts_in_the_choice_of_a_company():
    """One request of seven is eight times the usual work at the second model, the others half of it."""
    found = in_time(
        planned(chain()), 0.25, lambda draw: (80, {"b.work": 8.0 if draw.random() < 0.15 else 0.5}), seeds=(1, 2)
    )
    assert found > 80.0  # 88; 68 if all are taken for usual


def test_declared_steps_count_as_often_as_they_run():
    """Two requests of five run four times at the second model."""
    table = planned(chain(second=model(2, 3)))
    device = Device(table)
    device.ask(ask(1, 20, hints={"b.steps": 3.0}), ask(2, 21, hints={"b.steps": 3.0}))  # 6 + 3 * 5
    assert device.ends == {1: ("rejected", 0.0)}
    found = in_time(table, 0.1, lambda draw: (60, {"b.steps": 4.0 if draw.random() < 0.4 else 1.0}))
    assert found > 74.5  # 76.7; 71.9 if they count once


# --- everything at once -----------------------------------------------------------------------------------------------


def test_parts_of_a_fan_out_go_together():
    device = Device(planned(fan()))
    device.parts = {"look": 3}
    device.ask(ask(1, 400), ask(2, 400))
    device.advance()
    assert {end for end, _ in device.ends.values()} == {"completed"}
    assert [len(jobs) for _, name, jobs in device.batches if name == "part"] == [4, 2]


@pytest.mark.parametrize("seed", range(4))
def test_every_request_is_accounted_for_when_forks_joins_and_branches_fail(seed):
    table = {
        "lane": {"l0": {"hang": "100ms"}, "l1": {"hang": "100ms"}},
        "model": {name: model(1, 1, 4) for name in ("look", "pick", "left", "right", "crop", "end")},
        "policy": {"p": {"kind": "plan"}},
        "app": {
            name: {
                "slo": "60ms",
                "on_late": on_late,
                "node": [
                    {"name": "look"},
                    {"name": "pick", "route": "one", "after": ["look"]},
                    {"name": "crop", "fan_out": True, "after": ["look"]},
                    {"name": "left", "after": ["pick"]},
                    {"name": "right", "after": ["crop"]},
                    {"name": "all", "model": "right", "after": ["right"], "gather": True},
                    {"name": "end", "after": ["pick", "left", "all"]},
                ],
            }
            for name, on_late in (("app", "drop"), ("soft", "answer"), ("part", "partial"))
        },
        "truth": {
            "pick": {"routes": {"left": 0.5, "end": 0.3, "": 0.2}},
            "crop": {"parts": [0, 4]},
            "left": {"fail": 0.05},
        },
        "workload": {name: {"app": name, "rate": 70.0} for name in ("app", "soft", "part")},
        "faults": {
            "cancel": 0.05,
            "fail_job": 0.01,
            "fail_batch": 0.01,
            "slow": 0.05,
            "refuse": 0.02,
            "lane_loss_every": "400ms",
            "lane_loss": "50ms",
            "hang": 0.2,
        },
        "run": {"duration": "1s", "noise": 0.1},
    }
    run = simulate(parse_scenario(table), seed, settle=True)
    assert run.world.reference_model.marks["RequestArrived"] == len(run.world.ended) > 100
    assert not run.scheduler.open_count and not remembered(run.scheduler.policies[0])
