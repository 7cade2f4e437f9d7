"""Tests that hold for one core alone."""

from __future__ import annotations

import pytest

from edgeserve import compiled

interpreted_only = pytest.mark.skipif(
    compiled.running().kind != "interpreted", reason="replaces a function or a class that compiled code calls directly"
)
"""Compiled modules call each other's functions without looking them up, and take objects of the stated class only."""
