"""The Open Inference Protocol v2 over gRPC: ``inference.GRPCInferenceService`` on an event loop.

It turns messages into what ``kserve`` asks and tells, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote

import grpc

from edgeserve.errors import BadInput, ConfigError, EdgeServeError
from edgeserve.http.failures import GRPC_OF_HTTP, Unauthorized, details_of, message_of, status_of
from edgeserve.http.grpc_messages import DATA_TYPES, KINDS, SERVICE
from edgeserve.http.kserve import VERSION, InferRequest, InferResponse, InputTensor, OpenInference, OutputWish
from edgeserve.http.origins import Tokens, origin_of
from edgeserve.http.tensors import to_raw

log = logging.getLogger("edgeserve")

METADATA = "edgeserve-"
"""What a failed call says for programs, in its trailing metadata: ``edgeserve-code``, ``edgeserve-reason``, ..."""

ON_ONE_STREAM_MAX = 256
"""Requests of one ``ModelStreamInfer`` call that wait for their answers; more are read when some have ended."""

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents"}

Verb = Callable[[Any], Awaitable[Any]]


class GrpcService:
    """The service's verbs, each from a message to a message. Errors are those of :mod:`edgeserve.errors`."""

    def __init__(self, service: OpenInference) -> None:
        self._service = service
        self._regions = service.regions

    def verbs(self) -> Dict[str, Tuple[str, str, Verb]]:
        """Verb -> the messages that it takes and gives, and what does it. Without those that infer."""
        found = {}
        for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig",
                     "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister",
                     "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus", "CudaSharedMemoryUnregister"):
            verb = "".join(["_" + letter.lower() if letter.isupper() else letter for letter in name])[1:]
            found[name] = (name + "Request", name + "Response", getattr(self, verb))
        return found

    async def model_infer(self, message: Any, origin: str) -> Any:
        """One request; ``origin``: whose it is."""
        return write_response(await self._service.infer(read_request(message), None, origin))

    async def stream(self, messages: AsyncIterator[Any], origin: str) -> AsyncIterator[Any]:
        """Many requests on one call; each has one answer, in the order in which they end. An error is one, too."""
        answers: asyncio.Queue[Any] = asyncio.Queue()
        tasks: List[Any] = []
        room = asyncio.Semaphore(ON_ONE_STREAM_MAX)

        async def answer(message: Any) -> None:
            try:
                said = KINDS["ModelStreamInferResponse"](infer_response=await self.model_infer(message, origin))
            except Exception as error:
                if not isinstance(error, EdgeServeError):
                    log.exception("the front failed at a request over gRPC")
                said = KINDS["ModelStreamInferResponse"](error_message=message_of(error))
                said.infer_response.id = message.id
            answers.put_nowait(said)
            room.release()

        async def read() -> None:
            async for message in messages:
                await room.acquire()
                tasks[:] = [task for task in tasks if not task.done()]
                tasks.append(asyncio.ensure_future(answer(message)))
            await asyncio.gather(*tasks)
            answers.put_nowait(None)

        reading = asyncio.ensure_future(read())
        try:
            while True:
                said = await answers.get()
                if said is None:
                    return
                yield said
        finally:
            reading.cancel()
            for task in tasks:
                task.cancel()

    async def server_live(self, message: Any) -> Any:
        """The front answers."""
        return KINDS["ServerLiveResponse"](live=True)

    async def server_ready(self, message: Any) -> Any:
        """Whether the server accepts requests."""
        return KINDS["ServerReadyResponse"](ready=await self._service.ready())

    async def model_ready(self, message: Any) -> Any:
        """Whether an app can be asked."""
        return KINDS["ModelReadyResponse"](ready=await self._service.model_ready(message.name, message.version))

    async def server_metadata(self, message: Any) -> Any:
        """Name, version, extensions."""
        return KINDS["ServerMetadataResponse"](**self._service.server())

    async def model_metadata(self, message: Any) -> Any:
        """An app's inputs and outputs."""
        return KINDS["ModelMetadataResponse"](**await self._service.model(message.name, message.version))

    async def model_config(self, message: Any) -> Any:
        """An app in the words of Triton's configuration."""
        config = await self._service.model_config(message.name, message.version)
        for tensor in config["input"] + config["output"]:
            tensor["data_type"] = DATA_TYPES.index(tensor["data_type"][len("TYPE_"):])
        return KINDS["ModelConfigResponse"](config=KINDS["ModelConfig"](**config))

    async def model_statistics(self, message: Any) -> Any:
        """Counts and times."""
        tables = await self._service.statistics(message.name, message.version)
        for table in tables:
            del table["batch_stats"]
        return KINDS["ModelStatisticsResponse"](model_stats=tables)

    async def repository_index(self, message: Any) -> Any:
        """Every app."""
        return KINDS["RepositoryIndexResponse"](models=await self._service.index(message.ready))

    async def system_shared_memory_status(self, message: Any) -> Any:
        """Registered shared memory."""
        answer = KINDS["SystemSharedMemoryStatusResponse"]()
        for region in self._regions.table(message.name):
            answer.regions[region["name"]].MergeFrom(type(answer.regions[region["name"]])(**region))
        return answer

    async def system_shared_memory_register(self, message: Any) -> Any:
        """Register shared memory."""
        self._regions.register(message.name, message.key, message.offset, message.byte_size)
        return KINDS["SystemSharedMemoryRegisterResponse"]()

    async def system_shared_memory_unregister(self, message: Any) -> Any:
        """Forget shared memory."""
        self._regions.unregister(message.name)
        return KINDS["SystemSharedMemoryUnregisterResponse"]()

    async def cuda_shared_memory_status(self, message: Any) -> Any:
        """None is registered, ever."""
        return KINDS["CudaSharedMemoryStatusResponse"]()

    async def cuda_shared_memory_unregister(self, message: Any) -> Any:
        """Nothing is to be forgotten."""
        return KINDS["CudaSharedMemoryUnregisterResponse"]()


