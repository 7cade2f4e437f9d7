"""Plug-ins beside the loop, by name: taps, which hear of each step of the scheduler, and predictions.

A plug-in is imported where the configuration asks for it, and its folder may be missing where nothing does.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol

from edgeserve.config.schema import Config

PLUG_INS = {
    "spans": "edgeserve.taps.span_export:opened",
    "recording": "edgeserve.taps.trace:opened",
    "last steps": "edgeserve.taps.last_steps:LastSteps",
    "hints": "edgeserve.predict.serving.answer_lengths:hint_source",
    "history": "edgeserve.predict.serving.history_recorder:HistoryRecorder",
    "recorded apps": "edgeserve.predict.serving.history_recorder:recorded_apps",
}
"""Name -> what is called for it."""


def plug_in(name: str) -> Any:
    """The function or class of that name in the table."""
    module, _, found = PLUG_INS[name].partition(":")
    return getattr(importlib.import_module(module), found)


def asked_taps(config: Config, serve: bool, tracer_provider: Any) -> List[str]:
    """The taps of the table that a configuration, a program or a server's environment asks for (``taps.py``)."""
    for_spans = tracer_provider is not None or (serve and any(name.startswith("OTEL_") for name in os.environ))
    asks = {"spans": for_spans, "recording": config.server.record}
    return [name for name, asked in asks.items() if asked]


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
