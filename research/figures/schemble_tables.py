"""Draw the tables of ``docs/research/schemble.md`` from the runs that are stored in ``research/results``.

    python research/figures/schemble_tables.py [--check]

A run that is not stored leaves a line that names the command that makes it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from common.ensemble_worlds import FITS, RIVALS
from lib import drawn
from replicate.schemble import tasks
from replicate.schemble.run import DEADLINES_MS, FORCED, PAPER, REFERENCE

PAGE, SCRIPT = "docs/research/schemble.md", "research/figures/schemble_tables.py"
RESULTS = os.path.join(drawn.ROOT, "research", "results")

PAPER_FORCED = {
    "original": (100.0, 50.5, 97.7, 99.5),
    "static, two": (96.9, 0.11, 0.23, 0.64),
    "des": (96.9, 8.2, 24.5, 34.2),
    "gating": (93.0, 0.08, 0.15, 0.49),
    "schemble(ea)": (96.5, 0.13, 0.17, 0.37),
    "schemble": (97.2, 0.10, 0.14, 0.33),
}
"""Text matching of the paper's Table II: accuracy in percent; mean, 95th percentile, largest latency in seconds."""

OURS = ("plan", "schemble+")
"""Ours: in runs of before ``plan`` the policy that it has replaced."""

SPECIFIED = {**REFERENCE, "plan": (95.4, 1.7)}
"""The reference's, and for ours that of its own best rule."""

NAMES = {
    "static, two": "static, two models",
    "static, any": "static, any choice",
    "des": "DES",
    "greedy edf": "greedy, EDF",
    "greedy fifo": "greedy, FIFO",
    "greedy sjf": "greedy, SJF",
}


def parts(directory: str = RESULTS) -> Dict[str, str]:
    """The page's parts by name."""
    makers: Dict[str, Callable[[Mapping[str, Any]], List[str]]] = {
        "policies": policies,
        "forced": forced,
        "delta": delta,
        "lanes": lanes,
    }
    found = {name: _part(directory, "replicate_schemble.json", "results", make) for name, make in makers.items()}
    found["days"] = _part(directory, "replicate_schemble_days.json", "results", days)
    for name in tasks.TABLES:
        make = difficulty if name == "difficulty" else lambda results, name=name: task(name, results)
        found[name] = _part(directory, "replicate_schemble_tasks.json", "results", make)
    found["trouble"] = _part(directory, "replicate_schemble_between.json", "results", trouble)
    found["varying"] = _part(directory, "replicate_schemble_varying.json", "results", varying)
    found["regret"] = _part(directory, "bench_regret_ensembles.json", "rows", regret)
    return found


def _part(directory: str, name: str, key: str, make: Callable[[Any], List[str]]) -> str:
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return f"No run is stored as `research/results/{name}`."
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    circumstances = result["circumstances"]
    seeds = {"seeds": "seeds", "rounds": "rounds", "worlds": "worlds"}
    counted = ", ".join(
        [f"{circumstances[name]} {word}" for name, word in seeds.items() if name in circumstances]
        + [f"{circumstances['core']} core" for _ in range("core" in circumstances)]
    )
    return "\n".join([*make(result[key]), "", f"`{circumstances['command']}` ({counted})."])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> List[str]:
    return [
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
        *["| " + " | ".join(row) + " |" for row in rows],
    ]


def _ours(values: Mapping[str, float]) -> float:
    return next(values[name] for name in OURS if name in values)


def _pair(accuracy: float, missed: float) -> str:
    return f"{accuracy:.1f} / {missed:.1f}"


def _of(row: Mapping[str, float]) -> str:
    return _pair(100 * row["accuracy"], 100 * row["missed"])


def policies(results: Mapping[str, Any]) -> List[str]:
    """Accuracy and missed deadlines of every policy at each deadline, beside the specification's and the paper's."""
    table = results["table"].get("policies", results["table"])
    rows = []
    for key, of_deadlines in table.items():
        *each, mean = of_deadlines
        rows.append(
            [
                NAMES.get(key, key),
                *[_of(row) for row in each],
                f"**{_of(mean)}**",
                f"{100 * mean['processed']:.1f}",
                f"{mean['models']:.2f}",
                *[_pair(*known[key]) if key in known else "-" for known in (SPECIFIED, PAPER)],
            ]
        )
    return _table(
        [
            "accuracy / missed, %",
            *[f"{deadline} ms" for deadline in DEADLINES_MS],
            "mean",
            "processed",
            "models",
            "specification",
            "paper",
        ],
        rows,
    )


def forced(results: Mapping[str, Any]) -> List[str]:
    """The time of answers where nothing is refused."""
    rows = []
    for key, row in results["forced"].items():
        took = [row["mean_ms"] / 1e3, row["p95_ms"] / 1e3, row["max_ms"] / 1e3]
        known = [table.get(key) for table in (FORCED, PAPER_FORCED)]
        rows.append(
            [
                NAMES.get(key, key),
                f"{100 * row['accuracy']:.1f}",
                " / ".join(f"{each:.3g}" for each in took),
                *[f"{item[0]:g}: {item[1]:g} / {item[2]:g} / {item[3]:g}" if item else "-" for item in known],
            ]
        )
    return _table(["nothing refused", "accuracy, %", "mean / 95 % / largest, s", "specification", "paper"], rows)


