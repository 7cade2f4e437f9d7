"""Requests of a known form: read as decoding reads them, and nothing else is taken for one."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeserve.errors import RequestError
from edgeserve.ipc import forms, wire
from edgeserve.ipc.forms import HEADER_BYTES_MAX, learn_form
from edgeserve.ipc.tensors import Place, insert_places

NUMBERS = st.one_of(st.integers(0, 200), st.integers(0, 2**33), st.integers(0, 2**63 - 1))
TENSOR = np.arange(6, dtype=np.float32).reshape(2, 3)
SLOTS = [name for name in wire.Ask.fields if name not in ("inputs", "peer", "key", "is_req", "bytes")]


def header(**fields):
    return bytes([wire.VERSION]) + msgpack.packb({"kind": "infer", "app": "a", **fields})


def decoded(first, buffers):
    """(key, record) by decoding; None for what is refused."""
    try:
        fields = wire.unpack_header(first)
        if wire.take_kind(fields) != "infer":
            return None
        key = wire.take_key(fields)
        ask = wire.Ask()
        wire.decode_infer(ask, fields, buffers, 10**6)
    except RequestError:
        return None
    return key, ask


def read(form, first, buffers):
    """(key, record) by the form; None for what is not of it."""
    found = form.match(first, buffers)
    if found is None:
        return None
    ask = wire.Ask()
    form.fill(ask, found, buffers)
    return found[form.key_at], ask


def assert_same(one, other):
    assert (one is None) == (other is None)
    if one is None:
        return
    assert one[0] == other[0]
    for name in SLOTS:
        assert getattr(one[1], name) == getattr(other[1], name), name
    assert list(one[1].inputs) == list(other[1].inputs)
    for name, value in one[1].inputs.items():
        same = other[1].inputs[name]
        assert (value.dtype, value.shape, value.flags.writeable) == (same.dtype, same.shape, same.flags.writeable)
        assert value.tobytes() == same.tobytes()


def learnt(first, buffers):
    return learn_form(first, decoded(first, buffers)[1])


OPTIONS = {
    "class": "critical",
    "slo_ms": 20.5,
    "value": 2,
    "stream": "cam",
    "on_late": "answer",
    "client": "c",
    "origin": "o",
    "quality_min": 0.5,
}


@settings(max_examples=200)
@given(
    first=st.tuples(NUMBERS, NUMBERS),
    second=st.tuples(NUMBERS, NUMBERS),
    stamped=st.booleans(),
    options=st.sets(st.sampled_from(sorted(OPTIONS))),
    names=st.lists(st.sampled_from(["x", "id", "sent_ns"]), unique=True, max_size=3),
    seed=st.integers(),
)
def test_a_request_of_the_form_is_read_as_decoding_reads_it(first, second, stamped, options, names, seed):
    buffers = [TENSOR.tobytes() for _ in names]
    constant = {"tensors": [[name, "float32", [2, 3]] for name in names]} if names else {}
    constant.update((name, OPTIONS[name]) for name in options)
    order = np.random.default_rng(seed % 2**32).permutation(len(constant) + 2)

    def message(key, sent_ns):
        fields = {"id": key, **({"sent_ns": sent_ns} if stamped else {}), **constant}
        items = list(fields.items())
        return header(**dict([items[at] for at in order if at < len(items)]))

    form = learnt(message(*first), buffers)
    if form is None:
        assert stamped and first[1] < 2**32  # a stamp of other than eight bytes is none
        return
    assert_same(read(form, message(*first), buffers), decoded(message(*first), buffers))
    found = read(form, message(*second), buffers)
    if found is not None:
        assert_same(found, decoded(message(*second), buffers))
    else:
        assert len(message(*second)) != len(message(*first)) or msgpack.packb(second)[:1] != msgpack.packb(first)[:1]


@settings(max_examples=300)
@given(
    at=st.integers(0, 200),
    byte=st.integers(0, 255),
    sizes=st.lists(st.integers(0, 48), max_size=3),
    key=st.sampled_from([5, 200, 70_000, 2**40]),
)
def test_no_damaged_message_is_read_otherwise_than_by_decoding(at, byte, sizes, key):
    first = header(id=key, sent_ns=2**40, tensors=[["x", "float32", [2, 3]]], slo_ms=20)
    form = learnt(first, [TENSOR.tobytes()])
    damaged = bytearray(first)
    damaged[at % len(first)] = byte
    buffers = [bytes(size) for size in sizes] or [TENSOR.tobytes()]
    found = read(form, bytes(damaged), buffers)
    if found is not None:
        assert_same(found, decoded(bytes(damaged), buffers))


@pytest.mark.parametrize("key", [0, 127, 128, 255, 256, 2**16, 2**32, 2**63 - 1])
def test_numbers_of_every_width_are_found(key):
    first = header(id=key, tensors=[["x", "float32", [2, 3]]])
    assert read(learnt(first, [TENSOR.tobytes()]), first, [TENSOR.tobytes()])[0] == key


def test_a_key_beyond_the_bound_is_left_to_decoding():
    form = learnt(header(id=2**63 - 1), [])
    assert read(form, header(id=2**63 - 1), [])[0] == 2**63 - 1
    assert read(form, header(id=2**63), []) is None
    small = learnt(header(id=7), [])
    assert read(small, header(id=127), [])[0] == 127
    assert read(small, header(id=7)[:-1] + b"\xc0", []) is None  # "nil" in the place of a number


def test_a_stamp_beyond_the_bound_is_left_to_decoding():
    form = learnt(header(id=7, sent_ns=2**40), [])
    assert read(form, header(id=7, sent_ns=2**63), []) is None
    assert read(form, header(id=7, sent_ns=2**62), [])[1].sent_ns == 2**62


def test_an_id_that_is_given_twice_counts_as_decoding_has_it():
    twice = b"\x01\x84\xa2id\xcd\x01\x01\xa4kind\xa5infer\xa3app\xa1a\xa2id\xcd\x02\x02"
    form = learnt(twice, [])
    assert read(form, twice, [])[0] == decoded(twice, [])[0] == 0x202


@pytest.mark.parametrize(
    ("fields", "buffers"),
    [
        ({"texts": {"t": "hello"}}, []),
        ({"hints": {"a.steps": 3}}, []),
        ({"pieces": True}, []),
        ({"room": [0, 8]}, []),
        ({"tensors": [["x", "bool", [2]]]}, [b"\0\1"]),
        ({"tensors": [["x", "float32", [0]]]}, [b""]),
        ({"id": b"mine"}, []),
        ({"sent_ns": 3}, []),
        (
            {
                "client": "c" * 120,
                "stream": "s" * 128,
                "tensors": [[str(index) + "n" * 100, "int8", [1]] for index in range(9)],
            },
            [b"x"] * 9,
        ),
    ],
)
def test_what_must_be_looked_at_each_time_has_no_form(fields, buffers):
    first = header(**{"id": 7, **fields})
    assert decoded(first, buffers) is not None
    assert learnt(first, buffers) is None
    assert len(first) < HEADER_BYTES_MAX or len(buffers) == 9


MEMORY = 2**20
CONTENT = bytes(range(256)) * (MEMORY // 256)
OFFSETS = st.one_of(st.integers(0, 2**16), st.integers(2**16, MEMORY + 30), st.integers(0, 2**40))


def decoded_with_memory(first, buffers):
    """As ``decoded``, of a connection with shared memory: as the bus does it."""
    buffers = list(buffers)
    try:
        fields = wire.unpack_header(first)
        if wire.take_kind(fields) != "infer":
            return None
        key = wire.take_key(fields)
        insert_places(fields.get("tensors"), buffers)
        buffers = taken(buffers)
        ask = wire.Ask()
        if buffers is None:
            return None
        wire.decode_infer(ask, fields, buffers, 10**6)
        if ask.room is not None and sum(ask.room) > MEMORY:
            return None
    except RequestError:
        return None
    return key, ask


def taken(buffers):
    """The bytes at each place; None where one is beyond the end."""
    if any(type(one) is Place and one.offset + one.nbytes > MEMORY for one in buffers):
        return None
    return [CONTENT[one.offset : one.offset + one.nbytes] if type(one) is Place else one for one in buffers]


def read_with_memory(form, first, buffers):
    found = form.match(first, buffers)
    if found is None:
        return None
    buffers = list(buffers)
    form.insert_places(found, buffers)
    ask = wire.Ask()
    form.fill(ask, found, taken(buffers))
    ask.room = list(ask.room) if ask.room is not None else None
    return found[form.key_at], ask


def placed(key, x_at, z_at, room_at):
    """A request of three tensors, of which two lie in shared memory, with room for its answer."""
    return header(
        id=key,
        sent_ns=2**40,
        room=[room_at, 48],
        tensors=[["x", "float32", [2, 3], x_at, 24], ["y", "uint8", [3]], ["z", "uint16", [2, 2], z_at, 8]],
        slo_ms=7,
    )


def learnt_with_memory(first, buffers):
    return learn_form(first, decoded_with_memory(first, buffers)[1], MEMORY)


@settings(max_examples=300)
@given(key=NUMBERS, x_at=OFFSETS, z_at=OFFSETS, room_at=OFFSETS)
def test_a_request_in_shared_memory_is_read_as_decoding_reads_it(key, x_at, z_at, room_at):
    form = learnt_with_memory(placed(7, 2**16, 2**17, 2**16), [b"abc"])
    assert form.placed_bytes == 32
    first = placed(key, x_at, z_at, room_at)
    found = read_with_memory(form, first, [b"abc"])
    if found is not None:
        assert_same(found, decoded_with_memory(first, [b"abc"]))
    else:
        assert key > 127 or min(x_at, z_at, room_at) < 2**16 or max(x_at, z_at, room_at) > MEMORY - 48


def test_frames_in_the_place_of_shared_memory_are_left_to_decoding():
    form = learnt_with_memory(placed(7, 2**16, 2**17, 2**16), [b"abc"])
    first = placed(8, 2**18, 2**17, 2**18)
    assert read_with_memory(form, first, [b"abc"])[0] == 8
    for buffers in ([], [b"ab"], [b"abc", b"abc"], [TENSOR.tobytes(), b"abc", b"12345678"]):
        assert read_with_memory(form, first, buffers) is None


@pytest.mark.parametrize("offset", [MEMORY - 23, MEMORY, 2**32 - 1])
def test_a_place_beyond_the_end_is_left_to_decoding(offset):
    form = learnt_with_memory(placed(7, 2**16, 2**17, 2**16), [b"abc"])
    assert read_with_memory(form, placed(8, offset, 2**17, 2**16), [b"abc"]) is None
    assert read_with_memory(form, placed(8, 2**16, 2**17, offset), [b"abc"]) is None


@pytest.mark.parametrize(("count", "is_learnt"), [(8, True), (9, False), (40, False)])
def test_a_client_cannot_make_the_server_decode_a_header_often(count, is_learnt, monkeypatch):
    first = header(id=7, tensors=[[f"x{index}", "uint8", [1], 2**16, 1] for index in range(count)])
    ask, decodings = decoded_with_memory(first, [])[1], []

    def counted(told):
        decodings.append(told)
        return wire.unpack_header(told)

    monkeypatch.setattr(forms, "unpack_header", counted)
    assert (learn_form(first, ask, MEMORY) is not None) == is_learnt
    assert len(decodings) <= forms.OFFSET_TRIES_MAX + 4  # the header itself, and its other numbers


def test_offsets_that_are_not_told_apart_from_other_numbers_have_no_form():
    for x_at in (0, 100, 2**16 - 1):  # fewer than four bytes
        assert learnt_with_memory(placed(7, x_at, 2**17, 2**16), [b"abc"]) is None


@settings(max_examples=300)
@given(at=st.integers(0, 200), byte=st.integers(0, 255))
def test_no_damaged_message_in_shared_memory_is_read_otherwise_than_by_decoding(at, byte):
    first = placed(7, 2**16, 2**17, 2**16)
    form = learnt_with_memory(first, [b"abc"])
    damaged = bytearray(first)
    damaged[at % len(first)] = byte
    found = read_with_memory(form, bytes(damaged), [b"abc"])
    if found is not None:
        assert_same(found, decoded_with_memory(bytes(damaged), [b"abc"]))
