"""The Open Inference Protocol's JSON, and the binary tensors behind it: to tensors, and from an answer."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edgeserve.errors import Failed, Malformed
from edgeserve.http.asgi import parse_json, to_json, whole_of
from edgeserve.http.kserve import VERSION, InferResponse, InputTensor
from edgeserve.http.tensors import to_json as listed
from edgeserve.http.tensors import to_raw


def split_body(body: bytes, header_length: str) -> Tuple[Mapping[str, Any], memoryview]:
    """The JSON of a request's body, and the binary tensors behind it."""
    view = memoryview(body)
    if header_length:
        length = whole_of(header_length)
        if not 0 <= length <= len(body):
            raise Malformed(f"inference-header-content-length = {header_length[:20]!r}, the body has {len(body)} bytes")
        table, rest = parse_json(view[:length]), view[length:]
    else:
        table, rest = parse_json(view), view[:0]
    if not isinstance(table, dict):
        raise Malformed(
            "the body is no JSON object with 'inputs'; send an image with its content-type (image/jpeg), "
            "files as a multipart form"
        )
    return table, rest


def read_inputs(inputs: Any, binary: memoryview) -> List[InputTensor]:
    """The inputs of a request's JSON, each with its part of the binary data."""
    tensors, at = [], 0
    for item in list_of(inputs):
        name, parameters = named(item, "inputs"), table_of(item, "parameters")
        size, raw = parameters.get("binary_data_size"), None
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(binary) - at:
                raise Malformed(
                    f"input {name!r}: binary_data_size = {str(size)[:40]}, {len(binary) - at} bytes are "
                    f"left of the body"
                )
            raw, at = binary[at : at + size], at + size
        tensors.append(InputTensor(name, item.get("datatype"), item.get("shape"), parameters, raw, item.get("data")))
    if at != len(binary):
        raise Malformed(f"{len(binary) - at} bytes of the body belong to no input")
    return tensors


def binary_wishes(response: InferResponse, header: Mapping[str, Any]) -> List[str]:
    """The outputs that a request wants as binary tensors."""
    every = bool(table_of(header, "parameters").get("binary_data_output", False))
    wishes = header.get("outputs") or ()
    binary = {item["name"]: table_of(item, "parameters").get("binary_data", every) for item in wishes}
    return [output.name for output in response.outputs if binary.get(output.name, every)]


def written(response: InferResponse, binary: Sequence[str], **more: Any) -> Tuple[bytes, Optional[int]]:
    """The body of an answer, and the length of its JSON where binary tensors follow it: the outputs that ``binary``
    names. ``more`` goes into the JSON."""
    outputs, blobs = [], []
    for output in response.outputs:
        table: Dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if output.name in binary:
            blobs.append(to_raw(output.value))
            table["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            table["data"] = listed(output.value)
        outputs.append(table)
    answer = {
        "model_name": response.model,
        "model_version": VERSION,
        "parameters": response.parameters,
        "outputs": outputs,
        **more,
    }
    if response.id:
        answer["id"] = response.id
    try:
        head = to_json(answer)
    except ValueError:
        raise unwritable() from None
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, None)


def unwritable() -> Failed:
    """Why an answer cannot be JSON."""
    return Failed(
        "an output holds an infinity or NaN, for which JSON has no word; ask for binary data "
        '("parameters": {"binary_data_output": true})'
    )


def list_of(items: Any) -> Sequence[Any]:
    """What ``inputs`` and ``outputs`` must be."""
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
