"""Orloj's experiments in virtual time: finish rates of fourteen systems beside the paper's, on equal requests.

    python research/replicate/orloj/run.py [--quick] [--processes N] [--seeds 1-5] [--write]

Four profiles (how long a batch takes, how requests arrive), 13 mixtures of lengths for the first and six for the
others, five deadlines each, 3000 requests a run; every system meets the same requests. ``--static`` runs Table 4
(models whose time does not depend on the input), ``--measured FILE`` lengths that were measured, ``--load`` the rate
that each system sustains. ``--write`` stores tables and checks in ``research/results/``.

A late answer counts as missed. The systems and their options are ``SYSTEMS`` in ``systems.py``; what is run on,
``cases.py``; ``research/results/replicate_orloj.md`` says where this departs from the paper. Every decision costs
20 us a step and 15 us an event in virtual time, for every system; what decisions really cost is measured besides
(``--cost``) and printed.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common import runs
from common.replicated import AHEAD, OURS, checks_of
from lib.checks import Checks, arguments

from replicate.orloj import output
from replicate.orloj.cases import (
    CASES,
    FACTORS,
    LAWS,
    REQUESTS,
    Case,
    Law,
    make_trace,
    measured_laws,
    profile_of,
    static_law,
)
from replicate.orloj.systems import SYSTEMS, System, simulate

REFERENCE, BETTER, ORACLE = "Orloj A", "plan", "plan, true lengths"
HEADLINE = ("Clockwork", REFERENCE, BETTER, ORACLE)
SEEDS_OF_OTHERS = 1
"""The other systems run on so many of the seeds (``--every``: on all): their means are known well enough, and a run of
everything stays below an hour on two cores."""

SIMPLE = ("Orloj A", "Orloj A, all sizes", "Orloj B", "Orloj C")
SCRIPT_NAME = "replicate_orloj"
QUICK_CASES = ("two-modal", "std-2/0.5")
CELL = 0.01
"""The largest distance of a mean over cases from the specification's simulation, either way (its section 9); twice as
far for the systems that run on one seed. The means of two simulations of five seeds differ by 0.003, of one and five by
0.006 (standard deviation)."""

QUICK_CELL = 0.03
"""The same of two cases and one seed; the specification has rates by case of PA alone."""

AHEAD_MIN = -0.4
"""Points of finish rate that ``plan`` is at least ahead of Orloj, and that it gains where lengths are declared: neither
may be behind by more than chance."""

ORDERED = ("Clipper", "Clockwork", REFERENCE)
"""The order of Tables 2 and 3, in points of the mean over deadlines."""

ORDER_SLACK = -0.5

STATIC = {"resnet-imagenet": "resnet50_v2", "inception-imagenet": "inceptionv3"}
LOADS = (
    ("PA", 2.0, 0.90),
    ("PA", 3.0, 0.95),
    ("PA", 5.0, 0.99),
    ("PB", 2.0, 0.90),
    ("PB", 3.0, 0.95),
    ("PB", 5.0, 0.99),
    ("PC", 3.0, 0.95),
    ("PD", 3.0, 0.95),
    ("PD", 5.0, 0.99),
)
LOADS_STATED = {
    ("PA", 2.0): (9.5, 10.7, 10.2),
    ("PA", 3.0): (15.8, 16.1, 15.1),
    ("PA", 5.0): (19.8, 19.6, 18.4),
    ("PB", 2.0): (8.7, 9.2, 9.2),
    ("PB", 3.0): (9.4, 10.4, 10.4),
    ("PB", 5.0): (7.7, 9.2, 9.2),
    ("PC", 3.0): (9.5, 9.7, 9.5),
    ("PD", 3.0): (7.8, 8.6, 9.0),
    ("PD", 5.0): (6.8, 7.2, 7.3),
}
"""The specification's last table of section 9, in the order of ``LOAD_SYSTEMS``."""

LOAD_WITHIN = 0.1
"""The tolerance of a load: near the target a finish rate moves by 0.005 from seed to seed, which is some percent of the
load."""

STATIC_WITHIN = 0.17
LOAD_SYSTEMS = ("Clockwork", "Orloj A", "Orloj B", BETTER, ORACLE)
"""Those of the search; the first three are stated."""


class Row(NamedTuple):
    """One run."""

    law: str
    case: str
    seed: int
    system: str
    factor: float
    rate: float  # the finish rate
    late: float  # share answered late
    batch_mean: float  # requests per batch


