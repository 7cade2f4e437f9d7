"""The syntax tree of a source, for tests that look at all of them."""

from __future__ import annotations

import ast
import functools
import gc


@functools.lru_cache(maxsize=None)
def tree_of(text: str) -> ast.Module:
    """Parse a source once. Without collections of garbage, which walk through all trees so far, again and again: they
    took three times as long as parsing."""
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()
