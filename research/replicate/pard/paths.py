"""PARD in graphs: which branch will be taken (``route = "one"``), and how late the other branch is; in virtual time.

    python research/replicate/pard/paths.py [--quick] [--seconds S] [--seeds 21,22,23] [--json FILE]

The reference is the simulation in PARD's specification (section 9.4): a pipeline like *da* whose first module chooses
one of two branches, the longer of which hardly fits the SLO. It gives the branches' times (64 and 17 ms), SLOs, loads
and accuracies. The rest was chosen here, plainly and before any run: *da*'s profiles, in batches for half of its own
SLO of 420 ms (person 4, branches 4, expression and eye 5, which is 208 ms along the longer path; they stay so under the
tighter SLOs, so ``plan = 0``); both branches equally likely; lanes of its own for every module, enough for 300 requests
a second (the capacity is 308); Poisson arrivals.
On one device: *da* with the profiles of *lv*'s modules there, its load in units of the rate at which cohorts of half
the SLO, with the branches' mean cost, keep it busy.

A request declares which branch it expects, and is right so often. The same arrivals and the same branches for every
row (paired). Two tables more say where the gain comes from: with batches planned for the SLO (what the policy does by
default), and without the waits that the test expects.

The last table is section 3.5: *da* with both branches taken, and a branch that is or is not judged by its sibling; and
once with a lane less for the slow branch than the load needs.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common.cells import means, run_cells, show
from common.lean_world import LeanWorld, Lost, served
from common.replicated import AHEAD, GOAL, OURS, checks_of
from lib.checks import Checks, arguments

from edgeserve.sched.protocol.events import JobId, JobResult
from replicate.pard.cases import PROFILES_MS, poisson_ns

RATE, RHO = 300.0, 0.9
BRANCHES = ("pose", "face")
SIZES = {"person": 4, "pose": 4, "face": 4, "expression": 5, "eye": 5}
TIMES_MS = {**PROFILES_MS, "face": (5.0, 3.0)}  # a batch of b takes a + c * b; face is the branch of 17 ms
LOCAL_MS = {"person": (12, 5), "pose": (9, 4.2), "face": (6, 2.2), "expression": (5, 1.6), "eye": (5, 1.8)}
LOCAL_SLO_MS, LOCAL_LIMIT = 420, 32
SLOS_MS = (270, 240, 420)
LONGEST, EXPECTED, ORACLE, COIN = "longest path", "expected path", "oracle", "50 % right"
ROWS: Mapping[str, Tuple[float, str]] = {  # row -> how often the declared branch is right (0 = none), option paths
    LONGEST: (0.0, "longest"),
    EXPECTED: (0.0, "expected"),
    ORACLE: (1.0, "longest"),
    "80 % right": (0.8, "longest"),
    "65 % right": (0.65, "longest"),
    COIN: (0.5, "longest"),
}
REFERENCE: Mapping[str, Mapping[str, float]] = {  # drop in percent
    LONGEST: {"270": 33.6, "240": 98},
    ORACLE: {"270": 21.8, "240": 50},
    "80 % right": {"270": 22.8},
    "65 % right": {"270": 24.5},
    COIN: {"270": 26.3},
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {  # tables of three rows: batches planned for the SLO, waits not counted
    "pard+, plan 0.53": {"plan": 0.53},
    "pard+, lam 0": {"lam": 0.0},
}
LOCAL_RHOS = (1.0, 1.3)
COSTLY = "the dearer branch for all"
LOCAL_REFERENCE: Mapping[str, Mapping[str, float]] = {
    COSTLY: {"1.0": 6.0, "1.3": 23.6},
    EXPECTED: {"1.0": 4.8, "1.3": 22.4},
    ORACLE: {"1.0": 4.8, "1.3": 21.8},
}
BOTH_LOADS: Mapping[str, Tuple[float, int]] = {  # column -> load, lanes that the slow branch lacks
    "1.0": (1.0, 0),
    "1.2": (1.2, 0),
    "1.5": (1.5, 0),
    "1.0, a lane less": (1.0, 1),
}
BOTH_SLO_MS = 420
BOTH: Mapping[str, Tuple[str, bool]] = {
    "pard": ("pard", False),
    "pard, siblings": ("pard", True),
    "pard+, no siblings": ("pard+", False),
    "pard+": ("pard+", True),
}


class Case(NamedTuple):
    """One run."""

    table: str
    row: str
    where: str
    kind: str
    options: Mapping[str, Any]
    slo_ms: int
    arrivals_ns: Sequence[int]
    taken: Sequence[int] = ()  # by request: the branch; none = both
    declared: Sequence[int] = ()  # by request: the branch that it declares
    less: int = 0  # lanes that the slow branch lacks


class RoutesWorld(LeanWorld):
    """A lean world whose first node chooses a branch, which requests may declare, rightly or not."""

    def __init__(self, *given: Any, taken: Sequence[int], declared: Sequence[int], **more: Any) -> None:
        super().__init__(*given, **more)
        self._taken, self._declared = taken, declared

    def hints_of(self, request_id: int) -> Optional[Mapping[str, float]]:
        """The branch that it expects."""
        return {"person.route": float(self._declared[request_id - 1])} if self._declared else None

    def result_of(self, job: JobId) -> JobResult:
        """The branch that it takes."""
        if self._taken and job.node == "person":
            return JobResult(job, route=BRANCHES[self._taken[job.request_id - 1]])
        return JobResult(job)


def batch_ms(module: str, size: int) -> float:
    """The time of a batch on a lane of its module."""
    fixed, each = TIMES_MS[module]
    return fixed + each * size


def lanes_for(rate: float, chosen: bool) -> Dict[str, int]:
    """Lanes per module in full batches; of a chosen branch, for half of the requests."""
    return {
        module: math.ceil(rate * (0.5 if chosen and module in BRANCHES else 1) * batch_ms(module, size) / 1000 / size)
        for module, size in SIZES.items()
    }


def capacity(chosen: bool) -> float:
    """Requests a second of the slowest module."""
    return min(
        count * SIZES[module] / batch_ms(module, SIZES[module]) * 1000 / (0.5 if chosen and module in BRANCHES else 1)
        for module, count in lanes_for(RATE, chosen).items()
    )


def local_capacity() -> float:
    """Requests a second in cohorts of half the SLO, half of whose requests take either branch."""
    share = {module: 0.5 if module in BRANCHES else 1.0 for module in LOCAL_MS}
    fixed = sum(LOCAL_MS[module][0] for module in LOCAL_MS)
    each = sum(LOCAL_MS[module][1] * share[module] for module in LOCAL_MS)
    return (LOCAL_SLO_MS / 2 - fixed) / each / (LOCAL_SLO_MS / 2000)


def table_of(case: Case) -> Dict[str, Any]:
    """The configuration of one case."""
    chosen = bool(case.taken)
    local = case.table == "one device"
    lanes = (
        {"gpu": ["gpu"]}
        if local
        else {
            module: [f"{module}{index}" for index in range(count)] for module, count in lanes_for(RATE, chosen).items()
        }
    )
    if case.less:
        del lanes["pose"][-case.less :]
    models: Dict[str, Any] = {}
    for module, size in SIZES.items():
        fixed, each = LOCAL_MS[module] if local else TIMES_MS[module]
        sizes = range(1, (LOCAL_LIMIT if local else size) + 1)
        models[module] = {
            "engine": "synthetic",
            "batch": list(sizes),
            "lanes": lanes["gpu" if local else module],
            "expected": {str(item): f"{round((fixed + each * item) * 1000)}us" for item in sizes},
        }
    nodes: List[Dict[str, Any]] = [{"name": "person", "after": [], **({"route": "one"} if chosen else {})}]
    nodes += [{"name": branch, "after": ["person"]} for branch in BRANCHES]
    nodes += [{"name": "expression", "after": list(BRANCHES)}, {"name": "eye", "after": ["expression"]}]
    return {
        "lane": {name: {"hang": "600s"} for names in lanes.values() for name in names},
        "model": models,
        "policy": {"p": {"kind": case.kind, **({} if local else {"plan": 0.0}), **case.options}},
        "server": {"pending_max": 1_000_000},
        "app": {"da": {"slo": f"{case.slo_ms}ms", "pending_max": 1_000_000, "node": nodes}},
    }


def run(case: Case) -> Lost:
    """One case with the product's scheduler."""
    more = {"taken": case.taken, "declared": case.declared}
    return served(table_of(case), case.arrivals_ns, RoutesWorld, **more)[0].lost()


