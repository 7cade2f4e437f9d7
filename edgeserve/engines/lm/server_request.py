"""An item as the body of a request to a server with OpenAI's API."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from edgeserve.engines.base import Values
from edgeserve.engines.lm.generation import SAMPLING_BOUNDS, TextReader

PASSED = ("response_format", "tools", "logit_bias")
"""Inputs that the server reads itself, as OpenAI has them."""

OWN_NUMBERS = {"repeat_penalty": "repetition_penalty"}
"""Numbers of sampling that servers know by another name too: llama-server's, vLLM's."""


class RequestReader(TextReader):
    """Reads items as the body of a request. What OpenAI's API has is handed on as it is."""

    def __init__(self, model: str, context: int) -> None:
        self._model = model
        self._context = context
        self._vocabulary = 2**31

    def body(self, item: Values, defaults: Mapping[str, Any], max_tokens: int, chat: bool) -> Dict[str, Any]:
        """The request. Raises :class:`WrongInput` naming the model, the input and what was expected."""
        given = {name: item[name] for name in ("tokens", "messages", "prompt") if item.get(name) is not None}
        if len(given) != 1:
            raise self._refuse(
                f"give one of the inputs prompt, messages and tokens; got {' and '.join(given) or 'none'}"
            )
        body: Dict[str, Any] = {**defaults, "stream": True, "stream_options": {"include_usage": True}}
        if "messages" in given:
            body["messages"] = [dict(each) for each in self._messages(given["messages"])]
        elif "tokens" in given:
            body["prompt"] = self._ids(given["tokens"])
        else:
            text = self._text(given["prompt"], "prompt")
            body["messages" if chat else "prompt"] = [{"role": "user", "content": text}] if chat else text
        if not body.get("messages", body.get("prompt")):
            raise self._refuse("the prompt is empty; give at least one token")
        if isinstance(body.get("prompt"), list) and len(body["prompt"]) >= self._context:
            raise self._refuse(f"the prompt has {len(body['prompt'])} tokens; at most {self._context - 1} fit")
        for name, (low, high) in SAMPLING_BOUNDS.items():
            if item.get(name) is not None:
                body[name] = self._number(item, name, 0.0, low, high)
        body.update({other: body[name] for name, other in OWN_NUMBERS.items() if name in body})
        for name, low in (("top_k", 0), ("seed", -(2**63))):
            if item.get(name) is not None:
                body[name] = self._whole(item, name, 0, low)
        if "seed" in body:
            body["seed"] += self._whole(item, "choice", 0, 0)
        body["max_tokens"] = min(self._whole(item, "max_tokens", max_tokens, 1), max_tokens)
        if self._whole(item, "ignore_eos", 0, 0):
            body["ignore_eos"] = True
        if item.get("stop") is not None:
            body["stop"] = list(self._stops(item))
        likely = self._logprobs(item)
        if likely >= 0:
            body.update({"logprobs": True, "top_logprobs": likely} if "messages" in body else {"logprobs": likely})
        body.update({name: self._parsed(item[name], name) for name in PASSED if item.get(name) is not None})
        if item.get("tool_choice") is not None:
            body["tool_choice"] = self._choice(item)
        try:  # a server that fails at it would be the one in trouble
            json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise self._refuse(f"the inputs must be JSON: {error}") from None
        return body
