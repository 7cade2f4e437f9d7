"""Tests that hold for one core alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgeserve import compiled

interpreted_only = pytest.mark.skipif(
    compiled.running().kind != "interpreted", reason="replaces a function or a class that compiled code calls directly"
)
"""Compiled modules call each other's functions without looking them up, and take objects of the stated class only."""


def run_interpreted(code: str) -> str:
    """The output of code in a process of its own with the interpreted core, where it may replace functions."""
    environment = {**os.environ, compiled.CHOICE: "interpreted", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
