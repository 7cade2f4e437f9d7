"""One ``ModelStreamInfer`` call: what it holds while an answer comes in pieces."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
pytest.importorskip("google.protobuf", reason="pip install -e '.[grpc]'")

import grpc

from edgeserve.errors import BadInput, TooLarge
from edgeserve.front import Held, Places
from edgeserve.fronts.http.admission import AtOnce
from edgeserve.fronts.http.grpc_messages import KINDS
from edgeserve.fronts.http.grpc_service import InferStream, read_infer
from edgeserve.fronts.http.kserve import FINAL, InferResponse
from edgeserve.texts import ELEMENTS_MAX

LARGE = 2 * 1024**2


def message(count=LARGE):
    made = KINDS["ModelInferRequest"](model_name="m", id="1")
    made.inputs.add(name="x", datatype="UINT8", shape=[count])
    made.raw_input_contents.append(bytes(count))
    return made.SerializeToString()


def test_a_request_whose_answer_comes_in_pieces_leaves_its_room_with_the_first():
    """The next large one of the same client may go to the server while this one's pieces still come."""

    async def run():
        asked, ending, both, written = [], asyncio.Event(), asyncio.Event(), []

        async def infer(request, origin):
            asked.append(request)
            yield InferResponse("m", "1", {FINAL: False}, [])
            await ending.wait()
            yield InferResponse("m", "1", {FINAL: True}, [])

        coming = asyncio.Queue()
        for data in (message(), message(), grpc.aio.EOF):
            coming.put_nowait(data)

        async def write(packed):
            written.append(packed)
            if len(written) == 2:
                both.set()

        places = Places(64 * LARGE, "bytes", lasting=True)
        held = Held(places, "a")
        stream = InferStream(infer, "a", held, 16 * LARGE, AtOnce(LARGE))  # room for one large request at a time
        running = asyncio.ensure_future(stream.run(coming.get, write))
        await asyncio.wait_for(both.wait(), 5)
        assert len(asked) == 2 and held.count < LARGE
        ending.set()
        await asyncio.wait_for(running, 5)
        assert len(written) == 4 and held.count == 0

    asyncio.run(run())


def test_a_stream_that_is_open_when_the_front_stops_ends_with_its_last_answer():
    async def run(asked):
        stopped, ending, written = asyncio.Event(), asyncio.Event(), []

        async def infer(request, origin):
            await ending.wait()
            yield InferResponse("m", "1", {FINAL: False}, [])
            yield InferResponse("m", "1", {FINAL: True}, [])

        async def write(packed):
            written.append(packed)

        coming = asyncio.Queue()
        for data in [message(8)] * asked:
            coming.put_nowait(data)
        held = Held(Places(LARGE, "bytes", lasting=True), "a")
        stream = InferStream(infer, "a", held, LARGE, AtOnce(LARGE), stopped)
        running = asyncio.ensure_future(stream.run(coming.get, write))
        while not coming.empty():
            await asyncio.sleep(0)
        stopped.set()
        done, _ = await asyncio.wait([running], timeout=0.05)
        assert bool(done) is not bool(asked)
        coming.put_nowait(message(8))  # what comes after the stop is not read
        ending.set()
        assert not await asyncio.wait_for(running, 5), "its client could have sent more"
        assert len(written) == 2 * asked and held.count == 0

    for asked in (0, 1, 3):
        asyncio.run(run(asked))


@pytest.mark.parametrize(
    ("raw", "contents", "says"),
    [
        (b"1234", {"fp32_contents": [5.0]}, "both"),
        (b"", {"fp64_contents": [5.0]}, "fp32_contents"),
        (b"", {"fp32_contents": [5.0], "int_contents": [6]}, "fp32_contents"),
    ],
)
def test_a_tensor_is_told_once_and_in_the_field_of_its_type(raw, contents, says):
    made = KINDS["ModelInferRequest"](model_name="m")
    made.inputs.add(name="x", datatype="FP32", shape=[1], contents=contents)
    if raw:
        made.raw_input_contents.append(raw)
    with pytest.raises(BadInput, match=says):
        read_infer(made.SerializeToString())


def test_texts_in_a_message_are_counted_before_they_are_made():
    made = KINDS["ModelInferRequest"](model_name="m")
    made.inputs.add(name="x", datatype="BYTES", shape=[ELEMENTS_MAX + 1])
    made.inputs[0].contents.bytes_contents.extend([b"\xff"] * (ELEMENTS_MAX + 1))  # no text: else it would be told so
    with pytest.raises(TooLarge, match=f"{ELEMENTS_MAX + 1} texts, at most {ELEMENTS_MAX}"):
        read_infer(made.SerializeToString())
    made.inputs[0].contents.bytes_contents.pop()
    with pytest.raises(BadInput, match="no UTF-8"):
        read_infer(made.SerializeToString())
