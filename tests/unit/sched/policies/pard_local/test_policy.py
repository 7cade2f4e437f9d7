"""Cohorts on one device: hand-made queues, oracles, and what every request's end adds up to."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from exact_device import MS, Device, ask, chain, choose_equal, fan, model, of_work, together, with_host_function
from lib.pard_oracle import most_in_time, most_in_time_exhaustive

from edgeserve.sched.plan.remaining_work import Left
from edgeserve.sched.policies.pard_local.choice import Candidate, Trial, unequal_cohort
from edgeserve.sched.policies.pard_local.cost import LaneSchedule, Schedule, Stage
from edgeserve.sched.protocol.events import JobResult, LaneChanged, WorkFinished
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

# --- who goes ---------------------------------------------------------------------------------------------------------


def test_the_largest_tightest_feasible_set_goes():
    # C(b) = 6 + 4b: 10, 14, 18, 22. Four are due by 22 only without the first; of those who can, the tightest go.
    dues = [13, 22, 23, 24, 25, 90]
    assert choose_equal(dues, together(lambda count: 6 + 4 * count)) == [1, 2, 3, 4]


def test_a_useless_partial_batch_is_left_out():
    times = {1: 10, 2: 10, 3: 20, 4: 20, 5: 30}  # batches of two
    assert choose_equal([50] * 5, together(times.__getitem__)) == [0, 1, 2, 3]


def test_a_request_that_only_the_first_batch_can_answer_in_time_goes_in_it():
    # Batches of two at the end: two are answered at 16 and two at 20; together at 20 the first would be late.
    trials = {count: Trial(20, [16, 16, 20, 20][:count]) for count in range(1, 5)}
    trials[5] = None
    assert choose_equal([15, 17, 18, 21, 22], trials.__getitem__) == [1, 2, 3, 4]


def test_nobody_goes_when_nobody_can_make_it():
    assert not choose_equal([5, 6, 7], together(lambda count: 8 + count))


def test_the_first_choice_is_the_best_of_all_sets_by_count_per_time():
    draw = random.Random("choice")
    for _ in range(200):
        dues = sorted(draw.randrange(5, 60) for _ in range(draw.randrange(1, 9)))
        fixed, each = draw.randrange(1, 12), draw.randrange(1, 6)
        members = choose_equal(dues, together([fixed + each * number for number in range(9)].__getitem__))
        sizes = [
            number for number in range(1, len(dues) + 1) if sum(due >= fixed + each * number for due in dues) >= number
        ]
        count = len(members)
        assert count == max(sizes, default=0)  # b / C(b) rises with b
        assert all(dues[index] >= fixed + each * count for index in members)


def candidate(due, work, value=1.0):
    return Candidate(due, Left([work * 1000], [0]), 4 * work, value)


def test_of_unequal_work_as_many_as_fit_before_the_tightest_go():
    rows = [candidate(22, 1), candidate(31, 8), candidate(32, 2), candidate(90, 9)]
    assert unequal_cohort(rows, of_work) == [0, 2]  # 18; with the second it would be 50
    assert unequal_cohort([*rows[:2], candidate(32, 2, value=5.0)], of_work) == [0, 2]
    assert unequal_cohort([candidate(12, 1), candidate(60, 2), candidate(60, 3)], of_work) == [1, 2]


def test_a_forecast_gives_a_free_lane_to_the_first_course_that_has_something_for_it():
    stages = [Stage("gpu", [(1, 10)]), Stage("host", [(1, 5)], [0]), Stage("gpu", [(1, 10)], [1])]
    first = Schedule(stages, 0)
    second = Schedule([Stage("gpu", [(1, 4)]), Stage("gpu", [(1, 3)], [0])], 0)
    assert LaneSchedule([first], {"gpu": 2, "host": 0}).run() == [27]
    # gpu: first 0-10, second's batch of 4 in the gap and of 3 behind it, which delays first's last stage by 2
    assert LaneSchedule([first, second], {"gpu": 0, "host": 0}).run() == [27, 17]


# --- cohorts on a lane ------------------------------------------------------------------------------------------------


def test_a_cohort_goes_to_the_end_before_the_next_one_begins():
    device = Device(chain())
    device.ask(ask(1, 100))
    device.now_ns = 1 * MS
    device.ask(ask(2, 101), ask(3, 101))
    device.advance()
    assert device.batches == [(0.0, "a", [1]), (6.0, "b", [1]), (10.0, "a", [2, 3]), (18.0, "b", [2, 3])]
    assert device.ends == {1: ("completed", 10.0), 2: ("completed", 24.0), 3: ("completed", 24.0)}


def test_a_cohort_is_larger_than_the_entrys_batches():
    device = Device(chain(limit=2))
    device.ask(ask(9, 100))
    device.ask(*[ask(number, 100) for number in range(1, 5)])
    device.advance()
    assert device.batches[2:] == [(10.0, "a", [1, 2]), (18.0, "a", [3, 4]), (26.0, "b", [1, 2, 3, 4])]


def test_what_cannot_make_it_is_refused_or_dropped_and_nobody_is_late():
    device = Device(chain())
    device.ask(ask(1, 100), ask(2, 9))
    assert device.ends == {2: ("rejected", 0.0)}
    device.now_ns = 1 * MS
    device.ask(ask(3, 15))  # could begin at 6 at the earliest: too late
    device.ask(ask(4, 21))
    device.advance()
    assert device.ends[3] == ("rejected", 1.0) and device.ends[4] == ("completed", 20.0)


def test_the_survivors_of_a_slow_batch_are_tested_again():
    device = Device(chain())
    device.ask(ask(1, 100))
    device.now_ns = 1 * MS
    device.ask(ask(2, 24), ask(3, 60))  # 2 and 3 together: 10 + 8 + 6 = 24
    device.advance(10)
    late_ns = 23 * MS
    device.now_ns, work = late_ns, device.running.pop(0)[1]
    device.step(WorkFinished(work.work_id, 10 * MS, late_ns, tuple(JobResult(job) for job in work.jobs)))
    device.advance()
    assert device.ends[2][0] == "dropped" and device.ends[3] == ("completed", device.ends[3][1])
    assert device.batches[-1][2] == [3]


def test_the_survivors_are_tested_again_also_behind_a_function():
    device = Device(with_host_function())
    device.ask(ask(1, 100), ask(2, 40), ask(3, 100))  # together: 18 + 5 + 8
    device.now_ns, work = 32 * MS, device.running.pop(0)[1]  # 14 late: 2 cannot be in time any more
    assert [job.request_id for job in work.jobs] == [2, 1, 3]
    device.step(WorkFinished(work.work_id, 0, 32 * MS, tuple(JobResult(job) for job in work.jobs)))
    device.advance()
    assert device.ends[2] == ("dropped", 32.0)
    assert not any(2 in jobs for _, model, jobs in device.batches if model != "a")


def test_who_is_in_an_early_batch_counts_as_answered_early():
    # Together: a until 24, b until 38 and 52. In pairs the second would end at 72.
    table = chain()
    table["model"] = {"a": model(20, 1), "b": model(10, 2, 2)}
    device = Device(table)
    device.ask(*[ask(number, due) for number, due in enumerate((38, 38, 52, 52), 1)])
    device.advance()
    assert device.ends == {number: ("completed", at) for number, at in ((1, 38.0), (2, 38.0), (3, 52.0), (4, 52.0))}


def test_the_best_split_of_a_profile_whose_large_batches_are_slow():
    second = model(1, 1, 2)
    second["batch"], second["expected"] = [1, 2, 4], {"1": "2ms", "2": "3ms", "4": "10ms"}
    device = Device(chain(second=second))
    device.ask(ask(9, 100))
    device.ask(*[ask(number, 100) for number in range(1, 5)])
    device.advance()
    assert [batch[1:] for batch in device.batches[2:]] == [("a", [1, 2, 3, 4]), ("b", [1, 2]), ("b", [3, 4])]


def two_lines(**second):
    return {
        "lane": {"l": {}},
        "model": {"a": model(4, 6), "b": model(4, 6), "c": model(1, 1)},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {
            "app": {"slo": "100ms", "node": [{"name": "a"}, {"name": "b"}]},
            "other": {"slo": "15ms", "node": [{"name": "c"}], **second},
        },
    }


def test_a_tight_request_must_not_make_the_cohort_late():
    device = Device(two_lines())
    device.ask(ask(1, 21))  # needs 20
    device.now_ns = 2 * MS
    device.ask(ask(2, 17, 2, "other"))
    device.advance(20)
    assert device.ends[1] == ("completed", 20.0) and device.ends[2][0] in ("dropped", "rejected")


def test_another_policy_cuts_in_only_if_it_ends_before_the_latest_start():
    def play(due_ms):
        table = two_lines(policy="q")
        table["app"]["app"]["policy"] = "p"
        table["policy"]["q"] = {"kind": "edf"}
        device = Device(table)
        device.ask(ask(1, due_ms))
        device.now_ns = 2 * MS
        device.ask(ask(2, 17, 2, "other", klass="normal", value=50.0))
        device.advance()
        return [batch[1] for batch in device.batches]

    assert play(100) == ["a", "c", "b"]
    assert play(21)[:2] == ["a", "b"]


def test_a_cohort_that_was_outbid_is_chosen_anew_with_those_that_came_meanwhile():
    table = chain()
    on_gpu, elsewhere = {"lanes": ["gpu"]}, {"lanes": ["npu"]}
    table["lane"] = {"gpu": {}, "npu": {}}
    table["model"] = {"a": model(10, 2, **on_gpu), "b": model(10, 2, **on_gpu)}
    table["model"].update({"f": model(5, 0, 1, **on_gpu), "g": model(30, 2, **elsewhere)})
    table["app"]["other"] = {"slo": "100ms", "node": [{"name": "f"}, {"name": "g"}]}
    device = Device(table)
    device.ask(ask(1, 400))
    device.now_ns = 1 * MS
    device.ask(ask(2, 400), ask(3, 62, app="other"))  # its function goes first, at 24
    device.advance(24)
    device.now_ns = 26 * MS
    device.ask(ask(4, 400))
    device.advance()
    assert (24.0, "f", [3]) in device.batches and (29.0, "a", [2, 4]) in device.batches


def test_a_host_function_counts_in_full_and_lets_a_second_cohort_begin():
    device = Device(with_host_function())
    device.ask(ask(1, 18))  # 10 + 5 + 4 = 19: the host function is part of the cost
    assert device.ends == {1: ("rejected", 0.0)}
    device.ask(ask(2, 40))
    device.now_ns = 1 * MS
    device.ask(ask(3, 100))
    device.advance()
    assert device.batches == [
        (0.0, "a", [2]),
        (10.0, "a", [3]),
        (10.0, "f", [2]),
        (20.0, "b", [2]),
        (20.0, "f", [3]),
        (25.0, "b", [3]),
    ]


def test_a_lane_that_is_lost_gives_its_cohort_to_the_other():
    table = chain()
    table["lane"] = {"gpu": {}, "cpu": {}}
    device = Device(table)
    device.ask(ask(1, 100))
    device.advance(6)
    assert device.batches[-1] == (6.0, "b", [1])
    device.now_ns = 7 * MS
    device.ask(ask(2, 100), ask(3, 100))
    device.running = [row for row in device.running if row[1].lane != "gpu"]
    device.step(LaneChanged("gpu", up=False))
    device.advance()
    assert device.ends[1][0] == "failed"  # it was running there
    assert device.ends[2][0] == device.ends[3][0] == "completed"


# --- parts and branches -----------------------------------------------------------------------------------------------


def test_the_number_of_parts_is_learnt_then_known_or_foretold():
    device = Device(fan())
    device.parts["look"] = 5
    device.ask(ask(1, 100))
    device.advance()
    assert device.ends[1] == ("completed", 23.0)
    device.ask(ask(2, 23 + 22, 23))  # five parts are expected now: 23 ms
    assert device.ends[2][0] == "rejected"
    device.ask(ask(3, 23 + 22, 23, hints={"look.parts": 2.0}))  # it says two: 11 ms
    device.parts["look"] = 2
    device.advance()
    assert device.ends[3] == ("completed", 34.0)


def test_parts_that_turn_out_too_many_end_their_request_before_they_run():
    device = Device(fan())
    device.parts["look"] = 30
    device.ask(ask(1, 100))
    device.advance()
    assert device.ends[1] == ("dropped", 2.0) and len(device.batches) == 1


@pytest.mark.parametrize(
    ("route", "needs_ms"),
    [(None, 1 + 1 + 10), (0.0, 1 + 2), (1.0, 1 + 20), (2.0, 1), (-1.0, 1)],
    ids=["either is as likely", "the first", "the second", "neither", "none"],
)
def test_a_request_needs_the_branch_that_it_foretells(route, needs_ms):
    table = chain()
    table["model"] = {"pick": model(1, 0), "left": model(2, 0), "right": model(20, 0)}
    branches = [{"name": name, "after": ["pick"]} for name in ("left", "right")]
    table["app"]["app"]["node"] = [{"name": "pick", "route": "one"}, *branches]
    hints = None if route is None else {"pick.route": route}
    device = Device(table)
    device.ask(ask(1, needs_ms - 0.1, hints=hints))
    device.ask(ask(2, needs_ms, hints=hints))
    assert device.ends == {1: ("rejected", 0.0)}


# --- oracles ----------------------------------------------------------------------------------------------------------


def served(arrivals_ms, slo_ms):
    device = Device(chain(slo_ms))
    for number, at_ms in enumerate(arrivals_ms, 1):
        device.advance(at_ms)
        device.now_ns = max(device.now_ns, round(at_ms * MS))
        device.ask(ask(number, at_ms + slo_ms, at_ms))
    device.advance()
    return sum(
        outcome == "completed" and end <= arrivals_ms[number - 1] + slo_ms
        for number, (outcome, end) in device.ends.items()
    )


def cost(count):
    return (6 + 4 * count) * MS


def test_against_every_schedule_of_eight_requests():
    draw = random.Random("eight")
    ours = best = 0
    for _ in range(25):
        arrivals = sorted(draw.randrange(0, 60) for _ in range(8))
        slo_ms = draw.randrange(18, 60)
        exact = most_in_time_exhaustive([at * MS for at in arrivals], slo_ms * MS, cost)
        assert exact == most_in_time([at * MS for at in arrivals], slo_ms * MS, cost, MS)
        got = served(arrivals, slo_ms)
        assert got <= exact
        ours, best = ours + got, best + exact
    assert ours >= 0.93 * best


def test_within_a_few_points_of_the_clairvoyant_under_overload():
    draw = random.Random("overload")
    at, arrivals = 0.0, []
    for _ in range(600):
        at += draw.expovariate(1 / 4.5)
        arrivals.append(round(at))
    best = most_in_time([at * MS for at in arrivals], 60 * MS, cost, MS)
    assert served(arrivals, 60) >= best - 0.025 * len(arrivals)


# --- every request has one end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 4])
def test_every_request_is_accounted_for_when_forks_joins_and_branches_fail(seed):
    table = {
        "lane": {"l0": {"hang": "100ms"}, "l1": {"hang": "100ms"}},
        "model": {name: model(1, 1, 4) for name in ("look", "pick", "left", "right", "crop", "end")},
        "policy": {"p": {"kind": "pard_local"}},
        "app": {
            "app": {
                "slo": "60ms",
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
        },
        "truth": {
            "pick": {"routes": {"left": 0.5, "end": 0.3, "": 0.2}},
            "crop": {"parts": [0, 4]},
            "left": {"fail": 0.05},
        },
        "workload": {"w": {"app": "app", "rate": 200.0}},
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
    ends = Counter()
    for end in run.world.ended:
        good = end.outcome == "completed" and end.end_ns <= end.request.deadline_ns
        ends["good" if good else "late" if end.outcome == "completed" else end.outcome] += 1
        assert end.outcome == "completed" or end.reason
    assert sum(ends.values()) == len(run.world.ended) and run.world.reference_model.open_count == 0
    assert run.world.reference_model.marks["RequestArrived"] == sum(ends.values())
    assert all(ends[kind] for kind in ("good", "dropped", "cancelled", "failed")), ends
    assert not run.scheduler.policies[0]._members and not run.scheduler.open_count
