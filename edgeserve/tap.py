"""The names that a tap of your own imports: a tap hears of every step of the scheduler, and decides nothing.

Begin with the contract: subclass :class:`Tap`, and subclass ``edgeserve.testing.tap_conformance.TapConformance`` in a
test file. A program gives its taps to ``Runtime(..., taps=[MyTap()])``. The page *Write a tap* is the tutorial.

* What happened, the events of a step: :class:`RequestArrived` with its :class:`Request`, :class:`RequestCancelled`,
  :class:`BatchProgress` and :class:`WorkFinished` with each :class:`JobResult`, :class:`WorkRefused`,
  :class:`LaneChanged`, :class:`DeviceChanged`, :class:`DrainRequested`; a :class:`JobId` names a request's part.
* What was decided, the actions: :class:`RunBatch`, :class:`CutBatch`, :class:`LoadModel`, :class:`EvictModel`, and
  :class:`FinishRequest`, the one end of each request, with its :class:`Outcome` and :class:`LatencyBreakdown`. Kinds
  that are not listed here concern states and inputs that the server keeps.

Imports the scheduler's events and actions and the configuration; no engine, no socket and no thread.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.sched.protocol.actions import (
    Action,
    CutBatch,
    EvictModel,
    FinishRequest,
    LatencyBreakdown,
    LoadModel,
    Outcome,
    RunBatch,
)
from edgeserve.sched.protocol.events import (
    BatchProgress,
    DeviceChanged,
    DrainRequested,
    Event,
    JobId,
    JobResult,
    LaneChanged,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkFinished,
    WorkRefused,
)

__all__ = [
    "Action",
    "BatchProgress",
    "Config",
    "CutBatch",
    "DeviceChanged",
    "DrainRequested",
    "Event",
    "EvictModel",
    "FinishRequest",
    "JobId",
    "JobResult",
    "LaneChanged",
    "LatencyBreakdown",
    "LoadModel",
    "Outcome",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "RunBatch",
    "Tap",
    "WorkFinished",
    "WorkRefused",
]


class Tap:
    """Hears of a runtime's scheduler. Every hook runs on the loop's thread, which serves all requests, so none may
    wait; files and networks are for a thread of the tap's own. A hook that raises is logged once, and the tap is
    closed and hears no more; serving goes on."""

    def begin(self, config: Config, start: Mapping[str, Any]) -> None:
        """Begin: models are loaded, and the first step follows. ``start`` is what the scheduler was built from."""

    def tap(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Hear of a step: what had happened by ``now_ns`` (of ``time.monotonic_ns``), and what is done now. Neither
        changes any more, so they may be kept."""

    def change(self, config: Config) -> None:
        """Take another configuration, which is served from the next step on."""

    def close(self) -> None:
        """Write or send what is left. Called once, also where :meth:`begin` never was: a start may fail."""


def checked(taps: Any) -> Tuple[Tap, ...]:
    """The taps of a program. Raises :class:`~edgeserve.errors.ConfigError` for anything else."""
    if not isinstance(taps, (list, tuple)):
        raise ConfigError(f"taps = {taps!r}: expected a list, such as taps=[MyTap()]")
    for place, tap in enumerate(taps):
        if not isinstance(tap, Tap):
            raise ConfigError(
                f"taps[{place}] = {tap!r}: expected an object of a subclass of edgeserve.tap.Tap "
                "(docs/guide/write-a-tap.md)"
            )
    return tuple(taps)
