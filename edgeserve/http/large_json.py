"""JSON that takes longer to read or to write than the event loop may wait: a child process does it, one body at a time.

A body goes in as JSON with its numbers and comes out with the same numbers as binary tensors, or the other way round;
both are small JSON with bytes behind it. The child ends when its standard input does, however its parent ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Tuple

from edgeserve import errors
from edgeserve.errors import Failed, RequestError, TooLarge
from edgeserve.http.asgi import to_json
from edgeserve.http.kserve_json import list_of, named, split_body, table_of, unwritable
from edgeserve.http.tensors import check_shape, from_json, from_raw, split_texts, to_raw
from edgeserve.http.tensors import to_json as listed

LARGE_BYTES = 256 * 1024
"""JSON from here on, and answers that would become it: about 10 ms."""

REST_BYTES_MAX = 1024**2
"""JSON of a large body besides the data of its inputs: the event loop reads it."""

NICE = 5
"""The child does not take the processor from the front or the server."""

KEEP = "keep"
"""In the header of an answer to be written: the outputs that stay binary."""

_FRAME = struct.Struct("<cQQ")  # what it is, the length of its JSON, its bytes
_READ, _WRITE, _DONE, _ERROR = b"r", b"w", b"d", b"e"


class LargeJson:
    """The child, started when there is something for it. For the event loop's thread."""

    def __init__(self) -> None:
        self._child: Optional[asyncio.subprocess.Process] = None
        self._lock: Optional[asyncio.Lock] = None

    async def binary(self, body: bytes, json_bytes: int) -> Tuple[bytes, int]:
        """A request's body whose first ``json_bytes`` are JSON, with binary tensors, and how much of it is JSON then.
        Raises what reading it would."""
        return await self._whole(_READ, json_bytes, body)

    async def text(self, body: bytes, json_bytes: int) -> Tuple[bytes, int]:
        """An answer of binary tensors as JSON but for those that :data:`KEEP` names, and how much of it is JSON."""
        return await self._whole(_WRITE, json_bytes, body)

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()

    async def _whole(self, kind: bytes, json_bytes: int, body: bytes) -> Tuple[bytes, int]:
        # The child's answer is read to its end also where its asker goes away.
        return await asyncio.shield(asyncio.ensure_future(self._ask(kind, json_bytes, body)))

    async def _ask(self, kind: bytes, json_bytes: int, body: bytes) -> Tuple[bytes, int]:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._child is None or self._child.returncode is not None:
                self._child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    __name__,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
            child = self._child
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(_FRAME.pack(kind, json_bytes, len(body)) + body)
                await child.stdin.drain()
                answer, head_bytes, size = _FRAME.unpack(await child.stdout.readexactly(_FRAME.size))
                found = await child.stdout.readexactly(size)
            except (OSError, asyncio.IncompleteReadError):
                self._child = None
                raise Failed(
                    f"the process that reads and writes large JSON ended over {len(body)} bytes; send binary tensors"
                ) from None
        if answer == _ERROR:
            told = json.loads(found)
            raise getattr(errors, told["type"])(told["text"])
        return found, head_bytes


def to_binary(body: bytes, json_bytes: int) -> Tuple[bytes, int]:
    """See :meth:`LargeJson.binary`."""
    table, rest = split_body(body, str(json_bytes))
    blobs: List[Any] = []
    at = 0
    for item in list_of(table.get("inputs", [])):
        name, parameters = named(item, "inputs"), dict(table_of(item, "parameters"))
        size = parameters.get("binary_data_size")
        if type(size) is int and 0 <= size <= len(rest) - at:
            blobs.append(rest[at : at + size])
            at += size
        elif size is None and item.get("data") is not None:
            shape = check_shape(name, item.get("shape"))
            blobs.append(to_raw(from_json(name, item.get("datatype"), shape, item.pop("data"))))
            item["parameters"] = {**parameters, "binary_data_size": len(blobs[-1])}
    head = to_json(table)
    if len(head) > REST_BYTES_MAX:
        raise TooLarge(
            f"the body has {len(head)} bytes of JSON besides its inputs' data, at most {REST_BYTES_MAX} are allowed"
        )
    return b"".join([head, *blobs, rest[at:]]), len(head)


def to_text(body: bytes, json_bytes: int) -> Tuple[bytes, int]:
    """See :meth:`LargeJson.text`."""
    table: Dict[str, Any] = json.loads(body[:json_bytes])
    keep, rest, at = table.pop(KEEP), memoryview(body)[json_bytes:], 0
    blobs = []
    for output in table["outputs"]:
        size = output["parameters"]["binary_data_size"]
        raw, at = rest[at : at + size], at + size
        if output["name"] in keep:
            blobs.append(raw)
            continue
        del output["parameters"]
        name, datatype = output["name"], output["datatype"]
        is_text = datatype == "BYTES"
        value = split_texts(name, raw) if is_text else from_raw(name, datatype, tuple(output["shape"]), raw)
        output["data"] = listed(value)
    try:
        head = to_json(table)
    except ValueError:
        raise unwritable() from None
    return b"".join([head, *blobs]), len(head)


_DOES: Mapping[bytes, Callable[[bytes, int], Tuple[bytes, int]]] = {_READ: to_binary, _WRITE: to_text}


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    while True:
        frame = asked.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            return
        kind, json_bytes, size = _FRAME.unpack(frame)
        body = asked.read(size)
        try:
            found, head_bytes = _DOES[kind](body, json_bytes)
            answer = _DONE
        except Exception as error:  # noqa: BLE001 its parent tells the client
            is_told = isinstance(error, RequestError)
            about = {
                "type": type(error).__name__ if is_told else "Malformed",
                "text": str(error) if is_told else f"the JSON cannot be read: {error}",
            }
            found, head_bytes, answer = to_json(about), 0, _ERROR
        answers.write(_FRAME.pack(answer, head_bytes, len(found)) + found)
        answers.flush()


if __name__ == "__main__":
    os.nice(NICE)
    serve(sys.stdin.buffer, sys.stdout.buffer)
