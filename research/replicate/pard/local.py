"""PARD's local mode, all modules of a pipeline on one device, beside a clairvoyant and a reference's numbers.

    python research/replicate/pard/local.py [--quick] [--seconds S] [--seeds 11,12] [--json FILE]

The reference is the simulation in PARD's specification (sections 8 and 9): pipeline *lv* at a constant rate, traces,
unequal batch limits, unequal work. Here the product's scheduler decides, in virtual time, on the same arrivals for
every policy (paired); the optimum is the dynamic programme of ``common/pard_oracle.py``. The traces are generated
(``cases.py``), so only their order and distances compare with the reference.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common.cells import by_column, means, run_cells, show
from common.lean_world import LeanWorld, Lost, served
from common.pard_oracle import most_in_time
from common.replicated import GOAL, LEAST, checks_of
from lib.checks import Checks, arguments

from edgeserve.sim.report import report_of
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario
from replicate.pard.cases import poisson_ns, scaled_to_peak, trace_shape
from replicate.pard.world import WorkWorld, lognormal

PIPELINES: Mapping[str, Tuple[int, Tuple[Tuple[float, float], ...]]] = {  # SLO in ms; a batch of b takes a + c * b ms
    "tm": (400, ((12, 5.5), (6, 2.2), (8, 3.5))),
    "lv": (500, ((12, 5), (6, 2.2), (5, 1.6), (5, 1.8), (9, 4.2))),
    "ga": (600, ((12, 5.5), (5, 1.5), (6, 2), (4, 1.2), (6, 2.4))),
}
CAPACITY = {"tm": 77.7, "lv": 57.6, "ga": 70.6}  # requests a second in cohorts of half the SLO
PLANNED = {"tm": 14, "lv": 14, "ga": 20}  # batch size that per-module PARD plans with: half the SLO for all modules
LIMIT = 32
RHOS = (0.85, 0.95, 1.0, 1.1, 1.2, 1.5, 2.0)

LOCAL, OPTIMUM, FIFO, REACTIVE, REACTIVE_FULL, ROUND_ROBIN, MEASURED = (
    "companies (plan)",
    "clairvoyant optimum",
    "PARD, FIFO by arrival",
    "reactive (back), round robin",
    "... full batch times",
    "PARD per module, round robin",
    "... measured batch times",
)
POLICIES: Mapping[str, Tuple[str, Mapping[str, Any]]] = {  # batch times by what is better for the row (seed 901)
    LOCAL: ("plan", {}),
    "downstream first, d only (sf)": ("pard", {"rule": "sf", "across": "downstream", "batch_times": "full"}),
    ROUND_ROBIN: ("pard", {"across": "round_robin", "batch_times": "full"}),
    MEASURED: ("pard", {"across": "round_robin", "batch_times": "measured"}),
    "PARD, EDF across modules": ("pard", {"across": "edf", "batch_times": "full"}),
    "PARD, least slack": ("pard", {"across": "least_slack", "batch_times": "measured"}),
    "PARD, fullest batch first": ("pard", {"across": "fullest", "batch_times": "measured"}),
    FIFO: ("pard", {"across": "fifo", "batch_times": "measured"}),
    REACTIVE: ("pard", {"rule": "back", "across": "round_robin", "batch_times": "measured"}),
    REACTIVE_FULL: ("pard", {"rule": "back", "across": "round_robin", "batch_times": "full"}),
}
REFERENCE: Mapping[str, Sequence[float]] = {  # specification 8.3, drop in percent at RHOS
    OPTIMUM: (0.0, 1.3, 3.4, 9.4, 16.0, 31.5, 47.9),
    LOCAL: (0.17, 2.5, 4.7, 10.2, 16.6, 32.0, 48.2),
    "downstream first, d only (sf)": (0.30, 3.5, 5.9, 11.8, 18.4, 34.0, 50.4),
    ROUND_ROBIN: (0.93, 4.9, 7.5, 12.8, 19.3, 34.2, 50.4),
    MEASURED: (0.93, 4.9, 7.5, 12.8, 19.3, 34.2, 50.4),
    "PARD, EDF across modules": (0.93, 4.9, 7.4, 12.8, 19.2, 34.2, 50.4),
    "PARD, least slack": (0.98, 4.8, 7.5, 12.9, 19.2, 34.2, 50.4),
    "PARD, fullest batch first": (1.2, 7.6, 10.7, 17.2, 25.8, 37.6, 50.8),
    FIFO: (15.2, 23.3, 27.2, 33.1, 38.7, 50.5, 61.9),
    REACTIVE: (0.41, 7.3, 14.7, 32.6, 47.6, 70, 85),
    REACTIVE_FULL: (0.41, 7.3, 14.7, 32.6, 47.6, 70, 85),
}
TRACE_ROWS = (OPTIMUM, LOCAL, ROUND_ROBIN, FIFO, REACTIVE)
TRACE_REFERENCE: Mapping[str, Mapping[str, Sequence[float]]] = {  # wiki, tweet, azure
    "tm": {
        OPTIMUM: (5.2, 2.4, 3.2),
        LOCAL: (5.8, 2.7, 3.5),
        ROUND_ROBIN: (6.8, 3.1, 4.0),
        FIFO: (14.3, 6.2, 7.7),
        REACTIVE: (14.9, 6.6, 7.2),
    },
    "lv": {
        OPTIMUM: (5.2, 2.3, 2.4),
        LOCAL: (5.8, 2.6, 2.7),
        ROUND_ROBIN: (7.5, 3.2, 3.3),
        FIFO: (20.7, 8.3, 9.0),
        REACTIVE: (16.5, 6.8, 6.2),
    },
    "ga": {
        OPTIMUM: (5.1, 2.2, 2.6),
        LOCAL: (5.6, 2.5, 3.0),
        ROUND_ROBIN: (6.6, 2.8, 3.4),
        FIFO: (17.0, 6.8, 8.4),
        REACTIVE: (15.7, 6.1, 6.2),
    },
}
LIMITS_REFERENCE = {LOCAL: (0.0, 3.2, 14.0, 27.0), "downstream first, d only (sf)": (1.7, 15.6, 28.3, 40.2)}
LIMITS_RHOS = (0.7, 0.85, 1.0, 1.2)
WORK_REFERENCE = {"mean work": (5.0, 23.3), "predicted work": (3.5, 18.9)}
WORK_RHOS = (1.0, 1.3)


class Case(NamedTuple):
    """One run, or one optimum: which row of which table, and what is served."""

    table: str
    row: str
    where: str
    pipeline: str
    arrivals_ns: Sequence[int]
    limits: Sequence[int] = ()
    works: Sequence[float] = ()


def cost_ns(pipeline: str, count: int) -> int:
    """The lane time of a cohort."""
    return sum(round((-(-count // LIMIT) * fixed + each * count) * 1e6) for fixed, each in PIPELINES[pipeline][1])


def table_of(pipeline: str, kind: str, options: Mapping[str, Any], limits: Sequence[int]) -> Dict[str, Any]:
    """The configuration of one pipeline on one lane."""
    slo_ms, profiles = PIPELINES[pipeline]
    models = {
        f"m{index}": _model(fixed, each, limit)
        for index, ((fixed, each), limit) in enumerate(zip(profiles, limits or [LIMIT] * len(profiles)))
    }
    return {
        "lane": {"gpu0": {"hang": "600s"}},
        "model": models,
        "policy": {"p": {"kind": kind, **options}},
        "server": {"pending_max": 1_000_000},
        "app": {
            pipeline: {"slo": f"{slo_ms}ms", "pending_max": 1_000_000, "node": [{"name": name} for name in models]}
        },
    }


def _model(fixed: float, each: float, limit: int) -> Dict[str, Any]:
    return {
        "engine": "synthetic",
        "batch": list(range(1, limit + 1)),
        "expected": {str(size): f"{round((fixed + each * size) * 1000)}us" for size in range(1, limit + 1)},
    }


def run(case: Case) -> Lost:
    """One case with the product's scheduler, or the optimum for it."""
    arrivals = case.arrivals_ns
    if case.row == OPTIMUM:
        slo_ns = PIPELINES[case.pipeline][0] * 1_000_000
        best = most_in_time(arrivals, slo_ns, lambda count: cost_ns(case.pipeline, count), 1_000_000)
        return Lost(100 * (1 - best / len(arrivals)), 0.0, 0)
    kind, options = WORK_ROWS[case.row] if case.works else POLICIES[case.row]
    planned = {"batch_max": PLANNED[case.pipeline]} if kind == "pard" and not case.limits else {}
    table = table_of(case.pipeline, kind, {**options, **planned}, case.limits)
    if not case.works:
        return served(table, arrivals, LeanWorld)[0].lost()
    profiles = {f"m{index}": profile for index, profile in enumerate(PIPELINES[case.pipeline][1])}
    declared = case.works if case.row != "mean work" else ()
    return served(table, arrivals, WorkWorld, profiles=profiles, works=case.works, declared=declared)[0].lost()


