"""OpenAI's chat protocol without its transport: a request to an app's inputs, its answer to a completion.

An app that can chat takes ``messages`` (JSON text of OpenAI's messages) or ``prompt`` (a text), and optionally the
inputs of :data:`NUMBERS` and of :data:`STRUCTURED` (JSON text). It answers ``text``, and optionally ``prompt_tokens``,
``completion_tokens`` (or ``tokens``: how many, or which), ``cached_tokens``, ``finish_reason`` and ``tool_calls`` (JSON
text of a list of objects with ``name`` and ``arguments``). A field of a request that would change the answer is served,
or refused by its name.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from edgeserve.errors import BadInput, did_you_mean
from edgeserve.http.failures import details_of, message_of, status_of

TEXT_INPUTS = ("messages", "prompt")
OBJECTS = ("text", "any")
"""Dtypes of inputs that may be texts."""

NUMBERS = {
    "max_tokens": np.int32,
    "temperature": np.float32,
    "top_p": np.float32,
    "top_k": np.int32,
    "min_p": np.float32,
    "seed": np.int64,
    "frequency_penalty": np.float32,
    "presence_penalty": np.float32,
    "repeat_penalty": np.float32,
}
"""Options of a request that become inputs, with the dtype where the app declares none."""

WHOLE = {"max_tokens": 1, "seed": -(2**31), "top_k": 0}
"""Those that are whole numbers, and the smallest."""

NUMBER = (int, float)
EXTENSIONS: Dict[str, Tuple[str, Tuple[type, ...]]] = {
    "deadline_ms": ("slo_ms", NUMBER),
    "class": ("klass", (str,)),
    "value": ("value", NUMBER),
    "on_late": ("on_late", (str,)),
}
"""Fields of ours -> arguments of :meth:`Client.submit` and their types."""

STRUCTURED = ("stop", "logit_bias", "response_format", "tools", "tool_choice")
"""Options of a request that become an input each, the JSON text of what was sent."""

READ = {"model", "messages", "stream", "stream_options", "max_completion_tokens", *NUMBERS, *STRUCTURED}

NEUTRAL: Dict[str, Tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repeat_penalty": (1,),
    "logit_bias": ({},),
    "stop": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "mirostat": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "grammar": (),
}
"""Fields that would change the answer -> values with which they change nothing. Other values are served where the app
takes such an input, else refused."""

FOR_THE_RECORD = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "prediction",
    "cache_prompt",
    "keep_alive",
}
"""Fields that change no answer: they are for people, for accounts, or ask for speed alone."""

ROLES = ("system", "developer", "user", "assistant", "tool")


class BadField(BadInput):
    """A field of a request that is wrong or not served. ``param``: its name, as OpenAI's clients read it."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param}{problem}")
        self.param = param


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
    given = {field: value for field, value in body.items() if value is not None}
    _refuse_unserved(given)
    stream, with_usage = given.get("stream", False), given.get("stream_options", {})
    if not isinstance(stream, bool):
        raise BadField("stream", f" = {_brief(stream)}: expected true or false")
    if not isinstance(with_usage, dict):
        raise BadField("stream_options", f" = {_brief(with_usage)}: expected an object")
    options = {
        argument: _extension(field, kinds, given[field])
        for field, (argument, kinds) in EXTENSIONS.items()
        if field in given
    }
    values = _conversation(given.get("messages"), inputs)
    if "max_completion_tokens" in given:
        given["max_tokens"] = given["max_completion_tokens"]
    for name, dtype in NUMBERS.items():
        if name in given and _taken(name, given[name], inputs):
            declared = inputs[name]["dtype"] if name in inputs else "any"
            values[name] = np.asarray(_number(name, given[name]), dtype if declared in OBJECTS else declared)
    for name, read in zip(STRUCTURED, (_stops, _biases, _object, _tools, _choice)):
        if name in given:
            value = read(name, given[name])
            if _taken(name, value, inputs):
                values[name] = json.dumps(value, ensure_ascii=False)
    return ChatRequest(body["model"], values, options, stream, bool(with_usage.get("include_usage")))


def _refuse_unserved(given: Mapping[str, Any]) -> None:
    """Refuse the fields that nothing here reads, unless they ask for nothing."""
    for field, value in given.items():
        if field in READ or field in EXTENSIONS or field in FOR_THE_RECORD or _is_neutral(field, value):
            continue
        if field in NEUTRAL:
            allowed = "".join([f", or send {json.dumps(neutral)}" for neutral in NEUTRAL[field]])
            raise BadField(field, f" = {_brief(value)} is not served here; leave it out{allowed}")
        known = {*READ, *EXTENSIONS, *FOR_THE_RECORD, *NEUTRAL}
        raise BadField(field, f": a request has no such field{did_you_mean(field[:64], known)} Leave it out")


def _is_neutral(field: str, value: Any) -> bool:
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL.get(field, ())
    )


