"""The frames: what goes in comes out, and damage of any kind becomes a typed error without a large allocation."""

from __future__ import annotations

import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.errors import (
    BadInput,
    Dropped,
    Failed,
    Malformed,
    Rejected,
    RequestError,
    TooLarge,
    UnknownApp,
    WrongVersion,
)
from edgeserve.ipc import wire
from edgeserve.ipc.tensors import DTYPES, LARGE_BYTES

BYTES_MAX = 10**6


def decode(frames, bytes_max=BYTES_MAX):
    fields = wire.unpack_header(frames[0])
    assert wire.take_kind(fields) == "infer"
    wire.take_key(fields)
    ask = wire.Ask()
    wire.decode_infer(ask, fields, [bytes(frame) for frame in frames[1:]], bytes_max)
    return ask


def header(**fields):
    return bytes([wire.VERSION]) + msgpack.packb(dict({"kind": "infer", "id": 1, "app": "a"}, **fields))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_every_dtype_and_shape_arrives_unchanged(dtype, shape):
    value = (np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) % 2).astype(dtype)
    back = decode(wire.encode_request(1, "a", {"x": value})).inputs["x"]
    assert back.dtype == value.dtype
    assert back.shape == shape
    assert (back == value).all()
    assert not back.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.float32(2.5),
        7,
        True,
        2.5,
    ],
)
def test_foreign_byte_order_strides_and_numbers_are_made_plain(value):
    back = decode(wire.encode_request(1, "a", {"x": value})).inputs["x"]
    assert (back == np.asarray(value)).all()
    assert back.shape == np.shape(value)


@pytest.mark.parametrize("value", [[2, 0, 1], [0.5, np.float32(2)], [True, False]])
def test_a_list_of_numbers_is_an_array_in_an_answer(value):
    """As what parts of a fan-out returned is gathered."""
    back = wire.decode_reply(wire.encode_answer(1, {"y": value}, BYTES_MAX), BYTES_MAX).outputs["y"]
    assert back.tolist() == value
    with pytest.raises(Failed, match="output 'y' is a list of neither strings nor numbers"):
        wire.encode_answer(1, {"y": [*value, None]}, BYTES_MAX)
    with pytest.raises(BadInput, match="'x' is a list"):
        wire.encode_request(1, "a", {"x": value})


def test_masked_numbers_do_not_travel_as_if_they_were_none():
    value = np.ma.masked_array(np.ones(3), mask=[0, 1, 0])
    with pytest.raises(BadInput, match=r"'x' is a masked array, .*x.filled\(0\)"):
        wire.encode_request(1, "a", {"x": value})
    with pytest.raises(Failed, match="'y' is a masked array"):
        wire.encode_answer(1, {"y": value}, BYTES_MAX)
    assert decode(wire.encode_request(1, "a", {"x": np.ma.masked_array(np.ones(3))})).inputs["x"].tolist() == [1, 1, 1]


def test_large_arrays_are_not_copied_either_way():
    value = np.zeros(LARGE_BYTES, np.uint8)
    frames = wire.encode_request(1, "a", {"x": value})
    assert np.shares_memory(np.frombuffer(frames[1], np.uint8), value)
    back = wire.decode_reply(wire.encode_answer(1, {"y": value}, BYTES_MAX), BYTES_MAX).outputs["y"]
    assert np.shares_memory(back, value)


def test_every_key_of_a_request_arrives():
    options = {
        "slo_ms": 12.5,
        "class": "critical",
        "value": 2,
        "stream": "cam",
        "on_late": "answer",
        "hints": {"length": 3},
        "client": "arm",
    }
    ask = decode(wire.encode_request(b"k", "a", {"t": "hé", "x": np.zeros(2)}, 5, options))
    assert (ask.app, ask.slo_ms, ask.sent_ns, ask.priority_class, ask.value) == ("a", 12.5, 5, "critical", 2)
    assert (ask.stream, ask.on_late, ask.hints, ask.client) == ("cam", "answer", {"length": 3}, "arm")
    assert ask.inputs["t"] == "hé"


def test_a_piece_arrives_and_is_asked_for():
    piece = {"text": " word", "tokens": np.array([7, 8], np.int32)}
    frames = wire.encode_piece(7, piece, BYTES_MAX)
    reply = wire.decode_reply([bytes(frame) for frame in frames], BYTES_MAX)
    assert (reply.kind, reply.key, reply.outputs["text"]) == ("piece", 7, " word")
    np.testing.assert_array_equal(reply.outputs["tokens"], piece["tokens"])
    assert decode(wire.encode_request(1, "a", {}, options={"pieces": True})).pieces is True
    assert decode(wire.encode_request(1, "a", {})).pieces is False
    with pytest.raises(Malformed, match="pieces = 1: expected true or false"):
        decode(wire.encode_request(1, "a", {}, options={"pieces": 1}))
    with pytest.raises(Failed, match="a piece of the answer takes"):
        wire.encode_piece(7, {"text": "x" * 200}, 100)
    with pytest.raises(Failed, match="cannot be sent"):
        wire.encode_piece(7, {"text": object()}, BYTES_MAX)


