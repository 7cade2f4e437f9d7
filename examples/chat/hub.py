"""The hub's functions: how a sentence is put to the language model, what its answer means, and how long it will be.

``frame`` and ``act`` are the host functions of the app ``intents``. ``answer_tokens`` and ``intent_tokens`` predict the
hint ``steps``, by which the policy orders answers, and ``answer_spread`` how sure that is (``steps_sd``).
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

from edgeserve.predict.length import load_length_model
from edgeserve.predict.questions import question

Values = Dict[str, Any]

EXAMPLES = (
    ("It is too dark in the kitchen.", "light"),
    ("Play some jazz.", "music"),
    ("I am cold.", "heating"),
    ("Let the shutters down.", "blinds"),
    ("Switch the lamp in the hall off.", "light"),
    ("It is much too warm in here.", "heating"),
)
THINGS = ("light", "music", "heating", "blinds")
INTENT_TOKENS = 3

FITTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assistant.length.npz")
"""What ``edgeserve fit`` learnt from recorded answers (README.md)."""

LENGTHS = load_length_model(FITTED) if os.path.exists(FITTED) else None
TOKENS_MAX = 192
"""``options.max_tokens`` of the model in edge.toml."""

SPREAD = 0.5
"""Where no model is fitted."""


def frame(inputs: Values) -> Values:
    """What was ``said`` (text) to ``messages``: a conversation that shows the model what is asked of it."""
    messages = [{"role": "system", "content": f"Name the thing. Answer with one word: {', '.join(THINGS)}."}]
    for said, thing in (*EXAMPLES, (str(inputs["said"]), "")):
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": thing}]
    return {"messages": json.dumps(messages[:-1]), "max_tokens": INTENT_TOKENS, "temperature": 0.0}


def act(inputs: Values) -> Values:
    """The model's ``text`` to ``thing``: what is to be switched, empty where it is none of ours."""
    word = str(inputs["text"]).strip().lower()
    thing = next((thing for thing in THINGS if word.startswith(thing)), "")
    return {"thing": thing}


def answer_tokens(inputs: Mapping[str, Any]) -> float:
    """Tokens that the assistant's answer will have: as fitted, else the most that it may have, which ``rtlm+`` corrects
    by the answers that come."""
    most, asked = float(inputs.get("max_tokens", TOKENS_MAX)), question(inputs)
    if LENGTHS is None or asked is None:
        return most
    return min(LENGTHS.predict(asked).mean(), most)


def answer_spread(inputs: Mapping[str, Any]) -> float:
    """The deviation of the logarithm of that number."""
    return SPREAD if LENGTHS is None else LENGTHS.sigma


def intent_tokens(inputs: Mapping[str, Any]) -> float:
    """Tokens of an intent: never more than a word."""
    return float(INTENT_TOKENS)


# --- one item for each, to warm up and to measure with ----------------------------------------------------------------


def example_frame() -> Values:
    """A sentence."""
    return {"said": EXAMPLES[0][0]}


def example_act() -> Values:
    """An answer."""
    return {"text": " light"}
