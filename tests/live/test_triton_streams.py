"""Triton's words for answers in pieces, by Triton's own clients: decoupled models, the last response, readiness."""

from __future__ import annotations

import asyncio
import queue

import numpy as np
import pytest
from serving import function, served

from edgeserve.errors import Rejected
from edgeserve.fronts.http.settings import HttpConfig

pytest.importorskip("google.protobuf", reason="protobuf is not installed: there is no gRPC front")
pytest.importorskip("grpc", reason="grpcio is not installed: there is no gRPC front")
pytest.importorskip("tritonclient", reason="tritonclient is not installed")

import lm_models
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from http_front import FrontThread

from edgeserve.fronts.http.grpc_service import refusal_of

STEPS = 6


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("lm"))
    tables = {
        "model": {
            "tiny": {
                "engine": "lm",
                "file": f"{folder}/{lm_models.tiny(folder)}",
                "batch": [1, 2],
                "slots": 2,
                "options": {"max_tokens": STEPS},
            },
            "shout": function("shout", "example_text", "http_functions"),
        },
        "app": {
            "tiny": {"model": "tiny", "slo": "60s"},
            "shout": {"model": "shout", "slo": "20s", "inputs": {"text": {"dtype": "text"}}},
        },
    }
    settings = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0")
    with served(tables) as (runtime, _), FrontThread(runtime.endpoints[0], settings) as thread:
        yield thread


def text_input(library, name, text):
    wish = library.InferInput(name, [1], "BYTES")
    wish.set_data_from_numpy(np.array([text], object))
    return wish


def streamed(front, model, inputs, count_of, **options):
    """The responses of one request on a stream, up to the last; ``count_of`` says from each whether it is."""
    came = queue.Queue()
    with triton_grpc.InferenceServerClient(front.grpc) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        client.async_stream_infer(model, inputs, request_id="7", **options)
        found = []
        while True:
            result, error = came.get(timeout=30)
            if error is not None:
                raise error
            found.append(result)
            if count_of(result):
                client.stop_stream()
                assert came.empty()
                return found


def is_final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def text_of(results):
    texts = [result.as_numpy("text") for result in results]
    return "".join(text[0].decode() for text in texts if text is not None)


@pytest.mark.parametrize("wants_empty", [False, True])
def test_pieces_are_responses_of_a_decoupled_model(front, wants_empty):
    found = streamed(
        front, "tiny", [text_input(triton_grpc, "prompt", "Once")], is_final, enable_empty_final_response=wants_empty
    )
    with triton_grpc.InferenceServerClient(front.grpc) as client:
        whole = client.infer("tiny", [text_input(triton_grpc, "prompt", "Once")]).as_numpy("text")[0].decode()
    assert len(found) > 2 and text_of(found) == whole
    assert [is_final(each) for each in found] == [False] * (len(found) - 1) + [True]
    assert {each.get_response().id for each in found} == {"7"}
    assert found[-1].as_numpy("finish_reason")[0] == b"length"


def test_only_the_outputs_that_were_asked_for_are_sent(front):
    asked = [triton_grpc.InferRequestedOutput("text")]
    inputs = [text_input(triton_grpc, "prompt", "Once")]
    found = streamed(front, "tiny", inputs, is_final, outputs=asked, enable_empty_final_response=True)
    assert {output.name for each in found for output in each.get_response().outputs} == {"text"}


def test_an_answer_in_one_piece_is_the_last_response(front):
    for wants_empty in (False, True):
        inputs = [text_input(triton_grpc, "text", "hey")]
        (only,) = streamed(front, "shout", inputs, is_final, enable_empty_final_response=wants_empty)
        assert only.as_numpy("loud").tolist() == [b"HEY"]


def test_many_requests_share_a_stream(front):
    came, ended, texts = queue.Queue(), set(), {}
    with triton_grpc.InferenceServerClient(front.grpc) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        for index in range(8):
            inputs = [text_input(triton_grpc, "prompt", "Once")]
            client.async_stream_infer("tiny", inputs, request_id=str(index), enable_empty_final_response=True)
        while len(ended) < 8:
            result, error = came.get(timeout=30)
            assert error is None, error
            name = result.get_response().id
            assert name not in ended
            texts[name] = texts.get(name, "") + text_of([result])
            if is_final(result):
                ended.add(name)
        client.stop_stream()
    assert len(set(texts.values())) == 1


def test_the_asyncio_client_sees_the_same(front):
    import tritonclient.grpc.aio as aio

    async def asked():
        async with aio.InferenceServerClient(front.grpc) as client:

            async def requests():
                yield {
                    "model_name": "tiny",
                    "inputs": [text_input(aio, "prompt", "Once")],
                    "enable_empty_final_response": True,
                }

            found = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                found.append(result)
            return found

    found = asyncio.run(asyncio.wait_for(asked(), 30))
    assert len(found) > 2 and is_final(found[-1]) and not is_final(found[-2])


@pytest.mark.parametrize("library", [triton_grpc, triton_http])
def test_the_configuration_says_what_is_decoupled(front, library):
    with library.InferenceServerClient(front.grpc if library is triton_grpc else front.http) as client:
        for name, decoupled in (("tiny", True), ("shout", False)):
            told = client.get_model_config(name, **({"as_json": True} if library is triton_grpc else {}))
            told = told.get("config", told)
            assert told.get("model_transaction_policy", {}).get("decoupled", False) is decoupled
            assert client.is_model_ready(name)
        assert client.is_model_ready("nobody") is False
        assert client.is_model_ready("shout", "7") is False


def test_the_word_is_accepted_where_there_is_one_answer(front):
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hey"]}]}
    for value, status in ((True, 200), (False, 200), ("yes", 400)):
        parameters = {"triton_enable_empty_final_response": value}
        assert front.ask("POST", "/v2/models/shout/infer", {**body, "parameters": parameters})[0] == status


def test_a_refusal_names_any_lane_in_plain_metadata():
    error = Rejected("no", "expected_late")
    error.lane, error.expected_ms = "größe\n1", 5.0
    assert dict(refusal_of(error)[2])["edgeserve-lane"].isascii()
