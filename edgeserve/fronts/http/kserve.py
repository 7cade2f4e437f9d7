"""The Open Inference Protocol v2 without its transport: what requests ask for, and the metadata of apps.

An app is a *model* here, its inputs and outputs are the model's. HTTP (``kserve_routes``) and gRPC (``grpc_service``)
make an :class:`InferRequest` of what they got and write an :class:`InferResponse` their way.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, AsyncGenerator, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve import __version__
from edgeserve.answers import Answer, TimedOut
from edgeserve.config.gone import GONE
from edgeserve.errors import BadInput, ServerGone, UnknownApp, nearest
from edgeserve.front import NotServed, rest_of
from edgeserve.fronts.http.backend import Backend, Gone, check_version
from edgeserve.fronts.http.tensors import check_shape, datatype_of, described, from_json, from_raw
from edgeserve.priority_class import CLASSES

NAME = "edgeserve"
VERSION = "1"
EXTENSIONS = ("binary_tensor_data", "statistics", "model_repository")

REGION = "shared_memory_region"
"""The parameter of a tensor with which Triton's clients name shared memory."""

EMPTY_FINAL = "triton_enable_empty_final_response"
PARAMETERS = (
    "slo_ms",
    "timeout_ms",
    "timeout",
    "class",
    "priority",
    "value",
    "stream",
    "sequence_id",
    "reset",
    "on_late",
    "quality_min",
    "sequence_start",
    "sequence_end",
    "binary_data_output",
    EMPTY_FINAL,
)
FINAL = "triton_final_response"
"""Parameter of a response on a stream: whether it is the last to its request."""
HINT = "hint."
"""Parameters that begin so are hints: ``hint.length``."""


class InputTensor(NamedTuple):
    """One input as the transport brought it: ``raw`` bytes or ``data`` as a list."""

    name: Any
    datatype: Any
    shape: Any
    parameters: Mapping[str, Any]
    raw: Any = None
    data: Optional[Sequence[Any]] = None


class OutputWish(NamedTuple):
    """One requested output."""

    name: str
    parameters: Mapping[str, Any]


class InferRequest(NamedTuple):
    """A request for an answer. ``wishes`` of None: all outputs."""

    model: str
    version: str
    id: str
    inputs: Sequence[InputTensor]
    parameters: Mapping[str, Any]
    wishes: Optional[Sequence[OutputWish]]


class OutputTensor(NamedTuple):
    """One output of an answer."""

    name: str
    datatype: str
    shape: List[int]
    value: Any


class InferResponse(NamedTuple):
    """An answer. ``parameters`` tell how it went."""

    model: str
    id: str
    parameters: Dict[str, Any]
    outputs: List[OutputTensor]


def check_no_region(tensor: str, parameters: Mapping[str, Any]) -> None:
    """Raises :class:`NotServed` for a tensor in shared memory that its parameters name."""
    if REGION in parameters:
        raise NotServed(f"{tensor}: {REGION} = {str(parameters[REGION])[:40]!r} is not served any more; {GONE[REGION]}")


def options_of(parameters: Mapping[str, Any]) -> Dict[str, Any]:
    """The arguments of :meth:`Client.submit` in a request's parameters. Raises :class:`BadInput` for parameters that
    mean nothing, or twice the same."""
    options: Dict[str, Any] = {}
    for name, value in parameters.items():
        if value is None:
            continue  # JSON's word for what is left out
        if name.startswith(HINT):
            options.setdefault("hints", {})[name[len(HINT) :]] = _number(name, value)
            continue
        if name not in PARAMETERS:
            raise BadInput(f"parameter {name[:128]!r} is unknown{nearest(name[:128], [*PARAMETERS, HINT + 'NAME'])}")
        option = _option(name, value)
        if option is None:
            continue
        if option[0] in options:
            raise BadInput(f"parameter {name!r} says again what another parameter says ({option[0]}); send one of them")
        options[option[0]] = option[1]
    return options


