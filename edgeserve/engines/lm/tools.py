"""Tool calls: how a conversation tells a model of its tools, what a call looks like, and how calls are read from text.

Models write calls in the forms that they were trained on. The template says which: ``<tool_call>`` tags around an
object (Hermes, Qwen, SmolLM), ``[TOOL_CALLS]`` before a list (Mistral), or a bare object (Llama). A model whose
template knows no tools is told of them in a system message, with tags.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.engines.lm.constraint import json_grammar_rule, lark_grammar
from edgeserve.errors import WrongInput

TOOLS_MAX = 128
"""The most tools of one request, as in OpenAI's API."""

CHOICES = ("none", "auto", "required")
BEGIN, END = "<tool_call>", "</tool_call>"
LIST_MARK = "[TOOL_CALLS]"
CALL_MARKS = (BEGIN, LIST_MARK)
OBJECT_MARKS = ("python_tag", '"parameters"')
"""Either in a template means the bare object of Llama's models, whose arguments are called ``parameters``."""

INSTRUCTIONS = """You may call functions to help with what the user asks. These are the functions, as JSON:
<tools>
{tools}
</tools>
For each call, answer with an object of the function's name and its arguments within tags:
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>"""

Message = Mapping[str, Any]


class Tools(NamedTuple):
    """``functions``: their descriptions as in OpenAI's API (``name``, ``description``, ``parameters``). ``choice``: one
    of :data:`CHOICES`, or the name of the function that is to be called."""

    functions: Tuple[Mapping[str, Any], ...] = ()
    choice: str = "auto"

    @property
    def names(self) -> Tuple[str, ...]:
        """The names of the functions that the answer may call."""
        if self.choice == "none":
            return ()
        return tuple(each["name"] for each in self.functions if self.choice in CHOICES or self.choice == each["name"])


NO_TOOLS = Tools()


def tools_of(tools: Any, choice: Any) -> Tools:
    """``tools`` and ``tool_choice`` of OpenAI's API. Raises :class:`WrongInput` naming the field."""
    if not isinstance(tools, (list, tuple)) or len(tools) > TOOLS_MAX:
        raise WrongInput(f"tools: expected a list of at most {TOOLS_MAX} functions")
    functions: List[Message] = []
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise WrongInput(f'tools[{place}]: expected {{"type": "function", "function": {{"name": ..., ...}}}}')
        if not isinstance(function.get("parameters", {}), dict):
            raise WrongInput(f"tools[{place}].function.parameters: expected a JSON schema")
        functions.append(function)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions, choice = _allowed(functions, choice.get("allowed_tools"))
    if isinstance(choice, dict):
        named = choice.get("function")
        choice = named.get("name") if isinstance(named, dict) else None
        wanted: Sequence[Any] = [each["name"] for each in functions]
    else:
        wanted = CHOICES
    if choice not in wanted:
        raise WrongInput(
            f"tool_choice is {str(choice)[:40]!r}; expected one of {', '.join(CHOICES)}, or "
            '{"type": "function", "function": {"name": ...}} of one of the tools'
        )
    if choice == "required" and not functions:
        raise WrongInput("tool_choice is 'required', and there are no tools")
    return Tools(tuple(functions), str(choice))


def _allowed(functions: Sequence[Message], about: Any) -> Tuple[List[Message], Any]:
    """The functions that ``allowed_tools`` of a ``tool_choice`` names, and its mode."""
    about = about if isinstance(about, dict) else {}
    listed = about["tools"] if isinstance(about.get("tools"), list) else [None]
    named = [each.get("function") if isinstance(each, dict) else None for each in listed]
    names = [each.get("name") if isinstance(each, dict) else None for each in named]
    known = [each["name"] for each in functions]
    if about.get("mode") not in ("auto", "required") or not all(name in known for name in names):
        raise WrongInput(
            'tool_choice.allowed_tools: expected a mode, "auto" or "required", and tools, a list of '
            '{"type": "function", "function": {"name": ...}} of some of the tools'
        )
    return [each for each in functions if each["name"] in names], about["mode"]


# --- the conversation -------------------------------------------------------------------------------------------------


