"""What the checks before a start find (:mod:`edgeserve.live.preflight`)."""

from __future__ import annotations

from typing import NamedTuple, Optional

from edgeserve.errors import EdgeServeError
from edgeserve.live.estimates import AppFit


class Problem(NamedTuple):
    """A problem of a configuration: its subject, a sentence with the value and the fix, and whether it stops the
    server. ``app``: the app that a deadline is too short for, and its ``fit``. ``error``: the raised exception."""

    subject: str
    text: str
    stops: bool = True
    app: str = ""
    error: Optional[EdgeServeError] = None
    fit: Optional[AppFit] = None
