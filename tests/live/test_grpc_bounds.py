"""The memory that gRPC calls can make the front keep: real connections to the service alone, whose requests a double
answers."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from edgeserve.errors import BadInput
from edgeserve.front.origins import Tokens
from edgeserve.fronts.http.kserve import InferResponse, OutputTensor
from edgeserve.fronts.http.settings import HttpConfig

pytest.importorskip("google.protobuf", reason="protobuf is not installed: there is no gRPC front")
pytest.importorskip("grpc", reason="grpcio is not installed: there is no gRPC front")

import grpc

from edgeserve.fronts.http.admission import HttpAdmission
from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE
from edgeserve.fronts.http.grpc_service import start_grpc

KIB, MIB = 1024, 1024**2
KITCHEN, HALL = "0123456789-kitchen", "0123456789-hall"
WAIT_S = 20.0
STUCK_S = 1.0
"""A write that takes longer than this waits for the other side."""
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.bdp_probe", 0),
]  # the client's window stays at 64 KiB


class Service:
    """Answers with as many bytes as the request's parameter ``size`` says, or else with the input."""

    regions = None

    def __init__(self):
        self.asked = 0

    async def infer(self, request, gone, origin):
        self.asked += 1
        size = request.parameters.get("size", len(request.inputs[0].raw))
        if size < 0:
            raise BadInput("a negative size")
        return InferResponse(
            request.model, request.id, {}, [OutputTensor("y", "UINT8", [size], np.zeros(size, np.uint8))]
        )

    async def stream(self, request, origin):
        response = await self.infer(request, None, origin)
        response.parameters["triton_final_response"] = True
        yield response

    async def server(self):
        return {"name": "double", "version": "1", "extensions": []}


def request_of(size, name="", answer=None):
    message = KINDS["ModelInferRequest"](model_name="m", id=name)
    message.inputs.add(name="x", datatype="UINT8", shape=[size])
    message.raw_input_contents.append(bytes(size))
    if answer is not None:
        message.parameters["size"].int64_param = answer
    return message.SerializeToString()


def asking(question, tokens=(), **settings):
    """Run ``question(service, channel)`` beside a server."""

    async def run():
        service = Service()
        config = HttpConfig(grpc="127.0.0.1:0", **settings)
        held = Tokens({token: token[11:] for token in tokens})
        server, port = await start_grpc(service, config, held, HttpAdmission(config))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
                await asyncio.wait_for(question(service, channel), 60)
        finally:
            await server.stop(0)

    asyncio.run(run())


def infer(channel, data, token=""):
    """A call with one request."""
    return channel.unary_unary(f"/{SERVICE}/ModelInfer")(data, timeout=WAIT_S, metadata=shown(token))


def started(channel, token="", verb="ModelInfer"):
    """A call whose message does not come."""
    return channel.stream_unary(f"/{SERVICE}/{verb}")(timeout=WAIT_S, metadata=shown(token))


def stream(channel, token=""):
    return channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(metadata=shown(token))


def shown(token):
    return [("authorization", "Bearer " + token)] if token else []


async def refused(call, status):
    with pytest.raises(grpc.RpcError) as caught:
        await call
    assert caught.value.code() == getattr(grpc.StatusCode, status), caught.value.details()
    return caught.value


async def rest_of(call):
    """The answers until the stream ends."""
    answers = []
    while True:
        data = await call.read()
        if data is grpc.aio.EOF:
            return answers
        answers.append(KINDS["ModelStreamInferResponse"].FromString(data))


async def write_until_stuck(call, data, count):
    """Write until a write waits for the server: the one that waits, and how many were written, ``count`` at most."""
    for index in range(count):
        writing = asyncio.ensure_future(call.write(data))
        done, _ = await asyncio.wait([writing], timeout=STUCK_S)
        if not done:
            return writing, index
    return writing, count


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ModelInfer", "ServerLive"])
def test_a_wrong_token_is_refused_before_the_message_comes(verb):
    async def question(service, channel):
        for token in ("", "0123456789-nobody"):
            error = await refused(started(channel, token, verb), "UNAUTHENTICATED")
            assert error.trailing_metadata()["edgeserve-code"] == "unauthorized"
        assert len(await infer(channel, request_of(10), KITCHEN)) > 10

    asking(question, [KITCHEN])


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "answer", "asked_max"),
    [
        (100 * KIB, None, 20),  # 1 MiB of requests and answers, and what is on its way
        (10, 100 * KIB, 300),  # 256 requests that were asked before the first answer came
        (10, 1000, 400),
    ],
)  # 256 of them, and the answers within the client's window
def test_a_stream_without_a_reader_is_not_read(size, answer, asked_max):
    async def question(service, channel):
        call = stream(channel)
        writing, count = await write_until_stuck(call, request_of(size, "7", answer), 4000)
        assert count < 4000 and service.asked <= asked_max
        reading = asyncio.ensure_future(rest_of(call))  # then it is read again
        await writing
        await call.done_writing()
        answers = await reading
        assert len(answers) == count + 1 and {answer.infer_response.id for answer in answers} == {"7"}
        assert {answer.error_message for answer in answers} == {""}

    asking(question, grpc_message_max=MIB)


