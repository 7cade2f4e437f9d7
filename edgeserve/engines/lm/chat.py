"""A conversation as the text that its model was trained on: the model's own Jinja template, or ChatML.

A template comes inside the model's file, so it is rendered in Jinja's sandbox. What people write in a message never
counts as a control token: the names of control tokens are taken out of it before the template sees it.
"""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from edgeserve.engines.lm.backend import Tokenizer
from edgeserve.engines.lm.tools import NO_TOOLS, Message, Tools, described, written
from edgeserve.errors import EngineError, WrongInput

CHATML = "chatml"
"""The template of that name: OpenAI's ChatML, without a system message of its own."""


def conversation_tokens(
    tokenizer: Tokenizer, messages: Sequence[Message], model: str, tools: Tools = NO_TOOLS
) -> List[int]:
    """The conversation's tokens up to where the assistant's answer begins. The model's first tokens stand there once,
    whether or not the template writes them, as on llama.cpp's server. Raises what :func:`render` raises."""
    tokens = tokenizer.encode(render(tokenizer, messages, model, tools), special=True)
    first = list(tokenizer.first)
    return tokens if tokens[: len(first)] == first else [*first, *tokens]


def render(tokenizer: Tokenizer, messages: Sequence[Message], model: str, tools: Tools = NO_TOOLS) -> str:
    """The text up to where the assistant's answer begins. Raises :class:`WrongInput` where the model has no template,
    or it refuses the conversation, and :class:`EngineError` where it is no template."""
    template = tokenizer.chat_template
    if not template:
        raise WrongInput(
            f"model {model!r} has no chat template, so it takes prompt or tokens, not messages; a model "
            "that was trained on conversations brings one"
        )
    names = tokenizer.special_texts
    plain: Any = _cleaned(written(messages, tools, template), names)
    if template == CHATML:
        return chatml(plain)
    known: Any = _cleaned(described(tools), names)
    try:
        compiled = _compiled(template)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"model {model!r}: its chat template is none: {error}") from error
    try:
        text: str = compiled.render(
            messages=plain,
            tools=known or None,
            add_generation_prompt=True,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
    except Exception as error:
        raise WrongInput(f"model {model!r}: its chat template refuses the messages: {error}") from error
    return text


def chatml(messages: Sequence[Mapping[str, str]]) -> str:
    """The conversation as ChatML, up to the assistant's next turn."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join([*turns, "<|im_start|>assistant\n"])


def _cleaned(value: Any, names: Sequence[str]) -> Any:
    """The same with the names of control tokens taken out of every text in it."""
    if isinstance(value, str):
        return without(value, names)
    if isinstance(value, Mapping):
        return {_cleaned(key, names): _cleaned(inner, names) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(inner, names) for inner in value]
    return value


def without(text: str, names: Sequence[str]) -> str:
    """The text without these names, also where one appears because another was taken out. Takes time in proportion to
    the text: a name is taken out as soon as its last character is read."""
    known, ends = set(names), {name[-1:] for name in names}
    lengths = sorted({len(name) for name in known}, reverse=True)
    kept: List[str] = []
    for character in text:
        kept.append(character)
        if character in ends:
            tail = "".join(kept[-lengths[0] :])
            found = next((tail[-length:] for length in lengths if tail[-length:] in known), "")
            del kept[len(kept) - len(found) :]
    return "".join(kept)


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> Any:
    """The template, with what transformers gives to templates, since that is what they are written for."""
    try:
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import Scope
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise EngineError(
            f"the chat template needs a library that cannot be imported ({error}); pip install 'edgeserve-runtime[lm]'"
        ) from None

    class GenerationTag(Extension):
        """``{% generation %}`` marks, for training, what the assistant said: here its content counts alone."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)


def _refuse(reason: str) -> None:
    raise ValueError(reason)


def _strftime_now(form: str) -> str:
    """The local date and time: some templates tell the model the date."""
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Optional[int] = None,
    separators: Optional[Tuple[str, str]] = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training. Jinja's own filter writes it for HTML: escaped, its keys sorted."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