def _option(name: str, value: Any) -> Any:
    """(argument, value) of one parameter; None where it asks for nothing."""
    if name in ("slo_ms", "timeout_ms"):
        return "slo_ms", _number(name, value)
    if name == "timeout":  # Triton's, in microseconds; 0 is none
        return ("slo_ms", _number(name, value) / 1000) if _number(name, value) else None
    if name == "priority":
        level = _number(name, value)
        if level < 0 or level % 1:
            raise BadInput(f"parameter {name!r} = {str(value)[:40]!r}: expected a whole number from 0")
        # Triton's 1 is the highest, 0 the app's own; numbers beyond the classes are the last one.
        place = int(level) if 1 <= level <= len(CLASSES) else len(CLASSES)
        return ("priority_class", CLASSES[place - 1]) if level else None
    if name in ("value", "quality_min"):
        return name, _number(name, value)
    if name == "sequence_id":
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, (int, str)):
            raise BadInput(f"parameter {name!r} = {str(value)[:40]!r}: expected a whole number or a string")
        return ("stream", str(whole)) if whole not in (0, "") else None
    if name in ("reset", "sequence_start"):  # False asks for nothing: Triton's clients always send it
        return ("reset", True) if boolean_of(name, value) else None
    if name in (EMPTY_FINAL, "sequence_end", "binary_data_output"):
        boolean_of(name, value)
    if name in ("class", "stream", "on_late"):
        if not isinstance(value, str):
            raise BadInput(f"parameter {name!r} = {value!r}: expected a string")
        return ("priority_class" if name == "class" else name), value
    return None  # a sequence that ends is forgotten when it is silent; binary_data_output is for the transport


def boolean_of(name: str, value: Any) -> bool:
    """A parameter that is true or false. Raises :class:`BadInput`."""
    said = str(value).lower()
    if not isinstance(value, (bool, str)) or said not in ("true", "false", "1", "0"):
        raise BadInput(f"parameter {name!r} = {str(value)[:40]!r}: expected true or false")
    return said in ("true", "1")


def _number(name: str, value: Any) -> float:
    number = math.nan
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise BadInput(f"parameter {name!r} = {str(value)[:40]!r}: expected a number")
    return number


