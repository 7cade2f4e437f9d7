"""Requests of OpenAI's protocol to an app's inputs: conversations, prompts, and texts to embed. Knows no transport.

An app that can chat takes ``messages`` (JSON text of OpenAI's messages) or ``prompt`` (a text), and optionally the
inputs of :data:`NUMBERS` and of :data:`STRUCTURED` (JSON text). ``completion.py`` says what it answers. A field of a
request that would change the answer is served, or refused by its name.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Set, Tuple

import numpy as np

from edgeserve.errors import BadInput, did_you_mean

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
    "repeat_last_n": np.int32,
    "logprobs": np.int32,
}
"""Options of a request that become inputs, with the dtype where the app declares none."""

INT32 = 2**31 - 1
FLOAT32 = float(np.finfo(np.float32).max)
WHOLE = {
    "max_tokens": (1, INT32),
    "seed": (1 - 2**64, 2**64 - 1),
    "top_k": (0, INT32),
    "repeat_last_n": (-1, INT32),
    "n": (1, INT32),
    "logprobs": (0, INT32),
    "top_logprobs": (0, INT32),
}
"""Fields that are whole numbers, the smallest and the largest. A seed is of 64 bits, with a sign or without; clients
round it to a float."""

LEFT_OUT: Dict[str, Any] = {
    "max_tokens": -1,
    "max_completion_tokens": -1,
    "max_output_tokens": -1,
    "top_k": -1,
    "seed": -1,
    "stop": "",
}
"""Fields -> the value with which clients say that they leave the field out."""

CHOICES_MAX = 16
"""Answers of one request, prompts times ``n``: each is a request to the server."""

TEXTS_MAX = 2048
"""Texts of one request for embeddings, as with OpenAI."""

NUMBER = (int, float)
EXTENSIONS: Dict[str, Tuple[str, Tuple[type, ...]]] = {
    "slo_ms": ("slo_ms", NUMBER),
    "deadline_ms": ("slo_ms", NUMBER),  # what programs for OpenAI's protocol say already
    "class": ("priority_class", (str,)),
    "value": ("value", NUMBER),
    "on_late": ("on_late", (str,)),
}
"""Fields of ours -> arguments of :meth:`Client.submit` and their types."""

STRUCTURED = ("stop", "logit_bias", "response_format", "tools", "tool_choice")
"""Options of a request that become an input each, the JSON text of what was sent."""

COMMON = {"model", "stream", "stream_options", "n", "logprobs", *NUMBERS, *STRUCTURED[:2]}
READ = {*COMMON, "messages", "max_completion_tokens", "top_logprobs", *STRUCTURED}
"""Fields of a conversation that are read."""

READ_OF_PROMPTS = {*COMMON, "prompt"}
"""The same of ``/v1/completions``."""

READ_OF_TEXTS = {"model", "input", "encoding_format"}
"""And of ``/v1/embeddings``."""

NEUTRAL: Dict[str, Tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "dimensions": (),
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
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "grammar": (),
}
"""Fields that would change the answer -> values with which they change nothing. Other values are served where the app
takes such an input, else refused."""

OPENAI_RECORD = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "parallel_tool_calls",
)
"""Fields of every body of OpenAI's that change no answer."""

FOR_THE_RECORD = {*OPENAI_RECORD, "prediction", "cache_prompt", "keep_alive"}
"""Fields that change no answer: they are for people, for accounts, or ask for speed alone."""

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles of messages, the older ones too -> the ones that apps get."""

TEXT_PARTS = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""Types of a message's parts that are texts -> where they have it."""


class BadField(BadInput):
    """A field of a request that is wrong or not served. ``param``: its name, as OpenAI's clients read it."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param}{problem}")
        self.param = param


class ChatRequest(NamedTuple):
    """One request, ready to be asked: ``asks`` are the app's inputs of each choice, ``n`` per prompt."""

    model: str
    asks: List[Dict[str, Any]]
    options: Dict[str, Any]
    stream: bool = False
    usage: bool = False  # a last piece with counts, in a stream
    n: int = 1


