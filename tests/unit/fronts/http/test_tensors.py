"""Tensors of the Open Inference Protocol: JSON, raw bytes and texts, there and back; what is wrong is named."""

from __future__ import annotations

import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import Raw

from edgeserve.errors import BadInput, Malformed, TooLarge
from edgeserve.fronts.http import tensors

NUMBERS = sorted(set(tensors.DTYPES) - {"FP16"})


@given(
    st.sampled_from(sorted(tensors.DTYPES)).flatmap(
        lambda name: arrays.arrays(
            tensors.DTYPES[name], arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
        )
    )
)
def test_bytes_come_back_as_they_were(array):
    datatype, shape = tensors.described("x", array)
    again = tensors.from_raw("x", datatype, tuple(shape), tensors.to_raw(array))
    assert again.dtype == array.dtype and again.tobytes() == array.tobytes() and again.shape == array.shape


@given(
    st.sampled_from(NUMBERS).flatmap(
        lambda name: st.tuples(
            st.just(name),
            arrays.arrays(
                tensors.DTYPES[name],
                arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
                elements={"allow_nan": False, "allow_infinity": False} if name.startswith("FP") else None,
            ),
        )
    )
)
def test_json_comes_back_flat_and_nested(case):
    datatype, array = case
    for data in (tensors.to_json(array), array.tolist()):
        again = tensors.from_json("x", datatype, array.shape, data)
        assert again.dtype == array.dtype and (again == array).all() and again.shape == array.shape


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("INT8", [1], ["x" * 100_000]),
        ("FP32", [1], ["x" * 100_000]),
        ("FP32", [0] * 100_000, []),
        ("F" * 100_000, [1], [1]),
        ("BYTES", [1], [1] * 100_000),
    ],
)
def test_an_error_tells_little_of_what_was_sent(datatype, shape, data):
    with pytest.raises(BadInput) as caught:
        tensors.from_json("x", datatype, tensors.check_shape("x", shape), Raw(json.dumps(data).encode()))
    assert "'x'" in str(caught.value) and len(str(caught.value)) < 1000


def test_many_texts_are_counted_before_they_are_read():
    text = b"[" + b'["", ""],' * 500_000 + b'[""]]'
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="over 16384 texts"):
            tensors.from_json("x", "BYTES", (1,), Raw(text))
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)  # lists of them take more
    finally:
        tracemalloc.stop()
    ends = ['",'] * 16_384  # each has what stands between two texts
    assert tensors.from_json("x", "BYTES", (16_384,), Raw(json.dumps(ends).encode())).tolist() == ends


@pytest.mark.parametrize("spaces", ["", " ", "\n\t"])
@pytest.mark.parametrize("shape", [(30_000,), (3, 10_000), (10_000, 3), (2, 5, 3_000)])
@pytest.mark.parametrize("datatype", ["FP32", "INT64"])
def test_much_json_is_read_in_pieces_as_it_is_whole(datatype, shape, spaces):
    array = (np.random.default_rng(1).standard_normal(shape) * 1e6).astype(tensors.DTYPES[datatype])
    text = json.dumps(array.tolist()).replace(",", f"{spaces},{spaces}").replace("[", f"[{spaces}")
    for data in (text.encode(), bytes(tensors.to_json(array))):
        again = tensors.from_json("x", datatype, shape, Raw(data))
        assert again.dtype == array.dtype and (again == array).all() and again.shape == array.shape


