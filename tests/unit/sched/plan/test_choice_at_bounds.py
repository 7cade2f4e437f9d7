"""The choice of a batch where a little more or less of a time, a gap or a price decides it."""

from __future__ import annotations

import pytest
from hand_world import app_of, job

from edgeserve.sched.plan.candidate import Candidate, Kind
from edgeserve.sched.plan.choose import PATIENT, choose, weigh
from edgeserve.sched.requests.critical import NO_ROOMS, Rooms

MS = 1_000_000
APP = app_of("m")


def made(
    model: str, takes: float, gain: float, slack: float, priority_class: str = "normal", slo: float = 100.0
) -> Candidate:
    """A batch of one job; times in milliseconds, the gain in milliseconds of lane time."""
    jobs = [job(1, APP)]
    k_ns = round(0.4 * slo * MS)
    takes_ns = round(takes * MS)
    return Candidate(Kind(), model, jobs, 1, takes_ns, takes_ns, gain * MS, round(slack * MS), k_ns, priority_class)


def first_of(*candidates: Candidate, gap: float = 0.0, price: float = 0.0, rooms: Rooms = NO_ROOMS) -> str:
    gap_ns = round(gap * MS)
    for item in candidates:
        weigh(item, rooms, gap_ns, price)
    found = choose(list(candidates), gap_ns)
    return "" if found is None else found.model


@pytest.mark.parametrize(
    ("slack", "gap", "first"),
    [(11, 0, "dense"), (10, 0, "dense"), (9.999, 0, "pressing"), (11, 1, "dense"), (11, 1.1, "pressing")],
)
def test_a_denser_batch_goes_first_if_it_and_the_gap_are_over_in_time(slack: float, gap: float, first: str) -> None:
    assert first_of(made("pressing", 10, 10, slack), made("dense", 10, 60, 12), gap=gap) == first


@pytest.mark.parametrize(("slack", "first"), [(30, "dense"), (29, "pressing")])
def test_there_is_a_gap_before_each_of_those_that_follow(slack: float, first: str) -> None:
    batches = [made("pressing", 10, 10, 25), made("next", 10, 10, slack), made("dense", 10, 60, 45)]
    assert first_of(*batches, gap=5) == first


@pytest.mark.parametrize(("more", "first"), [(0, "dense"), (1, "pressing")])
def test_a_batch_that_can_wait_sixteen_times_as_long_lets_the_pressing_one_go(more: float, first: str) -> None:
    dense = made("dense", 5, 600, PATIENT * 20 + more, slo=1000)
    assert first_of(made("pressing", 10, 1, 20), dense) == first


@pytest.mark.parametrize(("price", "first"), [(0.0, "pressing"), (0.5, "dense")])
def test_of_what_a_batch_brings_only_what_is_beyond_the_price_counts(price: float, first: str) -> None:
    assert first_of(made("pressing", 10, 6, 10), made("dense", 5, 5, 40), price=price) == first


def test_a_batch_below_the_price_counts_a_little_and_is_not_given_up() -> None:
    assert first_of(made("cheap", 10, 1, 20), made("dear", 100, 400, 5), price=2.0) == "dear"
    assert first_of(made("cheap", 10, 1, 20), price=2.0) == "cheap"


@pytest.mark.parametrize("priority_class", ["critical", "normal", "background"])
def test_of_two_that_exclude_each_other_the_one_goes_that_brings_more_for_its_time(priority_class: str) -> None:
    short, long = made("short", 10, 10, 5, priority_class), made("long", 30, 20, 5, priority_class)
    assert first_of(short, long) == first_of(long, short) == "short"


@pytest.mark.parametrize("priority_class", ["critical", "normal", "background"])
def test_a_batch_that_brings_nothing_in_time_runs_where_nothing_else_waits(priority_class: str) -> None:
    assert first_of(made("late", 10, 0, 0, priority_class)) == "late"
    assert first_of(made("late", 10, 0, 0, priority_class), made("good", 10, 10, 0, priority_class)) == "good"


def rooms(*opened: float) -> Rooms:
    """Critical requests that wait, each with so many milliseconds of room."""
    return Rooms([round(each * MS) for each in opened], [], [])


@pytest.mark.parametrize(("room", "gap"), [(10, 0), (12, 2)])
def test_a_batch_waits_where_it_and_the_gap_end_after_the_room_of_a_critical_request(room: float, gap: float) -> None:
    batch = made("normal", 10, 10, 0)
    assert first_of(batch, rooms=rooms(room), gap=gap) == "normal"
    assert first_of(batch, rooms=rooms(room - 0.001), gap=gap) == ""


def test_a_batch_that_brings_nothing_makes_no_critical_request_late() -> None:
    assert first_of(made("late", 10, 0, 0), rooms=rooms(5)) == ""


def test_of_two_below_the_price_the_one_goes_that_brings_more() -> None:
    assert first_of(made("less", 10, 5, 5), made("more", 10, 8, 5), price=9.0) == "more"


def test_of_batches_that_are_late_already_one_goes() -> None:
    assert first_of(made("a", 10, 5, -5, "critical"), made("b", 10, 8, -5, "critical")) == "b"
