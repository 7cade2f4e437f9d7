"""The output of Orloj's replication: text tables and CSV. ``research/figures/orloj.py`` draws the picture."""

from __future__ import annotations

import csv
import os
import re
import statistics
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

from lib import drawn

from replicate.orloj.cases import FACTORS, LAWS, paper_rates, read_rows

PAGE, SCRIPT = "replicate_orloj.md", "research/replicate/orloj/run.py"
RESULTS = os.path.join(drawn.ROOT, "research", "results")
PAPER = {"Clipper": "clipper", "Nexus, no drop": "nexus", "Clockwork": "clockwork", "Orloj A": "orloj"}
"""Our system -> the paper's column that it stands for."""

Table = Dict[str, Dict[str, List[float]]]  # system -> "ours", "before", "paper" -> a value per SLO factor


def path_of(name: str) -> str:
    """A file in ``research/results``."""
    return os.path.join(RESULTS, name)


def reference_rates(law: str) -> Dict[Tuple[str, float], float]:
    """(system, SLO factor) -> the finish rate of the specification's simulation, a mean over all cases."""
    return {
        (row["system"], float(row["slo_x_p99"])): float(row["finish_rate"])
        for row in read_rows("orloj_reference.csv")
        if row["law"] == law
    }


def reference_of_cases(law: str, cases: Collection[str]) -> Dict[Tuple[str, float], float]:
    """The same over some cases; the specification has cases of PA alone."""
    rows = [row for row in read_rows("orloj_reference_cases.csv") if law == "PA" and row["case"] in cases]
    systems = [name for name in rows[0] if name not in ("case", "slo_x_p99")] if rows else []
    return {
        (system, factor): statistics.fmean([float(row[system]) for row in rows if float(row["slo_x_p99"]) == factor])
        for system in systems
        for factor in FACTORS
    }


def table_of(law: str, rows: Sequence[Any]) -> Table:
    """The means over cases and seeds, beside the specification's and, where it has them, the paper's."""
    cases = {row.case for row in rows}
    whole = law in LAWS and cases == {case.name for case in LAWS[law].cases}
    reference = reference_rates(law) if whole else {}
    paper = paper_rates(2, 3, 4) if law not in ("PB", "PC", "PD") else {}
    table: Table = {}
    for system in dict.fromkeys(row.system for row in rows):
        ours = [
            statistics.fmean([row.rate for row in rows if row.system == system and row.factor == factor])
            for factor in FACTORS
        ]
        table[system] = {"ours": ours}
        if (system, FACTORS[0]) in reference:
            table[system]["before"] = [reference[system, factor] for factor in FACTORS]
        column = paper.get(PAPER.get(system, ""), {})
        if column and all((case, FACTORS[0]) in column for case in cases):
            table[system]["paper"] = [statistics.fmean([column[case, factor] for case in cases]) for factor in FACTORS]
    return table


def as_text(law: str, table: Table) -> str:
    """A profile's table: a line per system, then what was simulated before and the paper's, indented."""
    lines = [f"{law:26}" + "".join(f"{factor:>7g}x" for factor in FACTORS) + "    mean"]
    for system, kinds in table.items():
        for kind, values in kinds.items():
            name = system if kind == "ours" else "   simulated before" if kind == "before" else "   paper"
            lines.append(f"{name:26}" + "".join(f"{value:8.3f}" for value in [*values, statistics.fmean(values)]))
    return "\n".join(lines)


def as_markdown(tables: Mapping[str, Table]) -> str:
    """The same for a page."""
    lines: List[str] = []
    for law, table in tables.items():
        lines += [
            f"**{law}**",
            "",
            "| system | " + " | ".join(f"{factor:g}x" for factor in FACTORS) + " | mean |",
            "| --- |" + " ---: |" * (len(FACTORS) + 1),
        ]
        for system, kinds in table.items():
            for kind, values in kinds.items():
                name = system if kind == "ours" else f"*{system}, {'simulated before' if kind == 'before' else kind}*"
                shown = " | ".join(f"{value:.3f}" for value in [*values, statistics.fmean(values)])
                lines.append(f"| {name} | {shown} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def loads_as_markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """The loads sustained, for a page."""
    systems = list(dict.fromkeys(name for row in found for name in row["rates"]))
    lines = ["| profile, SLO, in time | " + " | ".join(systems) + " |", "| --- |" + " ---: |" * len(systems)]
    for row in found:
        shown = " | ".join(f"{row['rates'][name]:.1f}" if name in row["rates"] else "" for name in systems)
        lines.append(f"| {row['law']}, {row['factor']:g}x, {row['target']:.2f} | {shown} |")
    return "\n".join(lines)


def spelled(seeds: Sequence[int]) -> str:
    """``1-5``, or each of them."""
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 1:
        return f"{seeds[0]}-{seeds[-1]}"
    return " ".join(map(str, seeds))


def fill_page(part: str, text: str, path: str = "") -> None:
    """Put a text between its marks in ``research/results/replicate_orloj.md``; the page's other parts stay."""
    path = path or path_of(PAGE)
    with open(path, encoding="utf-8") as file:
        page = file.read()
    mark = rf"<!-- drawn ([\w ]+): python {SCRIPT} -->\n(.*?)\n?<!-- end of \1 -->"
    parts = dict(re.findall(mark, page, flags=re.DOTALL))
    with open(path, "w", encoding="utf-8") as file:
        file.write(drawn.filled(page, {**parts, part: text}, SCRIPT))


def write_rates(name: str, rows: Sequence[Any]) -> None:
    """``name.csv``: finish rates per case, means over seeds, a column per system."""
    systems = list(dict.fromkeys(row.system for row in rows))
    groups: Dict[Tuple[str, str, float], Dict[str, List[float]]] = {}
    for row in rows:
        groups.setdefault((row.law, row.case, row.factor), {}).setdefault(row.system, []).append(row.rate)
    with open(path_of(f"{name}.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["law", "case", "slo_x_p99", *systems])
        for (law, case, factor), found in groups.items():
            writer.writerow(
                [law, case, f"{factor:g}"]
                + [f"{statistics.fmean(found[system]):.4f}" if system in found else "" for system in systems]
            )
