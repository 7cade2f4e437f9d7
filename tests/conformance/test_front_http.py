"""The fronts of one HTTP process, against the contract of fronts: KServe's protocol over HTTP and gRPC, OpenAI's,
Ollama's. Each is asked by its usual client."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from typing import Any, Callable

import numpy as np
import pytest

from edgeserve.client import AsyncClient
from edgeserve.front import Front
from edgeserve.testing.front_conformance import (
    ANSWERED,
    FAILED,
    KIND_OF_CODE,
    LATE,
    REFUSED,
    SERVER_GONE,
    TOO_LARGE,
    UNKNOWN,
    FrontConformance,
)

pytest.importorskip("starlette", reason="pip install -e '.[http]'")
pytest.importorskip("uvicorn", reason="pip install -e '.[http]'")

from edgeserve.fronts.http.front import HttpFront
from edgeserve.fronts.http.settings import HttpConfig

LARGE = 300_000
"""Bytes that are more than these fronts take."""

KIND_OF_STATUS = {404: UNKNOWN, 429: REFUSED, 503: REFUSED, 504: LATE, 500: FAILED, 502: SERVER_GONE, 413: TOO_LARGE}
KIND_OF_GRPC = {
    "NOT_FOUND": UNKNOWN,
    "UNAVAILABLE": REFUSED,
    "RESOURCE_EXHAUSTED": REFUSED,
    "DEADLINE_EXCEEDED": LATE,
    "INTERNAL": FAILED,
    "OUT_OF_RANGE": TOO_LARGE,
}


class OverHttp(FrontConformance):
    """Parts that the protocols of the front share."""

    def make(self, client: AsyncClient, app: str) -> Front:
        settings = {"body_bytes_max": LARGE // 2, "json_bytes_max": LARGE // 2, "drain_ns": 500_000_000}
        return HttpFront(client, HttpConfig(listen="127.0.0.1:0", timeout_ns=5 * 10**9, **settings))

    def body(self, app: str) -> Any:
        raise NotImplementedError

    path = ""

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        """Requests one behind the other on one connection, none of whose answers is read."""
        loop = asyncio.get_running_loop()
        sending = socket.socket()
        sending.setblocking(False)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = place.split("//")[1].rpartition(":")
        await loop.sock_connect(sending, (host, int(port)))
        body = json.dumps(self.body(app)).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        for _ in range(200):
            try:
                await asyncio.wait_for(loop.sock_sendall(sending, head + body), 0.1)
            except asyncio.TimeoutError:
                break
        return sending.close


@pytest.fixture(autouse=True)
def its_client(request):
    """Without the client's library a class is skipped as a whole."""
    pytest.importorskip(request.cls.LIBRARY, reason=f"{request.cls.LIBRARY} is not installed")


class TestKServeOverHttp(OverHttp):
    LIBRARY = "tritonclient.http.aio"
    INPUTS = {"x": {"dtype": "float32", "shape": [-1]}}
    OUTPUTS = {"y": np.zeros(4, np.float32)}
    path = "/v2/models/answers/infer"

    def body(self, app: str) -> Any:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}

    async def ask(self, place: str, app: str, count: int = 4) -> str:
        library = importlib.import_module(self.LIBRARY)
        async with library.InferenceServerClient(place.split("//")[1]) as client:
            tensor = library.InferInput("x", [count], "FP32")
            tensor.set_data_from_numpy(np.zeros(count, np.float32))
            try:
                await client.infer(app, [tensor])
            except Exception as error:  # noqa: BLE001 the library's own, of another class for each of its transports
                return KIND_OF_STATUS.get(int(getattr(error, "status", lambda: "")() or 0), str(error))
            return ANSWERED

    async def ask_too_much(self, place: str, app: str) -> str:
        return await self.ask(place, app, LARGE)


