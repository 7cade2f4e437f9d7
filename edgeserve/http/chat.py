"""OpenAI's chat protocol without its transport: a request to an app's inputs, its answer to a completion.

An app that can chat takes ``messages`` (JSON text of OpenAI's messages) or ``prompt`` (a text), and optionally
``max_tokens``, ``temperature``, ``top_p``, ``seed`` and ``stop`` (JSON text of a list). It answers ``text``, and
optionally ``prompt_tokens``, ``completion_tokens`` (or ``tokens``: how many, or which) and ``finish_reason``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from edgeserve.errors import BadInput
from edgeserve.http.failures import NotServed, details_of, message_of, status_of

TEXT_INPUTS = ("messages", "prompt")
OBJECTS = ("text", "any")
"""Dtypes of inputs that may be texts."""

NUMBERS = {"max_tokens": np.int32, "temperature": np.float32, "top_p": np.float32, "seed": np.int64}
"""Options of a request that become inputs, with the dtype where the app declares none."""

WHOLE = {"max_tokens": 1, "seed": -(2**31)}
"""Those that are whole numbers, and the smallest."""

NUMBER = (int, float)
EXTENSIONS: Dict[str, Tuple[str, Tuple[type, ...]]] = {
    "deadline_ms": ("slo_ms", NUMBER),
    "class": ("klass", (str,)),
    "value": ("value", NUMBER),
    "on_late": ("on_late", (str,)),
}
"""Fields of ours -> arguments of :meth:`Client.submit` and their types."""

NOT_SERVED = ("tools", "functions", "logprobs", "logit_bias", "audio", "modalities")
"""Fields that would change the answer, and cannot."""

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatRequest(NamedTuple):
    """One request, ready to be asked."""

    model: str
    inputs: Dict[str, Any]
    options: Dict[str, Any]
    stream: bool
    usage: bool  # a last piece with counts, in a stream


def can_chat(app: Mapping[str, Any]) -> bool:
    """Whether an app takes a conversation or a prompt. One that declares no inputs can when it answers ``text``."""
    inputs = app["inputs"]
    if not inputs:
        return "text" in app["outputs"]
    return any(inputs[name]["dtype"] in OBJECTS for name in TEXT_INPUTS if name in inputs)


def read_request(body: Any, inputs: Mapping[str, Any]) -> ChatRequest:
    """A request's body, for an app with these declared ``inputs``. Raises :class:`BadInput` naming the field."""
    assert isinstance(body, dict), "checked by the route"
    for field in NOT_SERVED:
        if body.get(field):
            raise NotServed(f"{field} is not served here")
    if body.get("n") not in (None, 1):
        raise NotServed(f"n = {body['n']!r}: one completion per request is served")
    form = body.get("response_format")
    if form is not None and form != {"type": "text"}:
        raise NotServed("response_format: only text is served")
    stream, with_usage = body.get("stream") or False, body.get("stream_options") or {}
    if not isinstance(stream, bool) or not isinstance(with_usage, dict):
        raise BadInput("stream is true or false, stream_options an object")
    options = {
        argument: _extension(field, kinds, body[field])
        for field, (argument, kinds) in EXTENSIONS.items()
        if body.get(field) is not None
    }
    values = _conversation(body.get("messages"), inputs)
    _add_numbers(body, inputs, values)
    _add_stop(body.get("stop"), inputs, values)
    return ChatRequest(body["model"], values, options, stream, bool(with_usage.get("include_usage")))


