"""The time of an answer beside its lane, taken off the deadline that the scheduler plans for."""

from __future__ import annotations

from edgeserve.loop.response_overhead import ResponseOverhead

WINDOW_LEN, REFRESH_EVERY, SHARE_MAX = 32, 8, 8


def test_nothing_is_taken_off_before_anything_is_known():
    assert ResponseOverhead().planned_ns(0, 1000) == 1000


def test_three_of_four_answers_take_no_more_than_the_margin():
    delivery = ResponseOverhead()
    for overhead in [10, 20, 30, 40, 50, 60, 70, 80]:
        delivery.took(overhead)
    assert delivery.margin_ns == 60
    assert delivery.planned_ns(0, 10_000) == 9_940


def test_a_stall_takes_no_more_than_a_share_and_is_forgotten():
    delivery = ResponseOverhead()
    for _ in range(REFRESH_EVERY):
        delivery.took(10**9)
    assert delivery.planned_ns(0, 8000) == 8000 - 8000 // SHARE_MAX
    assert delivery.planned_ns(1000, 500) == 500  # already past: nothing is added either
    for _ in range(WINDOW_LEN):
        delivery.took(10)
    assert delivery.planned_ns(0, 8000) == 7990


def test_the_deadline_that_leaves_enough_to_plan_with_is_the_smallest_that_does():
    for margin_ns in (0, 1, 5, 40, 10**9):
        delivery = ResponseOverhead()
        for _ in range(REFRESH_EVERY):
            delivery.took(margin_ns)
        for planned_ns in range(1, 200):
            least_ns = min(slo_ns for slo_ns in range(1, 400) if delivery.planned_ns(0, slo_ns) >= planned_ns)
            assert delivery.slo_ns(planned_ns) == least_ns


def test_the_margin_changes_with_every_eighth_answer_and_knows_the_last_32():
    delivery = ResponseOverhead()
    margins = []
    for overhead in range(1, 49):
        delivery.took(overhead)
        margins.append(delivery.margin_ns)
    assert margins[:7] == [0] * 7
    assert [margins[index] for index in (7, 14, 15, 23, 31)] == [6, 6, 12, 18, 24]
    assert margins[-1] == 17 + 3 * (WINDOW_LEN - 1) // 4  # the last 32 are 17 to 48


def test_an_answer_that_took_less_than_nothing_gives_no_deadline_more_time():
    delivery = ResponseOverhead()
    for _ in range(REFRESH_EVERY):
        delivery.took(-5)
    assert delivery.planned_ns(0, 800) == 800 and delivery.slo_ns(80) == 80
