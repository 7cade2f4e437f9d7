"""Functions that replicas of the Ray tests run: they say which process answered, and wait for a file where told to."""

from __future__ import annotations

import os
import time
from typing import Any, Dict

GATE_S_MAX = 90.0  # a test that forgets to open a gate fails by its own time limit


def who(item: Dict[str, Any]) -> Dict[str, Any]:
    """The process, after the file ``item["gate"]`` exists (at once where none is named)."""
    end_s = time.monotonic() + GATE_S_MAX
    gate = str(item.get("gate", ""))
    while gate and not os.path.exists(gate) and time.monotonic() < end_s:
        time.sleep(0.01)
    return {"pid": os.getpid()}


def example() -> Dict[str, Any]:
    """An input to be warmed up with."""
    return {}