class Job(NamedTuple):
    """All systems and deadlines on one trace: what one process does at a time."""

    law: str
    case: str
    seed: int
    systems: Tuple[str, ...]
    measured: str = ""  # the file that the law is made of


def law_of(name: str, measured: str = "") -> Law:
    """A law by name; laws hold functions, which do not travel between processes."""
    if measured:
        return next(law for law in measured_laws(measured) if law.name == name)
    return static_law(name, STATIC[name]) if name in STATIC else LAWS[name]


def case_of(law: Law, name: str) -> Case:
    return next(case for case in law.cases if case.name == name)


def run_job(job: Job) -> List[Row]:
    """The rows of one trace."""
    law = law_of(job.law, job.measured)
    trace = make_trace(law, case_of(law, job.case), job.seed)
    profile = profile_of(trace)
    rows = []
    gc.disable()  # nothing a run makes is a cycle that matters before its end
    for system in chosen(job.systems):
        for factor in FACTORS:
            result = simulate(system, trace, profile, factor)
            rows.append(
                Row(
                    job.law,
                    job.case,
                    job.seed,
                    system.name,
                    factor,
                    result.in_time / REQUESTS,
                    result.late / REQUESTS,
                    REQUESTS / max(1, result.batches),
                )
            )
        gc.collect()
    gc.enable()
    return rows


def chosen(names: Iterable[str]) -> List[System]:
    return [system for system in SYSTEMS if system.name in names]


def run_all(jobs: Sequence[Job], processes: int, keep: str = "") -> List[Row]:
    """The rows of every job, in as many processes; rows are kept in the file ``keep``."""
    found = runs.done(run_job, jobs, processes, keep, lambda *rows: [Row(*row) for row in rows])
    return [row for _, rows in found for row in rows]


# --- load sustained -------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """One search: the highest rate at which a system still reaches the target."""

    law: str
    factor: float
    target: float
    system: str
    seeds: Tuple[int, ...]


def sustained(load: Load) -> float:
    """Requests per second on two-modal lengths, within 1 %, by bisection: finish rates fall with the rate. Between 0.3
    and 1.6 times the profile's own rate."""
    law, system = LAWS[load.law], chosen((load.system,))[0]
    low, high = 0.3 * law.rate, 1.6 * law.rate
    while high > low * 1.01:
        middle = math.sqrt(low * high)
        rates = []
        for seed in load.seeds:
            trace = make_trace(law, case_of(law, "two-modal"), seed, middle)
            rates.append(simulate(system, trace, profile_of(trace), load.factor).in_time / REQUESTS)
        if statistics.mean(rates) >= load.target:
            low = middle
        else:
            high = middle
    return low


# --- what it means --------------------------------------------------------------------------------------------------


def cell(rows: Sequence[Row], system: str, factor: float) -> float:
    """The mean finish rate over cases and seeds."""
    found = [row.rate for row in rows if row.system == system and row.factor == factor]
    return statistics.fmean(found) if found else math.nan


def paired(rows: Sequence[Row], better: str, worse: str) -> Tuple[float, float]:
    """Mean difference in points over traces (each the mean over its deadlines), and half its 95 % interval."""
    by_trace: Dict[Tuple[str, int], Dict[str, List[float]]] = {}
    for row in rows:
        by_trace.setdefault((row.case, row.seed), {}).setdefault(row.system, []).append(row.rate)
    differences = [
        100.0 * (statistics.fmean(item[better]) - statistics.fmean(item[worse]))
        for item in by_trace.values()
        if better in item and worse in item
    ]
    if len(differences) < 2:
        return (differences[0] if differences else math.nan), math.nan
    return statistics.fmean(differences), 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))


def check_law(checks: Checks, law: str, rows: Sequence[Row], quick: bool) -> None:
    """The specification's rows, cell by cell, and its differences; quick: what it has of two cases."""
    names = {row.system for row in rows}
    cases = {row.case for row in rows}
    reference = output.reference_of_cases(law, cases) if quick else output.reference_rates(law)
    for system in [item.name for item in SYSTEMS if item.name in names]:
        within = QUICK_CELL if quick else CELL if system == REFERENCE else 2 * CELL
        for factor in FACTORS:
            expected = reference.get((system, factor))
            if expected is not None:
                checks.between(
                    f"{law} {system} at {factor:g}x (stated: {expected:.3f})",
                    cell(rows, system, factor),
                    expected - within,
                    expected + within,
                )
    check_ours(checks, law, rows)
    for worse, better in zip(ORDERED, ORDERED[1:]):
        if {worse, better} <= names:
            checks.at_least(
                f"{law} points of {better} ahead of {worse}", paired(rows, better, worse)[0], ORDER_SLACK, AHEAD
            )


