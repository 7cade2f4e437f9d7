"""Draw ``docs/research/ablation.md``: what each mechanism is worth, from the stored result of the ablation."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import drawn

PAGE, SCRIPT = "docs/research/ablation.md", "research/figures/ablation.py"
RESULT = os.path.join(drawn.ROOT, "research", "results", "bench_ablation.json")
SHOWN = 0.5
"""Points from which a kind of worlds is named."""


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    with open(RESULT, encoding="utf-8") as file:
        found = json.load(file)
    rows = [(_best(lost), name, lost) for name, lost in found["lost"].items()]
    earned = [row for row in rows if row[0] >= SHOWN]
    others = [row for row in rows if row[0] < SHOWN]
    told = [f"* {key}: {value}" for key, value in found["circumstances"].items()]
    return {
        "circumstances": "\n".join(told),
        "mechanisms that earn their place": _table(sorted(earned, key=lambda row: -row[0])),
        "mechanisms that do not": _table(others),
    }


def _best(lost: Mapping[str, Mapping[str, float]]) -> float:
    return max([loss["mean"] for loss in lost.values()], default=0.0)


def _table(rows: List[Any]) -> str:
    lines = [
        "| mechanism | points lost without it, by kind of world | points gained | worlds in which it acted |",
        "| --- | --- | --- | ---: |",
    ]
    for _, name, lost in rows:
        acted = sum([loss["acted"] for loss in lost.values()])
        lines.append(f"| {name} | {_kinds(lost, 1)} | {_kinds(lost, -1)} | {acted} |")
    return "\n".join(lines)


def _kinds(lost: Mapping[str, Mapping[str, float]], sign: int) -> str:
    named = [(sign * loss["mean"], kind) for kind, loss in lost.items() if sign * loss["mean"] >= SHOWN]
    return ", ".join([f"{kind} {mean:.1f}" for mean, kind in sorted(named, reverse=True)])


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