def test_an_answer_with_everything_arrives():
    frames = wire.encode_answer(
        b"k",
        {"y": np.ones(3), "t": "x", "lines": ["a", "b"], "n": np.int64(4)},
        BYTES_MAX,
        reason="partial: 2 of 3",
        late=True,
        finished_ns=9,
        total_ns=7,
        breakdown=(1, 2, 3, 4),
    )
    reply = wire.decode_reply(frames, BYTES_MAX)
    assert (reply.key, reply.reason, reply.late) == (b"k", "partial: 2 of 3", True)
    assert (reply.finished_ns, reply.total_ns) == (9, 7)
    assert tuple(reply.breakdown) == (1, 2, 3, 4)
    assert (reply.outputs["t"], reply.outputs["lines"], int(reply.outputs["n"])) == ("x", ["a", "b"], 4)


@pytest.mark.parametrize("error", [Rejected("full", "queue full"), UnknownApp("no app"), BadInput("x")])
def test_errors_keep_their_type_and_reason(error):
    back = wire.decode_reply([wire.encode_error(3, error)], BYTES_MAX)
    assert type(back.error) is type(error)
    assert str(back.error) == str(error)
    assert getattr(back.error, "reason", "") == getattr(error, "reason", "")


def test_numbers_and_ids_of_answers_and_errors_arrive():
    error = Dropped("late", "proactive")
    error.id, error.lane, error.expected_ms, error.wait_ms, error.left_ms = 2**40, "gpu0", 53.25, 0.0, -1.5
    back = wire.decode_reply([wire.encode_error(3, error)], BYTES_MAX).error
    assert type(back) is Dropped
    assert (back.id, back.lane, back.expected_ms, back.wait_ms, back.left_ms, back.slo_ms_min) == (
        2**40,
        "gpu0",
        53.25,
        0.0,
        -1.5,
        None,
    )
    error.slo_ms_min = 70.000001
    assert wire.decode_reply([wire.encode_error(3, error)], BYTES_MAX).error.slo_ms_min == 70.000001
    plain = wire.decode_reply([wire.encode_error(3, Rejected("full", "queue_full"))], BYTES_MAX).error
    assert (plain.id, plain.lane, plain.expected_ms, plain.slo_ms_min) == (0, "", None, None)
    answer = wire.encode_answer(3, {}, BYTES_MAX, request_id=2**40)
    assert wire.decode_reply(answer, BYTES_MAX).request_id == 2**40


def test_numbers_of_a_wrong_kind_are_left_out():
    fields = {
        "kind": "error",
        "id": 3,
        "code": "rejected",
        "message": "no",
        "request_id": "x",
        "expected_ms": "long",
        "slo_ms_min": True,
    }
    back = wire.decode_reply([wire.pack_header(fields)], BYTES_MAX).error
    assert (back.id, back.expected_ms, back.slo_ms_min) == (0, None, None)
    answer = {"kind": "answer", "id": 3, "request_id": "x"}
    with pytest.raises(Malformed, match="request_id = 'x': expected a whole number"):
        wire.decode_reply([wire.pack_header(answer)], BYTES_MAX)


@pytest.mark.parametrize("request_id", [None, -1, "7", 2**63, True])
def test_a_story_needs_the_number_of_a_request(request_id):
    assert wire.take_word("story", wire.unpack_header(wire.encode_plain("story", 5, request_id=7))) == 7
    with pytest.raises(Malformed, match="expected the request_id of an answer or an error"):
        wire.take_word("story", {"request_id": request_id} if request_id is not None else {})