class OpenInference:
    """The protocol's verbs, over one server. Errors are those of :mod:`edgeserve.errors`."""

    def __init__(self, backend: Backend, server_name: str = NAME) -> None:
        self.backend = backend
        self._server_name = server_name

    async def infer(self, request: InferRequest, gone: Optional[Gone] = None, origin: str = "") -> InferResponse:
        """Ask an app and wait for its answer. ``origin``: whose request it is."""
        inputs, has_batch = await self._inputs(request)
        answer = await self.backend.infer(request.model, inputs, options_of(request.parameters), gone, origin)
        outputs = self._outputs(request.wishes, answer, has_batch)
        return InferResponse(request.model, request.id, how_it_went(answer), outputs)

    async def stream(self, request: InferRequest, origin: str = "") -> AsyncGenerator[InferResponse, None]:
        """The same as responses on a stream. A decoupled model's come as it works them out, and the last brings what no
        other brought; where that is nothing it is left out, unless the request wants it all the same."""
        app = (await self.backend.apps()).get(request.model, {})
        if not is_decoupled(app):
            response = await self.infer(request, None, origin)
            response.parameters[FINAL] = True
            yield response
            return
        inputs, has_batch = await self._inputs(request)
        told: Dict[str, Any] = {}
        stream = self.backend.stream(request.model, inputs, options_of(request.parameters), origin)
        try:
            async for piece in stream:
                if not isinstance(piece, Answer):
                    told.update({name: _behind(told.get(name, ""), value) for name, value in piece.items()})
                    outputs = self._outputs(_of_those(request.wishes, piece), piece, has_batch)
                    yield InferResponse(request.model, request.id, {FINAL: False}, outputs)
                    continue
                self._outputs(request.wishes, {**told, **piece.outputs}, has_batch)  # raises for a wish for nothing
                rest = _rest(piece.outputs, told)
                outputs = self._outputs(_of_those(request.wishes, rest) if told else request.wishes, rest, has_batch)
                if outputs or boolean_of(EMPTY_FINAL, request.parameters.get(EMPTY_FINAL, False)):
                    parameters = {**how_it_went(piece), FINAL: True}
                    yield InferResponse(request.model, request.id, parameters, outputs)
        finally:
            await stream.aclose()

    async def _inputs(self, request: InferRequest) -> Tuple[Dict[str, Any], bool]:
        """The values of a request, and whether they came with a batch axis of 1."""
        check_version(request.model, request.version)
        inputs: Dict[str, Any] = {}
        item, has_batch = await self._one_item(request)
        for tensor in item:
            if not isinstance(tensor.name, str) or tensor.name in inputs:
                raise BadInput(f"input {tensor.name!r}: expected a name, and each name once")
            inputs[tensor.name] = self._value(tensor)
        return inputs, has_batch

    async def _one_item(self, request: InferRequest) -> Tuple[Sequence[InputTensor], bool]:
        """The inputs as the app declares them, and whether they came with a batch axis of 1, which its answer then has
        too. :class:`BadInput` for a larger batch: a request is one item here."""
        app = (await self.backend.apps()).get(request.model, {})
        declared = {name: _shape(about) for name, about in app.get("inputs", {}).items() if about["dtype"] != "any"}
        found: List[InputTensor] = []
        has_batch = False
        for tensor in request.inputs:
            wanted = declared.get(tensor.name) if isinstance(tensor.name, str) else None
            shape = check_shape(tensor.name, tensor.shape)
            if wanted is not None and len(shape) == len(wanted) + 1:
                if shape[0] != 1:
                    raise BadInput(
                        f"app {request.model!r}: input {tensor.name!r} has the shape {list(shape)}, a batch of "
                        f"{shape[0]}; a request is one item, of shape {wanted}, or a batch of 1: send {shape[0]} "
                        "requests, which the server runs together where it can"
                    )
                has_batch = has_batch or bool(wanted)
                tensor = tensor._replace(shape=shape[1:])
            found.append(tensor)
        return found, has_batch

    def _value(self, tensor: InputTensor) -> Any:
        shape = check_shape(tensor.name, tensor.shape)
        check_no_region(f"input {tensor.name!r}", tensor.parameters)
        if tensor.raw is not None:
            return from_raw(tensor.name, tensor.datatype, shape, tensor.raw)
        if tensor.data is None:
            raise BadInput(f"input {tensor.name!r} has no data")
        return from_json(tensor.name, tensor.datatype, shape, tensor.data)

    def _outputs(
        self, wishes: Optional[Sequence[OutputWish]], answer: Mapping[str, Any], has_batch: bool = False
    ) -> List[OutputTensor]:
        if wishes is None:
            wishes = [OutputWish(name, {}) for name in answer]
        return [self._output(wish, answer, has_batch) for wish in wishes]

    def _output(self, wish: OutputWish, answer: Mapping[str, Any], has_batch: bool) -> OutputTensor:
        if wish.name not in answer:
            raise BadInput(f"the answer has no output {wish.name!r}{nearest(str(wish.name)[:128], answer)}")
        if wish.parameters.get("classification"):
            raise NotServed(f"output {wish.name!r}: the classification extension is not served; ask for the tensor")
        check_no_region(f"output {wish.name!r}", wish.parameters)
        value = answer[wish.name]
        datatype, shape = described(wish.name, value)
        return OutputTensor(wish.name, datatype, [1, *shape] if has_batch else shape, value)

    # --- questions ----------------------------------------------------------------------------------------------------

    async def live(self) -> bool:
        """The front answers."""
        return True

    async def server(self) -> Dict[str, Any]:
        """The name, version and extensions of this server."""
        return {"name": self._server_name, "version": __version__, "extensions": list(EXTENSIONS)}

    async def ready(self) -> bool:
        """True if the server accepts requests, and every app could run now."""
        return bool((await self._health()).get("ready"))

    async def _health(self) -> Dict[str, Any]:
        """The server's health; empty when it is gone or hangs."""
        try:
            return dict(await self.backend.ask("health"))
        except (ServerGone, TimedOut):
            return {}

    async def model_ready(self, name: str, version: str = "") -> bool:
        """True if an app accepts requests: it is served, the server accepts requests, and each of the app's models has
        a lane that is up."""
        try:
            await self.backend.app(name, version)
        except UnknownApp:
            return False
        return _could_run(name, await self._health())

    async def model(self, name: str, version: str = "") -> Dict[str, Any]:
        """An app's inputs and outputs; a size of -1 is any. An output that neither a model's file nor its warm-up has
        told is known once the app has answered."""
        app = await self.backend.app(name, version)
        inputs = [
            {"name": key, "datatype": datatype_of(tensor["dtype"]), "shape": _shape(tensor)}
            for key, tensor in app["inputs"].items()
        ]
        seen = {
            **{key: (datatype_of(tensor["dtype"]), _shape(tensor)) for key, tensor in app["output_types"].items()},
            **self.backend.seen.get(name, {}),
        }
        outputs = [
            {"name": key, "datatype": seen.get(key, ("", []))[0], "shape": seen.get(key, ("", [-1]))[1]}
            for key in app["outputs"] or seen
        ]
        return {"name": name, "versions": [VERSION], "platform": NAME, "inputs": inputs, "outputs": outputs}

    async def model_config(self, name: str, version: str = "") -> Dict[str, Any]:
        """The same in the words of Triton's model configuration. Requests carry no batch axis: batches are the
        scheduler's, so ``max_batch_size`` is 0."""
        table = await self.model(name, version)
        app = await self.backend.app(name, version)

        def tensors(part: str) -> List[Dict[str, Any]]:
            return [
                {"name": tensor["name"], "data_type": data_type(tensor["datatype"]), "dims": tensor["shape"]}
                for tensor in table[part]
            ]

        return {
            "name": name,
            "platform": NAME,
            "backend": NAME,
            "max_batch_size": 0,
            "model_transaction_policy": {"decoupled": is_decoupled(app)},
            "input": tensors("inputs"),
            "output": tensors("outputs"),
        }

    async def index(self, ready: bool = False) -> List[Dict[str, str]]:
        """Every app and whether it can be asked; ``ready``: those alone that can."""
        health = await self._health()
        rows = [
            {
                "name": name,
                "version": VERSION,
                "state": "READY" if _could_run(name, health) else "UNAVAILABLE",
                "reason": str(health.get("blocked", {}).get(name, "")),
            }
            for name in await self.backend.apps()
        ]
        return [row for row in rows if row["state"] == "READY" or not ready]

    async def statistics(self, name: str = "", version: str = "") -> List[Dict[str, Any]]:
        """Counts and times since the server's start, of one app or all. ``compute_infer`` is time on lanes, ``queue``
        the waiting for a lane or for a model to be loaded."""
        if name:
            await self.backend.app(name, version)
        stats = await self.backend.ask("stats")
        return [statistics_of(key, app) for key, app in stats["apps"].items() if name in ("", key)]


