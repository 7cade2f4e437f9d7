"""Ollama's API in OpenAI's terms: a request's body to one that ``chat.py`` reads, answers to Ollama's lines. Knows no
transport.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
from typing import Any, Collection, Dict, Iterator, List, Mapping

from edgeserve.answers import Answer
from edgeserve.errors import Failed, did_you_mean
from edgeserve.front import rest_of
from edgeserve.fronts.http.chat import EXTENSIONS, BadField, ask_chances, can_chat, can_embed
from edgeserve.fronts.http.completion import calls_of, finish_of, marks_of, objects_of, text_of, usage_of
from edgeserve.units import NS_PER_MS

VERSION = "0.12.11"
"""The Ollama whose API this is: the first with ``logprobs``."""

TAG = ":latest"
"""Ollama's names have a tag; an app has one version."""

OPTIONS = {
    "num_predict": "max_tokens",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{name: name for name in ("repeat_penalty", "repeat_last_n", "frequency_penalty", "presence_penalty")},
}
"""Key of ``options`` -> field of OpenAI's protocol."""

OF_THE_SERVER = {
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "numa",
    "num_gqa",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "logits_all",
    "embedding_only",
    "rope_frequency_base",
    "rope_frequency_scale",
    "draft_num_predict",
}
"""Keys of ``options`` that say how Ollama loads a model: the configuration says that here, so they are passed over."""

NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "penalize_newline": True}
"""Keys of ``options`` that are not served -> the value with which they change nothing."""

OF_MIROSTAT = {"mirostat_tau", "mirostat_eta"}
"""Keys of ``options`` that change nothing without mirostat, which is not served."""

SAME = {"tools", "logprobs", "top_logprobs", *EXTENSIONS}
PASSED = {"keep_alive", "truncate", "shift"}
"""Fields of a request that mean the same in OpenAI's protocol, and fields that are ignored: all models stay loaded,
and the model's configuration says what becomes of a conversation that is too long."""

NONE = {
    "think": (False,),
    "images": ([],),
    "suffix": ("",),
    "template": ("",),
    "context": ([],),
    "raw": (False,),
    "dimensions": (),
}
"""Fields that are not served -> what asks for nothing."""


def name_of(model: Any, apps: Collection[str]) -> Any:
    """The app that a model's name means: as :func:`listed` has it, else as it is."""
    untagged = model[: -len(TAG)] if isinstance(model, str) and model.endswith(TAG) else model
    return untagged if untagged in apps else model


def listed(app: str) -> str:
    """The name of an app as clients see it, which has a tag."""
    return app if ":" in app and not app.endswith(TAG) else app + TAG


@contextlib.contextmanager
def own_fields(**named: str) -> Iterator[None]:
    """Have errors of the block name Ollama's fields. ``named``: more fields of OpenAI's, and what they are called."""
    names = {**{field: f"options.{key}" for key, field in OPTIONS.items()}, "response_format": "format", **named}
    try:
        yield
    except BadField as error:
        field = re.split(r"[.[]", error.param)[0]
        rest = "" if field in named else error.param[len(field) :]
        raise BadField(names.get(field, field) + rest, str(error)[len(error.param) :]) from None


def chat_body(body: Mapping[str, Any]) -> Dict[str, Any]:
    """The body of ``/api/chat`` as ``/v1/chat/completions`` has it. Raises :class:`BadField`."""
    messages = body.get("messages")
    told = [_message(place, message) for place, message in enumerate(messages)] if isinstance(messages, list) else None
    return {**_common(body, {"messages"}), "messages": told}


def generate_body(body: Mapping[str, Any]) -> Dict[str, Any]:
    """The body of ``/api/generate``: as ``/v1/completions`` has it where ``raw`` is true, else as a conversation."""
    if not isinstance(body.get("prompt"), str):
        raise BadField("prompt", ": expected a text")
    if body.get("raw") is True:
        asked = {field: value for field, value in body.items() if (field, value) not in (("raw", True), ("system", ""))}
        made = ask_chances({key: value for key, value in _common(asked, {"prompt"}).items() if value is not None})
        return {**made, "prompt": body.get("prompt")}
    system = body.get("system")
    messages = [] if system in (None, "") else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": body.get("prompt")})
    return {**_common(body, {"prompt", "system"}), "messages": messages}


