"""Sequence numbers of llama.cpp: neighbours where that can be, with few moves."""

from __future__ import annotations

import random

from edgeserve.engines.lm.llama_numbers import Move, Numbers


def held(count, *numbers):
    """Slots of the same number as their sequence, of ``count``."""
    found = Numbers(count)
    for slot in range(count):
        assert found.of(slot) == slot
    for slot in set(range(count)) - set(numbers):
        assert found.leave(slot) == slot
    return found


def test_a_slot_keeps_its_number_and_a_new_one_comes_beside_those_in_use():
    numbers = held(8, 3, 4)
    assert numbers.of(3) == 3 and numbers.of(10) == 2 and numbers.of(11) == 1
    assert numbers.leave(99) == -1, "its first token was never given"
    assert held(4).of(7) == 0


def test_a_gap_is_closed_from_the_shorter_end():
    assert held(8, 0, 1, 3).close_gaps([3, 0, 1]) == [Move(3, 2)]
    assert held(8, 0, 4, 5, 6).close_gaps([0, 4, 5, 6]) == [Move(0, 3)]
    assert held(8, 0, 2, 4).close_gaps([0, 2, 4]) == [Move(4, 1)]
    assert held(8, 2, 3, 4).close_gaps([2, 3, 4]) == []
    assert held(8, 2).close_gaps([2]) == [] and held(8, 2).close_gaps([]) == []


def test_who_waits_outside_the_step_stays_where_it_is():
    numbers = held(8, 0, 1, 2, 5)
    assert numbers.close_gaps([0, 2]) == [], "1 is in use"
    assert numbers.close_gaps([0, 5]) == [Move(5, 3)] and numbers.of(5) == 3
    assert [numbers.of(slot) for slot in (0, 1, 2)] == [0, 1, 2]


def test_whatever_comes_and_goes_numbers_are_different_and_steps_have_no_free_number_inside():
    draw = random.Random(1)
    for count in (1, 2, 5, 8):
        numbers, slots, kept, at = Numbers(count + 1), [], set(), 0
        content = {}
        for _ in range(500):
            if slots and (len(slots) == count or draw.random() < 0.5):
                slot = slots.pop(draw.randrange(len(slots)))
                kept.discard(slot)
                assert content.pop(numbers.leave(slot)) == slot
            else:
                at += 1
                slots.append(at)
                content[numbers.of(at)] = at
            for slot in slots:
                if draw.random() < 0.1:
                    numbers.keep(slot)
                    kept.add(slot)
            step = draw.sample(slots, draw.randint(0, len(slots)))
            kept.difference_update(step)
            for move in numbers.close_gaps(step):
                assert move.target not in content
                content[move.target] = content.pop(move.source)
            assert {numbers.of(slot): slot for slot in slots} == content and len(content) == len(slots)
            used = sorted(numbers.of(slot) for slot in step)
            inside = range(used[0], used[-1]) if step else ()
            assert all(number in content and content[number] not in kept for number in inside)
