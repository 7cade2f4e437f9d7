"""The defaults of an app of a language model: the inputs that clients of OpenAI's and Ollama's APIs send, and the
handling of an answer that has begun at its deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from edgeserve.config.schema import WRITING_ENGINES, AppConfig, ModelConfig, TensorConfig

LANGUAGE = "lm"

QUESTIONS = ("prompt", "messages", "tokens")
"""An item has exactly one of these. An app that declares any of them has no other one by itself."""

OPTIONS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "logit_bias",
    "seed",
    "choice",
    "stop",
    "response_format",
    "tools",
    "tool_choice",
    "logprobs",
    "ignore_eos",
)
"""The further inputs that an item may have (``edgeserve/engines/lm/generation.py`` reads them)."""


def completed(app: AppConfig, section: Mapping[str, Any], models: Mapping[str, ModelConfig]) -> AppConfig:
    """The app with what its ``section`` of the file leaves out. Its own inputs come first and stay as they are."""
    engines = {models[node.model].engine for node in app.nodes if node.model in models}
    if "on_late" not in section and engines.intersection(WRITING_ENGINES):
        app = replace(app, on_late="partial")
    if _is_asked_as_it_is(app, models) and (app.inputs or len(app.nodes) == 1):
        asks = [] if any(name in app.inputs for name in QUESTIONS) else QUESTIONS
        more = {name: _input(name) for name in (*asks, *OPTIONS) if name not in app.inputs}
        app = replace(app, inputs={**app.inputs, **more})
    return app


def _is_asked_as_it_is(app: AppConfig, models: Mapping[str, ModelConfig]) -> bool:
    """True if a language model reads the request's inputs by their own names."""
    return any(
        not node.after and not node.inputs and node.model in models and models[node.model].engine == LANGUAGE
        for node in app.nodes
    )


def _input(name: str) -> TensorConfig:
    return TensorConfig(dtype="text" if name == "prompt" else "any", optional=True)