def passed_over(body: Mapping[str, Any]) -> List[str]:
    """The fields of a request that are ignored here: the configuration decides how a model is loaded."""
    options = body.get("options")
    named = [f"options.{key}" for key in options if key in OF_THE_SERVER] if isinstance(options, dict) else []
    return [*named, *[key for key in body if key in PASSED]]


def asks_nothing(body: Mapping[str, Any], key: str) -> bool:
    """True if a request has no text to embed: it has Ollama load the model."""
    return body.get(key, "") in ("", [])


def embed_body(body: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """The body of ``/api/embed`` (``key`` is ``input``) or ``/api/embeddings`` (``prompt``), as ``/v1/embeddings``
    has it."""
    if key == "prompt" and not isinstance(body.get(key), str):
        raise BadField(key, ": expected a text")
    common = _common({**body, "stream": False, "options": {}}, {key})
    return {**{name: value for name, value in common.items() if name != "stream"}, "input": body.get(key)}


def _common(body: Mapping[str, Any], own: Any) -> Dict[str, Any]:
    known = {"model", "stream", "format", "options", *own, *SAME, *PASSED, *NONE}
    made: Dict[str, Any] = {"model": body.get("model"), "stream": body.get("stream", True)}
    for field, value in body.items():
        if field not in known:
            raise BadField(field, f": a request has no such field{did_you_mean(field[:64], known)} Leave it out")
        if field in NONE and value is not None and value not in NONE[field]:
            raise BadField(field, f" = {json.dumps(value)[:40]} is not served here; leave it out")
        if field in SAME:
            made[field] = value
    form = body.get("format")
    if form:
        made["response_format"] = _form(form)
    return {**made, **_options(body.get("options"))}


def _form(form: Any) -> Dict[str, Any]:
    if form == "json":
        return {"type": "json_object"}
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": form}}
    raise BadField("format", f' = {json.dumps(form)[:40]}: expected "json" or a JSON schema')


def _options(options: Any) -> Dict[str, Any]:
    if not isinstance(options or {}, dict):
        raise BadField("options", ": expected an object")
    made = {}
    for key, value in (options or {}).items():
        if key in OPTIONS:
            made[OPTIONS[key]] = value
            if key == "num_predict" and type(value) in (int, float) and value <= 0:
                del made["max_tokens"]  # as many as the model's configuration allows
        elif key in NEUTRAL:
            if value is not None and value != NEUTRAL[key]:
                neutral = json.dumps(NEUTRAL[key])
                raise BadField(f"options.{key}", f" is not served here; leave it out, or send {neutral}")
        elif key not in OF_THE_SERVER and key not in OF_MIROSTAT:
            known = {*OPTIONS, *OF_THE_SERVER, *NEUTRAL, *OF_MIROSTAT}
            raise BadField(f"options.{key}", f" is not served here{did_you_mean(key[:64], known)} Leave it out")
    return made


def _message(place: int, message: Any) -> Any:
    """A message as OpenAI has it. Faults are found later."""
    if not isinstance(message, dict):
        return message
    if message.get("images"):
        raise BadField(f"messages[{place}].images", " are not served here")
    told = {key: message.get(key) for key in ("role", "content", "tool_call_id")}
    told["name"] = message.get("tool_name")
    calls = message.get("tool_calls")
    return {**told, "tool_calls": [_call(call) for call in calls] if isinstance(calls, list) else calls}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    told = {"name": function.get("name"), "arguments": function.get("arguments")}
    return {"id": call.get("id", ""), "function": told}


# --- answers ----------------------------------------------------------------------------------------------------------


class Lines:
    """The answer to one request as Ollama's objects. ``chat``: with a message; else with ``response``."""

    def __init__(self, model: str, chat: bool) -> None:
        self._model = model
        self._chat = chat
        self._sent = ""
        self._told = 0  # tokens whose probabilities were sent

    def piece(self, outputs: Mapping[str, Any], now_s: float) -> Dict[str, Any]:
        """The object of a piece."""
        text = text_of(outputs)
        self._sent += text
        return self._line(text, outputs, now_s, False)

    def last(self, answer: Answer, now_s: float) -> Dict[str, Any]:
        """The object that ends an answer, with all of it that no piece had: the whole where there was none."""
        outputs = answer.outputs
        text = text_of(outputs)
        rest = rest_of(text, self._sent)
        usage, reason = usage_of(outputs), finish_of(outputs)
        return {
            **self._line(rest, outputs, now_s, True),
            "done_reason": "stop" if reason == "tool_calls" else reason,
            "total_duration": int(answer.total_ms * NS_PER_MS),
            "load_duration": int(answer.breakdown_ms["load"] * NS_PER_MS),
            "prompt_eval_count": usage["prompt_tokens"],
            "eval_count": usage["completion_tokens"],
            "eval_duration": int(answer.breakdown_ms["execute"] * NS_PER_MS),
            **marks_of(answer),
        }

    def loaded(self, now_s: float) -> Dict[str, Any]:
        """The answer to a request without a question, which has Ollama load the model: it is loaded."""
        return {**self._line("", {}, now_s, True), "done_reason": "load"}

    def _line(self, text: str, outputs: Mapping[str, Any], now_s: float, done: bool) -> Dict[str, Any]:
        said: Dict[str, Any] = {"response": text}
        if self._chat:
            calls = [
                {"function": {"name": call["name"], "arguments": _object(call["arguments"])}}
                for call in calls_of(outputs)
            ]
            message = {"role": "assistant", "content": text}
            said = {"message": {**message, "tool_calls": calls} if calls else message}
        return {
            "model": self._model,
            "created_at": time_of(now_s),
            **said,
            "done": done,
            **self._chances(outputs, done),
        }

    def _chances(self, outputs: Mapping[str, Any], done: bool) -> Dict[str, Any]:
        """The probabilities of the tokens that were not told yet: a last line's outputs have those of the pieces."""
        chances = objects_of(outputs, "logprobs", "token")[self._told if done else 0 :]
        self._told += len(chances)
        return {"logprobs": chances} if chances else {}


def _object(arguments: str) -> Any:
    """The arguments of a call as an object. Raises :class:`Failed`: a call without them would be another."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(f"the arguments of the app's tool_calls are no JSON object: {arguments[:80]!r}")
    return found


def time_of(now_s: float) -> str:
    """A time of day as Ollama writes it (RFC 3339)."""
    return datetime.datetime.fromtimestamp(now_s, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def models_of(apps: Mapping[str, Any], since_s: float) -> List[Dict[str, Any]]:
    """The apps that can chat or embed, as ``/api/tags`` lists models."""
    return [
        {
            "name": listed(name),
            "model": listed(name),
            "modified_at": time_of(since_s),
            "size": 0,
            "digest": hashlib.sha256(name.encode()).hexdigest(),
            "details": DETAILS,
        }
        for name, app in apps.items()
        if can_chat(app) or can_embed(app)
    ]


DETAILS = {
    "parent_model": "",
    "format": "edgeserve",
    "family": "edgeserve",
    "families": ["edgeserve"],
    "parameter_size": "",
    "quantization_level": "",
}
"""The bus does not tell what a model is made of."""


def about_model(app: Mapping[str, Any]) -> Dict[str, Any]:
    """The facts of a model's file that clients read: the length of its context, where the server knows it."""
    about: Dict[str, Any] = {"general.architecture": "edgeserve"}
    if "context_tokens" in app:
        about["edgeserve.context_length"] = app["context_tokens"]
    return about


def capabilities_of(app: Mapping[str, Any]) -> List[str]:
    """The capabilities of an app, in Ollama's words."""
    chats = can_chat(app)
    tools = chats and (not app["inputs"] or "tools" in app["inputs"])
    able = {"completion": chats, "tools": tools, "embedding": can_embed(app)}
    return [name for name, is_so in able.items() if is_so]