# --- messages ---------------------------------------------------------------------------------------------------------


def read_parameters(parameters: Mapping[str, Any]) -> Dict[str, Any]:
    """A message's parameters as plain values."""
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            values[name] = getattr(parameter, choice)
    return values


def read_request(message: Any) -> InferRequest:
    """A ``ModelInferRequest``. Raises :class:`BadInput` where inputs and their bytes do not belong together."""
    raw = list(message.raw_input_contents)
    with_raw = bool(raw)
    inputs = []
    for tensor in message.inputs:
        parameters, shape = read_parameters(tensor.parameters), list(tensor.shape)
        if "shared_memory_region" in parameters:
            inputs.append(InputTensor(tensor.name, tensor.datatype, shape, parameters))
        elif with_raw:
            if not raw:
                raise BadInput(f"input {tensor.name!r} has no entry in raw_input_contents")
            inputs.append(InputTensor(tensor.name, tensor.datatype, shape, parameters, raw.pop(0)))
        else:
            inputs.append(InputTensor(tensor.name, tensor.datatype, shape, parameters, None, _contents(tensor)))
    if raw:
        raise BadInput(f"raw_input_contents has {len(raw)} entries more than there are inputs without shared memory")
    wishes = [OutputWish(output.name, read_parameters(output.parameters)) for output in message.outputs] or None
    return InferRequest(message.model_name, message.model_version, message.id, inputs,
                        read_parameters(message.parameters),
                        wishes)


def _contents(tensor: Any) -> Sequence[Any]:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise BadInput(f"input {tensor.name!r}: datatype {tensor.datatype!r} has no field in contents; send "
                       "raw_input_contents")
    values: List[Any] = list(getattr(tensor.contents, field))
    if field != "bytes_contents":
        return values
    try:
        return [value.decode("utf-8") for value in values]
    except UnicodeDecodeError as error:
        raise BadInput(f"input {tensor.name!r}: its BYTES are no UTF-8 text ({error.reason}); send raw bytes as "
                       "UINT8") from None


