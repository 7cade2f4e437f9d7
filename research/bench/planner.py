"""How long the planner of ensembles takes: random local problems, tight and loose, on lanes of their own and on one.

    python research/bench/planner.py [--quick] [--json FILE]

Processor time of one core, so that other processes on the machine do not count; the core that runs is printed
(interpreted or compiled). Deadlines are 1.2 to 3 executions (tight) or up to 0.6 per request (loose).
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib.checks import Checks, arguments

from edgeserve import compiled
from edgeserve.config.ensemble_profile import monotone
from edgeserve.sched.published.schemble.planner import BOUNDED, ProblemPlanner
from edgeserve.sched.published.schemble.problem import REWARD_UNIT, AskedRequest, Lanes, ModelChoice

SCRIPT = "research/bench/planner.py"
TIMES_MS = (40, 75, 85, 60, 50, 70)
CASES = ((3, 4), (3, 16), (3, 64), (4, 16), (6, 8))
GOAL_MS = {(3, 16): 1.0, (3, 64): 5.0}
MS = 10**6


def drawn(seed: int, count: int, models: int, executions: float, shared: bool) -> Tuple[Lanes, List[AskedRequest]]:
    """One local problem."""
    draw = random.Random(f"{seed}/{count}/{models}/{executions}/{shared}")
    times = tuple(time_ms * MS for time_ms in TIMES_MS[:models])
    mean_ns = sum(times) // models
    free = ((0,),) if shared else tuple((draw.randrange(40 * MS),) for _ in range(models))
    asked = []
    for due_ns in sorted(round(draw.uniform(1.2, executions) * mean_ns) for _ in range(count)):
        row = monotone([1 - 0.12 * (0.6 * draw.random()) ** bin(subset).count("1") for subset in range(1 << models)])
        asked.append(
            AskedRequest(
                due_ns, [ModelChoice(subset, round(row[subset] * REWARD_UNIT)) for subset in range(1, 1 << models)]
            )
        )
    return Lanes((0,) * models if shared else tuple(range(models)), times, free, (1,) * models), asked


def measure(count: int, models: int, executions: float, shared: bool, runs: int) -> Tuple[float, float, int, float]:
    """Median and 95th percentile in ms, how many plans were cut short, and the median of cells."""
    taken, cells, cut = [], [], 0
    for seed in range(runs):
        lanes, asked = drawn(seed, count, models, executions, shared)
        planner = ProblemPlanner()
        began = time.process_time()
        plan = planner.plan(lanes, asked)
        taken.append(1e3 * (time.process_time() - began))
        cells.append(plan.cells)
        cut += plan.method == BOUNDED
    taken.sort()
    return median(taken), taken[int(0.95 * len(taken))], cut, median(cells)


def main() -> int:
    parser = arguments(__doc__, quick="fewer problems")
    args = parser.parse_args()
    checks = Checks(SCRIPT)
    rows, runs = [], 20 if args.quick else 100
    print(f"core: {compiled.running()}")
    print(
        f"{'lanes':8}{'models':>7}{'requests':>9}{'deadlines':>11}{'median ms':>11}{'95 % ms':>9}{'cut short':>11}"
        f"{'cells':>8}"
    )
    for shared in (False, True):
        for models, count in CASES:
            for name, executions in (("tight", 3.0), ("loose", max(3.0, 0.6 * count))):
                found = measure(count, models, executions, shared, runs)
                place = "one" if shared else "own"
                print(
                    f"{place:8}{models:7}{count:9}{name:>11}{found[0]:11.2f}{found[1]:9.2f}{found[2]:11}{found[3]:8.0f}",
                    flush=True,
                )
                rows.append([place, models, count, name, *found, runs])
                if (models, count) in GOAL_MS:
                    checks.at_most(
                        f"{place}: {count} requests, {models} models, {name}: median ms",
                        found[0],
                        GOAL_MS[models, count],
                    )
    return checks.finish(args.json, {"core": compiled.running().kind}, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
