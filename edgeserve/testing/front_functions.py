"""Host functions of :mod:`edgeserve.testing.front_conformance`: apps that answer, fail, or wait."""

from __future__ import annotations

import threading
from typing import Any, Dict

WAIT_S = 20.0
"""Seconds that an app waits at most for a client that does not leave."""

inputs: Dict[str, Any] = {}
outputs: Dict[str, Any] = {}
"""The requests that the suite itself makes, and what they answer: the suite fills them in."""

odd: Dict[str, Any] = {}
"""The answers of the app ``odd``."""

gate = threading.Event()


def answers(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Answer at once."""
    return dict(outputs)


def answers_oddly(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Answer with outputs that the front may not expect."""
    return dict(odd)


def fails(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Raise."""
    raise ValueError("this app fails")


def waits(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Answer when the gate opens."""
    gate.wait(WAIT_S)
    return dict(outputs)