def test_what_has_no_room_is_refused_and_all_room_comes_back():
    async def question(service, channel):
        call = stream(channel)
        for index in range(40):
            await call.write(request_of(10, str(index), 100 * KIB))
        await call.done_writing()
        while service.asked < 40:
            await asyncio.sleep(0.01)
        error = await refused(infer(channel, request_of(500 * KIB)), "RESOURCE_EXHAUSTED")
        answers = await rest_of(call)
        assert sorted(int(answer.infer_response.id) for answer in answers) == list(range(40))
        errors = [answer.error_message for answer in answers if answer.error_message]
        assert 20 < len(errors) < 40
        assert all("raise bodies_max" in text for text in (error.details(), *errors))
        for size in (700 * KIB, -1, 700 * KIB):
            asked = infer(channel, request_of(600 * KIB, "", size))
            assert await (asked if size > 0 else refused(asked, "INVALID_ARGUMENT"))

    asking(question, grpc_message_max=MIB, bodies_bytes_max=MIB)


def test_calls_that_are_given_up_amid_requests_and_answers_give_all_room_back():
    async def question(service, channel):
        for index in range(24):
            call = stream(channel)
            for _ in range(1 + index % 4):
                await call.write(request_of(10 * KIB, answer=100 * KIB))
            asked = infer(channel, request_of(50 * KIB, answer=10))
            await asyncio.sleep(0.002 * (index % 5))
            call.cancel()
            asked.cancel()
        while True:  # one client has three quarters at most
            try:
                assert await infer(channel, request_of(700 * KIB))
                return
            except grpc.RpcError:  # not yet
                await asyncio.sleep(0.05)

    asking(question, grpc_message_max=MIB, bodies_bytes_max=MIB)


def test_one_client_does_not_have_all_streams_and_their_places_come_back():
    async def served(channel, token):
        call = stream(channel, token)
        try:
            await call.write(request_of(10))
            return call if await call.read() is not grpc.aio.EOF else None
        except (grpc.RpcError, asyncio.InvalidStateError):
            return None

    async def question(service, channel):
        calls = [await served(channel, KITCHEN) for _ in range(3)]
        error = await refused(stream(channel, KITCHEN).read(), "RESOURCE_EXHAUSTED")
        assert error.trailing_metadata()["edgeserve-reason"] == "too many in flight"
        assert "raise grpc_receive_max" in error.details()
        assert await served(channel, HALL)
        for call in calls:
            call.cancel()
        while not await served(channel, KITCHEN):
            await asyncio.sleep(0.01)

    asking(question, [KITCHEN, HALL], grpc_receive_max=4)


def test_an_idle_stream_does_not_hold_up_the_stop_of_the_front():
    from http_front import FrontThread

    config = HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0", drain_ns=25 * 10**9)
    with FrontThread("ipc:///nowhere/bus", config) as front:
        channel = grpc.insecure_channel(front.grpc)
        idle = threading.Event()
        call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter(idle.wait, True))
        channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=WAIT_S)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 12, "the drain is for requests"
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE and "connect again" in caught.value.details()
    idle.set()
    channel.close()


# --- calls with one request -------------------------------------------------------------------------------------------


def test_messages_that_do_not_come_hold_up_others_of_their_client_for_a_while():
    async def question(service, channel):
        waiting = [started(channel, KITCHEN) for _ in range(4)]
        assert await infer(channel, request_of(10), HALL)
        assert await channel.unary_unary(f"/{SERVICE}/ServerMetadata")(b"", metadata=shown(KITCHEN), timeout=WAIT_S)
        assert not any(call.done() for call in waiting)
        assert await infer(channel, request_of(10), KITCHEN)
        for call in waiting:
            assert "(body_timeout)" in (await refused(call, "INVALID_ARGUMENT")).details()

    asking(question, [KITCHEN, HALL], grpc_receive_max=4, body_timeout_ns=10**9)


@pytest.mark.parametrize(
    ("data", "status"), [(b"\xff\xff", "INVALID_ARGUMENT"), (bytes(2 * MIB), "RESOURCE_EXHAUSTED")]
)
def test_messages_that_cannot_be_read(data, status):
    async def question(service, channel):
        await refused(infer(channel, data), status)
        call = stream(channel)
        await call.write(data)
        await call.done_writing()
        if status == "RESOURCE_EXHAUSTED":
            await refused(rest_of(call), status)
        else:
            assert "no ModelInferRequest" in (await rest_of(call))[0].error_message

    asking(question, grpc_message_max=MIB)


def test_a_call_without_a_message_is_told_so():
    async def question(service, channel):
        call = started(channel)
        await call.done_writing()
        assert "without a message" in (await refused(call, "INVALID_ARGUMENT")).details()

    asking(question)
