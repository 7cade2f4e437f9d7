"""OpenAI's ``/v1/responses`` in terms of its chat protocol: a body to one that ``chat.py`` reads, an answer to a
response, pieces to its events. Knows no transport.

Nothing is stored, so a client sends the whole conversation; what would need a store is refused by its name.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from edgeserve.answers import Answer
from edgeserve.front import rest_of
from edgeserve.fronts.http.chat import EXTENSIONS, OPENAI_RECORD, BadField, ChatRequest, read_request
from edgeserve.fronts.http.chat import READ as OF_CONVERSATIONS
from edgeserve.fronts.http.completion import calls_of, finish_of, text_of, usage_of

SAME = (
    *("model", "stream", "temperature", "top_p", "tool_choice", "top_k", "min_p", "seed", "stop"),
    *OPENAI_RECORD,
    *("frequency_penalty", "presence_penalty", "repeat_penalty", "repeat_last_n", *EXTENSIONS),
)
"""Fields that mean what they mean in a conversation's body."""

WHOLE_CONVERSATION = "nothing is stored here: send the whole conversation in input"
NEUTRAL: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "previous_response_id": ((), WHOLE_CONVERSATION),
    "conversation": ((), WHOLE_CONVERSATION),
    "prompt": ((), "no prompts are stored here: send instructions and input"),
    "background": ((False,), "a response ends with its request: leave it out"),
    "truncation": (("disabled", "auto"), "the model's option long_conversation says it: leave it out"),
    "top_logprobs": ((0,), "ask /v1/chat/completions for logprobs"),
    "max_tool_calls": ((), "the client calls functions here: leave it out"),
}
"""Fields that would change the answer -> values with which they change nothing, and what to use instead."""

INCLUDED = ("reasoning.encrypted_content", "message.output_text.logprobs")
"""The fields that clients ask for by habit and that no answer has."""

READ = {
    *NEUTRAL,
    "input",
    "instructions",
    "max_output_tokens",
    "tools",
    "text",
    "reasoning",
    "include",
    "stream_options",
}
"""Fields that are read here. Those of a conversation's body that this one has not are refused; so is, by ``chat.py``,
what neither has."""


def read_response(body: Any, inputs: Mapping[str, Any]) -> ChatRequest:
    """The body of ``/v1/responses`` for an app with these declared ``inputs``. Raises :class:`BadInput`."""
    given = {field: value for field, value in body.items() if value is not None}
    for field, (neutral, instead) in NEUTRAL.items():
        if field in given and not any(value == given[field] for value in neutral):
            raise BadField(field, f" is not served: {instead}")
    for field in given:
        if field in OF_CONVERSATIONS and field not in SAME and field not in READ:
            raise BadField(field, ": a response has no such field, it is of /v1/chat/completions; leave it out")
    asked = {field: value for field, value in given.items() if field in SAME or field not in READ}
    asked["messages"], places = _messages(given.get("instructions"), given.get("input"))
    if "max_output_tokens" in given:
        asked["max_completion_tokens"] = given["max_output_tokens"]
    if "tools" in given:
        asked["tools"] = _tools(given["tools"])
    if isinstance(given.get("tool_choice"), dict):
        asked["tool_choice"] = _choice(given["tool_choice"])
    asked.update(_of_text(given.get("text", {})))
    reasoning = given.get("reasoning", {})
    if not isinstance(reasoning, dict) or any(value not in (None, "none") for value in reasoning.values()):
        raise BadField("reasoning", " is not served; leave it out")
    if not isinstance(given.get("include", []), list) or any(each not in INCLUDED for each in given.get("include", [])):
        raise BadField("include", f": only {' and '.join(INCLUDED)} are passed over; leave it out")
    try:
        return read_request(asked, inputs)
    except BadField as error:
        names = {
            **{f"messages[{index}]": place for index, place in enumerate(places)},
            **{"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"},
        }
        old = error.param.partition(".")[0]
        raise BadField(error.param.replace(old, names.get(old, old), 1), str(error)[len(error.param) :]) from None


def _messages(instructions: Any, given: Any) -> Tuple[List[Any], List[str]]:
    """The conversation, and where each of its messages stood: calls that follow each other are of one message."""
    found: List[Any] = []
    places: List[str] = []
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
        places.append("instructions")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}], [*places, "input"]
    if not isinstance(given, list) or not given:
        raise BadField("input", ": expected a text, or a list of at least one item")
    for place, item in enumerate(given):
        where = f"input[{place}]"
        kind = item.get("type") or "message" if isinstance(item, dict) else None
        if kind == "message":
            found.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": str(item.get("call_id") or ""), "type": "function", "function": function}
            if not (found and found[-1]["role"] == "assistant"):
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind != "reasoning":
            raise BadField(
                where, ": expected an object of type message, function_call, function_call_output or reasoning"
            )
        places += [where] * (len(found) - len(places))
    return found, places


