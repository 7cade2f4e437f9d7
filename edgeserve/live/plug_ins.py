"""Plug-ins beside the loop, by name: taps, which hear of each step of the scheduler, and predictions.

A plug-in is imported where the configuration asks for it, and its folder may be missing where nothing does.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence

from edgeserve.config.schema import Config
from edgeserve.sched.protocol.actions import Action
from edgeserve.sched.protocol.events import Event

PLUG_INS = {
    "spans": "edgeserve.taps.span_export:opened",
    "recording": "edgeserve.taps.trace:opened",
    "last steps": "edgeserve.taps.last_steps:LastSteps",
    "hints": "edgeserve.predict.serving.hook:hint_source",
    "history": "edgeserve.predict.serving.history_recorder:HistoryRecorder",
    "recorded apps": "edgeserve.predict.serving.history_recorder:recorded_apps",
}
"""Name -> what is called for it."""


def plug_in(name: str) -> Any:
    """The function or class of that name in the table."""
    module, _, found = PLUG_INS[name].partition(":")
    return getattr(importlib.import_module(module), found)


class TapPlace(NamedTuple):
    """The facts of the loop that a tap gets: ``parent_of`` is the ``traceparent`` of a request that arrives."""

    config: Config
    serve: bool
    tracer_provider: Any
    parent_of: Callable[[int], Optional[str]]


class Tap(Protocol):
    """Hears of the scheduler, on the loop's thread. ``testing/tap_conformance.py`` has the contract."""

    def begin(self, start: Mapping[str, Any]) -> None:
        """Begin: ``start`` is what the scheduler was built from. Called once, when models are loaded, before the first
        step."""

    def tap(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Hear of a step, which does not change any more. It must not wait."""

    def change(self, config: Config) -> None:
        """Take another configuration, which is served from the next step on."""

    def close(self) -> None:
        """Write or send what is left."""


def opened_taps(place: TapPlace) -> Iterator[Tap]:
    """The taps that the configuration, a program or a server's environment asks for, opened one by one. Raises
    :class:`ConfigError` or :class:`TraceError`."""
    server = place.config.server
    asks = {
        "spans": place.tracer_provider is not None
        or (place.serve and any(name.startswith("OTEL_") for name in os.environ)),
        "recording": server.record,
    }
    for name, asked in asks.items():
        tap = plug_in(name)(place) if asked else None
        if tap is not None:
            yield tap


class HintSource(Protocol):
    """The predictor of the hints of one app's requests; any thread. ``usual`` are the hints of a usual
    request."""

    usual: Mapping[str, float]

    def missing(self, hints: Optional[Mapping[str, float]]) -> bool:
        """True if a request with these hints leaves anything to predict."""

    def on_arrival(
        self, hints: Optional[Mapping[str, float]], inputs: Mapping[str, Any], clock_ns: Callable[[], int]
    ) -> Optional[Dict[str, float]]:
        """A request's hints with the predicted ones, ``None`` without any. Never raises."""

    def went_without(self, why: str) -> None:
        """Count a request that did not wait for its prediction any longer."""

    def failed(self) -> Dict[str, int]:
        """The number of requests that lack a hint because its predictor failed, by hint."""

    def table(self) -> Dict[str, Any]:
        """The figures for ``stats``."""