def _shape(tensor: Mapping[str, Any]) -> List[int]:
    shape = list(tensor["shape"])
    return shape or [1] if datatype_of(tensor["dtype"]) == "BYTES" else shape


def is_decoupled(app: Mapping[str, Any]) -> bool:
    """True if an app's answer may come in pieces, which Triton's models with several responses are called."""
    return bool(app.get("pieces"))


def _of_those(wishes: Optional[Sequence[OutputWish]], outputs: Mapping[str, Any]) -> Optional[Sequence[OutputWish]]:
    return None if wishes is None else [wish for wish in wishes if wish.name in outputs]


def _rest(outputs: Mapping[str, Any], told: Mapping[str, Any]) -> Dict[str, Any]:
    """The rest of an answer behind its pieces; of a text what no piece had, so that clients may append it."""
    rest = {name: value for name, value in outputs.items() if name not in told}
    texts = {
        name: rest_of(value, told[name]) if isinstance(told[name], str) else ""
        for name, value in outputs.items()
        if name in told and isinstance(value, str)
    }
    return {**texts, **rest} if rest or any(texts.values()) else {}


def _behind(text: Any, piece: Any) -> Any:
    """A text with the next piece of it; any other value is the last that came."""
    return text + piece if isinstance(text, str) and isinstance(piece, str) else piece


def data_type(datatype: str) -> str:
    """``FP32`` -> ``TYPE_FP32``, as Triton's model configuration has it."""
    return {"": "TYPE_INVALID", "BYTES": "TYPE_STRING"}.get(datatype, "TYPE_" + datatype)


def how_it_went(answer: Answer) -> Dict[str, Any]:
    """The facts of an answer besides its outputs, as parameters of the response."""
    table: Dict[str, Any] = {"request_id": answer.id, "late": answer.late, "total_ms": answer.total_ms}
    table.update((key + "_ms", value) for key, value in answer.breakdown_ms.items())
    if answer.reason:
        table["reason"] = answer.reason
    if answer.branches:
        table["branches"] = ",".join(answer.branches)
    if answer.variant:
        table["variant"] = answer.variant
    if answer.quality is not None:
        table["quality"] = answer.quality
    return table


def _could_run(app: str, health: Dict[str, Any]) -> bool:
    """True if an app could run now, by what the server says of itself."""
    if "blocked" not in health:
        return bool(health.get("ready"))
    return not health.get("stopping") and app not in health["blocked"]


def statistics_of(name: str, app: Mapping[str, Any]) -> Dict[str, Any]:
    """One app's counts, from what ``stats`` says of it."""
    outcomes = app["outcomes"]
    done = outcomes["completed"]
    mean_ms = app["breakdown_ms"]

    def duration(count: int, *parts: str) -> Dict[str, int]:
        return {"count": count, "ns": int(sum([mean_ms[part] for part in parts], 0.0) * 1e6 * count)}

    return {
        "name": name,
        "version": VERSION,
        "last_inference": 0,
        "inference_count": done,
        "execution_count": done,
        "inference_stats": {
            "success": duration(done, *mean_ms),
            "fail": {"count": sum(outcomes.values()) - done, "ns": 0},
            "queue": duration(done, "queue", "load", "batch"),
            "compute_input": duration(0),
            "compute_infer": duration(done, "execute"),
            "compute_output": duration(0),
            "cache_hit": duration(0),
            "cache_miss": duration(0),
        },
        "batch_stats": [],
    }
