"""Sequences: which jobs hold a slot on a lane and bytes of a device, for models whose items grow step by step.

A job reserves the bytes of its whole expected sequence before it first runs, and keeps them, with a slot of its lane,
until it is over or its state is released. :class:`SequenceModel` says what a model's sequences need. Knows no policy.
"""

from __future__ import annotations

from typing import NamedTuple


class SequenceModel(NamedTuple):
    """A model of sequences: the most tokens one may have (``context_tokens``), the bytes that each token of its state
    occupies, how many sequences one lane holds at once (``slots``), and the bytes that all of them may occupy on one
    device (``memory_bytes``; 0: what the device's memory leaves)."""

    context_tokens: int
    bytes_per_token: int
    slots: int
    memory_bytes: int = 0
