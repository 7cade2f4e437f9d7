"""``pard_local`` where requests differ in class or value: who goes, who yields, and that equals are not disturbed."""

from __future__ import annotations

import random

from exact_device import MS, Device, ask, chain, choose_equal, of_work, together

from edgeserve.sched.plan.remaining_work import Left
from edgeserve.sched.policies.pard_local.choice import Candidate, unequal_cohort
from edgeserve.sched.protocol.events import JobResult, WorkFinished

CRITICAL, NORMAL = 0, 1


def row(due, value=1.0, rank=NORMAL, work=1):
    return Candidate(due, Left([work * 1000], [0]), 4 * work, value, rank)


def end_of(count):
    return 6 + 4 * count


def test_among_equals_the_same_go_as_by_the_rule_for_unequal_ones():
    draw = random.Random("equals")
    for _ in range(300):
        dues = sorted(draw.randrange(5, 60) for _ in range(draw.randrange(1, 9)))
        equal = choose_equal(dues, together(end_of))
        assert unequal_cohort([row(due, 3.0) for due in dues], of_work) == equal


def test_a_critical_request_is_not_displaced_by_normal_ones():
    rows = [row(12, rank=CRITICAL), row(40), row(41), row(42), row(43)]
    assert choose_equal([item.due_ns for item in rows], together(end_of)) == [1, 2, 3, 4]  # without classes
    assert unequal_cohort(rows, of_work) == [0]


def test_normal_requests_join_a_critical_one_as_long_as_it_stays_in_time():
    rows = [row(19), row(20), row(21), row(22, rank=CRITICAL), row(23)]
    assert unequal_cohort(rows, of_work) == [0, 1, 3]  # three end at 18, four at 22, by which two of them are late
    assert unequal_cohort([row(90, rank=CRITICAL), *[row(91) for _ in range(3)]], of_work) == [0, 1, 2, 3]


def test_of_equal_work_the_more_valuable_goes_when_not_all_fit():
    rows = [row(18), row(19), row(20), row(21, 5.0)]  # three fit
    assert unequal_cohort(rows, of_work) == [0, 1, 3]


def test_a_tight_valuable_request_makes_the_cohort_smaller_if_it_is_worth_the_others_time():
    others = [row(40) for _ in range(5)]
    assert unequal_cohort([row(13, 9.0), *others], of_work)[0] == 0
    assert unequal_cohort([row(13, 1.1), *others], of_work) == [1, 2, 3, 4, 5]


def test_valuable_requests_with_time_do_not_make_small_cohorts():
    rows = [row(90, 5.0), *[row(91) for _ in range(8)]]
    assert unequal_cohort(rows, of_work) == list(range(9))


def test_of_unequal_work_the_critical_goes_first_then_the_most_valuable():
    rows = [row(30, work=2), row(31, work=4), row(32, rank=CRITICAL, work=4)]
    assert unequal_cohort(rows, of_work) == [0, 2]
    assert unequal_cohort([row(30, work=2), row(30, work=2), row(30, work=4)], of_work) == [0, 1]
    assert unequal_cohort([row(30, work=2), row(30, work=2), row(30, 9.0, work=4)], of_work) == [0, 2]
    small = [row(14, rank=CRITICAL, work=2), *[row(60) for _ in range(9)]]
    assert unequal_cohort(small, of_work) == [0]


def test_on_a_lane_the_critical_are_served_and_the_normal_lost():
    device = Device(chain())
    device.ask(ask(9, 100))
    device.ask(*[ask(number, 30) for number in range(1, 6)], ask(6, 30, klass="critical"), ask(7, 30, value=4.0))
    device.advance()  # the lane is free after a batch of 9, which waits again: 5 + 6 + 4 * 4 = 27
    served = {number for number, (outcome, _) in device.ends.items() if outcome == "completed"}
    assert {6, 7, 9} <= served and len(served) == 5


def test_a_cohort_in_flight_waits_for_a_critical_request():
    device = Device(chain())
    device.ask(ask(1, 100))
    device.now_ns = 1 * MS
    device.ask(ask(2, 16, klass="critical"))
    device.advance()
    assert device.ends[2][0] == device.ends[1][0] == "completed" and device.ends[2][1] < device.ends[1][1]


def test_a_normal_member_yields_to_a_critical_one_that_would_be_late_and_waits_again():
    device = Device(chain())
    device.ask(ask(1, 100))
    device.now_ns = 1 * MS
    device.ask(ask(2, 24, klass="critical"), ask(3, 60))  # together: 10 + 8 + 6 = 24
    device.advance(10)
    device.now_ns, work = 20 * MS, device.running.pop(0)[1]  # two late: the critical one alone ends at 24
    device.step(WorkFinished(work.work_id, 10 * MS, 20 * MS, tuple(JobResult(job) for job in work.jobs)))
    device.advance()
    assert device.ends[2] == ("completed", 24.0) and device.ends[3][0] == device.ends[1][0] == "completed"
    assert device.ends[3][1] > 24.0
