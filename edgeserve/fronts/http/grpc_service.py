"""The Open Inference Protocol v2 over gRPC: ``inference.GRPCInferenceService`` on an event loop.

It turns messages into what ``kserve`` asks and tells, and bounds what calls make the front keep: a call shows its token
before its message is read, and bytes count until the answer is written.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Mapping, Optional, Sequence, Set, Tuple
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Malformed, Rejected
from edgeserve.front import Held, Places, Tokens, one_line, origin_of, user_of_address
from edgeserve.fronts.http.admission import AtOnce, BodyTurns, HttpAdmission
from edgeserve.fronts.http.backend import note_parent
from edgeserve.fronts.http.failures import GRPC_OF_HTTP, details_of, message_of, note_fault, status_of
from edgeserve.fronts.http.grpc_messages import KINDS, SERVICE
from edgeserve.fronts.http.kserve import (
    FINAL,
    VERSION,
    InferRequest,
    InferResponse,
    InputTensor,
    OpenInference,
    OutputWish,
)
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.fronts.http.tensors import to_raw, too_many_texts
from edgeserve.texts import ELEMENTS_MAX
from edgeserve.units import ns_to_s
from edgeserve.waits import await_within

log = logging.getLogger("edgeserve")

METADATA = "edgeserve-"
"""The prefix of a failed call's trailing metadata for programs: ``edgeserve-code``, ``edgeserve-reason``, ..."""

ON_ONE_STREAM_MAX = 256
"""Requests of one ``ModelStreamInfer`` call whose answers are not written; more are read when some are."""

CONTENTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{kind: f"{kind.lower()}_contents" for kind in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")},
}
"""Datatype -> the field of ``InferTensorContents`` that has its numbers."""

QUESTIONS = {
    "ServerLive": ("live", "live"),
    "ServerReady": ("ready", "ready"),
    "ModelReady": ("model_ready", "ready"),
    "ServerMetadata": ("server", ""),
    "ModelMetadata": ("model", ""),
    "ModelConfig": ("model_config", "config"),
    "ModelStatistics": ("statistics", "model_stats"),
    "RepositoryIndex": ("index", "models"),
}
"""Verbs that do not infer -> the method of :class:`OpenInference`, and the field of the response that it answers, or
``""`` where it answers all of them."""

Verb = Callable[[Any, str], Awaitable[Any]]
"""A handler: the request and its owner -> the answer's message."""

Answers = Callable[[InferRequest, str], AsyncIterator[InferResponse]]
"""The same -> its responses on a stream; the last one alone is :data:`~edgeserve.fronts.http.kserve.FINAL`."""


async def answer_to(service: OpenInference, verb: str, message: Any) -> Any:
    """The response to a question."""
    method, field = QUESTIONS[verb]
    asked = {key: getattr(message, key) for key in ("name", "version", "ready") if hasattr(message, key)}
    found = await getattr(service, method)(**asked)
    return KINDS[verb + "Response"](**({field: found} if field else found))


# --- messages ---------------------------------------------------------------------------------------------------------


def read_parameters(parameters: Mapping[str, Any]) -> Dict[str, Any]:
    """A message's parameters as plain values."""
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            values[name] = getattr(parameter, choice)
    return values


def parsed(kind: str, data: bytes) -> Any:
    """A message of a kind of :data:`KINDS`. Raises :class:`Malformed`."""
    try:
        return KINDS[kind].FromString(data)
    except DecodeError as error:
        raise Malformed(f"the message of {len(data)} bytes is no {kind}: {error}") from None


def read_infer(data: bytes) -> InferRequest:
    """The request in the bytes of a ``ModelInferRequest``."""
    return read_request(parsed("ModelInferRequest", data))