def test_an_error_with_half_a_character_arrives():
    back = wire.decode_reply([wire.encode_error(3, Rejected("no file a\udcff", "b\udcff"))], BYTES_MAX)
    assert (str(back.error), back.reason) == ("no file a?", "b?")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({1: 2}, "int is not allowed for map key"),
        ({"x": "y" * wire.HEADER_BYTES_MAX}, "at most 1048576 are allowed"),
        ({"x": [0] * (wire.TEXT_ITEMS_MAX + 1)}, "max_array_len"),
        ({"x": "\ud800"}, "surrogates"),
    ],
)
def test_an_answer_to_a_question_that_a_client_could_not_read_is_an_error(payload, reason):
    with pytest.raises(Failed, match=f"(?is)the answer to this question cannot be sent: .*{reason}"):
        wire.pack_info(payload)


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": 1},
        [1, None],
        ["a", None],
        ENDLESS,
        np.array([b"a"]),
        np.array([None]),
        1j,
        b"bytes",
        np.array(["\ud800"], object),
    ],
)
def test_what_cannot_travel_is_named(value):
    with pytest.raises(BadInput, match="'x'"):
        wire.encode_request(1, "a", {"x": value})
    with pytest.raises(Failed, match="'x'"):
        wire.encode_answer(1, {"x": value}, BYTES_MAX)


UNREADABLE = [
    {"y": "a" * wire.HEADER_BYTES_MAX},
    {"y": ["a"] * (wire.TEXT_ITEMS_MAX + 1)},
    {"y": ["a" * 20] * wire.TEXT_ITEMS_MAX},
    {"y": np.zeros((1,) * 9)},
    {"y": np.full((1,) * 9, "a", object)},
    {"n" * 129: 1},
    {"": 1},
    {3: "a"},
    {f"t{index}": "a" for index in range(65)},
    {f"t{index}": 1 for index in range(65)},
]


@pytest.mark.parametrize("values", UNREADABLE)
def test_what_the_other_side_could_not_read_is_refused_where_it_is_sent(values):
    """A client gives its connection up at a reply that it cannot read, and a server cannot say which request it could
    not: either would end all requests of the client."""
    with pytest.raises(Failed, match="answer"):
        wire.encode_answer(1, values, BYTES_MAX)
    with pytest.raises(Failed, match="piece of the answer"):
        wire.encode_piece(1, values, BYTES_MAX)
    with pytest.raises((BadInput, TooLarge)):
        wire.encode_request(1, "a", values)


@pytest.mark.parametrize("options", [{"hints": {1: 2}}, {"hints": {f"h{index}": 1 for index in range(65)}}])
def test_options_that_the_server_could_not_read_are_refused(options):
    with pytest.raises(Malformed, match="msgpack map"):
        wire.encode_request(1, "a", {}, options=options)


@pytest.mark.parametrize(
    "words", [{"request_id": 2**64}, {"model": "m" * wire.HEADER_BYTES_MAX}, {"model": "\ud800"}, {"model": object()}]
)
def test_a_question_that_the_server_could_not_read_is_refused(words):
    with pytest.raises((BadInput, TooLarge)):
        wire.encode_question("story", 1, words)
    assert wire.encode_question("story", 1, {"request_id": 7}) == wire.encode_plain("story", 1, request_id=7)


def test_a_bool_of_another_byte_than_0_and_1_is_true_on_its_way():
    value = np.array([[0, 2], [255, 1]], np.uint8).view(bool)
    for sent in (value, value.T, value[0, 1]):
        reply = wire.decode_reply(wire.encode_answer(1, {"y": sent}, BYTES_MAX), BYTES_MAX)
        np.testing.assert_array_equal(reply.outputs["y"], sent)
        np.testing.assert_array_equal(decode(wire.encode_request(1, "a", {"y": sent})).inputs["y"], sent)


def test_an_answer_over_the_bound_fails_with_the_mend():
    with pytest.raises(Failed, match=r"\[server\] memory"):
        wire.encode_answer(1, {"x": np.zeros(1000)}, 1000)


def test_the_example_of_the_protocols_page():
    page = bytes.fromhex(
        "0184a46b696e64a5696e666572a2696407a3617070a46563686fa774656e736f7273"
        "9193a178a7666c6f6174333291020000803f00000040"
    )
    ask = decode([page[:48], page[48:]])
    assert ask.app == "echo"
    assert list(ask.inputs["x"]) == [1.0, 2.0]
    assert wire.encode_request(7, "echo", {"x": np.array([1, 2], np.float32)}) == [page[:48], page[48:]]


TENSOR = [["x", "float32", [2]]]