def can_chat(app: Mapping[str, Any]) -> bool:
    """True if an app takes a conversation or a prompt. One that declares no inputs can when it answers ``text``."""
    inputs = app["inputs"]
    if not inputs:
        return "text" in app["outputs"]
    return any(inputs[name]["dtype"] in OBJECTS for name in TEXT_INPUTS if name in inputs)


def read_request(body: Any, inputs: Mapping[str, Any]) -> ChatRequest:
    """A conversation's body, for an app with these declared ``inputs``. Raises :class:`BadInput` naming the field."""
    given = _given(body, READ)
    if "max_completion_tokens" in given:
        given["max_tokens"] = given["max_completion_tokens"]
    given = ask_chances(given)
    return _request(given, inputs, [_conversation(given.get("messages"), inputs)])


def ask_chances(given: Mapping[str, Any]) -> Dict[str, Any]:
    """``logprobs`` and ``top_logprobs`` of a conversation as the one number that prompts and apps take."""
    made = {field: value for field, value in given.items() if field not in ("logprobs", "top_logprobs")}
    wanted, count = given.get("logprobs", False), given.get("top_logprobs", 0)
    if not isinstance(wanted, bool):
        raise BadField("logprobs", f" = {_brief(wanted)}: expected true or false")
    _number("top_logprobs", count)
    if count and not wanted:
        raise BadField("top_logprobs", f" = {count}: needs logprobs = true")
    return {**made, "logprobs": count} if wanted else made


def read_prompts(body: Any, inputs: Mapping[str, Any]) -> ChatRequest:
    """The body of ``/v1/completions``: texts to continue or their tokens, one or several."""
    given = _given(body, READ_OF_PROMPTS)
    if given.get("logprobs") is False:
        del given["logprobs"]
    prompt = given.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or _is_tokens(prompt) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _is_tokens(p) for p in prompts):
        raise BadField("prompt", ": expected a text, the numbers of its tokens, or a list of such")
    asked: List[Dict[str, Any]] = [
        {"prompt": each} if isinstance(each, str) else {"tokens": np.array(each, np.int32)} for each in prompts
    ]
    for name in [name for each in asked for name in each if inputs and name not in inputs]:
        raise BadField("prompt", f": the app declares no input {name}; ask it at /v1/chat/completions")
    return _request(given, inputs, asked)