def task(name: str, results: Mapping[str, Any]) -> List[str]:
    """Every policy on one of the paper's other tasks, with and without refusals."""
    paper = tasks.TASKS[name].paper
    rows = []
    for key, row in results[name]["policies"].items():
        forced, known = row["forced"], paper.get(key)
        rows.append(
            [
                f"static, {results[name]['static']}" if key == "static" else NAMES.get(key, key),
                _of(row["mean"]),
                f"{row['mean']['models']:.2f}",
                f"{100 * forced['accuracy']:.1f}: {forced['mean_ms'] / 1e3:.3g} / {forced['p95_ms'] / 1e3:.3g}",
                _pair(*known[:2]) if known else "-",
                f"{known[2]:g}: {known[3]:g}" if known else "-",
            ]
        )
    head = [
        "accuracy / missed, %",
        "mean",
        "models",
        "nothing refused: mean / 95 %, s",
        "paper",
        "paper, nothing refused",
    ]
    return _table(head, rows)


def difficulty(results: Mapping[str, Any]) -> List[str]:
    """Accuracy, and accuracy of what was processed, by the mean of the requests' scores."""
    rows = results["difficulty"]
    names = list(next(iter(rows.values())))
    return _table(
        ["accuracy / processed, % at a mean score of", *[NAMES.get(name, name) for name in names]],
        [
            [mean, *[_pair(row[name]["accuracy"], row[name]["processed"]) for name in names]]
            for mean, row in rows.items()
        ],
    )


def delta(results: Mapping[str, Any]) -> List[str]:
    """The gain or cost of rounded rewards, with the time of planning charged."""
    rows = [[key, *[_of(row) for row in rows]] for key, rows in results["delta"].items()]
    head = ["`delta`", "exact planner", "Algorithm 1 as printed", "without a bound on its cells"]
    return _table(head[: len(rows[0])], rows)  # an older run has no third planner


def lanes(results: Mapping[str, Any]) -> List[str]:
    """Value in time at each place and load."""
    head = list(next(iter(results["lanes"].values())))
    rows = []
    for place, values in results["lanes"].items():
        where, load = place.rsplit(" ", 1)
        best = max(value for key, value in values.items() if key not in OURS)
        rows.append([f"{where}, load {load}", *[f"{values[key]:.1f}" for key in head], f"{_ours(values) - best:+.1f}"])
    return _table(["value in time, %", *[NAMES.get(key, key) for key in head], "ahead of the best"], rows)


def days(results: Mapping[str, Any]) -> List[str]:
    """``schemble`` and ours on days that nothing was chosen on."""
    rows = []
    for key, found in results["days"].items():
        accuracy, missed = [statistics.fmean([row[what] for row in found["days"]]) for what in ("accuracy", "missed")]
        stated = _pair(*SPECIFIED[key]) if key in SPECIFIED else "-"
        rows.append([key, _pair(100 * accuracy, 100 * missed), f"{found['error']:.2f}", stated])
    return _table(["accuracy / missed, %", f"{len(found['days'])} days", "standard error", "specification"], rows)


def trouble(results: Mapping[str, Mapping[str, float]]) -> List[str]:
    """Ours / the best of the others, by case, place and load."""
    cases: Dict[str, Dict[str, str]] = {}
    for name, values in results.items():
        head, load = name.rsplit(", load ", 1)
        case, place = head.rsplit(", ", 1)
        best = max(value for key, value in values.items() if key not in OURS)
        cases.setdefault(case, {})[f"{place}, {load}"] = f"{_ours(values):.0f} / {best:.0f}"
    places = list(next(iter(cases.values())))
    return _table(
        ["value in time, %", *places],
        [[case, *[found.get(place, "-") for place in places]] for case, found in cases.items()],
    )


def varying(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> List[str]:
    """Right answers in time and missed deadlines where execution times vary, by load."""
    head = list(next(iter(results.values())))
    return _table(
        ["load", *head],
        [[load, *[_pair(row[key]["right"], row[key]["missed"]) for key in head]] for load, row in results.items()],
    )


def regret(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    """The lead of ours over the best simple rule in drawn worlds; where a fit is wrong, of the static choices, as
    specified."""
    wrong = [row for row in rows if set(FITS[1:3]) & set(row["tags"])]
    table = []
    for title, some, rivals in (
        ("fitted rightly or not at all", [row for row in rows if row not in wrong], RIVALS),
        ("a wrong fit", wrong, RIVALS[2:]),
    ):
        ahead = [_ours(row["percent"]) - max(row["percent"][key] for key in rivals) for row in some]
        if ahead:
            table.append(
                [
                    f"{title}: ahead of the best of {', '.join(rivals)}",
                    str(len(ahead)),
                    f"{min(ahead):+.1f}",
                    f"{statistics.fmean(ahead):+.1f}",
                    f"{max(ahead):+.1f}",
                ]
            )
    return _table(["points of value", "worlds", "worst", "mean", "best"], table)


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
