"""How far an estimate can be trusted: what it stands on, how many measurements, and how old the newest is.

Estimates do not change with it. It is there for decisions that an uncertain estimate must not make for ever, and for
people, in ``stats``.
"""

from __future__ import annotations

from typing import NamedTuple

EXPECTED, PROFILE, START, ASSUMED, LIVE = "expected", "profile", "start-up", "assumed", "live"
"""What an estimate stands on: ``[model.NAME.expected]``, a profile, a few runs at start-up, nothing (an input to try
the model with was missing), or batches that were served."""


class Confidence(NamedTuple):
    """What the estimates of one batch size stand on.

    ``source`` is :data:`LIVE` where batches of this size were measured lately. ``measured`` is the number of
    measurements behind the estimates, ``age_ns`` the age of the newest: ``None`` where all were taken before the start.
    ``pace_measured`` is how many batches of any size the pace stands on, which all sizes share.
    """

    source: str
    measured: int
    age_ns: int | None
    pace_measured: int
