"""Rows of keys and values: moved side by side without a change, given back when a sequence ends."""

from __future__ import annotations

import random

import numpy as np

from edgeserve.engines.lm.kv_rows import KvRows

HEADS, CONTEXT, SIZE = 2, 128, 16  # a row of 16 KiB: four pages


def filled(rows, slot, length):
    """Write what only this slot and place would hold."""
    for layer, pair in enumerate(rows.layers):
        for kind, array in enumerate(pair):
            row = array[rows.row_of(slot)]
            row[:, :length] = wanted(slot, layer, kind, length)
    rows.grown(slot, length)


def wanted(slot, layer, kind, length):
    mark = slot * 100 + layer * 10 + kind
    return np.broadcast_to(mark + np.arange(length)[:, None] / 1000, (HEADS, length, SIZE)).astype(np.float32)


def test_sequences_keep_their_content_wherever_they_are_moved():
    draw = random.Random("rows")
    rows = KvRows(2, 6, HEADS, CONTEXT, SIZE)
    lengths = {}
    for _ in range(200):
        slot = draw.randrange(6)
        if slot in lengths and draw.random() < 0.3:
            rows.free(slot)
            del lengths[slot]
        elif slot not in lengths:
            lengths[slot] = draw.randint(1, CONTEXT)
            filled(rows, slot, lengths[slot])
        some = draw.sample(range(6), draw.randint(1, 6))
        first = rows.arrange(some)
        assert sorted(rows.row_of(slot) for slot in some) == list(range(first, first + len(some)))
        assert sorted(rows.row_of(slot) for slot in range(6)) == list(range(6))
        for held, length in lengths.items():
            for layer, pair in enumerate(rows.layers):
                for kind, array in enumerate(pair):
                    np.testing.assert_array_equal(
                        array[rows.row_of(held), :, :length], wanted(held, layer, kind, length)
                    )


def test_rows_that_lie_side_by_side_are_not_moved_and_the_shorter_one_moves_else():
    rows = KvRows(1, 4, HEADS, CONTEXT, SIZE)
    filled(rows, 0, 100)
    filled(rows, 2, 5)
    assert rows.arrange([1, 0]) == 0
    assert [rows.row_of(slot) for slot in range(4)] == [0, 1, 2, 3]
    rows.arrange([0, 2])
    assert rows.row_of(0) == 0
    assert rows.row_of(2) == 1


def test_the_memory_of_an_ended_sequence_goes_back_to_the_system():
    rows = KvRows(1, 3, HEADS, CONTEXT, SIZE)
    for slot in range(3):
        filled(rows, slot, CONTEXT)
    before = resident(rows)
    rows.free(1)
    assert before - resident(rows) >= 2 * HEADS * CONTEXT * SIZE * 4 * 0.9
    assert not rows.layers[0][0][rows.row_of(1)].any()
    assert rows.length(1) == 0
    np.testing.assert_array_equal(rows.layers[0][1][rows.row_of(2), :, :], wanted(2, 0, 1, CONTEXT))


def resident(rows):
    """Bytes of the arrays that are in memory, as the kernel says."""
    places = [(array.ctypes.data, array.ctypes.data + array.nbytes) for pair in rows.layers for array in pair]
    total, inside = 0, False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                begin, end = (int(part, 16) for part in head.split("-"))
                inside = any(begin < last and first < end for first, last in places)
            elif inside and head == "Rss:":
                total += int(line.split()[1]) * 1024
    return total