WORK_ROWS: Mapping[str, Tuple[str, Mapping[str, Any]]] = {
    "mean work": ("plan", {}),
    "predicted work": ("plan", {}),
}


def cases_of(seconds: int, trace_seconds: int, seeds: Sequence[int], traces: Sequence[str]) -> List[Case]:
    """Every run of every table."""
    found: List[Case] = []
    for seed in seeds:
        for rho in RHOS:
            arrivals = poisson_ns([rho * CAPACITY["lv"]] * seconds, seed)
            found += [Case("constant", row, str(rho), "lv", arrivals) for row in (OPTIMUM, *POLICIES)]
        for rho in LIMITS_RHOS:
            arrivals = poisson_ns([rho * CAPACITY["lv"]] * seconds, seed + 1000)
            found += [
                Case("limits", row, str(rho), "lv", arrivals, limits=(4, 32, 32, 32, 32)) for row in LIMITS_REFERENCE
            ]
        for rho in WORK_RHOS:
            arrivals, draw = poisson_ns([rho * CAPACITY["lv"]] * seconds, seed + 2000), random.Random(f"{seed}/work")
            works = [lognormal(draw, 1.0) for _ in arrivals]
            found += [Case("work", row, str(rho), "lv", arrivals, works=works) for row in WORK_ROWS]
        for pipeline in PIPELINES:
            for trace in traces:
                rates = scaled_to_peak(trace_shape(trace, trace_seconds, seed), 1.3 * CAPACITY[pipeline])
                arrivals = poisson_ns(rates, seed + 3000)
                found += [Case("trace", row, f"{pipeline} {trace}", pipeline, arrivals) for row in TRACE_ROWS]
    return found