def written(messages: Sequence[Message], tools: Tools, template: str) -> List[Message]:
    """The messages as the template expects them: calls as objects where it knows tools, else all as text."""
    if "tools" in template:
        return [_with_objects(message) for message in messages]
    told = [_as_text(message) for message in messages]
    if not tools.names:
        return told
    text = INSTRUCTIONS.format(tools="\n".join([json.dumps(_described(each)) for each in tools.functions]))
    if told and told[0]["role"] == "system":
        return [{"role": "system", "content": f"{told[0]['content']}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _described(function: Mapping[str, Any]) -> Dict[str, Any]:
    return {"type": "function", "function": dict(function)}


def described(tools: Tools) -> List[Dict[str, Any]]:
    """The tools as templates get them."""
    return [_described(each) for each in tools.functions] if tools.names else []


def _with_objects(message: Message) -> Message:
    """Templates write arguments as JSON themselves."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append({**call, "function": {**function, "arguments": _object_of(function.get("arguments", {}))}})
    return {**message, "tool_calls": calls}


def _as_text(message: Message) -> Message:
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        f"{BEGIN}\n"
        + json.dumps({"name": function["name"], "arguments": _object_of(function.get("arguments", {}))})
        + f"\n{END}"
        for function in [call["function"] for call in message.get("tool_calls") or ()]
    ]
    return {"role": message["role"], "content": "\n".join([part for part in [content, *calls] if part])}


def _object_of(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


# --- the answer -------------------------------------------------------------------------------------------------------


def grammar_for(tools: Tools, template: str, encode: Callable[[str], Sequence[int]]) -> str:
    """The grammar of the answer: one call where one is required, else text in which each call in tags is one of these
    functions with arguments that fit; empty where nothing can be said before. ``encode`` finds control tokens."""
    key = "parameters" if _is_bare(template) else "arguments"
    call = json_grammar_rule(
        {"anyOf": [_call_schema(each, key) for each in tools.functions if each["name"] in tools.names]}
    )
    if tools.choice == "auto":
        if _is_bare(template) or LIST_MARK in template:
            return ""
        return lark_grammar(
            f"start: (call_after_text)* TEXT\ncall_after_text: begin NEXT call {_quoted(chr(10) + END)}\n"
            f"begin[lazy]: TEXT {_quoted(BEGIN)}\nNEXT: /\\n?/\nTEXT: /(.|\\n)*/\ncall: {call}"
        )
    if LIST_MARK in template:
        mark = encode(LIST_MARK)
        before = f"<[{mark[0]}]> " if len(mark) == 1 else ""
        return lark_grammar(f'start: {before}"[" call "]"\ncall: {call}')
    if _is_bare(template):
        return lark_grammar(f"start: call\ncall: {call}")
    return lark_grammar(f"start: {_quoted(BEGIN + chr(10))} call {_quoted(chr(10) + END)}\ncall: {call}")


def _is_bare(template: str) -> bool:
    return BEGIN not in template and any(mark in template for mark in OBJECT_MARKS)


def _call_schema(function: Mapping[str, Any], key: str) -> Dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, key: parameters},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _quoted(text: str) -> str:
    return json.dumps(text)


def calls_of(text: str, names: Sequence[str]) -> List[Dict[str, str]]:
    """The calls in the end of an answer that may hold some, in OpenAI's form without numbers: ``name``, and
    ``arguments`` as JSON text. Empty where one of them is none of these functions, or no JSON."""
    found: List[Dict[str, str]] = []
    for part in _parts(text):
        name, arguments = part.get("name"), part.get("arguments", part.get("parameters", {}))
        if name not in names or not isinstance(arguments, dict):
            return []
        try:
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            written.encode()
        except UnicodeError:  # half of a character, which cannot travel but as it was written
            written = json.dumps(arguments, allow_nan=False)
        except ValueError:  # NaN, or a number beyond all: no JSON
            return []
        found.append({"name": str(name), "arguments": written})
    return found


def beside_calls(text: str) -> Tuple[str, str]:
    """The calls of a text that has some, and what else it says before, between and behind them."""
    pieces, said = _cut(text)
    if BEGIN in text:
        text = "".join([f"{BEGIN}{piece}{END}" for piece in pieces])
    elif LIST_MARK in text:
        text = "".join([f"{LIST_MARK}{piece}" for piece in pieces])
    return text, said if said.strip() else ""


def _cut(text: str) -> Tuple[List[str], str]:
    """The JSON texts of the calls, and the rest of the text. Calls stand within tags, behind the mark of a list, or are
    all of a text without marks: text behind a bare object may speak of it, and nothing says that it was meant."""
    if BEGIN in text:
        before, *pieces = text.split(BEGIN)
        cut = [piece.partition(END) for piece in pieces]
        return [call for call, _, _ in cut], "".join([before.replace(LIST_MARK, ""), *[rest for _, _, rest in cut]])
    if LIST_MARK not in text:
        return [text], ""
    before, *rest = text.split(LIST_MARK, 1)
    pieces, said = [], [before]
    while rest:
        start = len(rest[0]) - len(rest[0].lstrip())
        end = _json_end(rest[0], start)
        pieces.append(rest[0][start:end])
        behind, *rest = rest[0][end:].split(LIST_MARK, 1)
        said.append(behind)
    return pieces, "".join(said)


def _json_end(text: str, start: int) -> int:
    """The end of the JSON value at a place of a text; the text's end where there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return len(text)


def _parts(text: str) -> List[Dict[str, Any]]:
    """The objects within tags or lists, or the bare ones."""
    objects: List[Dict[str, Any]] = []
    for piece in _cut(text)[0]:
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            return []
        objects += value if isinstance(value, list) else [value]
    return objects if all(isinstance(each, dict) for each in objects) else []
