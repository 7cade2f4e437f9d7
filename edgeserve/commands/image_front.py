"""Common parts of ``edgeserve front bag`` and ``camera``: the app that is asked, and the result."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from edgeserve.commands.bench import as_text
from edgeserve.fronts.image_apps import Tally
from edgeserve.live.stats import percentiles_ms

DETECTOR = ("app", "form", "score", "size", "letterbox", "labels_file")
"""The settings of a camera that say which app is asked, and how its answers are read."""


def table_of(tally: Tally, app: str, loop: str, slo_ms: float, span_s: float) -> Dict[str, Any]:
    """A run's result as plain values, those of ``edgeserve bench``."""
    in_time, span_s = tally.answered - tally.late, max(span_s, 1e-3)
    return {
        "app": app,
        "loop": loop,
        "slo_ms": slo_ms,
        "sent": tally.sent,
        "in_time": in_time,
        "late": tally.late,
        "unanswered": 0,
        "finish_rate": in_time / max(1, tally.sent),
        "offered_per_s": tally.sent / span_s,
        "goodput_per_s": in_time / span_s,
        "ended_otherwise": dict(sorted(tally.reasons.items())),
        "latency_ms": percentiles_ms(tally.latencies_ns),
        "sent_late_p99_ms": 0.0,
        "breakdown_ms": {key: total / max(1, tally.answered) for key, total in tally.breakdown_ms.items()},
        "trouble": tally.trouble,
        "boxes": tally.boxes,
    }


def text_of(table: Mapping[str, Any]) -> str:
    """The same for people, with one error of each kind in words."""
    return "\n".join([as_text(table), *(f"{reason}: {words}" for reason, words in table["trouble"].items())])