def read_request(message: Any) -> InferRequest:
    """A ``ModelInferRequest``. Raises :class:`BadInput` where there are more bytes than inputs."""
    raw = list(message.raw_input_contents)
    if len(raw) > len(message.inputs):
        raise BadInput(f"raw_input_contents has {len(raw)} entries, and there are {len(message.inputs)} inputs")
    for tensor in message.inputs[: len(raw)]:
        if tensor.contents.ListFields():
            raise BadInput(f"input {tensor.name!r} has both contents and raw_input_contents; send one of them")
    inputs = [
        InputTensor(
            tensor.name,
            tensor.datatype,
            list(tensor.shape),
            read_parameters(tensor.parameters),
            raw[place] if place < len(raw) else None,
            None if raw else _contents(tensor),
        )
        for place, tensor in enumerate(message.inputs)
    ]
    wishes = [OutputWish(output.name, read_parameters(output.parameters)) for output in message.outputs] or None
    parameters = read_parameters(message.parameters)
    return InferRequest(message.model_name, message.model_version, message.id, inputs, parameters, wishes)


def _contents(tensor: Any) -> Sequence[Any]:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise BadInput(
            f"input {tensor.name!r}: datatype {tensor.datatype!r} has no field in contents; send raw_input_contents"
        )
    other = next((each.name for each, _ in tensor.contents.ListFields() if each.name != field), None)
    if other is not None:
        raise BadInput(f"input {tensor.name!r} has numbers in {other}; those of {tensor.datatype} belong in {field}")
    contents = getattr(tensor.contents, field)
    if field != "bytes_contents":
        return list(contents)
    if len(contents) > ELEMENTS_MAX:
        raise too_many_texts(tensor.name, str(len(contents)))
    try:
        return [value.decode("utf-8") for value in contents]
    except UnicodeDecodeError as error:
        raise BadInput(
            f"input {tensor.name!r}: its BYTES are no UTF-8 text ({error.reason}); send raw bytes as UINT8"
        ) from None


def write_parameters(parameters: Mapping[str, Any], into: Any) -> None:
    """Plain values as a message's parameters."""
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value), "string_param")
        setattr(into[name], kind, value)


def write_response(response: InferResponse) -> Any:
    """A ``ModelInferResponse``; its outputs' bytes are in ``raw_output_contents``."""
    message = KINDS["ModelInferResponse"](model_name=response.model, model_version=VERSION, id=response.id)
    write_parameters(response.parameters, message.parameters)
    for output in response.outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        message.raw_output_contents.append(to_raw(output.value))
    return message


def _packed(**fields: Any) -> bytes:
    """A response on a stream."""
    data: bytes = KINDS["ModelStreamInferResponse"](**fields).SerializeToString()
    return data


# --- calls ------------------------------------------------------------------------------------------------------------


