"""The Open Inference Protocol v2 over HTTP: JSON, the binary tensor extension, and plain files for people with curl."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, TypeVar
from urllib.parse import parse_qsl

import numpy as np
from starlette.routing import Route

from edgeserve.config.gone import GONE
from edgeserve.errors import BadInput, Malformed
from edgeserve.front import NotServed, images
from edgeserve.fronts.http.asgi import JSON, JSON_AT_ONCE_MAX, Call, Endpoint, Handler, Site, parse_json, whole_of
from edgeserve.fronts.http.forms import form_fields
from edgeserve.fronts.http.kserve import (
    HINT,
    PARAMETERS,
    REGION,
    InferRequest,
    InputTensor,
    OpenInference,
    OutputWish,
)
from edgeserve.fronts.http.kserve_json import binary_wishes, list_of, named, read_body, table_of, written
from edgeserve.fronts.http.names import behind, model_paths
from edgeserve.fronts.http.tensors import datatype_of, to_raw

HEADER_LENGTH = b"inference-header-content-length"
OCTETS = b"application/octet-stream"
MODELS = "/v2/models/"
DECODERS = 4
"""Threads that decode images, files and large JSON: each takes some times the size of what it decodes."""

LARGE_BYTES = 256 * 1024
"""JSON of a request from here on is read by a thread, in pieces: about 1 ms of the event loop."""

LARGE_COUNT = 32_768
"""Elements of an answer's outputs in JSON, from which on a thread writes it, in pieces: about 2 ms."""

Found = TypeVar("Found")

NO_CONTROL = "models are loaded and evicted by the scheduler; there is nothing to load, unload or switch here"


