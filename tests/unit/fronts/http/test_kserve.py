"""Parameters and JSON of a request, without a server."""

from __future__ import annotations

import asyncio
import tracemalloc

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Failed, Malformed, TooLarge
from edgeserve.fronts.http import kserve, kserve_json


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({}, {}),
        ({"slo_ms": 50}, {"slo_ms": 50}),
        ({"timeout_ms": 50.5}, {"slo_ms": 50.5}),
        ({"timeout": 2500}, {"slo_ms": 2.5}),
        ({"timeout": 0, "priority": 0, "sequence_id": 0}, {}),
        ({"priority": 1}, {"priority_class": "critical"}),
        ({"priority": 2}, {"priority_class": "normal"}),
        ({"priority": 9}, {"priority_class": "background"}),
        ({"priority": "2"}, {"priority_class": "normal"}),
        ({"class": "critical"}, {"priority_class": "critical"}),
        ({"sequence_id": 7, "sequence_start": False, "sequence_end": True}, {"stream": "7"}),
        ({"sequence_id": 7, "sequence_start": True, "sequence_end": False}, {"stream": "7", "reset": True}),
        ({"sequence_id": 7.0}, {"stream": "7"}),
        ({"stream": "a", "reset": "true"}, {"stream": "a", "reset": True}),
        ({"stream": "a", "reset": "0"}, {"stream": "a"}),
        ({"stream": "cam"}, {"stream": "cam"}),
        ({"value": "2.5"}, {"value": 2.5}),
        ({"hint.length": 7, "hint.a.steps": 2}, {"hints": {"length": 7, "a.steps": 2}}),
        (
            {"quality_min": 0.5, "on_late": "answer", "binary_data_output": True},
            {"quality_min": 0.5, "on_late": "answer"},
        ),
    ],
)
def test_parameters_are_options(parameters, options):
    assert kserve.options_of(parameters) == options


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"slo": 5}, "did you mean 'slo_ms'"),
        ({"slo_ms": "soon"}, "expected a number"),
        ({"slo_ms": True}, "expected a number"),
        ({"slo_ms": 5, "timeout": 5000}, "says again"),
        ({"class": 1}, "expected a string"),
        ({"value": [1]}, "number"),
        ({"stream": "a", "sequence_id": 3}, "says again"),
        ({"stream": "a", "reset": 2}, "expected true or false"),
        ({"sequence_start": "yes"}, "expected true or false"),
        ({"sequence_end": "yes"}, "expected true or false"),
        ({"binary_data_output": "yes"}, "expected true or false"),
        ({"priority": -1}, "whole number from 0"),
        ({"priority": 1.5}, "whole number from 0"),
        ({"sequence_id": True}, "a whole number or a string"),
        ({"sequence_id": 1.5}, "a whole number or a string"),
        ({"sequence_id": [1]}, "a whole number or a string"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, says):
    with pytest.raises(BadInput) as caught:
        kserve.options_of(parameters)
    assert says in str(caught.value)


def test_statistics_count_and_sum():
    app = {
        "outcomes": {"completed": 4, "rejected": 1, "dropped": 2, "cancelled": 0, "failed": 0},
        "breakdown_ms": {"queue": 1.0, "load": 2.0, "batch": 3.0, "execute": 4.0},
    }
    table = kserve.statistics_of("a", app)
    assert table["inference_count"] == 4
    assert table["inference_stats"]["success"] == {"count": 4, "ns": 40_000_000}
    assert table["inference_stats"]["queue"] == {"count": 4, "ns": 24_000_000}
    assert table["inference_stats"]["compute_infer"] == {"count": 4, "ns": 16_000_000}
    assert table["inference_stats"]["fail"] == {"count": 3, "ns": 0}


def test_types_in_tritons_words():
    assert [kserve.data_type(name) for name in ("FP32", "BYTES", "")] == ["TYPE_FP32", "TYPE_STRING", "TYPE_INVALID"]


# --- JSON and binary tensors -----------------------------------------------------------------------------------------


def test_a_body_is_json_and_what_follows_it():
    table, rest = kserve_json.split_body(b'{"inputs":[]}1234', "13")
    assert table == {"inputs": []} and bytes(rest) == b"1234"
    assert kserve_json.split_body(b'{"id": "x"}', "")[0] == {"id": "x"}


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"{}", "3"),
        (b"{}", "x"),
        (b"[]", ""),
        (b"", ""),
        (b"nonsense", ""),
        (b"[" * 100_000, ""),
        (b"\xff", ""),
        (b"{}", "-1"),
    ],
)
def test_a_body_that_is_none_is_malformed(body, length):
    with pytest.raises(Malformed):
        kserve_json.split_body(body, length)


