"""The local problem in whole numbers: what a place can do by a deadline, which options stay, and what fits."""

from __future__ import annotations

import pytest

from edgeserve.sched.policies.ensemble.problem import Asked, Field, Lanes, Option, Packed, fits, pack


def field(times, free, sizes, shift=0):
    """The field of the only place."""
    return Field(Lanes((0,) * len(times), times, (free,), sizes), 0, shift)


@pytest.mark.parametrize(
    ("free", "size", "caps"),
    [
        ((5,), 1, {4: 0, 5: 0, 14: 0, 15: 1, 24: 1, 25: 2, 5 + 1260: 126, 5 + 1270: 127, 5 + 1280: 127}),
        ((5,), 4, {14: 0, 15: 4, 5 + 310: 124, 5 + 320: 127}),
        ((0, 20), 2, {9: 0, 10: 2, 29: 4, 30: 8, 35: 8}),
    ],
)
def test_a_place_with_one_model_counts_the_requests_of_whole_batches(free, size, caps):
    place = field((10,), free, (size,))
    assert {due: place.cap(due) for due in caps} == caps


@pytest.mark.parametrize(
    ("free", "sizes", "caps"),
    [
        ((5,), (1, 1), {4: 0, 5: 0, 6: 1, 105: 100, 2**51 + 3: 2**51 - 2, 2**51 + 5: 2**51 - 1, 2**52: 2**51 - 1}),
        ((0,), (1, 4), {18: 0, 19: 0, 20: 1, 100: 81}),  # 25 - 25 // 4: a batch of the second ends as a whole
        ((0,), (4, 1), {8: 0, 9: 1, 100: 92}),  # 10 - 10 // 4
        ((0, 10), (1, 1), {10: 0, 12: 2, 16: 10, 100: 190 - 12}),  # half of 25: one lane idles while the other works
        ((0, 0, 0), (1, 4), {100: 300 - 19 - 25}),
    ],
)
def test_a_place_that_models_share_counts_time_less_what_ends_late(free, sizes, caps):
    place = field((10, 25), free, sizes)
    assert {due: place.cap(due) for due in caps} == caps


def test_the_fields_of_a_load_stand_side_by_side():
    alone, shared = field((10,), (0,), (4,), 3), field((10, 25), (0,), (4, 1), 3)
    assert (alone.shift, alone.largest, alone.guard, alone.adds, alone.unit_ns) == (3, 127, 1 << 10, {0: 1}, 10)
    assert (shared.shift, shared.largest, shared.guard, shared.adds, shared.unit_ns) == (
        3,
        (1 << 51) - 1,
        1 << 54,
        {0: 3, 1: 25},
        1,
    )


LANES = Lanes((0, 1, 1, 2), (40, 10, 25, 5), ((0,), (20,), (0,)), (1, 1, 1, 2))
"""Model 0 alone, 1 and 2 on one lane, and 3 alone in batches of two."""

UNIT_1, UNIT_2 = 1 << 8, 1 << 60
GUARD = (1 << 7) + (1 << 59) + (1 << 67)


def bound(*left):
    """The bound of an option that leaves so much of each place."""
    return GUARD + left[0] + left[1] * UNIT_1 + left[2] * UNIT_2


def test_a_problem_in_whole_numbers():
    options = [
        Option(0b1001, 90),
        Option(0b0110, 80),
        Option(0b0010, 50),
        Option(0b0100, 50),
        Option(0b0001, 0),
        Option(0b1000, 1),
        Option(0b1010, 50),
        Option(0b1100, 51),
    ]
    packed = pack(LANES, [Asked(55, options), Asked(54, options), Asked(39, options[:5]), Asked(9, [])])
    full = ((1 << 7) - 1, (1 << 51) - 1, (1 << 7) - 1)
    assert (packed.guard, packed.shape) == (GUARD, (1 + 1) * (1 + 3) * (1 + 1) * (1 + 4))
    assert packed.weights == ((0, full[0], 40), (8, full[1], 1), (60, full[2], 5))
    first, second, third, last = packed.rows
    assert first == [
        (0b0010, 10 * UNIT_1, bound(full[0], 35 - 10, full[2]), 50),
        (0b0100, 25 * UNIT_1, bound(full[0], 35 - 25, full[2]), 50),
        (0b1000, UNIT_2, bound(full[0], full[1], 22 - 1), 1),
        (0b0110, 35 * UNIT_1, bound(full[0], 0, full[2]), 80),
        (0b1001, 1 + UNIT_2, bound(0, full[1], 22 - 1), 90),
        (0b1100, 25 * UNIT_1 + UNIT_2, bound(full[0], 35 - 25, 22 - 1), 51),
    ]
    assert [option[0] for option in second] == [0b0010, 0b0100, 0b1000, 0b1001, 0b1100]  # 34 ns for both of the lane
    assert [option[0] for option in third] == [0b0010]  # a nanosecond too short for model 0, and 19 are not 25
    assert last == []