BROKEN = [
    ([b""], Malformed, "version byte"),
    ([b"\x02" + header()[1:]], WrongVersion, "version 2"),
    ([b"\x01\xc1"], Malformed, "msgpack"),
    ([header()[:-2]], Malformed, "msgpack"),
    ([header() + b"\x00"], Malformed, "msgpack"),
    ([b"\x01" + msgpack.packb([1])], Malformed, "list"),
    ([header(kind="infre")], Malformed, "did you mean 'infer'"),
    ([header(kind=3)], Malformed, "kind"),
    ([header(id=-1)], Malformed, "id = -1"),
    ([header(id=True)], Malformed, "id = True"),
    ([header(id=b"")], Malformed, "id"),
    ([header(app="")], Malformed, "app"),
    ([header(slo=5)], Malformed, "did you mean 'slo_ms'"),
    ([header(slo_ms="5")], Malformed, "slo_ms"),
    ([header(slo_ms=True)], Malformed, "slo_ms"),
    ([header(**{"class": 1})], Malformed, "class"),
    ([header(**{"class": "x" * 129})], Malformed, "at most 128"),
    ([header(on_late=["drop"])], Malformed, "on_late"),
    ([header(stream="s" * 129)], Malformed, "stream"),
    ([header(client="c" * 129)], Malformed, "client"),
    ([header(value="1")], Malformed, "value"),
    ([header(hints={f"h{index}": 1 for index in range(33)})], Malformed, "at most 32"),
    ([header(hints={"": 1})], Malformed, "no name"),
    ([header(hints={"a": "b"})], Malformed, "hints.a"),
    ([header(sent_ns="now")], Malformed, "sent_ns"),
    ([header(texts={"t": 3})], Malformed, "texts.t"),
    ([header(tensors=TENSOR, texts={"x": "y"}), bytes(8)], Malformed, "both"),
    ([header(tensors=TENSOR)], Malformed, "1 tensors, but 0 frames"),
    ([header(), bytes(8)], Malformed, "tensors"),
    ([header(tensors=TENSOR), bytes(7)], Malformed, "7 bytes"),
    ([header(tensors=[["x", "float31", [2]]]), bytes(8)], BadInput, "did you mean 'float32'"),
    ([header(tensors=[["x", "object", [1]]]), bytes(8)], BadInput, "object"),
    ([header(tensors=[["x", "float32", [-2]]]), bytes(8)], Malformed, "shape"),
    ([header(tensors=[["x", "float32", [2**40]]]), bytes(8)], TooLarge, "[server] memory"),
    ([header(tensors=[["x", "float32", [0, 2**62, 2**62]]]), b""], TooLarge, "[server] memory"),
    ([header(tensors=[["x", "float32", [1] * 9]]), bytes(4)], Malformed, "shape"),
    ([header(tensors=[["x", "bool", [2]]]), b"\x00\x07"], Malformed, "bool"),
    ([header(tensors=TENSOR * 2), bytes(8), bytes(8)], Malformed, "twice"),
]


@pytest.mark.parametrize(("frames", "kind", "words"), BROKEN)
def test_each_kind_of_damage_has_its_error(frames, kind, words):
    with pytest.raises(RequestError) as caught:
        decode(frames)
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_keys_of_a_newer_server_are_passed_over_in_replies_and_of_a_newer_client_refused():
    fields = {**wire.unpack_header(wire.encode_answer(3, {"t": "x"}, BYTES_MAX)[0]), "energy_mj": 12.5}
    assert wire.decode_reply([wire.pack_header(fields)], BYTES_MAX).outputs == {"t": "x"}
    error = {**wire.unpack_header(wire.encode_error(3, Rejected("full", "queue_full"))), "energy_mj": 12.5}
    assert wire.decode_reply([wire.pack_header(error)], BYTES_MAX).reason == "queue_full"
    with pytest.raises(Malformed, match="energy_mj"):
        decode([header(energy_mj=12.5)])


def test_a_header_over_its_bound_is_refused():
    with pytest.raises(TooLarge, match="1048576"):
        wire.unpack_header(header(texts={"t": "x" * wire.HEADER_BYTES_MAX}))


GOOD = [
    wire.encode_request(
        5,
        "app",
        {"x": np.arange(6, dtype=np.float32), "b": np.ones(3, bool), "t": "text"},
        1,
        {"slo_ms": 5, "hints": {"n": 1}, "stream": "s"},
    ),
    [wire.encode_plain("cancel", 5)],
    wire.encode_answer(5, {"y": np.arange(4), "t": ["a"]}, BYTES_MAX),
    [wire.encode_error(5, Rejected("no", "full"))],
]