def check_static(checks: Checks, law: str, rows: Sequence[Row]) -> None:
    """Table 4 beside the paper: means over the deadlines, as near as the specification's simulation came (the root of
    its mean square was up to 0.17)."""
    names = {row.system for row in rows}
    table = output.table_of(law, rows)
    for system in [name for name in output.PAPER if name in names and "paper" in table[name]]:
        checks.near(
            f"{law} {system}: mean finish rate beside the paper's",
            statistics.fmean(table[system]["ours"]),
            round(statistics.fmean(table[system]["paper"]), 3),
            STATIC_WITHIN,
        )


def check_ours(checks: Checks, law: str, rows: Sequence[Row]) -> None:
    """The lead of ``plan`` over Orloj, and its gain by lengths, in points, paired by trace. On lengths that were
    measured there is nothing else to check."""
    names = {row.system for row in rows}
    for better, worse in ((BETTER, REFERENCE), (ORACLE, BETTER)):
        if {better, worse} <= names:
            found = paired(rows, better, worse)[0]
            checks.at_least(f"{law} points of {better} ahead of {worse}", found, AHEAD_MIN, OURS)


def check_loads(checks: Checks, found: Sequence[Mapping[str, Any]]) -> None:
    """The load sustained beside the specification's: other traces of the same kind."""
    for row in found:
        for system, stated in zip(LOAD_SYSTEMS, LOADS_STATED[row["law"], row["factor"]]):
            rate = row["rates"].get(system)
            if rate is None:
                continue
            checks.near(
                f"{row['law']} {row['factor']:g}x, {row['target']:.2f}: requests/s of {system}",
                rate,
                stated,
                round(LOAD_WITHIN * stated, 2),
            )


def costs(names: Sequence[str], law: str = "PA", factor: float = 3.0) -> List[Dict[str, Any]]:
    """The cost of a step of the scheduler on this machine, median and 99th percentile, one trace per system."""
    trace = make_trace(LAWS[law], case_of(LAWS[law], "two-modal"), 901)
    found = []
    for system in chosen(names):
        result = simulate(system, trace, profile_of(trace), factor, timed=True)
        found.append(
            {
                "system": system.name,
                "step_us_p50": round(result.step_us, 1),
                "step_us_p99": round(result.step_us_p99, 1),
            }
        )
    return found


