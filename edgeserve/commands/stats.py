"""``edgeserve stats``: one look at what a running server has done since its start."""

from __future__ import annotations

from edgeserve.commands.top import add_stats_arguments as add_arguments
from edgeserve.commands.top import show_stats as main

__all__ = ["add_arguments", "main"]