def branches(count: int, seed: int) -> List[int]:
    """The branch that each request takes."""
    draw = random.Random(f"{seed}/branches")
    return [draw.randrange(2) for _ in range(count)]


def guesses(taken: Sequence[int], right: float, seed: int) -> List[int]:
    """The declared branches: the branch taken with this probability, else the other. Who is right more often is right
    about the same requests, and some more."""
    draw = random.Random(f"{seed}/guesses")
    return [branch if draw.random() < right else 1 - branch for branch in taken]


def cases_of(seconds: int, seeds: Sequence[int], tables: Sequence[str]) -> List[Case]:
    """Every run of the tables."""
    found: List[Case] = []
    for seed in seeds:
        arrivals = poisson_ns([RHO * capacity(True)] * seconds, seed)
        taken = branches(len(arrivals), seed)
        for table, options in {"pard": {}, "pard+": {}, **VARIANTS}.items():
            rows = (LONGEST, EXPECTED, ORACLE) if table in VARIANTS else tuple(ROWS)
            for slo_ms, row in itertools.product(SLOS_MS, rows):
                right, paths = ROWS[row]
                declared = guesses(taken, right, seed) if right else ()
                found.append(
                    Case(
                        table,
                        row,
                        str(slo_ms),
                        table.split(",")[0],
                        {**options, "paths": paths},
                        slo_ms,
                        arrivals,
                        taken,
                        declared,
                    )
                )
        for rho in LOCAL_RHOS:
            arrivals = poisson_ns([rho * local_capacity()] * seconds, seed + 1000)
            taken = branches(len(arrivals), seed + 1000)
            for row, declared in ((COSTLY, [0] * len(taken)), (EXPECTED, []), (ORACLE, taken)):
                found.append(
                    Case(
                        "one device",
                        row,
                        str(rho),
                        "plan",
                        {},
                        LOCAL_SLO_MS,
                        arrivals,
                        taken,
                        declared,
                    )
                )
        for column, (rho, less) in BOTH_LOADS.items():
            arrivals = poisson_ns([rho * capacity(False)] * seconds, seed + 2000)
            for row, (kind, siblings) in BOTH.items():
                found.append(
                    Case("both branches", row, column, kind, {"siblings": siblings}, BOTH_SLO_MS, arrivals, less=less)
                )
    return [case for case in found if not tables or case.table in tables]