def _is_tokens(value: Any) -> bool:
    """True if it is a list of numbers of tokens."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= INT32 for each in value)
    )


def read_texts(body: Any, inputs: Mapping[str, Any]) -> Tuple[ChatRequest, bool]:
    """The body of ``/v1/embeddings``, and whether the vectors are sent as base64."""
    given = _given(body, READ_OF_TEXTS)
    texts = [given["input"]] if isinstance(given.get("input"), str) else given.get("input")
    if not isinstance(texts, list) or not 0 < len(texts) <= TEXTS_MAX or not all(isinstance(t, str) for t in texts):
        raise BadField(
            "input",
            f": expected a text, or a list of 1 to {TEXTS_MAX} texts; tokens are not served (LangChain's "
            "OpenAIEmbeddings sends texts with check_embedding_ctx_length=False)",
        )
    form = given.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise BadField("encoding_format", f' = {_brief(form)}: expected "float" or "base64"')
    name = text_input(inputs)
    return ChatRequest(body["model"], [{name: text} for text in texts], _options(given)), form == "base64"


def text_input(inputs: Mapping[str, Any]) -> str:
    """The one input that must be given, where it may be a text; else ``""``."""
    needed = [name for name, about in inputs.items() if not about.get("optional")]
    return needed[0] if len(needed) == 1 and inputs[needed[0]]["dtype"] in OBJECTS else ""


def can_embed(app: Mapping[str, Any]) -> bool:
    """True if an app takes one text and answers a vector: its output is called ``embedding``."""
    answers = (*app["outputs"], *app.get("output_types", {}))
    return "embedding" in answers and bool(text_input(app["inputs"]))


def _given(body: Any, read: Set[str]) -> Dict[str, Any]:
    """The fields that say something. Raises :class:`BadField` for one that is not served."""
    assert isinstance(body, dict), "checked by the route"
    given = {
        field: value
        for field, value in body.items()
        if value is not None and not (field in LEFT_OUT and value == LEFT_OUT[field])
    }
    _refuse_unserved(given, read)
    return given


def _options(given: Mapping[str, Any]) -> Dict[str, Any]:
    if "deadline_ms" in given and "slo_ms" in given:
        raise BadField("deadline_ms", " says again what slo_ms says; send one of them")
    return {
        argument: _extension(field, kinds, given[field])
        for field, (argument, kinds) in EXTENSIONS.items()
        if field in given
    }


def _request(given: Mapping[str, Any], inputs: Mapping[str, Any], asked: List[Dict[str, Any]]) -> ChatRequest:
    """Read the fields that conversations and prompts share. ``asked``: the inputs before the answer, per prompt."""
    stream, with_usage = given.get("stream", False), given.get("stream_options", {})
    if not isinstance(stream, bool):
        raise BadField("stream", f" = {_brief(stream)}: expected true or false")
    if not isinstance(with_usage, dict):
        raise BadField("stream_options", f" = {_brief(with_usage)}: expected an object")
    usage = with_usage.get("include_usage") or False
    if not isinstance(usage, bool):
        raise BadField("stream_options.include_usage", f" = {_brief(usage)}: expected true or false")
    if given.get("tool_choice") == "none" and inputs and "tool_choice" not in inputs:
        given = {field: value for field, value in given.items() if field != "tools"}  # none may be called
    values: Dict[str, Any] = {}
    for name, dtype in NUMBERS.items():
        if name in given and _taken(name, given[name], inputs):
            declared = inputs[name]["dtype"] if name in inputs else "any"
            values[name] = _array(name, _number(name, given[name]), dtype if declared in OBJECTS else declared)
    for name, read in zip(STRUCTURED, (_stops, _biases, _object, _tools, _choice)):
        if name in given:
            value = read(name, given[name])
            if _taken(name, value, inputs):
                values[name] = json.dumps(value, ensure_ascii=False)
    n = int(_number("n", given.get("n", 1)))
    if n * len(asked) > CHOICES_MAX:
        raise BadField("n", f" = {n}: {n * len(asked)} answers of one request; expected at most {CHOICES_MAX}")
    asks = [{**each, **values, **_own_draws(values, inputs, place)} for each in asked for place in range(n)]
    return ChatRequest(given["model"], asks, _options(given), stream, usage, n)


def _own_draws(values: Mapping[str, Any], inputs: Mapping[str, Any], place: int) -> Dict[str, Any]:
    """The inputs with which one of several choices draws for itself: its number, which models add to the seed that
    they use; where the app does not take that, ``seed`` plus the number, wrapped around at the largest."""
    if place and "choice" in inputs:
        declared = inputs["choice"]["dtype"]
        return {"choice": _array("choice", place, np.int32 if declared in OBJECTS else declared)}
    if not place or "seed" not in values:
        return {}
    with np.errstate(over="ignore"):
        return {"seed": values["seed"] + np.asarray(place, values["seed"].dtype)}


def _refuse_unserved(given: Mapping[str, Any], read: Set[str]) -> None:
    """Refuse the fields that nothing here reads, unless they ask for nothing."""
    for field, value in given.items():
        if field in read or field in EXTENSIONS or field in FOR_THE_RECORD or _is_neutral(field, value):
            continue
        if field in NEUTRAL:
            allowed = "".join([f", or send {json.dumps(neutral)}" for neutral in NEUTRAL[field]])
            raise BadField(field, f" = {_brief(value)} is not served here; leave it out{allowed}")
        known = {*read, *EXTENSIONS, *FOR_THE_RECORD, *NEUTRAL}
        raise BadField(field, f": a request has no such field{did_you_mean(field[:64], known)} Leave it out")


def _is_neutral(field: str, value: Any) -> bool:
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL.get(field, ())
    )


def _taken(name: str, value: Any, inputs: Mapping[str, Any]) -> bool:
    """True if a field becomes an input: where the app takes it, or declares none at all. One that asks for nothing is
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
    return value if str in kinds else _number(field, value)