def write_parameters(parameters: Mapping[str, Any], into: Any) -> None:
    """Plain values as a message's parameters."""
    for name, value in parameters.items():
        kind = ("bool_param" if isinstance(value, bool) else "int64_param" if isinstance(value, int) else
                "double_param" if isinstance(value, float) else "string_param")
        setattr(into[name], kind, value)


def write_response(response: InferResponse) -> Any:
    """A ``ModelInferResponse``; its outputs' bytes are in ``raw_output_contents``, those in shared memory have none."""
    message = KINDS["ModelInferResponse"](model_name=response.model, model_version=VERSION, id=response.id)
    write_parameters(response.parameters, message.parameters)
    for output in response.outputs:
        tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        write_parameters(output.parameters, tensor.parameters)
        if output.value is not None:
            message.raw_output_contents.append(to_raw(output.value))
    return message


# --- calls ------------------------------------------------------------------------------------------------------------


class _Calls:
    """gRPC's side of each verb: the token, and errors as statuses."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def unary(self, verb: Verb) -> Any:
        async def without_origin(message: Any, _: str) -> Any:
            return await verb(message)

        return self.infer(without_origin)

    def infer(self, verb: Callable[[Any, str], Awaitable[Any]]) -> Any:
        async def call(message: Any, context: Any) -> Any:
            try:
                return await verb(message, self._origin(context))
            except EdgeServeError as error:
                await _abort(context, error)
            except Exception as error:
                log.exception("the front failed at a call over gRPC")
                await _abort(context, error)

        return call

    def stream(self, verb: Callable[[AsyncIterator[Any], str], AsyncIterator[Any]]) -> Any:
        async def call(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            origin = ""
            try:
                origin = self._origin(context)
            except EdgeServeError as error:
                await _abort(context, error)
            async for answer in verb(messages, origin):
                yield answer

        return call

    def _origin(self, context: Any) -> str:
        """Whose call it is. Raises :class:`Unauthorized` without a token, where there are tokens."""
        name: Optional[str] = ""
        if self._tokens:
            shown = [str(value) for key, value in context.invocation_metadata() or () if key == "authorization"]
            name = self._tokens.name_of(shown[0]) if shown else None
            if name is None:
                raise Unauthorized("this front needs the metadata 'authorization: Bearer TOKEN' with a token that it "
                                   "was started with")
        return origin_of(name or "", address_of(context.peer()))


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as ``ipv4:127.0.0.1:50000`` or ``ipv6:%5B::1%5D:50000``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0]


async def _abort(context: Any, error: BaseException) -> None:
    code = getattr(grpc.StatusCode, GRPC_OF_HTTP[status_of(error)])
    metadata = tuple((METADATA + name.replace("_", "-"), str(value)) for name, value in details_of(error).items())
    await context.abort(code, message_of(error), metadata)


async def start_grpc(service: OpenInference, place: str, tokens: Tokens, message_bytes_max: int) -> Tuple[Any, int]:
    """A server that listens, and its port. Raises :class:`ConfigError` when the port cannot be had."""
    calls = _Calls(tokens)
    verbs = GrpcService(service)
    handlers = {name: grpc.unary_unary_rpc_method_handler(
        calls.unary(verb), request_deserializer=KINDS[takes].FromString,
        response_serializer=KINDS[gives].SerializeToString)
        for name, (takes, gives, verb) in verbs.verbs().items()}
    handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
        calls.infer(verbs.model_infer), request_deserializer=KINDS["ModelInferRequest"].FromString,
        response_serializer=KINDS["ModelInferResponse"].SerializeToString)
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        calls.stream(verbs.stream), request_deserializer=KINDS["ModelInferRequest"].FromString,
        response_serializer=KINDS["ModelStreamInferResponse"].SerializeToString)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", message_bytes_max),
                                      ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        port = server.add_insecure_port(place)
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"[http] grpc = {place!r}: cannot listen there; another program may, or another front; give "
                          "another port")
    await server.start()
    return server, port