def judge(drop: Mapping[str, Any], invalid: Mapping[str, Any], checks: Checks) -> None:
    """The orderings of the specification, and what is expected of the siblings."""
    for kind in ("pard", "pard+"):
        if kind not in drop:
            continue
        cells = drop[kind]
        for better, worse in (
            (ORACLE, "80 % right"),
            ("80 % right", "65 % right"),
            ("65 % right", COIN),
            (COIN, LONGEST),
        ):
            checks.at_most(
                f"{kind}, SLO 270: {better} over {worse}", cells[better]["270"] / cells[worse]["270"], 1.0, AHEAD
            )
        checks.at_most(
            f"{kind}, SLO 240: oracle over longest path (reference 0.51)",
            cells[ORACLE]["240"] / cells[LONGEST]["240"],
            0.75,
            GOAL,
        )
        checks.between(
            f"{kind}, SLO 420: longest path above the oracle, points (reference 0.1)",
            cells[LONGEST]["420"] - cells[ORACLE]["420"],
            -0.5,
            0.5,
        )
    planned = drop.get("pard+, plan 0.53")
    if planned and "pard+" in drop:
        checks.at_most(
            "pard+, SLO 270: longest path with planned batches over the oracle without",
            planned[LONGEST]["270"] / drop["pard+"][ORACLE]["270"],
            1.0,
            OURS,
        )
        checks.at_most(
            "pard+, SLO 270, planned batches: oracle over longest path",
            planned[ORACLE]["270"] / planned[LONGEST]["270"],
            1.0,
            OURS,
        )
    if "one device" in drop:
        cells = drop["one device"]
        for rho in map(str, LOCAL_RHOS):
            checks.at_most(
                f"one device, rho {rho}: expected cost over the dearer branch",
                cells[EXPECTED][rho] / cells[COSTLY][rho],
                1.0,
                AHEAD,
            )
            stated = LOCAL_REFERENCE[ORACLE][rho] - LOCAL_REFERENCE[EXPECTED][rho]
            checks.between(
                f"one device, rho {rho}: oracle above expected cost, points (reference {stated:.1f})",
                cells[ORACLE][rho] - cells[EXPECTED][rho],
                stated - 1.5,
                0.5,
            )
    if "both branches" in drop:
        for rho in BOTH_LOADS:
            for with_it, without in (("pard, siblings", "pard"), ("pard+", "pard+, no siblings")):
                checks.at_most(
                    f"both branches, rho {rho}: wasted lane time, {with_it} over {without}",
                    invalid[with_it][rho] / invalid[without][rho],
                    1.0,
                    OURS,
                )
                checks.at_most(
                    f"both branches, rho {rho}: drop, {with_it} above {without}, points",
                    drop["both branches"][with_it][rho] - drop["both branches"][without][rho],
                    0.1,
                    OURS,
                )


def main() -> int:
    parser = arguments(__doc__, quick="10 s and one seed per cell")
    parser.add_argument("--seconds", type=int, default=20, help="of arrivals per cell")
    parser.add_argument("--seeds", default="21,22,23", help="of arrivals, branches and guesses")
    parser.add_argument("--tables", default="", help="only these, with ; between them")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    seconds, seeds = (10, seeds[:1]) if args.quick else (args.seconds, seeds)
    cases = cases_of(seconds, seeds, args.tables.split(";") if args.tables else ())
    found = run_cells(run, cases, args.processes)
    drop, invalid = means(found, "drop"), means(found, "invalid")
    for table, cells in drop.items():
        reference = {} if table in VARIANTS else LOCAL_REFERENCE if table == "one device" else REFERENCE
        show(f"{table}: drop in percent, ours (reference)", cells, reference)
        show(f"{table}: lane time spent on what was lost, in percent", invalid[table])
    checks = checks_of("research/replicate/pard/paths.py", args.quick)
    judge(drop, invalid.get("both branches", {}), checks)
    return checks.finish(args.json, {"seconds": seconds, "seeds": str(seeds)}, drop=drop, invalid=invalid)


if __name__ == "__main__":
    sys.exit(main())