@pytest.mark.parametrize(
    "text",
    [
        '{"id": [%s]}',
        '{"parameters": [%s], "inputs": []}',
        '{"inputs": [1, [%s]]}',
        '{"inputs": [{"name": "a", "shape": [%s], "data": []}]}',
    ],
)
def test_what_is_not_read_in_pieces_has_a_bound_that_counts_before_it_is_read(text):
    body = (text % ("1," * 600_000 + "1")).encode()
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="besides its inputs' data, at most 1048576"):
            kserve_json.read_body(body, "")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)  # a list of the numbers takes more
    finally:
        tracemalloc.stop()


def test_binary_inputs_get_their_parts_in_order():
    inputs = [
        {"name": "a", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
        {"name": "b", "shape": [1], "datatype": "INT8", "data": [5]},
        {"name": "c", "shape": [2], "datatype": "INT8", "parameters": {"binary_data_size": 2}},
    ]
    tensors = kserve_json.read_inputs(inputs, memoryview(b"123"))
    assert [bytes(tensor.raw) if tensor.raw is not None else None for tensor in tensors] == [b"1", None, b"23"]
    assert tensors[1].data == [5]


@pytest.mark.parametrize(
    ("inputs", "binary"),
    [
        ({}, b""),
        ([1], b""),
        ([{"shape": [1]}], b""),
        ([{"name": "a", "parameters": 5}], b""),
        ([], b"1"),
        ([{"name": "a", "parameters": {"binary_data_size": 2}}], b"1"),
        ([{"name": "a", "parameters": {"binary_data_size": -1}}], b""),
        ([{"name": "a", "parameters": {"binary_data_size": "1"}}], b"1"),
        ([{"name": "a", "data": [5], "parameters": {"binary_data_size": 1}}], b"1"),
    ],
)
def test_inputs_that_are_none_are_malformed(inputs, binary):
    with pytest.raises(Malformed):
        kserve_json.read_inputs(inputs, memoryview(binary))


def written(answer, header):
    wishes = [kserve.OutputWish(each["name"], each.get("parameters", {})) for each in header.get("outputs", ())]
    return kserve_json.written(answer, kserve_json.binary_wishes(answer, header.get("parameters", {}), wishes))


def response(**outputs):
    return kserve.InferResponse(
        "m",
        "",
        {},
        [kserve.OutputTensor(name, *kserve.described(name, value), value) for name, value in outputs.items()],
    )


def test_answers_are_json_or_binary_as_asked():
    answer = response(y=np.float32([1, 2]), t="hi")
    data, length = written(answer, {})
    assert length is None and b'"data":[1.0,2.0]' in data and b'"data":["hi"]' in data
    data, length = written(answer, {"parameters": {"binary_data_output": True}})
    assert data[length:] == np.float32([1, 2]).tobytes() + b"\2\0\0\0hi"
    data, length = written(
        answer,
        {
            "parameters": {"binary_data_output": True},
            "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "t"}],
        },
    )
    assert data[length:] == b"\2\0\0\0hi" and b'"data":[1.0,2.0]' in data
    assert written(answer, {"parameters": {"binary_data_output": "false"}})[1] is None
    assert written(answer, {"outputs": [{"name": "y", "parameters": {"binary_data": "0"}}]})[1] is None


def test_what_json_has_no_word_for_is_said():
    with pytest.raises(Failed, match="ask for binary data"):
        written(response(y=np.float32([np.nan])), {})
    assert written(response(y=np.float32([np.nan])), {"parameters": {"binary_data_output": True}})[1]


@pytest.mark.parametrize("wish", ["text", "txet"])
def test_a_wish_for_what_no_piece_and_no_answer_has_is_refused(wish):
    class Backend:
        async def apps(self):
            return {"m": {"pieces": True, "inputs": {}}}

        async def stream(self, app, inputs, options, origin):
            yield {"text": "word"}
            yield Answer({"text": "word"})

    async def asked():
        request = kserve.InferRequest("m", "", "", [], {}, [kserve.OutputWish(wish, {})])
        return [response async for response in kserve.OpenInference(Backend()).stream(request)]

    if wish == "text":
        assert [output.value for response in asyncio.run(asked()) for output in response.outputs] == ["word"]
    else:
        with pytest.raises(BadInput, match="no output 'txet'"):
            asyncio.run(asked())