@pytest.mark.parametrize(
    ("datatype", "text", "kind", "says"),
    [
        ("FP32", "[" + "1," * 50_000 + "1]", BadInput, "FP32 [3]"),
        ("FP32", "[" + "[1]," * 30_000 + "[1,2]]", BadInput, "FP32 [3]"),
        ("FP32", "[" + "1," * 50_000 + "[1]]", BadInput, "FP32 [3]"),
        ("INT8", "[" + "1," * 50_000 + "300]", BadInput, "INT8 holds -128 to 127"),
        ("INT8", "[" + "1," * 50_000 + "1.5]", BadInput, "1.5"),
        ("FP32", "[" + "1," * 50_000 + '"a,b"]', BadInput, "FP32 [3]"),
        ("FP32", "[" + '"' + "a," * 50_000 + '"]', Malformed, "not JSON"),
        ("FP32", '"' + "x" * 100_000 + '"', BadInput, "expected a list"),
        ("BYTES", '{"a": [' + "1," * 50_000 + "1]}", BadInput, "expected a list"),
        ("FP32", "[" * 9 + "1," * 50_000 + "1" + "]" * 9, BadInput, "within 8 lists, expected at most 7"),
        ("FP32", "[[" + "1," * 50_000 + '1],"' + "x" * 100_000 + '"]', BadInput, "different depths"),
        ("FP32", "1", BadInput, "data is int"),
        ("BYTES", "[" + '"a",' * 50_000 + '"a"]', TooLarge, "texts"),
    ],
)
def test_what_is_wrong_in_much_json_is_named(datatype, text, kind, says):
    with pytest.raises(kind) as caught:
        tensors.from_json("x", datatype, (3,), Raw(text.encode()))
    assert says in str(caught.value) and "'x'" in str(caught.value)


@given(st.lists(st.text(st.sampled_from("a\0\n\xe4\u6771\U0001f642"), max_size=20), max_size=4))
def test_texts_come_back(texts):
    assert tensors.split_texts("t", tensors.to_raw(texts)) == texts


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "says"),
    [
        ("FP32", (2,), b"1234567", "7 bytes of data, FP32 [2] needs 8"),
        ("BOOL", (1,), b"\x02", "only the bytes 0 and 1"),
        ("FLOAT", (1,), b"1234", "'FLOAT' is not served"),
        ("BYTES", (1,), b"\x05\0\0\0ab", "claims 5 bytes, 2 are left"),
        ("BYTES", (1,), b"\x05\0", "left over"),
        ("BYTES", (1,), struct.pack("<I", 1) + b"\xff", "no UTF-8"),
        ("BYTES", (3,), tensors.to_raw(["a", "b"]), "with 2 elements"),
    ],
)
def test_wrong_bytes_are_named(datatype, shape, raw, says):
    with pytest.raises(BadInput) as caught:
        tensors.from_raw("x", datatype, shape, raw)
    assert says in str(caught.value) and "'x'" in str(caught.value)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("INT8", (1,), [200], "INT8 holds -128 to 127"),
        ("INT8", (1,), [1.5], "1.5"),
        ("INT8", (1,), [True], "True"),
        ("BOOL", (1,), [1], "expected BOOL"),
        ("FP32", (3,), [1, 2], "FP32 [3]"),
        ("FP32", (2,), [1, "x"], "FP32 [2]"),
        ("FP32", (2, 2), [[1, 2], [3]], "FP32 [2, 2]"),
        ("FP32", (3, 2), [[1, 2, 3], [4, 5, 6]], "lists of shape [2, 3]"),
        ("FP32", (30_000, 2), [[0.5] * 30_000] * 2, "lists of shape [2, 30000]"),
        ("BYTES", (2, 1), [["a", "b"]], "lists of shape [1, 2]"),
        ("BYTES", (1,), [1], "strings"),
        ("FP32", (1,), "1", "expected a list"),
        ("UINT8", (1,), [-1], "0 to 255"),
    ],
)
def test_wrong_json_is_named(datatype, shape, data, says):
    with pytest.raises(BadInput) as caught:
        tensors.from_json("x", datatype, shape, data)
    assert says in str(caught.value)


@pytest.mark.parametrize("shape", [None, "3", [1.5], [-1], [True], [1] * 9, {"a": 1}])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(BadInput):
        tensors.check_shape("x", shape)


def test_a_shape_beyond_memory_is_refused_before_anything_is_computed():
    with pytest.raises(TooLarge):
        tensors.check_shape("x", [2**30, 2**30, 2**30])
    assert tensors.check_shape("x", [0, 5]) == (0, 5)


def test_every_dtype_of_the_bus_has_a_name():
    from edgeserve.ipc.tensors import DTYPES

    assert {tensors.datatype_of(name) for name in DTYPES} == set(tensors.DTYPES)
    assert tensors.datatype_of("text") == "BYTES" and tensors.datatype_of("any") == ""