def with_noise(seconds: int, seeds: Sequence[int]) -> Dict[str, Dict[str, float]]:
    """The same pipeline in the full simulator with 10 % noise in every duration, by load; percent lost."""
    found: Dict[str, Dict[str, float]] = {}
    for noise in (0.0, 0.1):
        for rho in (1.0, 1.2):
            table = table_of("lv", "plan", {}, ())
            table["run"] = {"duration": f"{seconds}s", "noise": noise, "step_cost": "20us", "event_cost": "15us"}
            table["workload"] = {"w": {"app": "lv", "rate": rho * CAPACITY["lv"]}}
            scenario = parse_scenario(table)
            report = report_of([simulate(scenario, seed, ()).world for seed in seeds], 0, scenario.run.duration_ns)
            found.setdefault(f"noise {noise:.0%}", {})[str(rho)] = 100 * (1 - report.total.finish_rate)
    return found


GRID = 0.3
"""Points by which a run may beat the clairvoyant optimum, which counts time on a grid."""


def check(
    constant: Mapping[str, Mapping[str, float]],
    invalid: Mapping[str, Mapping[str, float]],
    drop: Mapping[str, Mapping[str, Mapping[str, float]]],
    late: int,
    quick: bool = False,
) -> Checks:
    """The acceptance figures of the specification, on what the cells of all tables dropped."""
    checks = checks_of("research/replicate/pard/local.py", quick)
    local, best = constant[LOCAL], constant[OPTIMUM]
    for column in map(str, RHOS):
        above = local[column] - best[column]
        checks.between(f"rho {column}: points above the clairvoyant optimum", above, -GRID, 1.5)
    checks.at_most("invalid time without noise, percent, worst load", max(invalid[LOCAL].values()), 1e-9, LEAST)
    checks.at_most("late answers without noise", late, 0, LEAST)
    for row, gain in ((ROUND_ROBIN, 1.03), (FIFO, 1.36), (REACTIVE_FULL, 1.59), (REACTIVE, 1.59)):
        checks.at_least(
            f"rho 1.2: goodput over {row.replace('...', 'reactive,')}",
            (100 - local["1.2"]) / (100 - constant[row]["1.2"]),
            gain,
            GOAL,
        )
    for where, value in drop["trace"][LOCAL].items():
        checks.between(f"{where}: points above the optimum", value - drop["trace"][OPTIMUM][where], -GRID, 1.5)
    for rho in map(str, LIMITS_RHOS[1:]):
        checks.at_most(
            f"unequal limits, rho {rho}: drop over downstream first",
            drop["limits"][LOCAL][rho] / drop["limits"]["downstream first, d only (sf)"][rho],
            0.75,
            GOAL,
        )
    work = drop["work"]
    for rho in map(str, WORK_RHOS):
        checks.at_most(
            f"unequal work, rho {rho}: predicted over mean",
            work["predicted work"][rho] / work["mean work"][rho],
            0.85,
            GOAL,
        )
    return checks