def seeds_of(text: str) -> Tuple[int, ...]:
    """``1-5`` or ``101,103``."""
    found: List[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _parser() -> argparse.ArgumentParser:
    parser = arguments(__doc__, quick="one seed, two cases")
    parser.add_argument(
        "--seeds",
        "--seed",
        type=seeds_of,
        default=None,
        metavar="1-5",
        help="1-5 are the specification's, 101-105 fresh ones, 901 and above for tuning",
    )
    parser.add_argument("--laws", default=",".join(LAWS), help="profiles (default %(default)s)")
    parser.add_argument("--systems", default="", help="names, separated by ';' (default: all)")
    parser.add_argument("--every", action="store_true", help="every system on all seeds, not on the first only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--static", action="store_true", help="Table 4 instead of the profiles")
    parser.add_argument("--measured", metavar="FILE", help="measured times alone instead of the profiles")
    parser.add_argument("--load", action="store_true", help="the load that is sustained, instead of finish rates")
    parser.add_argument("--cost", action="store_true", help="measure what decisions cost")
    parser.add_argument(
        "--keep",
        metavar="FILE",
        default="",
        help="append the runs to this file and go on from what it has; delete it when code changed",
    )
    parser.add_argument(
        "--write",
        metavar="PART",
        nargs="?",
        const="finish rates",
        help="store the result in research/results/ and as this part of its page (default '%(const)s')",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    seeds = args.seeds or ((1,) if args.quick else (1, 2, 3, 4, 5))
    names = tuple(
        system.name
        for system in SYSTEMS
        if system.exists and (not args.systems or system.name in args.systems.split(";"))
    )
    circumstances = {"quick": args.quick, "seeds": output.spelled(seeds)}
    checks = checks_of("research/replicate/orloj/run.py", args.quick)
    began = time.monotonic()
    if args.load:
        found = search_loads(names, seeds[:3], args.laws.split(","), args.processes)
        table = output.loads_as_markdown(found)
        print(table)
        if args.write:
            output.fill_page(args.write, table)
        check_loads(checks, found)
        return checks.finish(args.json, circumstances, loads=found)
    rows = run_all(jobs_of(args, names, seeds), args.processes, args.keep)
    laws = list(dict.fromkeys(row.law for row in rows))
    tables = {law: output.table_of(law, [row for row in rows if row.law == law]) for law in laws}
    differences = []
    for law in laws:
        here = [row for row in rows if row.law == law]
        found_here = differences_of(law, here)
        print("\n".join([output.as_text(law, tables[law]), *found_here]), end="\n\n")
        differences += found_here
        if law in LAWS:
            check_law(checks, law, here, args.quick)
        elif law in STATIC:
            check_static(checks, law, here)
        else:
            check_ours(checks, law, here)
    print(f"{len(rows)} runs in {time.monotonic() - began:.0f} s on {args.processes} processes")
    more: Dict[str, Any] = {"tables": tables}
    if args.cost:
        more["decisions"] = costs(names)
        for row in more["decisions"]:
            print(f"  {row['system']:24} {row['step_us_p50']:7.1f} us a step, p99 {row['step_us_p99']:7.1f} us")
    path = args.json
    if args.write:
        name = SCRIPT_NAME if args.write == "finish rates" else f"{SCRIPT_NAME}_{args.write.replace(' ', '_')}"
        output.write_rates(name, rows)
        output.fill_page(
            args.write,
            "\n".join(
                [
                    output.as_markdown(tables),
                    "",
                    f"Seeds {circumstances['seeds']}.",
                    "",
                    *[f"* {line.strip()}" for line in differences],
                ]
            ),
        )
        path = path or output.path_of(f"{name}.json")
    return checks.finish(path, circumstances, **more)


def differences_of(law: str, rows: Sequence[Row]) -> List[str]:
    """The differences between the systems of interest, a line each."""
    lines = []
    for better, worse in ((REFERENCE, "Clockwork"), (BETTER, REFERENCE), (ORACLE, BETTER)):
        mean, half = paired(rows, better, worse)
        if not math.isnan(mean):
            lines.append(f"  {law}: {better} - {worse} {mean:+.2f} points (95 %: +-{half:.2f}, paired by trace)")
    simple = [name for name in SIMPLE if any(row.system == name for row in rows)]
    if len(simple) == len(SIMPLE) and any(row.system == BETTER for row in rows):
        best = max(simple, key=lambda name: statistics.fmean([row.rate for row in rows if row.system == name]))
        mean, half = paired(rows, BETTER, best)
        lines.append(f"  {law}: {BETTER} - {best}, the best of the simple, {mean:+.2f} points (95 %: +-{half:.2f})")
    return lines


def jobs_of(args: argparse.Namespace, names: Tuple[str, ...], seeds: Sequence[int]) -> List[Job]:
    """The options of the command line."""
    if args.measured:
        return [
            Job(law.name, case.name, seed, names, args.measured)
            for law in measured_laws(args.measured)
            for case in law.cases
            for seed in seeds
        ]
    laws = [law_of(name) for name in (STATIC if args.static else args.laws.split(","))]
    if args.static:
        names = tuple(name for name in names if name != ORACLE)  # their time does not depend on a length
    few = names if args.every else tuple(name for name in names if name in HEADLINE)
    jobs = [
        (seed, index, Job(law.name, case.name, seed, names if seed in seeds[:SEEDS_OF_OTHERS] else few))
        for law in laws
        for index, case in enumerate(law.cases)
        for seed in seeds
        if not args.quick or args.static or case.name in QUICK_CASES
    ]
    return [job for _, _, job in sorted(jobs)]  # a run that is stopped has something of every profile


def search_loads(
    names: Sequence[str], seeds: Sequence[int], laws: Sequence[str], processes: int
) -> List[Dict[str, Any]]:
    """The last table of section 9: a row per profile and target, a column per system."""
    searches = [
        Load(law, factor, target, system, tuple(seeds))
        for law, factor, target in LOADS
        if law in laws
        for system in LOAD_SYSTEMS
        if system in names
    ]
    found: Dict[Tuple[str, float, float], Dict[str, float]] = {}
    for load, rate in runs.done(sustained, searches, processes):
        found.setdefault((load.law, load.factor, load.target), {})[load.system] = round(rate, 1)
    return [
        {"law": law, "factor": factor, "target": target, "rates": rates}
        for (law, factor, target), rates in found.items()
    ]


if __name__ == "__main__":
    assert {case.name for case in CASES} >= set(QUICK_CASES)
    sys.exit(main())
