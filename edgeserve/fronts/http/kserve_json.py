"""The Open Inference Protocol's JSON, and the binary tensors behind it: to tensors, and from an answer."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from msgspec import DecodeError, Raw, ValidationError
from msgspec.json import Decoder, encode

from edgeserve.errors import Failed, Malformed, TooLarge
from edgeserve.fronts.http.asgi import whole_of
from edgeserve.fronts.http.kserve import VERSION, InferResponse, InputTensor, OutputWish, boolean_of
from edgeserve.fronts.http.tensors import check_shape, from_json, to_raw
from edgeserve.fronts.http.tensors import to_json as listed

REST_BYTES_MAX = 1024**2
"""JSON of a body besides the data of its inputs, which is read in pieces."""

_TABLE, _TABLES, _ANYTHING = Decoder(Dict[str, Raw]), Decoder(List[Dict[str, Raw]]), Decoder()


def read_body(body: bytes, header_length: str) -> Tuple[Mapping[str, Any], List[InputTensor]]:
    """A request's JSON, and its inputs with their parts of the binary tensors behind it."""
    header, binary = split_body(body, header_length)
    return header, read_inputs(header.get("inputs", []), binary)


def split_body(body: bytes, header_length: str) -> Tuple[Mapping[str, Any], memoryview]:
    """The JSON of a request's body, in which the data of inputs is still text, and the binary tensors behind it."""
    view = memoryview(body)
    begin = len(BOM_UTF8) if body.startswith(BOM_UTF8) else 0  # as editors on Windows write files
    length = len(body)
    if header_length:
        length = whole_of(header_length)
        if not 0 <= length <= len(body):
            raise Malformed(f"inference-header-content-length = {header_length[:20]!r}, the body has {len(body)} bytes")
    try:
        table = _parts(_TABLE, view[begin:length])
        if table is None:
            raise Malformed(
                "the body is no JSON object with 'inputs'; send an image with its content-type (image/jpeg), "
                "files as a multipart form"
            )
        inputs = _parts(_TABLES, table["inputs"]) if "inputs" in table else None
        rest = length - sum([len(memoryview(item["data"])) for item in inputs or () if "data" in item])
        if rest > REST_BYTES_MAX:
            raise TooLarge(
                f"the body has {rest} bytes of JSON besides its inputs' data, at most {REST_BYTES_MAX} are allowed"
            )
        header = _values(table, "" if inputs is None else "inputs")
        if inputs is not None:
            header["inputs"] = [_values(item, "data") for item in inputs]
    except (DecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    return header, view[length:]


def _parts(decoder: Any, text: Any) -> Any:
    """The result of a decoder of JSON, each value in it still text; None of JSON of another form."""
    try:
        return decoder.decode(text) if len(memoryview(text)) else None
    except ValidationError:
        return None


def _values(table: Mapping[str, Raw], kept: str) -> Dict[str, Any]:
    """JSON as values; what stands under the key ``kept`` stays JSON."""
    return {key: value if key == kept else _ANYTHING.decode(value) for key, value in table.items()}


def read_inputs(inputs: Any, binary: memoryview) -> List[InputTensor]:
    """The inputs of a request's JSON, each with its part of the binary data."""
    tensors, at = [], 0
    for item in list_of(inputs):
        name, parameters = named(item, "inputs"), table_of(item, "parameters")
        size, data = parameters.get("binary_data_size"), item.get("data")
        raw: Any = None
        if size is not None:
            if data is not None:
                raise Malformed(f"input {name!r} has both data and binary_data_size; send one of them")
            if type(size) is not int or not 0 <= size <= len(binary) - at:
                raise Malformed(
                    f"input {name!r}: binary_data_size = {str(size)[:40]}, {len(binary) - at} bytes are "
                    f"left of the body"
                )
            raw, at = binary[at : at + size], at + size
        elif isinstance(data, Raw):
            raw = to_raw(from_json(name, item.get("datatype"), check_shape(name, item.get("shape")), data))
        tensors.append(InputTensor(name, item.get("datatype"), item.get("shape"), parameters, raw, data))
    if at != len(binary):
        raise Malformed(f"{len(binary) - at} bytes of the body belong to no input")
    return tensors


def binary_wishes(
    response: InferResponse, parameters: Mapping[str, Any], wishes: Optional[Sequence[OutputWish]]
) -> List[str]:
    """The outputs that a request wants as binary tensors, by its parameters and its wishes."""

    def wanted(key: str, parameters: Mapping[str, Any], usual: bool) -> bool:
        return usual if parameters.get(key) is None else boolean_of(key, parameters[key])

    every = wanted("binary_data_output", parameters, False)
    binary = {wish.name: wanted("binary_data", wish.parameters, every) for wish in wishes or ()}
    return [output.name for output in response.outputs if binary.get(output.name, every)]


def written(response: InferResponse, binary: Sequence[str]) -> Tuple[bytes, Optional[int]]:
    """The body of an answer, and the length of its JSON where binary tensors follow it: the outputs that ``binary``
    names."""
    outputs, blobs = [], []
    for output in response.outputs:
        table: Dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if output.name in binary:
            blobs.append(to_raw(output.value))
            table["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            try:
                table["data"] = listed(output.value)
            except ValueError:
                raise Failed(
                    f"output {output.name!r} holds an infinity or NaN, for which JSON has no word; ask for binary data "
                    '("parameters": {"binary_data_output": true})'
                ) from None
        outputs.append(table)
    answer = {
        "model_name": response.model,
        "model_version": VERSION,
        "parameters": response.parameters,
        "outputs": outputs,
    }
    if response.id:
        answer["id"] = response.id
    head = encode(answer)
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, None)


def list_of(items: Any) -> Sequence[Any]:
    """The value of ``inputs`` or ``outputs``, checked to be a list."""
    if not isinstance(items, list):
        raise Malformed(f"inputs and outputs are lists, not {type(items).__name__}")
    return items


def named(item: Any, where: str) -> str:
    """The name of an item there."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise Malformed(f"{where}: expected objects with a 'name'")
    return str(item["name"])


def table_of(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object within an object, empty where there is none."""
    table = item.get(key)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise Malformed(f"{key} is {type(table).__name__}, expected an object")
    return table