class KServeRoutes:
    """The routes, and what each of them does."""

    def __init__(self, service: OpenInference, site: Site) -> None:
        self._service = service
        self._site = site
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="edgeserve-decode")

    def routes(self) -> List[Route]:
        """All but those of one model."""
        route = self._site.route
        return [
            route("/v2/health/live", self._asking("live"), "GET", is_open=True),
            route("/v2/health/ready", self._asking("ready"), "GET", is_open=True),
            route("/v2", self._asking("server"), "GET"),
            route("/v2/models/stats", self._asking("statistics", "model_stats"), "GET"),
            route("/v2/repository/index", self.index, "GET", "POST"),
            route("/v2/{rest:path}", self.nothing, "GET", "POST"),
        ]

    def ahead_of(self, router: Any) -> Any:
        """An ASGI application that answers what concerns one model itself and gives any other request to ``router``."""
        endpoint = Endpoint(self.of_model, self._site.bounds, self._site.tokens)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            path = scope.get("path", "")
            concerns_one = path.startswith(MODELS) and path not in (MODELS, MODELS + "stats")
            await (endpoint if concerns_one else router)(scope, receive, send)

        return application

    async def of_model(self, call: Call) -> None:
        """Serve a route of the model that the path names."""
        verbs = {
            "infer": ("POST", self.infer),
            "": ("GET", self._asking("model")),
            "ready": ("GET", self._asking("model_ready")),
            "config": ("GET", self._asking("model_config")),
            "stats": ("GET", self._asking("statistics", "model_stats")),
        }
        method = "GET" if call.scope["method"] == "HEAD" else call.scope["method"]
        readings = model_paths(behind(call.scope, MODELS), verbs)
        allowed = [each for each in readings if verbs[each.verb][0] == method]
        apps = await self._service.backend.apps() if readings[1:] else ()
        asked = next((each for each in allowed if each.name in apps), readings[0]) if readings else None
        if asked is None or asked not in allowed:
            await self.nothing(call)
            return
        call.scope = {**call.scope, "path_params": {"name": asked.name, "version": asked.version}}
        await verbs[asked.verb][1](call)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def infer(self, call: Call) -> None:
        """A request in JSON, with or without binary tensors, or files."""
        content = call.header(b"content-type").lower()
        if content.startswith("multipart/form-data"):
            request = await self._of_form(call)
        elif content.startswith("image/"):
            request = await self._of_image(call)
        else:
            body, length = await call.body(), call.header(HEADER_LENGTH)
            json_bytes = whole_of(length) if whole_of(length) >= 0 else len(body)
            call.hold_json(json_bytes, self._site.bounds.config.json_bytes_max)
            header, inputs = await self._done(read_body, body, length, is_large=json_bytes >= LARGE_BYTES)
            request = self._of_json(call, header, inputs)
        response = await self._service.infer(request, call.gone, call.origin)
        binary = binary_wishes(response, request.parameters, request.wishes)
        count = sum([np.size(output.value) for output in response.outputs if output.name not in binary])
        data, json_length = await self._done(written, response, binary, is_large=count >= LARGE_COUNT)
        if json_length is None:
            await call.answer(data, headers=[(b"content-type", JSON)])
        else:
            await call.answer(data, headers=[(b"content-type", OCTETS), (HEADER_LENGTH, str(json_length).encode())])

    async def _done(self, function: Callable[..., Found], *given: Any, is_large: bool) -> Found:
        """The result of a function, run by a thread where it takes longer than the event loop may wait."""
        if not is_large:
            return function(*given)
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function, *given)

    def _of_json(self, call: Call, header: Mapping[str, Any], inputs: List[InputTensor]) -> InferRequest:
        parameters = {**in_query(call), **table_of(header, "parameters")}
        wishes = header.get("outputs")
        if wishes is not None:
            wishes = [
                OutputWish(named(item, "outputs"), table_of(item, "parameters")) for item in list_of(wishes)
            ] or None
        return InferRequest(
            call.path("name"),
            call.path("version"),
            "" if header.get("id") is None else str(header["id"]),
            inputs,
            parameters,
            wishes,
        )

    async def _of_image(self, call: Call) -> InferRequest:
        data = await call.body()
        name = call.path("name")
        app = await self._service.backend.app(name)
        key = images.the_image_input(name, app["inputs"])
        return await self._of_files(call, {key: data}, app["inputs"], [], in_query(call))

    async def _of_form(self, call: Call) -> InferRequest:
        """Fields named as inputs are inputs: files, texts, or JSON; the others are parameters."""
        body = await call.body()
        app = await self._service.backend.app(call.path("name"))
        files: Dict[str, bytes] = {}
        tensors: List[InputTensor] = []
        parameters = in_query(call)
        fields = await form_fields(call, body)
        call.hold_json(sum([len(value) for value in fields.values() if isinstance(value, str)]), JSON_AT_ONCE_MAX)
        for key, value in fields.items():
            if isinstance(value, bytes):
                files[key] = value
            elif key in app["inputs"]:
                tensors.append(_of_field(key, value, app["inputs"][key]))
            else:
                parameters[key] = value
        return await self._of_files(call, files, app["inputs"], tensors, parameters)

    async def _of_files(
        self,
        call: Call,
        files: Mapping[str, bytes],
        inputs: Mapping[str, Any],
        tensors: List[InputTensor],
        parameters: Mapping[str, Any],
    ) -> InferRequest:
        name = call.path("name")
        for key, data in files.items():
            if key not in inputs:
                raise BadInput(
                    f"app {name!r} declares no input {key!r} in [app.{name}.inputs], so what a file would "
                    f"be is not known; declared: {', '.join(inputs) or 'none'}"
                )
            asked = (key, data, inputs[key], self._site.bounds.config.body_bytes_max)
            run = asyncio.get_running_loop().run_in_executor
            with call.holding(await run(self._decoders, images.bytes_to_decode, *asked)):
                value = await run(self._decoders, images.decode_file, *asked)
            call.hold(2 * value.nbytes)  # and as bytes
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            tensors.append(InputTensor(key, datatype_of(str(value.dtype)), list(value.shape), {}, to_raw(little)))
        return InferRequest(name, call.path("version"), "", tensors, parameters, None)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _asking(self, method: str, field: str = "") -> Handler:
        """The handler that answers a question by a method of the service: its JSON, below ``field`` where the protocol
        has one; of a yes or no the status, 400 for no, as Triton says it."""

        async def answer(call: Call) -> None:
            found = await getattr(self._service, method)(**call.scope["path_params"])
            if isinstance(found, bool):
                await call.answer(status=200 if found else 400)
            else:
                await call.answer({field: found} if field else found)

        return answer

    async def index(self, call: Call) -> None:
        """Every app."""
        wish = await call.json({}) if call.scope["method"] == "POST" else {}
        await call.answer(await self._service.index(bool(isinstance(wish, dict) and wish.get("ready"))))

    async def nothing(self, call: Call) -> None:
        """Refuse a route that the protocol or Triton has and this server does not serve."""
        path = call.scope["path"]
        if path.startswith("/v2/systemsharedmemory"):
            raise NotServed(f"{path} is not served any more; {GONE[REGION]}")
        if path == "/v2/models":
            raise NotServed(f"{path} is not served: POST /v2/repository/index lists the models")
        if path.endswith("/infer"):
            raise NotServed(f"{path}: a question is sent with POST (curl -d)")
        raise NotServed(f"{path}: {NO_CONTROL}" if "repository" in path else f"{path} is not served")


def in_query(call: Call) -> Dict[str, Any]:
    """Parameters in the address, such as ``?slo_ms=50``. Others may be a proxy's and are passed over."""
    query = call.scope["query_string"]
    if not query:
        return {}
    pairs = parse_qsl(query.decode("latin-1"))
    return {key: value for key, value in pairs if key in PARAMETERS or key.startswith(HINT)}


def _of_field(key: str, text: str, tensor: Mapping[str, Any]) -> InputTensor:
    """A form's field as an input: a text as it is, else numbers in JSON."""
    datatype = datatype_of(tensor["dtype"])
    if datatype == "BYTES" and not tensor["shape"]:
        return InputTensor(key, datatype, [1], {}, None, [text])
    try:
        data = parse_json(text.encode())
    except Malformed:
        raise BadInput(
            f"input {key!r} = {text[:40]!r}: expected {tensor['dtype']} {tensor['shape']} as JSON, or a "
            f"file (-F {key}=@FILE)"
        ) from None
    shape, inner = [], data
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    return InputTensor(key, datatype, shape, {}, None, data if isinstance(data, list) else [data])
