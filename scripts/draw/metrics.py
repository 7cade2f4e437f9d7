"""Draw ``docs/reference/metrics.md``: every metric, from ``edgeserve.taps.metric_families``.

The families are made from an answer of ``stats()`` that has no app, lane or model, and one monitor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

PAGE, SCRIPT = "docs/reference/metrics.md", "scripts/draw/metrics.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    from edgeserve.taps import metric_families as families  # needs the extra 'metrics'

    readings: Dict[str, Any] = {key: 0.0 for key, _, _ in families.READINGS}
    readings.update(temperatures_c={"cpu": 0.0}, rails_w={"VDD_IN": 0.0})
    stats = {
        "uptime_s": 0.0,
        "open": 0,
        "pending_max": 0,
        **{of: {} for of in ("apps", "lanes", "models", "devices")},
        "device": {"monitors": {"board": {"readings": readings}}},
    }
    rows = ["| metric | type | labels | means |", "| --- | --- | --- | --- |"]
    for metric in families.families(stats, ""):
        name = metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")
        labels = metric.samples[0].labels if metric.samples else metric._labelnames
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {metric.type} | {shown} | {metric.documentation} |")
    return {"metrics": "\n".join(rows)}


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
