"""The question of a person, of a language model's inputs: the text from which the length of an answer is predicted."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional

import numpy as np

USER = "user"


def question(inputs: Mapping[str, Any]) -> Optional[str]:
    """The ``prompt``, or the user's last message of ``messages`` (a list of messages, or the same as JSON text, whose
    contents may be lists of parts); ``None`` where there is no such text."""
    prompt = _plain(inputs.get("prompt"))
    if isinstance(prompt, str):
        return prompt
    messages = _plain(inputs.get("messages"))
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError:
            return None
    if not isinstance(messages, (list, tuple)):
        return None
    said = [message for message in messages if isinstance(message, Mapping) and message.get("role") == USER]
    return _text(said[-1].get("content")) if said else None


def _text(content: Any) -> Optional[str]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "".join([text for text in texts if isinstance(text, str)]) or None


def _plain(value: Any) -> Any:
    """A value as it was given, of one that came over the bus as bytes or as an array without axes."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
