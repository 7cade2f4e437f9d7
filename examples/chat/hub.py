"""The hub's functions: how a sentence is put to the language model, and what its answer means.

``frame`` and ``act`` are the host functions of the app ``intents``, and ``intent_tokens`` predicts its hint
``word.steps``. How long the answers of ``assistant`` will be, the server predicts itself.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

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
