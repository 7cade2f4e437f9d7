"""Shared memory for large tensors: which part is whose, places in a header, and copies of what may change."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from edgeserve.errors import Malformed
from edgeserve.ipc import wire
from edgeserve.ipc.segments import ALIGN, Copies, SharedSegment, check_room, is_supported
from edgeserve.ipc.slab import PAGE, Lease, Slab
from edgeserve.ipc.tensors import LARGE_BYTES, Place, insert_places

BYTES_MAX = 10**8
LARGE = np.arange(LARGE_BYTES, dtype=np.float32)

pytestmark = pytest.mark.skipif(not is_supported(), reason="this system has no sealed memory without a name")


@pytest.fixture
def segment():
    one = SharedSegment(64 * PAGE * 8)
    slab = Slab(one.file, one.bytes)
    one.open()
    return one, slab


def asked(segment, frames):
    """The request as the server reads its frames."""
    fields, buffers = wire.unpack_header(frames[0]), [bytes(frame) for frame in frames[1:]]
    fields.pop("kind")
    fields.pop("id")
    total = segment.find(fields, buffers)
    segment.copy(buffers)
    ask = wire.Ask()
    wire.decode_infer(ask, fields, buffers, BYTES_MAX)
    return ask, total


def test_places_never_overlap_and_all_come_back(segment):
    _, slab = segment
    rng = random.Random(5)
    taken = {}
    fell_back = 0
    for _ in range(3000):
        if taken and rng.random() < 0.5:
            offset = rng.choice(sorted(taken))
            slab.give_back(offset, taken.pop(offset))
            continue
        nbytes = rng.randrange(1, 40 * PAGE)
        offset = slab.take(nbytes)
        if offset is None:
            fell_back += 1
            continue
        assert offset % PAGE == 0
        assert offset + nbytes <= slab.bytes
        assert all(offset + nbytes <= other or other + size <= offset for other, size in taken.items())
        taken[offset] = nbytes
    assert fell_back > 10, "a full slab was not tried"
    for offset, nbytes in taken.items():
        slab.give_back(offset, nbytes)
    assert slab.free_bytes() == slab.bytes
    assert slab.take(slab.bytes) == 0, "the holes did not grow together"


def test_an_answer_smaller_than_its_request_holds_no_more_than_its_room(segment):
    _, slab = segment
    lease = Lease(slab)
    lease.borrow({"x": LARGE}, 5 * PAGE)
    offset = lease.put(LARGE)
    assert lease.room == (offset, 5 * PAGE)
    kept = np.frombuffer(lease.window(Place(offset, 9)), np.uint8)
    lease.end()
    lease.end()
    assert slab.free_bytes() == slab.bytes - 5 * PAGE
    del kept
    gc.collect()
    assert slab.free_bytes() == slab.bytes


def test_an_answer_larger_than_its_request_has_room_and_where_that_is_not_left_the_request_has_its_own(segment):
    _, slab = segment
    lease = Lease(slab)
    lease.borrow({"x": LARGE}, 2 * LARGE.nbytes)
    assert lease.room[1] == slab.bytes - slab.free_bytes() == 2 * LARGE.nbytes
    other = Lease(slab)
    other.borrow({"x": LARGE}, slab.bytes)
    assert other.room is None
    assert other.put(LARGE) is not None
    assert other.put(LARGE) is None, "only what was borrowed"
    lease.end()
    other.end()
    assert slab.free_bytes() == slab.bytes


def test_the_place_that_was_given_back_last_is_taken_first(segment):
    _, slab = segment
    places = [slab.take(3 * PAGE) for _ in range(4)]
    for index in (2, 0, 3):
        slab.give_back(places[index], 3 * PAGE)
    assert slab.take(3 * PAGE) == places[3]
    assert slab.take(3 * PAGE) == places[0]


def test_tensors_of_an_answer_begin_at_cache_lines(segment):
    shared, slab = segment
    odd = np.zeros(LARGE_BYTES + 1, np.uint8)
    room = shared.room([0, slab.bytes])
    offsets = [room.put(odd) for _ in range(3)]
    assert offsets == [0, LARGE_BYTES + ALIGN, 2 * (LARGE_BYTES + ALIGN)]


@pytest.mark.parametrize(
    "entry",
    [
        ["x", "uint8", [4], -1, 4],
        ["x", "uint8", [4], 0, 2**63],
        ["x", "uint8", [4], 0.0, 4],
        ["x", "uint8", [4], None, 4],
        ["x", "uint8", [4], 64 * PAGE * 8 - 3, 4],
        ["x", "uint8", [5], 0, 4],
        ["x", "uint8", [4], 0],
        ["x", "uint8", [4], True, 4],
    ],
)
def test_places_that_are_none_are_refused(segment, entry):
    shared, _ = segment
    with pytest.raises(Malformed):
        asked(shared, [wire.pack_header({"kind": "infer", "id": 1, "app": "a", "tensors": [entry]})])


@pytest.mark.parametrize("tables", [None, 5, "x", [None, 1], {"x": 1}])
def test_a_table_that_is_none_is_left_to_others(tables):
    buffers = [b"1"]
    assert insert_places(tables, buffers) == 0
    assert buffers == [b"1"]


def test_room_is_within_the_memory(segment):
    shared, _ = segment
    check_room([0, shared.bytes], shared)
    with pytest.raises(Malformed, match="which has"):
        check_room([1, shared.bytes], shared)
    with pytest.raises(Malformed, match="claim some"):
        check_room([0, 1], None)
    for room in (5, [1], [0, -1], [0, 1, 2], [0.0, 1], ["0", 1]):
        with pytest.raises(Malformed, match="room"):
            wire.decode_infer(wire.Ask(), {"app": "a", "room": room}, [], BYTES_MAX)


def test_an_answer_outside_the_room_is_no_reply(segment):
    _, slab = segment
    lease = Lease(slab)
    lease.borrow({}, 8 * PAGE)
    begin, size = lease.room
    for offset, nbytes in ((begin + 8 * PAGE - 1, 2), (begin + size, 4)):
        with pytest.raises(Malformed, match="room for this answer"):
            lease.window(Place(offset, nbytes))
    other = Lease(slab)
    with pytest.raises(Malformed, match="room for this answer"):
        other.window(Place(begin, 4))


def test_memory_of_copies_is_used_again_within_a_bound():
    copies = Copies(16 * PAGE)
    held = np.arange(3 * PAGE - 5, dtype=np.uint32).view(np.uint8)[: 3 * PAGE - 5]
    first = copies.of(held)
    place = np.frombuffer(first, np.uint8).ctypes.data
    second = copies.of(held)
    array = np.ndarray((3,), np.uint8, second)  # as a request's input holds it
    assert bytes(first) == bytes(second) == held.tobytes()
    assert np.frombuffer(second, np.uint8).ctypes.data != place, "the first is still in use"
    del first
    gc.collect()
    again = copies.of(held)
    assert np.frombuffer(again, np.uint8).ctypes.data == place
    del second
    gc.collect()
    assert np.frombuffer(copies.of(held), np.uint8).ctypes.data not in (place, array.ctypes.data), "both are in use"
    del again, array
    kept = [copies.of(held) for _ in range(20)]
    del kept
    gc.collect()
    copies.of(held)
    assert copies._spare_bytes <= 16 * PAGE
    assert copies.of(held[:0]) == b""