def main() -> int:
    parser = arguments(__doc__, quick="20 s and one seed per cell, one trace")
    parser.add_argument("--seconds", type=int, default=60, help="of arrivals per cell at a constant rate")
    parser.add_argument("--trace-seconds", type=int, default=200)
    parser.add_argument("--seeds", default="11,12", help="of the arrivals; the same for every policy")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    seconds, trace_seconds = args.seconds, args.trace_seconds
    if args.quick:
        seconds, trace_seconds, seeds = 20, 60, seeds[:1]
    traces = ("wiki",) if args.quick else ("wiki", "tweet", "azure")
    found = run_cells(run, cases_of(seconds, trace_seconds, seeds, traces), args.processes)
    drop, invalid = means(found, "drop"), means(found, "invalid")["constant"]
    show("lv at rho x 57.6/s: drop in percent, ours (reference)", drop["constant"], by_column(REFERENCE, RHOS))
    show("... lane time spent on what was lost, in percent", invalid)
    limits, work = by_column(LIMITS_REFERENCE, LIMITS_RHOS), by_column(WORK_REFERENCE, WORK_RHOS)
    show("lv, entry's batches at most 4, the others' 32", drop["limits"], limits)
    show("lv, lognormal work of variation 1", drop["work"], work)
    for pipeline, known in TRACE_REFERENCE.items():
        places = [f"{pipeline} {trace}" for trace in traces]
        shown = {row: {where: values[where] for where in places} for row, values in drop["trace"].items()}
        show(f"{pipeline} on traces, peak 1.3 x capacity", shown, by_column(known, places))
    noise = with_noise(seconds, seeds)
    show("lv in the full simulator, the scheduler's own time charged", noise)
    late = sum(item.late for results in found["constant"][LOCAL].values() for item in results)
    checks = check(drop["constant"], invalid, drop, late, args.quick)
    return checks.finish(
        args.json,
        {"seconds": seconds, "trace seconds": trace_seconds, "seeds": str(seeds)},
        drop=drop,
        invalid=invalid,
        noise=noise,
    )


if __name__ == "__main__":
    sys.exit(main())
