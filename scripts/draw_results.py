"""Draw the results in ``README.md`` from the files in ``docs/results/`` that the scripts wrote with ``--json``.

A result is ``{"script", "circumstances": {}, "checks": [{"name", "value", "bound", "holds"}]}``. A file that does not
exist is left out; nothing is rounded up, and what fell short is shown as such.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Mapping

import drawn

PAGE, SCRIPT = "README.md", "draw_results.py"
RESULTS = os.path.join(drawn.ROOT, "docs", "results")

TITLES = {  # file -> (what it shows, script, when the file does not name it); in the order of the page
    "bench_bus.json": ("The bus, beside hand-written servers in the same run", "bench_bus.py"),
    "bench_scheduler.json": ("What a decision costs", "bench_scheduler.py"),
    "replicate_clockwork.json": ("Clockwork, replicated in simulation", "replicate_clockwork.py"),
    "bench_arbiter.json": ("Three apps on one lane, in simulation", "bench_arbiter.py"),
}


def parts(directory: str = RESULTS) -> Dict[str, str]:
    """The page's parts by name."""
    found = []
    for name, (title, script) in TITLES.items():
        path = os.path.join(directory, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found.append(section(title, name, script, json.load(file)))
    return {"results": "\n\n".join(found) or "No run is stored in `docs/results/` yet. Every script "
            "`scripts/bench_*.py` prints its own table of checks."}


def section(title: str, name: str, script: str, result: Mapping[str, Any]) -> str:
    """One result: the command that makes it, the circumstances, and a row per check."""
    checks = result["checks"]
    held = sum(bool(check["holds"]) for check in checks)
    script = os.path.basename(str(result.get("script") or script))
    if not script.endswith(".py"):
        script += ".py"
    lines = [f"### {title}", "", f"`python scripts/{script} --json docs/results/{name}`: "
             f"{held} of {len(checks)} checks hold. {said(result.get('circumstances') or {})}".rstrip(), "",
             "| check | value | must be | |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {cell(check['name'])} | {number(check['value'])} | {cell(check['bound'])} | "
              f"{'holds' if check['holds'] else '**falls short**'} |" for check in checks]
    return "\n".join(lines)


def said(circumstances: Mapping[str, Any]) -> str:
    """The circumstances as one sentence."""
    words: List[str] = [f"{key.replace('_', ' ')} {', '.join(map(str, value)) if isinstance(value, list) else value}"
                        for key, value in circumstances.items() if not isinstance(value, dict)]
    text = "; ".join(words)
    return cell(text[:1].upper() + text[1:]) + "." if text else ""


def number(value: Any) -> str:
    """Three significant digits; whole numbers above that as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return cell(value)


def cell(value: Any) -> str:
    """Text that cannot end a table's cell."""
    return str(value).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
