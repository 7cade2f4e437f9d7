"""Multipart forms."""

from __future__ import annotations

from typing import Any, Dict, Union

from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, parse_options_header  # type: ignore[attr-defined]
from starlette.requests import Request

from edgeserve.errors import BadInput, Malformed
from edgeserve.fronts.http.asgi import Call

FORM_PARTS_MAX = 64


async def form_fields(call: Call, body: bytes) -> Dict[str, Union[str, bytes]]:
    """The fields of a multipart form: texts, and files as bytes. Raises :class:`BadInput` for a field that is there
    twice, and :class:`Malformed` for any other body: the parser has an error of its own for most faults, and Python's
    for a character set that is unknown or does not fit."""

    scope = dict(call.scope)
    scope["headers"] = [(key, _lowered(value) if key == b"content-type" else value) for key, value in scope["headers"]]

    async def receive() -> Dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        async with Request(scope, receive).form(max_files=FORM_PARTS_MAX, max_fields=FORM_PARTS_MAX) as form:
            names = [key for key, _ in form.multi_items()]
            twice = next((key for key in form if names.count(key) > 1), None)
            if twice is not None:
                raise BadInput(f"the form has {twice[:80]!r} {names.count(twice)} times; send it once")
            _check_end(call.header(b"content-type"), body)
            return {key: value if isinstance(value, str) else await value.read() for key, value in form.items()}
    except (HTTPException, MultiPartException, LookupError, ValueError) as error:
        why = getattr(error, "detail", None) or getattr(error, "message", None) or error
        raise Malformed(f"the multipart form cannot be read: {str(why)[:200]}") from None


def _check_end(content: str, body: bytes) -> None:
    """Raises ``ValueError`` for a multipart form that is cut off: its parser leaves the last part out."""
    _, parameters = parse_options_header(content)
    if b"boundary" in parameters and b"--" + parameters[b"boundary"] + b"--" not in body:
        raise ValueError("its end, the last boundary, is missing")


def _lowered(value: bytes) -> bytes:
    """A content type with the name of the type in small letters: older parsers know no others."""
    kind, semicolon, rest = value.partition(b";")
    return kind.lower() + semicolon + rest