def test_an_option_goes_only_when_a_part_of_it_brings_as_much():
    rows = [
        pack(LANES, [Asked(900, [Option(subset, reward) for subset, reward in options])]).rows[0]
        for options in (
            [(0b01, 50), (0b10, 60), (0b11, 60)],
            [(0b01, 50), (0b10, 60), (0b11, 61)],
            [(0b10, 50), (0b1001, 40)],
            [(0b01, -5), (0b10, 0), (0b11, 1)],
        )
    ]
    assert [[option[0] for option in row] for row in rows] == [[0b01, 0b10], [0b01, 0b10, 0b11], [0b10, 0b1001], [0b11]]


def test_a_subset_that_no_place_could_ever_take_is_left_out():
    longest = (1 << 51) - 1
    for more, kept in ((0, [0b01, 0b11]), (1, [0b01])):
        lanes = Lanes((0, 0), (5, longest - 5 + more), ((0,),), (1, 1))
        row = pack(lanes, [Asked(1 << 60, [Option(0b11, 9), Option(0b01, 4)])]).rows[0]
        assert [option[0] for option in row] == kept


def test_the_bound_on_the_loads_counts_no_more_of_a_model_than_there_are_requests():
    asked = [Asked(1000, [Option(1, 5)])] * 3
    assert pack(LANES, asked).shape == (1 + 3) ** 4
    assert pack(LANES, [Asked(80, []), *asked[:1], Asked(60, [])]).shape == (1 + 3) ** 4  # by the latest of all
    assert pack(LANES, [Asked(30, [])] * 3).shape == 1 * (1 + 1) * 1 * (1 + 3)


def test_the_lane_time_of_a_load_is_that_of_all_places():
    packed = Packed(0, [], 1, ((0, 127, 40), (8, (1 << 51) - 1, 1), (60, 127, 5)))
    assert packed.time_ns(0) == 0
    assert packed.time_ns(3 + 35 * UNIT_1 + 7 * UNIT_2) == 3 * 40 + 35 + 7 * 5


@pytest.mark.parametrize(
    ("subsets", "does"),
    [
        ([0, 0], True),
        ([1, 0], True),
        ([0, 1], True),
        ([1, 1], True),
        ([1, 2], True),
        ([2, 1], True),
        ([2, 2], False),
        ([2, 3], False),
        ([3, 0], True),
        ([3, 1], True),
        ([3, 3], False),
        ([4, 0], False),
        ([1, 4], False),
    ],
)
def test_whether_the_models_of_all_requests_end_in_time(subsets, does):
    """By 80 one lane runs twice what takes 40, the other once what takes 75; nobody offers the subset 4."""
    lanes = Lanes((0, 1), (40, 75), ((0,), (0,)), (1, 1))
    asked = [Asked(80, [Option(1, 90), Option(2, 95), Option(3, 100)]) for _ in range(2)]
    assert fits(lanes, asked, subsets) is does


def test_who_comes_first_takes_the_time_of_those_behind():
    lanes = Lanes((0,), (40,), ((0,),), (1,))
    early, late = Asked(40, [Option(1, 5)]), Asked(80, [Option(1, 5)])
    assert fits(lanes, [early, late], [1, 1])
    assert not fits(lanes, [late, early], [1, 1])
