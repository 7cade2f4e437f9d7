"""A text that comes in pieces, and at the end as a whole."""

from __future__ import annotations


def rest_of(text: str, sent: str) -> str:
    """The part of a whole text behind ``sent``, its pieces; nothing where they are no beginning of it."""
    return text[len(sent) :] if text.startswith(sent) else ""