def _tools(tools: Any, where: str = "tools") -> Any:
    """Functions as a conversation's body has them; ``where``: the field that holds them."""
    if not isinstance(tools, list):
        raise BadField(where, ": expected a list of functions")
    for place, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise BadField(f"{where}[{place}]", ": expected an object of type function with a name")
    kept = ("name", "description", "parameters", "strict")
    return [
        {"type": "function", "function": {key: tool[key] for key in kept if tool.get(key) is not None}}
        for tool in tools
    ]


def _choice(choice: Mapping[str, Any]) -> Dict[str, Any]:
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") != "allowed_tools":
        raise BadField("tool_choice", ": expected a text, a function, or allowed_tools")
    tools = _tools(choice.get("tools") or [], "tool_choice.tools")
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}


def _of_text(text: Any) -> Dict[str, Any]:
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise BadField("text", ": expected an object with format or verbosity")
    form = text.get("format")
    found = {"verbosity": text["verbosity"]} if text.get("verbosity") is not None else {}
    if form is None:
        return found
    if not isinstance(form, dict):
        raise BadField("text.format", ": expected an object with a type")
    if form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
    return {**found, "response_format": form}


class Response:
    """The answer to one request in the protocol's words. ``body``: what was asked, which is told again."""

    def __init__(self, request_id: str, created_s: int, body: Mapping[str, Any]) -> None:
        self._id = request_id
        self._head = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": created_s,
            "model": body["model"],
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.get("temperature"),
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "truncation": "disabled",
        }
        self._text = ""
        self._count = 0  # of events
        self._has_begun = self._has_message = False

    def whole(self, answer: Answer) -> Dict[str, Any]:
        """The response."""
        outputs = answer.outputs
        text, usage = text_of(outputs), usage_of(outputs)
        calls = self._calls(outputs)
        items = [self._message(text, "completed")] if text or not calls or self._has_message else []
        items += calls
        is_cut = finish_of(outputs) == "length"
        if is_cut:
            items[-1]["status"] = "incomplete"
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        about = {"late": answer.late, **({"reason": answer.reason} if answer.reason else {})}
        return {
            **self._response("incomplete" if is_cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": items,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            "edgeserve": about,
        }

    def piece(self, outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
        """The events of a piece."""
        return self._said(text_of(outputs))

    def last(self, answer: Answer) -> List[Dict[str, Any]]:
        """The events that end the response: what of the text no piece had, the calls, the whole."""
        rest = rest_of(text_of(answer.outputs), self._text)
        events = self._said(rest) if rest or not calls_of(answer.outputs) else self._begun()
        whole = self.whole(answer)
        items = whole["output"]
        if self._has_message:
            said = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
            events.append(self._event("response.output_text.done", text=self._text, logprobs=[], **said))
            events.append(self._event("response.content_part.done", part=self._part(self._text), **said))
            message = self._message(self._text, items[0]["status"])
            events.append(self._event("response.output_item.done", output_index=0, item=message))
        for index, call in list(enumerate(items))[self._has_message :]:
            begun = {**call, "arguments": "", "status": "in_progress"}
            about = {"item_id": call["id"], "output_index": index}
            done, arguments = "response.function_call_arguments.done", call["arguments"]
            events += [
                self._event("response.output_item.added", output_index=index, item=begun),
                self._event("response.function_call_arguments.delta", delta=arguments, **about),
                self._event(done, arguments=arguments, name=call["name"], **about),
                self._event("response.output_item.done", output_index=index, item=call),
            ]
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def failed(self, error: Mapping[str, Any]) -> Dict[str, Any]:
        """The event of an error, of which ``error`` is OpenAI's form."""
        return self._event("error", **{key: error.get(key) for key in ("code", "message", "param")})

    def _said(self, text: str) -> List[Dict[str, Any]]:
        events = self._begun()
        at = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        if not self._has_message:
            self._has_message = True
            item = {**self._message("", "in_progress"), "content": []}
            events.append(self._event("response.output_item.added", output_index=0, item=item))
            events.append(self._event("response.content_part.added", part=self._part(""), **at))
        self._text += text
        if text:
            events.append(self._event("response.output_text.delta", delta=text, logprobs=[], **at))
        return events

    def _begun(self) -> List[Dict[str, Any]]:
        if self._has_begun:
            return []
        self._has_begun = True
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response("in_progress")) for kind in kinds]

    def _response(self, status: str) -> Dict[str, Any]:
        return {**self._head, "status": status, "error": None, "incomplete_details": None, "output": [], "usage": None}

    def _event(self, kind: str, **about: Any) -> Dict[str, Any]:
        self._count += 1
        return {"type": kind, "sequence_number": self._count - 1, **about}

    @property
    def _message_id(self) -> str:
        return f"msg_{self._id}"

    def _message(self, text: str, status: str) -> Dict[str, Any]:
        content = [self._part(text)]
        return {"id": self._message_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> Dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _calls(self, outputs: Mapping[str, Any]) -> List[Dict[str, Any]]:
        return [
            {
                "id": f"fc_{self._id}_{place}",
                "type": "function_call",
                "call_id": f"call_{self._id}_{place}",
                "name": call["name"],
                "arguments": call["arguments"],
                "status": "completed",
            }
            for place, call in enumerate(calls_of(outputs))
        ]