class TestKServeOverGrpc(FrontConformance):
    LIBRARY = "tritonclient.grpc.aio"
    INPUTS = {"x": {"dtype": "float32", "shape": [-1]}}
    OUTPUTS = {"y": np.zeros(4, np.float32)}
    SAYS = {SERVER_GONE: (REFUSED, "gRPC has UNAVAILABLE for both")}

    def make(self, client: AsyncClient, app: str) -> Front:
        pytest.importorskip("grpc", reason="pip install -e '.[grpc]'")
        settings = {"grpc_message_max": LARGE, "drain_ns": 500_000_000, "timeout_ns": 5 * 10**9}
        return HttpFront(client, HttpConfig(listen="127.0.0.1:0", grpc="127.0.0.1:0", **settings))

    def place_of(self, places: Any) -> str:
        return str(places[1].split("//")[1])

    async def ask(self, place: str, app: str, count: int = 4) -> str:
        library = importlib.import_module(self.LIBRARY)
        async with library.InferenceServerClient(place) as client:
            tensor = library.InferInput("x", [count], "FP32")
            tensor.set_data_from_numpy(np.zeros(count, np.float32))
            try:
                await client.infer(app, [tensor])
            except Exception as error:  # noqa: BLE001 the library's own
                status = str(getattr(error, "status", lambda: "")()).rpartition(".")[2]
                return KIND_OF_GRPC.get(status, f"{status}: {error}")
            return ANSWERED

    async def ask_too_much(self, place: str, app: str) -> str:
        found = await self.ask(place, app, LARGE)
        return TOO_LARGE if found == REFUSED else found  # gRPC's own word for a message that it does not take

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        """A stream whose requests are written and whose answers are not read."""
        import grpc

        from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE

        message = KINDS["ModelInferRequest"](model_name=app)
        message.inputs.add(name="x", datatype="FP32", shape=[4])
        message.raw_input_contents.append(b"\0" * 16)
        channel = grpc.aio.insecure_channel(place)
        call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")()
        for _ in range(200):
            try:
                await asyncio.wait_for(call.write(message.SerializeToString()), 0.1)
            except asyncio.TimeoutError:
                break
        return call.cancel


class TestOpenAI(OverHttp):
    LIBRARY = "openai"
    INPUTS = {"messages": {"dtype": "text"}}
    OUTPUTS = {
        "text": "yes",
        "tokens": np.int32(1),
        "prompt_tokens": np.int32(1),
        "finish_reason": "stop",
        "tool_calls": "[]",
        "logprobs": "[]",
    }
    path = "/v1/chat/completions"

    def body(self, app: str) -> Any:
        return {"model": app, "messages": [{"role": "user", "content": "hi"}]}

    async def ask(self, place: str, app: str, said: str = "hi") -> str:
        import openai

        plain = openai.DefaultAsyncHttpxClient(verify=False)  # certificates take longer to read than a request
        options = {"api_key": "none", "base_url": f"{place}/v1", "max_retries": 0, "http_client": plain}
        async with openai.AsyncOpenAI(**options) as client:
            try:
                messages = [{"role": "user", "content": said}]
                answer = await client.chat.completions.create(model=app, messages=messages)
            except openai.APIStatusError as error:
                return KIND_OF_CODE.get(str(error.code), KIND_OF_STATUS.get(error.status_code, str(error)))
            return ANSWERED if answer.choices[0].message.content == "yes" else str(answer)

    async def ask_too_much(self, place: str, app: str) -> str:
        return await self.ask(place, app, "x" * LARGE)


class TestOllama(OverHttp):
    LIBRARY = "ollama"
    INPUTS = TestOpenAI.INPUTS
    OUTPUTS = TestOpenAI.OUTPUTS
    path = "/api/chat"

    def body(self, app: str) -> Any:
        return {"model": app, "messages": [{"role": "user", "content": "hi"}], "stream": False}

    async def ask(self, place: str, app: str, said: str = "hi") -> str:
        import ollama

        client = ollama.AsyncClient(place, verify=False)  # as above
        try:
            answer = await client.chat(app, [{"role": "user", "content": said}])
        except ollama.ResponseError as error:
            return KIND_OF_STATUS.get(error.status_code, str(error))
        finally:
            await client._client.aclose()
        return ANSWERED if answer["message"]["content"] == "yes" else str(answer)

    async def ask_too_much(self, place: str, app: str) -> str:
        return await self.ask(place, app, "x" * LARGE)
