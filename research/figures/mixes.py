"""Draw ``docs/research/mixes.md``: the mixes under the policies of their files and under simple rules, as stored.

The first way of a run is the policy of the files: ``plan``, or ``auto`` in runs of before it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import drawn

PAGE, SCRIPT = "docs/research/mixes.md", "research/figures/mixes.py"
RESULT = os.path.join(drawn.ROOT, "research", "results", "bench_mix.json")

Row = Mapping[str, Any]


def parts(found: Mapping[str, Any] = {}) -> Dict[str, str]:
    """The page's parts by name, of a run or of the one that is stored."""
    found = found or json.loads(Path(RESULT).read_text(encoding="utf-8"))
    by_key = {(row["mix"], row["load"], row["way"]): row for row in found["rows"]}
    ways = list(dict.fromkeys([row["way"] for row in found["rows"]]))
    told = [f"* {key}: {value}" for key, value in found["circumstances"].items()]
    return {
        "circumstances": "\n".join(told),
        "value in time": _table(by_key, ways, lambda row: f"{row['percent']:.1f}", "bound", _bound),
        "critical in time": _table(by_key, ways, lambda row: f"{row['classes']['critical']:.1f}"),
        "regained": _regained(by_key, ways[0]),
        "apps": _apps(found["rows"], ways[0]),
    }


def _bound(row: Row) -> str:
    return f"{row['bound']:.1f}"


def _table(
    by_key: Mapping[Tuple[str, float, str], Row],
    ways: List[str],
    cell: Callable[[Row], str],
    last: str = "",
    of_last: Callable[[Row], str] | None = None,
) -> str:
    """One row per mix and load, one column per way."""
    titles = ["mix", "load", *ways, *([last] if last else [])]
    lines = [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
    for mix, load in dict.fromkeys([(mix, load) for mix, load, _ in by_key]):
        rows = [by_key[mix, load, way] for way in ways]
        cells = [mix, f"{load:g}", *[cell(row) for row in rows], *([of_last(rows[0])] if of_last else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _regained(by_key: Mapping[Tuple[str, float, str], Row], ours: str) -> str:
    """The share that the first way regains of the value that a rule for all apps loses to the bound, and its longest
    gap."""
    lines = [
        "| mix | load | regained of what edf loses | longest gap of any app |",
        "| --- | ---: | ---: | ---: |",
    ]
    for (mix, load, way), row in by_key.items():
        if way != ours:
            continue
        other = by_key[mix, load, "edf"]["percent"]
        lost = row["bound"] - other
        cell = f"{(row['percent'] - other) / lost:.0%}" if lost > 0 else "-"
        lines.append(f"| {mix} | {load:g} | {cell} | {row['gap_s']:.1f} s ({row['gap_app']}) |")
    return "\n".join(lines)


def _apps(rows: List[Row], ours: str) -> str:
    """Each app under the first way: its policy, and its share in time at each load beside ``edf`` for all."""
    lines = [f"| mix | app | policy | {ours}, % in time | edf, % in time |", "| --- | --- | --- | --- | --- |"]
    for mix in dict.fromkeys([row["mix"] for row in rows]):
        mine = {way: [row for row in rows if row["mix"] == mix and row["way"] == way] for way in (ours, "edf")}
        for app in mine[ours][0]["apps"]:
            cells = [" / ".join([f"{row['apps'][app]:.1f}" for row in mine[way]]) for way in (ours, "edf")]
            lines.append(f"| {mix} | {app} | {mine[ours][0]['policies'][app]} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