@st.composite
def damaged(draw):
    frames = [bytearray(bytes(frame)) for frame in draw(st.sampled_from(GOOD))]
    for _ in range(draw(st.integers(1, 4))):
        frame = draw(st.integers(0, len(frames) - 1))
        where = draw(st.integers(0, max(0, len(frames[frame]) - 1)))
        how = draw(st.sampled_from(("cut", "flip", "swap", "giant", "drop", "add", "random")))
        if how == "cut":
            del frames[frame][where:]
        elif how == "flip" and frames[frame]:
            frames[frame][where] ^= 1 << draw(st.integers(0, 7))
        elif how == "swap":
            other = draw(st.integers(0, len(frames) - 1))
            frames[frame], frames[other] = frames[other], frames[frame]
        elif how == "giant":
            frames[frame][where : where + 1] = draw(
                st.sampled_from(
                    (
                        b"\xdd\xff\xff\xff\xff",
                        b"\xdf\xff\xff\xff\xff",
                        b"\xdb\xff\xff\xff\xff",
                        b"\xc6\xff\xff\xff\xff",
                        b"\xcf" + b"\xff" * 8,
                        b"\xcb\x7f\xf0" + bytes(6),
                        b"\xc9\xff\xff\xff\xff\x01",
                    )
                )
            )
        elif how == "drop" and len(frames) > 1:
            del frames[frame]
        elif how == "add":
            frames.append(bytearray(draw(st.binary(max_size=16))))
        else:
            frames[frame] = bytearray(draw(st.binary(max_size=64)))
    return [bytes(frame) for frame in frames]


@given(damaged())
def test_damage_never_raises_anything_but_a_typed_error(frames):
    for read in (lambda: decode(frames, 4096), lambda: wire.decode_reply(frames, 4096)):
        tracemalloc.start()
        try:
            read()
        except (RequestError, AssertionError):
            pass  # the assertion is this test's own: another kind than infer
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 4 * 1024**2


# Not of all characters: a table of them takes seconds.
TEXTS = st.text(st.sampled_from("a\0\n\xe4\u6771\U0001f642"), max_size=8)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS | st.binary(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from(
        (
            "id",
            "app",
            "tensors",
            "texts",
            "slo_ms",
            "sent_ns",
            "class",
            "value",
            "stream",
            "on_late",
            "hints",
            "client",
            "kind",
        )
    ),
)
def test_any_value_under_any_key_is_read_or_refused(value, key):
    said = []
    for read in (wire.read_infer, wire.unpack_header):
        try:
            fields = read(header(**{key: value})) or wire.unpack_header(header(**{key: value}))
            if isinstance(fields, dict):
                wire.take_kind(fields)
                wire.take_key(fields)
            else:
                wire.check_key(fields.id)
            ask = wire.Ask()
            wire.decode_infer(ask, fields, [], 4096)
            said.append(repr(ask))
        except RequestError as error:
            said.append(str(error))
    assert said[0] == said[1], "both ways to read a header find the same"


def test_an_answer_in_part_tells_its_quality_and_who_took_part():
    frames = wire.encode_answer(
        1, {"y": np.zeros(2, np.float32)}, 2**20, reason="without large", quality=0.96, branches=("small", "medium")
    )
    reply = wire.decode_reply([bytes(frame) for frame in frames], 2**20)
    assert (reply.quality, reply.branches, reply.reason) == (0.96, ("small", "medium"), "without large")
    plain = wire.decode_reply([bytes(frame) for frame in wire.encode_answer(1, {}, 2**20)], 2**20)
    assert (plain.quality, plain.branches) == (None, ())
    joined = wire.encode_answer(1, {}, 2**20, branches=("small",))  # nothing tells what it is worth
    reply = wire.decode_reply([bytes(frame) for frame in joined], 2**20)
    assert (reply.quality, reply.branches) == (None, ("small",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quality", 1.5),
        ("quality", "good"),
        ("branches", "small"),
        ("branches", [1]),
        ("variant", 1),
        ("variant", None),
    ],
)
def test_a_quality_that_means_nothing_is_malformed(name, value):
    header = wire.pack_header({"kind": "answer", "id": 1, name: value})
    with pytest.raises(Malformed, match=name):
        wire.decode_reply([header], 2**20)


def test_what_a_client_calls_itself_is_printable_and_has_no_marks():
    for name in ("arm", "Küche 2", "pid:7", "a: b"):
        assert decode([header(client=name)]).client == name
    for wrong in ("pid:7 #", "#", "a@pid:7", "a\n", "a\x7f", "a\u202e", 7):
        with pytest.raises(Malformed, match=r"client = .*printable characters other than # and @, at most 128"):
            decode([header(client=wrong)])


def test_for_whom_a_front_asks_is_a_plain_name():
    assert decode([header(origin="address:2001:db8::")]).origin == "address:2001:db8::"
    assert decode([header()]).origin == ""
    for wrong in ("", "a b", "a@b", "a #1", "a: b", 7, "n" * 129):
        with pytest.raises(Malformed, match="origin"):
            decode([header(origin=wrong)])
