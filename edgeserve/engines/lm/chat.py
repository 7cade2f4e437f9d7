"""A conversation as the text that its model was trained on: the model's own Jinja template, or ChatML.

A template comes inside the model's file, so it is rendered in Jinja's sandbox. What people write in a message never
counts as a control token: the names of control tokens are taken out of it before the template sees it.
"""

from __future__ import annotations

import functools
from typing import Any, List, Mapping, Sequence

from edgeserve.engines.lm.backend import Tokenizer
from edgeserve.errors import EngineError

CHATML = "chatml"
"""The template of that name: OpenAI's ChatML, without a system message of its own."""


def conversation_tokens(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], model: str) -> List[int]:
    """The conversation's tokens up to where the assistant's answer begins. The model's first tokens stand there once,
    whether or not the template writes them, as on llama.cpp's server. Raises what :func:`render` raises."""
    tokens = tokenizer.encode(render(tokenizer, messages, model), special=True)
    first = list(tokenizer.first)
    return tokens if tokens[: len(first)] == first else [*first, *tokens]


def render(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], model: str) -> str:
    """The text up to where the assistant's answer begins. Raises :class:`EngineError` where the model has no template,
    or refuses the conversation."""
    template = tokenizer.chat_template
    if not template:
        raise EngineError(
            f"model {model!r} has no chat template, so it takes prompt or tokens, not messages; a model "
            "that was trained on conversations brings one"
        )
    plain = [{**message, "content": without(message["content"], tokenizer.special_texts)} for message in messages]
    if template == CHATML:
        return chatml(plain)
    try:
        text: str = _compiled(template).render(
            messages=plain, add_generation_prompt=True, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"model {model!r}: its chat template refuses the messages: {error}") from error
    return text


def chatml(messages: Sequence[Mapping[str, str]]) -> str:
    """The conversation as ChatML, up to the assistant's next turn."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join([*turns, "<|im_start|>assistant\n"])


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
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise EngineError(
            f"the chat template needs a library that cannot be imported ({error}); pip install 'edgeserve-runtime[lm]'"
        ) from None

    def refuse(reason: str) -> None:
        raise ValueError(reason)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template)