class InferStream:
    """One ``ModelStreamInfer`` call. Each request has one answer, in the order in which they end; an error is one, too.
    Where an answer comes in pieces, the next is asked for when one is written.

    A request counts from when it was read until its answer is written: a client that does not read its answers is not
    read either. ``held``: the bytes of these requests and answers; more are read only below ``bytes_max``, and none
    once the front is ``stopped``."""

    def __init__(
        self,
        infer: Answers,
        origin: str,
        held: Held,
        bytes_max: int,
        at_once: AtOnce,
        stopped: Optional[asyncio.Event] = None,
    ) -> None:
        self._infer = infer
        self._at_once = at_once
        self._stopped = asyncio.Event() if stopped is None else stopped
        self._origin = origin
        self._held = held
        self._bytes_max = bytes_max
        self._room = asyncio.Event()
        self._answers: asyncio.Queue[Optional[Tuple[bytes, int, Optional[asyncio.Event]]]] = asyncio.Queue()
        self._answering: Set[Any] = set()
        self._count = 0

    async def run(self, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> bool:
        """Run until the client sends no more, or the front stops, and the last answer is written; True for the client.
        ``write`` must return when the transport has sent the message: with gRPC, when all of it was within the client's
        window."""
        self._look()
        reading = asyncio.ensure_future(self._read(read))
        try:
            while True:
                answer = await self._answers.get()
                if answer is None:
                    return await reading
                packed, size, written = answer
                del answer
                if packed:
                    await write(packed)
                del packed
                self._held.change(size, 0)
                if written is None:
                    self._count -= 1
                else:
                    written.set()
                self._look()
        finally:
            for task in (reading, *self._answering):
                task.cancel()
            await asyncio.gather(reading, *self._answering, return_exceptions=True)

    async def _read(self, read: Callable[[], Awaitable[Any]]) -> bool:
        taking = asyncio.ensure_future(self._take(read))
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            is_whole = taking.done()
            if is_whole:
                await taking
            else:
                taking.cancel()
            await asyncio.gather(*self._answering)
            return is_whole
        finally:
            for task in (taking, stopping):
                task.cancel()
            self._answers.put_nowait(None)

    async def _take(self, read: Callable[[], Awaitable[Any]]) -> None:
        """Begin an answer to each message that comes."""
        while True:
            await self._room.wait()
            data = await read()
            if data is grpc.aio.EOF:
                return
            size = len(data)
            self._count += 1
            task = asyncio.ensure_future(self._answer(data))
            del data  # not kept until the next one comes
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            self._look()
            await self._at_once.step(size)

    async def _answer(self, data: bytes) -> None:
        size, name, packed = 0, "", b""
        try:
            try:
                size = self._held.change(0, len(data))
            except Rejected:
                name = parsed("ModelInferRequest", data).id
                raise
            self._look()
            async with AsyncExitStack() as room:
                await room.enter_async_context(self._at_once.turn(self._origin, size))
                message = parsed("ModelInferRequest", data)
                name = message.id
                request = read_request(message)
                del data, message  # their bytes are in the request, which alone is kept until its answer
                async for found in self._infer(request, self._origin):
                    await self._at_once.step(size)
                    packed = _packed(infer_response=write_response(found))
                    if found.parameters[FINAL]:
                        continue
                    await room.aclose()  # the server has the request: its room is for the next one
                    size = self._held.change(size, len(packed))
                    written = asyncio.Event()
                    self._answers.put_nowait((packed, size, written))
                    size, packed = 0, b""
                    await written.wait()
            size = self._held.change(size, len(packed))
        except Exception as error:  # noqa: BLE001 logged, and answered
            note_fault(error, "a request over gRPC")
            packed = _packed(error_message=message_of(error), infer_response=KINDS["ModelInferResponse"](id=name))
            size = self._held.change(size, 0)
        self._answers.put_nowait((packed, size, None))
        self._look()

    def _look(self) -> None:
        """Let the next request be read, or not."""
        if self._count < ON_ONE_STREAM_MAX and self._held.count < self._bytes_max:
            self._room.set()
        else:
            self._room.clear()


ANY_ADDRESS = ("0.0.0.0", "::", "")


class _Calls:
    """gRPC's side of each verb: the token, bounds on all calls, and errors as statuses."""

    def __init__(
        self, tokens: Tokens, config: HttpConfig, admission: HttpAdmission, stopped: Optional[asyncio.Event]
    ) -> None:
        self._tokens = tokens
        self._stopped = stopped
        self._config = config
        self.port = 0
        self._admission = admission

    def infer(self, verb: Verb) -> Any:
        """A call of one request for an answer."""
        return self._unary(self._admission.requests, read_infer, verb)

    def question(self, service: OpenInference, verb: str) -> Any:
        """A call of any other verb."""
        read = partial(parsed, verb + "Request")
        return self._unary(self._admission.questions, read, lambda message, _: answer_to(service, verb, message))

    def _unary(self, turns: BodyTurns, read: Callable[[bytes], Any], verb: Verb) -> Any:
        async def answered(context: Any) -> bytes:
            origin = self._origin(context)
            self._hold(context, self._admission.calls, origin).set(1)
            held = self._hold(context, self._admission.bodies, origin)
            async with turns.turn(origin):
                data = await self._received(context)
                held.set(len(data))
            async with self._admission.at_once.turn(origin, len(data)):
                request = read(data)
                del data  # its bytes are in the request, which alone is kept until its answer
                packed: bytes = (await verb(request, origin)).SerializeToString()
            self._origin(context)  # the token may be none any more
            held.set(len(packed))
            return packed

        async def call(_: Any, context: Any) -> Any:
            try:
                return await answered(context)
            except Exception as error:  # noqa: BLE001 logged, and answered
                note_fault(error, "a call over gRPC")
                refusal = refusal_of(error)
            await context.abort(*refusal)

        return call

    def stream(self, infer: Answers) -> Any:
        """A call of many requests."""

        async def call(_: Any, context: Any) -> None:
            try:
                origin = self._origin(context)
                self._hold(context, self._admission.streams, origin).set(1)
            except EdgeServeError as error:
                await context.abort(*refusal_of(error))
            held = self._hold(context, self._admission.bodies, origin)

            async def checked(request: InferRequest, origin: str) -> AsyncIterator[InferResponse]:
                self._origin(context)  # the token may be none any more
                async for found in infer(request, origin):
                    yield found
                    self._origin(context)

            most = self._config.grpc_message_max
            stream = InferStream(checked, origin, held, most, self._admission.at_once, self._stopped)
            if not await stream.run(context.read, context.write):
                await context.abort(*refusal_of(Rejected("the front is stopping; connect again", "draining")))

        return call

    def _hold(self, context: Any, places: Places, origin: str) -> Held:
        """Places until the call has ended: its answer is written, or its client has gone."""
        held = Held(places, origin)
        context.add_done_callback(lambda _: held.close())
        return held

    async def _received(self, context: Any) -> bytes:
        """The message of a call of one request."""
        wait_s = ns_to_s(self._config.body_timeout_ns)
        try:
            data = await await_within(context.read(), wait_s)
        except asyncio.TimeoutError:
            key = self._config.where("body_timeout")
            raise Malformed(f"the message did not arrive within {wait_s:g} s ({key})") from None
        if data is grpc.aio.EOF:
            raise Malformed("the call ended without a message")
        return bytes(data)

    def _origin(self, context: Any) -> str:
        """The owner of a call; notes its parent span. Raises :class:`Unauthorized` without a token, where there are
        tokens."""
        metadata = context.invocation_metadata() or ()
        note_parent(metadata, "traceparent")
        name = self._tokens.shown_by(next((str(value) for key, value in metadata if key == "authorization"), ""))
        return origin_of(name, "") if name else self._user(context.peer())

    def _user(self, peer: str) -> str:
        """The owner of the connection that gRPC's name of a peer means."""
        address, port = address_of(peer), peer.rpartition(":")[2]
        host = self._config.grpc.rpartition(":")[0].strip("[]")
        own = (address, "127.0.0.1", "::1") if host in ANY_ADDRESS else (host,)
        return user_of_address(address, int(port) if port.isdecimal() else 0, [(each, self.port) for each in own])


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as ``ipv4:127.0.0.1:50000`` or ``ipv6:%5B::1%5D:50000``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def refusal_of(error: BaseException) -> Tuple[Any, str, Tuple[Tuple[str, str], ...]]:
    """An error as what ``context.abort`` takes. That raises an error which gRPC keeps until it is collected: no request
    may be in the frame that calls it, nor in a traceback from there."""
    code = getattr(grpc.StatusCode, GRPC_OF_HTTP[status_of(error)])
    metadata = tuple((METADATA + name.replace("_", "-"), _plain(value)) for name, value in details_of(error).items())
    return code, message_of(error), metadata


def _plain(value: Any) -> str:
    """A value of metadata, which is printable ASCII: a lane may be called otherwise."""
    return one_line(str(value)).encode("ascii", "backslashreplace").decode()


async def start_grpc(
    service: OpenInference,
    config: HttpConfig,
    tokens: Tokens,
    admission: HttpAdmission,
    stopped: Optional[asyncio.Event] = None,
) -> Tuple[Any, int]:
    """A server that listens, and its port. Once ``stopped`` is set, open streams end with their last answers. Raises
    :class:`ConfigError` when the port cannot be had."""
    place = config.grpc
    calls = _Calls(tokens, config, admission, stopped)

    async def infer(request: InferRequest, origin: str) -> Any:
        return write_response(await service.infer(request, None, origin))

    # Also verbs of one request are streams to gRPC, which reads the message of any other before it calls the handler.
    handlers = {verb: grpc.stream_unary_rpc_method_handler(calls.question(service, verb)) for verb in QUESTIONS}
    handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(calls.infer(infer))
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(calls.stream(service.stream))
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", config.grpc_message_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.bdp_probe", 0),
        ]
    )  # else it takes 8 MiB of a call that is not read
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        port = server.add_insecure_port(place)
    except RuntimeError:
        port = 0
    calls.port = port
    if not port:
        raise ConfigError(
            f"{config.where('grpc')} = {place!r}: cannot listen there; another program may, or another front; "
            "give another port"
        )
    await server.start()
    return server, port
