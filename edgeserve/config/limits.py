"""The bounds on one request: the same for requests over the bus and for callers in this process.

``docs/reference/protocol.md`` names them. The bounds of a message as bytes (header, tensors, frames) are ``ipc/``'s.
"""

from __future__ import annotations

NAME_CHARS_MAX = 128
"""Characters of a name: an app, an input, a hint, a stream, a client. Names are kept in tables and written in logs."""

INPUTS_MAX = 64
"""Named inputs of one request."""

HINTS_MAX = 32
"""Hints of one request or of one result: a policy reads a handful, and each costs memory until the request ends."""

NUMBER_MAX = 2**63
"""The largest hint or value. Policies multiply hints with nanoseconds and convert the product to a float: this is far
enough for anything that is counted, and far below what a float cannot hold."""

STEPS_MAX = 65_536
"""The largest hint ``steps`` or ``NODE.steps``: a policy multiplies by it, and a sequence of more is a mistake."""

WORK_MAX = 1e6
"""The largest hint ``work`` or ``NODE.work``, in units of a usual request."""

SLO_MS_MAX = 1e9
"""About eleven days: a larger number is a mistake in the unit."""
