"""Ensembles in trouble, in virtual time: what ``plan`` delivers beside the simpler policies when something is not as
planned.

    python research/replicate/schemble/between.py [--quick] [--first-seed N] [--seeds N] [--json FILE] [--only CASE ...]

The ensemble of ``run.py``, on lanes of its models' own and on one lane, at 0.6 and 1.5 times the rate that
all models can take. The cases: no fit; a difficulty that tells nothing; a fit of models in another order; one model
three times as slow as its profile, failing half of its jobs, or both; a node that scores as long as a model takes;
memory for two of three models; two ensembles that share two models. A request's value counts where its answer is in
time and, for the ensemble of three, is that of all models. ``plan`` is to be at most two points behind the best of
the others, or where the fit is of other data behind the static choices.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common.replicated import OURS, checks_of
from lib.checks import Checks, arguments

from edgeserve.config.ensemble_profile import EnsembleProfile, ensemble_table
from replicate.schemble import ensemble, world
from replicate.schemble.world import Result, System

SCRIPT = "research/replicate/schemble/between.py"
ITEMS = 4000
DEADLINE_MS = 300
BEHIND = 2.0
"""Points of value by which ``plan`` may be behind (the specification's bound for a fit of other data)."""

LOADS = (0.6, 1.5)
PLACES = {
    "lanes of their own": (1000 / max(ensemble.TIMES_MS), False),
    "one lane": (1000 / sum(ensemble.TIMES_MS), True),
}
"""Placement of the models -> the rate that all of them can take, and whether they share a lane."""

STATIC = ("static", "fastest")
Table = Dict[str, Any]


def no_fit(table: Table) -> None:
    """Every model counts alike."""
    del table["app"]["query"]["ensemble"]


def slow(table: Table) -> None:
    """The second model takes three times what its profile says."""
    times = table["model"]["m1"]["expected"]
    table["truth"]["m1"]["times"] = {size: f"{3 * float(time[:-2]):.3f}ms" for size, time in times.items()}


def failing(table: Table) -> None:
    """Half of the second model's jobs fail."""
    table["truth"]["m1"]["fail"] = 0.5


def slow_and_failing(table: Table) -> None:
    slow(table)
    failing(table)


def slow_score(table: Table) -> None:
    """The node that scores takes as long as a model, eleven times what its profile says."""
    table["truth"]["score"]["times"] = {"1": "60ms"}


def two_of_three(table: Table) -> None:
    """Memory for two of the models; to load one takes as long as to run it once."""
    for name in ensemble.MODELS:
        table["model"][name].update(memory="100MB", load="60ms")
    for name in ("score", "vote"):
        table["model"][name]["memory"] = "1MB"
    table["device"] = {"cpu": {"memory": "210MB"}}


def shared_models(table: Table) -> None:
    """A second ensemble asks two of the models as well, a third as often."""
    row = [0.0, 0.93, 0.95, 1.0]
    nodes = [
        {"name": "m0", "after": []},
        {"name": "m1", "after": []},
        {"name": "vote", "after": ["m0", "m1"], "join": "policy"},
    ]
    query = table["app"]["query"]
    table["app"]["pair"] = {
        "policy": "ensemble",
        "slo": query["slo"],
        "on_late": query["on_late"],
        "node": nodes,
        "ensemble": {"models": ["m0", "m1"], "agreement": [row]},
    }
    table["workload"]["pair"] = {"app": "pair", "rate": 2.0}


def fit_of_other_data(profile: EnsembleProfile) -> EnsembleProfile:
    """A profile fitted for the same models in another order: the weakest is thought the best."""
    order = (2, 0, 1)

    def moved(subset: int) -> int:
        return sum([1 << model for place, model in enumerate(order) if subset >> place & 1])

    rows = tuple(tuple(row[moved(subset)] for subset in range(len(row))) for row in profile.agreement)
    return replace(profile, agreement=rows, observed={}, score_edges=())


CASES: Mapping[str, Callable[[Table], None]] = {
    "nothing wrong": lambda table: None,
    "no fit": no_fit,
    "difficulty tells nothing": lambda table: None,
    "fit of other data": lambda table: None,
    "one model slow": slow,
    "one model fails": failing,
    "one model slow and fails": slow_and_failing,
    "slow score": slow_score,
    "memory for two of three": two_of_three,
    "two ensembles share models": shared_models,
}
MISLEADING = ("difficulty tells nothing", "fit of other data")


def run_case(
    name: str,
    system: System,
    place: str,
    load: float,
    seed: int,
    directory: str,
    profile: EnsembleProfile,
    seconds: float,
) -> Result:
    """One policy in one case."""
    rate, shared = PLACES[place]
    items = ensemble.draw_items(ITEMS, seed)
    if name == "difficulty tells nothing":
        items = items._replace(predicted=np.random.default_rng(seed).permutation(items.predicted))
    arrivals = world.steady(seed, ITEMS, rate * load, seconds)
    path, lasts_s = world.trace_path(
        directory,
        arrivals,
        items,
        "predicted",
        f"{seed}-{place}-{load}{name if name in MISLEADING else ''}".replace(" ", "_"),
    )
    table = world.scenario_of(system, path, profile, DEADLINE_MS, lasts_s, on_late="partial", shared=shared)
    if name == "fit of other data":
        table["app"]["query"]["ensemble"] = ensemble_table(fit_of_other_data(profile))
    CASES[name](table)
    return world.run(table, items, seed)


def run_all(
    cases: Sequence[str], seeds: Sequence[int], seconds: float, loads: Sequence[float], checks: Checks
) -> Dict[str, Any]:
    """Every case: value in time, percent, per policy."""
    found: Dict[str, Any] = {}
    profile = ensemble.fit(ensemble.history())
    print(f"{'value in time, %':52}" + "".join(f"{key:>14}" for key in world.RIVALS))
    with tempfile.TemporaryDirectory() as directory:
        for name in cases:
            for place in PLACES:
                for load in loads:
                    values: Dict[str, float] = {}
                    for key, system in world.RIVALS.items():
                        rows: List[float] = [
                            run_case(name, system, place, load, seed, directory, profile, seconds).value
                            for seed in seeds
                        ]
                        values[key] = 100 * sum(rows) / len(rows)
                    what = f"{name}, {place}, load {load}"
                    found[what] = values
                    print(f"{what:52}" + "".join(f"{value:14.1f}" for value in values.values()), flush=True)
                    others = STATIC if name in MISLEADING else [key for key in values if key != "plan"]
                    checks.at_least(
                        f"{what}: plan against the best {'static' if name in MISLEADING else 'other'}",
                        values["plan"] - max(values[key] for key in others),
                        -BEHIND,
                        OURS,
                    )
    return found


def main() -> int:
    parser = arguments(__doc__, quick="one seed, one load, half of the time")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    seeds = list(range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds)))
    seconds = 20.0 if args.quick else 40.0
    ensemble.need_digits()
    checks = checks_of(SCRIPT, args.quick)
    results = run_all(args.only, seeds, seconds, LOADS[-1:] if args.quick else LOADS, checks)
    return checks.finish(
        args.json,
        {"first_seed": seeds[0], "seeds": len(seeds), "seconds": seconds},
        results=results,
    )


if __name__ == "__main__":
    sys.exit(main())
