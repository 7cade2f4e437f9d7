"""The taps of a runtime, ours and a program's, as the loop calls them: one that raises is taken out, and the loop goes
on. Imported where there is a tap."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from edgeserve.config.schema import Config
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event
from edgeserve.tap import Tap

log = logging.getLogger("edgeserve")


class TapPlace(NamedTuple):
    """The facts of the loop that a tap of ours gets: ``parent_of`` is the ``traceparent`` of a request that arrives."""

    config: Config
    serve: bool
    tracer_provider: Any
    parent_of: Callable[[int], Optional[str]]


def guarded(taps: Iterable[Optional[Tap]]) -> List[GuardedTap]:
    """The taps, without None, as the loop may call them."""
    return [GuardedTap(tap) for tap in taps if tap is not None]


class GuardedTap:
    """The hooks of a :class:`~edgeserve.tap.Tap`, none of which raises. After the first exception, which is logged,
    the tap is closed and hears no more. It gets tuples: lists are the loop's."""

    def __init__(self, tap: Tap) -> None:
        self._tap: Optional[Tap] = tap

    def begin(self, config: Config, start: Mapping[str, Any]) -> None:
        """See :meth:`Tap.begin`."""
        self._call("begin", config, start)

    def tap(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """See :meth:`Tap.tap`."""
        self._call("tap", now_ns, tuple(events), tuple(actions))

    def change(self, config: Config) -> None:
        """See :meth:`Tap.change`."""
        self._call("change", config)

    def close(self) -> None:
        """See :meth:`Tap.close`."""
        self._call("close")
        self._tap = None

    def _call(self, hook: str, *given: Any) -> None:
        tap = self._tap
        if tap is None:
            return
        try:
            getattr(tap, hook)(*given)
        except (Exception, SystemExit):  # of anyone's code
            self._tap = None
            kind = type(tap)
            log.exception(
                "tap %s.%s failed in %s(): it hears no more, serving goes on", kind.__module__, kind.__qualname__, hook
            )
            if hook != "close":
                with contextlib.suppress(Exception, SystemExit):  # its fault is in the log
                    tap.close()