def _taken(name: str, value: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether a field becomes an input: where the app takes it, or declares none at all. One that asks for nothing is
    not needed."""
    if name in inputs or not inputs:
        return True
    if _is_neutral(name, value):
        return False
    raise BadField(
        name,
        f" is not served: the app declares no input of that name. Leave it out, or declare {name} = "
        '{ dtype = "any", optional = true } in the inputs of its configuration',
    )


def _brief(value: Any) -> str:
    return json.dumps(value)[:40]


def _extension(field: str, kinds: Tuple[type, ...], value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise BadField(field, f" = {_brief(value)}: expected a {'text' if str in kinds else 'number'}")
    return value


def _conversation(messages: Any, inputs: Mapping[str, Any]) -> Dict[str, Any]:
    if not isinstance(messages, list) or not messages:
        raise BadField("messages", ": expected a list of at least one message")
    plain = [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]
    if "messages" in inputs or not inputs:
        return {"messages": json.dumps(plain, ensure_ascii=False)}
    if any("tool_calls" in message for message in plain):
        raise BadField("messages", ": tool_calls need an app with the input messages; this one takes a prompt")
    return {"prompt": "\n".join([message["content"] for message in plain])}


def _message(where: str, message: Any) -> Dict[str, Any]:
    """Role and text of a message, and the calls of an assistant's; its name is for people."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise BadField(where, f": expected an object whose role is one of {', '.join(ROLES)}")
    for field in ("function_call", "audio"):
        if message.get(field):
            raise BadField(f"{where}.{field}", " is not served here; write it into the message's content")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and message["role"] != "assistant"):
        raise BadField(f"{where}.tool_calls", ": expected a list, in a message of the assistant")
    content = message.get("content")
    if content is None and calls:
        content = ""
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        ):
            raise BadField(f"{where}.content", ": only parts of type text are served")
        content = "".join([part["text"] for part in content])
    if not isinstance(content, str):
        raise BadField(f"{where}.content", ": expected a text")
    plain = {"role": "system" if message["role"] == "developer" else message["role"], "content": content}
    return {**plain, "tool_calls": [_call(where, call) for call in calls]} if calls else plain


def _call(where: str, call: Any) -> Dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(f"{where}.tool_calls", ': expected objects with {"function": {"name": ..., "arguments": ...}}')
    called = {"name": function["name"], "arguments": function.get("arguments") or "{}"}
    return {"id": str(call.get("id", "")), "type": "function", "function": called}


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, NUMBER) or not math.isfinite(value):
        raise BadField(name, f" = {_brief(value)}: expected a number")
    if name in WHOLE and not (isinstance(value, int) and WHOLE[name] <= value < 2**31):
        raise BadField(name, f" = {_brief(value)}: expected a whole number from {WHOLE[name]} to 2^31 - 1")
    number: float = value
    return number


def _stops(name: str, stop: Any) -> List[str]:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise BadField(name, ": expected a text, or a list of texts")
    return stops


def _object(name: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadField(name, f" = {_brief(value)}: expected an object with a type")
    return value


def _tools(name: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise BadField(name, f" = {_brief(value)}: expected a list of functions")
    return value


def _choice(name: str, value: Any) -> Any:
    return value if isinstance(value, str) else _object(name, value)


def _biases(name: str, biases: Any) -> Dict[str, float]:
    if not isinstance(biases, dict) or not all(
        token.isdecimal() and isinstance(bias, NUMBER) and not isinstance(bias, bool) and -100 <= bias <= 100
        for token, bias in biases.items()
    ):
        raise BadField(name, ": expected an object of tokens' numbers with a bias from -100 to 100 each")
    return biases


class Completion:
    """One answer, whole or in pieces, in the protocol's words. ``created_s`` is the time of day."""

    def __init__(self, request_id: str, model: str, created_s: int) -> None:
        self._head = {"id": request_id, "created": created_s, "model": model}
        self._sent_text = ""
        self._begun = False

    def whole(self, outputs: Mapping[str, Any], late: bool) -> Dict[str, Any]:
        """The completion of an answer."""
        calls, text = self._calls(outputs), text_of(outputs)
        message: Dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        if calls:
            message["tool_calls"] = calls
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
        calls = self._calls(outputs)
        if calls:
            chunks.append(self._chunk({"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}))
        chunks.append(self._chunk({}, finish_of(outputs)))
        if usage:
            chunks.append({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(outputs)})
        return chunks

    def _calls(self, outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
        """The calls of an answer, each with a number of its own."""
        text = outputs.get("tool_calls")
        calls = json.loads(text) if isinstance(text, str) and text else []
        head = self._head["id"]
        return [
            {"id": f"call_{head}_{place}", "type": "function", "function": call} for place, call in enumerate(calls)
        ]

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


def usage_of(outputs: Mapping[str, Any]) -> Dict[str, Any]:
    """Counts of tokens; 0 where the app does not tell them. Of the prompt's, how many were in memory already, where it
    tells that."""
    prompt = count_of(outputs.get("prompt_tokens"))
    completion = count_of(outputs.get("completion_tokens", outputs.get("tokens")))
    usage: Dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if "cached_tokens" in outputs:
        usage["prompt_tokens_details"] = {"cached_tokens": count_of(outputs["cached_tokens"])}
    return usage


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
    return {"error": {"message": message_of(error), "type": kind, "param": getattr(error, "param", None), **details}}
