"""Host functions that the benchmarks serve."""

from __future__ import annotations

from typing import Any, Dict


def echo(inputs: Dict[str, Any]) -> Dict[str, Any]:
    """Return what came."""
    return inputs