def _conversation(messages: Any, inputs: Mapping[str, Any]) -> Dict[str, Any]:
    if not isinstance(messages, list) or not messages:
        raise BadField("messages", ": expected a list of at least one message")
    plain = _in_order([_message(f"messages[{index}]", message) for index, message in enumerate(messages)])
    if "messages" in inputs or not inputs:
        return {"messages": json.dumps(plain, ensure_ascii=False)}
    if any("tool_calls" in message for message in plain):
        raise BadField("messages", ": tool_calls need an app with the input messages; this one takes a prompt")
    return {"prompt": "\n".join([message["content"] for message in plain])}


def _in_order(messages: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The messages, results in the order of their calls: clients send them in any order, and many a template knows no
    ids."""
    keys, asked, order = [], 0, {}
    for place, message in enumerate(messages):
        if message["role"] != "tool":
            asked, order = place, {call["id"]: number for number, call in enumerate(message.get("tool_calls", ()))}
            keys.append((place, -1))
        else:
            keys.append((asked, order.get(message.get("tool_call_id"), len(order))))
    return [messages[place] for place in sorted(range(len(messages)), key=keys.__getitem__)]


def _message(where: str, message: Any) -> Dict[str, Any]:
    """Role and text of a message, the calls of an assistant's, and the call that a result is for; any other name is for
    people."""
    said = message.get("role") if isinstance(message, dict) else None
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise BadField(where, f": expected an object whose role is one of {', '.join(ROLES)}")
    for field in ("function_call", "audio", "images"):
        if message.get(field):
            raise BadField(f"{where}.{field}", " is not served here; write it into the message's content")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise BadField(f"{where}.tool_calls", ": expected a list, in a message of the assistant")
    content = message.get("content")
    if content is None:  # such as of an assistant that called a function, and of a function that gave nothing
        content = message.get("refusal") or ""
    if isinstance(content, list):
        texts = [_part(part) for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise BadField(f"{where}.content", ": only parts of type text are served, each with its text")
        content = "".join(texts)
    if not isinstance(content, str):
        raise BadField(f"{where}.content", ": expected a text")
    plain = {"role": role, "content": content}
    if role == "tool":
        plain.update({key: message[key] for key in ("tool_call_id", "name") if isinstance(message.get(key), str)})
    return {**plain, "tool_calls": [_call(where, call) for call in calls]} if calls else plain


def _part(part: Any) -> Any:
    """The text of a part of a message; 0, which is no text, for a part of another type."""
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else 0
    return "" if text is None else text


def _call(where: str, call: Any) -> Dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadField(f"{where}.tool_calls", ': expected objects with {"function": {"name": ..., "arguments": ...}}')
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    called = {"name": function["name"], "arguments": arguments}
    return {"id": str(call.get("id") or ""), "type": "function", "function": called}


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, NUMBER):
        raise BadField(name, f" = {_brief(value)}: expected a number")
    if name not in WHOLE:
        if not -FLOAT32 <= value <= FLOAT32:
            raise BadField(name, f" = {_brief(value)}: expected a number of at most {FLOAT32:.1g}")
        return float(value)
    low, high = WHOLE[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not (isinstance(value, int) and low <= value <= high):
        raise BadField(name, f" = {_brief(value)}: expected a whole number from {low} to {high}")
    return (value + 2**63) % 2**64 - 2**63 if name == "seed" else value


def _array(name: str, number: float, dtype: Any) -> Any:
    """The number as the app takes it."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise BadField(name, f" = {_brief(number)}: the app takes it as {dtype}")
    return np.asarray(number, dtype)


def _stops(name: str, stop: Any) -> List[str]:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise BadField(name, ": expected a text, or a list of texts")
    return [text for text in stops if text]


def _object(name: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadField(name, f" = {_brief(value)}: expected an object with a type")
    return value


def _tools(name: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise BadField(name, f" = {_brief(value)}: expected a list of functions")
    for place, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        is_function = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not is_function or tool.get("type") not in (None, "function"):
            raise BadField(f"{name}[{place}]", ": expected an object of type function with a function with a name")
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
