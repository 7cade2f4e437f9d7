"""How a request that got no answer is told so: outcome and reason to a typed error with a hint for people."""

from __future__ import annotations

from typing import Dict

from edgeserve.errors import Cancelled, Dropped, Failed, Rejected, RequestError
from edgeserve.sched.protocol.actions import Outcome

HINTS: Dict[str, str] = {
    "queue_full": "the app has as many requests in flight as [app.{app}] pending_max allows; send fewer at a time",
    "over_share": "this client has more than its share of [app.{app}] pending_max; others were waiting",
    "expired": "the deadline passed before it could run; allow more time (slo) or send less",
    "superseded": "a newer request of the same stream took its place ([app.{app}] stream = 'newest_wins')",
    "draining": "the server is shutting down and accepts nothing more",
    "cannot_make_deadline": "no lane could finish it by its deadline; allow more time (slo) or send less",
    "window_missed": "its start window passed before a lane was free; allow more time (slo) or send less",
    "overtaken": "requests that could still be on time took its place; allow more time (slo) or send less",
    "no_lane": "no lane that may run its model is up; look at the server's log",
}
"""Reason -> what a person may want to know. A reason that is not here speaks for itself."""


def refusal(app: str, outcome: str, reason: str) -> RequestError:
    """The error that whoever asked gets for ``outcome`` (anything but completed)."""
    said = reason or "no reason given"
    hint = HINTS.get(reason, "").format(app=app)
    text = f"app {app!r}: {outcome}: {said}" + (f" ({hint})" if hint else "")
    if outcome == Outcome.REJECTED:
        return Rejected(text, reason)
    if outcome == Outcome.DROPPED:
        return Dropped(text, reason)
    if outcome == Outcome.CANCELLED:
        return Cancelled(text)
    return Failed(text)