def _extension(field: str, kinds: Tuple[type, ...], value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise BadInput(f"{field} = {str(value)[:40]!r}: expected a {'text' if str in kinds else 'number'}")
    return value


def _conversation(messages: Any, inputs: Mapping[str, Any]) -> Dict[str, Any]:
    if not isinstance(messages, list) or not messages:
        raise BadInput("messages: expected a list of at least one message")
    plain = [_message(index, message) for index, message in enumerate(messages)]
    if "messages" in inputs or not inputs:
        return {"messages": json.dumps(plain, ensure_ascii=False)}
    return {"prompt": "\n".join([message["content"] for message in plain])}


def _message(index: int, message: Any) -> Dict[str, str]:
    """Role and text of a message; its other fields are for people."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise BadInput(f"messages[{index}]: expected an object whose role is one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        ):
            raise NotServed(f"messages[{index}].content: only parts of type text are served")
        content = "".join([part["text"] for part in content])
    if not isinstance(content, str):
        raise BadInput(f"messages[{index}].content: expected a text")
    return {"role": "system" if message["role"] == "developer" else message["role"], "content": content}


def _add_numbers(body: Mapping[str, Any], inputs: Mapping[str, Any], values: Dict[str, Any]) -> None:
    for name, dtype in NUMBERS.items():
        value = body.get(name)
        if name == "max_tokens" and body.get("max_completion_tokens") is not None:
            value = body["max_completion_tokens"]
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, NUMBER) or not math.isfinite(value):
            raise BadInput(f"{name} = {str(value)[:40]!r}: expected a number")
        if name in WHOLE and not (isinstance(value, int) and WHOLE[name] <= value < 2**31):
            raise BadInput(f"{name} = {str(value)[:40]}: expected a whole number from {WHOLE[name]} to 2^31 - 1")
        if name in inputs or not inputs:
            declared = inputs[name]["dtype"] if name in inputs else "any"
            values[name] = np.asarray(value, dtype if declared in OBJECTS else declared)


def _add_stop(stop: Any, inputs: Mapping[str, Any], values: Dict[str, Any]) -> None:
    if stop is None:
        return
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise BadInput("stop: expected a text, or a list of texts")
    if "stop" in inputs or not inputs:
        values["stop"] = json.dumps(stops, ensure_ascii=False)
    else:
        raise NotServed("stop is not served: the app declares no input of that name")


class Completion:
    """One answer, whole or in pieces, in the protocol's words. ``created_s`` is the time of day."""

    def __init__(self, request_id: str, model: str, created_s: int) -> None:
        self._head = {"id": request_id, "created": created_s, "model": model}
        self._sent_text = ""
        self._begun = False

    def whole(self, outputs: Mapping[str, Any], late: bool) -> Dict[str, Any]:
        """The completion of an answer."""
        message = {"role": "assistant", "content": text_of(outputs), "refusal": None}
        return {
            **self._head,
            "object": "chat.completion",
            "usage": usage_of(outputs),
            "edgeserve": {"late": late},
            "choices": [{"index": 0, "message": message, "finish_reason": finish_of(outputs), "logprobs": None}],
        }

    def piece(self, outputs: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """A chunk with the text of a piece; None for one without text."""
        text = text_of(outputs)
        if not text:
            return None
        self._sent_text += text
        return self._chunk({"content": text})

    def last(self, outputs: Mapping[str, Any], usage: bool) -> List[Dict[str, Any]]:
        """The chunks that end a stream: what of the whole text no piece had, why it ended, and counts if asked for."""
        text = text_of(outputs)
        chunks = []
        if text.startswith(self._sent_text) and len(text) > len(self._sent_text):
            chunks.append(self._chunk({"content": text[len(self._sent_text) :]}))
        elif not self._begun:
            chunks.append(self._chunk({"content": ""}))
        chunks.append(self._chunk({}, finish_of(outputs)))
        if usage:
            chunks.append({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(outputs)})
        return chunks

    def _chunk(self, delta: Dict[str, Any], finish: Optional[str] = None) -> Dict[str, Any]:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}


def text_of(outputs: Mapping[str, Any]) -> str:
    """The text of an answer or a piece."""
    text = outputs.get("text", "")
    return text if isinstance(text, str) else "".join(text)


def finish_of(outputs: Mapping[str, Any]) -> str:
    """Why the text ended: ``stop``, ``length``, or what the app says."""
    reason = outputs.get("finish_reason")
    return reason if isinstance(reason, str) and reason else "stop"


def usage_of(outputs: Mapping[str, Any]) -> Dict[str, int]:
    """Counts of tokens; 0 where the app does not tell them."""
    prompt = count_of(outputs.get("prompt_tokens"))
    completion = count_of(outputs.get("completion_tokens", outputs.get("tokens")))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def count_of(tokens: Any) -> int:
    """How many tokens: a number says it, a list of tokens has them."""
    if tokens is None or isinstance(tokens, str):
        return 0
    array = np.asarray(tokens)
    return int(array.size) if array.ndim else int(array)


def error_body(error: BaseException) -> Dict[str, Any]:
    """An error as OpenAI's clients read it."""
    status, details = status_of(error), details_of(error)
    kind = (
        "invalid_request_error"
        if status < 500 and status not in (401, 429)
        else {401: "authentication_error", 429: "rate_limit_error"}.get(status, "server_error")
    )
    return {"error": {"message": message_of(error), "type": kind, "param": None, **details}}
