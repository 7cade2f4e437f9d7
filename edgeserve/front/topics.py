"""Names as parts of topics of MQTT and as Home Assistant's keys, escaped one to one: two names never become one."""

from __future__ import annotations

import re

_NO_PART = re.compile(r"[+#/%]")
_LABEL = re.compile(r"[^A-Za-z0-9-]|-(?=[0-9a-f]+[^A-Za-z0-9])")
_KEY = re.compile(r"[^A-Za-z0-9_-]|-(?=[0-9a-f]+[^A-Za-z0-9_])")
"""The characters that a key cannot hold, and a dash that would begin an escape such as ``-2e-``."""


def topic_part(name: str) -> str:
    """A printable name as one level of a topic: ``Qwen/Qwen3`` is ``Qwen%2FQwen3``, most names are as they are."""
    return _NO_PART.sub(lambda found: f"%{ord(found[0]):02X}", name)


def key_of(name: str) -> str:
    """A name in letters, digits, ``_`` and ``-``: ``a.b`` is ``a-2e-b``, ``a_b`` is itself."""
    return _KEY.sub(_escaped, name)


def label_of(name: str) -> str:
    """The same without ``_``, to stand behind another name and a ``_``."""
    return _LABEL.sub(_escaped, name)


def _escaped(found: re.Match[str]) -> str:
    return f"-{ord(found[0]):x}-"
