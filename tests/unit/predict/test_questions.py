"""Which text of a request the length of its answer is predicted from."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgeserve.predict.questions import question

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why is the sky blue?"},
]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"prompt": "Hello"}, "Hello"),
        ({"prompt": b"H\xc3\xa9llo"}, "Héllo"),
        ({"prompt": np.array("Hello")}, "Hello"),
        ({"messages": TALK}, "Why is the sky blue?"),
        ({"messages": json.dumps(TALK)}, "Why is the sky blue?"),
        ({"messages": np.array(json.dumps(TALK).encode())}, "Why is the sky blue?"),
        ({"messages": [*TALK, {"role": "tool", "content": "result"}]}, "Why is the sky blue?"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, {}]}]}, "ab"),
        ({"messages": TALK[:1]}, None),
        ({"messages": "no JSON"}, None),
        ({"messages": "3"}, None),
        ({"messages": [3, {"role": "user", "content": 3}]}, None),
        ({"tokens": np.arange(3)}, None),
        ({}, None),
    ],
)
def test_the_last_thing_that_a_person_said_is_the_question(inputs, text):
    assert question(inputs) == text
