"""KServe's clients send a batch axis of 1 out of habit: it is taken off, and the answer has it too."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator

import numpy as np
import pytest
from http_front import FrontThread
from serving import function, served

from edgeserve.fronts.http.settings import HttpConfig

try:
    import grpc
except ImportError:
    grpc = None  # type: ignore[assignment]

TEXT = {"dtype": "text"}
X = {"dtype": "float32", "shape": [2, -1]}
APPS = {
    "x": {"x": X},
    "length": {"x": X, "length": {"dtype": "int64", "shape": []}},
    "said": {"x": X, "said": TEXT},
    "whole": {"x": {"dtype": "float32", "shape": [1, 2, -1]}},
    "any": {"x": {"dtype": "any"}},
}


@pytest.fixture(scope="module")
def front() -> Iterator[Any]:
    apps = {name: {"model": "echo", "slo": "20s", "inputs": inputs} for name, inputs in APPS.items()}
    tables = {"model": {"echo": function("everything")}, "app": apps}
    with served(tables) as (runtime, _):
        settings = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0" if grpc else "")
        with FrontThread(runtime.endpoints[0], settings) as thread:
            yield thread


def tensor(name: str, value: Any, shape: Any = None) -> Dict[str, Any]:
    array = np.asarray(value)
    kind = {"f": "FP32", "i": "INT64", "U": "BYTES"}[array.dtype.kind]
    return {
        "name": name,
        "datatype": kind,
        "shape": list(array.shape if shape is None else shape),
        "data": array.ravel().tolist(),
    }


def by_http(front: Any, app: str, tensors: Any) -> Any:
    status, told = front.ask("POST", f"/v2/models/{app}/infer", {"inputs": tensors})
    if status != 200:
        return told["error"]
    return {output["name"]: (output["shape"], output["data"]) for output in told["outputs"]}


def by_grpc(front: Any, app: str, tensors: Any) -> Any:
    if grpc is None:
        pytest.skip("grpcio or protobuf is not installed: there is no gRPC front")
    messages = pytest.importorskip("tritonclient.grpc.service_pb2", reason="tritonclient[grpc] is not installed")
    stubs = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")
    asked = messages.ModelInferRequest(model_name=app)
    for one in tensors:
        into = asked.inputs.add(name=one["name"], datatype=one["datatype"], shape=one["shape"])
        field = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}[one["datatype"]]
        data = [text.encode() for text in one["data"]] if one["datatype"] == "BYTES" else one["data"]
        getattr(into.contents, field).extend(data)
    with grpc.insecure_channel(front.grpc) as channel:
        try:
            answer = stubs.GRPCInferenceServiceStub(channel).ModelInfer(asked, timeout=20)
        except grpc.RpcError as error:
            return error.details()
    kinds = {"FP32": np.float32, "INT64": np.int64}
    return {
        output.name: (
            list(output.shape),
            [raw[4:].decode()] if output.datatype == "BYTES" else np.frombuffer(raw, kinds[output.datatype]).tolist(),
        )
        for output, raw in zip(answer.outputs, answer.raw_output_contents)
    }


ASKS = pytest.mark.parametrize("ask", [by_http, by_grpc])
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@ASKS
def test_with_a_batch_axis_of_one_the_answer_has_it_too(ask: Any, front: Any) -> None:
    flat = ROWS.ravel().tolist()
    assert ask(front, "x", [tensor("x", ROWS)]) == {"x": ([2, 3], flat)}
    assert ask(front, "x", [tensor("x", ROWS[None])]) == {"x": ([1, 2, 3], flat)}
    assert ask(front, "length", [tensor("x", ROWS[None]), tensor("length", [7])]) == {
        "x": ([1, 2, 3], flat),
        "length": ([1], [7]),
    }
    assert ask(front, "said", [tensor("x", ROWS[None]), tensor("said", "hello", [1, 1])]) == {
        "x": ([1, 2, 3], flat),
        "said": ([1, 1], ["hello"]),
    }
    assert ask(front, "whole", [tensor("x", ROWS[None])]) == {"x": ([1, 2, 3], flat)}, "its own axis"
    assert ask(front, "any", [tensor("x", ROWS[None])]) == {"x": ([1, 2, 3], flat)}, "nothing is declared"


@ASKS
def test_a_number_may_have_an_axis_without_a_batch(ask: Any, front: Any) -> None:
    """KServe's clients know no array without an axis."""
    answer = ask(front, "length", [tensor("x", ROWS), tensor("length", [7])])
    assert answer == {"x": ([2, 3], ROWS.ravel().tolist()), "length": ([], [7])}


@ASKS
@pytest.mark.parametrize("size", [0, 2, 4])
def test_a_larger_batch_is_refused_with_what_to_do(ask: Any, front: Any, size: int) -> None:
    said = ask(front, "x", [tensor("x", np.zeros((size, 2, 3), np.float32))])
    assert f"a batch of {size}; a request is one item, of shape [2, -1]" in said and "send" in said


@ASKS
@pytest.mark.parametrize(
    "value", [np.zeros((1, 1, 2, 3), np.float32), np.zeros(3, np.float32), np.zeros((1, 3, 3), np.float32)]
)
def test_any_other_shape_is_refused_as_before(ask: Any, front: Any, value: Any) -> None:
    assert "expected" in ask(front, "x", [tensor("x", value)])


def test_large_json_is_treated_alike(front: Any) -> None:
    large = np.zeros((1, 2, 60_000), np.float32)
    status, data, _ = front.ask_raw("POST", "/v2/models/x/infer", json.dumps({"inputs": [tensor("x", large)]}).encode())
    assert status == 200 and json.loads(data)["outputs"][0]["shape"] == [1, 2, 60_000]


def test_binary_tensors_are_treated_alike(front: Any) -> None:
    about = {"name": "x", "datatype": "FP32", "shape": [1, 2, 3], "parameters": {"binary_data_size": 24}}
    head = json.dumps({"inputs": [about]}).encode()
    status, data, _ = front.ask_raw(
        "POST", "/v2/models/x/infer", head + ROWS.tobytes(), {"inference-header-content-length": str(len(head))}
    )
    assert status == 200 and json.loads(data)["outputs"][0]["shape"] == [1, 2, 3]
